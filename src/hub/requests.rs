//! Requests of clients: begin and end of a session, delivery of messages, attachment of readers.
//!
//! These requests belong to this replica. Not here: the replica that a session belongs to
//! (`locate`), and HTTP.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use aws_lc_rs::rand::SecureRandom;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    core::{
        Attach, AttachAt, COMMANDS, Command, Core, Delivery, Handle, SessionStores, Sessions,
        Stores, ToolDigests, Transport, check_initialize, secret_source, sweep,
    },
    limits::{CallSeats, Limits, MemoryBudgets, Seats},
    ownership::{Claims, STORE_AWAY, Unresponsive, is_of, places},
    session::{Session, SessionRecord},
    stream::{Form, LogOnlyStream, Pending, Reader, SessionLog},
};
use crate::{
    auth::{Access, policy},
    backend::{
        Pool, PoolSources, StartFailure, TokenSource,
        child::{ChildSeats, ChildStatus, Launcher, Wanted},
        prepare::PreparationStatus,
        renew_tokens,
        shared::SharedChildren,
    },
    config::{Config, most_children},
    declare::{Catalog, Server},
    error::Error,
    protocol::{Body, Cursor, Message, Revision},
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{Fence, SessionId},
    telemetry::{Metrics, Resumed, TraceContext, Traces},
};

/// The sessions of this replica; clones are the same hub.
#[derive(Clone)]
pub(crate) struct Hub(pub(crate) Arc<Core>);

/// The parts of a hub.
pub(crate) struct HubParts {
    /// The event log, the directory, the limiter and the lease.
    pub(crate) stores: Stores,
    /// The configuration.
    pub(crate) config: Arc<Config>,
    /// The source of session ids.
    pub(crate) random: Arc<dyn SecureRandom + Send + Sync>,
    /// Starts children.
    pub(crate) launcher: Launcher,
    /// The declared tenants and servers, as requests read them.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// The audit trail.
    pub(crate) audit: AuditQueue,
    /// The access tokens of people at upstreams.
    pub(crate) tokens: TokenSource,
    /// The metrics of the gateway.
    pub(crate) metrics: Arc<Metrics>,
    /// The traces of the gateway.
    pub(crate) traces: Traces,
    /// Cancelled when no session may begin any more, and sessions end with their calls.
    pub(crate) drain: CancellationToken,
    /// Cancelled when all sessions end.
    pub(crate) halt: CancellationToken,
    /// The tasks of the hub.
    pub(crate) tracker: TaskTracker,
}

fn limits(
    stores: &Stores,
    memory: Arc<MemoryBudgets>,
    (metrics, tracker, halt): (&Arc<Metrics>, &TaskTracker, &CancellationToken),
) -> Arc<Limits> {
    Limits::new(
        Arc::clone(&stores.limiter),
        !stores.owner.is_alone(),
        memory,
        Arc::clone(metrics),
        tracker.clone(),
        halt.clone(),
    )
}

/// The directories that the servers of all tenants may write: collected once from each catalogue.
fn written(
    snapshot: Arc<CurrentSnapshot>,
) -> impl Fn() -> Arc<BTreeSet<PathBuf>> + Send + Sync + 'static {
    type Last = (Weak<Catalog>, Arc<BTreeSet<PathBuf>>);
    let last: RwLock<Last> = RwLock::default();
    move || {
        let catalog = snapshot.catalog();
        let (of, known) = last.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Its address is no other's as long as there is this reference.
        if std::ptr::eq(of.as_ptr(), Arc::as_ptr(&catalog)) {
            return known;
        }
        let servers = catalog.servers();
        let dirs = servers.flat_map(|server| &server.launch.confinement.write);
        let found: BTreeSet<PathBuf> = dirs.cloned().collect();
        // The same set as long as it is equal: what was seen of it counts on.
        let dirs = if *known == found {
            known
        } else {
            Arc::new(found)
        };
        let mut last = last.write().unwrap_or_else(PoisonError::into_inner);
        *last = (Arc::downgrade(&catalog), Arc::clone(&dirs));
        dirs
    }
}

fn pool(
    launcher: Launcher,
    config: &Config,
    (random, memory): (&Arc<dyn SecureRandom + Send + Sync>, Arc<MemoryBudgets>),
    (snapshot, tokens): (&Arc<CurrentSnapshot>, TokenSource),
    (metrics, tracker, halt): (&Arc<Metrics>, &TaskTracker, &CancellationToken),
    (traces, drain): (&Traces, &CancellationToken),
) -> (Arc<Pool>, mpsc::Receiver<Wanted>) {
    launcher.sandbox.know_written(written(Arc::clone(snapshot)));
    let (uids, separation) = (config.sandbox.uids, config.sandbox.separation);
    let most = most_children(uids, separation, config.spawn.children);
    let (seats, wanted) = ChildSeats::new(most);
    let pool = Pool::new(
        launcher,
        config.spawn,
        Arc::clone(random),
        PoolSources {
            seats,
            memory: Arc::new(move |tenant: &str| memory.tenant(tenant)),
            secrets: secret_source(Arc::clone(snapshot), Arc::clone(&tokens)),
        },
        (Arc::clone(metrics), traces.clone()),
        tracker.clone(),
        drain.clone(),
    );
    let renewing = renew_tokens(Arc::clone(&pool.registry), tokens, snapshot.clock().clone());
    let renewing = drain.clone().run_until_cancelled_owned(renewing);
    tracker.spawn(halt.clone().run_until_cancelled_owned(renewing));
    let registry = Arc::clone(&pool.registry);
    snapshot.on_secret_change(move |change| match change {
        Some((number, change)) => registry.secret_changed(number, change),
        None => registry.replace_those_with_secrets(),
    });
    let seats = Arc::clone(&pool.registry.seats);
    tracker.spawn(seats.watch([drain.clone(), halt.clone()]));
    (Arc::new(pool), wanted)
}

impl Hub {
    /// A hub without sessions.
    pub(crate) fn new(parts: HubParts) -> Self {
        let HubParts {
            stores,
            config,
            random,
            launcher,
            snapshot,
            audit,
            tokens,
            metrics,
            traces,
            drain,
            halt,
            tracker,
        } = parts;
        let memory = MemoryBudgets::new(&config);
        let of_hub = (&metrics, &tracker, &halt);
        let limits = limits(&stores, Arc::clone(&memory), of_hub);
        let (pool, wanted) = pool(
            launcher,
            &config,
            (&random, memory),
            (&snapshot, tokens),
            of_hub,
            (&traces, &drain),
        );
        let stops = || [drain.clone(), halt.clone()];
        let local = SessionStores::in_memory(&config);
        tracker.spawn(sweep(Arc::clone(&stores.log), stops()));
        tracker.spawn(sweep(Arc::clone(&local.log), stops()));
        let [drained, halted] = stops();
        let shared_children =
            SharedChildren::new(Arc::clone(&pool), tracker.clone(), drained, halted);
        let hub = Self(Arc::new(Core {
            log: stores.log,
            directory: stores.directory,
            owner: stores.owner,
            local,
            patience: stores.patience,
            places: places(),
            claims: Claims::default(),
            unresponsive: Unresponsive::default(),
            sessions: Sessions::default(),
            snapshot,
            followed: RwLock::default(),
            key: stores.key,
            random,
            config,
            pool,
            shared_children,
            tools: ToolDigests::default(),
            limits,
            metrics,
            traces,
            audit,
            tracker,
            drain,
            halt,
        }));
        hub.reclaim_for(wanted);
        hub
    }

    /// The limits of tenants, principals and addresses.
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.0.limits
    }

    /// Starts the preparations of all servers.
    pub(crate) fn prepare(&self, catalog: &Catalog) {
        let tenants = catalog.tenants.values();
        let servers = tenants.flat_map(|tenant| tenant.servers.values());
        self.0
            .pool
            .preparations
            .prepare_all(servers.cloned().collect());
    }

    /// Every preparation that was requested.
    pub(crate) fn prepared(&self) -> Vec<PreparationStatus> {
        self.0.pool.preparations.list()
    }

    /// The last failed start of a server that has not started since.
    pub(crate) fn failure(&self, server: &Server) -> Option<Arc<StartFailure>> {
        self.0.pool.failure(server)
    }

    /// Every running child, oldest first; reads `/proc`.
    pub(crate) fn children(&self) -> Vec<ChildStatus> {
        self.0.pool.registry.list(|_| true)
    }

    /// The running children of some tenants and servers, which `is_wanted` is asked by their names; reads `/proc`.
    pub(crate) fn children_of(&self, is_wanted: impl Fn([&str; 2]) -> bool) -> Vec<ChildStatus> {
        self.0.pool.registry.list(is_wanted)
    }

    /// The number of children of a server.
    pub(crate) fn child_count(&self, tenant: &str, server: &str) -> usize {
        self.0.pool.registry.count(tenant, server)
    }

    /// Begins a session of this transport with an `initialize`; returns the wait for its answer.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`; a failure of the child is an `Answer::Failed`.
    pub(crate) async fn begin_with(
        &self,
        access: &Access,
        transport: Transport,
        message: Message,
        form: Form,
        trace: Option<TraceContext>,
    ) -> Result<(SessionId, Handle, Pending), Error> {
        check_initialize(&message)?;
        let (id, handle) = self.begin(access, transport).await?;
        let body = Body::One(message);
        let marks = (None, trace);
        let pending = deliver(&handle, access, body, form, (CallSeats::new(), marks)).await?;
        Ok((id, handle, pending))
    }

    /// Attaches a connection to the listener of a session of this replica, from now on.
    ///
    /// # Errors
    ///
    /// `NoSession` for a session that has ended; `Quota`.
    pub(crate) async fn listen(&self, handle: &Handle, access: &Access) -> Result<Reader, Error> {
        let seats = self.0.limits.stream(access).await?;
        let mut reader = self.read(handle).await?;
        reader.hold(seats);
        Ok(reader)
    }

    /// Reads the listener of a session of this replica from now on, for the gateway itself.
    ///
    /// # Errors
    ///
    /// `NoSession` for a session that has ended.
    pub(crate) async fn read(&self, handle: &Handle) -> Result<Reader, Error> {
        let attached = attach(handle, AttachAt::Listener).await?;
        attached.ok_or(Error::NoSession)
    }

    /// Begins a session whose only stream is its listener (HTTP+SSE of 2024-11-05).
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`; `Busy` where the store does not take it.
    pub(crate) async fn connect(&self, access: &Access) -> Result<(SessionId, Reader), Error> {
        let seats = self.0.limits.stream(access).await?;
        let (id, handle) = self.begin(access, Transport::Sse2024).await?;
        let reader = match attach(&handle, AttachAt::Listener).await {
            // The store could not be told of it. Clients take a 404 here for the end.
            Err(Error::NoSession) if !self.0.owner.is_alone() => {
                self.0.renewed(access)?;
                return Err(STORE_AWAY);
            }
            attached => attached?,
        };
        let mut reader = reader.ok_or(Error::NoSession)?;
        reader.hold(seats);
        Ok((id, reader))
    }

    async fn begin(
        &self,
        access: &Access,
        transport: Transport,
    ) -> Result<(SessionId, Handle), Error> {
        let core = &self.0;
        if core.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        if transport != Transport::Stateless {
            core.owner.check()?;
        }
        let place = core.limits.session(access).await?;
        let id = core.new_session_id()?;
        let (commands, received) = mpsc::channel(COMMANDS);
        let handle = Handle {
            commands,
            access: Arc::new(access.clone()),
            transport,
            born: Instant::now(),
            fence: Fence(1),
        };
        let session = Session::new(Arc::clone(core), id.clone(), access, handle.clone(), place);
        core.tracker.spawn(session.run(received));
        Ok((id, handle))
    }

    /// Delivers a body, with the revision of its header and its trace, to a session; returns the wait for
    /// its answer.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Scopes` for an access without the required
    /// scopes; `Quota`.
    pub(crate) async fn deliver(
        &self,
        access: &Access,
        transport: Transport,
        id: &str,
        body: Body,
        form: Form,
        marks: (Option<Revision>, Option<TraceContext>),
    ) -> Result<Pending, Error> {
        let handle = self.here(access, transport, id).await?;
        match self.deliver_to(&handle, access, body, form, marks).await {
            Err(Error::NoSession) => Err(self.gone(access, id).await),
            delivered => delivered,
        }
    }

    /// Delivers a body of a client to a session of this replica; returns the wait for its answer. The access is judged
    /// anew: the head of the request may have come long before.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::deliver`]; `NoSession` for a session that has ended, and an access that is no longer valid.
    pub(crate) async fn deliver_to(
        &self,
        handle: &Handle,
        access: &Access,
        body: Body,
        form: Form,
        marks: (Option<Revision>, Option<TraceContext>),
    ) -> Result<Pending, Error> {
        let newer = self.0.newer(access)?;
        let access = newer.as_deref().unwrap_or(access);
        self.send_to(handle, access, body, form, marks).await
    }

    /// Delivers a body as [`Hub::deliver_to`], whatever the access is worth by now: one of the gateway itself, such as the
    /// cancellation of a call whose caller may not make another.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::deliver`]; `NoSession` for a session that has ended.
    pub(crate) async fn send_to(
        &self,
        handle: &Handle,
        access: &Access,
        body: Body,
        form: Form,
        marks: (Option<Revision>, Option<TraceContext>),
    ) -> Result<Pending, Error> {
        let core = &self.0;
        if let Some(needed) = policy::missing_scopes(access, &body) {
            return Err(Error::Scopes(needed));
        }
        let calls = core.limits.calls(access, &body)?;
        let may_stream = form != Form::Json && handle.transport != Transport::Sse2024;
        let seats = if may_stream && !calls.is_empty() {
            core.limits.seats_for_post(access).await?
        } else {
            Seats::new()
        };
        let mut pending = deliver(handle, access, body, form, (calls, marks)).await?;
        pending.seats = seats;
        pending.limits = Some((Arc::clone(&core.limits), access.clone()));
        Ok(pending)
    }

    /// Attaches a connection to a session's listener, or to the stream of `last_event_id`.
    ///
    /// # Errors
    ///
    /// `NoSession`; `Quota`; `NoCursor` or `Gone` for a bad or trimmed cursor; `Ok(None)` at the
    /// end of a stream that has ended.
    pub(crate) async fn attach(
        &self,
        access: &Access,
        transport: Transport,
        id: &str,
        last_event_id: Option<&[u8]>,
    ) -> Result<Option<Reader>, Error> {
        let handle = self.here(access, transport, id).await?;
        let decode = |text| self.0.key.decode(id, text).ok_or(Error::NoCursor);
        let cursor: Option<Cursor> = last_event_id.map(decode).transpose()?;
        let seats = self.0.limits.stream(access).await?;
        let at = cursor.map_or(AttachAt::Listener, AttachAt::Event);
        let mut reader = match attach(&handle, at).await {
            Err(Error::NoSession) => return Err(self.gone(access, id).await),
            attached => {
                if cursor.is_some() {
                    self.0.metrics.streams_resumed.add(resumed(&attached));
                }
                attached?
            }
        };
        if let Some(reader) = &mut reader {
            reader.hold(seats);
        }
        Ok(reader)
    }

    /// Attaches a connection that is at the end of a stream that has ended to the session's listener, if that has been
    /// abandoned: its client keeps one event id for all of its streams.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::attach`]; `Ok(None)` where the listener has not been abandoned.
    pub(crate) async fn attach_to_abandoned(
        &self,
        access: &Access,
        transport: Transport,
        id: &str,
    ) -> Result<Option<Reader>, Error> {
        let handle = self.here(access, transport, id).await?;
        let seats = self.0.limits.stream(access).await?;
        let mut reader = match attach(&handle, AttachAt::AbandonedListener).await {
            Err(Error::NoSession) => return Err(self.gone(access, id).await),
            attached => attached?,
        };
        if let Some(reader) = &mut reader {
            reader.hold(seats);
        }
        Ok(reader)
    }

    /// Reads behind an event from the log, without the owner of the session; none at the end of a
    /// stream that has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::attach`]; `Busy` while the store is away.
    pub(crate) async fn read_log(
        &self,
        access: &Access,
        id: &str,
        last_event_id: &[u8],
    ) -> Result<Option<LogOnlyStream>, Error> {
        let core = &self.0;
        let session = SessionId(id.into());
        let found = core
            .directory
            .find(&session)
            .await
            .map_err(|_| STORE_AWAY)?;
        let Some(found) = found.filter(|found| is_of(found, access)) else {
            return Err(self.missing().await);
        };
        let cursor = core.key.decode(id, last_event_id).ok_or(Error::NoCursor)?;
        let seats = core.limits.stream(access).await?;
        let record = SessionRecord::parse(&found.record.kept);
        let revision = record.and_then(|record| record.revision());
        let log = SessionLog {
            log: Arc::clone(&core.log),
            owner: Arc::clone(&core.owner),
            key: core.key.clone(),
            session,
            share: core.limits.memory().session(access),
            withdrawn: Arc::default(),
        };
        let begun = LogOnlyStream::begin(log, cursor, revision, seats).await;
        core.metrics.streams_resumed.add(resumed(&begun));
        begun
    }

    /// Whether the session belongs to the principal, on either transport.
    pub(crate) fn has(&self, access: &Access, id: &str) -> bool {
        self.0.find(access, id).is_ok()
    }

    /// Ends a session of Streamable HTTP; returns once no request can find it.
    ///
    /// # Errors
    ///
    /// `NoSession`; `Moved` if another replica continues it.
    pub(crate) async fn end(&self, access: &Access, id: &str) -> Result<(), Error> {
        let handle = self.here(access, Transport::Streamable, id).await?;
        let (done, ended) = oneshot::channel();
        // A session that ends by itself drops the command, wherever that is, and may live on elsewhere.
        let is_sent = handle.commands.send(Command::End(done)).await.is_ok();
        match ended.await {
            Ok(ended) if is_sent => ended,
            _ => Err(self.gone(access, id).await),
        }
    }
}

async fn deliver(
    handle: &Handle,
    access: &Access,
    body: Body,
    form: Form,
    (calls, (header, trace)): (CallSeats, (Option<Revision>, Option<TraceContext>)),
) -> Result<Pending, Error> {
    let (reply, answer) = oneshot::channel();
    let delivery = Box::new(Delivery {
        body,
        form,
        policy: Arc::clone(access.policy()),
        calls,
        header,
        trace,
        reply,
    });
    let sent = handle.commands.send(Command::Deliver(delivery)).await;
    sent.map_err(|_| Error::NoSession)?;
    Ok(Pending {
        reply: answer,
        seats: Seats::new(),
        limits: None,
    })
}

/// The outcome of a resumption, for the metrics.
fn resumed<T>(result: &Result<Option<T>, Error>) -> Resumed {
    match result {
        Ok(Some(_)) => Resumed::Continued,
        Ok(None) => Resumed::Ended,
        Err(Error::Gone | Error::NoCursor) => Resumed::Lost,
        Err(_) => Resumed::Refused,
    }
}

async fn attach(handle: &Handle, at: AttachAt) -> Result<Option<Reader>, Error> {
    let (reply, answer) = oneshot::channel();
    let attach = Box::new(Attach { at, reply });
    let sent = handle.commands.send(Command::Attach(attach)).await;
    sent.map_err(|_| Error::NoSession)?;
    answer.await.unwrap_or(Err(Error::NoSession))
}

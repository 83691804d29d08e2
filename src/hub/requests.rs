//! Requests of clients: begins sessions, delivers messages to them, attaches readers and ends
//! them.
//!
//! `takeover` says which replica a request belongs to; here it is this one. Not here: HTTP.

use std::sync::{Arc, RwLock};

use aws_lc_rs::rand::SecureRandom;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    core::{
        COMMANDS, Command, Core, Delivery, Handle, Sessions, Stores, ToolDigests, Transport,
        check_initialize,
    },
    limits::{Limits, Seats},
    ownership::{Claims, Unresponsive, places},
    session::Session,
    stream::{Answer, Form, Pending, Reading},
};
use crate::{
    auth::{Access, policy},
    backend::{
        Pool,
        child::{Launcher, Restart, Seen},
        prepare::Prepared,
        shared::Shares,
    },
    config::Config,
    declare::Catalog,
    error::Error,
    protocol::{Body, Cursor, Message},
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{Fence, SessionId},
    telemetry::Metrics,
};

/// The sessions of this replica and the ways to them; clones are the same hub.
#[derive(Clone)]
pub(crate) struct Hub(pub(crate) Arc<Core>);

impl Hub {
    /// A hub without sessions.
    pub(crate) fn new(
        stores: Stores,
        (config, random): (Arc<Config>, Arc<dyn SecureRandom + Send + Sync>),
        launcher: Launcher,
        (snapshot, audit): (Arc<CurrentSnapshot>, AuditQueue),
        metrics: Arc<Metrics>,
        (drain, halt): (CancellationToken, CancellationToken),
        tracker: TaskTracker,
    ) -> Self {
        let limits = Limits::new(
            (stores.limiter, !stores.owner.is_alone()),
            Arc::clone(&metrics),
            tracker.clone(),
            halt.clone(),
        );
        let pool = Arc::new(Pool::new(
            launcher,
            config.spawn,
            Arc::clone(&random),
            Arc::clone(&metrics),
            tracker.clone(),
            drain.clone(),
        ));
        tracker.spawn(Arc::clone(&pool.registry).watch([drain.clone(), halt.clone()]));
        let shares = Shares::new(
            Arc::clone(&pool),
            tracker.clone(),
            drain.clone(),
            halt.clone(),
        );
        Self(Arc::new(Core {
            log: stores.log,
            directory: stores.directory,
            owner: stores.owner,
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
            shares,
            tools: ToolDigests::default(),
            limits,
            metrics,
            audit,
            tracker,
            drain,
            halt,
        }))
    }

    /// The limits of tenants, principals and addresses.
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.0.limits
    }

    /// Begins the preparations of all servers.
    pub(crate) fn prepare(&self, catalog: &Catalog) {
        let tenants = catalog.tenants.values();
        let servers = tenants.flat_map(|tenant| tenant.servers.values());
        self.0
            .pool
            .preparations
            .prepare_all(servers.cloned().collect());
    }

    /// Every preparation that was asked for.
    pub(crate) fn prepared(&self) -> Vec<Prepared> {
        self.0.pool.preparations.list()
    }

    /// Every child that runs, oldest first; reads `/proc`.
    pub(crate) fn children(&self) -> Vec<Seen> {
        self.0.pool.registry.list()
    }

    /// Ends the children of a server, which their sessions replace by new ones at their next
    /// request. Returns how many there were.
    pub(crate) fn restart(&self, tenant: &str, server: &str, how: Restart) -> usize {
        self.0.pool.registry.restart(tenant, server, how)
    }

    /// Begins a session with its `initialize` (Streamable HTTP).
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`; a failure of the child is an [`Answer::Failed`].
    pub(crate) async fn initialize(
        &self,
        access: &Access,
        message: Message,
        form: Form,
    ) -> Result<(SessionId, Answer), Error> {
        check_initialize(&message)?;
        let (id, handle) = self.begin(access, Transport::Streamable).await?;
        let body = Body::One(message);
        let pending = deliver(&handle, access, body, form, Vec::new()).await?;
        Ok((id, pending.answer().await))
    }

    /// Begins a session whose one stream is its listener (HTTP+SSE of 2024-11-05).
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`.
    pub(crate) async fn connect(&self, access: &Access) -> Result<(SessionId, Reading), Error> {
        let seats = self.0.limits.stream(access).await?;
        let (id, handle) = self.begin(access, Transport::Sse2024).await?;
        self.0.sessions.insert(&id, handle.clone());
        self.0.tell(&handle).await;
        let reading = attach(&handle, None).await?;
        let mut reading = reading.ok_or(Error::NoSession)?;
        reading.hold(seats);
        Ok((id, reading))
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
        core.owner.check()?;
        let seats = core.limits.session(access).await?;
        let id = core.new_id()?;
        let (commands, received) = mpsc::channel(COMMANDS);
        let handle = Handle {
            commands,
            access: Arc::new(access.clone()),
            transport,
            born: Instant::now(),
            fence: Fence(1),
        };
        let session = Session::new(Arc::clone(core), id.clone(), access, handle.clone(), seats);
        core.tracker.spawn(session.run(received));
        Ok((id, handle))
    }

    /// Delivers a body to a session. The answer may be waited for.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Scopes` where those of the access do
    /// not suffice; `Quota`.
    pub(crate) async fn deliver(
        &self,
        access: &Access,
        (transport, id): (Transport, &str),
        body: Body,
        form: Form,
    ) -> Result<Pending, Error> {
        let core = &self.0;
        let handle = self.here(access, (transport, id)).await?;
        if let Some(needed) = policy::missing_scopes(access, &body) {
            return Err(Error::Scopes(needed));
        }
        let calls = core.limits.calls(access, &body)?;
        let may_stream = form != Form::Json && handle.transport == Transport::Streamable;
        let seats = if may_stream && !calls.is_empty() {
            core.limits.post(access).await?
        } else {
            Seats::new()
        };
        let delivered = deliver(&handle, access, body, form, calls).await;
        let mut pending = match delivered {
            Err(Error::NoSession) => return Err(self.gone(access, id).await),
            delivered => delivered?,
        };
        pending.seats = seats;
        pending.whose = Some((Arc::clone(&core.limits), access.clone()));
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
        (transport, id): (Transport, &str),
        last_event_id: Option<&[u8]>,
    ) -> Result<Option<Reading>, Error> {
        let handle = self.here(access, (transport, id)).await?;
        let decode = |text| self.0.key.decode(id, text).ok_or(Error::NoCursor);
        let cursor: Option<Cursor> = last_event_id.map(decode).transpose()?;
        let seats = self.0.limits.stream(access).await?;
        let mut reading = match attach(&handle, cursor).await {
            Err(Error::NoSession) => return Err(self.gone(access, id).await),
            attached => attached?,
        };
        if let Some(reading) = &mut reading {
            reading.hold(seats);
        }
        Ok(reading)
    }

    /// Whether the principal has this session, on either transport.
    pub(crate) fn has(&self, access: &Access, id: &str) -> bool {
        self.0.find(access, id).is_ok()
    }

    /// Ends a session of Streamable HTTP; returns once no request can find it.
    ///
    /// # Errors
    ///
    /// `NoSession`.
    pub(crate) async fn end(&self, access: &Access, id: &str) -> Result<(), Error> {
        let handle = self.here(access, (Transport::Streamable, id)).await?;
        let (done, ended) = oneshot::channel();
        handle
            .commands
            .send(Command::End(done))
            .await
            .map_err(|_| Error::NoSession)?;
        ended.await.map_err(|_| Error::NoSession)
    }
}

async fn deliver(
    handle: &Handle,
    access: &Access,
    body: Body,
    form: Form,
    calls: Vec<Seats>,
) -> Result<Pending, Error> {
    let (reply, answer) = oneshot::channel();
    let delivery = Box::new(Delivery {
        body,
        form,
        policy: Arc::clone(&access.server().policy),
        calls,
        reply,
    });
    let sent = handle.commands.send(Command::Deliver(delivery)).await;
    sent.map_err(|_| Error::NoSession)?;
    Ok(Pending {
        reply: answer,
        seats: Seats::new(),
        whose: None,
    })
}

async fn attach(handle: &Handle, cursor: Option<Cursor>) -> Result<Option<Reading>, Error> {
    let (reply, answer) = oneshot::channel();
    let attach = Command::Attach { cursor, reply };
    let sent = handle.commands.send(attach).await;
    sent.map_err(|_| Error::NoSession)?;
    answer.await.unwrap_or(Err(Error::NoSession))
}

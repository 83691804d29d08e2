//! The core: finds a session, delivers messages to it, reads its streams.
//!
//! `session` is the task that owns one session; `link` is its side of the backend, which
//! `restore` gets, loses and gets again; `streams` are its responses;
//! `routes` decides which stream a message of the child goes to; `reading` is one
//! connection's place in a stream. Nothing here knows HTTP.

use super::ownership::place;
use super::ownership::unresponsive;
use super::tools;
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use aws_lc_rs::rand::SecureRandom;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    auth::{Access, policy},
    backend::{
        Pool,
        child::{Launcher, Restart, Seen},
        prepare::{Preparations, Prepared},
        shared::Shares,
    },
    config::Config,
    declare::Catalog,
    error::Error,
    protocol::{Body, Cursor, EventKey, Message},
    snapshot::{Live, Trail},
    state::{Directory, EventLog, Fence, SessionId},
    telemetry::Metrics,
};

use super::answer::{Answer, Form, Pending};
use super::limits::{Limits, Seats};
use super::ownership::Owner;
use super::stream::Reading;

use super::session::Transport;
use super::session::{Command, Delivery, Session};
use super::stores::{Patience, Stores};

/// A handle on the core; clones are the same hub.
#[derive(Clone)]
pub(crate) struct Hub(pub(crate) Arc<Core>);

/// What all sessions share.
pub(crate) struct Core {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) owner: Arc<Owner>,
    pub(crate) patience: Patience,
    pub(crate) places: place::Places,
    pub(crate) claims: place::Claims,
    pub(crate) silence: unresponsive::Silence,
    pub(crate) sessions: Sessions,
    /// What is declared.
    pub(crate) live: Arc<Live>,
    /// What was declared when children were last told.
    pub(crate) told: std::sync::RwLock<Arc<Catalog>>,
    pub(crate) key: EventKey,
    pub(crate) random: Arc<dyn SecureRandom + Send + Sync>,
    pub(crate) config: Arc<Config>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) tools: tools::Tools,
    pub(crate) limits: Arc<Limits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) trail: Trail,
    pub(crate) tracker: TaskTracker,
    /// No new sessions; those without a call end.
    pub(crate) drain: CancellationToken,
    /// All sessions end now.
    pub(crate) halt: CancellationToken,
}

/// The sessions that this replica owns.
///
/// Read on every request, never held across an await.
type Sessions = std::sync::RwLock<HashMap<SessionId, Handle>>;

/// How to reach a session's task, and who may.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) access: Arc<Access>,
    pub(crate) transport: Transport,
    pub(crate) born: Instant,
    pub(crate) fence: Fence,
}

/// Bytes of an `initialize`.
const INITIALIZE: usize = 64 * 1024;

/// Messages waiting for a session; beyond, senders wait.
pub(crate) const COMMANDS: usize = 64;

impl Hub {
    /// A hub without sessions.
    pub(crate) fn new(
        stores: Stores,
        (config, random): (Arc<Config>, Arc<dyn SecureRandom + Send + Sync>),
        launcher: Launcher,
        (live, trail): (Arc<Live>, Trail),
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
        let prepared = launcher.prepared.clone();
        let pool = Arc::new(Pool::new(
            launcher,
            Preparations::new(prepared, tracker.clone(), drain.clone()),
            config.spawn,
            Arc::clone(&random),
            Arc::clone(&metrics),
        ));
        tracker.spawn(Arc::clone(&pool.roster).watch([drain.clone(), halt.clone()]));
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
            places: place::places(),
            claims: place::Claims::default(),
            silence: unresponsive::Silence::default(),
            sessions: Sessions::default(),
            live,
            told: std::sync::RwLock::default(),
            key: stores.key,
            random,
            config,
            pool,
            shares,
            tools: tools::Tools::default(),
            limits,
            metrics,
            trail,
            tracker,
            drain,
            halt,
        }))
    }

    /// What tenants, principals and addresses may use.
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.0.limits
    }

    /// Begins to prepare what the servers need.
    pub(crate) fn prepare(&self, catalog: &Catalog) {
        let tenants = catalog.tenants.values();
        let servers = tenants.flat_map(|tenant| tenant.servers.values());
        self.0.pool.prepare_all(servers.cloned().collect());
    }

    /// Every preparation that was asked for.
    pub(crate) fn prepared(&self) -> Vec<Prepared> {
        self.0.pool.preparations.list()
    }

    /// Every child that runs, oldest first; reads `/proc`.
    pub(crate) fn children(&self) -> Vec<Seen> {
        self.0.pool.roster.list()
    }

    /// Ends the children of a server, which their sessions replace by new ones at their next
    /// request. Returns how many there were.
    pub(crate) fn restart(&self, tenant: &str, server: &str, how: Restart) -> usize {
        self.0.pool.roster.restart(tenant, server, how)
    }

    /// Begins a session with its `initialize` (Streamable HTTP).
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`; whatever goes wrong with the child is an [`Answer::Failed`].
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
        self.0.keep(&id, handle.clone());
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
        let handle = core.here(access, (transport, id)).await?;
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
            Err(Error::NoSession) => return Err(core.gone(access, id).await),
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
        let handle = self.0.here(access, (transport, id)).await?;
        let decode = |text| self.0.key.decode(id, text).ok_or(Error::NoCursor);
        let cursor: Option<Cursor> = last_event_id.map(decode).transpose()?;
        let seats = self.0.limits.stream(access).await?;
        let mut reading = match attach(&handle, cursor).await {
            Err(Error::NoSession) => return Err(self.0.gone(access, id).await),
            attached => attached?,
        };
        if let Some(reading) = &mut reading {
            reading.hold(seats);
        }
        Ok(reading)
    }

    /// Whether a session of this principal lives, of whichever transport.
    pub(crate) fn has(&self, access: &Access, id: &str) -> bool {
        self.0.find(access, id).is_ok()
    }

    /// Ends a session of Streamable HTTP; returns when nobody can use it any more.
    ///
    /// # Errors
    ///
    /// `NoSession`.
    pub(crate) async fn end(&self, access: &Access, id: &str) -> Result<(), Error> {
        let handle = self.0.here(access, (Transport::Streamable, id)).await?;
        let (done, ended) = oneshot::channel();
        handle
            .commands
            .send(Command::End(done))
            .await
            .map_err(|_| Error::NoSession)?;
        ended.await.map_err(|_| Error::NoSession)
    }
}

/// An `initialize` is kept for as long as its session lives, and told to each of its children.
pub(crate) fn check_initialize(message: &Message) -> Result<(), Error> {
    if message.bytes().len() > INITIALIZE {
        return Err(Error::Invalid("initialize is larger than 64 KiB"));
    }
    Ok(())
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

impl Core {
    pub(crate) fn find(&self, access: &Access, id: &str) -> Result<Handle, Error> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let handle = sessions.get(id).ok_or(Error::NoSession)?;
        let is_own = handle.access.principal() == access.principal()
            && handle.access.server().name == access.server().name;
        if !is_own {
            return Err(Error::NoSession);
        }
        let handle = handle.clone();
        drop(sessions);
        self.owner.check()?;
        if handle.access.joined(access).is_some() {
            self.join(access, id)?;
        }
        Ok(handle)
    }

    pub(crate) fn keep(&self, id: &SessionId, handle: Handle) {
        let mut sessions = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        sessions.insert(id.clone(), handle);
    }

    pub(crate) fn drop_session(&self, id: &SessionId, fence: Fence) -> bool {
        let mut sessions = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // It may have come back under another number before its last task had ended.
        let is_own = sessions.get(id).is_some_and(|own| own.fence == fence);
        let was_there = is_own && sessions.remove(id).is_some();
        // After a flood of sessions the table must not keep its size for ever.
        if sessions.capacity() > 1024 && sessions.len() < sessions.capacity() / 4 {
            sessions.shrink_to_fit();
        }
        was_there
    }

    /// 128 random bits in hexadecimal: visible ASCII (2025-11-25 transports, "Session
    /// Management" 1), and nothing can be read from it.
    fn new_id(&self) -> Result<SessionId, Error> {
        let mut bits = [0; 16];
        self.random
            .fill(&mut bits)
            .map_err(|_| Error::Bug("no randomness"))?;
        let text: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(SessionId(text.into()))
    }
}

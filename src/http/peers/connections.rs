//! Connections to other replicas, one per replica, shared by all requests. A peer proves that it is a
//! replica before it gets one.
//!
//! Not here: sessions and retries. An error tells the caller whether a retry is safe.

use std::{
    collections::HashMap,
    error::Error,
    fmt::Display,
    io,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    connection::{ConnectError, Connection, ResponseBody, SendError, is_broken},
    proof::{self, ProofError},
    stranger::Refusals,
};
use crate::{auth::Access, hub::limits::Owners, state::ReplicaKeys};

/// Connections to all other replicas; a handle.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Pool>);

struct Pool {
    /// By address; never held across an await.
    peers: RwLock<HashMap<Arc<str>, Peer>>,
    keys: ReplicaKeys,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Another replica, by its address; a handle.
#[derive(Clone)]
struct Peer {
    state: Arc<PeerState>,
    /// Requests for a connection, sent to the task that owns it. Senders wait beyond
    /// [`QUEUED_MAX`].
    connection_requests: mpsc::Sender<ConnectionRequest>,
}

/// State of a peer that its task shares. The task must not hold the sender of its own channel:
/// it ends when the last sender is gone.
struct PeerState {
    /// Places for concurrent requests and responses, shared out to callers.
    places: Owners,
    /// The open connection, as far as is known.
    open: RwLock<Option<Connection>>,
    /// Whether the connection was used since the last idle check.
    is_used: AtomicBool,
    /// Connections that an error ended.
    broken: Arc<BrokenConnections>,
}

/// Connections between replicas that an error ended. The log has at most one line of them each second.
pub(crate) struct BrokenConnections(Refusals);

type ConnectionRequest = oneshot::Sender<Result<Connection, SendError>>;

impl Peers {
    /// Makes an empty pool, whose peers prove themselves by `keys`. Its connections run as tasks of
    /// `tracker` and break at `stop`.
    pub(crate) fn new(keys: ReplicaKeys, tracker: TaskTracker, stop: CancellationToken) -> Self {
        let peers = RwLock::default();
        Self(Arc::new(Pool {
            peers,
            keys,
            tracker,
            stop,
        }))
    }

    /// Sends a request of `caller` to the replica at `address` (`host:port`) and waits for the head of
    /// the response. The URI of the request must be absolute.
    ///
    /// # Errors
    ///
    /// The reason why there is no response, which tells whether the request may be sent again.
    pub(crate) async fn send(
        &self,
        address: &Arc<str>,
        caller: &Access,
        request: Request<Bytes>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let peer = self.peer(address);
        let place = peer.state.places.of(caller).draw(1);
        let place = place.ok_or(SendError::Full)?;
        peer.state.is_used.store(true, Ordering::Relaxed);
        let mut connection = peer.connection().await?;
        let response = connection.send(request).await?;
        Ok(response.map(|body| connection.read(body, place)))
    }

    /// Returns whether the replica at `address` refuses connections, which tells that it has ended.
    /// A process that is ending may close its connections before its listener.
    pub(crate) async fn refuses(&self, address: &Arc<str>) -> bool {
        let peer = self.peer(address);
        if let Err(SendError::NotTaken) = peer.connection().await.map(drop) {
            tokio::time::sleep(ENDING).await;
        }
        matches!(peer.connection().await, Err(SendError::Refused))
    }

    fn peer(&self, address: &Arc<str>) -> Peer {
        let pool = &self.0;
        let known = pool.peers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(address) {
            return peer.clone();
        }
        drop(known);
        let mut peers = pool.peers.write().unwrap_or_else(PoisonError::into_inner);
        // Each deployment brings new addresses; unused ones are removed here.
        peers.retain(|_, peer| !peer.state.is_idle());
        let peer = peers.entry(Arc::clone(address)).or_insert_with(|| {
            let (connection_requests, requests) = mpsc::channel(QUEUED_MAX);
            let state = Arc::new(PeerState {
                places: Owners::new(MAX_CONCURRENT),
                open: RwLock::default(),
                is_used: AtomicBool::new(true),
                broken: Arc::new(BrokenConnections::new()),
            });
            let (address, shared) = (Arc::clone(address), Arc::clone(&state));
            let task = own_connection(address, shared, Arc::clone(pool), requests);
            pool.tracker.spawn(task);
            Peer {
                state,
                connection_requests,
            }
        });
        peer.clone()
    }
}

impl Peer {
    /// Returns a working connection, and opens one if there is none.
    async fn connection(&self) -> Result<Connection, SendError> {
        if let Some(connection) = self.state.connection() {
            return Ok(connection);
        }
        let (reply, response) = oneshot::channel();
        let sent = self.connection_requests.send(reply).await;
        sent.map_err(|_| SendError::NotTaken)?;
        response.await.unwrap_or(Err(SendError::NotTaken))
    }
}

impl PeerState {
    fn is_unused(&self) -> bool {
        self.places.used() == 0
    }

    fn is_idle(&self) -> bool {
        self.is_unused() && self.connection().is_none()
    }

    /// Returns the open connection if it works.
    fn connection(&self) -> Option<Connection> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().filter(|open| !open.is_closed()).cloned()
    }

    fn set_connection(&self, connection: Option<Connection>) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}

/// Owns the connection to one peer: opens it on request, and closes it when it is idle.
async fn own_connection(
    address: Arc<str>,
    peer: Arc<PeerState>,
    pool: Arc<Pool>,
    mut requests: mpsc::Receiver<ConnectionRequest>,
) {
    loop {
        let reply = tokio::select! {
            () = pool.stop.cancelled() => break,
            request = timeout(IDLE, requests.recv()) => match request {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(_) => {
                    let is_used = peer.is_used.swap(false, Ordering::Relaxed);
                    if !is_used && peer.is_unused() {
                        peer.set_connection(None);
                    }
                    continue;
                }
            },
        };
        let connected = match peer.connection() {
            Some(open) => Ok(open),
            None => pool.connect(&address, &peer.broken).await,
        };
        peer.set_connection(connected.as_ref().ok().cloned());
        // All requests that are queued by now waited for this attempt, so they share its result.
        let _ = reply.send(connected.clone());
        while let Ok(reply) = requests.try_recv() {
            let _ = reply.send(connected.clone());
        }
    }
    peer.set_connection(None);
}

impl Pool {
    async fn connect(
        &self,
        address: &str,
        broken: &Arc<BrokenConnections>,
    ) -> Result<Connection, SendError> {
        let (peer, broken) = (address.to_owned(), Arc::clone(broken));
        let ended = move |error: &(dyn Error + 'static)| broken.log(&peer, error);
        let opening = Connection::open(address, &self.tracker, &self.stop, ended);
        let connected = timeout(CONNECT, opening).await;
        match connected {
            Ok(Ok(opened)) => self.proved(opened, address).await,
            Ok(Err(ConnectError::Socket(error)))
                if error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                tracing::debug!(address, "a replica refused the connection");
                Err(SendError::Refused)
            }
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "cannot connect to a replica");
                Err(SendError::NotTaken)
            }
            Err(_) => {
                tracing::debug!(address, "a replica does not answer");
                Err(SendError::NotTaken)
            }
        }
    }

    /// Returns the connection once the peer has proved itself.
    async fn proved(&self, opened: Connection, address: &str) -> Result<Connection, SendError> {
        let demand = proof::demand(opened.clone(), &self.keys, address);
        match timeout(PROOF, demand).await {
            Ok(Ok(())) => Ok(opened),
            Ok(Err(ProofError::Connection(SendError::Silent))) | Err(_) => Err(SendError::Silent),
            // No request was sent.
            Ok(Err(ProofError::Connection(_))) => Err(SendError::NotTaken),
            Ok(Err(error)) => {
                tracing::warn!(address, %error, "a peer got no request");
                Err(SendError::NotTaken)
            }
        }
    }
}

impl BrokenConnections {
    pub(crate) fn new() -> Self {
        Self(Refusals::new())
    }

    /// Logs the error that ended a connection to `peer`.
    pub(crate) fn log(&self, peer: &dyn Display, error: &(dyn Error + 'static)) {
        if let Some(count) = is_broken(error).then(|| self.0.count()).flatten() {
            let what = "a connection between replicas broke, with all requests on it";
            tracing::warn!(%peer, error, count, "{what}");
        } else {
            tracing::debug!(%peer, error, "a connection between replicas ended");
        }
    }
}

/// Time limit for connecting, name resolution included.
const CONNECT: Duration = Duration::from_millis(500);
/// Time limit for the proof of a peer that answers pings: longer than the detection of one that does
/// not.
const PROOF: Duration = Duration::from_secs(5);
/// Time that a killed process takes to close all its sockets.
const ENDING: Duration = Duration::from_millis(20);
/// Interval of idle checks: an unused connection is closed after one to two of them.
const IDLE: Duration = Duration::from_secs(60);
/// Concurrent requests to one replica, of which a tenant has at most half, and a caller a third; its
/// listener has the same limit per connection.
pub(crate) const MAX_CONCURRENT: u64 = 30_000;
/// Queued requests for a connection that is being opened: all that may be under way, so that none waits for more than
/// one attempt. Further senders wait.
const QUEUED_MAX: usize = 30_000;

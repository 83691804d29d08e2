//! This replica in the cluster: its identity, its keys and its connections to the others.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    connections::Peers,
    hop::{Hop, HopKeys, InvalidHop, SignedRequest},
    proof,
    received::Received,
    signed_body::SignedBody,
    stranger::{Refusals, Stranger},
};
use crate::{
    base::Clock,
    http::reply::{header_name::HOP, refusal::refusal},
    state::{Replica, ReplicaKeys},
};

/// This replica and its view of the cluster.
pub(crate) struct Cluster {
    /// Identity of this replica.
    pub(crate) me: Replica,
    /// Keys that prove it.
    replicas: ReplicaKeys,
    /// Signing keys of hops.
    pub(crate) keys: HopKeys,
    /// Connections to the other replicas.
    pub(crate) peers: Peers,
    /// Clock of the database.
    pub(crate) clock: Clock,
    /// Cancelled when resumable connections are to end.
    pub(crate) release: CancellationToken,
    /// Cancelled when all connections are to end.
    pub(crate) halt: CancellationToken,
    /// Hops sent.
    sent: AtomicU64,
    began: Instant,
    received: Received,
    refusals: Refusals,
}

impl Cluster {
    /// Makes the view of replica `me`.
    pub(crate) fn new(
        (me, replicas): (Replica, ReplicaKeys),
        keys: HopKeys,
        peers: Peers,
        clock: Clock,
        [release, halt]: [CancellationToken; 2],
    ) -> Self {
        Self {
            me,
            replicas,
            keys,
            peers,
            clock,
            release,
            halt,
            sent: AtomicU64::new(0),
            began: Instant::now(),
            received: Received::default(),
            refusals: Refusals::new(),
        }
    }

    /// Returns the number of the next hop.
    pub(crate) fn next_number(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed)
    }

    /// Verifies the hop header of a request, removes it, and puts the body under its digest.
    ///
    /// # Errors
    ///
    /// The reason why the header proves nothing.
    pub(crate) fn verify(&self, request: &mut Request) -> Result<Hop, InvalidHop> {
        let headers = request.headers();
        let mut hops = headers.get_all(HOP).iter();
        let (Some(hop), None) = (hops.next(), hops.next()) else {
            return Err(InvalidHop::Forged);
        };
        let target = request.uri().path_and_query();
        let signed = SignedRequest {
            method: request.method(),
            target: target.map_or("", |target| target.as_str()),
            headers,
        };
        let now = self.clock.now_ms();
        let hop = self.keys.verify(hop, signed, &self.me.boot, now)?;
        if !self.received.take(&hop.sender, hop.number, now) {
            return Err(InvalidHop::Repeated);
        }
        if let Some(stranger) = request.extensions().get::<Arc<Stranger>>() {
            stranger.is_replica();
        }
        request.headers_mut().remove(HOP);
        let body = std::mem::take(request.body_mut());
        *request.body_mut() = Body::new(SignedBody::new(body, hop.body));
        Ok(hop)
    }

    /// Refuses a request of `peer`, whose header proves nothing.
    pub(crate) fn refuse(&self, peer: SocketAddr, invalid: InvalidHop) -> Response {
        if let Some(count) = self.refusals.count() {
            tracing::warn!(
                client.address = %peer.ip(),
                worthless = %invalid,
                count,
                "refused requests on the cluster listener"
            );
        }
        let mut refused = mark_refused(refusal(StatusCode::FORBIDDEN, "no valid hop"));
        if invalid == InvalidHop::Elsewhere {
            // Its sender has had a proof that this replica has the address to which it was sent.
            let age = format!("{REPLACED}{}", self.began.elapsed().as_millis());
            if let Ok(age) = HeaderValue::try_from(age) {
                refused.headers_mut().insert(HOP, age);
            }
        }
        refused
    }

    /// Answers the first request of a connection, which asks for a proof; `None` for any other.
    pub(crate) fn prove(&self, request: &Request) -> Option<Response> {
        let challenge = proof::challenge_of(request.headers().get(HOP)?)?;
        let proof = self.replicas.prove(challenge, &self.me.address)?;
        let header = proof::header_of(&proof)?;
        Some((StatusCode::NO_CONTENT, [(HOP, header)]).into_response())
    }
}

/// Returns for how long another replica than that of the hop has had its address, if that is why the hop was refused.
pub(crate) fn replaced_for(refused: &HeaderValue) -> Option<Duration> {
    let age = refused.to_str().ok()?.strip_prefix(REPLACED)?;
    age.parse().ok().map(Duration::from_millis)
}

/// Before the milliseconds for which a replica has had its address, in the refusal of a hop to another one.
const REPLACED: &str = "replaced;";

/// Marks the refusal of a hop, so that the forwarding replica does not take it for the owner's
/// response.
pub(crate) fn mark_refused(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(HOP, HeaderValue::from_static("refused"));
    response
}

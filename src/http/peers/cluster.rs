//! This replica in the cluster: its identity, its keys and its connections to the others.

use axum::{extract::Request, response::Response};
use http::{HeaderValue, header::CONTENT_LENGTH};
use tokio_util::sync::CancellationToken;

use super::{
    connections::Peers,
    hop::{Hop, HopKeys, InvalidHop, SignedRequest},
};
use crate::{base::Clock, http::reply::header_name::HOP, state::Replica};

/// This replica and its view of the cluster.
pub(crate) struct Cluster {
    /// Identity of this replica.
    pub(crate) me: Replica,
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
}

impl Cluster {
    /// Verifies the hop header of a request.
    ///
    /// # Errors
    ///
    /// The reason why the header proves nothing.
    pub(crate) fn verify(&self, request: &Request) -> Result<Hop, InvalidHop> {
        let headers = request.headers();
        let mut hops = headers.get_all(HOP).iter();
        let (Some(hop), None) = (hops.next(), hops.next()) else {
            return Err(InvalidHop::Forged);
        };
        let length = match headers.get(CONTENT_LENGTH).map(HeaderValue::to_str) {
            None => 0,
            Some(length) => {
                let length = length.ok().and_then(|length| length.parse().ok());
                length.ok_or(InvalidHop::Forged)?
            }
        };
        let target = request.uri().path_and_query();
        let signed = SignedRequest {
            method: request.method(),
            target: target.map_or("", |target| target.as_str()),
            length,
        };
        let now = self.clock.now_ms();
        self.keys.verify(hop, signed, &self.me.boot, now)
    }
}

/// Marks the refusal of a hop, so that the forwarding replica does not take it for the owner's
/// response.
pub(crate) fn mark_refused(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(HOP, HeaderValue::from_static("refused"));
    response
}

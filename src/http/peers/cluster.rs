//! This replica in the cluster: its identity, its keys and its connections to the others.

use axum::{extract::Request, response::Response};
use http::{HeaderValue, header::CONTENT_LENGTH};
use tokio_util::sync::CancellationToken;

use super::{
    connections::Peers,
    hop::{Asked, Hop, HopKeys, Worthless},
};
use crate::{base::Clock, http::reply::header_name::HOP, state::Replica};

/// This replica among the others.
pub(crate) struct Cluster {
    /// It.
    pub(crate) me: Replica,
    /// What hops are signed with.
    pub(crate) keys: HopKeys,
    /// The others.
    pub(crate) peers: Peers,
    /// What time it is.
    pub(crate) clock: Clock,
    /// Connections that may end, do.
    pub(crate) release: CancellationToken,
    /// All of them do.
    pub(crate) halt: CancellationToken,
}

impl Cluster {
    /// The hop that a request proves.
    ///
    /// # Errors
    ///
    /// Why the request is to be refused.
    pub(crate) fn verify(&self, request: &Request) -> Result<Hop, Worthless> {
        let headers = request.headers();
        let mut hops = headers.get_all(HOP).iter();
        let (Some(hop), None) = (hops.next(), hops.next()) else {
            return Err(Worthless::Forged);
        };
        let length = match headers.get(CONTENT_LENGTH).map(HeaderValue::to_str) {
            None => 0,
            Some(length) => {
                let length = length.ok().and_then(|length| length.parse().ok());
                length.ok_or(Worthless::Forged)?
            }
        };
        let target = request.uri().path_and_query();
        let asked = Asked {
            method: request.method(),
            target: target.map_or("", |target| target.as_str()),
            length,
        };
        let now = self.clock.now_ms();
        self.keys.verify(hop, asked, &self.me.boot, now)
    }
}

/// Marks a response as one that no route gave, so that the replica that forwarded the request does
/// not take it for the owner's answer.
pub(crate) fn no_route(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(HOP, HeaderValue::from_static("refused"));
    response
}

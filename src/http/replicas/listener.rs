//! The cluster listener: requests that other replicas forward for the sessions that this one owns.
//!
//! Where they come from, who calls and what is asked is checked here once more, as if the client had
//! come itself; what the first replica checked and counted is not: host, origin, rates.

use std::sync::Arc;

use axum::{Router, body::Body, extract::Request, response::Response};
use http::{HeaderValue, StatusCode, header::CONTENT_LENGTH};

use tokio_util::sync::CancellationToken;

use super::{
    hop::{Asked, HOP, Hop, HopKeys, Worthless},
    peers::Peers,
};
use crate::config::ClientAddress;
use crate::http::{
    Front,
    edge::{App, gate, refusal::refusal},
    front::mcp_routes,
};
use crate::{base::Clock, state::Replica};

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
    fn verify(&self, request: &Request) -> Result<Hop, Worthless> {
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

/// Every route of the cluster listener: those of MCP endpoints, for whoever has a hop header.
pub(crate) fn routes(front: &Arc<Front>, cluster: Arc<Cluster>) -> App {
    let routes = mcp_routes(front).fallback(async || refusal(StatusCode::NOT_FOUND, "not found"));
    App::of_replicas(routes, cluster)
}

impl Cluster {
    /// One request of another replica.
    pub(crate) async fn pass(&self, mut request: Request, routes: Router) -> Response {
        let hop = match self.verify(&request) {
            Ok(hop) => hop,
            Err(worthless) => {
                tracing::warn!(%worthless, "refused a request on the cluster listener");
                return no_hop(refusal(StatusCode::FORBIDDEN, "no valid hop"));
            }
        };
        request.headers_mut().remove(HOP);
        if !request.headers().contains_key(CONTENT_LENGTH) {
            // None was signed.
            *request.body_mut() = Body::empty();
        }
        if let Some(client) = hop.client {
            request.extensions_mut().insert(ClientAddress(client));
        }
        request.extensions_mut().insert(hop);
        gate::route(routes, request).await
    }
}

/// The answer to a hop whose session is not here; its body is not read.
pub(super) fn not_here() -> Response {
    no_hop(refusal(StatusCode::MISDIRECTED_REQUEST, "not the owner"))
}

/// Says that no route answered: the replica that sent it must not take it for one's answer.
fn no_hop(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(HOP, HeaderValue::from_static("refused"));
    response
}

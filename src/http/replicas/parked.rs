//! A request without a session at another replica: the retry of a parked call, or one about a task, whose
//! ticket names the replica, so that no store is asked; and any request while this replica drains.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;

use super::request::{Forwarding, HopError, owner_unreachable};
use crate::http::{
    admission::{Admitted, Front},
    peers::{Cluster, Hop, SendError},
};
use crate::state::Replica;

/// Forwards the retry of a parked call, or a request about a task, to the replica that has it; none if this
/// one may not.
///
/// # Errors
///
/// The replica, or the connection to it, has ended; or it was silent, and has given no sign of life since.
pub(crate) async fn to_owner(
    front: &Arc<Front>,
    admitted: &Admitted,
    (parts, body): (&Parts, Bytes),
    owner: &Replica,
) -> Option<Result<Response, HopError>> {
    let is_hop = parts.extensions.get::<Hop>().is_some();
    let cluster = front.cluster.as_ref().filter(|_| !is_hop)?;
    if front.hub.is_unresponsive(owner).await {
        return Some(Err(HopError::Send(SendError::Silent)));
    }
    let forwarding = Forwarding::without_session(front, cluster, admitted, (parts, body));
    let forwarding = match forwarding.await {
        Ok(forwarding) => forwarding,
        Err(refused) => return Some(Ok(refused)),
    };
    Some(match forwarding.once(owner).await {
        Err(HopError::Send(SendError::Full | SendError::NotTaken)) => Ok(owner_unreachable()),
        answer => answer,
    })
}

impl Forwarding {
    /// A request that names no session.
    ///
    /// # Errors
    ///
    /// The refusal of a request beyond the share of its caller.
    pub(super) async fn without_session(
        front: &Arc<Front>,
        cluster: &Arc<Cluster>,
        admitted: &Admitted,
        request: (&Parts, Bytes),
    ) -> Result<Self, Response> {
        Self::new((front, cluster), admitted, String::new(), request).await
    }

    /// Makes the only attempt at a replica.
    ///
    /// # Errors
    ///
    /// `Broken` or `Silent` if the replica may have taken the request.
    pub(super) async fn once(&self, to: &Replica) -> Result<Response, HopError> {
        let answer = async {
            let answer = self.hop(to, &self.request).await?;
            let broken = |_| HopError::Send(SendError::Broken);
            self.relay(answer).await.map_err(broken)
        };
        tokio::select! {
            answer = answer => answer,
            () = self.cluster.halt.cancelled() => Err(HopError::Send(SendError::Broken)),
        }
    }
}

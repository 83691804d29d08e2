//! New sessions while this replica drains: forwarded to a successor.
//!
//! A load balancer may still send clients here. The hop keeps that invisible to them, and their
//! children do not end with this replica. Without a successor, sessions begin here until the listener
//! closes.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::Method;

use super::{
    parked,
    request::{ForwardedRequest, Forwarding, HopError, not_owner, owner_unreachable},
};
use crate::endpoint;
use crate::http::{
    admission::{Admitted, Front, body},
    peers::{Cluster, Hop, SendError},
};
use crate::protocol::{Body as Messages, Kind, Method as RpcMethod};

/// Forwards a request that begins a session if this replica is draining.
///
/// Returns the request if it is to be served here, and otherwise the response as an error.
pub(crate) async fn to_successor(
    front: &Arc<Front>,
    cluster: &Arc<Cluster>,
    admitted: &Admitted,
    request: Request,
) -> Result<Request, Response> {
    let kind = endpoint::Kind::of(request.uri().path());
    let is_2024 = request.method() == Method::GET && kind == Some(endpoint::Kind::Sse);
    let may_begin = is_2024 || request.method() == Method::POST;
    if !front.hub.is_closed() || !may_begin {
        return Ok(request);
    }
    if request.extensions().get::<Hop>().is_some() {
        return Err(not_owner());
    }
    let successors = front.hub.successors().await;
    if successors.is_empty() {
        return Ok(request);
    }
    let (parts, unread) = request.into_parts();
    let body = body::whole(unread, front.config.http.max_body).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let request = match Messages::parse(body.clone()) {
        Ok(Messages::One(message)) if message.kind() == Kind::Request => Some(message),
        Ok(_) | Err(_) => None,
    };
    // A request without a session stands for itself.
    if let Some(message) = request.as_ref().filter(|message| message.is_modern())
        && let Some(successor) = successors.first()
    {
        let id = message.id().unwrap_or_default();
        return Err(parked::to_replica(front, admitted, (&parts, body), id, successor).await);
    }
    let is_initialize = request.is_some_and(|message| message.method() == RpcMethod::Initialize);
    if is_2024 || is_initialize {
        let forwarding = Forwarding {
            front: Arc::clone(front),
            cluster: Arc::clone(cluster),
            access: admitted.access.clone(),
            session: String::new(),
            request: ForwardedRequest::of(&parts, body.clone()),
        };
        for successor in successors {
            let answer = tokio::select! {
                answer = forwarding.hop(&successor, &forwarding.request) => answer,
                () = cluster.halt.cancelled() => return Err(owner_unreachable()),
            };
            match answer {
                Ok(answer) => {
                    let relayed = forwarding.relay(answer).await;
                    return Err(relayed.unwrap_or_else(|_| owner_unreachable()));
                }
                // The successor may have begun a session. The client has no id of it and retries.
                Err(HopError::Send(SendError::Broken | SendError::Silent)) => {
                    return Err(owner_unreachable());
                }
                Err(_) => {}
            }
        }
    }
    Ok(Request::from_parts(parts, Body::from(body)))
}

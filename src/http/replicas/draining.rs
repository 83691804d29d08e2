//! Requests that begin something while this replica drains, a session or a call without one:
//! forwarded to a successor.
//!
//! A load balancer may still send clients here. The hop keeps that invisible to them, and their
//! children do not end with this replica. Without a successor, sessions begin here until the listener
//! closes. A retry stays here, and a request about a task: it names the replica that has its call.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::Method;

use super::request::{Forwarding, HopError, not_owner, owner_unreachable};
use crate::endpoint;
use crate::http::{
    admission::{Admitted, Front, body},
    peers::{Cluster, Hop, SendError},
};
use crate::protocol::{Body as Messages, Kind, Message, Method as RpcMethod, modern};

/// Forwards a request that names no session if this replica is draining.
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
    let is_hop = request.extensions().get::<Hop>().is_some();
    let successors = front.hub.successors().await;
    if successors.is_empty() && !is_hop {
        // It is read where it is served, within the share of its caller.
        return Ok(request);
    }
    let (parts, unread) = request.into_parts();
    let body = body::counted(front, &admitted.access, unread).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let request = match body::messages(&admitted.access, body.clone()).await {
        Ok(Messages::One(message)) if message.kind() == Kind::Request => Some(message),
        Ok(_) | Err(_) => None,
    };
    let is_retry = |message: &Message| {
        let is_of_task = message.is_modern() && modern::is_about_task(&message.method_name());
        is_of_task || modern::request_state(message).is_some()
    };
    let is_retry = request.as_ref().is_some_and(is_retry);
    if is_hop && !is_retry {
        return Err(not_owner());
    }
    let begins = |message: &Message| {
        // A request without a session stands for itself.
        message.is_modern() || message.method() == RpcMethod::Initialize
    };
    if is_retry || !(is_2024 || request.as_ref().is_some_and(begins)) {
        return Ok(Request::from_parts(parts, Body::from(body)));
    }
    let forwarding = Forwarding::without_session(front, cluster, admitted, (&parts, body.clone()));
    let forwarding = forwarding.await?;
    for successor in successors {
        match forwarding.once(&successor).await {
            Ok(response) => return Err(response),
            Err(HopError::Send(SendError::Broken | SendError::Silent)) => {
                // The successor may have begun a session. The client has no id of it and retries.
                let is_call = request.is_some_and(|message| message.is_modern());
                return Err(if is_call {
                    forwarding.owner_lost()
                } else {
                    owner_unreachable()
                });
            }
            Err(_) => {}
        }
    }
    Ok(Request::from_parts(parts, Body::from(body)))
}

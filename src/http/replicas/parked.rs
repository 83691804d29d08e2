//! A request without a session at another replica: the retry of a parked call, whose ticket names the
//! replica, so that no store is asked; and any request while this replica drains.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE, request::Parts};

use super::request::{ForwardedRequest, Forwarding, HopError, owner_unreachable, strip_hop_by_hop};
use crate::http::{
    admission::{Admitted, Front},
    peers::{BrokenResponse, Hop, ResponseBody, SendError},
    reply::{event_stream::EVENT_STREAM, json},
};
use crate::{hub::CallError, protocol::event::push_message, state::Replica};

/// Forwards a request to another replica. Its call ends with that replica.
pub(crate) async fn to_replica(
    front: &Arc<Front>,
    admitted: &Admitted,
    (parts, body): (&Parts, Bytes),
    id: &[u8],
    owner: &Replica,
) -> Response {
    let lost = || json::text(StatusCode::OK, CallError::OWNER_LOST.line(id));
    let is_hop = parts.extensions.get::<Hop>().is_some();
    let Some(cluster) = front.cluster.as_ref().filter(|_| !is_hop) else {
        return lost();
    };
    let forwarding = Forwarding {
        front: Arc::clone(front),
        cluster: Arc::clone(cluster),
        access: admitted.access.clone(),
        session: String::new(),
        request: ForwardedRequest::of(parts, body),
    };
    let answer = tokio::select! {
        answer = forwarding.hop(owner, &forwarding.request) => answer,
        () = cluster.halt.cancelled() => return lost(),
    };
    match answer {
        Ok(answer) => relayed(answer, id).await.unwrap_or_else(|_| lost()),
        Err(HopError::Send(SendError::Full | SendError::NotTaken)) => {
            owner_unreachable().into_response()
        }
        Err(_) => lost(),
    }
}

/// The response of the other replica. A stream that breaks ends with the error of the call.
async fn relayed(
    answer: http::Response<ResponseBody>,
    id: &[u8],
) -> Result<Response, BrokenResponse> {
    let (mut head, mut body) = answer.into_parts();
    strip_hop_by_hop(&mut head.headers);
    if !is_stream(&head.headers) {
        let mut whole = BytesMut::new();
        while let Some(data) = body.next().await? {
            whole.extend_from_slice(&data);
        }
        return Ok(Response::from_parts(head, Body::from(whole.freeze())));
    }
    let id = Bytes::copy_from_slice(id);
    let chunks = unfold(Some(body), move |body| {
        let id = id.clone();
        async move {
            let mut body = body?;
            match body.next().await {
                Ok(Some(data)) => Some((Ok::<_, Infallible>(data), Some(body))),
                Ok(None) => None,
                Err(BrokenResponse) => {
                    let mut event = BytesMut::new();
                    push_message(&mut event, "", &CallError::OWNER_LOST.line(&id));
                    Some((Ok(event.freeze()), None))
                }
            }
        }
    });
    Ok(Response::from_parts(head, Body::from_stream(chunks)))
}

fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(EVENT_STREAM.as_bytes()))
}

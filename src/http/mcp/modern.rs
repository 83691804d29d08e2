//! Streamable HTTP of 2026-07-28: each request stands for itself. POST of the MCP endpoint; there is no
//! other method.
//!
//! Not here: the check of a request (`modern_request`) and its event stream (`modern_stream`).

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::{StatusCode, request::Parts};
use tokio::time::timeout;

use super::{
    modern_request::{ModernRequest, listed, refused},
    modern_stream::{CallStream, Step, SubscriptionStream},
};
use crate::http::{
    admission::{Admitted, Front},
    replicas::parked,
    reply::{McpRefusal, Pace, event_stream, json},
};
use crate::{
    error::Error,
    hub::{
        Answer, CallError,
        stateless::{Begun, CallInFlight, Resumed, Stateless, Subscribed},
    },
    protocol::{
        Accepts, Body as Messages, Kind, Message, Method,
        event::push_message,
        json as raw, jsonrpc,
        modern::{self, Completion, Filter, discover_result},
    },
};

/// Takes the body of a modern POST.
pub(super) async fn take(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: &Parts,
    messages: Messages,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    let Messages::One(message) = messages else {
        return Err(Error::Invalid("a body has one message in this revision").into());
    };
    match message.kind() {
        Kind::Request => {}
        // No notification of a client means anything here: "closing the SSE response stream is itself
        // the cancellation signal" (2026-07-28 streamable-http, "Sending Messages").
        Kind::Notification => return Ok(StatusCode::ACCEPTED.into_response()),
        Kind::Result | Kind::Error => {
            let text = "a client sends no responses in this revision";
            return Err(Error::Invalid(text).into());
        }
    }
    let id = Bytes::copy_from_slice(message.id().unwrap_or_default());
    let answered = answer(front, admitted, parts, message, accepts).await;
    answered.map_err(|refused| refused.answering(Some(&id)))
}

async fn answer(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: &Parts,
    message: Message,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    let request = ModernRequest::check(&parts.headers, &message, admitted)?;
    match &*request.method {
        method if modern::is_removed(method) => {
            Err(refused(StatusCode::NOT_FOUND, -32601, "Method not found"))
        }
        "server/discover" => discover(front, &request).await,
        "subscriptions/listen" => listen(front, &request, accepts).await,
        _ => match request.state()? {
            Some(ticket) => retry(front, admitted, parts, &request, (&ticket, accepts)).await,
            None => call(front, admitted, (parts, &request), accepts).await,
        },
    }
}

async fn discover(front: &Front, request: &ModernRequest<'_>) -> Result<Response, McpRefusal> {
    let lease = front.stateless.lease_for_all(&request.caller).await?;
    let lease = match lease {
        Ok(lease) => lease,
        Err(line) => return Ok(failed(request, line)),
    };
    let supported = Stateless::revisions(request.caller.access);
    let result = discover_result(lease.initialized(), &supported);
    let mut line = BytesMut::new();
    jsonrpc::push_result(request.id(), &result, &mut line);
    Ok(json::text(StatusCode::OK, line.freeze()))
}

/// Checks that header fields mirror the arguments that the server's own list says (2026-07-28
/// streamable-http, "Server Behavior for Custom Headers"). A list may have changed since it was read.
async fn check_arguments(
    front: &Front,
    parts: &Parts,
    request: &ModernRequest<'_>,
) -> Result<(), McpRefusal> {
    if request.message.method() != Method::ToolsCall {
        return Ok(());
    }
    for again in [false, true] {
        let tools = front.stateless.tool_headers(&request.caller, again).await?;
        // A server that cannot be initialized says so to the call.
        if tools.is_none_or(|tools| request.mirrors(&parts.headers, &tools)) {
            return Ok(());
        }
    }
    let text = "an Mcp-Param header field differs from its argument";
    Err(refused(StatusCode::BAD_REQUEST, -32020, text))
}

async fn call(
    front: &Arc<Front>,
    admitted: &Admitted,
    (parts, request): (&Parts, &ModernRequest<'_>),
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    check_arguments(front, parts, request).await?;
    let level = request.level.as_deref();
    let begun = front
        .stateless
        .call(&request.caller, request.message, level)
        .await;
    match begun.map_err(|error| admitted.refusal(front, error))? {
        Begun::Failed(line) => Ok(failed(request, line)),
        Begun::Sent(Answer::Json(line) | Answer::Failed(line), call) => {
            Ok(finished(front, request, *call, line))
        }
        Begun::Sent(Answer::Stream(reader), call) => {
            let stream = CallStream::new(front, request, *call, *reader);
            Ok(respond(front, request, stream, accepts).await)
        }
        Begun::Sent(Answer::Refused(error), _) => Err(admitted.refusal(front, error)),
        Begun::Sent(Answer::Accepted | Answer::Silent, _) => {
            Err(Error::Bug("a call ended without an answer").into())
        }
    }
}

/// Continues a parked call (2026-07-28 mrtr).
async fn retry(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: &Parts,
    request: &ModernRequest<'_>,
    (ticket, accepts): (&str, Accepts),
) -> Result<Response, McpRefusal> {
    let access = request.caller.access;
    let resumed = front
        .stateless
        .resume(access, request.message, ticket)
        .await;
    match resumed.map_err(|error| admitted.refusal(front, error))? {
        Resumed::Here(parked) => {
            let stream = CallStream::resumed(front, request, *parked);
            Ok(respond(front, request, stream, accepts).await)
        }
        Resumed::Again(asks, ticket) => {
            let line = modern::input_required(request.id(), &asks, &ticket);
            Ok(json::text(StatusCode::OK, line))
        }
        Resumed::There(owner) => {
            let body = request.message.bytes().clone();
            Ok(parked::to_replica(front, admitted, (parts, body), request.id(), &owner).await)
        }
        Resumed::Lost => {
            let line = CallError::OWNER_LOST.line(request.id());
            Ok(json::text(StatusCode::OK, line))
        }
        Resumed::Invalid => {
            let text = "no such requestState for this request, or it was used";
            Err(refused(StatusCode::BAD_REQUEST, -32602, text))
        }
    }
}

/// Responds with a stream of a call: as JSON if it ends before anything else comes, or if the client
/// accepts nothing else.
async fn respond(
    front: &Arc<Front>,
    request: &ModernRequest<'_>,
    mut stream: CallStream,
    accepts: Accepts,
) -> Response {
    if !accepts.sse {
        loop {
            match stream.step().await {
                Step::Notification(_) => {}
                Step::Final(line) => return answered(line),
                Step::Over => return answered(CallError::EXITED.line(request.id())),
            }
        }
    }
    let mut first = BytesMut::new();
    let hold = request.caller.access.server().reply.sse_after;
    match timeout(hold, stream.step()).await {
        Ok(Step::Final(line)) if accepts.json => return answered(line),
        Ok(Step::Final(line)) => {
            push_message(&mut first, "", &line);
            return event_stream::event_stream(first.freeze().into());
        }
        Ok(Step::Over) => return answered(CallError::EXITED.line(request.id())),
        Ok(Step::Notification(line)) => push_message(&mut first, "", &line),
        // So that the head of the response is sent: a comment.
        Err(_) => first.extend_from_slice(crate::protocol::KEEP_ALIVE),
    }
    event_stream::respond_with(&front.metrics, stream, first, pace(front, request))
}

fn pace(front: &Front, request: &ModernRequest<'_>) -> Pace {
    Pace {
        keep_alive: front.config.stream.keep_alive,
        flow: front.hub.limits().flow(request.caller.access),
    }
}

/// Responds with the answer of a call that has ended.
fn finished(
    front: &Front,
    request: &ModernRequest<'_>,
    call: CallInFlight,
    line: Bytes,
) -> Response {
    let completion = request.completion(call.server_info());
    call.finish();
    let line = listed(request.message, request.caller.access, line);
    let line = match Message::parse(line.clone()) {
        Ok(message) => completion.complete(&message),
        Err(_) => line,
    };
    let access = request.caller.access;
    front.hub.limits().flow(access).wrote(line.len());
    let share = front.hub.limits().memory().caller(access);
    // A short answer is part of what its call has drawn.
    let line = if line.len() > SHORT {
        share.hold(line.len() as u64).until_dropped(line)
    } else {
        line
    };
    answered(line)
}

/// The error response of a server that could not be initialized.
fn failed(request: &ModernRequest<'_>, line: Bytes) -> Response {
    let completion: Completion = request.completion(None);
    answered(match Message::parse(line.clone()) {
        Ok(message) => completion.complete(&message),
        Err(_) => line,
    })
}

/// A JSON response with the status that its error requires: "If the server does not implement the
/// requested RPC method, it MUST respond with 404 Not Found" (2026-07-28 streamable-http, "Protocol
/// Version Header"), and 400 for a lack of a capability (basic, "Per-request protocol fields").
fn answered(line: Bytes) -> Response {
    let code = raw::get(&line, "error").and_then(|error| raw::get(error, "code"));
    let status = match code {
        Some(b"-32601") => StatusCode::NOT_FOUND,
        Some(b"-32021") => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    };
    json::text(status, line)
}

/// Opens a stream of notifications (2026-07-28 subscriptions).
async fn listen(
    front: &Arc<Front>,
    request: &ModernRequest<'_>,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    if !accepts.sse {
        let text = "Accept must permit text/event-stream";
        return Err(McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    let Some(wanted) = Filter::of(request.message, MAX_RESOURCES) else {
        let text = "params.notifications is no filter of subscriptions";
        return Err(refused(StatusCode::BAD_REQUEST, -32602, text));
    };
    let subscribed = front.stateless.subscribe(&request.caller, wanted).await?;
    let (subscription, reader) = match subscribed {
        Subscribed::Running(subscription, reader) => (subscription, reader),
        Subscribed::Failed(line) => return Ok(failed(request, line)),
    };
    let mut first = BytesMut::new();
    let acknowledged = subscription.filter.acknowledgement(request.id());
    push_message(&mut first, "", &acknowledged);
    let id = Bytes::copy_from_slice(request.id());
    let stream = SubscriptionStream::new(id, *subscription, reader);
    Ok(event_stream::respond_with(
        &front.metrics,
        stream,
        first,
        pace(front, request),
    ))
}

/// The most resources of one subscription: as many as a session may subscribe to.
const MAX_RESOURCES: usize = 1000;
/// Longest answer that is not counted by itself.
const SHORT: usize = 4 << 10;

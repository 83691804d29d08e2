//! Streamable HTTP of 2026-07-28: each request stands for itself. POST of the MCP endpoint; there is no
//! other method.
//!
//! Not here: the check of a request (`modern_request`), its event stream (`modern_stream`), and requests about
//! tasks (`modern_tasks`).

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::{StatusCode, request::Parts};
use tokio::time::timeout;

use super::{
    modern_answer::{answered, answered_in, failed, formed},
    modern_request::{ModernRequest, no_initialize, refused},
    modern_stream::{CallStream, Responder, Step, SubscriptionStream},
    modern_tasks,
};
use crate::http::{
    admission::{Admitted, Front},
    replicas::parked,
    reply::{McpRefusal, Pace, event_stream},
};
use crate::{
    auth::Access,
    base::budget::LargeWork,
    error::Error,
    hub::{
        Answer, CallError, MAX_SUBSCRIPTIONS,
        stateless::{Begun, CallInFlight, Carried, Opened, Resumed, Stateless, Subscribed},
    },
    protocol::{
        Accepts, Body as Messages, Kind, Message, Method,
        event::push_message,
        json as raw, jsonrpc,
        modern::{self, Filter, discover_result},
        revision::FIRST_MODERN,
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
    let answered = answer(front, admitted, parts, &message, accepts).await;
    answered.map_err(|refused| refused.answering(message.id()))
}

async fn answer(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: &Parts,
    message: &Message,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    let not_here = |default: &str| {
        let params = message.params().unwrap_or_default();
        let version = raw::get(params, "protocolVersion").and_then(raw::decoded);
        no_initialize(&admitted.access, version.as_deref().unwrap_or(default))
    };
    if message.method() == Method::Initialize && !message.is_modern() {
        return Err(not_here(""));
    }
    let turn = large(&admitted.access, message.bytes()).await;
    let request = turn.run(|| ModernRequest::check(&parts.headers, message, admitted))?;
    if let Some(needed) = request.missing_scopes() {
        return Err(admitted.refusal(front, Error::Scopes(needed)));
    }
    match &*request.method {
        method if modern::is_about_task(method) && request.offers_tasks() => {
            let accepts = formed(&request, accepts);
            modern_tasks::answer(front, admitted, parts, &request, accepts).await
        }
        // Its `_meta` names a revision that is served.
        "initialize" => Err(not_here(FIRST_MODERN)),
        method if modern::is_removed(method) => {
            Err(refused(StatusCode::NOT_FOUND, -32601, "Method not found"))
        }
        "server/discover" => discover(front, &request, formed(&request, accepts)).await,
        "subscriptions/listen" => listen(front, admitted, &request, accepts).await,
        _ => {
            let accepts = formed(&request, accepts);
            match request.state()? {
                Some(ticket) => retry(front, admitted, parts, &request, (&ticket, accepts)).await,
                None => call(front, admitted, (parts, &request), accepts, None).await,
            }
        }
    }
}

async fn discover(
    front: &Front,
    request: &ModernRequest<'_>,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    let leased = front.stateless.lease(&request.caller).await;
    let lease = match leased.map_err(of_kept_session)? {
        Ok(lease) => lease,
        Err(line) => return Ok(failed(front, request, line, accepts)),
    };
    let access = request.caller.access;
    let room = front.room(access, lease.initialized().len())?;
    let supported = Stateless::revisions(access);
    let result = discover_result(
        lease.initialized(),
        &supported,
        request.offers_tasks(),
        request.caching().set.unwrap_or(0),
    );
    let mut line = BytesMut::new();
    jsonrpc::push_result(request.id(), &result, &mut line);
    let line = (line.freeze(), room);
    Ok(answered_in(front, request, line, accepts))
}

/// Checks that header fields mirror the arguments that the server's own list says (2026-07-28
/// streamable-http, "Server Behavior for Custom Headers"). A list may have changed since it was read.
async fn check_arguments(
    front: &Front,
    parts: &Parts,
    request: &ModernRequest<'_>,
) -> Result<Checked, McpRefusal> {
    if request.message.method() != Method::ToolsCall {
        return Ok(Checked::Call {
            is_for_tasks: false,
        });
    }
    for again in [false, true] {
        let tools = front.stateless.tool_headers(&request.caller, again).await;
        let tools = match tools.map_err(of_kept_session)? {
            Ok(Some(tools)) => tools,
            Ok(None) => {
                return Ok(Checked::Call {
                    is_for_tasks: false,
                });
            }
            Err(line) => return Ok(Checked::Failed(line)),
        };
        let turn = large(request.caller.access, request.message.bytes()).await;
        if turn.run(|| request.mirrors(&parts.headers, &tools)) {
            let name = request.message.name();
            let is_for_tasks = name.is_some_and(|name| tools.is_for_tasks(&name));
            return Ok(Checked::Call { is_for_tasks });
        }
    }
    Err(no_mirror())
}

/// Checks the same of the retry of a parked call, if a list of the last minute is known: its ticket binds it to the
/// arguments of that call, which were checked. To read the list again takes a session and a place among the calls, and
/// the parked calls of the caller may have all of these until they are answered.
async fn check_retry(
    front: &Front,
    parts: &Parts,
    request: &ModernRequest<'_>,
) -> Result<(), McpRefusal> {
    if request.message.method() != Method::ToolsCall {
        return Ok(());
    }
    let Some(tools) = front.stateless.known_tool_headers(&request.caller) else {
        return Ok(());
    };
    let turn = large(request.caller.access, request.message.bytes()).await;
    if turn.run(|| request.mirrors(&parts.headers, &tools)) {
        return Ok(());
    }
    Err(no_mirror())
}

fn no_mirror() -> McpRefusal {
    let text = "an Mcp-Param header field differs from its argument";
    refused(StatusCode::BAD_REQUEST, -32020, text)
}

/// A call whose arguments were checked.
enum Checked {
    /// It may be made, of a tool that has to be called as a task if it `is_for_tasks`.
    Call { is_for_tasks: bool },
    /// The server could not be initialized; the raw error response. To start it for the call as well would take as long
    /// again.
    Failed(Bytes),
}

async fn call(
    front: &Arc<Front>,
    admitted: &Admitted,
    (parts, request): (&Parts, &ModernRequest<'_>),
    accepts: Accepts,
    carried: Option<(Carried, &str)>,
) -> Result<Response, McpRefusal> {
    let is_for_tasks = match check_arguments(front, parts, request).await? {
        Checked::Call { is_for_tasks } => is_for_tasks,
        Checked::Failed(line) => return Ok(failed(front, request, line, accepts)),
    };
    let mut used = None;
    if let Some((carried, ticket)) = carried {
        let access = request.caller.access;
        let first = front.stateless.use_carried(access, ticket, carried).await;
        used = first.map_err(|error| admitted.refusal(front, error))?;
        if used.is_none() {
            return Err(no_ticket());
        }
    }
    let level = request.level.as_deref();
    let begun = front
        .stateless
        .call(
            &request.caller,
            request.message,
            level,
            is_for_tasks,
            used.as_mut(),
        )
        .await;
    if let Some(used) = used {
        used.settle().await;
    }
    match begun.map_err(|error| admitted.refusal(front, of_kept_session(error)))? {
        Begun::Failed(line) => Ok(failed(front, request, line, accepts)),
        Begun::Lost => {
            let line = CallError::OWNER_LOST.line(request.id());
            Ok(answered(front, request, line, accepts))
        }
        Begun::Sent(Answer::Json(line) | Answer::Failed(line), call) => {
            Ok(finished(front, request, *call, (line, accepts)).await)
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
    let fail = |error: CallError| answered(front, request, error.line(request.id()), accepts);
    let turn = large(access, request.message.bytes()).await;
    let opened = turn.run(|| front.stateless.open(access, request.message, ticket));
    let ticket = match opened {
        Opened::Here(ticket) => ticket,
        Opened::Carried(carried) => {
            let carried = Some((carried, ticket));
            return call(front, admitted, (parts, request), accepts, carried).await;
        }
        Opened::CallAgain => return call(front, admitted, (parts, request), accepts, None).await,
        Opened::There(owner) => {
            let body = request.message.bytes().clone();
            // Where it broke, the call has ended with its replica, or the connection to it: no other has it.
            let there = parked::to_owner(front, admitted, (parts, body), &owner).await;
            let there = there.and_then(Result::ok);
            return Ok(there.unwrap_or_else(|| fail(CallError::OWNER_LOST)));
        }
        Opened::Lost => return Ok(fail(CallError::OWNER_LOST)),
        Opened::Invalid => return Err(no_ticket()),
    };
    check_retry(front, parts, request).await?;
    // The server has the call, and policy may have changed since.
    if let Some(line) = request.denied(request.message) {
        return Ok(answered(front, request, line, accepts));
    }
    let resumed = front
        .stateless
        .resume(access, request.message, &ticket)
        .await;
    match resumed.map_err(|error| admitted.refusal(front, error))? {
        Resumed::Here(parked) => {
            let stream = CallStream::resumed(front, request, *parked);
            Ok(respond(front, request, stream, accepts).await)
        }
        Resumed::Again(asked) => {
            let info = asked.server_info.as_deref();
            let line = modern::input_required(request.id(), &asked.asks, &asked.ticket, info);
            Ok(answered(front, request, line, accepts))
        }
        Resumed::Ended => Ok(fail(CallError::EXITED)),
        Resumed::Used => Err(no_ticket()),
    }
}

/// The error of a session that the gateway keeps for a client, if it ended at each attempt. The client knows of none, and
/// 404 says in this revision that there is no such method.
fn of_kept_session(error: Error) -> Error {
    if matches!(error, Error::NoSession) {
        return Error::Busy {
            what: "the session at the server has ended",
            retry: Duration::from_secs(1),
        };
    }
    error
}

fn no_ticket() -> McpRefusal {
    let text = "no such requestState for this request, or it was used";
    refused(StatusCode::BAD_REQUEST, -32602, text)
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
                Step::Final(line) => return answered(front, request, line, accepts),
                Step::Over => {
                    let line = CallError::EXITED.line(request.id());
                    return answered(front, request, line, accepts);
                }
            }
        }
    }
    let mut first = BytesMut::new();
    let hold = request.caller.access.server().reply.sse_after;
    match timeout(hold, stream.step()).await {
        Ok(Step::Final(line)) => return answered(front, request, line, accepts),
        Ok(Step::Over) => {
            let line = CallError::EXITED.line(request.id());
            return answered(front, request, line, accepts);
        }
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
async fn finished(
    front: &Front,
    request: &ModernRequest<'_>,
    call: CallInFlight,
    (line, accepts): (Bytes, Accepts),
) -> Response {
    let responder = Responder::new(front, request, call.server_info());
    let turn = large(call.access(), &line).await;
    let line = turn.run(|| responder.response(&call, line));
    call.finish();
    answered(front, request, line, accepts)
}

/// A turn at work on a message, which need not be waited for unless it is large.
async fn large(access: &Access, message: &Bytes) -> LargeWork {
    LargeWork::turn(&access.tenant().name, message.len()).await
}

/// Opens a stream of notifications (2026-07-28 subscriptions).
async fn listen(
    front: &Arc<Front>,
    admitted: &Admitted,
    request: &ModernRequest<'_>,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    if !accepts.sse {
        let text = "Accept must permit text/event-stream";
        return Err(McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    let turn = large(request.caller.access, request.message.bytes()).await;
    let (wanted, tasks) = turn.run(|| {
        let wanted = Filter::of(request.message, MAX_SUBSCRIPTIONS);
        let mut wanted = wanted.map_err(|why| refused(StatusCode::BAD_REQUEST, -32602, why))?;
        let tasks = modern_tasks::watched(front, admitted, request, &mut wanted)?;
        Ok::<_, McpRefusal>((wanted, tasks))
    })?;
    let subscribed = front.stateless.subscribe(&request.caller, wanted).await;
    let (subscription, reader) = match subscribed.map_err(of_kept_session)? {
        Subscribed::Running(subscription, reader) => (subscription, *reader),
        Subscribed::Failed(line) => return Ok(failed(front, request, line, accepts)),
    };
    let mut first = BytesMut::new();
    let acknowledged = subscription.filter.acknowledgement(request.id());
    push_message(&mut first, "", &acknowledged);
    let stream = SubscriptionStream::new(request, *subscription, reader, tasks);
    Ok(event_stream::respond_with(
        &front.metrics,
        stream,
        first,
        pace(front, request),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_a_client_does_not_know_is_no_404() {
        let (status, _) = McpRefusal::from(of_kept_session(Error::NoSession)).parts();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let other = of_kept_session(Error::NoServer);
        assert!(matches!(other, Error::NoServer), "{other:?}");
    }
}

//! Streamable HTTP of 2025-03-26, 2025-06-18 and 2025-11-25: POST, GET and DELETE of the MCP
//! endpoint.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, StatusCode, request::Parts};
use tokio::time::{Instant, timeout};

use super::{modern, slow_start::SlowStart};
use crate::http::{
    admission::{Admitted, Front, body, headers, not_allowed, post_alone},
    peers::Hop,
    replicas::forward,
    reply::{
        McpRefusal, StreamOptions, event_stream,
        header_name::{REST_OF_STREAM, STREAM_BEGIN},
        json, page,
    },
};
use crate::{
    auth::Access,
    base::memory::pinned,
    declare::ReplyMode,
    error::Error,
    hub::{Answer, Form, Transport, stream::Reader},
    protocol::{
        Accepts, Body as Messages, Kind, LAST_EVENT_ID, Message, Method, Revision,
        event::{push_message, push_priming},
        modern::RequestMeta,
    },
};

/// POST: takes a message or a batch of the client.
pub(crate) async fn post(front: Arc<Front>, mut admitted: Admitted, request: Request) -> Response {
    // A modern request has no session, even if its header fields name one (2026-07-28 streamable-http,
    // "Earlier Streamable HTTP Revisions").
    let is_modern = is_modern(&admitted, request.headers());
    let session = |request: &Request| (!is_modern).then(|| session(request)).flatten();
    let request = match forward::to_owner(&front, &admitted, session, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    let (parts, body) = request.into_parts();
    take(&front, &mut admitted, parts, body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// Returns the session of a request. A malformed header is refused later, where it is read.
fn session(request: &Request) -> Option<String> {
    let id = headers::single(request.headers(), headers::SESSION).ok()?;
    id.map(str::to_owned)
}

async fn take(
    front: &Arc<Front>,
    admitted: &mut Admitted,
    parts: Parts,
    body: Body,
) -> Result<Response, McpRefusal> {
    let (access, headers) = (&admitted.access, &parts.headers);
    let accepts = headers::accepts(headers);
    let body = body::read_counted(front, access, headers, body).await?;
    if !accepts.json && !accepts.sse {
        let text = "Accept must permit application/json or text/event-stream";
        let refused = McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text);
        return Err(refused.answering(body::request_id(access, body).await.as_deref()));
    }
    let messages = body::messages(access, body).await?;
    if let Err(refused) = admitted.renew(front) {
        return Err(refused.answering(messages.request_id()));
    }
    let admitted = &*admitted;
    let names_modern = messages.is_modern() && !is_of_session(headers, &messages);
    if names_modern || is_modern(admitted, headers) {
        // Boxed, as it would double the room that every request takes.
        return pinned(|| modern::take(front, admitted, &parts, messages, accepts)).await;
    }
    let id = messages.request_id().map(Box::<[u8]>::from);
    let taken = deliver(front, admitted, parts, messages, accepts).await;
    taken.map_err(|refused| refused.answering(id.as_deref()))
}

/// Whether a message in a session names a revision of sessions in `_meta`, where those have no such field: it stays in its
/// session. Refused with the revisions that are served, among them its own, its client could do nothing about that.
fn is_of_session(headers: &HeaderMap, messages: &Messages) -> bool {
    let Messages::One(message) = messages else {
        return false;
    };
    let named = || RequestMeta::of(message).version;
    headers.contains_key(headers::SESSION)
        && named().is_some_and(|named| Revision::parse(&named).is_some())
}

async fn deliver(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: Parts,
    messages: Messages,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    let (access, headers) = (&admitted.access, &parts.headers);
    let header = headers::check_version(headers, access)?;
    let form = form(access.server().reply.mode, accepts, &messages);
    let takes_retry = headers::takes_retry(headers);
    match messages {
        Messages::One(message)
            if message.method() == Method::Initialize && message.kind() == Kind::Request =>
        {
            Box::pin(initialize(
                front,
                admitted,
                headers,
                message,
                (form, accepts),
            ))
            .await
        }
        messages => {
            let id = headers::session_id(headers)?;
            let pending = front
                .hub
                .deliver(
                    access,
                    Transport::Streamable,
                    id,
                    messages,
                    form,
                    (header, admitted.trace.clone()),
                )
                .await;
            let pending = pending.map_err(|error| admitted.refusal(front, error))?;
            // While a request waits, the buffer that its head was read into is the connection's again.
            drop(parts);
            let answer = pending.answer().await;
            respond(front, access, (accepts, takes_retry), answer)
        }
    }
}

/// Chooses the form of the response by the server's mode and the client's `Accept`.
fn form(mode: ReplyMode, accepts: Accepts, messages: &Messages) -> Form {
    match (accepts.json, accepts.sse, mode) {
        (true, false, _) | (true, true, ReplyMode::Json) => Form::Json,
        // "Servers SHOULD NOT upgrade to an SSE stream in response to a tasks/get request"
        // (2025-11-25 tasks, "Input Required Status"): its client polls.
        (true, ..) if is_poll(messages) => Form::Json,
        (false, _, _) | (true, true, ReplyMode::Sse) => Form::Sse,
        (true, true, ReplyMode::Auto) => Form::Auto,
    }
}

fn is_poll(messages: &Messages) -> bool {
    match messages {
        Messages::One(message) => {
            message.method() == Method::Tasks && message.method_name() == "tasks/get"
        }
        Messages::Batch(_) => false,
    }
}

async fn initialize(
    front: &Arc<Front>,
    admitted: &Admitted,
    headers: &HeaderMap,
    message: Message,
    (form, accepts): (Form, Accepts),
) -> Result<Response, McpRefusal> {
    let access = &admitted.access;
    if let Some(id) = headers::single(headers, headers::SESSION)?
        && front.hub.has(access, id)
    {
        return Err(Error::Invalid("this session is initialized already").into());
    }
    let slow = (form == Form::Auto)
        .then(|| SlowStart::of(&message))
        .flatten();
    let (transport, trace) = (Transport::Streamable, admitted.trace.clone());
    let begun = front
        .hub
        .begin_with(access, transport, message, form, trace);
    let (id, _, pending) = begun.await?;
    let mut answer = Box::pin(pending.answer());
    let answer = match slow {
        None => answer.await,
        Some(slow) => {
            let in_time = timeout(access.server().reply.sse_after, &mut answer).await;
            if let Ok(answer) = in_time {
                answer
            } else {
                let (front, access) = (Arc::clone(front), access.clone());
                let counted = move |event| front.counted(&access, event);
                return Ok(slow.respond(answer, &id, counted));
            }
        }
    };
    let (line, session) = match answer {
        Answer::Json(line) => (line, HeaderValue::from_str(id.as_str()).ok()),
        Answer::Failed(line) => (line, None),
        Answer::Refused(error) => return Err(error.into()),
        Answer::Stream(_) | Answer::Accepted | Answer::Silent => {
            return Err(Error::Bug("initialize was answered by a stream").into());
        }
    };
    let mut response = if accepts.json {
        json::text(StatusCode::OK, front.counted(access, line))
    } else {
        one_event(front, access, &line)
    };
    if let Some(session) = session {
        response.headers_mut().insert(headers::SESSION, session);
    }
    Ok(response)
}

fn respond(
    front: &Front,
    access: &Access,
    (accepts, takes_retry): (Accepts, bool),
    answer: Answer,
) -> Result<Response, McpRefusal> {
    match answer {
        Answer::Json(line) | Answer::Failed(line) => {
            front.hub.limits().flow(access).wrote(line.len());
            Ok(json::text(StatusCode::OK, front.counted(access, line)))
        }
        Answer::Stream(reading) => {
            let close_after = access.server().reply.close_after;
            Ok(open(front, access, *reading, (close_after, takes_retry)))
        }
        // The call was cancelled before anything was sent: the stream ends without a message.
        Answer::Silent if accepts.sse => Ok(event_stream::event_stream(Body::empty())),
        Answer::Accepted | Answer::Silent => Ok(StatusCode::ACCEPTED.into_response()),
        Answer::Refused(error) => Err(error.into()),
    }
}

/// GET: opens the listener stream or resumes a stream.
pub(crate) async fn get(front: Arc<Front>, admitted: Admitted, request: Request) -> Response {
    let (method, access) = (request.method(), &admitted.access);
    if page::is_browser(method, request.headers()) {
        return admitted.page(&front);
    }
    if is_modern(&admitted, request.headers()) {
        return post_alone(&request);
    }
    if method == HttpMethod::HEAD {
        // HEAD would attach a connection that cannot be read.
        return not_allowed(&request);
    }
    let request = match forward::to_owner(&front, &admitted, session, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    let is_hop = request.extensions().get::<Hop>().is_some();
    listen(&front, access, request.headers(), is_hop)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn listen(
    front: &Front,
    access: &Access,
    headers: &HeaderMap,
    is_hop: bool,
) -> Result<Response, McpRefusal> {
    if !headers::accepts(headers).sse {
        let text = "Accept must permit text/event-stream";
        return Err(McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    headers::check_version(headers, access)?;
    let id = headers::session_id(headers)?;
    let cursor = headers::single(headers, LAST_EVENT_ID)?.map(str::as_bytes);
    let (hub, transport) = (&front.hub, Transport::Streamable);
    let attached = match hub.attach(access, transport, id, cursor).await? {
        // The Swift and the Kotlin SDK keep one id for all of their streams, and ask for their listener by that of a call
        // that has ended. The rest of a stream whose owner another replica has lost is no other stream.
        None if !headers.contains_key(REST_OF_STREAM) => {
            hub.attach_to_abandoned(access, transport, id).await?
        }
        attached => attached,
    };
    match attached {
        Some(reading) => {
            let takes_retry = headers::takes_retry(headers);
            // Revisions without a priming event name no id before the first event.
            let begin = is_hop.then(|| HeaderValue::try_from(reading.id()));
            let mut response = open(front, access, reading, (Duration::ZERO, takes_retry));
            if let Some(Ok(begin)) = begin {
                response.headers_mut().insert(STREAM_BEGIN, begin);
            }
            Ok(response)
        }
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Whether a request belongs to the modern era: by its header, or because its tenant serves no other.
fn is_modern(admitted: &Admitted, headers: &HeaderMap) -> bool {
    headers::is_modern(headers) || admitted.is_modern_alone()
}

/// DELETE: ends the session (2025-11-25 transports, "Session Management" 5).
pub(crate) async fn delete(front: Arc<Front>, admitted: Admitted, request: Request) -> Response {
    if is_modern(&admitted, request.headers()) {
        return post_alone(&request);
    }
    let request = match forward::to_owner(&front, &admitted, session, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    let headers = request.headers();
    let ended = async {
        headers::check_version(headers, &admitted.access)?;
        let id = headers::session_id(headers)?;
        front.hub.end(&admitted.access, id).await?;
        Ok::<_, McpRefusal>(StatusCode::NO_CONTENT)
    };
    ended.await.into_response()
}

fn open(
    front: &Front,
    access: &Access,
    reading: Reader,
    (close_after, takes_retry): (Duration, bool),
) -> Response {
    let stream = &front.config.stream;
    let has_priming = reading.revision().is_some_and(Revision::has_priming);
    let mut first = BytesMut::new();
    if has_priming {
        let id = reading.id();
        let polled_after = access.server().reply.close_after;
        let retry = front.retry.at_begin(polled_after, &id);
        push_priming(&mut first, &id, retry);
    }
    let is_polled = has_priming && !close_after.is_zero();
    let options = StreamOptions {
        keep_alive: stream.keep_alive,
        retry: front.retry.clone(),
        takes_retry,
        close_at: is_polled.then(|| Instant::now() + close_after),
        first,
        prefix: String::new(),
        flow: front.hub.limits().flow(access),
    };
    event_stream::respond(&front.metrics, reading, options)
}

/// Makes a response to `initialize` for a client that accepts only SSE: an event without an id,
/// because there is no stream to resume yet.
fn one_event(front: &Front, access: &Access, line: &[u8]) -> Response {
    let mut event = BytesMut::new();
    push_message(&mut event, "", line);
    event_stream::event_stream(front.counted(access, event.freeze()).into())
}

//! Complete responses of the modern era, and their forms.
//!
//! Not here: event streams (`modern_stream`), and refusals (`modern_request`).

use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use memchr::memmem;

use super::modern_request::ModernRequest;
use crate::http::{
    admission::Front,
    reply::{event_stream, json},
};
use crate::{
    base::budget::Drawn,
    declare::ReplyMode,
    hub::CallError,
    protocol::{
        Accepts, Message,
        event::push_message,
        json as raw,
        modern::{input_required, is_mirrored},
    },
};

/// The forms of a response by the server's mode and the client's `Accept`.
pub(super) fn formed(request: &ModernRequest<'_>, accepts: Accepts) -> Accepts {
    match (
        accepts.json,
        accepts.sse,
        request.caller.access.server().reply.mode,
    ) {
        (true, true, ReplyMode::Json) => Accepts {
            sse: false,
            ..accepts
        },
        (true, true, ReplyMode::Sse) => Accepts {
            json: false,
            ..accepts
        },
        _ => accepts,
    }
}

/// A response that is complete, with the status that its error requires: "If the server does not implement
/// the requested RPC method, it MUST respond with 404 Not Found" (2026-07-28 streamable-http, "Protocol
/// Version Header"), and 400 for a lack of a capability (basic, "Per-request protocol fields"). Servers say the same code
/// of a tool that they do not have: where they have declared the method it is an error like any other, of which clients read
/// the body.
pub(super) fn answered(
    front: &Front,
    request: &ModernRequest<'_>,
    line: Bytes,
    accepts: Accepts,
) -> Response {
    answered_in(front, request, (line, None), accepts)
}

/// The same of an answer for which there was room before it was made.
pub(super) fn answered_in(
    front: &Front,
    request: &ModernRequest<'_>,
    (line, room): (Bytes, Option<Drawn>),
    accepts: Accepts,
) -> Response {
    let is_declared = || {
        front
            .stateless
            .is_declared(&request.caller, &request.method)
    };
    let status = match error_code(&line) {
        Some(b"-32601") if !is_declared() => StatusCode::NOT_FOUND,
        Some(b"-32021") => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    };
    let access = request.caller.access;
    front.hub.limits().flow(access).wrote(line.len());
    // Errors with a status of their own are JSON: no client reads a stream behind them.
    if accepts.json || status != StatusCode::OK {
        return json::text(status, front.counted_in(access, line, room));
    }
    let mut event = BytesMut::new();
    push_message(&mut event, "", &line);
    event_stream::event_stream(front.counted_in(access, event.freeze(), room).into())
}

/// The raw code of an error response. Most lines are results, which need not be read to see that.
fn error_code(line: &[u8]) -> Option<&[u8]> {
    let may_be_error =
        memmem::find(line, b"\"error\"").is_some() || memchr::memchr(b'\\', line).is_some();
    let error = may_be_error.then(|| raw::get(line, "error"))??;
    raw::get(error, "code")
}

/// The error response of a server that could not be initialized. The codes of the server itself would be taken for
/// answers to this request.
pub(super) fn failed(
    front: &Front,
    request: &ModernRequest<'_>,
    line: Bytes,
    accepts: Accepts,
) -> Response {
    let message = Message::parse(line).ok();
    let may_visit = is_mirrored(&request.method) && request.caller.visits_urls();
    let visits = message.as_ref().filter(|_| may_visit).and_then(|message| {
        let access = request.caller.access;
        front.stateless.visits(access, request.message, message)
    });
    if let Some((asks, ticket)) = visits {
        let line = input_required(request.id(), &asks, &ticket, None);
        return answered(front, request, line, accepts);
    }
    let error = message.as_ref().and_then(Message::error);
    let line = match &message {
        Some(message) if error.is_some_and(CallError::is_own) => {
            request.completion(None).complete(message)
        }
        _ => CallError::line_of_refusal(request.id(), error.unwrap_or_default()),
    };
    answered(front, request, line, accepts)
}

//! HTTP+SSE of 2024-11-05: one connection carries all messages to the client, and the client posts
//! its messages to the endpoint that the first event names.

use std::sync::Arc;

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use http::{HeaderMap, Method, StatusCode, request::Parts};

use crate::http::{
    admission::{Admitted, Front, body, headers, not_allowed},
    replicas::forward,
    reply::{McpRefusal, StreamOptions, event_stream, page},
};
use crate::{
    endpoint::{self, Kind},
    error::Error,
    hub::{Answer, Form, Transport},
    protocol::{Body as Messages, LAST_EVENT_ID, event::push_endpoint},
};

/// GET: opens a session, or resumes the one of a `Last-Event-ID`.
pub(crate) async fn connect(front: Arc<Front>, admitted: Admitted, request: Request) -> Response {
    if page::is_browser(request.method(), request.headers()) {
        return admitted.page(&front);
    }
    if request.method() == Method::HEAD {
        return not_allowed(&request);
    }
    let request = match forward::to_owner(&front, &admitted, resumed_session, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    listen(&front, &admitted, request.headers())
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// Returns the session that a `Last-Event-ID` resumes; `None` opens a new session.
fn resumed_session(request: &Request) -> Option<String> {
    let cursor = headers::single(request.headers(), LAST_EVENT_ID).ok()??;
    let (id, _) = cursor.split_once('.')?;
    Some(id.to_owned())
}

/// Returns the session of a posted message.
fn posted_session(request: &Request) -> Option<String> {
    session_id(request.uri().query()?).map(str::to_owned)
}

async fn listen(
    front: &Front,
    admitted: &Admitted,
    headers: &HeaderMap,
) -> Result<Response, McpRefusal> {
    let access = &admitted.access;
    if !headers::accepts(headers).sse {
        let text = "Accept must permit text/event-stream";
        return Err(McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    headers::check_version(headers, access)?;
    let (id, reading) = match headers::single(headers, LAST_EVENT_ID)? {
        None => {
            let (id, reading) = front.hub.connect(access).await?;
            (id.as_str().to_owned(), reading)
        }
        // Event ids of this transport begin with the session id, because no header carries it.
        Some(cursor) => {
            let (id, cursor) = cursor.split_once('.').ok_or(Error::NoCursor)?;
            let reading = front
                .hub
                .attach(access, Transport::Sse2024, id, Some(cursor.as_bytes()))
                .await?;
            (id.to_owned(), reading.ok_or(Error::NoCursor)?)
        }
    };
    let prefix = format!("{id}.");
    let base = endpoint::base_path(admitted.public_url(front));
    let path = admitted.endpoint().with(Kind::Messages).path();
    let uri = format!("{base}{path}?session_id={id}");
    let mut first = BytesMut::new();
    push_endpoint(&mut first, &uri, &format!("{prefix}{}", reading.id()));
    let settings = &front.config.stream;
    let (keep_alive, retry) = (settings.keep_alive, front.retry.clone());
    Ok(event_stream::respond(
        &front.metrics,
        reading,
        StreamOptions {
            keep_alive,
            retry,
            takes_retry: headers::takes_retry(headers),
            close_at: None,
            first,
            prefix,
            flow: front.hub.limits().flow(access),
        },
    ))
}

/// POST: takes one message of the client; responses go over the connection of the session.
pub(crate) async fn post(front: Arc<Front>, mut admitted: Admitted, request: Request) -> Response {
    let request = match forward::to_owner(&front, &admitted, posted_session, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    let (parts, body) = request.into_parts();
    let accepted = async {
        let body = body::read_counted(&front, &admitted.access, &parts.headers, body).await?;
        let messages = body::messages(&admitted.access, body).await?;
        let id = messages.request_id().map(Box::<[u8]>::from);
        let accepted = match admitted.renew(&front) {
            Ok(()) => accept(&front, &admitted, &parts, messages).await,
            Err(refused) => Err(refused),
        };
        accepted.map_err(|refused| refused.answering(id.as_deref()))
    };
    accepted.await.into_response()
}

async fn accept(
    front: &Front,
    admitted: &Admitted,
    parts: &Parts,
    messages: Messages,
) -> Result<StatusCode, McpRefusal> {
    let access = &admitted.access;
    let header = headers::check_version(&parts.headers, access)?;
    if messages.is_modern() {
        return Err(headers::no_modern());
    }
    let id = session_id(parts.uri.query().unwrap_or_default())
        .ok_or(Error::Invalid("session_id is missing"))?;
    let marks = (header, admitted.trace.clone());
    let pending = front
        .hub
        .deliver(access, Transport::Sse2024, id, messages, Form::Sse, marks)
        .await
        .map_err(|error| admitted.refusal(front, error))?;
    match pending.answer().await {
        Answer::Refused(error) => Err(McpRefusal::from(error)),
        _ => Ok(StatusCode::ACCEPTED),
    }
}

/// Returns the only `session_id` of a query; ids need no decoding.
fn session_id(query: &str) -> Option<&str> {
    let mut ids = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("session_id="));
    let id = ids.next()?;
    ids.next().is_none().then_some(id)
}

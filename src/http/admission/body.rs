//! Request bodies, read whole within limits of size and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;

use crate::{http::reply::McpRefusal, protocol::headers};

/// Reads a body whose `Content-Type` is JSON, within the limits of size and time.
pub(crate) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, McpRefusal> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(headers::is_json) {
        let text = "Content-Type must be application/json";
        return Err(McpRefusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    whole(body, max).await
}

/// Reads a body within the limits of size and time.
pub(crate) async fn whole(body: Body, max: usize) -> Result<Bytes, McpRefusal> {
    let late = McpRefusal::http(
        StatusCode::REQUEST_TIMEOUT,
        "the body did not arrive in time",
    );
    tokio::time::timeout(BODY, collect(body, max))
        .await
        .unwrap_or(Err(late))
}

/// Collects frames: into one buffer as they arrive, if their length is known; else they are joined at
/// the end, so that a body that is too large never costs more than the limit.
async fn collect(mut body: Body, max: usize) -> Result<Bytes, McpRefusal> {
    let expected = body.size_hint().exact();
    let expected = expected.and_then(|length| usize::try_from(length).ok());
    // Most bodies are a single frame, which is not copied.
    let (mut pieces, mut joined, mut length) = (Vec::new(), BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let broken = McpRefusal::http(StatusCode::BAD_REQUEST, "the body ends early");
        let Ok(data) = frame.map_err(|_| broken)?.into_data() else {
            continue;
        };
        length += data.len();
        // The gate of the public listener has the same limit and replaces this response.
        if length > max {
            return Err(McpRefusal::http(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body too large",
            ));
        }
        pieces.push(data);
        if let Some(expected) = expected
            && (length < expected || !joined.is_empty())
        {
            // Memory that is reserved and not written to costs nothing.
            joined.reserve(expected.min(max).saturating_sub(joined.len()));
            join(&mut joined, &mut pieces);
        }
    }
    if joined.is_empty() && pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    joined.reserve(length - joined.len());
    join(&mut joined, &mut pieces);
    Ok(joined.freeze())
}

/// Moves pieces into a buffer; each is freed as soon as it is copied.
fn join(joined: &mut BytesMut, pieces: &mut Vec<Bytes>) {
    for piece in pieces.drain(..) {
        joined.extend_from_slice(&piece);
    }
}

/// Time limit for a body.
const BODY: Duration = Duration::from_secs(30);

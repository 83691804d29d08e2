//! Transports beside sessions of Streamable HTTP: revision 2026-07-28, in which each request stands for itself, and
//! HTTP+SSE of 2024-11-05, a stream whose first event names the endpoint of messages.

use reqwest::Response;
use serde_json::{Value as Json, json};
use tokio::time::Instant;
use url::Url;

use super::{
    causes::{self, Finding, failed},
    message::{ACCEPT, MODERN, initialize, modern},
    sse::{Block, Blocks, is_stream},
    stream::{Piece, piece},
    visitor::{Ask, Failure, Visitor},
};
use crate::protocol::headers::{METHOD, PROTOCOL_VERSION};

/// Examines a server; none if it does not have the revision.
pub(super) async fn without_sessions(visitor: &mut Visitor) -> Result<Option<String>, Finding> {
    let ask = request(visitor, "server/discover", json!({}));
    let shown = format!("{} (server/discover)", ask.shown());
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    if matches!(answer.status.as_u16(), 401 | 403) {
        let came = answer.shown();
        return Err(Finding::new(&causes::TOKEN_REFUSED, &shown, &came));
    }
    let message = answer.message().unwrap_or_default();
    // 2026-07-28 transports, "Server Validation": HeaderMismatch.
    if message["error"]["code"] == HEADER_MISMATCH {
        let came = answer.shown();
        return Err(Finding::new(
            &causes::MIRRORED_HEADER_DROPPED,
            &shown,
            &came,
        ));
    }
    let offered = message["result"]["supportedVersions"].as_array();
    if !offered.is_some_and(|offered| offered.iter().any(|one| one == MODERN)) {
        return Ok(None);
    }
    subscribe(visitor).await.map(Some)
}

/// Opens a subscription: the first event acknowledges it at once (2026-07-28 subscriptions).
async fn subscribe(visitor: &mut Visitor) -> Result<String, Finding> {
    let params = json!({"notifications": {"toolsListChanged": true}});
    let ask = request(visitor, "subscriptions/listen", params);
    let shown = format!("{} (subscriptions/listen)", ask.shown());
    let (began, limit) = (Instant::now(), visitor.limit);
    let answered = visitor.open(ask).await;
    let late = format!("no event within {limit:?}");
    let held = || Finding::new(&causes::STREAM_BUFFERED, &shown, &late);
    let mut response = answered.map_err(|failure| match failure {
        Failure::Late(_) => held(),
        failure => failed(&failure, &shown),
    })?;
    if !response.status().is_success() || !is_stream(response.headers()) {
        return Ok("no subscriptions".to_owned());
    }
    match piece(&mut response, limit.saturating_sub(began.elapsed())).await {
        Piece::Bytes(_) => Ok("subscription open".to_owned()),
        Piece::End => Ok("no subscriptions".to_owned()),
        Piece::Quiet => Err(held()),
        Piece::Cut => Err(Finding::new(
            &causes::STREAM_CUT,
            &shown,
            "it broke at once",
        )),
    }
}

fn request(visitor: &Visitor, method: &str, params: Json) -> Ask {
    Ask::post(&visitor.target, &modern(1, method, params))
        .header("Accept", ACCEPT)
        .header(PROTOCOL_VERSION, MODERN)
        .header(METHOD, method)
        .with_token()
}

/// Examines the transport; none if the server does not have it.
pub(super) async fn http_sse(visitor: &mut Visitor) -> Result<Option<String>, Finding> {
    let Some(url) = address(&visitor.target) else {
        return Ok(None);
    };
    let ask = Ask::get(&url)
        .header("Accept", "text/event-stream")
        .with_token();
    let shown = ask.shown();
    let limit = visitor.limit;
    let late = format!("no endpoint event within {limit:?}");
    let held = || Finding::new(&causes::STREAM_BUFFERED, &shown, &late);
    let opened = visitor.open(ask).await;
    let mut response = opened.map_err(|failure| match failure {
        Failure::Late(_) => held(),
        failure => failed(&failure, &shown),
    })?;
    if response.status() != 200 || !is_stream(response.headers()) {
        return Ok(None);
    }
    let mut blocks = Blocks::default();
    // 2024-11-05 transports, "HTTP with SSE": "the server MUST send an endpoint event" when a client connects.
    let first = event(visitor, &mut response, &mut blocks, |block| {
        block.event.as_deref() == Some("endpoint")
    });
    let first = first.await.ok_or_else(held)?;
    let named = first.data.unwrap_or_default();
    let endpoint = url.join(&named).ok();
    let Some(endpoint) = endpoint.filter(|endpoint| endpoint.origin() == url.origin()) else {
        let came = format!("endpoint: {named}");
        return Err(Finding::new(&causes::ENDPOINT_ELSEWHERE, &shown, &came));
    };
    let ask = Ask::post(&endpoint, &initialize("2024-11-05")).with_token();
    let posted = format!("POST {} (initialize)", ask.url.path());
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &posted))?;
    if !answer.status.is_success() {
        let came = answer.shown();
        return Err(Finding::new(&causes::INITIALIZE_REFUSED, &posted, &came));
    }
    let answered = event(visitor, &mut response, &mut blocks, Block::is_response).await;
    match answered {
        Some(_) => Ok(Some("stream open".to_owned())),
        None => Err(Finding::new(&causes::STREAM_BUFFERED, &posted, &late)),
    }
}

/// The URL of the transport: the examined one, or that beside the one of Streamable HTTP.
fn address(target: &Url) -> Option<Url> {
    let path = target.path();
    if path.ends_with("/sse") {
        return Some(target.clone());
    }
    let mut url = target.clone();
    url.set_path(&format!("{}/sse", path.strip_suffix("/mcp")?));
    Some(url)
}

/// The next event of a kind, if it comes within the time limit of an answer.
async fn event(
    visitor: &Visitor,
    response: &mut Response,
    blocks: &mut Blocks,
    is_it: impl Fn(&Block) -> bool,
) -> Option<Block> {
    let (began, mut total) = (Instant::now(), 0);
    loop {
        if let Some(block) = std::iter::from_fn(|| blocks.next()).find(&is_it) {
            return Some(block);
        }
        let left = visitor.limit.checked_sub(began.elapsed())?;
        match piece(response, left).await {
            Piece::Bytes(bytes) if total + bytes.len() <= MOST_BEFORE => {
                total += bytes.len();
                blocks.push(&bytes);
            }
            _ => return None,
        }
    }
}

/// JSON-RPC error of header fields that differ from the body.
const HEADER_MISMATCH: i32 = -32020;
/// The most bytes before an event.
const MOST_BEFORE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::super::transports::*;

    #[test]
    fn the_transport_is_beside_the_other_one() {
        for (target, wanted) in [
            ("https://a.test/t/x/y/mcp", Some("https://a.test/t/x/y/sse")),
            ("https://a.test/sse", Some("https://a.test/sse")),
            ("https://a.test/api", None),
        ] {
            let found = address(&Url::parse(target).unwrap());
            assert_eq!(found.as_ref().map(Url::as_str), wanted);
        }
    }
}

//! Any bytes as a request body: parsed or refused, and what is parsed can be spliced and
//! spliced back without losing a byte.

use crate::protocol::json::{Span, scanner::MAX_DEPTH};
use crate::protocol::{Body, Kind, Message, Refusal};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, value::RawValue};

/// What ids and tokens are replaced by: shorter and longer than what stood there.
const TOKENS: [&str; 4] = [
    "7",
    "\"g-18446744073709551615\"",
    "18446744073709551615",
    "\"\"",
];

pub fn run(data: &[u8]) {
    let body = Body::parse(Bytes::copy_from_slice(data));
    let is_json = is_json(data);
    match body.map_err(|rejected| rejected.refusal) {
        Ok(Body::One(message)) => {
            assert!(is_json, "accepted although it is no JSON");
            check(&message);
        }
        Ok(Body::Batch(items)) => {
            assert!(is_json, "accepted although it is no JSON");
            items.iter().flatten().for_each(check);
        }
        Err(Refusal::NotJson(why)) => assert!(!is_json, "JSON, but refused as none: {why}"),
        // A batch is refused at its hundred-and-first item, before the rest is read.
        Err(Refusal::Invalid(why)) => assert!(is_json || data.len() > 200, "no JSON, but: {why}"),
    }
}

/// What another parser says; it has no bound on the depth when it keeps the text as it is.
fn is_json(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok()
        && serde_json::from_slice::<&RawValue>(data).is_ok()
        && depth(data) <= MAX_DEPTH
}

/// How deep a JSON text is nested.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn check(message: &Message) {
    let text = message.bytes();
    assert!(
        !text.iter().any(|byte| b"\r\n".contains(byte)),
        "not on one line"
    );
    let has_id = message.id().is_some();
    assert_eq!(has_id, message.kind() != Kind::Notification);
    // Lone surrogates and numbers beyond f64 are JSON that a `Value` cannot hold.
    let value = serde_json::from_slice::<Value>(text).ok();
    if let Some(value) = &value {
        let of = |token: Option<&[u8]>| token.map(|token| serde_json::from_slice(token).unwrap());
        assert_eq!(of(message.id()).as_ref(), value.get("id"));
        assert_eq!(
            message.method_name(),
            value["method"].as_str().unwrap_or_default()
        );
        let name = message.name();
        assert_eq!(name.as_deref(), value["params"]["name"].as_str());
        let token = message.meta_progress_token().map(|span| span.of(text));
        assert_eq!(
            of(token).as_ref(),
            value["params"]["_meta"].get("progressToken")
        );
        let related = "io.modelcontextprotocol/related-task";
        let has_related = value["params"]["_meta"].get(related).is_some();
        assert!(message.related_task().is_none() || has_related);
    }
    for token in TOKENS {
        splice(message, token);
    }
}

/// Every token that the gateway rewrites, in the order in which they stand.
fn tokens(message: &Message) -> Vec<Span> {
    let spans = [
        message.id_span(),
        message.meta_progress_token(),
        message.progress_token(),
    ];
    let mut spans: Vec<Span> = spans.into_iter().flatten().collect();
    spans.sort_by_key(|span| span.start());
    spans
}

/// Replaces every token, and puts back what stood there.
fn splice(message: &Message, token: &str) {
    let spans = tokens(message);
    let new = |span: &Span| (*span, token.as_bytes());
    let mut out = BytesMut::new();
    message.splice(&mut out, &spans.iter().map(new).collect::<Vec<_>>());
    let again = Message::parse(out.freeze()).expect("what was spliced is still a message");
    let places = tokens(&again);
    assert_eq!(places.len(), spans.len());
    assert_eq!(again.kind(), message.kind());
    assert_eq!(again.id().is_some(), message.id().is_some());
    for place in &places {
        assert_eq!(place.of(again.bytes()), token.as_bytes());
    }
    // What stands between the tokens is untouched, and so is what comes of the way back.
    let old = spans.iter().map(|span| span.of(message.bytes()));
    let back: Vec<_> = places.iter().copied().zip(old).collect();
    let mut out = BytesMut::new();
    again.splice(&mut out, &back);
    assert_eq!(out, message.bytes());
}

//! Any messages as a stream of server-sent events: what a client reads is what was sent, and the
//! parser between replicas keeps events whole, wherever a connection is cut.

use std::time::Duration;

use bytes::BytesMut;

use crate::http::replicas::Parser;
use crate::protocol::KEEP_ALIVE;
use crate::protocol::event::{push_endpoint, push_message, push_priming, push_retry};

/// A byte that chooses the cuts, then one event a line.
pub fn run(data: &[u8]) {
    let [cuts, text @ ..] = data else { return };
    any_bytes(text, *cuts);
    let mut stream = Vec::new();
    let mut wanted = Vec::new();
    let mut ids = Vec::new();
    for record in text.split(|byte| *byte == b'\n').take(64) {
        let (event, expected) = encoded(record);
        stream.push(event);
        ids.extend(expected.as_ref().and_then(|event| event.id.clone()));
        wanted.extend(expected);
    }
    let whole: Vec<u8> = stream.concat();
    assert_eq!(decoded(&whole), wanted, "as a client reads it");
    let mut parser = Parser::default();
    let got = cut(&whole, *cuts, |part| parser.push(part).to_vec());
    assert_eq!(got, whole);
    assert_eq!(parser.kept(), 0, "every event is whole");
    assert_eq!(parser.last_id(), ids.last().map(String::as_str));
    reconnected(&stream, *cuts);
}

/// An event as the gateway writes it, and as a client should read it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    name: String,
    id: Option<String>,
    data: String,
    retry: Option<u64>,
}

/// An event by the first byte of its record.
fn encoded(record: &[u8]) -> (Vec<u8>, Option<Event>) {
    let [kind, rest @ ..] = record else {
        return (KEEP_ALIVE.to_vec(), None);
    };
    let at = rest.iter().position(|byte| *byte == b' ');
    let (id, data) = rest.split_at(at.unwrap_or(0));
    // Ids are letters of Base64, and a point in those of HTTP+SSE.
    let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let id: String = id
        .iter()
        .filter(is_letter)
        .map(|byte| char::from(*byte))
        .collect();
    let id = format!("x{id}");
    let data = String::from_utf8_lossy(data).replace('\r', "");
    let retry = Duration::from_millis(data.len() as u64);
    let mut out = BytesMut::new();
    let mut event = Event {
        id: Some(id.clone()),
        ..Event::default()
    };
    match kind % 4 {
        0 => {
            let retry = (*kind < 128).then_some(retry);
            push_priming(&mut out, &id, retry);
            event.retry = retry.map(|_| data.len() as u64);
        }
        1 => {
            push_retry(&mut out, retry);
            event = Event {
                retry: Some(data.len() as u64),
                ..Event::default()
            };
        }
        2 => {
            let path = data.replace(char::is_whitespace, "");
            push_endpoint(&mut out, &path, &id);
            event.name = "endpoint".to_owned();
            event.data = path;
        }
        _ => {
            push_message(&mut out, &id, data.as_bytes());
            event.name = "message".to_owned();
            event.data = data;
        }
    }
    (out.to_vec(), Some(event))
}

/// The events of a stream by the letter of the HTML standard, section 9.2.6, with those that it
/// would not dispatch.
fn decoded(stream: &[u8]) -> Vec<Event> {
    let text = std::str::from_utf8(stream).expect("a stream is UTF-8");
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    assert!(is_whole(text.as_bytes()), "whole events only");
    let blocks = text.split_terminator("\n\n");
    let read = |block: &str| {
        let mut event = Event::default();
        let mut data = Vec::new();
        let mut is_comment = true;
        for line in block.lines().filter(|line| !line.starts_with(':')) {
            is_comment = false;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event.name),
                "data" => data.push(value),
                "id" if !value.contains('\0') => event.id = Some(value.to_owned()),
                "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                    event.retry = value.parse().ok();
                }
                _ => {}
            }
        }
        event.data = data.join("\n");
        (!is_comment).then_some(event)
    };
    blocks.filter_map(read).collect()
}

/// Feeds the parts of a text, and returns what came out.
fn cut(whole: &[u8], cuts: u8, mut feed: impl FnMut(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut rest, mut out, mut state) = (whole, Vec::new(), u32::from(cuts) | 1);
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let at = (1 + usize::try_from(state >> 27).unwrap()).min(rest.len());
        let (part, more) = rest.split_at(at);
        let got = feed(part);
        assert!(is_whole(&got), "an event in parts");
        out.extend(got);
        rest = more;
    }
    out
}

/// Whether bytes end behind an event or a line of comment.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(lines) = bytes.strip_suffix(b"\n") else {
        return bytes.is_empty();
    };
    let last = lines.rsplit(|byte| *byte == b'\n').next();
    last.is_none_or(|line| line.is_empty() || line.starts_with(b":"))
}

/// Whatever another replica sends: whole events come out, in order, and nothing else.
fn any_bytes(text: &[u8], cuts: u8) {
    let mut parser = Parser::default();
    let out = cut(text, cuts, |part| parser.push(part).to_vec());
    assert!(text.starts_with(&out));
    let rest = &text[out.len()..];
    assert!(
        !rest.windows(2).any(|pair| pair == b"\n\n"),
        "a whole event is kept back"
    );
}

/// The connection breaks at each event, and the next source begins with a priming event of its own
/// and the event that was cut. The client gets that one if it has had no event.
fn reconnected(stream: &[Vec<u8>], cuts: u8) {
    let mut parser = Parser::default();
    let mut got = Vec::new();
    let mut whole = Vec::new();
    for event in stream {
        let at = usize::from(cuts) % event.len();
        got.extend_from_slice(&parser.push(&event[..at]));
        parser.reconnect();
        let mut again = BytesMut::new();
        push_priming(&mut again, "again", None);
        if !parser.has_passed() {
            whole.extend_from_slice(&again);
        }
        again.extend_from_slice(event);
        got.extend_from_slice(&parser.push(&again));
        whole.extend_from_slice(event);
    }
    assert_eq!(got, whole);
}

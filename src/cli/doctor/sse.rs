//! Blocks of an event stream, as the doctor looks at them (HTML, "Server-sent events").

use bytes::{Buf, BytesMut};
use memchr::memmem;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value as Json;

/// Splits the bytes of a stream into blocks.
#[derive(Default)]
pub(super) struct Blocks(BytesMut);

/// A block: an event, or a comment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) id: Option<String>,
    pub(super) event: Option<String>,
    pub(super) data: Option<String>,
}

impl Blocks {
    /// Takes bytes in; the caller bounds them.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        // Lines may end with CRLF. A lone CR, which the grammar allows too, is what no server sends.
        self.0.extend(bytes.iter().filter(|byte| **byte != b'\r'));
    }

    /// The next whole block.
    pub(super) fn next(&mut self) -> Option<Block> {
        let end = memmem::find(&self.0, b"\n\n")?;
        let text = self.0.split_to(end);
        self.0.advance(2);
        let mut block = Block::default();
        for line in String::from_utf8_lossy(&text).lines() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match (name, &mut block.data) {
                ("id", _) => block.id = Some(value),
                ("event", _) => block.event = Some(value),
                ("data", Some(data)) => *data += &format!("\n{value}"),
                ("data", data) => *data = Some(value),
                _ => {}
            }
        }
        Some(block)
    }
}

impl Block {
    /// The JSON of its data.
    pub(super) fn json(&self) -> Option<Json> {
        serde_json::from_str(self.data.as_deref()?).ok()
    }

    /// Whether it carries a JSON-RPC response.
    pub(super) fn is_response(&self) -> bool {
        let is_one = |json: Json| !json["result"].is_null() || !json["error"].is_null();
        self.json().is_some_and(is_one)
    }
}

/// Whether an answer is an event stream.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::super::sse::*;

    #[test]
    fn blocks_are_split_wherever_the_bytes_are() {
        let text = "retry: 1\r\nid: a\r\n\r\n: still here\n\nevent: message\ndata: {\"result\":\ndata: 1}\n\nid: b";
        for size in [1, 7, 1000] {
            let (mut blocks, mut found) = (Blocks::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                blocks.push(piece);
                found.extend(std::iter::from_fn(|| blocks.next()));
            }
            assert_eq!(found.len(), 3);
            assert_eq!(found[0].id.as_deref(), Some("a"));
            assert_eq!(found[1], Block::default());
            assert!(found[2].is_response());
            assert_eq!(found[2].event.as_deref(), Some("message"));
        }
    }
}

//! `src/http/replicas`: the parser of streams, behind its own names.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../../src/http/replicas/sse_parser.rs"]
mod sse_parser;

use bytes::Bytes;

use self::sse_parser::SseParser;

/// A parser for a target.
#[derive(Default)]
pub(crate) struct Parser(SseParser);

impl Parser {
    pub(crate) fn push(&mut self, data: &[u8]) -> Bytes {
        self.0.push(Bytes::copy_from_slice(data))
    }

    /// The connection broke, and another source goes on.
    pub(crate) fn reconnect(&mut self) {
        self.0.discard_partial();
        self.0.resume();
    }

    /// Whether an event was passed on.
    pub(crate) fn has_passed(&self) -> bool {
        self.0.has_passed()
    }

    pub(crate) fn kept(&self) -> usize {
        self.0.kept()
    }

    pub(crate) fn last_id(&self) -> Option<&str> {
        self.0.last_id()
    }
}

//! Parser that splits the byte stream of another replica into whole server-sent events.
//!
//! A connection can break in the middle of an event, and the next source sends that event again from
//! its beginning. Only whole events are passed on for that reason, and whole lines of comment between
//! them. The parser does no IO and finds only the ends and the ids of events, in the form that
//! `protocol::event` writes.

use std::mem::replace;

use bytes::{Bytes, BytesMut};

/// Parser state of one stream.
#[derive(Debug, Default)]
pub(super) struct SseParser {
    /// An incomplete event. Its length is bounded because the sender is another replica, which
    /// bounds the messages of children.
    rest: BytesMut,
    /// Bytes of `rest` that were searched already.
    searched: usize,
    last_id: Option<String>,
    /// Whether an event was passed on.
    has_passed: bool,
    /// The source has changed, and its first event is not read yet.
    is_resumed: bool,
}

impl SseParser {
    /// Makes the parser of a stream that begins behind the event with this id, if that is known.
    pub(super) fn behind(id: Option<String>) -> Self {
        Self {
            last_id: id.filter(|id| !id.is_empty()),
            ..Self::default()
        }
    }

    /// Takes the next bytes and returns the events that they complete, and the comments before, between and behind
    /// these.
    pub(crate) fn push(&mut self, data: Bytes) -> Bytes {
        let is_whole = data.ends_with(END) || comments(&data) == data.len();
        let mut whole = if self.rest.is_empty() && is_whole {
            // Owners write whole events, so the usual case copies nothing.
            data
        } else {
            self.rest.extend_from_slice(&data);
            let from = self.searched.saturating_sub(END.len() - 1);
            let found = memchr::memmem::rfind(&self.rest[from..], END);
            let events = found.map_or(0, |at| from + at + END.len());
            let end = events + comments(&self.rest[events..]);
            if end == 0 {
                self.searched = self.rest.len();
                return Bytes::new();
            }
            // Copied: it would keep the buffer of the events before it, however long they were.
            let rest = BytesMut::from(&self.rest[end..]);
            let mut whole = replace(&mut self.rest, rest);
            self.searched = self.rest.len();
            whole.truncate(end);
            // So would short ones that of the begin of a long one, and they are counted by their length.
            if whole.capacity() > 2 * end {
                Bytes::copy_from_slice(&whole)
            } else {
                whole.freeze()
            }
        };
        if self.is_resumed {
            let begin = comments(&whole);
            if let Some(at) = memchr::memmem::find(&whole[begin..], END) {
                self.is_resumed = false;
                let end = begin + at + END.len();
                if is_preamble(&whole[begin..end]) {
                    self.record_last_id(&whole.split_to(end));
                }
            }
        }
        self.record_last_id(&whole);
        self.has_passed |= comments(&whole) < whole.len();
        whole
    }

    /// Discards an incomplete event after the connection broke; the next source sends it again.
    pub(crate) fn discard_partial(&mut self) {
        self.rest = BytesMut::new();
        self.searched = 0;
    }

    /// Bytes of the incomplete event.
    pub(super) fn kept(&self) -> usize {
        self.rest.len()
    }

    /// Prepares for another connection, whose preamble event the client has had already if it has had any event.
    pub(crate) fn resume(&mut self) {
        self.is_resumed = self.has_passed;
    }

    /// Whether an event was passed on: the preamble, if the stream has one.
    pub(super) fn has_passed(&self) -> bool {
        self.has_passed
    }

    /// Id of the last whole event that has one, or of that behind which the stream begins.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    fn record_last_id(&mut self, events: &[u8]) {
        // The last id counts, so the search runs backwards. Data cannot be mistaken for an id: it is
        // one line that begins with `data:`.
        for line in events.rsplit(|byte| *byte == b'\n') {
            // An empty id means that the event cannot be resumed from.
            if let Some(id) = line.strip_prefix(b"id: ").filter(|id| !id.is_empty()) {
                if self.last_id.as_deref().map(str::as_bytes) != Some(id) {
                    self.last_id = std::str::from_utf8(id).ok().map(str::to_owned);
                }
                return;
            }
        }
    }
}

/// Returns whether an event opens a connection: a priming event or the `endpoint` event of HTTP+SSE.
fn is_preamble(event: &[u8]) -> bool {
    let mut lines = event.split(|byte| *byte == b'\n');
    event.starts_with(b"event: endpoint\n")
        || (event.starts_with(b"id: ") && lines.any(|line| matches!(line, b"data: " | b"data:")))
}

/// Returns the length of the whole lines of comment at the beginning of `bytes`, where an event may begin.
fn comments(bytes: &[u8]) -> usize {
    let mut length = 0;
    while bytes[length..].starts_with(b":") {
        let Some(end) = memchr::memchr(b'\n', &bytes[length..]) else {
            break;
        };
        length += end + 1;
    }
    length
}

/// End of an event.
const END: &[u8] = b"\n\n";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::sse_parser::*;
    use crate::protocol::{
        KEEP_ALIVE,
        event::{push_endpoint, push_message, push_priming},
    };

    fn stream() -> BytesMut {
        let mut out = BytesMut::new();
        push_priming(&mut out, "p0", Some(Duration::from_secs(1)));
        push_message(&mut out, "m1", br#"{"a":"id: x"}"#);
        out.extend_from_slice(KEEP_ALIVE);
        push_message(&mut out, "m2", b"{}");
        out
    }

    proptest! {
        #[test]
        fn events_stay_whole_wherever_the_bytes_are_split(
            mut cuts in prop::collection::vec(0_usize..200, 0..8), end in 0_usize..200,
        ) {
            let all = stream();
            let end = end.min(all.len());
            cuts.push(end);
            cuts.sort_unstable();
            let (mut parser, mut got, mut from) = (SseParser::default(), Vec::new(), 0);
            for cut in cuts {
                let cut = cut.min(end);
                let whole = parser.push(Bytes::copy_from_slice(&all[from..cut]));
                let is_comment = whole.ends_with(KEEP_ALIVE);
                prop_assert!(whole.is_empty() || whole.ends_with(END) || is_comment);
                got.extend_from_slice(&whole);
                from = cut;
            }
            prop_assert!(all.starts_with(&got));
            // All whole events and the comment were returned, and the last id is known.
            let last = |what: &[u8]| {
                memchr::memmem::rfind(&all[..end], what).map_or(0, |at| at + what.len())
            };
            let whole = last(END).max(last(KEEP_ALIVE));
            prop_assert_eq!(got.len(), whole);
            let id = if got.len() == all.len() { Some("m2") } else if got.len() > 27 { Some("m1") }
                else if got.is_empty() { None } else { Some("p0") };
            prop_assert_eq!(parser.last_id(), id);
        }

        #[test]
        fn never_panics(pieces in prop::collection::vec("[id: \\nx]{0,9}", 0..20), resumed: bool) {
            let mut parser = SseParser::default();
            if resumed {
                parser.push(Bytes::from_static(b"id: p0\ndata: \n\n"));
                parser.resume();
            }
            for piece in pieces {
                parser.push(Bytes::from(piece));
            }
            parser.discard_partial();
        }
    }

    #[test]
    fn a_resumed_stream_repeats_the_cut_event_but_not_the_preamble() {
        let all = stream();
        for (first, dropped) in [(stream(), true), (endpoint(), true), (message(), false)] {
            let mut parser = SseParser::default();
            let whole = parser.push(Bytes::copy_from_slice(&all[..all.len() - 3]));
            assert!(whole.ends_with(KEEP_ALIVE));
            assert_eq!(parser.last_id(), Some("m1"));
            parser.discard_partial();
            parser.resume();
            let begins = Bytes::copy_from_slice(&first[..5]);
            assert!(parser.push(begins).is_empty());
            let got = parser.push(first.clone().freeze().slice(5..));
            let rest = memchr::memmem::find(&first, END).unwrap() + 2;
            let wanted = if dropped { &first[rest..] } else { &first[..] };
            assert_eq!(got, wanted);
        }
    }

    fn endpoint() -> BytesMut {
        let mut out = BytesMut::new();
        push_endpoint(&mut out, "/messages?session_id=s", "s.e1");
        push_message(&mut out, "s.m2", b"{}");
        out
    }

    fn message() -> BytesMut {
        let mut out = BytesMut::new();
        push_message(&mut out, "m2", b"{}");
        out
    }

    /// They have no empty line. They waited for the next event, and the client heard nothing.
    #[test]
    fn comments_do_not_wait_for_an_event() {
        let mut parser = SseParser::default();
        let mut push = |text: &str| (parser.push(text.to_owned().into()), parser.kept());
        for _ in 0..3 {
            let (whole, kept) = push(": keep-alive\n");
            assert_eq!((&*whole, kept), (KEEP_ALIVE, 0));
        }
        assert_eq!(push(": keep-"), (Bytes::new(), 7));
        let (whole, kept) = push("alive\nda");
        assert_eq!((&*whole, kept), (KEEP_ALIVE, 2));
        let (whole, kept) = push("ta: x\n\n: a\n: b\n: c");
        assert_eq!((&*whole, kept), (&b"data: x\n\n: a\n: b\n"[..], 3));
    }

    #[test]
    fn a_comment_is_no_preamble() {
        let mut parser = SseParser::default();
        parser.push(stream().freeze());
        parser.resume();
        assert_eq!(parser.push(Bytes::from_static(KEEP_ALIVE)), KEEP_ALIVE);
        let mut begins = BytesMut::new();
        push_priming(&mut begins, "p1", None);
        push_message(&mut begins, "m2", b"{}");
        let begins = begins.freeze();
        assert_eq!(parser.push(begins.clone()), message());
        assert_eq!(parser.last_id(), Some("m2"));
        parser.resume();
        let both = [KEEP_ALIVE, &*begins].concat();
        assert_eq!(parser.push(both.into()), message());
    }

    /// It was dropped as if the client had one, which then had no id to ask by.
    #[test]
    fn a_client_without_an_event_gets_the_preamble_of_the_next_source() {
        let mut parser = SseParser::behind(Some("p0".to_owned()));
        parser.push(Bytes::from_static(KEEP_ALIVE));
        parser.push(Bytes::from_static(b"id: p0\nda"));
        parser.discard_partial();
        parser.resume();
        let mut begins = BytesMut::new();
        push_priming(&mut begins, "p0", None);
        let begins = begins.freeze();
        assert_eq!(parser.push(begins.clone()), begins);
        parser.resume();
        assert!(parser.push(begins).is_empty(), "it has one");
    }

    #[test]
    fn an_incomplete_event_keeps_no_other() {
        let mut parser = SseParser::default();
        let mut push = |text: &str| (parser.push(text.to_owned().into()), parser.kept());
        assert_eq!(push("data: "), (Bytes::new(), 6));
        assert_eq!(push("xx"), (Bytes::new(), 8));
        let (whole, kept) = push("x\n\ndata: y");
        assert_eq!((&*whole, kept), (&b"data: xxx\n\n"[..], 7));
        assert!(whole.is_unique(), "its buffer goes with it");
        let (whole, kept) = push("\n\n");
        assert_eq!((&*whole, kept), (&b"data: y\n\n"[..], 0));
        assert!(whole.is_unique());
        push("data: z");
        parser.discard_partial();
        assert_eq!(parser.kept(), 0);
    }

    /// It kept the piece in which it came, with the begin of a long event.
    #[test]
    fn a_short_event_keeps_nothing_of_a_long_one_behind_it() {
        let mut parser = SseParser::default();
        let long = format!("data: x\n\ndata: {}", "y".repeat(16 << 10));
        let whole = parser.push(long.into());
        assert_eq!(whole, "data: x\n\n");
        let length = whole.len();
        let capacity = whole.try_into_mut().map(|whole| whole.capacity());
        assert!(capacity.unwrap() <= 2 * length);
        assert_eq!(parser.kept(), 6 + (16 << 10));
    }

    #[test]
    fn an_event_of_many_pieces_is_searched_once() {
        let mut parser = SseParser::default();
        assert!(parser.push(Bytes::from_static(b"id: a\ndata: ")).is_empty());
        for _ in 0..10_000 {
            assert!(parser.push(Bytes::from(vec![b'x'; 1000])).is_empty());
        }
        assert!(parser.push(Bytes::from_static(b"\n")).is_empty());
        assert_eq!(parser.push(Bytes::from_static(b"\n")).len(), 10_000_014);
        assert_eq!(parser.last_id(), Some("a"));
    }
}

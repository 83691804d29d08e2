//! Server-Sent Events of another replica, cut into whole events.
//!
//! A connection can break in the middle of an event, and whoever reads on elsewhere gets that event
//! again from its beginning: so only whole ones are passed on. Pure; reads no more than where events
//! end and what their ids are, of the form that `protocol::event` writes.

use bytes::{Bytes, BytesMut};

/// One stream of bytes while it is cut.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// The beginning of an event. As long as the longest one: what it comes from is another replica,
    /// which bounds what children say.
    rest: BytesMut,
    /// How much of `rest` was looked at.
    seen: usize,
    last_id: Option<String>,
    is_resumed: bool,
}

impl Cutter {
    /// Takes what came and returns the events that are whole by now.
    pub(crate) fn push(&mut self, data: Bytes) -> Bytes {
        let mut whole = if self.rest.is_empty() && data.ends_with(END) {
            // As owners write it: nothing is copied.
            data
        } else {
            self.rest.extend_from_slice(&data);
            let from = self.seen.saturating_sub(END.len() - 1);
            let found = memchr::memmem::rfind(&self.rest[from..], END);
            let Some(at) = found else {
                self.seen = self.rest.len();
                return Bytes::new();
            };
            let whole = self.rest.split_to(from + at + END.len()).freeze();
            self.seen = self.rest.len();
            whole
        };
        if self.is_resumed && !whole.is_empty() {
            self.is_resumed = false;
            let end = memchr::memmem::find(&whole, END).map_or(0, |at| at + END.len());
            if says_nothing(&whole[..end]) {
                self.note(&whole.split_to(end));
            }
        }
        self.note(&whole);
        whole
    }

    /// The connection broke: what is not whole will come again.
    pub(crate) fn broke(&mut self) {
        self.rest.clear();
        self.seen = 0;
    }

    /// What comes now is another connection's, which begins with an event that says where it is.
    pub(crate) fn resumed(&mut self) {
        self.is_resumed = true;
    }

    /// The id of the last whole event that has one.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    fn note(&mut self, events: &[u8]) {
        // The last one counts: from the end, and data is one line that begins with `data:`.
        for line in events.rsplit(|byte| *byte == b'\n') {
            // An empty one says that there is nothing to resume.
            if let Some(id) = line.strip_prefix(b"id: ").filter(|id| !id.is_empty()) {
                if self.last_id.as_deref().map(str::as_bytes) != Some(id) {
                    self.last_id = std::str::from_utf8(id).ok().map(str::to_owned);
                }
                return;
            }
        }
    }
}

/// Whether an event is a priming one or names an endpoint: the client has had it.
fn says_nothing(event: &[u8]) -> bool {
    let mut lines = event.split(|byte| *byte == b'\n');
    event.starts_with(b"event: endpoint\n")
        || (event.starts_with(b"id: ") && lines.any(|line| matches!(line, b"data: " | b"data:")))
}

/// Of an event.
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
        push_priming(&mut out, "p0", Duration::from_secs(1));
        push_message(&mut out, "m1", br#"{"a":"id: x"}"#);
        out.extend_from_slice(KEEP_ALIVE);
        push_message(&mut out, "m2", b"{}");
        out
    }

    proptest! {
        #[test]
        fn whole_events_come_whole_wherever_bytes_split(
            mut cuts in prop::collection::vec(0_usize..200, 0..8), end in 0_usize..200,
        ) {
            let all = stream();
            let end = end.min(all.len());
            cuts.push(end);
            cuts.sort_unstable();
            let (mut cutter, mut got, mut from) = (Cutter::default(), Vec::new(), 0);
            for cut in cuts {
                let cut = cut.min(end);
                let whole = cutter.push(Bytes::copy_from_slice(&all[from..cut]));
                prop_assert!(whole.is_empty() || whole.ends_with(END));
                got.extend_from_slice(&whole);
                from = cut;
            }
            prop_assert!(all.starts_with(&got));
            // All that is whole was given out, and its last id is known.
            let whole = memchr::memmem::rfind(&all[..end], END).map_or(0, |at| at + 2);
            prop_assert_eq!(got.len(), whole);
            let id = if got.len() == all.len() { Some("m2") } else if got.len() > 27 { Some("m1") }
                else if got.is_empty() { None } else { Some("p0") };
            prop_assert_eq!(cutter.last_id(), id);
        }

        #[test]
        fn never_panics(pieces in prop::collection::vec("[id: \\nx]{0,9}", 0..20), resumed: bool) {
            let mut cutter = Cutter::default();
            if resumed {
                cutter.resumed();
            }
            for piece in pieces {
                cutter.push(Bytes::from(piece));
            }
            cutter.broke();
        }
    }

    #[test]
    fn what_was_cut_off_comes_again_whole_and_its_beginning_does_not() {
        let all = stream();
        for (first, dropped) in [(stream(), true), (endpoint(), true), (message(), false)] {
            let mut cutter = Cutter::default();
            let whole = cutter.push(Bytes::copy_from_slice(&all[..all.len() - 3]));
            assert!(whole.ends_with(KEEP_ALIVE));
            assert_eq!(cutter.last_id(), Some("m1"));
            cutter.broke();
            cutter.resumed();
            let begins = Bytes::copy_from_slice(&first[..5]);
            assert!(cutter.push(begins).is_empty());
            let got = cutter.push(first.clone().freeze().slice(5..));
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

    #[test]
    fn an_event_of_many_pieces_is_looked_at_once() {
        let mut cutter = Cutter::default();
        assert!(cutter.push(Bytes::from_static(b"id: a\ndata: ")).is_empty());
        for _ in 0..10_000 {
            assert!(cutter.push(Bytes::from(vec![b'x'; 1000])).is_empty());
        }
        assert!(cutter.push(Bytes::from_static(b"\n")).is_empty());
        assert_eq!(cutter.push(Bytes::from_static(b"\n")).len(), 10_000_014);
        assert_eq!(cutter.last_id(), Some("a"));
    }
}

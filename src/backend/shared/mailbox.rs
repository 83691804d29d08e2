//! What sessions and the child that they share say to each other.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};

use super::routing::Level;
use crate::backend::{Refused, child::Entry};
use crate::protocol::{Message, Revision, json};

/// What a session wants of a shared child.
pub(super) enum Wanted {
    /// To be one of its sessions, under this number.
    Join {
        /// The session's number.
        number: u32,
        /// Where what concerns it goes.
        inbox: mpsc::Sender<Heard>,
    },
    /// To be none any more.
    Leave(u32),
    /// Whole lines for the child.
    Lines(Bytes),
    /// A subscription, or its end: the line, and the gateway's id of it.
    Subscription {
        /// The id of the request.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// Whether it begins or ends.
        begins: bool,
        /// The request as the child would get it.
        line: Bytes,
    },
    /// A subscription has no answer: it was cancelled, or took too long.
    Abandon {
        /// The id of the request.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// Whether the session has it nevertheless.
        is_kept: bool,
    },
    /// The least severe log messages that a session wants.
    Level(u32, Level),
    /// A sign of life: a call was overdue.
    Probe,
}

/// What a session wants and the lane has no room for yet, in the order in which it was wanted. Its
/// bytes are the session's to bound: it refuses what comes while there are too many.
#[derive(Default)]
pub(super) struct Unsent {
    first: VecDeque<Wanted>,
    /// Whole lines behind all of these.
    lines: BytesMut,
    /// Of `first`.
    bytes: usize,
}

/// What a session hears of a shared child.
pub(crate) enum Heard {
    /// This message.
    Message(Box<Message>),
    /// An answer to this call that is not valid JSON.
    Garbage(u64),
    /// The child goes as soon as no call is left, for this reason: it takes no further ones.
    Closing(Loss),
    /// The child is gone.
    Ended(Loss),
}

/// Why a shared child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// By itself, or because it did not answer.
    Crash,
    /// A line above the limit.
    TooLong,
    /// It had nothing to do.
    Idle,
    /// An operator said so.
    Restart,
}

/// What the child said of itself at its start.
pub(crate) struct Hello {
    /// The revision that it speaks.
    pub(crate) revision: Revision,
    /// The result of its `initialize`.
    pub(crate) result: Bytes,
    /// The child in the registry.
    pub(crate) entry: Arc<Entry>,
}

/// How far a shared child is.
#[derive(Clone)]
pub(super) enum Standing {
    /// It has not answered `initialize`.
    Starting,
    /// It serves.
    Ready(Arc<Hello>),
    /// It never will.
    Failed(Refused),
}

/// What others see of a shared child.
#[derive(Clone)]
pub(super) struct Handle {
    pub(crate) lane: mpsc::Sender<Wanted>,
    pub(super) standing: watch::Receiver<Standing>,
    /// Calls in flight of all sessions.
    pub(crate) load: Arc<AtomicUsize>,
    /// Bytes in the lane.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Whether it takes no new sessions.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// Messages waiting for a session; one that does not take them in time loses its place.
pub(super) const INBOX: usize = 256;

/// What sessions want that waits for the child's task.
pub(super) const LANE: usize = 256;

impl Wanted {
    /// What it holds of a client.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Lines(line) | Self::Subscription { line, .. } => line.len(),
            Self::Abandon { uri, .. } => uri.len(),
            Self::Join { .. } | Self::Leave(_) | Self::Level(..) | Self::Probe => 0,
        }
    }
}

impl Unsent {
    /// Where lines are appended.
    pub(crate) fn lines(&mut self) -> &mut BytesMut {
        &mut self.lines
    }

    /// Adds something behind all that there is.
    pub(crate) fn push(&mut self, wanted: Wanted) {
        let before = self.split();
        for wanted in before.into_iter().chain([wanted]) {
            self.bytes += wanted.bytes();
            self.first.push_back(wanted);
        }
    }

    /// Takes the next.
    pub(crate) fn pop(&mut self) -> Option<Wanted> {
        let Some(wanted) = self.first.pop_front() else {
            return self.split();
        };
        self.bytes -= wanted.bytes();
        Some(wanted)
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.lines.is_empty()
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.lines.len()
    }

    fn split(&mut self) -> Option<Wanted> {
        (!self.lines.is_empty()).then(|| Wanted::Lines(self.lines.split().freeze()))
    }
}

/// What a child said of itself; nothing for a revision that this build does not know.
pub(super) fn hello(message: &Message, entry: Arc<Entry>) -> Option<Hello> {
    let result = message.result()?;
    let name = json::decoded(json::get(result, "protocolVersion")?)?;
    Some(Hello {
        revision: Revision::parse(&name)?,
        result: Bytes::copy_from_slice(result),
        entry,
    })
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::*;

    #[test]
    fn what_finds_no_room_keeps_its_order() {
        let mut unsent = Unsent::default();
        assert!(unsent.is_empty());
        unsent.lines().extend_from_slice(b"a\nb\n");
        unsent.push(Wanted::Level(1, 2));
        unsent.push(Wanted::Subscription {
            call: 3,
            uri: Box::from(&b"\"x\""[..]),
            begins: true,
            line: Bytes::from_static(b"c\n"),
        });
        unsent.lines().extend_from_slice(b"d\n");
        assert_eq!(unsent.bytes(), 8);
        assert!(matches!(unsent.pop(), Some(Wanted::Lines(lines)) if lines == "a\nb\n"));
        assert!(matches!(unsent.pop(), Some(Wanted::Level(1, 2))));
        assert!(matches!(
            unsent.pop(),
            Some(Wanted::Subscription { call: 3, .. })
        ));
        assert_eq!(unsent.bytes(), 2);
        assert!(matches!(unsent.pop(), Some(Wanted::Lines(lines)) if lines == "d\n"));
        assert!(unsent.is_empty() && unsent.pop().is_none() && unsent.bytes() == 0);
    }
}

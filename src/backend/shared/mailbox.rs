//! Messages between sessions and the child that they share.

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

/// Message of a session to a shared child.
pub(super) enum Wanted {
    /// Joins the child.
    Join {
        /// The session's number.
        number: u32,
        /// Its inbox.
        inbox: mpsc::Sender<Heard>,
    },
    /// Leaves the child.
    Leave(u32),
    /// Whole lines for the child.
    Lines(Bytes),
    /// Begins or ends a subscription.
    Subscription {
        /// Id of the request, given by the gateway.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// Begins rather than ends.
        begins: bool,
        /// The request as a line for the child.
        line: Bytes,
    },
    /// Abandons a subscription whose answer was cancelled or is overdue.
    Abandon {
        /// Id of the request, given by the gateway.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// The session has the subscription by an earlier request.
        is_kept: bool,
    },
    /// Sets the log level of a session.
    Level(u32, Level),
    /// Asks for a sign of life: a call is overdue.
    Probe,
}

/// Messages that the mailbox has no room for yet, in order. The session bounds their bytes: it
/// refuses requests while there are too many.
#[derive(Default)]
pub(super) struct Unsent {
    first: VecDeque<Wanted>,
    /// Whole lines after `first`.
    lines: BytesMut,
    /// Bytes of `first`.
    bytes: usize,
}

/// Message of a shared child to a session.
pub(crate) enum Heard {
    /// A message of the child.
    Message(Box<Message>),
    /// An answer to this call that is not valid JSON.
    Garbage(u64),
    /// The child ends after the present calls and takes no further ones.
    Closing(Loss),
    /// The child is gone.
    Ended(Loss),
}

/// Reason why a shared child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It crashed or did not answer.
    Crash,
    /// It wrote a line above the limit.
    TooLong,
    /// It was idle.
    Idle,
    /// An operator restarted it.
    Restart,
}

/// Result of a child's initialization.
pub(crate) struct Hello {
    /// Protocol revision of the child.
    pub(crate) revision: Revision,
    /// Result of `initialize`.
    pub(crate) result: Bytes,
    /// Entry of the child in the registry.
    pub(crate) entry: Arc<Entry>,
}

/// State of a shared child.
#[derive(Clone)]
pub(super) enum Standing {
    /// Before the answer to `initialize`.
    Starting,
    /// Serving.
    Ready(Arc<Hello>),
    /// Its start failed.
    Failed(Refused),
}

/// Handle of a shared child.
#[derive(Clone)]
pub(super) struct Handle {
    pub(crate) mailbox: mpsc::Sender<Wanted>,
    pub(super) standing: watch::Receiver<Standing>,
    /// Calls in flight of all sessions.
    pub(crate) load: Arc<AtomicUsize>,
    /// Bytes in the mailbox.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Takes no new sessions.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// Capacity of a session's inbox; a session that leaves it full for too long is dropped.
pub(super) const INBOX: usize = 256;

/// Capacity of the child's mailbox.
pub(super) const MAILBOX: usize = 256;

impl Wanted {
    /// Bytes of the client's data.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Lines(line) | Self::Subscription { line, .. } => line.len(),
            Self::Abandon { uri, .. } => uri.len(),
            Self::Join { .. } | Self::Leave(_) | Self::Level(..) | Self::Probe => 0,
        }
    }
}

impl Unsent {
    /// Buffer to append lines to.
    pub(crate) fn lines(&mut self) -> &mut BytesMut {
        &mut self.lines
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, wanted: Wanted) {
        let before = self.split();
        for wanted in before.into_iter().chain([wanted]) {
            self.bytes += wanted.bytes();
            self.first.push_back(wanted);
        }
    }

    /// Takes the next message.
    pub(crate) fn pop(&mut self) -> Option<Wanted> {
        let Some(wanted) = self.first.pop_front() else {
            return self.split();
        };
        self.bytes -= wanted.bytes();
        Some(wanted)
    }

    /// Whether no message is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.lines.is_empty()
    }

    /// Bytes of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.lines.len()
    }

    fn split(&mut self) -> Option<Wanted> {
        (!self.lines.is_empty()).then(|| Wanted::Lines(self.lines.split().freeze()))
    }
}

/// Reads a result of `initialize`; none for an unknown revision.
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

//! Messages between sessions and the child that they share, and the handle of that child.

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

/// A message of a session to a shared child.
pub(super) enum ToChild {
    /// Joins the child.
    Join {
        /// The number of the session.
        number: u32,
        /// The inbox of the session.
        inbox: mpsc::Sender<ToSession>,
    },
    /// Leaves the child.
    Leave(u32),
    /// Whole lines for the child.
    Lines(Bytes),
    /// Subscribes or unsubscribes.
    Subscription {
        /// Id of the request, given by the gateway.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// Whether it subscribes or unsubscribes.
        is_subscribe: bool,
        /// The request as a line for the child.
        line: Bytes,
    },
    /// Abandons a subscription whose response was cancelled or is overdue.
    Abandon {
        /// Id of the request, given by the gateway.
        call: u64,
        /// The URI in its canonical spelling.
        uri: Box<[u8]>,
        /// Whether the session has the subscription by an earlier request.
        is_kept: bool,
    },
    /// Sets the log level of a session.
    Level(u32, Level),
    /// Requests a ping of the child: a call is overdue.
    Probe,
}

/// Messages for which the mailbox has no room, in order. The session bounds their bytes: it refuses
/// requests while there are too many.
#[derive(Default)]
pub(super) struct Outbox {
    first: VecDeque<ToChild>,
    /// Whole lines after `first`.
    lines: BytesMut,
    /// Bytes of `first`.
    bytes: usize,
}

/// A message of a shared child to a session.
pub(crate) enum ToSession {
    /// A message of the child.
    Message(Box<Message>),
    /// A response to this call that is not valid JSON.
    InvalidResponse(u64),
    /// The child ends after the present calls and takes no further ones.
    Closing(Loss),
    /// The child is gone.
    Ended(Loss),
}

/// The reason for the end of a shared child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A crash, or no answer to a ping.
    Crash,
    /// A line above the limit.
    TooLong,
    /// Idle for too long.
    Idle,
    /// A restart by an administrator.
    Restart,
}

/// The result of the initialization of a child.
pub(crate) struct Initialized {
    /// Protocol revision of the child.
    pub(crate) revision: Revision,
    /// Result of `initialize`.
    pub(crate) result: Bytes,
    /// Entry of the child in the registry.
    pub(crate) entry: Arc<Entry>,
}

/// The status of a shared child.
#[derive(Clone)]
pub(super) enum Status {
    /// Before the response to `initialize`.
    Starting,
    /// Serving.
    Ready(Arc<Initialized>),
    /// Its start failed.
    Failed(Refused),
}

/// Handle of a shared child.
#[derive(Clone)]
pub(super) struct Handle {
    pub(crate) mailbox: mpsc::Sender<ToChild>,
    pub(super) status: watch::Receiver<Status>,
    /// Calls in flight of all sessions.
    pub(crate) load: Arc<AtomicUsize>,
    /// Bytes in the mailbox.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Whether it takes no new sessions.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// Capacity of a session's inbox; a session that leaves it full for too long is dropped.
pub(super) const INBOX: usize = 256;

/// Capacity of the child's mailbox.
pub(super) const MAILBOX: usize = 256;

impl ToChild {
    /// The bytes of the client's data.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Lines(line) | Self::Subscription { line, .. } => line.len(),
            Self::Abandon { uri, .. } => uri.len(),
            Self::Join { .. } | Self::Leave(_) | Self::Level(..) | Self::Probe => 0,
        }
    }
}

impl Outbox {
    /// Buffer to append lines to.
    pub(crate) fn lines(&mut self) -> &mut BytesMut {
        &mut self.lines
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, message: ToChild) {
        let before = self.split();
        for message in before.into_iter().chain([message]) {
            self.bytes += message.bytes();
            self.first.push_back(message);
        }
    }

    /// Takes the next message.
    pub(crate) fn pop(&mut self) -> Option<ToChild> {
        let Some(message) = self.first.pop_front() else {
            return self.split();
        };
        self.bytes -= message.bytes();
        Some(message)
    }

    /// Whether no message is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.lines.is_empty()
    }

    /// Bytes of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.lines.len()
    }

    fn split(&mut self) -> Option<ToChild> {
        (!self.lines.is_empty()).then(|| ToChild::Lines(self.lines.split().freeze()))
    }
}

impl Initialized {
    /// Parses a result of `initialize`; none for an unknown revision.
    pub(super) fn parse(message: &Message, entry: Arc<Entry>) -> Option<Self> {
        let result = message.result()?;
        let name = json::decoded(json::get(result, "protocolVersion")?)?;
        Some(Self {
            revision: Revision::parse(&name)?,
            result: Bytes::copy_from_slice(result),
            entry,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::*;

    #[test]
    fn what_finds_no_room_keeps_its_order() {
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty());
        outbox.lines().extend_from_slice(b"a\nb\n");
        outbox.push(ToChild::Level(1, 2));
        outbox.push(ToChild::Subscription {
            call: 3,
            uri: Box::from(&b"\"x\""[..]),
            is_subscribe: true,
            line: Bytes::from_static(b"c\n"),
        });
        outbox.lines().extend_from_slice(b"d\n");
        assert_eq!(outbox.bytes(), 8);
        assert!(matches!(outbox.pop(), Some(ToChild::Lines(lines)) if lines == "a\nb\n"));
        assert!(matches!(outbox.pop(), Some(ToChild::Level(1, 2))));
        assert!(matches!(
            outbox.pop(),
            Some(ToChild::Subscription { call: 3, .. })
        ));
        assert_eq!(outbox.bytes(), 2);
        assert!(matches!(outbox.pop(), Some(ToChild::Lines(lines)) if lines == "d\n"));
        assert!(outbox.is_empty() && outbox.pop().is_none() && outbox.bytes() == 0);
    }
}

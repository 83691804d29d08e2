//! Messages between sessions and the child that they share, and the handle of that child.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::pace::Calls;
use crate::backend::{Refused, child::Entry};
use crate::base::budget::{Budget, Drawn, drop_room, push_back};
use crate::protocol::{LogLevel, Message, Revision, initialize, modern};

/// A message of a session to a shared child.
pub(super) enum ToChild {
    /// Joins the child.
    Join {
        /// The number of the session.
        number: u32,
        /// The inbox of the session.
        inbox: Inbox,
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
    Level(u32, LogLevel),
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

/// What is drawn for a message until each of its sessions, which have the same bytes, has taken it or is gone.
#[derive(Clone, Default)]
pub(super) struct Counted(Option<Arc<Drawn>>);

/// The inbox of a session, for the child's task alone: a message that waits for room is behind those before it.
pub(super) struct Inbox {
    waiting: mpsc::Sender<Waiting>,
    /// Room for bytes.
    room: Arc<Semaphore>,
    /// Bytes of short messages that took neither room nor budget since it was last empty.
    short: AtomicUsize,
}

/// The messages of an inbox, for its session.
pub(super) struct Received(mpsc::Receiver<Waiting>);

/// A message in an inbox, with what it takes there if it is counted. An idle session has room for many of these.
struct Waiting {
    message: ToSession,
    _held: Option<Box<(Option<OwnedSemaphorePermit>, Counted)>>,
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
    /// Whether it is a server without sessions.
    pub(crate) is_stateless: bool,
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
    pub(super) calls: Arc<Calls>,
    /// Bytes in the mailbox.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Whether it takes no new sessions.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// Capacity of a session's inbox; a session that leaves it full for too long is dropped.
const INBOX: usize = 256;

/// Bytes of a session's inbox while the share of the child has no room: it is full with more, and takes a larger
/// message once it is empty.
const INBOX_BYTES: u32 = 8 << 20;

/// The shortest message that is always counted.
const COUNTED: usize = 4 << 10;

/// The most messages in an inbox before one that is not counted: there may be 100,000 inboxes.
const FEW: usize = 16;

/// The most bytes of messages that are not counted, of one inbox.
const UNCOUNTED: usize = 8 << 10;

/// What a short message takes beside its bytes.
const ENTRY: usize = 256;

/// Capacity of the child's mailbox.
pub(super) const MAILBOX: usize = 256;

impl ToChild {
    /// The bytes of the client's data.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Lines(line) => line.len(),
            Self::Subscription { line, uri, .. } => line.len() + uri.len(),
            Self::Abandon { uri, .. } => uri.len(),
            Self::Join { .. } | Self::Leave(_) | Self::Level(..) | Self::Probe => 0,
        }
    }
}

impl ToSession {
    /// The bytes of the child's data.
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.bytes().len(),
            Self::InvalidResponse(_) | Self::Closing(_) | Self::Ended(_) => 0,
        }
    }
}

impl Counted {
    /// Counts a message against the share of its child, if that has one.
    pub(super) fn new(message: &Message, share: Option<&Arc<Budget>>) -> Self {
        let bytes = message.bytes().len();
        let share = share.filter(|_| bytes >= COUNTED);
        Self(share.map(|share| Arc::new(share.hold(bytes as u64))))
    }

    /// Counts a short message in one inbox.
    fn entry(bytes: usize, share: Option<&Arc<Budget>>) -> Self {
        let drawn = share.map(|share| share.hold(bytes as u64));
        Self(drawn.map(Arc::new))
    }

    /// Whether the share has no room left.
    fn is_too_much(&self) -> bool {
        self.0.as_ref().is_none_or(|drawn| drawn.is_too_much())
    }
}

impl Inbox {
    /// An empty inbox.
    pub(super) fn new() -> (Self, Received) {
        let (waiting, received) = mpsc::channel(INBOX);
        let room = Arc::new(Semaphore::new(INBOX_BYTES as usize));
        let inbox = Self {
            waiting,
            room,
            short: AtomicUsize::new(0),
        };
        (inbox, Received(received))
    }

    /// Puts a message in as soon as there is room for it; false if the session is gone. A short one is counted against
    /// the share where many are in the inbox.
    pub(super) async fn put(
        &self,
        message: ToSession,
        counted: Counted,
        share: Option<&Arc<Budget>>,
    ) -> bool {
        let bytes = message.bytes();
        let held = if self.is_one_of_few(bytes) {
            None
        } else {
            let (bytes, counted) = match bytes {
                0..COUNTED => (bytes + ENTRY, Counted::entry(bytes + ENTRY, share)),
                _ => (bytes, counted),
            };
            Some(Box::new((self.room_for(bytes, &counted).await, counted)))
        };
        let waiting = Waiting {
            message,
            _held: held,
        };
        self.waiting.send(waiting).await.is_ok()
    }

    /// Whether a message needs neither room nor budget: of a session that reads, most.
    fn is_one_of_few(&self, bytes: usize) -> bool {
        let before = INBOX - self.waiting.capacity();
        // The child's task alone writes it.
        let short = if before == 0 {
            0
        } else {
            self.short.load(Ordering::Relaxed)
        };
        let is_one = bytes < COUNTED && before < FEW && short + bytes <= UNCOUNTED;
        let added = if is_one { bytes } else { 0 };
        self.short.store(short + added, Ordering::Relaxed);
        is_one
    }

    async fn room_for(&self, bytes: usize, counted: &Counted) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(INBOX_BYTES);
        let room = Arc::clone(&self.room).try_acquire_many_owned(bytes).ok();
        if room.is_some() || !counted.is_too_much() {
            return room;
        }
        // It is never closed, and a session that is gone leaves it empty.
        Arc::clone(&self.room).acquire_many_owned(bytes).await.ok()
    }

    /// Tells the session about the end of the child. Without room it notices that later.
    pub(super) fn tell(&self, message: ToSession) {
        _ = self.waiting.try_send(Waiting {
            message,
            _held: None,
        });
    }

    /// Whether the session is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.waiting.is_closed()
    }
}

impl Received {
    /// Waits for the next message; none once the child is gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ToSession> {
        self.0.recv().await.map(|waiting| waiting.message)
    }

    /// The next message if it is here already.
    pub(super) fn next_ready(&mut self) -> Option<ToSession> {
        self.0.try_recv().ok().map(|waiting| waiting.message)
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
            push_back(&mut self.first, message);
        }
    }

    /// Takes the next message.
    pub(crate) fn pop(&mut self) -> Option<ToChild> {
        let Some(message) = self.first.pop_front() else {
            return self.split();
        };
        self.bytes -= message.bytes();
        drop_room(&mut self.first);
        Some(message)
    }

    /// Whether no message is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.lines.is_empty()
    }

    /// Bytes of all messages: of those without data, many take as much.
    pub(crate) fn bytes(&self) -> usize {
        self.first.len() * size_of::<ToChild>() + self.bytes + self.lines.len()
    }

    fn split(&mut self) -> Option<ToChild> {
        (!self.lines.is_empty()).then(|| ToChild::Lines(self.lines.split().freeze()))
    }
}

impl Initialized {
    /// Parses a result of `initialize`.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used: an unknown revision, or more than sessions may keep.
    pub(super) fn parse(message: &Message, entry: Arc<Entry>) -> Result<Self, &'static str> {
        let result = message.result().unwrap_or_default();
        let revision = initialize::of_result(result).ok_or("unsupported_revision")?;
        if !initialize::is_bounded(result) {
            return Err("invalid_answer");
        }
        Ok(Self {
            revision,
            result: Bytes::copy_from_slice(result),
            is_stateless: modern::is_stateless(result),
            entry,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::unconstrained;

    use super::super::mailbox::*;

    fn message(bytes: usize) -> Box<Message> {
        let text = "x".repeat(bytes - r#"{"jsonrpc":"2.0","id":1,"result":{"":""}}"#.len());
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"":"{text}"}}}}"#);
        Box::new(Message::parse_line(line.into()).unwrap())
    }

    /// Those of a session that waited for its log were in no budget: 256 of 4 MiB each.
    #[tokio::test]
    async fn what_an_inbox_holds_is_counted_until_it_is_taken() {
        let root = Budget::new(1 << 30);
        let share = root.share();
        let ((one, mut ones), (two, twos)) = (Inbox::new(), Inbox::new());
        let put = async |bytes: usize, inboxes: &[&Inbox]| {
            let message = message(bytes);
            let counted = Counted::new(&message, Some(&share));
            let mut are_put = true;
            for inbox in inboxes {
                let message = ToSession::Message(message.clone());
                are_put &= inbox.put(message, counted.clone(), Some(&share)).await;
            }
            are_put
        };
        assert!(put(10_000, &[&one, &two]).await);
        assert_eq!(share.used(), 10_000, "its bytes are there once");
        assert!(put(5000, &[&one]).await);
        assert_eq!(share.used(), 15_000);
        let first = ones.next_ready().unwrap();
        assert!(matches!(first, ToSession::Message(message) if message.bytes().len() == 10_000));
        assert_eq!(share.used(), 15_000, "the other has not taken it");
        drop(twos);
        assert_eq!(share.used(), 5000, "and takes it no more");
        assert!(two.is_closed() && !put(5000, &[&two]).await);
        assert!(ones.next().await.is_some());
        assert_eq!(root.used(), 0);
    }

    /// Those of 10,000 sessions that did not read were 11 GB, and in no budget.
    #[tokio::test]
    async fn short_messages_are_counted_where_many_are_in_an_inbox() {
        let root = Budget::new(1 << 30);
        let share = root.share();
        for (bytes, few) in [(4000, 2), (100, 16)] {
            let (inbox, mut received) = Inbox::new();
            for _ in 0..2 {
                for at in 0..INBOX {
                    let counted = (bytes + ENTRY) * at.saturating_sub(few);
                    assert_eq!(share.used(), counted as u64, "{at} of {bytes}");
                    let message = message(bytes);
                    let none = Counted::new(&message, Some(&share));
                    let message = ToSession::Message(message);
                    assert!(inbox.put(message, none, Some(&share)).await);
                }
                while received.next_ready().is_some() {}
                assert_eq!(root.used(), 0, "they are taken");
            }
        }
    }

    #[tokio::test]
    async fn an_inbox_is_full_of_bytes_as_of_messages() {
        let (inbox, mut received) = Inbox::new();
        let put = |bytes: usize| {
            let message = ToSession::Message(message(bytes));
            inbox.put(message, Counted::default(), None)
        };
        assert!(put(3 << 20).await && put(5 << 20).await);
        let mut next = Box::pin(put(COUNTED));
        assert!((&mut next).now_or_never().is_none());
        inbox.tell(ToSession::Closing(Loss::Idle));
        assert!(received.next().await.is_some());
        assert!(next.await, "there is room again");
        // One that is larger than all of the room.
        let mut large = Box::pin(put(9 << 20));
        for _ in 0..3 {
            assert!((&mut large).now_or_never().is_none());
            assert!(received.next_ready().is_some());
        }
        assert!(large.await);
        let mut small = Box::pin(put(COUNTED));
        assert!((&mut small).now_or_never().is_none());
        drop(small);
        assert!(received.next_ready().is_some());
        for _ in 0..INBOX {
            assert!(put(1000).await);
        }
        assert!(unconstrained(put(1000)).now_or_never().is_none());
        drop(received);
        assert!(!put(1000).await);
    }

    /// A session that waited for its log lost its place, though there was room for what waited.
    #[tokio::test]
    async fn an_inbox_takes_what_its_share_has_room_for() {
        let share = Budget::new(96 << 20).share();
        let (inbox, mut received) = Inbox::new();
        let put = || {
            let message = message(8 << 20);
            let counted = Counted::new(&message, Some(&share));
            inbox.put(ToSession::Message(message), counted, Some(&share))
        };
        for _ in 0..4 {
            assert_eq!(put().now_or_never(), Some(true));
        }
        let own = share.hold(64 << 20);
        let mut next = Box::pin(put());
        assert!((&mut next).now_or_never().is_none());
        for _ in 0..4 {
            assert!(received.next_ready().is_some());
        }
        drop(own);
        assert!(next.await);
    }

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
        assert_eq!(outbox.bytes(), 11 + 3 * size_of::<ToChild>());
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

//! What sessions and the child that they share say to each other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize},
};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::{audience::Level, pool::Refused, roster::Entry};
use crate::protocol::{json, message::Message, revision::Revision};

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
    /// The least severe log messages that a session wants.
    Level(u32, Level),
    /// A sign of life: a call was overdue.
    Probe,
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
    /// The child in the roster.
    pub(super) entry: Arc<Entry>,
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
    pub(super) lane: mpsc::Sender<Wanted>,
    pub(super) standing: watch::Receiver<Standing>,
    /// Calls in flight of all sessions.
    pub(super) load: Arc<AtomicUsize>,
    /// Whether it takes no new sessions.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// Messages waiting for a session; one that does not take them in time loses its place.
pub(super) const INBOX: usize = 256;

/// What sessions want that waits for the child's task.
pub(super) const LANE: usize = 256;

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

//! Results of a translation: messages of a backend, ready for the client, and the fate of a
//! client's messages.

use std::collections::BTreeSet;

use bytes::Bytes;

/// The gateway's own id of a client's request; also its progress token towards the child.
pub(crate) type CallId = u64;

/// The gateway's own id of a child's request; also its progress token towards the client.
pub(crate) type AskId = u64;

/// The state of a session that a restored child must know.
pub(crate) struct SessionState<'a> {
    /// Whether the client has sent `initialized`.
    pub(crate) is_initialized: bool,
    /// The level of log messages that the client set.
    pub(crate) level: Option<&'a str>,
    /// The raw URIs that the client is subscribed to.
    pub(crate) subscriptions: &'a BTreeSet<Box<[u8]>>,
}

/// A message of the child, ready for the client.
#[derive(Debug)]
pub(crate) enum Said {
    /// The end of a call.
    Done {
        /// Which call.
        call: CallId,
        /// The response as the client gets it.
        line: Bytes,
    },
    /// Progress of a call.
    Progress {
        /// Which call.
        call: CallId,
        /// The notification as the client gets it.
        line: Bytes,
    },
    /// The server wants something of the client.
    Ask {
        /// Which one.
        ask: AskId,
        /// The task that it belongs to, raw.
        task: Option<Box<[u8]>>,
        /// The request as the client gets it.
        line: Bytes,
    },
    /// The server takes back what it asked.
    AskCancelled {
        /// Which one.
        ask: AskId,
        /// The notification as the client gets it.
        line: Bytes,
    },
    /// A log message.
    Log {
        /// The task that it belongs to, raw.
        task: Option<Box<[u8]>>,
        /// The notification, untouched.
        line: Bytes,
    },
    /// Any other notification.
    Note(Bytes),
    /// The answer to something that the gateway itself asked.
    Pong,
    /// The child's own ping: the answer is in the output already.
    Pinged,
    /// Nothing for anybody, and why.
    Dropped(&'static str),
}

/// The fate of a client's notification.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It is in the output.
    Passed,
    /// It is in the output, and it ended this call.
    Cancelled(CallId),
    /// It names nothing that is open.
    Dropped,
}

//! Results of a translation: messages of a backend for the client, and the handling of
//! notifications of the client.

use bytes::Bytes;

/// The gateway's id of a client's request; also its progress token at the child.
pub(crate) type CallId = u64;

/// The gateway's id of a child's request; also its progress token at the client.
pub(crate) type AskId = u64;

/// The state of a session that is sent to a restored child.
pub(crate) struct SessionState<'a> {
    /// Whether the client has sent `initialized`.
    pub(crate) is_initialized: bool,
    /// The level of log messages that the client set.
    pub(crate) level: Option<&'a str>,
    /// The raw URIs that the client is subscribed to.
    pub(crate) subscriptions: Vec<&'a [u8]>,
}

/// A translated message of the child.
#[derive(Debug)]
pub(crate) enum ServerMessage {
    /// The response to a call.
    Response {
        /// The call.
        call: CallId,
        /// The client's raw id, which the response has to have.
        id: Box<[u8]>,
    },
    /// Progress of a call.
    Progress {
        /// The call.
        call: CallId,
        /// The notification for the client.
        line: Bytes,
    },
    /// A request of the server to the client.
    Ask {
        /// The request.
        ask: AskId,
        /// The raw id of the task that it belongs to.
        task: Option<Box<[u8]>>,
        /// The request for the client.
        line: Bytes,
    },
    /// The cancellation of a request of the server.
    AskCancelled {
        /// The request.
        ask: AskId,
        /// The notification for the client.
        line: Bytes,
    },
    /// A log message.
    Log {
        /// The raw id of the task that it belongs to.
        task: Option<Box<[u8]>>,
        /// The notification, unchanged.
        line: Bytes,
    },
    /// Any other notification.
    Notification(Bytes),
    /// The response to a request of the gateway itself: a sign of life.
    OwnResponse {
        /// The method of the request.
        method: &'static str,
    },
    /// The late response to a call that has ended: the call became the task with this raw id.
    UnwantedTask(Box<[u8]>),
    /// A request of the child that is answered in the output: a ping, or one that is refused for this
    /// reason.
    Answered(&'static str),
    /// A request for a capability that the client did not declare, which the gateway has refused: the
    /// capability, and the text of the refusal.
    Undeclared {
        /// The capability of the client.
        capability: &'static str,
        /// The text of the refusal.
        how: &'static str,
    },
    /// No message for the client, for this reason.
    Dropped(&'static str),
}

/// The handling of a client's notification.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The notification is in the output.
    Passed,
    /// The notification is in the output, and cancels this call.
    Cancelled(CallId),
    /// The notification names no open request.
    Dropped,
}

//! Dialect of one session: the only match over the dialects.

use bytes::{Bytes, BytesMut};

use super::{
    id_blocks::IdLease,
    legacy::Legacy,
    own_requests::OwnRequests,
    translated::{AskId, CallId, Forwarded, ServerMessage, SessionState},
};
use crate::protocol::{Message, Trace};

/// The dialect of one session, with the state of its translation. Without IO.
///
/// A dialect is a file beside this one and a variant here. It implements:
///
/// 1. ids and progress tokens: those of one side never reach the other (`request`, `line`,
///    `notification`, `answer`); ids grow, so that a late answer matches no other request;
/// 2. the start of a backend (`request_as`): `initialize` here, `server/discover` in a stateless
///    dialect, which also adds `_meta` to each request;
/// 3. the kind of each message of the backend (`line`); a result of the kind `input_required`
///    would be an `Ask` whose answer is a new request;
/// 4. the end of a call or of an ask by the gateway (`abandon`, `cancel`, `refuse`);
/// 5. signs of life (`ping`, whose response is [`ServerMessage::OwnResponse`]);
/// 6. the state that another backend of the session needs (`restore`, `subscribe`), which is none
///    in a stateless dialect.
pub(crate) enum Dialect {
    /// Sessions that begin with `initialize`, up to revision 2025-11-25.
    Legacy(Legacy),
}

impl Default for Dialect {
    fn default() -> Self {
        Self::Legacy(Legacy::default())
    }
}

impl Dialect {
    /// Starts ids apart from those of earlier owners, so that late answers to one of them match no
    /// request of this one, whose number is `owner`.
    pub(crate) fn rebase(&mut self, owner: u64) {
        match self {
            Self::Legacy(legacy) => legacy.rebase(owner),
        }
    }

    /// Takes ids from a lease: a shared child knows a session by its ids.
    pub(crate) fn confine(&mut self, lease: IdLease) {
        match self {
            Self::Legacy(legacy) => legacy.confine(lease),
        }
    }

    /// Forgets open requests of both sides: their child is gone.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Legacy(legacy) => legacy.forget(),
        }
    }

    /// Appends a client's request as a line, in this trace; returns its new id.
    pub(crate) fn request(
        &mut self,
        message: &Message,
        trace: Option<&Trace>,
        out: &mut BytesMut,
    ) -> CallId {
        match self {
            Self::Legacy(legacy) => legacy.request(message, trace, out),
        }
    }

    /// Appends a client's `initialize`, with another revision if one is given.
    pub(crate) fn request_as(
        &mut self,
        message: &Message,
        revision: Option<&str>,
        out: &mut BytesMut,
    ) -> CallId {
        match self {
            Self::Legacy(legacy) => legacy.request_as(message, revision, None, out),
        }
    }

    /// Appends a client's notification as a line, unless it names a request that is not open.
    pub(crate) fn notification(&mut self, message: &Message, out: &mut BytesMut) -> Forwarded {
        match self {
            Self::Legacy(legacy) => legacy.notification(message, out),
        }
    }

    /// Appends a client's response as a line, or an error in place of one of a wrong shape, if it answers an
    /// open request of the child.
    pub(crate) fn answer(&mut self, message: &Message, out: &mut BytesMut) -> Option<AskId> {
        match self {
            Self::Legacy(legacy) => legacy.answer(message, out),
        }
    }

    /// Answers a request of the child with an error of the gateway.
    pub(crate) fn refuse(&mut self, ask: AskId, message: &str, out: &mut BytesMut) {
        match self {
            Self::Legacy(legacy) => _ = legacy.refuse(ask, message, out),
        }
    }

    /// Ends a call by the gateway; returns the client's raw id. A late answer is dropped.
    pub(crate) fn abandon(&mut self, call: CallId) -> Option<Box<[u8]>> {
        match self {
            Self::Legacy(legacy) => legacy.abandon(call),
        }
    }

    /// A subscription to a raw URI that the gateway makes for a session: its id and its line.
    pub(crate) fn subscribe(&mut self, uri: &[u8]) -> (CallId, Bytes) {
        match self {
            Self::Legacy(legacy) => legacy.subscribe(uri),
        }
    }

    /// Translates a message of the child; answers of the gateway itself go to `out`.
    pub(crate) fn line(&mut self, message: &Message, out: &mut BytesMut) -> ServerMessage {
        match self {
            Self::Legacy(legacy) => legacy.line(message, out),
        }
    }

    /// Appends a cancellation of a call.
    pub(crate) fn cancel(&self, call: CallId, reason: &str, out: &mut BytesMut) {
        match self {
            Self::Legacy(_) => Legacy::cancel(call, reason, out),
        }
    }

    /// Appends the cancellation of a task, by its raw id.
    pub(crate) fn cancel_task(&mut self, task: &[u8], out: &mut BytesMut) {
        match self {
            Self::Legacy(legacy) => legacy.cancel_task(task, out),
        }
    }

    /// Appends a ping of the gateway, unless one is on its way.
    pub(crate) fn ping(&mut self, out: &mut BytesMut) {
        match self {
            Self::Legacy(legacy) => legacy.ping(out),
        }
    }

    /// The gateway's own requests that the child has not answered.
    pub(crate) fn own_requests(&mut self) -> &mut OwnRequests {
        match self {
            Self::Legacy(legacy) => legacy.own_requests(),
        }
    }

    /// Appends the state of a session, as the first lines for a restored child.
    pub(crate) fn restore(&mut self, state: &SessionState<'_>, out: &mut BytesMut) {
        match self {
            Self::Legacy(legacy) => legacy.restore(state, out),
        }
    }
}

//! Translation of one session: the only match over the dialects.

use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};

use super::{
    legacy::Legacy,
    translated::{AskId, CallId, Noted, Said, SessionState},
};
use crate::protocol::Message;

/// The dialect of one session with the state of its translation. Without IO.
///
/// A dialect is a file beside this one and a variant here. It must answer for:
///
/// 1. ids and progress tokens: those of one side never reach the other (`request`, `line`,
///    `notification`, `answer`); ids grow, so that no late answer is taken for another's;
/// 2. the start of a backend (`request_as`): `initialize` here, `server/discover` in a stateless
///    dialect, which also adds `_meta` to each request;
/// 3. the class of each message of the backend (`line`), where a result of the kind
///    `input_required` would be an `Ask` whose answer is a new request;
/// 4. the end of a call or of an ask from the gateway's side (`abandon`, `cancel`, `refuse`);
/// 5. signs of life (`ping`, whose answer is [`Said::Pong`]);
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
    /// Lets ids begin behind `base`: late answers to an earlier owner are not taken for answers to
    /// this one.
    pub(crate) fn rebase(&mut self, base: u64) {
        match self {
            Self::Legacy(legacy) => legacy.rebase(base),
        }
    }

    /// Keeps ids within `range`, from behind `base` on: a session that shares a child is known by
    /// its ids.
    pub(crate) fn confine(&mut self, range: RangeInclusive<u64>, base: u64) {
        match self {
            Self::Legacy(legacy) => legacy.confine(range, base),
        }
    }

    /// Forgets open requests of both sides: their child is gone.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Legacy(legacy) => legacy.forget(),
        }
    }

    /// Appends a client's request as a line and returns its new id.
    pub(crate) fn request(&mut self, message: &Message, out: &mut BytesMut) -> CallId {
        match self {
            Self::Legacy(legacy) => legacy.request(message, out),
        }
    }

    /// Appends a client's `initialize`, with another revision where one is given.
    pub(crate) fn request_as(
        &mut self,
        message: &Message,
        revision: Option<&str>,
        out: &mut BytesMut,
    ) -> CallId {
        match self {
            Self::Legacy(legacy) => legacy.request_as(message, revision, out),
        }
    }

    /// Appends a client's notification as a line, if it names something that is open.
    pub(crate) fn notification(&mut self, message: &Message, out: &mut BytesMut) -> Noted {
        match self {
            Self::Legacy(legacy) => legacy.notification(message, out),
        }
    }

    /// Appends a client's response as a line, if it answers an open request of the child.
    pub(crate) fn answer(&mut self, message: &Message, out: &mut BytesMut) -> Option<AskId> {
        match self {
            Self::Legacy(legacy) => legacy.answer(message, out),
        }
    }

    /// Answers a request of the child with an error of the gateway.
    pub(crate) fn refuse(&mut self, ask: AskId, why: &str, out: &mut BytesMut) {
        match self {
            Self::Legacy(legacy) => legacy.refuse(ask, why, out),
        }
    }

    /// Ends a call from the gateway's side and returns the client's raw id; its late answer is
    /// dropped.
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
    pub(crate) fn line(&mut self, message: &Message, out: &mut BytesMut) -> Said {
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

    /// Appends a ping of the gateway; its answer is `Pong`.
    pub(crate) fn ping(&self, out: &mut BytesMut) {
        match self {
            Self::Legacy(_) => Legacy::ping(out),
        }
    }

    /// Appends the state of a session, as the first lines for a restored child.
    pub(crate) fn restore(&self, state: &SessionState<'_>, out: &mut BytesMut) {
        match self {
            Self::Legacy(_) => Legacy::restore(state, out),
        }
    }
}

//! Commands to the task of a session.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    auth::Access,
    declare::Policy,
    error::Error,
    hub::{
        limits::CallSeats,
        stream::{Answer, Form, Reader},
    },
    protocol::{Body, Cursor, Message, Revision},
    telemetry::TraceContext,
};

/// A command to a session; small, because every session keeps room for [`COMMANDS`] of them.
pub(crate) enum Command {
    /// Deliver a body of the client.
    Deliver(Box<Delivery>),
    /// Attach a connection to a stream.
    Attach(Box<Attach>),
    /// End; acknowledged once no request can find the session, or with the reason why one still may.
    End(oneshot::Sender<Result<(), Error>>),
    /// End when the calls have ended; acknowledged at once.
    Drain(oneshot::Sender<Result<(), Error>>),
    /// Continue with this access, or end without one.
    Change(Option<Box<Access>>),
    /// Give up the child for another caller or tenant, if this is all that it is used for; receives whether it is.
    GiveUp(ChildUse, oneshot::Sender<bool>),
}

/// The use of a child that another caller wants, in the order in which they are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildUse {
    /// None: it waits for the next call of a client that knows no sessions.
    Spare,
    /// None for a while: its session is open, and has neither a request nor a reader.
    Unused,
    /// A call that waits for the next request of a client that knows no sessions.
    Parked,
    /// None at the moment: its session has no request, but its client listens, or had one not long ago. Given
    /// up for another tenant only.
    Pausing,
}

/// A connection to attach to a stream.
pub(crate) struct Attach {
    /// Where it reads.
    pub(crate) at: AttachAt,
    /// Receives the reader of the connection.
    pub(crate) reply: oneshot::Sender<Result<Option<Reader>, Error>>,
}

/// Where a connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachAt {
    /// The listener.
    Listener,
    /// The listener, if it had a connection and has been without one for longer than clients take to connect again.
    AbandonedListener,
    /// The stream of an event, behind it.
    Event(Cursor),
}

/// A body of the client and the receiver of its answer.
pub(crate) struct Delivery {
    /// The messages.
    pub(crate) body: Body,
    /// The form of the answer.
    pub(crate) form: Form,
    /// The access policy of the sender.
    pub(crate) policy: Arc<Policy>,
    /// The seats of its calls, held while they are in flight.
    pub(crate) calls: CallSeats,
    /// The revision in the header of the request that brought it.
    pub(crate) header: Option<Revision>,
    /// The trace of the request that brought it.
    pub(crate) trace: Option<TraceContext>,
    /// Receives the answer.
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// The transport of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Streamable HTTP: each POST has its own stream.
    Streamable,
    /// HTTP+SSE of 2024-11-05: every message is on the listener.
    Sse2024,
    /// Streamable HTTP of 2026-07-28, whose clients know no sessions: the gateway keeps one for them, on
    /// this replica alone.
    Stateless,
}

/// The most commands in the queue of a session; beyond, senders wait.
pub(crate) const COMMANDS: usize = 64;

/// The most bytes of an `initialize`.
const MAX_INITIALIZE: usize = 64 * 1024;

/// Refuses an `initialize` that is too large: a session stores it and sends it to each of its
/// children.
pub(crate) fn check_initialize(message: &Message) -> Result<(), Error> {
    if message.bytes().len() > MAX_INITIALIZE {
        return Err(Error::Invalid("initialize is larger than 64 KiB"));
    }
    Ok(())
}

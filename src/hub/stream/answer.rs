//! Answer to a delivered message, and the wait for it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::reader::Reader;
use crate::{
    auth::Access,
    error::Error,
    hub::limits::{Limits, Seats},
};

/// The form of the response to a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// JSON if the response is the first message and comes in time, else SSE.
    Auto,
    /// SSE.
    Sse,
    /// JSON.
    Json,
}

/// The answer to a delivered message.
pub(crate) enum Answer {
    /// The response, or the array of a batch.
    Json(Bytes),
    /// The error of an `initialize` that began no session.
    Failed(Bytes),
    /// A stream to read.
    Stream(Box<Reader>),
    /// The message was accepted and has no answer.
    Accepted,
    /// The client cancelled its call before anything was sent.
    Silent,
    /// The message was refused.
    Refused(Error),
}

/// The acceptance of a body of HTTP+SSE, whose calls the log does not know yet.
pub(super) struct Acceptance {
    pub(super) reply: oneshot::Sender<Answer>,
    /// The number of writes that the log has to acknowledge first; none while the body is handled.
    pub(super) behind: Option<usize>,
}

/// A response whose headers may still be held.
pub(crate) struct Pending {
    /// Receives the answer.
    pub(crate) reply: oneshot::Receiver<Answer>,
    /// Seats for the stream that the response may become.
    pub(crate) seats: Seats,
    /// The limits that count the stream, and the access of its client.
    pub(crate) limits: Option<(Arc<Limits>, Access)>,
}

impl Pending {
    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Answer {
        let mut answer = self
            .reply
            .await
            .unwrap_or(Answer::Refused(Error::NoSession));
        if let Answer::Stream(reader) = &mut answer {
            if let Some((limits, access)) = &self.limits {
                self.seats.extend(limits.became_stream(access).await);
            }
            reader.hold(self.seats);
        }
        answer
    }
}

//! What the hub answers to a delivered message, and how it is waited for.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    limits::{Limits, Seats},
    stream::Reading,
};
use crate::{auth::Access, error::Error};

/// How the response to a POST may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// JSON if the response is the first message and comes in time, else SSE.
    Auto,
    /// SSE.
    Sse,
    /// JSON.
    Json,
}

/// What the hub answers to a delivered message.
pub(crate) enum Answer {
    /// The response, or the array of a batch.
    Json(Bytes),
    /// An `initialize` that failed: its error, and no session.
    Failed(Bytes),
    /// A stream to be read.
    Stream(Box<Reading>),
    /// Taken; there is nothing to answer.
    Accepted,
    /// The client cancelled its call before anything was sent.
    Silent,
    /// Not taken.
    Refused(Error),
}

/// A response whose headers may still be held.
pub(crate) struct Pending {
    pub(super) reply: oneshot::Receiver<Answer>,
    /// For the stream that the response may become.
    pub(super) seats: Seats,
    /// Who sent it.
    pub(super) whose: Option<(Arc<Limits>, Access)>,
}

impl Pending {
    /// The answer.
    pub(crate) async fn answer(mut self) -> Answer {
        let mut answer = self
            .reply
            .await
            .unwrap_or(Answer::Refused(Error::NoSession));
        if let Answer::Stream(reading) = &mut answer {
            if let Some((limits, access)) = &self.whose {
                self.seats.extend(limits.became_stream(access).await);
            }
            reading.hold(self.seats);
        }
        answer
    }
}

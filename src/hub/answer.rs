//! What the hub answers to a delivered message, and how it is waited for.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{
    limits::{Limits, Seats},
    reading::Reading,
    session::Command,
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
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) stream: oneshot::Receiver<u32>,
    /// For the stream that the response may become.
    pub(super) seats: Seats,
    /// Who sent it.
    pub(super) whose: Option<(Arc<Limits>, Access)>,
}

impl Pending {
    /// The answer; held as JSON for at most `hold` where the form is `Auto`.
    pub(crate) async fn answer(mut self, hold: Option<Duration>) -> Answer {
        let mut answer = self.wait(hold).await;
        if let Answer::Stream(reading) = &mut answer {
            if let Some((limits, access)) = &self.whose {
                self.seats.extend(limits.became_stream(access).await);
            }
            reading.hold(self.seats);
        }
        answer
    }

    async fn wait(&mut self, hold: Option<Duration>) -> Answer {
        if let Some(hold) = hold {
            match tokio::time::timeout(hold, &mut self.reply).await {
                Ok(answer) => return answer.unwrap_or(Answer::Refused(Error::NoSession)),
                Err(_) => {
                    if let Ok(stream) = self.stream.try_recv() {
                        // A session that has ended answers below.
                        let _ = self.commands.send(Command::Open(stream)).await;
                    }
                }
            }
        }
        (&mut self.reply)
            .await
            .unwrap_or(Answer::Refused(Error::NoSession))
    }
}

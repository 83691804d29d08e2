//! The channel from the sessions that calls have alone to the subscriptions of the same caller, which are
//! in another session.

use std::sync::OnceLock;

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};

/// The channel from the sessions that calls have alone to the subscriptions of their group.
#[derive(Default)]
pub(super) struct Changes(OnceLock<broadcast::Sender<Bytes>>);

/// What a subscription hears of the sessions that calls have alone.
pub(crate) struct ChangeReader(broadcast::Receiver<Bytes>);

impl Changes {
    /// A reader of what comes from now on.
    pub(super) fn reader(&self) -> ChangeReader {
        let sender = self.0.get_or_init(|| broadcast::channel(KEPT).0);
        ChangeReader(sender.subscribe())
    }

    /// The channel, if anybody reads it.
    pub(super) fn heard(&self) -> Option<&broadcast::Sender<Bytes>> {
        self.0.get().filter(|sender| sender.receiver_count() > 0)
    }
}

impl Changes {
    /// Ends the subscriptions of now.
    pub(super) fn end(&self) {
        if let Some(changes) = self.heard() {
            // The last one may have gone meanwhile.
            let _ = changes.send(END);
        }
    }
}

/// Stands for the end of the subscriptions; a notification is never empty.
const END: Bytes = Bytes::new();

impl ChangeReader {
    /// Waits for the next notification; none if one was missed, or the subscription ends. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        match self.0.recv().await {
            Ok(notification) => Some(notification).filter(|one| !one.is_empty()),
            Err(RecvError::Lagged(_)) => None,
            // No session for one call will ever be in its group.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The number of notifications that wait for the slowest subscription.
const KEPT: usize = 64;

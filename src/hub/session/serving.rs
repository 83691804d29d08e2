//! Test whether this replica may serve a session at this moment.

use std::{future::poll_fn, sync::atomic::Ordering, task::Poll};

use crate::hub::{ownership::Owner, stream::Pulse};

/// Waits until a session may not be served any more.
///
/// It registers no waker: the task of the session polls it before each event it handles. A replica
/// that was frozen finds events ready for a session that may be another's now.
pub(super) async fn lapse(owner: &Owner, pulse: &Pulse) {
    poll_fn(|_| {
        if is_served(owner, pulse) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

pub(super) fn is_served(owner: &Owner, pulse: &Pulse) -> bool {
    owner.serves(pulse.confirmed.load(Ordering::Acquire))
}

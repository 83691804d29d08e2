//! What a child's pipes hold in the gateway's memory: lines that are not complete, and what is queued for
//! it.
//!
//! Counted in large steps, because most children hold less than one.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use crate::base::budget::{Budget, Drawn, LARGE_STEP};

/// The share of a tenant, by its name, of the memory for what is under way.
pub(crate) type TenantMemory = Arc<dyn Fn(&str) -> Arc<Budget> + Send + Sync>;

/// What is drawn for the pipes of one child.
#[derive(Debug)]
pub(super) struct Held {
    drawn: Drawn,
    /// The end of the pause after which the share is looked at again.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Held {
    /// Nothing yet, of this share.
    pub(super) fn new(share: &Arc<Budget>) -> Self {
        Self {
            drawn: share.hold(0),
            pause: None,
        }
    }

    /// The share.
    pub(super) fn share(&self) -> &Arc<Budget> {
        self.drawn.budget()
    }

    /// Lets tasks of other tenants go first.
    pub(super) async fn others_first(&self) {
        self.drawn.budget().others_first().await;
    }

    /// Whether many children of the tenant wait for their turn.
    pub(super) fn is_one_of_many(&self) -> bool {
        self.drawn.budget().is_busy()
    }

    /// Counts what is held now.
    pub(super) fn count(&mut self, bytes: usize) {
        self.drawn.count(bytes, LARGE_STEP);
    }

    /// Waits while a long line may not grow, because the share has no room for it.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.drawn.amount() > 0 && self.drawn.is_too_much() {
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        self.pause = None;
        Poll::Ready(())
    }
}

/// Time after which it is tried again to read a long line.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::super::held::*;

    #[tokio::test]
    async fn a_child_is_one_of_many_while_others_of_its_tenant_wait_in_line() {
        let tenant = Budget::new(1 << 20).share();
        let held = Held::new(&tenant);
        assert!(!held.is_one_of_many());
        let mut busy: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
        let mut context = Context::from_waker(std::task::Waker::noop());
        for one in &mut busy {
            assert!(one.as_mut().poll(&mut context).is_pending());
        }
        assert!(held.is_one_of_many());
        drop(busy);
        assert!(!held.is_one_of_many());
    }

    #[tokio::test]
    async fn a_long_line_waits_for_room_and_short_ones_do_not() {
        let root = Budget::new(8 * LARGE_STEP as u64);
        let mut held = Held::new(&root.share());
        held.count(LARGE_STEP - 1);
        assert_eq!(root.used(), 0);
        let others = root.share().hold(7 * LARGE_STEP as u64);
        std::future::poll_fn(|cx| held.poll_room(cx)).await;
        held.count(LARGE_STEP * 2 + 5);
        assert_eq!(root.used(), 9 * LARGE_STEP as u64);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(held.poll_room(&mut context).is_pending());
        drop(others);
        std::future::poll_fn(|cx| held.poll_room(cx)).await;
        held.count(0);
        assert_eq!(root.used(), 0);
    }
}

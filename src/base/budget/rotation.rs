//! Turns at work that takes a processor: a few at once, in rotation among tenants.
//!
//! The work of a tenant waits for its own, and the next turn is another tenant's, so that no tenant can
//! take them all. Not here: the work (`large`, and `password` of `declare`).

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
};

use tokio::sync::oneshot;

/// The turns of this process; a handle.
#[derive(Clone)]
pub(crate) struct Rotation(Arc<Shared>);

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type Shared = std::sync::Mutex<Queues>;

struct Queues {
    /// Turns that nobody has; with any, nobody waits.
    free: usize,
    /// Tenants with callers that wait, in the order of their next turns.
    waiting: VecDeque<(String, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A turn; the next caller gets it when it is dropped.
pub(crate) struct Turn(Rotation);

impl Rotation {
    /// So many at once.
    pub(crate) fn new(count: usize) -> Self {
        let queues = Queues {
            free: count,
            waiting: VecDeque::new(),
        };
        Self(Arc::new(Shared::new(queues)))
    }

    /// Waits for a turn of `tenant`. A caller that stops waiting loses its place.
    pub(crate) async fn take(&self, tenant: &str) -> Turn {
        let Some(waiting) = self.wait(tenant) else {
            return Turn(self.clone());
        };
        waiting.await.expect("a place stays until its turn")
    }

    /// Takes a place in the queue of `tenant`; none if a turn is free, which is taken then.
    fn wait(&self, tenant: &str) -> Option<oneshot::Receiver<Turn>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.free > 0 {
            queues.free -= 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let mut waiting = queues.waiting.iter_mut();
        if let Some((_, places)) = waiting.find(|(name, _)| name == tenant) {
            places.push_back(sender);
        } else {
            let places = VecDeque::from([sender]);
            queues.waiting.push_back((tenant.to_owned(), places));
        }
        Some(receiver)
    }

    /// The place whose turn is next; none if nobody waits, and the turn is free then.
    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((tenant, mut places)) = queues.waiting.pop_front() {
            // Callers that have left do not cost their tenant its turn.
            while places.front().is_some_and(oneshot::Sender::is_closed) {
                places.pop_front();
            }
            let place = places.pop_front();
            if !places.is_empty() {
                queues.waiting.push_back((tenant, places));
            }
            if place.is_some() {
                return place;
            }
        }
        queues.free += 1;
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(place) = self.0.next() {
            // A caller that has just left returns the turn, which is dropped again.
            drop(place.send(Self(self.0.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::rotation::*;

    /// Ten callers of one tenant wait; the first of another tenant is next.
    #[tokio::test]
    async fn no_tenant_takes_every_turn() {
        let turns = Rotation::new(2);
        let held = [turns.take("a").await, turns.take("a").await];
        let mut own: Vec<_> = (0..10).map(|_| Box::pin(turns.take("a"))).collect();
        for waiting in &mut own {
            assert!(waiting.now_or_never().is_none());
        }
        let mut other = Box::pin(turns.take("b"));
        assert!(other.as_mut().now_or_never().is_none());
        let [one, two] = held;
        drop(one);
        let first = own[0].as_mut().now_or_never();
        assert!(first.is_some(), "it waited longest");
        assert!(other.as_mut().now_or_never().is_none());
        drop(two);
        let second = other.as_mut().now_or_never();
        assert!(second.is_some(), "the other tenant is next");
        assert!(own[1].as_mut().now_or_never().is_none());
    }

    /// A caller that comes again and again, as a session with requests does, keeps the place of its tenant.
    #[tokio::test]
    async fn who_left_costs_the_tenant_no_turn() {
        let turns = Rotation::new(1);
        let held = turns.take("a").await;
        for _ in 0..3 {
            assert!(turns.take("b").now_or_never().is_none());
        }
        let mut own = Box::pin(turns.take("b"));
        assert!(own.as_mut().now_or_never().is_none());
        let mut other = Box::pin(turns.take("c"));
        assert!(other.as_mut().now_or_never().is_none());
        drop(held);
        assert!(own.as_mut().now_or_never().is_some());
        assert!(other.as_mut().now_or_never().is_some());
    }

    /// Callers that left, before and after their turn came, cost no turn.
    #[tokio::test]
    async fn no_turn_is_lost() {
        let turns = Rotation::new(1);
        let held = turns.take("a").await;
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(turns.take("a"))).collect();
        for place in &mut waiting {
            assert!(place.now_or_never().is_none());
        }
        drop(waiting.remove(0));
        drop(held);
        // The turn is on its way to the next caller, who leaves without a look at it.
        drop(waiting.remove(0));
        let turn = waiting[0].as_mut().now_or_never();
        assert!(turn.is_some());
        drop((turn, waiting));
        assert!(turns.take("b").now_or_never().is_some());
    }
}

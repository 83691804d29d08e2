//! Memory of the state that a session keeps from its client and its server, within the share of its
//! caller.

use std::sync::Arc;

use crate::base::budget::{Budget, Drawn};

/// What the kept state of a session has drawn.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    /// The share of the caller.
    caller: Arc<Budget>,
    /// The bytes of all URIs, also of those on their way to the backend.
    uris: Arc<Budget>,
    /// What is kept until the end of the session.
    drawn: Drawn,
    /// Its record in Redis; none without Redis.
    record: Option<RecordMemory>,
}

/// What a record in Redis has drawn.
#[derive(Debug)]
pub(crate) struct RecordMemory {
    /// Of the budget of records.
    pub(super) records: Drawn,
    /// Of the budget of all that the sessions of this replica keep in Redis.
    pub(super) kept: Drawn,
}

impl RecordMemory {
    /// Draws for a whole record.
    pub(super) fn draw(records: &Arc<Budget>, kept: &Arc<Budget>, state: &[u8]) -> Option<Self> {
        let bytes = RECORD + in_redis(state);
        Some(Self {
            records: records.draw(bytes)?,
            kept: kept.hold(bytes),
        })
    }

    /// Whether this is what a record with this state takes.
    pub(crate) fn is_for(&self, state: &[u8]) -> bool {
        self.records.amount() == RECORD + in_redis(state)
    }

    /// Draws what is about to be kept; false, with nothing drawn, if there is no room for it.
    fn grow(&mut self, bytes: u64) -> bool {
        let has_room = self.records.grow(bytes);
        if has_room {
            self.kept.add(bytes);
        }
        has_room
    }

    /// Holds what exists already.
    fn add(&mut self, bytes: u64) {
        self.records.add(bytes);
        self.kept.add(bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        self.records.give_back(bytes);
        self.kept.give_back(bytes);
    }

    /// Holds something that exists already, and ends before the record does.
    fn held_part(&self, bytes: u64) -> Self {
        Self {
            records: self.records.budget().hold(bytes),
            kept: self.kept.budget().hold(bytes),
        }
    }

    /// Draws for something that ends before the record does.
    fn part(&self, bytes: u64) -> Option<Self> {
        Some(Self {
            records: self.records.budget().draw(bytes)?,
            kept: self.kept.budget().hold(bytes),
        })
    }
}

/// What a subscription has drawn, and gives back when it ends.
#[derive(Debug)]
pub(crate) struct SubscriptionMemory {
    _kept: Drawn,
    _uri: Drawn,
    _record: Option<RecordMemory>,
}

/// The bound that has no room for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// [`MAX_URIS`] of the session.
    Session,
    /// The share of the caller.
    Caller,
}

impl SessionMemory {
    /// The memory of a session that keeps nothing yet.
    pub(crate) fn new(caller: Arc<Budget>, record: Option<RecordMemory>) -> Self {
        Self {
            record,
            drawn: caller.hold(0),
            uris: Budget::new(MAX_URIS),
            caller,
        }
    }

    /// Draws what is about to be kept until the end of the session; false, with nothing drawn, if the
    /// share of the caller has no room for it.
    pub(crate) fn keep(&mut self, state: &[u8]) -> bool {
        let bytes = RECORD + in_redis(state);
        let mut record = self.record.as_mut();
        if record.as_mut().is_some_and(|record| !record.grow(bytes)) {
            return false;
        }
        let has_room = self.drawn.grow(twice(state));
        if !has_room && let Some(record) = record {
            record.give_back(bytes);
        }
        has_room
    }

    /// Holds a record that exists already, with what it has first, until the end of the session.
    pub(crate) fn hold_record(&mut self, state: &[u8]) {
        self.hold(state);
        if let Some(record) = &mut self.record {
            record.add(RECORD);
        }
    }

    /// Holds what exists already until the end of the session.
    pub(crate) fn hold(&mut self, state: &[u8]) {
        self.drawn.add(twice(state));
        if let Some(record) = &mut self.record {
            record.add(in_redis(state));
        }
    }

    /// Draws what a subscription is about to take.
    pub(crate) fn subscribe(&self, uri: &[u8]) -> Result<SubscriptionMemory, NoRoom> {
        let uris = self.uris.draw(uri.len() as u64).ok_or(NoRoom::Session)?;
        let kept = self.caller.draw(SUBSCRIPTION + twice(uri));
        let record = self.record.as_ref();
        let record = record.map(|record| record.part(in_redis(uri)).ok_or(NoRoom::Caller));
        Ok(SubscriptionMemory {
            _kept: kept.ok_or(NoRoom::Caller)?,
            _uri: uris,
            _record: record.transpose()?,
        })
    }

    /// Holds what a subscription takes that exists already.
    pub(crate) fn hold_subscription(&self, uri: &[u8]) -> SubscriptionMemory {
        let record = self.record.as_ref();
        SubscriptionMemory {
            _kept: self.caller.hold(SUBSCRIPTION + twice(uri)),
            _uri: self.uris.hold(uri.len() as u64),
            _record: record.map(|record| record.held_part(in_redis(uri))),
        }
    }
}

/// The memory of bytes that a session keeps, and as much again for the copy in its record or at its
/// shared child.
fn twice(kept: &[u8]) -> u64 {
    2 * kept.len() as u64
}

/// What a session takes in Redis besides what it keeps: the keys and fields of its record.
const RECORD: u64 = 2 << 10;
/// The memory of bytes in a record: an allocation may be larger by a quarter.
fn in_redis(kept: &[u8]) -> u64 {
    kept.len() as u64 * 5 / 4
}

/// The most bytes of the URIs of a session's subscriptions together: each change of one writes the
/// record with all of them.
const MAX_URIS: u64 = 256 << 10;
/// What a subscription takes beside its URI: its entries in the session and at a shared child.
const SUBSCRIPTION: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_draws_before_it_keeps_and_gives_back() {
        let caller = Budget::new(10_000);
        let mut memory = SessionMemory::new(Arc::clone(&caller), None);
        assert!(memory.keep(&[b'i'; 1000]));
        memory.hold(&[b'c'; 100]);
        assert_eq!(caller.used(), 2200);
        let subscribed = memory.subscribe(&[b'u'; 500]).unwrap();
        assert_eq!(caller.used(), 2200 + 1256);
        // The same of a session that was taken over.
        let taken_over = memory.hold_subscription(&[b'v'; 500]);
        assert_eq!(caller.used(), 2200 + 2 * 1256);
        drop((subscribed, taken_over));
        assert_eq!(caller.used(), 2200);
        assert!(!memory.keep(&[b'x'; 5000]), "more than there is");
        assert_eq!(caller.used(), 2200);
        drop(memory);
        assert_eq!(caller.used(), 0);
    }

    #[test]
    fn a_record_draws_in_redis_before_it_is_written() {
        let (caller, records) = (Budget::new(1 << 20), Budget::new(3 * RECORD));
        let kept = Budget::new(1 << 20);
        let memory = || {
            let record = RecordMemory {
                records: records.hold(0),
                kept: kept.hold(0),
            };
            SessionMemory::new(Arc::clone(&caller), Some(record))
        };
        let (mut one, mut other) = (memory(), memory());
        assert!(one.keep(&[b'i'; 1000]));
        assert_eq!(
            (records.used(), kept.used()),
            (RECORD + 1250, RECORD + 1250)
        );
        let subscribed = one.subscribe(&[b'u'; 500]).unwrap();
        let taken_over = one.hold_subscription(&[b'u'; 100]);
        assert_eq!(
            (records.used(), kept.used()),
            (RECORD + 2000, RECORD + 2000)
        );
        assert!(!other.keep(&[b'i'; 3000]), "more than there is");
        assert_eq!(caller.used(), 2000 + 2 * SUBSCRIPTION + 1200);
        assert_eq!(
            (records.used(), kept.used()),
            (RECORD + 2000, RECORD + 2000)
        );
        assert_eq!(one.subscribe(&[b'u'; 5000]).unwrap_err(), NoRoom::Caller);
        drop((subscribed, taken_over, one));
        assert_eq!((records.used(), kept.used()), (0, 0));
        assert!(other.keep(&[b'i'; 3000]));
    }

    #[test]
    fn the_uris_of_a_session_are_bounded_and_so_is_its_caller() {
        let caller = Budget::new(1 << 20);
        let memory = SessionMemory::new(Arc::clone(&caller), None);
        let uri = vec![b'u'; 8 << 10];
        let held: Vec<_> = (0..32).map(|_| memory.subscribe(&uri).unwrap()).collect();
        let drawn = caller.used();
        assert_eq!(memory.subscribe(b"u").unwrap_err(), NoRoom::Session);
        assert_eq!(caller.used(), drawn);
        drop(held);
        let others = caller.draw(caller.total() - 1000);
        assert_eq!(memory.subscribe(&uri).unwrap_err(), NoRoom::Caller);
        drop(others);
        // A refusal by the caller's share takes nothing of the session's bound.
        let again: Vec<_> = (0..32).map(|_| memory.subscribe(&uri)).collect();
        assert!(again.iter().all(Result::is_ok));
    }
}

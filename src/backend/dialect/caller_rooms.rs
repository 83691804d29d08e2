//! Room for the calls of each caller at a modern server that those of a tenant share.
//!
//! One caller gets a quarter of what the others leave, so that some is left however many keep calls.

use std::{collections::HashMap, sync::Arc};

use super::id_blocks::{Caller, IdBlocks};
use crate::declare::Isolation;

/// The bytes that the calls of each caller take; none where no several callers share the child, which have no bound but that
/// of all. Boxed: each session has room for a child.
#[derive(Default)]
pub(super) struct CallerRooms(Option<Box<Rooms>>);

#[derive(Default)]
struct Rooms {
    /// The callers by the ids of calls, once they are known.
    ids: Option<Arc<IdBlocks>>,
    /// The bytes of each that has any.
    used: HashMap<Caller, usize>,
}

/// The part of what the others leave that a caller gets.
const PART: usize = 4;

/// The part for a single call with all that belongs to it, which may be as long as a body.
const SINGLE: usize = 2;

impl CallerRooms {
    /// Those of a child whose sessions are isolated like this.
    pub(super) fn new(isolation: Isolation) -> Self {
        Self((isolation == Isolation::Tenant).then(Box::default))
    }

    /// Takes the callers from these ids from now on.
    pub(super) fn know_callers(&mut self, ids: &Arc<IdBlocks>) {
        if let Some(rooms) = &mut self.0 {
            rooms.ids = Some(Arc::clone(ids));
        }
    }

    /// The caller of the call with a raw id; none where it does not matter.
    pub(super) fn caller(&self, id: &[u8]) -> Option<Caller> {
        let id = str::from_utf8(id).ok()?.parse().ok()?;
        self.0.as_ref()?.ids.as_ref()?.caller(id)
    }

    /// Whether a caller has room for a further call of so many bytes, where all take `kept` of `most`.
    pub(super) fn has_room(
        &self,
        caller: Option<Caller>,
        bytes: usize,
        (kept, most): (usize, usize),
    ) -> bool {
        caller.is_none_or(|caller| {
            let used = self.used(caller);
            let left = most.saturating_sub(kept - used);
            used + bytes <= left / PART || used == 0 && bytes <= left / SINGLE
        })
    }

    /// The same for what becomes known during a call.
    pub(super) fn may_grow(
        &self,
        caller: Option<Caller>,
        bytes: usize,
        (kept, most): (usize, usize),
    ) -> bool {
        caller.is_none_or(|caller| {
            let used = self.used(caller);
            used + bytes <= most.saturating_sub(kept - used) / SINGLE
        })
    }

    /// Counts bytes of a caller.
    pub(super) fn take(&mut self, caller: Option<Caller>, bytes: usize) {
        if let (Some(rooms), Some(caller)) = (&mut self.0, caller) {
            *rooms.used.entry(caller).or_default() += bytes;
        }
    }

    /// Counts them no more.
    pub(super) fn give_back(&mut self, caller: Option<Caller>, bytes: usize) {
        let (Some(rooms), Some(caller)) = (&mut self.0, caller) else {
            return;
        };
        if let Some(used) = rooms.used.get_mut(&caller) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                rooms.used.remove(&caller);
            }
        }
    }

    fn used(&self, caller: Caller) -> usize {
        let rooms = self.0.as_ref();
        let used = rooms.and_then(|rooms| rooms.used.get(&caller));
        used.copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{caller_rooms::*, id_blocks::IdLease};

    #[test]
    fn callers_are_known_by_ids_where_several_share_a_child() {
        let ids = IdBlocks::new();
        let lease = IdLease::new(&ids, 1, "ada").unwrap();
        let id = lease.ids().start().to_string();
        for (isolation, is_known) in [
            (Isolation::Session, false),
            (Isolation::Principal, false),
            (Isolation::Tenant, true),
        ] {
            let mut rooms = CallerRooms::new(isolation);
            assert_eq!(rooms.caller(id.as_bytes()), None);
            rooms.know_callers(&ids);
            let caller = rooms.caller(id.as_bytes());
            assert_eq!(caller, is_known.then(|| ids.called("ada")));
            assert_eq!(rooms.caller(b"1"), None, "the gateway itself");
            assert_eq!(rooms.caller(b"\"x\""), None);
        }
    }

    #[test]
    fn a_caller_leaves_room_for_others_whatever_it_keeps() {
        let mut rooms = CallerRooms::new(Isolation::Tenant);
        let (mut kept, most) = (0, 1 << 20);
        let ids = IdBlocks::new();
        for caller in 0..4 {
            let caller = ids.called(&caller.to_string());
            let mut calls = 0;
            while rooms.has_room(Some(caller), 1 << 10, (kept, most)) {
                rooms.take(Some(caller), 1 << 10);
                (kept, calls) = (kept + (1 << 10), calls + 1);
            }
            assert!(calls > 100, "{calls}");
            let is_single = rooms.has_room(Some(caller), (most - kept) / 3, (kept, most));
            assert!(!is_single, "it has others");
            let other = ids.called("other");
            let is_single = rooms.has_room(Some(other), (most - kept) / 3, (kept, most));
            assert!(is_single);
        }
        assert!(rooms.has_room(None, most, (kept, most)), "bounded by all");
        let caller = ids.called("0");
        let used = rooms.used(caller);
        rooms.give_back(Some(caller), used);
        assert!(!rooms.0.unwrap().used.contains_key(&caller));
    }
}

//! Blocks of ids for the sessions of shared children: an id names its session, and needs no table of calls.
//!
//! All ids stay below 2^31, as older SDKs hold them in 32 bits with a sign. So a session has one block at a
//! time, and gets another when it has used that up.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
    sync::{Arc, PoisonError, RwLock},
};

use crate::base::Table;

/// Ids of the gateway's own requests to shared children, which belong to no session.
pub(crate) const OWN_IDS: u64 = 1 << 24;

/// Bits of an id that number the requests within a block.
const BITS: u32 = 12;
/// The first block, and the one behind the last.
const FIRST: u32 = 1 << (24 - BITS);
const END: u32 = 1 << (31 - BITS);

/// All blocks of the gateway, with the sessions that hold them.
pub(crate) struct IdBlocks(RwLock<Blocks>, RandomState);

/// What tells callers apart at shared children. It is no name, of which each session would have a copy: two may have the
/// same one, by chance alone, and then they have the room of one together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Caller(u32);

struct Blocks {
    /// Number and caller of the session that holds a block.
    holders: Table<u32, (u32, Caller)>,
    /// The first block that was never leased.
    fresh: u32,
    /// Blocks that were given back, oldest first: they are leased again after all others, so that a late
    /// answer meets no other session.
    returned: VecDeque<u32>,
}

/// The blocks of one session, given back by being dropped.
pub(crate) struct IdLease {
    blocks: Arc<IdBlocks>,
    /// Number of the session.
    session: u32,
    caller: Caller,
    /// The present block is the last one; requests with ids of the others are open.
    held: Vec<u32>,
}

impl IdBlocks {
    /// All blocks, none of them leased.
    pub(crate) fn new() -> Arc<Self> {
        let blocks = Blocks {
            holders: Table::default(),
            fresh: FIRST,
            returned: VecDeque::new(),
        };
        Arc::new(Self(RwLock::new(blocks), RandomState::new()))
    }

    /// The number of the session that holds an id or progress token.
    pub(crate) fn holder(&self, id: u64) -> Option<u32> {
        self.find(id).map(|(session, _)| session)
    }

    /// The caller whose session holds an id.
    pub(super) fn caller(&self, id: u64) -> Option<Caller> {
        self.find(id).map(|(_, caller)| caller)
    }

    /// What tells a caller of this name apart. Nobody can choose a name for it.
    pub(super) fn called(&self, name: &str) -> Caller {
        let [.., a, b, c, d] = self.1.hash_one(name).to_be_bytes();
        Caller(u32::from_be_bytes([a, b, c, d]))
    }

    fn find(&self, id: u64) -> Option<(u32, Caller)> {
        let block = u32::try_from(id >> BITS).ok()?;
        let blocks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        blocks.holders.get(&block).copied()
    }

    /// Leases a block to a session of a caller; none if all are leased.
    fn lease(&self, session: u32, caller: Caller) -> Option<u32> {
        let mut blocks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let block = if blocks.fresh < END {
            blocks.fresh += 1;
            blocks.fresh - 1
        } else {
            blocks.returned.pop_front()?
        };
        blocks.holders.insert(block, (session, caller));
        Some(block)
    }

    fn give_back(&self, block: u32) {
        let mut blocks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        blocks.holders.remove(&block);
        blocks.returned.push_back(block);
    }
}

impl IdLease {
    /// Leases the first block of a session of a caller; none if all are leased.
    pub(crate) fn new(blocks: &Arc<IdBlocks>, session: u32, caller: &str) -> Option<Self> {
        let caller = blocks.called(caller);
        let held = vec![blocks.lease(session, caller)?];
        let blocks = Arc::clone(blocks);
        Some(Self {
            blocks,
            session,
            caller,
            held,
        })
    }

    /// The ids of the present block.
    pub(super) fn ids(&self) -> RangeInclusive<u64> {
        self.held.last().map_or(0..=0, |block| ids(*block))
    }

    /// Leases another block, and gives those back in which no request is open. If all are leased, the
    /// session keeps its block.
    pub(super) fn renew(&mut self, is_open: impl Fn(&RangeInclusive<u64>) -> bool) {
        let Some(next) = self.blocks.lease(self.session, self.caller) else {
            return;
        };
        let blocks = &self.blocks;
        self.held.retain(|block| {
            let is_kept = is_open(&ids(*block));
            if !is_kept {
                blocks.give_back(*block);
            }
            is_kept
        });
        self.held.push(next);
    }
}

impl Drop for IdLease {
    fn drop(&mut self) {
        for block in self.held.drain(..) {
            self.blocks.give_back(block);
        }
    }
}

/// The ids of a block.
fn ids(block: u32) -> RangeInclusive<u64> {
    let first = u64::from(block) << BITS;
    first..=first + (1 << BITS) - 1
}

#[cfg(test)]
mod tests {
    use super::super::id_blocks::*;

    #[test]
    fn the_ids_of_a_session_are_its_own_to_the_last() {
        let blocks = IdBlocks::new();
        let leases: Vec<_> = (1..=3)
            .map(|session| IdLease::new(&blocks, session, "").unwrap())
            .collect();
        assert_eq!(*leases[0].ids().start(), OWN_IDS);
        for (lease, session) in leases.iter().zip(1..) {
            let (first, last) = (*lease.ids().start(), *lease.ids().end());
            assert_eq!(
                [blocks.holder(first), blocks.holder(last)],
                [Some(session); 2]
            );
        }
        assert_eq!(blocks.holder(OWN_IDS - 1), None);
        assert_eq!(blocks.holder(leases[2].ids().end() + 1), None);
        assert_eq!(blocks.holder(u64::MAX), None);
        let first = *leases[0].ids().start();
        drop(leases);
        assert_eq!(blocks.holder(first), None);
    }

    #[test]
    fn blocks_stay_below_32_bits_and_the_longest_unused_comes_first() {
        let blocks = IdBlocks::new();
        let all: Vec<_> = (FIRST..END)
            .map(|session| IdLease::new(&blocks, session, "").unwrap())
            .collect();
        assert_eq!(*all.last().unwrap().ids().end(), (1 << 31) - 1);
        assert!(IdLease::new(&blocks, 1, "").is_none());
        let mut all = all.into_iter();
        let returned: Vec<_> = all.by_ref().take(2).map(|lease| lease.ids()).collect();
        let again = [2, 3].map(|session| IdLease::new(&blocks, session, "").unwrap());
        assert_eq!(again.each_ref().map(IdLease::ids)[..], returned);
        assert_eq!(blocks.holder(*returned[1].start()), Some(3));
        // Without another block the session keeps the one it has.
        let [mut lease, _] = again;
        lease.renew(|_| false);
        assert_eq!(lease.ids(), returned[0]);
    }

    #[test]
    fn a_block_is_held_while_a_request_in_it_is_open() {
        let blocks = IdBlocks::new();
        let mut lease = IdLease::new(&blocks, 7, "").unwrap();
        let first = lease.ids();
        lease.renew(|ids| *ids == first);
        let second = lease.ids();
        assert_eq!(blocks.holder(*first.start()), Some(7));
        lease.renew(|ids| *ids == first);
        assert_eq!(blocks.holder(*first.start()), Some(7));
        assert_eq!(blocks.holder(*second.start()), None);
        lease.renew(|_| false);
        assert_eq!(blocks.holder(*first.start()), None);
        assert_eq!(blocks.holder(*lease.ids().start()), Some(7));
    }
}

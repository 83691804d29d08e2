//! Uids of children: one for each living child.
//!
//! Not here: the change to that user (`guard::exec`).

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::config::Uids;

/// Pool of uids.
#[derive(Debug)]
pub(crate) struct Pool {
    range: Uids,
    /// A bit for each uid that a child has or may still have.
    taken: Box<[AtomicU64]>,
    /// A bit for each uid that a child ever had.
    used: Box<[AtomicU64]>,
    /// Start of the next search: uids are reused as late as possible.
    next: AtomicU32,
}

/// Lease of a uid for one child.
///
/// Freed by [`UidLease::end`], after the end of every process with the uid. A dropped lease stays
/// taken until no process with its uid is found.
#[derive(Debug)]
pub(crate) struct UidLease {
    pool: Arc<Pool>,
    /// The uid; the gid has the same number.
    pub(crate) uid: u32,
}

impl Pool {
    /// All uids of `range`, free.
    pub(crate) fn new(range: Uids) -> Self {
        let words = || (0..range.count.div_ceil(64)).map(|_| AtomicU64::new(0));
        Self {
            range,
            taken: words().collect(),
            used: words().collect(),
            next: AtomicU32::new(0),
        }
    }

    /// Takes a free uid; none if all are taken.
    pub(crate) fn take(self: &Arc<Self>) -> Option<UidLease> {
        // Second pass: processes of dropped leases may have ended.
        self.search(false).or_else(|| self.search(true))
    }

    fn search(self: &Arc<Self>, is_last: bool) -> Option<UidLease> {
        for _ in 0..self.range.count {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.range.count;
            let (word, bit) = ((at / 64) as usize, 1 << (at % 64));
            let uid = self.range.first + at;
            let was_taken = self.taken[word].fetch_or(bit, Ordering::AcqRel) & bit != 0;
            if was_taken && !is_last {
                continue;
            }
            let was_used = self.used[word].fetch_or(bit, Ordering::AcqRel) & bit != 0;
            if was_used && is_alive(uid) {
                continue;
            }
            let pool = Arc::clone(self);
            return Some(UidLease { pool, uid });
        }
        None
    }
}

impl UidLease {
    /// Frees the uid: no process has it any more.
    pub(crate) fn end(self) {
        let at = self.uid - self.pool.range.first;
        self.pool.taken[(at / 64) as usize].fetch_and(!(1 << (at % 64)), Ordering::AcqRel);
    }
}

/// Whether any process has this uid, real or effective.
fn is_alive(uid: u32) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let uid = uid.to_string();
    let has = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.is_some_and(|line| line.split_ascii_whitespace().any(|one| one == uid))
    };
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .any(|status| has(&status))
}

#[cfg(test)]
mod tests {
    use super::super::uids::*;

    #[test]
    fn a_uid_has_one_owner_and_rests() {
        let pool = Arc::new(Pool::new(Uids {
            first: 4_000_000_000,
            count: 3,
        }));
        let leases: Vec<UidLease> = std::iter::from_fn(|| pool.take()).take(3).collect();
        let uids: Vec<u32> = leases.iter().map(|lease| lease.uid).collect();
        assert_eq!(uids, [4_000_000_000, 4_000_000_001, 4_000_000_002]);
        let mut leases = leases.into_iter();
        leases.next().unwrap().end();
        assert_eq!(pool.take().unwrap().uid, 4_000_000_000);
    }

    #[test]
    fn a_uid_that_lives_is_not_given_again() {
        let own = rustix::process::getuid().as_raw();
        assert!(is_alive(own));
        assert!(!is_alive(4_000_000_009));
        let pool = Arc::new(Pool::new(Uids {
            first: own,
            count: 1,
        }));
        pool.take().unwrap().end();
        assert!(pool.take().is_none(), "this very process has it");
    }
}

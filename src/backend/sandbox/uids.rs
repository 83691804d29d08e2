//! Uids of children: one for each living child.
//!
//! Not here: the change to that user (`guard::exec`).

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, lchown},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::spawn_blocking, time::Instant};
use uuid::Uuid;

use crate::{backend::linux::removal, base::budget::Turns, config::Uids};

/// Pool of uids.
#[derive(Debug)]
pub(crate) struct Pool {
    range: Uids,
    /// A bit for each uid that a child has or may still have.
    taken: Box<[AtomicU64]>,
    /// A bit for each of these whose lease is gone, so that it is free once no process has it.
    dropped: Box<[AtomicU64]>,
    /// A bit for each uid that a child had, of this gateway or of one before it.
    used: Box<[AtomicU64]>,
    /// Start of the next search: uids are reused as late as possible. The first one is anywhere, or the first children
    /// of a gateway would have the uids of the first ones of the gateway before it.
    next: AtomicU32,
    /// Turns to lease a uid.
    turns: Turns,
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
    has_ended: bool,
}

impl Pool {
    /// All uids of `range`, free unless a process has them: a gateway that was killed may have left it.
    pub(crate) fn new(range: Uids) -> Self {
        let words = || (0..range.count.div_ceil(64)).map(|_| AtomicU64::new(0));
        let used: Box<[AtomicU64]> = words().collect();
        let living = living().filter_map(|uid| uid.checked_sub(range.first));
        for at in living.filter(|at| *at < range.count) {
            used[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
        Self {
            range,
            taken: words().collect(),
            dropped: words().collect(),
            used,
            next: AtomicU32::new(Uuid::new_v4().as_fields().0 % range.count.max(1)),
            turns: Turns::new(TURNS),
        }
    }

    /// Leases a uid for a child of a tenant, which owns nothing yet in these directories of everybody.
    /// Off the runtime's workers: processes and the files of earlier children are looked for, of which
    /// there may be many.
    ///
    /// # Errors
    ///
    /// No uid is free, or files of an earlier child cannot be removed.
    pub(super) async fn lease(
        self: &Arc<Self>,
        tenant: &str,
        places: Vec<&'static Path>,
    ) -> io::Result<UidLease> {
        let (turn, pool) = (self.turns.take(tenant).await, Arc::clone(self));
        let leased = spawn_blocking(move || {
            // Held to the end, also if nobody waits for it any more.
            let _turn = turn;
            pool.take_clean(&places)
        });
        leased.await.map_err(io::Error::other)?
    }

    /// Takes a free uid without files in these directories. One whose files cannot be removed stays taken
    /// while there are others.
    fn take_clean(self: &Arc<Self>, places: &[&Path]) -> io::Result<UidLease> {
        let until = Instant::now() + LONGEST;
        let mut failed = io::Error::other("no uid of sandbox.uids is free");
        for _ in 0..TRIES {
            let Some(lease) = self.take() else { break };
            match remove_leftovers(lease.uid, places, until) {
                Ok(()) => return Ok(lease),
                // No failure of the server that is to start: others have left so many.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    failed = io::Error::new(io::ErrorKind::WouldBlock, error.to_string());
                }
                Err(error) => failed = error,
            }
            if Instant::now() >= until + LONGEST {
                break;
            }
        }
        Err(failed)
    }

    /// Takes a free uid; none if all are taken.
    fn take(self: &Arc<Self>) -> Option<UidLease> {
        // Second pass: processes of dropped leases may have ended.
        self.search(false).or_else(|| self.search(true))
    }

    fn search(self: &Arc<Self>, is_last: bool) -> Option<UidLease> {
        for _ in 0..self.range.count {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.range.count;
            let (word, bit) = ((at / 64) as usize, 1 << (at % 64));
            let uid = self.range.first + at;
            let is_free = if is_last {
                // Not one whose child is about to start.
                self.dropped[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0
            } else {
                self.taken[word].fetch_or(bit, Ordering::AcqRel) & bit == 0
            };
            if !is_free {
                continue;
            }
            let was_used = self.used[word].fetch_or(bit, Ordering::AcqRel) & bit != 0;
            if was_used && is_alive(uid) {
                self.dropped[word].fetch_or(bit, Ordering::AcqRel);
                continue;
            }
            return Some(UidLease {
                pool: Arc::clone(self),
                uid,
                has_ended: false,
            });
        }
        None
    }
}

impl UidLease {
    /// Frees the uid: no process has it any more.
    pub(crate) fn end(mut self) {
        self.has_ended = true;
        let (word, bit) = self.place();
        self.pool.taken[word].fetch_and(!bit, Ordering::AcqRel);
    }

    /// The bit of the uid.
    fn place(&self) -> (usize, u64) {
        let at = self.uid - self.pool.range.first;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

impl Drop for UidLease {
    fn drop(&mut self) {
        if !self.has_ended {
            let (word, bit) = self.place();
            self.pool.dropped[word].fetch_or(bit, Ordering::AcqRel);
        }
    }
}

/// Removes what earlier children with this uid left in directories that every user may write: their
/// owner is the next child with it, of any tenant.
///
/// Deeper files in directories of others stay; a uid is reused as late as possible.
///
/// # Errors
///
/// Those of a removal, which ends by `until`; and `TimedOut` once the look at what others have there has taken
/// [`LONGEST`] more: there may be any number of files, and a lease has a thread and a turn.
fn remove_leftovers(uid: u32, places: &[&Path], until: Instant) -> io::Result<()> {
    for place in places {
        // Without the sticky bit others could put their files in the place of those that are found.
        let is_sticky = fs::metadata(place).is_ok_and(|found| found.mode() & STICKY != 0);
        if !is_sticky {
            continue;
        }
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            if Instant::now() >= until + LONGEST {
                let why = format!("{} has too many files", place.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            let is_left = entry.metadata().is_ok_and(|found| found.uid() == uid);
            if !is_left {
                continue;
            }
            let path = entry.path();
            let removed = removal::remove_until(&path, until).or_else(|error| {
                if error.kind() != io::ErrorKind::PermissionDenied {
                    return Err(error);
                }
                // Without CAP_FOWNER a file in such a directory is removed by its owner only.
                lchown(&path, Some(rustix::process::geteuid().as_raw()), None)?;
                removal::remove_until(&path, until)
            });
            match removed {
                // Programs that clean these directories run beside this.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    // The removal took it over. The next lease of the uid goes on with it.
                    _ = lchown(&path, Some(uid), None);
                    return Err(error);
                }
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Uids that are leased at a time: each may have files to remove, and threads for files are few.
const TURNS: usize = 8;

/// Uids that a lease tries before it fails: of each the directories are read.
const TRIES: usize = 8;

/// The longest time in which a lease removes files, of all uids that it tries.
const LONGEST: Duration = Duration::from_secs(10);

/// Directories that every user may write.
pub(super) const OF_EVERYBODY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// `S_ISVTX`.
const STICKY: u32 = 0o1000;

/// Whether any process has this uid, real or effective.
fn is_alive(uid: u32) -> bool {
    living().any(|living| living == uid)
}

/// The uids of all processes, real and effective.
fn living() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .flat_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            let words = line.into_iter().flat_map(str::split_ascii_whitespace);
            words.flat_map(str::parse).collect::<Vec<u32>>()
        })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::uids::*;

    fn soon() -> Instant {
        Instant::now() + LONGEST
    }

    #[test]
    fn a_uid_has_one_owner_and_rests() {
        let pool = Arc::new(Pool::new(Uids {
            first: 4_000_000_000,
            count: 3,
        }));
        pool.next.store(0, Ordering::Relaxed);
        let leases: Vec<UidLease> = std::iter::from_fn(|| pool.take()).take(3).collect();
        let uids: Vec<u32> = leases.iter().map(|lease| lease.uid).collect();
        assert_eq!(uids, [4_000_000_000, 4_000_000_001, 4_000_000_002]);
        let mut leases = leases.into_iter();
        leases.next().unwrap().end();
        assert_eq!(pool.take().unwrap().uid, 4_000_000_000);
    }

    /// The first child of each gateway had the uid of the first one of the gateway before it.
    #[test]
    fn gateways_begin_with_different_uids() {
        let (first, count) = (4_000_000_000, 60_000);
        let pools = (0..5).map(|_| Arc::new(Pool::new(Uids { first, count })));
        let firsts: std::collections::BTreeSet<u32> =
            pools.map(|pool| pool.take().unwrap().uid).collect();
        assert!(firsts.len() > 1, "{firsts:?}");
    }

    /// The runtime's workers would wait for the files of every child before it.
    #[test]
    fn files_are_looked_for_off_the_runtime() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let busy = spawn_blocking(move || wait.recv());
            let (first, count) = (4_000_000_000, 1);
            let pool = Arc::new(Pool::new(Uids { first, count }));
            let mut leased = std::pin::pin!(pool.lease("a", OF_EVERYBODY.map(Path::new).to_vec()));
            assert!((&mut leased).now_or_never().is_none());
            drop(go);
            assert_eq!(leased.await.unwrap().uid, first);
            assert!(busy.await.unwrap().is_err());
        });
    }

    /// A tenant whose children left many files took all turns.
    #[test]
    fn a_tenant_whose_leases_take_long_delays_no_other() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // As many threads as there are turns: a lease with a turn does not wait for one.
        let runtime = runtime.max_blocking_threads(TURNS).build().unwrap();
        runtime.block_on(async {
            let (first, count) = (4_000_000_000, 100);
            let pool = Arc::new(Pool::new(Uids { first, count }));
            let mut held = Vec::new();
            while let Some(turn) = pool.turns.take("a").now_or_never() {
                held.push(turn);
            }
            let mut own = std::pin::pin!(pool.lease("a", Vec::new()));
            assert!((&mut own).now_or_never().is_none());
            assert!(pool.lease("b", Vec::new()).await.is_ok());
            assert!((&mut own).now_or_never().is_none());
            drop(held);
            assert!(own.await.is_ok());
        });
    }

    /// A start that found all of them taken took that of a child about to start.
    #[tokio::test]
    async fn a_uid_is_not_given_again_before_its_lease_is_gone() {
        let (first, count) = (4_000_000_000, 1);
        let pool = Arc::new(Pool::new(Uids { first, count }));
        let lease = pool.lease("a", Vec::new()).await.unwrap();
        assert!(pool.lease("a", Vec::new()).await.is_err(), "one is all");
        drop(lease);
        assert!(pool.lease("a", Vec::new()).await.is_ok());
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
        assert!(pool.take().is_none(), "this very process has it");
    }

    #[test]
    fn a_uid_that_outlives_its_lease_is_not_given_again() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (first, count) = (4_000_000_020, 1);
        let pool = Arc::new(Pool::new(Uids { first, count }));
        let lease = pool.take().unwrap();
        let mut process = std::process::Command::new("/bin/cat");
        let process = std::os::unix::process::CommandExt::uid(&mut process, lease.uid);
        let mut process = process.stdin(std::process::Stdio::piped()).spawn().unwrap();
        lease.end();
        assert!(pool.take().is_none());
        drop(process.stdin.take());
        process.wait().unwrap();
        assert_eq!(pool.take().unwrap().uid, first);
    }

    /// The capabilities that the unit gives the gateway do not remove the files of others in /tmp.
    #[test]
    fn leftovers_go_without_the_capability_to_remove_them() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(place.path(), mode).unwrap();
        let (first, another) = (4_000_000_010, 4_000_000_012);
        lchown(place.path(), Some(another), None).unwrap();
        let (file, link) = (place.path().join("file"), place.path().join("link"));
        let leave = || {
            fs::write(&file, "").unwrap();
            std::os::unix::fs::symlink("/dev/null", &link).unwrap();
            for path in [&file, &link] {
                lchown(path, Some(first), Some(first)).unwrap();
            }
        };
        let without = |lost: CapabilitySet| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(lost);
            set_capabilities(None, sets).unwrap();
        };
        leave();
        // Capabilities are those of a thread.
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| {
                without(CapabilitySet::FOWNER);
                remove_leftovers(first, &[place.path()], soon())
            });
            removed.join().unwrap().unwrap();
        });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        leave();
        std::thread::scope(|scope| {
            let leased = scope.spawn(|| {
                without(CapabilitySet::FOWNER | CapabilitySet::CHOWN);
                let pool = Arc::new(Pool::new(Uids { first, count: 2 }));
                pool.next.store(0, Ordering::Relaxed);
                let lease = pool.take_clean(&[place.path()]).unwrap();
                assert_eq!(lease.uid, first + 1, "the other cannot be cleaned");
                pool.take_clean(&[place.path()]).unwrap_err().kind()
            });
            let kind = leased.join().unwrap();
            assert_eq!(kind, io::ErrorKind::PermissionDenied);
        });
    }

    /// A child that left millions of files in a directory of everybody held all turns, for as long as the look at them
    /// took.
    #[test]
    fn the_look_for_leftovers_among_files_of_others_ends() {
        let place = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(place.path(), mode).unwrap();
        fs::write(place.path().join("other"), "").unwrap();
        let (uid, places) = (4_000_000_007, [place.path()]);
        // The removals of another uid took all of their time.
        remove_leftovers(uid, &places, Instant::now()).unwrap();
        let passed = Instant::now().checked_sub(LONGEST).unwrap();
        let late = remove_leftovers(uid, &places, passed).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(late.to_string().contains("too many files"), "{late}");
    }

    #[test]
    fn leftovers_go_and_files_of_others_stay() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let set_mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(place.path(), mode).unwrap();
        };
        let (uid, other) = (4_000_000_005, 4_000_000_006);
        let own = |name: &str, uid| {
            let path = place.path().join(name);
            lchown(&path, Some(uid), Some(uid)).unwrap();
        };
        let write = |name: &str| fs::write(place.path().join(name), name).unwrap();
        fs::create_dir_all(place.path().join("dir/deep")).unwrap();
        for name in ["dir/deep/file", "file", "other", "target"] {
            write(name);
        }
        std::os::unix::fs::symlink("target", place.path().join("link")).unwrap();
        for (name, uid) in [("dir", uid), ("file", uid), ("link", uid), ("other", other)] {
            own(name, uid);
        }
        let left = || {
            let entries = fs::read_dir(place.path()).unwrap().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        let places = [place.path(), Path::new("/nonexistent")];
        set_mode(0o777);
        remove_leftovers(uid, &places, soon()).unwrap();
        assert_eq!(left().len(), 5, "others could replace them meanwhile");
        set_mode(0o1777);
        let late = remove_leftovers(uid, &places, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(left().contains(&"dir".into()), "its turn is over");
        remove_leftovers(uid, &places, soon()).unwrap();
        assert_eq!(left(), ["other", "target"]);
    }
}

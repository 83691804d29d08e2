//! Prepared stores on disk, read-only for children.
//!
//! A store is a directory `DIGEST.RANDOM` that is never renamed, since installed files may contain
//! its path; a link `DIGEST` marks it as complete. A gateway that fills or uses it holds a lock,
//! which ends with the process. Not here: filling one (`preparations`).

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown, symlink},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::backend::{child::SCRATCH, linux::removal::remove_patiently};

/// Directory of all stores.
#[derive(Clone, Debug)]
pub(super) struct Stores {
    dir: PathBuf,
}

/// A store that is complete or being filled, locked against removal by others.
#[derive(Debug)]
pub(crate) struct Store {
    /// Directory of the store.
    pub(crate) path: PathBuf,
    hold: OwnedFd,
}

/// Time for which an unused complete store is kept.
pub(crate) const KEPT: Duration = Duration::from_hours(24 * 7);

/// Age beyond which an incomplete store is a leftover.
const ABANDONED: Duration = Duration::from_hours(1);

/// Limit of nested directories in a store; nested packages have some dozens.
const DEEPEST: usize = 256;

/// Limit of directories beside those on the way to the one that is sealed: their names are in memory.
const BESIDE: usize = 100_000;

/// Attempts to find a store that is replaced meanwhile.
const TRIES: usize = 3;

impl Stores {
    /// Stores below `dir`, which need not exist.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Finds the complete store of this name, and marks it as used.
    pub(crate) fn find(&self, name: &str) -> io::Result<Option<Store>> {
        let link = self.dir.join(name);
        for _ in 0..TRIES {
            let target = match fs::read_link(&link) {
                Ok(target) => target,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let is_own = target
                .to_str()
                .and_then(parts)
                .is_some_and(|(of, _)| of == name);
            let held = is_own
                .then(|| Store::hold(self.dir.join(&target)))
                .transpose();
            match held {
                Ok(Some(store)) if fs::read_link(&link).is_ok_and(|now| now == target) => {
                    let now = Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_NOW,
                    };
                    let times = Timestamps {
                        last_access: now,
                        last_modification: now,
                    };
                    // On failure the store is removed earlier, at worst.
                    _ = rustix::fs::futimens(&store.hold, &times);
                    return Ok(Some(store));
                }
                // Removed by another gateway meanwhile.
                Ok(Some(_)) => {}
                // A dangling link.
                Ok(None) => fs::remove_file(&link)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_file(&link)?,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Creates an empty store.
    pub(crate) fn begin(&self, name: &str) -> io::Result<Store> {
        let path = self
            .dir
            .join(format!("{name}.{}", uuid::Uuid::new_v4().simple()));
        let mut made = DirBuilder::new();
        // Children with their own uid pass through it to known names.
        made.mode(0o711).recursive(true).create(&self.dir)?;
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&path)?;
        let store = Store::hold(path)?;
        private.create(store.path.join(SCRATCH))?;
        Ok(store)
    }

    /// Completes a filled store; a store that another gateway completed first takes its place.
    pub(super) fn complete(&self, name: &str, store: Store) -> io::Result<Store> {
        let emptied = remove_patiently(&store.path.join(SCRATCH));
        let sealed = emptied.and_then(|()| seal(&store.path, DEEPEST, &mut { BESIDE }));
        if let Err(error) = sealed {
            store.discard();
            return Err(error);
        }
        let target = store.path.file_name().unwrap_or_default();
        for _ in 0..TRIES {
            match symlink(target, self.dir.join(name)) {
                Ok(()) => return Ok(store),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if let Some(other) = self.find(name)? {
                        store.discard();
                        return Ok(other);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Removes the mark of a complete store that turned out unusable.
    pub(crate) fn forget(&self, name: &str) {
        _ = fs::remove_file(self.dir.join(name));
    }

    /// Removes complete stores that are not `named` and were unused for `kept`, and abandoned ones;
    /// returns their number. Other files in the directory are not touched.
    pub(crate) fn tidy(&self, named: &HashSet<String>, kept: Duration) -> usize {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut removed = 0;
        for entry in entries {
            let target = entry.file_name();
            let Some((name, _)) = target.to_str().and_then(parts) else {
                continue;
            };
            let link = self.dir.join(name);
            let is_complete = fs::read_link(&link).is_ok_and(|of| of == *target);
            let longest = if is_complete { kept } else { ABANDONED };
            let changed = entry.metadata().and_then(|found| found.modified());
            // A time far ahead is one that its recipe has set.
            let age = changed.map(|at| at.elapsed().unwrap_or_else(|ahead| ahead.duration()));
            let is_old = age.is_ok_and(|age| age >= longest);
            if !is_old || (is_complete && named.contains(name)) {
                continue;
            }
            let Ok(store) = Store::open(entry.path()) else {
                continue;
            };
            let alone = FlockOperation::NonBlockingLockExclusive;
            if rustix::fs::flock(&store.hold, alone).is_ok() {
                if is_complete {
                    self.forget(name);
                }
                store.discard();
                removed += 1;
            }
        }
        removed
    }
}

impl Store {
    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let hold = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { path, hold })
    }

    /// Opens and locks a store.
    fn hold(path: PathBuf) -> io::Result<Self> {
        let store = Self::open(path)?;
        match rustix::fs::flock(&store.hold, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(store),
            // Under removal.
            Err(Errno::WOULDBLOCK) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the store.
    pub(crate) fn discard(self) {
        if let Err(error) = remove_patiently(&self.path) {
            tracing::warn!(%error, "cannot remove a store");
        }
    }
}

/// Gives a directory tree to the gateway, readable for all and writable for none; follows no link.
/// `levels` bounds its depth, which the recipe controls, and so the stack; `beside` the names that are kept.
fn seal(path: &Path, levels: usize, beside: &mut usize) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() {
        let mut directories = Vec::new();
        let mut below = levels;
        for entry in fs::read_dir(path)? {
            below = levels.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let full = || io::Error::other("it has too many directories");
                *beside = beside.checked_sub(1).ok_or_else(full)?;
                directories.push(entry.file_name());
            } else {
                seal(&entry.path(), below, beside)?;
            }
        }
        // Not before this one is closed: at each level a descriptor would be open, which nobody has counted.
        for name in directories {
            *beside += 1;
            seal(&path.join(name), below, beside)?;
        }
    }
    own(path, &found)?;
    if found.is_symlink() {
        return Ok(());
    }
    let allowed = found.permissions().mode() & 0o500;
    fs::set_permissions(path, Permissions::from_mode(allowed | allowed >> 6))
}

/// Takes ownership of files made under a child's uid, which another child may get.
fn own(path: &Path, found: &fs::Metadata) -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if found.uid() == uid {
        return Ok(());
    }
    lchown(path, Some(uid), Some(gid))
}

/// Digest and random part of a store's directory name; none for other names.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (digest, random) = name.split_once('.')?;
    let is_hex = |text: &str, length| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    (is_hex(digest, 64) && is_hex(random, 32)).then_some((digest, random))
}

#[cfg(test)]
mod tests {
    use super::super::stores::*;

    fn stores() -> (tempfile::TempDir, Stores, String) {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::new(dir.path().join("prepared"));
        (dir, stores, "ab".repeat(32))
    }

    fn made(stores: &Stores, name: &str) -> Store {
        let store = stores.begin(name).unwrap();
        fs::create_dir(store.path.join("d")).unwrap();
        fs::write(store.path.join("d/f"), "x").unwrap();
        stores.complete(name, store).unwrap()
    }

    fn age(path: &Path, age: Duration) {
        let file = fs::File::open(path).unwrap();
        let fresh = tempfile::NamedTempFile::new().unwrap();
        let now = fresh.as_file().metadata().unwrap().modified().unwrap();
        file.set_modified(now - age).unwrap();
    }

    fn left(stores: &Stores) -> usize {
        fs::read_dir(&stores.dir).unwrap().count()
    }

    #[test]
    fn what_is_not_complete_is_not_found() {
        let (_dir, stores, name) = stores();
        assert!(stores.find(&name).unwrap().is_none());
        let store = stores.begin(&name).unwrap();
        assert!(stores.find(&name).unwrap().is_none());
        let path = store.path.clone();
        let store = stores.complete(&name, store).unwrap();
        assert_eq!(store.path, path, "it keeps its place");
        assert_eq!(stores.find(&name).unwrap().unwrap().path, path);
        assert!(!path.join(SCRATCH).exists());
        stores.forget(&name);
        assert!(stores.find(&name).unwrap().is_none());
    }

    #[test]
    fn the_first_of_two_gateways_wins() {
        let (_dir, stores, name) = stores();
        let (one, other) = (stores.begin(&name).unwrap(), stores.begin(&name).unwrap());
        let lost = one.path.clone();
        let won = stores.complete(&name, other).unwrap().path;
        assert_eq!(stores.complete(&name, one).unwrap().path, won);
        assert!(!lost.exists());
    }

    #[test]
    fn nothing_in_it_can_be_written_to_and_yet_it_can_be_removed() {
        let (dir, stores, name) = stores();
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        let store = stores.begin(&name).unwrap();
        fs::create_dir(store.path.join("d")).unwrap();
        fs::write(store.path.join("d/f"), "x").unwrap();
        symlink(&outside, store.path.join("d/l")).unwrap();
        let store = stores.complete(&name, store).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        for path in ["", "d", "d/f"] {
            assert_eq!(mode(&store.path.join(path)) & 0o222, 0, "{path}");
        }
        assert_ne!(mode(&outside) & 0o200, 0);
        let path = store.path.clone();
        store.discard();
        assert!(!path.exists() && outside.exists());
    }

    #[test]
    fn one_that_is_too_deep_is_refused_and_removed() {
        let (_dir, stores, name) = stores();
        let store = stores.begin(&name).unwrap();
        let path = store.path.clone();
        fs::create_dir_all(path.join("d/".repeat(1900))).unwrap();
        assert!(stores.complete(&name, store).is_err());
        assert!(stores.find(&name).unwrap().is_none());
        assert!(!path.exists());
    }

    /// At each of its levels a directory was open, beside the descriptors that are counted.
    #[test]
    fn a_deep_store_is_sealed_with_few_open_files() {
        let (_dir, stores, name) = stores();
        let store = stores.begin(&name).unwrap();
        let path = store.path.clone();
        let deepest = path.join("d/".repeat(200));
        fs::create_dir_all(&deepest).unwrap();
        for file in 0..3000 {
            fs::write(deepest.join(file.to_string()), "").unwrap();
        }
        let open = || {
            let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
            let all = all.filter_map(|file| fs::read_link(file.path()).ok());
            all.filter(|file| file.starts_with(&path)).count()
        };
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| stores.complete(&name, store));
            let mut most = 0_usize;
            while !sealing.is_finished() {
                most = most.max(open());
            }
            sealing.join().unwrap().unwrap();
            assert!((1..10).contains(&most), "{most} files");
        });
    }

    #[test]
    fn a_store_with_very_many_directories_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b/c", "b/d"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        assert!(seal(dir.path(), DEEPEST, &mut 1).is_err());
        assert!(seal(dir.path(), DEEPEST, &mut 3).is_ok());
    }

    #[test]
    fn links_that_lead_elsewhere_are_no_stores() {
        let (dir, stores, name) = stores();
        drop(made(&stores, &name));
        let other = "cd".repeat(32);
        for target in [
            dir.path().to_str().unwrap(),
            "..",
            "nothing",
            &format!("{name}.{}", "0".repeat(32)),
        ] {
            symlink(target, stores.dir.join(&other)).unwrap();
            assert!(stores.find(&other).unwrap().is_none(), "{target}");
            assert!(fs::symlink_metadata(stores.dir.join(&other)).is_err());
        }
        assert!(stores.find(&name).unwrap().is_some());
    }

    #[test]
    fn only_what_is_old_and_not_named_and_not_used_is_removed() {
        let (_dir, stores, name) = stores();
        let named = HashSet::from([name.clone()]);
        let day = Duration::from_hours(24);
        let path = made(&stores, &name).path;
        age(&path, day * 8);
        assert_eq!(stores.tidy(&named, KEPT), 0, "it is named");
        let used = stores.find(&name).unwrap();
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 0, "it was used today");
        age(&path, day * 8);
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 0, "it is being used");
        drop(used);
        age(&path, day * 6);
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 0, "it is not that old");
        age(&path, day * 8);
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 1);
        assert_eq!(left(&stores), 0);
        // One of a file system whose clock is ahead, and one that its recipe has dated.
        let path = made(&stores, &name).path;
        let of_later = fs::File::open(&path).unwrap();
        let now = of_later.metadata().unwrap().modified().unwrap();
        of_later.set_modified(now + day).unwrap();
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 0);
        of_later.set_modified(now + day * 8).unwrap();
        assert_eq!(stores.tidy(&HashSet::new(), KEPT), 1);
        assert_eq!(left(&stores), 0);
    }

    #[test]
    fn what_was_never_completed_goes_and_what_is_not_ours_stays() {
        let (_dir, stores, name) = stores();
        let named = HashSet::from([name.clone()]);
        let half = stores.begin(&name).unwrap();
        let path = half.path.clone();
        age(&path, ABANDONED * 2);
        assert_eq!(stores.tidy(&named, KEPT), 0, "somebody is at it");
        drop(half);
        for foreign in ["x", "ab.cd", &name[1..], &format!("{name}.x")] {
            fs::create_dir(stores.dir.join(foreign)).unwrap();
            age(&stores.dir.join(foreign), ABANDONED * 1000);
        }
        assert_eq!(stores.tidy(&named, KEPT), 1);
        assert!(!path.exists());
        assert_eq!(left(&stores), 4);
    }
}

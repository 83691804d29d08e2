//! The directory for private files of children: in the data directory, or a temporary one.
//!
//! A temporary one is removed with its gateway. What a killed gateway leaves is removed by the next one
//! that needs a temporary one: a gateway holds the lock of its own for as long as it runs.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::private_dir;
use crate::{
    backend::linux::removal,
    base::{RANDOM_NAME, is_random_name, random_name},
    config::{Config, Separation},
    declare::Offer,
};

/// The directory for private files of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// In the data directory.
    Kept(PathBuf),
    /// In the directory for temporary files; removed with the gateway.
    Temporary(PathBuf),
}

/// The lock of a temporary directory; none for one that is kept.
pub(super) struct WorkLock(#[expect(dead_code, reason = "held until dropped")] Option<File>);

impl Work {
    /// In the data directory, unless that is closed to a child with a uid of its own, or so long that
    /// programs cannot make a socket in a private directory.
    pub(super) fn of(config: &Config, offer: &Offer) -> Self {
        let kept = config.data_dir.join("work");
        if offer.separation == Separation::Uid || kept.as_os_str().len() > LONGEST_WORK {
            Self::temporary()
        } else {
            Self::Kept(kept)
        }
    }

    /// A new directory for temporary files.
    pub(super) fn temporary() -> Self {
        Self::Temporary(std::env::temp_dir().join(format!("{PREFIX}{}", random_name())))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) | Self::Temporary(path) => path,
        }
    }

    /// Makes the directory, and locks a temporary one.
    ///
    /// # Errors
    ///
    /// The file system's, with the path.
    pub(super) fn make(&self, offer: &Offer) -> anyhow::Result<WorkLock> {
        let path = self.path();
        let lock = match self {
            Self::Kept(_) => {
                private_dir::private(path)?;
                None
            }
            Self::Temporary(_) => Some(locked(path)?),
        };
        if offer.separation == Separation::Uid {
            // Children must be able to reach their own directories below it.
            fs::set_permissions(path, Permissions::from_mode(0o711))?;
        }
        Ok(WorkLock(lock))
    }

    /// Removes the temporary directories of killed gateways, if this one is temporary.
    pub(super) fn remove_leftovers(&self) {
        let (Self::Temporary(own), own_uid) = (self, rustix::process::geteuid().as_raw()) else {
            return;
        };
        let entries = own.parent().map(fs::read_dir);
        for entry in entries.into_iter().flatten().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if path != *own && name.is_some_and(is_random_name) {
                let removed = remove_leftover(&path, own_uid);
                if let Err(error) = removed {
                    tracing::warn!(dir = %path.display(), %error, "cannot remove what a gateway left");
                }
            }
        }
    }

    /// Removes a temporary directory, at the end.
    pub(super) fn remove(&self) {
        if let Self::Temporary(path) = self {
            // Private directories are removed with their children, so it should be empty.
            let _ = removal::remove(path);
        }
    }
}

/// Makes and locks a temporary directory. Another gateway that looks for leftovers may remove it before
/// it is locked; then it is made anew, and nobody else can have made it.
fn locked(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        private_dir::made(parent)?;
    }
    loop {
        let made = fs::DirBuilder::new().mode(0o700).create(path);
        made.with_context(|| format!("cannot make the directory {}", path.display()))?;
        let cannot = || format!("cannot lock the directory {}", path.display());
        let Ok(dir) = open(path) else { continue };
        flock(&dir, FlockOperation::LockExclusive).with_context(cannot)?;
        let held = dir.metadata().with_context(cannot)?;
        if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == held.ino()) {
            return Ok(dir);
        }
    }
}

/// Removes the directory of a gateway of this user, unless the gateway or one of its children is alive.
fn remove_leftover(path: &Path, own_uid: u32) -> io::Result<()> {
    let Ok(dir) = open(path) else { return Ok(()) };
    remove_opened(&dir, path, own_uid)
}

/// Removes a directory that was opened at this path, unless there is another one by now: between the opening
/// and the lock, one gateway may have removed it, and its owner made it anew.
fn remove_opened(dir: &File, path: &Path, own_uid: u32) -> io::Result<()> {
    let opened = dir.metadata()?;
    if opened.uid() != own_uid || !is_free(dir) {
        return Ok(());
    }
    let is_there = fs::symlink_metadata(path).is_ok_and(|found| found.ino() == opened.ino());
    if !is_there {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        // The guard of a child holds the lock of its private directory.
        let is_alive = open(&entry?.path()).is_ok_and(|private| !is_free(&private));
        if is_alive {
            return Ok(());
        }
    }
    removal::remove(path)
}

/// Takes the lock of a directory, until it is closed; false if another process has it.
fn is_free(dir: &File) -> bool {
    flock(dir, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Opens a directory; follows no link.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok(File::from(dir))
}

/// What the name of a temporary directory begins with.
const PREFIX: &str = "lockgate-";

/// The longest path of the directory of private directories, so that a private directory has a path of at
/// most 60 bytes. The address of a UNIX socket has 107 (unix(7)), of which Chromium takes 46 below TMPDIR:
/// `/.org.chromium.Chromium.XXXXXX/SingletonSocket`.
const LONGEST_WORK: usize = 60 - 1 - RANDOM_NAME;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::work::*;
    use crate::config::Sources;

    #[test]
    fn private_directories_leave_room_for_the_socket_of_a_browser() {
        let work = |data_dir: &str, separation| {
            let sources = Sources {
                set: vec![format!("data_dir={data_dir}")],
                ..Sources::default()
            };
            let offer = Offer {
                separation,
                ..Offer::none()
            };
            Work::of(&Config::load(&sources).unwrap(), &offer)
        };
        for (data_dir, separation, is_kept) in [
            ("/var/lib/lockgate", Separation::Landlock, true),
            (
                "/home/ada/.local/state/lockgate",
                Separation::Namespace,
                true,
            ),
            (
                "/home/ada.lovelace/.local/state/lockgate",
                Separation::Namespace,
                false,
            ),
            ("/var/lib/lockgate", Separation::Uid, false),
        ] {
            let work = work(data_dir, separation);
            assert_eq!(matches!(work, Work::Kept(_)), is_kept, "{data_dir}");
            let private = work.path().join(random_name());
            let socket = ".org.chromium.Chromium.XXXXXX/SingletonSocket";
            assert!(private.as_os_str().len() <= 60, "{}", private.display());
            assert!(private.join(socket).as_os_str().len() <= 107);
        }
    }

    #[test]
    fn gateways_that_start_at_once_are_not_in_each_others_way() {
        let tmp = tempfile::tempdir().unwrap();
        let new = || Work::Temporary(tmp.path().join(format!("{PREFIX}{}", random_name())));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        new().remove_leftovers();
                    }
                });
            }
            for _ in 0..1000 {
                let work = new();
                let made = work.make(&Offer::none());
                let is_there = work.path().is_dir();
                if made.is_err() || !is_there {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert!(is_there, "{:#}", made.err().unwrap());
                made.unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_a_killed_gateway_left_is_removed_and_nothing_else() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let new = || {
            let work = Work::Temporary(at(&format!("{PREFIX}{}", random_name())));
            let lock = work.make(&Offer::none()).unwrap();
            (work, lock)
        };
        let (own, _own) = new();
        let (running, _running) = new();
        let (with_child, killed) = new();
        let private = with_child.path().join(random_name());
        fs::create_dir(&private).unwrap();
        let guard = open(&private).unwrap();
        assert!(is_free(&guard));
        drop(killed);
        let (left, killed) = new();
        fs::create_dir(left.path().join(random_name())).unwrap();
        fs::write(left.path().join("notes"), "").unwrap();
        drop(killed);
        let link = at(&format!("{PREFIX}{}", random_name()));
        std::os::unix::fs::symlink(tmp.path(), &link).unwrap();
        fs::create_dir(at("lockgate-demo")).unwrap();
        own.remove_leftovers();
        assert!(!left.path().exists());
        for path in [own.path(), running.path(), &private, &at("lockgate-demo")] {
            assert!(path.is_dir(), "{}", path.display());
        }
        assert!(link.is_symlink());
        drop(guard);
        remove_leftover(with_child.path(), u32::MAX).unwrap();
        assert!(with_child.path().exists(), "it is another user's");
        own.remove_leftovers();
        assert!(!with_child.path().exists());
        own.remove();
        assert!(!own.path().exists());
    }

    #[test]
    fn a_directory_that_was_made_anew_is_not_taken_for_the_one_that_was_opened() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(format!("{PREFIX}{}", random_name()));
        let work = Work::Temporary(path.clone());
        drop(work.make(&Offer::none()).unwrap());
        let (opened, own_uid) = (open(&path).unwrap(), rustix::process::geteuid().as_raw());
        // Another gateway removes it, and its owner makes it anew.
        fs::remove_dir(&path).unwrap();
        let _lock = work.make(&Offer::none()).unwrap();
        remove_opened(&opened, &path, own_uid).unwrap();
        assert!(path.is_dir());
    }
}

//! Deletion of a child's private directory, regardless of its depth or modes.
//!
//! `std::fs::remove_dir_all` stops at the first directory without write permission, like those of
//! Go's module cache, and uses a descriptor and a stack frame for each level, whose number the child
//! controls.

use std::{
    ffi::CStr,
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags},
    io::Errno,
    path::Arg,
};
use tokio::time::Instant;

/// Removes a directory with its contents, or a file; follows no link. A missing path is no error.
///
/// # Errors
///
/// The file system's; `TimedOut` after [`LONGEST`].
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_until(path, Instant::now() + LONGEST)
}

/// Removes a directory like [`remove`], where nobody waits for it and nobody else can add to it: a cache may have very
/// many files.
///
/// # Errors
///
/// The file system's; `TimedOut` after [`PATIENT`].
pub(crate) fn remove_patiently(path: &Path) -> io::Result<()> {
    remove_until(path, Instant::now() + PATIENT)
}

/// Removes a directory like [`remove`], until this time at most: a process that has escaped could add files for
/// ever.
///
/// # Errors
///
/// The file system's; `TimedOut` if something is left by then.
pub(crate) fn remove_until(path: &Path, until: Instant) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let top = open(CWD, path)?;
    let mut moved = 0;
    loop {
        match flatten(&top, &mut moved, until) {
            Ok(true) => {}
            Ok(false) => return fs::remove_dir(path),
            Err(Errno::TIMEDOUT) => {
                let why = "it takes too long, or files are still added";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the files and directories of `top`, after moving directories one level down up into
/// `top`; returns whether it made progress.
///
/// So no file is more than one level down, and a few descriptors are enough.
fn flatten(top: &File, moved: &mut u64, until: Instant) -> Result<bool, Errno> {
    let mut is_further = false;
    each(top, until, |name, kind| {
        if kind != FileType::Directory {
            is_further = true;
            return rustix::fs::unlinkat(top, name, AtFlags::empty());
        }
        let dir = open(top, name)?;
        each(&dir, until, |name, kind| {
            is_further = true;
            match kind {
                FileType::Directory => move_up(&dir, name, top, moved),
                _ => rustix::fs::unlinkat(&dir, name, AtFlags::empty()),
            }
        })?;
        match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
            // Some file systems skip entries during removals: left to the next pass.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            removed => {
                is_further = true;
                removed
            }
        }
    })?;
    Ok(is_further)
}

fn each(
    dir: &File,
    until: Instant,
    mut act: impl FnMut(&CStr, FileType) -> Result<(), Errno>,
) -> Result<(), Errno> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // Here, since a directory may grow while it is read.
        if Instant::now() >= until {
            return Err(Errno::TIMEDOUT);
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            known => known,
        };
        act(name, kind)?;
    }
    Ok(())
}

/// Moves a directory of `dir` into `top` under an unused name.
fn move_up(dir: &File, name: &CStr, top: &File, moved: &mut u64) -> Result<(), Errno> {
    // A move writes to the directory too: its `..` changes.
    open(dir, name)?;
    loop {
        *moved += 1;
        match rustix::fs::renameat(dir, name, top, format!("{MOVED}{moved}")) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            done => return done,
        }
    }
}

/// Opens a directory, to look at its lock; follows no link. One that its owner may not read gets all rights of its owner:
/// a child may have closed its own.
///
/// # Errors
///
/// The file system's; `NOTDIR` or `LOOP` for anything else than a directory.
pub(crate) fn open_closed(path: &Path) -> Result<File, Errno> {
    readable(CWD, path)
}

/// Opens a directory and gives all rights to its owner, and to nobody else: others could add files without end.
fn open(at: impl AsFd, name: impl Arg + Copy) -> Result<File, Errno> {
    let dir = readable(at, name)?;
    // A directory whose mode cannot be changed may still be removable.
    if let Ok(found) = dir.metadata() {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if found.uid() != uid.as_raw() {
            _ = rustix::fs::fchown(&dir, Some(uid), Some(gid));
        }
        // After the change of the owner, who could undo it. It counts for those who have it open, too.
        if found.mode() & 0o7777 != OWN {
            _ = dir.set_permissions(Permissions::from_mode(OWN));
        }
    }
    Ok(dir)
}

/// Opens a directory, and gives all rights to its owner if it cannot be read.
fn readable(at: impl AsFd, name: impl Arg + Copy) -> Result<File, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(&at, name, flags, Mode::empty()).map(File::from);
    match open(flags | OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            // By descriptor: a file that replaces the name is not touched.
            let found = open(flags | OFlags::PATH)?;
            let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
            _ = fs::set_permissions(itself, Permissions::from_mode(OWN));
            open(flags | OFlags::RDONLY)
        }
        opened => opened,
    }
}

/// Prefix of the names of moved directories.
const MOVED: &str = ".moved-";

/// All rights of the owner of a directory.
const OWN: u32 = 0o700;

/// The longest time of a removal, which keeps a thread for blocking work, of which there are few.
const LONGEST: Duration = Duration::from_secs(10);
/// The longest removal that nobody waits for.
const PATIENT: Duration = Duration::from_mins(10);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::removal::*;

    /// A directory with `levels` nested directories.
    fn deep(path: &Path, levels: usize) {
        fs::create_dir(path).unwrap();
        let mut at = File::open(path).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = rustix::fs::openat(&at, c"d", flags, Mode::empty())
                .unwrap()
                .into();
        }
    }

    #[test]
    fn however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        deep(&top, 5000);
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    /// The removal runs as an unprivileged user.
    #[test]
    fn whatever_may_not_be_done_in_it() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let as_nobody = scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    let nobody = rustix::fs::Uid::from_raw(65_534);
                    rustix::fs::chown(dir.path(), Some(nobody), None).unwrap();
                    rustix::thread::set_thread_uid(nobody).unwrap();
                }
                removes_all_below(dir.path());
            });
            as_nobody.join().unwrap();
        });
    }

    /// A child of another uid kept the removal busy, and its thread, through a directory that was open to all.
    #[test]
    fn nobody_else_adds_files_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, Permissions::from_mode(0o1777)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let (own, nobody) = (
            rustix::process::geteuid(),
            rustix::fs::Uid::from_raw(65_534),
        );
        if is_root {
            rustix::fs::chown(&top, Some(nobody), None).unwrap();
        }
        let opened = open(CWD, &top).unwrap();
        let found = opened.metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (own.as_raw(), OWN));
        if !is_root {
            return;
        }
        std::thread::scope(|scope| {
            let added = scope.spawn(|| {
                rustix::thread::set_thread_uid(nobody).unwrap();
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&opened, c"f", flags, Mode::RWXU).map(drop)
            });
            assert_eq!(added.join().unwrap(), Err(Errno::ACCESS));
        });
    }

    #[test]
    fn one_that_takes_too_long_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("a")).unwrap();
        fs::write(top.join("a/f"), "x").unwrap();
        let late = remove_until(&top, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(top.join("a/f").exists());
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    fn removes_all_below(dir: &Path) {
        let top = dir.join("top");
        let outside = dir.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("f"), "x").unwrap();
        for (at, mode) in [0o555, 0o000, 0o300, 0o1777].into_iter().enumerate() {
            let inner = top.join(format!("a/{at}/{MOVED}1/b"));
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("f"), "x").unwrap();
            symlink(&outside, inner.join("l")).unwrap();
            for path in [&*inner, inner.parent().unwrap()] {
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
        }
        symlink(&outside, top.join("l")).unwrap();
        fs::set_permissions(&top, Permissions::from_mode(0o500)).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists());
        assert!(outside.join("f").exists());
        let link = dir.join("link");
        symlink(&outside, &link).unwrap();
        remove(&link).unwrap();
        remove(&link).unwrap();
        assert!(outside.join("f").exists() && fs::symlink_metadata(&link).is_err());
    }
}

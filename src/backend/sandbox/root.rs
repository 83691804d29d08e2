//! Root directory of a child: a file system with the files that it may access, and no other.
//!
//! Landlock refuses files, not connections to UNIX sockets, so the sockets of others must not be there.
//! Not here: the choice of files (`choice`), and their protection (`domain`).

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    fs, io,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode},
    mount::{MountFlags, UnmountFlags},
};

use super::{files, restrictions::Files};
use crate::backend::linux::syscalls::set_read_only;

/// Replaces the root directory of this mount namespace by one with these files. The former
/// is at [`FORMER`] until [`leave_former`].
pub(super) fn enter(files: &Files, sockets: &[PathBuf], has_own_processes: bool) -> io::Result<()> {
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    // Any directory will do: it is free again after the change.
    let base = "/proc";
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", base, "tmpfs", flags, Some(c"mode=0755,size=1m"))?;
    let former = format!("{base}{FORMER}");
    rustix::fs::mkdir(&former, Mode::RWXU)?;
    rustix::process::pivot_root(base, &former)?;
    rustix::process::chdir("/")?;
    copy_links(Path::new("/"));
    let mut root = Root {
        copies_links: true,
        ..Root::default()
    };
    for path in EMPTY {
        if let Some((place, _)) = root.trail(Path::new(path)) {
            root.pass(place)?;
        }
    }
    for path in MOUNT_POINTS {
        if let Some((place, _)) = root.trail(Path::new(path)) {
            make(&place, FileType::Directory)?;
        }
    }
    let devices: Vec<PathBuf> = files::devices().collect();
    // Devices and sockets can be written to all the same.
    let closed = files.read.iter().chain(&devices).chain(sockets);
    for path in closed {
        // A pid namespace has its own, which is mounted later.
        if path != Path::new("/proc") || !has_own_processes {
            root.show(path, true)?;
        }
    }
    files
        .write
        .iter()
        .try_for_each(|path| root.show(path, false))
}

/// Detaches the former root directory, and closes the new one for writing.
pub(super) fn leave_former() -> io::Result<()> {
    rustix::mount::unmount(FORMER, UnmountFlags::DETACH)?;
    fs::remove_dir(FORMER)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount("/", flags, "")?)
}

/// The new root directory while files are shown in it.
#[derive(Default)]
pub(super) struct Root {
    /// Directories that are made already.
    passed: HashSet<PathBuf>,
    /// Whether they get all their symbolic links: a program may use any of them. The directories of
    /// the gateway have one entry for each child, and every start would read them all.
    copies_links: bool,
}

impl Root {
    /// Shows a file or directory of the former root at its place, read-only or not; one that does not
    /// exist is left out.
    ///
    /// Landlock lets an owner change modes, owners, times and attributes of files that it may not write.
    pub(super) fn show(&mut self, path: &Path, is_read_only: bool) -> io::Result<()> {
        let Some((place, kind)) = self.trail(path) else {
            return Ok(());
        };
        make(&place, kind)?;
        match rustix::mount::mount_bind_recursive(former(&place), &place) {
            Ok(()) if is_read_only => set_read_only(&place, true),
            // Removed meanwhile.
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the directories and symbolic links on the way to `path`; returns its place without links
    /// and what it is, or none if it does not exist.
    fn trail(&mut self, path: &Path) -> Option<(PathBuf, FileType)> {
        let mut ahead: VecDeque<OsString> = names(path).collect();
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        let mut last = None;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                at.pop();
                last = None;
                continue;
            }
            let next = at.join(&name);
            if self.passed.contains(&next) {
                at = next;
                last = Some(FileType::Directory);
                continue;
            }
            let kind = kind_of(&next)?;
            if kind == FileType::Symlink {
                links += 1;
                let target = fs::read_link(former(&next)).ok()?;
                if links > MOST_LINKS {
                    return None;
                }
                // Exists already in a directory that is shown, or whose links were copied.
                _ = symlink(&target, &next);
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for name in names(&target).rev() {
                    ahead.push_front(name);
                }
                continue;
            }
            // The last one may be a mount point of any kind.
            if !ahead.is_empty() {
                self.pass(next.clone()).ok()?;
            }
            at = next;
            last = Some(kind);
        }
        let kind = last.or_else(|| kind_of(&at))?;
        Some((at, kind))
    }

    /// Makes a directory, with its symbolic links but for those that belong to others.
    fn pass(&mut self, dir: PathBuf) -> io::Result<()> {
        let is_shared = SHARED.iter().any(|shared| dir == Path::new(shared));
        // In a directory that is shown it exists, with its links.
        if make(&dir, FileType::Directory)? && self.copies_links && !is_shared {
            copy_links(&dir);
        }
        self.passed.insert(dir);
        Ok(())
    }
}

/// The names in a path, and `..`.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Copies the symbolic links of a directory.
fn copy_links(dir: &Path) {
    let entries = fs::read_dir(former(dir)).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_type().is_ok_and(|kind| kind.is_symlink())
            && let Ok(target) = fs::read_link(entry.path())
        {
            _ = symlink(target, dir.join(entry.file_name()));
        }
    }
}

/// Makes a directory or, for any other kind, an empty file; false if something is there.
fn make(path: &Path, kind: FileType) -> io::Result<bool> {
    let made = if kind == FileType::Directory {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))
    } else {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0)
    };
    match made {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What a path is in the former root directory; none if it does not exist.
fn kind_of(path: &Path) -> Option<FileType> {
    let found = rustix::fs::lstat(former(path)).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

/// The place of an absolute path below the former root directory.
fn former(path: &Path) -> PathBuf {
    Path::new(FORMER).join(path.strip_prefix("/").unwrap_or(path))
}

/// The former root directory while files are shown.
const FORMER: &str = "/.former";

/// Directories that programs expect, empty unless something in them is shown.
const EMPTY: [&str; 4] = ["/run", "/tmp", "/var/tmp", "/home"];

/// Those of them where every user may put links, in any number.
const SHARED: [&str; 2] = ["/tmp", "/var/tmp"];

/// Directories in which something is mounted later.
const MOUNT_POINTS: [&str; 2] = ["/proc", "/dev/shm"];

/// Bound of symbolic links in one path, that of Linux.
const MOST_LINKS: usize = 40;

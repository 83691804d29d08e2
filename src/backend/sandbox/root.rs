//! Root directory of a child: a file system with the files that it may access, and no other.
//!
//! Landlock refuses files, not connections to UNIX sockets, so the sockets of others must not be there.
//! Not here: the choice of files (`choice`), and their protection (`domain`).

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::Mode,
    mount::{MountFlags, UnmountFlags},
};

use super::{files, restrictions::Files};

/// Replaces the root directory of this mount namespace by one with these files. The former
/// is at [`FORMER`] until [`leave_former`].
pub(super) fn enter(files: &Files, sockets: &[PathBuf], has_own_processes: bool) -> io::Result<()> {
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    // Any directory will do: it is free again after the change.
    let base = "/proc";
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", base, "tmpfs", flags, Some(c"mode=0755,size=1m"))?;
    let former = format!("{base}{FORMER}");
    DirBuilder::new().mode(0o700).create(&former)?;
    rustix::process::pivot_root(base, &former)?;
    rustix::process::chdir("/")?;
    copy_links(Path::new("/"));
    for empty in EMPTY.iter().filter_map(|path| trail(Path::new(path))) {
        make_dir(&empty)?;
        copy_links(&empty);
    }
    let devices: Vec<PathBuf> = files::devices().collect();
    let wanted = [&files.read, &files.write, &devices];
    for path in wanted.into_iter().flatten().chain(sockets) {
        // A pid namespace has its own, which is mounted later.
        if path != Path::new("/proc") || !has_own_processes {
            show(path)?;
        }
    }
    Ok(())
}

/// Detaches the former root directory, and closes the new one for writing.
pub(super) fn leave_former() -> io::Result<()> {
    rustix::mount::unmount(FORMER, UnmountFlags::DETACH)?;
    fs::remove_dir(FORMER)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount("/", flags, "")?)
}

/// Shows a file or directory of the former root at its place; one that does not exist is left out.
pub(super) fn show(path: &Path) -> io::Result<()> {
    let Some(place) = trail(path) else {
        return Ok(());
    };
    let source = former(&place);
    if !place.exists() {
        if source.is_dir() {
            make_dir(&place)?;
        } else {
            File::create_new(&place)?;
        }
    }
    match rustix::mount::mount_bind_recursive(&source, &place) {
        // Removed meanwhile.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Creates the directories and symbolic links on the way to `path`; returns its place without links,
/// or none if it does not exist.
fn trail(path: &Path) -> Option<PathBuf> {
    let mut ahead: VecDeque<OsString> = names(path).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let kind = fs::symlink_metadata(former(&next)).ok()?.file_type();
        if kind.is_symlink() {
            links += 1;
            let target = fs::read_link(former(&next)).ok()?;
            if links > MOST_LINKS {
                return None;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).rev() {
                ahead.push_front(name);
            }
            continue;
        }
        // The last one may be a mount point of any kind.
        if !ahead.is_empty() && !next.exists() {
            make_dir(&next).ok()?;
            copy_links(&next);
        }
        at = next;
    }
    Some(at)
}

/// The names in a path, and `..`.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Copies the symbolic links of a directory: `/bin` and the like lead to the files that are shown.
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

fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// The place of an absolute path below the former root directory.
fn former(path: &Path) -> PathBuf {
    Path::new(FORMER).join(path.strip_prefix("/").unwrap_or(path))
}

/// The former root directory while files are shown.
const FORMER: &str = "/.former";

/// Directories that programs or later mounts expect, empty unless something in them is shown.
const EMPTY: [&str; 6] = ["/proc", "/dev/shm", "/run", "/tmp", "/var/tmp", "/home"];

/// Bound of symbolic links in one path, that of Linux.
const MOST_LINKS: usize = 40;

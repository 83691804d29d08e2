//! The private directories of the gateway.
//!
//! Not here: their contents (`database`, `backend`).

use std::{
    fs::{self, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

use anyhow::Context;
use rustix::{
    fs::{AtFlags, Gid, StatxAttributes, StatxFlags},
    process::Uid,
};

use crate::{
    base::private_file,
    config::{Config, Mistake, Wrong},
};

/// Creates the data directory, or makes an existing one private.
///
/// A directory that others use is never changed, such as /srv or the home of another user. A volume
/// that was given to the gateway's group keeps its mode; everything in it is private instead.
///
/// # Errors
///
/// File system errors.
pub(super) fn claim(config: &Config) -> anyhow::Result<Result<(), Mistake>> {
    let checked = checked(&config.data_dir)?;
    Ok(checked.map_err(|wrong| wrong.at(config.place("data_dir"), "data_dir")))
}

fn checked(path: &Path) -> anyhow::Result<Result<(), Wrong>> {
    if let Some(found) = metadata(path)? {
        let own = rustix::process::geteuid();
        if found.uid() != own.as_raw() && !own.is_root() && is_for_group(path, &found)? {
            return close_content(path, own);
        }
        let what = foreign_reason(path, &found, own)?;
        if let Some(what) = what {
            let what = format!("{} {what}", path.display());
            return Ok(Err(Wrong::new(what, REMEDY)));
        }
    }
    private(path).context("data_dir").map(Ok)
}

/// Creates a private directory, or makes an existing one private.
pub(super) fn private(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))?;
    if fs::metadata(path)?.mode() & OTHERS_MODE != 0 {
        // The directory existed. Children with another uid must not enter it.
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close the directory {}", path.display()))?;
    }
    Ok(())
}

fn metadata(path: &Path) -> anyhow::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("data_dir: cannot use {}", path.display()))
        }
    }
}

/// The reason why a directory does not belong to a gateway of the user `own`, if any.
fn foreign_reason(path: &Path, found: &Metadata, own: Uid) -> anyhow::Result<Option<&'static str>> {
    let is_owner = found.uid() == own.as_raw();
    if !is_owner && !own.is_root() {
        return Ok(Some("belongs to another user"));
    }
    if found.mode() & OTHERS_MODE == 0 {
        return Ok(None);
    }
    let names = fs::read_dir(path).and_then(|entries| {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name());
        entries.map(name).collect::<io::Result<Vec<_>>>()
    });
    let names = names.with_context(|| format!("data_dir: cannot read {}", path.display()))?;
    let is_own = names
        .iter()
        .any(|name| GATEWAY_FILES.iter().any(|own| name == own));
    // The root of a new file system contains this directory.
    let is_empty = names.iter().all(|name| name == "lost+found");
    // The system shares the directories right below /.
    let is_shared = !is_owner || fs::canonicalize(path).is_ok_and(|path| path.iter().count() <= 2);
    let is_foreign = is_shared && !is_own && !is_empty;
    Ok(is_foreign.then_some("is open to others and holds what is theirs"))
}

/// Whether a directory is a volume that was given to a group of this process, as Kubernetes does with
/// `fsGroup`: a mount point with the setgid bit, which the group may write and which is not shared
/// like /tmp.
///
/// The mount point tells it from a directory of a team: nothing else on this machine is below it.
/// Others may have write access too: an `emptyDir` has mode 2777.
fn is_for_group(path: &Path, found: &Metadata) -> anyhow::Result<bool> {
    let group = Gid::from_raw(found.gid());
    let is_member = group == rustix::process::getegid()
        || rustix::process::getgroups()
            .context("cannot read the groups of this process")?
            .contains(&group);
    let is_given = found.mode() & (SETGID | STICKY | GROUP_MODE) == SETGID | GROUP_MODE;
    Ok(is_member && is_given && is_mount_point(path)?)
}

fn is_mount_point(path: &Path) -> anyhow::Result<bool> {
    let found = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::empty());
    let found = found.with_context(|| format!("data_dir: cannot use {}", path.display()))?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes the files of a gateway in a volume private, whatever their modes became: with `fsGroup` the
/// group gets access to all of them whenever the volume is mounted.
fn close_content(path: &Path, own: Uid) -> anyhow::Result<Result<(), Wrong>> {
    let unreadable = || format!("data_dir: cannot read {}", path.display());
    let mut has_gateway_files = false;
    let mut others = None;
    for entry in fs::read_dir(path).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let (name, found) = (
            entry.file_name(),
            entry.metadata().with_context(unreadable)?,
        );
        let path = entry.path();
        if !CONTENT.iter().any(|known| name == *known) {
            if name != "lost+found" {
                others = Some(path);
            }
            continue;
        }
        // Closing would need its owner, and follow a link to anywhere.
        let what = if found.uid() != own.as_raw() {
            "belongs to another user"
        } else if found.is_symlink() {
            "is a link"
        } else {
            has_gateway_files = true;
            let mode = if found.is_dir() {
                0o700
            } else {
                private_file::MODE
            };
            if found.mode() & OTHERS_MODE != 0 {
                fs::set_permissions(&path, Permissions::from_mode(mode))
                    .with_context(|| format!("cannot close {}", path.display()))?;
            }
            continue;
        };
        let what = format!("{} {what}", path.display());
        return Ok(Err(Wrong::new(
            what,
            "give the gateway a volume of its own",
        )));
    }
    if let Some(other) = others.filter(|_| !has_gateway_files) {
        let what = format!("{} is not of a gateway", other.display());
        return Ok(Err(Wrong::new(what, REMEDY)));
    }
    // Made here, so that no later step makes them with access for others.
    for name in DIRECTORIES {
        private(&path.join(name)).context("data_dir")?;
    }
    Ok(Ok(()))
}

/// The directories of a gateway in its data directory.
const DIRECTORIES: [&str; 2] = ["work", "prepared"];
/// Everything that a gateway creates in its data directory.
const CONTENT: [&str; 9] = [
    "lockgate.lock",
    "lockgate.db",
    "lockgate.db-wal",
    "lockgate.db-shm",
    "lockgate.migrate",
    "master.key",
    "admin.key",
    DIRECTORIES[0],
    DIRECTORIES[1],
];
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
/// Full access for the group.
const GROUP_MODE: u32 = 0o070;
/// The permission bits of group and others.
const OTHERS_MODE: u32 = 0o077;
/// Files that only a gateway creates.
const GATEWAY_FILES: [&str; 3] = ["lockgate.lock", "lockgate.db", "master.key"];
const REMEDY: &str = "name a directory below it, which is made for the gateway alone";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::super::private_dir::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn closes_only_what_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str, bits: u32, holds: &[&str]| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            for name in holds {
                fs::write(path.join(name), "").unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
            path
        };
        for (name, bits, holds) in [
            ("empty", 0o755, &[][..]),
            ("volume", 0o755, &["lost+found"]),
            ("ours", 0o2775, &["lockgate.lock", "notes"]),
            ("closed", 0o700, &["notes"]),
            ("with its manifest", 0o755, &["manifest.yaml"]),
        ] {
            let path = at(name, bits, holds);
            assert_eq!(checked(&path).unwrap(), Ok(()), "{name}");
            assert_eq!(mode(&path) & OTHERS_MODE, 0, "{name}");
        }
        let new = dir.path().join("empty/a/b");
        assert_eq!(checked(&new).unwrap(), Ok(()));
        assert_eq!((mode(&new), mode(new.parent().unwrap())), (0o700, 0o700));
    }

    #[test]
    fn closes_the_content_of_a_volume_of_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid();
        let at = |name: &str| dir.path().join(name);
        // As they are after fsGroup was applied again.
        for name in ["lockgate.db", "lockgate.db-wal", "master.key", "notes"] {
            fs::write(at(name), "").unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(0o660)).unwrap();
        }
        fs::create_dir(at("prepared")).unwrap();
        fs::set_permissions(at("prepared"), Permissions::from_mode(0o2771)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o2775)).unwrap();
        assert_eq!(close_content(dir.path(), own).unwrap(), Ok(()));
        for name in ["lockgate.db", "lockgate.db-wal", "master.key"] {
            assert_eq!(mode(&at(name)) & 0o777, 0o600, "{name}");
        }
        for name in ["prepared", "work"] {
            assert_eq!(mode(&at(name)) & 0o777, 0o700, "{name}");
        }
        // What is not the gateway's stays as it is.
        assert_eq!((mode(dir.path()), mode(&at("notes"))), (0o2775, 0o660));
    }

    #[test]
    fn takes_no_volume_with_what_is_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid();
        let wrong = |own| close_content(dir.path(), own).unwrap().unwrap_err().what;
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join("index.html"), "").unwrap();
        assert!(wrong(own).ends_with("index.html is not of a gateway"));
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("master.key")).unwrap();
        assert!(wrong(own).ends_with("master.key is a link"));
        fs::remove_file(dir.path().join("master.key")).unwrap();
        fs::write(dir.path().join("lockgate.db"), "").unwrap();
        assert!(wrong(Uid::from_raw(12_345)).ends_with("lockgate.db belongs to another user"));
        assert_eq!(close_content(dir.path(), own).unwrap(), Ok(()));
    }

    #[test]
    fn a_directory_of_a_group_is_a_volume_only_at_a_mount_point() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o2775)).unwrap();
        let found = fs::metadata(dir.path()).unwrap();
        assert!(!is_for_group(dir.path(), &found).unwrap());
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(dir.path()).unwrap());
        // Neither its group nor its mode.
        let found = fs::metadata("/proc").unwrap();
        assert!(!is_for_group(Path::new("/proc"), &found).unwrap());
    }

    #[test]
    fn takes_nothing_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let (mut theirs, mut why) = (Path::new("/"), "belongs to another user");
        if is_root {
            // Only root can change owners.
            fs::write(dir.path().join("index.html"), "").unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
            chown(dir.path(), Some(65_534), None).unwrap();
            (theirs, why) = (dir.path(), "is open to others and holds what is theirs");
        }
        for path in [theirs, Path::new("/usr")] {
            let before = mode(path);
            let wrong = checked(path).unwrap().unwrap_err();
            assert!(wrong.what.ends_with(why), "{wrong:?}");
            assert_eq!(mode(path), before);
        }
        let found = fs::metadata("/").unwrap();
        let stranger = Uid::from_raw(12_345);
        let reason = foreign_reason(Path::new("/"), &found, stranger).unwrap();
        assert_eq!(reason, Some("belongs to another user"));
        if is_root {
            fs::remove_file(dir.path().join("index.html")).unwrap();
            assert_eq!(checked(dir.path()).unwrap(), Ok(()));
        }
    }
}

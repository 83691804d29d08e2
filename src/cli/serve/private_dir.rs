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
use rustix::{io::Errno, process::Uid};

use crate::config::{Config, Mistake, Wrong};

/// Creates the data directory, or makes an existing one private.
///
/// A directory that others use is never changed, such as /srv or the home of another user.
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
        let what = foreign_reason(path, &found, rustix::process::geteuid())?;
        if let Some(what) = what {
            let what = format!("{} {what}", path.display());
            return Ok(Err(Wrong::new(what, REMEDY)));
        }
    }
    private(path).context("data_dir").map(Ok)
}

/// Checks that the data directory can be made, and makes none. Returns a warning where this user may not, since the
/// gateway may be another one.
///
/// # Errors
///
/// The mistake in its path.
pub(crate) fn check(config: &Config) -> Result<Option<String>, Mistake> {
    check_dir(config, "data_dir", &config.data_dir)
}

/// Checks the directory that a key names, in the same way.
///
/// # Errors
///
/// The mistake in its path.
pub(super) fn check_dir(config: &Config, key: &str, dir: &Path) -> Result<Option<String>, Mistake> {
    let Err(error) = makeable(dir) else {
        return Ok(None);
    };
    let what = format!("{} cannot be made: {error}", dir.display());
    if Errno::from_io_error(&error) == Some(Errno::ACCESS) {
        return Ok(Some(format!("warning: {key}: {what}")));
    }
    let wrong = Wrong::new(what, "name a directory on a disk");
    Err(wrong.at(config.place(key), key))
}

/// Makes an empty directory where the first missing one of a path would be, and removes it: a file system that has no
/// room for directories, such as /proc, says so at no other call.
fn makeable(path: &Path) -> io::Result<()> {
    for dir in path.ancestors() {
        match fs::metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(found) if !found.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
            Ok(_) if dir == path => break,
            Ok(_) => {
                let probe = dir.join(format!(".lockgate-check-{}", std::process::id()));
                let made = fs::DirBuilder::new().mode(0o700).create(&probe);
                // In containers every process has the same number: another one's, or what a killed one left.
                made.or_else(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                })?;
                return fs::remove_dir(probe).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                });
            }
        }
    }
    Ok(())
}

/// Creates a private directory, or makes an existing one private.
pub(super) fn private(path: &Path) -> anyhow::Result<()> {
    made(path)?;
    if fs::metadata(path)?.mode() & OTHERS_MODE != 0 {
        // The directory existed. Children with another uid must not enter it.
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close the directory {}", path.display()))?;
    }
    Ok(())
}

/// Creates a directory for the gateway alone, with those on the way, unless it exists.
pub(crate) fn made(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))
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

/// The permission bits of group and others.
const OTHERS_MODE: u32 = 0o077;
/// Files that only a gateway creates.
const GATEWAY_FILES: [&str; 3] = ["lockgate.lock", "lockgate.db", "master.key"];
/// What to do about a directory of others.
pub(super) const REMEDY: &str = "name a directory below it, which is made for the gateway alone";

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::chown, path::PathBuf};

    use super::super::private_dir::*;
    use crate::config::Sources;

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

    /// `lockgate check` found nothing wrong, and `serve` did not start.
    #[test]
    fn a_directory_that_cannot_be_made_is_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &Path| {
            let sources = Sources {
                set: vec![format!("data_dir={}", path.display())],
                ..Sources::default()
            };
            check(&Config::load(&sources).unwrap())
        };
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("a"), PathBuf::from("/proc/x")] {
            let mistake = at(&path).unwrap_err();
            assert_eq!((&*mistake.place, &*mistake.key), ("--set", "data_dir"));
            let what = format!("{} cannot be made: ", path.display());
            assert!(mistake.what.starts_with(&what), "{mistake}");
        }
        for path in [dir.path().to_owned(), dir.path().join("a/b")] {
            assert_eq!(at(&path), Ok(None), "{path:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "none is made");
        if !rustix::process::geteuid().is_root() {
            // Root may make them everywhere.
            fs::set_permissions(dir.path(), Permissions::from_mode(0o500)).unwrap();
            let warning = at(&dir.path().join("a")).unwrap().unwrap();
            assert!(warning.starts_with("warning: data_dir: "), "{warning}");
        }
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

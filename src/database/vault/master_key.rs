//! The source of master keys: the configuration, or a file created at the first start.
//!
//! Not here: sealing (`seal`), and the keys that a database knows (`rotation`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use super::seal::{Keyring, MasterKey};
use crate::{
    base::{Random, Secret, private_file},
    config::{Mistake, Wrong},
};

/// The source of the master keys of a gateway.
#[derive(Clone, Debug)]
pub(crate) enum KeySource {
    /// `master_key`, from the environment or the configuration; never changed by the gateway.
    Given(Secret),
    /// A key file.
    File(PathBuf),
}

impl KeySource {
    /// Reads the keys; creates a missing file if `make` permits.
    ///
    /// # Errors
    ///
    /// The mistake in the value or the file.
    pub(crate) fn keyring(&self, random: &Random, make: Make) -> Result<Keyring, Mistake> {
        match self {
            Self::Given(text) => {
                let at = |wrong: Wrong| wrong.at("configuration", "master_key");
                Keyring::parse(text.expose()).map_err(at)
            }
            Self::File(path) => {
                let at = |wrong: Wrong| wrong.at(&path.display().to_string(), "master_key");
                read(path, random, make).map_err(at)
            }
        }
    }

    /// Locks the key file against a rotation and a restore by other processes; keys of the configuration
    /// need no lock.
    ///
    /// # Errors
    ///
    /// File system errors; a rotation or a restore by another process in progress.
    pub(crate) fn lock(&self) -> Result<Option<fs::File>, Wrong> {
        let Self::File(path) = self else {
            return Ok(None);
        };
        let path = path.with_extension("lock");
        let made = private_file::create_beside(&path);
        let file = made.or_else(|_| private_file::open_or_create(&path));
        let file = file.map_err(|error| {
            let what = format!(
                "has a lock that cannot be opened, {}: {error}",
                path.display()
            );
            Wrong::new(what, private_file::remedy(&error))
        })?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Err(Wrong::new(
                "is in use by another lockgate key rotate or lockgate restore",
                "wait for it",
            )),
            Err(fs::TryLockError::Error(error)) => Err(cannot("locked", &error)),
        }
    }

    /// Writes the keys to the file atomically: other processes read the old or the new ones.
    ///
    /// # Errors
    ///
    /// File system errors; keys of the configuration cannot be changed.
    pub(crate) fn write(&self, keys: &[MasterKey]) -> Result<(), Wrong> {
        let Self::File(path) = self else {
            return Err(Wrong::new("stands in the configuration", "change it there"));
        };
        let mut text = Zeroizing::new(String::new());
        for key in keys {
            text.push_str(&key.text());
            text.push('\n');
        }
        let new = path.with_extension("key.new");
        let written = remove(&new)
            .and_then(|()| private_file::write_new(&new, &text))
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| sync_parent(path));
        written.map_err(|error| cannot("written", &error))
    }
}

/// The treatment of a missing key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// Create it, at the first start.
    IfMissing,
    /// Do not create it, because the database is sealed with another key.
    Never,
}

fn read(path: &Path, random: &Random, make: Make) -> Result<Keyring, Wrong> {
    match fs::read_to_string(path).map(Zeroizing::new) {
        Ok(text) => Keyring::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && make == Make::IfMissing => {
            let key = MasterKey::new(random)?;
            let text = Zeroizing::new(format!("{}\n", *key.text()));
            match private_file::write_new(path, &text).and_then(|()| sync_parent(path)) {
                Ok(()) => Ok(Keyring::of(key, Vec::new())),
                // Another process was faster, so its key is used.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    read(path, random, Make::Never)
                }
                Err(error) => Err(cannot("written", &error)),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let remedy = "put the master.key of the gateway that made the store there, or set LOCKGATE_MASTER_KEY to it";
            Err(Wrong::new(
                "is not there, and the store is sealed with it",
                remedy,
            ))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let remedy = private_file::remedy(&error);
            Err(Wrong::new(format!("cannot be read: {error}"), remedy))
        }
        Err(error) => Err(cannot("read", &error)),
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(parent)?.sync_all()
}

fn cannot(what: &str, error: &std::io::Error) -> Wrong {
    let remedy =
        "make the data directory writable, or set LOCKGATE_MASTER_KEY or LOCKGATE_MASTER_KEY_FILE";
    Wrong::new(format!("cannot be {what}: {error}"), remedy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use aws_lc_rs::rand::SystemRandom;

    use super::super::master_key::*;

    #[test]
    fn a_file_is_made_once_and_only_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master.key");
        let source = KeySource::File(path.clone());
        let random = SystemRandom::new();
        assert!(source.keyring(&random, Make::Never).is_err());
        let made = source.keyring(&random, Make::IfMissing).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = source.keyring(&random, Make::IfMissing).unwrap();
        assert_eq!(made.first().id(), read.first().id());
    }

    /// The remedy was to make a directory writable that was.
    #[test]
    fn a_missing_key_of_a_sealed_store_is_to_be_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master.key");
        let source = KeySource::File(path.clone());
        let missing = source.keyring(&SystemRandom::new(), Make::Never);
        let missing = missing.err().unwrap();
        assert_eq!(missing.place, path.display().to_string());
        let remedy = "put the master.key of the gateway that made the store there";
        assert!(missing.remedy.starts_with(remedy), "{missing}");
        assert!(!path.exists());
    }

    #[test]
    fn several_keys_are_kept_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master.key");
        let source = KeySource::File(path.clone());
        let random = SystemRandom::new();
        let keys = [(); 2].map(|()| MasterKey::new(&random).unwrap());
        source.write(&keys).unwrap();
        let read = source.keyring(&random, Make::Never).unwrap();
        let ids = |keys: &[MasterKey]| keys.iter().map(MasterKey::id).collect::<Vec<_>>();
        assert_eq!(ids(read.keys()), ids(&keys));
        source.write(&keys[..1]).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            source.keyring(&random, Make::Never).unwrap().keys().len(),
            1
        );
    }
}

//! Files that only their owner may read (mode 0600).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::Path,
};

/// Mode of a private file.
pub(crate) const MODE: u32 = 0o600;

/// Creates a private file for writing; fails if the path exists.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(MODE).open(path)
}

/// Creates a private file for writing; fails if the path exists. One that root makes belongs to the user of its
/// directory, who could not open it otherwise.
pub(crate) fn create_beside(path: &Path) -> io::Result<File> {
    let file = create_new(path)?;
    give(&file, path)?;
    Ok(file)
}

/// Gives a file that root has made to the user of its directory.
fn give(file: &File, path: &Path) -> io::Result<()> {
    if let (true, Some(dir)) = (rustix::process::geteuid().is_root(), path.parent()) {
        let owner = fs::metadata(dir)?;
        let given = fchown(file, Some(owner.uid()), Some(owner.gid()));
        // Without CAP_CHOWN a file that is its user's already stays as it is.
        if given.is_err() && file.metadata()?.uid() != owner.uid() {
            return given;
        }
    }
    Ok(())
}

/// Opens a file for writing and keeps its content; creates one as [`create_beside`] does if the path is free. Where root
/// may change no owner, it is root's.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    create_beside(path).or_else(|_| {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        options.mode(MODE).open(path)
    })
}

/// Creates a private file with this text, of the user of its directory, and syncs it to disk.
pub(crate) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = create_new(path)?;
    let written = give(&file, path)
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all());
    // What is there is taken for whole.
    written.inspect_err(|_| _ = fs::remove_file(path))
}

/// The remedy where a private file cannot be opened.
pub(crate) fn remedy(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let user = rustix::process::geteuid().as_raw();
        return format!("give it to user {user}, which this process runs as, or run as its owner");
    }
    "make its directory writable, and see that the disk has room".to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::private_file::*;

    #[test]
    fn a_file_of_another_user_is_to_be_given_to_this_one() {
        let remedy = |kind: io::ErrorKind| remedy(&kind.into());
        let given = remedy(io::ErrorKind::PermissionDenied);
        let user = rustix::process::geteuid().as_raw();
        assert!(
            given.starts_with(&format!("give it to user {user}, ")),
            "{given}"
        );
        let other = remedy(io::ErrorKind::IsADirectory);
        assert!(other.starts_with("make its directory writable"), "{other}");
    }

    /// The gateway could not read the key that root had changed, nor the database that root had made.
    #[test]
    fn what_root_makes_belongs_to_the_user_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("there"), "text").unwrap();
        let of_there = fs::metadata(at("there")).unwrap().uid();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(12_345), Some(12_346)).unwrap();
        }
        write_new(&at("written"), "text").unwrap();
        drop(open_or_create(&at("opened")).unwrap());
        drop(open_or_create(&at("there")).unwrap());
        let owner = fs::metadata(dir.path()).unwrap();
        for name in ["written", "opened"] {
            let made = fs::metadata(at(name)).unwrap();
            assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
            assert_eq!(made.mode() & 0o777, MODE, "{name}");
        }
        // Files that are there stay as they are.
        assert_eq!(fs::metadata(at("there")).unwrap().uid(), of_there);
        assert_eq!(fs::read_to_string(at("there")).unwrap(), "text");
        assert!(write_new(&at("there"), "other").is_err());
        assert_eq!(fs::read_to_string(at("there")).unwrap(), "text");
    }
}

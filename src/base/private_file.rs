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
    if let (true, Some(dir)) = (rustix::process::geteuid().is_root(), path.parent()) {
        let owner = fs::metadata(dir)?;
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(file)
}

/// Opens a file for writing and keeps its content; creates a private one if the path is free.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    options.mode(MODE).open(path)
}

/// Creates a private file with this text and syncs it to disk.
pub(crate) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = create_new(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

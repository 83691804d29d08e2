//! Opening of files that others chose, without waiting for a writer or waking a device.
//!
//! Not here: the reading.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use rustix::fs::{Mode, OFlags};

/// Opens a file for reading; follows links.
///
/// # Errors
///
/// The file system's, and `InvalidInput` for all but a regular file: the open of a FIFO waits for its
/// writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.is_file() {
        let why = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // By descriptor: a file that replaces the name is not opened.
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, sync::mpsc, time::Duration};

    use rustix::fs::{CWD, FileType};

    use super::super::regular_file::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        fs::write(&file, "x").unwrap();
        let mut text = String::new();
        open(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("fifo", &link).unwrap();
        for path in [fifo, link, "/dev/null".into(), dir.path().to_owned()] {
            let (opened, seen) = mpsc::channel();
            std::thread::spawn(move || opened.send(open(&path).map_err(|error| error.kind())));
            let outcome = seen.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(outcome.unwrap_err(), io::ErrorKind::InvalidInput);
        }
    }
}

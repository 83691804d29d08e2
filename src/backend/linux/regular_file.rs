//! Opening of files that others chose, without waiting for a writer or waking a device.
//!
//! Not here: the reading.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use rustix::fs::{Mode, OFlags};

/// Opens a file for reading; follows links.
///
/// # Errors
///
/// The file system's, `InvalidInput` for all but a regular file: the open of a FIFO waits for its
/// writer; `WouldBlock` for a file on which another process has a lease.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.is_file() {
        let why = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // By descriptor: a file that replaces the name is not opened. Nor is waited for the owner of a lease on it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let own = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(File::from(rustix::fs::open(own, flags, Mode::empty())?))
}

#[cfg(test)]
pub(in crate::backend) mod tests {
    use std::{
        fs,
        io::Read,
        process::{Child, Command, Stdio},
        sync::mpsc,
        time::Duration,
    };

    use rustix::fs::{CWD, FileType};

    use super::super::regular_file::*;

    /// A process with a lease on a file, until it is dropped.
    pub(in crate::backend) struct Lease(Child);

    impl Lease {
        pub(in crate::backend) fn on(path: &Path) -> Self {
            let python = r#"
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"#;
            let mut owner = Command::new("python3")
                .args(["-c", python])
                .arg(path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = [0; 6];
            owner.stdout.take().unwrap().read_exact(&mut said).unwrap();
            Self(owner)
        }
    }

    impl Drop for Lease {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            _ = self.0.wait();
        }
    }

    /// The owner of a file makes others wait for 45 s.
    #[test]
    fn a_lease_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let lease = Lease::on(&path);
        let refused = open(&path).unwrap_err();
        drop(lease);
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(open(&path).is_ok());
    }

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

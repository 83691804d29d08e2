//! Files that an operator names: their content within a bound, and its changes, such as of secrets that an
//! orchestrator mounts.
//!
//! They are polled, because inotify misses mounts of Kubernetes Secrets.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Mode, OFlags};

use tokio::task::spawn_blocking;

use super::sha256;

/// The digest of a file's content; `None` if the file cannot be read.
pub(crate) type ContentDigest = Option<[u8; 32]>;

/// The digest of the content of `file` now.
pub(crate) fn content_digest(file: &Path) -> ContentDigest {
    let content = content(file, SETTING_MAX).ok();
    content.map(|content| sha256(&content))
}

/// Reads a file of at most `most` bytes; follows links, behind which Kubernetes mounts secrets.
///
/// # Errors
///
/// The file system's, and `InvalidInput` for all but a regular file of that size: a pipe may never have a writer, and
/// a device no end.
pub(crate) fn content(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    // Without a wait for the writer of a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return refused("it is no regular file");
    }
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return refused(&format!("it has more than {} MiB", most >> 20));
    }
    Ok(content)
}

/// Reads a file of text, as [`content`] does.
///
/// # Errors
///
/// Those of [`content`], and `InvalidData` for bytes that are no UTF-8.
pub(crate) fn text(file: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(content(file, most)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8"))
}

/// What tells without reading it that a file is another, or has other content: device, inode, size, and the times of
/// its changes. None for one that is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileStamp(Option<[u64; 3]>, [i64; 4]);

impl FileStamp {
    /// That of `file` now, behind links.
    pub(crate) fn now(file: &Path) -> Self {
        let Ok(found) = file.metadata() else {
            return Self::default();
        };
        let times = [
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ];
        Self(Some([found.dev(), found.ino(), found.size()]), times)
    }

    /// When the file was changed last, in milliseconds since 1970 by the clock of its file system; 0 without a file.
    pub(crate) fn changed_ms(&self) -> i64 {
        let Self(_, [_, _, seconds, nanos]) = self;
        seconds
            .saturating_mul(1000)
            .saturating_add(nanos / 1_000_000)
    }
}

/// The largest file that holds a setting, a secret or certificates, in bytes.
pub(crate) const SETTING_MAX: u64 = 4 << 20;
/// The largest manifest, in bytes.
pub(crate) const MANIFEST_MAX: u64 = 64 << 20;

/// Files, each with the digest of its content.
#[derive(Debug, Default)]
pub(crate) struct WatchedFiles(BTreeMap<PathBuf, Watched>);

#[derive(Debug)]
struct Watched {
    /// The content that is in use.
    used: ContentDigest,
    /// The content at the last look.
    seen: ContentDigest,
}

impl WatchedFiles {
    /// Watches files, each with the digest of the content in use; `None` to have the file reported
    /// by the second look.
    pub(crate) fn new(files: impl IntoIterator<Item = (PathBuf, ContentDigest)>) -> Self {
        let files = files.into_iter().map(|(file, used)| {
            let seen = used;
            (file, Watched { used, seen })
        });
        Self(files.collect())
    }

    /// Reads every file, and returns those whose content has changed since their last report.
    ///
    /// A content is reported when two looks in a row find it: a file may be written in several
    /// steps. A file that cannot be read is not reported; the log names it once.
    pub(crate) async fn look(&mut self) -> Vec<PathBuf> {
        let mut changed = Vec::new();
        for (file, watched) in &mut self.0 {
            let path = file.clone();
            let read = spawn_blocking(move || content(&path, SETTING_MAX));
            let found = match read.await.unwrap_or_else(|ended| Err(ended.into())) {
                Ok(content) => Some(sha256(&content)),
                Err(error) => {
                    if watched.seen.is_some() {
                        let file = file.display();
                        tracing::warn!(
                            event = "file.unreadable", %file, %error,
                            "cannot read a file again; its last content stays in use"
                        );
                    }
                    None
                }
            };
            if found.is_some() && found == watched.seen && found != watched.used {
                watched.used = found;
                changed.push(file.clone());
            }
            watched.seen = found;
        }
        changed
    }
}

/// The interval of looks. A change is taken over after two of them at the latest, behind the up to
/// sixty seconds in which a kubelet updates its volumes.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::super::watched_files::*;

    #[test]
    fn a_stamp_tells_of_changes_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, target) = (dir.path().join("link"), dir.path().join("target"));
        fs::write(&target, "old").unwrap();
        symlink("target", &file).unwrap();
        let mut last = FileStamp::now(&file);
        let mut is_another = || {
            let now = FileStamp::now(&file);
            std::mem::replace(&mut last, now) != now
        };
        assert!(!is_another());
        fs::write(&target, "half").unwrap();
        assert!(is_another() && !is_another());
        fs::write(&target, "whole").unwrap();
        assert!(is_another() && !is_another());
        fs::remove_file(&target).unwrap();
        assert!(is_another() && !is_another());
    }

    #[tokio::test]
    async fn a_content_is_reported_once_and_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "old").unwrap();
        let mut files = WatchedFiles::new([(file.clone(), content_digest(&file))]);
        assert!(files.look().await.is_empty() && files.look().await.is_empty());
        fs::write(&file, "").unwrap();
        assert!(files.look().await.is_empty(), "half written");
        fs::write(&file, "new").unwrap();
        assert!(files.look().await.is_empty(), "seen once");
        assert_eq!(files.look().await.first(), Some(&file));
        assert!(files.look().await.is_empty());
        fs::write(&file, "other").unwrap();
        files.look().await;
        fs::write(&file, "new").unwrap();
        assert!(files.look().await.is_empty() && files.look().await.is_empty());
        let mut unknown = WatchedFiles::new([(file.clone(), None)]);
        assert!(unknown.look().await.is_empty());
        assert_eq!(unknown.look().await, [file]);
    }

    #[test]
    fn only_a_regular_file_within_the_bound_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "s3cret").unwrap();
        symlink("file", at("link")).unwrap();
        assert_eq!(text(&at("link"), 6).unwrap(), "s3cret");
        let refused = |path: &Path, most| text(path, most).unwrap_err().to_string();
        assert_eq!(refused(&at("file"), 5), "it has more than 0 MiB");
        let (fifo, mode) = (at("fifo"), Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [fifo, "/dev/zero".into(), dir.path().to_owned()] {
            assert_eq!(refused(&path, 5), "it is no regular file", "{path:?}");
            assert_eq!(content_digest(&path), None);
        }
        fs::write(at("file"), [0xff]).unwrap();
        assert_eq!(refused(&at("file"), 5), "it is no UTF-8");
    }

    #[tokio::test]
    async fn a_missing_file_changes_nothing_and_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (folder, content) in [("1", "old"), ("2", "new")] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("secret"), content).unwrap();
        }
        symlink("1", at("..data")).unwrap();
        symlink("..data/secret", at("secret")).unwrap();
        let secret = at("secret");
        let mut files = WatchedFiles::new([(secret.clone(), content_digest(&secret))]);
        fs::remove_file(at("..data")).unwrap();
        assert!(files.look().await.is_empty() && files.look().await.is_empty());
        symlink("1", at("..data")).unwrap();
        assert!(files.look().await.is_empty() && files.look().await.is_empty());
        // As a kubelet updates a volume.
        symlink("2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        files.look().await;
        assert_eq!(files.look().await, [secret]);
    }
}

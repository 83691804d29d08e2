//! Files whose content may change at any time, such as secrets that an orchestrator mounts.
//!
//! They are polled, because inotify misses mounts of Kubernetes Secrets.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::sha256;

/// The digest of a file's content; `None` if the file cannot be read.
pub(crate) type ContentDigest = Option<[u8; 32]>;

/// The digest of the content of `file` now.
pub(crate) fn content_digest(file: &Path) -> ContentDigest {
    std::fs::read(file).ok().map(|content| sha256(&content))
}

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
            let found = match tokio::fs::read(file).await {
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

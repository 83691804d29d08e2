//! The gateway's own files, which no child may see.
//!
//! Not here: how a child is kept from them (`backend/sandbox`).

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;

/// Paths of files and directories; clones share them, and each child that starts reads them anew.
///
/// Paths are only added: a file that a manifest no longer names still holds a secret.
#[derive(Clone, Debug)]
pub(crate) struct HiddenPaths(Arc<watch::Sender<BTreeSet<PathBuf>>>);

impl HiddenPaths {
    /// Begins with these paths.
    pub(crate) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths = paths.into_iter();
        let named = paths.filter(|path| !path.as_os_str().is_empty());
        Self(Arc::new(watch::Sender::new(named.collect())))
    }

    /// Adds paths.
    pub(crate) fn add<'p>(&self, paths: impl IntoIterator<Item = &'p PathBuf>) {
        self.0
            .send_modify(|all| all.extend(paths.into_iter().cloned()));
    }

    /// Those that exist now, resolved: files are replaced, and links lead elsewhere.
    pub(crate) fn found(&self) -> Vec<PathBuf> {
        let all = self.0.borrow().clone();
        let real = all.iter().filter_map(|path| path.canonicalize().ok());
        // Every child needs devices, and its own part of `/proc`.
        let is_kept = |path: &Path| !path.starts_with("/proc") && (path.is_file() || path.is_dir());
        real.filter(|path| is_kept(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::super::hidden_paths::*;

    #[test]
    fn what_is_found_is_what_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        let hidden = HiddenPaths::new([at("a"), PathBuf::new(), "/dev/null".into()]);
        assert_eq!(hidden.found(), [""; 0].map(PathBuf::from));
        fs::write(at("1"), "").unwrap();
        fs::write(at("2"), "").unwrap();
        symlink("1", at("a")).unwrap();
        assert_eq!(hidden.found(), [at("1")]);
        fs::remove_file(at("a")).unwrap();
        symlink("2", at("a")).unwrap();
        let again = hidden.clone();
        again.add(&[at("1"), "/proc/self/status".into()]);
        assert_eq!(hidden.found(), [at("1"), at("2")]);
    }
}

//! Paths of the gateway's own files, which no child may see.
//!
//! Not here: the isolation of children (`backend::sandbox`).

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;

/// Paths of files and directories; a handle. Each child that starts reads them again.
///
/// Paths are never removed: a file that a manifest no longer names still holds a secret.
#[derive(Clone, Debug)]
pub(crate) struct HiddenPaths(Arc<watch::Sender<BTreeSet<PathBuf>>>);

impl HiddenPaths {
    /// Makes a set of these paths; empty ones are ignored.
    pub(crate) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths = paths.into_iter();
        let paths = paths.filter(|path| !path.as_os_str().is_empty());
        Self(Arc::new(watch::Sender::new(paths.collect())))
    }

    /// Adds paths.
    pub(crate) fn add<'p>(&self, paths: impl IntoIterator<Item = &'p PathBuf>) {
        self.0
            .send_modify(|all| all.extend(paths.into_iter().cloned()));
    }

    /// Returns the paths that exist now, with links resolved. They are resolved for each child,
    /// because files are replaced and links change.
    pub(crate) fn existing(&self) -> Vec<PathBuf> {
        let all = self.0.borrow().clone();
        let resolved = all.iter().filter_map(|path| path.canonicalize().ok());
        // Devices and `/proc` are left out, because every child needs them.
        let is_hidden =
            |path: &Path| !path.starts_with("/proc") && (path.is_file() || path.is_dir());
        resolved.filter(|path| is_hidden(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::super::hidden_paths::*;

    #[test]
    fn only_existing_paths_are_returned() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        let hidden = HiddenPaths::new([at("a"), PathBuf::new(), "/dev/null".into()]);
        assert_eq!(hidden.existing(), [""; 0].map(PathBuf::from));
        fs::write(at("1"), "").unwrap();
        fs::write(at("2"), "").unwrap();
        symlink("1", at("a")).unwrap();
        assert_eq!(hidden.existing(), [at("1")]);
        fs::remove_file(at("a")).unwrap();
        symlink("2", at("a")).unwrap();
        let again = hidden.clone();
        again.add(&[at("1"), "/proc/self/status".into()]);
        assert_eq!(hidden.existing(), [at("1"), at("2")]);
    }
}

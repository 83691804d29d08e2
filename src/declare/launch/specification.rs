//! The launch specification: the program of a child, with its environment and sandbox.
//!
//! Not here: preparations (`recipe`), and starts (`backend/child`).

use std::{collections::BTreeMap, path::PathBuf};

use super::sandbox::Confinement;
use crate::base::Sha256;

/// A launch specification; the gateway starts nothing else.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program: a path, or a name that is looked up in PATH; never a shell.
    pub(crate) command: String,
    /// Its arguments, passed unchanged.
    pub(crate) args: Vec<String>,
    /// Its environment besides the fixed part; values may be secrets.
    pub(crate) env: BTreeMap<String, String>,
    /// Contents of files in its private directory, by the variables with their paths; secrets.
    pub(crate) files: BTreeMap<String, String>,
    /// Its working directory; none for a private one.
    pub(crate) cwd: Option<PathBuf>,
    /// The source of HOME and TMPDIR.
    pub(crate) home: Home,
    /// Its sandbox.
    pub(crate) confinement: Confinement,
    /// The prepared store that it may read, once known.
    pub(crate) prepared: Option<PathBuf>,
    /// This is the preparation, which may also write to the store.
    pub(crate) is_preparing: bool,
}

/// The SHA-256 of everything that decides what is started.
pub(crate) type Digest = [u8; 32];

impl Launch {
    /// The digest; equal for equal specifications, within this process.
    pub(crate) fn digest(&self) -> Digest {
        let mut digest = Sha256::new();
        let mut add = |text: &[u8]| digest.add_part(text);
        add(self.command.as_bytes());
        add(&[u8::from(self.home == Home::Caller)]);
        add(format!("{:?}", self.confinement).as_bytes());
        let cwd = self.cwd.as_ref().map(|path| path.as_os_str());
        add(cwd.map_or(&[], std::os::unix::ffi::OsStrExt::as_bytes));
        add(&(self.args.len() as u64).to_le_bytes());
        self.args.iter().for_each(|arg| add(arg.as_bytes()));
        for (name, value) in &self.env {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        digest.finish()
    }
}

/// The source of a child's HOME, LANG and default working directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A private directory with mode 0700, removed with the child; LANG is C.UTF-8.
    Private,
    /// The caller's (`lockgate run`), for a local server of the caller.
    Caller,
}

impl std::fmt::Debug for Launch {
    /// Prints the command, never values of the environment, which may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("files", &self.files.keys())
            .field("cwd", &self.cwd)
            .field("home", &self.home)
            .field("confinement", &self.confinement)
            .field("prepared", &self.prepared)
            .field("is_preparing", &self.is_preparing)
            .finish()
    }
}

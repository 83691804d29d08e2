//! Launch specification: the program that a child runs, with its environment and confinement.
//!
//! Not here: preparations (`recipe`), and starting anything (`backend/child`).

use std::{collections::BTreeMap, path::PathBuf};

use super::sandbox::Confinement;
use crate::base::Sha256;

/// A launch specification: the only source of what is ever started.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program: a path, or a name that is looked up in PATH; never a shell.
    pub(crate) command: String,
    /// Its arguments, passed as they are.
    pub(crate) args: Vec<String>,
    /// Its environment beside the fixed part; values may be secrets.
    pub(crate) env: BTreeMap<String, String>,
    /// Its working directory; none means a private one.
    pub(crate) cwd: Option<PathBuf>,
    /// Where HOME and TMPDIR come from.
    pub(crate) home: Home,
    /// What it may reach.
    pub(crate) confinement: Confinement,
    /// The store that it may read: what was prepared for it, once that is known.
    pub(crate) prepared: Option<PathBuf>,
    /// Whether this is the preparation itself, which may also write to the store.
    pub(crate) is_preparing: bool,
}

/// Tells launch specifications apart: the SHA-256 of all that decides what is started.
pub(crate) type Digest = [u8; 32];

impl Launch {
    /// Its digest; equal for equal specifications, in this process.
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

/// Where a child's HOME, LANG and default working directory come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A directory of its own, 0700, removed with the child; LANG is C.UTF-8.
    Private,
    /// The caller's own (`lockgate run`): one's own server on one's own machine.
    Caller,
}

impl std::fmt::Debug for Launch {
    /// Names what is started; never the environment's values, which may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("home", &self.home)
            .field("confinement", &self.confinement)
            .field("prepared", &self.prepared)
            .field("is_preparing", &self.is_preparing)
            .finish()
    }
}

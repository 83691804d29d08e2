//! Sandbox of a server's children: profile, directories and TCP, as an operator declared them.
//!
//! Not here: whether a machine can enforce it (`offer`), and doing so (`backend/sandbox`).

use std::path::PathBuf;

/// What a child may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// What holds beside the knobs.
    pub(crate) profile: Profile,
    /// Whether what cannot be enforced here keeps the gateway from starting.
    pub(crate) required: bool,
    /// What it may read beside the system and its own programs (`standard`).
    pub(crate) read: Vec<PathBuf>,
    /// What it may write beside its private directory (`standard`).
    pub(crate) write: Vec<PathBuf>,
    /// Which TCP it may speak.
    pub(crate) tcp: Tcp,
}

impl Default for Confinement {
    fn default() -> Self {
        Self {
            profile: Profile::Standard,
            required: true,
            read: Vec::new(),
            write: Vec::new(),
            tcp: Tcp::Any,
        }
    }
}

/// What holds beside the knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Files by an allow-list, system calls by a deny-list, no capabilities.
    Standard,
    /// All that its user may do; only the gateway's own files are hidden.
    Open,
}

/// Which TCP a child may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tcp {
    /// Any.
    Any,
    /// None at all: it has no such socket.
    Off,
    /// Only to (and on) these ports.
    Ports(Vec<u16>),
}

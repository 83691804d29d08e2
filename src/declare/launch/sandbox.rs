//! The sandbox of a server's children: profile, directories, TCP and UNIX sockets.
//!
//! Not here: its enforcement (`offer`, `backend/sandbox`).

use std::path::PathBuf;

/// The sandbox of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// The rules that apply besides the single settings.
    pub(crate) profile: Profile,
    /// The gateway refuses to start if a setting cannot be enforced.
    pub(crate) required: bool,
    /// Paths that the child may read besides the system and its programs (`standard`).
    pub(crate) read: Vec<PathBuf>,
    /// Paths that the child may write besides its private directory (`standard`).
    pub(crate) write: Vec<PathBuf>,
    /// The TCP connections that the child may make.
    pub(crate) tcp: Tcp,
    /// The UNIX sockets that the child may use.
    pub(crate) sockets: Sockets,
}

impl Default for Confinement {
    fn default() -> Self {
        Self {
            profile: Profile::Standard,
            required: true,
            read: Vec::new(),
            write: Vec::new(),
            tcp: Tcp::Any,
            sockets: Sockets::Only(Vec::new()),
        }
    }
}

/// The rules that apply besides the single settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// An allow-list of files, a deny-list of system calls, no capabilities.
    Standard,
    /// All permissions of the user; only the gateway's files are hidden.
    Open,
}

/// The TCP connections that a child may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tcp {
    /// Any.
    Any,
    /// None: it cannot create a TCP socket.
    Off,
    /// Only to and on these ports.
    Ports(Vec<u16>),
}

/// The UNIX sockets that a child may use; a pair of connected ones is always allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Any that its user may use.
    Any,
    /// None.
    Off,
    /// Those of its own directories, and these files and directories. Profile `open` opens all.
    Only(Vec<PathBuf>),
}

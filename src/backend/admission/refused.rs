//! Refusal of a start: the reasons why a session gets no child.

use std::{io, time::Duration};

use bytes::Bytes;
use rustix::io::Errno;

use crate::declare::Full;

/// The reason why there is no child.
#[derive(Clone, Debug)]
pub(crate) enum Refused {
    /// The gateway had no room for a child within `spawn.wait`.
    Busy,
    /// A quota of the tenant is used up.
    Limit(Full),
    /// The server failed too often: its circuit is open for this long.
    Circuit(Duration),
    /// The operating system refused the process.
    Spawn,
    /// A secret that the server needs is not there.
    Missing,
    /// A secret that the server needs cannot be read now: the database, or the service that gives it, is away.
    Unreadable,
    /// The preparation of the server failed.
    Prepare,
    /// The preparation of the server takes longer than a start may.
    Preparing,
    /// The child ended before it answered, or its answer was unusable.
    Failed(&'static str),
    /// The child answered `initialize` with this raw error.
    Answered(Bytes),
}

impl Refused {
    /// The reason of a child that did not become ready, in words.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Failed("timeout") => NO_ANSWER.to_owned(),
            Self::Failed(reason) => reason.replace('_', " "),
            _ => "refused".to_owned(),
        }
    }
}

/// Whether it is the gateway that has too little of something: no failure of the server, whose circuit
/// would open for everybody.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let is_of_system = errno.is_some_and(|errno| {
        matches!(
            errno,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS
        )
    });
    // AGAIN of the system, or what is said in its place.
    is_of_system || error.kind() == io::ErrorKind::WouldBlock
}

/// Why a start ended with `clocks.start`.
pub(crate) const NO_ANSWER: &str = "no answer to initialize within clocks.start";

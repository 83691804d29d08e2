//! Tools that every room uses; they know nothing of the domain.
//!
//! Not here: anything that imports from another room.
//!
//! * `clock`: wall time, the system's or the database's
//! * `digest`: SHA-256 and hexadecimal text
//! * `hidden_paths`: the gateway's own files, which no child may see
//! * `outbound`: HTTP requests to other servers
//! * `private_file`: files that only their owner may read
//! * `random`: the source of random numbers
//! * `secret`: a text that is never shown

mod clock;
mod digest;
mod hidden_paths;
mod outbound;
pub(crate) mod private_file;
mod random;
mod secret;

pub(crate) use self::clock::Clock;
pub(crate) use self::digest::{Sha256, hex, sha256};
pub(crate) use self::hidden_paths::HiddenPaths;
pub(crate) use self::outbound::{Document, Outbound, Refused};
pub(crate) use self::random::Random;
pub(crate) use self::secret::Secret;

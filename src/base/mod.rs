//! Tools that every room uses, independent of the domain.
//!
//! Not here: anything that imports from another room.
//!
//! * `budget`: bounded amounts that owners share (a room)
//! * `clock`: wall-clock time, corrected by the clock of the database, and its text
//! * `digest`: SHA-256, message authentication codes with it, and hexadecimal text
//! * `hidden_paths`: paths of the gateway's own files, which no child may see
//! * `memory`: memory of the allocator, which idle threads give back, and futures on the heap
//! * `outbound`: HTTP client for addresses named by others
//! * `private_file`: files that only their owner may read
//! * `progress`: a line on a terminal that is drawn again while work is under way
//! * `random`: source of random numbers, and unguessable names
//! * `reach`: addresses that outbound requests may reach, and the proxy of these
//! * `secret`: texts that are never printed
//! * `table`: hash tables with the gateway's own keys
//! * `terminal`: colours and redrawn lines, and text of others made safe for a terminal
//! * `watched_files`: files that an operator names, whose content may change at any time

pub(crate) mod budget;
mod clock;
mod digest;
mod hidden_paths;
pub(crate) mod memory;
mod outbound;
pub(crate) mod private_file;
mod progress;
mod random;
mod reach;
mod secret;
mod table;
pub(crate) mod terminal;
mod watched_files;

#[cfg(test)]
pub(crate) use self::clock::processor_time;
pub(crate) use self::clock::{Clock, LEEWAY_S, moment};
pub(crate) use self::digest::{MacKeys, Sha256, hex, sha256};
pub(crate) use self::hidden_paths::HiddenPaths;
pub(crate) use self::outbound::{Document, Outbound, OutboundError, Unexpected};
pub(crate) use self::progress::{Output, Progress};
pub(crate) use self::random::{RANDOM_NAME, Random, is_random_name, random_name};
pub(crate) use self::reach::{Proxy, Reach};
pub(crate) use self::secret::{Secret, without_user};
pub(crate) use self::table::{FastHash, Table};
pub(crate) use self::terminal::{Screen, Tone, is_unseen};
pub(crate) use self::watched_files::{
    ContentDigest, FileStamp, LOOK_INTERVAL, MANIFEST_MAX, SETTING_MAX, WatchedFiles, content,
    content_digest, text,
};

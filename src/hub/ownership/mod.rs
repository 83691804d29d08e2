//! Ownership of sessions: the lease of this replica, the place of each session, claims under way.
//!
//! Pure state of this replica; it knows no session. Not here: how a session of this replica waits
//! for a lease (`hub::session::lease`) and how this replica takes a session over
//! (`hub::takeover`).
//!
//! * `claims`: claims under way, one for each session
//! * `owner`: lease of this replica, renewed by heartbeats
//! * `place`: place of a session, by its record in the directory
//! * `unresponsive`: replicas that let a request go without an answer

mod claims;
mod owner;
mod place;
mod unresponsive;

pub(crate) use self::claims::{Claiming, Claims};
pub(crate) use self::owner::{AWAY, Owner};
pub(crate) use self::place::{Look, Place, Places, Whose, is_of, places, whose};
pub(crate) use self::unresponsive::{UNRESPONSIVE, Unresponsive};

//! Ownership of sessions: the lease of this replica, the place of each session, claims under way.
//!
//! Pure state of this replica; it knows no session. Not here: the look-up of a session
//! (`hub::locate`), its takeover (`hub::takeover`), and its wait for a lease
//! (`hub::session::ownership`).
//!
//! * `claims`: claims under way, at most one for each session
//! * `owner`: lease of this replica, renewed by heartbeats
//! * `place`: verdict on a record of the directory: here, there or without an owner; and the cache
//! * `unresponsive`: replicas that did not answer a request, until their next heartbeat

mod claims;
mod owner;
mod place;
mod unresponsive;

pub(crate) use self::claims::{Claim, Claims};
pub(crate) use self::owner::{LeaseStatus, ReplicaLease, STORE_AWAY};
pub(crate) use self::place::{
    LookupSource, Place, Places, RecordedOwner, is_of, note_answer, places, recorded_owner,
};
pub(crate) use self::unresponsive::{UNRESPONSIVE, Unresponsive};

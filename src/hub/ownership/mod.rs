//! Which replica owns a session, its lease, and how ownership changes.

pub(crate) mod lease_lost;
mod owner;
pub(crate) mod place;
pub(crate) mod unresponsive;

pub(crate) use self::owner::{AWAY, Owner};
pub(crate) use self::place::{Look, Place};

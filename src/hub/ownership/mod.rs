//! Which replica owns a session, its lease, and how ownership changes.

pub(crate) mod lease_lost;
pub(crate) mod owner;
pub(crate) mod place;
pub(crate) mod unresponsive;

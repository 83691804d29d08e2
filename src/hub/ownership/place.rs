//! Place of a session: the replica that serves it, by its record in the directory.
//!
//! Not here: the look-up of the record (`hub::locate`).

use std::time::Duration;

use super::owner::ReplicaLease;
use crate::{
    auth::Access,
    state::{Found, Replica, SessionId},
};

/// The replica that serves a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This replica.
    Here,
    /// Another replica, which is alive.
    There(Replica),
}

/// The source of a lookup of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookupSource {
    /// The cache, then the directory.
    Cached,
    /// The directory: the cache is out of date (421, or a hop that broke).
    Fresh,
    /// The directory; the address of this owner refuses connections, so its session may be claimed
    /// at once.
    OwnerRefused(Replica),
}

/// The owner in a record of the directory.
pub(crate) enum RecordedOwner {
    /// Another replica, which is alive, and the age of its last heartbeat.
    Other(Replica, Duration),
    /// This replica.
    Here,
    /// No replica that is alive.
    None,
}

/// Cache of the owners of other replicas' sessions.
pub(crate) type Places = moka::sync::Cache<SessionId, Replica>;

/// The most sessions in the cache.
const MAX_PLACES: u64 = 100_000;
/// The time to live of an entry: requests go to a frozen owner for at most this time after its
/// heartbeat expires.
const TTL: Duration = Duration::from_secs(1);

/// An empty cache of places.
pub(crate) fn places() -> Places {
    moka::sync::Cache::builder()
        .max_capacity(MAX_PLACES)
        .time_to_live(TTL)
        .build()
}

/// Whether a record belongs to the principal and the server of an access.
pub(crate) fn is_of(found: &Found, access: &Access) -> bool {
    *found.record.principal == *access.principal().key()
        && found.record.server == access.server().name
}

/// Returns the owner of a session that was found. A record that names this replica although it
/// does not have the session counts as having no owner once the lookup `is_late`.
///
/// So does a record that names no replica of this deployment: their heartbeat is
/// forged too, and a request that went there would be theirs.
pub(crate) fn recorded_owner(
    lease: &ReplicaLease,
    found: &Found,
    lookup: &LookupSource,
    is_late: bool,
) -> RecordedOwner {
    match &found.record.owner {
        None => RecordedOwner::None,
        Some(owner) if owner.boot == lease.me.boot => {
            if is_late {
                RecordedOwner::None
            } else {
                RecordedOwner::Here
            }
        }
        Some(owner) => {
            let is_refused =
                matches!(lookup, LookupSource::OwnerRefused(replica) if replica == owner);
            let is_alive = !is_refused && lease.is_genuine(owner);
            match found.heartbeat_age.filter(|_| is_alive) {
                Some(sign) => RecordedOwner::Other(owner.clone(), sign),
                None => RecordedOwner::None,
            }
        }
    }
}

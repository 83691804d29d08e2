//! Place of a session: the replica that serves it, by its record in the directory.

use std::time::Duration;

use crate::{
    auth::Access,
    state::{Found, Replica, SessionId},
};

/// The replica that serves a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This replica.
    Here,
    /// Another replica, which lives.
    There(Replica),
}

/// The knowledge of the request that asks for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// None: the cache will do.
    Known,
    /// The cache is out of date (421, or a hop that broke): ask the directory.
    Anew,
    /// The owner's address refuses connections: the session may be claimed at once.
    Refused(Replica),
}

/// The owner that a record names.
pub(crate) enum Whose {
    /// Another replica that lives, and the age of its last sign of life.
    Other(Replica, Duration),
    /// This replica.
    Ours,
    /// No replica that lives.
    Nobody,
}

/// Cache of the owners of other replicas' sessions.
pub(crate) type Places = moka::sync::Cache<SessionId, Replica>;

/// The most sessions in the cache.
const PLACES: u64 = 100_000;
/// The life of an entry: a frozen owner is asked no longer than its heartbeat stands, and this.
const REMEMBERED: Duration = Duration::from_secs(1);

/// An empty cache of places.
pub(crate) fn places() -> Places {
    moka::sync::Cache::builder()
        .max_capacity(PLACES)
        .time_to_live(REMEMBERED)
        .build()
}

/// Whether a record is of the principal and the server of an access.
pub(crate) fn is_of(found: &Found, access: &Access) -> bool {
    *found.record.principal == *access.principal().key()
        && found.record.server == access.server().name
}

/// The owner of a session that was found. A record that names this replica although it does not
/// have the session counts as nobody's when the asker `is_late`.
pub(crate) fn whose(me: &Replica, found: &Found, look: &Look, is_late: bool) -> Whose {
    match &found.record.owner {
        None => Whose::Nobody,
        Some(owner) if owner.boot == me.boot => {
            if is_late {
                Whose::Nobody
            } else {
                Whose::Ours
            }
        }
        Some(owner) => {
            let is_refused = matches!(look, Look::Refused(replica) if replica == owner);
            match found.heartbeat_age.filter(|_| !is_refused) {
                Some(sign) => Whose::Other(owner.clone(), sign),
                None => Whose::Nobody,
            }
        }
    }
}

//! Place of a session: the replica that serves it, by its record in the directory.
//!
//! Not here: the look-up of the record (`hub::locate`).

use std::time::Duration;

use tokio::time::Instant;

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
    /// The directory; another replica has had the address of this owner for so long. Its session may be claimed at
    /// once if the owner has given no sign of life since: of two that share an address by mistake, both do.
    OwnerReplaced(Replica, Duration),
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

/// Cache of the owners of other replicas' sessions, with the times since when they are known to be.
pub(crate) type Places = moka::sync::Cache<SessionId, (Replica, Instant)>;

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

/// Notes that the owner of a session has answered a request for it: that tells as much as the directory, which one call of
/// each second would wait for. A frozen owner answers nothing, and a late answer of a former one says nothing of the owner
/// that was found meanwhile.
pub(crate) fn note_answer(places: &Places, id: SessionId, owner: &Replica) {
    let known = places.get(&id);
    let stays = |(known, since): &(Replica, Instant)| known != owner || since.elapsed() < TTL / 2;
    if !known.as_ref().is_some_and(stays) {
        places.insert(id, (owner.clone(), Instant::now()));
    }
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
            let is_gone = |sign: Duration| match lookup {
                LookupSource::OwnerRefused(replica) => replica == owner,
                LookupSource::OwnerReplaced(replica, age) => replica == owner && sign > *age,
                LookupSource::Cached | LookupSource::Fresh => false,
            };
            let is_alive = |sign: &Duration| !is_gone(*sign) && lease.is_genuine(owner);
            match found.heartbeat_age.filter(is_alive) {
                Some(sign) => RecordedOwner::Other(owner.clone(), sign),
                None => RecordedOwner::None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::place::*;
    use crate::{
        base::MacKeys,
        state::{Fence, Record, ReplicaKeys, memory::MemoryDirectory},
    };

    /// Of two replicas that have one address by mistake, each would have claimed the sessions of the other.
    #[test]
    fn an_owner_is_gone_that_was_last_heard_of_before_another_replica_had_its_address() {
        let keys = ReplicaKeys::new(MacKeys::new([&[7; 32]]));
        let replica = |address: &str| keys.replica(&address.into()).unwrap();
        let (me, owner, other) = (replica("a:1"), replica("b:1"), replica("b:1"));
        let lease = ReplicaLease::new(me, keys, Arc::new(MemoryDirectory::default()));
        let ms = Duration::from_millis;
        let found = |heartbeat_age| Found {
            record: Record {
                principal: "p".into(),
                server: "s".to_owned(),
                owner: Some(owner.clone()),
                fence: Fence(1),
                kept: "".into(),
                ttl: ms(60_000),
                age: ms(0),
            },
            heartbeat_age,
        };
        let replaced = |replica: &Replica| LookupSource::OwnerReplaced(replica.clone(), ms(500));
        for (sign, lookup, is_alive) in [
            (Some(ms(501)), LookupSource::Fresh, true),
            (Some(ms(501)), replaced(&other), true),
            (Some(ms(500)), replaced(&owner), true),
            (Some(ms(501)), replaced(&owner), false),
            (None, replaced(&owner), false),
            (
                Some(ms(0)),
                LookupSource::OwnerRefused(owner.clone()),
                false,
            ),
        ] {
            let place = recorded_owner(&lease, &found(sign), &lookup, false);
            let is_other = matches!(place, RecordedOwner::Other(..));
            assert_eq!(is_other, is_alive, "{sign:?} {lookup:?}");
        }
    }

    /// One call of each second waited for the directory.
    #[test]
    fn an_owner_that_answers_stays_known() {
        let keys = ReplicaKeys::new(MacKeys::new([&[7; 32]]));
        let replica = |address: &str| keys.replica(&address.into()).unwrap();
        let owner = replica("b:1");
        let (places, id) = (places(), SessionId("s".into()));
        let known = || places.get(&id).unwrap();
        note_answer(&places, id.clone(), &owner);
        let (first, since) = known();
        assert_eq!(first, owner);
        note_answer(&places, id.clone(), &owner);
        assert_eq!(known().1, since, "each call writes to the cache");
        let before = since.checked_sub(TTL).unwrap();
        places.insert(id.clone(), (owner.clone(), before));
        note_answer(&places, id.clone(), &owner);
        assert!(known().1 >= since);
    }

    /// Requests went to the former owner for up to a second, and failed there if it was frozen.
    #[test]
    fn a_late_answer_of_a_former_owner_leaves_the_present_one() {
        let keys = ReplicaKeys::new(MacKeys::new([&[7; 32]]));
        let replica = |address: &str| keys.replica(&address.into()).unwrap();
        let (former, owner) = (replica("b:1"), replica("c:1"));
        let (places, id) = (places(), SessionId("s".into()));
        let before = Instant::now().checked_sub(TTL).unwrap();
        for since in [Instant::now(), before] {
            places.insert(id.clone(), (owner.clone(), since));
            note_answer(&places, id.clone(), &former);
            assert_eq!(places.get(&id).unwrap(), (owner.clone(), since));
        }
        places.invalidate(&id);
        note_answer(&places, id.clone(), &former);
        assert_eq!(places.get(&id).unwrap().0, former, "none is known");
    }
}

//! State of sessions: event log, session directory and limiter, in memory or in Redis.
//!
//! Not here: the rules of session ownership (`hub/ownership`), and the database of declared objects
//! (`database`).
//!
//! * `contract`: the three traits, each with its numbered contract
//! * `identity`: names of replicas that no other host can make, and their proof
//! * `memory`: the implementation for one replica
//! * `redis`: the implementation that replicas share

pub(crate) mod contract;
pub(crate) mod identity;
pub(crate) mod memory;
pub(crate) mod redis;
#[cfg(test)]
mod tests;

pub(crate) use self::contract::{
    Account, BoxFuture, ClaimFrom, Claimed, Directory, EventLog, Fence, Found, Heartbeat,
    LONG_EVENT, Limiter, LogShare, LogSize, OpenStream, Page, Record, Replica, Seat, SessionId,
    StoreError, Streams, Use, WriteTarget,
};
pub(crate) use self::identity::ReplicaKeys;

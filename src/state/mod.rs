//! State that sessions need: event log, directory of sessions and limiter, in memory or in Redis.

pub(crate) mod contract;
pub(crate) mod memory;
pub(crate) mod redis;
#[cfg(test)]
mod tests;

pub(crate) use self::contract::{
    Account, Beat, Directory, EventLog, Fence, Found, Later, Limiter, OpenStream, Page, Record,
    Replica, Seat, SessionId, Spot, StoreError, Streams,
};

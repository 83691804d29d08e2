//! Backends: child processes that speak MCP on stdio, behind sessions.
//!
//! Not here: sessions and their calls (`hub`).
//!
//! * `linux`: system calls, polling and removal, for the guard
//! * `sandbox`: capabilities of this machine, and the restrictions of a child
//! * `guard`: process between the gateway and a server
//! * `child`: launch, stdio, stop and registry of children
//! * `admission`: slots for starts, and circuits after failures
//! * `prepare`: installations that children start from
//! * `delivery`: secrets that a child is started with
//! * `renewal`: access tokens of children that run
//! * `starter`: starts of children within all limits
//! * `warm`: children started ahead of sessions, kept until their server changes
//! * `opening`: eras that each server understands, and the probe for the modern one
//! * `pool`: source of all children
//! * `shared`: children that several sessions share
//! * `dialect`: translation between messages and lines of a child

pub(crate) mod admission;
pub(crate) mod child;
mod delivery;
pub(crate) mod dialect;
pub(crate) mod guard;
pub(crate) mod linux;
mod opening;
mod pool;
pub(crate) mod prepare;
mod renewal;
pub(crate) mod sandbox;
pub(crate) mod shared;
mod starter;
mod warm;

pub(crate) use self::admission::{
    Cause, Circuit, NO_ANSWER, Refused, Stage, StartFailure, Verdict,
};
pub(crate) use self::delivery::{
    Delivered, SecretSource, SlotValue, TokenFor, TokenOf, TokenSource,
};
pub(crate) use self::pool::{Pool, PoolSources};
pub(crate) use self::renewal::renew_tokens;
pub(crate) use self::starter::{Occasion, Place, Started};

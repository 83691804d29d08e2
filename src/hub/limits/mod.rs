//! Quotas and rate limits of tenants, principals and addresses.
//!
//! Not here: the declared quotas (`declare::quotas`) and the stores that count them (`state`).
//!
//! * `allotments`: amounts drawn ahead of each rate limit and not yet spent
//! * `memory`: memory, shared out to addresses, tenants and principals
//! * `quotas`: checks of requests and bytes per second, and of calls, sessions and streams at a time
//! * `session_memory`: memory of the state that a session keeps
//! * `turns`: requests of authorization servers at once

mod allotments;
mod memory;
mod quotas;
mod session_memory;
mod turns;

pub(crate) use self::memory::{MemoryBudgets, Owners, Source};
pub(crate) use self::quotas::{CallSeats, Flow, Limits, Remaining, Seats, SessionPlace};
pub(crate) use self::session_memory::{NoRoom, RecordMemory, SessionMemory, SubscriptionMemory};

//! Quotas and rate limits of tenants, principals and addresses.
//!
//! Not here: the declared quotas (`declare::quotas`) and the stores that count them (`state`).
//!
//! * `allotments`: amounts drawn ahead of each rate limit and not yet spent
//! * `quotas`: checks of requests, calls, sessions, streams and bytes

mod allotments;
mod quotas;

pub(crate) use self::quotas::{Flow, Limits, Remaining, Seats};

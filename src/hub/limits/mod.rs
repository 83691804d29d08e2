//! Quotas and rate limits.

mod allotments;
pub(crate) mod quotas;

pub(crate) use self::quotas::{Flow, Left, Limits, Seats};

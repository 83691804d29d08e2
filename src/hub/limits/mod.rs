//! Quotas and rate limits.

pub(crate) mod allotments;
pub(crate) mod quotas;

//! What went wrong, and whose fault it is.
//!
//! Knows neither HTTP nor JSON-RPC: `http/reply.rs` turns each variant into an answer.

use std::time::Duration;

/// Why the gateway could not do what it was asked; the text is for the log, not the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No such session for this caller: unknown, ended, or another principal's.
    #[error("no such session")]
    NoSession,
    /// No such server for this caller.
    #[error("no such server")]
    NoServer,
    /// The message cannot be accepted as it stands.
    #[error("invalid message: {0}")]
    Invalid(&'static str),
    /// The bytes are not JSON.
    #[error("not JSON: {0}")]
    NotJson(&'static str),
    /// A cursor that is malformed, foreign, or was never given out.
    #[error("no such cursor")]
    NoCursor,
    /// A cursor whose events are no longer kept.
    #[error("events behind the cursor are gone")]
    Gone,
    /// The caller's own limit.
    #[error("limit reached: {what}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// When to come back.
        retry: Duration,
    },
    /// The gateway or the child cannot take more now.
    #[error("overloaded: {what}")]
    Busy {
        /// What is busy.
        what: &'static str,
        /// When to come back.
        retry: Duration,
    },
    /// The gateway is about to end.
    #[error("draining")]
    Draining,
    /// A bug of ours.
    #[error("bug: {0}")]
    Bug(&'static str),
}

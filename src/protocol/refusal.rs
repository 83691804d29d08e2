//! Refusals: why bytes are not a message.

use super::json::Fault;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not JSON (−32700).
    NotJson(&'static str),
    /// JSON, but not a message (−32600).
    Invalid(&'static str),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::NotJson(fault.0)
    }
}

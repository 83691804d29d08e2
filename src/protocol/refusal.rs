//! Refusal of a message: bytes that are no JSON, or JSON that is no message.

use super::json::SyntaxError;

/// The reason to refuse a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not JSON (−32700).
    NotJson(&'static str),
    /// JSON, but not a message (−32600).
    Invalid(&'static str),
}

impl From<SyntaxError> for Refusal {
    fn from(fault: SyntaxError) -> Self {
        Self::NotJson(fault.0)
    }
}

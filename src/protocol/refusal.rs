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

/// A body or an item of a batch that was refused.
#[derive(Debug)]
pub(crate) struct Rejected {
    /// The reason.
    pub(crate) refusal: Refusal,
    /// The raw id of the request, if one could be read (JSON-RPC 2.0 section 5, "id").
    pub(crate) id: Option<Box<[u8]>>,
}

impl From<Refusal> for Rejected {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, id: None }
    }
}

impl From<SyntaxError> for Rejected {
    fn from(fault: SyntaxError) -> Self {
        Refusal::from(fault).into()
    }
}

impl From<SyntaxError> for Refusal {
    fn from(fault: SyntaxError) -> Self {
        Self::NotJson(fault.0)
    }
}

//! Protocol revisions that this build serves, and the features of each.
//!
//! No other code compares revision strings.

/// A session-based protocol revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Revision {
    /// 2024-11-05: HTTP+SSE.
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP, batches.
    V2025_03_26,
    /// 2025-06-18: no batches, the version header, elicitation.
    V2025_06_18,
    /// 2025-11-25: priming events, tasks.
    V2025_11_25,
}

/// All revisions that this build serves, newest first.
pub(crate) const ALL: [Revision; 4] = [
    Revision::V2025_11_25,
    Revision::V2025_06_18,
    Revision::V2025_03_26,
    Revision::V2024_11_05,
];

/// The first stateless revision, which begins the modern era.
pub(crate) const FIRST_MODERN: &str = "2026-07-28";

impl Revision {
    /// The name on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision with this name, if this build serves it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        ALL.into_iter().find(|revision| revision.as_str() == text)
    }

    /// Whether a body may be an array (2025-03-26 basic, "Batching"; removed in 2025-06-18).
    pub(crate) const fn has_batches(self) -> bool {
        matches!(self, Self::V2025_03_26)
    }

    /// Whether SSE streams begin with an event that has an id and no data
    /// (2025-11-25 transports, "Sending Messages to the Server" 6). Older clients
    /// parse the empty data as JSON.
    pub(crate) const fn has_priming(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }
}

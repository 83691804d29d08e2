//! Quotas of a tenant and of each of its principals.
//!
//! Not here: counting (`hub/limits`, `state`).

use std::num::NonZeroU64;

/// The quotas of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// Of all its principals together.
    pub(crate) tenant: Bounds,
    /// Of each principal.
    pub(crate) principal: Bounds,
}

/// What may be used; none is without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Children; read for the tenant only.
    pub(crate) children: Option<NonZeroU64>,
    /// Resident bytes of its children together; read for the tenant only.
    pub(crate) memory: Option<NonZeroU64>,
    /// Sessions at a time.
    pub(crate) sessions: Option<NonZeroU64>,
    /// Streams with a connection at a time.
    pub(crate) streams: Option<NonZeroU64>,
    /// Calls in flight.
    pub(crate) calls: Option<NonZeroU64>,
    /// HTTP requests a second.
    pub(crate) requests_per_second: Option<NonZeroU64>,
    /// Bytes of answers and streams a second.
    pub(crate) bytes_out: Option<NonZeroU64>,
}

impl Bounds {
    /// No bounds.
    pub(crate) const NONE: Self = Self {
        children: None,
        memory: None,
        sessions: None,
        streams: None,
        calls: None,
        requests_per_second: None,
        bytes_out: None,
    };
}

/// What the children of a tenant may take together; none is without bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many there may be.
    pub(crate) children: Option<NonZeroU64>,
    /// Resident bytes above which no further one starts.
    pub(crate) memory: Option<NonZeroU64>,
}

/// A bound of a [`Room`] that is reached, and how much it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are so many children.
    Children(NonZeroU64),
    /// They take so many bytes.
    Memory(NonZeroU64),
}

impl Bounds {
    /// Its part that is about children.
    pub(crate) const fn room(&self) -> Room {
        Room {
            children: self.children,
            memory: self.memory,
        }
    }

    /// It as the manifest has it; null is without bound.
    pub(crate) fn shown(&self) -> serde_json::Value {
        let Self {
            children,
            memory,
            sessions,
            streams,
            calls,
            requests_per_second,
            bytes_out,
        } = self;
        serde_json::json!({
            "children": children, "memory": memory, "sessions": sessions, "streams": streams,
            "calls": calls, "requests_per_second": requests_per_second, "bytes_out": bytes_out,
        })
    }
}

impl Default for Quotas {
    /// Far above what one tenant of a healthy gateway uses, and far below what would take it down.
    fn default() -> Self {
        Self {
            tenant: Bounds {
                children: NonZeroU64::new(1000),
                memory: None,
                sessions: NonZeroU64::new(200_000),
                streams: NonZeroU64::new(200_000),
                calls: NonZeroU64::new(20_000),
                requests_per_second: NonZeroU64::new(50_000),
                bytes_out: None,
            },
            principal: Bounds::NONE,
        }
    }
}

impl Quotas {
    /// No bounds: one person's own gateway.
    pub(crate) const NONE: Self = Self {
        tenant: Bounds::NONE,
        principal: Bounds::NONE,
    };
}

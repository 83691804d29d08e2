//! Quotas of a tenant and of each of its principals.
//!
//! Not here: counting (`hub/limits`, `state`).

use std::num::NonZeroU64;

/// The quotas of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// Quotas of all its principals together.
    pub(crate) tenant: Bounds,
    /// Quotas of each principal.
    pub(crate) principal: Bounds,
}

/// Maximum values; none for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Children; for the tenant only.
    pub(crate) children: Option<NonZeroU64>,
    /// Resident bytes of its children together; for the tenant only.
    pub(crate) memory: Option<NonZeroU64>,
    /// Declared objects; for the tenant only.
    pub(crate) objects: Option<NonZeroU64>,
    /// Bytes of declared objects together; for the tenant only.
    pub(crate) object_bytes: Option<NonZeroU64>,
    /// Concurrent sessions.
    pub(crate) sessions: Option<NonZeroU64>,
    /// Concurrent streams with a connection.
    pub(crate) streams: Option<NonZeroU64>,
    /// Calls in flight.
    pub(crate) calls: Option<NonZeroU64>,
    /// HTTP requests per second.
    pub(crate) requests_per_second: Option<NonZeroU64>,
    /// Bytes of responses and streams per second.
    pub(crate) bytes_out: Option<NonZeroU64>,
}

impl Bounds {
    /// No limits.
    pub(crate) const NONE: Self = Self {
        children: None,
        memory: None,
        objects: None,
        object_bytes: None,
        sessions: None,
        streams: None,
        calls: None,
        requests_per_second: None,
        bytes_out: None,
    };
}

/// Limits of all children of a tenant together; none for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Maximum number of children.
    pub(crate) children: Option<NonZeroU64>,
    /// Resident bytes above which no child starts.
    pub(crate) memory: Option<NonZeroU64>,
}

/// The limit of a [`Room`] that is reached, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The number of children.
    Children(NonZeroU64),
    /// The memory of children, in bytes.
    Memory(NonZeroU64),
}

impl Bounds {
    /// The limits on children.
    pub(crate) const fn room(&self) -> Room {
        Room {
            children: self.children,
            memory: self.memory,
        }
    }

    /// The quotas in the manifest's form; null for no limit.
    pub(crate) fn shown(&self) -> serde_json::Value {
        let Self {
            children,
            memory,
            objects,
            object_bytes,
            sessions,
            streams,
            calls,
            requests_per_second,
            bytes_out,
        } = self;
        serde_json::json!({
            "children": children, "memory": memory, "objects": objects,
            "object_bytes": object_bytes, "sessions": sessions, "streams": streams,
            "calls": calls, "requests_per_second": requests_per_second, "bytes_out": bytes_out,
        })
    }
}

impl Default for Quotas {
    /// Far above the use of a healthy gateway's tenant, and far below an overload.
    fn default() -> Self {
        Self {
            tenant: Bounds {
                children: NonZeroU64::new(1000),
                memory: None,
                objects: NonZeroU64::new(10_000),
                object_bytes: NonZeroU64::new(64 << 20),
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
    /// No limits, for a gateway of one user.
    pub(crate) const NONE: Self = Self {
        tenant: Bounds::NONE,
        principal: Bounds::NONE,
    };
}

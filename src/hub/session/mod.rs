//! One session: the task that owns its child, calls and streams.

pub(crate) mod call_audit;
pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod ending;
pub(crate) mod fault;
pub(crate) mod inbound;
pub(crate) mod link;
pub(crate) mod outbound;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod start;
pub(crate) mod task;

//! The snapshot: what requests read of the declared model, kept in step with the database.

pub(crate) mod audit_queue;
pub(crate) mod hidden;
pub(crate) mod live;
pub(crate) mod sync;

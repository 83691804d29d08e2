//! The snapshot: what requests read of the declared model, kept in step with the database.

mod audit_queue;
mod live;
mod sync;

pub(crate) use self::audit_queue::Trail;
pub(crate) use self::live::{Asked, Live, Snapshot};
pub(crate) use self::sync::{Applied, Keeper, Reach};

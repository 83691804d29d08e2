//! One session: the task that owns its child, calls and streams.

mod call_audit;
mod calls;
mod clock;
mod ending;
mod fault;
mod inbound;
mod link;
mod outbound;
mod record;
mod restore;
mod start;
pub(crate) mod task;

pub(crate) use self::fault::Status;
pub(crate) use self::record::Remembered;
pub(crate) use self::task::{Adopted, Command, Delivery, Over, Session, Transport};

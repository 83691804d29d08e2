//! Children that several sessions share.
//!
//! Not here: children of one session (`pool`, `hub`).
//!
//! * `placement`: the shared child that a session joins
//! * `child`: the task that owns a shared child
//! * `mailbox`: messages between sessions and a shared child
//! * `pace`: the lines that a shared child may write within a window, and the time that it has for what it owes
//! * `routing`: recipients of the messages of a shared child

mod child;
pub(crate) mod mailbox;
mod pace;
mod placement;
pub(crate) mod routing;

pub(crate) use self::child::Whose;
pub(crate) use self::mailbox::Loss;
pub(crate) use self::placement::{Member, STABLE, SharedChildren};

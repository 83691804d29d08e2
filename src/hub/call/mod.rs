//! Calls in flight of a session.
//!
//! Pure state: the time is passed in. Not here: the streams of their responses (`hub::stream`) and
//! the events that end a call (`hub::session`).
//!
//! * `audit`: audit record of a call
//! * `calls`: table of calls, of requests of the server, and of tasks
//! * `clock`: clock of one call
//! * `fault`: errors of the gateway itself as answers to calls

mod audit;
mod calls;
mod clock;
mod fault;

pub(crate) use self::audit::Audited;
pub(crate) use self::calls::{Call, Calls, Effect, Overdue};
pub(crate) use self::clock::CallClock;
pub(crate) use self::fault::{Fault, quota};

//! Calls in flight of a session.
//!
//! Pure state: the time is passed in. Not here: the streams of the responses (`hub::stream`) and
//! the events that end a call (`hub::session`).
//!
//! * `audit`: audit record of a call
//! * `calls`: table of calls, asks of the server, and tasks
//! * `clock`: clock of one call
//! * `error`: errors of the gateway itself as responses to calls, failed starts among them
//! * `pings`: pings of the client

mod audit;
mod calls;
mod clock;
mod error;
mod pings;

pub(crate) use self::audit::Audited;
pub(crate) use self::calls::{Ask, Call, Calls, Effect, NewAsk, Overdue};
pub(crate) use self::clock::CallClock;
pub(crate) use self::error::{CallError, Fill, FillWay, SECRET_MISSING, quota};
pub(crate) use self::pings::Pings;

//! One session: the task that owns its backend, its calls and its streams.
//!
//! Requests reach it by commands only. Not here: the streams themselves (`hub::stream`), the table
//! of calls (`hub::call`), and finding or taking over a session (`hub`).
//!
//! * `client`: principal and transport of the client, and the server and policy that it uses
//! * `ending`: end of a session, and of each of its calls
//! * `inbound`: messages from the client to the backend
//! * `lease`: fence of the owner, and the times at which the record is written
//! * `lifetime`: phases, idle time, age, and the reason of the end
//! * `link`: link to the backend of a session
//! * `outbound`: messages from the backend to the client, and the timers of the session
//! * `ownership`: insertion and writes of the record in the directory, and the wait after a lapse of
//!   the lease
//! * `pacing`: pauses in reading a child, for slow readers and after bursts
//! * `record`: content of the record: the state that the next backend or the next owner continues with
//! * `restore`: loss of a backend, the replay of log level and subscriptions to another one, and the
//!   stop of idle children
//! * `start`: start of a backend, at `initialize` and after a loss
//! * `task`: task and state of a session

mod client;
mod ending;
mod inbound;
mod lease;
mod lifetime;
mod link;
mod outbound;
mod ownership;
mod pacing;
mod record;
mod restore;
mod start;
mod task;

pub(crate) use self::inbound::MAX_SUBSCRIPTIONS;
pub(crate) use self::record::{SessionRecord, Takeover};
pub(crate) use self::task::Session;

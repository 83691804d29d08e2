//! One session: the task that owns its backend, its calls and its streams.
//!
//! Requests reach it by commands only. Not here: the streams themselves (`hub::stream`), the table
//! of calls (`hub::call`), and finding or taking over a session (`hub`).
//!
//! * `ending`: end of a session, and of each of its calls
//! * `inbound`: messages from the client to the backend
//! * `lease`: record in the directory, and the wait for a lease
//! * `lifetime`: phases of a session and the reasons of its end
//! * `link`: link to the backend of a session
//! * `outbound`: messages from the backend to the client
//! * `record`: state that the next backend or the next owner continues with
//! * `restore`: loss of a backend, and the return to service of another one
//! * `serving`: test whether this replica may serve a session
//! * `start`: start of a backend, at `initialize` and after a loss
//! * `task`: task and state of a session

mod ending;
mod inbound;
mod lease;
mod lifetime;
mod link;
mod outbound;
mod record;
mod restore;
mod serving;
mod start;
mod task;

pub(crate) use self::record::{Adopted, Remembered};
pub(crate) use self::task::Session;

//! Tasks of clients without sessions (extension `io.modelcontextprotocol/tasks`): calls that go on behind
//! the response that names them.
//!
//! Not here: their messages (`protocol::modern`), and HTTP (`http::mcp`).
//!
//! * `table`: the tasks of this replica, and look-up of a task by its id
//! * `task`: one task: its state, and orders of its client
//! * `work`: the call of a task, read to its end
//! * `copy`: the copy of a task in the directory, for the other replicas when this one is gone

mod copy;
mod table;
mod task;
mod work;

pub(crate) use self::table::{Begun, TaskPlace, Tasks};
pub(crate) use self::task::{Task, WatchedTasks};

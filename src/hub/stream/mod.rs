//! Streams of a session: responses, the listener, and the connections that read them.
//!
//! A stream is written to the event log first and read from there. Not here: the calls that a
//! stream waits for (`hub::call`) and SSE (`http::mcp`).
//!
//! * `answer`: answer to a delivered message, and the wait for it
//! * `attach`: attachment of a connection to a stream
//! * `entry`: one stream with its calls, its held response and its connections
//! * `log_only`: stream read from the log alone, without its owner
//! * `pages`: sealed page cursors of lists
//! * `reading`: one connection's place in a stream
//! * `routes`: routing table: the stream that a message of the server goes to
//! * `table`: all streams of a session
//! * `writing`: writes that the event log has not acknowledged

mod answer;
mod attach;
mod entry;
mod log_only;
mod pages;
mod reading;
mod routes;
mod table;
mod writing;

pub(crate) use self::answer::{Answer, Form, Pending};
pub(crate) use self::entry::Bounds;
pub(crate) use self::log_only::Unowned;
pub(crate) use self::pages::PageCursors;
pub(crate) use self::reading::{Next, Pulse, Reading, StreamEnd};
pub(crate) use self::routes::{About, InFlight, route};
pub(crate) use self::table::Streams;

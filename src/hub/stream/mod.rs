//! Streams of a session: responses, the listener, and the connections that read them.
//!
//! A stream is written to the event log first and read from there. Not here: the calls that a
//! stream waits for (`hub::call`) and SSE (`http::mcp`).
//!
//! * `answer`: answer to a delivered message, and the wait for it
//! * `attach`: attachment of a connection to a stream
//! * `entry`: one stream with its calls, its held response and its connections
//! * `log_only`: stream read from the log alone, without its owner
//! * `open_calls`: calls that streams wait for: room for more, and their ids in the log
//! * `page_cursors`: sealed page cursors of lists
//! * `reader`: reader of a stream: the position of one connection
//! * `routes`: routing table: the stream for each message of the server
//! * `seldom`: a queue that most sessions never use
//! * `session_log`: event log of one session: event ids and reads
//! * `table`: all streams of a session
//! * `writes`: writes that the event log has not acknowledged; at their limit the child is not read

mod answer;
mod attach;
mod entry;
mod log_only;
mod open_calls;
mod page_cursors;
mod reader;
mod routes;
mod seldom;
mod session_log;
mod table;
mod writes;

pub(crate) use self::answer::{Answer, Form, Pending};
pub(crate) use self::attach::{RECONNECT_TIMEOUT, RETRY_AFTER_END};
pub(crate) use self::entry::StreamLimits;
pub(crate) use self::log_only::LogOnlyStream;
pub(crate) use self::page_cursors::PageCursors;
pub(crate) use self::reader::{LongRetries, Next, Pulse, Reader, StreamEnd};
pub(crate) use self::routes::{About, InFlight, route};
pub(crate) use self::session_log::SessionLog;
pub(crate) use self::table::Streams;

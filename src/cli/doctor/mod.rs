//! `lockgate doctor`: examines a server from outside, as its clients see it.
//!
//! It finds the first thing that is wrong, and names the mend. Not here: a gateway on this machine (`remote::status`).
//!
//! * `causes`: findings, and the causes that are known, with sections and mends
//! * `clients`: known clients, and how each finds the authorization server
//! * `command`: the command line, and the order of an examination
//! * `discovery`: protected resource metadata, and metadata of the authorization server
//! * `front`: the first request, and cross-origin requests
//! * `login`: client ID and authorization request, up to the log-in page
//! * `message`: messages of the doctor, and their session
//! * `report`: the report, for people and for programs
//! * `session`: sessions of Streamable HTTP
//! * `sse`: blocks of an event stream
//! * `stream`: streams that are held back or cut
//! * `transports`: revision 2026-07-28, and HTTP+SSE of 2024-11-05
//! * `visitor`: the HTTP client, with bounds

mod causes;
mod clients;
mod command;
mod discovery;
mod front;
mod login;
mod message;
mod report;
mod session;
mod sse;
mod stream;
mod transports;
mod visitor;

pub(crate) use self::command::DoctorArgs;

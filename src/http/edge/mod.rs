//! The edge: the gates of the listeners, in front of all routes.
//!
//! Not here: connections (`listen`), credentials and rates (`admission`), routes.
//!
//! * `app`: routes of one listener, behind its gate
//! * `gate`: gate of the public listener: host, origin, 413 and 408; and the header fields of each of
//!   its responses
//! * `head`: what heads of requests take, and what is left of those that are refused for them
//! * `hops`: gate of the cluster listener
//! * `operators`: gate of listeners for operators
//! * `address`: hosts, origins, paths, and client addresses (`X-Forwarded-For`)
//! * `body_limit`: counts the bytes and times the stalls of a request body
//! * `cors`: cross-origin requests
//! * `null_origin`: `Origin: null`, which forms of the gateway's own pages have
//! * `access_log`: access log
//! * `routes`: routes of one listener, which survive panics

mod access_log;
mod address;
mod app;
mod body_limit;
mod cors;
mod gate;
mod head;
mod hops;
mod null_origin;
mod operators;
mod routes;

pub(crate) use self::address::Allowed;
pub(crate) use self::app::App;
pub(crate) use self::body_limit::{STREAM_WINDOW, TRAILERS_MAX};
pub(crate) use self::gate::{FindHost, FoundHost, Gate, LimitAddress};
pub(crate) use self::routes::{Endpoints, Routes};

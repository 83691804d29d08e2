//! Clients without sessions (2026-07-28) at session-based servers: sessions that the gateway keeps for
//! them, on this replica and in its memory.
//!
//! Not here: the sessions themselves (`hub::session`), the messages (`protocol::modern`), and HTTP
//! (`http::mcp`).
//!
//! * `sender`: messages of the gateway itself to a session
//! * `group`: sessions with the same principal and capabilities, and their use
//! * `call`: a call in flight, which ends with its connection
//! * `changes`: channel from the sessions that calls have alone to subscriptions
//! * `hearing`: what servers say beside such calls, passed on by it
//! * `parked`: calls that wait for input of their client
//! * `subscription`: notifications for a `subscriptions/listen`
//! * `ticket`: sealed names of parked calls (`requestState`) and of tasks
//! * `sessions`: sessions by tenant, server, principal and capabilities
//! * `leases`: leases of sessions: one that is free, or one that begins
//! * `calls`: begin of calls
//! * `retries`: calls that are parked, and read on when their client has answered; uses of carried tickets
//! * `subscriptions`: begin of subscriptions

mod call;
mod calls;
mod changes;
mod group;
mod hearing;
mod leases;
mod parked;
mod retries;
mod sender;
mod sessions;
mod subscription;
mod subscriptions;
mod ticket;

pub(crate) use self::call::{Begun, CallInFlight, replies};
pub(crate) use self::group::Caller;
pub(crate) use self::parked::{Opened, Parked, Resumed};
pub(crate) use self::sessions::Stateless;
pub(crate) use self::subscription::{Subscribed, Subscription};
pub(crate) use self::ticket::{Binding, Carried, Ticket, TicketKey};

//! Upstreams: services at which people connect their accounts, and whose access tokens their servers get
//! (2025-03-26 authorization, "Third-Party Authorization Flow").
//!
//! Not here: the pages (`oauth::browser`), the rows (`database`), and the delivery to children (`backend`).
//!
//! * `client`: requests to upstreams, through the guarded outbound client
//! * `exchange`: tokens for other audiences, exchanged at people's identity providers
//! * `source`: access tokens of people: read, refreshed by one replica at a time, looked at

mod client;
mod exchange;
mod source;

pub(crate) use self::client::{Departure, UpstreamError};
pub(crate) use self::source::Upstreams;

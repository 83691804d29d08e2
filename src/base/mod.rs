//! Tools that every room uses: wall time, secrets, and requests to the outside.

mod clock;
mod outbound;
mod secret;

pub(crate) use self::clock::Clock;
pub(crate) use self::outbound::{Document, Outbound, Refused};

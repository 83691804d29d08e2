//! Tools that every room uses: wall time, secrets, and requests to the outside.

pub(crate) mod clock;
pub(crate) mod outbound;
pub(crate) mod secret;

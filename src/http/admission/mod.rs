//! Admission: checks before every MCP endpoint, and readers of headers and bodies.
//!
//! Not here: verification of credentials (`auth`), counting (`hub::limits`), endpoints (`mcp`).
//!
//! * `front`: the state that all routes share
//! * `admitted`: admission to an MCP endpoint
//! * `rates`: rates of client addresses
//! * `bearer`: bearer credentials of a request
//! * `challenge`: `WWW-Authenticate`
//! * `headers`: checks of the header fields of MCP requests, and their refusals
//! * `body`: request bodies, read whole within limits of size and time

mod admitted;
pub(crate) mod bearer;
pub(crate) mod body;
pub(crate) mod challenge;
mod front;
pub(crate) mod headers;
pub(crate) mod rates;

pub(crate) use self::admitted::{
    Admitted, enter, no_metadata, not_allowed, other_method, post_alone,
};
pub(crate) use self::front::Front;

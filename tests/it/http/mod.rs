//! Tests of the listener, HTTP/1.1 and HTTP/2, request parsing, TLS, and the administration API.

pub(crate) mod administration;
pub(crate) mod http2;
pub(crate) mod https;
pub(crate) mod json_payloads;
pub(crate) mod large_objects;
pub(crate) mod mutations;
pub(crate) mod requests;
pub(crate) mod rmcp;
pub(crate) mod shutdown;
pub(crate) mod smuggling;

//! Fuzz targets, and the files of the gateway that they drive.
//!
//! Compiles those files themselves and not the gateway, which takes a tenth of the time. Each target
//! has a file here and a binary in `fuzz_targets`.

pub mod cimd;
pub mod envelope;
pub mod event_id;
pub mod form;
pub mod framer;
pub mod headers;
pub mod host_origin;
pub mod jwt;
pub mod redirect;
pub mod sse;

mod auth;
mod base;
mod config;
mod declare;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/endpoint.rs"]
mod endpoint;
mod http;
mod oauth;
#[expect(
    dead_code,
    unused_imports,
    reason = "the folder serves the whole gateway, the targets use a part of it"
)]
#[path = "../../src/protocol/mod.rs"]
mod protocol;

//! Integration tests: the real binary, a hostile child, and a client that shows raw events.

#![expect(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::match_wild_err_arm,
    clippy::disallowed_methods,
    reason = "helpers of tests: a panic is the report, and callers write literals"
)]

mod auth;
mod backend;
mod cli;
mod contract;
mod database;
mod file_list;
mod http;
mod hub;
mod layers;
mod oauth;
mod replicas;
mod sources;
mod support;
mod telemetry;

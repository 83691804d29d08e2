//! Integration tests: the real binary, a hostile child, and a client that shows raw events.

#![expect(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::match_wild_err_arm,
    clippy::disallowed_methods,
    reason = "helpers of tests: a panic is the report, and callers write literals"
)]

mod admin;
mod balancer;
mod browser;
mod children;
mod clients;
mod clocks;
mod cluster;
mod commands;
mod crowds;
mod cuts;
mod cutter;
mod declared;
mod drains;
mod encrypted;
mod faults;
mod faulty;
mod gauges;
mod harness;
mod http2;
mod issued;
mod issuer;
mod keys;
mod layers;
mod messages;
mod mutations;
mod mutator;
mod oauth_client;
mod oauth_documents;
mod oauth_logins;
mod oauth_metadata;
mod oauth_pages;
mod oauth_providers;
mod oauth_register;
mod oauth_rmcp;
mod oauth_tokens;
mod outages;
mod owners;
mod pair;
mod payloads;
mod policy;
mod postgres;
mod prepare;
mod quotas;
mod redis;
mod reloads;
mod replicas;
mod replicas_auth;
mod replicas_streams;
mod rolling;
mod sandbox;
mod secure;
mod served;
mod sharing;
mod sinks;
mod smuggling;
mod sources;
mod stage;
mod stored;
mod streams;
mod supervision;
mod surface;
mod tenancy;
mod tokens;
mod torrents;
mod trail;
mod upgrades;
mod wakes;
mod wire;

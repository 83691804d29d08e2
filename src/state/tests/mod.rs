//! Contracts of the state, run against memory, Redis and Valkey.

mod contract;
mod limiter;
mod redis;
mod schedules;

//! Contract tests of the state, against memory, Redis and Valkey.

mod contract;
mod limiter;
mod redis;
mod schedules;

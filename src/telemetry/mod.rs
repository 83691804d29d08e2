//! Logs and metrics of the gateway.
//!
//! * `logs`: log lines, through a bounded queue
//! * `metrics`: instruments and their Prometheus text
//! * `hops`: metrics of requests that are forwarded to other replicas

mod hops;
pub(crate) mod logs;
pub(crate) mod metrics;

pub(crate) use self::hops::HopOutcome;
pub(crate) use self::logs::{Format, Logs};
pub(crate) use self::metrics::{
    ChildState, Denied, Dropped, Ended, Exit, Method, Metrics, Outcome, Route,
};

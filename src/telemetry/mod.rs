//! Logs and metrics of the gateway.

mod hops;
pub(crate) mod logs;
pub(crate) mod metrics;

pub(crate) use self::hops::HopOutcome;
pub(crate) use self::logs::{Format, Logs};
pub(crate) use self::metrics::{
    ChildState, Denied, Dropped, Ended, Exit, Method, Metrics, Outcome, Route,
};

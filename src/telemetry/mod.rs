//! Logs and metrics of the gateway.
//!
//! * `logs`: log lines, through a bounded queue
//! * `metrics`: the declaration of each metric and their Prometheus text
//! * `instruments`: kinds of instruments
//! * `labels`: label values

mod instruments;
mod labels;
pub(crate) mod logs;
pub(crate) mod metrics;

pub(crate) use self::instruments::LimitName;
pub(crate) use self::labels::{
    ChildState, Denied, Dropped, Ended, Exit, HopOutcome, MethodClass, Outcome, Route,
};
pub(crate) use self::logs::{Format, Logs};
pub(crate) use self::metrics::{Metrics, SESSION_STREAMS};

//! Logs and metrics of the gateway.
//!
//! * `logs`: log lines, through a bounded queue
//! * `metrics`: the declaration of each metric and their Prometheus text
//! * `instruments`: kinds of instruments
//! * `labels`: label values
//! * `operations`: durations of operations by tenant, server, method and tool
//! * `semconv`: names of the semantic conventions for MCP

mod instruments;
mod labels;
pub(crate) mod logs;
pub(crate) mod metrics;
mod operations;
pub(crate) mod semconv;

pub(crate) use self::instruments::LimitName;
pub(crate) use self::labels::{
    ChildState, Denied, Dropped, Ended, Exit, HopOutcome, Login, MethodClass, Outcome, Resumed,
    Route,
};
pub(crate) use self::logs::{Format, Logs};
pub(crate) use self::metrics::{Metrics, SESSION_STREAMS};
pub(crate) use self::operations::{Operation, ServerOperations};

//! Logs, metrics and traces of the gateway.
//!
//! * `logs`: log lines, through a bounded queue
//! * `health`: unavailable dependencies of this replica
//! * `metrics`: the declaration of each metric and their Prometheus text
//! * `instruments`: kinds of instruments
//! * `labels`: label values
//! * `operations`: durations of operations by tenant, server, method and tool
//! * `stores`: durations of operations of stores
//! * `traces`: spans, and the trace context that is taken and passed on
//! * `otlp`: export of traces and metrics
//! * `sampling`: the default sampler
//! * `setup`: begin and end
//! * `semconv`: names of the semantic conventions

mod health;
mod instruments;
mod labels;
pub(crate) mod logs;
pub(crate) mod metrics;
mod operations;
mod otlp;
mod sampling;
pub(crate) mod semconv;
pub(crate) mod setup;
mod stores;
pub(crate) mod traces;

pub(crate) use self::health::{Health, Loss, Readiness};
pub(crate) use self::instruments::LimitName;
pub(crate) use self::labels::{
    ChildState, Denied, Dropped, Ended, Exit, HopOutcome, Login, MethodClass, Outcome, Resumed,
    Route, StatusClass,
};
pub(crate) use self::logs::{Format, Logs, MIGRATIONS, PREPARATIONS};
pub(crate) use self::metrics::{Metrics, SESSION_STREAMS};
pub(crate) use self::operations::{Operation, ServerOperations, log_operation};
pub(crate) use self::stores::{StoreFailure, StoreSystem, StoreTimes};
pub(crate) use self::traces::{CallSpans, Span, TraceContext, Traces};

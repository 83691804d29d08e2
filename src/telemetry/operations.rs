//! Durations of operations, by tenant, server, method and tool: `mcp.server.operation.duration` of
//! the semantic conventions for MCP.
//!
//! Names of tools come from clients. A tool has a series of its own after its first result, and as
//! one of the first tools of its server; all others are `_OTHER`. Errors are chosen by the server, so
//! it has few series of those, too. Not here: the names (`semconv`).

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{BoundHistogram, Histogram, Meter},
};

use super::{
    instruments::{Description, Instrument},
    logs::CALLS,
    semconv::{BUCKETS, OTHER},
};
use crate::base::{Table, terminal::shortened};

/// The durations of all servers.
#[derive(Debug)]
pub(crate) struct Operations {
    histogram: Histogram<f64>,
    names: &'static [&'static str],
    /// By tenant and server: at most [`SERVERS`], and those that have sessions.
    servers: RwLock<Table<[String; 2], Arc<ServerOperations>>>,
}

/// The durations of one server.
#[derive(Debug)]
pub(crate) struct ServerOperations {
    histogram: Histogram<f64>,
    names: &'static [&'static str],
    tenant: Arc<str>,
    server: Arc<str>,
    /// The tools that have a series.
    tools: RwLock<HashMap<Arc<str>, Arc<ToolSeries>>>,
    /// The errors that have a series.
    errors: RwLock<HashSet<ErrorSeries>>,
}

/// A method, its tool if that has a series, and an error.
type ErrorSeries = (&'static str, Option<Arc<str>>, &'static str);

/// A tool with a series of its own.
#[derive(Debug)]
struct ToolSeries {
    name: Arc<str>,
    /// The series of its results, which most calls end with.
    results: OnceLock<BoundHistogram<f64>>,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'o> {
    /// The name of its method, one of a fixed set.
    pub(crate) method: &'static str,
    /// The tool that was called.
    pub(crate) tool: Option<&'o str>,
    /// The type of its error, one of a fixed set; none for a result.
    pub(crate) error: Option<&'static str>,
}

impl Instrument for Operations {
    const SUFFIX: &'static str = "_seconds";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let histogram = meter
            .f64_histogram(description.name)
            .with_unit("s")
            .with_description(description.help)
            .with_boundaries(BUCKETS.to_vec())
            .build();
        Self {
            histogram,
            names: description.labels,
            servers: RwLock::default(),
        }
    }
}

impl Operations {
    /// The durations of a server.
    pub(crate) fn of(&self, tenant: &str, server: &str) -> Arc<ServerOperations> {
        let key = [tenant.to_owned(), server.to_owned()];
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers.get(&key) {
            return Arc::clone(known);
        }
        drop(servers);
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        if servers.len() >= SERVERS {
            // Each session refers to that of its server. Another one may tell its first tools apart once more.
            servers.retain(|_, of| Arc::strong_count(of) > 1);
        }
        let made = servers.entry(key).or_insert_with(|| {
            Arc::new(ServerOperations {
                histogram: self.histogram.clone(),
                names: self.names,
                tenant: tenant.into(),
                server: server.into(),
                tools: RwLock::default(),
                errors: RwLock::default(),
            })
        });
        Arc::clone(made)
    }
}

impl ServerOperations {
    /// Records an operation that took `elapsed`; returns its tool, as far as it may be shown.
    pub(crate) fn record(&self, operation: Operation<'_>, elapsed: Duration) -> Option<Arc<str>> {
        let Operation { tool, error, .. } = operation;
        let known = tool.and_then(|tool| self.known(tool, error.is_none()));
        let name = known.as_ref().map(|known| Arc::clone(&known.name));
        if let Some(known) = known.filter(|_| error.is_none()) {
            let bind = || {
                let labels = self.labels(operation, name.as_ref());
                self.histogram.bind(&labels)
            };
            known
                .results
                .get_or_init(bind)
                .record(elapsed.as_secs_f64());
        } else {
            let (operation, known) = self.within_bounds(operation, name.as_ref());
            let labels = self.labels(operation, known);
            self.histogram.record(elapsed.as_secs_f64(), &labels);
        }
        name
    }

    /// The operation and its known tool as they are recorded: an error beyond the bound of its server is one of all
    /// other tools, and without a tool another error.
    fn within_bounds<'o>(
        &self,
        mut operation: Operation<'o>,
        known: Option<&'o Arc<str>>,
    ) -> (Operation<'o>, Option<&'o Arc<str>>) {
        // The errors of all other tools are few.
        let is_of_others = operation.tool.is_some() && known.is_none();
        if let Some(error) = operation.error.filter(|_| !is_of_others)
            && !self.admits((operation.method, known.cloned(), error))
        {
            if known.is_none() {
                operation.error = Some(OTHER);
            }
            return (operation, None);
        }
        (operation, known)
    }

    /// Whether an error has a series, which each of the first ones gets.
    fn admits(&self, series: ErrorSeries) -> bool {
        let errors = self.errors.read().unwrap_or_else(PoisonError::into_inner);
        if errors.contains(&series) {
            return true;
        }
        if errors.len() >= ERRORS {
            return false;
        }
        drop(errors);
        let mut errors = self.errors.write().unwrap_or_else(PoisonError::into_inner);
        let is_admitted = errors.len() < ERRORS;
        if is_admitted {
            errors.insert(series);
        }
        is_admitted
    }

    /// The labels of an operation on a tool, if that is `known`.
    fn labels(&self, operation: Operation<'_>, known: Option<&Arc<str>>) -> Vec<KeyValue> {
        let Operation {
            method,
            tool,
            error,
        } = operation;
        let [of_tenant, of_server, of_method, of_tool, of_error] = self.names else {
            return Vec::new();
        };
        let mut labels = Vec::with_capacity(self.names.len());
        labels.push(KeyValue::new(*of_tenant, Arc::clone(&self.tenant)));
        labels.push(KeyValue::new(*of_server, Arc::clone(&self.server)));
        labels.push(KeyValue::new(*of_method, method));
        labels.extend(tool.map(|_| match known {
            Some(known) => KeyValue::new(*of_tool, Arc::clone(known)),
            None => KeyValue::new(*of_tool, OTHER),
        }));
        labels.extend(error.map(|error| KeyValue::new(*of_error, error)));
        labels
    }

    /// The tenant and the server.
    pub(crate) fn names(&self) -> [&Arc<str>; 2] {
        [&self.tenant, &self.server]
    }

    /// The tool, if it has a series; a new one gets one by a result.
    fn known(&self, tool: &str, is_result: bool) -> Option<Arc<ToolSeries>> {
        let tools = self.tools.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tools.get(tool) {
            return Some(Arc::clone(known));
        }
        if !is_result || tools.len() >= TOOLS || tool.len() > NAME_MAX {
            return None;
        }
        drop(tools);
        let mut tools = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        if tools.len() >= TOOLS {
            return None;
        }
        let name: Arc<str> = tool.into();
        let new = || ToolSeries {
            name: Arc::clone(&name),
            results: OnceLock::new(),
        };
        let known = tools.entry(Arc::clone(&name));
        Some(Arc::clone(known.or_insert_with(|| Arc::new(new()))))
    }
}

/// Logs an operation that has ended: at `debug`, because requests have lines of their own at `info`.
/// `session` is the text by which people know its session, `reason` says in words why it failed.
pub(crate) fn log_operation(
    operation: Operation<'_>,
    [tenant, server]: [&Arc<str>; 2],
    session: &str,
    elapsed: Duration,
    reason: impl FnOnce() -> Option<String>,
) {
    if !tracing::enabled!(target: CALLS, tracing::Level::DEBUG) {
        return;
    }
    let tool = operation.tool.map(|tool| shortened(tool, SHOWN_MAX));
    let reason = operation.error.and_then(|_| reason());
    let reason = reason
        .as_deref()
        .map(|reason| shortened(reason, REASON_MAX));
    tracing::debug!(
        target: CALLS,
        {
            tenant.id = &**tenant,
            server.name = &**server,
            session.id = session,
            mcp.method.name = operation.method,
            tool = tool.as_deref(),
            ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            error = operation.error,
            reason = reason.as_deref()
        },
        "call"
    );
}

/// Servers beyond which those without sessions are forgotten, whether they are still declared or not: as many as there are
/// series of all, so that there are none for what begins anew.
const SERVERS: usize = 10_000;
/// The most tools of a server with a series of their own.
const TOOLS: usize = 50;
/// The most errors of a server with a series of their own.
const ERRORS: usize = 60;
/// The most bytes of the name of such a tool.
const NAME_MAX: usize = 128;
/// The most characters of the name of a tool in a log line.
const SHOWN_MAX: usize = 64;
/// The most characters of the reason of an error.
const REASON_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::super::{
        metrics::{Metrics, OPERATION_SERIES},
        operations::*,
    };

    const SECOND: Duration = Duration::from_secs(1);
    /// The limit of the series of one instrument, and the overflow.
    const LIMIT: usize = OPERATION_SERIES + 1;

    fn call<'o>(tool: &'o str, error: Option<&'static str>) -> Operation<'o> {
        Operation {
            method: "tools/call",
            tool: Some(tool),
            error,
        }
    }

    /// The labels of each series, as Prometheus text has them.
    fn series(metrics: &Metrics) -> Vec<String> {
        let text = metrics.render();
        let counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("mcp_server_operation_duration_seconds_count{"));
        counts.map(str::to_owned).collect()
    }

    #[test]
    fn operations_are_told_apart() {
        let metrics = Metrics::new(None).unwrap();
        let one = metrics.operations.of("a", "x");
        one.record(call("echo", None), SECOND);
        one.record(call("echo", Some("timeout")), SECOND);
        let list = Operation {
            method: "tools/list",
            tool: None,
            error: None,
        };
        metrics.operations.of("b", "x").record(list, SECOND);
        let shown = series(&metrics);
        assert_eq!(shown.len(), 3, "{shown:?}");
        for labels in [
            r#"gen_ai_tool_name="echo",mcp_method_name="tools/call",server="x",tenant="a"} 1"#,
            r#"error_type="timeout",gen_ai_tool_name="echo",mcp_method_name="tools/call",server="x",tenant="a"} 1"#,
            r#"mcp_method_name="tools/list",server="x",tenant="b"} 1"#,
        ] {
            assert!(shown.iter().any(|one| one == labels), "{labels}: {shown:?}");
        }
    }

    #[test]
    fn invented_tools_share_one_series() {
        let metrics = Metrics::new(None).unwrap();
        let of = metrics.operations.of("a", "x");
        for one in 0..10_000 {
            of.record(call(&format!("invented{one}"), Some("-32602")), SECOND);
        }
        assert_eq!(series(&metrics).len(), 1, "an error names no tool");
        for one in 0..10_000 {
            of.record(call(&format!("real{one}"), None), SECOND);
        }
        of.record(call(&"n".repeat(NAME_MAX + 1), None), SECOND);
        let shown = series(&metrics);
        // One series of each tool, and the others with and without an error.
        assert_eq!(shown.len(), TOOLS + 2, "{shown:?}");
        of.record(call("real0", Some("-32602")), SECOND);
        assert_eq!(
            series(&metrics).len(),
            TOOLS + 3,
            "a known tool has its errors"
        );
    }

    #[test]
    fn a_server_leaves_room_for_the_series_of_others() {
        const METHODS: [&str; 20] = [
            "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q",
            "r", "s", "t",
        ];
        let (metrics, errors) = (Metrics::new(None).unwrap(), &METHODS[..12]);
        for one in 0..20 {
            let of = metrics.operations.of(&one.to_string(), "x");
            for tool in 0..TOOLS {
                let tool = tool.to_string();
                of.record(call(&tool, None), SECOND);
                for error in errors {
                    of.record(call(&tool, Some(error)), SECOND);
                }
            }
            for method in METHODS {
                for error in errors {
                    let operation = Operation {
                        method,
                        tool: None,
                        error: Some(error),
                    };
                    of.record(operation, SECOND);
                }
            }
        }
        let late = metrics.operations.of("late", "x");
        late.record(call("echo", Some("timeout")), SECOND);
        late.record(call("echo", None), SECOND);
        let shown = series(&metrics);
        let of = |tenant: &str| {
            let label = format!("tenant=\"{tenant}\"");
            shown.iter().filter(|one| one.contains(&label)).count()
        };
        // Those of tools, of the first errors, of the other tools by error, and of each method.
        assert_eq!(of("0"), TOOLS + ERRORS + errors.len() + METHODS.len());
        assert_eq!(of("late"), 2, "{shown:?}");
        assert!(!shown.iter().any(|one| one.contains("otel_metric_overflow")));
    }

    /// Each server that was ever declared was kept until the end.
    #[test]
    fn servers_that_nobody_uses_are_forgotten() {
        let metrics = Metrics::new(None).unwrap();
        let used = metrics.operations.of("a", "used");
        for one in 0..2 * SERVERS {
            metrics.operations.of("a", &one.to_string());
        }
        let known = metrics.operations.servers.read().unwrap().len();
        assert!(known <= SERVERS, "{known}");
        assert_eq!(SERVERS, OPERATION_SERIES);
        assert!(Arc::ptr_eq(&used, &metrics.operations.of("a", "used")));
    }

    #[test]
    fn the_series_of_all_servers_are_bounded() {
        let metrics = Metrics::new(None).unwrap();
        for one in 0..250 {
            let of = metrics.operations.of(&one.to_string(), "x");
            for tool in 0..TOOLS {
                of.record(call(&tool.to_string(), None), SECOND);
            }
        }
        let shown = series(&metrics);
        assert!(shown.len() <= LIMIT, "{}", shown.len());
        assert!(shown.iter().any(|one| one.contains("otel_metric_overflow")));
    }
}

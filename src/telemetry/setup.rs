//! Begin and end of the telemetry of one gateway.

use std::{sync::Arc, time::Duration};

use super::{logs::Logs, metrics::Metrics, traces::Traces};
use crate::config::Export;

/// The metrics and traces of one gateway, exported as `export` says; inside of the runtime.
///
/// # Errors
///
/// An exporter that cannot be built.
pub(crate) fn begin(logs: Logs, export: Export) -> Result<(Metrics, Traces), String> {
    let exports = Arc::default();
    let metrics = Metrics::exported(Some(logs), export.metrics, &exports)?;
    let traces = match export.traces {
        Some(signal) => Traces::exported(signal, export.sampling, exports)?,
        None => Traces::default(),
    };
    Ok((metrics, traces))
}

/// Exports what is left, within a bounded time.
pub(crate) async fn flush(metrics: Arc<Metrics>, traces: Traces) {
    // Both wait for threads of their own, beside each other.
    let spans = tokio::task::spawn_blocking(move || traces.shut_down(FLUSH_TIMEOUT));
    let metrics = tokio::task::spawn_blocking(move || metrics.shut_down());
    let both = async {
        let _ = spans.await;
        let _ = metrics.await;
    };
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, both).await;
}

/// The time that the end of the gateway waits for a collector.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

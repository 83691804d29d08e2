//! Export of traces and metrics by OTLP, over HTTP or gRPC.
//!
//! A collector that is away costs nothing but the telemetry: spans wait in a bounded queue of the SDK,
//! which exports on threads of its own. Not here: the variables that turn it on (`config::export`), and
//! which spans exist (`traces`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{SpanData, SpanExporter as ExportSpans},
};
use tokio::runtime::Handle;

use crate::config::{Protocol, Signal};

/// What became of exports, for the metrics.
#[derive(Debug, Default)]
pub(super) struct Exports {
    /// Spans that the collector took.
    pub(super) spans: AtomicU64,
    /// Spans that it did not take.
    pub(super) spans_failed: AtomicU64,
    /// Exports of metrics that it did not take.
    pub(super) metrics_failed: AtomicU64,
}

/// The exporter of spans.
pub(super) fn spans(
    signal: Signal,
    exports: Arc<Exports>,
) -> Result<Watched<SpanExporter>, String> {
    let exporter = match signal.protocol {
        Protocol::Http => {
            let builder = SpanExporter::builder().with_http();
            let builder = builder.with_http_client(Client::new(signal.timeout)?);
            builder.with_timeout(signal.timeout).build()
        }
        Protocol::Grpc => {
            let builder = SpanExporter::builder().with_tonic();
            builder.with_timeout(signal.timeout).build()
        }
    };
    Watched::new("traces", exporter, exports)
}

/// The exporter of metrics.
pub(super) fn metrics(
    signal: Signal,
    exports: Arc<Exports>,
) -> Result<Watched<MetricExporter>, String> {
    let exporter = match signal.protocol {
        Protocol::Http => {
            let builder = MetricExporter::builder().with_http();
            let builder = builder.with_http_client(Client::new(signal.timeout)?);
            builder.with_timeout(signal.timeout).build()
        }
        Protocol::Grpc => {
            let builder = MetricExporter::builder().with_tonic();
            builder.with_timeout(signal.timeout).build()
        }
    };
    Watched::new("metrics", exporter, exports)
}

/// The resource of all telemetry: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` come before the
/// values of the gateway.
pub(super) fn resource() -> Resource {
    let found = Resource::builder().build();
    let has = |name: &'static str| found.get(&Key::from_static_str(name));
    let is_named =
        has(SERVICE_NAME).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let instance = uuid::Uuid::new_v4().to_string();
    let own = [
        (!is_named).then(|| KeyValue::new(SERVICE_NAME, "lockgate")),
        has(SERVICE_VERSION)
            .is_none()
            .then(|| KeyValue::new(SERVICE_VERSION, env!("CARGO_PKG_VERSION"))),
        has(SERVICE_INSTANCE)
            .is_none()
            .then(|| KeyValue::new(SERVICE_INSTANCE, instance)),
    ];
    let builder = Resource::builder().with_attributes(own.into_iter().flatten());
    builder.build()
}

const SERVICE_NAME: &str = "service.name";
const SERVICE_VERSION: &str = "service.version";
const SERVICE_INSTANCE: &str = "service.instance.id";

/// An exporter whose failures are counted, and told when they begin and end.
#[derive(Debug)]
pub(super) struct Watched<E> {
    signal: &'static str,
    exporter: E,
    exports: Arc<Exports>,
    is_failing: AtomicBool,
}

impl<E> Watched<E> {
    fn new(
        signal: &'static str,
        exporter: Result<E, ExporterBuildError>,
        exports: Arc<Exports>,
    ) -> Result<Self, String> {
        let exporter = exporter.map_err(|error| format!("cannot export {signal}: {error}"))?;
        Ok(Self {
            signal,
            exporter,
            exports,
            is_failing: AtomicBool::new(false),
        })
    }

    /// Tells of the first failure and of the first success after it.
    fn tell(&self, result: &OTelSdkResult) {
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        let signal = self.signal;
        match result {
            Err(error) if !was_failing => {
                tracing::warn!(
                    event = "export.failed",
                    signal,
                    %error,
                    "the collector does not take telemetry"
                );
            }
            Ok(()) if was_failing => {
                tracing::info!(
                    event = "export.back",
                    signal,
                    "the collector takes telemetry again"
                );
            }
            _ => {}
        }
    }
}

impl ExportSpans for Watched<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        let counter = match result {
            Ok(()) => &self.exports.spans,
            Err(_) => &self.exports.spans_failed,
        };
        counter.fetch_add(count, Ordering::Relaxed);
        self.tell(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl PushMetricExporter for Watched<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.exporter.export(metrics).await;
        if result.is_err() {
            self.exports.metrics_failed.fetch_add(1, Ordering::Relaxed);
        }
        self.tell(&result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

/// The HTTP client of the exporters, whose threads are outside of the runtime: requests are tasks in it.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl Client {
    fn new(timeout: Duration) -> Result<Self, String> {
        let http = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot make the HTTP client of telemetry: {error}"))?;
        let runtime = Handle::current();
        Ok(Self { http, runtime })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        self.runtime.spawn(send(http, request)).await?
    }
}

async fn send(
    http: reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    // The URL may carry a password.
    let request = request.try_into().map_err(reqwest::Error::without_url)?;
    let answered = http.execute(request).await;
    let mut answered = answered.map_err(reqwest::Error::without_url)?;
    let mut response = Response::builder().status(answered.status());
    if let Some(headers) = response.headers_mut() {
        std::mem::swap(headers, answered.headers_mut());
    }
    let mut body = Vec::new();
    while let Some(part) = answered
        .chunk()
        .await
        .map_err(reqwest::Error::without_url)?
    {
        if body.len() + part.len() > ANSWER_MAX {
            return Err("the collector's answer is too long".into());
        }
        body.extend_from_slice(&part);
    }
    Ok(response.body(body.into())?)
}

/// The most bytes of a collector's answer: it tells what it refused, if anything.
const ANSWER_MAX: usize = 64 << 10;

//! An OTLP collector over HTTP and gRPC, by the services that OpenTelemetry's protocol defines. It keeps
//! what it takes.

use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::any_value,
    trace::v1 as otlp,
};
use prost::Message;
use tonic::{
    Response, Status,
    codec::CompressionEncoding,
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::support::harness::until;

/// A running collector, and what it took.
pub(crate) struct Collector {
    pub(crate) url: String,
    taken: Taken,
}

#[derive(Clone, Default)]
struct Taken(Arc<RwLock<Content>>);

#[derive(Default)]
struct Content {
    traces: Vec<ExportTraceServiceRequest>,
    metrics: Vec<ExportMetricsServiceRequest>,
    headers: Vec<String>,
}

/// A span with the service that it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) span: otlp::Span,
    resource: Vec<(String, String)>,
}

impl Span {
    /// The kind, as OTLP numbers it.
    pub(crate) fn kind(&self) -> otlp::span::SpanKind {
        self.span.kind()
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.span.name
    }

    /// An attribute as text; empty without it.
    pub(crate) fn attribute(&self, name: &str) -> String {
        let found = self.span.attributes.iter().find(|one| one.key == name);
        found
            .map(|one| text(one.value.as_ref().and_then(|value| value.value.as_ref())))
            .unwrap_or_default()
    }

    /// An attribute of the resource; empty without it.
    pub(crate) fn resource(&self, name: &str) -> &str {
        let found = self.resource.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// Whether the other one is its parent, in the same trace.
    pub(crate) fn is_below(&self, parent: &Self) -> bool {
        self.span.trace_id == parent.span.trace_id
            && self.span.parent_span_id == parent.span.span_id
    }

    /// `traceparent` of a sampled context at this span.
    pub(crate) fn traceparent(&self) -> String {
        let (trace, span) = (hex(&self.span.trace_id), hex(&self.span.span_id));
        format!("00-{trace}-{span}-01")
    }

    /// Whether its status is an error.
    pub(crate) fn is_error(&self) -> bool {
        self.span
            .status
            .as_ref()
            .is_some_and(|status| status.code == 2)
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(value: Option<&any_value::Value>) -> String {
    match value {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

impl Collector {
    /// A collector on a free port, for both transports.
    pub(crate) fn start() -> Self {
        let taken = Taken::default();
        let bound = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", bound.local_addr().unwrap());
        let collector = Self {
            url,
            taken: taken.clone(),
        };
        let http = over_http(&taken);
        let traces =
            TraceServiceServer::new(taken.clone()).accept_compressed(CompressionEncoding::Gzip);
        let metrics = MetricsServiceServer::new(taken).accept_compressed(CompressionEncoding::Gzip);
        let services = Routes::new(traces).add_service(metrics);
        let services = Routes::from(services.into_axum_router().merge(http));
        let server = Server::builder().accept_http1(true).add_routes(services);
        tokio::spawn(server.serve_with_incoming(bound));
        collector
    }

    /// The variables of a gateway that exports to it over HTTP, soon after a span has ended.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 3] {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*self.url),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ]
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let content = self.taken.lock();
        let resources = content.traces.iter().flat_map(|one| &one.resource_spans);
        let spans = resources.flat_map(|of| {
            let resource = of.resource.iter().flat_map(|one| &one.attributes);
            let value = |value: &opentelemetry_proto::tonic::common::v1::KeyValue| {
                text(value.value.as_ref().and_then(|value| value.value.as_ref()))
            };
            let resource: Vec<_> = resource.map(|one| (one.key.clone(), value(one))).collect();
            of.scope_spans
                .iter()
                .flat_map(|scope| &scope.spans)
                .map(move |span| Span {
                    span: span.clone(),
                    resource: resource.clone(),
                })
        });
        spans.collect()
    }

    /// The only span that is so, as soon as it has come.
    pub(crate) async fn span(&self, what: &str, is: impl Fn(&Span) -> bool) -> Span {
        until(what, async || self.spans().iter().any(&is)).await;
        let mut found: Vec<Span> = self.spans().into_iter().filter(is).collect();
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        found.remove(0)
    }

    /// The names of all metrics so far.
    pub(crate) fn metrics(&self) -> Vec<String> {
        let content = self.taken.lock();
        let resources = content.metrics.iter().flat_map(|one| &one.resource_metrics);
        let scopes = resources.flat_map(|of| &of.scope_metrics);
        let metrics = scopes.flat_map(|scope| &scope.metrics);
        metrics.map(|metric| metric.name.clone()).collect()
    }

    /// All that it took, header fields included, as text to search in.
    pub(crate) fn everything(&self) -> String {
        let content = self.taken.lock();
        let headers = content.headers.join("\n");
        format!("{:?} {:?} {headers}", content.traces, content.metrics)
    }
}

fn over_http(taken: &Taken) -> Router {
    let (traces, metrics) = (taken.clone(), taken.clone());
    Router::new()
        .route(
            "/v1/traces",
            post(async move |headers: HeaderMap, body: Bytes| {
                let mut content = traces.lock();
                content.headers.push(format!("{headers:?}"));
                content
                    .traces
                    .push(ExportTraceServiceRequest::decode(body).unwrap());
                ExportTraceServiceResponse::default().encode_to_vec()
            }),
        )
        .route(
            "/v1/metrics",
            post(async move |headers: HeaderMap, body: Bytes| {
                let mut content = metrics.lock();
                content.headers.push(format!("{headers:?}"));
                content
                    .metrics
                    .push(ExportMetricsServiceRequest::decode(body).unwrap());
                ExportMetricsServiceResponse::default().encode_to_vec()
            }),
        )
}

impl Taken {
    fn lock(&self) -> RwLockWriteGuard<'_, Content> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl TraceService for Taken {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut content = self.lock();
        content.headers.push(format!("{:?}", request.metadata()));
        content.traces.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Taken {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut content = self.lock();
        content.headers.push(format!("{:?}", request.metadata()));
        content.metrics.push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

//! Traces: the spans of the gateway, and the W3C trace context that it takes and passes on.
//!
//! Spans are begun with an explicit parent, because a call crosses tasks and replicas. Their names and
//! attributes are of fixed sets, and names of tools after their first result (`operations`): no id, no
//! address, no argument and no secret is in a span. Not here: their export (`otlp`).

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Method, StatusCode};
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{
        Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
    },
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};

use super::{
    otlp::{self, Exports},
    sampling::{self, PerSecond},
    semconv::{self, attribute},
};
use crate::{
    config::{Sampling, Signal},
    protocol::Trace,
};

/// The traces of one gateway; a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces(Option<Enabled>);

#[derive(Clone, Debug)]
struct Enabled {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The bound on traces that clients want to have recorded; none with a sampler of the operator.
    of_clients: Option<PerSecond>,
}

/// A span, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Span(opentelemetry_sdk::trace::Span);

/// The place of a span in its trace.
#[derive(Clone, Debug)]
pub(crate) struct TraceContext(SpanContext);

/// The spans of a call: the one of the gateway as a server of the client, and the one as a client of
/// the server behind it.
#[derive(Debug)]
pub(crate) struct CallSpans {
    server: Span,
    client: Span,
}

impl Traces {
    /// Traces that are exported; must be made inside of the runtime.
    pub(super) fn exported(
        signal: Signal,
        sampling: Sampling,
        exports: Arc<Exports>,
    ) -> Result<Self, String> {
        let mut provider = SdkTracerProvider::builder()
            .with_batch_exporter(otlp::spans(signal, exports)?)
            .with_resource(otlp::resource());
        let mut of_clients = None;
        if sampling == Sampling::Bounded {
            provider = provider.with_sampler(sampling::default_sampler());
            of_clients = Some(PerSecond::new());
        }
        let provider = provider.build();
        let tracer = provider.tracer("lockgate");
        Ok(Self(Some(Enabled {
            provider,
            tracer,
            of_clients,
        })))
    }

    /// Whether there are traces at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Exports what has ended, for at most `limit`; blocks the thread.
    pub(super) fn shut_down(&self, limit: Duration) {
        if let Some(enabled) = &self.0 {
            // Failures were told when they began.
            let _ = enabled.provider.shutdown_with_timeout(limit);
        }
    }

    /// Begins the span of a client's HTTP request to a `route`, behind the context of its headers.
    pub(crate) fn request(
        &self,
        method: &Method,
        route: Option<&'static str>,
        headers: &HeaderMap,
    ) -> Option<Span> {
        self.0.as_ref()?;
        let method = semconv::http_method(method);
        let parent = TraceContext::of_headers(headers).map(|parent| self.admitted(parent));
        let mut span = self.begin(method.into(), SpanKind::Server, parent.as_ref(), None)?;
        if span.is_recorded() {
            span.set(attribute::HTTP_METHOD, method);
            if let Some(route) = route {
                // Only here: most requests are not recorded.
                span.0.update_name(format!("{method} {route}"));
                span.set(attribute::HTTP_ROUTE, route);
            }
        }
        Some(span)
    }

    /// The context that a client sent; not sampled if clients have asked for enough.
    pub(crate) fn admitted(&self, context: TraceContext) -> TraceContext {
        let bound = self
            .0
            .as_ref()
            .and_then(|enabled| enabled.of_clients.as_ref());
        match bound {
            Some(bound) if context.0.is_sampled() && !bound.admits() => context.unsampled(),
            _ => context,
        }
    }

    /// Begins the span of a request to another replica.
    pub(crate) fn hop(&self, parent: Option<&TraceContext>) -> Option<Span> {
        self.begin("hop".into(), SpanKind::Client, parent, None)
    }

    /// Begins the spans of a call, if they are recorded. The parent is the context in the `_meta` of the
    /// message; without one, the span of the HTTP request, which is a link otherwise.
    pub(crate) fn call(
        &self,
        method: &'static str,
        of: [&Arc<str>; 2],
        own: Option<&TraceContext>,
        request: Option<&TraceContext>,
    ) -> Option<Box<CallSpans>> {
        let enabled = self.0.as_ref()?;
        let (parent, link) = match own {
            Some(own) => (Some(own), request),
            None => (request, None),
        };
        // The default sampler follows the parent: most calls are not recorded, and cost no span.
        if enabled.of_clients.is_some() && parent.is_some_and(|parent| !parent.0.is_sampled()) {
            return None;
        }
        let mut server = self.begin(method.into(), SpanKind::Server, parent, link)?;
        if !server.is_recorded() {
            return None;
        }
        let context = server.context();
        let mut client = self.begin(method.into(), SpanKind::Client, Some(&context), None)?;
        for (span, transport) in [(&mut server, "tcp"), (&mut client, "pipe")] {
            span.set(attribute::MCP_METHOD, method);
            span.set(attribute::NETWORK_TRANSPORT, transport);
            span.0
                .set_attribute(KeyValue::new(attribute::TENANT, Arc::clone(of[0])));
            span.0
                .set_attribute(KeyValue::new(attribute::SERVER, Arc::clone(of[1])));
        }
        Some(Box::new(CallSpans { server, client }))
    }

    /// Records a span that lasted `elapsed` and ends now.
    pub(crate) fn ended(
        &self,
        name: &'static str,
        of: [&str; 2],
        parent: Option<&TraceContext>,
        elapsed: Duration,
        error: Option<&'static str>,
    ) {
        let Some(enabled) = &self.0 else { return };
        let began = opentelemetry::time::now() - elapsed;
        let kind = match name {
            INITIALIZE => SpanKind::Server,
            _ => SpanKind::Internal,
        };
        let builder = enabled.tracer.span_builder(name);
        let builder = builder.with_kind(kind).with_start_time(began);
        let context = parent.map(TraceContext::as_parent).unwrap_or_default();
        let mut span = Span(enabled.tracer.build_with_context(builder, &context));
        if span.is_recorded() {
            if name == INITIALIZE {
                span.set(attribute::MCP_METHOD, name);
            }
            span.0
                .set_attribute(KeyValue::new(attribute::TENANT, of[0].to_owned()));
            span.0
                .set_attribute(KeyValue::new(attribute::SERVER, of[1].to_owned()));
            span.fail(error);
        }
    }

    fn begin(
        &self,
        name: std::borrow::Cow<'static, str>,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        link: Option<&TraceContext>,
    ) -> Option<Span> {
        let tracer = &self.0.as_ref()?.tracer;
        let mut builder = tracer.span_builder(name).with_kind(kind);
        if let Some(link) = link {
            builder = builder.with_links(vec![Link::with_context(link.0.clone())]);
        }
        let context = parent.map(TraceContext::as_parent).unwrap_or_default();
        Some(Span(tracer.build_with_context(builder, &context)))
    }
}

/// The name of the span of a session's `initialize`.
pub(crate) const INITIALIZE: &str = "initialize";
/// The name of the span of a child's start.
pub(crate) const CHILD_START: &str = "start child";

impl Span {
    /// Its place in the trace.
    pub(crate) fn context(&self) -> TraceContext {
        TraceContext(self.0.span_context().clone())
    }

    /// Records the status of a response.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        if !self.is_recorded() {
            return;
        }
        let code = i64::from(status.as_u16());
        self.0
            .set_attribute(KeyValue::new(attribute::HTTP_STATUS, code));
        if status.is_server_error() {
            // Semantic conventions for HTTP servers: a 4xx is the client's error, not the server's.
            let kind = KeyValue::new(attribute::ERROR_TYPE, status.as_str().to_owned());
            self.0.set_attribute(kind);
            self.0.set_status(Status::error(""));
        }
    }

    /// Records the type of an error, one of a fixed set.
    pub(crate) fn fail(&mut self, error: Option<&'static str>) {
        if let Some(error) = error {
            self.set(attribute::ERROR_TYPE, error);
            self.0.set_status(Status::error(""));
        }
    }

    fn is_recorded(&self) -> bool {
        self.0.is_recording()
    }

    fn set(&mut self, name: &'static str, value: &'static str) {
        self.0.set_attribute(KeyValue::new(name, value));
    }
}

impl CallSpans {
    /// The context for the server behind the gateway.
    pub(crate) fn passed_on(&self) -> TraceContext {
        self.client.context()
    }

    /// Ends both, with the tool that was called and the type of the error.
    pub(crate) fn end(mut self, tool: Option<&Arc<str>>, error: Option<&'static str>) {
        for span in [&mut self.server, &mut self.client] {
            if let Some(tool) = tool {
                span.0.update_name(format!("tools/call {tool}"));
                let tool = KeyValue::new(semconv::TOOL, Arc::clone(tool));
                span.0.set_attribute(tool);
                span.set(attribute::GEN_AI_OPERATION, "execute_tool");
            }
            span.fail(error);
        }
    }
}

impl TraceContext {
    /// The context of a request's header fields (W3C Trace Context, section 3).
    pub(crate) fn of_headers(headers: &HeaderMap) -> Option<Self> {
        // Two values are no value (section 3.2), and the first would be as good as the second.
        let single = |name: &str| {
            let mut values = headers.get_all(name).iter();
            let value = values.next()?.to_str().ok()?;
            values.next().is_none().then_some(value)
        };
        let parent = single("traceparent")?;
        let state = headers.get_all("tracestate").iter();
        let state: Vec<&str> = state.filter_map(|value| value.to_str().ok()).collect();
        Self::parse(parent, &state.join(","))
    }

    /// The context of a `traceparent` and a `tracestate`, which may be empty.
    pub(crate) fn parse(parent: &str, state: &str) -> Option<Self> {
        // Another vendor's data: too much of it is dropped, as section 3.3.1.5 permits.
        let state = if state.len() > STATE_MAX { "" } else { state };
        let carrier = Carrier { parent, state };
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let found = context.span().span_context().clone();
        found.is_valid().then_some(Self(found))
    }

    fn unsampled(&self) -> Self {
        let flags = self.0.trace_flags().with_sampled(false);
        let (trace, span, state) = (self.0.trace_id(), self.0.span_id(), self.0.trace_state());
        Self(SpanContext::new(trace, span, flags, true, state.clone()))
    }

    /// The id of the trace.
    pub(crate) fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }

    /// The id of the span.
    pub(crate) fn span_id(&self) -> String {
        self.0.span_id().to_string()
    }

    /// The context for the `_meta` of a message.
    pub(crate) fn to_meta(&self) -> Trace {
        Trace {
            parent: self.parent(),
            state: self.state(),
        }
    }

    /// The value of `traceparent`.
    pub(crate) fn parent(&self) -> String {
        let (trace, span) = (self.0.trace_id(), self.0.span_id());
        format!("00-{trace}-{span}-{:02x}", self.0.trace_flags())
    }

    /// The value of `tracestate`; empty without one.
    pub(crate) fn state(&self) -> String {
        self.0.trace_state().header()
    }

    fn as_parent(&self) -> Context {
        Context::new().with_remote_span_context(self.0.clone())
    }
}

/// The texts that a trace context is read from.
struct Carrier<'c> {
    parent: &'c str,
    state: &'c str,
}

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(self.parent),
            "tracestate" => Some(self.state),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The most bytes of a `tracestate`, which W3C Trace Context (section 3.3.1.5) asks to pass on.
const STATE_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::traces::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_and_written() {
        let context = TraceContext::parse(PARENT, "a=1,b=2").unwrap();
        assert_eq!(context.parent(), PARENT);
        assert_eq!(context.state(), "a=1,b=2");
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id(), "b7ad6b7169203331");
        let unsampled = PARENT.replace("-01", "-00");
        let context = TraceContext::parse(&unsampled, "").unwrap();
        assert_eq!(context.parent(), unsampled);
    }

    #[test]
    fn what_is_no_context_is_none() {
        for text in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert!(TraceContext::parse(text, "").is_none(), "{text}");
        }
    }

    #[test]
    fn a_long_state_is_dropped_and_two_parents_are_none() {
        let long = format!("a={}", "x".repeat(STATE_MAX));
        assert_eq!(TraceContext::parse(PARENT, &long).unwrap().state(), "");
        let mut headers = HeaderMap::new();
        headers.append("traceparent", PARENT.parse().unwrap());
        headers.append("tracestate", "a=1".parse().unwrap());
        headers.append("tracestate", "b=2".parse().unwrap());
        let context = TraceContext::of_headers(&headers).unwrap();
        assert_eq!(context.state(), "a=1,b=2");
        headers.append("traceparent", PARENT.parse().unwrap());
        assert!(TraceContext::of_headers(&headers).is_none());
    }
}

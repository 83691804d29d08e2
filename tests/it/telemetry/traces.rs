//! Traces of calls, at a collector: their spans, what they contain, and what the server is told.

use std::time::Duration;

use futures_util::StreamExt;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auth::external_tokens::bearer,
    cli::commands::{Said, stranger},
    support::{
        cluster::Cluster,
        collector::{Collector, Span, hex},
        harness::{NEWEST, Session, client, last, text_of, tool_call, until, within},
        modern::Modern,
        oauth_client::{App, tenants},
        served::Served,
    },
};

/// The trace and the span of a client.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// `traceparent` of that span, sampled or not.
fn parent(is_sampled: bool) -> String {
    format!("00-{TRACE}-{SPAN}-0{}", u8::from(is_sampled))
}

/// A gateway whose telemetry goes to the collector, with more variables.
async fn gateway(collector: &Collector, more: &[(&str, &str)]) -> Served {
    let env = [&collector.variables(), more].concat();
    Served::with(&env, json!({}), tenants()).await
}

async fn opened(gateway: &Served) -> (String, Session) {
    let token = App::public(gateway, "a").await.tokens().await;
    let token = token.text("access_token");
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(bearer(&token), url);
    session.initialize(NEWEST).await;
    (token, session)
}

/// Posts a call with header fields and a `_meta`; returns the text of its result.
async fn call(session: &Session, tool: &str, headers: &[(&str, &str)], meta: Value) -> String {
    let mut message = tool_call(session.next_id().into(), tool, json!({"text": "x"}));
    if !meta.is_null() {
        message["params"]["_meta"] = meta;
    }
    let mut request = session.request(Method::POST).body(message.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("Content-Type", "application/json");
    let request = request.header("Accept", session.accept);
    let answered = within("an answer", request.send()).await.unwrap();
    text_of(&last(answered).await)
}

/// The `_meta` of the latest message that the child received.
fn last_meta(received: &str) -> Value {
    let lines: Vec<String> = serde_json::from_str(received).unwrap();
    let line: Value = serde_json::from_str(&lines[lines.len() - 1]).unwrap();
    line["params"]["_meta"].clone()
}

/// The spans of tool calls of this name, of one kind.
fn of_tool(kind: SpanKind, name: &str) -> impl Fn(&Span) -> bool {
    move |span: &Span| span.kind() == kind && span.name() == name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_one_trace_through_gateway_hop_and_child() {
    let collector = Collector::start();
    let env = collector.variables();
    let cluster = Cluster::with([&env, &env], json!({})).await;
    let token = App::public(&cluster.replicas[0], "a").await.tokens().await;
    let token = token.text("access_token");
    let session = cluster.session(0, &token).await;
    let other = cluster.by(&session, 1, &token);
    let headers = [("traceparent", &*parent(true)), ("tracestate", "a=1,b=2")];
    let received = call(&other, "received", &headers, Value::Null).await;
    let in_trace = |span: &Span| hex(&span.span.trace_id) == TRACE;
    let http = |span: &Span| in_trace(span) && span.name() == "POST /t/{tenant}/{server}/mcp";
    let http = collector.span("the span of the request", http).await;
    let hop = |span: &Span| in_trace(span) && span.name() == "hop";
    let hop = collector.span("the span of the hop", hop).await;
    let server = of_tool(SpanKind::Server, "tools/call received");
    let server = collector.span("the server span", server).await;
    let client = of_tool(SpanKind::Client, "tools/call received");
    let client = collector.span("the client span", client).await;
    assert_eq!(hex(&http.span.parent_span_id), SPAN);
    assert!(hop.is_below(&http) && server.is_below(&hop) && client.is_below(&server));
    assert_eq!(
        (http.kind(), hop.kind()),
        (SpanKind::Server, SpanKind::Client)
    );
    assert_eq!(http.span.trace_state, "a=1,b=2");
    // The child is told of the innermost span.
    let meta = last_meta(&received);
    assert_eq!(meta["traceparent"], *client.traceparent());
    assert_eq!(meta["tracestate"], "a=1,b=2");
    // The session is at the first replica, the request at the second.
    let replica = |span: &Span| span.resource("service.instance.id").to_owned();
    assert_eq!(replica(&http), replica(&hop));
    assert_eq!(replica(&server), replica(&client));
    assert_ne!(replica(&server), replica(&http));
    for (name, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.tool.name", "received"),
        ("gen_ai.operation.name", "execute_tool"),
        ("network.transport", "tcp"),
        ("lockgate.tenant", "a"),
        ("lockgate.server", "x"),
    ] {
        assert_eq!(server.attribute(name), value, "{name}");
    }
    assert_eq!(client.attribute("network.transport"), "pipe");
    assert_eq!(http.attribute("http.request.method"), "POST");
    assert_eq!(http.attribute("http.response.status_code"), "200");
    assert_eq!(http.resource("service.name"), "lockgate");
    assert!(server.span.start_time_unix_nano >= http.span.start_time_unix_nano);
    assert!(server.span.end_time_unix_nano >= client.span.start_time_unix_nano);
}

/// The parent in `_meta` comes before the one of the request, which is a link then (semantic
/// conventions for MCP).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_in_meta_is_the_parent_and_the_request_a_link() {
    let collector = Collector::start();
    let gateway = gateway(&collector, &[]).await;
    let (_, session) = opened(&gateway).await;
    let meta = json!({"traceparent": parent(true), "tracestate": "z=9", "other": [1, 2.50]});
    let received = call(&session, "received", &[], meta).await;
    let server = of_tool(SpanKind::Server, "tools/call received");
    let server = collector.span("the server span", server).await;
    assert_eq!(hex(&server.span.trace_id), TRACE);
    assert_eq!(hex(&server.span.parent_span_id), SPAN);
    let client = of_tool(SpanKind::Client, "tools/call received");
    let client = collector.span("the client span", client).await;
    let [link] = &*server.span.links else {
        panic!("one link: {:?}", server.span.links)
    };
    let linked = |span: &Span| span.span.span_id == link.span_id;
    let http = collector.span("the linked span", linked).await;
    assert_eq!(http.name(), "POST /t/{tenant}/{server}/mcp");
    assert_ne!(hex(&http.span.trace_id), TRACE);
    // Only `traceparent` is another one.
    let meta = last_meta(&received);
    let wanted =
        json!({"traceparent": client.traceparent(), "tracestate": "z=9", "other": [1, 2.50]});
    assert_eq!(meta, wanted);
}

/// The same for a call without a session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_session_is_one_trace_with_its_child() {
    let collector = Collector::start();
    let gateway = gateway(&collector, &[]).await;
    let token = App::public(&gateway, "a").await.tokens().await;
    let mut client = Modern::at(&format!("{}/t/a/x/mcp", gateway.origin()));
    client.token = Some(token.text("access_token"));
    let mut message = client.tool("received", json!({}));
    message["params"]["_meta"]["traceparent"] = json!(parent(true));
    message["params"]["_meta"]["baggage"] = json!("a=1");
    let received = text_of(&client.answer(&message).await);
    let server = of_tool(SpanKind::Server, "tools/call received");
    let server = collector.span("the server span", server).await;
    assert_eq!(hex(&server.span.trace_id), TRACE);
    assert_eq!(hex(&server.span.parent_span_id), SPAN);
    let client = of_tool(SpanKind::Client, "tools/call received");
    let client = collector.span("the client span", client).await;
    assert!(client.is_below(&server));
    let wanted = json!({"traceparent": client.traceparent(), "baggage": "a=1"});
    assert_eq!(last_meta(&received), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initialize_the_start_of_a_child_and_failures_have_spans() {
    let collector = Collector::start();
    let gateway = gateway(
        &collector,
        &[
            ("OTEL_SERVICE_NAME", "gate"),
            ("OTEL_RESOURCE_ATTRIBUTES", "region=north"),
        ],
    )
    .await;
    let (_, session) = opened(&gateway).await;
    let named = |name: &'static str| move |span: &Span| span.name() == name;
    let initialize = collector.span("initialize", named("initialize")).await;
    let start = collector.span("the start", named("start child")).await;
    let http = |span: &Span| span.span.span_id == initialize.span.parent_span_id;
    let http = collector.span("the request of initialize", http).await;
    assert!(start.is_below(&http) && initialize.is_below(&http));
    assert_eq!(start.kind(), SpanKind::Internal);
    assert!(start.span.end_time_unix_nano > start.span.start_time_unix_nano);
    assert_eq!(start.attribute("lockgate.server"), "x");
    assert_eq!(
        (http.resource("service.name"), http.resource("region")),
        ("gate", "north")
    );
    session.call("error", json!({})).await;
    let failed =
        |span: &Span| span.kind() == SpanKind::Server && span.attribute("error.type") == "-32000";
    let failed = collector.span("the failed call", failed).await;
    assert!(failed.is_error());
    // A tool without a result yet has no name.
    assert_eq!(
        (failed.name(), &*failed.attribute("gen_ai.tool.name")),
        ("tools/call", "")
    );
    session.call("exit", json!({"code": 1})).await;
    let lost = |span: &Span| {
        span.kind() == SpanKind::Client && span.attribute("error.type") == "backend_exited"
    };
    collector.span("the lost call", lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_sampled_is_passed_on_untouched() {
    let collector = Collector::start();
    let gateway = gateway(&collector, &[]).await;
    let (_, session) = opened(&gateway).await;
    let meta = json!({"traceparent": parent(false)});
    let received = call(&session, "received", &[], meta.clone()).await;
    assert_eq!(last_meta(&received), meta);
    let headers = [("traceparent", &*parent(false))];
    let received = call(&session, "received", &headers, Value::Null).await;
    assert_eq!(last_meta(&received), Value::Null);
    // A context that is none is replaced by one of the gateway.
    let received = call(&session, "received", &[], json!({"traceparent": "x"})).await;
    let client = of_tool(SpanKind::Client, "tools/call received");
    let client = collector.span("the span of the last call", client).await;
    assert_eq!(last_meta(&received)["traceparent"], *client.traceparent());
    let unsampled = |span: &Span| hex(&span.span.trace_id) == TRACE;
    assert!(!collector.spans().iter().any(unsampled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_exported_when_it_is_turned_off() {
    let collector = Collector::start();
    for off in [
        &[("OTEL_SDK_DISABLED", "true")][..],
        &[
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ],
    ] {
        let mut gateway = gateway(&collector, off).await;
        let (_, session) = opened(&gateway).await;
        let meta = json!({"traceparent": parent(true)});
        let received = call(&session, "received", &[], meta.clone()).await;
        assert_eq!(last_meta(&received), meta);
        gateway.stop().await;
    }
    assert!(collector.spans().is_empty() && collector.metrics().is_empty());
}

/// Over gRPC, compressed, with header fields; and with the same instruments as `/metrics`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_traces_are_exported_over_grpc() {
    let collector = Collector::start();
    let more = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=north"),
    ];
    let gateway = gateway(&collector, &more).await;
    let (_, session) = opened(&gateway).await;
    session.text("echo", json!({"text": "x"})).await;
    let echo = of_tool(SpanKind::Server, "tools/call echo");
    collector.span("the call", echo).await;
    until("the metrics", async || {
        let metrics = collector.metrics();
        [
            "mcp.server.operation.duration",
            "lockgate_sessions",
            "lockgate_spans_exported",
        ]
        .iter()
        .all(|name| metrics.iter().any(|metric| metric == name))
    })
    .await;
    assert!(collector.everything().contains("\"x-tenant\": \"north\""));
    let shown = gateway.ops("/metrics").await;
    assert!(shown.contains("mcp_server_operation_duration_seconds_count"));
}

/// What has ended is exported at the end, however long the delay is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_gateway_exports_the_rest() {
    let collector = Collector::start();
    let late = [
        ("OTEL_BSP_SCHEDULE_DELAY", "600000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "600000"),
    ];
    let mut gateway = gateway(&collector, &late).await;
    let (_, session) = opened(&gateway).await;
    session.text("echo", json!({"text": "x"})).await;
    gateway.stop().await;
    let echo = of_tool(SpanKind::Server, "tools/call echo");
    collector.span("the call", echo).await;
    assert!(!collector.metrics().is_empty());
}

/// A collector that is away, or takes no more, costs the telemetry only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_is_told_once_and_delays_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (at, protocol) in [
        ("http://127.0.0.1:1", "http/protobuf"),
        ("http://127.0.0.1:1", "grpc"),
        (&*silent, "http/protobuf"),
    ] {
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", at),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ];
        let config = json!({"telemetry": {"log": "info"}});
        let mut gateway = Served::with(&env, config, tenants()).await;
        let (_, session) = opened(&gateway).await;
        let failed = async || {
            session.text("echo", json!({"text": "x"})).await;
            let text = gateway.ops("/metrics").await;
            let series = "lockgate_spans_failed_total ";
            let mut lines = text.lines();
            let count = lines.find_map(|line| line.strip_prefix(series)?.parse::<u64>().ok());
            count.is_some_and(|count| count > 4)
        };
        until("failed exports", failed).await;
        let began = Instant::now();
        let log = gateway.end().await;
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
        let said = |line: &&Value| {
            let is_it = line["event"] == "export.failed";
            is_it && line["message"] == "the collector does not take telemetry"
        };
        assert_eq!(log.iter().filter(said).count(), 1, "{log:?}");
    }
}

/// No id, secret or argument is in what is exported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_id_and_no_secret_is_exported() {
    let collector = Collector::start();
    let gateway = gateway(&collector, &[]).await;
    let (token, session) = opened(&gateway).await;
    session
        .text("echo", json!({"text": "canary of an argument"}))
        .await;
    session.call("canary-of-a-tool", json!({})).await;
    session
        .ask("canary/method", json!({"uri": "canary://uri"}))
        .await;
    let client = session
        .http
        .get(format!("{}/canary-path?canary=query", gateway.origin()));
    client
        .header("User-Agent", "canary agent")
        .send()
        .await
        .unwrap();
    session.delete().await;
    let deleted = |span: &Span| span.name().starts_with("DELETE");
    collector.span("the last request", deleted).await;
    until("the metrics", async || !collector.metrics().is_empty()).await;
    let all = collector.everything();
    let id = session.id.clone().unwrap();
    for secret in ["canary", "\"ada", &token, &id, &id[..8], "127.0.0.1"] {
        // The collector's own address is in the header field of its host.
        let text = all.replace(collector.url.strip_prefix("http://").unwrap(), "");
        assert!(!text.contains(secret), "{secret}");
    }
    assert!(collector.spans().iter().any(|span| span.name() == "GET"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_lines_carry_the_trace() {
    let collector = Collector::start();
    let env = collector.variables();
    let config = json!({"telemetry": {"log": "info"}});
    let mut gateway = Served::with(&env, config, tenants()).await;
    let (_, session) = opened(&gateway).await;
    let headers = [("traceparent", &*parent(true))];
    call(&session, "echo", &headers, Value::Null).await;
    let http = |span: &Span| hex(&span.span.trace_id) == TRACE && span.name().starts_with("POST");
    let http = collector.span("the request", http).await;
    let log = gateway.end().await;
    let line = log.iter().find(|line| line["trace_id"] == TRACE);
    let line = line.expect("a line of the trace");
    assert_eq!(line["message"], "request");
    assert_eq!(line["span_id"], hex(&http.span.span_id));
    let began = log.iter().find(|line| line["message"] == "session began");
    assert!(began.unwrap()["trace_id"].is_string(), "{began:?}");
}

/// Without a sampler a busy gateway records a hundred traces a second of its own, and a hundred that
/// clients ask for; a sampler of the operator is in charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_gateway_records_some_traces_unless_it_is_told_to_record_all() {
    const COUNT: usize = 400;
    for (sampler, is_bounded) in [("", true), ("parentbased_always_on", false)] {
        let collector = Collector::start();
        let mut gateway = gateway(&collector, &[("OTEL_TRACES_SAMPLER", sampler)]).await;
        let (http, url) = (client(), format!("{}/t/a/x/mcp", gateway.origin()));
        let began = Instant::now();
        for is_asked in [false, true] {
            let asked = (0..COUNT).map(async |_| {
                let mut request = http.get(&url).header("User-Agent", "busy");
                if is_asked {
                    request = request.header("traceparent", parent(true));
                }
                within("an answer", request.send()).await.unwrap();
            });
            // Some at a time: each is a connection.
            futures_util::stream::iter(asked)
                .buffer_unordered(20)
                .count()
                .await;
        }
        let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
        gateway.stop().await;
        let spans = collector.spans();
        let of = |is_asked: bool| {
            let has = |span: &&Span| (hex(&span.span.trace_id) == TRACE) == is_asked;
            spans.iter().filter(has).count()
        };
        for count in [of(false), of(true)] {
            if is_bounded {
                assert!(
                    (1..=100 * seconds).contains(&count),
                    "{count} in {seconds} s"
                );
                assert!(count < COUNT, "{count} in {seconds} s");
            } else {
                assert_eq!(count, COUNT);
            }
        }
    }
}

/// What the SDK would ignore is a mistake with the name of the variable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_variable_prevents_the_start() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
    ] {
        let mut command = stranger(&["check"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        command.env(name, value);
        let said = Said::of(within("a check", command.output()).await.unwrap());
        assert_eq!(said.code, 2, "{name}: {}", said.err);
        assert!(said.err.contains(name), "{}", said.err);
    }
}

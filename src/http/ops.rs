//! Health, metrics and lists of children, for load balancers, scrapers and operators.
//!
//! Reports only. Not here: measurements (`telemetry`), and what an outage means for readiness
//! (`gateway::readiness`).

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::{
    edge::App,
    reply::json::{self, JSON},
};
use crate::hub::Hub;
use crate::telemetry::{Health, Metrics, Readiness};

/// Body of `/readyz`.
#[derive(Serialize)]
struct Report {
    status: &'static str,
    /// Only on the operations listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<Vec<&'static str>>,
}

/// Visibility of unavailable dependencies.
#[derive(Clone, Copy)]
enum Detail {
    Hidden,
    Shown,
}

/// Routes `/livez` and `/readyz` of the public listener.
pub(crate) fn public(health: Health) -> Router {
    probes(health, Detail::Hidden)
}

/// Routes of the operations listener, whose address is `bound`.
///
/// `/children` lists all children of all tenants with their states, and `/prepared` the packages
/// that were installed for them.
pub(crate) fn operations(
    health: Health,
    metrics: Arc<Metrics>,
    hub: Hub,
    bound: SocketAddr,
) -> App {
    let scrape = get(async |State(metrics): State<Arc<Metrics>>| {
        let mut response = Response::new(Body::from(metrics.render()));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    });
    let metrics = Router::new().route("/metrics", scrape).with_state(metrics);
    let children = get(async |State(hub): State<Hub>| {
        // The list reads a file of the kernel for each process.
        let listed = tokio::task::spawn_blocking(move || children(&hub)).await;
        list(listed.unwrap_or_default())
    });
    let prepared = get(async |State(hub): State<Hub>| {
        // Each may have the last output of an installer.
        let listed = tokio::task::spawn_blocking(move || prepared(&hub)).await;
        list(listed.unwrap_or_default())
    });
    let children = Router::new()
        .route("/children", children)
        .route("/prepared", prepared)
        .with_state(hub);
    let routes = probes(health, Detail::Shown).merge(metrics).merge(children);
    App::of_operators(routes, bound)
}

/// Makes a response from a JSON list.
fn list(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// Lists preparations, with the last output of failed ones.
fn prepared(hub: &Hub) -> String {
    let seen = hub.prepared().into_iter().map(|one| {
        let servers = one.servers.into_iter();
        let names = servers.map(|(tenant, server)| format!("{tenant}/{server}"));
        serde_json::json!({
            "digest": one.digest, "subject": one.subject, "state": one.state,
            "servers": names.collect::<Vec<_>>(), "version": one.version, "output": one.output,
        })
    });
    serde_json::Value::from(seen.collect::<Vec<_>>()).to_string()
}

/// Lists children; ages and processor times are in seconds, memory in bytes.
fn children(hub: &Hub) -> String {
    let seen = hub.children().into_iter().map(|child| {
        serde_json::json!({
            "number": child.number, "tenant": child.tenant, "server": child.server,
            "guard": child.guard, "pid": child.pid, "state": child.state.into_str(),
            "age": child.age.as_secs_f64(), "restarts": child.restarts, "calls": child.calls,
            "memory": child.memory, "cpu": child.cpu.as_secs_f64(),
            "stderr": last_lines(&child.stderr.bytes()),
        })
    });
    serde_json::Value::from(seen.collect::<Vec<_>>()).to_string()
}

/// The last lines of a child's stderr, in their order.
fn last_lines(stderr: &[u8]) -> Vec<String> {
    let last = &stderr[stderr.len().saturating_sub(LAST_BYTES)..];
    let text = String::from_utf8_lossy(last);
    let newest = text.lines().rev().take(LAST_LINES);
    let mut lines: Vec<String> = newest.map(str::to_owned).collect();
    lines.reverse();
    lines
}

/// Listed lines of a child's stderr.
const LAST_LINES: usize = 20;
/// Listed bytes of a child's stderr, of which JSON makes up to six times as many: 100 MiB of 4,000 children at most.
const LAST_BYTES: usize = 4 << 10;

fn report(health: &Health, detail: Detail) -> (StatusCode, Report) {
    let (readiness, unavailable) = health.readiness();
    let code = match readiness {
        Readiness::Ready | Readiness::Degraded => StatusCode::OK,
        Readiness::Unready | Readiness::Draining => StatusCode::SERVICE_UNAVAILABLE,
    };
    let degraded = match detail {
        Detail::Hidden => None,
        Detail::Shown => Some(unavailable),
    };
    let status = readiness.as_str();
    (code, Report { status, degraded })
}

fn probes(health: Health, detail: Detail) -> Router {
    let live = get(async || {
        respond(
            StatusCode::OK,
            &Report {
                status: "ok",
                degraded: None,
            },
        )
    });
    let ready = get(async move |State(health): State<Health>| {
        let (code, body) = report(&health, detail);
        respond(code, &body)
    });
    Router::new()
        .route("/livez", live)
        .route("/readyz", ready)
        .with_state(health)
}

fn respond(code: StatusCode, report: &Report) -> Response {
    // Strings and a list of strings always serialize.
    let mut response = json::text(code, serde_json::to_vec(report).unwrap_or_default());
    if code == StatusCode::SERVICE_UNAVAILABLE {
        // RFC 9110, section 15.6.4.
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Loss;

    fn shown(health: &Health, detail: Detail) -> (u16, String) {
        let (code, report) = report(health, detail);
        (code.as_u16(), serde_json::to_string(&report).expect("json"))
    }

    /// A child that wrote long lines had 64 KiB in the list, and six times as many in its text.
    #[test]
    fn a_child_is_listed_with_its_last_lines_within_a_bound() {
        let many: String = (0..30).map(|number| format!("{number}\n")).collect();
        let wanted: Vec<String> = (10..30).map(|number| number.to_string()).collect();
        assert_eq!(last_lines(many.as_bytes()), wanted);
        let long = ["x".repeat(64 << 10), "last".to_owned()].join("\n");
        let listed = last_lines(long.as_bytes());
        assert_eq!((listed.len(), &*listed[1]), (2, "last"));
        assert_eq!(listed.concat().len(), LAST_BYTES - 1);
    }

    #[test]
    fn readiness_names_the_worst() {
        let health = Health::default();
        let of = |code, text: &str| (code, text.to_owned());
        assert_eq!(
            shown(&health, Detail::Hidden),
            of(200, r#"{"status":"ready"}"#)
        );
        assert_eq!(
            shown(&health, Detail::Shown),
            of(200, r#"{"status":"ready","degraded":[]}"#)
        );
        health.lost("sql", Loss::Some);
        let degraded = r#"{"status":"degraded","degraded":["sql"]}"#;
        assert_eq!(shown(&health, Detail::Shown), of(200, degraded));
        health.lost("redis", Loss::All);
        assert_eq!(
            shown(&health, Detail::Hidden),
            of(503, r#"{"status":"unready"}"#)
        );
        let (code, report) = report(&health, Detail::Hidden);
        let answer = respond(code, &report);
        assert_eq!(answer.headers()[RETRY_AFTER], "1");
        health.back("redis");
        health.back("sql");
        assert!(
            !respond(StatusCode::OK, &report)
                .headers()
                .contains_key(RETRY_AFTER)
        );
        health.drain();
        assert_eq!(
            shown(&health, Detail::Hidden),
            of(503, r#"{"status":"draining"}"#)
        );
    }
}

//! Health and metrics: what a load balancer and a scraper ask.
//!
//! Only shows what others report; measures and probes nothing itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::edge::App;
use crate::hub::Hub;
use crate::telemetry::Metrics;

/// Whether this replica should get traffic; a handle over one shared state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Lock>);

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type Lock = std::sync::Mutex<Standing>;

/// How much is lost when something that we depend on is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Some requests fail; the rest is served: 200 `degraded`.
    Some,
    /// Nothing useful can be served: 503 `unready`.
    All,
}

#[derive(Debug, Default)]
struct Standing {
    /// From the first signal on.
    is_draining: bool,
    /// What is away, and what that costs.
    away: BTreeMap<&'static str, Loss>,
}

/// The body of `/readyz`.
#[derive(Serialize)]
struct Report {
    status: &'static str,
    /// Only on the operations listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<Vec<&'static str>>,
}

impl Health {
    /// From now on 503: the load balancer should look elsewhere. There is no way back.
    pub(crate) fn drain(&self) {
        self.with(|state| state.is_draining = true);
    }

    /// Something is away: a store, or a part that has not started yet.
    pub(crate) fn lost(&self, what: &'static str, loss: Loss) {
        self.with(|state| {
            state.away.insert(what, loss);
        });
    }

    /// It is back.
    pub(crate) fn back(&self, what: &'static str) {
        self.with(|state| {
            state.away.remove(what);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Standing) -> T) -> T {
        // Held for a few instructions, never across an await.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn report(&self, detail: Detail) -> (StatusCode, Report) {
        self.with(|state| {
            let (code, status) = if state.is_draining {
                (StatusCode::SERVICE_UNAVAILABLE, "draining")
            } else if state.away.values().any(|loss| *loss == Loss::All) {
                (StatusCode::SERVICE_UNAVAILABLE, "unready")
            } else if state.away.is_empty() {
                (StatusCode::OK, "ready")
            } else {
                (StatusCode::OK, "degraded")
            };
            let degraded = match detail {
                Detail::Hidden => None,
                Detail::Shown => Some(state.away.keys().copied().collect()),
            };
            (code, Report { status, degraded })
        })
    }
}

/// Whether whoever asks may know what is wrong.
#[derive(Clone, Copy)]
enum Detail {
    Hidden,
    Shown,
}

/// `/livez` and `/readyz` of the public listener.
pub(crate) fn public(health: Health) -> Router {
    probes(health, Detail::Hidden)
}

/// Everything of the operations listener, which is at `bound`.
///
/// `/children` lists every child with its state, `/prepared` what was installed for them: for
/// whoever runs the gateway, of all tenants.
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
        // It reads files of the kernel, one for each process.
        let listed = tokio::task::spawn_blocking(move || children(&hub)).await;
        let mut response = Response::new(Body::from(listed.unwrap_or_default()));
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    });
    let prepared = get(async |State(hub): State<Hub>| {
        let mut response = Response::new(Body::from(prepared(&hub)));
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    });
    let children = Router::new()
        .route("/children", children)
        .route("/prepared", prepared)
        .with_state(hub);
    let routes = probes(health, Detail::Shown).merge(metrics).merge(children);
    App::of_operators(routes, bound)
}

/// Each preparation as one object, with the last lines of one that failed.
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

/// Each child as one object; ages and processor times in seconds, memory in bytes.
fn children(hub: &Hub) -> String {
    let seen = hub.children().into_iter().map(|child| {
        let stderr = String::from_utf8_lossy(&child.stderr).into_owned();
        let last = stderr.lines().rev().take(LAST_LINES).collect::<Vec<_>>();
        serde_json::json!({
            "number": child.number, "tenant": child.tenant, "server": child.server,
            "guard": child.guard, "pid": child.pid, "state": child.state.as_str(),
            "age": child.age.as_secs_f64(), "restarts": child.restarts, "calls": child.calls,
            "memory": child.memory, "cpu": child.cpu.as_secs_f64(),
            "stderr": last.into_iter().rev().collect::<Vec<_>>(),
        })
    });
    serde_json::Value::from(seen.collect::<Vec<_>>()).to_string()
}

/// Lines of a child's stderr that are listed.
const LAST_LINES: usize = 20;

fn probes(health: Health, detail: Detail) -> Router {
    let live = get(async || {
        json(
            StatusCode::OK,
            &Report {
                status: "ok",
                degraded: None,
            },
        )
    });
    let ready = get(async move |State(health): State<Health>| {
        let (code, report) = health.report(detail);
        json(code, &report)
    });
    Router::new()
        .route("/livez", live)
        .route("/readyz", ready)
        .with_state(health)
}

fn json(code: StatusCode, report: &Report) -> Response {
    // Two strings and a list of strings: serialising them cannot fail.
    let mut response = Response::new(Body::from(serde_json::to_vec(report).unwrap_or_default()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(health: &Health, detail: Detail) -> (u16, String) {
        let (code, report) = health.report(detail);
        (code.as_u16(), serde_json::to_string(&report).expect("json"))
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
        health.back("redis");
        health.back("sql");
        health.drain();
        assert_eq!(
            shown(&health, Detail::Hidden),
            of(503, r#"{"status":"draining"}"#)
        );
    }
}

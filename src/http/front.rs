//! The HTTP skin: all routes, and what stands before them.
//!
//! `accept` owns connections, `gate` what every request passes, `mcp` the part that all MCP
//! endpoints share, with `bearer` for credentials; `legacy` and `sse_2024` are the fronts; `stream`
//! and `reply` write. Between replicas `forward` sends what belongs to another one there, over `peers`,
//! and `splice` keeps its streams going; `cluster` takes what others send, by the header of `hop`.

use super::edge::limits;
use super::edge::refusal;
use super::mcp::sse_2024;
use super::mcp::stream;
use super::mcp::streamable_http;
use super::mcp::wellknown;
use super::ops;
use super::replicas::listener;
use std::{convert::Infallible, sync::Arc};

use super::mcp::endpoint::{enter, other_method};
use ::http::{Method, StatusCode};
use axum::{
    Router, extract::Request, middleware::from_fn_with_state, response::Response, routing::get,
};
use futures_util::FutureExt;
use tower::service_fn;

use crate::{auth::Verifier, config::Config, hub::Hub, snapshot::Live, telemetry::Metrics};

/// What the routes share.
pub(crate) struct Front {
    /// The core.
    pub(crate) hub: Hub,
    /// Who decides who calls.
    pub(crate) auth: Verifier,
    /// Tenants and servers, as they are right now.
    pub(crate) live: Arc<Live>,
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// When clients come again whose connection is closed.
    pub(crate) retry: stream::Retry,
    /// The other replicas; none is one gateway alone.
    pub(crate) cluster: Option<Arc<listener::Cluster>>,
}

/// Every route of MCP endpoints. Each is one service: axum clones and boxes a layer, a choice by
/// method and a handler for each request.
pub(crate) fn mcp_routes(front: &Arc<Front>) -> Router {
    let routes = route(Router::new(), front, "mcp", mcp);
    let routes = route(routes, front, "sse", sse);
    route(routes, front, "messages", messages)
}

/// The two paths of a kind of endpoint: with tenant and server, and that of the default ones.
fn route<A>(
    routes: Router,
    front: &Arc<Front>,
    kind: &str,
    answer: fn(Arc<Front>, Request) -> A,
) -> Router
where
    A: Future<Output = Response> + Send + 'static,
{
    let front = Arc::clone(front);
    let service =
        service_fn(move |request| answer(Arc::clone(&front), request).map(Ok::<_, Infallible>));
    routes
        .route_service(&format!("/t/{{tenant}}/{{server}}/{kind}"), service.clone())
        .route_service(&format!("/{kind}"), service)
}

async fn mcp(front: Arc<Front>, request: Request) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => enter(front, request, streamable_http::get).await,
        Method::POST => enter(front, request, streamable_http::post).await,
        Method::DELETE => enter(front, request, streamable_http::delete).await,
        _ => other_method(front, request).await,
    }
}

async fn sse(front: Arc<Front>, request: Request) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => enter(front, request, sse_2024::connect).await,
        _ => other_method(front, request).await,
    }
}

async fn messages(front: Arc<Front>, request: Request) -> Response {
    match *request.method() {
        Method::POST => enter(front, request, sse_2024::post).await,
        _ => other_method(front, request).await,
    }
}

/// Every route of the public listener.
pub(crate) fn routes(front: Arc<Front>, health: ops::Health) -> Router {
    let others = Router::new()
        .route(
            &format!("{}/{{*path}}", wellknown::PROTECTED_RESOURCE),
            get(wellknown::protected_resource),
        )
        .fallback(async || refusal::refusal(StatusCode::NOT_FOUND, "not found"))
        .with_state(Arc::clone(&front));
    mcp_routes(&front)
        .merge(limited(others, front))
        .merge(ops::public(health))
}

/// Routes of others, under the limits of every route.
pub(crate) fn limited(routes: Router, front: Arc<Front>) -> Router {
    routes.layer(from_fn_with_state(front, limits::pass))
}

//! All routes of the gateway, by listener.

use std::{convert::Infallible, sync::Arc};

use ::http::{Method, StatusCode};
use axum::{
    Router, extract::Request, middleware::from_fn_with_state, response::Response, routing::get,
};
use futures_util::FutureExt;
use tower::service_fn;

use super::{
    admission::{Front, enter, other_method, rates},
    edge::App,
    mcp::{sse_2024, streamable_http, wellknown},
    ops,
    peers::Cluster,
    reply::refusal::refusal,
};
use crate::endpoint::{Endpoint, Kind, PROTECTED_RESOURCE};
use crate::telemetry::Health;

/// Routes of MCP endpoints. Each route is one service, because axum clones and boxes a layer, a
/// method router and a handler for each request.
fn mcp_routes(front: &Arc<Front>) -> Router {
    let routes = route(Router::new(), front, Kind::Mcp, mcp);
    let routes = route(routes, front, Kind::Sse, sse);
    route(routes, front, Kind::Messages, messages)
}

/// Adds the two paths of a kind of endpoint: one with tenant and server, and one for the default
/// server.
fn route<F>(
    routes: Router,
    front: &Arc<Front>,
    kind: Kind,
    handler: fn(Arc<Front>, Request) -> F,
) -> Router
where
    F: Future<Output = Response> + Send + 'static,
{
    let front = Arc::clone(front);
    let service =
        service_fn(move |request| handler(Arc::clone(&front), request).map(Ok::<_, Infallible>));
    routes
        .route_service(
            &Endpoint::new("{tenant}", "{server}", kind).path(),
            service.clone(),
        )
        .route_service(&kind.alias(), service)
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

/// Routes of the public listener.
pub(crate) fn public(front: Arc<Front>, health: Health) -> Router {
    let others = Router::new()
        .route(
            &format!("{PROTECTED_RESOURCE}/{{*path}}"),
            get(wellknown::protected_resource),
        )
        .fallback(async || refusal(StatusCode::NOT_FOUND, "not found"))
        .with_state(Arc::clone(&front));
    mcp_routes(&front)
        .merge(limited(others, front))
        .merge(ops::public(health))
}

/// Routes of the cluster listener: the MCP endpoints, for requests of other replicas.
pub(crate) fn cluster(front: &Arc<Front>, cluster: Arc<Cluster>) -> App {
    let routes = mcp_routes(front).fallback(async || refusal(StatusCode::NOT_FOUND, "not found"));
    App::of_replicas(routes, cluster)
}

/// Puts routes that are no MCP endpoints under the rate limit of client addresses.
pub(crate) fn limited(routes: Router, front: Arc<Front>) -> Router {
    routes.layer(from_fn_with_state(front, rates::limit))
}

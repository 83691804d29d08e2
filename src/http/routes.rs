//! All routes of the gateway, by listener.

use std::sync::Arc;

use ::http::{Method, StatusCode, Uri};
use axum::{
    Router,
    extract::{Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{
    admission::{Front, enter, headers, other_method, rates},
    edge::{App, Endpoints, Routes},
    mcp::{sse_2024, streamable_http, wellknown},
    ops,
    peers::Cluster,
    reply::{McpRefusal, page, refusal::refusal},
};
use crate::base::memory::pinned;
use crate::endpoint::{self, Kind, PROTECTED_RESOURCE};
use crate::telemetry::Health;

/// The MCP endpoints, by kind: each has a path with tenant and server, and one for the default server.
fn endpoints(front: &Arc<Front>) -> Endpoints {
    let front = Arc::clone(front);
    Arc::new(move |kind, request| {
        let front = Arc::clone(&front);
        match kind {
            Kind::Mcp => pinned(|| mcp(front, request)),
            Kind::Sse => pinned(|| sse(front, request)),
            Kind::Messages => pinned(|| messages(front, request)),
        }
    })
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
pub(crate) fn public(front: Arc<Front>, health: Health) -> Routes {
    let others = Router::new()
        .route(
            &format!("{PROTECTED_RESOURCE}/{{*path}}"),
            get(wellknown::protected_resource),
        )
        .route("/", get(home))
        .fallback(unknown)
        .with_state(Arc::clone(&front));
    let endpoints = endpoints(&front);
    Routes::new(endpoints, limited(others, front).merge(ops::public(health)))
}

/// A person who opens the gateway itself is told what it is.
async fn home(State(front): State<Arc<Front>>, request: Request) -> Response {
    let config = &front.config;
    if page::is_browser(request.method(), request.headers()) {
        let place = (request.uri(), request.headers());
        let (site, url) = headers::site(config, request.extensions(), place);
        return page::home(site.has_short_urls(), &url);
    }
    refusal(StatusCode::NOT_FOUND, "not found")
}

/// A path without a route. One that is an endpoint's but for a slash or its last segment has a text that says
/// so, whether the server exists or not.
async fn unknown(uri: Uri) -> Response {
    let path = uri.path();
    let bare = path.strip_suffix('/');
    let text = if bare.and_then(Kind::served).is_some() {
        "no such endpoint: leave out the slash at the end of the URL"
    } else if endpoint::is_unfinished(path) {
        endpoint::UNFINISHED
    } else {
        return refusal(StatusCode::NOT_FOUND, "not found");
    };
    McpRefusal::http(StatusCode::NOT_FOUND, text).into_response()
}

/// Routes of the cluster listener: the MCP endpoints, for requests of other replicas.
pub(crate) fn cluster(front: &Arc<Front>, cluster: Arc<Cluster>) -> App {
    let others = Router::new().fallback(async || refusal(StatusCode::NOT_FOUND, "not found"));
    App::of_replicas(Routes::new(endpoints(front), others), cluster)
}

/// Puts routes that are no MCP endpoints under the rate limit of client addresses.
pub(crate) fn limited(routes: Router, front: Arc<Front>) -> Router {
    routes.layer(from_fn_with_state(front, rates::limit))
}

/// Puts the routes of the authorization servers under that limit, and under that of their turns.
pub(crate) fn authorization(routes: Router, front: Arc<Front>) -> Router {
    let routes = routes.layer(from_fn_with_state(Arc::clone(&front), rates::take_turns));
    limited(routes, front)
}

//! Routes of one listener, whose panics end one request only.
//!
//! Not here: which routes there are (`http::routes`).

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use http::header::{ALLOW, RETRY_AFTER};
use http::{HeaderValue, Method, Uri};
use tower::Service;

use crate::endpoint::Kind;
use crate::http::reply::refusal;

/// Routes of one listener; a handle.
#[derive(Clone)]
pub(crate) struct Routes {
    endpoints: Option<Endpoints>,
    others: Router,
}

/// The MCP endpoints. They are no routes of axum, which clones and boxes a route several times for
/// each request.
pub(crate) type Endpoints = Arc<dyn Fn(Kind, Request) -> Answering + Send + Sync>;

/// The response to a request, under way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

impl From<Router> for Routes {
    fn from(others: Router) -> Self {
        Self {
            endpoints: None,
            others,
        }
    }
}

impl Routes {
    /// Makes routes with MCP endpoints.
    pub(crate) fn new(endpoints: Endpoints, others: Router) -> Self {
        let endpoints = Some(endpoints);
        Self { endpoints, others }
    }

    /// Adds routes.
    pub(crate) fn merge(self, others: Router) -> Self {
        Self {
            others: self.others.merge(others),
            ..self
        }
    }

    /// Passes a request to its route, and turns a panic into a response.
    pub(super) async fn call_safely(&self, request: Request) -> Response {
        let response = AssertUnwindSafe(self.call(request));
        response.catch_unwind().await.unwrap_or_else(panic_response)
    }

    /// Returns the methods that the path of `uri` takes, in the form of `Allow`; none of a path without a route.
    pub(super) async fn methods(&self, uri: &Uri) -> HeaderValue {
        if self.endpoints.is_some()
            && let Some(kind) = Kind::served(uri.path())
        {
            return HeaderValue::from_static(kind.methods());
        }
        // The router knows them: it refuses a method that no route has without running any of its handlers. The
        // request has no client, so no rate counts it.
        let mut probe = Request::new(Body::empty());
        *probe.method_mut() = Method::TRACE;
        *probe.uri_mut() = uri.clone();
        let Ok(refused) = self.others.clone().call(probe).await;
        let methods = refused.headers().get(ALLOW);
        methods.map_or(HeaderValue::from_static(""), HeaderValue::clone)
    }

    /// Passes a request to its route.
    pub(super) async fn call(&self, request: Request) -> Response {
        if let Some(endpoints) = &self.endpoints
            && let Some(kind) = Kind::served(request.uri().path())
        {
            return endpoints(kind, request).await;
        }
        let response = self.others.clone().call(request).await;
        response.unwrap_or_else(|never| match never {})
    }
}

/// Makes the response after a panic. It is a 503, because the gateway promises never to send a 500.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is tower-http's"
)]
pub(super) fn panic_response(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    tracing::error!(panic = text, "a route panicked");
    let mut response = refusal::of_bug();
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

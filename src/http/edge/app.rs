//! Routes of one listener, behind the gate of that listener.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method};
use tower_http::catch_panic::CatchPanicLayer;

use super::gate::Gate;
use super::panic::{called, panicked};
use super::{hops, operators};
use crate::http::peers::Cluster;

/// What one listener serves. A handle.
///
/// What stands before is no layer of the router: axum clones and boxes a layer for each route and request.
#[derive(Clone)]
pub(crate) struct App {
    routes: Router,
    before: Before,
}

/// What every request of a listener passes first.
#[derive(Clone)]
enum Before {
    /// The check of who may be an operator, with the address that the listener has.
    Operators(SocketAddr),
    Gate(Arc<Gate>),
    /// The check of what another replica says.
    Hops(Arc<Cluster>),
}

impl App {
    /// Routes that need no gate: nobody but operators reaches the listener at `bound`, save web pages
    /// in their browsers. With the net for panics.
    pub(crate) fn of_operators(routes: Router, bound: SocketAddr) -> Self {
        Self {
            routes: routes.layer(CatchPanicLayer::custom(panicked)),
            before: Before::Operators(bound),
        }
    }

    /// What other replicas ask for.
    pub(crate) fn of_replicas(routes: Router, cluster: Arc<Cluster>) -> Self {
        let before = Before::Hops(cluster);
        Self { routes, before }
    }

    /// Routes behind `gate`.
    pub(crate) fn of_public(routes: Router, gate: Arc<Gate>) -> Self {
        let before = Before::Gate(gate);
        Self { routes, before }
    }

    /// Answers one request that came from `peer`.
    pub(crate) async fn answer(self, peer: SocketAddr, request: Request) -> Response {
        let Self { routes, before } = self;
        let is_head = request.method() == Method::HEAD;
        let response = match before {
            Before::Operators(bound) => match operators::check(bound, &request) {
                Ok(()) => called(routes, request).await,
                Err(refused) => refused,
            },
            Before::Gate(gate) => gate.pass(peer, request, routes).await,
            Before::Hops(cluster) => hops::pass(&cluster, request, routes).await,
        };
        if is_head {
            without_body(response)
        } else {
            response
        }
    }
}

/// The answer to HEAD: what GET would say, save its body. Whatever refuses need not know; hyper itself
/// keeps the body back over HTTP/1 only, and over HTTP/2 that is an error of the protocol.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(length @ 1..) = body.size_hint().exact() {
        let said = head.headers.entry(CONTENT_LENGTH);
        said.or_insert(HeaderValue::from(length));
    }
    Response::from_parts(head, Body::empty())
}

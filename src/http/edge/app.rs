//! Routes of one listener, behind its gate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method};
use tower_http::catch_panic::CatchPanicLayer;

use super::gate::{Admitted, Gate};
use super::routes::{Routes, panic_response};
use super::{hops, operators};
use crate::base::budget::Budget;
use crate::http::peers::Cluster;

/// Routes of one listener with its gate; a handle.
///
/// The gate is no layer of the router, because axum clones and boxes a layer for each route and
/// request.
#[derive(Clone)]
pub(crate) struct App {
    routes: Routes,
    gate: ListenerGate,
}

/// Gate of a listener, which every request passes first.
#[derive(Clone)]
enum ListenerGate {
    /// Gate for operators, with the address of the listener.
    Operators(SocketAddr),
    Public(Arc<Gate>),
    /// Gate for other replicas.
    Replicas(Arc<Cluster>),
}

/// A request that has been received, until it is answered.
pub(crate) struct Received {
    request: Request,
    /// What the gate of the public listener knows of it.
    admitted: Option<Admitted>,
}

impl App {
    /// Makes the app of a listener for operators. Only operators and web pages in their browsers can
    /// reach that listener.
    pub(crate) fn of_operators(routes: Router, bound: SocketAddr) -> Self {
        Self {
            routes: routes.layer(CatchPanicLayer::custom(panic_response)).into(),
            gate: ListenerGate::Operators(bound),
        }
    }

    /// Makes the app of the cluster listener.
    pub(crate) fn of_replicas(routes: Routes, cluster: Arc<Cluster>) -> Self {
        let gate = ListenerGate::Replicas(cluster);
        Self { routes, gate }
    }

    /// Makes the app of the public listener.
    pub(crate) fn of_public(routes: impl Into<Routes>, gate: Arc<Gate>) -> Self {
        let (routes, gate) = (routes.into(), ListenerGate::Public(gate));
        Self { routes, gate }
    }

    /// Returns the share that counts what a peer sends ahead of its requests; none of a listener that is not for
    /// everybody.
    pub(crate) fn share_of_peer(&self, peer: IpAddr) -> Option<Arc<Budget>> {
        match &self.gate {
            ListenerGate::Public(gate) => Some(gate.share_of_peer(peer)),
            ListenerGate::Operators(_) | ListenerGate::Replicas(_) => None,
        }
    }

    /// Counts a connection that ends because that share has no room.
    pub(crate) fn count_refused(&self) {
        match &self.gate {
            ListenerGate::Public(gate) => gate.count_refused(),
            ListenerGate::Operators(_) | ListenerGate::Replicas(_) => {}
        }
    }

    /// Receives a request from `peer`, before anything is waited for.
    ///
    /// # Errors
    ///
    /// The answer to a request that is refused at once.
    pub(crate) fn receive(&self, peer: SocketAddr, request: Request) -> Result<Received, Response> {
        let is_head = request.method() == Method::HEAD;
        let received = match &self.gate {
            ListenerGate::Operators(_) => Ok((request, None)),
            ListenerGate::Public(gate) => {
                let received = gate.receive(peer.ip(), request);
                received.map(|(request, admitted)| (request, Some(admitted)))
            }
            ListenerGate::Replicas(cluster) => {
                hops::receive(cluster, peer, request).map(|request| (request, None))
            }
        };
        let received = received.map_err(|refused| of_method(is_head, refused));
        received.map(|(request, admitted)| Received { request, admitted })
    }

    /// Answers one request from `peer`.
    pub(crate) async fn answer(&self, peer: SocketAddr, received: Received) -> Response {
        let Self { routes, gate } = self;
        let Received { request, admitted } = received;
        let is_head = request.method() == Method::HEAD;
        let response = match gate {
            ListenerGate::Operators(bound) => match operators::check(*bound, &request) {
                Ok(()) => routes.call(request).await,
                Err(refused) => refused,
            },
            ListenerGate::Public(gate) => {
                let admitted = match admitted {
                    Some(admitted) => Ok((request, admitted)),
                    None => gate.receive(peer.ip(), request),
                };
                match admitted {
                    Ok((request, admitted)) => gate.pass(request, admitted, routes).await,
                    Err(refused) => refused,
                }
            }
            ListenerGate::Replicas(cluster) => hops::pass(cluster, peer, request, routes).await,
        };
        of_method(is_head, response)
    }
}

/// Turns a response into that of the method of its request.
fn of_method(is_head: bool, response: Response) -> Response {
    if is_head {
        without_body(response)
    } else {
        response
    }
}

/// Turns a response into one to HEAD: the same header fields, but no body.
///
/// Done here for all responses, refusals included. hyper drops the body over HTTP/1 only, and over
/// HTTP/2 a body is a protocol error.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(length @ 1..) = body.size_hint().exact() {
        let field = head.headers.entry(CONTENT_LENGTH);
        field.or_insert(HeaderValue::from(length));
    }
    Response::from_parts(head, Body::empty())
}

//! What a replica that is about to end no longer begins: sessions (DESIGN section 5, "SIGTERM" 1).
//!
//! Another one begins them, by a hop: the client that came here, because its load balancer does not
//! know yet, notices nothing, and its child does not end with this replica. Where there is no other,
//! they begin here as ever, until the listener closes.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::Method;

use super::request::{Errand, Missed, Parcel, busy, not_here};
use crate::endpoint;
use crate::http::{
    admission::{Admitted, Front, body},
    peers::{Cluster, Hop, NotSent},
};
use crate::protocol::{Body as Said, Kind, Method as Asked};

/// Gives a request without a session back that is to be served here; else its answer.
pub(crate) async fn place(
    front: &Arc<Front>,
    cluster: &Arc<Cluster>,
    admitted: &Admitted,
    request: Request,
) -> Result<Request, Response> {
    let kind = endpoint::Kind::of(request.uri().path());
    let is_2024 = request.method() == Method::GET && kind == Some(endpoint::Kind::Sse);
    let is_begun = is_2024 || request.method() == Method::POST;
    if !front.hub.is_closed() || !is_begun {
        return Ok(request);
    }
    if request.extensions().get::<Hop>().is_some() {
        return Err(not_here());
    }
    let successors = front.hub.successors().await;
    if successors.is_empty() {
        return Ok(request);
    }
    let (parts, unread) = request.into_parts();
    let body = body::whole(unread, front.config.http.max_body).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let is_initialize = Said::parse(body.clone()).is_ok_and(|said| {
        matches!(said, Said::One(message)
            if message.method() == Asked::Initialize && message.kind() == Kind::Request)
    });
    if is_2024 || is_initialize {
        let errand = Errand {
            front: Arc::clone(front),
            cluster: Arc::clone(cluster),
            access: admitted.access.clone(),
            session: String::new(),
            parcel: Parcel::of(&parts, body.clone()),
        };
        for successor in successors {
            let answer = tokio::select! {
                answer = errand.hop(&successor, &errand.parcel) => answer,
                () = cluster.halt.cancelled() => return Err(busy()),
            };
            match answer {
                Ok(answer) => return Err(errand.relay(answer).await.unwrap_or_else(|_| busy())),
                // It may have begun one: its client has no id of that, and comes again.
                Err(Missed::Not(NotSent::Broken | NotSent::Silent)) => return Err(busy()),
                Err(_) => {}
            }
        }
    }
    Ok(Request::from_parts(parts, Body::from(body)))
}

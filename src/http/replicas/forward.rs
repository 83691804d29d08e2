//! Forwarding of requests to the session owner, with retries.
//!
//! A request is forwarded before any route reads it, and the client cannot tell the owner's response
//! from one of this replica. A request that no replica has taken is sent once more. A request that
//! may have been taken is never sent again, unless it has no call and the replica that may have taken
//! it has ended.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use http::{Method, StatusCode};
use tokio::time::{Instant, timeout};

use super::{
    draining, relay,
    request::{Forwarding, HopError, OWNER_UNREACHABLE, not_owner, owner_unreachable},
};
use crate::http::{
    admission::{Admitted, Front, body, headers},
    peers::{BrokenResponse, Cluster, Hop, ResponseBody, SendError},
    reply::{McpRefusal, event_stream, json},
};
use crate::{
    auth::Access,
    base::memory::pinned,
    endpoint,
    error::Error,
    hub::ownership::{LookupSource, Place},
    protocol::{Body as Messages, LAST_EVENT_ID, event::push_message},
    state::Replica,
};

/// Forwards a request whose session another replica owns.
///
/// Returns the request if it is to be served here, and otherwise the response as an error. Call it
/// before the body is read. `session_of` returns the session that the request names; a request
/// without a session stays here unless this replica is draining.
pub(crate) async fn to_owner(
    front: &Arc<Front>,
    admitted: &Admitted,
    session_of: impl FnOnce(&Request) -> Option<String>,
    request: Request,
) -> Result<Request, Response> {
    let Some(cluster) = &front.cluster else {
        return Ok(request);
    };
    let Some(session) = session_of(&request) else {
        return Box::pin(draining::to_successor(front, cluster, admitted, request)).await;
    };
    let is_hop = request.extensions().get::<Hop>().is_some();
    let is_resume = request.headers().contains_key(LAST_EVENT_ID);
    let owner = match other_owner(front, &admitted.access, &session, LookupSource::Cached).await {
        Ok(None) => return Ok(request),
        // A draining replica claims no sessions; the replica that sent the hop may.
        Ok(Some(_)) | Err(Error::Draining) if is_hop => return Err(not_owner()),
        Ok(Some(owner)) => Ok(owner),
        Err(error) if is_hop || !(is_resume || matches!(error, Error::Draining)) => {
            let (parts, unread) = request.into_parts();
            return Err(body::refuse(error.into(), &parts.headers, unread).await);
        }
        Err(error) => Err(error),
    };
    // Boxed, until it is over: a request that is served here keeps no room for it.
    pinned(|| forward(front, cluster, admitted, (session, owner), request)).await
}

/// Forwards a request to the owner of its session, or to what is next after the error.
async fn forward(
    front: &Arc<Front>,
    cluster: &Arc<Cluster>,
    admitted: &Admitted,
    (session, owner): (String, Result<Replica, Error>),
    request: Request,
) -> Result<Request, Response> {
    let owner = match owner {
        // This replica claims no more sessions; a successor does.
        Err(Error::Draining) => front.hub.successors().await.pop().ok_or(Error::Draining),
        owner => owner,
    };
    let (parts, unread) = request.into_parts();
    // The whole body is read first: it may have to be sent again, and if the owner is lost, each
    // JSON-RPC request in it gets an error with its id.
    let body = body::counted(front, &admitted.access, unread).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let copied = (&parts, body.clone());
    let forwarding = Forwarding::new((front, cluster), admitted, session, copied).await?;
    let answer = async {
        match owner {
            Ok(owner) => forwarding.send_with_retries(owner).await,
            Err(error) => Some(forwarding.without_owner(error).await),
        }
    };
    let response = tokio::select! {
        response = answer => response,
        () = cluster.halt.cancelled() => Some(forwarding.owner_lost()),
    };
    match response {
        Some(response) => Err(response),
        None => Ok(Request::from_parts(parts, Body::from(body))),
    }
}

/// Finds the other replica that owns a session; `None` if the request is to be served, or refused,
/// here.
async fn other_owner(
    front: &Front,
    access: &Access,
    session: &str,
    look: LookupSource,
) -> Result<Option<Replica>, Error> {
    match front.hub.locate_or_claim(access, session, look).await {
        Ok(Place::There(owner)) => Ok(Some(owner)),
        // The route refuses an unknown session itself, and `initialize` needs none.
        Ok(Place::Here) | Err(Error::NoSession) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Forwarding {
    /// Returns the response of the owner, or of the next owner; `None` if that is this replica.
    async fn send_with_retries(&self, mut owner: Replica) -> Option<Response> {
        let (mut tries, deadline) = (0, Instant::now() + RELEASE_TIMEOUT);
        while tries < TRIES {
            tries += 1;
            let error = match self.send(&owner).await {
                Ok(answer) => {
                    if answer.status().is_success() && !self.session.is_empty() {
                        self.front.hub.owner_answered(&self.session, &owner);
                    }
                    match self.relay(answer).await {
                        Ok(response) => return Some(response),
                        Err(BrokenResponse) => HopError::Send(SendError::Broken),
                    }
                }
                Err(error) => error,
            };
            let before = owner.clone();
            let look = match error {
                HopError::Send(SendError::Full) => break,
                HopError::Send(SendError::Broken) if self.may_follow(&owner).await => {
                    LookupSource::OwnerRefused(owner)
                }
                // A repeated GET has no second effect.
                HopError::Send(SendError::Broken | SendError::Silent)
                    if self.request.method != Method::GET =>
                {
                    return Some(self.owner_lost());
                }
                error => error.look(owner),
            };
            match other_owner(&self.front, &self.access, &self.session, look).await {
                Ok(Some(next)) => {
                    // The replica denies ownership and the directory confirms it: the replica is
                    // about to release the session.
                    let is_denied = matches!(error, HopError::NotOwner | HopError::Replaced(_));
                    let is_releasing = is_denied && next == before;
                    if self.request.is_resume() && next == before && !is_releasing {
                        break;
                    }
                    if is_releasing && Instant::now() < deadline {
                        tries = 1;
                        tokio::time::sleep(RELEASE_POLL).await;
                    }
                    owner = next;
                }
                Ok(None) => return None,
                Err(Error::Draining) => {
                    let mut others = self.front.hub.successors().await.into_iter();
                    let Some(next) = others.find(|next| *next != before) else {
                        return Some(self.without_owner(Error::Draining).await);
                    };
                    owner = next;
                }
                Err(error) => return Some(self.without_owner(error).await),
            }
        }
        Some(self.without_owner(OWNER_UNREACHABLE).await)
    }

    /// Returns whether a request that `owner` may have taken may go to the next owner of its session:
    /// it has no call, and `owner` has ended, so that what it did with the request has ended with it.
    ///
    /// A client whose `notifications/initialized` breaks off would have no session, and has done
    /// nothing wrong.
    async fn may_follow(&self, owner: &Replica) -> bool {
        self.request.owner_lost_errors().is_empty()
            && self.cluster.peers.refuses(&owner.address).await
    }

    /// Makes one attempt. A resume has a deadline, because the log can serve it without the owner.
    async fn send(&self, owner: &Replica) -> Result<http::Response<ResponseBody>, HopError> {
        let hop = self.hop(owner, &self.request);
        if !self.request.is_resume() {
            return hop.await;
        }
        let late = Err(HopError::Send(SendError::Broken));
        timeout(RESUME_TIMEOUT, hop).await.unwrap_or(late)
    }

    /// Makes the response while the owner cannot be reached. A resume is served from the log.
    async fn without_owner(&self, error: Error) -> Response {
        if self.request.is_resume() && matches!(error, Error::Busy { .. }) {
            return relay::from_log(self.clone())
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        let id = body::request_id(&self.access, self.request.body.clone()).await;
        let refused = McpRefusal::from(error).answering(id.as_deref());
        refused.into_response()
    }

    /// Makes the response to a request that may have been taken by an owner that is gone.
    pub(super) fn owner_lost(&self) -> Response {
        let lines = self.request.owner_lost_errors();
        let is_2024 = self.request.kind() == Some(endpoint::Kind::Messages);
        if lines.is_empty() {
            return owner_unreachable();
        }
        if is_2024 {
            // Results of its calls have another connection.
            let id = body::id_in(Messages::parse(self.request.body.clone()));
            let lost = McpRefusal::from(Error::Lost).answering(id.as_deref());
            return lost.into_response();
        }
        if !headers::accepts(&self.request.headers).json {
            let mut events = BytesMut::new();
            for line in &lines {
                push_message(&mut events, "", line);
            }
            return event_stream::event_stream(Body::from(events.freeze()));
        }
        let is_batch = self.request.body.trim_ascii_start().starts_with(b"[");
        let body = match lines.as_slice() {
            [line] if !is_batch => line.clone(),
            lines => [b"[", &*lines.join(&b","[..]), b"]"].concat().into(),
        };
        json::text(StatusCode::OK, body)
    }
}

/// Attempts per request: one, and one more if no replica took it.
const TRIES: usize = 2;
/// Time limit for a replica to release a session.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks for that release.
const RELEASE_POLL: Duration = Duration::from_millis(20);
/// Time limit for an owner to attach a resumed connection: longer than a read of the log, and much
/// shorter than the detection of a frozen replica.
const RESUME_TIMEOUT: Duration = Duration::from_secs(1);

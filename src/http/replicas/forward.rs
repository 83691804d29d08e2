//! Forwarding: sends a request for a session of another replica to the owner, and its answer back.
//!
//! A request goes on before any route has read it, and comes back as if the owner were here. A
//! request that no replica has taken is sent once more; one that may have been taken never is.

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
    request::{Errand, Missed, Parcel, UNREACHED, busy, not_here},
};
use crate::http::{
    admission::{Admitted, Front, body, headers},
    peers::{Answer, Cut, Hop, NotSent},
    reply::{Failure, event_stream, json},
};
use crate::{
    auth::Access,
    endpoint,
    error::Error,
    hub::ownership::{Look, Place},
    protocol::{LAST_EVENT_ID, event::push_message},
    state::Replica,
};

/// Gives a request back that is to be served here; else its answer.
///
/// Call it before anything of the body is read. `session_of` finds the session that a request
/// names; one that names none stays here.
pub(crate) async fn place(
    front: &Arc<Front>,
    admitted: &Admitted,
    session_of: impl FnOnce(&Request) -> Option<String>,
    request: Request,
) -> Result<Request, Response> {
    let Some(cluster) = &front.cluster else {
        return Ok(request);
    };
    let Some(session) = session_of(&request) else {
        return draining::place(front, cluster, admitted, request).await;
    };
    let is_hop = request.extensions().get::<Hop>().is_some();
    let is_resume = request.headers().contains_key(LAST_EVENT_ID);
    let owner = match owner(front, &admitted.access, &session, Look::Known).await {
        Ok(None) => return Ok(request),
        // A replica that ends claims nothing; whoever sent it here may.
        Ok(Some(_)) | Err(Error::Draining) if is_hop => return Err(not_here()),
        Ok(Some(owner)) => Ok(owner),
        Err(error) if is_hop || !(is_resume || matches!(error, Error::Draining)) => {
            return Err(Failure::from(error).into_response());
        }
        Err(error) => Err(error),
    };
    let owner = match owner {
        // This replica claims nothing any more; that one does.
        Err(Error::Draining) => front.hub.successors().await.pop().ok_or(Error::Draining),
        owner => owner,
    };
    let (parts, unread) = request.into_parts();
    // Whole before it leaves: it may have to be sent once more, and if the owner is lost with it, its
    // requests are to be answered by their ids.
    let body = body::whole(unread, front.config.http.max_body).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let errand = Errand {
        front: Arc::clone(front),
        cluster: Arc::clone(cluster),
        access: admitted.access.clone(),
        session,
        parcel: Parcel::of(&parts, body.clone()),
    };
    let answering = async {
        match owner {
            Ok(owner) => errand.run(owner).await,
            Err(error) => Some(errand.refused(error).await),
        }
    };
    let ran = tokio::select! {
        ran = answering => ran,
        () = cluster.halt.cancelled() => Some(errand.lost()),
    };
    match ran {
        Some(answer) => Err(answer),
        None => Ok(Request::from_parts(parts, Body::from(body))),
    }
}

/// The other replica that owns a session; none if it is to be served, or refused, here.
async fn owner(
    front: &Front,
    access: &Access,
    session: &str,
    look: Look,
) -> Result<Option<Replica>, Error> {
    match front.hub.locate(access, session, look).await {
        Ok(Place::There(owner)) => Ok(Some(owner)),
        // The route says so, in its own words; `initialize` needs no session.
        Ok(Place::Here) | Err(Error::NoSession) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Errand {
    /// The answer of the owner, or of whoever owns the session then; none if that is here.
    async fn run(&self, mut owner: Replica) -> Option<Response> {
        let (mut tries, deadline) = (0, Instant::now() + PATIENCE);
        while tries < TRIES {
            tries += 1;
            let missed = match self.sent(&owner).await {
                Ok(answer) => match self.relay(answer).await {
                    Ok(response) => return Some(response),
                    Err(Cut) => Missed::Not(NotSent::Broken),
                },
                Err(missed) => missed,
            };
            let before = owner.clone();
            let look = match missed {
                Missed::Not(NotSent::Full) => break,
                // To listen once more does nothing twice.
                Missed::Not(NotSent::Broken | NotSent::Silent)
                    if self.parcel.method != Method::GET =>
                {
                    return Some(self.lost());
                }
                missed => missed.look(owner),
            };
            match self::owner(&self.front, &self.access, &self.session, look).await {
                Ok(Some(next)) => {
                    // It says that it is not, and the directory that it is: it is about to let go.
                    let is_leaving = missed == Missed::Moved && next == before;
                    if self.parcel.is_resume() && next == before && !is_leaving {
                        break;
                    }
                    if is_leaving && Instant::now() < deadline {
                        tries = 1;
                        tokio::time::sleep(LEAVING).await;
                    }
                    owner = next;
                }
                Ok(None) => return None,
                Err(Error::Draining) => {
                    let mut others = self.front.hub.successors().await.into_iter();
                    let Some(next) = others.find(|next| *next != before) else {
                        return Some(self.refused(Error::Draining).await);
                    };
                    owner = next;
                }
                Err(error) => return Some(self.refused(error).await),
            }
        }
        Some(self.refused(UNREACHED).await)
    }

    /// One attempt of [`Self::run`]. What only reads on is in the log, if the owner takes too long.
    async fn sent(&self, owner: &Replica) -> Result<http::Response<Answer>, Missed> {
        let hop = self.hop(owner, &self.parcel);
        if !self.parcel.is_resume() {
            return hop.await;
        }
        let late = Err(Missed::Not(NotSent::Broken));
        timeout(RESUME, hop).await.unwrap_or(late)
    }

    /// The answer while the owner cannot be reached: a stream can be read without it.
    async fn refused(&self, error: Error) -> Response {
        if self.parcel.is_resume() && matches!(error, Error::Busy { .. }) {
            return relay::read_on(self.clone())
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        Failure::from(error).into_response()
    }

    /// The answer to a request that may have been taken, and whose owner is gone.
    fn lost(&self) -> Response {
        let lines = self.parcel.losses();
        let is_2024 = self.parcel.kind() == Some(endpoint::Kind::Messages);
        if lines.is_empty() || is_2024 {
            return busy();
        }
        if !headers::accepts(&self.parcel.headers).json {
            let mut events = BytesMut::new();
            for line in &lines {
                push_message(&mut events, "", line);
            }
            return event_stream::event_stream(Body::from(events.freeze()));
        }
        let is_batch = self.parcel.body.trim_ascii_start().starts_with(b"[");
        let body = match lines.as_slice() {
            [line] if !is_batch => line.clone(),
            lines => [b"[", &*lines.join(&b","[..]), b"]"].concat().into(),
        };
        json::text(StatusCode::OK, body)
    }
}

/// A request is sent once, and once more if nobody took it.
const TRIES: usize = 2;
/// How long a replica may take to let go of a session, and between two looks whether it has.
const PATIENCE: Duration = Duration::from_secs(1);
const LEAVING: Duration = Duration::from_millis(20);
/// How long an owner may take to attach a connection that reads on: longer than its own look into
/// the log, and much shorter than a frozen one takes to be noticed.
const RESUME: Duration = Duration::from_secs(1);

//! A session of a revision: initialize, requests, the listener stream, and its end.

use std::time::Duration;

use serde_json::Value as Json;

use super::{
    causes::{self, Finding, failed},
    message::{ACCEPT, Session, initialize, initialized, ping},
    stream::{Watched, watch},
    visitor::{Answer, Ask, Visitor},
};
use crate::protocol::{LAST_EVENT_ID, SESSION_ID};

/// How thoroughly a session is examined.
#[derive(Clone, Copy)]
pub(super) enum Depth {
    /// Its requests.
    Requests,
    /// Its streams too, each watched for this time, and a large request.
    Streams(Duration),
}

/// Examines a session of a revision; the result is a note, or the first thing that is wrong.
pub(super) async fn examine(
    visitor: &mut Visitor,
    revision: &str,
    depth: Depth,
) -> Result<String, Finding> {
    let session = begin(visitor, revision).await?;
    let examined = inside(visitor, &session, depth).await;
    // Whatever was found, nothing is left behind.
    let ended = end(visitor, &session).await;
    let mut notes = examined?;
    ended?;
    if session.revision != revision {
        notes.insert(0, format!("the server answers with {}", session.revision));
    }
    Ok(notes.join("; "))
}

/// Examines what is inside of a session, and returns notes.
async fn inside(
    visitor: &mut Visitor,
    session: &Session,
    depth: Depth,
) -> Result<Vec<String>, Finding> {
    requests(visitor, session, depth).await?;
    let Depth::Streams(idle) = depth else {
        return Ok(Vec::new());
    };
    let watched = watch(visitor, session, idle).await?;
    resume(visitor, session, &watched).await?;
    Ok(vec![watched.note])
}

/// Begins a session (2025-11-25 lifecycle, "Initialization").
async fn begin(visitor: &mut Visitor, revision: &str) -> Result<Session, Finding> {
    let ask = Ask::post(&visitor.target, &initialize(revision))
        .header("Accept", ACCEPT)
        .with_token();
    let shown = format!("{} (initialize)", ask.shown());
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    if matches!(answer.status.as_u16(), 401 | 403) {
        let came = answer.shown();
        return Err(Finding::new(&causes::TOKEN_REFUSED, &shown, &came));
    }
    let message = answer.message().filter(|_| answer.status.is_success());
    let result = message.as_ref().map(|message| &message["result"]);
    let negotiated = result.and_then(|result| result["protocolVersion"].as_str());
    let Some(negotiated) = negotiated else {
        let came = answer.shown();
        return Err(Finding::new(&causes::INITIALIZE_REFUSED, &shown, &came));
    };
    Ok(Session {
        revision: negotiated.to_owned(),
        id: answer.header(SESSION_ID).map(str::to_owned),
    })
}

/// Sends what a client sends after `initialize`.
async fn requests(visitor: &mut Visitor, session: &Session, depth: Depth) -> Result<(), Finding> {
    let begun = post(visitor, session, &initialized(), "initialized").await?;
    check(session, &begun, begun.0.status.is_success())?;
    let pong = post(visitor, session, &ping(2, 0), "ping").await?;
    check(
        session,
        &pong,
        pong.0.message().is_some_and(|pong| pong["id"] == 2),
    )?;
    if matches!(depth, Depth::Requests) {
        return Ok(());
    }
    let (answer, shown) = post(visitor, session, &ping(3, LARGE), "ping of 1 MiB").await?;
    if answer.status == 413 {
        return Err(Finding::new(&causes::BODY_LIMIT, &shown, &answer.shown()));
    }
    Ok(())
}

/// The finding for an answer that is not the one that is wanted.
fn check(
    session: &Session,
    (answer, shown): &(Answer, String),
    is_good: bool,
) -> Result<(), Finding> {
    if is_good {
        return Ok(());
    }
    // Of a server with sessions: 400 without an ID, 404 for one that it does not know.
    let is_lost = matches!(answer.status.as_u16(), 400 | 404);
    let cause = match &session.id {
        None if is_lost => &causes::SESSION_ID_MISSING,
        Some(_) if is_lost => &causes::SESSION_ID_DROPPED,
        _ => &causes::REQUEST_REFUSED,
    };
    Err(Finding::new(cause, shown, &answer.shown()))
}

async fn post(
    visitor: &mut Visitor,
    session: &Session,
    message: &Json,
    what: &str,
) -> Result<(Answer, String), Finding> {
    let ask = Ask::post(&visitor.target, message).header("Accept", ACCEPT);
    let ask = session.ask(ask);
    let shown = format!("{} ({what})", ask.shown());
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    Ok((answer, shown))
}

/// Resumes the listener stream behind its last event.
async fn resume(
    visitor: &mut Visitor,
    session: &Session,
    watched: &Watched,
) -> Result<(), Finding> {
    let Some(last) = watched.last_event.as_deref().filter(|_| !watched.is_over) else {
        return Ok(());
    };
    let ask = Ask::get(&visitor.target)
        .header("Accept", "text/event-stream")
        .header(LAST_EVENT_ID, last);
    let ask = session.ask(ask);
    let shown = format!("{} (Last-Event-ID)", ask.shown());
    let answer = visitor.head(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    if answer.status.is_success() {
        return Ok(());
    }
    Err(Finding::new(
        &causes::RESUME_REFUSED,
        &shown,
        &answer.shown(),
    ))
}

/// Ends a session (2025-11-25 transports, "Session Management" 5).
async fn end(visitor: &mut Visitor, session: &Session) -> Result<(), Finding> {
    let Some(ask) = session.ending(visitor) else {
        return Ok(());
    };
    let shown = ask.shown();
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    // A server may refuse with 405, and has forgotten the session with 404.
    if answer.status.is_success() || matches!(answer.status.as_u16(), 404 | 405) {
        return Ok(());
    }
    Err(Finding::new(
        &causes::DELETE_REFUSED,
        &shown,
        &answer.shown(),
    ))
}

/// The size of a large request: nginx takes 1 MiB.
const LARGE: usize = 1024 * 1024 + 4096;

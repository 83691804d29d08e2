//! Streams: whether their bytes come when they are sent, and whether they stay open while nothing is sent.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use reqwest::{Response, StatusCode, header::CONTENT_TYPE};
use tokio::time::{Instant, timeout};

use super::{
    causes::{self, Finding, failed},
    message::Session,
    sse::{Blocks, is_stream},
    visitor::{Ask, Failure, Visitor},
};

/// A listener stream that was watched.
pub(super) struct Watched {
    /// The result in a report.
    pub(super) note: String,
    /// The ID of its last event.
    pub(super) last_event: Option<String>,
    /// Whether the stream has been ended, by its server or with its session.
    pub(super) is_over: bool,
}

/// What a stream does within a time.
pub(super) enum Piece {
    Bytes(Bytes),
    /// The server ended it.
    End,
    /// It broke.
    Cut,
    Quiet,
}

/// Reads a stream for a time.
pub(super) async fn piece(response: &mut Response, wait: Duration) -> Piece {
    match timeout(wait, response.chunk()).await {
        Err(_) => Piece::Quiet,
        Ok(Ok(Some(bytes))) => Piece::Bytes(bytes),
        Ok(Ok(None)) => Piece::End,
        Ok(Err(_)) => Piece::Cut,
    }
}

/// Watches the listener stream of a session for a time (2025-11-25 transports, "Listening for Messages from the
/// Server").
pub(super) async fn watch(
    visitor: &mut Visitor,
    session: &Session,
    idle: Duration,
) -> Result<Watched, Finding> {
    let ask = session.ask(Ask::get(&visitor.target).header("Accept", "text/event-stream"));
    let shown = ask.shown();
    let mut response = open(visitor, session, ask).await?;
    match response.status() {
        StatusCode::OK if is_stream(response.headers()) => {}
        StatusCode::METHOD_NOT_ALLOWED => {
            return Ok(Watched::noting("the server has no listener stream (405)"));
        }
        status => {
            let kind = response.headers().get(CONTENT_TYPE);
            let kind = kind.and_then(|kind| kind.to_str().ok());
            let came = format!("{status} ({})", kind.unwrap_or("no type"));
            return Err(Finding::new(&causes::STREAM_REFUSED, &shown, &came));
        }
    }
    let (total, mut watched) = listen(&mut response, idle, &shown).await?;
    if total > 0 || watched.is_over {
        return Ok(watched);
    }
    leave(visitor, session).await;
    watched.is_over = true;
    if let Piece::Bytes(late) = piece(&mut response, visitor.limit).await {
        let late = late.len();
        let came = format!("nothing for {idle:?}, and {late} bytes when the session was ended");
        return Err(Finding::new(&causes::STREAM_BUFFERED, &shown, &came));
    }
    watched.note = format!("stream open, and silent for {idle:?}: a proxy may cut it");
    Ok(watched)
}

/// Opens the listener stream. If not even its head comes before the session is ended, it is held back.
async fn open(visitor: &mut Visitor, session: &Session, ask: Ask) -> Result<Response, Finding> {
    let (shown, limit) = (ask.shown(), visitor.limit);
    let begun = visitor.begin(ask);
    let mut begun = pin!(begun.map_err(|failure| failed(&failure, &shown))?);
    if let Ok(answered) = timeout(limit, &mut begun).await {
        return answered.map_err(|failure| failed(&failure, &shown));
    }
    leave(visitor, session).await;
    let came = match timeout(limit, &mut begun).await {
        Ok(Ok(_)) => "came when the session was ended",
        _ => "did not come",
    };
    let came = format!("the head of the answer was awaited for {limit:?}, and {came}");
    Err(Finding::new(&causes::STREAM_BUFFERED, &shown, &came))
}

/// Reads a listener stream for a time; returns the number of its bytes too.
async fn listen(
    response: &mut Response,
    idle: Duration,
    shown: &str,
) -> Result<(usize, Watched), Finding> {
    let (mut blocks, began) = (Blocks::default(), Instant::now());
    let (mut total, mut watched) = (0, Watched::noting("stream open"));
    loop {
        let left = idle.saturating_sub(began.elapsed());
        match piece(response, left).await {
            Piece::Bytes(bytes) => {
                total += bytes.len();
                if total > MOST {
                    return Err(failed(&Failure::TooLong, shown));
                }
                blocks.push(&bytes);
                let arrived = std::iter::from_fn(|| blocks.next());
                let last = arrived.filter_map(|block| block.id).last();
                watched.last_event = last.or(watched.last_event);
            }
            Piece::Quiet => return Ok((total, watched)),
            // 2025-11-25 transports: "The server MAY close the SSE stream at any time".
            Piece::End => {
                let mut ended = Watched::noting("the server ended its listener stream");
                ended.is_over = true;
                return Ok((total, ended));
            }
            Piece::Cut => {
                let came = format!("it broke after {:.1} s", began.elapsed().as_secs_f32());
                return Err(Finding::new(&causes::STREAM_CUT, shown, &came));
            }
        }
        if began.elapsed() >= idle {
            return Ok((total, watched));
        }
    }
}

impl Watched {
    fn noting(note: &str) -> Self {
        Self {
            note: note.to_owned(),
            last_event: None,
            is_over: false,
        }
    }
}

/// Ends the session, and with it its streams.
async fn leave(visitor: &mut Visitor, session: &Session) {
    if let Some(ask) = session.ending(visitor) {
        // A server may refuse it, and then nothing is proved.
        let _ = visitor.fetch(ask).await;
    }
}

/// The most bytes of a stream that nobody asked for anything.
const MOST: usize = 1024 * 1024;

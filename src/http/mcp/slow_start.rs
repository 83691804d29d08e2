//! The response to an `initialize` whose server takes its time, as while its packages are installed: progress
//! under the client's token, so that it goes on waiting (2025-11-25 lifecycle, "Timeouts"), then the answer.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::HeaderValue;
use tokio::{
    select,
    time::{Instant, sleep_until},
};

use crate::http::{
    admission::headers,
    reply::{McpRefusal, event_stream},
};
use crate::{
    error::Error,
    hub::Answer,
    protocol::{Message, event::push_message, jsonrpc},
    state::SessionId,
};

/// An `initialize` with a progress token.
pub(super) struct SlowStart {
    /// The raw id of the request.
    id: Bytes,
    /// The raw token.
    token: Bytes,
}

/// The wait for the answer.
struct Waiting<A> {
    start: SlowStart,
    answer: Pin<Box<A>>,
    began: Instant,
    next: Instant,
}

impl SlowStart {
    /// An `initialize`, if it has a progress token.
    pub(super) fn of(initialize: &Message) -> Option<Self> {
        let text = initialize.bytes();
        let token = initialize.meta_progress_token()?.of(text);
        Some(Self {
            id: Bytes::copy_from_slice(initialize.id()?),
            token: Bytes::copy_from_slice(token),
        })
    }

    /// The stream that tells of the progress of a session's start until its answer comes.
    pub(super) fn respond<A>(self, answer: Pin<Box<A>>, session: &SessionId) -> Response
    where
        A: Future<Output = Answer> + Send + 'static,
    {
        let now = Instant::now();
        let waiting = Waiting {
            start: self,
            answer,
            began: now,
            next: now,
        };
        let events = unfold(Some(waiting), async |waiting| {
            let (event, waiting) = waiting?.step().await;
            Some((Ok::<_, Infallible>(event), waiting))
        });
        let mut response = event_stream::event_stream(Body::from_stream(events));
        if let Ok(session) = HeaderValue::from_str(session.as_str()) {
            response.headers_mut().insert(headers::SESSION, session);
        }
        response
    }

    fn progress(&self, began: Instant) -> Bytes {
        let seconds = format!("{:.1}", began.elapsed().as_secs_f64());
        let mut params = BytesMut::from(&br#"{"progressToken":"#[..]);
        params.extend_from_slice(&self.token);
        params.extend_from_slice(br#","progress":"#);
        params.extend_from_slice(seconds.as_bytes());
        params.extend_from_slice(br#","message":"The server is being started"}"#);
        let mut line = BytesMut::new();
        jsonrpc::push_notification("notifications/progress", Some(&params), &mut line);
        line.freeze()
    }

    /// The response with an answer. An error has no status of its own here.
    fn line(&self, answer: Answer) -> Bytes {
        let error = match answer {
            Answer::Json(line) | Answer::Failed(line) => return line,
            Answer::Refused(error) => error,
            Answer::Stream(_) | Answer::Accepted | Answer::Silent => {
                Error::Bug("initialize was answered by a stream")
            }
        };
        McpRefusal::from(error).answering(Some(&self.id)).line()
    }
}

impl<A: Future<Output = Answer>> Waiting<A> {
    /// Waits for the next event; it is the last one if nothing is left to wait for.
    async fn step(mut self) -> (Bytes, Option<Self>) {
        let (line, rest) = select! {
            answer = &mut self.answer => (self.start.line(answer), None),
            () = sleep_until(self.next) => {
                self.next += EVERY;
                (self.start.progress(self.began), Some(self))
            }
        };
        let mut event = BytesMut::new();
        push_message(&mut event, "", &line);
        (event.freeze(), rest)
    }
}

/// The time between two notifications: clients wait a minute for each.
const EVERY: Duration = Duration::from_secs(5);

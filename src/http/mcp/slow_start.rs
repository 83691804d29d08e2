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
struct Waiting<A, C> {
    start: SlowStart,
    answer: Pin<Box<A>>,
    /// Counts an event until the client has taken it.
    counted: C,
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

    /// The stream that tells of the progress of a session's start until its answer comes. Its events are `counted` until
    /// the client has taken them.
    pub(super) fn respond<A, C>(
        self,
        answer: Pin<Box<A>>,
        session: &SessionId,
        counted: C,
    ) -> Response
    where
        A: Future<Output = Answer> + Send + 'static,
        C: Fn(Bytes) -> Bytes + Send + 'static,
    {
        let now = Instant::now();
        let waiting = Waiting {
            start: self,
            answer,
            counted,
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

impl<A, C> Waiting<A, C>
where
    A: Future<Output = Answer>,
    C: Fn(Bytes) -> Bytes,
{
    /// Waits for the next event; it is the last one if nothing is left to wait for.
    async fn step(mut self) -> (Bytes, Option<Self>) {
        let (line, is_last) = select! {
            answer = &mut self.answer => (self.start.line(answer), true),
            () = sleep_until(self.next) => {
                self.next += EVERY;
                (self.start.progress(self.began), false)
            }
        };
        let mut event = BytesMut::new();
        push_message(&mut event, "", &line);
        let event = (self.counted)(event.freeze());
        (event, (!is_last).then_some(self))
    }
}

/// The time between two notifications: clients wait a minute for each.
const EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use futures_util::StreamExt;

    use super::*;
    use crate::base::budget::Budget;

    /// Servers may have long instructions, and a client may take its time over them.
    #[tokio::test]
    async fn an_answer_that_comes_late_is_counted_until_it_is_taken() {
        let line = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":{"progressToken":"p"}}}"#;
        let message = Message::parse(Bytes::from_static(line)).unwrap();
        let slow = SlowStart::of(&message).unwrap();
        let share = Budget::new(1 << 20).share();
        let own = Arc::clone(&share);
        let counted = move |event: Bytes| own.hold(event.len() as u64).until_dropped(event);
        let answer = Box::pin(ready(Answer::Json(vec![b'x'; 100_000].into())));
        let response = slow.respond(answer, &SessionId("s".into()), counted);
        let events = response.into_body().into_data_stream().map(Result::unwrap);
        let events: Vec<Bytes> = events.collect().await;
        assert!(events.last().is_some_and(|last| last.len() > 100_000));
        let all: usize = events.iter().map(Bytes::len).sum();
        assert_eq!(share.used(), all as u64);
        drop(events);
        assert_eq!(share.used(), 0);
    }
}

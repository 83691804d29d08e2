//! Open requests of an HTTP/2 connection, and its end when it has none.
//!
//! hyper ends an idle HTTP/1 connection itself. One of HTTP/2 it keeps as long as the peer answers pings.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, response::Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The open requests of one connection.
#[derive(Default)]
pub(super) struct Activity {
    open: AtomicUsize,
    /// Wakes [`Activity::idle`] when a request begins, or the last one ends.
    changed: Notify,
}

/// A request until its response is made, or is sent if that is a stream.
pub(super) struct Open(Arc<Activity>);

impl Activity {
    /// Counts a request.
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.changed.notify_one();
        }
        Open(Arc::clone(self))
    }

    /// Waits until the connection has had no request for this time.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut end = Instant::now() + limit;
        loop {
            let is_idle = self.open.load(Ordering::Relaxed) == 0;
            tokio::select! {
                () = self.changed.notified() => end = Instant::now() + limit,
                () = sleep_until(end), if is_idle => return,
            }
        }
    }
}

impl Open {
    /// Counts the request until the whole response is sent; one that is complete already until now. What its client does
    /// not take would keep the connection open for ever.
    pub(super) fn until_sent(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _open = &self;
                frame
            }))
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures_util::stream::pending;
    use tokio::time::timeout;

    use super::super::activity::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_connection_without_requests_is_idle_after_its_time() {
        let (activity, began) = (Arc::new(Activity::default()), Instant::now());
        timeout(LATE, activity.idle(LIMIT)).await.unwrap();
        assert!(began.elapsed() >= LIMIT);
    }

    #[tokio::test]
    async fn requests_keep_it_open_and_the_end_of_the_last_begins_the_time_anew() {
        let activity = Arc::new(Activity::default());
        let (stream, call) = (activity.begin(), activity.begin());
        let idle = activity.idle(LIMIT);
        tokio::pin!(idle);
        let body = Body::from_stream(pending::<Result<Bytes, Infallible>>());
        let response = call.until_sent(Response::new(body));
        assert!(timeout(LIMIT * 3, &mut idle).await.is_err());
        drop(stream);
        assert!(timeout(LIMIT * 3, &mut idle).await.is_err());
        drop(response);
        let ended = Instant::now();
        timeout(LATE, idle).await.unwrap();
        assert!(ended.elapsed() >= LIMIT);
    }

    /// Connections of clients that took no answers stayed open as long as those clients answered pings.
    #[tokio::test]
    async fn a_complete_answer_that_nobody_takes_keeps_no_connection_open() {
        let activity = Arc::new(Activity::default());
        let answer = || Response::new("an answer".into());
        let begun = [activity.begin(), activity.begin()];
        let answers = begun.map(|open| open.until_sent(answer()));
        timeout(LATE, activity.idle(LIMIT)).await.unwrap();
        drop(answers);
    }
}

//! Request bodies, read whole within limits of size and time; and ids of requests that are refused.

use std::{pin::pin, time::Duration};

use axum::{
    body::{Body, HttpBody},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;

use super::front::Front;
use crate::{
    auth::Access,
    base::budget::{Budget, LargeWork},
    http::reply::McpRefusal,
    protocol::{Body as Messages, Rejected, end_no_line, has_line_end, headers},
};

/// Reads a body whose `Content-Type` is JSON, within the limits of size and time.
pub(crate) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, McpRefusal> {
    check_type(headers)?;
    whole(body, max).await
}

/// Reads a body whose `Content-Type` is JSON, as [`counted`].
pub(crate) async fn read_counted(
    front: &Front,
    access: &Access,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, McpRefusal> {
    check_type(headers)?;
    counted(front, access, body).await
}

/// Reads a body within the limits of size and time, and within the share of its caller, which counts it
/// as long as any part of it is kept. One that is longer than what is left of it is refused when it begins.
pub(crate) async fn counted(
    front: &Front,
    access: &Access,
    body: Body,
) -> Result<Bytes, McpRefusal> {
    let share = front.hub.limits().memory().caller(access);
    let length = body.size_hint().exact().unwrap_or_default();
    if length > SHORT && !share.has_twice(CALL + length) {
        return Err(front.hub.limits().no_room(RETRY).into());
    }
    // Drawn with the first frame, which most bodies consist of.
    let mut drawn = None;
    let mut has_room = |bytes: u64| match &mut drawn {
        None => {
            drawn = share.draw(CALL + bytes);
            drawn.is_some()
        }
        Some(drawn) => drawn.grow(bytes),
    };
    let mut is_full = false;
    let max = front.config.http.max_body;
    let time = time_for(&body, max);
    let collected = collect(body, max, Some(&share), |bytes| {
        is_full = !has_room(bytes as u64);
        !is_full
    });
    let body = in_time(time, collected).await;
    if is_full {
        return Err(front.hub.limits().no_room(RETRY).into());
    }
    let body = body?;
    Ok(match drawn {
        Some(drawn) => drawn.until_dropped(body),
        None => body,
    })
}

/// Refuses a request whose body was not read. The refusal has the id of the request, if a short body is
/// here: a caller that is refused is not waited for.
pub(crate) async fn refuse(refused: McpRefusal, headers: &HeaderMap, body: Body) -> Response {
    let id = id_at_hand(headers, body).await;
    refused.answering(id.as_deref()).into_response()
}

async fn id_at_hand(headers: &HeaderMap, body: Body) -> Option<Box<[u8]>> {
    let length = body.size_hint().exact()?;
    // A client that expects `100 Continue` has not sent the body.
    if length > SHORT || headers.contains_key(header::EXPECT) || check_type(headers).is_err() {
        return None;
    }
    let mut read = pin!(whole(body, usize::try_from(SHORT).ok()?));
    for _ in 0..TURNS {
        if let Some(body) = read.as_mut().now_or_never() {
            return id_in(Messages::parse(body.ok()?));
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Parses a body; a large one in a turn of its caller's tenant.
pub(crate) async fn messages(access: &Access, body: Bytes) -> Result<Messages, Rejected> {
    parsed(&access.tenant().name, body).await
}

async fn parsed(tenant: &str, body: Bytes) -> Result<Messages, Rejected> {
    let turn = LargeWork::turn(tenant, body.len()).await;
    turn.run(|| Messages::parse(body))
}

/// The raw id of the request that a body is, if it can be read.
pub(crate) async fn request_id(access: &Access, body: Bytes) -> Option<Box<[u8]>> {
    id_in(messages(access, body).await)
}

/// The raw id of the request that a parsed body is, if it could be read.
pub(crate) fn id_in(parsed: Result<Messages, Rejected>) -> Option<Box<[u8]>> {
    match parsed {
        Ok(messages) => messages.request_id().map(Into::into),
        Err(rejected) => rejected.id,
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), McpRefusal> {
    // Of several, what stands before the gateway may have taken another than it would.
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let is_json = |value: &HeaderValue| value.to_str().is_ok_and(headers::is_json);
    if types.next().is_some_and(is_json) && types.next().is_none() {
        return Ok(());
    }
    let text = "Content-Type must be application/json";
    Err(McpRefusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

/// Reads a body within the limits of size and time.
pub(crate) async fn whole(body: Body, max: usize) -> Result<Bytes, McpRefusal> {
    let time = time_for(&body, max);
    in_time(time, collect(body, max, None, |_| true)).await
}

/// The time that a body has to arrive: one of an unknown length has that of the longest.
fn time_for(body: &Body, max: usize) -> Duration {
    let max = max as u64;
    let length = body.size_hint().exact().unwrap_or(max).min(max);
    BODY + Duration::from_secs(length / STEADY)
}

async fn in_time(
    time: Duration,
    collected: impl Future<Output = Result<Bytes, McpRefusal>>,
) -> Result<Bytes, McpRefusal> {
    let late = McpRefusal::http(
        StatusCode::REQUEST_TIMEOUT,
        "the body did not arrive in time",
    );
    tokio::time::timeout(time, collected)
        .await
        .unwrap_or(Err(late))
}

/// Collects frames into one buffer as they arrive: each would keep what it was read into, which of small ones is
/// many times as long. Of a caller's message the line ends become tabs, since a message for a server is one line, and
/// what is changed later is a copy that its share does not count. Between large parts others than the tasks of this
/// share go first.
async fn collect(
    mut body: Body,
    max: usize,
    share: Option<&Budget>,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, McpRefusal> {
    let expected = body.size_hint().exact();
    let expected = expected.and_then(|length| usize::try_from(length).ok());
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    // Bytes in all, and about those since others went first.
    let (mut length, mut fresh) = (0, 0);
    while let Some(frame) = body.frame().await {
        let broken = McpRefusal::http(StatusCode::BAD_REQUEST, "the body ends early");
        let Ok(data) = frame.map_err(|_| broken)?.into_data() else {
            continue;
        };
        length += data.len();
        // The gate of the public listener has the same limit and replaces this response.
        if length > max {
            return Err(McpRefusal::http(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body too large",
            ));
        }
        if !has_room(data.len()) {
            let text = "no room for the body";
            return Err(McpRefusal::http(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        fresh += data.len().max(PART);
        let is_first = length == data.len();
        // The directory of sessions, or another replica, may have let many requests of a tenant go on at once.
        let has_to_wait = |share: &&Budget| {
            fresh >= STEP || share.is_busy() || (is_first && share.is_due_each(REQUESTS))
        };
        if let Some(share) = share.filter(has_to_wait) {
            fresh = 0;
            share.others_first().await;
        }
        let is_whole = expected.is_none_or(|expected| expected == length);
        if length == data.len() && is_whole && (share.is_none() || !has_line_end(&data)) {
            first = data;
            continue;
        }
        // Memory that is reserved and not written to costs nothing, and what grows by parts is copied again and again.
        let unknown = if length < STEP { length } else { max };
        let most = expected.unwrap_or(unknown).min(max);
        joined.reserve(most.saturating_sub(joined.len()));
        joined.extend_from_slice(&std::mem::take(&mut first));
        let from = joined.len();
        joined.extend_from_slice(&data);
        if share.is_some() {
            end_no_line(&mut joined[from..]);
        }
    }
    // Most bodies are a single frame, which is copied if it is small: it is a slice of the buffer that the
    // connection was read into, which is several times as long (that of a long head about 100 KiB), and would stay as long as the
    // request waits.
    Ok(match first.len() {
        // Of an unknown length, it had room for the longest.
        0 if expected.is_none() => {
            let mut joined = Vec::from(joined);
            joined.shrink_to_fit();
            joined.into()
        }
        0 => joined.freeze(),
        1..=SMALL => Bytes::copy_from_slice(&first),
        _ => first,
    })
}

/// What a call takes beside its body: its entry in the session, and its answer, if that is no longer.
const CALL: u64 = 8 << 10;
/// Bytes of a body after which others go first: a fraction of a millisecond.
const STEP: usize = 64 << 10;
/// Requests of a tenant that come at once, of which each last one lets others go first: one takes a tenth of a millisecond.
const REQUESTS: u64 = 2;
/// Bytes that take as long as any part of a body, however short.
const PART: usize = 256;
/// Delay before a caller whose share is used up tries again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest body that is copied out of the buffer of its connection, some microseconds: a longer one fills that.
const SMALL: usize = 64 << 10;
/// Longest body that is read for the id of a refused request.
const SHORT: u64 = 16 << 10;
/// Turns of the task of a connection after which what has arrived of a body is here.
const TURNS: usize = 3;
/// Time limit for a body, to which its length adds. The gate of the public listener ends one that stalls.
const BODY: Duration = Duration::from_secs(30);
/// Bytes for which a body has another second: half of what comes at 1 Mbit/s.
const STEADY: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::super::body::*;
    use crate::protocol::Message;

    /// Of two types the first one decided.
    #[test]
    fn a_body_has_one_type_which_is_json() {
        let cases: [(&[&str], bool); 7] = [
            (&["application/json"], true),
            (&["Application/JSON; charset=utf-8"], true),
            (&["application/json", "text/plain"], false),
            (&["text/plain", "application/json"], false),
            (&["application/json", "application/json"], false),
            (&["text/plain"], false),
            (&[], false),
        ];
        for (types, is_json) in cases {
            let mut headers = HeaderMap::new();
            for one in types {
                let value = HeaderValue::from_str(one).unwrap();
                headers.append(header::CONTENT_TYPE, value);
            }
            assert_eq!(check_type(&headers).is_ok(), is_json, "{types:?}");
        }
    }

    /// One of 4 MiB takes 34 s at 1 Mbit/s, and was refused after 30.
    #[test]
    fn a_body_that_comes_steadily_has_the_time_that_it_takes() {
        let max = 4 << 20;
        let unknown =
            || Body::from_stream(futures_util::stream::empty::<Result<Bytes, Infallible>>());
        for (body, seconds) in [
            (Body::from("{}"), 30),
            (Body::from(vec![0_u8; 1 << 20]), 46),
            (Body::from(vec![0_u8; max]), 94),
            (Body::from(vec![0_u8; 2 * max]), 94),
            (unknown(), 94),
        ] {
            assert_eq!(time_for(&body, max), Duration::from_secs(seconds));
        }
    }

    /// A thousand requests that waited kept 8 KiB each for bodies of a hundred bytes, and 112 KiB behind long heads.
    #[tokio::test]
    async fn a_small_body_lets_go_of_the_buffer_that_it_arrived_in() {
        for (size, length) in [(8 << 10, 100), (112 << 10, 3000), (112 << 10, 60_000)] {
            let mut buffer = BytesMut::zeroed(size).freeze();
            let arrived = Body::from(buffer.split_to(length));
            let body = whole(arrived, 1 << 20).await.unwrap();
            assert_eq!(body.len(), length);
            assert!(buffer.is_unique(), "{length} of {size}");
        }
    }

    /// Sixteen clients with messages of 4 MiB made others wait twenty milliseconds.
    #[tokio::test]
    async fn a_large_body_waits_for_a_turn_and_a_small_one_does_not() {
        let held = LargeWork::all_turns().await;
        let body = |bytes| {
            Bytes::from(format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"{}\"}}",
                "m".repeat(bytes)
            ))
        };
        assert!(parsed("a", body(100)).now_or_never().unwrap().is_ok());
        let mut large = Box::pin(parsed("a", body(1 << 20)));
        assert!((&mut large).now_or_never().is_none());
        drop(held);
        assert!(large.await.is_err(), "a method that is too long");
    }

    #[tokio::test]
    async fn the_parts_of_a_body_wait_in_line_while_others_of_the_tenant_do() {
        let tenant = Budget::new(1 << 20).share();
        let collected = |body| Box::pin(collect(body, 1 << 20, Some(&tenant), |_| true));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut alone = collected(Body::from("a body"));
        assert!(alone.as_mut().poll(&mut context).is_ready());
        // The next request is one that goes on at once.
        assert!(!tenant.is_due());
        let mut busy: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
        for one in &mut busy {
            assert!(one.as_mut().poll(&mut context).is_pending());
        }
        let mut waiting = collected(Body::from("a body"));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(busy);
        assert_eq!(waiting.await.unwrap(), "a body");
    }

    /// A thousand requests whose owners were told at once were sent on before a request of another tenant.
    #[tokio::test]
    async fn requests_of_a_tenant_that_come_at_once_let_others_go_first() {
        let tenant = Budget::new(1 << 20).share();
        let callers = [tenant.share(), tenant.share()];
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let (mut waiting, count) = (Vec::new(), 16 * usize::try_from(REQUESTS).unwrap());
        for at in 0..count {
            let share = Some(&*callers[at / 2 % 2]);
            let mut body = Box::pin(collect(Body::from("a body"), 100, share, |_| true));
            if body.as_mut().poll(&mut context).is_pending() {
                waiting.push(body);
            }
        }
        // All of them behind the first four, and not each last one alone. A machine that stands still is a rest.
        assert!((17..count).contains(&waiting.len()), "{}", waiting.len());
        assert!(tenant.is_busy());
        for body in waiting {
            assert_eq!(body.await.unwrap(), "a body");
        }
        // A request counts once, of however many parts its body is.
        let tenant = Budget::new(1 << 20).share();
        let parts = ["[1", ",2", "]"].map(|part| Ok::<_, Infallible>(Bytes::from(part)));
        let body = Body::from_stream(futures_util::stream::iter(parts));
        let body = collect(body, 100, Some(&*tenant), |_| true).await;
        assert_eq!(body.unwrap(), "[1,2]");
        assert_eq!(tenant.pieces(), 1);
    }

    /// A part of a body, which is alive as long as anybody keeps it.
    struct Part(u8, #[expect(dead_code, reason = "counted")] Arc<()>);

    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            std::slice::from_ref(&self.0)
        }
    }

    /// A body of one-byte parts kept a slice of each, and what all of them were read into.
    #[tokio::test]
    async fn parts_of_a_body_are_joined_as_they_arrive() {
        let tenant = Budget::new(1 << 20).share();
        let text = "[1,\n 2,\r\n 3]\n".repeat(100);
        for (share, wanted) in [
            (None, text.clone()),
            (Some(&*tenant), text.replace(['\r', '\n'], "\t")),
        ] {
            let alive = Arc::new(());
            let part = |byte: u8| Bytes::from_owner(Part(byte, Arc::clone(&alive)));
            let parts: Vec<Bytes> = text.bytes().map(part).collect();
            let (count, most) = (parts.len(), Arc::new(AtomicUsize::new(0)));
            let seen = Arc::clone(&most);
            let counted = Arc::downgrade(&alive);
            let parts = parts.into_iter().enumerate().map(move |(at, part)| {
                // Those that have not come yet are alive, and so is what counts them.
                let kept = counted.strong_count() - (count - at) - 1;
                seen.fetch_max(kept, Ordering::Relaxed);
                Ok::<_, Infallible>(part)
            });
            let body = Body::from_stream(futures_util::stream::iter(parts));
            let body = collect(body, 1 << 20, share, |_| true).await.unwrap();
            assert_eq!(body, wanted);
            assert!(most.load(Ordering::Relaxed) <= 1);
        }
    }

    /// The copy without line ends was in nobody's share.
    #[tokio::test]
    async fn a_message_of_many_lines_is_the_body_that_was_counted() {
        let tenant = Budget::new(1 << 20).share();
        let filler = "x".repeat(4 << 10);
        for end in ["\n", "\r\n"] {
            let text = format!(
                "{{{end}\"jsonrpc\":\"2.0\",\"method\":\"a\",{end}\"params\":{{\"x\":\"{filler}\"}}}}{end}"
            );
            let body = collect(Body::from(text.clone()), 1 << 20, Some(&tenant), |_| true);
            let body = body.await.unwrap();
            let message = Message::parse(body.clone()).unwrap();
            assert_eq!(message.bytes().as_ptr(), body.as_ptr());
            assert_eq!(body, text.replace(['\r', '\n'], "\t"));
        }
        let text = Body::from("{\"jsonrpc\":\"2.0\",\"method\":\"a\nb\"}");
        let body = collect(text, 1 << 20, Some(&tenant), |_| true).await;
        assert!(Messages::parse(body.unwrap()).is_err(), "inside a string");
    }
}

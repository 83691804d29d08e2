//! Floods of HTTP/2 frames, over connections with prior knowledge.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{
    gauges::{Gauge, scaled, slow_call},
    harness::{Gateway, Session, within},
    wire::{connect, host},
};

/// The payload of the ping after a flood.
const LAST: &[u8] = b"the last";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

// Flags of frames.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One frame as bytes.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header field that enters no table (RFC 7541, section 6.2.2); shorter than 127 bytes.
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        assert!(length < 127);
        [&[length], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// The header fields of a request.
fn request(gateway: &Gateway, method: &str, path: &str) -> Vec<u8> {
    let authority = host(gateway);
    [
        field(":method", method),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", authority),
    ]
    .concat()
}

/// The header fields of a POST in `session`.
fn post(gateway: &Gateway, session: &Session) -> Vec<u8> {
    let id = session.id.as_ref().unwrap();
    [
        request(gateway, "POST", "/mcp"),
        field("content-type", "application/json"),
        field("accept", "application/json, text/event-stream"),
        field("mcp-session-id", id),
    ]
    .concat()
}

/// The received frames.
#[derive(Debug, Default)]
struct Heard {
    /// Type, flags, stream and payload of each frame.
    frames: Vec<(u8, u8, u32, Vec<u8>)>,
    /// True after the end of the connection.
    is_closed: bool,
}

impl Heard {
    fn count(&self, kind: u8) -> usize {
        self.frames.iter().filter(|frame| frame.0 == kind).count()
    }

    fn acks(&self, kind: u8) -> usize {
        let is_ack = |frame: &&(u8, u8, u32, Vec<u8>)| frame.0 == kind && frame.1 & ACK != 0;
        self.frames.iter().filter(is_ack).count()
    }

    /// True if the gateway ended the connection.
    fn is_refused(&self) -> bool {
        self.is_closed || self.count(GOAWAY) > 0
    }

    /// Moves the complete frames from `bytes` to `frames`.
    fn take(&mut self, bytes: &mut Vec<u8>) {
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
            let (kind, flags) = (head[3], head[4]);
            let Some(payload) = bytes.get(at + 9..at + 9 + length) else {
                break;
            };
            self.frames.push((kind, flags, stream, payload.to_vec()));
            at += 9 + length;
        }
        bytes.drain(..at);
    }
}

/// A connection after the preface and the client's settings.
async fn open(gateway: &Gateway) -> TcpStream {
    let mut socket = connect(gateway).await;
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    socket.write_all(&hello).await.unwrap();
    socket
}

/// Sends `bytes` and then a ping. Reads until the ping is answered, or until the gateway ends the
/// connection.
async fn say(socket: TcpStream, bytes: &[u8]) -> Heard {
    let bytes = [bytes, &frame(PING, 0, 0, LAST)].concat();
    let is_last = |frame: &(u8, u8, u32, Vec<u8>)| frame.0 == PING && frame.3 == LAST;
    // Only queued refusals may follow the answer to the ping.
    let is_done = |heard: &Heard| heard.frames.iter().rev().take(2000).any(is_last);
    say_until(socket, &bytes, is_done).await
}

/// Sends `bytes`. Reads until `done`, or until the gateway ends the connection.
async fn say_until(mut socket: TcpStream, bytes: &[u8], done: impl Fn(&Heard) -> bool) -> Heard {
    let (mut from, mut to) = socket.split();
    let write = async {
        // The gateway may end the connection during the write.
        let _ = to.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    let read = async {
        let (mut heard, mut bytes, mut chunk) = (Heard::default(), Vec::new(), vec![0; 64 << 10]);
        while !heard.is_refused() && !done(&heard) {
            match from.read(&mut chunk).await {
                Ok(count @ 1..) => bytes.extend_from_slice(&chunk[..count]),
                _ => heard.is_closed = true,
            }
            heard.take(&mut bytes);
        }
        heard
    };
    within("the end of a flood", async {
        tokio::select! { () = write => unreachable!(), heard = read => heard }
    })
    .await
}

/// Sends `bytes` without reading; returns how many bytes the gateway accepted.
async fn shout(mut socket: TcpStream, bytes: &[u8]) -> usize {
    let mut said = 0;
    while said < bytes.len() {
        let write = socket.write(&bytes[said..]);
        match timeout(Duration::from_secs(1), write).await {
            Ok(Ok(count)) => said += count,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    said
}

/// Runs `flood` four times at once: memory stays bounded, and another session is served.
async fn is_bearable<T>(gateway: &Gateway, flood: impl AsyncFn() -> T) -> [T; 4] {
    let session = gateway.session().await;
    let gauge = Gauge::of(gateway);
    let memory = gauge.memory();
    let floods = async {
        let (a, b, c, d) = tokio::join!(flood(), flood(), flood(), flood());
        [a, b, c, d]
    };
    let (heard, slow) = tokio::join!(floods, slow_call(&session));
    let grown = gauge.memory() - memory;
    println!("{grown} KiB more; {slow:?} for a call of another session");
    assert!(grown <= 16 << 10, "{grown} KiB");
    heard
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let count = scaled("resets", 1_000_000, 10_000);
    let gateway = Gateway::start(&[]).await;
    let fields = request(&gateway, "GET", "/livez");
    let flood: Vec<u8> = (0..u32::try_from(count).unwrap())
        .flat_map(|number| {
            let (stream, flags) = (number * 2 + 1, END_HEADERS | END_STREAM);
            let cancel = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            [frame(HEADERS, flags, stream, &fields), cancel].concat()
        })
        .collect();
    let all = is_bearable(&gateway, async || say(open(&gateway).await, &flood).await).await;
    for heard in all {
        assert!(heard.is_refused(), "{heard:?}");
        assert!(heard.count(HEADERS) < count / 2, "most were answered");
    }
}

#[tokio::test]
async fn a_header_block_without_end_ends_the_connection() {
    let count = scaled("continuations", 100_000, 2000).min(20_000);
    let gateway = Gateway::start(&[]).await;
    let begin = frame(HEADERS, END_STREAM, 1, &request(&gateway, "GET", "/livez"));
    let one = field("x-filler", &"a".repeat(100)).repeat(100);
    let empty = frame(CONTINUATION, 0, 1, &[]).repeat(count);
    let full = frame(CONTINUATION, 0, 1, &one).repeat(count);
    for flood in [empty, full] {
        let flood = [&*begin, &flood].concat();
        let all = is_bearable(&gateway, async || say(open(&gateway).await, &flood).await).await;
        for heard in all {
            assert!(heard.is_refused(), "{heard:?}");
            assert_eq!(heard.count(DATA), 0);
        }
    }
}

/// Each frame is answered once, or the connection ends; unread answers do not queue up.
#[tokio::test]
async fn settings_and_pings_without_end_take_no_memory() {
    let count = scaled("settings and pings", 2_000_000, 20_000).min(200_000);
    let gateway = Gateway::start(&[]).await;
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    for (kind, one) in [(SETTINGS, settings), (PING, frame(PING, 0, 0, b"12345678"))] {
        let flood = one.repeat(count);
        let all = is_bearable(&gateway, async || say(open(&gateway).await, &flood).await).await;
        for heard in all {
            let acks = heard.acks(kind);
            assert!(heard.is_refused() || acks >= count, "{acks} of {count}");
        }
        let flood = one.repeat(count.max(50_000) * 20);
        let said = is_bearable(&gateway, async || shout(open(&gateway).await, &flood).await).await;
        println!("room for {said:?} of {} bytes", flood.len());
        assert!(said.iter().all(|said| *said < flood.len()), "{said:?}");
    }
}

/// A few excess streams are refused one by one; a flood ends the connection.
#[tokio::test]
async fn streams_beyond_the_bound_are_refused() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let fields = post(&gateway, &session);
    let begin = |number: u32| frame(HEADERS, END_HEADERS, number * 2 + 1, &fields);
    let few: Vec<u8> = (0..74).flat_map(begin).collect();
    let few = async || {
        let is_done = |heard: &Heard| heard.count(RST_STREAM) == 10;
        say_until(open(&gateway).await, &few, is_done).await
    };
    for heard in is_bearable(&gateway, few).await {
        assert!(!heard.is_refused(), "the others suffer");
        let refused = heard.frames.iter().filter(|frame| frame.0 == RST_STREAM);
        let streams: Vec<u32> = refused.map(|frame| frame.2).collect();
        assert_eq!(streams, (64..74).map(|n| n * 2 + 1).collect::<Vec<_>>());
    }
    // As many as a client may open that has not read the settings yet, each with a body.
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let early = |number| {
        [
            begin(number),
            frame(DATA, END_STREAM, number * 2 + 1, ping.as_bytes()),
        ]
    };
    let early: Vec<u8> = (0..100).flat_map(early).flatten().collect();
    let early = async || {
        let of = |heard: &Heard, kind| -> BTreeSet<u32> {
            let frames = heard.frames.iter().filter(|frame| frame.0 == kind);
            frames.map(|frame| frame.2).collect()
        };
        let is_done = |heard: &Heard| of(heard, HEADERS).len() + of(heard, RST_STREAM).len() == 100;
        let heard = say_until(open(&gateway).await, &early, is_done).await;
        (heard.is_refused(), of(&heard, HEADERS))
    };
    for (is_refused, answered) in is_bearable(&gateway, early).await {
        assert!(!is_refused, "those within the bound are lost");
        // Further ones, too, if others had been answered before their part of the read was decoded.
        let within: BTreeSet<u32> = (0..64).map(|n| n * 2 + 1).collect();
        assert!(answered.is_superset(&within), "{answered:?}");
    }
    let many: Vec<u8> = (0..1000).flat_map(begin).collect();
    for heard in is_bearable(&gateway, async || say(open(&gateway).await, &many).await).await {
        assert!(heard.is_refused() || heard.count(RST_STREAM) >= 936);
    }
    assert_eq!(session.text("counter", json!({})).await, "1");
}

/// Empty DATA frames neither keep a body alive nor fill memory.
#[tokio::test]
async fn empty_frames_are_no_body() {
    let count = scaled("empty frames", 10_000_000, 100_000);
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let begin = frame(HEADERS, END_HEADERS, 1, &post(&gateway, &session));
    let flood = [begin, frame(DATA, 0, 1, &[]).repeat(count)].concat();
    let all = is_bearable(&gateway, async || say(open(&gateway).await, &flood).await).await;
    for heard in all {
        assert_eq!(heard.count(HEADERS), 0, "an answer to half a request");
    }
}

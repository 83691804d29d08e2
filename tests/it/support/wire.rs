//! A client without a library: raw bytes in both directions.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::harness::{Gateway, Session, within};

/// A connection to the public listener.
pub(crate) async fn connect(gateway: &Gateway) -> TcpStream {
    TcpStream::connect(host(gateway)).await.unwrap()
}

/// Sends `bytes`, and returns all bytes until the gateway closes.
pub(crate) async fn raw(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> String {
    within("a raw answer", async {
        let mut socket = connect(gateway).await;
        // A refusal may arrive, and the connection close, before all is written.
        let _ = socket.write_all(bytes.as_ref()).await;
        rest(&mut socket).await
    })
    .await
}

/// All bytes until the gateway closes.
pub(crate) async fn rest(socket: &mut TcpStream) -> String {
    let (mut all, mut chunk) = (Vec::new(), vec![0; 4096]);
    while let Ok(count @ 1..) = socket.read(&mut chunk).await {
        all.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Host and port of the public listener.
pub(crate) fn host(gateway: &Gateway) -> &str {
    gateway.base().split_once("://").unwrap().1
}

/// The answer to a request with `Connection: close`.
pub(crate) async fn ask(gateway: &Gateway, line: &str, headers: &str) -> String {
    let host = host(gateway);
    let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    raw(gateway, request).await
}

/// The head of a request in `session`, with `headers` and the empty line behind it.
pub(crate) fn head(gateway: &Gateway, session: &Session, line: &str, headers: &str) -> String {
    let (host, id) = (host(gateway), session.id.as_ref().unwrap());
    format!(
        "{line} HTTP/1.1\r\nHost: {host}\r\nMcp-Session-Id: {id}\r\n\
         Accept: application/json, text/event-stream\r\n{headers}\r\n"
    )
}

/// The status of every response in `answer`.
pub(crate) fn statuses(answer: &str) -> Vec<u16> {
    let parts = answer.split("HTTP/1.").skip(1);
    parts
        .filter_map(|part| part.get(2..5)?.parse().ok())
        .collect()
}

/// The status of the one response in `answer`.
pub(crate) fn status(answer: &str) -> u16 {
    let all = statuses(answer);
    assert_eq!(all.len(), 1, "one response: {answer:?}");
    all[0]
}

/// The body of a response that may be incomplete: the bytes behind its head,
/// without the frames of chunked coding.
pub(crate) fn chunked_body(bytes: &[u8]) -> Vec<u8> {
    let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Vec::new();
    };
    let (mut rest, mut body) = (&bytes[at + 4..], Vec::new());
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    body
}

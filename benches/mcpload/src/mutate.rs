//! --mutate: valid requests with random changes, over a few connections; every answer is counted.
//!
//! Blocking, one thread a connection: nothing of a client library stands between the bytes and the
//! gateway.

use crate::{
    mutator::{Dice, Place, Request},
    Args,
};
use serde_json::{json, Value};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Samples of the gateway's memory; the first quarter is its warm-up.
const SAMPLES: u64 = 64;

#[derive(Default)]
struct Sums {
    statuses: BTreeMap<u16, u64>,
    unanswered: u64,
    /// Answers of 5xx other than 503, and what was sent.
    faults: Vec<String>,
}

/// One response.
struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (other, value) = line.split_once(':')?;
            other.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

struct Connection {
    host: String,
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn new(host: &str) -> Result<Self, String> {
        let socket = TcpStream::connect(host).map_err(|e| format!("connect: {e}"))?;
        let limit = Some(Duration::from_secs(20));
        socket.set_read_timeout(limit).map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self {
            host: host.to_owned(),
            socket,
            buffer: Vec::new(),
        })
    }

    fn again(&mut self) -> Result<(), String> {
        *self = Self::new(&self.host)?;
        Ok(())
    }

    fn fill(&mut self) -> bool {
        let mut room = [0; 16 << 10];
        match self.socket.read(&mut room) {
            Ok(count @ 1..) => {
                self.buffer.extend_from_slice(&room[..count]);
                true
            }
            _ => false,
        }
    }

    /// Reads up to `end`, and drops `end`.
    fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, end) {
                let mut part: Vec<u8> = self.buffer.drain(..at + end.len()).collect();
                part.truncate(at);
                return Some(part);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.fill() {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// The head of the next final response.
    fn head(&mut self) -> Option<Reply> {
        loop {
            let head = String::from_utf8_lossy(&self.until(b"\r\n\r\n")?).into_owned();
            let status = head.get(9..12).and_then(|status| status.parse().ok())?;
            if status >= 200 {
                return Some(Reply {
                    status,
                    head,
                    body: Vec::new(),
                });
            }
        }
    }

    /// Reads a body; false if the connection ends with it.
    fn body(&mut self, reply: &mut Reply) -> bool {
        if reply.status == 204 || reply.status == 304 {
            return true;
        }
        if let Some(length) = reply.header("content-length") {
            let Some(body) = length.parse().ok().and_then(|length| self.take(length)) else {
                return false;
            };
            reply.body = body;
            return true;
        }
        if reply.header("transfer-encoding") != Some("chunked") {
            return false;
        }
        loop {
            let Some(line) = self.until(b"\r\n") else {
                return false;
            };
            let size = std::str::from_utf8(&line).ok();
            let Some(size) = size.and_then(|size| usize::from_str_radix(size, 16).ok()) else {
                return false;
            };
            let Some(chunk) = self.take(size + 2) else {
                return false;
            };
            reply.body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                return true;
            }
        }
    }

    /// Sends one request and reads its response.
    fn one(&mut self, bytes: &[u8], is_get: bool) -> Result<Option<Reply>, String> {
        // A refusal may arrive, and the connection close, before all is written.
        let _ = self.socket.write_all(bytes);
        let Some(mut reply) = self.head() else {
            self.again()?;
            return Ok(None);
        };
        let is_endless = is_get && reply.header("content-type") == Some("text/event-stream");
        let ends = reply.header("connection") == Some("close");
        if is_endless || !self.body(&mut reply) || ends {
            self.again()?;
        }
        Ok(Some(reply))
    }

    /// Sends bytes that may be no request or several, then a valid request, and closes the sending
    /// side.
    fn last_words(&mut self, bytes: &[u8]) -> Result<Vec<Reply>, String> {
        let last = format!(
            "GET /livez HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.host
        );
        let _ = self.socket.write_all(&[bytes, last.as_bytes()].concat());
        let _ = self.socket.shutdown(Shutdown::Write);
        // A stream may be endless, and a request after it is never answered.
        while memchr::memmem::find(&self.buffer, b"text/event-stream").is_none() && self.fill() {}
        let all = String::from_utf8_lossy(&self.buffer).into_owned();
        self.again()?;
        let starts = all.match_indices("HTTP/1.").filter_map(|(at, _)| {
            let status: u16 = all.get(at + 9..at + 12)?.parse().ok()?;
            (status >= 200).then(|| Reply {
                status,
                head: all[at..].to_owned(),
                body: Vec::new(),
            })
        });
        Ok(starts.collect())
    }

    /// A request of the load itself.
    fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, String> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let reply = self.one(text.as_bytes(), method == "GET")?;
        reply.ok_or_else(|| format!("no answer to {method} {path}"))
    }

    fn post(&mut self, session: &str, message: &Value) -> Result<Reply, String> {
        let mut headers = vec![
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        if !session.is_empty() {
            headers.push(("Mcp-Session-Id", session));
        }
        self.ask("POST", "/mcp", &headers, &message.to_string())
    }

    fn open(&mut self, revision: &str) -> Result<String, String> {
        let params = json!({"protocolVersion": revision, "capabilities": {},
            "clientInfo": {"name": "mcpload", "version": "1"}});
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let reply = self.post("", &message)?;
        let id = reply.header("mcp-session-id").map(str::to_owned);
        let id = id.ok_or_else(|| format!("initialize: {}", reply.head))?;
        self.post(
            &id,
            &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        )?;
        Ok(id)
    }
}

const NEWEST: &str = "2025-11-25";
const BATCHES: &str = "2025-03-26";

struct Worker {
    dice: Dice,
    place: Place,
    wire: Connection,
    /// For the requests of the load itself.
    own: Connection,
    /// Holds the stream of the HTTP+SSE session.
    _stream: TcpStream,
    sums: Sums,
    /// The request before, for a connection that closed behind it.
    last: String,
}

impl Worker {
    fn new(args: &Args, host: &str, seed: u64) -> Result<Self, String> {
        let mut own = Connection::new(host)?;
        let gone = own.open(NEWEST)?;
        own.ask("DELETE", "/mcp", &[("Mcp-Session-Id", &gone)], "")?;
        let (stream, endpoint) = sse(host)?;
        let oauth = args.oauth.clone().unwrap_or_default();
        let client = if oauth.is_empty() {
            String::new()
        } else {
            register(&mut own, &oauth)?
        };
        let mut worker = Self {
            dice: Dice(seed),
            place: Place {
                host: host.to_owned(),
                session: String::new(),
                batches: String::new(),
                gone,
                endpoint,
                event: String::new(),
                oauth,
                client,
            },
            wire: Connection::new(host)?,
            own,
            _stream: stream,
            sums: Sums::default(),
            last: String::new(),
        };
        worker.learn()?;
        Ok(worker)
    }

    /// Opens sessions in place of those that ended, and learns an event id.
    fn learn(&mut self) -> Result<(), String> {
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let batches = self.place.batches.clone();
        if batches.is_empty() || self.own.post(&batches, &ping)?.status == 404 {
            self.place.batches = self.own.open(BATCHES)?;
        }
        let session = self.place.session.clone();
        if session.is_empty() || self.own.post(&session, &ping)?.status == 404 {
            self.place.session = self.own.open(NEWEST)?;
            let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
                {"name": "slow", "arguments": {"n": 1}, "_meta": {"progressToken": "t"}}});
            let reply = self.own.post(&self.place.session.clone(), &call)?;
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            let id = text.lines().find_map(|line| line.strip_prefix("id: "));
            self.place.event = id
                .ok_or_else(|| format!("no event: {} {text}", reply.head))?
                .to_owned();
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let request = Request::random(&mut self.dice, &self.place);
        let bytes = request.bytes();
        let began = Instant::now();
        let replies = if request.is_sound {
            self.wire
                .one(&bytes, request.method == "GET")?
                .into_iter()
                .collect()
        } else {
            self.wire.last_words(&bytes)?
        };
        if request.is_sound && replies.is_empty() {
            self.sums.unanswered += 1;
            let what = format!("no answer after {:?}, behind {}:", began.elapsed(), self.last);
            self.note(&what, &bytes);
        }
        let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(600)]);
        self.last = format!("{statuses:?} to {shown:?}");
        for reply in &replies {
            *self.sums.statuses.entry(reply.status).or_default() += 1;
            if reply.status >= 500 && reply.status != 503 {
                self.note(&reply.head, &bytes);
            }
            // Sessions that a request opened are of no use.
            if let Some(id) = reply.header("mcp-session-id") {
                if id != self.place.session && id != self.place.batches {
                    self.own
                        .ask("DELETE", "/mcp", &[("Mcp-Session-Id", id)], "")?;
                }
            }
        }
        let named = request.names(&self.place.session) || request.names(&self.place.batches);
        if named
            && replies
                .iter()
                .any(|reply| matches!(reply.status, 204 | 404))
        {
            self.learn()?;
        }
        Ok(())
    }

    fn note(&mut self, what: &str, bytes: &[u8]) {
        if self.sums.faults.len() < 10 {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(1000)]);
            self.sums.faults.push(format!("{what} to {shown}"));
        }
    }
}

/// Opens an HTTP+SSE stream, and the endpoint that it names. The gateway ends no stream that is not
/// read for as long as little is sent.
fn sse(host: &str) -> Result<(TcpStream, String), String> {
    let mut wire = Connection::new(host)?;
    let text = format!("GET /sse HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n");
    wire.socket
        .write_all(text.as_bytes())
        .map_err(|e| e.to_string())?;
    wire.until(b"data: ").ok_or("no endpoint event")?;
    let endpoint = wire.until(b"\n").ok_or("no endpoint")?;
    let endpoint = String::from_utf8_lossy(&endpoint).trim().to_owned();
    let path = endpoint
        .find("/messages")
        .map_or(&*endpoint, |at| &endpoint[at..]);
    let mut reader = wire.socket.try_clone().map_err(|e| e.to_string())?;
    reader.set_read_timeout(None).map_err(|e| e.to_string())?;
    std::thread::spawn(move || {
        let mut room = [0; 4 << 10];
        while matches!(reader.read(&mut room), Ok(1..)) {}
    });
    Ok((wire.socket, path.to_owned()))
}

fn register(own: &mut Connection, oauth: &str) -> Result<String, String> {
    let wanted = json!({"redirect_uris": ["http://127.0.0.1:9/cb"],
        "token_endpoint_auth_method": "none"});
    let headers = [("Content-Type", "application/json")];
    let reply = own.ask(
        "POST",
        &format!("{oauth}/register"),
        &headers,
        &wanted.to_string(),
    )?;
    let told: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let id = told["client_id"].as_str().map(str::to_owned);
    id.ok_or_else(|| format!("registration: {}", reply.head))
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

pub fn run(args: &Args, count: u64) -> Result<Value, String> {
    let host = args
        .url
        .strip_prefix("http://")
        .ok_or("--url must be http")?;
    let host = host.split('/').next().unwrap_or(host);
    let lanes = args.concurrency as u64;
    let mut workers = Vec::new();
    for lane in 0..lanes {
        workers.push(Worker::new(args, host, args.seed ^ lane << 32)?);
    }
    let began = Instant::now();
    let mut samples = Vec::new();
    let failed = Mutex::new(None);
    for part in 0..SAMPLES {
        let share = count * (part + 1) / SAMPLES / lanes - count * part / SAMPLES / lanes;
        std::thread::scope(|scope| {
            for worker in &mut workers {
                let failed = &failed;
                scope.spawn(move || {
                    for _ in 0..share {
                        if let Err(why) = worker.step() {
                            *failed.lock().unwrap() = Some(why);
                            return;
                        }
                    }
                });
            }
        });
        if let Some(why) = failed.lock().unwrap().take() {
            return Err(why);
        }
        samples.push(args.pid.map_or(0, rss_kib));
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
    let (mut faults, mut unanswered) = (Vec::new(), 0);
    for worker in workers {
        for (status, times) in worker.sums.statuses {
            *statuses.entry(status).or_default() += times;
        }
        unanswered += worker.sums.unanswered;
        faults.extend(worker.sums.faults);
    }
    let sent = count / lanes * lanes;
    Ok(
        json!({"requests": sent, "seconds": seconds, "rps": sent as f64 / seconds,
        "statuses": statuses, "unanswered": unanswered, "faults": faults, "rss_kib": samples}),
    )
}

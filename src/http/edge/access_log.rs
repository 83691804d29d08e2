//! Access log: one line for each request of the public listener, and its count.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::request::Parts;
use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::config::LoggedRequests;
use crate::endpoint;
use crate::telemetry::{Metrics, Route, StatusClass, TraceContext};

/// Access log of one listener.
pub(super) struct AccessLog {
    /// Counts all requests, those without a line included.
    metrics: Arc<Metrics>,
    /// The requests that have a line.
    logged: LoggedRequests,
    /// Number of answers that were no errors, for the sample of them.
    answered: AtomicU64,
    /// Part of request ids that differs between processes: 16 digits.
    boot: String,
    /// Part of request ids that differs within a process.
    next: AtomicU64,
}

impl AccessLog {
    /// Makes an access log with a random boot number.
    pub(super) fn new(metrics: Arc<Metrics>, logged: LoggedRequests) -> Self {
        Self {
            metrics,
            logged,
            answered: AtomicU64::new(0),
            boot: uuid::Uuid::new_v4().simple().to_string().split_off(16),
            next: AtomicU64::new(1),
        }
    }

    /// Begins the line of a request of a kind of route that arrives now, in a trace.
    pub(super) fn begin(
        &self,
        head: &Parts,
        route: Route,
        address: IpAddr,
        trace: Option<TraceContext>,
    ) -> Line<'_> {
        Line {
            log: self,
            route,
            method: head.method.clone(),
            path: head.uri.path().into(),
            address,
            trace,
            began: Instant::now(),
            is_written: false,
        }
    }

    /// Whether a request that was answered with `status` has a line.
    fn has(&self, status: u16) -> bool {
        let is_error = status >= 400;
        match self.logged {
            LoggedRequests::All => true,
            LoggedRequests::Errors => is_error,
            LoggedRequests::Sampled => {
                is_error
                    || self
                        .answered
                        .fetch_add(1, Ordering::Relaxed)
                        .is_multiple_of(SAMPLE)
            }
            LoggedRequests::Off => false,
        }
    }

    /// Makes a request id for logs. A random id would cost a system call and be no more unique. The
    /// id is no secret and no key for lookups.
    fn request_id(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(REQUEST_ID);
        id.push_str(&self.boot);
        // Numbers beyond 32 bits have more digits.
        for at in (0..(16 - next.leading_zeros() / 4).max(8)).rev() {
            let digit = next >> (4 * at) & 0xf;
            id.push(char::from(
                DIGITS[usize::try_from(digit).unwrap_or_default()],
            ));
        }
        id
    }
}

/// Log line of one request, without query, header fields and session id.
///
/// A line that is dropped is that of a request without an answer: its client left first, or the gateway ended. What it
/// began may go on, so it is written and counted like those of others.
pub(super) struct Line<'l> {
    log: &'l AccessLog,
    route: Route,
    method: Method,
    /// A copy: the request lets go of its head while it waits.
    path: Box<str>,
    address: IpAddr,
    trace: Option<TraceContext>,
    began: Instant,
    is_written: bool,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            self.log
                .metrics
                .requests
                .add(self.route, StatusClass::Aborted);
            self.emit(ABORTED);
        }
    }
}

impl Line<'_> {
    /// Returns the path of the request.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Counts and logs a request that is answered with `status`.
    pub(super) fn write(&mut self, status: StatusCode) {
        self.is_written = true;
        let status = status.as_u16();
        self.log.metrics.requests.add(self.route, status.into());
        self.emit(status);
    }

    /// Writes the line, if requests of this status have one.
    fn emit(&self, status: u16) {
        let is_shown = tracing::enabled!(target: "lockgate::http", tracing::Level::INFO);
        if !is_shown || !self.log.has(status) {
            return;
        }
        // Methods and paths are the client's text and may be long.
        let method = self.method.as_str();
        let method = method.get(..METHOD_MAX).unwrap_or(method);
        let path = &*self.path;
        let logged = path.char_indices().nth(PATH_MAX);
        let logged = logged.map_or(path, |(end, _)| &path[..end]);
        let (tenant, server) = names(logged);
        let id = &*self.log.request_id();
        let trace = self.trace.as_ref();
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let address = &*text_of(self.address);
        tracing::info!(
            target: "lockgate::http",
            {
                request.id = id,
                http.method = method,
                url.path = logged,
                tenant.id = tenant,
                server.name = server,
                http.status = status,
                client.address = address,
                trace_id = trace.map(TraceContext::trace_id),
                span_id = trace.map(TraceContext::span_id),
                ms
            },
            "request"
        );
    }
}

/// Writes an address. The library's writer of IPv4 addresses takes ten times as long.
fn text_of(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        return address.to_string();
    };
    let mut text = String::with_capacity(15);
    for (at, octet) in address.octets().into_iter().enumerate() {
        if at > 0 {
            text.push('.');
        }
        for (unit, is_shown) in [(100, octet > 99), (10, octet > 9), (1, true)] {
            if is_shown {
                text.push(char::from(b'0' + octet / unit % 10));
            }
        }
    }
    text
}

/// Returns the tenant and the server that a path names.
fn names(path: &str) -> (Option<&str>, Option<&str>) {
    match path.strip_prefix("/api/v1/tenants/") {
        None => endpoint::names(path),
        Some(rest) => {
            let tenant = rest.split('/').next();
            (tenant.filter(|tenant| !tenant.is_empty()), None)
        }
    }
}

/// Status in the line of a request without an answer, as that of nginx.
const ABORTED: u16 = 499;
/// Length of request ids, until there are more than 4 billion.
const REQUEST_ID: usize = 24;
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// One of so many requests is logged where they are sampled.
const SAMPLE: u64 = 100;
/// Logged part of a method, longer than all supported ones.
const METHOD_MAX: usize = 16;
/// Logged part of a path, longer than all valid ones.
const PATH_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    fn log(logged: LoggedRequests) -> AccessLog {
        AccessLog::new(Arc::new(Metrics::new(None).unwrap()), logged)
    }

    #[test]
    fn a_sample_has_every_error_and_one_of_a_hundred_others() {
        let count = |logged, status: u16| {
            let log = log(logged);
            (0..1000).filter(|_| log.has(status)).count()
        };
        for (logged, fine, refused, failed) in [
            (LoggedRequests::All, 1000, 1000, 1000),
            (LoggedRequests::Errors, 0, 1000, 1000),
            (LoggedRequests::Sampled, 10, 1000, 1000),
            (LoggedRequests::Off, 0, 0, 0),
        ] {
            assert_eq!(count(logged, 200), fine, "{logged:?}");
            assert_eq!(count(logged, 404), refused, "{logged:?}");
            assert_eq!(count(logged, 503), failed, "{logged:?}");
        }
    }

    #[test]
    fn a_request_without_an_answer_has_a_line_and_a_count_like_others() {
        let mut file = tempfile::tempfile().unwrap();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Arc::new(file.try_clone().unwrap()))
            .finish();
        let log = log(LoggedRequests::Errors);
        let (head, ()) = http::Request::post("/t/a/x/mcp")
            .body(())
            .unwrap()
            .into_parts();
        let begin = || log.begin(&head, Route::Mcp, "192.0.2.7".parse().unwrap(), None);
        tracing::subscriber::with_default(lines, || {
            drop(begin());
            begin().write(StatusCode::OK);
            begin().write(StatusCode::NOT_FOUND);
        });
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "each has one line: {text}");
        for (line, status) in lines.iter().zip(["http.status=499", "http.status=404"]) {
            for part in [
                "client.address=\"192.0.2.7\"",
                "url.path=\"/t/a/x/mcp\"",
                status,
            ] {
                assert!(line.contains(part), "{part}: {line}");
            }
        }
        let shown = log.metrics.render();
        for status in ["2xx", "4xx", "aborted"] {
            let count = format!("lockgate_requests_total{{route=\"mcp\",status=\"{status}\"}} 1\n");
            assert!(shown.contains(&count), "{count}");
        }
    }

    #[test]
    fn request_ids_are_counted_in_hexadecimal() {
        let log = log(LoggedRequests::All);
        for (next, wanted) in [
            (1, "00000001"),
            (0x0abc_def0, "0abcdef0"),
            (0xffff_ffff, "ffffffff"),
            (0x1_0000_0000, "100000000"),
            (u64::MAX, "ffffffffffffffff"),
        ] {
            log.next.store(next, Ordering::Relaxed);
            let id = log.request_id();
            let (boot, counted) = id.split_at(16);
            assert_eq!((boot, counted), (&*log.boot, wanted));
            assert!(u64::from_str_radix(boot, 16).is_ok());
        }
    }

    #[test]
    fn addresses_are_written_as_the_library_does() {
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "10.99.100.255",
            "255.9.19.200",
            "::1",
            "2001:db8::7",
        ] {
            assert_eq!(text_of(text.parse().unwrap()), text);
        }
    }

    #[test]
    fn the_log_names_the_tenant_and_server_of_a_path() {
        let table = [
            ("/api/v1/tenants", (None, None)),
            ("/api/v1/tenants/", (None, None)),
            ("/api/v1/tenants/a", (Some("a"), None)),
            ("/api/v1/tenants/a/servers/b", (Some("a"), None)),
        ];
        for (path, named) in table {
            assert_eq!(names(path), named, "{path}");
        }
    }
}

//! Access log: one line for each request of the public listener.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::request::Parts;
use http::{Method, StatusCode, Uri};
use tokio::time::Instant;

use crate::endpoint;

/// Access log of one listener.
pub(super) struct AccessLog {
    /// Makes request ids of one process differ from those of every other.
    boot: u64,
    /// Makes them differ from each other.
    next: AtomicU64,
}

impl AccessLog {
    /// An access log with a random boot number.
    pub(super) fn new() -> Self {
        Self {
            boot: uuid::Uuid::new_v4().as_u64_pair().1,
            next: AtomicU64::new(1),
        }
    }

    /// The line of a request that arrives now.
    pub(super) fn begin(&self, head: &Parts, address: IpAddr) -> Line<'_> {
        Line {
            log: self,
            method: head.method.clone(),
            uri: head.uri.clone(),
            address,
            began: Instant::now(),
        }
    }

    /// The name of one request in logs. A random one would cost a system call; this one is as
    /// unique. It is no secret, and nothing is looked up by it.
    fn request_id(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{next:08x}", self.boot)
    }
}

/// The log line of one request: no query, no header, no session id.
pub(super) struct Line<'l> {
    log: &'l AccessLog,
    method: Method,
    uri: Uri,
    address: IpAddr,
    began: Instant,
}

impl Line<'_> {
    /// The path of the request.
    pub(super) fn path(&self) -> &str {
        self.uri.path()
    }

    /// Writes the line of a request that was answered with `status`.
    pub(super) fn write(&self, status: StatusCode) {
        if !tracing::enabled!(target: "lockgate::http", tracing::Level::INFO) {
            return;
        }
        // An unknown method is the client's text and may be long.
        let method = self.method.as_str();
        let method = method.get(..METHOD_LOGGED).unwrap_or(method);
        let path = self.uri.path();
        let logged = path.char_indices().nth(PATH_LOGGED);
        let logged = logged.map_or(path, |(end, _)| &path[..end]);
        let (tenant, server) = names(logged);
        let (id, code) = (&*self.log.request_id(), status.as_u16());
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let address = tracing::field::display(self.address);
        tracing::info!(
            target: "lockgate::http",
            {
                request.id = id,
                http.method = method,
                url.path = logged,
                tenant.id = tenant,
                server.name = server,
                http.status = code,
                client.address = address,
                ms
            },
            "request"
        );
    }
}

/// The tenant and the server that a path names.
fn names(path: &str) -> (Option<&str>, Option<&str>) {
    match path.strip_prefix("/api/v1/tenants/") {
        None => endpoint::names(path),
        Some(rest) => {
            let tenant = rest.split('/').next();
            (tenant.filter(|tenant| !tenant.is_empty()), None)
        }
    }
}

/// No method of ours is longer.
const METHOD_LOGGED: usize = 16;
/// No path of ours is longer.
const PATH_LOGGED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_whom_a_path_names() {
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

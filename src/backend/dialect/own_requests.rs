//! Requests of the gateway itself to a child, and those that are not answered, of which no client is told.

use std::{collections::BTreeMap, time::Duration};

use bytes::{BufMut, BytesMut};
use tokio::time::Instant;

use crate::protocol::jsonrpc::push_cancelled;

/// Requests of the gateway itself that a child has not answered, by id.
#[derive(Default)]
pub(crate) struct OwnRequests(BTreeMap<u64, OwnRequest>);

struct OwnRequest {
    method: &'static str,
    /// The time at which it is overdue; none before the first look at it.
    until: Option<Instant>,
}

/// The most that are remembered for their responses; the oldest are forgotten.
const MAX_OWN: usize = 1024;

impl OwnRequests {
    /// Adds a request.
    pub(crate) fn begin(&mut self, id: u64, method: &'static str) {
        if self.0.len() == MAX_OWN {
            self.0.pop_first();
        }
        let until = None;
        self.0.insert(id, OwnRequest { method, until });
    }

    /// Removes a request that is answered; its method.
    pub(crate) fn end(&mut self, id: u64) -> Option<&'static str> {
        self.0.remove(&id).map(|request| request.method)
    }

    /// Whether a request with this id is open.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.0.contains_key(&id)
    }

    /// The ids of all open requests.
    pub(super) fn ids(&self) -> impl Iterator<Item = &u64> {
        self.0.keys()
    }

    /// Whether a ping is on its way.
    pub(crate) fn is_pinged(&self) -> bool {
        self.0.values().any(|request| request.method == "ping")
    }

    /// Removes, logs and cancels the requests that are not answered within `limit` of the first look at them
    /// (2025-11-25 lifecycle, "Timeouts"); a ping has a clock of its own, which ends the child. Returns the
    /// time of the next look.
    pub(crate) fn sweep(
        &mut self,
        (now, limit): (Instant, Duration),
        (tenant, server): (&str, &str),
        out: &mut BytesMut,
    ) -> Option<Instant> {
        let is_overdue = |_: &u64, request: &mut OwnRequest| {
            request.method != "ping" && *request.until.get_or_insert(now + limit) <= now
        };
        for (id, OwnRequest { method, .. }) in self.0.extract_if(.., is_overdue) {
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                mcp.method.name = method,
                "the child does not answer a request of the gateway"
            );
            push_cancelled(id, "the request took too long", out);
            out.put_u8(b'\n');
        }
        self.0.values().filter_map(|request| request.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::own_requests::*;

    /// 2025-11-25 lifecycle, "Timeouts".
    #[test]
    fn a_request_that_is_overdue_is_cancelled_once() {
        let (mut own, mut out) = (OwnRequests::default(), BytesMut::new());
        let (now, limit) = (Instant::now(), Duration::from_secs(60));
        let mut sweep = |own: &mut OwnRequests, seconds| {
            let now = now + Duration::from_secs(seconds);
            let next = own.sweep((now, limit), ("a", "main"), &mut out);
            (next, String::from_utf8(out.split().to_vec()).unwrap())
        };
        own.begin(1, "ping");
        own.begin(2, "resources/subscribe");
        own.begin(3, "logging/setLevel");
        assert_eq!(sweep(&mut own, 0), (Some(now + limit), String::new()));
        assert_eq!(own.end(3), Some("logging/setLevel"));
        own.begin(4, "tasks/cancel");
        assert_eq!(sweep(&mut own, 59), (Some(now + limit), String::new()));
        let (next, said) = sweep(&mut own, 60);
        assert_eq!(next, Some(now + Duration::from_secs(119)));
        assert!(said.contains(r#"{"requestId":2,"#), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(own.end(2), None);
        assert_eq!(sweep(&mut own, 200).0, None);
        assert!(own.is_pinged(), "it has a clock of its own");
    }

    #[test]
    fn the_oldest_of_many_are_forgotten() {
        let mut own = OwnRequests::default();
        for id in 0..2 * MAX_OWN as u64 {
            own.begin(id, "tasks/cancel");
        }
        assert_eq!(own.ids().count(), MAX_OWN);
        assert_eq!(own.end(0), None);
    }
}

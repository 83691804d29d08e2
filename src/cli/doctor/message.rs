//! The messages that the doctor sends, and the session that they are of.

use reqwest::Method;
use serde_json::{Value as Json, json};

use super::visitor::{Ask, Visitor};
use crate::protocol::{SESSION_ID, headers::PROTOCOL_VERSION, meta};

/// `Accept` of a POST (2025-11-25 transports, "Sending Messages to the Server" 2).
pub(super) const ACCEPT: &str = "application/json, text/event-stream";

/// The first revision without sessions.
pub(super) const MODERN: &str = "2026-07-28";

/// A session that has begun.
pub(super) struct Session {
    /// The revision that was negotiated.
    pub(super) revision: String,
    pub(super) id: Option<String>,
}

impl Session {
    /// A request of the session.
    pub(super) fn ask(&self, ask: Ask) -> Ask {
        let ask = ask.with_token().header(PROTOCOL_VERSION, &self.revision);
        match &self.id {
            Some(id) => ask.header(SESSION_ID, id),
            None => ask,
        }
    }

    /// The request that ends it; none without a session ID.
    pub(super) fn ending(&self, visitor: &Visitor) -> Option<Ask> {
        self.id.as_ref()?;
        Some(self.ask(Ask::of(Method::DELETE, &visitor.target)))
    }
}

/// `initialize` of a revision.
pub(super) fn initialize(revision: &str) -> Json {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": revision, "capabilities": {}, "clientInfo": client()}})
}

/// `notifications/initialized`.
pub(super) fn initialized() -> Json {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

/// `ping`, with so many bytes of padding in `_meta`.
pub(super) fn ping(id: u32, padding: usize) -> Json {
    let mut ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    if padding > 0 {
        ping["params"] = json!({"_meta": {"lockgate-doctor/padding": "x".repeat(padding)}});
    }
    ping
}

/// A request of revision 2026-07-28 (2026-07-28 basic, "General fields").
pub(super) fn modern(id: u32, method: &str, mut params: Json) -> Json {
    params["_meta"] = json!({
        meta::VERSION: MODERN, meta::CLIENT_INFO: client(), meta::CLIENT_CAPABILITIES: {}});
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn client() -> Json {
    json!({"name": "lockgate-doctor", "version": env!("CARGO_PKG_VERSION")})
}

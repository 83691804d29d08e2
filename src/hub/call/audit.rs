//! Audit record of a call, for servers with `audit_calls`.
//!
//! The record never contains arguments or results.

use serde_json::json;
use tokio::time::Instant;

use crate::{
    auth::Principal,
    database::{FIELD, Record, cut},
    declare::Server,
    protocol::Message,
    state::SessionId,
    telemetry::Outcome,
};

/// The part of the audit record that is known when the call begins, cut: it lives as long as the call.
pub(crate) struct Audited {
    method: String,
    name: Option<String>,
    began: Instant,
}

impl Audited {
    /// Begins the record of a call; none for a server without `audit_calls`.
    pub(crate) fn begin(server: &Server, message: &Message) -> Option<Box<Self>> {
        let begin = || Self {
            method: cut(&message.method_name(), FIELD).into_owned(),
            name: message.name().map(|name| cut(&name, FIELD).into_owned()),
            began: Instant::now(),
        };
        server.audit_calls.then(|| Box::new(begin()))
    }

    /// The record of a call that ended.
    pub(crate) fn record(
        &self,
        server: &Server,
        principal: &Principal,
        session: &SessionId,
        outcome: Outcome,
    ) -> Record {
        let Server { tenant, name, .. } = server;
        let detail = json!({
            "method": self.method, "name": self.name, "outcome": outcome.into_str(),
            "client": principal.client(), "session": session.short(),
            "ms": u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        let actor = principal.subject().unwrap_or("anonymous");
        let target = format!("server {tenant}/{name}");
        Record::new(Some(tenant), "call", actor, &target, detail).since(self.began)
    }
}

//! The ends of calls: counted, and on record where the server says so (`audit_calls`).
//!
//! Never arguments or results (DESIGN section 6).

use serde_json::json;
use tokio::time::Instant;

use super::{calls::Call, task::Session};
use crate::{database::Record, protocol::Message, telemetry::Outcome};

/// What is on record of a call that has begun.
pub(crate) struct Audited {
    method: String,
    name: Option<String>,
    began: Instant,
}

impl Session {
    /// What will be on record of a call; none where nothing is.
    pub(crate) fn audited(&self, message: &Message) -> Option<Box<Audited>> {
        let begin = || Audited {
            method: message.method_name().into_owned(),
            name: message.name().map(String::from),
            began: Instant::now(),
        };
        self.server.audit_calls.then(|| Box::new(begin()))
    }

    /// A call ended in this way.
    pub(super) fn call_ended(&mut self, call: &Call, outcome: Outcome) {
        // Its client may come back for the result for as long as after a request.
        self.touched = Instant::now();
        self.core.metrics.call(call.class, outcome);
        let Some(audited) = &call.audited else {
            return;
        };
        let (tenant, server) = (&self.tenant.name, &self.server.name);
        self.core.trail.note(Record {
            tenant: Some(tenant.clone()),
            kind: "call".to_owned(),
            actor: self.principal.subject().unwrap_or("anonymous").to_owned(),
            target: format!("server {tenant}/{server}"),
            detail: json!({
                "method": audited.method, "name": audited.name, "outcome": outcome.as_str(),
                "client": self.principal.client(), "session": self.id.short(),
                "ms": u64::try_from(audited.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            }),
        });
    }
}

//! Sessions as an administrator sees them.
//!
//! A session's own id is a secret of its client (legacy era), so here it has another name.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{
    core::{Command, Handle, Transport},
    requests::Hub,
};
use crate::backend::child::Restart as HowToEnd;
use crate::base::{hex, sha256};
use crate::state::SessionId;

/// A session of this replica.
#[derive(Clone, Debug)]
pub(crate) struct SeenSession {
    /// Tells it from every other session; worth nothing to a client.
    pub(crate) id: String,
    /// The server that it is a session of.
    pub(crate) server: String,
    /// How its client speaks.
    pub(crate) transport: &'static str,
    /// The issuer of its principal.
    pub(crate) issuer: Option<String>,
    /// For whom its principal acts.
    pub(crate) subject: Option<String>,
    /// The client, or the name of the API key.
    pub(crate) client: Option<String>,
    /// How long it lives.
    pub(crate) age: Duration,
}

impl Hub {
    /// The sessions of a tenant on this replica, in no order.
    pub(crate) fn sessions(&self, tenant: &str) -> Vec<SeenSession> {
        self.0
            .sessions
            .of_tenant(tenant)
            .iter()
            .map(|(id, handle)| seen(id, handle))
            .collect()
    }

    /// Ends the session with this name; false if there is none.
    pub(crate) async fn end_seen(&self, tenant: &str, id: &str, how: HowToEnd) -> bool {
        let mut handles = self.0.sessions.of_tenant(tenant).into_iter();
        let Some((_, handle)) = handles.find(|(own, _)| name(own) == id) else {
            return false;
        };
        let (done, ended) = oneshot::channel();
        let command = match how {
            HowToEnd::Now => Command::End(done),
            HowToEnd::Drain => Command::Drain(done),
        };
        let sent = handle.commands.send(command).await;
        sent.is_ok() && ended.await.is_ok()
    }
}

fn seen(id: &SessionId, handle: &Handle) -> SeenSession {
    let principal = handle.access.principal();
    let own = |text: Option<&str>| text.map(str::to_owned);
    SeenSession {
        id: name(id),
        server: handle.access.server().name.clone(),
        transport: match handle.transport {
            Transport::Streamable => "streamable-http",
            Transport::Sse2024 => "http+sse",
        },
        issuer: own(principal.issuer()),
        subject: own(principal.subject()),
        client: own(principal.client()),
        age: handle.born.elapsed(),
    }
}

/// 64 bits of the hash of an id: enough to tell sessions apart, nothing to call with.
fn name(id: &SessionId) -> String {
    hex(&sha256(id.as_str().as_bytes())[..8])
}

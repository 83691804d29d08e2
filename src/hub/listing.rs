//! List of sessions for administrators, and the end of one of them.
//!
//! The id of a session is a secret of its client (legacy era), so administrators see the beginning of
//! it, as in logs and audit records.

use std::{collections::HashMap, time::Duration};

use tokio::sync::oneshot;

use super::{
    core::{Command, Handle, Transport},
    requests::Hub,
};
use crate::{backend::child::Restart, error::Error, state::SessionId};

/// The summary of a session of this replica.
#[derive(Clone, Debug)]
pub(crate) struct SessionSummary {
    /// The beginning of the id; useless as a session id.
    pub(crate) id: String,
    /// The server of the session.
    pub(crate) server: String,
    /// The transport of the client.
    pub(crate) transport: &'static str,
    /// The issuer of the principal.
    pub(crate) issuer: Option<String>,
    /// The subject of the principal.
    pub(crate) subject: Option<String>,
    /// The client, or the name of the API key.
    pub(crate) client: Option<String>,
    /// The age of the session.
    pub(crate) age: Duration,
}

impl Hub {
    /// The sessions of a tenant on this replica, in no order.
    pub(crate) fn sessions(&self, tenant: &str) -> Vec<SessionSummary> {
        self.0
            .sessions
            .of_tenant(tenant)
            .iter()
            .map(|(id, handle)| summary(id, handle))
            .collect()
    }

    /// The number of sessions of each server on this replica.
    pub(crate) fn session_counts(&self) -> HashMap<[String; 2], u64> {
        let mut counts = HashMap::new();
        for (_, handle) in self.0.sessions.all() {
            let access = &handle.access;
            let name = [&access.tenant().name, &access.server().name].map(String::clone);
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// Whether an administrator can end the session whose id begins so.
    ///
    /// # Errors
    ///
    /// `NoSession` if there is none; `Busy` while the store is away.
    pub(crate) fn check_end(&self, tenant: &str, id: &str) -> Result<(), Error> {
        self.ending(tenant, id).map(drop)
    }

    fn ending(&self, tenant: &str, id: &str) -> Result<(SessionId, Handle), Error> {
        let mut handles = self.0.sessions.of_tenant(tenant).into_iter();
        let found = handles.find(|(own, _)| own.short() == id);
        let (own, handle) = found.ok_or(Error::NoSession)?;
        if handle.transport != Transport::Stateless {
            self.0.owner.check()?;
        }
        Ok((own, handle))
    }

    /// Ends the session whose id begins so.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_end`].
    pub(crate) async fn end_session(
        &self,
        tenant: &str,
        id: &str,
        end: Restart,
    ) -> Result<(), Error> {
        let (own, handle) = self.ending(tenant, id)?;
        let (done, ended) = oneshot::channel();
        let command = match end {
            Restart::Now => Command::End(done),
            Restart::Drain => Command::Drain(done),
        };
        _ = handle.commands.send(command).await;
        match ended.await {
            Ok(Err(away)) if self.0.sessions.has(own.as_str()) => Err(away),
            // One whose record a silent store still has is over as well: its task is gone, and removes it later.
            Ok(_) => Ok(()),
            // It has ended by itself. While the store is away it may live on elsewhere.
            Err(_) if handle.transport != Transport::Stateless => {
                self.0.owner.check()?;
                Err(Error::NoSession)
            }
            Err(_) => Err(Error::NoSession),
        }
    }
}

fn summary(id: &SessionId, handle: &Handle) -> SessionSummary {
    let principal = handle.access.principal();
    let own = |text: Option<&str>| text.map(str::to_owned);
    SessionSummary {
        id: id.short().to_owned(),
        server: handle.access.server().name.clone(),
        transport: match handle.transport {
            Transport::Streamable | Transport::Stateless => "streamable-http",
            Transport::Sse2024 => "http+sse",
        },
        issuer: own(principal.issuer()),
        subject: own(principal.subject()),
        client: own(principal.client()),
        age: handle.born.elapsed(),
    }
}

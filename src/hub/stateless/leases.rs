//! Leases of sessions: one that is free, or one that begins.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    group::{Caller, Leased},
    sessions::Stateless,
};
use crate::{
    error::Error,
    protocol::{json, modern::ToolHeaders},
};

impl Stateless {
    /// Finds or begins a session for a call.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`.
    pub(super) async fn lease_for_call(&self, caller: &Caller<'_>) -> Result<Leased, Error> {
        if !caller.may_be_asked() {
            return self.lease_for_all(caller).await;
        }
        let (group, hub) = (self.group(caller), &self.sender.hub);
        if let Some(lease) = group.lease(hub, caller.access, true)? {
            return Ok(Ok(lease));
        }
        Ok(match self.begin(caller).await? {
            Ok(member) => Ok(group.add(hub, caller.access, member, true)?),
            Err(line) => Err(line),
        })
    }

    /// Finds or begins a session that others may use as well.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`.
    pub(crate) async fn lease_for_all(&self, caller: &Caller<'_>) -> Result<Leased, Error> {
        let (group, hub) = (self.group(caller), &self.sender.hub);
        if let Some(lease) = group.lease(hub, caller.access, false)? {
            return Ok(Ok(lease));
        }
        // Others that come meanwhile use the session that begins.
        let _turn = group.begin.lock().await;
        if let Some(lease) = group.lease(hub, caller.access, false)? {
            return Ok(Ok(lease));
        }
        Ok(match self.begin(caller).await? {
            Ok(member) => Ok(group.add(hub, caller.access, member, false)?),
            Err(line) => Err(line),
        })
    }
}

impl Stateless {
    /// The header fields that mirror arguments of the tools of a server, as it lists them to a caller;
    /// those of the last minute unless they are to be read `again`. None if the server cannot be
    /// initialized.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`.
    pub(crate) async fn tool_headers(
        &self,
        caller: &Caller<'_>,
        again: bool,
    ) -> Result<Option<Arc<ToolHeaders>>, Error> {
        let group = self.group(caller);
        let known = group
            .tools
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((read, tools)) = known.filter(|_| !again)
            && read.elapsed() < FRESH
        {
            return Ok(Some(tools));
        }
        let Ok(lease) = self.lease_for_all(caller).await? else {
            return Ok(None);
        };
        let (read, mut tools) = (Instant::now(), ToolHeaders::default());
        let mut params = Bytes::from_static(b"{}");
        for _ in 0..MAX_PAGES {
            let (handle, method) = (&lease.handle, "tools/list");
            let answer = self
                .sender
                .request(handle, caller.access, method, &params)
                .await?;
            tools.add(&answer);
            let result = json::get(&answer, "result");
            let Some(cursor) = result.and_then(|result| json::get(result, "nextCursor")) else {
                break;
            };
            params = [br#"{"cursor":"#, cursor, b"}"].concat().into();
        }
        let tools = Arc::new(tools);
        let mut known = group.tools.write().unwrap_or_else(PoisonError::into_inner);
        *known = Some((read, Arc::clone(&tools)));
        Ok(Some(tools))
    }
}

/// The time for which the list of a server is taken as it was.
const FRESH: Duration = Duration::from_secs(60);
/// The most pages of a list that are read.
const MAX_PAGES: usize = 100;

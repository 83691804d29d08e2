//! Leases of sessions: one that is free, or one that begins.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    group::{Caller, KnownTools, Lease, Leased},
    sessions::Stateless,
};
use crate::{
    base::budget::LargeWork,
    error::Error,
    hub::CallError,
    protocol::{json, modern::ToolHeaders},
};

impl Stateless {
    /// Finds or begins a session for a call, or for another use that ends soon.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`.
    pub(crate) async fn lease(&self, caller: &Caller<'_>) -> Result<Leased, Error> {
        let (group, hub) = (self.group(caller), &self.sender.hub);
        let is_told_apart = caller.may_carry() && group.is_stateless();
        if !caller.may_be_asked() || is_told_apart {
            return self.lease_for_all(caller).await;
        }
        let lease = match group.lease(hub, caller.access, true)? {
            Some(lease) => lease,
            None => match self.begin(caller, true).await? {
                Ok(member) => group.add(hub, caller.access, member)?,
                Err(line) => return Ok(Err(line)),
            },
        };
        self.hear(group, &lease.member, caller.access).await;
        Ok(Ok(lease))
    }

    /// Finds or begins a session for a call that wants log messages of at least this level, if it wants any.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`; `NoSession` if each has ended before its server was asked for them.
    pub(super) async fn lease_at(
        &self,
        caller: &Caller<'_>,
        level: Option<&str>,
    ) -> Result<Leased, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let leased = self.lease(caller).await?;
            let (Ok(lease), Some(level)) = (&leased, level) else {
                return Ok(leased);
            };
            match lease.want_level(&self.sender, caller.access, level).await {
                Err(Error::NoSession) if tries < TRIES => {}
                wanted => return wanted.map(|()| leased),
            }
        }
    }

    /// Finds or begins a session that others may use as well.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`.
    pub(super) async fn lease_for_all(&self, caller: &Caller<'_>) -> Result<Leased, Error> {
        let (group, hub) = (self.group(caller), &self.sender.hub);
        if let Some(lease) = group.lease(hub, caller.access, false)? {
            return Ok(Ok(lease));
        }
        // Others that come meanwhile use the session that begins.
        let _turn = group.begin.lock().await;
        if let Some(lease) = group.lease(hub, caller.access, false)? {
            return Ok(Ok(lease));
        }
        Ok(match self.begin(caller, false).await? {
            Ok(member) => Ok(group.add(hub, caller.access, member)?),
            Err(line) => Err(line),
        })
    }
}

impl Stateless {
    /// The header fields that mirror arguments of the tools of a server, as it lists them to a caller;
    /// those of the last minute, or of the last second if they are to be read `again`. None if it has just failed to
    /// list them to another caller, or has not answered one in the last minute; the raw error response if it could not be
    /// initialized.
    ///
    /// # Errors
    ///
    /// `Draining`, `Quota`, `Busy`; `NoSession` if each session has ended before its server has answered.
    pub(crate) async fn tool_headers(
        &self,
        caller: &Caller<'_>,
        again: bool,
    ) -> Result<Result<Option<Arc<ToolHeaders>>, Bytes>, Error> {
        let (group, policy) = (self.group(caller), caller.access.policy());
        let known = || group.tools(policy, if again { AGAIN } else { FRESH });
        if let Some(tools) = known() {
            return Ok(Ok(Some(tools)));
        }
        // Others that come meanwhile take what is read. Nor do they wait for a server that does not answer, one behind
        // the other.
        let came = Instant::now();
        let mut in_vain = group.reading.lock().await;
        if let Some(tools) = known() {
            return Ok(Ok(Some(tools)));
        }
        if in_vain.is_some_and(|until| until >= came) {
            return Ok(Ok(None));
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let lease = match self.lease(caller).await? {
                Ok(lease) => lease,
                Err(line) => {
                    *in_vain = Some(Instant::now());
                    return Ok(Err(line));
                }
            };
            let read = Instant::now();
            let (tools, end) = match self.read_tools(caller, &lease).await {
                // The session has ended at this moment.
                Err(Error::NoSession) if tries < TRIES => continue,
                listed => listed?,
            };
            let tools = Arc::new(tools);
            match end {
                ListEnd::Whole => self.keep_tools(caller, &tools, read),
                // It is asked again for the next call.
                ListEnd::Failed => *in_vain = Some(Instant::now()),
                // Each call would wait for as long again.
                ListEnd::Late => *in_vain = Some(Instant::now() + FRESH),
            }
            return Ok(Ok(Some(tools)));
        }
    }

    /// Keeps what was read for a caller for others, until it is old or the last session has ended.
    fn keep_tools(&self, caller: &Caller<'_>, tools: &Arc<ToolHeaders>, read: Instant) {
        let (group, hub) = (self.group(caller), &self.sender.hub);
        let share = hub.limits().memory().caller(caller.access);
        let are_first = group.keep_tools(KnownTools {
            policy: Arc::clone(caller.access.policy()),
            read,
            _held: share.hold(tools.size() as u64),
            tools: Arc::clone(tools),
        });
        if are_first {
            let group = Arc::clone(group);
            // A task: no other call may ever come to this group.
            hub.0
                .tracker
                .spawn(async move { group.forget_tools(FRESH).await });
        }
    }

    /// The header fields that mirror arguments of the tools of a server, as it has listed them to a caller within the last
    /// minute; none if they are not known. No session is needed for them.
    pub(crate) fn known_tool_headers(&self, caller: &Caller<'_>) -> Option<Arc<ToolHeaders>> {
        let group = self.group(caller);
        group.tools(caller.access.policy(), FRESH)
    }

    /// Reads the tools that the server of a session lists, and how that ended.
    async fn read_tools(
        &self,
        caller: &Caller<'_>,
        lease: &Lease,
    ) -> Result<(ToolHeaders, ListEnd), Error> {
        let mut tools = ToolHeaders::default();
        let mut params = Bytes::from_static(b"{}");
        let tenant = &caller.access.tenant().name;
        for _ in 0..MAX_PAGES {
            let (handle, method) = (&lease.handle, "tools/list");
            let answer = self
                .sender
                .request(handle, caller.access, method, &params)
                .await?;
            let turn = LargeWork::turn(tenant, answer.len()).await;
            match turn.run(|| read_page(&answer, &mut tools)) {
                Ok(next) => params = next,
                Err(end) => return Ok((tools, end)),
            }
        }
        Ok((tools, ListEnd::Whole))
    }
}

/// Adds the tools of a page; the raw parameters of the request for the next one.
///
/// # Errors
///
/// How the list has ended.
fn read_page(answer: &[u8], tools: &mut ToolHeaders) -> Result<Bytes, ListEnd> {
    let Some(result) = json::get(answer, "result") else {
        let error = json::get(answer, "error");
        let is_late = error.is_some_and(CallError::is_timeout);
        return Err(if is_late {
            ListEnd::Late
        } else {
            ListEnd::Failed
        });
    };
    tools.add(answer);
    let cursor = json::get(result, "nextCursor").filter(|cursor| *cursor != b"null");
    let cursor = cursor.ok_or(ListEnd::Whole)?;
    Ok([br#"{"cursor":"#, cursor, b"}"].concat().into())
}

/// How the reading of a list ended.
enum ListEnd {
    /// It was read.
    Whole,
    /// A page of it was no result.
    Failed,
    /// A page of it did not come in time.
    Late,
}

/// Attempts to find a session that does not end before it is used.
pub(super) const TRIES: usize = 3;
/// The time for which the list of a server is taken as it was, and not waited for if it did not come.
const FRESH: Duration = Duration::from_secs(60);
/// The time for which it is not read again, though a call does not agree with it.
const AGAIN: Duration = Duration::from_secs(1);
/// The most pages of a list that are read.
const MAX_PAGES: usize = 100;

//! Sessions for clients without sessions, by tenant, server, principal and declared capabilities: a
//! session-based server knows by its session what it may ask its client.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;

use super::{
    group::{Caller, Fresh, Group, Key, Member},
    parked::ParkedCalls,
    sender::Sender,
    ticket::TicketKey,
};
use crate::{
    auth::Access,
    error::Error,
    hub::{
        Hub,
        core::Transport,
        stream::{Answer, Form},
    },
    protocol::{Message, initialize, json, modern, revision},
};

/// The sessions of clients without sessions.
pub(crate) struct Stateless {
    pub(super) sender: Arc<Sender>,
    groups: RwLock<Groups>,
    pub(super) parked: ParkedCalls,
    pub(super) tickets: TicketKey,
    /// The keys of carried tickets.
    pub(super) carried: TicketKey,
}

#[derive(Default)]
struct Groups {
    all: HashMap<Key, Arc<Group>>,
    /// The number of groups from which on those that are over are looked for.
    many: usize,
}

impl Stateless {
    /// No sessions yet.
    pub(crate) fn new(hub: Hub) -> Arc<Self> {
        let tickets = TicketKey::new(&hub.0.key, b"tickets of parked calls");
        let carried = TicketKey::new(&hub.0.key, b"tickets with the state of a server");
        Arc::new(Self {
            sender: Arc::new(Sender::new(hub)),
            groups: RwLock::default(),
            parked: ParkedCalls::default(),
            tickets,
            carried,
        })
    }

    /// The sessions that requests like this one may use.
    pub(super) fn group<'c>(&self, caller: &'c Caller<'_>) -> &'c Arc<Group> {
        caller.group.get_or_init(|| self.find_group(caller))
    }

    fn find_group(&self, caller: &Caller<'_>) -> Arc<Group> {
        let key = caller.key();
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.all.get(&key) {
            return Arc::clone(group);
        }
        drop(groups);
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        // Those that are over are removed when there are twice as many as there were living ones.
        if groups.all.len() >= groups.many {
            let is_used = |group: &Arc<Group>| Arc::strong_count(group) > 1 || group.is_alive();
            groups.all.retain(|_, group| is_used(group));
            groups.many = MIN_GROUPS.max(2 * groups.all.len());
        }
        Arc::clone(groups.all.entry(key).or_default())
    }

    /// Begins a session for a caller, for one call at a time or for all; the raw error response of the server
    /// if it refuses to.
    pub(super) async fn begin(
        &self,
        caller: &Caller<'_>,
        is_for_one: bool,
    ) -> Result<Result<Arc<Member>, Bytes>, Error> {
        let line = initialize::request(caller.capabilities, caller.client_info);
        let message = Message::parse(line).map_err(|_| Error::Bug("an initialize of its own"))?;
        let (transport, trace) = (Transport::Stateless, caller.trace.clone());
        let access = caller.access;
        let hub = &self.sender.hub;
        let begun = hub
            .begin_with(access, transport, message, Form::Json, trace)
            .await?;
        let (id, handle, pending) = begun;
        let line = match pending.answer().await {
            Answer::Json(line) => line,
            Answer::Failed(line) => return Ok(Err(line)),
            Answer::Refused(error) => return Err(error),
            Answer::Stream(_) | Answer::Accepted | Answer::Silent => {
                return Err(Error::Bug("initialize was answered by a stream"));
            }
        };
        let fresh = Fresh::new(hub, &handle);
        let initialized = json::get(&line, "result").unwrap_or(b"{}");
        // What a server of this era asks belongs to one call, wherever others are.
        let is_for_one = is_for_one && !(caller.may_carry() && modern::is_stateless(initialized));
        let share = hub.limits().memory().caller(access);
        let held = share.hold(initialized.len() as u64);
        let initialized = held.until_dropped(Bytes::copy_from_slice(initialized));
        let done = Bytes::from_static(initialize::INITIALIZED.trim_ascii_end());
        let done = Message::parse(done).map_err(|_| Error::Bug("a notification of its own"))?;
        self.sender.send(&handle, access, done).await?;
        fresh.keep();
        Ok(Ok(Arc::new(Member::new(
            id,
            &handle,
            initialized,
            is_for_one,
        ))))
    }

    /// Whether the server of a caller has declared that it has requests with this method.
    pub(crate) fn is_declared(&self, caller: &Caller<'_>, method: &str) -> bool {
        let capability = modern::capability_of(method);
        capability.is_some_and(|capability| self.group(caller).is_declared(capability))
    }

    /// The revisions that the tenant of an access serves, newest first.
    pub(crate) fn revisions(access: &Access) -> Vec<&'static str> {
        let tenant = access.tenant();
        let legacy = tenant.revisions.iter().map(|revision| revision.as_str());
        let newest = tenant.is_modern.then_some(revision::FIRST_MODERN);
        newest.into_iter().chain(legacy).collect()
    }
}

/// The fewest groups among which those that are over are looked for.
const MIN_GROUPS: usize = 64;

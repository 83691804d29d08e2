//! Sessions that requests with the same principal and capabilities may use, and their use by one call or
//! by all calls that are never asked.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{changes::Changes, sender::Sender};
use crate::{
    auth::Access,
    base::{budget::Drawn, sha256},
    declare::{Isolation, Policy},
    error::Error,
    hub::{
        CallError, Hub,
        core::{Command, Handle, or_never},
        limits::Source,
    },
    protocol::{
        json, log_level,
        modern::{self, ToolHeaders},
    },
    state::SessionId,
    telemetry::TraceContext,
};

/// Whether the server has a request of the gateway, by its answer: one that it did not answer in time is asked no more. The
/// next call asks again where the request was refused on the way, or its child has ended.
fn is_of_server(answer: &[u8]) -> bool {
    let is_reached = |error| !CallError::is_own(error) || CallError::is_timeout(error);
    json::get(answer, "result").is_some() || json::get(answer, "error").is_some_and(is_reached)
}

/// The time that a call waits for the answer to the log level that it asks for.
const LEVEL_PATIENCE: Duration = Duration::from_secs(5);

/// All that requests have in common which may use the same session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    tenant: String,
    server: String,
    principal: String,
    /// Tells callers apart whose tenant has no authentication.
    from: Option<Source>,
    capabilities: [u8; 32],
}

/// The sender of a modern request.
pub(crate) struct Caller<'c> {
    /// Its access.
    pub(crate) access: &'c Access,
    /// The raw capabilities that it declares.
    pub(crate) capabilities: &'c [u8],
    /// Its raw name and version.
    pub(crate) client_info: Option<&'c [u8]>,
    /// Whether its request is a call that may become a task.
    pub(crate) may_become_task: bool,
    /// The trace of its request.
    pub(crate) trace: Option<TraceContext>,
    /// Its group, once it was looked up.
    pub(crate) group: OnceLock<Arc<Group>>,
}

impl Caller<'_> {
    /// Whether a server may ask this client, so that a call needs a session of its own: which call a
    /// request of the server belongs to is certain only where there is one. A shared child is told of no
    /// capabilities.
    pub(super) fn may_be_asked(&self) -> bool {
        let is_own = self.access.server().supervision.isolation == Isolation::Session;
        is_own && modern::may_be_asked(self.capabilities)
    }

    /// Whether it may get what a server of its own era asks as that asks, and make the call again. A call that
    /// becomes a task is answered while it goes on.
    pub(super) fn may_carry(&self) -> bool {
        !self.may_become_task
    }

    /// Whether the client can be asked to visit a URL.
    pub(crate) fn visits_urls(&self) -> bool {
        let elicitation = json::get(self.capabilities, "elicitation");
        elicitation.is_some_and(|modes| json::get(modes, "url").is_some())
    }

    /// The key of its group.
    pub(super) fn key(&self) -> Key {
        Key {
            tenant: self.access.tenant().name.clone(),
            server: self.access.server().name.clone(),
            principal: self.access.principal().key().to_owned(),
            from: self.access.anonymous_from().map(Source::of),
            capabilities: sha256(self.capabilities),
        }
    }
}

/// The sessions that requests with the same principal and capabilities may use.
#[derive(Default)]
pub(crate) struct Group {
    members: RwLock<Vec<Arc<Member>>>,
    /// Held by the one that begins a session for all.
    pub(super) begin: Mutex<()>,
    /// The header fields that mirror arguments of tools, by the policy that the list was filtered by.
    tools: RwLock<Vec<KnownTools>>,
    /// Held by the call that reads them for all; if that failed, the time until which no other call waits for them.
    pub(super) reading: Mutex<Option<Instant>>,
    pub(super) changes: Changes,
}

/// The header fields that mirror arguments of tools, as a list was read.
pub(super) struct KnownTools {
    /// The policy of the caller that they were listed to.
    pub(super) policy: Arc<Policy>,
    /// When its first page was asked for.
    pub(super) read: Instant,
    pub(super) tools: Arc<ToolHeaders>,
    pub(super) _held: Drawn,
}

impl KnownTools {
    /// Whether a list under this policy shows the same.
    fn is_of(&self, policy: &Arc<Policy>) -> bool {
        Arc::ptr_eq(&self.policy, policy) || self.policy.shows_the_same(policy)
    }
}

/// The most policies of the callers of one group for each of which tools are known.
const MAX_POLICIES: usize = 4;

/// A session that the gateway keeps for clients.
pub(crate) struct Member {
    pub(super) id: SessionId,
    /// The raw result of its `initialize`.
    pub(crate) initialized: Bytes,
    /// What each call needs to know of that.
    server: KnownServer,
    /// It is for one call at a time; else for all that are never asked, and for subscriptions.
    is_for_one: bool,
    /// Whether a call has it alone.
    is_taken: AtomicBool,
    /// Whether what it says beside its calls is passed on to subscriptions.
    pub(super) is_heard: AtomicBool,
    /// The channel to its task, which is closed when it is over.
    commands: mpsc::Sender<Command>,
    born: Instant,
    /// The lowest level of log messages that the server has answered to, above all levels at first.
    level: AtomicU8,
    /// Held while the server is asked for a level.
    level_turn: Arc<Mutex<()>>,
    pub(super) watched: Watched,
}

/// What a server has said of itself.
struct KnownServer {
    /// Whether it is one of this era.
    is_stateless: bool,
    /// Whether it has tasks of 2025-11-25 for calls of tools.
    has_tasks: bool,
    has_logs: bool,
    /// Its raw name and version, if they are no longer than [`MAX_INFO`].
    info: Option<Bytes>,
}

/// The most bytes of a raw `serverInfo` that results have in their `_meta` ("SHOULD": 2026-07-28 basic, "Per-response
/// protocol fields"): no more than each request has drawn for a short answer. `server/discover` has any.
const MAX_INFO: usize = 4 << 10;

impl KnownServer {
    fn of(initialized: &Bytes) -> Self {
        let declared = |path: &[&str]| {
            let mut path = ["capabilities"].iter().chain(path);
            let found = path.try_fold(&**initialized, |value, name| json::get(value, name));
            found.is_some()
        };
        let info = json::get(initialized, "serverInfo").filter(|info| info.len() <= MAX_INFO);
        Self {
            is_stateless: modern::is_stateless(initialized),
            has_tasks: declared(&["tasks", "requests", "tools", "call"]),
            has_logs: declared(&["logging"]),
            info: info.map(|info| initialized.slice_ref(info)),
        }
    }
}

/// The number of subscriptions to each resource of a session, by its raw URI; 0 until the server is told that there are
/// none. Not held while that answers, unless a subscription is to begin by the answer.
#[derive(Default)]
pub(super) struct Watched(pub(super) Arc<Mutex<HashMap<Box<[u8]>, usize>>>);

/// The level of a session whose server was asked for none.
const NO_LEVEL: u8 = u8::MAX;

/// A lease, or the raw error response of a server that could not be initialized.
pub(crate) type Leased = Result<Lease, Bytes>;

/// The use of a session, until it is dropped.
pub(crate) struct Lease {
    pub(super) member: Arc<Member>,
    pub(super) handle: Handle,
    /// Whether the call has the session alone.
    is_alone: bool,
}

impl Member {
    /// A session that has begun.
    pub(super) fn new(
        id: SessionId,
        handle: &Handle,
        initialized: Bytes,
        is_for_one: bool,
    ) -> Self {
        Self {
            id,
            server: KnownServer::of(&initialized),
            initialized,
            is_for_one,
            is_taken: AtomicBool::new(is_for_one),
            is_heard: AtomicBool::new(false),
            commands: handle.commands.clone(),
            born: handle.born,
            level: AtomicU8::new(NO_LEVEL),
            level_turn: Arc::default(),
            watched: Watched::default(),
        }
    }

    /// Whether the server has answered to a request for log messages of this level or of a lower one.
    fn has_level(&self, level: u8) -> bool {
        self.level.load(Ordering::Acquire) <= level
    }

    /// Whether a call has it alone.
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    /// The raw capabilities of the server.
    pub(crate) fn capabilities(&self) -> &[u8] {
        json::get(&self.initialized, "capabilities").unwrap_or(b"{}")
    }
}

impl Group {
    /// The sessions for one call at a time.
    pub(super) fn alone(&self) -> Vec<Arc<Member>> {
        let mut all = self.all();
        all.retain(|member| member.is_for_one);
        all
    }

    /// The raw URIs of the resources that subscriptions are for.
    pub(super) async fn watched(&self) -> Vec<Box<[u8]>> {
        let mut uris = Vec::new();
        for member in self.all() {
            uris.extend(member.watched.0.lock().await.keys().cloned());
        }
        uris
    }

    /// Whether a subscription is for this resource.
    pub(super) async fn is_watched(&self, uri: &[u8]) -> bool {
        for member in self.all() {
            if member.watched.0.lock().await.contains_key(uri) {
                return true;
            }
        }
        false
    }

    fn all(&self) -> Vec<Arc<Member>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut members);
    }

    /// Adds a session that has begun, and leases it.
    pub(super) fn add(
        &self,
        hub: &Hub,
        access: &Access,
        member: Arc<Member>,
    ) -> Result<Lease, Error> {
        let handle = hub.0.find(access, member.id.as_str())?;
        if !member.is_for_one {
            self.end_old_subscriptions(or_never(hub.0.config.session.max));
        }
        self.change(|members| members.push(Arc::clone(&member)));
        Ok(Lease {
            is_alone: member.is_for_one,
            member,
            handle,
        })
    }

    /// Ends the subscriptions at a session for all that gets no more calls, when another one begins: what the calls
    /// there do would not be heard. Their clients subscribe again.
    fn end_old_subscriptions(&self, max: Duration) {
        let is_old = |member: &Arc<Member>| !member.is_for_one && member.born.elapsed() >= max;
        if self.all().iter().any(is_old) {
            self.changes.end();
        }
    }

    /// The header fields of the tools that are listed under a policy, if they were read no longer ago than this.
    pub(super) fn tools(&self, policy: &Arc<Policy>, fresh: Duration) -> Option<Arc<ToolHeaders>> {
        let known = self.tools.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = known.iter().filter(|known| known.is_of(policy));
        let known = known.find(|known| known.read.elapsed() < fresh);
        known.map(|known| Arc::clone(&known.tools))
    }

    /// Keeps the header fields of tools in place of those of the same policy, and of the oldest of many. Whether there were
    /// none, so that these have to be forgotten.
    pub(super) fn keep_tools(&self, tools: KnownTools) -> bool {
        let mut known = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        let are_first = known.is_empty();
        known.retain(|known| !known.is_of(&tools.policy));
        known.truncate(MAX_POLICIES - 1);
        known.insert(0, tools);
        are_first
    }

    /// Forgets the header fields of tools that are no longer `fresh`, and all when the last session has ended, until none
    /// are kept.
    pub(super) async fn forget_tools(&self, fresh: Duration) {
        while let Some(oldest) = self.oldest_tools(fresh) {
            let mut all = self.all().into_iter();
            let Some(living) = all.find(|member| !member.commands.is_closed()) else {
                let mut known = self.tools.write().unwrap_or_else(PoisonError::into_inner);
                *known = Vec::new();
                return;
            };
            drop(all);
            tokio::select! {
                () = living.commands.closed() => {}
                () = sleep_until(oldest + fresh) => {}
            }
        }
    }

    /// When the oldest were read of those that are `fresh`; the others are forgotten.
    fn oldest_tools(&self, fresh: Duration) -> Option<Instant> {
        let mut known = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.read.elapsed() < fresh);
        known.shrink_to_fit();
        known.iter().map(|known| known.read).min()
    }

    /// Whether the server of a session for all is one of this era.
    pub(super) fn is_stateless(&self) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let mut for_all = members.iter().filter(|member| !member.is_for_one);
        for_all.any(|member| member.server.is_stateless)
    }

    /// Whether the server has declared a capability.
    pub(super) fn is_declared(&self, capability: &str) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let mut declared = members.iter().map(|member| member.capabilities());
        declared.any(|declared| json::get(declared, capability).is_some())
    }

    /// Whether any session is left.
    pub(super) fn is_alive(&self) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.iter().any(|member| !member.commands.is_closed())
    }

    /// The first session that may be used, and is taken if it `is_alone` there. One that is as old as any may be
    /// (`max`) gets no more calls, and ends with those that it has.
    fn free(&self, is_alone: bool, max: Duration) -> Option<Arc<Member>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let is_over = members.iter().any(|member| member.commands.is_closed());
        let mut those = members.iter().filter(|one| one.is_for_one == is_alone);
        let is_free = |member: &&Arc<Member>| {
            let is_taken = || is_alone && member.is_taken.swap(true, Ordering::AcqRel);
            !member.commands.is_closed() && member.born.elapsed() < max && !is_taken()
        };
        let free = those.find(is_free).cloned();
        drop(members);
        if is_over {
            self.change(|members| members.retain(|known| !known.commands.is_closed()));
        }
        free
    }

    /// The first session that may be used: one for one call that no call has, if it `is_alone` there, else
    /// one for all.
    pub(super) fn lease(
        &self,
        hub: &Hub,
        access: &Access,
        is_alone: bool,
    ) -> Result<Option<Lease>, Error> {
        let max = or_never(hub.0.config.session.max);
        while let Some(member) = self.free(is_alone, max) {
            match hub.0.find(access, member.id.as_str()) {
                Ok(handle) => {
                    return Ok(Some(Lease {
                        member,
                        handle,
                        is_alone,
                    }));
                }
                Err(Error::NoSession) => {
                    self.change(|members| members.retain(|known| !Arc::ptr_eq(known, &member)));
                }
                Err(error) => {
                    if is_alone {
                        member.is_taken.store(false, Ordering::Release);
                    }
                    return Err(error);
                }
            }
        }
        Ok(None)
    }
}

impl Lease {
    /// Whether the call has the session alone.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The raw result of the `initialize` of the session.
    pub(crate) fn initialized(&self) -> &Bytes {
        &self.member.initialized
    }

    /// Whether the server is one of this era.
    pub(super) fn is_stateless(&self) -> bool {
        self.member.server.is_stateless
    }

    /// Whether the server has tasks of 2025-11-25 for calls of tools.
    pub(super) fn has_tasks(&self) -> bool {
        self.member.server.has_tasks
    }

    /// The raw `serverInfo` of the server.
    pub(super) fn server_info(&self) -> Option<Bytes> {
        self.member.server.info.clone()
    }

    /// Asks the server for log messages of at least this level, if it has any.
    pub(super) async fn want_level(
        &self,
        sender: &Arc<Sender>,
        access: &Access,
        level: &str,
    ) -> Result<(), Error> {
        let Some(number) = log_level(level) else {
            return Ok(());
        };
        if !self.member.server.has_logs || self.member.has_level(number) {
            return Ok(());
        }
        // A call is worth more than its log messages: it does not wait for a server that does not answer.
        let asked = self.ask_for_level(sender, access, (level, number));
        timeout(LEVEL_PATIENCE, asked).await.unwrap_or(Ok(()))
    }

    async fn ask_for_level(
        &self,
        sender: &Arc<Sender>,
        access: &Access,
        (level, number): (&str, u8),
    ) -> Result<(), Error> {
        // One behind the other, so that the lowest level is the last one that the server is told.
        let turn = Arc::clone(&self.member.level_turn).lock_owned().await;
        if self.member.has_level(number) {
            return Ok(());
        }
        let params = format!(r#"{{"level":"{level}"}}"#);
        let (member, handle) = (Arc::clone(&self.member), self.handle.clone());
        let (asks, access) = (Arc::clone(sender), access.clone());
        // In a task: the answer counts for others as well, and the client may go before it.
        let asked = sender.hub.0.tracker.spawn(async move {
            let method = "logging/setLevel";
            let asked = asks.request(&handle, &access, method, params.as_bytes());
            let asked = asked.await;
            if asked.as_ref().is_ok_and(|answer| is_of_server(answer)) {
                member.level.store(number, Ordering::Release);
            }
            drop(turn);
            asked.map(drop)
        });
        asked
            .await
            .unwrap_or(Err(Error::Bug("a log level was not asked for")))
    }

    /// Ends the session: what a call has left behind in it is nothing for the next one, which does not
    /// get it in the meantime.
    pub(super) fn end(&mut self, hub: &Hub) {
        self.is_alone = false;
        end(hub, self.handle.commands.clone());
    }
}

/// Ends a session.
fn end(hub: &Hub, commands: mpsc::Sender<Command>) {
    hub.0.tracker.spawn(async move {
        let (done, _) = oneshot::channel();
        let _ = commands.send(Command::End(done)).await;
    });
}

/// A session that has begun and is in no group yet. It ends when this is dropped: the client that it is
/// begun for may go at any moment.
pub(super) struct Fresh {
    hub: Hub,
    commands: Option<mpsc::Sender<Command>>,
}

impl Fresh {
    /// A session that has just begun.
    pub(super) fn new(hub: &Hub, handle: &Handle) -> Self {
        Self {
            hub: hub.clone(),
            commands: Some(handle.commands.clone()),
        }
    }

    /// Leaves the session to the group that is about to have it.
    pub(super) fn keep(mut self) {
        self.commands = None;
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            end(&self.hub, commands);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_alone {
            self.member.is_taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures_util::FutureExt;

    use super::super::group::*;
    use crate::{
        base::budget::Budget,
        config::Format,
        declare::{Names, Pattern},
        manifest::reader,
    };

    /// An anonymous caller had sessions of its own for each address of its /64.
    #[test]
    fn addresses_of_one_host_share_sessions() {
        let text = r#"{"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"s": {"command": "x"}}}}}"#;
        let manifest = reader::parse("F", text, Format::Json, &BTreeMap::new());
        let (tenant, server) = manifest.unwrap().catalog.find("a", "s").unwrap();
        let key = |address: &str| {
            let access = Access::of(&tenant, &server, "");
            let access = access.anonymous_from_address(address.parse().unwrap());
            let caller = Caller {
                access: &access,
                capabilities: b"{}",
                client_info: None,
                may_become_task: false,
                trace: None,
                group: OnceLock::new(),
            };
            caller.key()
        };
        assert_eq!(key("2001:db8::1"), key("2001:db8::2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }

    fn member(commands: &mpsc::Sender<Command>, is_for_one: bool) -> Arc<Member> {
        let initialized = Bytes::from_static(b"{}");
        Arc::new(Member {
            id: SessionId("s".into()),
            server: KnownServer::of(&initialized),
            initialized,
            is_for_one,
            is_taken: AtomicBool::new(false),
            is_heard: AtomicBool::new(false),
            commands: commands.clone(),
            born: Instant::now(),
            level: AtomicU8::new(NO_LEVEL),
            level_turn: Arc::default(),
            watched: Watched::default(),
        })
    }

    /// A server of one line had 15 MiB of them in the answer to each call, `{}` as well.
    #[test]
    fn a_long_name_of_a_server_is_in_no_other_result() {
        for (bytes, is_kept) in [(MAX_INFO, true), (MAX_INFO + 1, false)] {
            let rest = bytes - r#"{"name":""}"#.len();
            let info = format!(r#"{{"name":"{}"}}"#, "x".repeat(rest));
            let result = format!(r#"{{"capabilities":{{}},"serverInfo":{info}}}"#);
            let known = KnownServer::of(&result.into()).info;
            assert_eq!(known, is_kept.then(|| Bytes::from(info)), "{bytes}");
        }
    }

    #[test]
    fn a_session_that_is_old_gets_no_more_calls() {
        let group = Group::default();
        let (commands, _task) = mpsc::channel(1);
        for is_for_one in [true, false] {
            let member = member(&commands, is_for_one);
            group.change(|members| members.push(Arc::clone(&member)));
            assert!(group.free(is_for_one, Duration::ZERO).is_none());
            assert!(!member.is_taken(), "no call has it");
            assert!(group.free(is_for_one, Duration::MAX).is_some());
        }
        assert_eq!(group.all().len(), 2, "those that have it go on");
    }

    /// A subscription stayed at the session of a long call, and heard nothing of what later calls did.
    #[tokio::test]
    async fn subscriptions_at_an_old_session_end_when_another_begins() {
        for is_for_one in [true, false] {
            let group = Group::default();
            let (commands, _task) = mpsc::channel(1);
            let member = member(&commands, is_for_one);
            group.change(|members| members.push(member));
            let mut reader = group.changes.reader();
            for (max, is_over) in [(Duration::MAX, false), (Duration::ZERO, !is_for_one)] {
                group.end_old_subscriptions(max);
                if !is_over {
                    let sent = group.changes.heard().unwrap().send("{}".into());
                    assert!(sent.is_ok());
                }
                assert_eq!(
                    reader.next().await.is_none(),
                    is_over,
                    "{is_for_one} {max:?}"
                );
            }
        }
    }

    /// Those of a group whose sessions had ended were kept until there were many groups.
    #[tokio::test]
    async fn tools_are_forgotten_with_the_last_session_and_once_they_are_old() {
        let budget = Budget::new(1 << 20);
        for fresh in [Duration::from_secs(60), Duration::ZERO] {
            let group = Group::default();
            let (commands, task) = mpsc::channel(1);
            group.change(|members| members.push(member(&commands, false)));
            let keep = || {
                group.keep_tools(KnownTools {
                    policy: Arc::default(),
                    read: Instant::now(),
                    tools: Arc::default(),
                    _held: budget.hold(1 << 10),
                })
            };
            assert!(keep() && !keep(), "one task forgets them");
            let mut forgotten = Box::pin(group.forget_tools(fresh));
            if !fresh.is_zero() {
                assert!(forgotten.as_mut().now_or_never().is_none());
                assert_eq!(budget.used(), 1 << 10);
                drop(task);
            }
            forgotten.await;
            assert_eq!(budget.used(), 0, "{fresh:?}");
            assert!(keep(), "another task forgets them");
        }
    }

    /// A list is filtered by the policy of the caller that it was read for.
    #[tokio::test]
    async fn tools_are_known_by_policy() {
        let (group, budget) = (Group::default(), Budget::new(1 << 20));
        let policy = |denied: &str| {
            let deny = Pattern::parse(denied).ok().unwrap();
            let mut policy = Policy::default();
            policy.tools = Names::new(None, vec![deny]);
            Arc::new(policy)
        };
        let keep = |policy: &Arc<Policy>| {
            let tools = Arc::new(ToolHeaders::default());
            group.keep_tools(KnownTools {
                policy: Arc::clone(policy),
                read: Instant::now(),
                tools: Arc::clone(&tools),
                _held: budget.hold(1),
            });
            tools
        };
        let fresh = Duration::from_secs(60);
        let (one, other) = (policy("a"), policy("b"));
        let kept = keep(&one);
        assert!(group.tools(&other, fresh).is_none());
        let of_other = keep(&other);
        for (policy, tools) in [(policy("a"), kept), (other, of_other)] {
            let known = group.tools(&policy, fresh);
            assert!(known.is_some_and(|known| Arc::ptr_eq(&known, &tools)));
        }
        for n in 0..8 {
            keep(&policy(&n.to_string()));
        }
        assert!(group.tools(&policy("a"), fresh).is_none(), "the oldest go");
        assert!(group.tools(&policy("7"), fresh).is_some());
        assert!(group.tools(&policy("7"), Duration::ZERO).is_none());
    }
}

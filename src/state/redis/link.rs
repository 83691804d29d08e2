//! One connection to Redis: reconnects, server checks, and the log entries of an outage.
//!
//! Not here: the commands (`client`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, RedisResult,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::scripts::Lua;

/// The reason why a server or URL cannot be used: the option, the mistake, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unsuitable(Arc<str>);

impl Unsuitable {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// One connection, re-established when it breaks.
pub(super) struct Link {
    state: watch::Sender<State>,
    broken: Arc<Notify>,
}

#[derive(Clone)]
pub(crate) enum State {
    /// Being established. After a time-out, callers wait for it until the instant at most.
    Connecting(Option<Instant>),
    /// Established; the number counts the connections of this link.
    Up(MultiplexedConnection, u64),
    /// The last attempt failed.
    Away,
    /// Reachable, but unusable.
    Refused(Unsuitable),
}

impl Link {
    pub(crate) fn open(
        client: &Arc<ArcSwap<Client>>,
        timeout_of_calls: Duration,
        health: &Arc<Health>,
        tracker: &TaskTracker,
        halt: &CancellationToken,
    ) -> Self {
        let link = Self {
            state: watch::Sender::new(State::Connecting(None)),
            broken: Arc::new(Notify::new()),
        };
        let connector = Connector {
            client: Arc::clone(client),
            timeout_of_calls,
            state: link.state.clone(),
            broken: Arc::clone(&link.broken),
            health: Arc::clone(health),
        };
        let halt = halt.clone();
        tracker.spawn(async move { halt.run_until_cancelled(connector.run()).await });
        link
    }

    /// The connection and its number. While one is being established, waits until `until` at most;
    /// after a failed attempt, does not wait.
    pub(super) async fn connection(&self, until: Instant) -> Option<(MultiplexedConnection, u64)> {
        let mut state = self.state.subscribe();
        let until = match *state.borrow_and_update() {
            State::Connecting(Some(end)) => until.min(end),
            _ => until,
        };
        let is_known = |state: &State| !matches!(state, State::Connecting(_));
        let known = timeout_at(until, state.wait_for(is_known)).await;
        match &*known.ok()?.ok()? {
            State::Up(connection, generation) => Some((connection.clone(), *generation)),
            _ => None,
        }
    }

    /// The reason why the server cannot be used; none while that is unknown.
    pub(super) async fn refusal(&self, until: Instant) -> Option<Unsuitable> {
        let mut state = self.state.subscribe();
        let is_known = |state: &State| !matches!(state, State::Connecting(_));
        let known = timeout_at(until, state.wait_for(is_known)).await;
        match &*known.ok()?.ok()? {
            State::Refused(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Drops the connection with this number.
    pub(super) fn close(&self, generation: u64) {
        self.end(generation, None);
    }

    /// Drops the connection because its server does not answer. Callers that have just waited, as
    /// `initialize` does for its seat, wait for the next one only briefly.
    pub(super) fn timed_out(&self, generation: u64) {
        self.end(generation, Some(Instant::now() + RECONNECT_WAIT));
    }

    fn end(&self, generation: u64, until: Option<Instant>) {
        let is_changed = self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Up(_, known) if *known == generation);
            if is_current {
                *state = State::Connecting(until);
            }
            is_current
        });
        if is_changed {
            self.broken.notify_one();
        }
    }
}

/// The task that maintains the connection of a link.
struct Connector {
    client: Arc<ArcSwap<Client>>,
    timeout_of_calls: Duration,
    state: watch::Sender<State>,
    broken: Arc<Notify>,
    health: Arc<Health>,
}

impl Connector {
    async fn run(self) {
        let mut delay = RETRY_DELAY.0;
        let mut generation = 0;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    (generation, delay) = (generation + 1, RETRY_DELAY.0);
                    self.state.send_replace(State::Up(connection, generation));
                    self.broken.notified().await;
                    continue;
                }
                Err(Refusal::Away(why)) => {
                    self.health.failed(&why);
                    self.state.send_replace(State::Away);
                }
                Err(Refusal::Unsuitable(why)) => {
                    self.health.failed(&why.to_string());
                    self.state.send_replace(State::Refused(why));
                }
            }
            sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY.1);
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Refusal> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CALL_TIMEOUT * 2))
            .set_response_timeout(Some(self.timeout_of_calls));
        let prepared = async {
            let client = self.client.load_full();
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = connection.await.map_err(|error| Refusal::of(&error))?;
            let mut facts = prepare(&mut connection).await?;
            // Of a user of its own, who needs CONFIG for nothing else, Redis would log the attempt.
            let user = client.get_connection_info().redis_settings().username();
            if user.is_none_or(|user| user == "default") {
                let saves = snapshots_of(&mut connection).await;
                facts.push_str(&saves);
            }
            self.health.look_at_snapshots(&facts);
            Ok(connection)
        };
        // Several round trips, maybe over a slow network.
        let prepared = timeout(CALL_TIMEOUT * 3, prepared).await;
        prepared.unwrap_or_else(|_| Err(Refusal::Away(TIMED_OUT.into())))
    }
}

/// The reason why there is no connection.
enum Refusal {
    Away(String),
    Unsuitable(Unsuitable),
}

impl Refusal {
    fn of(error: &RedisError) -> Self {
        let is_denied = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        if is_denied {
            return Self::Unsuitable(Unsuitable::new(&format!(
                "redis.url: the server does not let this user in ({}): name a user and password \
                 that may run scripts and INFO",
                error.detail().unwrap_or(error.category())
            )));
        }
        Self::Away(error.to_string())
    }
}

/// Checks the server, and loads the scripts. Returns what the server says of itself.
async fn prepare(connection: &mut MultiplexedConnection) -> Result<String, Refusal> {
    let mut pipeline = Pipeline::new();
    for section in SECTIONS {
        pipeline.cmd("INFO").arg(section);
    }
    for lua in Lua::ALL {
        pipeline.add_command(lua.load());
    }
    pipeline.ignore_errors();
    let replies = pipeline
        .query_async::<Vec<RedisResult<String>>>(connection)
        .await
        .map_err(|error| Refusal::of(&error))?;
    let mut replies_text = Vec::new();
    for reply in replies {
        replies_text.push(reply.map_err(|error| Refusal::of(&error))?);
    }
    replies_text.truncate(SECTIONS.len());
    let text = replies_text.join("\n");
    let facts = text.lines();
    check(&facts).map_err(Refusal::Unsuitable)?;
    if fact(&facts, "role") == Some("slave") {
        // Its name may point to the master by the next attempt.
        return Err(Refusal::Away(REPLICA.into()));
    }
    Ok(text)
}

/// The times at which the server saves snapshots, as a line like those of its `INFO`; none where it does not tell: many
/// providers refuse `CONFIG`.
async fn snapshots_of(connection: &mut MultiplexedConnection) -> String {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("save");
    let told: RedisResult<BTreeMap<String, String>> = command.query_async(connection).await;
    let told = told.unwrap_or_default();
    let saves = told.get("save");
    saves.map_or_else(String::new, |saves| format!("\n{SAVES}:{saves}\n"))
}

/// Reports whether the server begins with a snapshot after a restart, which lacks what came after it: it saves them, or
/// has saved or read one, and it appends to no file. Where it saves none, those were for its replicas or of its master.
fn begins_with_a_snapshot<'a>(facts: &(impl Iterator<Item = &'a str> + Clone)) -> bool {
    let is_any = |name: &str| fact(facts, name).is_some_and(|value| !["", "0"].contains(&value));
    let saves_none = fact(facts, SAVES) == Some("");
    !is_any("aof_enabled") && !saves_none && SNAPSHOTS.into_iter().any(is_any)
}

/// The value of a line of the server's `INFO`.
fn fact<'a>(facts: &(impl Iterator<Item = &'a str> + Clone), name: &str) -> Option<&'a str> {
    let mut pairs = facts.clone().filter_map(|line| line.split_once(':'));
    pairs.find_map(|(key, value)| (key == name).then(|| value.trim()))
}

/// Checks the server's `INFO` against the requirements.
fn check<'a>(facts: &(impl Iterator<Item = &'a str> + Clone)) -> Result<(), Unsuitable> {
    let fact = |name: &str| fact(facts, name);
    let (name, version, least) = match (fact("valkey_version"), fact("redis_version")) {
        (Some(version), _) => ("Valkey", version, (7, 2)),
        (None, version) => ("Redis", version.unwrap_or_default(), (7, 0)),
    };
    let mut numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < least {
        return Err(Unsuitable::new(&format!(
            "redis.url: the server is {name} {version}: use Redis 7.0, Valkey 7.2, or later"
        )));
    }
    if fact("redis_mode") == Some("cluster") {
        return Err(Unsuitable::new(
            "redis.url: the server is part of a Redis Cluster: use one that stands alone",
        ));
    }
    let policy = fact("maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" {
        return Err(Unsuitable::new(&format!(
            "redis.url: the server's maxmemory-policy is {policy}, so that it may drop sessions \
             and events at any time: set it to noeviction"
        )));
    }
    Ok(())
}

/// The availability of Redis; each outage is logged once, and so are snapshots.
#[derive(Default)]
pub(super) struct Health {
    is_away: AtomicBool,
    has_snapshots: AtomicBool,
}

impl Health {
    pub(super) fn failed(&self, why: &str) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(event = "redis.away", why, "Redis is away: sessions wait");
        }
    }

    fn look_at_snapshots(&self, facts: &str) {
        let has_snapshots = begins_with_a_snapshot(&facts.lines());
        if has_snapshots && !self.has_snapshots.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                event = "redis.snapshots",
                "Redis saves snapshots: after its restart, ended sessions are back, and those begun since the last one are \
                 unknown to other replicas; set save '' and appendonly no"
            );
        }
    }

    /// A full Redis still serves reads, so those do not end an outage.
    pub(super) fn answered(&self, lua: Lua) {
        if matches!(lua, Lua::Find | Lua::Read) || !self.is_away.load(Ordering::Relaxed) {
            return;
        }
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(event = "redis.back", "Redis is back");
        }
    }
}

/// The sections of the server's `INFO` that are looked at.
const SECTIONS: [&str; 4] = ["server", "memory", "replication", "persistence"];
/// The name of the line of [`snapshots_of`], which `INFO` has not.
const SAVES: &str = "lockgate_saves";
/// Lines that tell of snapshots: their times, how many were saved since the start, and the keys that were read at it.
const SNAPSHOTS: [&str; 3] = [SAVES, "rdb_saves", "rdb_last_load_keys_loaded"];
pub(super) const TIMED_OUT: &str = "it does not answer in time";
/// The reason where the server follows another one.
const REPLICA: &str = "its server is a replica, which takes no writes";

/// The timeout of a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// The timeout of a batch of some megabytes.
pub(super) const BATCH_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that callers wait for a reconnect after a time-out.
const RECONNECT_WAIT: Duration = Duration::from_millis(100);
/// The delay before a reconnect: the first, and the maximum. With the attempt itself it stays well
/// within the 2 s in which service must resume.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

#[cfg(test)]
mod tests {
    use super::super::link::*;

    /// Nothing told of sessions that a restart of Redis would bring back, or lose.
    #[test]
    fn a_server_that_begins_with_a_snapshot_is_noticed() {
        for (facts, is_noticed) in [
            (
                "aof_enabled:0\r\nrdb_saves:0\r\nrdb_last_load_keys_loaded:0\r",
                false,
            ),
            (
                "aof_enabled:0\nrdb_saves:1\nrdb_last_load_keys_loaded:0",
                true,
            ),
            (
                "aof_enabled:0\nrdb_saves:0\nrdb_last_load_keys_loaded:12",
                true,
            ),
            (
                "aof_enabled:1\nrdb_saves:1\nrdb_last_load_keys_loaded:12",
                false,
            ),
            ("aof_enabled:0\nrdb_saves:1\nlockgate_saves:\n", false),
            ("aof_enabled:0\nrdb_saves:1\nlockgate_saves:3600 1\n", true),
            (
                "aof_enabled:0\nrdb_saves:0\n\nlockgate_saves:3600 1 300 100",
                true,
            ),
            (
                "aof_enabled:1\nrdb_saves:0\n\nlockgate_saves:3600 1 300 100",
                false,
            ),
            ("aof_enabled:0\nrdb_saves:0\n\nlockgate_saves:\n", false),
            ("", false),
        ] {
            assert_eq!(
                begins_with_a_snapshot(&facts.lines()),
                is_noticed,
                "{facts}"
            );
        }
    }

    #[test]
    fn servers_that_lose_sessions_are_refused() {
        let table = [
            ("redis_version:7.0.15\nmaxmemory_policy:noeviction", ""),
            ("redis_version:8.2.1\r\nmaxmemory_policy:noeviction\r", ""),
            ("redis_version:7.2.4\nvalkey_version:9.1.2", ""),
            ("redis_version:6.2.14", "the server is Redis 6.2.14"),
            (
                "redis_version:7.2.4\nvalkey_version:7.1.0",
                "is Valkey 7.1.0",
            ),
            ("", "the server is Redis "),
            ("redis_version:7.0.1\nredis_mode:cluster", "Redis Cluster"),
            (
                "redis_version:7.0.1\nmaxmemory_policy:allkeys-lru",
                "maxmemory-policy is allkeys-lru",
            ),
        ];
        for (facts, refusal) in table {
            match check(&facts.lines()) {
                Ok(()) => assert_eq!(refusal, "", "{facts}"),
                Err(why) => {
                    let why = why.to_string();
                    assert!(
                        why.starts_with("redis.url: ") && why.contains(refusal),
                        "{why}"
                    );
                    assert!(!refusal.is_empty());
                }
            }
        }
    }
}

//! The connection to Redis (or Valkey): which servers will do, and what happens while it is away.
//!
//! Not here: what is kept there (`redis_log`, `redis_directory`, `redis_limiter`).

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Script,
    ServerErrorKind, ToRedisArgs, Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{SessionId, StoreError};
use crate::config::Secret;

/// Where Redis is, and what everything there is called.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `redis://` or `rediss://` (TLS), with user and password where there are any, and the number
    /// of the database as path.
    pub(crate) url: Secret,
    /// What all keys begin with; gateways with another prefix know nothing of this one.
    pub(crate) prefix: String,
}

/// Why a server will not do, or a URL: the option, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unsuitable(Arc<str>);

/// A Redis that may be away. A handle.
#[derive(Clone)]
pub(crate) struct Redis(Arc<Shared>);

struct Shared {
    prefix: String,
    /// For what somebody waits for.
    calls: Link,
    /// For batches of events: large ones hold nobody else up.
    writes: Link,
    health: Arc<Health>,
}

impl Redis {
    /// Connects in the background, again and again, until `halt`. Fails for a URL that is none.
    pub(crate) fn open(
        settings: &Settings,
        tracker: &TaskTracker,
        halt: &CancellationToken,
    ) -> Result<Self, Unsuitable> {
        let client = Client::open(settings.url.expose()).map_err(|error| {
            // Without the text: it may hold a password.
            let what = error.detail().unwrap_or(error.category());
            Unsuitable::new(&format!(
                "redis.url: is no URL of Redis ({what}): write redis://USER:PASSWORD@HOST:6379/0, \
                 or rediss:// for TLS"
            ))
        })?;
        let health = Arc::new(Health::default());
        let link = |patience| Link::open(&client, patience, &health, tracker, halt);
        Ok(Self(Arc::new(Shared {
            prefix: format!("{}:v1:", settings.prefix),
            calls: link(PATIENCE),
            writes: link(PATIENCE_WITH_BATCHES),
            health,
        })))
    }

    /// Whether the server will do, as far as one has answered: one that is away is no error.
    pub(crate) async fn check(&self) -> Result<(), Unsuitable> {
        let mut state = self.0.calls.state.subscribe();
        let until = Instant::now() + PATIENCE * 2;
        let is_known = |state: &State| !matches!(state, State::Connecting);
        match timeout_at(until, state.wait_for(is_known)).await {
            Ok(Ok(state)) => match &*state {
                State::Refused(why) => Err(why.clone()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The key of what is kept once.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0.prefix)
    }

    /// The key of a session; those of its streams begin with it.
    pub(super) fn session(&self, session: &SessionId) -> String {
        format!("{}{{{}}}", self.0.prefix, session.as_str())
    }

    /// Runs a script, within half a second. One whose answer is lost with its connection runs
    /// again: all that are called here may.
    pub(super) async fn call(&self, call: Call) -> Result<Value, StoreError> {
        let (link, health) = (&self.0.calls, &self.0.health);
        let until = Instant::now() + PATIENCE;
        let mut lost = Ok(());
        for _ in 0..2 {
            let (mut connection, life) = link.connection(until).await.ok_or(StoreError::Away)?;
            let Ok(answer) = timeout_at(until, call.run(&mut connection)).await else {
                return Err(gave_up(link, life, health, LATE));
            };
            match answer {
                Ok(value) => {
                    health.answered(call.lua);
                    return Ok(value);
                }
                Err(error) if is_broken(&error) => {
                    lost = Err(error);
                    link.broke(life);
                }
                Err(error) => {
                    lost = Err(error);
                    break;
                }
            }
        }
        if let Err(error) = lost {
            health.failed(&error.to_string());
        }
        Err(StoreError::Away)
    }

    /// All fields of a hash; none where there is none.
    pub(super) async fn hash(&self, key: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(key);
        let call = Call {
            lua: Lua::Read,
            command,
        };
        redis::from_redis_value(self.call(call).await?).map_err(|_| StoreError::Away)
    }

    /// Removes a key.
    pub(super) async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd("UNLINK");
        command.arg(key);
        let call = Call {
            lua: Lua::Read,
            command,
        };
        self.call(call).await.map(drop)
    }

    /// Runs scripts in order, in one go. Where the answer is lost it is unknown which of them ran.
    /// A call that would fail for ever is `Fenced`: nobody waits for it.
    pub(super) async fn all(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        self.pipe(&self.0.calls, PATIENCE, calls).await
    }

    /// Likewise, of some megabytes.
    pub(super) async fn batch(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let link = &self.0.writes;
        self.pipe(link, PATIENCE_WITH_BATCHES, calls).await
    }

    async fn pipe(
        &self,
        link: &Link,
        patience: Duration,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let health = &self.0.health;
        let until = Instant::now() + patience;
        let (mut connection, life) = link.connection(until).await.ok_or(StoreError::Away)?;
        let luas: Vec<Lua> = calls.iter().map(|call| call.lua).collect();
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.command);
        }
        pipeline.ignore_errors();
        let asked = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection);
        let answers = match timeout_at(until, asked).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => return Err(gave_up(link, life, health, &error.to_string())),
            Err(_) => return Err(gave_up(link, life, health, LATE)),
        };
        let mut results = Vec::with_capacity(answers.len());
        for (answer, lua) in answers.into_iter().zip(luas) {
            results.push(match answer {
                Ok(value) => {
                    health.answered(lua);
                    Ok(value)
                }
                Err(error) if is_unknown(&error) => {
                    // Its caller comes again.
                    let _ = timeout(PATIENCE, lua.load().exec_async(&mut connection)).await;
                    Err(StoreError::Away)
                }
                Err(error) if is_wrong(&error) => {
                    tracing::error!(event = "redis.wrong", why = %error, "a script fails");
                    Err(StoreError::Fenced)
                }
                Err(error) => {
                    health.failed(&error.to_string());
                    if is_broken(&error) {
                        link.broke(life);
                    }
                    Err(StoreError::Away)
                }
            });
        }
        Ok(results)
    }
}

fn gave_up(link: &Link, life: u64, health: &Health, why: &str) -> StoreError {
    health.failed(why);
    link.broke(life);
    StoreError::Away
}

impl Unsuitable {
    fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// One call of a script.
pub(super) struct Call {
    lua: Lua,
    command: Cmd,
}

impl Call {
    pub(super) fn new(lua: Lua, keys: &[&str]) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(lua.script().get_hash())
            .arg(keys.len())
            .arg(keys);
        Self { lua, command }
    }

    /// With one more argument.
    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.add(arg);
        self
    }

    pub(super) fn add(&mut self, arg: impl ToRedisArgs) {
        self.command.arg(arg);
    }

    async fn run(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self.command.query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                self.lua.load().exec_async(connection).await?;
                self.command.query_async(connection).await
            }
            answer => answer,
        }
    }
}

/// The scripts; what each does stands at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lua {
    Beat,
    Insert,
    Find,
    Claim,
    Change,
    Write,
    Read,
    Draw,
    Seats,
}

impl Lua {
    const ALL: [Self; 9] = [
        Self::Beat,
        Self::Insert,
        Self::Find,
        Self::Claim,
        Self::Change,
        Self::Write,
        Self::Read,
        Self::Draw,
        Self::Seats,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Beat => include_str!("beat.lua"),
            Self::Insert => include_str!("insert.lua"),
            Self::Find => include_str!("find.lua"),
            Self::Claim => include_str!("claim.lua"),
            Self::Change => include_str!("change.lua"),
            Self::Write => include_str!("write.lua"),
            Self::Read => include_str!("read.lua"),
            Self::Draw => include_str!("draw.lua"),
            Self::Seats => include_str!("seats.lua"),
        }
    }

    fn script(self) -> &'static Script {
        static SCRIPTS: LazyLock<[Script; 9]> =
            LazyLock::new(|| Lua::ALL.map(|lua| Script::new(lua.text())));
        &SCRIPTS[self as usize]
    }

    fn load(self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text());
        command
    }
}

/// One connection, made again when it breaks.
struct Link {
    state: watch::Sender<State>,
    broken: Arc<Notify>,
}

#[derive(Clone)]
enum State {
    /// Being made, for the first time since there was one.
    Connecting,
    /// There, in its so-manieth life.
    Up(MultiplexedConnection, u64),
    /// Tried, and not there.
    Away,
    /// There, and not to be used.
    Refused(Unsuitable),
}

impl Link {
    fn open(
        client: &Client,
        patience: Duration,
        health: &Arc<Health>,
        tracker: &TaskTracker,
        halt: &CancellationToken,
    ) -> Self {
        let link = Self {
            state: watch::Sender::new(State::Connecting),
            broken: Arc::new(Notify::new()),
        };
        let keeper = Keeper {
            client: client.clone(),
            patience,
            state: link.state.clone(),
            broken: Arc::clone(&link.broken),
            health: Arc::clone(health),
        };
        let halt = halt.clone();
        tracker.spawn(async move { halt.run_until_cancelled(keeper.run()).await });
        link
    }

    /// The connection, and its life. While one is being made, waits for it until then at most;
    /// where that failed already, does not wait.
    async fn connection(&self, until: Instant) -> Option<(MultiplexedConnection, u64)> {
        let mut state = self.state.subscribe();
        let is_known = |state: &State| !matches!(state, State::Connecting);
        let known = timeout_at(until, state.wait_for(is_known)).await;
        match &*known.ok()?.ok()? {
            State::Up(connection, life) => Some((connection.clone(), *life)),
            _ => None,
        }
    }

    /// The connection of that life is of no use any more.
    fn broke(&self, life: u64) {
        let is_changed = self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Up(_, known) if *known == life);
            if is_it {
                *state = State::Connecting;
            }
            is_it
        });
        if is_changed {
            self.broken.notify_one();
        }
    }
}

/// Makes the connection of a link.
struct Keeper {
    client: Client,
    patience: Duration,
    state: watch::Sender<State>,
    broken: Arc<Notify>,
    health: Arc<Health>,
}

impl Keeper {
    async fn run(self) {
        let mut delay = DELAY.0;
        let mut life = 0;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    (life, delay) = (life + 1, DELAY.0);
                    self.state.send_replace(State::Up(connection, life));
                    self.broken.notified().await;
                    continue;
                }
                Err(Refusal::Away(why)) => {
                    self.health.failed(&why);
                    self.state.send_replace(State::Away);
                }
                Err(Refusal::Unsuitable(why)) => {
                    self.health.failed(&why.0);
                    self.state.send_replace(State::Refused(why));
                }
            }
            sleep(delay).await;
            delay = (delay * 2).min(DELAY.1);
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Refusal> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE * 2))
            .set_response_timeout(Some(self.patience));
        let greeted = async {
            let connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config);
            let mut connection = connection.await.map_err(|error| Refusal::of(&error))?;
            greet(&mut connection).await?;
            Ok(connection)
        };
        // Several round trips, over a line that may be slow.
        let greeted = timeout(PATIENCE * 3, greeted).await;
        greeted.unwrap_or_else(|_| Err(Refusal::Away(LATE.into())))
    }
}

/// Why there is no connection.
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

/// Looks whether the server will do, and leaves the scripts there.
async fn greet(connection: &mut MultiplexedConnection) -> Result<(), Refusal> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("INFO").arg("server");
    pipeline.cmd("INFO").arg("memory");
    for lua in Lua::ALL {
        pipeline.add_command(lua.load());
    }
    pipeline.ignore_errors();
    let answers = pipeline
        .query_async::<Vec<RedisResult<String>>>(connection)
        .await
        .map_err(|error| Refusal::of(&error))?;
    let mut texts = Vec::new();
    for answer in answers {
        texts.push(answer.map_err(|error| Refusal::of(&error))?);
    }
    let facts = texts.iter().take(2).flat_map(|text| text.lines());
    judge(&facts).map_err(Refusal::Unsuitable)
}

/// What `INFO` says of a server, against what is needed.
fn judge<'a>(facts: &(impl Iterator<Item = &'a str> + Clone)) -> Result<(), Unsuitable> {
    let fact = |name: &str| {
        let mut pairs = facts.clone().filter_map(|line| line.split_once(':'));
        pairs.find_map(|(key, value)| (key == name).then(|| value.trim()))
    };
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

/// Whether Redis is away, told to the log once each time.
#[derive(Default)]
struct Health {
    is_away: AtomicBool,
}

impl Health {
    fn failed(&self, why: &str) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(event = "redis.away", why, "Redis is away: sessions wait");
        }
    }

    /// A full or read-only Redis still answers what changes nothing.
    fn answered(&self, lua: Lua) {
        if matches!(lua, Lua::Find | Lua::Read) || !self.is_away.load(Ordering::Relaxed) {
            return;
        }
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(event = "redis.back", "Redis is back");
        }
    }
}

/// Whether to connect again: the connection is gone, or leads to a server that takes no writes and
/// whose name may belong to another one by now.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Whether it is not the server's state but what was asked, or what is kept there.
fn is_wrong(error: &RedisError) -> bool {
    matches!(error.code(), Some("ERR" | "WRONGTYPE"))
}

/// Whether the server does not have the script: it was restarted, or flushed.
fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

const LATE: &str = "it does not answer in time";

/// How long a call may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a batch of some megabytes may.
const PATIENCE_WITH_BATCHES: Duration = Duration::from_secs(1);
/// Before the first attempt to connect again, and at most: with the attempt itself, well within
/// the 2 s in which all is to be well again.
const DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

/// For how long keys outlive what they are for: clocks and scripts take a moment.
pub(super) const MARGIN: Duration = Duration::from_secs(60);

/// Milliseconds, for scripts.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            match judge(&facts.lines()) {
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

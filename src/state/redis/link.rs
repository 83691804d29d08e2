//! One connection to Redis, kept up: which servers will do, and what is said of one that is away.
//!
//! Not here: what is asked over it (`redis`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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

/// Why a server will not do, or a URL: the option, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unsuitable(Arc<str>);

impl Unsuitable {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// One connection, made again when it breaks.
pub(super) struct Link {
    state: watch::Sender<State>,
    broken: Arc<Notify>,
}

#[derive(Clone)]
pub(crate) enum State {
    /// Being made, for the first time since there was one; waited for until then at most.
    Connecting(Option<Instant>),
    /// There, in its so-manieth life.
    Up(MultiplexedConnection, u64),
    /// Tried, and not there.
    Away,
    /// There, and not to be used.
    Refused(Unsuitable),
}

impl Link {
    pub(crate) fn open(
        client: &Client,
        patience: Duration,
        health: &Arc<Health>,
        tracker: &TaskTracker,
        halt: &CancellationToken,
    ) -> Self {
        let link = Self {
            state: watch::Sender::new(State::Connecting(None)),
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
    pub(super) async fn connection(&self, until: Instant) -> Option<(MultiplexedConnection, u64)> {
        let mut state = self.state.subscribe();
        let until = match *state.borrow_and_update() {
            State::Connecting(Some(end)) => until.min(end),
            _ => until,
        };
        let is_known = |state: &State| !matches!(state, State::Connecting(_));
        let known = timeout_at(until, state.wait_for(is_known)).await;
        match &*known.ok()?.ok()? {
            State::Up(connection, life) => Some((connection.clone(), *life)),
            _ => None,
        }
    }

    /// Why its server will not do; none while that is not known.
    pub(super) async fn refusal(&self, until: Instant) -> Option<Unsuitable> {
        let mut state = self.state.subscribe();
        let is_known = |state: &State| !matches!(state, State::Connecting(_));
        let known = timeout_at(until, state.wait_for(is_known)).await;
        match &*known.ok()?.ok()? {
            State::Refused(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// The connection of that life is of no use any more.
    pub(super) fn broke(&self, life: u64) {
        self.end(life, None);
    }

    /// Likewise, because its server does not answer: who has waited for that already, as
    /// `initialize` for its place, does not wait so long again.
    pub(super) fn was_late(&self, life: u64) {
        self.end(life, Some(Instant::now() + AGAIN));
    }

    fn end(&self, life: u64, until: Option<Instant>) {
        let is_changed = self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Up(_, known) if *known == life);
            if is_it {
                *state = State::Connecting(until);
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
                    self.health.failed(&why.to_string());
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
pub(super) struct Health {
    is_away: AtomicBool,
}

impl Health {
    pub(super) fn failed(&self, why: &str) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(event = "redis.away", why, "Redis is away: sessions wait");
        }
    }

    /// A full or read-only Redis still answers what changes nothing.
    pub(super) fn answered(&self, lua: Lua) {
        if matches!(lua, Lua::Find | Lua::Read) || !self.is_away.load(Ordering::Relaxed) {
            return;
        }
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(event = "redis.back", "Redis is back");
        }
    }
}

pub(super) const LATE: &str = "it does not answer in time";

/// How long a call may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// How long a batch of some megabytes may.
pub(super) const PATIENCE_WITH_BATCHES: Duration = Duration::from_secs(1);
/// How long a connection to a server that was late is waited for.
const AGAIN: Duration = Duration::from_millis(100);
/// Before the first attempt to connect again, and at most: with the attempt itself, well within
/// the 2 s in which all is to be well again.
const DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

#[cfg(test)]
mod tests {
    use super::super::link::*;

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

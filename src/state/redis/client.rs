//! Redis (or Valkey) as the stores see it: scripts that are called, and what comes of failures.
//!
//! Not here: its connections (`link`), and what is kept there (`log`, `directory`, `limiter`).

use std::{sync::Arc, time::Duration};

use redis::{
    Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, TlsCertificates,
    ToRedisArgs, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    link::{Health, LATE, Link, PATIENCE, PATIENCE_WITH_BATCHES, Unsuitable},
    scripts::Lua,
};
use crate::base::Secret;
use crate::state::{SessionId, StoreError};

/// Where Redis is, and what everything there is called.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `redis://` or `rediss://` (TLS), with user and password where there are any, and the number
    /// of the database as path.
    pub(crate) url: Secret,
    /// What all keys begin with; gateways with another prefix know nothing of this one.
    pub(crate) prefix: String,
    /// The authorities that its certificate may be of, as PEM; none is the usual ones.
    pub(crate) authorities: Option<Arc<[u8]>>,
}

impl Settings {
    /// Fails for a URL that is none.
    fn client(&self) -> Result<Client, Unsuitable> {
        let url = self.url.expose();
        let opened = match &self.authorities {
            None => Client::open(url),
            Some(authorities) => {
                let root_cert = Some(authorities.to_vec());
                let tls = TlsCertificates {
                    client_tls: None,
                    root_cert,
                };
                Client::build_with_tls(url, tls)
            }
        };
        opened.map_err(|error| {
            // Without the text: it may hold a password.
            let what = error.detail().unwrap_or(error.category());
            Unsuitable::new(&format!(
                "redis.url: is no URL of Redis ({what}): write redis://USER:PASSWORD@HOST:6379/0, \
                 or rediss:// for TLS"
            ))
        })
    }
}

/// A Redis that may be away. A handle.
#[derive(Clone)]
pub(crate) struct Redis(Arc<Shared>);

struct Shared {
    prefix: String,
    client: Client,
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
        let client = settings.client()?;
        let health = Arc::new(Health::default());
        let link = |patience| Link::open(&client, patience, &health, tracker, halt);
        Ok(Self(Arc::new(Shared {
            prefix: format!("{}:v1:", settings.prefix),
            client: client.clone(),
            calls: link(PATIENCE),
            writes: link(PATIENCE_WITH_BATCHES),
            health,
        })))
    }

    /// Whether the server will do, as far as one has answered: one that is away is no error.
    pub(crate) async fn check(&self) -> Result<(), Unsuitable> {
        let until = Instant::now() + PATIENCE * 2;
        self.0.calls.refusal(until).await.map_or(Ok(()), Err)
    }

    /// Makes connections of one's own.
    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Runs one command whose answer nobody needs.
    pub(super) async fn tell(&self, command: Cmd) {
        let until = Instant::now() + PATIENCE;
        if let Some((mut connection, _)) = self.0.calls.connection(until).await {
            let told = command.exec_async(&mut connection);
            let _ = timeout_at(until, told).await;
        }
    }

    /// The key of what is kept once.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0.prefix)
    }

    /// The key of a session; those of its streams begin with it.
    pub(crate) fn session(&self, session: &SessionId) -> String {
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
                return Err(was_late(link, life, health));
            };
            match answer {
                Ok(value) => {
                    health.answered(call.lua);
                    return Ok(value);
                }
                Err(error) if error.is_timeout() => return Err(was_late(link, life, health)),
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
        redis::from_redis_value(self.command(command).await?).map_err(|_| StoreError::Away)
    }

    /// Runs one command that may run twice.
    pub(crate) async fn command(&self, command: Cmd) -> Result<Value, StoreError> {
        let lua = Lua::Read;
        self.call(Call { lua, command }).await
    }

    /// Removes a key.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd("UNLINK");
        command.arg(key);
        self.command(command).await.map(drop)
    }

    /// Runs scripts in order, in one go. Where the answer is lost it is unknown which of them ran.
    /// A call that would fail for ever is `Fenced`: nobody waits for it.
    pub(crate) async fn all(
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
            Ok(Err(error)) if !error.is_timeout() => {
                health.failed(&error.to_string());
                link.broke(life);
                return Err(StoreError::Away);
            }
            _ => return Err(was_late(link, life, health)),
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

fn was_late(link: &Link, life: u64, health: &Health) -> StoreError {
    health.failed(LATE);
    link.was_late(life);
    StoreError::Away
}

/// One call of a script.
pub(crate) struct Call {
    lua: Lua,
    command: Cmd,
}

impl Call {
    pub(crate) fn new(lua: Lua, keys: &[&str]) -> Self {
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

    pub(crate) fn add(&mut self, arg: impl ToRedisArgs) {
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

/// For how long keys outlive what they are for: clocks and scripts take a moment.
pub(super) const MARGIN: Duration = Duration::from_secs(60);

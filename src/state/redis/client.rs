//! The Redis (or Valkey) client: script calls, batches, and the handling of errors.
//!
//! Not here: connections (`link`), and the data (`log`, `directory`, `limiter`).

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use redis::{
    Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, TlsCertificates,
    ToRedisArgs, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    link::{BATCH_TIMEOUT, CALL_TIMEOUT, Health, Link, TIMED_OUT, Unsuitable},
    scripts::Lua,
};
use crate::base::Secret;
use crate::state::{SessionId, StoreError};
use crate::telemetry::{StoreFailure, StoreSystem, StoreTimes};

/// The address of Redis, and the prefix of all keys.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `redis://` or `rediss://` (TLS), with optional user and password, and the database number as
    /// path.
    pub(crate) url: Secret,
    /// The prefix of all keys. Gateways with different prefixes do not see each other.
    pub(crate) prefix: String,
    /// The certificate authorities to trust, as PEM; none for the public ones.
    pub(crate) authorities: Option<Arc<[u8]>>,
}

impl Settings {
    /// Fails for an invalid URL.
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
            // Without the error's text, which may contain a password.
            let what = error.detail().unwrap_or(error.category());
            Unsuitable::new(&format!(
                "redis.url: is no URL of Redis ({what}): write redis://USER:PASSWORD@HOST:6379/0, \
                 or rediss:// for TLS"
            ))
        })
    }
}

/// A handle for a Redis that may be unreachable.
#[derive(Clone)]
pub(crate) struct Redis(Arc<Shared>);

struct Shared {
    prefix: String,
    /// Replaced when the credentials change.
    client: Arc<ArcSwap<Client>>,
    /// For calls that a caller waits for.
    calls: Link,
    /// For batches of events: large ones must not delay the calls.
    writes: Link,
    health: Arc<Health>,
    times: StoreTimes,
}

impl Redis {
    /// Connects in the background, with retries, until `halt`. Fails for an invalid URL.
    pub(crate) fn open(
        settings: &Settings,
        tracker: &TaskTracker,
        halt: &CancellationToken,
    ) -> Result<Self, Unsuitable> {
        let client = Arc::new(ArcSwap::from_pointee(settings.client()?));
        let health = Arc::new(Health::default());
        let link = |limit| Link::open(&client, limit, &health, tracker, halt);
        Ok(Self(Arc::new(Shared {
            prefix: format!("{}:v1:", settings.prefix),
            client: Arc::clone(&client),
            calls: link(CALL_TIMEOUT),
            writes: link(BATCH_TIMEOUT),
            health,
            times: StoreTimes::default(),
        })))
    }

    /// Where the durations of calls are recorded.
    pub(crate) fn times(&self) -> &StoreTimes {
        &self.0.times
    }

    /// Checks the server's version and settings, once it has answered. An unreachable server is no
    /// error.
    pub(crate) async fn check(&self) -> Result<(), Unsuitable> {
        let until = Instant::now() + CALL_TIMEOUT * 2;
        self.0.calls.refusal(until).await.map_or(Ok(()), Err)
    }

    /// Opens every further connection by these settings, whose prefix is the same.
    ///
    /// # Errors
    ///
    /// An invalid URL; the settings before stay in use.
    pub(crate) fn reconnect(&self, settings: &Settings) -> Result<(), Unsuitable> {
        self.0.client.store(Arc::new(settings.client()?));
        Ok(())
    }

    /// The client, for separate connections.
    pub(super) fn client(&self) -> Arc<Client> {
        self.0.client.load_full()
    }

    /// Runs one command and ignores its result.
    pub(super) async fn send(&self, command: Cmd) {
        let until = Instant::now() + CALL_TIMEOUT;
        if let Some((mut connection, _)) = self.0.calls.connection(until).await {
            let sent = command.exec_async(&mut connection);
            let _ = timeout_at(until, sent).await;
        }
    }

    /// The key of a singleton.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0.prefix)
    }

    /// The key of a session; the keys of its streams begin with it.
    pub(crate) fn session(&self, session: &SessionId) -> String {
        format!("{}{{{}}}", self.0.prefix, session.as_str())
    }

    /// Runs a script within half a second. If its reply is lost with the connection, it runs again:
    /// every script tolerates that.
    pub(super) async fn call(&self, call: Call) -> Result<Value, StoreError> {
        let name = call.lua.into();
        self.timed(name, self.run_call(call)).await
    }

    /// Records how long an operation takes.
    async fn timed<T>(
        &self,
        name: &'static str,
        operation: impl Future<Output = Result<T, StoreFailure>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let done = operation.await;
        let failure = done.as_ref().err().copied();
        let operation = (StoreSystem::Redis, name);
        self.0.times.record(operation, failure, began.elapsed());
        done.map_err(|_| StoreError::Away)
    }

    async fn run_call(&self, call: Call) -> Result<Value, StoreFailure> {
        let (link, health) = (&self.0.calls, &self.0.health);
        let until = Instant::now() + CALL_TIMEOUT;
        let mut lost = Ok(());
        for _ in 0..2 {
            let (mut connection, generation) = link
                .connection(until)
                .await
                .ok_or(StoreFailure::Unavailable)?;
            let Ok(answer) = timeout_at(until, call.run(&mut connection)).await else {
                return Err(timed_out(link, generation, health));
            };
            match answer {
                Ok(value) => {
                    health.answered(call.lua);
                    return Ok(value);
                }
                Err(error) if error.is_timeout() => {
                    return Err(timed_out(link, generation, health));
                }
                Err(error) if is_broken(&error) => {
                    lost = Err(error);
                    link.close(generation);
                }
                Err(error) => {
                    lost = Err(error);
                    break;
                }
            }
        }
        let Err(error) = lost else {
            return Err(StoreFailure::Unavailable);
        };
        health.failed(&error.to_string());
        Err(if is_broken(&error) {
            StoreFailure::Unavailable
        } else {
            StoreFailure::Refused
        })
    }

    /// All fields of a hash; none if it does not exist.
    pub(super) async fn hash(&self, key: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(key);
        redis::from_redis_value(self.command(command).await?).map_err(|_| StoreError::Away)
    }

    /// Runs one idempotent command.
    pub(crate) async fn command(&self, command: Cmd) -> Result<Value, StoreError> {
        let lua = Lua::Read;
        let call = Call { lua, command };
        self.timed("command", self.run_call(call)).await
    }

    /// Removes a key.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd("UNLINK");
        command.arg(key);
        self.command(command).await.map(drop)
    }

    /// Runs scripts in order, in one pipeline. If the reply is lost, any of them may have run. A
    /// call that would fail every time yields `Fenced`, so that it is not retried.
    pub(crate) async fn all(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let run = self.run_pipeline(&self.0.calls, CALL_TIMEOUT, calls);
        self.timed("pipeline", run).await
    }

    /// Runs scripts like [`Self::all`], with up to some megabytes of arguments.
    pub(super) async fn batch(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let link = &self.0.writes;
        let run = self.run_pipeline(link, BATCH_TIMEOUT, calls);
        self.timed("batch", run).await
    }

    async fn run_pipeline(
        &self,
        link: &Link,
        limit: Duration,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreFailure> {
        let health = &self.0.health;
        let until = Instant::now() + limit;
        let connected = link.connection(until).await;
        let (mut connection, generation) = connected.ok_or(StoreFailure::Unavailable)?;
        let luas: Vec<Lua> = calls.iter().map(|call| call.lua).collect();
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.command);
        }
        pipeline.ignore_errors();
        let sent = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection);
        let answers = match timeout_at(until, sent).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) if !error.is_timeout() => {
                health.failed(&error.to_string());
                link.close(generation);
                return Err(StoreFailure::Unavailable);
            }
            _ => return Err(timed_out(link, generation, health)),
        };
        let mut results = Vec::with_capacity(answers.len());
        for (answer, lua) in answers.into_iter().zip(luas) {
            results.push(match answer {
                Ok(value) => {
                    health.answered(lua);
                    Ok(value)
                }
                Err(error) if is_missing_script(&error) => {
                    // The caller retries.
                    let _ = timeout(CALL_TIMEOUT, lua.load().exec_async(&mut connection)).await;
                    Err(StoreError::Away)
                }
                Err(error) if is_permanent(&error) => {
                    tracing::error!(event = "redis.wrong", why = %error, "a script fails");
                    Err(StoreError::Fenced)
                }
                Err(error) => {
                    health.failed(&error.to_string());
                    if is_broken(&error) {
                        link.close(generation);
                    }
                    Err(StoreError::Away)
                }
            });
        }
        Ok(results)
    }
}

fn timed_out(link: &Link, generation: u64, health: &Health) -> StoreFailure {
    health.failed(TIMED_OUT);
    link.timed_out(generation);
    StoreFailure::Timeout
}

/// One script call.
pub(crate) struct Call {
    lua: Lua,
    command: Cmd,
}

impl Call {
    pub(crate) fn new(lua: Lua, keys: &[&str]) -> Self {
        Self::with_capacity(lua, keys, 16, 256)
    }

    /// A call with room for its arguments, all together `bytes` long: adding them copies nothing
    /// twice.
    pub(super) fn with_capacity(lua: Lua, keys: &[&str], arguments: usize, bytes: usize) -> Self {
        let mut command = Cmd::with_capacity(arguments, bytes);
        command
            .arg("EVALSHA")
            .arg(lua.script().get_hash())
            .arg(keys.len())
            .arg(keys);
        Self { lua, command }
    }

    /// Adds one argument.
    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.add(arg);
        self
    }

    pub(crate) fn add(&mut self, arg: impl ToRedisArgs) {
        self.command.arg(arg);
    }

    async fn run(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self.command.query_async(connection).await {
            Err(error) if is_missing_script(&error) => {
                self.lua.load().exec_async(connection).await?;
                self.command.query_async(connection).await
            }
            answer => answer,
        }
    }
}

/// Reports whether to reconnect: the connection is lost, or its server takes no writes, and its
/// name may point to another server by now.
fn is_broken(error: &RedisError) -> bool {
    let takes_no_writes = matches!(error.code(), Some("READONLY" | "MASTERDOWN"));
    error.is_io_error() || error.is_unrecoverable_error() || takes_no_writes
}

/// Reports whether the call or the stored data is at fault, not the server's state.
fn is_permanent(error: &RedisError) -> bool {
    matches!(error.code(), Some("ERR" | "WRONGTYPE"))
}

/// Reports whether the server lacks the script, after a restart or a flush.
fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The time that keys outlive their purpose, to allow for clocks and the duration of scripts.
pub(super) const MARGIN: Duration = Duration::from_secs(60);

//! The directory in Redis: a hash per session, a heartbeat per replica, and the epoch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use super::{
    client::{Call, MARGIN, Redis},
    scripts::{Lua, ms},
};
use crate::state::{
    BoxFuture, ClaimFrom, Claimed, Directory, Fence, Found, Heartbeat, Record, Replica,
    ReplicaKeys, SessionId, StoreError,
};

/// The directory that replicas share.
pub(crate) struct RedisDirectory {
    redis: Redis,
    /// The boot id of this replica.
    boot: Arc<str>,
    keys: ReplicaKeys,
    /// The epoch that this replica knows; 0 for none.
    epoch: AtomicU32,
    /// This replica accepts no new sessions.
    is_closed: AtomicBool,
}

impl RedisDirectory {
    /// The directory, as the replica of this boot id uses it.
    pub(crate) const fn new(redis: Redis, boot: Arc<str>, keys: ReplicaKeys) -> Self {
        Self {
            redis,
            boot,
            keys,
            epoch: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Runs a change by the owner. With `is_gone_done`, a missing session counts as success: the
    /// reply to a first removal may have been lost.
    async fn change(&self, call: Call, is_gone_done: bool) -> Result<(), StoreError> {
        match self.call(call).await? {
            1 => Ok(()),
            0 if is_gone_done => Ok(()),
            _ => Err(StoreError::Fenced),
        }
    }

    async fn call<T: FromRedisValue>(&self, call: Call) -> Result<T, StoreError> {
        read(self.redis.call(call).await?)
    }

    /// The epoch that this replica knows; empty for none.
    fn known_epoch(&self) -> String {
        match self.epoch.load(Ordering::Relaxed) {
            0 => String::new(),
            epoch => epoch.to_string(),
        }
    }

    /// The key of a replica's heartbeat.
    fn heartbeat(&self, boot: &str) -> String {
        self.redis.key(&format!("replica:{boot}"))
    }

    /// The key of the count of claims from a replica.
    fn claims(&self, boot: &str) -> String {
        self.redis.key(&format!("claims:{boot}"))
    }

    fn call_for(&self, lua: Lua, session: &SessionId) -> Call {
        Call::new(lua, &[&self.redis.session(session)])
    }

    /// A change of a session of this replica.
    fn change_of(&self, session: &SessionId, fence: Fence) -> Call {
        let call = self.call_for(Lua::Change, session);
        call.arg(fence.0).arg(&*self.boot)
    }

    /// Reads the reply of `find.lua`. A session whose principal or server no replica has written is none.
    fn found(&self, session: &SessionId, answer: Value) -> Result<Option<Found>, StoreError> {
        type Row = (
            String,
            String,
            String,
            String,
            u64,
            Vec<u8>,
            u64,
            u64,
            String,
            i64,
        );
        let (principal, server, address, boot, fence, kept, ttl, age, seal, ttl_left): Row =
            read(answer)?;
        if !self.keys.has_sealed(&seal, session, &principal, &server) {
            tracing::warn!(
                "a session in Redis has a principal or a server that no replica has written"
            );
            return Ok(None);
        }
        let owner = (!boot.is_empty()).then(|| Replica {
            address: address.into(),
            boot: boot.into(),
        });
        let record = Record {
            principal: Arc::from(principal),
            server,
            owner,
            fence: Fence(fence),
            kept: kept.into(),
            ttl: Duration::from_millis(ttl),
            age: Duration::from_millis(age),
        };
        Ok(Some(Found {
            record,
            heartbeat_age: heartbeat_age(ttl_left),
        }))
    }
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    T::from_redis_value(value).map_err(|_| StoreError::Away)
}

impl Directory for RedisDirectory {
    fn beat<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, Result<Heartbeat, StoreError>> {
        Box::pin(async move {
            let keys = [
                self.redis.key("epoch"),
                self.redis.key("recovering"),
                self.heartbeat(&replica.boot),
                self.redis.key("open"),
                self.claims(&replica.boot),
            ];
            let call = Call::new(Lua::Beat, &keys.each_ref().map(String::as_str))
                .arg(&*replica.address)
                .arg(ms(HEARTBEAT_TTL))
                .arg(new_epoch())
                .arg(self.known_epoch())
                .arg(ms(EPOCH_TTL))
                .arg(ms(RECOVERY))
                .arg(&*replica.boot)
                .arg(u8::from(!self.is_closed.load(Ordering::Relaxed)));
            let (epoch, is_recovering, claims): (u32, bool, u64) = self.call(call).await?;
            self.epoch.store(epoch, Ordering::Relaxed);
            Ok(Heartbeat {
                epoch,
                is_recovering,
                claims,
            })
        })
    }

    fn open(&self) -> BoxFuture<'_, Result<Vec<Replica>, StoreError>> {
        Box::pin(async move {
            let mut command = redis::cmd("ZRANGE");
            command.arg(self.redis.key("open")).arg(0).arg(-1);
            let names: Vec<String> = read(self.redis.command(command).await?)?;
            let replicas = names.iter().filter_map(|name| name.split_once(' '));
            let replica = |(boot, address): (&str, &str)| Replica {
                address: address.into(),
                boot: boot.into(),
            };
            Ok(replicas.map(replica).collect())
        })
    }

    fn heartbeat_age<'a>(
        &'a self,
        replica: &'a Replica,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>> {
        Box::pin(async move {
            let mut command = redis::cmd("PTTL");
            command.arg(self.heartbeat(&replica.boot));
            let ttl_left = read(self.redis.command(command).await?)?;
            Ok(heartbeat_age(ttl_left))
        })
    }

    fn close<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()> {
        self.is_closed.store(true, Ordering::Relaxed);
        // If Redis is away, the next heartbeat carries the change.
        Box::pin(async move {
            let _ = self.beat(replica).await;
        })
    }

    fn leave<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // If Redis is away, all of it expires.
            let _ = self.redis.remove(&self.heartbeat(&replica.boot)).await;
            let mut command = redis::cmd("ZREM");
            let name = format!("{} {}", replica.boot, replica.address);
            command.arg(self.redis.key("open")).arg(name);
            let _ = self.redis.command(command).await;
            let _ = self.redis.remove(&self.claims(&replica.boot)).await;
        })
    }

    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        epoch: u32,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let keys = [self.redis.session(session), self.redis.key("epoch")];
            let (address, boot) = owner(record.owner.as_ref());
            let seal = self.keys.seal(session, &record.principal, &record.server);
            let call = Call::new(Lua::Insert, &keys.each_ref().map(String::as_str))
                .arg(epoch)
                .arg(&*record.principal)
                .arg(&record.server)
                .arg(address)
                .arg(boot)
                .arg(record.fence.0)
                .arg(&record.kept[..])
                .arg(ms(record.ttl))
                .arg(ms(record.age))
                .arg(ms(MARGIN))
                .arg(seal.ok_or(StoreError::Away)?);
            match self.call::<i64>(call).await? {
                -2 => Err(StoreError::Flushed),
                is_added => Ok(is_added == 1),
            }
        })
    }

    fn find<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        Box::pin(async move {
            let keys = [self.redis.session(session), self.redis.key("epoch")];
            let call = Call::new(Lua::Find, &keys.each_ref().map(String::as_str))
                .arg(self.redis.key("replica:"))
                .arg(self.known_epoch());
            match self.redis.call(call).await? {
                Value::Int(_) => Err(StoreError::Flushed),
                Value::Nil | Value::Boolean(false) => Ok(None),
                answer => self.found(session, answer),
            }
        })
    }

    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
        from: ClaimFrom,
    ) -> BoxFuture<'a, Result<Option<Claimed>, StoreError>> {
        Box::pin(async move {
            let (_, boot) = owner(seen.owner.as_ref());
            let keys = [
                self.redis.session(session),
                self.heartbeat(boot),
                self.claims(boot),
            ];
            let call = Call::new(Lua::Claim, &keys.each_ref().map(String::as_str))
                .arg(boot)
                .arg(seen.fence.0)
                .arg(&*me.address)
                .arg(&*me.boot)
                .arg(ms(MARGIN))
                .arg(u8::from(from == ClaimFrom::Silent))
                .arg(ms(EPOCH_TTL));
            let (fence, kept): (u64, Vec<u8>) = self.call(call).await?;
            Ok((fence > 0).then(|| Claimed {
                fence: Fence(fence),
                kept: kept.into(),
            }))
        })
    }

    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut call = self.change_of(session, fence).arg("keep").arg(ms(MARGIN));
        if let Some(kept) = kept {
            call.add(&kept[..]);
        }
        Box::pin(self.change(call, false))
    }

    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let call = self.change_of(session, fence).arg("release");
        Box::pin(self.change(call, false))
    }

    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let call = self.change_of(session, fence).arg("remove");
        Box::pin(self.change(call, true))
    }
}

/// The age of a heartbeat that stands for as many milliseconds more; none for a negative number.
fn heartbeat_age(ttl_left: i64) -> Option<Duration> {
    let left = Duration::from_millis(u64::try_from(ttl_left).ok()?);
    Some(HEARTBEAT_TTL.saturating_sub(left))
}

/// Address and boot id; both empty without an owner.
fn owner(owner: Option<&Replica>) -> (&str, &str) {
    owner.map_or(("", ""), |owner| (&*owner.address, &*owner.boot))
}

/// A random epoch, never 0.
fn new_epoch() -> u32 {
    let random = uuid::Uuid::new_v4().as_fields().0;
    random.max(1)
}

/// The time to live of a heartbeat; its interval is that of `hub::ownership`.
const HEARTBEAT_TTL: Duration = Duration::from_secs(5);
/// The time in which owners register lost sessions again.
const RECOVERY: Duration = Duration::from_secs(5);
/// The time that an epoch outlives the last replica: longer than any session. So does the count of claims from a replica
/// outlive the last one: until then it may wake up.
const EPOCH_TTL: Duration = Duration::from_hours(24 * 90);

//! The directory in Redis: a hash per session, a heartbeat per replica, and the store's epoch.

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
use crate::state::{Beat, Directory, Fence, Found, Later, Record, Replica, SessionId, StoreError};

/// The directory that all replicas share.
pub(crate) struct RedisDirectory {
    redis: Redis,
    /// The life of the store that this replica knows; 0 for none.
    epoch: AtomicU32,
    /// Whether it begins no more sessions.
    is_closed: AtomicBool,
}

impl RedisDirectory {
    /// The directory of one replica.
    pub(crate) const fn new(redis: Redis) -> Self {
        Self {
            redis,
            epoch: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Asks for a change by the owner. Where a first answer was lost, the second says that a
    /// session is not there though it was this caller who removed it: `is_gone_done`.
    async fn change(&self, call: Call, is_gone_done: bool) -> Result<(), StoreError> {
        match self.ask(call).await? {
            1 => Ok(()),
            0 if is_gone_done => Ok(()),
            _ => Err(StoreError::Fenced),
        }
    }

    async fn ask<T: FromRedisValue>(&self, call: Call) -> Result<T, StoreError> {
        read(self.redis.call(call).await?)
    }

    /// The epoch that this replica knows; empty for none.
    fn known(&self) -> String {
        match self.epoch.load(Ordering::Relaxed) {
            0 => String::new(),
            epoch => epoch.to_string(),
        }
    }

    fn on(&self, lua: Lua, session: &SessionId) -> Call {
        Call::new(lua, &[&self.redis.session(session)])
    }
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    T::from_redis_value(value).map_err(|_| StoreError::Away)
}

impl Directory for RedisDirectory {
    fn beat<'a>(&'a self, replica: &'a Replica) -> Later<'a, Result<Beat, StoreError>> {
        Box::pin(async move {
            let keys = [
                self.redis.key("epoch"),
                self.redis.key("recovering"),
                self.redis.key(&format!("replica:{}", replica.boot)),
                self.redis.key("open"),
            ];
            let call = Call::new(Lua::Beat, &keys.each_ref().map(String::as_str))
                .arg(&*replica.address)
                .arg(ms(STANDS))
                .arg(new_epoch())
                .arg(self.known())
                .arg(ms(EPOCH))
                .arg(ms(RECOVERY))
                .arg(&*replica.boot)
                .arg(u8::from(!self.is_closed.load(Ordering::Relaxed)));
            let (epoch, is_recovering): (u32, bool) = self.ask(call).await?;
            self.epoch.store(epoch, Ordering::Relaxed);
            Ok(Beat {
                epoch,
                is_recovering,
            })
        })
    }

    fn open(&self) -> Later<'_, Result<Vec<Replica>, StoreError>> {
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

    fn close<'a>(&'a self, replica: &'a Replica) -> Later<'a, ()> {
        self.is_closed.store(true, Ordering::Relaxed);
        // Where Redis is away the next heartbeat says it.
        Box::pin(async move {
            let _ = self.beat(replica).await;
        })
    }

    fn leave<'a>(&'a self, replica: &'a Replica) -> Later<'a, ()> {
        Box::pin(async move {
            let key = self.redis.key(&format!("replica:{}", replica.boot));
            // Where Redis is away both end by themselves.
            let _ = self.redis.remove(&key).await;
            let mut command = redis::cmd("ZREM");
            let name = format!("{} {}", replica.boot, replica.address);
            command.arg(self.redis.key("open")).arg(name);
            let _ = self.redis.command(command).await;
        })
    }

    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        epoch: u32,
    ) -> Later<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let keys = [self.redis.session(session), self.redis.key("epoch")];
            let (address, boot) = owner(record.owner.as_ref());
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
                .arg(ms(MARGIN));
            match self.ask::<i64>(call).await? {
                -2 => Err(StoreError::Flushed),
                is_added => Ok(is_added == 1),
            }
        })
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> Later<'a, Result<Option<Found>, StoreError>> {
        Box::pin(async move {
            let keys = [self.redis.session(session), self.redis.key("epoch")];
            let call = Call::new(Lua::Find, &keys.each_ref().map(String::as_str))
                .arg(self.redis.key("replica:"))
                .arg(self.known());
            match self.redis.call(call).await? {
                Value::Int(_) => Err(StoreError::Flushed),
                Value::Nil | Value::Boolean(false) => Ok(None),
                answer => found(answer).map(Some),
            }
        })
    }

    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
    ) -> Later<'a, Result<Option<Fence>, StoreError>> {
        Box::pin(async move {
            let (_, boot) = owner(seen.owner.as_ref());
            let call = self
                .on(Lua::Claim, session)
                .arg(boot)
                .arg(seen.fence.0)
                .arg(&*me.address)
                .arg(&*me.boot)
                .arg(ms(MARGIN));
            let fence: u64 = self.ask(call).await?;
            Ok((fence > 0).then_some(Fence(fence)))
        })
    }

    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<Bytes>,
    ) -> Later<'a, Result<(), StoreError>> {
        let mut call = self.on(Lua::Change, session).arg(fence.0).arg("keep");
        call.add(ms(MARGIN));
        if let Some(kept) = kept {
            call.add(&kept[..]);
        }
        Box::pin(self.change(call, false))
    }

    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> Later<'a, Result<(), StoreError>> {
        let call = self.on(Lua::Change, session).arg(fence.0).arg("release");
        Box::pin(self.change(call, false))
    }

    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> Later<'a, Result<(), StoreError>> {
        let call = self.on(Lua::Change, session).arg(fence.0).arg("remove");
        Box::pin(self.change(call, true))
    }
}

/// Address and boot id; empty where nobody owns it.
fn owner(owner: Option<&Replica>) -> (&str, &str) {
    owner.map_or(("", ""), |owner| (&*owner.address, &*owner.boot))
}

/// What `find.lua` returned.
fn found(answer: Value) -> Result<Found, StoreError> {
    type Row = (String, String, String, String, u64, Vec<u8>, u64, u64, i64);
    let (principal, server, address, boot, fence, kept, ttl, age, stands): Row = read(answer)?;
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
    let stands = u64::try_from(stands).ok().map(Duration::from_millis);
    Ok(Found {
        record,
        sign: stands.map(|left| STANDS.saturating_sub(left)),
    })
}

/// Random, and never 0.
fn new_epoch() -> u32 {
    let random = uuid::Uuid::new_v4().as_fields().0;
    random.max(1)
}

/// How long a heartbeat stands.
const STANDS: Duration = Duration::from_secs(5);
/// How long owners have to register their sessions again.
const RECOVERY: Duration = Duration::from_secs(5);
/// How long an epoch outlives the last replica: longer than any session.
const EPOCH: Duration = Duration::from_hours(24 * 90);

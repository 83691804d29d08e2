//! Stores of a hub: in memory for one process, in Redis for several replicas.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::rand::SecureRandom;
use tokio::time::MissedTickBehavior;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use crate::{
    config::Config,
    error::Error,
    hub::ownership::ReplicaLease,
    protocol::EventKey,
    state::{
        Directory, EventLog, Limiter, Replica, ReplicaKeys,
        memory::{EPOCH, MemoryDirectory, MemoryLimiter, MemoryLog, Retention},
        redis::{Redis, RedisDirectory, RedisLimiter, RedisLog},
    },
};

/// The stores of a hub.
pub(crate) struct Stores {
    /// The events of all streams.
    pub(crate) log: Arc<dyn EventLog>,
    /// The sessions of all replicas.
    pub(crate) directory: Arc<dyn Directory>,
    /// The counters of limits.
    pub(crate) limiter: Arc<dyn Limiter>,
    /// The lease of this replica.
    pub(crate) owner: Arc<ReplicaLease>,
    /// The key of event ids, the same on all replicas.
    pub(crate) key: EventKey,
    /// The limits of an outage of the store.
    pub(crate) patience: Patience,
}

/// The stores of one session.
#[derive(Clone)]
pub(crate) struct SessionStores {
    /// The events of its streams.
    pub(crate) log: Arc<dyn EventLog>,
    /// Its record.
    pub(crate) directory: Arc<dyn Directory>,
    /// The lease under which this replica serves it.
    pub(crate) owner: Arc<ReplicaLease>,
}

impl SessionStores {
    /// Stores in the memory of this process, for sessions that no other replica continues.
    pub(crate) fn in_memory(config: &Config) -> Self {
        let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::default());
        Self {
            log: Arc::new(MemoryLog::new(retention(config))),
            owner: Arc::new(ReplicaLease::alone(Arc::clone(&directory), EPOCH)),
            directory,
        }
    }
}

/// The limits of an outage of the store; zero is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// The time after which connections that read streams are closed.
    pub(crate) close_after: Duration,
    /// The time after which sessions and their children end.
    pub(crate) orphan_after: Duration,
}

/// The retention of each stream.
pub(crate) fn retention(config: &Config) -> Retention {
    Retention {
        events: config.log.events,
        bytes: usize::try_from(config.log.bytes).unwrap_or(usize::MAX),
        age: or_never(config.log.age),
    }
}

impl Stores {
    /// Stores in the memory of the only replica.
    ///
    /// # Errors
    ///
    /// `Bug` if the system has no randomness.
    pub(crate) fn in_memory(config: &Config, random: &dyn SecureRandom) -> Result<Self, Error> {
        let mut secret = Zeroizing::new([0; 32]);
        random
            .fill(&mut *secret)
            .map_err(|_| Error::Bug("no randomness"))?;
        let SessionStores {
            log,
            directory,
            owner,
        } = SessionStores::in_memory(config);
        Ok(Self {
            log,
            directory,
            owner,
            limiter: Arc::new(MemoryLimiter::default()),
            key: EventKey::new(&secret),
            patience: Patience::default(),
        })
    }

    /// Stores in Redis, which all replicas share. The first of `keys` seals event ids, all of them
    /// open event ids; the tasks of the stores end with `stop`.
    pub(crate) fn shared(
        config: &Config,
        redis: &Redis,
        (me, replicas): (Replica, ReplicaKeys),
        keys: &[Zeroizing<[u8; 32]>],
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let boot = Arc::clone(&me.boot);
        let directory = RedisDirectory::new(redis.clone(), Arc::clone(&boot), replicas.clone());
        let directory: Arc<dyn Directory> = Arc::new(directory);
        let max_event = usize::try_from(config.log.max_event).unwrap_or(usize::MAX);
        let limiter = RedisLimiter::new(redis.clone(), Arc::clone(&boot), tracker, stop.clone());
        let log = RedisLog::new(
            redis.clone(),
            boot,
            retention(config),
            max_event,
            tracker,
            stop.clone(),
        );
        Self {
            log: Arc::new(log),
            owner: Arc::new(ReplicaLease::new(me, replicas, Arc::clone(&directory))),
            directory,
            limiter: Arc::new(limiter),
            key: EventKey::of(keys.iter().map(|key| &**key)),
            patience: Patience {
                close_after: config.cluster.close_after,
                orphan_after: config.cluster.orphan_after,
            },
        }
    }
}

/// Removes now and then what the log must not keep, of sessions that write nothing as well; until one of
/// `stops`.
pub(crate) async fn sweep(log: Arc<dyn EventLog>, stops: [CancellationToken; 2]) {
    let [drain, halt] = stops;
    let mut ticks = tokio::time::interval(SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = drain.cancelled() => return,
            () = halt.cancelled() => return,
            _ = ticks.tick() => log.sweep(),
        }
    }
}

/// The time between two sweeps of the log.
const SWEEP: Duration = Duration::from_secs(5);

/// A configured limit; zero becomes ten years, which are never but still a valid `Instant`.
pub(crate) fn or_never(limit: Duration) -> Duration {
    if limit.is_zero() { NEVER } else { limit }
}

const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

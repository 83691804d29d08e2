//! What a replica shares with the others: the connection to Redis, the stores in it, and the keys
//! that all of them derive from their master key.
//!
//! Not here: what is kept there (`store`), and what a replica does with it (`hub`, `http`).

use std::{sync::Arc, time::Duration};

use aws_lc_rs::error::Unspecified;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use crate::{
    config::{self, Config},
    control::seal::Keyring,
    http::{
        hop::{self, HopKeys},
        ops::{Health, Loss},
    },
    hub::stores::Stores,
    store::{
        Replica,
        redis::{Redis, Settings, Unsuitable},
        redis_agreement,
    },
};

/// The connection to what replicas share, and what runs for it.
pub(crate) struct Sharing {
    /// The connection.
    pub(crate) redis: Redis,
    /// Whose tasks they are.
    pub(crate) tracker: TaskTracker,
    /// Ends them.
    pub(crate) stop: CancellationToken,
}

impl Sharing {
    /// Says from now on which deployment this replica is of; cancels `disagreement` when at its
    /// start the others are of another.
    pub(crate) fn agree(&self, config: &Config, keys: &Keyring, disagreement: &CancellationToken) {
        let fingerprints = keys.keys().iter();
        let fingerprints = fingerprints.map(|key| key.fingerprint(&config.public_url));
        let agreeing = agree(
            self.redis.clone(),
            fingerprints.collect(),
            disagreement.clone(),
        );
        let stop = self.stop.clone();
        self.tracker
            .spawn(async move { stop.run_until_cancelled(agreeing).await });
    }

    /// The stores of replica `me`, whose heartbeats begin.
    pub(crate) fn stores(
        &self,
        config: &Config,
        (me, keys): (Replica, &Keyring),
        health: &Health,
    ) -> Stores {
        let event_ids = derived(keys, EVENT_IDS);
        let running = (&self.tracker, &self.stop);
        let stores = Stores::shared(config, &self.redis, me, &event_ids, running);
        health.lost("redis", Loss::All);
        let beating = Arc::clone(&stores.owner).run(reports(health), self.stop.clone());
        self.tracker.spawn(beating);
        stores
    }
}

/// Connects to Redis, again and again, until `stop`.
///
/// # Errors
///
/// What is wrong with the settings, or with the server as far as that has answered.
pub(crate) async fn connect(
    at: &config::Redis,
    (tracker, stop): (&TaskTracker, &CancellationToken),
) -> Result<Redis, Unsuitable> {
    let settings = Settings {
        url: at.url.clone(),
        prefix: at.prefix.clone(),
    };
    let redis = Redis::open(&settings, tracker, stop)?;
    redis.check().await?;
    Ok(redis)
}

/// This replica in this life.
///
/// # Errors
///
/// When the system has no randomness.
pub(crate) fn replica(address: &Arc<str>) -> Result<Replica, Unspecified> {
    let mut boot = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut boot)?;
    let boot: String = boot.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Replica {
        address: Arc::clone(address),
        boot: boot.into(),
    })
}

/// What hops are signed with: of each master key, so that one can replace another.
pub(crate) fn hop_keys(keys: &Keyring) -> HopKeys {
    HopKeys::new(derived(keys, hop::LABEL).iter().map(|key| &**key))
}

/// The keys for one purpose, of each master key; they leave nothing in memory.
fn derived(keys: &Keyring, purpose: &str) -> Vec<Zeroizing<[u8; 32]>> {
    keys.keys().iter().map(|key| key.derive(purpose)).collect()
}

/// Without Redis no session can be served.
fn reports(health: &Health) -> impl Fn(bool) + use<> {
    let health = health.clone();
    move |has_lease| {
        if has_lease {
            health.back("redis");
        } else {
            health.lost("redis", Loss::All);
        }
    }
}

async fn agree(redis: Redis, mine: Vec<String>, disagreement: CancellationToken) {
    let mut has_agreed = false;
    loop {
        match redis_agreement::agree(&redis, &mine).await {
            Ok(true) => has_agreed = true,
            // A master key is being replaced: those that start later say so.
            Ok(false) if has_agreed => {
                tracing::warn!("replicas with another master key or public_url have started");
            }
            Ok(false) => {
                tracing::error!("{DISAGREEMENT}");
                return disagreement.cancel();
            }
            Err(_) => {}
        }
        let pause = if has_agreed {
            redis_agreement::EVERY
        } else {
            Duration::from_millis(250)
        };
        tokio::time::sleep(pause).await;
    }
}

/// What keeps a replica from starting.
pub(crate) const DISAGREEMENT: &str = "replicas with this redis.url and redis.prefix have another \
    master_key or public_url: make them the same, or give this deployment a redis.prefix of its own";

/// What event ids are signed with.
const EVENT_IDS: &str = "lockgate event ids v1";
        authorities: at.authorities.clone(),

//! What a replica shares with the others: the connection to Redis, the stores in it, and the keys
//! that all of them derive from their master key.
//!
//! Not here: what is kept there (`store`), and what a replica does with it (`hub`, `http`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::error::Unspecified;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use crate::{
    base::hex,
    config::{Config, gateway},
    database::vault::Keyring,
    http::{
        Health, Loss,
        peers::{HopKeys, hop},
    },
    hub::Stores,
    snapshot::{CurrentSnapshot, Snapshot},
    state::{
        Replica,
        redis::{Redis, Settings, Unsuitable, agreement, wake},
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

    /// Tells the other replicas of every change of what is declared and of what was revoked, and has
    /// the store asked at once when one of them does.
    pub(crate) fn follow(&self, live: &Arc<CurrentSnapshot>) {
        let reached = Arc::new(Reached::default());
        let (redis, live) = (self.redis.clone(), Arc::clone(live));
        let following = async move {
            let telling = told(&redis, &live, &reached);
            let hearing = wake::listen(&redis, |text| reached.heard(text, &live));
            tokio::join!(telling, hearing);
        };
        let stop = self.stop.clone();
        self.tracker
            .spawn(async move { stop.run_until_cancelled(following).await });
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

/// How far all replicas have come, as was said: the numbers of the last changes of what is declared,
/// and of what was issued.
struct Reached([AtomicI64; 2]);

impl Default for Reached {
    fn default() -> Self {
        Self([const { AtomicI64::new(i64::MIN) }; 2])
    }
}

impl Reached {
    /// Whether nobody has said so of these yet.
    fn is_news(&self, numbers: [i64; 2]) -> bool {
        let known = self.0.each_ref().map(|known| known.load(Ordering::Acquire));
        numbers[0] > known[0] || numbers[1] > known[1]
    }

    fn heard(&self, text: Option<&str>, live: &CurrentSnapshot) {
        let numbers = text.and_then(|text| {
            let (version, revocation) = text.split_once(' ')?;
            Some([version.parse().ok()?, revocation.parse().ok()?])
        });
        let Some(numbers) = numbers else {
            // Something was missed, or is of a later release.
            return live.wake();
        };
        for (known, number) in self.0.iter().zip(numbers) {
            known.fetch_max(number, Ordering::AcqRel);
        }
        let own = numbers_of(&live.load());
        if own[0] < numbers[0] || own[1] < numbers[1] {
            live.wake();
        }
    }
}

fn numbers_of(snapshot: &Snapshot) -> [i64; 2] {
    [snapshot.version.unwrap_or(i64::MIN), snapshot.revocation]
}

/// Says how far this replica has come, whenever no other has said it before.
async fn told(redis: &Redis, live: &CurrentSnapshot, reached: &Reached) {
    let mut changes = live.subscribe();
    while changes.changed().await.is_ok() {
        let numbers = numbers_of(&changes.borrow_and_update());
        if reached.is_news(numbers) {
            let [version, revocation] = numbers;
            wake::tell(redis, &format!("{version} {revocation}")).await;
        }
    }
}

/// Connects to Redis, again and again, until `stop`.
///
/// # Errors
///
/// What is wrong with the settings, or with the server as far as that has answered.
pub(crate) async fn connect(
    at: &gateway::Redis,
    (tracker, stop): (&TaskTracker, &CancellationToken),
) -> Result<Redis, Unsuitable> {
    let settings = Settings {
        url: at.url.clone(),
        prefix: at.prefix.clone(),
        authorities: at.authorities.clone(),
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
    let boot: String = hex(&boot);
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
        match agreement::agree(&redis, &mine).await {
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
            agreement::EVERY
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

//! Cluster wiring: the connection to Redis, the session state in it, and the keys that replicas
//! derive from their master key.
//!
//! Not here: the data in Redis (`state/redis`), and requests between replicas (`http/peers`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use super::readiness;
use crate::{
    base::MacKeys,
    config::{Config, gateway},
    database::vault::Keyring,
    http::peers::{HopKeys, hop},
    hub::Stores,
    snapshot::{CurrentSnapshot, Snapshot},
    state::{
        Directory, Replica, ReplicaKeys,
        redis::{Redis, Settings, Unsuitable, agreement, wake},
    },
    telemetry::Health,
};

/// The connection that replicas share, and the tasks that use it.
pub(crate) struct Sharing {
    /// The connection.
    pub(crate) redis: Redis,
    /// The tracker of these tasks.
    pub(crate) tracker: TaskTracker,
    /// Ends these tasks.
    pub(crate) stop: CancellationToken,
}

impl Sharing {
    /// Registers the deployment of this replica. Cancels `disagreement` if the running replicas
    /// belong to another deployment.
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

    /// Announces every declared or issued change to the other replicas, and polls the database at
    /// once when another replica announces one.
    pub(crate) fn follow(&self, snapshot: &Arc<CurrentSnapshot>) {
        let announced = Arc::new(Announced::default());
        let (redis, snapshot) = (self.redis.clone(), Arc::clone(snapshot));
        let following = async move {
            let announcing = announce(&redis, &snapshot, &announced);
            let receiving = wake::listen(&redis, |text| announced.receive(text, &snapshot));
            tokio::join!(announcing, receiving);
        };
        let stop = self.stop.clone();
        self.tracker
            .spawn(async move { stop.run_until_cancelled(following).await });
    }

    /// The session state of replica `me`; starts its heartbeats.
    pub(crate) fn stores(
        &self,
        config: &Config,
        (me, keys): (Replica, &Keyring),
        health: &Health,
    ) -> Stores {
        let event_ids = derived(keys, EVENT_IDS);
        let (tracker, stop) = (&self.tracker, &self.stop);
        let named = (me.clone(), replica_keys(keys));
        let stores = Stores::shared(config, &self.redis, named, &event_ids, tracker, stop);
        let looking = tell_of_twins(Arc::clone(&stores.directory), me);
        let looking = self.stop.clone().run_until_cancelled_owned(looking);
        self.tracker.spawn(looking);
        let beating = Arc::clone(&stores.owner).run(readiness::of_redis(health), self.stop.clone());
        self.tracker.spawn(beating);
        stores
    }
}

/// The newest announced numbers: of the last declared change, and of the last issued one.
struct Announced([AtomicI64; 2]);

impl Default for Announced {
    fn default() -> Self {
        Self([const { AtomicI64::new(i64::MIN) }; 2])
    }
}

impl Announced {
    /// Reports whether one of the numbers was not announced yet.
    fn is_newer(&self, numbers: [i64; 2]) -> bool {
        let known = self.0.each_ref().map(|known| known.load(Ordering::Acquire));
        numbers[0] > known[0] || numbers[1] > known[1]
    }

    /// Forgets what was announced where the database lacks changes that it had; true then.
    fn follows(&self, numbers: [i64; 2], before: &mut [i64; 2]) -> bool {
        let before = std::mem::replace(before, numbers);
        let is_back = numbers[0] < before[0] || numbers[1] < before[1];
        if is_back {
            for (known, number) in self.0.iter().zip(numbers) {
                known.store(number, Ordering::Release);
            }
        }
        is_back
    }

    fn receive(&self, text: Option<&str>, snapshot: &CurrentSnapshot) {
        let numbers = text.and_then(|text| {
            let (version, revocation) = text.split_once(' ')?;
            Some([version.parse().ok()?, revocation.parse().ok()?])
        });
        let Some(numbers) = numbers else {
            // A message was lost, or comes from a later release.
            return snapshot.wake();
        };
        for (known, number) in self.0.iter().zip(numbers) {
            known.fetch_max(number, Ordering::AcqRel);
        }
        let own = change_numbers(&snapshot.load());
        if own[0] < numbers[0] || own[1] < numbers[1] {
            snapshot.wake();
        }
    }
}

fn change_numbers(snapshot: &Snapshot) -> [i64; 2] {
    [snapshot.version.unwrap_or(i64::MIN), snapshot.revocation]
}

/// Announces the state of this replica, unless another replica was first.
async fn announce(redis: &Redis, snapshot: &CurrentSnapshot, announced: &Announced) {
    let mut changes = snapshot.subscribe();
    let mut before = change_numbers(&changes.borrow());
    while changes.changed().await.is_ok() {
        let numbers = change_numbers(&changes.borrow_and_update());
        if announced.follows(numbers, &mut before) || announced.is_newer(numbers) {
            let [version, revocation] = numbers;
            wake::publish(redis, &format!("{version} {revocation}")).await;
        }
    }
}

/// Connects to Redis, with retries, until `stop`.
///
/// # Errors
///
/// Mistakes in the settings, and an unsuitable server, once it has answered. An unreachable server
/// is no error.
pub(crate) async fn connect(
    at: &gateway::Redis,
    (tracker, stop): (&TaskTracker, &CancellationToken),
) -> Result<Redis, Unsuitable> {
    let redis = Redis::open(&settings(at), tracker, stop)?;
    redis.check().await?;
    Ok(redis)
}

/// The settings of the client.
pub(crate) fn settings(at: &gateway::Redis) -> Settings {
    Settings {
        url: at.url.clone(),
        prefix: at.prefix.clone(),
        authorities: at.authorities.clone(),
    }
}

/// The keys by which replicas know each other.
pub(crate) fn replica_keys(keys: &Keyring) -> ReplicaKeys {
    ReplicaKeys::new(mac_keys(keys, ReplicaKeys::LABEL))
}

/// The keys that sign requests between replicas.
pub(crate) fn hop_keys(keys: &Keyring) -> HopKeys {
    HopKeys::new(mac_keys(keys, hop::LABEL))
}

/// The keys for one purpose, one of each master key, to permit its rotation.
fn mac_keys(keys: &Keyring, purpose: &str) -> MacKeys {
    MacKeys::new(derived(keys, purpose).iter().map(|key| &**key))
}

/// The keys for one purpose, one of each master key; their memory is wiped on drop.
fn derived(keys: &Keyring, purpose: &str) -> Vec<Zeroizing<[u8; 32]>> {
    keys.keys().iter().map(|key| key.derive(purpose)).collect()
}

/// Logs once that another replica has the address of this one.
async fn tell_of_twins(directory: Arc<dyn Directory>, me: Replica) {
    let is_twin = |other: &Replica| other.address == me.address && other.boot != me.boot;
    loop {
        tokio::time::sleep(TWINS).await;
        let open = directory.open().await.unwrap_or_default();
        if open.iter().any(is_twin) {
            tracing::error!(
                address = &*me.address,
                "another replica advertises the same address: each gets requests of the other's sessions and refuses \
                 them; give each replica a cluster.advertise of its own"
            );
            return;
        }
    }
}

async fn agree(redis: Redis, own: Vec<String>, disagreement: CancellationToken) {
    let mut has_agreed = false;
    loop {
        match agreement::agree(&redis, &own).await {
            Ok(true) => has_agreed = true,
            // A master key is being rotated: only replicas that start later end.
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
            agreement::RENEWAL
        } else {
            Duration::from_millis(250)
        };
        tokio::time::sleep(pause).await;
    }
}

/// The message with which a replica refuses to start.
pub(crate) const DISAGREEMENT: &str = "replicas with this redis.url and redis.prefix have another \
    master_key or public_url: make them the same, or give this deployment a redis.prefix of its own";

/// The purpose of the key that signs event ids.
const EVENT_IDS: &str = "lockgate event ids v1";

/// The time until other replicas with the address of this one are looked for, and between looks: longer than the
/// heartbeat of an earlier start lasts.
const TWINS: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::super::cluster::*;

    /// Until the numbers were past those of before, other replicas learned of changes at their next poll.
    #[test]
    fn what_was_announced_is_forgotten_where_the_database_goes_back() {
        let (announced, mut before) = (Announced::default(), [5, 100]);
        for known in announced.0.iter().zip([5, 100]) {
            known.0.store(known.1, Ordering::Release);
        }
        assert!(!announced.follows([5, 101], &mut before));
        assert!(announced.follows([5, 90], &mut before));
        assert!(!announced.follows([5, 91], &mut before));
        assert!(announced.is_newer([5, 91]) && !announced.is_newer([5, 90]));
    }
}

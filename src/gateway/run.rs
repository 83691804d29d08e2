//! Runs a gateway from its settings to its last child.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use aws_lc_rs::rand::SystemRandom;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{
    cluster as sharing_of,
    cluster::{DISAGREEMENT, Sharing},
};
use crate::{
    auth::{Verifier, administrator::ensure_operator},
    backend::child::Launcher,
    base::Outbound,
    config::{Config, Secret},
    database::vault::Keyring,
    declare::{Catalog, Offer, Server},
    http::{
        Front, Health, Loss, admin,
        edge::{Allowed, App, Bounds, Files, Gate, accept},
        ops,
        peers::{Cluster, Peers},
        reply::Retry,
        routes,
    },
    hub::{Hub, Stores},
    oauth::Oauth,
    snapshot::{Keeper, Live, Reach, Trail},
    telemetry::{Logs, Metrics},
};

/// Sockets that the caller has bound.
pub(crate) struct Listeners {
    /// For clients.
    pub(crate) http: TcpListener,
    /// For health and metrics.
    pub(crate) ops: Option<TcpListener>,
    /// For administration, where that has a listener of its own.
    pub(crate) admin: Option<TcpListener>,
    /// For other replicas, where there can be any.
    pub(crate) cluster: Option<Reached>,
}

/// The listener for other replicas.
pub(crate) struct Reached {
    /// It.
    pub(crate) listener: TcpListener,
    /// Where they reach it: `host:port`.
    pub(crate) address: Arc<str>,
}

/// What is served.
pub(crate) struct Served {
    /// What requests read.
    pub(crate) live: Arc<Live>,
    /// What keeps it up to date; none where it never changes.
    pub(crate) keeper: Option<Keeper>,
    /// The master keys that replicas have in common; none without Redis.
    pub(crate) keys: Option<Keyring>,
}

/// When to stop.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Drain: end what can end, wait for the rest.
    pub(crate) drain: CancellationToken,
    /// End now.
    pub(crate) halt: CancellationToken,
}

/// How long children may take beyond their own stop clocks.
const LAST: Duration = Duration::from_secs(10);

/// How long a connection may take for what it is told when the time to drain is over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves until `shutdown`, then drains: readiness, delay, listener, sessions, children.
///
/// # Errors
///
/// What keeps it from serving at all: certificate, allow-lists, randomness.
#[expect(
    clippy::too_many_lines,
    reason = "the order of start and stop, in one place"
)]
pub(crate) async fn run(
    config: Config,
    Served { live, keeper, keys }: Served,
    launcher: Launcher,
    listeners: Listeners,
    shutdown: Shutdown,
    logs: Logs,
) -> anyhow::Result<()> {
    let config = Arc::new(config);
    let tracker = TaskTracker::new();
    let metrics = Arc::new(Metrics::new(Some(logs)).map_err(anyhow::Error::msg)?);
    let offer = *launcher.sandbox.offer();
    let health = Health::default();
    let (release, halt) = (CancellationToken::new(), CancellationToken::new());
    // Other replicas are heard, and answer, until no session is left here.
    let (clustering, stop_cluster) = (TaskTracker::new(), CancellationToken::new());
    let cluster = match (&listeners.cluster, &keys) {
        (Some(reached), Some(keys)) => Some(Arc::new(Cluster {
            me: sharing_of::replica(&reached.address)
                .map_err(|_| anyhow::anyhow!("no randomness"))?,
            keys: sharing_of::hop_keys(keys),
            peers: Peers::new(clustering.clone(), stop_cluster.clone()),
            clock: live.clock().clone(),
            release: release.clone(),
            halt: halt.clone(),
        })),
        _ => None,
    };
    let stop_accepting = CancellationToken::new();
    // The store outlives what may still write to it.
    let (keeping, stop_keeping) = (TaskTracker::new(), CancellationToken::new());
    let (trailing, stop_trail) = (TaskTracker::new(), CancellationToken::new());
    let trail = if keeper.is_some() {
        let counted = Arc::clone(&metrics);
        let dropped = Arc::new(move |count| counted.audit_dropped(count));
        let live = Arc::clone(&live);
        Trail::new(live, dropped, &trailing, stop_trail.clone())
    } else {
        Trail::none()
    };
    let (sharing, stop_sharing) = (TaskTracker::new(), CancellationToken::new());
    let disagreement = CancellationToken::new();
    let stores = match (&config.redis, &cluster, &keys) {
        (Some(at), Some(cluster), Some(keys)) => {
            let sharing = Sharing {
                redis: sharing_of::connect(at, (&sharing, &stop_sharing)).await?,
                tracker: sharing.clone(),
                stop: stop_sharing.clone(),
            };
            sharing.agree(&config, keys, &disagreement);
            sharing.follow(&live);
            sharing.stores(&config, (cluster.me.clone(), keys), &health)
        }
        _ => Stores::in_memory(&config, &SystemRandom::new())?,
    };
    let hub = Hub::new(
        stores,
        (Arc::clone(&config), Arc::new(SystemRandom::new())),
        launcher,
        (Arc::clone(&live), trail.clone()),
        Arc::clone(&metrics),
        (release.clone(), halt.clone()),
        tracker.clone(),
    );
    if !live.is_loaded() {
        health.lost("sql", Loss::All);
    }
    let is_administered = keeper.is_some();
    if let Some(keeper) = keeper {
        let report = reports(health.clone());
        keeping.spawn(keeper.run(report, stop_keeping.clone()));
    }
    let following = follow(
        Arc::clone(&config),
        Arc::clone(&live),
        hub.clone(),
        Arc::clone(&metrics),
        offer,
        release.clone(),
    );
    tracker.spawn(following);
    let (operated, ending) = (hub.clone(), hub.clone());
    let tls = match &config.http.tls {
        Some(files) => {
            let files = Files {
                cert: files.cert.clone(),
                key: files.key.clone(),
            };
            let reload = files.load()?;
            tracker.spawn(files.watch(Arc::clone(&reload), stop_accepting.clone()));
            Some(reload)
        }
        None => None,
    };
    let bound = listeners.http.local_addr()?;
    let allowed = Allowed::new(
        &Url::parse(&config.public_url)?,
        bound,
        tls.is_some(),
        &config.http.allowed_hosts,
        &config.http.allowed_origins,
    )
    .map_err(anyhow::Error::msg)?;
    let proxies = config.http.trusted_proxies.clone();
    let max_body = config.http.max_body as u64;
    let gate = Gate::new(allowed, proxies.clone(), max_body, Arc::clone(&metrics));
    let outbound = Outbound::new(config.outbound_allow.clone());
    let auth = Verifier::new(
        &config,
        outbound.clone(),
        (live.clock().clone(), trail.clone(), live.asked().clone()),
        &metrics,
        &tracker,
        &release,
    );
    let front = Front {
        hub,
        auth,
        live,
        config: Arc::clone(&config),
        metrics: Arc::clone(&metrics),
        retry: Retry::new(config.stream.retry, Arc::new(SystemRandom::new())),
        cluster: cluster.clone(),
    };
    let front = Arc::new(front);
    if let (Some(reached), Some(cluster)) = (listeners.cluster, cluster) {
        let app = routes::cluster(&front, cluster);
        let bounds = Bounds {
            max_connections: REPLICAS,
            finish: LAST_WORDS,
        };
        let (stop, tracker) = (stop_cluster.clone(), clustering.clone());
        let serving = accept::serve_replicas(reached.listener, app, bounds, stop, tracker);
        clustering.spawn(serving);
    }
    let mut app = routes::public(Arc::clone(&front), health.clone());
    if is_administered {
        let oauth = Oauth::new(
            Arc::clone(&config),
            Arc::clone(&front.live),
            outbound,
            front.live.clock().clone(),
            trail,
            front.auth.denials().clone(),
        );
        app = app.merge(routes::limited(oauth.routes(), Arc::clone(&front)));
    }
    let api = is_administered.then(|| admin::routes::routes(front));
    match (listeners.admin, api) {
        (Some(listener), Some(api)) => {
            let bound = listener.local_addr()?;
            let (hosts, origins) = (&config.http.allowed_hosts, &config.http.allowed_origins);
            let own = Allowed::for_operators(bound, hosts, origins);
            let own = own.map_err(anyhow::Error::msg)?;
            let gate = Gate::new(own, proxies, max_body, Arc::clone(&metrics));
            let app = App::of_public(api, gate);
            let bounds = Bounds {
                max_connections: ADMINISTRATORS,
                finish: LAST_WORDS,
            };
            let (stop, tracker) = (stop_accepting.clone(), tracker.clone());
            tracker.spawn(accept::serve(
                listener,
                None,
                app,
                bounds,
                stop,
                tracker.clone(),
            ));
        }
        (None, Some(api)) => app = app.merge(api),
        (_, None) => {}
    }
    let app = App::of_public(app, gate);
    let bounds = Bounds {
        max_connections: config.http.max_connections,
        finish: config.drain.timeout + LAST_WORDS,
    };
    let serving = accept::serve(
        listeners.http,
        tls,
        app,
        bounds,
        stop_accepting.clone(),
        tracker.clone(),
    );
    tracker.spawn(serving);
    // The operations listener answers until the very end.
    let (operations, stop_operations) = (TaskTracker::new(), CancellationToken::new());
    if let Some(listener) = listeners.ops {
        let app = ops::operations(health.clone(), metrics, operated, listener.local_addr()?);
        let bounds = Bounds {
            max_connections: OPERATIONS,
            finish: LAST_WORDS,
        };
        let serving = accept::serve(
            listener,
            None,
            app,
            bounds,
            stop_operations.clone(),
            operations.clone(),
        );
        operations.spawn(serving);
    }
    tokio::select! {
        () = shutdown.drain.cancelled() => {}
        () = disagreement.cancelled() => {}
    }
    tracing::info!("draining");
    health.drain();
    ending.close().await;
    within(config.drain.delay, &shutdown.halt).await;
    stop_accepting.cancel();
    release.cancel();
    tracker.close();
    tokio::select! {
        () = tracker.wait() => {}
        () = tokio::time::sleep(config.drain.timeout) => {}
        () = shutdown.halt.cancelled() => {}
    }
    halt.cancel();
    let _ = tokio::time::timeout(LAST, tracker.wait()).await;
    stop_cluster.cancel();
    clustering.close();
    let _ = tokio::time::timeout(LAST_WORDS, clustering.wait()).await;
    stop_sharing.cancel();
    sharing.close();
    let _ = tokio::time::timeout(LAST_WORDS, sharing.wait()).await;
    stop_trail.cancel();
    trailing.close();
    let _ = tokio::time::timeout(LAST_WORDS, trailing.wait()).await;
    stop_keeping.cancel();
    keeping.close();
    let _ = tokio::time::timeout(LAST_WORDS, keeping.wait()).await;
    stop_operations.cancel();
    operations.close();
    let _ = tokio::time::timeout(Duration::from_secs(1), operations.wait()).await;
    anyhow::ensure!(!disagreement.is_cancelled(), DISAGREEMENT);
    Ok(())
}

/// Does what a new snapshot asks for, until `stop`.
async fn follow(
    config: Arc<Config>,
    live: Arc<Live>,
    hub: Hub,
    metrics: Arc<Metrics>,
    offer: Offer,
    stop: CancellationToken,
) {
    let mut changes = live.changes();
    changes.mark_changed();
    let (mut unenforced, mut has_operator) = (BTreeSet::new(), false);
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        let snapshot = Arc::clone(&changes.borrow_and_update());
        if snapshot.version.is_none() {
            continue;
        }
        let known = std::mem::replace(&mut unenforced, shortcomings(&snapshot.catalog, &offer));
        for (sign, (tenant, server, key)) in unenforced
            .difference(&known)
            .map(|new| (1, new))
            .chain(known.difference(&unenforced).map(|gone| (-1, gone)))
        {
            metrics.unenforced(tenant, server, key, sign);
        }
        if live.store().is_ok() && !has_operator {
            let key = config.keeping.admin_key.as_ref().map(Secret::expose);
            match ensure_operator(&live, key, &config.data_dir).await {
                Ok(()) => has_operator = true,
                Err(failure) => tracing::error!(%failure, "nobody may administrate yet"),
            }
        }
        hub.prepare(&snapshot.catalog);
        hub.follow(&snapshot.catalog).await;
    }
}

/// What servers ask for and do not get on this machine.
fn shortcomings(catalog: &Catalog, offer: &Offer) -> BTreeSet<(String, String, &'static str)> {
    let of = |server: &Arc<Server>| {
        let (tenant, name) = (server.tenant.clone(), server.name.clone());
        let missing = offer.shortcomings(server).into_iter();
        missing.map(move |missing| (tenant.clone(), name.clone(), missing.key))
    };
    catalog.servers().flat_map(of).collect()
}

/// What the store's absence costs: without a snapshot everything, else what has to ask it.
fn reports(health: Health) -> Box<dyn Fn(Reach) + Send + Sync> {
    Box::new(move |reach| match reach {
        Reach::Well => health.back("sql"),
        Reach::Stale => health.lost("sql", Loss::Some),
        Reach::Never => health.lost("sql", Loss::All),
    })
}

/// Connections of the listener for administration.
const ADMINISTRATORS: usize = 256;

/// Connections of other replicas: each makes one, and another one while that drains.
const REPLICAS: usize = 1024;

/// Connections of the operations listener: probes and scrapers.
const OPERATIONS: usize = 64;

async fn within(delay: Duration, halt: &CancellationToken) {
    if !delay.is_zero() {
        let _ = tokio::time::timeout(delay, halt.cancelled()).await;
    }
}

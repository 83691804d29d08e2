//! Wiring: builds the parts of a gateway, connects them, and serves until the shutdown.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::rand::SystemRandom;
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    cluster::{self, DISAGREEMENT, Sharing},
    first_operator,
    lifecycle::{FINISH_TIMEOUT, Lifecycle, Stage, Stages},
    listeners::{ClusterListener, Listeners},
    readiness,
    rotation::Rotation,
    snapshot_follower::follow,
};
use crate::{
    auth::Verifier,
    backend::child::Launcher,
    base::Outbound,
    base::budget::Descriptors,
    config::{Config, RotatingSettings},
    database::vault::Keyring,
    declare::Offer,
    http::{
        Front, admin,
        edge::{Allowed, App, FindHost, FoundHost, Gate, LimitAddress},
        listen::{Bounds, Connections, Files, TlsReload, accept},
        ops,
        peers::{Cluster, Peers},
        reply::{McpRefusal, RetryDelay},
        routes,
    },
    hub::{Hub, HubParts, Stores, limits::MemoryBudgets, stateless::Stateless, tasks::Tasks},
    oauth::{Oauth, Upstreams},
    snapshot::{AuditQueue, CurrentSnapshot, SnapshotSync},
    state::redis::Redis,
    telemetry::{Health, Logs, Metrics, Traces, setup},
};

/// The state to serve.
pub(crate) struct Served {
    /// The snapshot that requests read.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// The task that refreshes it; none if it never changes.
    pub(crate) sync: Option<SnapshotSync>,
    /// The master keys that replicas share; none without Redis.
    pub(crate) keys: Option<Keyring>,
}

/// Serves until it is to drain, then drains and ends stage by stage.
///
/// # Errors
///
/// Those that prevent any service: certificate, allow-lists, randomness.
pub(crate) async fn run(
    config: Config,
    Served {
        snapshot,
        sync,
        keys,
    }: Served,
    launcher: Launcher,
    listeners: Listeners,
    lifecycle: Lifecycle,
    logs: Logs,
) -> anyhow::Result<()> {
    let parts = Parts::new(config, snapshot, logs)?;
    let is_administered = sync.is_some();
    let (offer, descriptors) = (*launcher.sandbox.offer(), launcher.descriptors.clone());
    let keys = keys.as_ref();
    let cluster = parts.cluster(listeners.cluster.as_ref(), keys)?;
    let audit = parts.audit(is_administered);
    let disagreement = CancellationToken::new();
    let (stores, redis) = parts
        .stores(cluster.as_deref(), keys, &disagreement)
        .await?;
    parts.observe(&stores, &audit);
    let (outbound, upstreams) = parts.outbound();
    let hub = parts.hub(stores, launcher, &audit, &upstreams);
    parts.rotate(sync.as_ref(), redis);
    parts.follow(sync, &hub, offer);
    let front = parts.front(&hub, &audit, (&outbound, &upstreams), cluster.clone());
    let oauth = is_administered.then(|| parts.oauth(&front, (outbound, upstreams), audit));
    if let (Some(listener), Some(cluster)) = (listeners.cluster, cluster) {
        let app = routes::cluster(&front, cluster);
        let (stage, bounds) = (&parts.stages.cluster, bounds(Connections::new(REPLICAS)));
        let (stop, tasks) = (stage.stop.clone(), stage.tasks.clone());
        let serving = accept::serve_replicas(listener.listener, app, bounds, stop, tasks);
        stage.tasks.spawn(serving);
    }
    let tls = parts.tls()?;
    let gate = parts.gate(&listeners.http, tls.is_some(), &hub)?;
    let mut app = routes::public(Arc::clone(&front), parts.health.clone());
    if let Some(oauth) = oauth {
        app = app.merge(routes::authorization(oauth.routes(), Arc::clone(&front)));
    }
    let api = is_administered.then(|| admin::routes(front));
    match (listeners.admin, api) {
        (Some(listener), Some(api)) => {
            let app = App::of_public(api, parts.administration_gate(&listener, &hub)?);
            serve(&parts.stages.accepting, listener, app, administrators());
        }
        (None, Some(api)) => app = app.merge(api),
        (_, None) => {}
    }
    parts.accept(listeners.http, tls, App::of_public(app, gate), descriptors);
    if let Some(listener) = listeners.ops {
        let (metrics, bound) = (Arc::clone(&parts.metrics), listener.local_addr()?);
        let app = ops::operations(parts.health.clone(), metrics, hub.clone(), bound);
        serve(&parts.stages.operations, listener, app, probes());
    }
    lifecycle.serving.cancel();
    tokio::select! {
        () = lifecycle.drain.cancelled() => {}
        () = disagreement.cancelled() => lifecycle.drain.cancel(),
    }
    let delay = parts.drain_delay(disagreement.is_cancelled());
    let ending = parts
        .stages
        .end((&hub, &parts.health), delay, &lifecycle.halt);
    ending.await;
    setup::flush(parts.metrics, parts.traces).await;
    anyhow::ensure!(!disagreement.is_cancelled(), DISAGREEMENT);
    Ok(())
}

/// The values that the steps of the start share.
struct Parts {
    config: Arc<Config>,
    snapshot: Arc<CurrentSnapshot>,
    metrics: Arc<Metrics>,
    traces: Traces,
    health: Health,
    stages: Stages,
}

impl Parts {
    fn new(config: Config, snapshot: Arc<CurrentSnapshot>, logs: Logs) -> anyhow::Result<Self> {
        let telemetry = setup::begin(logs, config.telemetry.export);
        let (metrics, traces) = telemetry.map_err(anyhow::Error::msg)?;
        Ok(Self {
            stages: Stages::new(&config.drain),
            config: Arc::new(config),
            snapshot,
            metrics: Arc::new(metrics),
            traces,
            health: Health::default(),
        })
    }

    /// The other replicas; none without a cluster.
    fn cluster(
        &self,
        listener: Option<&ClusterListener>,
        keys: Option<&Keyring>,
    ) -> anyhow::Result<Option<Arc<Cluster>>> {
        let (Some(listener), Some(keys)) = (listener, keys) else {
            return Ok(None);
        };
        let replicas = cluster::replica_keys(keys);
        let me = replicas.replica(&listener.address);
        let me = me.map_err(|_| anyhow::anyhow!("no randomness"))?;
        let (stage, stages) = (&self.stages.cluster, &self.stages);
        let peers = Peers::new(replicas.clone(), stage.tasks.clone(), stage.stop.clone());
        Ok(Some(Arc::new(Cluster::new(
            (me, replicas),
            cluster::hop_keys(keys),
            peers,
            self.snapshot.clock().clone(),
            [stages.sessions.stop.clone(), stages.children.clone()],
        ))))
    }

    /// The time between the loss of readiness and the close of the listeners.
    fn drain_delay(&self, is_of_other_deployment: bool) -> Duration {
        if is_of_other_deployment {
            // The gateway has no sessions to hand over, and its clients would lose theirs.
            return Duration::ZERO;
        }
        self.config.drain.delay
    }

    /// The audit queue; disabled without a database.
    fn audit(&self, has_database: bool) -> AuditQueue {
        if !has_database {
            return AuditQueue::disabled();
        }
        let counted = Arc::clone(&self.metrics);
        let dropped = Arc::new(move |count| counted.audit_dropped.add(count));
        let stage = &self.stages.audit;
        AuditQueue::new(
            Arc::clone(&self.snapshot),
            dropped,
            &stage.tasks,
            stage.stop.clone(),
        )
    }

    /// The state of sessions: in Redis with a cluster, else in memory.
    async fn stores(
        &self,
        cluster: Option<&Cluster>,
        keys: Option<&Keyring>,
        disagreement: &CancellationToken,
    ) -> anyhow::Result<(Stores, Option<Redis>)> {
        let (Some(at), Some(cluster), Some(keys)) = (&self.config.redis, cluster, keys) else {
            let stores = Stores::in_memory(&self.config, &SystemRandom::new())?;
            return Ok((stores, None));
        };
        let stage = &self.stages.state;
        let sharing = Sharing {
            redis: cluster::connect(at, (&stage.tasks, &stage.stop)).await?,
            tracker: stage.tasks.clone(),
            stop: stage.stop.clone(),
        };
        sharing.redis.times().report_to(&self.metrics.stores);
        sharing.agree(&self.config, keys, disagreement);
        sharing.follow(&self.snapshot);
        let stores = sharing.stores(&self.config, (cluster.me.clone(), keys), &self.health);
        Ok((stores, Some(sharing.redis)))
    }

    /// Shows sizes of logs and queues in the metrics.
    fn observe(&self, stores: &Stores, audit: &AuditQueue) {
        let metrics = &self.metrics;
        let [log, queue] = [(); 2].map(|()| Arc::clone(&stores.log));
        metrics.log_bytes.read_from(move || log.size().bytes);
        metrics.log_queue.read_from(move || queue.size().queued);
        let audit = audit.clone();
        metrics.audit_queue.read_from(move || audit.len());
    }

    /// Shows what is drawn from the budgets of memory in the metrics.
    fn observe_memory(&self, memory: &Arc<MemoryBudgets>) {
        let bytes = |used| usize::try_from(used).unwrap_or(usize::MAX);
        let [requests, events] = [(); 2].map(|()| Arc::clone(memory));
        let metrics = &self.metrics;
        let requests_bytes = move || bytes(requests.requests().used());
        metrics.requests_bytes.read_from(requests_bytes);
        let in_redis = move || {
            events
                .events_in_redis()
                .map_or(0, |budget| bytes(budget.used()))
        };
        metrics.log_redis_bytes.read_from(in_redis);
    }

    /// The hub, with all sessions.
    fn hub(
        &self,
        stores: Stores,
        launcher: Launcher,
        audit: &AuditQueue,
        upstreams: &Upstreams,
    ) -> Hub {
        let sessions = &self.stages.sessions;
        let hub = Hub::new(HubParts {
            stores,
            config: Arc::clone(&self.config),
            random: Arc::new(SystemRandom::new()),
            launcher,
            snapshot: Arc::clone(&self.snapshot),
            audit: audit.clone(),
            tokens: upstreams.source(),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            drain: sessions.stop.clone(),
            halt: self.stages.children.clone(),
            tracker: sessions.tasks.clone(),
        });
        self.observe_memory(hub.limits().memory());
        hub
    }

    /// Starts the tasks that refresh the snapshot and apply its changes.
    fn follow(&self, sync: Option<SnapshotSync>, hub: &Hub, offer: Offer) {
        if let Some(sync) = sync {
            sync.times().report_to(&self.metrics.stores);
            let stage = &self.stages.database;
            let report = readiness::of_database(&self.health, self.snapshot.is_loaded());
            let keeping = sync.run(report, stage.stop.clone());
            stage.tasks.spawn(keeping);
        }
        let (metrics, sessions) = (Arc::clone(&self.metrics), &self.stages.sessions);
        let (snapshot, stop) = (&self.snapshot, &sessions.stop);
        let following = follow(
            Arc::clone(snapshot),
            hub.clone(),
            metrics,
            offer,
            stop.clone(),
        );
        let operator = first_operator::ensure(Arc::clone(&self.config), Arc::clone(snapshot));
        let operator = stop.clone().run_until_cancelled_owned(operator);
        sessions.tasks.spawn(operator);
        sessions.tasks.spawn(following);
    }

    /// Starts to take over secrets whose files change.
    fn rotate(&self, sync: Option<&SnapshotSync>, redis: Option<Redis>) {
        let rotation = Rotation {
            snapshot: Arc::clone(&self.snapshot),
            database: sync.map(SnapshotSync::reloader),
            redis,
        };
        let stage = &self.stages.database;
        let settings = RotatingSettings::of(&self.config);
        let rotating = rotation.run(settings, Arc::clone(&self.config));
        let rotating = stage.stop.clone().run_until_cancelled_owned(rotating);
        stage.tasks.spawn(rotating);
    }

    /// The client for requests to others, and the connections of people to upstreams.
    fn outbound(&self) -> (Outbound, Upstreams) {
        let settings = self.config.outbound.clone();
        let outbound = Outbound::through(settings.allow, settings.proxy);
        let (snapshot, tasks) = (Arc::clone(&self.snapshot), &self.stages.database.tasks);
        let upstreams = Upstreams::new(outbound.clone(), snapshot, tasks.clone());
        (outbound, upstreams)
    }

    /// The state that all routes share.
    fn front(
        &self,
        hub: &Hub,
        audit: &AuditQueue,
        (outbound, upstreams): (&Outbound, &Upstreams),
        cluster: Option<Arc<Cluster>>,
    ) -> Arc<Front> {
        let snapshot = Arc::clone(&self.snapshot);
        let sessions = &self.stages.sessions;
        let auth = Verifier::new(
            &self.config,
            (outbound.clone(), Arc::clone(hub.limits().limiter())),
            (&snapshot, audit.clone()),
            &self.metrics,
            &sessions.tasks,
            &sessions.stop,
        );
        Arc::new(Front {
            hub: hub.clone(),
            stateless: Stateless::new(hub.clone()),
            tasks: Tasks::new(hub.clone()),
            auth,
            snapshot,
            upstreams: upstreams.clone(),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            retry: RetryDelay::new(self.config.stream.retry, Arc::new(SystemRandom::new())),
            cluster,
            health: self.health.clone(),
            began: Instant::now(),
        })
    }

    /// The authorization servers of all tenants.
    fn oauth(&self, front: &Front, reached: (Outbound, Upstreams), audit: AuditQueue) -> Oauth {
        let oauth = Oauth::new(
            Arc::clone(&self.config),
            Arc::clone(&self.snapshot),
            (reached.0, reached.1),
            &front.auth,
            self.snapshot.clock().clone(),
            audit,
            Arc::clone(&self.metrics),
        );
        front.auth.ask_about_people(Arc::new(oauth.clone()));
        let stage = &self.stages.sessions;
        let probing = oauth.clone().probe();
        let probing = stage.stop.clone().run_until_cancelled_owned(probing);
        stage.tasks.spawn(probing);
        oauth
    }

    /// The certificate of the public listener, reloaded when its files change.
    fn tls(&self) -> anyhow::Result<Option<TlsReload>> {
        let Some(files) = &self.config.http.tls else {
            return Ok(None);
        };
        let files = Files {
            cert: files.cert.clone(),
            key: files.key.clone(),
        };
        let reload = files.load()?;
        if let Some(lapse) = files.lapse() {
            tracing::warn!("{lapse}");
        }
        let stage = &self.stages.accepting;
        let watching = files.watch(Arc::clone(&reload), stage.stop.clone());
        stage.tasks.spawn(watching);
        Ok(Some(reload))
    }

    /// The gate of the public listener.
    fn gate(&self, listener: &TcpListener, is_tls: bool, hub: &Hub) -> anyhow::Result<Arc<Gate>> {
        let http = &self.config.http;
        let url = Url::parse(&self.config.public_url)?;
        let (hosts, origins) = (&http.allowed_hosts, &http.allowed_origins);
        let allowed = Allowed::new(&url, listener.local_addr()?, is_tls, hosts, origins);
        let allowed = allowed.map_err(anyhow::Error::msg)?;
        Ok(self.gate_of((allowed, self.hosts()), hub))
    }

    /// Finds the hosts of tenants.
    fn hosts(&self) -> FindHost {
        let (snapshot, config) = (Arc::clone(&self.snapshot), Arc::clone(&self.config));
        Box::new(move |host, port| {
            let found = snapshot.catalog().host(&config.public_url, host, port);
            match found {
                Some(host) => FoundHost::Tenant(Arc::new(host)),
                None if snapshot.is_complete() => FoundHost::None,
                None => FoundHost::Unknown,
            }
        })
    }

    /// The gate of a separate administration listener.
    fn administration_gate(&self, listener: &TcpListener, hub: &Hub) -> anyhow::Result<Arc<Gate>> {
        let (hosts, origins) = (
            &self.config.http.allowed_hosts,
            &self.config.http.allowed_origins,
        );
        let allowed = Allowed::for_operators(listener.local_addr()?, hosts, origins);
        let allowed = allowed.map_err(anyhow::Error::msg)?;
        Ok(self.gate_of((allowed, Box::new(|_, _| FoundHost::None)), hub))
    }

    /// Counts for the rates of addresses.
    fn limit(&self, hub: &Hub) -> LimitAddress {
        let (limits, bound) = (Arc::clone(hub.limits()), self.config.http.per_address);
        Box::new(move |address| {
            let counted = limits.address(address, bound?);
            counted.err().map(McpRefusal::from)
        })
    }

    fn gate_of(&self, (allowed, hosts): (Allowed, FindHost), hub: &Hub) -> Arc<Gate> {
        let http = &self.config.http;
        let (proxies, max_body) = (http.trusted_proxies.clone(), http.max_body as u64);
        let (memory, telemetry) = (
            Arc::clone(hub.limits().memory()),
            (Arc::clone(&self.metrics), self.traces.clone()),
        );
        let checks = (allowed, hosts, self.limit(hub));
        Gate::new(
            checks,
            proxies,
            max_body,
            memory,
            telemetry,
            http.access_log,
        )
    }

    /// Starts to accept clients.
    fn accept(
        &self,
        listener: TcpListener,
        tls: Option<TlsReload>,
        app: App,
        descriptors: Descriptors,
    ) {
        let http = &self.config.http;
        let (most, proxies) = (http.address_connections, http.trusted_proxies.clone());
        let bounds = Bounds {
            connections: Connections::shared(http.max_connections, most, proxies, descriptors),
            finish: self.config.drain.timeout + FINISH_TIMEOUT,
            idle: accept::KEEP_ALIVE,
        };
        let stage = &self.stages.accepting;
        let (stop, tasks) = (stage.stop.clone(), stage.tasks.clone());
        stage
            .tasks
            .spawn(accept::serve(listener, tls, app, bounds, stop, tasks));
    }
}

/// Starts to accept connections without TLS, in a stage.
fn serve(stage: &Stage, listener: TcpListener, app: App, connections: Connections) {
    let (stop, tasks) = (stage.stop.clone(), stage.tasks.clone());
    let bounds = bounds(connections);
    stage
        .tasks
        .spawn(accept::serve(listener, None, app, bounds, stop, tasks));
}

fn bounds(connections: Connections) -> Bounds {
    Bounds {
        connections,
        finish: FINISH_TIMEOUT,
        idle: accept::KEEP_ALIVE,
    }
}

fn administrators() -> Connections {
    Connections::new(ADMINISTRATORS)
}

fn probes() -> Connections {
    Connections::for_probes(OPERATIONS)
}

/// Maximum connections of the administration listener.
const ADMINISTRATORS: usize = 256;

/// Maximum connections of other replicas: each has one, and a second while the first drains.
const REPLICAS: usize = 1024;

/// Maximum connections of the operations listener, for probes and scrapers.
const OPERATIONS: usize = 64;

//! The process of a gateway, from flags to its exit code.
//!
//! Not here: the checks before the start (`plan`), and the gateway itself (`gateway`).

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, IsTerminal},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use rustix::process::DumpableBehavior;

use super::{
    database, descriptors,
    plan::{Plan, RunArgs, ServeArgs, plan_run, plan_serve},
    private_dir,
    service_manager::{self, ServiceManager},
    signals::{self, HangUp},
    sockets,
    stores::{self, StoreAddresses},
    work::{self, Work},
    workers,
};
use crate::base::budget::Descriptors;
use crate::{
    backend::{
        child::{Ambient, Launcher},
        sandbox::{Sandbox, Unreachable},
    },
    base::{HiddenPaths, Screen, memory, terminal::escaped},
    config::{CA_VARIABLES, Config, LogFormat, Mistake, Separation},
    declare::{Catalog, Offer},
    gateway::{self, Lifecycle, Listeners},
    snapshot::SnapshotSync,
    telemetry::{Format, Logs, logs},
};

/// `lockgate run [-- COMMAND…]`
pub(crate) fn run(args: RunArgs) -> ExitCode {
    start(plan_run(args))
}

/// `lockgate serve`
pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    start(plan_serve(args))
}

fn start(plan: Result<Plan, Vec<Mistake>>) -> ExitCode {
    let plan = match plan {
        Ok(plan) => plan,
        Err(mistakes) => return refuse(&mistakes),
    };
    let format = match plan.config.telemetry.format {
        LogFormat::Auto if !io::stdout().is_terminal() => Format::Json,
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
        LogFormat::Short | LogFormat::Auto => {
            let screen = Screen::of(&plan.env, io::stderr().is_terminal());
            if plan.is_run {
                Format::Short(screen)
            } else {
                Format::ShortOfAll(screen)
            }
        }
    };
    let logs = match logs::init(&plan.config.telemetry.log, format) {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("lockgate: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Hides memory, environment and descriptors, also from children with the same uid.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("lockgate: cannot protect its memory: {error}");
        return ExitCode::FAILURE;
    }
    descriptors::raise();
    memory::purge_soon();
    let work = plan.work.clone();
    let outcome = workers::runtime(plan.config.limits.workers)
        .context("cannot start the runtime")
        .and_then(|runtime| {
            let outcome = runtime.block_on(gateway(plan, logs.clone()));
            // Blocking tasks have had their time to end.
            runtime.shutdown_timeout(Duration::from_millis(200));
            outcome
        });
    work.remove();
    logs.settle();
    logs.flush(Duration::from_millis(500));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            let line = format!("lockgate: {}", escaped(&format!("{error:#}")));
            Logs::last(&line, Duration::from_millis(250));
            ExitCode::FAILURE
        }
    }
}

/// Prints the mistakes that prevent a start.
fn refuse(mistakes: &[Mistake]) -> ExitCode {
    for mistake in mistakes {
        eprintln!("{mistake}");
    }
    ExitCode::from(2)
}

async fn gateway(plan: Plan, logs: Logs) -> anyhow::Result<ExitCode> {
    let Plan {
        mut config,
        source,
        env,
        work,
        kernel,
        offer,
        secrets,
        is_run,
    } = plan;
    let listeners = sockets::listeners(&config, is_run).await?;
    config.bind(listeners.http.local_addr()?);
    if let Err(mistake) = claim(&config, &offer)? {
        return Ok(refuse(&[mistake]));
    }
    let _lock = (!is_run).then(|| database::lock(&config)).transpose()?;
    let _held = work.make(&offer)?;
    tidy(&work, (!is_run).then_some(&*config.data_dir));
    let work = work.path().to_owned();
    let (unreachable, stores) = unreachable(&config, &listeners, &offer).await?;
    // `run` stores nothing to hide. Hiding lists all files next to the hidden ones: it slows down
    // every start, and hides files created there later.
    let own = [config.data_dir.clone(), work.clone()].into_iter();
    let hidden = HiddenPaths::new(own.chain(config.work_dir.clone()).chain(secrets));
    let hide = (!is_run).then(|| hidden.clone());
    let shared = shared_env(&config, &env);
    let certificates = certificates(&shared);
    let (uids, children) = (config.sandbox.uids, &config.children);
    let of_children = (uids, children.nice, children.is_batch);
    let mut sandbox = Sandbox::new(&kernel, offer, of_children, hide, unreachable, certificates)
        .context("cannot make cgroups for children")?;
    let refusing = stores.keep_refused(sandbox.take_filter());
    let served = match database::open(source, &config, &env, offer, hidden).await? {
        Ok(served) => served,
        Err(mistakes) => return Ok(refuse(&mistakes)),
    };
    warn(&config, &work, &served.snapshot.catalog(), &offer);
    tell_of_network(&config, &env);
    let is_temporary = is_run || offer.separation == Separation::Uid;
    let prepared = prepared_dir(&config, &work, is_temporary);
    let descriptors = Descriptors::new(kernel.open_files);
    let launcher = Launcher::new(ambient(&env, shared)?, work, prepared, sandbox, descriptors);
    let lifecycle = Lifecycle::default();
    let reloader = served.sync.as_ref().map(SnapshotSync::reloader);
    let manager = ServiceManager::of(&env, reloader, &config);
    let hang_up = match &manager {
        Some(manager) if manager.reloads() => HangUp::Reloads,
        _ => HangUp::Drains,
    };
    let signals = signals::signals(lifecycle.clone(), hang_up)?;
    let informing = service_manager::inform(manager, lifecycle.clone())?;
    sockets::announce(&config, &listeners, is_run)?;
    let running = gateway::run(config, served, launcher, listeners, lifecycle, logs);
    tokio::select! {
        outcome = running => outcome.map(|()| ExitCode::SUCCESS),
        () = signals => Ok(ExitCode::FAILURE),
        never = informing => match never {},
        never = refusing => match never {},
    }
}

/// Removes what killed gateways left, in the background.
fn tidy(work: &Work, data_dir: Option<&Path>) {
    let (work, data_dir) = (work.clone(), data_dir.map(Path::to_owned));
    tokio::task::spawn_blocking(move || {
        work.remove_leftovers();
        if let Some(dir) = data_dir {
            work.remove_kept(&dir);
        }
    });
}

/// Makes the directories that are this gateway's alone; `run` has no data directory.
fn claim(config: &Config, offer: &Offer) -> anyhow::Result<Result<(), Mistake>> {
    if !config.is_run
        && let Err(mistake) = private_dir::claim(config)?
    {
        return Ok(Err(mistake));
    }
    work::claim(config, offer)
}

/// The addresses and ports that children in profile `standard` may not connect to, and those of the
/// stores, which may change.
async fn unreachable(
    config: &Config,
    listeners: &Listeners,
    offer: &Offer,
) -> anyhow::Result<(Unreachable, StoreAddresses)> {
    let hosts = stores::hosts(config);
    let mut ports = sockets::ports(listeners)?;
    ports.extend(hosts.iter().map(|(_, port)| *port));
    let cluster = listeners.cluster.as_ref();
    let cluster = cluster.map(|cluster| cluster.listener.local_addr());
    let refused = if offer.refuses_addresses {
        hosts
    } else {
        Vec::new()
    };
    let stores = StoreAddresses::of(refused).await;
    let unreachable = Unreachable {
        ports,
        // Replicas have the same configuration.
        everywhere: cluster.transpose()?.iter().map(SocketAddr::port).collect(),
        stores: stores.all(),
        networks: config.sandbox.refuse.clone(),
        local: Vec::new(),
    };
    Ok((unreachable, stores))
}

/// The directory of prepared stores. Children with separate uids cannot enter the data directory,
/// and `run` has none.
fn prepared_dir(config: &Config, work: &Path, is_temporary: bool) -> PathBuf {
    let base = if is_temporary { work } else { &config.data_dir };
    base.join("prepared")
}

/// Warns of unsafe settings, and of sandboxing that is not enforced.
fn warn(config: &Config, work: &Path, catalog: &Catalog, offer: &Offer) {
    if config.sandbox.shared_uid && offer.separation == Separation::None {
        tracing::warn!("sandbox.shared_uid: nothing separates the processes of tenants");
    }
    // With separation "none" nothing at all is kept apart, and that is told above.
    if catalog.tenants.len() > 1
        && offer.separation != Separation::None
        && let Some(what) = offer.shared_amounts()
    {
        tracing::warn!(key = "sandbox.separation", "{what}");
    }
    if config.auth.insecure {
        tracing::warn!(
            "auth.insecure: tenants without authentication are open to everybody who reaches this gateway"
        );
    }
    if let Some(what) = config.separate_databases() {
        tracing::warn!("{what}");
    }
    if let Some(what) = work::exposure(config, work, offer, catalog) {
        tracing::warn!("{what}");
    }
    if !config.outbound.allow.is_empty() {
        let allow: Vec<String> = config
            .outbound
            .allow
            .iter()
            .map(ToString::to_string)
            .collect();
        let allow = allow.join(", ");
        tracing::warn!(
            allow,
            "outbound.allow: special-purpose networks may be asked"
        );
    }
    for server in catalog.servers() {
        for missing in offer.shortcomings(server) {
            let (tenant, name, key) = (&server.tenant, &server.name, missing.key);
            tracing::warn!(
                tenant.id = tenant,
                server.name = name,
                key,
                "not enforced: {}",
                missing.what
            );
        }
    }
}

/// Tells of variables by which this machine reaches the network, and servers do not.
fn tell_of_network(config: &Config, env: &BTreeMap<String, String>) {
    let known = |name: &str| config.children.env.iter().any(|(known, _)| known == name);
    let kept = NETWORK.iter().chain(&CA_VARIABLES);
    let kept: Vec<&str> = kept
        .filter(|name| env.contains_key(**name) && !known(name))
        .copied()
        .collect();
    if !config.is_run && !kept.is_empty() {
        tracing::info!(
            variables = kept.join(", "),
            "servers do not get these variables: children.ca_file and children.env give them some"
        );
    }
}

/// Variables of every child: those of `[children]`, and in `run` those by which a machine behind a
/// proxy or with certificates of a company reaches the network.
fn shared_env(config: &Config, env: &BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    let of_network = NETWORK
        .iter()
        .chain(&CA_VARIABLES)
        .filter(|_| config.is_run);
    let passed = of_network.filter_map(|name| Some(((*name).into(), env.get(*name)?.into())));
    let set = config.children.env.iter();
    let set = set.map(|(name, value)| (name.into(), value.into()));
    passed.chain(set).collect()
}

/// Files and directories of certificates that variables of children name, and children may read.
fn certificates(shared: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let names = || CA_VARIABLES.iter().chain(&["SSL_CERT_DIR"]);
    let named = shared
        .iter()
        .filter(|(name, _)| names().any(|known| name.to_str() == Some(known)));
    let paths = named.map(|(_, path)| PathBuf::from(path));
    paths.filter(|path| path.is_absolute()).collect()
}

fn ambient(
    env: &BTreeMap<String, String>,
    shared: Vec<(OsString, OsString)>,
) -> anyhow::Result<Ambient> {
    let of = |name: &str| env.get(name).map(Into::into);
    let cwd = std::env::current_dir().context("the working directory is gone")?;
    let (path, home, lang, tmpdir) = (of("PATH"), of("HOME"), of("LANG"), of("TMPDIR"));
    Ok(Ambient {
        path,
        home,
        lang,
        tmpdir,
        shared,
        cwd,
    })
}

/// Variables of proxies, in both spellings that programs read, and of a directory of certificates.
const NETWORK: [&str; 9] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_DIR",
];

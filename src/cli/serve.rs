//! `lockgate run` and `lockgate serve`: from flags to a running gateway.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use rustix::process::DumpableBehavior;

use super::{
    arguments::{RunArgs, ServeArgs},
    credentials, database, descriptors, directory, signals, sockets,
};
use crate::{
    backend::{
        child::{Ambient, Launcher},
        prepare::stores,
        sandbox::{Kernel, Sandbox},
    },
    config::{Config, LogFormat, Mistake, Separation, Sources, Wrong, gateway::environment},
    database::When,
    declare::{Catalog, Confinement, Home, Launch, Offer, Prune, checks, object},
    gateway::{Shutdown, run},
    manifest::command_line,
    snapshot::{Applied, Hidden},
    telemetry::{Format, Logs, logs},
};

/// What is to be served, checked.
struct Plan {
    config: Config,
    source: Source,
    env: BTreeMap<String, String>,
    /// A directory for children that goes with the gateway; none means `data_dir/work`.
    work: Option<PathBuf>,
    /// What there is to separate and confine children with.
    kernel: Kernel,
    /// What they get of it.
    offer: Offer,
    /// Files that no child may see.
    secrets: Vec<PathBuf>,
    /// Whether the URL and snippets are printed instead of a log line.
    is_run: bool,
}

/// Where what is served comes from.
pub(super) enum Source {
    /// It is known, and never changes.
    Fixed(Catalog),
    /// It is what the store holds, after this was applied to it.
    Stored(Option<Applied>),
}

/// `lockgate run [-- COMMAND…]`
pub(crate) fn run(args: RunArgs) -> ExitCode {
    start(plan_run(args))
}

/// `lockgate serve`
pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    start(plan_serve(args))
}

fn plan_run(args: RunArgs) -> Result<Plan, Vec<Mistake>> {
    let env = environment();
    let RunArgs {
        listen,
        env: passed,
        allow_origin,
        mut set,
        command,
    } = args;
    let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
    if !allow_origin.is_empty() {
        let origins: Vec<_> = allow_origin.iter().map(quoted).collect();
        set.push(format!("http.allowed_origins=[{}]", origins.join(",")));
    }
    let sources = Sources {
        file: None,
        env: env.clone(),
        set,
        listen,
        run: true,
    };
    let config = Config::load(&sources).map_err(|error| error.mistakes);
    let (config, passed) = both(config, environment_of(passed, &env))?;
    let mut command = command.into_iter();
    let (command, args) = match command.next() {
        Some(program) => (program, command.collect()),
        None => (OWN_BINARY.to_owned(), vec!["__demo".to_owned()]),
    };
    let launch = Launch {
        command,
        args,
        env: passed,
        cwd: None,
        home: Home::Caller,
        confinement: Confinement::default(),
        prepared: None,
        is_preparing: false,
    };
    let manifest = command_line::single(launch, &config.server, &env)?;
    let (kernel, offer) = probe(&config)?;
    let mut mistakes = credentials::mistakes(&config);
    mistakes.extend(checks::check(&manifest, &config, path_of(&env), &offer));
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let work = temporary();
    Ok(Plan {
        config,
        source: Source::Fixed(manifest.catalog),
        env,
        work: Some(work),
        kernel,
        offer,
        secrets: Vec::new(),
        is_run: true,
    })
}

/// What `--env` names for the server of `run`: a value, or one of ours to pass.
fn environment_of(
    passed: Vec<String>,
    own: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Vec<Mistake>> {
    let (mut env, mut mistakes) = (BTreeMap::new(), Vec::new());
    for pair in passed {
        let named = match pair.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => own.get(&pair).map(|value| (pair.clone(), value.clone())),
        };
        let wrong = || Wrong::new("is not set here", "write NAME=VALUE, or set it");
        match named {
            Some((name, value)) => _ = env.insert(name, value),
            None => mistakes.push(wrong().at("--env", &pair)),
        }
    }
    if mistakes.is_empty() {
        Ok(env)
    } else {
        Err(mistakes)
    }
}

/// The binary of this very process, also when its file was replaced meanwhile.
const OWN_BINARY: &str = "/proc/self/exe";

fn plan_serve(args: ServeArgs) -> Result<Plan, Vec<Mistake>> {
    let env = environment();
    let ServeArgs {
        config: file,
        apply,
        prune,
        listen,
        set,
    } = args;
    let sources = Sources {
        file,
        env: env.clone(),
        set,
        listen,
        run: false,
    };
    let named = || {
        env.get("LOCKGATE_APPLY")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let file = apply.or_else(named);
    let loaded = file.as_deref().map(|file| object::load(file, &env));
    let config = Config::load(&sources).map_err(|error| error.mistakes);
    let (config, declaration) = both(config, loaded.transpose())?;
    let (kernel, offer) = probe(&config)?;
    // The server of `[default]` may be in the store already.
    let judged = declaration.as_ref().map(|read| {
        checks::judge(
            &read.manifest,
            When::Changing,
            &config,
            path_of(&env),
            &offer,
        )
    });
    let mut mistakes = credentials::mistakes(&config);
    mistakes.extend(judged.unwrap_or_default());
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let secrets = secrets(&sources, &config, file.as_deref());
    let prune = if prune { Prune::Remove } else { Prune::Keep };
    let applied = file.map(|file| Applied {
        file,
        pending: declaration,
        prune,
    });
    Ok(Plan {
        config,
        source: Source::Stored(applied),
        env,
        // A child with a uid of its own cannot pass through the data directory.
        work: (offer.separation == Separation::Uid).then(temporary),
        kernel,
        offer,
        secrets,
        is_run: false,
    })
}

/// One and the other, or the mistakes of both.
fn both<A, B>(
    one: Result<A, Vec<Mistake>>,
    other: Result<B, Vec<Mistake>>,
) -> Result<(A, B), Vec<Mistake>> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(mut mistakes), Err(more)) => {
            mistakes.extend(more);
            Err(mistakes)
        }
        (Err(mistakes), Ok(_)) | (Ok(_), Err(mistakes)) => Err(mistakes),
    }
}

/// A directory for children's own, outside the data directory.
fn temporary() -> PathBuf {
    std::env::temp_dir().join(format!("lockgate-{}", uuid::Uuid::new_v4().simple()))
}

/// What this machine has to separate and confine children with, and what they get of it.
fn probe(config: &Config) -> Result<(Kernel, Offer), Vec<Mistake>> {
    let kernel = kernel();
    offer(&kernel, config).map(|offer| (kernel, offer))
}

/// What this machine has.
pub(super) fn kernel() -> Kernel {
    Kernel::probe(Path::new(OWN_BINARY))
}

/// What children get of what there is.
pub(super) fn offer(kernel: &Kernel, config: &Config) -> Result<Offer, Vec<Mistake>> {
    let offer = kernel.offer(config.sandbox.separation, config.sandbox.uids);
    offer.map_err(|(key, what)| {
        let remedy = "choose another, or see lockgate check for what is offered here";
        vec![Wrong::new(what, remedy).at(config.place(key), key)]
    })
}

pub(super) fn path_of(env: &BTreeMap<String, String>) -> &str {
    env.get("PATH").map_or("", String::as_str)
}

fn start(plan: Result<Plan, Vec<Mistake>>) -> ExitCode {
    let mut plan = match plan {
        Ok(plan) => plan,
        Err(mistakes) => return refuse(&mistakes),
    };
    let format = match plan.config.telemetry.format {
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
    };
    let logs = match logs::init(&plan.config.telemetry.log, format) {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("lockgate: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Its memory, environment and descriptors are nobody's, not even a child's of the same uid.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("lockgate: cannot protect its memory: {error}");
        return ExitCode::FAILURE;
    }
    descriptors::raise();
    if let Some(shortage) = descriptors::shortage(&plan.config, plan.kernel.open_files) {
        plan.config.http.max_connections = shortage.connections;
        tracing::warn!("{}", shortage.what);
    }
    let work = plan.work.clone();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .and_then(|runtime| {
            let outcome = runtime.block_on(gateway(plan, logs.clone()));
            // What is still blocked at this point has had its time.
            runtime.shutdown_timeout(Duration::from_millis(200));
            outcome
        });
    if let Some(work) = work {
        // Nothing may be left; a child's own files were removed with it.
        let _ = stores::remove(&work);
    }
    logs.flush(Duration::from_millis(500));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lockgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says what has to be changed before the gateway can start.
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
    let work = match work {
        Some(work) => work,
        None => config.data_dir.join("work"),
    };
    if !is_run && let Err(mistake) = directory::claim(&config)? {
        return Ok(refuse(&[mistake]));
    }
    let _held = (!is_run).then(|| database::hold(&config)).transpose()?;
    directory::private(&work)?;
    if offer.separation == Separation::Uid {
        // To be passed through: what lies in it is everybody's own.
        std::fs::set_permissions(&work, Permissions::from_mode(0o711))?;
    }
    let mut ports = sockets::ports(&listeners)?;
    ports.extend(database::ports(&config));
    // `run` keeps nothing that would have to be hidden. To hide means to list all that lies
    // beside: it costs every start, and what is created there later would not be seen.
    let own = [config.data_dir.clone(), work.clone()];
    let hidden = Hidden::new(own.into_iter().chain(secrets));
    let hide = (!is_run).then(|| hidden.clone());
    let sandbox = Sandbox::new(&kernel, offer, config.sandbox.uids, hide, &ports)
        .context("cannot make cgroups for children")?;
    let served = match database::open(source, &config, &env, offer, hidden).await? {
        Ok(served) => served,
        Err(mistakes) => return Ok(refuse(&mistakes)),
    };
    warn(&config, &served.live.current(), &offer);
    let is_temporary = is_run || offer.separation == Separation::Uid;
    let prepared = stores_of(&config, &work, is_temporary);
    let launcher = Launcher::new(ambient(&env)?, work, prepared, sandbox);
    let shutdown = Shutdown::default();
    let signals = signals::signals(shutdown.clone())?;
    sockets::announce(&config, &listeners, is_run)?;
    let running = run::run(config, served, launcher, listeners, shutdown, logs);
    tokio::pin!(signals);
    tokio::select! {
        outcome = running => outcome.map(|()| ExitCode::SUCCESS),
        () = &mut signals => Ok(ExitCode::FAILURE),
    }
}

/// Where stores are: children with a uid of their own cannot pass through the data directory, and
/// `run` has none.
fn stores_of(config: &Config, work: &Path, is_temporary: bool) -> PathBuf {
    let base = if is_temporary { work } else { &config.data_dir };
    base.join("prepared")
}

/// What of the gateway no child may see, beside what `work` and `data_dir` are.
fn secrets(sources: &Sources, config: &Config, manifest: Option<&Path>) -> Vec<PathBuf> {
    let tls = config.http.tls.as_ref().map(|tls| tls.key.clone());
    let is_file = |name: &str| name.starts_with("LOCKGATE_") && name.ends_with("_FILE");
    let variables = sources.env.iter().filter(|(name, _)| is_file(name));
    let files = variables.map(|(_, file)| PathBuf::from(file));
    let named = [sources.file(), manifest.map(Path::to_owned), tls];
    files.chain(named.into_iter().flatten()).collect()
}

/// Says what was asked for and will not hold, at every start.
fn warn(config: &Config, catalog: &Catalog, offer: &Offer) {
    if config.sandbox.shared_uid && offer.separation == Separation::None {
        tracing::warn!("sandbox.shared_uid: nothing separates the processes of tenants");
    }
    if config.auth.insecure {
        tracing::warn!(
            "auth.insecure: tenants without authentication are open to everybody who reaches this gateway"
        );
    }
    if let Some(what) = config.separate_stores() {
        tracing::warn!("{what}");
    }
    if !config.outbound_allow.is_empty() {
        let allow: Vec<String> = config
            .outbound_allow
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

fn ambient(env: &BTreeMap<String, String>) -> anyhow::Result<Ambient> {
    let of = |name: &str| env.get(name).map(Into::into);
    let cwd = std::env::current_dir().context("the working directory is gone")?;
    let (path, home, lang, tmpdir) = (of("PATH"), of("HOME"), of("LANG"), of("TMPDIR"));
    Ok(Ambient {
        path,
        home,
        lang,
        tmpdir,
        cwd,
    })
}

#[cfg(test)]
mod tests {
    use super::super::serve::*;

    #[test]
    fn a_variable_that_is_not_set_cannot_be_passed() {
        let own = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let env = environment_of(words(&["A", "B=2", "C="]), &own).unwrap();
        let pairs: Vec<_> = env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(pairs, ["A=1", "B=2", "C="]);
        let mistakes = environment_of(words(&["A", "TOKEN"]), &own).unwrap_err();
        let said: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            ["--env: TOKEN: is not set here; write NAME=VALUE, or set it"]
        );
    }
}

//! The plan of a gateway: configuration, catalogue and sandboxing, all checked.
//!
//! Not here: its execution (`process`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    credentials,
    database::Source,
    machine::{OWN_BINARY, path_of, probe},
    work::Work,
};
use crate::{
    backend::sandbox::Kernel,
    config::{Config, Mistake, Sources, Wrong, gateway::environment},
    declare::{Confinement, Home, Launch, Offer, Prune, When},
    manifest::{checks, command_line},
    snapshot::ManifestFile,
};

/// `lockgate run`
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Address to listen on; loopback only
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Environment variable of the server: NAME=VALUE, or NAME to pass it on
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Origin of web pages that may call the gateway
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Any key of the configuration, or server.KEY of the server
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Log every field of every request and call; twice: debug messages too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// `lockgate serve`
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    config: Option<PathBuf>,
    /// Manifest of tenants and servers
    #[arg(long, value_name = "F")]
    apply: Option<PathBuf>,
    /// Remove stored objects that are not in the manifest
    #[arg(long, requires = "apply")]
    prune: bool,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// A gateway to start, checked for mistakes.
pub(super) struct Plan {
    /// The settings of the gateway.
    pub(super) config: Config,
    /// The source of the catalogue.
    pub(super) source: Source,
    /// The environment of this process.
    pub(super) env: BTreeMap<String, String>,
    /// The directory for private files of children; one outside the data directory is removed with the
    /// gateway.
    pub(super) work: Work,
    /// The kernel features of this machine.
    pub(super) kernel: Kernel,
    /// The features that children get.
    pub(super) offer: Offer,
    /// Files hidden from children.
    pub(super) secrets: Vec<PathBuf>,
    /// `lockgate run`: prints URL and snippets instead of a log line, and stores nothing.
    pub(super) is_run: bool,
}

/// The plan of `lockgate run`.
///
/// # Errors
///
/// Every mistake in flags and configuration.
pub(super) fn plan_run(args: RunArgs) -> Result<Plan, Vec<Mistake>> {
    let env = environment();
    let RunArgs {
        listen,
        env: passed,
        allow_origin,
        set,
        verbose,
        command,
    } = args;
    let mut set = [verbosity(verbose, &env), set].concat();
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
        files: BTreeMap::new(),
        is_preparing: false,
    };
    let manifest = command_line::single(launch, &config.server, &env)?;
    let (kernel, offer) = probe(&config)?;
    let mut mistakes = credentials::mistakes(&config);
    mistakes.extend(checks::check(&manifest, &config, path_of(&env), &offer));
    let work = work(&config, &offer, mistakes)?;
    Ok(Plan {
        config,
        source: Source::Fixed(manifest.catalog),
        env,
        work,
        kernel,
        offer,
        secrets: Vec::new(),
        is_run: true,
    })
}

/// The settings of `-v` and `-vv`, which `--set` overrides.
fn verbosity(verbose: u8, env: &BTreeMap<String, String>) -> Vec<String> {
    let format = (verbose > 0).then_some("telemetry.format=text");
    let is_set = ["RUST_LOG", "LOCKGATE_TELEMETRY__LOG"]
        .iter()
        .any(|name| env.contains_key(*name));
    let log = match verbose {
        1 if !is_set => Some("telemetry.log=info,lockgate::calls=debug"),
        0 | 1 => None,
        2.. => Some("telemetry.log=info,lockgate=debug"),
    };
    format.into_iter().chain(log).map(str::to_owned).collect()
}

/// The environment that `--env` gives the server of `run`: given values, and variables passed on.
fn environment_of(
    passed: Vec<String>,
    own: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Vec<Mistake>> {
    let (mut env, mut mistakes) = (BTreeMap::new(), Vec::new());
    for pair in passed {
        let variable = match pair.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => own.get(&pair).map(|value| (pair.clone(), value.clone())),
        };
        let wrong = || Wrong::new("is not set here", "write NAME=VALUE, or set it");
        match variable {
            Some((name, value)) if !name.is_empty() => _ = env.insert(name, value),
            Some(_) => {
                let wrong = Wrong::new("is empty", "write NAME=VALUE");
                mistakes.push(wrong.at("--env", "NAME"));
            }
            None => mistakes.push(wrong().at("--env", &pair)),
        }
    }
    if mistakes.is_empty() {
        Ok(env)
    } else {
        Err(mistakes)
    }
}

/// The plan of `lockgate serve`.
///
/// # Errors
///
/// Every mistake in configuration and manifest.
pub(super) fn plan_serve(args: ServeArgs) -> Result<Plan, Vec<Mistake>> {
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
    let default_manifest = || {
        env.get("LOCKGATE_APPLY")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let file = apply.or_else(default_manifest);
    let prune = if prune { Prune::Remove } else { Prune::Keep };
    let manifest = file.map(|file| ManifestFile::at_start(file, &env, prune));
    let config = Config::load(&sources).map_err(|error| error.mistakes);
    let (config, manifest) = both(config, manifest.transpose())?;
    let (kernel, offer) = probe(&config)?;
    // The server of `[default]` may be in the database already.
    let declaration = manifest.as_ref().and_then(|file| file.pending.as_ref());
    let judged = declaration.map(|read| {
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
    let work = work(&config, &offer, mistakes)?;
    let file = manifest.as_ref().map(|manifest| manifest.file.as_path());
    let secrets = secrets(&sources, &config, file);
    Ok(Plan {
        work,
        config,
        source: Source::Stored(manifest.map(Box::new)),
        env,
        kernel,
        offer,
        secrets,
        is_run: false,
    })
}

/// The directory for private files of children, or all mistakes, of which there may be some already.
fn work(config: &Config, offer: &Offer, mistakes: Vec<Mistake>) -> Result<Work, Vec<Mistake>> {
    match Work::of(config, offer) {
        Ok(work) if mistakes.is_empty() => Ok(work),
        found => Err(mistakes.into_iter().chain(found.err()).collect()),
    }
}

/// Both values, or all mistakes.
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

/// Files hidden from children besides the data and work directories: configuration, manifest and
/// key files.
fn secrets(sources: &Sources, config: &Config, manifest: Option<&Path>) -> Vec<PathBuf> {
    let tls = config.http.tls.as_ref().map(|tls| tls.key.clone());
    let is_file = |name: &str| name.starts_with("LOCKGATE_") && name.ends_with("_FILE");
    let variables = sources.env.iter().filter(|(name, _)| is_file(name));
    let files = variables.map(|(_, file)| PathBuf::from(file));
    let others = [sources.file(), manifest.map(Path::to_owned), tls];
    files.chain(others.into_iter().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::*;

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
        let mistakes = environment_of(words(&["A", "TOKEN", "=x"]), &own).unwrap_err();
        let said: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "--env: TOKEN: is not set here; write NAME=VALUE, or set it",
                "--env: NAME: is empty; write NAME=VALUE"
            ]
        );
    }
}

//! The store from the command line: opened for `serve`; migrated, copied, put back, resealed.
//!
//! Not here: what a store is (`control/store`).

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use aws_lc_rs::rand::SystemRandom;
use url::Url;

use super::{
    arguments::{CopyArgs, StoreArgs, wait},
    serve::{Source, path_of},
    sockets,
};
use crate::{
    auth::administrator::ensure_operator,
    base::Clock,
    config::{Config, Mistake, Secret, Sources, Wrong, gateway::environment},
    database::{Failure, Judge, Location, Opening, Store, sql::inspect, vault::Make},
    declare::{Offer, checks},
    gateway::Served,
    snapshot::{Hidden, Keeper, Live},
};

/// What is served, read for the first time; mistakes are the operator's.
pub(super) async fn open(
    source: Source,
    config: &Config,
    env: &BTreeMap<String, String>,
    offer: Offer,
    hidden: Hidden,
) -> anyhow::Result<Result<Served, Vec<Mistake>>> {
    let applied = match source {
        Source::Fixed(catalog) => {
            return Ok(Ok(Served {
                live: Live::fixed(catalog),
                keeper: None,
                keys: None,
            }));
        }
        Source::Stored(applied) => applied,
    };
    let given = config.keeping.admin_key.as_ref();
    let (own, search) = (config.clone(), path_of(env).to_owned());
    let judge: Judge =
        Arc::new(move |manifest, when| checks::judge(manifest, when, &own, &search, &offer));
    let live = Live::unread();
    let opening = Opening::of(config, judge, live.clock().clone());
    let source = opening.keys.clone();
    let mut keeper = Keeper::new(
        Arc::clone(&live),
        opening,
        applied,
        (env.clone(), hidden),
        config,
    );
    let mut started = keeper.start().await;
    if started.is_ok() && live.is_loaded() {
        // Before anybody is told that it listens: whoever waits for that may want to get in.
        let given = given.map(Secret::expose);
        started = ensure_operator(&live, given, &config.data_dir).await;
    }
    match started {
        Ok(()) => {
            // A replica signs with what all of them have; where a file is made, it was made by now.
            let keys = config.redis.as_ref();
            let keys = keys.map(|_| source.keyring(&SystemRandom::new(), Make::Never));
            Ok(match keys.transpose() {
                Ok(keys) => Ok(Served {
                    live,
                    keeper: Some(keeper),
                    keys,
                }),
                Err(mistake) => Err(vec![mistake]),
            })
        }
        Err(Failure::Invalid(mistakes)) => Ok(Err(mistakes)),
        Err(failure) => Err(anyhow::Error::new(failure).context("cannot use the store")),
    }
}

/// The ports of PostgreSQL and Redis, which no child may reach.
pub(super) fn ports(config: &Config) -> impl Iterator<Item = u16> {
    let redis = config.redis.as_ref().map(|redis| &redis.url);
    let urls = [
        (config.keeping.sql_url.as_ref(), POSTGRES),
        (redis, sockets::REDIS),
    ];
    urls.into_iter().filter_map(|(url, usual)| {
        let url = Url::parse(url?.expose()).ok()?;
        Some(url.port().unwrap_or(usual))
    })
}

/// Tells other commands, as long as it is held, that this data directory is in use.
///
/// # Errors
///
/// What the file system says; that the store is just being put back.
pub(super) fn hold(config: &Config) -> anyhow::Result<File> {
    let file = lock_file(&config.data_dir)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            anyhow::bail!(
                "{} is in use by lockgate restore",
                config.data_dir.display()
            )
        }
        Err(fs::TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}

/// `lockgate migrate`
pub(super) fn migrate(args: StoreArgs) -> ExitCode {
    done(args, async |config: &Config| {
        let store = Store::open(opening(config)).await?;
        let version = store.version().await?;
        store.close().await;
        Ok(format!(
            "the schema is up to date; changes so far: {version}"
        ))
    })
}

/// `lockgate key rotate`
pub(super) fn rotate(args: StoreArgs) -> ExitCode {
    done(args, async |config: &Config| {
        let store = Store::open(opening(config)).await?;
        let id = store.rotate().await?;
        store.close().await;
        Ok(format!(
            "everything is sealed under the master key {id}, and no other is needed"
        ))
    })
}

/// `lockgate backup F`
pub(super) fn backup(args: CopyArgs) -> ExitCode {
    let target = args.file;
    done(args.store, async |config: &Config| {
        of_file(config)?;
        let store = Store::open(opening(config)).await?;
        let at = |error: &io::Error| wrong(&target, format!("cannot be made: {error}"), NEW_FILE);
        // SQLite fills an empty file; made here so that only its owner may read it.
        new_file(&target).map_err(|error| at(&error))?;
        let copied = store.copy_to(&target).await;
        store.close().await;
        if copied.is_err() {
            let _ = fs::remove_file(&target);
        }
        copied?;
        let synced = File::open(&target).and_then(|file| file.sync_all());
        synced.map_err(|error| at(&error))?;
        let key = if config.keeping.master_key.is_some() {
            "the master key"
        } else {
            "master.key"
        };
        Ok(format!(
            "{} holds the store; keep {key} elsewhere",
            target.display()
        ))
    })
}

/// `lockgate restore F`
pub(super) fn restore(args: CopyArgs) -> ExitCode {
    let copy = args.file;
    done(args.store, async |config: &Config| {
        let file = of_file(config)?;
        fs::create_dir_all(&config.data_dir)
            .map_err(|error| wrong(&config.data_dir, error.to_string(), "make it writable"))?;
        let lock = lock_file(&config.data_dir)
            .map_err(|error| wrong(&config.data_dir, error.to_string(), "make it writable"))?;
        if lock.try_lock().is_err() {
            let what = "is in use by a running gateway".to_owned();
            return Err(wrong(&config.data_dir, what, "stop it first"));
        }
        inspect(&copy)
            .await
            .map_err(|error| wrong(&copy, error.to_string(), "name a file that backup made"))?;
        let put = put_back(&copy, &file);
        put.map_err(|error| wrong(&file, format!("cannot be written: {error}"), "make room"))?;
        // What it needs to be of use, said before a gateway stumbles over it.
        let store = Store::open(opening(config)).await?;
        store.close().await;
        Ok(format!("{} is as {} was", file.display(), copy.display()))
    })
}

/// Puts a copy in the place of the store, whole or not at all.
fn put_back(copy: &Path, file: &Path) -> io::Result<()> {
    let new = file.with_extension("db.new");
    let beside = |end: &str| PathBuf::from(format!("{}{end}", file.display()));
    let remove = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove(&new)?;
    let mut target = new_file(&new)?;
    io::copy(&mut File::open(copy)?, &mut target)?;
    target.sync_all()?;
    // What SQLite keeps beside the old file must never be read as part of the new one.
    remove(&beside("-wal"))?;
    remove(&beside("-shm"))?;
    fs::rename(&new, file)?;
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn new_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn lock_file(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("lockgate.lock");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let opened = options.open(&path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

/// The store as these commands open it: they change nothing that is declared.
fn opening(config: &Config) -> Opening {
    let judge: Judge = Arc::new(|_, _| Vec::new());
    Opening::of(config, judge, Clock::system())
}

fn of_file(config: &Config) -> Result<PathBuf, Failure> {
    match Location::of(config) {
        Location::File(file) => Ok(file),
        Location::Url(_) => {
            let what = "names PostgreSQL, which its own tools copy and put back (pg_dump)";
            let wrong = Wrong::new(what, "use those");
            Err(Failure::Invalid(vec![wrong.at("configuration", "sql.url")]))
        }
    }
}

fn wrong(path: &Path, what: String, remedy: &str) -> Failure {
    let place = path.display().to_string();
    Failure::Invalid(vec![Wrong::new(what, remedy).at(&place, "store")])
}

/// Runs a command on the store that the configuration names, and says what came of it.
fn done(args: StoreArgs, act: impl AsyncFnOnce(&Config) -> Result<String, Failure>) -> ExitCode {
    let sources = Sources {
        file: args.config,
        env: environment(),
        set: args.set,
        ..Sources::default()
    };
    let config = match Config::load(&sources) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let done = match wait(act(&config)) {
        Ok(done) => done,
        Err(code) => return code,
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(failure @ Failure::Invalid(_)) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
        Err(failure) => {
            eprintln!("lockgate: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The port of a URL that names none.
const POSTGRES: u16 = 5432;
const NEW_FILE: &str = "name a new file in a folder that is there";

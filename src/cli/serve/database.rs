//! Database of a gateway that serves: locked, opened and read for the first time.
//!
//! Not here: commands on a database (`local/database`).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use anyhow::Context;
use aws_lc_rs::rand::SystemRandom;
use url::Url;

use super::{machine::path_of, sockets};
use crate::{
    auth::administrator::ensure_operator,
    base::{HiddenPaths, Secret, private_file},
    config::{Config, Mistake},
    database::{self, Judge, Opening, vault::Make},
    declare::{Catalog, Offer},
    gateway::Served,
    manifest::checks,
    snapshot::{CurrentSnapshot, ManifestFile, SnapshotSync},
};

/// Origin of the catalogue.
pub(super) enum Source {
    /// A fixed catalogue (`run`).
    Fixed(Catalog),
    /// The database, after applying this manifest to it.
    Stored(Option<ManifestFile>),
}

/// Reads the catalogue for the first time; mistakes are the operator's.
pub(super) async fn open(
    source: Source,
    config: &Config,
    env: &BTreeMap<String, String>,
    offer: Offer,
    hidden: HiddenPaths,
) -> anyhow::Result<Result<Served, Vec<Mistake>>> {
    let applied = match source {
        Source::Fixed(catalog) => {
            return Ok(Ok(Served {
                snapshot: CurrentSnapshot::fixed(catalog),
                sync: None,
                keys: None,
            }));
        }
        Source::Stored(applied) => applied,
    };
    let given = config.keeping.admin_key.as_ref();
    let (own, search) = (config.clone(), path_of(env).to_owned());
    let judge: Judge =
        Arc::new(move |manifest, when| checks::judge(manifest, when, &own, &search, &offer));
    let snapshot = CurrentSnapshot::empty();
    let opening = Opening::of(config, judge, snapshot.clock().clone());
    let source = opening.keys.clone();
    let mut sync = SnapshotSync::new(
        Arc::clone(&snapshot),
        opening,
        applied,
        (env.clone(), hidden),
        config,
    );
    let mut started = sync.start().await;
    if started.is_ok() && snapshot.is_loaded() {
        // Before listening is announced: a waiting client may log in at once.
        let given = given.map(Secret::expose);
        started = ensure_operator(&snapshot, given, &config.data_dir).await;
    }
    match started {
        Ok(()) => {
            // All replicas sign with the same keys; a key file exists by now.
            let keys = config.redis.as_ref();
            let keys = keys.map(|_| source.keyring(&SystemRandom::new(), Make::Never));
            Ok(match keys.transpose() {
                Ok(keys) => Ok(Served {
                    snapshot,
                    sync: Some(sync),
                    keys,
                }),
                Err(mistake) => Err(vec![mistake]),
            })
        }
        Err(database::Error::Invalid(mistakes)) => Ok(Err(mistakes)),
        Err(failure) => Err(anyhow::Error::new(failure).context("cannot use the store")),
    }
}

/// Ports of PostgreSQL and Redis, refused to children.
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

/// Locks the data directory against `restore` while the file is held.
///
/// # Errors
///
/// The file system's; a `restore` under way.
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

/// Opens the lock file of a data directory.
///
/// # Errors
///
/// The file system's.
pub(crate) fn lock_file(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("lockgate.lock");
    let opened = private_file::open_or_create(&path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

/// Default port of PostgreSQL.
const POSTGRES: u16 = 5432;

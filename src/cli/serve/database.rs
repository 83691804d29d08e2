//! The database of a serving gateway: lock, opening and first read.
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

use super::machine::path_of;
use crate::{
    auth::administrator::ensure_operator,
    base::{HiddenPaths, Secret, private_file},
    config::{Config, Mistake, Wrong},
    database::{self, Judge, Location, Opening, pool::file::remove_unfinished, vault::Make},
    declare::{Catalog, Offer},
    gateway::Served,
    manifest::checks,
    snapshot::{CurrentSnapshot, ManifestFile, SnapshotSync},
};

/// The source of the catalogue.
pub(super) enum Source {
    /// A fixed catalogue (`run`).
    Fixed(Catalog),
    /// The database, with a manifest to apply to it.
    Stored(Option<Box<ManifestFile>>),
}

/// Judges declared states against the configuration and this machine.
fn judge_of(config: &Config, env: &BTreeMap<String, String>, offer: Offer) -> Judge {
    let (own, search) = (config.clone(), path_of(env).to_owned());
    Arc::new(move |manifest, when| checks::judge(manifest, when, &own, &search, &offer))
}

/// Reads the catalogue for the first time. The inner error lists the operator's mistakes.
pub(super) async fn open(
    source: Source,
    config: &Config,
    env: &BTreeMap<String, String>,
    offer: Offer,
    hidden: HiddenPaths,
) -> anyhow::Result<Result<Served, Vec<Mistake>>> {
    let manifest = match source {
        Source::Fixed(catalog) => {
            return Ok(Ok(Served {
                snapshot: CurrentSnapshot::fixed(catalog),
                sync: None,
                keys: None,
            }));
        }
        Source::Stored(manifest) => manifest.map(|boxed| *boxed),
    };
    let admin_key = config.storage.admin_key.as_ref();
    let snapshot = CurrentSnapshot::empty();
    let judge = judge_of(config, env, offer);
    let opening = Opening::of(config, judge, snapshot.clock().clone());
    let (source, location) = (opening.keys.clone(), opening.location.clone());
    let is_server = matches!(location, Location::Url(_));
    let mut sync = SnapshotSync::new(
        Arc::clone(&snapshot),
        opening,
        manifest,
        (env.clone(), hidden),
        config,
    );
    let mut result = sync.start().await;
    if result.is_ok() && snapshot.is_loaded() {
        // Before the gateway announces its listeners: a waiting client may log in at once.
        let admin_key = admin_key.map(Secret::expose);
        result = ensure_operator(&snapshot, admin_key, &config.data_dir).await;
        if is_server && let Err(database::Error::Unavailable(why)) = &result {
            // The server may return, and the gateway tries again.
            tracing::warn!(why, "the first operator's key has to wait");
            result = Ok(());
        }
    }
    match result {
        Ok(()) => {
            // Replicas sign with the same keys; a key file exists by now.
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
        Err(error) => {
            let error = anyhow::Error::new(location.named_in(error));
            Err(error.context("cannot use the database"))
        }
    }
}

/// Locks the data directory against another gateway and against `restore`, for the lifetime of the
/// returned files, and removes what a `restore` that was killed has left.
///
/// # Errors
///
/// File system errors; another gateway; a `restore` in progress.
pub(crate) fn lock(config: &Config) -> anyhow::Result<[File; 2]> {
    let data_dir = &config.data_dir;
    let own = open_lock(data_dir, "serve.lock").map_err(anyhow::Error::msg)?;
    let file = lock_file(data_dir).map_err(anyhow::Error::msg)?;
    if let Err(fs::TryLockError::WouldBlock) = own.try_lock() {
        anyhow::bail!(
            "data_dir: {} is in use by another gateway; write a data_dir of its own for each",
            data_dir.display()
        );
    }
    match file.try_lock_shared() {
        Ok(()) => {
            if let Location::File(store) = Location::of(config)
                && let Err(error) = remove_unfinished(&store)
            {
                tracing::warn!(%error, "cannot remove what a restore has left in data_dir");
            }
            Ok([own, file])
        }
        Err(fs::TryLockError::WouldBlock) => {
            anyhow::bail!(
                "{} is in use by lockgate restore",
                config.data_dir.display()
            )
        }
        Err(fs::TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}

/// Opens the lock file of a data directory. A new one belongs to the user of the directory, for a `restore` by root may
/// come before the first start.
///
/// # Errors
///
/// File system errors, with the file and the remedy.
pub(crate) fn lock_file(data_dir: &Path) -> Result<File, Mistake> {
    open_lock(data_dir, "lockgate.lock")
}

fn open_lock(data_dir: &Path, name: &str) -> Result<File, Mistake> {
    let path = data_dir.join(name);
    let made = private_file::create_beside(&path);
    let opened = made.or_else(|_| private_file::open_or_create(&path));
    opened.map_err(|error| {
        let what = format!("cannot be opened: {error}");
        let wrong = Wrong::new(what, private_file::remedy(&error));
        wrong.at(&path.display().to_string(), "data_dir")
    })
}

//! Rotation: takes over secrets whose files change while the gateway serves.
//!
//! Not here: files that a manifest refers to (`snapshot/manifest_file`), and certificates (`http/listen/tls`).

use std::{path::Path, sync::Arc};

use tokio::time::sleep;

use super::cluster;
use crate::{
    auth::{administrator::ensure_operator, api_key},
    base::{LOOK_INTERVAL, Secret, WatchedFiles},
    config::{Config, Rotated, RotatingSettings},
    snapshot::{CurrentSnapshot, Reloader},
    state::redis::Redis,
};

/// The parts that use secrets from files.
pub(super) struct Rotation {
    /// For the operator's key.
    pub(super) snapshot: Arc<CurrentSnapshot>,
    /// For PostgreSQL; none without a database.
    pub(super) database: Option<Reloader>,
    /// The connection that replicas share, if there is one.
    pub(super) redis: Option<Redis>,
}

impl Rotation {
    /// Looks at the files of settings for ever. Cancel-safe between two looks.
    pub(super) async fn run(self, mut settings: RotatingSettings, config: Arc<Config>) {
        let mut files = WatchedFiles::new(settings.files());
        let mut key = None;
        loop {
            sleep(LOOK_INTERVAL).await;
            for file in files.look().await {
                for read in settings.read(&file) {
                    match read {
                        Ok(Rotated::AdminKey(read)) => key = Some(read),
                        Ok(rotated) => self.take_over(rotated).await,
                        Err(mistake) => tracing::error!(event = "secret.refused", "{mistake}"),
                    }
                }
            }
            if let Some(read) = key.take() {
                key = self.operator(read, &config.data_dir).await;
            }
        }
    }
    async fn take_over(&self, rotated: Rotated) {
        match rotated {
            Rotated::Sql(url) => {
                if let Some(database) = &self.database {
                    database.reconnect(url).await;
                    said("sql.url");
                }
            }
            Rotated::Redis(at) => {
                let done = self
                    .redis
                    .as_ref()
                    .map(|redis| redis.reconnect(&cluster::settings(&at)));
                match done {
                    Some(Ok(())) => said("redis.url"),
                    Some(Err(wrong)) => tracing::error!(event = "secret.refused", "{wrong}"),
                    None => {}
                }
            }
            Rotated::AtStart(key) => tracing::warn!(
                event = "secret.restart",
                key,
                "the file of a setting changed, which only a restart takes over"
            ),
            Rotated::AdminKey(_) => {}
        }
    }

    /// Makes sure that an operator can log in with `key`; returns it if that has to be tried again.
    async fn operator(&self, key: Secret, data_dir: &Path) -> Option<Secret> {
        if api_key::hash_of(key.expose()).is_none() {
            let what =
                "LOCKGATE_ADMIN_KEY_FILE: is no API key; write one that lockgate key new prints";
            tracing::error!(event = "secret.refused", "{what}");
            return None;
        }
        match ensure_operator(&self.snapshot, Some(key.expose()), data_dir).await {
            Ok(()) => {
                said("LOCKGATE_ADMIN_KEY_FILE");
                None
            }
            // The database is away, which has been logged.
            Err(_) => Some(key),
        }
    }
}

fn said(key: &str) {
    tracing::info!(
        event = "secret.rotated",
        key,
        "a secret from a file was replaced"
    );
}

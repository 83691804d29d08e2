//! First operator: the API key with which the administration begins, as soon as the database takes
//! it.
//!
//! Not here: the key and its file (`auth/administrator`).

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    auth::administrator::ensure_operator, base::Secret, config::Config, snapshot::CurrentSnapshot,
};

/// Ensures that an operator can log in; returns when one can. Cancel-safe.
pub(super) async fn ensure(config: Arc<Config>, current: Arc<CurrentSnapshot>) {
    let mut snapshots = current.subscribe();
    let loaded = snapshots.wait_for(|snapshot| snapshot.version.is_some());
    // A fixed catalogue has no database, and nobody administrates it.
    if loaded.await.is_err() || current.database().is_err() {
        return;
    }
    let key = config.storage.admin_key.as_ref().map(Secret::expose);
    let mut logged = String::new();
    while let Err(error) = ensure_operator(&current, key, &config.data_dir).await {
        let error = error.to_string();
        if error != logged {
            tracing::error!(error, "nobody may administrate yet");
        }
        logged = error;
        sleep(RETRY).await;
    }
}

/// The delay before the next attempt.
const RETRY: Duration = Duration::from_secs(1);

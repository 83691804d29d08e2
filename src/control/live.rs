//! What is served right now: the snapshot in memory that requests read.
//!
//! Nothing on the path of a call waits for the store. Not here: when the snapshot is read anew
//! (`keeper`), and what sessions and children do about a change (`hub`).

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    Catalog,
    identity::OperatorKeys,
    store::{Failure, Store, When},
};

/// What is declared, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The number of the last change in it; none before the store was read.
    pub(crate) version: Option<i64>,
    /// Tenants and servers.
    pub(crate) catalog: Arc<Catalog>,
    /// API keys of operators, who belong to no tenant.
    pub(crate) operator_keys: OperatorKeys,
}

/// The newest snapshot.
pub(crate) struct Live {
    current: ArcSwap<Snapshot>,
    changed: watch::Sender<Arc<Snapshot>>,
    /// The store, once it was opened; never in `run`.
    store: OnceLock<Store>,
}

impl Live {
    /// Nothing yet: a store is to be read.
    pub(crate) fn unread() -> Arc<Self> {
        Self::of(Snapshot::default())
    }

    /// What never changes, and stands in no store (`lockgate run`).
    pub(crate) fn fixed(catalog: Catalog) -> Arc<Self> {
        Self::of(Snapshot {
            version: Some(0),
            catalog: Arc::new(catalog),
            operator_keys: OperatorKeys::new(),
        })
    }

    fn of(snapshot: Snapshot) -> Arc<Self> {
        let snapshot = Arc::new(snapshot);
        Arc::new(Self {
            current: ArcSwap::new(Arc::clone(&snapshot)),
            changed: watch::Sender::new(snapshot),
            store: OnceLock::new(),
        })
    }

    /// Tenants and servers; a request takes them once and stays with them.
    pub(crate) fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.current.load().catalog)
    }

    /// All of the snapshot.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Whether there is something to serve: without it nobody can say that a server is unknown.
    pub(crate) fn is_loaded(&self) -> bool {
        self.current.load().version.is_some()
    }

    /// Tells of every new snapshot; of several that come fast maybe only of the last.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.changed.subscribe()
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// `Unavailable` as long as it could not be opened; always in `run`.
    pub(crate) fn store(&self) -> Result<&Store, Failure> {
        let store = self.store.get();
        store.ok_or_else(|| Failure::Unavailable("it was not opened yet".to_owned()))
    }

    /// From now on there is a store.
    pub(super) fn opened(&self, store: Store) {
        // A second one would be the same: only the keeper opens it.
        let _ = self.store.set(store);
    }

    /// Reads the store anew; call it after every own change, before it is answered.
    ///
    /// # Errors
    ///
    /// Those of [`Store::load`], and `Invalid` for a state that cannot be served here; the last
    /// snapshot stays.
    pub(crate) async fn refresh(&self) -> Result<(), Failure> {
        let store = self.store()?;
        let loaded = store.load().await?;
        let catalog = store.judged(&loaded, When::Serving)?.catalog;
        let catalog = catalog.keeping(&self.current());
        let operators = loaded.objects.iter();
        let operators = operators.filter(|stored| stored.name.owner().is_none());
        // One that cannot be read opens nothing, and keeps nobody else out.
        let operator_keys = operators
            .filter_map(|stored| stored.operator_key().ok())
            .collect();
        self.publish(Snapshot {
            version: Some(loaded.version),
            catalog: Arc::new(catalog),
            operator_keys,
        });
        Ok(())
    }

    /// Puts a snapshot in the place of an older one.
    fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        // Two refreshes may overtake each other: the watch's own lock puts them in order.
        self.changed.send_if_modified(|shown| {
            let is_newer = snapshot.version > shown.version;
            if is_newer {
                self.current.store(Arc::clone(&snapshot));
                *shown = snapshot;
            }
            is_newer
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_snapshot_does_not_replace_a_newer_one() {
        let live = Live::unread();
        let changes = live.changes();
        assert!(!live.is_loaded());
        let publish = |version| {
            live.publish(Snapshot {
                version: Some(version),
                ..Snapshot::default()
            });
        };
        publish(2);
        publish(1);
        assert_eq!(live.snapshot().version, Some(2));
        assert_eq!(changes.borrow().version, Some(2));
        assert!(live.is_loaded());
    }
}

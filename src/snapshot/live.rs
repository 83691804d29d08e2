//! What is served right now: the snapshot in memory that requests read.
//!
//! Nothing on the path of a call waits for the store. Not here: when the snapshot is read anew
//! (`keeper`), and what sessions and children do about a change (`hub`).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    base::Clock,
    database::{self, Database},
    declare::{Catalog, Issued, OperatorKeys, When},
};

/// What is declared, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The number of the last change in it; none before the store was read.
    pub(crate) version: Option<i64>,
    /// The number of the last change of what was issued in it, in `catalog.issued`.
    pub(crate) revocation: i64,
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
    store: OnceLock<Database>,
    /// When the store was asked last how far it has come.
    asked: Asked,
    /// Where the next question waits for its time, or for news.
    woken: Notify,
    /// What time it is, for all that goes by the store.
    clock: Clock,
}

/// When the store was asked last how far it has come, and answered or was away; clones are the
/// same.
///
/// A process that stood still knows nothing of what was revoked meanwhile, and must not believe a
/// token before it has asked. A database that is away ends nothing (CONTRACT C15).
#[derive(Clone, Debug)]
pub(crate) struct Asked(Arc<(Instant, AtomicU64)>);

impl Asked {
    fn never() -> Self {
        Self(Arc::new((Instant::now(), AtomicU64::new(0))))
    }

    /// Whether it was lately, so that nothing was missed.
    pub(crate) fn is_recent(&self) -> bool {
        self.is_recent_at(Instant::now())
    }

    fn is_recent_at(&self, now: Instant) -> bool {
        let (began, at_ms) = &*self.0;
        let at = Duration::from_millis(at_ms.load(Ordering::Acquire));
        now.duration_since(*began) < at.saturating_add(MISSED)
    }

    /// It was at this time.
    fn note(&self, now: Instant) {
        let (began, at_ms) = &*self.0;
        let now_ms = u64::try_from(now.duration_since(*began).as_millis()).unwrap_or(u64::MAX);
        at_ms.fetch_max(now_ms, Ordering::AcqRel);
    }
}

/// How long what was revoked may be unknown (DESIGN section 6).
const MISSED: Duration = Duration::from_secs(2);

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
            ..Snapshot::default()
        })
    }

    fn of(snapshot: Snapshot) -> Arc<Self> {
        let snapshot = Arc::new(snapshot);
        Arc::new(Self {
            current: ArcSwap::new(Arc::clone(&snapshot)),
            changed: watch::Sender::new(snapshot),
            store: OnceLock::new(),
            asked: Asked::never(),
            woken: Notify::new(),
            clock: Clock::system(),
        })
    }

    /// When the store was asked last.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// What time it is: with a store that replicas share, the time there.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
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

    /// Another replica is said to have changed something: the store is asked at once.
    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Waits for [`Self::wake`], which may have been before.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// `Unavailable` as long as it could not be opened; always in `run`.
    pub(crate) fn store(&self) -> Result<&Database, database::Error> {
        let store = self.store.get();
        store.ok_or_else(|| database::Error::Unavailable("it was not opened yet".to_owned()))
    }

    /// From now on there is a store.
    pub(crate) fn opened(&self, store: Database) {
        // A second one would be the same: only the keeper opens it.
        let _ = self.store.set(store);
    }

    /// Reads the store anew; call it after every own change, before it is answered.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::load`](crate::database::objects::Objects::load), and `Invalid` for a state that cannot be served here; the last
    /// snapshot stays.
    pub(crate) async fn refresh(&self) -> Result<(), database::Error> {
        let store = self.store()?;
        let loaded = store.objects().load().await?;
        let catalog = store.objects().judged(&loaded, When::Serving)?.catalog;
        let mut catalog = catalog.keeping(&self.current());
        let operators = loaded.objects.iter();
        let operators = operators.filter(|stored| stored.name.owner().is_none());
        // One that cannot be read opens nothing, and keeps nobody else out.
        let operator_keys = operators
            .filter_map(|stored| stored.operator_key().ok())
            .collect();
        // After what is declared: nothing of it is older than its tenant.
        let (issued, revocation) = self.newer_issued(store).await?;
        catalog.issued = issued;
        self.publish(Snapshot {
            version: Some(loaded.version),
            revocation,
            catalog: Arc::new(catalog),
            operator_keys,
        });
        self.asked.note(Instant::now());
        Ok(())
    }

    /// Reads what was issued and revoked since, and nothing else.
    ///
    /// # Errors
    ///
    /// Those of [`Database::issued`]; the last snapshot stays.
    pub(crate) async fn refresh_issued(&self) -> Result<(), database::Error> {
        let (issued, revocation) = self.newer_issued(self.store()?).await?;
        let shown = self.snapshot();
        self.publish(Snapshot {
            version: shown.version,
            revocation,
            catalog: Arc::new(Catalog {
                tenants: shown.catalog.tenants.clone(),
                issued,
            }),
            operator_keys: shown.operator_keys.clone(),
        });
        Ok(())
    }

    async fn newer_issued(&self, store: &Database) -> Result<(Arc<Issued>, i64), database::Error> {
        let shown = self.snapshot();
        let known = (&*shown.catalog.issued, shown.revocation);
        let (issued, revocation) = store.issued().newer(known).await?;
        Ok((Arc::new(issued), revocation))
    }

    /// Asks the store how far it has come, and follows what was revoked. Returns the number of
    /// the last change of what is declared.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn ask(&self) -> Result<i64, database::Error> {
        let asking = async {
            let reached = self.store()?.issued().reached().await?;
            if self.is_loaded() && self.snapshot().revocation < reached.revocation {
                self.refresh_issued().await?;
            }
            Ok(reached.version)
        };
        let late = || database::Error::Unavailable(format!("no answer within {ANSWER:?}"));
        let asked = tokio::time::timeout(ANSWER, asking).await;
        let asked = asked.unwrap_or_else(|_| Err(late()));
        if matches!(asked, Ok(_) | Err(database::Error::Unavailable(_))) {
            self.asked.note(Instant::now());
        }
        asked
    }

    /// Puts a snapshot in the place of an older one. What is declared and what is issued have
    /// numbers of their own: of each the newer one counts.
    fn publish(&self, mut new: Snapshot) {
        // Two refreshes may overtake each other: the watch's own lock puts them in order.
        self.changed.send_if_modified(|shown| {
            let is_declared_newer = new.version > shown.version;
            let is_issued_newer = new.revocation > shown.revocation;
            if !is_declared_newer && !is_issued_newer {
                return false;
            }
            if !is_issued_newer {
                new.revocation = shown.revocation;
                let issued = Arc::clone(&shown.catalog.issued);
                let tenants = new.catalog.tenants.clone();
                new.catalog = Arc::new(Catalog { tenants, issued });
            } else if !is_declared_newer {
                new.version = shown.version;
                new.operator_keys.clone_from(&shown.operator_keys);
                let issued = Arc::clone(&new.catalog.issued);
                let tenants = shown.catalog.tenants.clone();
                new.catalog = Arc::new(Catalog { tenants, issued });
            }
            let new = Arc::new(new);
            self.current.store(Arc::clone(&new));
            *shown = new;
            true
        });
    }
}

/// How long an answer of the store is waited for: with the time between two questions it stays
/// below [`MISSED`], so that a database that hangs is one that is away.
const ANSWER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::super::live::*;
    use crate::config::Format;
    use crate::{declare::PublicKey, manifest::reader::parse};

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

    #[test]
    fn what_is_declared_and_what_is_issued_have_numbers_of_their_own() {
        let live = Live::unread();
        let snapshot = |version, revocation, tenant: &str| {
            let key = |kid: String| PublicKey { kid, x: [0; 32] };
            let keys = [key(format!("of {revocation}"))].into();
            let issued = Issued {
                keys: HashMap::from([("a".to_owned(), keys)]),
                ..Issued::default()
            };
            let text = format!("tenants: {{{tenant}: {{auth: {{mode: none}}}}}}");
            let tenants = parse("F", &text, Format::Yaml, &BTreeMap::new());
            let tenants = tenants.unwrap().catalog.tenants;
            let issued = Arc::new(issued);
            Snapshot {
                version: Some(version),
                revocation,
                catalog: Arc::new(Catalog { tenants, issued }),
                operator_keys: OperatorKeys::new(),
            }
        };
        let shown = || {
            let shown = live.snapshot();
            let tenants: Vec<String> = shown.catalog.tenants.keys().cloned().collect();
            let kid = shown.catalog.issued.keys["a"][0].kid.clone();
            (shown.version, shown.revocation, tenants.join(" "), kid)
        };
        let is = |version, revocation, tenant: &str, kid: &str| {
            let wanted = (Some(version), revocation, tenant.to_owned(), kid.to_owned());
            assert_eq!(shown(), wanted);
        };
        live.publish(snapshot(1, 5, "one"));
        live.publish(snapshot(2, 4, "two"));
        is(2, 5, "two", "of 5");
        live.publish(snapshot(1, 6, "one"));
        is(2, 6, "two", "of 6");
        live.publish(snapshot(2, 6, "three"));
        is(2, 6, "two", "of 6");
        live.publish(snapshot(3, 7, "three"));
        is(3, 7, "three", "of 7");
    }

    #[test]
    fn who_stood_still_has_not_asked_lately() {
        let (asked, begin) = (Asked::never(), Instant::now());
        let noted = begin + Duration::from_secs(10);
        asked.note(noted);
        assert!(asked.is_recent_at(noted + MISSED - Duration::from_millis(5)));
        assert!(!asked.is_recent_at(noted + MISSED + Duration::from_millis(5)));
        // One that ends later than another does not undo it.
        asked.note(begin);
        assert!(asked.is_recent_at(noted + MISSED - Duration::from_millis(5)));
    }
}

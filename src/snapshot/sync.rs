//! The task that keeps database, snapshot and manifest file in step.
//!
//! Opens the database and retries while it is unreachable, applies the manifest whenever its file
//! changes and on request, and reads changes of other replicas. Not here: the tables (`database`), the reading of the
//! manifest (`manifest_file`), old rows and keys (`upkeep`).

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    current::{CurrentSnapshot, Polled, silent},
    manifest_file::{ManifestFile, ManifestWatch, Reply, Unread},
    upkeep::Upkeep,
};
use crate::{
    base::{HiddenPaths, Secret},
    config::{Config, Mistake},
    database::{self, Author, Database, Location, Opening},
    declare::Kind,
    manifest::Declaration,
    telemetry::StoreTimes,
};

/// A request to the task.
enum Command {
    /// To apply the manifest again; answered when that is done.
    Reload(Reply),
    /// To connect by another URL from now on.
    Reconnect(Secret),
}

/// How current the snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The database is reachable, and its state is served.
    Current,
    /// As `Current`, but the manifest is not applied, or not to every tenant.
    Unapplied,
    /// An older state of the database is served.
    Stale,
    /// No state was read yet.
    Empty,
}

/// A manifest that was refused, in whole or for some tenants: a missing program may be installed, and what
/// administrators have stored may change.
struct Refused {
    declaration: Declaration,
    /// Its mistakes, as they were logged.
    mistakes: Vec<String>,
    /// The tenants that stayed as they were; none if that are all.
    stayed: Option<BTreeSet<String>>,
    /// The time of the next try.
    until: Instant,
}

/// A state of the database that cannot be served here, in whole or in part. What is missing may come without a change of
/// it: the right master key, for instance.
struct Unserved {
    /// The number of its last change.
    version: i64,
    /// The reason, as it was logged.
    why: String,
    /// The time of the next look.
    until: Instant,
}

/// The result of a round.
enum Round {
    /// The state of the database is served.
    UpToDate,
    /// The state of the database cannot be served here; the error was logged once.
    Unservable,
}

/// Receives every change of [`Freshness`].
pub(crate) type Report = Box<dyn Fn(Freshness) + Send + Sync>;

/// Keeps a [`CurrentSnapshot`] up to date.
pub(crate) struct SnapshotSync {
    snapshot: Arc<CurrentSnapshot>,
    opening: Opening,
    manifest: Option<ManifestWatch>,
    /// The manifest that was refused last, until it is applied or another one is read.
    unapplied: Option<Refused>,
    /// The first round has ended: mistakes are logged from now on.
    is_started: bool,
    upkeep: Upkeep,
    /// The last error in the log; a repeated one is not logged.
    logged_error: String,
    /// The state that cannot be served here, until it can be.
    unserved: Option<Unserved>,
    commands: mpsc::Receiver<Command>,
    reloader: Reloader,
}

/// Gives the task of [`SnapshotSync`] something to do; a handle.
#[derive(Clone, Debug)]
pub(crate) struct Reloader(mpsc::Sender<Command>);

impl Reloader {
    /// Reads the manifest and the files that it names, applies it as at the start, and returns when
    /// that is done. Mistakes are logged, and the state before is served.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read for some seconds. It is applied once it can be.
    pub(crate) async fn reload(&self) -> Result<(), Unread> {
        let (done, end) = oneshot::channel();
        _ = self.0.send(Command::Reload(done)).await;
        // Without an answer the task has ended, and so does the gateway.
        end.await.unwrap_or(Ok(()))
    }

    /// Opens every further connection to PostgreSQL by this URL, which differs in its credentials
    /// only.
    pub(crate) async fn reconnect(&self, url: Secret) {
        _ = self.0.send(Command::Reconnect(url)).await;
    }
}

impl SnapshotSync {
    /// A task for the database of `opening`. Manifests read `${env:…}` from `env`, and the files
    /// that they name by `${file:…}` are added to `hidden`.
    pub(crate) fn new(
        snapshot: Arc<CurrentSnapshot>,
        opening: Opening,
        manifest: Option<ManifestFile>,
        (env, hidden): (BTreeMap<String, String>, HiddenPaths),
        config: &Config,
    ) -> Self {
        let (sender, commands) = mpsc::channel(1);
        Self {
            snapshot,
            opening,
            manifest: manifest.map(|manifest| ManifestWatch::new(manifest, env, hidden)),
            unapplied: None,
            is_started: false,
            upkeep: Upkeep::new(config),
            logged_error: String::new(),
            unserved: None,
            commands,
            reloader: Reloader(sender),
        }
    }

    /// The handle for requests.
    pub(crate) fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Runs the first round, before anything is served.
    ///
    /// # Errors
    ///
    /// Those that prevent the start. An unreachable server is not among them, as it may return; an
    /// unreachable file is, unless its state was read: of one on a full disk nothing can be removed.
    pub(crate) async fn start(&mut self) -> Result<(), database::Error> {
        let first = self.round(None).await;
        self.is_started = true;
        match first {
            // Others are served without what cannot be: a later release may refuse what administrators have stored.
            Err(database::Error::Invalid(mistakes)) if self.snapshot.is_loaded() => {
                self.log_once("store.away", &database::Error::Invalid(mistakes));
                Ok(())
            }
            Err(database::Error::Unavailable(why))
                if matches!(self.opening.location, Location::Url(_))
                    || self.snapshot.is_loaded() =>
            {
                self.log_once("store.away", &database::Error::Unavailable(why));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Runs rounds until `stop`.
    pub(crate) async fn run(mut self, report: Report, stop: CancellationToken) {
        let (sender, mut results) = watch::channel(None);
        let snapshot = Arc::clone(&self.snapshot);
        // Polls run beside the rounds, which may take long: revocations must take effect soon.
        let polling = stop.run_until_cancelled(poll_loop(&snapshot, &sender));
        let keeping = async {
            let (mut freshness, mut request) = (None, None::<Reply>);
            loop {
                let result = results.borrow_and_update().clone();
                let now = self.step(result).await;
                if freshness != Some(now) {
                    report(now);
                    freshness = Some(now);
                }
                if let Some(done) = request.take() {
                    _ = done.send(Ok(()));
                }
                tokio::select! {
                    () = stop.cancelled() => break,
                    Ok(()) = results.changed() => {}
                    // No arm waits: a round would be late, and so would be what another replica has ended.
                    read = changed(&mut self.manifest) => request = read,
                    Some(command) = self.commands.recv() => match command {
                        Command::Reload(done) => match &mut self.manifest {
                            Some(manifest) => manifest.reload(done),
                            None => request = Some(done),
                        },
                        Command::Reconnect(url) => self.reconnect(url),
                    },
                }
            }
        };
        tokio::join!(keeping, polling);
        if let Ok(database) = snapshot.database() {
            database.close().await;
        }
    }

    /// Runs a round after a poll, and returns how current the snapshot is.
    async fn step(&mut self, result: Option<Result<Polled, String>>) -> Freshness {
        let outcome = match result {
            Some(Err(why)) => {
                // Again: a round that ends only now was of an answer before.
                self.snapshot.last_poll().set_cut_off(true);
                Err(database::Error::Unavailable(why))
            }
            Some(Ok(polled)) => {
                let round = self.round(Some(polled.version)).await;
                // One that is always slow is not back between two polls, though its state is read.
                round.and_then(|round| {
                    if polled.is_late {
                        Err(silent())
                    } else {
                        Ok(round)
                    }
                })
            }
            None => self.round(None).await,
        };
        match &outcome {
            Ok(Round::UpToDate) if !self.logged_error.is_empty() => {
                self.logged_error.clear();
                tracing::info!(event = "store.back", "the database answers again");
            }
            Ok(_) => {}
            Err(failure) => self.log_once("store.away", failure),
        }
        match &outcome {
            Ok(Round::UpToDate) if self.is_unapplied() => Freshness::Unapplied,
            Ok(Round::UpToDate) => Freshness::Current,
            _ if self.snapshot.is_loaded() => Freshness::Stale,
            _ => Freshness::Empty,
        }
    }

    /// Runs one round: opens the database, applies the manifest, reads changes (also while it is applied), then does the
    /// upkeep.
    /// `version` is that of the database, if it was just polled.
    async fn round(&mut self, version: Option<i64>) -> Result<Round, database::Error> {
        if self.snapshot.database().is_err() {
            let database = Database::open(self.opening.clone()).await?;
            self.snapshot.set_database(database);
        }
        let snapshot = Arc::clone(&self.snapshot);
        let database = snapshot.database()?;
        let is_applied = CancellationToken::new();
        let applying = Box::pin(async {
            let applied = self.apply(database).await;
            is_applied.cancel();
            applied
        });
        // The removal of a tenant may take minutes. A read may be given up at any moment, the apply never.
        let reading = Box::pin(read_beside(&snapshot, database));
        let reading = is_applied.run_until_cancelled(reading);
        let (applied, _) = tokio::join!(applying, reading);
        let (is_changed, unwritten) = match applied {
            Ok(is_changed) => (is_changed, None),
            // What cannot be written may be read all the same: a server that only reads, or a lock.
            Err(failure) if self.snapshot.is_loaded() => (false, Some(failure)),
            Err(failure) => return Err(failure),
        };
        if self.unapplied.is_some() && !self.snapshot.is_loaded() {
            let tenants = database.objects().list(Kind::Tenant, None, None, 1);
            // A start without a database is over. Everything would be 404, and clients give up.
            if tenants.await?.is_empty() {
                return Ok(Round::Unservable);
            }
        }
        let version = match version {
            Some(version) if !is_changed => version,
            _ => database.followed_objects().version().await?,
        };
        let read = self.read(version).await;
        let is_cut_off = matches!(read, Err(database::Error::Unavailable(_)));
        self.snapshot.last_poll().set_cut_off(is_cut_off);
        read?;
        if let Some(failure) = unwritten {
            return Err(failure);
        }
        let served = self.snapshot.load();
        if served.version < Some(version) {
            return Ok(Round::Unservable);
        }
        // That of all tenants, also while one cannot be served.
        self.upkeep.run(database, &served.catalog).await?;
        if served.is_partial {
            return Ok(Round::Unservable);
        }
        Ok(Round::UpToDate)
    }

    /// Reads the state of `version` if it is newer than what is served, or, at intervals, if it is not served whole. A
    /// reason that is known is no error.
    async fn read(&mut self, version: i64) -> Result<(), database::Error> {
        let served = self.snapshot.load();
        let is_behind = served.version < Some(version);
        if !is_behind && !served.is_partial {
            self.unserved = None;
            return Ok(());
        }
        let is_early = |known: &Unserved| {
            let is_same = !is_behind || known.version == version;
            is_same && Instant::now() < known.until
        };
        if self.unserved.as_ref().is_some_and(is_early) {
            return Ok(());
        }
        let known = self.unserved.take();
        match self.snapshot.refresh().await {
            Err(
                failure @ (database::Error::Invalid(_)
                | database::Error::File(_)
                | database::Error::Bug(_)),
            ) => {
                let why = failure.to_string();
                let is_known = known.is_some_and(|known| known.why == why);
                let until = Instant::now() + RETRY;
                self.unserved = Some(Unserved {
                    version,
                    why,
                    until,
                });
                if is_known { Ok(()) } else { Err(failure) }
            }
            refreshed => refreshed,
        }
    }

    /// Whether the manifest is not applied, or not to every tenant, or has mistakes, or cannot be read.
    fn is_unapplied(&self) -> bool {
        let manifest = self.manifest.as_ref();
        self.unapplied.is_some() || manifest.is_some_and(ManifestWatch::is_behind)
    }

    /// Where the durations of the database's operations are recorded.
    pub(crate) fn times(&self) -> &StoreTimes {
        &self.opening.times
    }

    /// Applies the pending manifest, if any, or tries again one that was refused. A mistake that it has whatever is
    /// stored is an error at the start only.
    async fn apply(&mut self, database: &Database) -> Result<bool, database::Error> {
        let Some(mut due) = self.due() else {
            return Ok(false);
        };
        let Some(manifest) = &self.manifest else {
            return Ok(false);
        };
        let (author, objects) = (Author::named("manifest"), database.objects());
        let by = (&author, due.stayed.as_ref());
        let applied = objects.apply_apart(&due.declaration.declared, manifest.prune, by);
        let file = manifest.file().display();
        let placed = |mistake: &Mistake| placed(&due.declaration, mistake);
        let mut stayed = due.stayed.clone();
        let mistakes: Vec<String> = match applied.await {
            Err(database::Error::Unavailable(why)) => {
                self.put_back(due);
                return Err(database::Error::Unavailable(why));
            }
            Ok(done) => {
                for change in &done.changes {
                    tracing::info!(event = "manifest.applied", %file, "{change}");
                }
                stayed = Some(done.stayed);
                if let Some(failure) = done.failure {
                    due.stayed = stayed;
                    self.put_back(due);
                    return Err(failure);
                }
                let mistakes = done.mistakes.iter().map(placed);
                mistakes.map(|mistake| mistake.to_string()).collect()
            }
            Err(database::Error::Invalid(mistakes)) => {
                let mistakes = mistakes.iter().map(placed);
                if !self.is_started {
                    return Err(database::Error::Invalid(mistakes.collect()));
                }
                mistakes.map(|mistake| mistake.to_string()).collect()
            }
            Err(failure) if !self.is_started => return Err(failure),
            Err(failure) => vec![failure.to_string()],
        };
        for mistake in mistakes.iter().filter(|_| mistakes != due.mistakes) {
            tracing::error!(event = "manifest.refused", %file, "{mistake}");
        }
        if !mistakes.is_empty() {
            due.mistakes = mistakes;
            due.stayed = stayed;
            due.until = Instant::now() + RETRY;
            self.unapplied = Some(due);
        }
        Ok(true)
    }

    /// What is to be applied now.
    fn due(&mut self) -> Option<Refused> {
        let manifest = self.manifest.as_mut()?;
        match (manifest.pending.take(), self.unapplied.take()) {
            (Some(declaration), _) => Some(Refused {
                declaration,
                mistakes: Vec::new(),
                stayed: None,
                until: Instant::now(),
            }),
            // What the file was before its mistakes is not tried again.
            (None, Some(refused))
                if refused.until <= Instant::now() && !manifest.has_mistakes() =>
            {
                Some(refused)
            }
            (None, refused) => {
                self.unapplied = refused;
                None
            }
        }
    }

    /// Keeps what could not be applied, or not whole, because the database is away.
    fn put_back(&mut self, due: Refused) {
        match &mut self.manifest {
            Some(manifest) if due.mistakes.is_empty() && due.stayed.is_none() => {
                manifest.pending = Some(due.declaration);
            }
            _ => self.unapplied = Some(due),
        }
    }

    /// Uses another URL for every further connection.
    fn reconnect(&mut self, url: Secret) {
        if let Ok(database) = self.snapshot.database() {
            database.reconnect(&url);
        }
        self.opening.location = Location::Url(url);
    }

    fn log_once(&mut self, event: &'static str, failure: &database::Error) {
        let text = failure.to_string();
        if text != self.logged_error {
            tracing::error!(event, "{text}");
            self.logged_error = text;
        }
    }
}

/// Polls the database in a loop, and sends each result to `sender`.
async fn poll_loop(
    snapshot: &CurrentSnapshot,
    sender: &watch::Sender<Option<Result<Polled, String>>>,
) {
    let told = |failure| match failure {
        database::Error::Unavailable(why) => why,
        other => other.to_string(),
    };
    loop {
        let began = Instant::now();
        // The rounds open the database. Until then there is no result: an error of the time before
        // would be stale by then.
        let result = if snapshot.database().is_ok() {
            let on_silence = || {
                snapshot.last_poll().set_cut_off(true);
                sender.send_replace(Some(Err(told(silent()))));
            };
            let polled = snapshot.follow(on_silence).await;
            if polled.is_err() {
                snapshot.last_poll().set_cut_off(true);
            }
            Some(polled.map_err(told))
        } else {
            None
        };
        sender.send_replace(result);
        // A poll follows even if no replica announces a change, only later.
        let _ = timeout_at(began + POLL_INTERVAL, snapshot.woken()).await;
    }
}

/// Reads the changes of other replicas at intervals, beside a manifest that is applied. The next round reports a state
/// that cannot be served, and tries again after an error.
async fn read_beside(snapshot: &CurrentSnapshot, database: &Database) {
    let mut unserved = None;
    loop {
        sleep(POLL_INTERVAL).await;
        // The first state is read behind the manifest.
        if !snapshot.is_loaded() {
            continue;
        }
        let Ok(version) = database.followed_objects().version().await else {
            continue;
        };
        if unserved == Some(version) {
            continue;
        }
        let read = if snapshot.load().version >= Some(version) {
            Ok(())
        } else {
            Box::pin(snapshot.refresh_to(version)).await
        };
        unserved = match read {
            Ok(()) => {
                // A poll that was silent is over, though the round of it is not.
                snapshot.last_poll().set_cut_off(false);
                None
            }
            Err(database::Error::Unavailable(_)) => None,
            // It stays so until another change.
            Err(_) => Some(version),
        };
    }
}

/// The mistake at its place in the manifest.
fn placed(pending: &Declaration, mistake: &Mistake) -> Mistake {
    let manifest = &pending.manifest;
    manifest.mistake(&mistake.key, mistake.what.as_str(), &mistake.remedy)
}

/// Waits for the manifest, if there is one, as [`ManifestWatch::changed`] does.
async fn changed(manifest: &mut Option<ManifestWatch>) -> Option<Reply> {
    match manifest {
        Some(manifest) => manifest.changed().await,
        None => future::pending().await,
    }
}

/// The time from the begin of a poll to that of the next one, for changes that no other replica
/// announces.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// The time from a refusal, of a manifest or of a state, to the next try.
const RETRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::{runtime::Handle, time::timeout};

    use super::super::{manifest_file::Pace, sync::*};
    use crate::base::FileStamp;
    use crate::config::{Format, Sources};
    use crate::database::Expected;
    use crate::declare::{Kind, Object, ObjectName, Prune};
    use crate::manifest::{Manifest, objects};

    fn empty() -> (BTreeMap<String, String>, HiddenPaths) {
        (BTreeMap::new(), HiddenPaths::new([]))
    }

    /// The task of an empty database, without a manifest.
    fn opened() -> (tempfile::TempDir, SnapshotSync) {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::load(&Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
            ..Sources::default()
        })
        .unwrap();
        let snapshot = CurrentSnapshot::empty();
        let judge = Arc::new(|_: &_, _| Vec::new());
        let opening = Opening::of(&config, judge, snapshot.clock().clone());
        let sync = SnapshotSync::new(snapshot, opening, None, empty(), &config);
        (dir, sync)
    }

    /// Changes rows as no gateway does.
    async fn run(snapshot: &CurrentSnapshot, statement: &'static str) {
        let objects = snapshot.database().unwrap().objects();
        let mut transaction = objects.pool.begin().await.unwrap();
        transaction.run(statement, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
    }

    async fn put(snapshot: &CurrentSnapshot, tenant: &str, json: serde_json::Value) {
        let object = Object::new(Kind::Tenant, json.as_object().unwrap().clone());
        let (name, author) = (ObjectName::tenant(tenant), Author::named("x"));
        let objects = snapshot.database().unwrap().objects();
        let put = objects.put(&name, object, Expected::Any, &author).await;
        put.unwrap();
    }

    /// One tenant's administrator could keep expired rows, and old keys, of all tenants.
    #[tokio::test]
    async fn upkeep_goes_on_while_a_tenant_cannot_be_served() {
        let (_dir, mut sync) = opened();
        sync.start().await.unwrap();
        let snapshot = Arc::clone(&sync.snapshot);
        put(
            &snapshot,
            "a",
            serde_json::json!({"auth": {"mode": "none"}}),
        )
        .await;
        put(
            &snapshot,
            "b",
            serde_json::json!({"auth": {"mode": "builtin"}}),
        )
        .await;
        run(&snapshot, SPOIL).await;
        assert!(sync.round(None).await.is_err(), "it is told once");
        assert!(matches!(sync.round(None).await, Ok(Round::Unservable)));
        snapshot.refresh_issued().await.unwrap();
        let keys = &snapshot.catalog().issued.keys;
        assert!(keys.contains_key("b"), "its signing key was made");
    }

    /// They were final refusals of what another replica served.
    #[tokio::test]
    async fn what_is_not_known_while_the_database_cannot_be_read_may_exist() {
        let (_dir, mut sync) = opened();
        sync.start().await.unwrap();
        let snapshot = Arc::clone(&sync.snapshot);
        assert!(snapshot.is_complete());
        sync.step(Some(Err("it is away".to_owned()))).await;
        assert!(snapshot.is_loaded() && !snapshot.is_complete());
        // Not at its first answer: what was declared meanwhile is read by then.
        snapshot.follow(|| {}).await.unwrap();
        assert!(!snapshot.is_complete());
        sync.step(None).await;
        assert!(snapshot.is_complete());
    }

    const SPOIL: &str =
        "UPDATE tenants SET spec = '{\"auth\":{\"mode\":\"odd\"}}' WHERE name = 'a'";
    const MEND: &str =
        "UPDATE tenants SET spec = '{\"auth\":{\"mode\":\"none\"}}' WHERE name = 'a'";

    /// A tenant that could be served again was not before the next change of any.
    #[tokio::test]
    async fn a_state_that_is_not_served_whole_is_looked_at_again() {
        let (_dir, mut sync) = opened();
        sync.start().await.unwrap();
        let snapshot = Arc::clone(&sync.snapshot);
        for tenant in ["a", "b"] {
            let none = serde_json::json!({"auth": {"mode": "none"}});
            put(&snapshot, tenant, none).await;
        }
        run(&snapshot, SPOIL).await;
        assert!(sync.round(None).await.is_err());
        let is_due = |sync: &mut SnapshotSync| {
            sync.unserved.as_mut().unwrap().until = Instant::now();
        };
        is_due(&mut sync);
        let told = sync.round(None).await;
        assert!(matches!(told, Ok(Round::Unservable)), "it is told again");
        run(&snapshot, MEND).await;
        let early = sync.round(None).await;
        assert!(matches!(early, Ok(Round::Unservable)), "it is read always");
        is_due(&mut sync);
        assert!(matches!(sync.round(None).await, Ok(Round::UpToDate)));
        assert!(snapshot.catalog().tenants.contains_key("a"));
    }

    /// A gateway that served from a full disk did not start on it again.
    #[tokio::test]
    async fn a_start_goes_on_where_the_upkeep_alone_fails() {
        let (_dir, mut sync) = opened();
        let snapshot = Arc::clone(&sync.snapshot);
        snapshot.set_database(Database::open(sync.opening.clone()).await.unwrap());
        run(&snapshot, "PRAGMA query_only = 1").await;
        sync.start().await.unwrap();
        assert!(snapshot.is_loaded());
        assert!(!sync.logged_error.is_empty(), "it is told");
    }

    /// A file system of the network whose server is away, for instance.
    #[tokio::test]
    async fn a_manifest_whose_file_system_hangs_stops_no_round() {
        let (dir, mut sync) = opened();
        let snapshot = Arc::clone(&sync.snapshot);
        let manifest = ManifestFile {
            file: dir.path().join("manifest.yaml"),
            pending: None,
            digest: None,
            prune: Prune::Keep,
        };
        let short = Duration::from_millis(50);
        let pace = Pace {
            settle: short,
            interval: short,
            patience: short,
        };
        let (open, gate) = watch::channel(false);
        let (begin, mut begun) = watch::channel(false);
        let runtime = Handle::current();
        let hangs = move |file: &Path| {
            begin.send_replace(true);
            let mut gate = gate.clone();
            // The end of the test opens it.
            _ = runtime.block_on(gate.wait_for(|is_open| *is_open));
            FileStamp::now(file)
        };
        let watch = ManifestWatch::with(manifest, empty(), pace, Arc::new(hangs));
        sync.manifest = Some(watch);
        sync.start().await.unwrap();
        let (reloader, stop) = (sync.reloader(), CancellationToken::new());
        let mut changes = snapshot.subscribe();
        let (reported, mut freshness) = watch::channel(None);
        let story = async {
            begun.wait_for(|has_begun| *has_begun).await.unwrap();
            // As by another replica: this one is not told.
            put(
                &snapshot,
                "a",
                serde_json::json!({"auth": {"mode": "none"}}),
            )
            .await;
            let read = changes.wait_for(|read| read.catalog.tenants.contains_key("a"));
            read.await.unwrap();
            assert_eq!(reloader.reload().await, Err(Unread::Silent));
            // What it declares may not be what is served.
            let told = freshness.wait_for(|now| *now == Some(Freshness::Unapplied));
            told.await.unwrap();
            stop.cancel();
        };
        let report = move |now| _ = reported.send_replace(Some(now));
        let running = sync.run(Box::new(report), stop.clone());
        let both = Box::pin(async { tokio::join!(running, story) });
        timeout(Duration::from_secs(60), both)
            .await
            .expect("within a minute");
        drop(open);
    }

    /// A deleted key stayed good for as long as a manifest could not be written.
    #[tokio::test]
    async fn changes_of_others_are_read_while_a_manifest_cannot_be_written() {
        let (dir, mut sync) = opened();
        let manifest = ManifestFile {
            file: dir.path().join("manifest.yaml"),
            pending: None,
            digest: None,
            prune: Prune::Keep,
        };
        let (env, hidden) = empty();
        sync.manifest = Some(ManifestWatch::new(manifest, env, hidden));
        sync.start().await.unwrap();
        let snapshot = Arc::clone(&sync.snapshot);
        let other = CurrentSnapshot::empty();
        other.set_database(Database::open(sync.opening.clone()).await.unwrap());
        run(&snapshot, "PRAGMA query_only = 1").await;
        let text = "tenants: {a: {auth: {mode: none}}}";
        sync.put_back(Refused {
            declaration: objects::parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap(),
            mistakes: Vec::new(),
            stayed: None,
            until: Instant::now(),
        });
        let none = serde_json::json!({"auth": {"mode": "none"}});
        put(&other, "b", none).await;
        snapshot.last_poll().set_cut_off(true);
        let round = sync.round(None).await;
        assert!(matches!(round, Err(database::Error::Unavailable(_))));
        let tenants = &snapshot.catalog().tenants;
        assert!(tenants.contains_key("b") && !tenants.contains_key("a"));
        assert!(snapshot.is_complete());
    }

    /// A key that another replica had removed stayed good for minutes, while a manifest removed a large tenant.
    #[tokio::test]
    async fn changes_of_others_are_read_while_a_manifest_is_applied() {
        let (dir, mut sync) = opened();
        let manifest = ManifestFile {
            file: dir.path().join("manifest.yaml"),
            pending: None,
            digest: None,
            prune: Prune::Keep,
        };
        let (env, hidden) = empty();
        sync.manifest = Some(ManifestWatch::new(manifest, env, hidden));
        let (open, gate) = watch::channel(false);
        let (begin, mut begun) = watch::channel(false);
        let runtime = Handle::current();
        // The apply hangs in its check of `a`.
        sync.opening.judge = Arc::new(move |manifest: &Manifest, _| {
            if manifest.catalog.tenants.contains_key("a") {
                begin.send_replace(true);
                let mut gate = gate.clone();
                _ = runtime.block_on(gate.wait_for(|is_open| *is_open));
            }
            Vec::new()
        });
        sync.start().await.unwrap();
        let snapshot = Arc::clone(&sync.snapshot);
        let other = CurrentSnapshot::empty();
        other.set_database(Database::open(sync.opening.clone()).await.unwrap());
        let text = "tenants: {a: {auth: {mode: none}}}";
        sync.put_back(Refused {
            declaration: objects::parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap(),
            mistakes: Vec::new(),
            stayed: None,
            until: Instant::now(),
        });
        let mut changes = snapshot.subscribe();
        let story = async {
            begun.wait_for(|has_begun| *has_begun).await.unwrap();
            let none = serde_json::json!({"auth": {"mode": "none"}});
            put(&other, "b", none).await;
            let read = changes.wait_for(|read| read.catalog.tenants.contains_key("b"));
            read.await.unwrap();
            open.send_replace(true);
        };
        let both = Box::pin(async { tokio::join!(sync.round(None), story) });
        let both = timeout(Duration::from_secs(60), both).await;
        let (round, ()) = both.expect("within a minute");
        assert!(matches!(round, Ok(Round::UpToDate)));
        let tenants = &snapshot.catalog().tenants;
        assert!(tenants.contains_key("a") && tenants.contains_key("b"));
    }

    /// A manifest of which a part is applied was applied whole again, over what administrators had changed since.
    #[tokio::test]
    async fn only_what_is_left_of_a_manifest_is_tried_again() {
        let (dir, mut sync) = opened();
        let text = "tenants: {a: {auth: {mode: none}}, b: {auth: {mode: none}}}";
        let read = || objects::parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap();
        let manifest = ManifestFile {
            file: dir.path().join("manifest.yaml"),
            pending: None,
            digest: None,
            prune: Prune::Remove,
        };
        let (env, hidden) = empty();
        sync.manifest = Some(ManifestWatch::new(manifest, env, hidden));
        sync.start().await.unwrap();
        let due = |stayed| Refused {
            declaration: read(),
            mistakes: Vec::new(),
            stayed,
            until: Instant::now(),
        };
        let snapshot = Arc::clone(&sync.snapshot);
        sync.put_back(due(Some(BTreeSet::from(["b".to_owned()]))));
        sync.round(None).await.unwrap();
        let tenants = || {
            snapshot
                .catalog()
                .tenants
                .keys()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(tenants(), ["b"]);
        sync.put_back(due(None));
        sync.round(None).await.unwrap();
        assert_eq!(tenants().len(), 2);
    }
}

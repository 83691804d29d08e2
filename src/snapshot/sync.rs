//! The task that keeps database, snapshot and manifest file in step.
//!
//! Opens the database and retries while it is unreachable, applies the manifest whenever its file
//! changes and on request, and reads changes of other replicas. Not here: the tables (`database`), old rows and keys
//! (`upkeep`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::AccessKind};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    current::{CurrentSnapshot, Polled, silent},
    upkeep::Upkeep,
};
use crate::{
    base::{
        FileLooks, FileStamp, HiddenPaths, LOOK_INTERVAL, MANIFEST_MAX, Secret, WatchedFiles,
        content,
    },
    config::{Config, Mistake},
    database::{self, Author, Database, Location, Opening},
    declare::{Kind, Prune},
    manifest::{Declaration, objects},
    telemetry::StoreTimes,
};

/// A manifest file, applied at the start and whenever it changes.
#[derive(Debug)]
pub(crate) struct ManifestFile {
    /// Its path.
    pub(crate) file: PathBuf,
    /// The declaration that was read last, until it is applied.
    pub(crate) pending: Option<Declaration>,
    /// The content when the file was read last, before `pending` was parsed from it.
    pub(crate) text: Option<Vec<u8>>,
    /// The looks at the file.
    pub(crate) looks: FileLooks,
    /// The treatment of objects that the manifest does not declare.
    pub(crate) prune: Prune,
}

/// A request to the task.
enum Command {
    /// To apply the manifest again; answered when that is done.
    Reload(oneshot::Sender<()>),
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
    /// The time of the next try.
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
    manifest: Option<ManifestFile>,
    /// The manifest that was refused last, until it is applied or another one is read.
    unapplied: Option<Refused>,
    /// The first round has ended: mistakes are logged from now on.
    is_started: bool,
    env: BTreeMap<String, String>,
    /// Paths that are hidden from children; files that a manifest reads are added.
    hidden: HiddenPaths,
    upkeep: Upkeep,
    /// The last error in the log; a repeated one is not logged.
    logged_error: String,
    /// The last change that cannot be served here; it is not read again.
    refused: Option<i64>,
    /// The files that the manifest refers to.
    referenced: WatchedFiles,
    /// The mistakes that the manifest had when it was read last, as they were logged.
    mistakes: Vec<String>,
    commands: mpsc::Receiver<Command>,
    reloader: Reloader,
}

/// Gives the task of [`SnapshotSync`] something to do; a handle.
#[derive(Clone, Debug)]
pub(crate) struct Reloader(mpsc::Sender<Command>);

impl Reloader {
    /// Reads the manifest and the files that it names, applies it as at the start, and returns when
    /// that is done. Mistakes are logged, and the state before is served.
    pub(crate) async fn reload(&self) {
        let (done, end) = oneshot::channel();
        if self.0.send(Command::Reload(done)).await.is_ok() {
            _ = end.await;
        }
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
        let pending = manifest.as_ref().and_then(|one| one.pending.as_ref());
        let referenced = pending.map(|read| read.files.clone()).unwrap_or_default();
        hidden.add(referenced.keys());
        let (sender, commands) = mpsc::channel(1);
        Self {
            snapshot,
            opening,
            manifest,
            unapplied: None,
            is_started: false,
            env,
            hidden,
            upkeep: Upkeep::new(config),
            logged_error: String::new(),
            refused: None,
            referenced: WatchedFiles::new(referenced),
            mistakes: Vec::new(),
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
    /// unreachable file is.
    pub(crate) async fn start(&mut self) -> Result<(), database::Error> {
        let first = self.round(None).await;
        self.is_started = true;
        match first {
            Err(database::Error::Unavailable(why))
                if matches!(self.opening.location, Location::Url(_)) =>
            {
                self.log_once("store.away", &database::Error::Unavailable(why));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Runs rounds until `stop`.
    pub(crate) async fn run(mut self, report: Report, stop: CancellationToken) {
        let (news, mut changed) = mpsc::channel(1);
        let file = self.manifest.as_ref().map(|manifest| manifest.file.clone());
        let _watcher = file.as_deref().and_then(|file| watch_file(file, news));
        // A change between the first read and the watch counts too. An unchanged file does not:
        // applied again, it would undo the changes of administrators since the gateway listens.
        self.reread_manifest();
        let (sender, mut results) = watch::channel(None);
        let snapshot = Arc::clone(&self.snapshot);
        // Polls run beside the rounds, which may take long: revocations must take effect soon.
        let polling = stop.run_until_cancelled(poll_loop(&snapshot, &sender));
        let keeping = async {
            let (mut freshness, mut request) = (None, None::<oneshot::Sender<()>>);
            let mut looks = interval(LOOK_INTERVAL);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let result = results.borrow_and_update().clone();
                let now = self.step(result).await;
                if freshness != Some(now) {
                    report(now);
                    freshness = Some(now);
                }
                if let Some(done) = request.take() {
                    _ = done.send(());
                }
                tokio::select! {
                    () = stop.cancelled() => break,
                    Ok(()) = results.changed() => {}
                    Some(()) = changed.recv() => {
                        let settled = stop.run_until_cancelled(self.settled_manifest());
                        if settled.await.is_none() {
                            break;
                        }
                    }
                    _ = looks.tick() => {
                        let looking = async {
                            self.look_at_manifest().await;
                            self.look_at_files().await;
                        };
                        if stop.run_until_cancelled(looking).await.is_none() {
                            break;
                        }
                    }
                    Some(command) = self.commands.recv() => match command {
                        Command::Reload(done) => {
                            self.mistakes.clear();
                            self.load_manifest();
                            request = Some(done);
                        }
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
            Some(Err(why)) => Err(database::Error::Unavailable(why)),
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
            Ok(Round::UpToDate) if self.unapplied.is_some() => Freshness::Unapplied,
            Ok(Round::UpToDate) => Freshness::Current,
            _ if self.snapshot.is_loaded() => Freshness::Stale,
            _ => Freshness::Empty,
        }
    }

    /// Runs one round: opens the database, applies the manifest, reads changes, then does the upkeep.
    /// `version` is that of the database, if it was just polled.
    async fn round(&mut self, version: Option<i64>) -> Result<Round, database::Error> {
        if self.snapshot.database().is_err() {
            let database = Database::open(self.opening.clone()).await?;
            self.snapshot.set_database(database);
        }
        let snapshot = Arc::clone(&self.snapshot);
        let database = snapshot.database()?;
        let is_changed = self.apply(database).await?;
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
        if self.snapshot.load().version < Some(version) {
            if self.refused == Some(version) {
                return Ok(Round::Unservable);
            }
            let refreshed = self.snapshot.refresh().await;
            if matches!(
                refreshed,
                Err(database::Error::Invalid(_) | database::Error::Bug(_))
            ) {
                self.refused = Some(version);
            }
            refreshed?;
        }
        if self.snapshot.load().is_partial {
            return Ok(Round::Unservable);
        }
        let catalog = self.snapshot.catalog();
        self.upkeep.run(database, &catalog).await?;
        Ok(Round::UpToDate)
    }

    /// Where the durations of the database's operations are recorded.
    pub(crate) fn times(&self) -> &StoreTimes {
        &self.opening.times
    }

    /// Applies the pending manifest, if any, or tries again one that was refused. A mistake that it has whatever is
    /// stored is an error at the start only.
    async fn apply(&mut self, database: &Database) -> Result<bool, database::Error> {
        let Some(manifest) = &mut self.manifest else {
            return Ok(false);
        };
        let (declaration, known) = match (manifest.pending.take(), self.unapplied.take()) {
            (Some(pending), _) => (pending, Vec::new()),
            // What the file was before its mistakes is not tried again.
            (None, Some(refused))
                if refused.until <= Instant::now() && self.mistakes.is_empty() =>
            {
                (refused.declaration, refused.mistakes)
            }
            (None, refused) => {
                self.unapplied = refused;
                return Ok(false);
            }
        };
        let author = Author::named("manifest");
        let objects = database.objects();
        let applied = objects.apply_apart(&declaration.declared, manifest.prune, &author);
        let file = manifest.file.display();
        let mistakes: Vec<String> = match applied.await {
            Err(database::Error::Unavailable(why)) => {
                manifest.pending = Some(declaration);
                return Err(database::Error::Unavailable(why));
            }
            Ok((changes, mistakes)) => {
                for change in &changes {
                    tracing::info!(event = "manifest.applied", %file, "{change}");
                }
                let placed = mistakes.iter().map(|mistake| placed(&declaration, mistake));
                placed.map(|mistake| mistake.to_string()).collect()
            }
            Err(database::Error::Invalid(mistakes)) => {
                let placed = mistakes.iter().map(|mistake| placed(&declaration, mistake));
                if !self.is_started {
                    return Err(database::Error::Invalid(placed.collect()));
                }
                placed.map(|mistake| mistake.to_string()).collect()
            }
            Err(failure) if !self.is_started => return Err(failure),
            Err(failure) => vec![failure.to_string()],
        };
        for mistake in mistakes.iter().filter(|_| mistakes != known) {
            tracing::error!(event = "manifest.refused", %file, "{mistake}");
        }
        self.unapplied = (!mistakes.is_empty()).then(|| Refused {
            declaration,
            mistakes,
            until: Instant::now() + RETRY,
        });
        Ok(true)
    }

    /// Reads the manifest again once its file stays as it is for a while: it may be written in several steps, and
    /// a part of it would be another manifest.
    async fn settled_manifest(&mut self) {
        let Some(manifest) = &self.manifest else {
            return;
        };
        let (file, settle) = match manifest.prune {
            Prune::Keep => (manifest.file.clone(), SETTLE),
            // What is not there yet would be removed for good.
            Prune::Remove => (manifest.file.clone(), SETTLE * 10),
        };
        let mut before = FileStamp::now(&file);
        for _ in 0..SETTLES {
            sleep(settle).await;
            let now = FileStamp::now(&file);
            if now == before {
                return self.reread_manifest();
            }
            before = now;
        }
        // A later look finds it when it is whole.
    }

    /// Reads the manifest again if two looks find its file otherwise than the last reading: the folder of a file
    /// that is mounted alone, or behind a link, tells nothing of its changes.
    async fn look_at_manifest(&mut self) {
        let Some(manifest) = &mut self.manifest else {
            return;
        };
        // The file system may not answer.
        let file = manifest.file.clone();
        let look = spawn_blocking(move || FileStamp::now(&file));
        let Ok(now) = look.await else {
            return;
        };
        if manifest.looks.has_settled(now) {
            self.reread_manifest();
        }
    }

    /// Reads the manifest again if its file has changed.
    fn reread_manifest(&mut self) {
        let Some(manifest) = &self.manifest else {
            return;
        };
        if read(&manifest.file) == manifest.text {
            let file = manifest.file.display();
            tracing::debug!(event = "manifest.unchanged", %file, "the manifest is as it was");
            return;
        }
        self.mistakes.clear();
        self.load_manifest();
    }

    /// Reads the manifest again if a file that it refers to has changed. One with mistakes is read
    /// again at every look, because a missing file may have come.
    async fn look_at_files(&mut self) {
        let changed = self.referenced.look().await;
        for file in &changed {
            let file = file.display();
            tracing::info!(event = "manifest.file_changed", %file, "a file of the manifest changed");
        }
        if !changed.is_empty() || !self.mistakes.is_empty() {
            self.load_manifest();
        }
    }

    /// Reads the manifest, and the files that it names.
    fn load_manifest(&mut self) {
        let Some(manifest) = &mut self.manifest else {
            return;
        };
        manifest.text = read(&manifest.file);
        match objects::load(&manifest.file, &self.env) {
            Ok(read) => {
                // Before any child starts with their content.
                self.hidden.add(read.files.keys());
                self.referenced = WatchedFiles::new(read.files.clone());
                self.mistakes.clear();
                manifest.pending = Some(read);
            }
            Err(mistakes) => {
                let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                if texts != self.mistakes {
                    log_mistakes(&mistakes);
                    self.mistakes = texts;
                }
            }
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
            let on_silence = || _ = sender.send_replace(Some(Err(told(silent()))));
            Some(snapshot.follow(on_silence).await.map_err(told))
        } else {
            None
        };
        sender.send_replace(result);
        // A poll follows even if no replica announces a change, only later.
        let _ = timeout_at(began + POLL_INTERVAL, snapshot.woken()).await;
    }
}

/// The mistake at its place in the manifest.
fn placed(pending: &Declaration, mistake: &Mistake) -> Mistake {
    let manifest = &pending.manifest;
    manifest.mistake(&mistake.key, mistake.what.as_str(), &mistake.remedy)
}

fn log_mistakes(mistakes: &[Mistake]) {
    for mistake in mistakes {
        tracing::error!(event = "manifest.refused", "{mistake}");
    }
}

fn read(file: &Path) -> Option<Vec<u8>> {
    content(file, MANIFEST_MAX).ok()
}

/// Sends to `news` on every event in the folder of `file`: editors and orchestrators replace the
/// file, or a link to it.
fn watch_file(file: &Path, news: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        // Reads are events too, including those of this process.
        let is_read = |kind: &EventKind| {
            let write = EventKind::Access(AccessKind::Close(notify::event::AccessMode::Write));
            matches!(kind, EventKind::Access(_)) && *kind != write
        };
        if event.is_ok_and(|event| !is_read(&event.kind)) {
            // If the channel is full, a message is waiting already that causes a read.
            let _ = news.try_send(());
        }
    };
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let watching = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    let log = |error: &notify::Error| {
        let file = file.display();
        tracing::warn!(event = "manifest.unwatched", %file, "cannot watch the manifest: {error}");
    };
    watching.inspect_err(log).ok()
}

/// The time from the begin of a poll to that of the next one, for changes that no other replica
/// announces.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// The time from a refusal of a manifest to the next try.
const RETRY: Duration = Duration::from_secs(10);
/// The time for which a file that is being written stays as it is at most.
const SETTLE: Duration = Duration::from_millis(200);
/// How often that is waited for.
const SETTLES: usize = 10;

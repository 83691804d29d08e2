//! The task that keeps snapshot, store and manifest file in step.
//!
//! Opens the store and tries again while it is away, applies the manifest whenever its file
//! changes, and reads what other replicas changed. Not here: what any of that means (`store`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::AccessKind};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::live::Live;
use crate::config::{Config, Issuing, Mistake};
use crate::{
    base::HiddenPaths,
    database::{self, Author, Database, Location, Opening, oauth::Schedule},
    declare::{AuthMode, Prune},
    manifest::{Declaration, objects},
};

/// A manifest in a file that is applied at the start and whenever it changes.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The file.
    pub(crate) file: PathBuf,
    /// What it said when it was read last, until that is applied.
    pub(crate) pending: Option<Declaration>,
    /// The file's content at the last look, taken before `pending` is parsed.
    pub(crate) text: Option<Vec<u8>>,
    /// What happens to objects that are not in it.
    pub(crate) prune: Prune,
}

/// What the store is to those who depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It answers, and what it holds is served.
    Well,
    /// What it held is served, not what it holds.
    Stale,
    /// Nothing was ever read from it.
    Never,
}

/// How far a round came.
enum Standing {
    /// What the store holds is served.
    Fresh,
    /// What it holds cannot be served here, as was said once.
    Behind,
}

/// What is told whenever [`Reach`] changes.
pub(crate) type Report = Box<dyn Fn(Reach) + Send + Sync>;

/// Keeps a [`Live`] up to date.
pub(crate) struct Keeper {
    live: Arc<Live>,
    opening: Opening,
    applied: Option<Applied>,
    env: BTreeMap<String, String>,
    /// What no child may see: what manifests name comes to it.
    hidden: HiddenPaths,
    /// How long audit records stay; zero is for ever.
    audit: Duration,
    /// When they are looked at next.
    prune_at: Instant,
    /// How signing keys follow each other.
    issuing: Issuing,
    /// When rows that have ended are removed next, and when old keys are replaced.
    forget_at: Instant,
    rotate_at: Instant,
    /// The last failure in the log, so that each stands there once.
    said: String,
    /// The last change that cannot be served here, so that it is read once.
    refused: Option<i64>,
}

impl Keeper {
    /// Of a store that is opened as `opening` says; `env` is what manifests mean by `${env:…}`,
    /// and what they mean by `${file:…}` becomes `hidden`.
    pub(crate) fn new(
        live: Arc<Live>,
        opening: Opening,
        applied: Option<Applied>,
        (env, hidden): (BTreeMap<String, String>, HiddenPaths),
        config: &Config,
    ) -> Self {
        let pending = applied.iter().filter_map(|one| one.pending.as_ref());
        pending.for_each(|read| hidden.add(&read.files));
        Self {
            live,
            opening,
            applied,
            env,
            hidden,
            audit: config.keeping.audit,
            prune_at: Instant::now(),
            issuing: config.oauth.clone(),
            forget_at: Instant::now(),
            rotate_at: Instant::now(),
            said: String::new(),
            refused: None,
        }
    }

    /// The first round, before anything is served.
    ///
    /// # Errors
    ///
    /// What keeps the gateway from starting. A database that is away does not: it may come back,
    /// unless it is a file.
    pub(crate) async fn start(&mut self) -> Result<(), database::Error> {
        match self.round(None).await {
            Err(database::Error::Unavailable(what))
                if matches!(self.opening.location, Location::Url(_)) =>
            {
                self.say("store.away", &database::Error::Unavailable(what));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Goes on until `stop`.
    pub(crate) async fn run(mut self, report: Report, stop: CancellationToken) {
        let (news, mut changed) = mpsc::channel(1);
        let file = self.applied.as_ref().map(|applied| applied.file.clone());
        let _watcher = file.as_deref().and_then(|file| watch_file(file, news));
        // A change between the first reading and the watch is news too. The same text is none: applied
        // again, it would undo what an administrator has changed since the gateway listens.
        self.reread_manifest();
        let (tell, mut answers) = watch::channel(None);
        let live = Arc::clone(&self.live);
        // Beside the rounds, which may take long: what was revoked must be known soon.
        let asking = stop.run_until_cancelled(ask(&live, &tell));
        let keeping = async {
            let mut reach = None;
            loop {
                let answer = answers.borrow_and_update().clone();
                let now = self.turn(answer).await;
                if reach != Some(now) {
                    report(now);
                    reach = Some(now);
                }
                tokio::select! {
                    () = stop.cancelled() => break,
                    Ok(()) = answers.changed() => {}
                    Some(()) = changed.recv() => {
                        // Editors write in several steps.
                        sleep(SETTLE).await;
                        self.reread_manifest();
                    }
                }
            }
        };
        tokio::join!(keeping, asking);
        if let Ok(store) = live.store() {
            store.close().await;
        }
    }

    /// A round after an answer of the store, and what is to be said of it.
    async fn turn(&mut self, answer: Option<Result<i64, String>>) -> Reach {
        let outcome = match answer {
            Some(Err(what)) => Err(database::Error::Unavailable(what)),
            answer => self.round(answer.and_then(Result::ok)).await,
        };
        match &outcome {
            Ok(Standing::Fresh) if !self.said.is_empty() => {
                self.said.clear();
                tracing::info!(event = "store.back", "the store is up to date again");
            }
            Ok(_) => {}
            Err(failure) => self.say("store.away", failure),
        }
        match &outcome {
            Ok(Standing::Fresh) => Reach::Well,
            _ if self.live.is_loaded() => Reach::Stale,
            _ => Reach::Never,
        }
    }

    /// One round: open, apply, look for changes, forget what is old. `version` is that of the store,
    /// if it was just asked.
    async fn round(&mut self, version: Option<i64>) -> Result<Standing, database::Error> {
        if self.live.store().is_err() {
            let store = Database::open(self.opening.clone()).await?;
            self.live.opened(store);
        }
        let live = Arc::clone(&self.live);
        let store = live.store()?;
        let is_changed = self.apply(store).await?;
        let version = match version {
            Some(version) if !is_changed => version,
            _ => store.objects().version().await?,
        };
        if self.live.snapshot().version < Some(version) {
            if self.refused == Some(version) {
                return Ok(Standing::Behind);
            }
            let refreshed = self.live.refresh().await;
            if matches!(
                refreshed,
                Err(database::Error::Invalid(_) | database::Error::Bug(_))
            ) {
                self.refused = Some(version);
            }
            refreshed?;
        }
        if !self.audit.is_zero() && Instant::now() >= self.prune_at {
            self.prune_at = Instant::now() + PRUNE;
            store.audit().prune(self.audit).await?;
        }
        self.keep_keys(store).await?;
        if Instant::now() >= self.forget_at && !store.sweep().await? {
            self.forget_at = Instant::now() + PRUNE;
        }
        Ok(Standing::Fresh)
    }

    /// Sees to it that every authorization server has a key, and none for too long.
    async fn keep_keys(&mut self, store: &Database) -> Result<(), database::Error> {
        let catalog = self.live.current();
        for (name, tenant) in &catalog.tenants {
            let is_builtin = matches!(tenant.auth, AuthMode::Builtin(_));
            // Before its first token: replicas are to know the key by then.
            if is_builtin && !catalog.issued.keys.contains_key(name) {
                match store.signing_keys().current(name).await {
                    // The tenant has just gone.
                    Ok(_) | Err(database::Error::NotFound) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        let age = self.issuing.key_age;
        if age.is_zero() || Instant::now() < self.rotate_at {
            return Ok(());
        }
        self.rotate_at = Instant::now() + (age / 10).min(ROTATION);
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        for tenant in store
            .signing_keys()
            .rotate_old(Schedule::of(&self.issuing), age_ms)
            .await?
        {
            tracing::info!(
                event = "signing_key.rotated",
                tenant.id = tenant,
                "another key follows"
            );
        }
        Ok(())
    }

    /// Applies what is pending, if anything is. What is wrong with it is an error only before
    /// anything is served.
    async fn apply(&mut self, store: &Database) -> Result<bool, database::Error> {
        let Some(applied) = &mut self.applied else {
            return Ok(false);
        };
        let Some(pending) = &applied.pending else {
            return Ok(false);
        };
        let author = Author::named("manifest");
        let done = store
            .objects()
            .apply(&pending.declared, applied.prune, &author)
            .await;
        let file = &applied.file;
        match done {
            Err(database::Error::Unavailable(what)) => {
                return Err(database::Error::Unavailable(what));
            }
            Ok(changes) => {
                for change in &changes {
                    tracing::info!(event = "manifest.applied", file = %file.display(), "{change}");
                }
            }
            Err(database::Error::Invalid(mistakes)) => {
                let placed = mistakes.iter().map(|mistake| placed(pending, mistake));
                let mistakes: Vec<Mistake> = placed.collect();
                if !self.live.is_loaded() {
                    applied.pending = None;
                    return Err(database::Error::Invalid(mistakes));
                }
                refuse(&mistakes);
            }
            Err(failure) if !self.live.is_loaded() => return Err(failure),
            Err(failure) => {
                tracing::error!(event = "manifest.refused", file = %file.display(), "{failure}");
            }
        }
        applied.pending = None;
        Ok(true)
    }

    /// Reads the manifest if its file has changed.
    fn reread_manifest(&mut self) {
        let Some(applied) = &mut self.applied else {
            return;
        };
        let text = read(&applied.file);
        if text == applied.text {
            return;
        }
        applied.text = text;
        match objects::load(&applied.file, &self.env) {
            Ok(read) => {
                // Before any child starts with what was in them.
                self.hidden.add(&read.files);
                applied.pending = Some(read);
            }
            Err(mistakes) => refuse(&mistakes),
        }
    }

    fn say(&mut self, event: &'static str, failure: &database::Error) {
        let text = failure.to_string();
        if text != self.said {
            tracing::error!(event, "{text}");
            self.said = text;
        }
    }
}

/// Asks the store again and again how far it has come, and tells.
async fn ask(live: &Live, tell: &watch::Sender<Option<Result<i64, String>>>) {
    loop {
        // As long as there is none the rounds try to open it: that it is not open is no answer of
        // its own, and would be an old one when it is.
        let answer = if live.store().is_ok() {
            let asked = live.ask().await;
            Some(asked.map_err(|failure| match failure {
                database::Error::Unavailable(what) => what,
                other => other.to_string(),
            }))
        } else {
            None
        };
        tell.send_replace(answer);
        // Nobody has to say that there is news: it is seen all the same, and later.
        let _ = timeout(POLL, live.woken()).await;
    }
}

/// A mistake in the whole, where the manifest has what it is about.
fn placed(pending: &Declaration, mistake: &Mistake) -> Mistake {
    let manifest = &pending.manifest;
    manifest.mistake(&mistake.key, mistake.what.as_str(), &mistake.remedy)
}

fn refuse(mistakes: &[Mistake]) {
    for mistake in mistakes {
        tracing::error!(event = "manifest.refused", "{mistake}");
    }
}

fn read(file: &Path) -> Option<Vec<u8>> {
    std::fs::read(file).ok()
}

/// Tells `news` whenever something happens in the folder of `file`: editors and orchestrators put
/// another file, or another link, in its place.
fn watch_file(file: &Path, news: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Reading is an event too, ours among it.
        let is_read = |kind: &EventKind| {
            let write = EventKind::Access(AccessKind::Close(notify::event::AccessMode::Write));
            matches!(kind, EventKind::Access(_)) && *kind != write
        };
        if event.is_ok_and(|event| !is_read(&event.kind)) {
            // Full: there is a message already that makes the file be read.
            let _ = news.try_send(());
        }
    };
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let watching = notify::recommended_watcher(told).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    let complain = |error: &notify::Error| {
        let file = file.display();
        tracing::warn!(event = "manifest.unwatched", %file, "cannot watch the manifest: {error}");
    };
    watching.inspect_err(complain).ok()
}

/// How often other replicas' changes are looked for, where none says that there are any (DESIGN
/// section 6).
const POLL: Duration = Duration::from_millis(400);
/// How long a file may take to be whole.
const SETTLE: Duration = Duration::from_millis(50);
/// How often old audit records are removed.
const PRUNE: Duration = Duration::from_hours(1);
/// How often the age of signing keys is looked at, at least.
const ROTATION: Duration = Duration::from_mins(1);

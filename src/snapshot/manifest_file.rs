//! The manifest file of `--apply`: reads it again when it, or a file that it names, has changed.
//!
//! Its file system may not answer. Not here: the application to the database (`sync`).

use std::{
    collections::BTreeMap,
    future, mem,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    thread,
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::AccessKind};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    base::{
        Clock, ContentDigest, FileStamp, HiddenPaths, LOOK_INTERVAL, MANIFEST_MAX, WatchedFiles,
        content, sha256,
    },
    config::{Mistake, Wrong},
    declare::Prune,
    manifest::{Declaration, objects},
};

/// A manifest file, applied at the start and whenever it changes.
#[derive(Debug)]
pub(crate) struct ManifestFile {
    /// Its path.
    pub(crate) file: PathBuf,
    /// The declaration that was read at the start.
    pub(crate) pending: Option<Declaration>,
    /// The content of the file before `pending` was read from it.
    pub(crate) digest: ContentDigest,
    /// The treatment of objects that the manifest does not declare.
    pub(crate) prune: Prune,
}

impl ManifestFile {
    /// Reads the manifest of a start, before there is a runtime. With [`Prune::Remove`] the file has to have been the same
    /// for a while, as whenever it is read: what is not there yet would be removed for good.
    ///
    /// # Errors
    ///
    /// Its mistakes.
    pub(crate) fn at_start(
        file: PathBuf,
        env: &BTreeMap<String, String>,
        prune: Prune,
    ) -> Result<Self, Vec<Mistake>> {
        let pause = || thread::sleep(SETTLE);
        Self::settled(
            (file, prune),
            env,
            &Clock::system(),
            &FileStamp::now,
            &pause,
        )
    }

    /// As [`Self::at_start`], by looks and pauses of the caller.
    fn settled(
        (file, prune): (PathBuf, Prune),
        env: &BTreeMap<String, String>,
        clock: &Clock,
        look: &dyn Fn(&Path) -> FileStamp,
        pause: &dyn Fn(),
    ) -> Result<Self, Vec<Mistake>> {
        let age_ms = i64::try_from((SETTLE * STEPS).as_millis()).unwrap_or(i64::MAX);
        let (mut seen, mut same) = (None, 0);
        for _ in 0..LOOKS {
            let before = look(&file);
            same = if seen == Some(before) { same + 1 } else { 0 };
            seen = Some(before);
            // Almost always, so that a start does not wait.
            let is_old = clock.now_ms().saturating_sub(before.changed_ms()) > age_ms;
            if prune == Prune::Keep || is_old || same == STEPS {
                let digest = Self::digest_of(&file);
                let read = objects::load(&file, env);
                if prune == Prune::Keep || look(&file) == before {
                    return Ok(Self {
                        pending: Some(read?),
                        file,
                        digest,
                        prune,
                    });
                }
                same = 0;
            }
            pause();
        }
        let wrong = Wrong::new("is still being written", "start again once it is done");
        Err(vec![wrong.at(&file.display().to_string(), "--apply")])
    }

    /// The digest of the content of `file` now.
    fn digest_of(file: &Path) -> ContentDigest {
        let content = content(file, MANIFEST_MAX).ok();
        content.map(|content| sha256(&content))
    }
}

/// The reason for which a reload has not read the manifest yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    /// The file system is silent.
    #[error("its file system does not answer; it is applied once that does")]
    Silent,
    /// The file is not the same for long enough.
    #[error("it is being written, or is still read; it is applied once it stays as it is")]
    Unsettled,
}

/// Where a reload is answered.
pub(super) type Reply = oneshot::Sender<Result<(), Unread>>;

/// Looks at a file; another one in tests, as no file system of theirs hangs.
pub(super) type Look = Arc<dyn Fn(&Path) -> FileStamp + Send + Sync>;

/// Watches a manifest file. All that may wait for its file system is done beside the task that has it: one look, or
/// reading, at a time.
pub(super) struct ManifestWatch {
    /// The declaration that was read last, until it is applied.
    pub(super) pending: Option<Declaration>,
    /// The treatment of objects that the manifest does not declare.
    pub(super) prune: Prune,
    source: Arc<Source>,
    /// Paths that are hidden from children; files that the manifest reads are added.
    hidden: HiddenPaths,
    pace: Pace,
    /// Sends `news` as long as it lives.
    _watcher: Option<RecommendedWatcher>,
    /// Events in the folder of the file. One that comes while the file is looked at waits here.
    news: mpsc::Receiver<()>,
    known: Known,
    /// The reason to read the file as soon as it is whole, beside that it looks otherwise.
    wanted: Option<Wanted>,
    /// The look or the reading that is under way.
    looking: Option<JoinHandle<Found>>,
    /// The begin of that, or of the next one.
    at: Instant,
    /// The log says that the file system does not answer.
    is_silent: bool,
    /// The next look at the files that the manifest refers to.
    referenced: FilesLook,
    /// The mistakes that the manifest had when it was read last, as they were logged.
    mistakes: Vec<String>,
    /// They are logged again, for a reload, if it still has them.
    are_due: bool,
    /// The reload that is not answered yet. There is one at a time (`cli::serve`).
    request: Option<Request>,
}

/// What a look needs.
struct Source {
    file: PathBuf,
    env: BTreeMap<String, String>,
    look: Look,
}

/// What was found of the file.
#[derive(Clone, Copy)]
struct Known {
    /// Its content when it was read last.
    digest: ContentDigest,
    /// Its stamp at that time.
    read: FileStamp,
    /// Its stamp at the last look; none if that was too short a time ago to tell anything.
    seen: Option<FileStamp>,
}

/// The reason to read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// Its content may be another one.
    IfChanged,
    /// What is made of its content may be.
    Anyway,
}

/// The times of a watch.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// The time for which a file that is being written stays as it is at most.
    pub(super) settle: Duration,
    /// The interval of looks without a reason.
    pub(super) interval: Duration,
    /// The time for which a file system is waited for before that is said.
    pub(super) patience: Duration,
}

struct Request {
    done: Reply,
    /// When it is answered at the latest.
    until: Instant,
}

/// What a look has found.
struct Found {
    stamp: FileStamp,
    /// Why the file was looked at.
    wanted: Option<Wanted>,
    /// None if the file was not read, or is not known to be whole.
    reading: Option<Reading>,
}

struct Reading {
    digest: ContentDigest,
    /// None if the content is as it was, and nothing else is wanted.
    declaration: Option<Result<Declaration, Vec<Mistake>>>,
}

/// Looks at files after a while, and returns them with those that have changed.
type FilesLook = Pin<Box<dyn Future<Output = (WatchedFiles, Vec<PathBuf>)> + Send>>;

impl ManifestWatch {
    /// Watches a manifest that was just read. It reads `${env:…}` from `env`, and the files that it names by
    /// `${file:…}` are added to `hidden`.
    pub(super) fn new(
        manifest: ManifestFile,
        env: BTreeMap<String, String>,
        hidden: HiddenPaths,
    ) -> Self {
        let pace = Pace::of(manifest.prune);
        Self::with(manifest, (env, hidden), pace, Arc::new(FileStamp::now))
    }

    /// As [`Self::new`], at a pace and by looks of the caller.
    pub(super) fn with(
        manifest: ManifestFile,
        (env, hidden): (BTreeMap<String, String>, HiddenPaths),
        pace: Pace,
        look: Look,
    ) -> Self {
        let (file, pending) = (manifest.file, manifest.pending);
        let files = pending.as_ref().map(|read| read.files.clone());
        let files = files.unwrap_or_default();
        hidden.add(files.keys());
        let (sender, news) = mpsc::channel(1);
        Self {
            pending,
            prune: manifest.prune,
            _watcher: watch_file(&file, sender),
            source: Arc::new(Source { file, env, look }),
            hidden,
            pace,
            news,
            known: Known {
                digest: manifest.digest,
                read: FileStamp::default(),
                seen: None,
            },
            // A change between the first read and the watch counts too. An unchanged file does not:
            // applied again, it would undo the changes of administrators since the gateway listens.
            wanted: Some(Wanted::IfChanged),
            looking: None,
            at: Instant::now(),
            is_silent: false,
            referenced: look_later(WatchedFiles::new(files), pace.interval),
            mistakes: Vec::new(),
            are_due: false,
            request: None,
        }
    }

    /// The path of the file.
    pub(super) fn file(&self) -> &Path {
        &self.source.file
    }

    /// Whether the file had mistakes when it was read last.
    pub(super) fn has_mistakes(&self) -> bool {
        !self.mistakes.is_empty()
    }

    /// Whether the file has mistakes, or cannot be read: what is declared is not applied.
    pub(super) fn is_behind(&self) -> bool {
        self.has_mistakes() || self.is_silent
    }

    /// Reads the file again, and those that it names, and has `done` returned by [`Self::changed`], or answers it
    /// within a bound.
    pub(super) fn reload(&mut self, done: Reply) {
        self.are_due = true;
        self.want(Wanted::Anyway);
        let until = Instant::now() + self.pace.patience;
        self.request = Some(Request { done, until });
    }

    /// Waits for a declaration in `pending`, or for the reading of a reload, which is returned. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Option<Reply> {
        loop {
            let is_looking = self.looking.is_some();
            let is_idle = !is_looking && self.wanted.is_none();
            let until = self.request.as_ref().map(|request| request.until);
            tokio::select! {
                Some(()) = self.news.recv(), if is_idle => self.want(Wanted::IfChanged),
                () = sleep_until(self.at), if !is_looking => self.look(),
                found = ended(&mut self.looking) => {
                    self.looking = None;
                    self.found(found);
                    let read = self.request.take_if(|_| self.wanted.is_none());
                    if self.pending.is_some() || read.is_some() {
                        return read.map(|request| request.done);
                    }
                }
                (files, changed) = &mut self.referenced => self.found_files(files, &changed),
                () = sleep_until(self.at + self.pace.patience), if is_looking && !self.is_silent => {
                    let file = self.source.file.display();
                    let why = Unread::Silent;
                    tracing::error!(event = "manifest.unread", %file, "the manifest is not read: {why}");
                    self.is_silent = true;
                }
                () = sleep_until(until.unwrap_or(self.at)), if until.is_some() => self.give_up(),
            }
        }
    }

    /// Has the file read by the second of two looks.
    fn want(&mut self, wanted: Wanted) {
        if self.wanted.is_none() && self.looking.is_none() {
            self.known.seen = None;
            self.at = Instant::now();
        }
        self.wanted = self.wanted.max(Some(wanted));
    }

    /// Begins a look.
    fn look(&mut self) {
        let (source, known, wanted) = (Arc::clone(&self.source), self.known, self.wanted.take());
        self.at = Instant::now();
        self.looking = Some(spawn_blocking(move || source.look(&known, wanted)));
    }

    /// Takes over what a look has found; none if it failed.
    fn found(&mut self, found: Option<Found>) {
        let file = self.source.file.display();
        if mem::take(&mut self.is_silent) {
            tracing::info!(event = "manifest.back", %file, "the file system of the manifest answers again");
        }
        if let Some(found) = found {
            self.known.seen = Some(found.stamp);
            match found.reading {
                Some(reading) => {
                    self.known.read = found.stamp;
                    self.take(reading);
                }
                None => self.wanted = self.wanted.max(found.wanted),
            }
        }
        // Where nothing tells of changes, a writer may pause for longer.
        let pause = if self.wanted.is_some() {
            self.pace.settle
        } else {
            self.pace.interval
        };
        self.at = Instant::now() + pause;
    }

    /// Takes over what was read.
    fn take(&mut self, reading: Reading) {
        if reading.digest != self.known.digest {
            self.known.digest = reading.digest;
            self.mistakes.clear();
        }
        let are_due = mem::take(&mut self.are_due);
        match reading.declaration {
            None => {
                let file = self.source.file.display();
                tracing::debug!(event = "manifest.unchanged", %file, "the manifest is as it was");
            }
            Some(Ok(read)) => {
                // Before any child starts with their content.
                self.hidden.add(read.files.keys());
                let files = WatchedFiles::new(read.files.clone());
                self.referenced = look_later(files, self.pace.interval);
                self.mistakes.clear();
                self.pending = Some(read);
            }
            Some(Err(mistakes)) => {
                let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                if are_due || texts != self.mistakes {
                    log_mistakes(&mistakes);
                    self.mistakes = texts;
                }
            }
        }
    }

    /// Has the manifest read again if a file that it refers to has changed. One with mistakes is read again after
    /// every look, because a missing file may have come.
    fn found_files(&mut self, files: WatchedFiles, changed: &[PathBuf]) {
        for file in changed {
            let file = file.display();
            tracing::info!(event = "manifest.file_changed", %file, "a file of the manifest changed");
        }
        if !changed.is_empty() || !self.mistakes.is_empty() {
            self.want(Wanted::Anyway);
        }
        self.referenced = look_later(files, self.pace.interval);
    }

    /// Answers a reload that has taken too long. The file is read later.
    fn give_up(&mut self) {
        if let Some(request) = self.request.take() {
            let is_silent = self.looking.is_some() && self.at.elapsed() > self.pace.patience / 2;
            let why = if is_silent {
                Unread::Silent
            } else {
                Unread::Unsettled
            };
            _ = request.done.send(Err(why));
        }
    }
}

impl Pace {
    fn of(prune: Prune) -> Self {
        Self {
            settle: match prune {
                Prune::Keep => SETTLE,
                // What is not there yet would be removed for good.
                Prune::Remove => SETTLE * STEPS,
            },
            interval: LOOK_INTERVAL,
            patience: PATIENCE,
        }
    }
}

impl Source {
    /// Looks at the file, and reads it if that is wanted, or if it is not as it was read. It has to be as at the look
    /// before, and to stay so: it may be written in several steps, and a part of it would be another manifest.
    fn look(&self, known: &Known, wanted: Option<Wanted>) -> Found {
        let look = || (self.look)(&self.file);
        let found = |stamp, reading| Found {
            stamp,
            wanted,
            reading,
        };
        let before = look();
        let is_due = wanted.is_some() || before != known.read;
        if known.seen != Some(before) || !is_due {
            return found(before, None);
        }
        let digest = ManifestFile::digest_of(&self.file);
        let is_new = digest != known.digest || wanted == Some(Wanted::Anyway);
        let declaration = is_new.then(|| objects::load(&self.file, &self.env));
        let after = look();
        let reading = Reading {
            digest,
            declaration,
        };
        found(after, (after == before).then_some(reading))
    }
}

/// Waits for the end of a look, if there is one; none if it failed. Cancel-safe.
async fn ended(looking: &mut Option<JoinHandle<Found>>) -> Option<Found> {
    match looking {
        Some(looking) => looking.await.ok(),
        None => future::pending().await,
    }
}

fn look_later(mut files: WatchedFiles, interval: Duration) -> FilesLook {
    Box::pin(async move {
        sleep(interval).await;
        let changed = files.look().await;
        (files, changed)
    })
}

/// Logs the mistakes for which a manifest is not applied.
fn log_mistakes(mistakes: &[Mistake]) {
    for mistake in mistakes {
        tracing::error!(event = "manifest.refused", "{mistake}");
    }
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

/// The time for which a file that is being written stays as it is at most.
const SETTLE: Duration = Duration::from_millis(200);
/// How many times that is for one by which objects are removed.
const STEPS: u32 = 10;
/// The looks of a start until it gives up, [`SETTLE`] apart: it has no longer patience than a reload.
const LOOKS: u32 = 50;
/// The time after which a silent file system of the manifest is logged, and a reload is answered: shorter than that of
/// the service manager.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        io::Write,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use tokio::{runtime::Handle, sync::watch, time::timeout};

    use super::super::manifest_file::*;

    /// What nobody waits for in a test.
    const NEVER: Duration = Duration::from_secs(3600);
    const PACE: Pace = Pace {
        settle: Duration::from_millis(10),
        interval: NEVER,
        patience: NEVER,
    };

    /// A manifest that has been applied, with a tenant whose secret is in a file of another folder.
    struct Stage {
        dir: tempfile::TempDir,
        secret: tempfile::NamedTempFile,
    }

    impl Stage {
        fn new() -> Self {
            let (dir, secret) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new());
            let secret = secret.unwrap();
            fs::write(secret.path(), "old").unwrap();
            let stage = Self { dir, secret };
            let server = format!(
                "{{command: cat, env: {{A: \"${{file:{}}}\"}}}}",
                stage.secret.path().display()
            );
            let first =
                format!("tenants:\n  t: {{auth: {{mode: none}}, servers: {{x: {server}}}}}\n");
            fs::write(stage.file(), first).unwrap();
            stage
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("manifest.yaml")
        }

        /// Reads the manifest, as at a start.
        fn read(&self) -> ManifestFile {
            let file = self.file();
            ManifestFile {
                digest: ManifestFile::digest_of(&file),
                pending: Some(objects::load(&file, &BTreeMap::new()).unwrap()),
                file,
                prune: Prune::Remove,
            }
        }
    }

    /// Watches a manifest that has been applied.
    fn watch_of(read: ManifestFile, pace: Pace, look: Look) -> ManifestWatch {
        let none = (BTreeMap::new(), HiddenPaths::new([]));
        let mut watch = ManifestWatch::with(read, none, pace, look);
        watch.pending = None;
        watch
    }

    /// Adds a tenant, as a writer does who is not at the end.
    fn write(file: &Path, name: &str) {
        let mut file = OpenOptions::new().append(true).open(file).unwrap();
        writeln!(file, "  {name}: {{auth: {{mode: none}}}}").unwrap();
    }

    /// Looks at the file; before each look for which `writes` says so, more of it is written.
    fn while_written(writes: impl Fn(usize) -> bool + Send + Sync + 'static) -> Look {
        let looks = AtomicUsize::new(0);
        Arc::new(move |file: &Path| {
            let look = looks.fetch_add(1, Ordering::Relaxed);
            if writes(look) {
                write(file, &format!("w{look}"));
            }
            FileStamp::now(file)
        })
    }

    async fn soon<F: Future>(future: F) -> F::Output {
        let done = timeout(Duration::from_secs(60), future).await;
        done.expect("within a minute")
    }

    /// Half of it would be another manifest, for which tenants are removed.
    #[tokio::test]
    async fn for_whatever_reason_it_is_read_it_is_whole() {
        type Reason = fn(&Stage, &mut ManifestWatch);
        let reasons: [(&str, Reason); 5] = [
            ("event", |stage, _| {
                fs::write(stage.dir.path().join("other"), "").unwrap();
            }),
            ("look", |_, watch| watch.pace.interval = PACE.settle),
            ("reload", |_, watch| watch.reload(oneshot::channel().0)),
            ("file", |stage, watch| {
                let files = stage.read().pending.unwrap().files;
                watch.referenced = look_later(WatchedFiles::new(files), PACE.settle);
                watch.pace.interval = PACE.settle;
                fs::write(stage.secret.path(), "new").unwrap();
            }),
            ("mistake", |_, watch| {
                watch.mistakes.push("a file is missing".to_owned());
                watch.referenced = look_later(WatchedFiles::default(), PACE.settle);
            }),
        ];
        for (name, begin) in reasons {
            // Between the looks before it is read, while it is read, and for long.
            for written in [&[0, 2][..], &[0, 1, 2, 3, 5, 6], &[1, 3, 4]] {
                let stage = Stage::new();
                let look = while_written(|look| written.contains(&look));
                let mut watch = watch_of(stage.read(), PACE, look);
                watch.wanted = None;
                if name != "look" {
                    watch.at += NEVER;
                }
                begin(&stage, &mut watch);
                while watch.pending.is_none() {
                    soon(watch.changed()).await;
                }
                let tenants = watch.pending.unwrap().manifest.catalog.tenants.len();
                assert_eq!(tenants, 1 + written.len(), "{name} {written:?}");
            }
        }
    }

    /// What a writer had not come to yet was removed.
    #[test]
    fn with_prune_a_start_reads_a_whole_file() {
        let read = |now_ms: i64, writes: fn(usize) -> bool| {
            let (stage, look) = (Stage::new(), while_written(writes));
            let (clock, pause) = (Clock::of(move || now_ms), || {});
            let of = (stage.file(), Prune::Remove);
            let read = ManifestFile::settled(of, &BTreeMap::new(), &clock, &*look, &pause);
            read.map(|read| read.pending.unwrap().manifest.catalog.tenants.len())
        };
        // Between the first looks, and while it is read.
        assert_eq!(read(0, |look| look < 3 || look == 13), Ok(5));
        // One that is old is read at once.
        assert_eq!(read(i64::MAX, |look| look == 0), Ok(2));
        let mistakes = read(0, |_| true).unwrap_err();
        assert!(mistakes[0].to_string().contains("is still being written"));
    }

    #[tokio::test]
    async fn what_changed_before_the_watch_is_read_and_what_is_the_same_is_not() {
        let (count, mut looks) = watch::channel(0);
        let counted: Look = Arc::new(move |file: &Path| {
            count.send_modify(|looks| *looks += 1);
            FileStamp::now(file)
        });
        let (stage, elsewhere) = (Stage::new(), tempfile::tempdir().unwrap());
        let read = stage.read();
        write(&stage.file(), "new");
        let mut watch = watch_of(read, PACE, counted);
        soon(watch.changed()).await;
        assert!(watch.pending.take().is_some());
        // Another file with the same content, and a file of others.
        let same = elsewhere.path().join("same");
        for (from, to) in [(&same, "manifest.yaml"), (&same, "other")] {
            let before = *looks.borrow();
            fs::copy(stage.file(), from).unwrap();
            fs::rename(from, stage.dir.path().join(to)).unwrap();
            // With the one after the file was read.
            tokio::select! {
                _ = watch.changed() => panic!("it is applied again"),
                seen = soon(looks.wait_for(|looks| *looks >= before + 3)) => assert!(seen.is_ok()),
            }
        }
        // A reload applies it all the same.
        let (done, mut answer) = oneshot::channel();
        watch.reload(done);
        let done = soon(watch.changed()).await.expect("the reload");
        assert!(watch.pending.is_some() && answer.try_recv().is_err());
        done.send(Ok(())).unwrap();
        assert_eq!(answer.await, Ok(Ok(())));
    }

    #[tokio::test]
    async fn mistakes_stay_until_the_file_is_read_again() {
        let stage = Stage::new();
        let look = Arc::new(FileStamp::now);
        let mut watch = watch_of(stage.read(), PACE, look);
        fs::write(stage.file(), "tenants: {t: {odd: 1}}").unwrap();
        let (done, _answer) = oneshot::channel();
        watch.reload(done);
        assert!(soon(watch.changed()).await.is_some() && watch.has_mistakes());
        let (done, _answer) = oneshot::channel();
        watch.reload(done);
        assert!(watch.has_mistakes(), "it is not read yet");
        assert!(soon(watch.changed()).await.is_some() && watch.has_mistakes());
    }

    #[tokio::test]
    async fn a_reload_is_answered_though_the_manifest_cannot_be_read() {
        let (open, gate) = watch::channel(false);
        let runtime = Handle::current();
        let hangs: Look = Arc::new(move |file: &Path| {
            let mut gate = gate.clone();
            // An end of the test opens it too.
            _ = runtime.block_on(gate.wait_for(|is_open| *is_open));
            FileStamp::now(file)
        });
        let changes: Look = while_written(|_| true);
        let patience = PACE.settle * 50;
        for (look, why) in [(hangs, Unread::Silent), (changes, Unread::Unsettled)] {
            let stage = Stage::new();
            let mut watch = watch_of(stage.read(), Pace { patience, ..PACE }, look);
            for _ in 0..2 {
                let (done, answer) = oneshot::channel();
                watch.reload(done);
                tokio::select! {
                    _ = watch.changed() => panic!("it was read"),
                    answer = soon(answer) => assert_eq!(answer, Ok(Err(why))),
                }
            }
            if why == Unread::Silent {
                // It is not forgotten.
                open.send(true).unwrap();
                soon(watch.changed()).await;
                assert!(watch.pending.is_some());
            }
        }
    }
}

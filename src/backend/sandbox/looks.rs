//! Looks at the file systems of servers: one that does not answer delays no other.
//!
//! Each look runs in a thread of its own, and is given up once it has waited too long for one answer. Until that answer
//! comes, no other look asks the same file system. Not here: the files that are looked for (`choice`, `files`).

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fmt, fs, io,
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::{Component, Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use tokio::{
    sync::{oneshot, watch},
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// The looks of one gateway.
pub(super) struct Looks {
    silent: RwLock<Silent>,
    /// The mounts of this machine at the moment.
    mounts: Box<dyn Fn() -> Vec<Mount> + Send + Sync>,
    /// Told of each question before it is asked.
    #[cfg(test)]
    asked: Box<dyn Fn(&Path) + Send + Sync>,
}

/// File systems that did not answer in time.
#[derive(Default)]
struct Silent {
    /// All mounts, when the last of them was found or looked for.
    mounts: Vec<Mount>,
    /// The questions.
    questions: Vec<Question>,
}

/// A question that was not answered in time.
struct Question {
    /// The number of the mount.
    mount: Option<u64>,
    since: Instant,
    /// Gone once it was answered.
    look: Weak<Look>,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// Its own for as long as anything uses it: another one in its place has another.
    number: u64,
    point: PathBuf,
}

/// A look that is under way.
pub(super) struct Look {
    looks: Arc<Looks>,
    /// The longest wait for one answer.
    patience: Duration,
    /// The path that it asks about at present, which no links lead to, and since when.
    asks: RwLock<Option<(PathBuf, Instant)>>,
    /// The first path about which there was no answer.
    unanswered: RwLock<Option<PathBuf>>,
    is_given_up: AtomicBool,
}

/// A look that a task waits for; given up once it does not any more.
struct Watched(Arc<Look>);

/// The directories that the servers of all tenants may write.
pub(super) struct Written {
    /// Those at the moment; the same ones until the catalogue changes.
    declared: Box<dyn Fn() -> Arc<BTreeSet<PathBuf>> + Send + Sync>,
    looks: Arc<Looks>,
    /// What was last seen of each; never locked across an await.
    seen: RwLock<HashMap<PathBuf, Seen>>,
    /// The last look at them.
    round: watch::Sender<Round>,
}

/// A look at all of the directories.
struct Round {
    /// The directories; none before the first look.
    of: Option<Arc<BTreeSet<PathBuf>>>,
    ended: Instant,
    is_under_way: bool,
}

/// A directory as it was last seen.
#[derive(Clone)]
struct Seen {
    /// Its real path, and if that is not known, each that it may have; none if it does not exist.
    paths: BTreeSet<PathBuf>,
    /// Whether its entries are removed and renamed by their owners only.
    is_sticky: bool,
}

impl fmt::Debug for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looks")
    }
}

impl Looks {
    /// Looks at the file systems of this machine.
    pub(super) fn new() -> Self {
        Self {
            silent: RwLock::default(),
            mounts: Box::new(|| mounts_in(&fs::read("/proc/self/mountinfo").unwrap_or_default())),
            #[cfg(test)]
            asked: Box::new(|_| ()),
        }
    }

    /// Looks at file systems of these mount points, which answer once `asked` returns.
    #[cfg(test)]
    pub(super) fn told(
        mounts: Vec<PathBuf>,
        asked: impl Fn(&Path) + Send + Sync + 'static,
    ) -> Self {
        let mounts: Vec<_> = (0..)
            .zip(mounts)
            .map(|(number, point)| Mount { number, point })
            .collect();
        Self {
            mounts: Box::new(move || mounts.clone()),
            asked: Box::new(asked),
            ..Self::new()
        }
    }

    /// Looks at file systems of these mount points, of which one does not answer about this path while that is true;
    /// and how often it was asked.
    #[cfg(test)]
    pub(super) fn silent_at(
        mounts: &[&str],
        silent: &Path,
    ) -> (Arc<Self>, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let is_away = Arc::new(AtomicBool::new(true));
        let count = Arc::new(AtomicUsize::new(0));
        let (away, asked, silent) = (Arc::clone(&is_away), Arc::clone(&count), silent.to_owned());
        let mounts = mounts.iter().map(PathBuf::from).collect();
        let looks = Self::told(mounts, move |path| {
            if path == silent {
                asked.fetch_add(1, Ordering::Relaxed);
                while away.load(Ordering::Relaxed) {
                    thread::sleep(TICK);
                }
            }
        });
        (Arc::new(looks), is_away, count)
    }

    /// Runs a look, which waits at most `patience` for each answer and takes at most `longest`. Blocks as long.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it was given up, and those of a thread that cannot be started.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        (patience, longest): (Duration, Duration),
        see: impl FnOnce(&Look) -> T + Send + 'static,
    ) -> io::Result<T> {
        let look = Look::begin(self, patience);
        let (tell, told) = sync_channel(1);
        let (began, own) = (Instant::now(), Arc::clone(&look));
        thread_of_files().spawn(move || _ = tell.send(see(&own)))?;
        loop {
            match told.recv_timeout(TICK) {
                Ok(seen) => return Ok(seen),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed_look());
                }
                Err(RecvTimeoutError::Timeout) => self.bound(&look, (began, longest))?,
            }
        }
    }

    /// As [`Looks::run`], for a task.
    ///
    /// # Errors
    ///
    /// As there.
    pub(super) async fn watch<T: Send + 'static>(
        self: &Arc<Self>,
        (patience, longest): (Duration, Duration),
        see: impl FnOnce(&Look) -> T + Send + 'static,
    ) -> io::Result<T> {
        let watched = Watched(Look::begin(self, patience));
        let (began, own) = (Instant::now(), Arc::clone(&watched.0));
        let (tell, mut seen) = oneshot::channel();
        thread_of_files().spawn(move || _ = tell.send(see(&own)))?;
        loop {
            if let Ok(seen) = timeout(TICK, &mut seen).await {
                return seen.map_err(|_| failed_look());
            }
            self.bound(&watched.0, (began, longest))?;
        }
    }

    /// Gives up a look that waits too long for an answer, or takes too long in all.
    fn bound(&self, look: &Arc<Look>, (began, longest): (Instant, Duration)) -> io::Result<()> {
        let asks = look.asks.read().unwrap_or_else(PoisonError::into_inner);
        match asks.clone() {
            Some((path, since)) if since.elapsed() >= look.patience => {
                look.is_given_up.store(true, Ordering::Relaxed);
                self.note(&path, since, look);
                Err(no_answer(&path))
            }
            asks if began.elapsed() >= longest => {
                look.is_given_up.store(true, Ordering::Relaxed);
                // Behind its questions it asks again, about what has just answered.
                let unnamed = || "the program or its interpreter".into();
                let path = asks.map_or_else(unnamed, |(path, _)| path);
                Err(no_answer(&path))
            }
            _ => Ok(()),
        }
    }

    /// Notes a question that was not answered in time.
    fn note(&self, path: &Path, since: Instant, look: &Arc<Look>) {
        let mounts = (self.mounts)();
        let mut silent = self.silent.write().unwrap_or_else(PoisonError::into_inner);
        let Silent { questions, .. } = &mut *silent;
        questions.retain(|question| question.look.strong_count() > 0);
        questions.push(Question {
            mount: mount_of(path, &mounts),
            since,
            look: Arc::downgrade(look),
        });
        silent.mounts = mounts;
    }

    /// Whether the file system of a path has not answered for so long.
    fn is_silent(&self, path: &Path, patience: Duration) -> bool {
        let silent = self.silent.read().unwrap_or_else(PoisonError::into_inner);
        if !silent.is_asked(path, patience) {
            return false;
        }
        drop(silent);
        // What was mounted there since is another one. Only here: the table may be long.
        let mounts = (self.mounts)();
        let mut silent = self.silent.write().unwrap_or_else(PoisonError::into_inner);
        silent.mounts = mounts;
        silent.is_asked(path, patience)
    }
}

impl Silent {
    /// Whether the file system of a path was asked so long ago, and has not answered.
    fn is_asked(&self, path: &Path, patience: Duration) -> bool {
        let Self { mounts, questions } = self;
        let is_open = |question: &&Question| {
            question.look.strong_count() > 0 && question.since.elapsed() >= patience
        };
        let mut open = questions.iter().filter(is_open).peekable();
        open.peek().is_some() && {
            let mount = mount_of(path, mounts);
            open.any(|question| question.mount == mount)
        }
    }
}

impl Look {
    fn begin(looks: &Arc<Looks>, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            looks: Arc::clone(looks),
            patience,
            asks: RwLock::default(),
            unanswered: RwLock::default(),
            is_given_up: AtomicBool::new(false),
        })
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// The first path about which there was no answer.
    pub(super) fn unanswered(&self) -> Option<PathBuf> {
        let unanswered = self.unanswered.read();
        unanswered.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks about a path once its links are followed; none if there is no answer.
    pub(super) fn ask<T>(&self, path: &Path, question: impl FnOnce(&Path) -> T) -> Option<T> {
        let place = Place::of(path, &[], |link| self.link(link));
        // Links in a circle are an answer too.
        let real = place.map_or_else(|| path.to_owned(), |place| place.path);
        self.ask_at(&real, || question(path))
    }

    /// What a path leads to, if it is a link; the ones before it are followed.
    pub(super) fn link(&self, path: &Path) -> Option<PathBuf> {
        self.ask_at(path, || fs::read_link(path))?.ok()
    }

    /// The real path of one that exists.
    pub(super) fn real(&self, path: &Path) -> Option<PathBuf> {
        self.ask(path, Path::canonicalize)?.ok()
    }

    fn ask_at<T>(&self, real: &Path, question: impl FnOnce() -> T) -> Option<T> {
        if self.is_given_up() || self.looks.is_silent(real, self.patience) {
            let unanswered = self.unanswered.write();
            let mut unanswered = unanswered.unwrap_or_else(PoisonError::into_inner);
            unanswered.get_or_insert_with(|| real.to_owned());
            return None;
        }
        self.set(Some((real.to_owned(), Instant::now())));
        #[cfg(test)]
        (self.looks.asked)(real);
        let answer = question();
        self.set(None);
        Some(answer)
    }

    fn set(&self, asks: Option<(PathBuf, Instant)>) {
        *self.asks.write().unwrap_or_else(PoisonError::into_inner) = asks;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let asks = self.0.asks.read().unwrap_or_else(PoisonError::into_inner);
        let was_given_up = self.0.is_given_up.swap(true, Ordering::Relaxed);
        // It may wait for the answer for as long as it takes, so that others must not.
        if let Some((path, since)) = asks.clone().filter(|_| !was_given_up) {
            self.0.looks.note(&path, since, &self.0);
        }
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl Written {
    /// The directories that `declared` names: the same set until it changes.
    pub(super) fn new(
        declared: impl Fn() -> Arc<BTreeSet<PathBuf>> + Send + Sync + 'static,
        looks: Arc<Looks>,
    ) -> Self {
        let round = Round {
            of: None,
            ended: Instant::now(),
            is_under_way: false,
        };
        Self {
            declared: Box::new(declared),
            looks,
            seen: RwLock::default(),
            round: watch::channel(round).0,
        }
    }

    /// The directories at the moment.
    pub(super) fn dirs(&self) -> Arc<BTreeSet<PathBuf>> {
        (self.declared)()
    }

    /// Looks at these directories, unless that was a moment ago; all who wait have one look. Goes on after a while
    /// without those that do not answer.
    pub(super) async fn look(self: &Arc<Self>, dirs: &Arc<BTreeSet<PathBuf>>) {
        let is_fresh = |round: &Round| {
            let of = round.of.as_ref();
            of.is_some_and(|of| Arc::ptr_eq(of, dirs)) && round.ended.elapsed() < FRESH
        };
        let mut rounds = self.round.subscribe();
        let looked = async {
            loop {
                let mut begins = false;
                self.round.send_if_modified(|round| {
                    begins = !round.is_under_way && !is_fresh(round);
                    round.is_under_way |= begins;
                    false
                });
                if begins {
                    let (written, dirs) = (Arc::clone(self), Arc::clone(dirs));
                    spawn_blocking(move || written.look_at_all(dirs));
                }
                let over = rounds.wait_for(|round| !round.is_under_way).await;
                if over.is_ok_and(|round| is_fresh(&round)) {
                    return;
                }
            }
        };
        _ = timeout(WAIT, looked).await;
    }

    /// Looks at these directories. Blocks until each has answered, or has had the time for it.
    fn look_at_all(self: Arc<Self>, dirs: Arc<BTreeSet<PathBuf>>) {
        let all: Arc<Vec<PathBuf>> = Arc::new(dirs.iter().cloned().collect());
        let next = Arc::new(AtomicUsize::new(0));
        while next.load(Ordering::Relaxed) < all.len() {
            let written = Arc::clone(&self);
            let (all, next) = (Arc::clone(&all), Arc::clone(&next));
            let see = move |look: &Look| {
                for at in next.load(Ordering::Relaxed)..all.len() {
                    written.look_at(&all[at], look);
                    next.fetch_max(at + 1, Ordering::Relaxed);
                    // Another one goes on behind it.
                    if look.is_given_up() {
                        return;
                    }
                }
            };
            let seen = self.looks.run((ANSWER, Duration::MAX), see);
            if seen.is_err_and(|error| error.kind() != io::ErrorKind::TimedOut) {
                break;
            }
        }
        // A newer set may have been looked at by now.
        let newest = self.dirs();
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|dir, _| dirs.contains(dir) || newest.contains(dir));
        drop(seen);
        self.round.send_replace(Round {
            of: Some(dirs),
            ended: Instant::now(),
            is_under_way: false,
        });
    }

    fn look_at(&self, dir: &Path, look: &Look) {
        let now = Seen::of(dir, look, self.last(dir));
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.insert(dir.to_owned(), now);
    }

    fn last(&self, dir: &Path) -> Option<Seen> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        seen.get(dir).cloned()
    }

    /// Real paths of those of these directories that a server does not name itself, and in which others could
    /// replace what is its own. It may have a uid that is its own too.
    ///
    /// # Errors
    ///
    /// A shortage if it is not known yet where one of them leads. That of one that does not answer is: it was asked.
    pub(super) fn others(
        &self,
        dirs: &BTreeSet<PathBuf>,
        own: &[PathBuf],
        has_uid: bool,
    ) -> io::Result<Vec<PathBuf>> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let mut others = Vec::new();
        for dir in dirs.iter().filter(|dir| !own.contains(dir)) {
            let seen = match seen.get(dir) {
                Some(seen) => seen.clone(),
                None if self.dirs().contains(dir) => return Err(unseen(dir)),
                // Since these were read, it was taken from the last server that might write there.
                None => Seen::never(dir),
            };
            // Others replace nothing that is not theirs in a directory with the sticky bit.
            if !has_uid || !seen.is_sticky {
                others.extend(seen.paths);
            }
        }
        Ok(others)
    }
}

impl Seen {
    /// A directory that nobody has looked at: as it was declared.
    fn never(dir: &Path) -> Self {
        let place = Place::of(dir, &[], |_| None);
        Self {
            paths: place.map(|place| place.path).into_iter().collect(),
            is_sticky: false,
        }
    }

    /// Looks at a directory. If it does not answer, it may be where it was last seen, where it was declared, or
    /// where its links lead as far as they answer.
    fn of(dir: &Path, look: &Look, last: Option<Self>) -> Self {
        let found = look.ask(dir, |dir| {
            let real = dir.canonicalize()?;
            let mode = fs::metadata(&real)?.permissions().mode();
            Ok::<_, io::Error>((real, mode))
        });
        match found {
            Some(Ok((real, mode))) => Self {
                paths: BTreeSet::from([real]),
                is_sticky: mode & 0o1000 != 0,
            },
            Some(Err(error)) if is_absence(&error) => Self {
                paths: BTreeSet::new(),
                is_sticky: false,
            },
            Some(Err(_)) | None => {
                let mut seen = Self::never(dir);
                let ahead = Place::of(dir, &[], |path| look.link(path));
                seen.paths.extend(ahead.map(|place| place.path));
                seen.paths
                    .extend(last.into_iter().flat_map(|last| last.paths));
                seen
            }
        }
    }
}

/// Whether there is no such file.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Place of a path after its symbolic links.
pub(super) struct Place {
    /// The path without links.
    pub(super) path: PathBuf,
    /// Whether it, and each link on the way to it, is outside foreign directories.
    pub(super) is_own: bool,
}

impl Place {
    /// Follows the links of `path`, as `link` reads them; none if they lead in a circle.
    pub(super) fn of(
        path: &Path,
        foreign: &[PathBuf],
        mut link: impl FnMut(&Path) -> Option<PathBuf>,
    ) -> Option<Self> {
        let path = std::path::absolute(path).ok()?;
        let (mut at, mut is_own, mut links) = (PathBuf::from("/"), true, 0);
        let mut ahead: Vec<OsString> = names_from_last(&path).collect();
        while let Some(name) = ahead.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let Some(target) = link(&next) else {
                at = next;
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return None;
            }
            is_own &= !is_below(&at, foreign);
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            ahead.extend(names_from_last(&target));
        }
        is_own &= !is_below(&at, foreign);
        Some(Self { path: at, is_own })
    }
}

/// The names in a path, and `..`.
fn names_from_last(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    let parts = path.components().rev();
    let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned())
}

/// Whether a path is one of these directories, or lies below.
pub(super) fn is_below(path: &Path, dirs: &[PathBuf]) -> bool {
    dirs.iter().any(|dir| path.starts_with(dir))
}

/// The error of a look at a path whose file system does not answer.
pub(super) fn no_answer(path: &Path) -> io::Error {
    let why = format!(
        "sandbox: the file system of {} does not answer",
        path.display()
    );
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// A thread for what may wait for a file system: not one of the runtime's, of which there are few.
fn thread_of_files() -> thread::Builder {
    thread::Builder::new().name("files".into())
}

fn failed_look() -> io::Error {
    io::Error::other("sandbox: a look at files failed")
}

/// The error of a start before it was seen where a directory of another server leads.
fn unseen(dir: &Path) -> io::Error {
    let why = format!("sandbox: {} was not looked at yet", dir.display());
    io::Error::new(io::ErrorKind::WouldBlock, why)
}

/// The number of the innermost mount around a path without links: the last one of several at the same point.
fn mount_of(path: &Path, mounts: &[Mount]) -> Option<u64> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    let innermost = around.max_by_key(|mount| mount.point.as_os_str().len());
    innermost.map(|mount| mount.number)
}

/// The mounts in a table of them (proc(5), "/proc/pid/mountinfo": the first and the fifth field).
fn mounts_in(table: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let number = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let point = unescaped(fields.nth(3)?).into();
        Some(Mount { number, point })
    };
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(mount).collect()
}

/// Reads `\040` and the like, which stand for bytes that would break the table.
fn unescaped(point: &[u8]) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), point);
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = byte.map_or(behind, |_| &behind[3..]);
    }
    OsString::from_vec(bytes)
}

/// Bound of symbolic links in one path, that of Linux.
const MOST_LINKS: usize = 40;

/// The time that a directory has to answer before others start without its answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The time that a start waits for directories of others: for two file systems that have stopped answering.
const WAIT: Duration = Duration::from_secs(5);

/// The time for which the place of a directory is known.
const FRESH: Duration = Duration::from_secs(2);

/// The pause between looks at a look that takes longer.
const TICK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::super::looks::*;

    /// Each look at such a file system held a thread for as long as it was away.
    #[test]
    fn one_thread_waits_for_a_file_system_that_does_not_answer() {
        let (share, away) = (Path::new("/mnt/share"), Path::new("/mnt/share/a"));
        let mounts = ["/", "/mnt/share", "/mnt/share/b"];
        let (looks, is_away, asked) = Looks::silent_at(&mounts, away);
        let times = (Duration::from_secs(1), Duration::MAX);
        let error = looks.run(times, |look| look.real(Path::new("/mnt/share/a/x")));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains(" /mnt/share/a "), "{error}");
        let at = |path: &'static str| {
            let see = move |look: &Look| (look.real(Path::new(path)), look.unanswered());
            looks.run(times, see).unwrap()
        };
        for path in ["/mnt/share/a", "/mnt/share/c", "/mnt/../mnt/share/c"] {
            assert_eq!(at(path), (None, Some(share.to_owned())), "{path}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(at("/usr/."), (Some("/usr".into()), None));
        is_away.store(false, Ordering::Relaxed);
        while looks.is_silent(share, times.0) {
            thread::yield_now();
        }
        assert_eq!(at("/mnt/share/a").1, None);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            2 + 1,
            "as a link and by its links"
        );
    }

    /// It held up the starts of all tenants.
    #[tokio::test]
    async fn a_directory_that_does_not_answer_is_where_it_may_be() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [share, link, plain] = ["share", "x", "plain"].map(|name| root.join(name));
        for dir in [&share, &plain, &share.join("sub")] {
            fs::create_dir(dir).unwrap();
        }
        let lead_to = |target: &str| {
            _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
        };
        lead_to("share");
        let mounts = ["/", share.to_str().unwrap()];
        let (looks, is_away, asked) = Looks::silent_at(&mounts, &share);
        is_away.store(false, Ordering::Relaxed);
        let declared = || {
            let below = link.join("../x/sub");
            let missing = root.join("missing/sub");
            Arc::new(BTreeSet::from([below, plain.clone(), missing]))
        };
        let written = Arc::new(Written::new(Arc::default, Arc::clone(&looks)));
        let others = async |written: &Arc<Written>, dirs| {
            written.look(&dirs).await;
            let mut others = written.others(&dirs, &[], false).unwrap();
            others.sort();
            others
        };
        let seen = [plain.clone(), share.join("sub")];
        let first = declared();
        assert_eq!(others(&written, Arc::clone(&first)).await, seen);
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(others(&written, first).await, seen);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            before,
            "it was seen a moment ago"
        );
        is_away.store(true, Ordering::Relaxed);
        lead_to("share/new");
        let [last, ahead] = [&share, &share.join("x")].map(|dir| dir.join("sub"));
        let as_declared = link.join("sub");
        let unsure = [&plain, &last, &ahead, &as_declared].map(Clone::clone);
        assert_eq!(others(&written, declared()).await, unsure);
        let anew = Arc::new(Written::new(Arc::default, looks));
        for _ in 0..2 {
            let unsure = [&plain, &ahead, &as_declared].map(Clone::clone);
            assert_eq!(others(&anew, declared()).await, unsure);
        }
        assert_eq!(
            asked.load(Ordering::Relaxed),
            before + 1,
            "one thread waits for it"
        );
        lead_to("share");
        is_away.store(false, Ordering::Relaxed);
        let answers = async {
            while others(&anew, declared()).await != seen {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), answers).await.unwrap();
    }

    /// It was trusted to be where it was declared, and links led elsewhere.
    #[test]
    fn a_directory_that_was_not_looked_at_is_nowhere_yet() {
        let [own, other, gone] = ["/own", "/usr/bin/..", "/gone"].map(PathBuf::from);
        let declared = Arc::new(BTreeSet::from([own.clone(), other]));
        let source = Arc::clone(&declared);
        let looks = Arc::new(Looks::told(vec!["/".into()], |_| ()));
        let written = Arc::new(Written::new(move || Arc::clone(&source), looks));
        let own = [own];
        let others = |dirs: &BTreeSet<PathBuf>| written.others(dirs, &own, false);
        let refused = others(&declared).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(
            refused.to_string().contains("/usr/bin/.. was not"),
            "{refused}"
        );
        assert_eq!(others(&BTreeSet::from([gone.clone()])).unwrap(), [gone]);
        Arc::clone(&written).look_at_all(Arc::clone(&declared));
        assert_eq!(others(&declared).unwrap(), [PathBuf::from("/usr")]);
    }

    #[test]
    fn a_look_that_takes_too_long_is_given_up() {
        let looks = Arc::new(Looks::told(vec!["/".into()], |_| {
            thread::sleep(Duration::from_millis(2));
        }));
        let times = (Duration::from_secs(60), Duration::from_millis(100));
        let seen = looks.run(times, |look| {
            while look.real(Path::new("/usr")).is_some() {}
            look.is_given_up()
        });
        assert_eq!(seen.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(!looks.is_silent(Path::new("/usr"), Duration::ZERO));
    }

    /// Each start that was given up kept a thread.
    #[tokio::test]
    async fn a_look_that_no_task_waits_for_asks_no_more() {
        let share = Path::new("/mnt/share");
        let (looks, is_away, asked) = Looks::silent_at(&["/", "/mnt/share"], share);
        let times = (Duration::from_secs(60), Duration::MAX);
        {
            let see = |look: &Look| look.real(Path::new("/mnt/share/x"));
            let mut look = std::pin::pin!(looks.watch(times, see));
            while asked.load(Ordering::Relaxed) == 0 {
                assert!(timeout(TICK, &mut look).await.is_err());
            }
        }
        assert!(looks.is_silent(share, Duration::ZERO));
        assert!(!looks.is_silent(Path::new("/usr"), Duration::ZERO));
        is_away.store(false, Ordering::Relaxed);
        while looks.is_silent(share, Duration::ZERO) {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        let table = b"21 1 0:1 / / rw - ext4 /dev/a rw\n22 21 0:2 / /a\\040b\\134 rw shared:1 - nfs h:/x rw\n";
        let mounts = mounts_in(table);
        let expected = [(21, "/"), (22, "/a b\\")];
        assert_eq!(mounts, expected.map(mount));
        for (path, number) in [("/a b\\/c", 22), ("/a b", 21), ("/", 21)] {
            assert_eq!(mount_of(Path::new(path), &mounts), Some(number));
        }
    }

    fn mount((number, point): (u64, &str)) -> Mount {
        let point = point.into();
        Mount { number, point }
    }

    /// Starts were refused until the gateway was restarted: the old one may be away for ever.
    #[test]
    fn what_is_mounted_in_the_place_of_a_silent_file_system_is_asked() {
        let table = Arc::new(RwLock::new(vec![(1, "/"), (2, "/mnt/share")]));
        let read = Arc::clone(&table);
        let looks = Arc::new(Looks {
            mounts: Box::new(move || read.read().unwrap().iter().copied().map(mount).collect()),
            ..Looks::new()
        });
        let asked = Look::begin(&looks, Duration::ZERO);
        looks.note(Path::new("/mnt/share/a"), Instant::now(), &asked);
        let is_silent = |path: &str| looks.is_silent(Path::new(path), Duration::ZERO);
        assert!(is_silent("/mnt/share/a") && is_silent("/mnt/share/b/c"));
        table.write().unwrap().push((3, "/mnt/share/b"));
        assert!(is_silent("/mnt/share/a") && !is_silent("/mnt/share/b/c"));
        *table.write().unwrap() = vec![(1, "/"), (4, "/mnt/share")];
        assert!(!is_silent("/mnt/share/a"), "it is another one");
        *table.write().unwrap() = vec![(1, "/"), (2, "/elsewhere")];
        looks.note(Path::new("/elsewhere"), Instant::now(), &asked);
        assert!(is_silent("/elsewhere/a") && !is_silent("/mnt/share/a"));
    }
}

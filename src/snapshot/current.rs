//! The current snapshot: the declared and issued state in memory that requests read.
//!
//! No call waits for the database. Not here: the schedule of polls and refreshes (`sync`), and the
//! effect of a change on sessions and children (`hub`).

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit, watch},
    time::{Instant, timeout},
};

use super::wait::{POLL_TIMEOUT, Wait};
use crate::{
    base::{Clock, Table},
    database::{self, Database, Mark, Marks, Newer, oauth::Reached},
    declare::{Catalog, Issued, OperatorKeys, SecretChange, Tenant, When},
};

/// The declared and issued state at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The number of the last declared change; none before the first read of the database.
    pub(crate) version: Option<i64>,
    /// The number of the last change of `catalog.issued`.
    pub(crate) revocation: i64,
    /// Tenants and servers.
    pub(crate) catalog: Arc<Catalog>,
    /// API keys of operators, who belong to no tenant.
    pub(crate) operator_keys: OperatorKeys,
    /// The states of the tenants in `catalog`, by which changed ones are found.
    pub(crate) marks: Arc<Marks>,
    /// Some tenants or servers are as they were before: what is stored of them cannot be served here.
    pub(crate) is_partial: bool,
    /// How often the database was found at an older state than what was served.
    setbacks: u64,
}

impl Snapshot {
    /// What counts of it once the database is at an older state: nothing but what is as it is declared there, too.
    fn set_back(&self) -> Self {
        let tenants = self.catalog.tenants.clone();
        Self {
            version: self.version,
            catalog: Arc::new(Catalog::new(tenants, Arc::default())),
            is_partial: self.is_partial,
            setbacks: self.setbacks + 1,
            ..Self::default()
        }
    }

    /// Whether a database is at an older state than this one, which was read before the database was asked: one that takes
    /// over from another may lack its last changes, and gives their numbers again.
    fn is_beyond(&self, reached: &Reached) -> bool {
        self.version > Some(reached.version) || self.revocation > reached.revocation
    }
}

/// The newest snapshot, with the database that it is read from.
pub(crate) struct CurrentSnapshot {
    snapshot: ArcSwap<Snapshot>,
    changed: watch::Sender<Arc<Snapshot>>,
    /// The database, once it is open; never in `run`.
    database: OnceLock<Database>,
    /// The begin of the last poll.
    last_poll: LastPollAttempt,
    /// Ends the wait before the next poll.
    woken: Notify,
    /// The time of the database, where replicas share one; else the system's.
    clock: Clock,
    /// The turn at a refresh. Many at once would take the connections by which revocations are followed.
    refreshing: Semaphore,
    /// The number of the last read of what is declared that has begun, each at a turn.
    reads: AtomicU64,
    /// The number of the last one whose state is served.
    read: AtomicU64,
    /// Told of each change of a secret before the request that made it is answered.
    on_secret_change: OnceLock<OnSecretChange>,
}

/// Receives a change of a secret and its number; none where the database lacks changes that it had, which may be of any.
type OnSecretChange = Box<dyn Fn(Option<(i64, &SecretChange)>) + Send + Sync>;

/// The begin of the last poll that the database answered, or could not be reached for; clones share
/// it.
///
/// A process that was suspended misses revocations, so it must poll before it accepts a token
/// again. The begin counts, not the end: the answer to a poll may have waited as long as the process,
/// and its timeout may have passed meanwhile. An unreachable database ends no access.
#[derive(Clone, Debug)]
pub(crate) struct LastPollAttempt(Arc<(Instant, AtomicU64, AtomicBool)>);

impl LastPollAttempt {
    fn never() -> Self {
        Self(Arc::new((
            Instant::now(),
            AtomicU64::new(0),
            AtomicBool::new(false),
        )))
    }

    /// Reports whether the poll is recent enough that no revocation is missed, if the database could
    /// be reached.
    pub(crate) fn is_recent(&self) -> bool {
        self.is_recent_at(Instant::now())
    }

    fn is_recent_at(&self, now: Instant) -> bool {
        let (began, at_ms, _) = &*self.0;
        let at = Duration::from_millis(at_ms.load(Ordering::Acquire));
        now.duration_since(*began) < at.saturating_add(MAX_POLL_AGE)
    }

    /// Whether the database cannot be read: what is not known here may be declared there by now. The flag costs
    /// nothing, however many names and keys are made up.
    pub(crate) fn is_cut_off(&self) -> bool {
        let (_, _, is_cut_off) = &*self.0;
        is_cut_off.load(Ordering::Acquire)
    }

    /// Records whether the database cannot be read. It can be again once its state is served, not at the first answer.
    pub(crate) fn set_cut_off(&self, is_cut_off: bool) {
        let (_, _, flag) = &*self.0;
        flag.store(is_cut_off, Ordering::Release);
    }

    /// Records a poll that began at `poll`.
    fn note(&self, poll: Instant) {
        let (began, at_ms, _) = &*self.0;
        let poll_ms = u64::try_from(poll.duration_since(*began).as_millis()).unwrap_or(u64::MAX);
        at_ms.fetch_max(poll_ms, Ordering::AcqRel);
    }
}

/// The maximum age of the last poll at which tokens are accepted: a revocation takes effect within
/// this time where the database can be reached.
const MAX_POLL_AGE: Duration = Duration::from_secs(2);

impl CurrentSnapshot {
    /// An empty snapshot, before the first read of the database.
    pub(crate) fn empty() -> Arc<Self> {
        Self::of(Snapshot::default())
    }

    /// A snapshot that never changes and has no database (`lockgate run`).
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
            snapshot: ArcSwap::new(Arc::clone(&snapshot)),
            changed: watch::Sender::new(snapshot),
            database: OnceLock::new(),
            last_poll: LastPollAttempt::never(),
            woken: Notify::new(),
            clock: Clock::system(),
            refreshing: Semaphore::new(1),
            reads: AtomicU64::new(0),
            read: AtomicU64::new(0),
            on_secret_change: OnceLock::new(),
        })
    }

    /// The begin of the last poll.
    pub(crate) fn last_poll(&self) -> &LastPollAttempt {
        &self.last_poll
    }

    /// The clock of everything that goes by the database's time.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Tenants and servers. A request takes them once and keeps them to its end.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.snapshot.load().catalog)
    }

    /// The whole snapshot.
    pub(crate) fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Reports whether the database was read: before that, no server can be called unknown.
    pub(crate) fn is_loaded(&self) -> bool {
        self.snapshot.load().version.is_some()
    }

    /// Reports whether what is not known here does not exist: the database was read, and can be.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_loaded() && !self.last_poll.is_cut_off()
    }

    /// Reports whether `tenant`, which a request names, may be declared in the database while it cannot be read. One that
    /// is known here is as it was read.
    pub(crate) fn may_declare(&self, tenant: Option<&str>) -> bool {
        let is_known = |tenant: &str| self.catalog().tenants.contains_key(tenant);
        !self.is_loaded()
            || tenant.is_some_and(|tenant| self.last_poll.is_cut_off() && !is_known(tenant))
    }

    /// Subscribes to new snapshots. Of several in quick succession, only the last may arrive.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.changed.subscribe()
    }

    /// Tells `receive` of each change of a secret from now on; of none where the database lacks changes that it had,
    /// which may be of any. It must not wait.
    pub(crate) fn on_secret_change(
        &self,
        receive: impl Fn(Option<(i64, &SecretChange)>) + Send + Sync + 'static,
    ) {
        let _ = self.on_secret_change.set(Box::new(receive));
    }

    /// Starts the next poll at once: another replica has announced a change.
    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Waits for [`Self::wake`]; a call before the wait counts.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The database.
    ///
    /// # Errors
    ///
    /// `Unavailable` until the database is open; always in `run`.
    pub(crate) fn database(&self) -> Result<&Database, database::Error> {
        let database = self.database.get();
        database.ok_or_else(|| database::Error::Unavailable("it was not opened yet".to_owned()))
    }

    /// Sets the database, once it is open.
    pub(crate) fn set_database(&self, database: Database) {
        // Only `SnapshotSync` opens the database, so there is never a second one.
        let _ = self.database.set(database);
    }

    /// Reads the changed tenants again. Every local change calls this before its response.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::newer`](crate::database::objects::Objects::newer): the last snapshot stays.
    /// `Invalid` for a state that cannot be served here, of which the rest is served, if there is any: a server whose
    /// children cannot be started as declared starts those that it had, and other tenants stay as they were.
    pub(crate) async fn refresh(&self) -> Result<(), database::Error> {
        self.refresh_to(i64::MAX).await
    }

    /// The same, unless a change of this number has been read by its turn: of many that wait behind one that reads, the
    /// next reads for all. A read from before the call does not count, whose number may be that of another change.
    ///
    /// # Errors
    ///
    /// Those of [`Self::refresh`]; what cannot be served here is told to the one that read it.
    pub(crate) async fn refresh_to(&self, version: i64) -> Result<(), database::Error> {
        let database = self.database()?;
        let begun = self.reads.load(Ordering::Acquire);
        let _turn = self.turn().await?;
        let is_read = self.read.load(Ordering::Acquire) > begun;
        if is_read && self.load().version >= Some(version) {
            return Ok(());
        }
        self.read_declared(database).await
    }

    /// A turn at a refresh.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, database::Error> {
        let turn = self.refreshing.acquire().await;
        turn.map_err(|_| database::Error::Bug("no turn to refresh".to_owned()))
    }

    /// Reads the changed tenants, at a turn; all of them where the database is at an older state.
    async fn read_declared(&self, database: &Database) -> Result<(), database::Error> {
        let read = self.reads.fetch_add(1, Ordering::AcqRel) + 1;
        let (began, known) = (Instant::now(), self.load());
        let newer = database.followed_objects().newer(&known.marks).await?;
        let served = if known.version <= Some(newer.loaded.version) {
            self.serve(database, &known, (newer, began)).await
        } else {
            self.read_anew(database, &known).await
        };
        // One that is served in part is as well.
        if matches!(served, Ok(()) | Err(database::Error::Invalid(_))) {
            self.read.store(read, Ordering::Release);
        }
        served
    }

    /// Reads all that is declared and issued, at a turn, as at a start: the database is at an older state than `known`.
    async fn read_anew(
        &self,
        database: &Database,
        known: &Snapshot,
    ) -> Result<(), database::Error> {
        let (began, known) = (Instant::now(), known.set_back());
        let newer = database.followed_objects().newer(&known.marks).await?;
        self.serve(database, &known, (newer, began)).await
    }

    /// Serves what was read since `began`, of which the rest is as in `known`.
    async fn serve(
        &self,
        database: &Database,
        known: &Snapshot,
        (mut newer, began): (Newer, Instant),
    ) -> Result<(), database::Error> {
        let objects = database.followed_objects();
        let judged = objects.judged(&newer.loaded, When::Serving);
        let (mut changed, walled, mistakes) = match judged.await {
            Ok(manifest) => (manifest.catalog, Vec::new(), None),
            Err(database::Error::Invalid(mistakes)) => {
                let apart = objects.judged_apart(&newer.loaded).await?;
                let walled = apart.walled.iter().map(|(tenant, _)| tenant);
                let partial = apart.refused.iter().chain(walled).map(String::as_str);
                let partial: BTreeSet<&str> = partial.collect();
                // A start goes on without what administrators have stored. It ends for a mistake of settings, or of the
                // machine, of which a roll-out has to learn.
                let is_first = known.version.is_none();
                let is_none_served =
                    is_first && (apart.is_judged || apart.catalog.tenants.is_empty());
                if partial.is_empty() || is_none_served {
                    return Err(database::Error::Invalid(mistakes));
                }
                keep_marks(&mut newer, &partial, known);
                (apart.catalog, apart.walled, Some(mistakes))
            }
            Err(failure) => return Err(failure),
        };
        let Newer { loaded, marks } = newer;
        for (tenant, id) in loaded.tenants() {
            changed.identify(tenant, id);
        }
        for (tenant, server) in &walled {
            changed.keep_children(tenant, server, &known.catalog);
        }
        let changed = changed.reusing(&known.catalog).tenants;
        let mut tenants = known.catalog.tenants.clone();
        tenants.retain(|name, _| marks.contains_key(name));
        tenants.extend(changed);
        let operators = loaded.objects.iter();
        let operators = operators.filter(|stored| stored.name.owner().is_none());
        // A malformed operator key grants nothing, and the other keys stay valid.
        let operator_keys = operators
            .filter_map(|stored| stored.operator_key().ok())
            .collect();
        // After the declared objects, so that no issued row is older than its tenant.
        let (issued, revocation) = newer_issued(database, known).await?;
        self.publish(Snapshot {
            version: Some(loaded.version),
            revocation,
            catalog: Arc::new(Catalog::new(tenants, issued)),
            operator_keys,
            marks: Arc::new(marks),
            is_partial: mistakes.is_some(),
            setbacks: known.setbacks,
        });
        self.last_poll.note(began);
        mistakes.map_or(Ok(()), |mistakes| Err(database::Error::Invalid(mistakes)))
    }

    /// Reads newly issued and revoked rows only, if there are any.
    ///
    /// # Errors
    ///
    /// Those of [`Database::issued`]. After an error the last snapshot stays.
    pub(crate) async fn refresh_issued(&self) -> Result<(), database::Error> {
        let known = self.load();
        let reached = self.database()?.issued().reached().await?;
        if known.is_beyond(&reached) || self.load().revocation < reached.revocation {
            self.catch_up(&known, &reached).await?;
        }
        Ok(())
    }

    /// Reads revocations that are not known here; all anew from a database that is at an older state than `known`.
    async fn catch_up(&self, known: &Snapshot, reached: &Reached) -> Result<(), database::Error> {
        if !known.is_beyond(reached) {
            return self.read_issued().await;
        }
        let database = self.database()?;
        let _turn = self.turn().await?;
        if self.load().setbacks > known.setbacks {
            return self.read_issued().await;
        }
        let read = self.read_anew(database, known).await;
        let is_served = self.load().setbacks > known.setbacks;
        match read {
            // It is told by the round, which reads again what is not served.
            Err(database::Error::Invalid(_)) if is_served => Ok(()),
            Err(
                database::Error::Invalid(_) | database::Error::File(_) | database::Error::Bug(_),
            ) => self.keep_declared(database, known, reached.version).await,
            read => read,
        }
    }

    /// Serves what is issued by a database at an older state than `known`, whose declared state cannot be served here, with
    /// what was declared before.
    async fn keep_declared(
        &self,
        database: &Database,
        known: &Snapshot,
        version: i64,
    ) -> Result<(), database::Error> {
        let back = known.set_back();
        let (issued, revocation) = newer_issued(database, &back).await?;
        let tenants = known.catalog.tenants.clone();
        self.publish(Snapshot {
            version: Some(version),
            revocation,
            catalog: Arc::new(Catalog::new(tenants, issued)),
            operator_keys: known.operator_keys.clone(),
            is_partial: true,
            ..back
        });
        Ok(())
    }

    async fn read_issued(&self) -> Result<(), database::Error> {
        loop {
            let known = self.load();
            let (issued, revocation) = newer_issued(self.database()?, &known).await?;
            // Without a version: what is declared stays, also if it is read again meanwhile.
            let is_current = self.publish(Snapshot {
                revocation,
                catalog: Arc::new(Catalog::new(Table::default(), issued)),
                setbacks: known.setbacks,
                ..Snapshot::default()
            });
            if is_current {
                return Ok(());
            }
        }
    }

    /// Polls the database for a request, which does not wait for one that is silent, and reads new revocations.
    /// Returns the number of the last declared change.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(crate) async fn poll(&self) -> Result<i64, database::Error> {
        let (began, known) = (Instant::now(), self.load());
        let reached = timeout(POLL_TIMEOUT, self.reached()).await;
        let reached = reached.unwrap_or_else(|_| Err(silent()))?;
        if known.is_beyond(&reached) || self.lacks(&reached) {
            let read = Box::pin(self.catch_up(&known, &reached));
            let read = timeout(READ_TIMEOUT, read).await;
            read.unwrap_or_else(|_| Err(silent()))?;
        }
        self.last_poll.note(began);
        Ok(reached.version)
    }

    /// Polls the database and reads new revocations, however slowly it answers. `on_silence` is called once if it
    /// is silent for a while.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(super) async fn follow(&self, on_silence: impl Fn()) -> Result<Polled, database::Error> {
        let (mut wait, known) = (Wait::begin(), self.load());
        let mut asked = pin!(timeout(READ_TIMEOUT, self.reached()));
        let reached = loop {
            // Behind a standstill no token is good until the database has been asked: one that answers slowly must
            // not count as unreachable, which would make revoked tokens good again.
            let is_recent = self.last_poll.is_recent();
            if let Some(reached) = wait.part(&mut asked).await {
                break reached.unwrap_or_else(|_| Err(silent()));
            }
            // Otherwise one that hangs counts as unreachable, while it is waited for.
            if is_recent {
                self.last_poll.note(wait.part);
            }
            if !std::mem::replace(&mut wait.is_late, true) {
                on_silence();
            }
        };
        let reached = match reached {
            Ok(reached) => reached,
            Err(database::Error::Unavailable(why)) => {
                self.last_poll.note(wait.part);
                let what = if wait.is_late {
                    silent()
                } else {
                    database::Error::Unavailable(why)
                };
                return Err(what);
            }
            Err(error) => return Err(error),
        };
        if known.is_beyond(&reached) || self.lacks(&reached) {
            // A database that answers slowly can be reached: without the revocations that it has, this poll does not
            // count. The read is of many statements, and takes its time without a silence.
            let mut read = Box::pin(self.catch_up(&known, &reached));
            loop {
                if let Some(read) = wait.part(&mut read).await {
                    break read?;
                }
            }
        }
        self.last_poll.note(wait.known());
        Ok(Polled {
            version: reached.version,
            is_late: wait.is_late,
        })
    }

    async fn reached(&self) -> Result<Reached, database::Error> {
        self.database()?.issued().reached().await
    }

    /// Whether there are revocations that are not known here.
    fn lacks(&self, reached: &Reached) -> bool {
        self.is_loaded() && self.load().revocation < reached.revocation
    }

    /// Replaces an older snapshot. Declared and issued state are numbered separately, and the newer
    /// of each stays. False for one from before the database was found at an older state.
    fn publish(&self, mut new: Snapshot) -> bool {
        let mut is_current = true;
        // Refreshes may run concurrently; the lock of the watch channel orders them.
        self.changed.send_if_modified(|current| {
            if new.setbacks != current.setbacks {
                is_current = new.setbacks > current.setbacks;
                if is_current {
                    tell_setback(current, &new);
                    self.replace(current, new);
                }
                return is_current;
            }
            let is_declared_newer = new.version > current.version;
            let is_declared_newer = is_declared_newer || is_other_part(&new, current);
            let is_issued_newer = new.revocation > current.revocation;
            if !is_declared_newer && !is_issued_newer {
                return false;
            }
            if !is_issued_newer {
                new.revocation = current.revocation;
                let issued = Arc::clone(&current.catalog.issued);
                let tenants = new.catalog.tenants.clone();
                new.catalog = Arc::new(Catalog::new(tenants, issued));
            } else if !is_declared_newer {
                new.version = current.version;
                new.operator_keys.clone_from(&current.operator_keys);
                new.marks = Arc::clone(&current.marks);
                new.is_partial = current.is_partial;
                let issued = Arc::clone(&new.catalog.issued);
                let tenants = current.catalog.tenants.clone();
                new.catalog = Arc::new(Catalog::new(tenants, issued));
            }
            self.replace(current, new);
            true
        });
        is_current
    }

    fn replace(&self, current: &mut Arc<Snapshot>, new: Snapshot) {
        let new = Arc::new(new);
        self.snapshot.store(Arc::clone(&new));
        self.tell_secret_changes(current, &new);
        *current = new;
    }

    fn tell_secret_changes(&self, was: &Snapshot, now: &Snapshot) {
        let (known, new) = (&was.catalog.issued, &now.catalog.issued);
        let Some(receive) = self.on_secret_change.get() else {
            return;
        };
        if now.setbacks != was.setbacks {
            receive(None);
        }
        if Arc::ptr_eq(&known.secrets, &new.secrets) {
            return;
        }
        // Changes below the first one that is known ended too long ago, but for a database that lacks what it had: there
        // the next ones have numbers of before.
        let first = known.secrets.first_key_value();
        let first = first.filter(|_| now.setbacks == was.setbacks);
        let first = first.map_or(0, |(number, _)| *number);
        for (number, change) in new.secrets.range(first..) {
            // A number is that of another change where the database lacked those that it had.
            if known.secrets.get(number) != Some(change) {
                receive(Some((*number, change)));
            }
        }
    }
}

/// Keys and revocations that are newer than the known ones, with the number of the last change.
async fn newer_issued(
    database: &Database,
    known: &Snapshot,
) -> Result<(Arc<Issued>, i64), database::Error> {
    let known = (&*known.catalog.issued, known.revocation);
    let (issued, revocation) = database.issued().newer(known).await?;
    Ok((Arc::new(issued), revocation))
}

fn tell_setback(known: &Snapshot, new: &Snapshot) {
    let (was, now) = (known.version.unwrap_or(0), new.version.unwrap_or(0));
    let (revocation_was, revocation_now) = (known.revocation, new.revocation);
    tracing::error!(
        event = "store.set_back",
        was,
        now,
        revocation_was,
        revocation_now,
        "the database lacks changes that it had: its state is read anew"
    );
}

/// Whether two snapshots serve different parts of one state: what was missing for a part may have come.
fn is_other_part(new: &Snapshot, current: &Snapshot) -> bool {
    let (tenants, known) = (&new.catalog.tenants, &current.catalog.tenants);
    let is_known = |(name, tenant): (&String, &Arc<Tenant>)| {
        let known = known.get(name);
        known.is_some_and(|known| Arc::ptr_eq(known, tenant))
    };
    let is_same = || {
        let is_as_partial = new.is_partial && new.marks == current.marks;
        is_as_partial && tenants.len() == known.len() && tenants.iter().all(is_known)
    };
    current.is_partial && new.version == current.version && !is_same()
}

/// Gives tenants that cannot be served here as they are stored the marks of what is served, so that each change reads
/// them again. One that was declared anew has none: nothing of the tenant that was removed is served.
fn keep_marks(newer: &mut Newer, partial: &BTreeSet<&str>, known: &Snapshot) {
    let Newer { loaded, marks } = newer;
    for (tenant, id) in loaded.tenants() {
        if !partial.contains(tenant) {
            continue;
        }
        let served = known.catalog.tenants.get(tenant);
        let is_same = served.is_some_and(|served| served.id == Some(id));
        match known.marks.get(tenant).filter(|_| is_same) {
            Some(mark) => marks.insert(tenant.to_owned(), *mark),
            // The marks are gone if the database lacks what it had.
            None if is_same => marks.insert(tenant.to_owned(), Mark::default()),
            None => marks.remove(tenant),
        };
    }
}

/// What a poll found.
#[derive(Clone, Debug)]
pub(super) struct Polled {
    /// The number of the last declared change.
    pub(super) version: i64,
    /// The database was silent for a while.
    pub(super) is_late: bool,
}

/// The failure of a database that is silent for [`POLL_TIMEOUT`].
pub(super) fn silent() -> database::Error {
    database::Error::Unavailable(format!("no answer within {POLL_TIMEOUT:?}"))
}

/// The timeout of a poll: that of a statement. With a shorter one, a database that answers slowly would never be read,
/// and revocations of other replicas would not arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use futures_util::FutureExt;
    use serde_json::json;

    use super::super::current::*;
    use crate::config::{Config, Format, Sources, Wrong};
    use crate::database::{Author, Expected, Judge, Opening};
    use crate::declare::{Kind, Object, ObjectName, PublicKey, Server};
    use crate::manifest::{Manifest, reader::parse};

    #[test]
    fn an_older_snapshot_does_not_replace_a_newer_one() {
        let snapshot = CurrentSnapshot::empty();
        let changes = snapshot.subscribe();
        assert!(!snapshot.is_loaded());
        let publish = |version| {
            snapshot.publish(Snapshot {
                version: Some(version),
                ..Snapshot::default()
            });
        };
        publish(2);
        publish(1);
        assert_eq!(snapshot.load().version, Some(2));
        assert_eq!(changes.borrow().version, Some(2));
        assert!(snapshot.is_loaded());
    }

    #[test]
    fn declared_and_issued_state_are_numbered_separately() {
        let current = CurrentSnapshot::empty();
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
                catalog: Arc::new(Catalog::new(tenants, issued)),
                operator_keys: OperatorKeys::new(),
                marks: Arc::default(),
                is_partial: false,
                setbacks: 0,
            }
        };
        let shown = || {
            let shown = current.load();
            let tenants: Vec<String> = shown.catalog.tenants.keys().cloned().collect();
            let kid = shown.catalog.issued.keys["a"][0].kid.clone();
            (shown.version, shown.revocation, tenants.join(" "), kid)
        };
        let is = |version, revocation, tenant: &str, kid: &str| {
            let wanted = (Some(version), revocation, tenant.to_owned(), kid.to_owned());
            assert_eq!(shown(), wanted);
        };
        current.publish(snapshot(1, 5, "one"));
        current.publish(snapshot(2, 4, "two"));
        is(2, 5, "two", "of 5");
        current.publish(snapshot(1, 6, "one"));
        is(2, 6, "two", "of 6");
        current.publish(snapshot(2, 6, "three"));
        is(2, 6, "two", "of 6");
        current.publish(snapshot(3, 7, "three"));
        is(3, 7, "three", "of 7");
    }

    /// A token of a child that was replaced since stayed, with a number that the database no longer had.
    #[test]
    fn secrets_of_a_database_that_went_back_may_all_be_others() {
        let (current, (told, all)) = (CurrentSnapshot::empty(), std::sync::mpsc::channel());
        current
            .on_secret_change(move |change| told.send(change.map(|(number, _)| number)).unwrap());
        let publish = |revocation, setbacks| {
            let secrets = BTreeMap::from([(revocation, SecretChange::default())]);
            let issued = Issued {
                secrets: Arc::new(secrets),
                ..Issued::default()
            };
            current.publish(Snapshot {
                revocation,
                setbacks,
                catalog: Arc::new(Catalog::new(Table::default(), Arc::new(issued))),
                ..Snapshot::default()
            });
        };
        publish(100, 0);
        publish(90, 1);
        assert_eq!(
            all.try_iter().collect::<Vec<_>>(),
            [Some(100), None, Some(90)]
        );
    }

    /// A snapshot of a database with no objects, in a directory of its own, whose states `judge` checks.
    async fn opened(judge: Judge) -> (tempfile::TempDir, Arc<CurrentSnapshot>) {
        let (dir, current) = (tempfile::tempdir().unwrap(), CurrentSnapshot::empty());
        let config = Config::load(&Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
            ..Sources::default()
        });
        let opening = Opening::of(&config.unwrap(), judge, Clock::of(|| 1_000));
        current.set_database(Database::open(opening).await.unwrap());
        (dir, current)
    }

    /// Those of many requests took all connections by which revocations are followed.
    #[tokio::test]
    async fn refreshes_take_turns() {
        let (_dir, current) = opened(Arc::new(|_: &_, _| Vec::new())).await;
        let under_way = current.refreshing.acquire().await;
        let mut next = pin!(current.refresh());
        let polls = async {
            for _ in 0..200 {
                current.poll().await.unwrap();
            }
        };
        tokio::select! {
            biased;
            done = &mut next => panic!("it did not wait: {done:?}"),
            () = polls => {}
        }
        drop(under_way);
        next.await.unwrap();
    }

    /// Each of a tenant's changes read all of it anew, and those of others and of operators waited behind them.
    #[tokio::test]
    async fn a_change_that_was_read_meanwhile_is_not_read_again() {
        let reads = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reads);
        let judge = move |_: &Manifest, when: When| {
            counted.fetch_add(u64::from(when == When::Serving), Ordering::Relaxed);
            Vec::new()
        };
        let (_dir, current) = opened(Arc::new(judge)).await;
        declare(
            &current,
            &ObjectName::tenant("a"),
            json!({"auth": {"mode": "none"}}),
        )
        .await;
        let version = current
            .database()
            .unwrap()
            .objects()
            .version()
            .await
            .unwrap();
        let under_way = current.refreshing.acquire().await;
        let mut waiting: Vec<_> = (0..3)
            .map(|_| Box::pin(current.refresh_to(version)))
            .collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        drop(under_way);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        assert!(current.catalog().tenants.contains_key("a"));
        current.refresh_to(version + 1).await.unwrap();
        current.refresh().await.unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 3);
    }

    /// Changes the database as no gateway does.
    async fn run(current: &CurrentSnapshot, statements: &[&'static str]) {
        let objects = current.database().unwrap().objects();
        let mut transaction = objects.pool.begin().await.unwrap();
        for statement in statements {
            transaction.run(*statement, Vec::new()).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }

    /// A standby that takes over may lack the last changes, and gives their numbers again. What was deleted or revoked
    /// under such a number stayed good.
    #[tokio::test]
    async fn a_database_at_an_older_state_is_read_anew() {
        let (_dir, current) = opened(Arc::new(|_: &_, _| Vec::new())).await;
        let tenant = json!({"auth": {"mode": "none"}});
        declare(&current, &ObjectName::tenant("a"), tenant).await;
        let server = |name| ObjectName::of("a", Kind::Server, name);
        for name in ["x", "z"] {
            declare(&current, &server(name), json!({"command": "cat"})).await;
        }
        current.refresh().await.unwrap();
        assert_eq!(current.load().version, Some(3));
        let back = "UPDATE changes SET version = 1";
        run(&current, &["DELETE FROM servers", back]).await;
        declare(&current, &server("y"), json!({"command": "cat"})).await;
        // Its number is below that of what is served.
        current.refresh_to(2).await.unwrap();
        let served = |name| current.catalog().find("a", name).is_some();
        assert_eq!(current.load().version, Some(2));
        assert!(served("y") && !served("x") && !served("z"));
        run(&current, &["DELETE FROM servers", back]).await;
        assert_eq!(current.follow(|| {}).await.unwrap().version, 1);
        assert!(current.load().version == Some(1) && !served("y"));
        // Revocations have numbers of their own.
        let lost = [
            "INSERT INTO revocations (number, tenant, kind, value, at_ms)
             VALUES (1, 'a', 'key', 'one', 1000), (2, 'a', 'key', 'two', 1000)",
            "UPDATE changes SET revocation = 2",
        ];
        run(&current, &lost).await;
        current.refresh_issued().await.unwrap();
        let revoked = |key: &str| current.catalog().issued.revoked["a"].keys.contains_key(key);
        assert!(revoked("one") && revoked("two"));
        let other = [
            "DELETE FROM revocations",
            "INSERT INTO revocations (number, tenant, kind, value, at_ms)
             VALUES (1, 'a', 'key', 'other', 1000)",
            "UPDATE changes SET revocation = 1",
        ];
        run(&current, &other).await;
        current.poll().await.unwrap();
        assert!(revoked("other") && !revoked("one") && !revoked("two"));
    }

    /// What one tenant had stored, and a later release refused, ended the start for all.
    #[tokio::test]
    async fn a_first_state_is_served_without_a_tenant_that_cannot_be_read() {
        let refuses = |manifest: &Manifest, when| {
            let wrong = Wrong::new("is refused", "none");
            let has_c = when == When::Serving && manifest.catalog.tenants.contains_key("c");
            has_c
                .then(|| wrong.at("judge", "tenants.c.auth"))
                .into_iter()
                .collect()
        };
        let (_dir, current) = opened(Arc::new(refuses)).await;
        let database = current.database().unwrap();
        let (objects, author) = (database.objects(), Author::named("x"));
        let declare = async |name: &str| {
            let json = serde_json::json!({"auth": {"mode": "none"}});
            let object = Object::new(Kind::Tenant, json.as_object().unwrap().clone());
            let name = ObjectName::tenant(name);
            objects
                .put(&name, object, Expected::Any, &author)
                .await
                .unwrap();
        };
        declare("a").await;
        declare("b").await;
        let mut transaction = objects.pool.begin().await.unwrap();
        let spoil = "UPDATE tenants SET spec = '{\"auth\":{\"mode\":\"odd\"}}' WHERE name = 'a'";
        transaction.run(spoil, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
        let started = async || {
            let next = CurrentSnapshot::empty();
            next.set_database(database.clone());
            let refused = next.refresh().await;
            assert!(
                matches!(refused, Err(database::Error::Invalid(_))),
                "{refused:?}"
            );
            next.is_loaded().then(|| {
                let catalog = next.catalog();
                catalog.tenants.keys().cloned().collect::<Vec<_>>()
            })
        };
        assert_eq!(started().await, Some(vec!["b".to_owned()]));
        // A mistake of settings, or of the machine, is one of the start.
        declare("c").await;
        assert_eq!(started().await, None);
    }

    /// Nothing of the first one was ended if no snapshot was without it.
    #[tokio::test]
    async fn a_tenant_that_is_declared_again_is_another_one() {
        let (_dir, current) = opened(Arc::new(|_: &_, _| Vec::new())).await;
        let objects = current.database().unwrap().objects();
        let author = Author::named("x");
        let declare = async |kind, name: &ObjectName, json: serde_json::Value| {
            let object = Object::new(kind, json.as_object().unwrap().clone());
            let put = objects.put(name, object, Expected::Any, &author).await;
            put.unwrap();
        };
        let tenant = ObjectName::tenant("a");
        let server = ObjectName::of("a", Kind::Server, "x");
        let declared = async || {
            declare(Kind::Tenant, &tenant, json!({"auth": {"mode": "none"}})).await;
            declare(Kind::Server, &server, json!({"command": "cat"})).await;
            current.refresh().await.unwrap();
            current.catalog()
        };
        let first = declared().await;
        let same = declared().await;
        assert!(same.is_still("a", &first) && !same.is_still("b", &first));
        let server_of = |catalog: &Catalog| catalog.find("a", "x").unwrap().1;
        assert!(Arc::ptr_eq(&server_of(&first), &server_of(&same)));
        objects
            .delete(&tenant, Expected::Present, &author)
            .await
            .unwrap();
        let second = declared().await;
        assert!(!second.is_still("a", &first));
        assert!(!Arc::ptr_eq(&server_of(&first), &server_of(&second)));
    }

    /// Judges the servers that are served by their commands.
    fn of_commands() -> Judge {
        Arc::new(|manifest: &Manifest, when| {
            let found = |server: &Arc<Server>| {
                let (tenant, name) = (&server.tenant, &server.name);
                let key = match server.launch.command.as_str() {
                    "walled" => format!("tenants.{tenant}.servers.{name}.limits.memory"),
                    "refused" => format!("tenants.{tenant}.auth"),
                    _ => return None,
                };
                Some(Wrong::new("is missing", "add it").at("here", &key))
            };
            let servers = manifest.catalog.servers();
            let servers = servers.filter(|_| when == When::Serving);
            servers.filter_map(found).collect()
        })
    }

    /// Declares an object of tenant `a`.
    async fn declare(current: &CurrentSnapshot, name: &ObjectName, json: serde_json::Value) {
        let object = Object::new(name.kind(), json.as_object().unwrap().clone());
        let (objects, author) = (current.database().unwrap().objects(), Author::named("x"));
        let put = objects.put(name, object, Expected::Any, &author).await;
        put.unwrap();
    }

    async fn remove(current: &CurrentSnapshot, name: &ObjectName) {
        let (objects, author) = (current.database().unwrap().objects(), Author::named("x"));
        let gone = objects.delete(name, Expected::Present, &author).await;
        gone.unwrap();
    }

    /// The catalogue after a refresh, which takes over all that is stored or not.
    async fn served(current: &CurrentSnapshot, is_whole: bool) -> Arc<Catalog> {
        assert_eq!(current.refresh().await.is_ok(), is_whole);
        assert_eq!(current.load().is_partial, !is_whole);
        current.catalog()
    }

    /// The command of a server of tenant `a`.
    fn command(catalog: &Catalog, name: &str) -> Option<String> {
        let (_, server) = catalog.find("a", name)?;
        Some(server.launch.command.clone())
    }

    /// Removed keys stayed good, because all changes of their tenant waited for one server.
    #[tokio::test]
    async fn a_server_that_cannot_be_started_here_keeps_nothing_else_as_it_was() {
        let (_dir, current) = opened(of_commands()).await;
        let of = |kind, name| ObjectName::of("a", kind, name);
        let (x, y) = (of(Kind::Server, "x"), of(Kind::Server, "y"));
        let key = of(Kind::ApiKey, "k");
        let hash = format!("sha256:{}", "7".repeat(64));
        let declared = json!({"hash": hash, "subject": "s", "servers": ["*"]});
        let tenant = json!({"auth": {"mode": "keys"}});
        declare(&current, &ObjectName::tenant("a"), tenant).await;
        declare(&current, &x, json!({"command": "cat"})).await;
        declare(&current, &key, declared.clone()).await;
        let catalog = served(&current, true).await;
        assert_eq!(catalog.tenants["a"].api_keys.len(), 1);
        // The server goes on as it was, for those who may still use it.
        let walled = json!({"command": "walled", "grants": {"users": ["s"]}});
        declare(&current, &x, walled).await;
        declare(&current, &y, json!({"command": "walled"})).await;
        for _ in 0..2 {
            remove(&current, &key).await;
            let catalog = served(&current, false).await;
            assert!(catalog.tenants["a"].api_keys.is_empty());
            assert_eq!(command(&catalog, "x").as_deref(), Some("cat"));
            assert!(catalog.find("a", "x").unwrap().1.grants.is_some());
            assert_eq!(command(&catalog, "y"), None);
            declare(&current, &key, declared.clone()).await;
        }
        remove(&current, &y).await;
        declare(&current, &x, json!({"command": "true"})).await;
        let catalog = served(&current, true).await;
        assert_eq!(command(&catalog, "x").as_deref(), Some("true"));
    }

    #[tokio::test]
    async fn nothing_of_a_removed_tenant_is_served_under_its_name() {
        let (_dir, current) = opened(of_commands()).await;
        let (tenant, x) = (
            ObjectName::tenant("a"),
            ObjectName::of("a", Kind::Server, "x"),
        );
        let keys = json!({"auth": {"mode": "keys"}});
        for (next, is_there) in [("walled", true), ("refused", false)] {
            declare(&current, &tenant, keys.clone()).await;
            declare(&current, &x, json!({"command": "cat"})).await;
            let catalog = served(&current, true).await;
            assert_eq!(command(&catalog, "x").as_deref(), Some("cat"));
            remove(&current, &tenant).await;
            declare(&current, &tenant, keys.clone()).await;
            declare(&current, &x, json!({"command": next})).await;
            let catalog = served(&current, false).await;
            assert_eq!(catalog.tenants.contains_key("a"), is_there);
            assert_eq!(command(&catalog, "x"), None);
            remove(&current, &tenant).await;
        }
    }

    /// What was missing on the machine came without a change, and was not served before the next one.
    #[tokio::test]
    async fn a_part_that_was_missing_is_served_without_a_change() {
        let (is_missing, of_commands) = (Arc::new(AtomicBool::new(true)), of_commands());
        let missing = Arc::clone(&is_missing);
        let judge: Judge = Arc::new(move |manifest, when| {
            if missing.load(Ordering::Relaxed) {
                of_commands(manifest, when)
            } else {
                Vec::new()
            }
        });
        let (_dir, current) = opened(judge).await;
        let x = ObjectName::of("a", Kind::Server, "x");
        let tenant = json!({"auth": {"mode": "keys"}});
        declare(&current, &ObjectName::tenant("a"), tenant).await;
        declare(&current, &x, json!({"command": "cat"})).await;
        served(&current, true).await;
        declare(&current, &x, json!({"command": "walled"})).await;
        served(&current, false).await;
        // Nobody has to follow what is as it was.
        let changes = current.subscribe();
        let catalog = served(&current, false).await;
        assert_eq!(command(&catalog, "x").as_deref(), Some("cat"));
        assert!(!changes.has_changed().unwrap());
        is_missing.store(false, Ordering::Relaxed);
        let catalog = served(&current, true).await;
        assert_eq!(command(&catalog, "x").as_deref(), Some("walled"));
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn a_suspended_process_has_no_recent_poll() {
        let (last_poll, begin) = (LastPollAttempt::never(), Instant::now());
        let noted = begin + Duration::from_secs(10);
        last_poll.note(noted);
        assert!(last_poll.is_recent_at(noted + MAX_POLL_AGE - Duration::from_millis(5)));
        assert!(!last_poll.is_recent_at(noted + MAX_POLL_AGE + Duration::from_millis(5)));
        // A poll that ends later than a newer one does not move the time back.
        last_poll.note(begin);
        assert!(last_poll.is_recent_at(noted + MAX_POLL_AGE - Duration::from_millis(5)));
    }
}

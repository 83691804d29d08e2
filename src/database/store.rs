//! The store: what operators declared and who changed it, in SQLite or PostgreSQL.
//!
//! Every change passes [`Store::apply`], [`Store::put`] or [`Store::delete`]: it is judged as the
//! whole state that it leads to, and written together with its audit records in one transaction.
//! Not here: the statements (`rows`), and the snapshot that requests read (`live`).

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use aws_lc_rs::rand::SystemRandom;
use serde_json::Value as Json;

use super::{
    audit::{self, Filter, Page, Record},
    oauth::{Signing, signing_keys},
    objects::{
        Core, RowError, Sealer, Stored, VERSION,
        changes::{check_expected, check_last_key, edited, version_in},
        rows,
    },
    sql::{Pool, SqlError},
    vault::{KeySource, rotation},
};
use crate::config::{Config, Mistake, Wrong};
use crate::{
    base::{Clock, Secret, private_file},
    declare::{
        Change, Declared, Kind, Object, ObjectName, Prune, What, When,
        difference::{difference, with_its_own},
    },
    manifest::Manifest,
};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The database does not answer; nothing is known to have changed. Come back later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// It is not as the caller thinks: another version, there already, or not there any more.
    #[error("the object was changed meanwhile")]
    Conflict,
    /// Without this API key no operator could get in.
    #[error("the last operator key that holds")]
    LastKey,
    /// There is no such object, or no such tenant.
    #[error("no such object")]
    NotFound,
    /// What it would lead to cannot be served, or the store cannot be used with these settings.
    #[error("{}", lines(.0))]
    Invalid(Vec<Mistake>),
    /// A bug of ours, or a store that somebody else wrote to.
    #[error("bug in the store: {0}")]
    Bug(String),
}

fn lines(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Unavailable(what) => Self::Unavailable(what),
            SqlError::Duplicate => Self::Conflict,
            SqlError::Dangling => Self::NotFound,
            SqlError::Unusable(what) => Self::Invalid(vec![unusable(what)]),
            SqlError::Bug(what) => Self::Bug(what),
        }
    }
}

fn unusable(what: String) -> Mistake {
    let remedy = "name a database of this or an earlier version of lockgate";
    Wrong::new(what, remedy).at("configuration", "sql.url")
}

/// What finds every mistake in a state.
pub(crate) type Judge = Arc<dyn Fn(&Manifest, When) -> Vec<Mistake> + Send + Sync>;

/// Where a store is.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    /// A file of SQLite.
    File(PathBuf),
    /// PostgreSQL, by its URL.
    Url(Secret),
}

impl Location {
    /// Where `config` says.
    pub(crate) fn of(config: &Config) -> Self {
        match &config.keeping.sql_url {
            Some(url) => Self::Url(url.clone()),
            None => Self::File(config.data_dir.join(FILE)),
        }
    }
}

/// How a store is opened.
#[derive(Clone)]
pub(crate) struct Opening {
    /// Where it is.
    pub(crate) location: Location,
    /// Where the master keys are.
    pub(crate) keys: KeySource,
    /// What finds mistakes in what is to be stored.
    pub(crate) judge: Judge,
    /// What time it is.
    pub(crate) clock: Clock,
}

impl Opening {
    /// Location and keys as `config` says.
    pub(crate) fn of(config: &Config, judge: Judge, clock: Clock) -> Self {
        let keys = match &config.keeping.master_key {
            Some(text) => KeySource::Given(text.clone()),
            None => KeySource::File(config.data_dir.join(KEY_FILE)),
        };
        Self {
            location: Location::of(config),
            keys,
            judge,
            clock,
        }
    }
}

/// Which version of an object a change is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Whatever is there, or nothing (no condition).
    Any,
    /// Nothing (`If-None-Match: *`).
    Absent,
    /// Whatever is there, but something (`If-Match: *`).
    Present,
    /// This one (`If-Match` with an `ETag`).
    Version(i64),
}

/// Who makes a change, for the audit trail.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    /// The subject, or what acts by itself: `ada`, `key:ci`, `manifest`.
    pub(crate) actor: String,
    /// What else is worth keeping, like an address; never a secret.
    pub(crate) detail: serde_json::Map<String, Json>,
}

impl Author {
    /// An author of whom no more is known.
    pub(crate) fn named(actor: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            detail: serde_json::Map::new(),
        }
    }
}

/// Everything that is declared, at one moment.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The number of the last change.
    pub(crate) version: i64,
    /// Every object with its own version.
    pub(crate) objects: Vec<Stored>,
}

impl Loaded {
    /// The objects by name.
    pub(crate) fn declared(&self) -> Declared {
        let named = self.objects.iter();
        let named = named.map(|stored| (stored.name.clone(), stored.object.clone()));
        Declared(named.collect())
    }
}

/// A store that is open; a handle over one shared pool.
#[derive(Clone)]
pub(crate) struct Store(pub(crate) Arc<Core>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("pool", &self.0.pool).finish()
    }
}

impl Store {
    /// Opens the store, brings its schema up to date, and proves that the master key fits.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the database does not answer; `Invalid` if it cannot be used as the
    /// configuration says: a wrong master key, an unusable URL.
    pub(crate) async fn open(opening: Opening) -> Result<Self, Failure> {
        let pool = match &opening.location {
            Location::File(file) => {
                make_private(file).map_err(|error| Failure::Unavailable(error.to_string()))?;
                Pool::sqlite(file).await?
            }
            Location::Url(url) => Pool::postgres(url.expose()).await?,
        };
        pool.read_in_time(&opening.clock, "SELECT 1 AS one").await?;
        let random = SystemRandom::new();
        let mut transaction = pool.begin().await?;
        let now_ms = opening.clock.now_ms();
        let keys = rotation::admit(&mut transaction, &opening.keys, &random, now_ms).await?;
        transaction.commit().await?;
        Ok(Self(Arc::new(Core {
            pool,
            opening,
            keys: ArcSwap::from_pointee(keys),
            random,
            signing: Signing::default(),
        })))
    }

    /// Everything that is declared, with the number of the last change.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Invalid` (a master key is missing), `Bug` (a row is not as it was written).
    pub(crate) async fn load(&self) -> Result<Loaded, Failure> {
        let mut transaction = self.0.pool.snapshot().await?;
        self.0.loaded(&mut transaction).await
    }

    /// The number of the last change: one cheap query.
    pub(crate) async fn version(&self) -> Result<i64, Failure> {
        let rows = self.0.pool.read(VERSION, Vec::new()).await?;
        version_in(&rows)
    }

    /// The state `loaded` as a manifest, if it can be served here.
    ///
    /// # Errors
    ///
    /// `Invalid` with every mistake.
    pub(crate) fn judged(&self, loaded: &Loaded, when: When) -> Result<Manifest, Failure> {
        self.0.judged(&loaded.declared(), when)
    }

    /// Makes what is stored into what a manifest declares, in one step. Returns what that changed;
    /// nothing is written if it is nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` with every mistake in what the whole would become; `Conflict` if an API key's hash
    /// is taken; `Unavailable`.
    pub(crate) async fn apply(
        &self,
        wanted: &Declared,
        prune: Prune,
        author: &Author,
    ) -> Result<Vec<Change>, Failure> {
        let wanted = self.0.hashed(wanted.clone()).await?;
        let edit = |before: &Loaded| {
            let changes = difference(&before.declared(), &wanted, prune);
            Ok((wanted.clone(), changes))
        };
        let (_, changes) = self.0.change(When::Applying, author, edit).await?;
        Ok(changes)
    }

    /// Removes records of the audit trail that are older than `keep`.
    pub(crate) async fn prune_audit(&self, keep: std::time::Duration) -> Result<(), Failure> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let before_ms = self.0.now_ms().saturating_sub(keep_ms);
        while audit::prune(&self.0.pool, before_ms).await? > 0 {}
        Ok(())
    }

    /// Seals everything anew: under a new key if the key file is ours, else under the first given.
    /// The old keys are worth nothing then; log-ins under way begin again. Returns the new key's id.
    ///
    /// # Errors
    ///
    /// `Unavailable`, or `Invalid` if the key file cannot be written.
    pub(crate) async fn rotate(&self) -> Result<String, Failure> {
        let source = &self.0.opening.keys;
        let _lock = source.lock().map_err(Failure::from_key)?;
        let keys = rotation::begin_rotation(source, &self.0.random)?;
        let mut transaction = self.0.pool.begin().await?;
        let objects = rows::all(&mut transaction, &keys).await;
        let sealer = Sealer {
            keys: &keys,
            random: &self.0.random,
        };
        for stored in &objects.map_err(Failure::from_row)? {
            let resealed = rows::reseal(&mut transaction, &sealer, stored).await;
            resealed.map_err(Failure::from_row)?;
        }
        signing_keys::reseal(&mut transaction, &keys, &self.0.random).await?;
        let now_ms = self.0.now_ms();
        rotation::keep_first(&mut transaction, &sealer, now_ms).await?;
        transaction.commit().await?;
        rotation::end_rotation(source, &keys)
    }

    /// Copies a store that is a file, as of one moment, to `target`, an empty file.
    ///
    /// # Errors
    ///
    /// `Invalid` for PostgreSQL, `Unavailable`.
    pub(crate) async fn copy_to(&self, target: &Path) -> Result<(), Failure> {
        Ok(self.0.pool.copy_to(&target.to_string_lossy()).await?)
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
        self.0.pool.close().await;
    }
}

/// What single objects and records are read and written by.
impl Store {
    /// The objects of a kind, in the order of their names, behind `after`; `tenant` is that which
    /// they belong to, and for API keys none means operators'.
    pub(crate) async fn list(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Stored>, Failure> {
        let loaded = self.load().await?;
        let is_meant = |stored: &Stored| {
            let name = &stored.name;
            name.kind() == kind && (kind == Kind::Tenant || name.owner() == tenant)
        };
        let wanted = loaded.objects.into_iter().filter(is_meant);
        let behind = wanted.filter(|stored| after.is_none_or(|after| stored.name.name() > after));
        Ok(behind.take(limit).collect())
    }

    /// One object.
    pub(crate) async fn get(&self, name: &ObjectName) -> Result<Option<Stored>, Failure> {
        let loaded = self.load().await?;
        Ok(loaded
            .objects
            .into_iter()
            .find(|stored| stored.name == *name))
    }

    /// Writes one object, and who did it. The same object again writes nothing.
    ///
    /// # Errors
    ///
    /// `Conflict` if it is not as `expected`, or an API key's hash is taken; `NotFound` without its
    /// tenant; `Invalid` with every mistake in what the whole would become; `Unavailable`.
    pub(crate) async fn put(
        &self,
        name: &ObjectName,
        object: Object,
        expected: Expected,
        author: &Author,
    ) -> Result<Stored, Failure> {
        let wanted = Declared(BTreeMap::from([(name.clone(), object)]));
        let wanted = self.0.hashed(wanted).await?;
        let edit = |before: &Loaded| {
            check_expected(before, name, expected)?;
            let changes = difference(&before.declared(), &wanted, Prune::Keep);
            Ok((wanted, changes))
        };
        let after = self.0.change(When::Changing, author, edit).await?.0;
        let found = after
            .objects
            .into_iter()
            .find(|stored| stored.name == *name);
        found.ok_or_else(|| Failure::Bug(format!("{name} was written and is not there")))
    }

    /// Removes one object with all that belongs to it, and writes who did it.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Conflict` if it is not as `expected`, `LastKey`, `Invalid` if the rest cannot be served
    /// without it, `Unavailable`.
    pub(crate) async fn delete(
        &self,
        name: &ObjectName,
        expected: Expected,
        author: &Author,
    ) -> Result<(), Failure> {
        let edit = |before: &Loaded| {
            let stored = before.declared();
            if !stored.0.contains_key(name) {
                return Err(Failure::NotFound);
            }
            check_expected(before, name, expected)?;
            check_last_key(before, name, self.0.now_ms())?;
            let gone = with_its_own(&stored, name).into_iter();
            let changes = gone.map(|name| Change {
                name,
                what: What::Removed,
            });
            Ok((Declared::default(), changes.collect()))
        };
        self.0.change(When::Changing, author, edit).await.map(drop)
    }

    /// What [`Self::apply`] would change, without changing it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::apply`].
    pub(crate) async fn plan(
        &self,
        wanted: &Declared,
        prune: Prune,
    ) -> Result<Vec<Change>, Failure> {
        let wanted = self.0.hashed(wanted.clone()).await?;
        let before = self.load().await?.declared();
        let changes = difference(&before, &wanted, prune);
        let after = edited(before, &wanted, &changes)?;
        self.0.judged(&after, When::Applying)?;
        Ok(changes)
    }

    /// Appends records to the audit trail, all or none.
    pub(crate) async fn append(&self, records: &[Record]) -> Result<(), Failure> {
        let mut transaction = self.0.pool.begin_beside().await?;
        let now_ms = self.0.now_ms();
        audit::append(&mut transaction, now_ms, records).await?;
        Ok(transaction.commit().await?)
    }

    /// Records of the audit trail, newest first, behind `after`.
    pub(crate) async fn audit(
        &self,
        filter: &Filter,
        after: Option<audit::Cursor>,
        limit: u32,
    ) -> Result<Page, Failure> {
        audit::query(&self.0.pool, filter, after, limit).await
    }
}

impl Failure {
    pub(super) fn from_mistake(mistake: Mistake) -> Self {
        Self::Invalid(vec![mistake])
    }

    pub(super) fn from_key(wrong: Wrong) -> Self {
        Self::from_mistake(wrong.at("configuration", "master_key"))
    }

    pub(super) fn from_row(error: RowError) -> Self {
        match error {
            RowError::Sql(error) => error.into(),
            RowError::UnknownKey => {
                let what = "is not the one that sealed what is stored";
                Self::from_key(Wrong::new(what, "give that one too, behind the new one"))
            }
            RowError::Broken(what) => Self::Bug(what),
        }
    }
}

/// Makes a file that only its owner may read, before SQLite makes one that everybody may; what it
/// keeps beside it gets the same mode.
fn make_private(file: &Path) -> io::Result<()> {
    let mode = fs::Permissions::from_mode(private_file::MODE);
    private_file::open_or_create(file)?.set_permissions(mode)
}

/// The store in the data directory.
const FILE: &str = "lockgate.db";
/// The master keys in the data directory.
const KEY_FILE: &str = "master.key";

//! The open database: one handle, with a repository per noun.
//!
//! Not here: the repositories themselves (`objects`, `oauth`, `pool/audit`).

use std::{
    cmp::Ordering,
    fmt, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    oauth::{
        Clients, Grants, Identities, Issuance, LoginSteps, Logins, OwnKeys, Revocations, Signing,
        SigningKeys, identities, signing_keys, sweep,
    },
    objects::{Connections, Judge, Objects, Secrets, connections, rows, slots},
    pool::{Audit, Error, Pool, file, sql},
    vault::{KeySource, Sealer, Vault, rotation},
};
use crate::{
    base::{
        Clock, Secret,
        budget::{OwnersTurn, Turns},
        private_file,
    },
    config::{Config, Wrong},
    telemetry::StoreTimes,
};

/// The location of a database.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// PostgreSQL, by its URL.
    Url(Secret),
}

impl Location {
    /// Reads the location from the configuration.
    pub(crate) fn of(config: &Config) -> Self {
        match &config.storage.sql_url {
            Some(url) => Self::Url(url.clone()),
            None => Self::File(config.data_dir.join(FILE)),
        }
    }

    /// Names the file in an error that is about it.
    pub(crate) fn named_in(&self, error: Error) -> Error {
        match (self, error) {
            (Self::File(file), Error::File(wrong)) => {
                Error::from_mistake(wrong.at(&file.display().to_string(), "store"))
            }
            (_, error) => error,
        }
    }
}

/// The settings to open a database with.
#[derive(Clone)]
pub(crate) struct Opening {
    /// The location.
    pub(crate) location: Location,
    /// The source of the master keys.
    pub(crate) keys: KeySource,
    /// The check of a state before it is stored.
    pub(crate) judge: Judge,
    /// The clock, synchronised with PostgreSQL.
    pub(crate) clock: Clock,
    /// Where the durations of its operations are recorded.
    pub(crate) times: StoreTimes,
}

impl Opening {
    /// Reads location and keys from the configuration.
    pub(crate) fn of(config: &Config, judge: Judge, clock: Clock) -> Self {
        let keys = match &config.storage.master_key {
            Some(text) => KeySource::Given(text.clone()),
            None => KeySource::File(config.data_dir.join(KEY_FILE)),
        };
        Self {
            location: Location::of(config),
            keys,
            judge,
            clock,
            times: StoreTimes::default(),
        }
    }
}

/// An open database: SQLite or PostgreSQL; clones share its connections.
#[derive(Clone)]
pub(crate) struct Database(Arc<Parts>);

struct Parts {
    /// For requests of outsiders: clients, grants, log-ins, administrators of tenants; and for what operators read at
    /// length.
    pool: Pool,
    /// For operators, records and revocations, which no flood of such requests may delay.
    reserved: Pool,
    /// For what replicas follow: revocations and the declared state, which nothing else may delay.
    followed: Pool,
    vault: Vault,
    judge: Judge,
    signing: Signing,
    /// Turns at changes of declared objects by others than operators.
    changes: Turns,
    /// Turns at revocations by others than operators: one at a time, and tenants in turn.
    revoking: Turns,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("pool", &self.0.pool)
            .finish()
    }
}

impl Database {
    /// Opens the database, updates its schema, and verifies the master key.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the database is unreachable; `Invalid` if it cannot be used as
    /// configured: a wrong master key, an invalid URL; `File` if its file is damaged or another user's.
    pub(crate) async fn open(opening: Opening) -> Result<Self, Error> {
        let (clock, times) = (opening.clock, opening.times);
        let pool = match &opening.location {
            Location::File(file) => {
                make_private(file).map_err(|error| unopened(&error))?;
                Pool::sqlite(file, clock, times).await?
            }
            Location::Url(url) => Pool::postgres(url.expose(), clock, times).await?,
        };
        pool.read_in_time("SELECT 1 AS one").await?;
        let mut transaction = pool.begin().await?;
        let vault = Vault::admit(opening.keys, &mut transaction, pool.now_ms()).await?;
        transaction.commit().await?;
        Ok(Self(Arc::new(Parts {
            reserved: pool.reserved(),
            followed: pool.reserved(),
            pool,
            vault,
            judge: opening.judge,
            signing: Signing::default(),
            changes: Turns::new(CHANGES),
            revoking: Turns::new(1),
        })))
    }

    /// Opens a database that has the schema of this build. To update it is an upgrade, and one of a newer build may have
    /// secrets that this one does not know.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`]; `Invalid` for another schema, which stays as it is.
    pub(crate) async fn open_as_it_is(opening: Opening) -> Result<Self, Error> {
        let (newest, place, key) = match &opening.location {
            Location::File(store) => {
                let opened = fs::File::open(store).map_err(|error| unopened(&error));
                opened.map_err(|error| opening.location.named_in(error))?;
                let place = store.display().to_string();
                (file::newest_of(store).await?, place, "store")
            }
            Location::Url(url) => {
                let newest = sql::newest_in_postgres(url.expose()).await?;
                (newest, "configuration".to_owned(), "sql.url")
            }
        };
        let (what, remedy) = match newest.cmp(&file::newest_known()) {
            Ordering::Equal => return Self::open(opening).await,
            _ if newest.is_none() => ("is no store of lockgate", "name that of a gateway"),
            Ordering::Less => (
                "has the schema of an older lockgate",
                "use the release that serves it, or update it by lockgate migrate",
            ),
            Ordering::Greater => (
                "has the schema of a newer lockgate",
                "use the release that serves it",
            ),
        };
        let wrong = Wrong::new(what, remedy);
        Err(Error::from_mistake(wrong.at(&place, key)))
    }

    /// Opens every further connection to PostgreSQL by `url`.
    pub(crate) fn reconnect(&self, url: &Secret) {
        self.0.pool.reconnect(url.expose());
        self.0.reserved.reconnect(url.expose());
        self.0.followed.reconnect(url.expose());
    }

    /// Declared objects, for operators and their manifests.
    pub(crate) fn objects(&self) -> Objects<'_> {
        let Parts {
            reserved: pool,
            vault,
            judge,
            ..
        } = &*self.0;
        Objects {
            pool,
            vault,
            judge,
            is_operator: true,
        }
    }

    /// Declared objects, as replicas follow them.
    pub(crate) fn followed_objects(&self) -> Objects<'_> {
        Objects {
            pool: &self.0.followed,
            ..self.objects()
        }
    }

    /// Secrets in the slots of servers.
    pub(crate) fn secrets(&self) -> Secrets<'_> {
        let Parts { pool, vault, .. } = &*self.0;
        Secrets { pool, vault }
    }

    /// Connections of people to upstreams.
    pub(crate) fn connections(&self) -> Connections<'_> {
        let Parts { pool, vault, .. } = &*self.0;
        Connections { pool, vault }
    }

    /// The audit trail, which a revocation is in before it is made.
    pub(crate) fn audit(&self) -> Audit<'_> {
        Audit {
            pool: &self.0.reserved,
            readers: &self.0.pool,
        }
    }

    /// What an administrator, an operator or one of a tenant, reads and changes.
    pub(crate) fn for_administrator(&self, is_operator: bool) -> ForAdministrator<'_> {
        let Parts { pool, reserved, .. } = &*self.0;
        let pool = if is_operator { reserved } else { pool };
        ForAdministrator {
            database: self,
            is_operator,
            pool: pool.clone(),
            records: reserved.clone(),
        }
    }

    /// Registered clients.
    pub(crate) fn clients(&self) -> Clients<'_> {
        Clients { pool: &self.0.pool }
    }

    /// Authorization codes, grants and refresh tokens.
    pub(crate) fn grants(&self) -> Grants<'_> {
        Grants { pool: &self.0.pool }
    }

    /// Steps of attempts of clients to be let in.
    pub(crate) fn login_steps(&self) -> LoginSteps<'_> {
        LoginSteps {
            pool: &self.0.reserved,
        }
    }

    /// Log-ins and consents.
    pub(crate) fn logins(&self) -> Logins<'_> {
        let Parts { pool, vault, .. } = &*self.0;
        Logins { pool, vault }
    }

    /// People who logged in at identity providers.
    pub(crate) fn identities(&self) -> Identities<'_> {
        let Parts { pool, vault, .. } = &*self.0;
        Identities {
            pool,
            vault,
            is_full: false,
            log_in_ms: None,
        }
    }

    /// API keys that people made for themselves.
    pub(crate) fn own_keys(&self) -> OwnKeys<'_> {
        OwnKeys { pool: &self.0.pool }
    }

    /// Signing keys.
    pub(crate) fn signing_keys(&self) -> SigningKeys<'_> {
        let Parts {
            pool,
            vault,
            signing: cache,
            ..
        } = &*self.0;
        SigningKeys { pool, vault, cache }
    }

    /// Revocations by others than operators. What ends access waits for no flood of requests, but has one of the
    /// reserved connections at most.
    pub(crate) fn revocations(&self) -> Revocations<'_> {
        Revocations {
            pool: &self.0.reserved,
            readers: &self.0.pool,
            turns: Some(&self.0.revoking),
        }
    }

    /// Public keys and revocations, as replicas read them.
    pub(crate) fn issued(&self) -> Issuance<'_> {
        let Parts {
            followed: pool,
            signing: cache,
            ..
        } = &*self.0;
        Issuance { pool, cache }
    }

    /// Removes some expired rows of the authorization servers; returns true if there may be more.
    pub(crate) async fn sweep(&self) -> Result<bool, Error> {
        sweep::sweep(&self.0.pool).await
    }

    /// Removes some expired registered clients; returns true if there may be more.
    pub(crate) async fn expire_clients(&self, unused: Duration) -> Result<bool, Error> {
        self.clients().expire(unused).await
    }

    /// Removes some rows that belong to nothing any more; returns true if there may be more.
    pub(crate) async fn sweep_orphans(&self) -> Result<bool, Error> {
        sweep::sweep_orphans(&self.0.pool).await
    }

    /// Seals every secret again: with a new key if the gateway owns the key file, else with the
    /// first given key. The old keys are no longer needed; log-ins in progress start again. Returns
    /// the id of the new key.
    ///
    /// Rows are sealed some at a time, and others write in between: running gateways open what either
    /// key sealed. A rotation that ended half-way goes on with its key at the next call. The caller has
    /// [`KeySource::lock`] since before it opened the database, which a restore replaces.
    ///
    /// # Errors
    ///
    /// `Unavailable`, or `Invalid` if the key file cannot be written.
    pub(crate) async fn rotate(&self) -> Result<String, Error> {
        let Parts { pool, vault, .. } = &*self.0;
        let keys = rotation::begin_rotation(&vault.source, &vault.random)?;
        let sealer = Sealer {
            keys: &keys,
            random: &vault.random,
        };
        // First: behind this commit nobody seals with another key, so the rows under others become fewer alone.
        let mut transaction = pool.begin().await?;
        rotation::keep_first(&mut transaction, &sealer, pool.now_ms()).await?;
        transaction.commit().await?;
        identities::reseal(pool, &sealer).await?;
        connections::reseal(pool, &sealer).await?;
        slots::reseal(pool, &sealer).await?;
        signing_keys::reseal(pool, &sealer).await?;
        // Last: a restore reads the objects of a copy alone, and refuses one that still needs another key.
        rows::reseal(pool, &sealer).await?;
        rotation::end_rotation(&vault.source, &keys)
    }

    /// Ends all grants, log-ins and consents, for a copy that does not know what was revoked since.
    /// Returns the number of grants.
    pub(crate) async fn end_issued(&self) -> Result<usize, Error> {
        sweep::end_issued(&self.0.pool).await
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
        self.0.followed.close_reserved().await;
        self.0.reserved.close_reserved().await;
        self.0.pool.close().await;
    }
}

/// What one administrator reads and changes. Operators have reserved connections; those of tenants have the
/// connections of other outsiders, and keep no operator waiting.
pub(crate) struct ForAdministrator<'a> {
    database: &'a Database,
    is_operator: bool,
    pool: Pool,
    /// For records of the audit trail.
    records: Pool,
}

impl<'a> ForAdministrator<'a> {
    /// The same at these turns, which end with its statements.
    pub(crate) fn at(self, turns: Vec<OwnersTurn>) -> Self {
        let pool = self.pool.at(turns);
        Self {
            records: self.records.at_turns_of(&pool),
            pool,
            ..self
        }
    }

    /// Declared objects.
    pub(crate) fn objects(&self) -> Objects<'_> {
        let Parts { vault, judge, .. } = &*self.database.0;
        Objects {
            pool: &self.pool,
            vault,
            judge,
            is_operator: self.is_operator,
        }
    }

    /// Turns at changes of declared objects: one of the tenant is taken before the change, and before a turn at what
    /// others need. Operators take none.
    pub(crate) fn changes(&self) -> Option<&'a Turns> {
        (!self.is_operator).then_some(&self.database.0.changes)
    }

    /// The audit trail.
    pub(crate) fn audit(&self) -> Audit<'_> {
        Audit {
            pool: &self.records,
            ..self.database.audit()
        }
    }

    /// Revocations.
    pub(crate) fn revocations(&self) -> Revocations<'_> {
        if self.is_operator {
            Revocations::at_once(&self.database.0.reserved)
        } else {
            Revocations {
                readers: &self.pool,
                ..self.database.revocations()
            }
        }
    }

    /// Steps of attempts of clients to be let in.
    pub(crate) fn login_steps(&self) -> LoginSteps<'_> {
        LoginSteps { pool: &self.pool }
    }

    /// Registered clients.
    pub(crate) fn clients(&self) -> Clients<'_> {
        Clients { pool: &self.pool }
    }

    /// Connections of people to upstreams.
    pub(crate) fn connections(&self) -> Connections<'_> {
        Connections {
            pool: &self.pool,
            vault: &self.database.0.vault,
        }
    }

    /// Grants.
    pub(crate) fn grants(&self) -> Grants<'_> {
        Grants { pool: &self.pool }
    }

    /// API keys that people made for themselves.
    pub(crate) fn own_keys(&self) -> OwnKeys<'_> {
        OwnKeys { pool: &self.pool }
    }

    /// Secrets in the slots of servers.
    pub(crate) fn secrets(&self) -> Secrets<'_> {
        Secrets {
            pool: &self.pool,
            vault: &self.database.0.vault,
        }
    }

    /// Signing keys.
    pub(crate) fn signing_keys(&self) -> SigningKeys<'_> {
        SigningKeys {
            pool: &self.pool,
            vault: &self.database.0.vault,
            cache: &self.database.0.signing,
        }
    }
}

/// Creates the file with private modes before SQLite creates it with others. SQLite uses the same
/// modes for its companion files.
fn make_private(file: &Path) -> io::Result<()> {
    let file = private_file::open_or_create(file)?;
    // A root without CAP_FOWNER may not change that of another user's, though it is right.
    if file.metadata()?.permissions().mode() & 0o777 == private_file::MODE {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(private_file::MODE))
}

/// The failure to open the file.
fn unopened(error: &io::Error) -> Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Error::Unavailable(error.to_string());
    }
    let what = format!("cannot be opened: {error}");
    Error::File(Wrong::new(what, private_file::remedy(error)))
}

/// The file name of the database in the data directory.
const FILE: &str = "lockgate.db";
/// The file name of the master keys in the data directory.
const KEY_FILE: &str = "master.key";
/// Changes of declared objects at once; one of a tenant's, so that the next turn is another tenant's.
const CHANGES: usize = 2;

#[cfg(test)]
mod tests {
    use super::super::handle::*;

    /// The database was told to be away, without its file and a remedy.
    #[test]
    fn a_store_of_another_user_is_named_with_a_remedy() {
        let location = Location::File(PathBuf::from("/d/lockgate.db"));
        let denied = unopened(&io::ErrorKind::PermissionDenied.into());
        let said = location.named_in(denied).to_string();
        let wanted = "/d/lockgate.db: store: cannot be opened: ";
        assert!(said.starts_with(wanted), "{said}");
        assert!(said.contains("; give it to user "), "{said}");
        let full = unopened(&io::ErrorKind::StorageFull.into());
        let full = location.named_in(full);
        assert!(matches!(full, Error::Unavailable(_)), "{full}");
    }
}

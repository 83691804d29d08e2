//! A SQLite file without a gateway: its check, its copy, and the end of its log.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use sqlx::{
    Connection, SqliteConnection, SqlitePool, pool::PoolOptions, sqlite::SqliteConnectOptions,
};

use super::{
    lent::STATEMENT,
    schema::{MIGRATION, NEWEST, migrated, sqlite_schema, timed_migration},
    sql_error::{SqlError, timed},
};

/// Checks, without a change, that a file is an intact database that this build can use, with the tables that its
/// migrations make and nothing else.
///
/// # Errors
///
/// `Unusable` with the reason.
pub(crate) async fn inspect(file: &Path) -> Result<(), SqlError> {
    let unusable = |what: &str| Err(SqlError::Unusable(what.to_owned()));
    let options = SqliteConnectOptions::new()
        .filename(file)
        .immutable(true)
        .read_only(true);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await?;
    let sound: Result<String, SqlError> = {
        let asked = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&mut connection);
        timed(patience(file), asked).await
    };
    match sound {
        Ok(said) if said == "ok" && has_all_pages(file) => {}
        Err(late @ SqlError::Unavailable(_)) => return Err(late),
        _ => return unusable("is no whole database"),
    }
    let newest = newest_migration(&mut connection).await;
    let known = newest_known();
    let newest = match newest {
        Ok(newest) if newest > known => return unusable("was made by a newer lockgate"),
        Ok(Some(newest)) => newest,
        _ => return unusable("is no store of lockgate"),
    };
    if let Some(other) = difference(&mut connection, newest).await? {
        return unusable(&format!("is not as lockgate makes its store: {other}"));
    }
    let proofs: i64 = {
        let asked = sqlx::query_scalar("SELECT COUNT(*) FROM seal_keys").fetch_one(&mut connection);
        timed(STATEMENT, asked).await?
    };
    if proofs == 0 {
        return unusable("does not say which master key sealed it");
    }
    Ok(())
}

/// The newest migration of this build.
pub(crate) fn newest_known() -> Option<i64> {
    let schema = sqlite_schema();
    schema.iter().map(|migration| migration.version).max()
}

/// The newest migration of a store, which stays as it is; none of a file that is no store.
///
/// # Errors
///
/// Those of a file that cannot be read.
pub(crate) async fn newest_of(file: &Path) -> Result<Option<i64>, SqlError> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await?;
    let newest = newest_migration(&mut connection).await;
    _ = timed(STATEMENT, connection.close()).await;
    match newest {
        Err(SqlError::Bug(_)) => Ok(None),
        newest => newest,
    }
}

/// The newest migration of a store; none of an empty table.
async fn newest_migration(connection: &mut SqliteConnection) -> Result<Option<i64>, SqlError> {
    let asked = sqlx::query_scalar(NEWEST).fetch_one(connection);
    timed(STATEMENT, asked).await
}

/// Copies one state of a store to `target`, an empty file. The store keeps its schema: the gateway that uses it may be
/// of an older release, which has to understand the copy.
///
/// # Errors
///
/// `Unusable` if the store cannot be read; those of the copy.
pub(crate) async fn copy(file: &Path, target: &Path) -> Result<(), SqlError> {
    let unreadable = |error| SqlError::Unusable(format!("cannot be read: {error}"));
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await.map_err(unreadable)?;
    match newest_migration(&mut connection).await {
        Ok(Some(_)) => {}
        Err(late @ SqlError::Unavailable(_)) => return Err(unreadable(late)),
        Err(damaged @ SqlError::Damaged(_)) => return Err(damaged),
        _ => return Err(SqlError::Unusable("is no store of lockgate".to_owned())),
    }
    let copied = sqlx::query("VACUUM INTO $1")
        .bind(target.to_string_lossy().into_owned())
        .execute(&mut connection);
    let copied = timed(patience(file), copied).await;
    // The copy is whole, however the connection ends.
    _ = timed(STATEMENT, connection.close()).await;
    copied.map(drop)
}

/// Time limit for what reads a whole file: at a mebibyte in a second, which any disk reads.
fn patience(file: &Path) -> Duration {
    let size = fs::metadata(file).map_or(0, |found| found.len());
    MIGRATION + Duration::from_secs(size >> 20)
}

/// Whether a file has the size that its header says. SQLite reads what is missing at its end as zeros.
fn has_all_pages(file: &Path) -> bool {
    // "The Database Header": the size of a page at 16, where 1 stands for 64 KiB, and their number at 28.
    let mut head = [0; 32];
    let read = File::open(file).and_then(|mut file| {
        file.read_exact(&mut head)?;
        Ok(file.metadata()?.len())
    });
    let page = match u64::from(u16::from_be_bytes([head[16], head[17]])) {
        1 => 1 << 16,
        page => page,
    };
    let pages = u32::from_be_bytes([head[28], head[29], head[30], head[31]]);
    read.is_ok_and(|size| size > 0 && size == page * u64::from(pages))
}

/// A table, index, trigger or view that a database has and a new one of the same migrations has not, or the other
/// way round.
async fn difference(
    connection: &mut SqliteConnection,
    newest: i64,
) -> Result<Option<String>, SqlError> {
    let options = SqliteConnectOptions::new().in_memory(true);
    // Each connection has a memory of its own.
    let opened = PoolOptions::new().max_connections(1).connect_with(options);
    let new: SqlitePool = timed(STATEMENT, opened).await?;
    let schema = sqlite_schema();
    let outcome = timed_migration(MIGRATION, Box::pin(schema.run_to(newest, &new))).await;
    migrated(outcome)?;
    let mut new = timed(STATEMENT, new.acquire()).await?;
    let (found, made) = (parts(connection).await?, parts(&mut new).await?);
    let other = found.symmetric_difference(&made).next();
    Ok(other.map(|(kind, name, ..)| format!("{kind} {name:?}")))
}

/// Kind, name, table and statement of each part of a schema.
type Parts = BTreeSet<(String, String, String, String)>;

async fn parts(connection: &mut SqliteConnection) -> Result<Parts, SqlError> {
    let asked = sqlx::query_as(SCHEMA).fetch_all(connection);
    let rows: Vec<(String, String, String, String)> = timed(MIGRATION, asked).await?;
    Ok(rows.into_iter().collect())
}

/// The table of migrations is of sqlx, which may write it otherwise one day. Statistics, which only `ANALYZE` makes,
/// change no result.
const SCHEMA: &str = "
    SELECT type, name, tbl_name, CASE name WHEN '_sqlx_migrations' THEN '' ELSE COALESCE(sql, '') END
      FROM sqlite_master
     WHERE NOT (type = 'table' AND name GLOB 'sqlite_stat[1-4]')";

/// The place beside a database where a restore makes the one that replaces it.
pub(crate) fn unfinished(file: &Path) -> PathBuf {
    file.with_extension("db.new")
}

/// Removes what a restore has left there that failed or was killed. None may be under way.
///
/// # Errors
///
/// The file system's.
pub(crate) fn remove_unfinished(file: &Path) -> io::Result<()> {
    let new = unfinished(file);
    let beside =
        ["-wal", "-shm", "-journal"].map(|end| PathBuf::from(format!("{}{end}", new.display())));
    let all = [new.clone()]
        .into_iter()
        .chain(beside)
        .chain([new.with_extension("migrate")]);
    for path in all {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// An API key that a file holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldKey {
    /// Its tenant; none for an operator's.
    pub(crate) tenant: Option<String>,
    pub(crate) name: String,
    pub(crate) hash: String,
}

/// Lists the API keys of a file that no process uses, by tenant and name.
///
/// # Errors
///
/// Those of a file that is broken, or not there.
pub(crate) async fn api_keys(file: &Path) -> Result<Vec<HeldKey>, SqlError> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await?;
    let listed = sqlx::query_as(API_KEYS).fetch_all(&mut connection);
    let mut listed: Vec<(Option<String>, String, String)> = timed(MIGRATION, listed).await?;
    let has_own = sqlx::query(HAS_OWN_KEYS).fetch_optional(&mut connection);
    if timed(STATEMENT, has_own).await?.is_some() {
        let own = sqlx::query_as(OWN_KEYS).fetch_all(&mut connection);
        let own: Vec<(Option<String>, String, String)> = timed(MIGRATION, own).await?;
        listed.extend(own);
    }
    timed(STATEMENT, connection.close()).await?;
    let held = |(tenant, name, hash)| HeldKey { tenant, name, hash };
    Ok(listed.into_iter().map(held).collect())
}

const API_KEYS: &str = "
    SELECT tenant, name, hash
      FROM api_keys
     ORDER BY tenant, name";

const HAS_OWN_KEYS: &str = "
    SELECT name
      FROM sqlite_master
     WHERE type = 'table' AND name = 'own_keys'";

/// Those that people made, with their person.
const OWN_KEYS: &str = "
    SELECT tenant, name || ' of ' || subject AS name, LOWER(HEX(hash)) AS hash
      FROM own_keys
     ORDER BY tenant, name";

/// Puts all that the log of a file still has into the file. No process may write to it meanwhile.
///
/// # Errors
///
/// `Unavailable` if there is no room, or a process reads an older state, as a backup does: the log may have changes that
/// the file has not. Those of a file that is broken, or not there.
pub(crate) async fn settle(file: &Path) -> Result<(), SqlError> {
    let options = SqliteConnectOptions::new().filename(file);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await?;
    // A reader in the way is no error: the first column tells of it ("PRAGMA wal_checkpoint").
    let busy: i64 = {
        let settled =
            sqlx::query_scalar("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection);
        timed(patience(file), settled).await?
    };
    timed(STATEMENT, connection.close()).await?;
    if busy == 0 {
        return Ok(());
    }
    Err(SqlError::Unavailable("another process reads it".to_owned()))
}

/// Reports whether a log with changes is beside a file. What reads the file alone does not see them.
pub(crate) fn has_log(file: &Path) -> bool {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    fs::metadata(log).is_ok_and(|found| found.len() > 0)
}

/// Changes a file without its gateway.
#[cfg(test)]
pub(crate) async fn edit(file: &Path, statement: &'static str) {
    let options = SqliteConnectOptions::new().filename(file);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let edited = sqlx::query(statement).execute(&mut connection).await;
    edited.unwrap();
    connection.close().await.unwrap();
}

/// A connection that goes on reading the present state of a file, as that of a backup does.
#[cfg(test)]
pub(crate) async fn reader(file: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    for statement in ["BEGIN", "SELECT COUNT(*) FROM sqlite_master"] {
        let read = sqlx::query(statement).execute(&mut connection).await;
        read.unwrap();
    }
    connection
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store of some gigabytes could neither be copied nor be restored.
    #[test]
    fn a_large_file_has_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lockgate.db");
        assert_eq!(patience(&file), MIGRATION, "there is none");
        File::create(&file).unwrap().set_len(10 << 30).unwrap();
        assert_eq!(patience(&file), MIGRATION + Duration::from_secs(10 << 10));
    }
}

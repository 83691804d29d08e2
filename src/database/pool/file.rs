//! A SQLite file that no gateway uses: its check, and the end of its log.

use std::path::Path;

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use super::{
    lent::STATEMENT,
    sql::{MIGRATION, SqlError, sqlite_schema, timed},
};

/// Checks, without a change, that a file is an intact database that this build can use.
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
    let sound: Result<String, _> = {
        let asked = sqlx::query_scalar("PRAGMA quick_check").fetch_one(&mut connection);
        timed(MIGRATION, asked).await
    };
    if sound.is_ok_and(|said| said == "ok") {
        let sql = "SELECT MAX(version) FROM _sqlx_migrations";
        let newest: Result<Option<i64>, _> = {
            let asked = sqlx::query_scalar(sql).fetch_one(&mut connection);
            timed(STATEMENT, asked).await
        };
        let known = sqlite_schema()
            .iter()
            .map(|migration| migration.version)
            .max();
        match newest {
            Ok(newest) if newest > known => unusable("was made by a newer lockgate"),
            Ok(Some(_)) => Ok(()),
            _ => unusable("is no store of lockgate"),
        }
    } else {
        unusable("is no whole database")
    }
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

/// Puts what the log of a file still has into the file, which no process may use meanwhile.
///
/// # Errors
///
/// Those of a file that is broken, or not there.
pub(crate) async fn settle(file: &Path) -> Result<(), SqlError> {
    let options = SqliteConnectOptions::new().filename(file);
    let opened = SqliteConnection::connect_with(&options);
    let mut connection = timed(STATEMENT, opened).await?;
    let settled = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection);
    timed(MIGRATION, settled).await?;
    timed(STATEMENT, connection.close()).await
}

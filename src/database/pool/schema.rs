//! The schema of both databases, and how a start brings it up to date.
//!
//! Not here: the migrations (`migrations`), and the connections that requests use (`sql`).

use std::{path::Path, pin::Pin, time::Duration};

use sqlx::{
    PgPool, SqlSafeStr, SqlitePool,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    pool::PoolOptions,
    postgres::PgConnectOptions,
    sqlite::SqliteConnectOptions,
};
use tokio::time::{Instant, timeout};

use super::lent::STATEMENT;
use super::migrations::MIGRATIONS;
use super::sql_error::{SqlError, meaning, timed};
use crate::{base::private_file, telemetry};

/// Boxed, because the compiler loses track of the borrows of this future (rust-lang/rust#100013).
type Step<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

pub(super) async fn timed_migration(
    mut step: Step<'_, (), MigrateError>,
) -> Result<(), MigrateError> {
    let late = |_| MigrateError::Execute(sqlx::Error::PoolTimedOut);
    let began = Instant::now();
    let announced = async {
        // An empty or a current database is done before anybody wonders.
        if let Ok(outcome) = timeout(ANNOUNCED, &mut step).await {
            return outcome;
        }
        tracing::info!(target: telemetry::MIGRATIONS, subject = SCHEMA, "updating");
        let outcome = step.await;
        let seconds = began.elapsed().as_secs_f64();
        if outcome.is_ok() {
            tracing::info!(target: telemetry::MIGRATIONS, subject = SCHEMA, seconds, "updated");
        } else {
            tracing::warn!(target: telemetry::MIGRATIONS, subject = SCHEMA, seconds, "cannot update");
        }
        outcome
    };
    timeout(MIGRATION, announced).await.map_err(late)?
}

/// Locks a file for migration, until the lock is dropped.
///
/// Two processes that start together would both create the tables. A change of the journal mode
/// fails at once on a busy file, without `busy_timeout`.
async fn turn(file: &Path) -> Result<std::fs::File, SqlError> {
    let unusable = |error: std::io::Error| SqlError::Unusable(format!("its lock: {error}"));
    let turn = private_file::open_or_create(&file.with_extension("migrate")).map_err(unusable)?;
    let taken = async {
        while turn.try_lock().is_err() {
            tokio::time::sleep(TURN).await;
        }
    };
    let late = |_| SqlError::Unavailable("another process changes the schema".to_owned());
    timeout(MIGRATION, taken).await.map_err(late)?;
    Ok(turn)
}

/// Migrates on a separate connection: creating the file may take seconds on a slow disk, longer
/// than the `BUSY` limit of requests.
pub(super) async fn migrate_sqlite(
    file: &Path,
    options: &SqliteConnectOptions,
) -> Result<(), SqlError> {
    let _turn = turn(file).await?;
    let connected = PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(MIGRATION)
        .connect_with(options.clone());
    let pool: SqlitePool = timed(MIGRATION, connected).await?;
    let schema = sqlite_schema();
    let outcome = timed_migration(Box::pin(schema.run(&pool))).await;
    let _ = timeout(STATEMENT, pool.close()).await;
    migrated(outcome)
}

/// Migrates on a separate connection: the wait for another replica is not a slow statement.
pub(super) async fn migrate_postgres(options: PgConnectOptions) -> Result<(), SqlError> {
    let connected = PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT)
        .connect_with(options);
    let pool: PgPool = timed(STATEMENT, connected).await?;
    // sqlx takes an advisory lock, which serialises replicas that start together.
    let schema = postgres_schema();
    let outcome = timed_migration(Box::pin(schema.run(&pool))).await;
    let _ = timeout(STATEMENT, pool.close()).await;
    migrated(outcome)
}

pub(super) fn migrated(outcome: Result<(), MigrateError>) -> Result<(), SqlError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
            Err(meaning(&error))
        }
        Err(error) => Err(SqlError::Unusable(error.to_string())),
    }
}

/// The schema of a SQLite file.
pub(super) fn sqlite_schema() -> Migrator {
    schema(|[sqlite, _]| sqlite)
}

/// The schema in PostgreSQL.
fn postgres_schema() -> Migrator {
    schema(|[_, postgres]| postgres)
}

/// The migrations of this build. An older build still starts after a newer one has added some.
fn schema(of: fn([&'static str; 2]) -> &'static str) -> Migrator {
    let migrations = MIGRATIONS.map(|(number, name, both)| {
        let (kind, sql) = (MigrationType::Simple, SqlSafeStr::into_sql_str(of(both)));
        Migration::new(number, name.into(), kind, sql, false)
    });
    let mut schema = Migrator::with_migrations(migrations.into());
    schema.set_ignore_missing(true);
    schema
}

pub(super) const NEWEST: &str = "SELECT MAX(version) FROM _sqlx_migrations";

/// Time limit for the start to reach a database.
const CONNECT: Duration = Duration::from_secs(2);
/// The subject of the log lines of a migration.
const SCHEMA: &str = "the schema of the database";
/// The age at which a migration has a line in the log.
const ANNOUNCED: Duration = Duration::from_secs(1);
/// Time limit of a migration, including those of other replicas.
pub(super) const MIGRATION: Duration = Duration::from_mins(1);
/// Interval between attempts to take the lock.
const TURN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use sqlx::migrate::Migrator;

    use super::{postgres_schema, sqlite_schema};

    /// Existing databases identify applied migrations by these checksums.
    #[tokio::test]
    async fn the_schemas_are_the_files_in_migrations() {
        for (schema, folder) in [(sqlite_schema(), "sqlite"), (postgres_schema(), "postgres")] {
            let place = format!("{}/migrations/{folder}", env!("CARGO_MANIFEST_DIR"));
            let files = Migrator::new(std::path::Path::new(&place)).await.unwrap();
            let known = |schema: &Migrator| {
                let all = schema.iter().map(|one| {
                    let kind = format!("{:?}", one.migration_type);
                    let (name, sum) = (one.description.to_string(), one.checksum.to_vec());
                    (one.version, name, kind, sum, one.no_tx)
                });
                all.collect::<Vec<_>>()
            };
            assert_eq!(known(&schema), known(&files), "{folder}");
        }
    }
}

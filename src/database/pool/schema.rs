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
use tokio::time::{Instant, sleep, timeout};

use super::lent::STATEMENT;
use super::migrations::MIGRATIONS;
use super::sql_error::{SqlError, meaning, timed};
use crate::{base::private_file, telemetry};

/// Boxed, because the compiler loses track of the borrows of this future (rust-lang/rust#100013).
type Step<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// Runs a migration within a time limit, and logs one that takes long.
pub(super) async fn timed_migration(
    limit: Duration,
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
    timeout(limit, announced).await.map_err(late)?
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
            sleep(TURN).await;
        }
    };
    let late = |_| SqlError::Unavailable(ANOTHER.to_owned());
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
    let outcome = timed_migration(MIGRATION, Box::pin(schema.run(&pool))).await;
    let _ = timeout(STATEMENT, pool.close()).await;
    migrated(outcome)
}

/// Migrates on a separate connection: the wait for another replica is not a slow statement.
pub(super) async fn migrate_postgres(options: PgConnectOptions) -> Result<(), SqlError> {
    let limits = LIMITS.map(|(name, limit)| (name, limit.as_millis().to_string()));
    let connected = PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT)
        .connect_with(options.options(limits));
    let pool: PgPool = timed(STATEMENT, connected).await?;
    let schema = postgres_schema();
    // A start that has nothing to do waits for no other, which may have died with the lock.
    let outcome = if is_current(&schema, &pool).await {
        Ok(())
    } else {
        let tries = Box::pin(tries(&schema, &pool));
        timed_migration(PATIENCE + MIGRATION, tries).await
    };
    let _ = timeout(STATEMENT, pool.close()).await;
    migrated(outcome)
}

/// Whether a database has all migrations of a schema, as they are in it.
async fn is_current(schema: &Migrator, pool: &PgPool) -> bool {
    let asked = sqlx::query_as::<_, (i64, Vec<u8>, bool)>(APPLIED);
    let asked: Step<'_, Vec<_>, sqlx::Error> = Box::pin(asked.fetch_all(pool));
    // A new database has no such table. Any other error comes again.
    let Ok(applied) = timed(STATEMENT, asked).await else {
        return false;
    };
    let is_applied = |one: &Migration| {
        let mut same = applied.iter().filter(|row| row.0 == one.version);
        same.any(|(_, checksum, _)| checksum.as_slice() == &*one.checksum)
    };
    applied.iter().all(|(_, _, is_whole)| *is_whole) && schema.iter().all(is_applied)
}

/// Migrates in several tries. Each waits for a table for a moment only, because everybody else who needs the table
/// waits behind it, and what uses it may go on for hours.
async fn tries(schema: &Migrator, pool: &PgPool) -> Result<(), MigrateError> {
    let began = Instant::now();
    loop {
        // sqlx takes an advisory lock, which serialises replicas that start together.
        let run: Step<'_, (), MigrateError> = Box::pin(schema.run(pool));
        let outcome = run.await;
        let pause = pause_after(&outcome).filter(|_| began.elapsed() < PATIENCE);
        let Some(pause) = pause else {
            return outcome;
        };
        sleep(pause).await;
    }
}

/// The time until the next try, after one that a lock was in the way of.
fn pause_after(outcome: &Result<(), MigrateError>) -> Option<Duration> {
    match outcome {
        // Another replica migrates. Nobody waits behind this one.
        Err(MigrateError::Execute(error)) if is_locked(error) => Some(Duration::ZERO),
        Err(MigrateError::ExecuteMigration(error, _)) if is_locked(error) => Some(PAUSE),
        _ => None,
    }
}

/// Whether the server gave up the wait for a lock (`lock_not_available`).
fn is_locked(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.code().as_deref() == Some("55P03"))
}

/// What the outcome of a migration says to a caller.
pub(super) fn migrated(outcome: Result<(), MigrateError>) -> Result<(), SqlError> {
    let unavailable = |why: &str| Err(SqlError::Unavailable(why.to_owned()));
    match outcome {
        Ok(()) => Ok(()),
        Err(MigrateError::Execute(error)) if is_locked(&error) => unavailable(ANOTHER),
        Err(MigrateError::ExecuteMigration(error, _)) if is_locked(&error) => unavailable(IN_USE),
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

/// The newest migration of a database.
pub(super) const NEWEST: &str = "SELECT MAX(version) FROM _sqlx_migrations";
/// All of them.
const APPLIED: &str = "SELECT version, checksum, success FROM _sqlx_migrations";

/// The server's own time limits. Else it would go on with what a start asked that is gone or has given up: it looks at
/// no connection while a statement waits for a lock.
const LIMITS: [(&str, Duration); 4] = [
    ("lock_timeout", LOCK),
    ("statement_timeout", MIGRATION),
    ("idle_in_transaction_session_timeout", IDLE),
    ("idle_session_timeout", IDLE),
];

/// The reason where another process migrates.
const ANOTHER: &str = "another process changes the schema";
/// The reason where a table to be changed is in use.
const IN_USE: &str =
    "the schema cannot be updated while another client, such as pg_dump, uses one of the tables";

/// Time limit for the start to reach a database.
const CONNECT: Duration = Duration::from_secs(2);
/// The subject of the log lines of a migration.
const SCHEMA: &str = "the schema of the database";
/// The age at which a migration has a line in the log.
const ANNOUNCED: Duration = Duration::from_secs(1);
/// Time limit of a migration of a file, and of one statement of a migration in PostgreSQL.
pub(super) const MIGRATION: Duration = Duration::from_mins(1);
/// Time within which a migration is tried again, while others use its tables.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that a migration waits for a lock: less than a request waits for a connection, so that none is refused because
/// others wait behind the migration.
const LOCK: Duration = Duration::from_millis(500);
/// Time between two tries to change a table, for those who waited behind the first one.
const PAUSE: Duration = Duration::from_secs(3);
/// Time that the server waits for the next statement of a migration: longer than such a pause.
const IDLE: Duration = Duration::from_secs(10);
/// Interval between attempts to take the lock of a file.
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

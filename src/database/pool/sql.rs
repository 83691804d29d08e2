//! SQL on SQLite and PostgreSQL: connections and transactions.
//!
//! Both databases run the same SQL text, but for the name of a collation. No other file but `deadline`, `file`, `lent`,
//! `schema` and `sql_error` uses `sqlx`. Not here: the statements (`objects/rows`, `oauth`, `audit`).

use std::{fmt, path::Path, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection, Database, Decode, Encode, PgConnection, PgPool, Row as _,
    SqliteConnection, SqlitePool, Type,
    pool::PoolOptions,
    postgres::{PgConnectOptions, PgRow},
    query::Query,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous},
};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::deadline::Deadline;
use super::lent::{Lent, Returns, STATEMENT};
use super::schema::{NEWEST, migrate_postgres, migrate_sqlite};
use super::sql_error::{SqlError, late, meaning, timed};
use super::value::Value;
use crate::{
    base::{Clock, budget::OwnersTurn},
    telemetry::{StoreFailure, StoreSystem, StoreTimes},
};

/// Connections to a database with the schema of this build, and its clock.
#[derive(Clone)]
pub(crate) struct Pool {
    connections: Connections,
    clock: Clock,
    times: StoreTimes,
    /// Returns of connections to PostgreSQL.
    returns: Returns,
}

#[derive(Clone, Debug)]
enum Connections {
    /// PostgreSQL.
    Postgres(PgPool),
    /// A file. One connection writes, because SQLite permits one writer.
    Sqlite {
        /// The writing connection.
        write: SqlitePool,
        /// The reading connections.
        read: SqlitePool,
    },
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connections.fmt(f)
    }
}

impl Pool {
    /// Connects to PostgreSQL and updates its schema.
    pub(crate) async fn postgres(
        url: &str,
        clock: Clock,
        times: StoreTimes,
    ) -> Result<Self, SqlError> {
        let options = postgres_options(url)?;
        migrate_postgres(options.clone()).await?;
        let connections = Connections::Postgres(postgres_pool(POSTGRES, limited(options)));
        Ok(Self {
            connections,
            clock,
            times,
            returns: Returns::default(),
        })
    }

    /// Connections of its own to the same database, for what must not wait for requests of outsiders. The
    /// one connection that writes to a file is shared, and its users take turns.
    pub(crate) fn reserved(&self) -> Self {
        let connections = match &self.connections {
            Connections::Postgres(pool) => {
                let options = (*pool.connect_options()).clone();
                Connections::Postgres(postgres_pool(RESERVED, options))
            }
            Connections::Sqlite { write, read } => Connections::Sqlite {
                write: write.clone(),
                read: sqlite_readers(RESERVED, (*read.connect_options()).clone()),
            },
        };
        Self {
            connections,
            ..self.clone()
        }
    }

    /// The same connections, lent at these turns. They end once nobody has this and each connection is back: a statement in
    /// PostgreSQL that nobody waits for goes on until its time limit. One in SQLite ends at once (`deadline`).
    pub(crate) fn at(&self, turns: Vec<OwnersTurn>) -> Self {
        Self {
            returns: self.returns.of_turns(turns),
            ..self.clone()
        }
    }

    /// The same connections, lent at the turns of other ones.
    pub(crate) fn at_turns_of(&self, others: &Self) -> Self {
        Self {
            returns: self.returns.of_turns_of(&others.returns),
            ..self.clone()
        }
    }

    /// Opens every further connection to PostgreSQL by `url`; open ones end as they always do, after
    /// half an hour at the latest. Without effect on a file.
    pub(crate) fn reconnect(&self, url: &str) {
        if let (Connections::Postgres(pool), Ok(options)) =
            (&self.connections, postgres_options(url))
        {
            pool.set_connect_options(limited(options));
        }
    }

    /// Opens a SQLite file, creates it if needed, and updates its schema.
    pub(crate) async fn sqlite(
        file: &Path,
        clock: Clock,
        times: StoreTimes,
    ) -> Result<Self, SqlError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // Safe when the process is killed; a power failure may lose the last writes.
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY)
            // Once it is copied into the file, the log is cut to this.
            .pragma("journal_size_limit", LOG.to_string());
        migrate_sqlite(file, &options).await?;
        let write = PoolOptions::new()
            .max_connections(1)
            .acquire_timeout(BUSY)
            .after_release(|connection: &mut SqliteConnection, _| {
                Box::pin(async move {
                    // A full disk rolls the transaction back, but the driver still counts it as
                    // open, and no other could begin. The statement's error arrives after the
                    // rollback.
                    connection.ping().await?;
                    Ok(!connection.is_in_transaction())
                })
            })
            .connect_lazy_with(options.clone());
        let read = sqlite_readers(
            SQLITE_READERS,
            options.read_only(true).create_if_missing(false),
        );
        let connections = Connections::Sqlite { write, read };
        Ok(Self {
            connections,
            clock,
            times,
            returns: Returns::default(),
        })
    }

    /// The time in milliseconds since 1970, by the clock that replicas share.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Runs one independent statement that writes.
    pub(crate) async fn write(
        &self,
        sql: impl Into<Sql>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, SqlError> {
        let mut transaction = self.begin_unserialized().await?;
        let rows = transaction.run(sql, values).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// Begins a writing transaction. Writers of all replicas are serialised, so that everything
    /// read in it stays valid until the commit.
    pub(crate) async fn begin(&self) -> Result<Transaction, SqlError> {
        match &self.connections {
            Connections::Postgres(_) => {
                let mut begun = self.begin_unserialized().await?;
                // Readers are not blocked; a new writer needs only the one row of `changes`.
                let sql = "LOCK TABLE changes IN SHARE ROW EXCLUSIVE MODE";
                begun.run(sql, Vec::new()).await?;
                Ok(begun)
            }
            Connections::Sqlite { .. } => self.begin_unserialized().await,
        }
    }

    /// Begins a transaction whose writes no other writer depends on; not serialised in PostgreSQL.
    pub(crate) async fn begin_unserialized(&self) -> Result<Transaction, SqlError> {
        match &self.connections {
            Connections::Postgres(pool) => {
                let begun = Lent::begun(pool, &self.returns, BEGIN);
                let begun = self.measured("begin", begun).await?;
                Ok(self.transaction(Begun::Postgres(begun)))
            }
            // A transaction that begins with a read fails at its first write if another one wrote
            // meanwhile, regardless of `busy_timeout`.
            Connections::Sqlite { write, .. } => {
                let begun = in_time(write.begin_with("BEGIN IMMEDIATE"));
                let begun = self.measured("begin", begun).await?;
                Ok(self.transaction(begun))
            }
        }
    }

    /// Begins a reading transaction, which sees one state.
    pub(crate) async fn snapshot(&self) -> Result<Transaction, SqlError> {
        match &self.connections {
            Connections::Postgres(pool) => {
                let begun = Lent::begun(pool, &self.returns, SNAPSHOT);
                let begun = self.measured("begin", begun).await?;
                Ok(self.transaction(Begun::Postgres(begun)))
            }
            Connections::Sqlite { read, .. } => {
                let begun = self.measured("begin", in_time(read.begin())).await?;
                Ok(self.transaction(begun))
            }
        }
    }

    /// The rows of one reading statement.
    pub(crate) async fn read(
        &self,
        sql: impl Into<Sql>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, SqlError> {
        let sql = sql.into();
        match &self.connections {
            Connections::Postgres(pool) => {
                let rows = async {
                    let mut lent = Lent::of(pool, &self.returns).await?;
                    lent.rows(bound(sql, values)).await
                };
                let rows = self.measured("read", rows).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            Connections::Sqlite { read, .. } => {
                let rows = async {
                    let mut connection = read.acquire().await?;
                    let deadline = Deadline::of(&mut connection, STATEMENT).await?;
                    deadline.rows(&mut connection, bound(sql, values)).await
                };
                let rows = self.measured("read", rows).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    /// The rows of one reading statement. Sets the clock by that of the server, which replicas
    /// share; a file is local and needs no correction.
    pub(crate) async fn read_in_time(&self, sql: &'static str) -> Result<Vec<Row>, SqlError> {
        let Connections::Postgres(_) = &self.connections else {
            return self.read(sql, Vec::new()).await;
        };
        let timed = format!("SELECT *, {NOW} AS now_ms FROM ({sql}) AS asked");
        let asked = Instant::now();
        let rows = self.read(Sql(AssertSqlSafe(timed)), Vec::new()).await?;
        for row in &rows {
            self.clock.set(row.get("now_ms")?, asked);
        }
        Ok(rows)
    }

    fn transaction(&self, begun: Begun) -> Transaction {
        Transaction {
            begun,
            times: self.times.clone(),
        }
    }

    fn measured<T>(
        &self,
        name: &'static str,
        step: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> impl Future<Output = Result<T, SqlError>> {
        let system = match &self.connections {
            Connections::Postgres(_) => StoreSystem::Postgresql,
            Connections::Sqlite { .. } => StoreSystem::Sqlite,
        };
        measured(&self.times, (system, name), step)
    }

    /// Closes the connections that [`Self::reserved`] has opened. The last one to a file must be that which
    /// writes, for it puts what the log still has into the file.
    pub(crate) async fn close_reserved(&self) {
        let closed = async {
            match &self.connections {
                Connections::Postgres(pool) => pool.close().await,
                Connections::Sqlite { read, .. } => read.close().await,
            }
        };
        let _ = timeout(STATEMENT, closed).await;
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
        let closed = async {
            match &self.connections {
                Connections::Postgres(pool) => pool.close().await,
                Connections::Sqlite { write, read } => {
                    read.close().await;
                    write.close().await;
                }
            }
        };
        // An unreachable database cannot be closed cleanly.
        let _ = timeout(STATEMENT, closed).await;
    }
}

fn postgres_pool(most: u32, options: PgConnectOptions) -> PgPool {
    PoolOptions::new()
        .max_connections(most)
        .acquire_timeout(ACQUIRE)
        .connect_lazy_with(options)
}

fn sqlite_readers(most: u32, options: SqliteConnectOptions) -> SqlitePool {
    PoolOptions::new()
        .max_connections(most)
        .acquire_timeout(ACQUIRE)
        .connect_lazy_with(options)
}

fn postgres_options(url: &str) -> Result<PgConnectOptions, SqlError> {
    let options: PgConnectOptions = url
        .parse()
        .map_err(|error: sqlx::Error| SqlError::Unusable(format!("its URL: {error}")))?;
    Ok(options.application_name("lockgate"))
}

/// Adds the server's own time limits for statements.
fn limited(options: PgConnectOptions) -> PgConnectOptions {
    let limits = [
        ("statement_timeout", STATEMENT),
        ("lock_timeout", STATEMENT),
        ("idle_in_transaction_session_timeout", STATEMENT * 2),
    ];
    options.options(limits.map(|(name, limit)| (name, limit.as_millis().to_string())))
}

/// An atomic group of statements, rolled back when dropped without [`Self::commit`].
pub(crate) struct Transaction {
    begun: Begun,
    times: StoreTimes,
}

enum Begun {
    /// In PostgreSQL.
    Postgres(Lent),
    /// In SQLite.
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>, Deadline),
}

/// Begins a transaction of SQLite, of which each statement has a deadline.
async fn in_time(
    begun: impl Future<Output = Result<sqlx::Transaction<'static, sqlx::Sqlite>, sqlx::Error>>,
) -> Result<Begun, sqlx::Error> {
    let mut begun = begun.await?;
    let deadline = Deadline::of(&mut begun, STATEMENT).await?;
    Ok(Begun::Sqlite(begun, deadline))
}

impl Transaction {
    /// Runs one statement and returns its rows.
    pub(crate) async fn run(
        &mut self,
        sql: impl Into<Sql>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, SqlError> {
        let sql = sql.into();
        match &mut self.begun {
            Begun::Postgres(inner) => {
                let rows = inner.rows(bound(sql, values));
                let operation = (StoreSystem::Postgresql, "statement");
                let rows = measured(&self.times, operation, rows).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            Begun::Sqlite(inner, deadline) => {
                let rows = deadline.rows(inner, bound(sql, values));
                let operation = (StoreSystem::Sqlite, "statement");
                let rows = measured(&self.times, operation, rows).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    /// Runs one statement in PostgreSQL; none in SQLite, where one transaction writes at a time.
    pub(crate) async fn run_in_postgres(
        &mut self,
        sql: &'static str,
    ) -> Result<Vec<Row>, SqlError> {
        match self.begun {
            Begun::Postgres(_) => self.run(sql, Vec::new()).await,
            Begun::Sqlite(..) => Ok(Vec::new()),
        }
    }

    /// Commits. After an error the outcome is unknown and must be read.
    pub(crate) async fn commit(self) -> Result<(), SqlError> {
        match self.begun {
            Begun::Postgres(inner) => {
                let operation = (StoreSystem::Postgresql, "commit");
                measured(&self.times, operation, inner.commit()).await
            }
            Begun::Sqlite(inner, _) => {
                let operation = (StoreSystem::Sqlite, "commit");
                measured(&self.times, operation, inner.commit()).await
            }
        }
    }
}

/// The text of a statement: a constant of this program, maybe with the name of one of its tables. Each `{bytes}` in it
/// becomes the collation by bytes, whatever that of the column and of the database is.
pub(crate) struct Sql(AssertSqlSafe<String>);

impl From<&'static str> for Sql {
    fn from(text: &'static str) -> Self {
        Self(AssertSqlSafe(text.to_owned()))
    }
}

impl Sql {
    /// Replaces each `{table}` in `text` by the name of a table.
    pub(crate) fn on(table: &'static str, text: &'static str) -> Self {
        Self(AssertSqlSafe(text.replace("{table}", table)))
    }

    /// Replaces each `{owner}` by an expression.
    pub(crate) fn owned_by(self, expression: &'static str) -> Self {
        Self(AssertSqlSafe(self.0.0.replace("{owner}", expression)))
    }

    /// Replaces each `{bytes}` by the collation by bytes of this database.
    fn of_database<DB: Database>(self) -> AssertSqlSafe<String> {
        let Self(AssertSqlSafe(text)) = self;
        let is_postgres = DB::NAME == <sqlx::Postgres as Database>::NAME;
        let bytes = if is_postgres { "\"C\"" } else { "BINARY" };
        AssertSqlSafe(text.replace("{bytes}", bytes))
    }
}

/// One row of a result.
pub(crate) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

impl Row {
    /// The value of a column.
    pub(crate) fn get<T>(&self, column: &str) -> Result<T, SqlError>
    where
        T: for<'r> Decode<'r, sqlx::Postgres> + Type<sqlx::Postgres>,
        T: for<'r> Decode<'r, sqlx::Sqlite> + Type<sqlx::Sqlite>,
    {
        let value = match self {
            Self::Postgres(row) => row.try_get(column),
            Self::Sqlite(row) => row.try_get(column),
        };
        value.map_err(|error| SqlError::Bug(format!("cannot read a row: {error}")))
    }
}

fn bound<DB>(sql: Sql, values: Vec<Value>) -> Query<'static, DB, <DB as Database>::Arguments>
where
    DB: Database,
    Uuid: for<'q> Encode<'q, DB> + Type<DB>,
    Option<String>: for<'q> Encode<'q, DB> + Type<DB>,
    Option<i64>: for<'q> Encode<'q, DB> + Type<DB>,
    Option<Vec<u8>>: for<'q> Encode<'q, DB> + Type<DB>,
{
    let query = sqlx::query(sql.of_database::<DB>());
    values.into_iter().fold(query, |query, value| match value {
        Value::Id(id) => query.bind(id),
        Value::Text(text) => query.bind(text),
        Value::Whole(whole) => query.bind(whole),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}

/// Runs an operation within the time limit of a statement, and records its duration.
async fn measured<T>(
    times: &StoreTimes,
    operation: (StoreSystem, &'static str),
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, SqlError> {
    let began = Instant::now();
    // Not by `timed`, whose future would contain that of the step once more.
    let done = match timeout(STATEMENT, step).await {
        Ok(done) => done.map_err(|error| meaning(&error)),
        Err(_) => Err(late(STATEMENT)),
    };
    let failure = done.as_ref().err().and_then(|error| match error {
        SqlError::Unavailable(_) if began.elapsed() >= STATEMENT => Some(StoreFailure::Timeout),
        SqlError::Unavailable(_) => Some(StoreFailure::Unavailable),
        SqlError::Duplicate | SqlError::Dangling => None,
        SqlError::Unusable(_) | SqlError::Damaged(_) | SqlError::Bug(_) => {
            Some(StoreFailure::Refused)
        }
    });
    times.record(operation, failure, began.elapsed());
    done
}

/// The newest migration of a database in PostgreSQL, which stays as it is; none without the table.
pub(crate) async fn newest_in_postgres(url: &str) -> Result<Option<i64>, SqlError> {
    let options = limited(postgres_options(url)?);
    let mut connection = timed(STATEMENT, PgConnection::connect_with(&options)).await?;
    let asked = sqlx::query_scalar(NEWEST).fetch_one(&mut connection);
    let newest = timed(STATEMENT, asked).await;
    _ = timed(STATEMENT, connection.close()).await;
    match newest {
        Err(SqlError::Bug(_)) => Ok(None),
        newest => newest,
    }
}

/// The time of the statement, not of the start of its transaction.
const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::BIGINT";

/// Begins a transaction of PostgreSQL.
const BEGIN: &str = "BEGIN";
/// Begins one that reads one state.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Time limit for a request to get a connection: its client gets 503 within a second.
const ACQUIRE: Duration = Duration::from_millis(800);
/// Time that a writer waits for one of another process.
const BUSY: Duration = Duration::from_secs(5);
/// Connections of one replica, which writes rarely and reads after changes.
const POSTGRES: u32 = 8;
/// Connections that [`Pool::reserved`] has beside them.
const RESERVED: u32 = 2;
/// Reading connections to a file: of those, administrators of tenants have half (`http::admin`).
const SQLITE_READERS: u32 = 8;
/// Bytes that the log of a file keeps of the disk once it is copied: one that grew while it was read is cut to them.
const LOG: u64 = 64 << 20;

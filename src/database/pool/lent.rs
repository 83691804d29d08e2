//! A connection to PostgreSQL that its pool has lent, and its return within a time limit.
//!
//! sqlx tests a connection before it takes it back, and waits for the answer without a limit: a server that
//! hangs would keep all connections of the pool, also when another one has taken its place. Not here: what
//! runs on a connection (`sql`).

use std::{io, sync::Arc, time::Duration};

use sqlx::{
    Connection as _, PgConnection, PgPool, Postgres, Row as _,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
    raw_sql,
};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::base::budget::OwnersTurn;

/// A connection to PostgreSQL. Dropped, its transaction is rolled back and it returns to its pool; one that the
/// server does not answer on is closed, one to a server that only reads, whose name may lead to another by now, and one
/// that has prepared a statement for an older schema.
pub(super) struct Lent {
    /// None once it returns.
    connection: Option<PoolConnection<Postgres>>,
    /// Whether the server may have a transaction, also one that it only begins.
    is_begun: bool,
    /// Whether it is closed instead of returned.
    must_close: bool,
    returns: Returns,
}

/// Returns of connections, and the turns at which they were lent.
#[derive(Clone, Default)]
pub(super) struct Returns {
    tasks: TaskTracker,
    /// They end behind the return: a server goes on with a statement that nobody waits for, and the connection with it.
    turns: Option<Arc<[OwnersTurn]>>,
}

impl Returns {
    /// The same returns of connections that are lent at these turns.
    pub(super) fn of_turns(&self, turns: Vec<OwnersTurn>) -> Self {
        Self {
            tasks: self.tasks.clone(),
            turns: Some(turns.into()),
        }
    }

    /// The same returns of connections that are lent at the turns of others.
    pub(super) fn of_turns_of(&self, others: &Self) -> Self {
        Self {
            tasks: self.tasks.clone(),
            turns: others.turns.clone(),
        }
    }
}

impl Lent {
    /// Gets a connection of the pool. A new one to a standby is an error: what it has is late, and it takes no writes.
    pub(super) async fn of(pool: &PgPool, returns: &Returns) -> Result<Self, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        // Unless it is returned: sqlx has a time limit for the end alone.
        connection.close_on_drop();
        let mut lent = Self {
            connection: Some(connection),
            is_begun: false,
            must_close: true,
            returns: returns.clone(),
        };
        // Nothing was asked on it before. This question is a statement, too.
        if lent.connection().cached_statements_size() == 0 {
            let asked = sqlx::query(IN_RECOVERY)
                .fetch_one(lent.connection())
                .await?;
            let is_standby: bool = asked.try_get("is_standby")?;
            if is_standby {
                return Err(sqlx::Error::Io(io::Error::other(STANDBY)));
            }
        }
        lent.must_close = false;
        Ok(lent)
    }

    /// Gets a connection, and begins a transaction by this statement.
    pub(super) async fn begun(
        pool: &PgPool,
        returns: &Returns,
        statement: &'static str,
    ) -> Result<Self, sqlx::Error> {
        let mut lent = Self::of(pool, returns).await?;
        lent.is_begun = true;
        raw_sql(statement).execute(lent.connection()).await?;
        Ok(lent)
    }

    /// The connection.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("it has not been dropped")
    }

    /// The rows of a statement.
    pub(super) async fn rows(
        &mut self,
        statement: Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let rows = statement.fetch_all(self.connection()).await;
        self.must_close |= rows.as_ref().is_err_and(is_outdated);
        rows
    }

    /// Commits the transaction.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        raw_sql("COMMIT").execute(self.connection()).await?;
        self.is_begun = false;
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            if self.must_close {
                return;
            }
            let returned = timeout(STATEMENT, give_back(connection, self.is_begun));
            let turns = self.returns.turns.take();
            self.returns.tasks.spawn(async move {
                drop(returned.await);
                drop(turns);
            });
        }
    }
}

/// Returns a connection to its pool, behind the end of its transaction. Dropped meanwhile, it is closed.
async fn give_back(mut connection: PoolConnection<Postgres>, is_begun: bool) {
    if is_begun && raw_sql("ROLLBACK").execute(&mut *connection).await.is_err() {
        return;
    }
    connection.return_to_pool().await;
}

/// Whether an error comes again on the same connection, and not on a new one.
fn is_outdated(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| OUTDATED.contains(&&*code))
}

/// The SQLSTATE codes of a server that only reads, and of a prepared statement whose columns a migration has changed
/// since: it fails for as long as the connection lives.
const OUTDATED: [&str; 2] = ["25006", "0A000"];

const IN_RECOVERY: &str = "SELECT pg_is_in_recovery() AS is_standby";

/// The reason where a new connection leads to a standby.
const STANDBY: &str = "its server is a standby, which only reads";
/// Time limit of one statement, and of the return of a connection, on which one may still run.
pub(super) const STATEMENT: Duration = Duration::from_secs(5);

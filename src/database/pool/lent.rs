//! A connection to PostgreSQL that its pool has lent, and its return within a time limit.
//!
//! sqlx tests a connection before it takes it back, and waits for the answer without a limit: a server that
//! hangs would keep all connections of the pool, also when another one has taken its place. Not here: what
//! runs on a connection (`sql`).

use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection, raw_sql};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// A connection to PostgreSQL. Dropped, its transaction is rolled back and it returns to its pool; one that the
/// server does not answer on is closed.
pub(super) struct Lent {
    /// None once it returns.
    connection: Option<PoolConnection<Postgres>>,
    /// Whether the server may have a transaction, also one that it only begins.
    is_begun: bool,
    returns: TaskTracker,
}

impl Lent {
    /// Gets a connection of the pool.
    pub(super) async fn of(pool: &PgPool, returns: &TaskTracker) -> Result<Self, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        // Unless it is returned: sqlx has a time limit for the end alone.
        connection.close_on_drop();
        Ok(Self {
            connection: Some(connection),
            is_begun: false,
            returns: returns.clone(),
        })
    }

    /// Gets a connection, and begins a transaction by this statement.
    pub(super) async fn begun(
        pool: &PgPool,
        returns: &TaskTracker,
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
            let returned = timeout(STATEMENT, give_back(connection, self.is_begun));
            self.returns.spawn(async { drop(returned.await) });
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

/// Time limit of one statement, and of the return of a connection, on which one may still run.
pub(super) const STATEMENT: Duration = Duration::from_secs(5);

//! The end of a statement in SQLite: at its deadline, or once nobody waits for it.
//!
//! sqlx runs a statement in a thread of its own, and ends it at the next row that nobody takes. One that finds no row would
//! run to its end: its connection is kept from others, and the log of the file cannot begin anew. A server of PostgreSQL
//! has its own limit (`statement_timeout`). Not here: the time limit of those who wait (`sql`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::{
    Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use tokio::time::Instant;

/// The deadline of the statements of a connection, from when its pool lends it until it returns.
#[derive(Debug)]
pub(super) struct Deadline {
    began: Instant,
    limit: Duration,
    /// The end of the statement that runs, in milliseconds after `began`; [`OVER`] for good once one was abandoned, which
    /// may still run when the next one begins.
    end_ms: Arc<AtomicU64>,
}

/// A statement that runs. Dropped before its end, it is abandoned.
struct Running<'d> {
    deadline: &'d Deadline,
    has_ended: bool,
}

impl Deadline {
    /// Gives every statement on a connection this limit, in place of an earlier one.
    pub(super) async fn of(
        connection: &mut SqliteConnection,
        limit: Duration,
    ) -> Result<Self, sqlx::Error> {
        let deadline = Self {
            began: Instant::now(),
            limit,
            end_ms: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let (began, end_ms) = (deadline.began, Arc::clone(&deadline.end_ms));
        let goes_on = move || millis(began.elapsed()) < end_ms.load(Ordering::Relaxed);
        let mut handle = connection.lock_handle().await?;
        handle.set_progress_handler(STEPS, goes_on);
        Ok(deadline)
    }

    /// The rows of a statement on the connection.
    ///
    /// # Errors
    ///
    /// Those of the statement, and `SQLITE_INTERRUPT` at its deadline.
    pub(super) async fn rows(
        &self,
        connection: &mut SqliteConnection,
        statement: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let mut running = self.begin();
        let rows = statement.fetch_all(connection).await;
        running.has_ended = true;
        rows
    }

    fn begin(&self) -> Running<'_> {
        let end = millis(self.began.elapsed() + self.limit);
        let next = |old: u64| (old != OVER).then_some(end);
        let _ = self
            .end_ms
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Running {
            deadline: self,
            has_ended: false,
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.deadline.end_ms.store(OVER, Ordering::Relaxed);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The end of what was abandoned.
const OVER: u64 = 0;
/// Steps of SQLite between two looks at the clock: a millisecond, and more than the begin or the end of a transaction takes.
const STEPS: i32 = 10_000;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use sqlx::Connection as _;
    use tokio::time::timeout;

    use super::super::{
        deadline::*,
        sql_error::{SqlError, meaning},
    };

    /// Finds no row, and goes on for ever.
    const ENDLESS: &str = "
        WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT x FROM n WHERE x < 0";
    const MINUTE: Duration = Duration::from_secs(60);

    async fn opened() -> SqliteConnection {
        let opened = SqliteConnection::connect("sqlite::memory:").await;
        opened.unwrap()
    }

    /// It ran to its end, whoever had given it up.
    #[tokio::test]
    async fn a_statement_ends_at_its_deadline() {
        let mut connection = opened().await;
        let limit = Duration::from_millis(50);
        let deadline = Deadline::of(&mut connection, limit).await.unwrap();
        let rows = deadline.rows(&mut connection, sqlx::query(ENDLESS));
        let rows = timeout(MINUTE, rows).await.expect("within a minute");
        let failure = meaning(&rows.map(drop).unwrap_err());
        assert!(
            matches!(failure, SqlError::Unavailable(_)),
            "as where PostgreSQL ends one: {failure}"
        );
        let rows = deadline.rows(&mut connection, sqlx::query("SELECT 1"));
        assert_eq!(rows.await.unwrap().len(), 1, "the next one has its own");
    }

    /// A client that broke off its request left its scan behind, and sent the next one.
    #[tokio::test]
    async fn a_statement_that_nobody_waits_for_ends() {
        let mut connection = opened().await;
        let deadline = Deadline::of(&mut connection, MINUTE * 60).await.unwrap();
        let rows = deadline.rows(&mut connection, sqlx::query(ENDLESS));
        assert!(Box::pin(rows).now_or_never().is_none());
        // Its time is not that of the next one, which waits for its end.
        let rows = deadline.rows(&mut connection, sqlx::query("SELECT 1"));
        let rows = timeout(MINUTE, rows).await.expect("within a minute");
        assert_eq!(rows.unwrap().len(), 1);
        // A connection that is lent again has another deadline.
        let deadline = Deadline::of(&mut connection, MINUTE).await.unwrap();
        let rows = deadline.rows(&mut connection, sqlx::query("SELECT 1"));
        assert_eq!(rows.await.unwrap().len(), 1);
    }
}

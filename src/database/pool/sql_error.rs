//! Errors of statements, and the time limit within which a step ends or is one.
//!
//! Not here: errors of whole operations (`error`).

use std::time::Duration;

use tokio::time::timeout;

use super::codes::{Kind, kind_of};

/// The reason why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    /// The database is unreachable or busy.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The name or value exists already.
    #[error("it is there already")]
    Duplicate,
    /// The referenced object does not exist.
    #[error("what it belongs to is not there")]
    Dangling,
    /// This build cannot use the database.
    #[error("{0}")]
    Unusable(String),
    /// The file is no intact database.
    #[error("{0}")]
    Damaged(String),
    /// A bug of the gateway.
    #[error("{0}")]
    Bug(String),
}

/// Runs a step with a time limit: a dead connection may never report an end.
pub(super) async fn timed<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, SqlError> {
    match timeout(limit, step).await {
        Ok(done) => done.map_err(|error| meaning(&error)),
        Err(_) => Err(late(limit)),
    }
}

/// The error of a step that took longer.
pub(super) fn late(limit: Duration) -> SqlError {
    SqlError::Unavailable(format!("no answer within {limit:?}"))
}

/// What an error of sqlx says to a caller.
pub(super) fn meaning(error: &sqlx::Error) -> SqlError {
    let text = error.to_string();
    match error {
        sqlx::Error::Database(inner) if inner.is_unique_violation() => SqlError::Duplicate,
        sqlx::Error::Database(inner) if inner.is_foreign_key_violation() => SqlError::Dangling,
        sqlx::Error::Database(inner) => match kind_of(&inner.code().unwrap_or_default()) {
            Kind::Away => SqlError::Unavailable(text),
            Kind::Damaged => SqlError::Damaged(text),
            Kind::Other => SqlError::Bug(text),
        },
        sqlx::Error::PoolTimedOut => SqlError::Unavailable(NO_CONNECTION.to_owned()),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => SqlError::Unavailable(text),
        sqlx::Error::Configuration(_) => SqlError::Unusable(text),
        _ => SqlError::Bug(text),
    }
}

/// The reason where others have all connections, or none can be made.
pub(super) const NO_CONNECTION: &str = "no connection within the time limit";

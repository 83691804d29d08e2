//! Errors of database operations.

use super::sql_error::{NO_CONNECTION, SqlError};
use crate::config::{Mistake, Wrong};

/// The reason why a database operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The database is unreachable, and maybe nothing changed. Try again later.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The object has another version than expected, exists already, or was removed.
    #[error("the object was changed meanwhile")]
    Conflict,
    /// Others changed the same tenant each time that the change was checked, and nothing is written. Try again later.
    #[error("others changed the same tenant each time that the change was checked")]
    Overtaken,
    /// Without this API key no operator could administrate.
    #[error("the last operator key that holds")]
    LastKey,
    /// The object, or its tenant, does not exist.
    #[error("no such object")]
    NotFound,
    /// The resulting state cannot be served, or the database cannot be used with these settings.
    #[error("{}", lines(.0))]
    Invalid(Vec<Mistake>),
    /// The file of the database is damaged, or another user's.
    #[error("the file of the database {}; {}", .0.what, .0.remedy)]
    File(Wrong),
    /// A bug of the gateway, or a row that another program wrote.
    #[error("bug in the database layer: {0}")]
    Bug(String),
}

impl Error {
    /// A single mistake.
    pub(crate) fn from_mistake(mistake: Mistake) -> Self {
        Self::Invalid(vec![mistake])
    }

    /// A mistake in the master key.
    pub(crate) fn from_key(wrong: Wrong) -> Self {
        Self::from_mistake(wrong.at("configuration", "master_key"))
    }

    /// Whether there was no connection: others may have them all.
    pub(crate) fn lacks_connection(&self) -> bool {
        matches!(self, Self::Unavailable(why) if why == NO_CONNECTION)
    }

    /// The system has no randomness.
    pub(crate) fn no_randomness() -> Self {
        Self::Bug("no randomness".to_owned())
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Unavailable(what) => Self::Unavailable(what),
            SqlError::Duplicate => Self::Conflict,
            SqlError::Dangling => Self::NotFound,
            SqlError::Unusable(what) => {
                let remedy = "name a database of this or an earlier version of lockgate";
                Self::from_mistake(Wrong::new(what, remedy).at("configuration", "sql.url"))
            }
            SqlError::Damaged(what) => {
                let what = format!("is damaged, or no database: {what}");
                Self::File(Wrong::new(what, RESTORE))
            }
            SqlError::Bug(what) => Self::Bug(what),
        }
    }
}

fn lines(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

const RESTORE: &str = "put a copy in its place while no gateway uses it: lockgate restore COPY";

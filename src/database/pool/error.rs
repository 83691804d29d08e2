//! Failures of the database, as the rest of the gateway sees them.

use super::sql::SqlError;
use crate::config::{Mistake, Wrong};

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The database does not answer; nothing is known to have changed. Try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The object has another version than expected, exists already, or is gone.
    #[error("the object was changed meanwhile")]
    Conflict,
    /// Without this API key no operator could get in.
    #[error("the last operator key that holds")]
    LastKey,
    /// No such object, or no such tenant.
    #[error("no such object")]
    NotFound,
    /// The resulting state cannot be served, or the database cannot be used with these settings.
    #[error("{}", lines(.0))]
    Invalid(Vec<Mistake>),
    /// A bug of the gateway, or a database that another program wrote to.
    #[error("bug in the store: {0}")]
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
            SqlError::Bug(what) => Self::Bug(what),
        }
    }
}

fn lines(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

//! Values of SQL statements, in the types that both databases have.

use uuid::Uuid;

/// A value of a statement, for one of its `$1`, `$2`, ….
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// An id.
    Id(Uuid),
    /// A text, or NULL.
    Text(Option<String>),
    /// A whole number, or NULL.
    Whole(Option<i64>),
    /// Bytes, or NULL.
    Bytes(Option<Vec<u8>>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<i64> for Value {
    fn from(whole: i64) -> Self {
        Self::Whole(Some(whole))
    }
}

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Id(id)
    }
}

impl From<&[u8; 32]> for Value {
    fn from(hash: &[u8; 32]) -> Self {
        Self::Bytes(Some(hash.to_vec()))
    }
}

impl From<Option<Vec<u8>>> for Value {
    fn from(bytes: Option<Vec<u8>>) -> Self {
        Self::Bytes(bytes)
    }
}

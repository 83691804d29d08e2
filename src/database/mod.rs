//! The database (SQLite or PostgreSQL): what is declared, what was issued, and who changed what.

pub(crate) mod audit;
pub(crate) mod oauth;
pub(crate) mod objects;
pub(crate) mod sql;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod value;
pub(crate) mod vault;

pub(crate) use self::audit::{Cursor, Entry, Filter, Record};
pub(crate) use self::sql::{Pool, Row, Sql, SqlError, Transaction};
pub(crate) use self::store::{Author, Expected, Failure, Judge, Loaded, Location, Opening, Store};
pub(crate) use self::value::Value;

//! The database (SQLite or PostgreSQL): declared objects, issued grants and keys, the audit trail.
//!
//! The tables are created by `migrations/sqlite` and `migrations/postgres`. Each is used through a
//! repository of [`Database`], one per noun: `database.objects()`, `database.grants()`,
//! `database.audit()`. Not here: the declared model (`declare`), and the snapshot that requests read
//! (`snapshot`).
//!
//! * `handle`: the open database, its location, and its repositories
//! * `pool`: SQL on both databases, errors, the audit trail
//! * `vault`: sealed secrets and the master key
//! * `oauth`: rows of the authorization server
//! * `objects`: declared objects

mod handle;
pub(crate) mod oauth;
pub(crate) mod objects;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod vault;

pub(crate) use self::handle::{Database, ForAdministrator, Location, Opening};
pub(crate) use self::objects::{
    Connection, ConnectionAt, ConnectionFilter, Expected, HolderAt, Judge, Mark, Marks, Newer,
    StoredConnection, StoredSecret,
};
pub(crate) use self::pool::{
    Author, Cursor, Entry, Error, FIELD, Filter, KINDS, Page, Record, cut,
};
#[cfg(test)]
pub(crate) use self::pool::{Pool, Value};
pub(crate) use self::vault::Tokens;

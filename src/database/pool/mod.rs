//! The base of every repository: SQL on both databases, errors, and the audit trail.
//!
//! Not here: sealed columns (`vault`), and the tables of objects and of the authorization server
//! (`objects`, `oauth`).
//!
//! * `audit`: the audit trail
//! * `codes`: error codes of both databases
//! * `deadline`: the end of a statement in SQLite
//! * `error`: errors of database operations
//! * `file`: a SQLite file without a gateway
//! * `lent`: a connection to PostgreSQL, and its return to the pool
//! * `migrations`: the migrations of the schema
//! * `schema`: the schema, and how a start brings it up to date
//! * `sql`: connections, transactions and rows, on SQLite and PostgreSQL
//! * `sql_error`: errors of statements
//! * `value`: values of statements

pub(crate) mod audit;
mod codes;
mod deadline;
mod error;
pub(crate) mod file;
mod lent;
mod migrations;
mod schema;
pub(crate) mod sql;
mod sql_error;
mod value;

pub(crate) use self::audit::{
    Audit, Author, Cursor, Entry, FIELD, Filter, KINDS, Page, Record, cut, storable,
};
pub(crate) use self::error::Error;
pub(crate) use self::file::HeldKey;
pub(crate) use self::sql::{Pool, Row, Sql, Transaction};
pub(crate) use self::sql_error::SqlError;
pub(crate) use self::value::Value;

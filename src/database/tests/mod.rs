//! Promises of the database, kept on SQLite and PostgreSQL.

mod issued;
mod store;

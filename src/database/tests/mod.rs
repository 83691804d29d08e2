//! Promises of the database, kept on SQLite and PostgreSQL.

mod audit;
mod grants;
mod logins;
mod objects;
mod opening;
mod place;
mod revocations;
mod secrets;
mod signing_keys;
mod tokens;

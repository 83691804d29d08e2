//! Tests of the database on SQLite and PostgreSQL.

mod audit;
mod connections;
mod fixture;
mod grants;
mod identities;
mod logins;
mod objects;
mod opening;
mod own_keys;
mod revocations;
mod secrets;
mod signing_keys;
mod slots;

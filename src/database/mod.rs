//! The database (SQLite or PostgreSQL): what is declared, what was issued, and who changed what.

pub(crate) mod audit;
pub(crate) mod oauth;
pub(crate) mod objects;
pub(crate) mod sql;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod value;
pub(crate) mod vault;

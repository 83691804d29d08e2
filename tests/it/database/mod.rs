//! Tests of objects, identities and the audit trail, in SQLite and in PostgreSQL.

pub(crate) mod audit_trail;
pub(crate) mod declared_identities;
pub(crate) mod persistence;
pub(crate) mod restores;
pub(crate) mod rotation;

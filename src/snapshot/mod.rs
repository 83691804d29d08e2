//! The snapshot: the declared and issued state that requests read, kept in step with the database.
//!
//! * `audit_queue`: the queue of audit records that belong to no change
//! * `current`: the current snapshot, and polls of the database
//! * `sync`: the task that opens the database, applies the manifest file and refreshes the snapshot
//! * `upkeep`: removal of old audit records and expired rows, rotation of signing keys

mod audit_queue;
mod current;
mod sync;
mod upkeep;

pub(crate) use self::audit_queue::AuditQueue;
pub(crate) use self::current::{CurrentSnapshot, LastPollAttempt, Snapshot};
pub(crate) use self::sync::{Freshness, ManifestFile, Reloader, SnapshotSync};

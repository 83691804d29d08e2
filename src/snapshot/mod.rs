//! The snapshot: the declared and issued state that requests read, kept in step with the database.
//!
//! * `audit_queue`: the queue of audit records that belong to no change
//! * `current`: the current snapshot, and polls of the database
//! * `sync`: the task that opens the database, applies the manifest file and refreshes the snapshot

mod audit_queue;
mod current;
mod sync;

pub(crate) use self::audit_queue::AuditQueue;
pub(crate) use self::current::{CurrentSnapshot, LastPollAttempt, Snapshot};
pub(crate) use self::sync::{Freshness, ManifestFile, SnapshotSync};

//! The snapshot: the declared and issued state that requests read, kept in step with the database.
//!
//! * `audit_queue`: the queue of audit records that belong to no change
//! * `call_records`: how many calls of a tenant are recorded, and how many are not
//! * `current`: the current snapshot, and polls of the database
//! * `manifest_file`: the manifest file, which is read again when it changes
//! * `sync`: the task that opens the database, applies the manifest file and refreshes the snapshot
//! * `upkeep`: removal of old audit records and expired rows, rotation of signing keys
//! * `wait`: the wait for a database that may be slow or silent

mod audit_queue;
mod call_records;
mod current;
mod manifest_file;
mod sync;
mod upkeep;
mod wait;

pub(crate) use self::audit_queue::AuditQueue;
pub(crate) use self::current::{CurrentSnapshot, LastPollAttempt, Snapshot};
pub(crate) use self::manifest_file::ManifestFile;
pub(crate) use self::sync::{Freshness, Reloader, SnapshotSync};

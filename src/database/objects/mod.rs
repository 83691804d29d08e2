//! Declared objects: their rows, and the steps of every change.
//!
//! Not here: the model (`declare`), and the rows of the authorization server (`oauth`).
//!
//! * `changes`: changes of objects: edited, written, recorded
//! * `connections`: connections of people to upstreams
//! * `removal`: the first parts of a removal that is too large for one transaction
//! * `repository`: reads, checks and changes of declared objects
//! * `rows`: objects as rows
//! * `secrets`: secrets of objects: hashed, kept, hidden
//! * `slots`: secrets in the slots of servers
//! * `steps`: judgement and transaction of every change

mod changes;
pub(crate) mod connections;
mod removal;
mod repository;
pub(crate) mod rows;
mod secrets;
pub(crate) mod slots;
mod steps;

pub(crate) use self::connections::{
    Connection, ConnectionAt, ConnectionFilter, Connections, StoredConnection,
};
pub(crate) use self::repository::{Expected, Judge, Listed, Newer, Objects};
pub(crate) use self::rows::{Mark, Marks, Stored};
pub(crate) use self::slots::{HolderAt, Secrets, StoredSecret};

//! Declared objects: their rows, and the path of every change.
//!
//! Not here: the model (`declare`), and the rows of the authorization server (`oauth`).
//!
//! * `changes`: changes of objects: edited, written, recorded
//! * `repository`: declared objects, read, judged and changed
//! * `rows`: objects as rows
//! * `secrets`: secrets of objects: hashed, kept, not shown

mod changes;
pub(crate) mod repository;
mod rows;
mod secrets;

pub(crate) use self::repository::{Expected, Judge, Objects};
pub(crate) use self::rows::Stored;

//! Declared objects as rows, and how they change.

pub(crate) mod changes;
pub(crate) mod rows;
mod secrets;

pub(crate) use self::changes::{Core, VERSION};
pub(crate) use self::rows::{RowError, Sealer, Stored};

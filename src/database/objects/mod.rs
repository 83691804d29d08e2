//! Declared objects as rows, and how they change.

pub(crate) mod changes;
pub(crate) mod rows;

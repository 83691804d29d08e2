//! Child processes: launch, stdio, registry and removal.

pub(crate) mod launcher;
pub(crate) mod registry;
pub(crate) mod removal;
pub(crate) mod stderr;
pub(crate) mod stdio;
#[cfg(test)]
mod tests;

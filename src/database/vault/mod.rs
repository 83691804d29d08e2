//! Sealed secrets: the master key, sealing, and key rotation.

pub(crate) mod master_key;
pub(crate) mod rotation;
pub(crate) mod seal;

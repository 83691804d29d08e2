//! Sealed secrets: the master key, sealing, and key rotation.

mod master_key;
pub(crate) mod rotation;
mod seal;

pub(crate) use self::master_key::{KeySource, Make};
#[cfg(test)]
pub(crate) use self::seal::MasterKey;
pub(crate) use self::seal::{Keyring, NotOpened, Place};

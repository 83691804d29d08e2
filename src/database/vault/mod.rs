//! Sealed secrets: the master key, sealing, and key rotation.
//!
//! Not here: the rows that hold sealed values (`objects`, `oauth`).
//!
//! * `keys`: the master keys in use
//! * `master_key`: the source of master keys
//! * `rotation`: the master keys that a database knows, and the steps of a rotation, which
//!   `Database::rotate` runs
//! * `seal`: sealing of secrets
//! * `tokens`: tokens of people at other services

mod keys;
mod master_key;
pub(crate) mod rotation;
mod seal;
mod tokens;

pub(crate) use self::keys::Vault;
pub(crate) use self::master_key::{KeySource, Make};
#[cfg(test)]
pub(crate) use self::seal::MasterKey;
pub(crate) use self::seal::{Keyring, NotOpened, Place, Sealer};
pub(crate) use self::tokens::Tokens;

//! The master keys in use, which follow a rotation by another process.
//!
//! Not here: the rotation itself (`rotation`).

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::rand::SystemRandom;
use zeroize::Zeroizing;

use super::{
    master_key::{KeySource, Make},
    rotation,
    seal::{Keyring, NotOpened, Place},
};
use crate::{
    config::Wrong,
    database::pool::{Error, Transaction},
};

/// The master keys of an open database.
pub(crate) struct Vault {
    /// The source of the master keys.
    pub(crate) source: KeySource,
    /// The keys, replaced when the key file has changed.
    keys: ArcSwap<Keyring>,
    /// The source of keys and nonces.
    pub(crate) random: SystemRandom,
}

impl Vault {
    /// Reads the keys, and verifies that they are those of the database.
    ///
    /// # Errors
    ///
    /// `Invalid` for a wrong master key; `Unavailable`.
    pub(crate) async fn admit(
        source: KeySource,
        transaction: &mut Transaction,
        now_ms: i64,
    ) -> Result<Self, Error> {
        let random = SystemRandom::new();
        let keys = rotation::read_and_verify_keys(transaction, &source, &random, now_ms).await?;
        let keys = ArcSwap::from_pointee(keys);
        Ok(Self {
            source,
            keys,
            random,
        })
    }

    /// The keys as they are known now.
    pub(crate) fn keys(&self) -> Arc<Keyring> {
        self.keys.load_full()
    }

    /// Reads the keys again.
    ///
    /// # Errors
    ///
    /// The mistake in the file.
    pub(crate) fn reload(&self) -> Result<Arc<Keyring>, Error> {
        let keys = self.source.keyring(&self.random, Make::Never);
        let keys = Arc::new(keys.map_err(Error::from_mistake)?);
        self.keys.store(Arc::clone(&keys));
        Ok(keys)
    }

    /// Opens a value sealed for `place`; none if it is forged, or sealed under a removed key.
    pub(crate) fn open(&self, place: Place<'_>, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self.keys.load().open(place, sealed) {
            Err(NotOpened::UnknownKey) => {
                // After `lockgate key rotate` the file contains the new key.
                let keys = self.source.keyring(&self.random, Make::Never).ok()?;
                let opened = keys.open(place, sealed).ok()?;
                self.keys.store(Arc::new(keys));
                Some(opened)
            }
            opened => opened.ok(),
        }
    }

    /// Seals for `place`; none without randomness.
    pub(crate) fn seal(&self, place: Place<'_>, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.load().seal(&self.random, place, plain)
    }

    /// The keys to seal with, read again first: a value sealed with a rotated key could not be
    /// opened.
    pub(crate) async fn current_keys(
        &self,
        transaction: &mut Transaction,
    ) -> Result<Arc<Keyring>, Error> {
        if !rotation::is_known(transaction, &self.keys.load()).await? {
            let keys = self.source.keyring(&self.random, Make::Never);
            let keys = keys.map_err(Error::from_mistake)?;
            if !rotation::is_known(transaction, &keys).await? {
                let what = "was replaced by another one";
                let wrong = Wrong::new(what, "start again with the key that is in use");
                return Err(Error::from_mistake(wrong.at("configuration", "master_key")));
            }
            self.keys.store(Arc::new(keys));
        }
        Ok(self.keys.load_full())
    }
}

//! Signing keys of tenants, and what all replicas know of what was issued: public keys and
//! revocations.

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

use super::store::{Failure, Store};

/// What decides whether a token of ours is worth anything; part of every snapshot.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    /// The public keys of each tenant: next, current and previous.
    pub(crate) keys: HashMap<String, Arc<[PublicKey]>>,
    /// What was revoked, by tenant; each with the time up to which tokens are meant, in
    /// milliseconds since 1970.
    pub(crate) revoked: HashMap<String, Arc<RevokedOf>>,
}

/// What was revoked of one tenant.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RevokedOf {
    /// Grants.
    pub(crate) grants: HashMap<Uuid, i64>,
    /// Clients.
    pub(crate) clients: HashMap<String, i64>,
    /// Subjects.
    pub(crate) subjects: HashMap<String, i64>,
}

/// A public key of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    /// Its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// The 32 bytes of an Ed25519 public key.
    pub(crate) x: [u8; 32],
}

/// The key that signs a tenant's tokens right now.
#[derive(Clone)]
pub(crate) struct SigningKey {
    /// Its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// PKCS#8.
    pub(crate) pkcs8: Arc<zeroize::Zeroizing<Vec<u8>>>,
}

impl Store {
    /// The key that signs for a tenant, made if there is none.
    pub(crate) async fn signing_key(&self, tenant: &str) -> Result<SigningKey, Failure> {
        todo!()
    }
}

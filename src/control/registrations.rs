//! Clients that registered themselves (RFC 7591), as rows.

use super::store::{Failure, Store};

/// A registered client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The client id.
    pub(crate) client_id: String,
    /// Its checked metadata as a JSON object, without secrets.
    pub(crate) metadata: String,
    /// The SHA-256 of its secret; none for a public client.
    pub(crate) secret_hash: Option<[u8; 32]>,
    /// The SHA-256 of its registration access token (RFC 7592).
    pub(crate) access_hash: [u8; 32],
    /// When it registered, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// When it is forgotten, unless it is used before.
    pub(crate) expires_ms: i64,
}

impl Store {
    /// Writes a new client; false if the tenant has `cap` that have not expired.
    pub(crate) async fn register(
        &self,
        tenant: &str,
        new: &Registered,
        cap: u32,
    ) -> Result<bool, Failure> {
        todo!()
    }

    /// A client that has not expired.
    pub(crate) async fn registered(
        &self,
        tenant: &str,
        client_id: &str,
    ) -> Result<Option<Registered>, Failure> {
        todo!()
    }

    /// Replaces metadata, secret and end of a client; false if it is not there.
    pub(crate) async fn update_registered(
        &self,
        tenant: &str,
        new: &Registered,
    ) -> Result<bool, Failure> {
        todo!()
    }

    /// Puts a client's end off to `expires_ms`; never brings it forward.
    pub(crate) async fn renew_registered(
        &self,
        tenant: &str,
        client_id: &str,
        expires_ms: i64,
    ) -> Result<(), Failure> {
        todo!()
    }

    /// Removes a client and revokes all that it was granted; false if it was not there.
    pub(crate) async fn remove_registered(
        &self,
        tenant: &str,
        client_id: &str,
    ) -> Result<bool, Failure> {
        todo!()
    }
}

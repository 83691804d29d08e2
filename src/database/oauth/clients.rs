//! Clients that registered themselves (RFC 7591), as rows.

use super::{grants::Revoked, revocations};
use crate::database::{Failure, Row, Store};

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
        // Those that register at the same moment may together exceed the cap by their number.
        let values = vec![
            tenant.into(),
            new.client_id.as_str().into(),
            new.metadata.as_str().into(),
            new.secret_hash.map(Vec::from).into(),
            (&new.access_hash).into(),
            new.created_ms.into(),
            new.expires_ms.into(),
            self.0.now_ms().into(),
            i64::from(cap).into(),
        ];
        Ok(!self.0.write(INSERT, values).await?.is_empty())
    }

    /// A client that has not expired.
    pub(crate) async fn registered(
        &self,
        tenant: &str,
        client_id: &str,
    ) -> Result<Option<Registered>, Failure> {
        let values = vec![tenant.into(), client_id.into(), self.0.now_ms().into()];
        let rows = self.0.pool.read(ONE, values).await?;
        rows.first().map(read).transpose()
    }

    /// Replaces metadata, secret, access token and end of a client; false if it is not there.
    pub(crate) async fn update_registered(
        &self,
        tenant: &str,
        new: &Registered,
    ) -> Result<bool, Failure> {
        let values = vec![
            tenant.into(),
            new.client_id.as_str().into(),
            new.metadata.as_str().into(),
            new.secret_hash.map(Vec::from).into(),
            (&new.access_hash).into(),
            new.expires_ms.into(),
            self.0.now_ms().into(),
        ];
        Ok(!self.0.write(UPDATE, values).await?.is_empty())
    }

    /// Puts a client's end off to `expires_ms`; never brings it forward.
    pub(crate) async fn renew_registered(
        &self,
        tenant: &str,
        client_id: &str,
        expires_ms: i64,
    ) -> Result<(), Failure> {
        let values = vec![
            tenant.into(),
            client_id.into(),
            expires_ms.into(),
            self.0.now_ms().into(),
        ];
        self.0.write(RENEW, values).await.map(drop)
    }

    /// Removes a client and revokes all that it was granted; false if it was not there.
    pub(crate) async fn remove_registered(
        &self,
        tenant: &str,
        client_id: &str,
    ) -> Result<bool, Failure> {
        let mut transaction = self.0.pool.begin_beside().await?;
        let values = vec![tenant.into(), client_id.into()];
        if transaction.run(DELETE, values).await?.is_empty() {
            return Ok(false);
        }
        let all = Revoked::Client(client_id.to_owned());
        revocations::end(&mut transaction, tenant, &all, self.0.now_ms()).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

fn read(row: &Row) -> Result<Registered, Failure> {
    let hash = |bytes: Vec<u8>| {
        let hash = bytes.try_into();
        hash.map_err(|_| Failure::Bug("a hash of another length".to_owned()))
    };
    let secret_hash: Option<Vec<u8>> = row.get("secret_hash")?;
    Ok(Registered {
        client_id: row.get("client_id")?,
        metadata: row.get("metadata")?,
        secret_hash: secret_hash.map(hash).transpose()?,
        access_hash: hash(row.get("access_hash")?)?,
        created_ms: row.get("created_ms")?,
        expires_ms: row.get("expires_ms")?,
    })
}

const INSERT: &str = "
    INSERT INTO registrations (tenant, client_id, metadata, secret_hash, access_hash, created_ms,
                               expires_ms)
    SELECT $1, $2, $3, $4, $5, $6, $7
     WHERE (SELECT COUNT(*)
              FROM registrations
             WHERE tenant = $1 AND expires_ms > $8) < $9
    RETURNING client_id";

const ONE: &str = "
    SELECT client_id, metadata, secret_hash, access_hash, created_ms, expires_ms
      FROM registrations
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $3";

const UPDATE: &str = "
    UPDATE registrations
       SET metadata = $3, secret_hash = $4, access_hash = $5, expires_ms = $6
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $7
    RETURNING client_id";

const RENEW: &str = "
    UPDATE registrations
       SET expires_ms = $3
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $4 AND expires_ms < $3
    RETURNING client_id";

const DELETE: &str = "
    DELETE FROM registrations
     WHERE tenant = $1 AND client_id = $2
    RETURNING client_id";

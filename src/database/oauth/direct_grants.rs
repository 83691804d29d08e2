//! Grants that begin without a code: of machines, and of people for whom a provider vouches.
//!
//! Not here: their tokens, which are not stored.

use super::{
    grants::{Grant, Grants, INSERT_GRANT, REVOKED, grant, grant_values},
    revocations::HOLD_OFF,
    surplus::ENDED_OF_PERSON,
};
use crate::database::pool::{Error, Transaction, Value};

/// The grant of a client for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MachineGrant {
    /// One that there is.
    Known(Grant),
    /// One that began.
    New(Grant),
    /// None: [`Grants::add`] refuses it.
    Refused,
    /// None: too many were revoked within a day.
    Revoked,
}

impl Grants<'_> {
    /// Whether so many grants of a subject to a client that began without a code were revoked that replicas keep no more:
    /// each stays for a day, or until it would have expired.
    pub(crate) async fn has_too_many_revoked(
        self,
        tenant: &str,
        (subject, client): (&str, &str),
    ) -> Result<bool, Error> {
        let values: Vec<Value> = vec![
            tenant.into(),
            subject.into(),
            client.into(),
            ENDED_OF_PERSON.into(),
        ];
        let revoked = self.pool.read(REVOKED_DIRECT, values).await?;
        let revoked: i64 = revoked.first().map_or(Ok(0), |row| row.get("revoked"))?;
        Ok(revoked >= ENDED_OF_PERSON)
    }

    /// The grant of a client for itself that lasts until `until_ms` at least, or `new`, which is added then.
    pub(crate) async fn of_machine(
        self,
        tenant: &str,
        new: Grant,
        until_ms: i64,
    ) -> Result<MachineGrant, Error> {
        let values: Vec<Value> = vec![
            tenant.into(),
            new.client_id.as_str().into(),
            new.subject.as_str().into(),
            new.resource.as_str().into(),
            until_ms.into(),
        ];
        let known = self.pool.read(GRANT_OF_MACHINE, values.clone()).await?;
        if let Some(row) = known.first() {
            // A revocation names it, and with it its tokens.
            return Ok(MachineGrant::Known(grant(row)?));
        }
        let of = (new.subject.as_str(), new.client_id.as_str());
        if self.has_too_many_revoked(tenant, of).await? {
            return Ok(MachineGrant::Revoked);
        }
        // One at a time: what begins together has one grant, which a revocation names.
        let mut transaction = self.pool.begin().await?;
        let begun = transaction.run(GRANT_OF_MACHINE, values).await?;
        if let Some(row) = begun.first() {
            return Ok(MachineGrant::Known(grant(row)?));
        }
        if !self.insert(&mut transaction, tenant, &new).await? {
            return Ok(MachineGrant::Refused);
        }
        transaction.commit().await?;
        Ok(MachineGrant::New(new))
    }

    /// Stores a grant that has no refresh token. Returns false if all grants of the subject or the client were revoked
    /// after the subject was authenticated.
    pub(crate) async fn add(self, tenant: &str, grant: &Grant) -> Result<bool, Error> {
        let mut transaction = self.pool.begin_unserialized().await?;
        // A revocation is seen here, or sees the grant.
        transaction.run(HOLD_OFF, Vec::new()).await?;
        if !self.insert(&mut transaction, tenant, grant).await? {
            return Ok(false);
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// Stores it within a transaction that no revocation goes on beside.
    async fn insert(
        self,
        transaction: &mut Transaction,
        tenant: &str,
        grant: &Grant,
    ) -> Result<bool, Error> {
        let values = vec![
            tenant.into(),
            grant.subject.as_str().into(),
            grant.client_id.as_str().into(),
            grant.auth_ms.into(),
        ];
        if !transaction.run(REVOKED, values).await?.is_empty() {
            return Ok(false);
        }
        let values = grant_values(tenant, grant, None, self.pool.now_ms());
        transaction.run(INSERT_GRANT, values).await?;
        Ok(true)
    }
}

const GRANT_OF_MACHINE: &str = "
    SELECT id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, expires_ms
      FROM grants
     WHERE tenant = $1 AND client_id = $2 AND subject = $3 AND resource = $4
       AND revoked_ms IS NULL AND expires_ms > $5
     ORDER BY expires_ms DESC
     LIMIT 1";

const REVOKED_DIRECT: &str = "
    SELECT COUNT(*) AS revoked
      FROM (SELECT 1 AS one
              FROM grants
             WHERE tenant = $1 AND subject = $2 AND client_id = $3
               AND revoked_ms IS NOT NULL AND family IS NULL
             LIMIT $4) AS counted";

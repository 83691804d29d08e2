//! Registered clients (RFC 7591) as rows.
//!
//! Anybody may register any number of clients, and records of the audit trail stay for months. So the
//! record of a registration goes with a client of which nobody ever decided anything, when it expires or gives way to
//! a new one.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::revocations;
use crate::database::pool::{Error, Pool, Record, Row, Value, audit};

/// A registered client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The client id.
    pub(crate) client_id: String,
    /// The checked metadata as a JSON object, without secrets.
    pub(crate) metadata: String,
    /// The SHA-256 of its secret; none for a public client.
    pub(crate) secret_hash: Option<[u8; 32]>,
    /// The SHA-256 of its registration access token (RFC 7592).
    pub(crate) access_hash: [u8; 32],
    /// Time of registration, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// Time of expiry, unless the client is used before.
    pub(crate) expires_ms: i64,
}

impl Registered {
    /// The record of the registration, at its time, by which it is found again.
    pub(crate) fn record(&self, tenant: &str, detail: serde_json::Value) -> Record {
        let target = format!("client {}", self.client_id);
        Record::new(Some(tenant), REGISTERED, "", &target, detail).at(self.created_ms)
    }

    /// Reports whether nobody has decided anything about it and it has changed nothing: its expiry is
    /// that of its registration. After a change of `unused` all that registered before count as used.
    pub(crate) fn is_unused(&self, unused: Duration) -> bool {
        self.expires_ms.saturating_sub(self.created_ms) == millis(unused)
    }
}

/// A duration in milliseconds, which added to a time is one.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// A registered client in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedClient {
    /// The client.
    pub(crate) client: Registered,
    /// The time of its last token; none without an active grant.
    pub(crate) used_ms: Option<i64>,
}

/// A page of a list of registered clients.
#[derive(Debug, Default)]
pub(crate) struct ClientPage {
    /// The clients, by id.
    pub(crate) clients: Vec<ListedClient>,
    /// Bytes of their metadata.
    pub(crate) bytes: usize,
    /// There are others behind them.
    pub(crate) is_more: bool,
}

impl ClientPage {
    /// Adds a client; false if it is the first one behind the page, by the number or by the bytes.
    fn add(&mut self, client: ListedClient, limit: usize) -> bool {
        let bytes = self.bytes + client.client.metadata.len();
        let is_full = bytes > PAGE_BYTES && !self.clients.is_empty();
        self.is_more = is_full || self.clients.len() == limit;
        if !self.is_more {
            self.bytes = bytes;
            self.clients.push(client);
        }
        !self.is_more
    }
}

/// Registered clients of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Clients<'a> {
    pub(crate) pool: &'a Pool,
}

impl Clients<'_> {
    /// Adds a client; returns false if the tenant has `cap` unexpired clients, and somebody has used each of them.
    pub(crate) async fn add(self, tenant: &str, new: &Registered, cap: u32) -> Result<bool, Error> {
        if self.insert(tenant, new, cap).await? {
            return Ok(true);
        }
        let unused_ms = new.expires_ms.saturating_sub(new.created_ms);
        Ok(self.make_room(tenant, unused_ms, cap).await? && self.insert(tenant, new, cap).await?)
    }

    async fn insert(self, tenant: &str, new: &Registered, cap: u32) -> Result<bool, Error> {
        // Concurrent registrations may exceed the cap by their number.
        let values = vec![
            tenant.into(),
            new.client_id.as_str().into(),
            new.metadata.as_str().into(),
            new.secret_hash.map(Vec::from).into(),
            (&new.access_hash).into(),
            new.created_ms.into(),
            new.expires_ms.into(),
            self.pool.now_ms().into(),
            i64::from(cap).into(),
        ];
        Ok(!self.pool.write(INSERT, values).await?.is_empty())
    }

    /// Removes some of the oldest clients that nobody used, with their records, which are counted instead; returns
    /// false if there are none. A flood would close the tenant to new clients otherwise.
    async fn make_room(self, tenant: &str, unused_ms: i64, cap: u32) -> Result<bool, Error> {
        let mut transaction = self.pool.begin().await?;
        let now_ms = self.pool.now_ms();
        // Many at a time, so that there are few counts.
        let many = i64::from(cap / 100).clamp(1, 100);
        let values = vec![tenant.into(), unused_ms.into(), now_ms.into(), many.into()];
        let removed = transaction.run(GIVE_WAY, values).await?;
        for row in &removed {
            let client = read(row)?;
            transaction.run(FORGET, record_of(tenant, &client)).await?;
        }
        if removed.is_empty() {
            return Ok(false);
        }
        let target = format!("tenant {tenant}");
        let detail = json!({"count": removed.len()});
        let record = Record::new(Some(tenant), "client.expired", "", &target, detail);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Returns a client that has not expired.
    pub(crate) async fn get(
        self,
        tenant: &str,
        client_id: &str,
    ) -> Result<Option<Registered>, Error> {
        let values = vec![tenant.into(), client_id.into(), self.pool.now_ms().into()];
        let rows = self.pool.read(ONE, values).await?;
        rows.first().map(read).transpose()
    }

    /// A page of the clients of a tenant that have not expired, in the order of their ids, behind `after`: at most
    /// `limit` of them, with at most [`PAGE_BYTES`] of metadata, or one. They are read in parts: anybody may register
    /// many with long metadata, and no more is in memory than a page and a part.
    pub(crate) async fn page(
        self,
        tenant: &str,
        after: &str,
        limit: usize,
    ) -> Result<ClientPage, Error> {
        let mut transaction = self.pool.snapshot().await?;
        let (now_ms, mut page) = (self.pool.now_ms(), ClientPage::default());
        loop {
            // One client more than the limit shows that there is another page.
            let part = READ.min(limit + 1 - page.clients.len());
            let last = page.clients.last();
            let values = vec![
                tenant.into(),
                last.map_or(after, |last| &*last.client.client_id).into(),
                now_ms.into(),
                i64::try_from(part).unwrap_or(i64::MAX).into(),
            ];
            let rows = transaction.run(ALL, values).await?;
            for row in &rows {
                let client = ListedClient {
                    client: read(row)?,
                    used_ms: row.get("used_ms")?,
                };
                if !page.add(client, limit) {
                    return Ok(page);
                }
            }
            if rows.len() < part {
                return Ok(page);
            }
        }
    }

    /// Replaces metadata, secret and access token of a client whose metadata and secret are still those of `known`;
    /// returns false if there is none. Its expiry stays that of its last use, but for the millisecond that tells that
    /// it is not as it was registered.
    pub(crate) async fn update(
        self,
        tenant: &str,
        known: &Registered,
        new: &Registered,
    ) -> Result<bool, Error> {
        let values = vec![
            tenant.into(),
            new.client_id.as_str().into(),
            new.metadata.as_str().into(),
            new.secret_hash.map(Vec::from).into(),
            (&new.access_hash).into(),
            self.pool.now_ms().into(),
            known.metadata.as_str().into(),
            known.secret_hash.map(Vec::from).into(),
        ];
        Ok(!self.pool.write(UPDATE, values).await?.is_empty())
    }

    /// Extends a client's lifetime to `expires_ms`; never shortens it.
    pub(crate) async fn renew(
        self,
        tenant: &str,
        client_id: &str,
        expires_ms: i64,
    ) -> Result<(), Error> {
        let values = vec![
            tenant.into(),
            client_id.into(),
            expires_ms.into(),
            self.pool.now_ms().into(),
        ];
        self.pool.write(RENEW, values).await?;
        Ok(())
    }

    /// Notes that a person allowed or refused a client, by a millisecond of its lifetime.
    pub(crate) async fn decided(self, tenant: &str, client_id: &str) -> Result<(), Error> {
        let values = vec![tenant.into(), client_id.into()];
        self.pool.write(DECIDED, values).await?;
        Ok(())
    }

    /// Removes some expired clients, with the records of those that nobody used, which are counted
    /// instead; returns true if there may be more.
    pub(crate) async fn expire(self, unused: Duration) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let expired: Vec<Value> = vec![now_ms.into()];
        if self
            .pool
            .read(ANY_EXPIRED, expired.clone())
            .await?
            .is_empty()
        {
            return Ok(false);
        }
        // Two replicas must not see different first ones.
        let mut transaction = self.pool.begin().await?;
        let values = vec![now_ms.into(), millis(unused).into()];
        transaction.run(FORGET_EXPIRED, values).await?;
        let removed = transaction.run(EXPIRE, expired).await?;
        let mut counts = BTreeMap::<String, u64>::new();
        for row in &removed {
            if read(row)?.is_unused(unused) {
                *counts.entry(row.get("tenant")?).or_default() += 1;
            }
        }
        let records = counts.iter().map(|(tenant, count)| {
            let target = format!("tenant {tenant}");
            Record::new(
                Some(tenant),
                "client.expired",
                "",
                &target,
                json!({"count": count}),
            )
        });
        audit::append(&mut transaction, now_ms, &records.collect::<Vec<_>>()).await?;
        transaction.commit().await?;
        Ok(removed.len() == PART)
    }

    /// Removes the record of the registration of a client that was removed and that nobody used.
    pub(crate) async fn forget(self, tenant: &str, client: &Registered) -> Result<(), Error> {
        let values = record_of(tenant, client);
        self.pool.write(FORGET, values).await?;
        Ok(())
    }

    /// Removes a client with its grants, which end in parts; returns false if it does not exist. After an error it may
    /// be there without a part of its grants; a repetition removes it.
    pub(crate) async fn remove(self, tenant: &str, client_id: &str) -> Result<bool, Error> {
        loop {
            let mut transaction = self.pool.begin().await?;
            let values = || -> Vec<Value> { vec![tenant.into(), client_id.into()] };
            if transaction.run(KNOWN, values()).await?.is_empty() {
                return Ok(false);
            }
            let of = (tenant, client_id);
            let ended = revocations::end_part(&mut transaction, of, self.pool.now_ms()).await?;
            // With the last part: until then the removal can be repeated.
            let is_last = !ended.is_more;
            if is_last {
                transaction.run(DELETE, values()).await?;
            }
            transaction.commit().await?;
            if is_last {
                return Ok(true);
            }
        }
    }
}

/// By what the record of a registration is found again.
fn record_of(tenant: &str, client: &Registered) -> Vec<Value> {
    vec![
        tenant.into(),
        client.created_ms.into(),
        client.client_id.as_str().into(),
    ]
}

fn read(row: &Row) -> Result<Registered, Error> {
    let hash = |bytes: Vec<u8>| {
        let hash = bytes.try_into();
        hash.map_err(|_| Error::Bug("a hash of another length".to_owned()))
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

// The lifetime is compared outside, too: a client that somebody uses at this moment stays. Grants and consents change it,
// but for a failure of the database between the two.
const GIVE_WAY: &str = "
    DELETE FROM registrations
     WHERE tenant = $1 AND expires_ms - created_ms = $2
       AND client_id IN (SELECT client_id
                           FROM registrations
                          WHERE tenant = $1 AND expires_ms - created_ms = $2 AND expires_ms > $3
                            AND NOT EXISTS (SELECT 1
                                              FROM consents
                                             WHERE consents.tenant = registrations.tenant
                                               AND consents.client_id = registrations.client_id)
                            AND NOT EXISTS (SELECT 1
                                              FROM grants
                                             WHERE grants.tenant = registrations.tenant
                                               AND grants.client_id = registrations.client_id)
                          ORDER BY created_ms, client_id
                          LIMIT $4)
    RETURNING client_id, metadata, secret_hash, access_hash, created_ms, expires_ms";

const ONE: &str = "
    SELECT client_id, metadata, secret_hash, access_hash, created_ms, expires_ms
      FROM registrations
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $3";

const ALL: &str = "
    SELECT client_id, metadata, secret_hash, access_hash, created_ms, expires_ms,
           (SELECT MAX(COALESCE(grants.used_ms,
                                (SELECT MAX(refresh_tokens.used_ms)
                                   FROM refresh_tokens
                                  WHERE refresh_tokens.grant_id = grants.id),
                                grants.created_ms))
              FROM grants
             WHERE grants.tenant = registrations.tenant
               AND grants.client_id = registrations.client_id
               AND grants.revoked_ms IS NULL) AS used_ms
      FROM registrations
     WHERE tenant = $1 AND client_id > $2 AND expires_ms > $3
     ORDER BY client_id
     LIMIT $4";

const UPDATE: &str = "
    UPDATE registrations
       SET metadata = $3, secret_hash = $4, access_hash = $5, expires_ms = expires_ms + 1
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $6
       AND metadata = $7 AND secret_hash IS NOT DISTINCT FROM $8
    RETURNING client_id";

const RENEW: &str = "
    UPDATE registrations
       SET expires_ms = $3
     WHERE tenant = $1 AND client_id = $2 AND expires_ms > $4 AND expires_ms < $3
    RETURNING client_id";

const DECIDED: &str = "
    UPDATE registrations
       SET expires_ms = expires_ms + 1
     WHERE tenant = $1 AND client_id = $2
    RETURNING client_id";

/// The kind of the record of a registration.
const REGISTERED: &str = "client.registered";

/// Bytes of metadata in a page of clients.
const PAGE_BYTES: usize = 1 << 20;

/// Clients of a page that are read at a time: some have 30 KiB.
const READ: usize = 16;

/// Maximum clients that are removed at a time.
const PART: usize = 1000;

const ANY_EXPIRED: &str = "
    SELECT 1 AS one
      FROM registrations
     WHERE expires_ms < $1
     LIMIT 1";

const FORGET_EXPIRED: &str = "
    DELETE FROM audit
     WHERE id IN (SELECT audit.id
                    FROM (SELECT tenant, client_id, created_ms, expires_ms
                            FROM registrations
                           WHERE expires_ms < $1
                           ORDER BY expires_ms, tenant, client_id
                           LIMIT 1000) AS expired
                    JOIN audit ON audit.tenant = expired.tenant AND audit.at_ms = expired.created_ms
                   WHERE expired.expires_ms - expired.created_ms = $2
                     AND audit.kind = 'client.registered'
                     AND audit.target = 'client ' || expired.client_id)
    RETURNING id";

const EXPIRE: &str = "
    DELETE FROM registrations
     WHERE (tenant, client_id) IN (SELECT tenant, client_id
                                     FROM registrations
                                    WHERE expires_ms < $1
                                    ORDER BY expires_ms, tenant, client_id
                                    LIMIT 1000)
    RETURNING tenant, client_id, metadata, secret_hash, access_hash, created_ms, expires_ms";

const FORGET: &str = "
    DELETE FROM audit
     WHERE tenant = $1 AND at_ms = $2 AND kind = 'client.registered' AND target = 'client ' || $3
    RETURNING id";

const KNOWN: &str = "
    SELECT client_id
      FROM registrations
     WHERE tenant = $1 AND client_id = $2";

const DELETE: &str = "
    DELETE FROM registrations
     WHERE tenant = $1 AND client_id = $2";

#[cfg(test)]
mod tests {
    use super::GIVE_WAY;
    use crate::{
        base::Clock,
        database::pool::{Pool, Row, Sql},
        telemetry::StoreTimes,
    };

    /// With all consents of a tenant looked through for each client, the lock of all writers was held for seconds.
    #[tokio::test]
    async fn clients_that_give_way_have_no_consent_in_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let (file, times) = (dir.path().join("lockgate.db"), StoreTimes::default());
        let pool = Pool::sqlite(&file, Clock::system(), times).await.unwrap();
        let plan = Sql::on(GIVE_WAY, "EXPLAIN QUERY PLAN {table}");
        let values = vec!["a".into(), 1_i64.into(), 1_i64.into(), 1_i64.into()];
        let rows = pool.write(plan, values).await.unwrap();
        let detail = |row: &Row| row.get::<String>("detail").unwrap();
        let plan: Vec<String> = rows.iter().map(detail).collect();
        let wanted = "consents_by_client (tenant=? AND client_id=?)";
        assert!(plan.iter().any(|step| step.ends_with(wanted)), "{plan:?}");
        pool.close().await;
    }
}

//! The first parts of the removal of clients and tenants: what was issued in their names, if one transaction may have no
//! time for it.
//!
//! The number of people of a client or a tenant has no bound, and all other writers wait for the transaction that removes
//! them. What people get back by a log-in goes before it in parts, each in a transaction of its own; the removal ends the
//! rest. If it fails, all objects are there, and people have to log in again, which the first part records. Not here: the removal (`changes`), and the
//! revocation of a client that stays (`oauth/revocations`).

use std::{collections::BTreeSet, slice};

use serde_json::Value as Json;

use crate::{
    database::{
        oauth::revocations::{self, KEPT_MS},
        pool::{Author, Error, Pool, Record, Row, Sql, Transaction, Value, audit},
    },
    declare::{Change, ChangeKind, Kind, ObjectName},
};

/// Ends what was issued in the names of the clients and tenants that `changes` remove, but for a part.
pub(super) async fn begin(pool: &Pool, changes: &[Change], author: &Author) -> Result<(), Error> {
    let removed = || {
        let removed = changes.iter();
        removed.filter(|change| change.what == ChangeKind::Removed)
    };
    let is_tenant = |change: &&Change| change.name.kind() == Kind::Tenant;
    let tenants: BTreeSet<&str> = removed()
        .filter(is_tenant)
        .map(|change| change.name.name())
        .collect();
    for Change { name, .. } in removed().filter(is_tenant) {
        of_tenant(Parts::of(pool, name, author), name.name()).await?;
    }
    for Change { name, .. } in removed() {
        // The grants of a tenant's clients have gone with those of the tenant.
        if let (Kind::Client, Some(tenant)) = (name.kind(), name.owner())
            && !tenants.contains(tenant)
        {
            let parts = Parts::of(pool, name, author);
            of_client(parts, (tenant, name.name())).await?;
        }
    }
    Ok(())
}

/// The parts of one removal. The first one has a record: that of the removal is written with the rest, which may fail.
struct Parts<'a> {
    pool: &'a Pool,
    /// The record, until it is written.
    record: Option<Record>,
}

impl<'a> Parts<'a> {
    fn of(pool: &'a Pool, name: &ObjectName, author: &Author) -> Self {
        let (target, detail) = (name.to_string(), Json::Object(author.detail.clone()));
        let kind = "grants.revoked";
        let record = Record::new(name.owner(), kind, &author.actor, &target, detail);
        Self {
            pool,
            record: Some(record),
        }
    }

    /// Begins the transaction of a part beside no other writer.
    async fn begin(&mut self) -> Result<Transaction, Error> {
        let mut transaction = self.pool.begin().await?;
        if let Some(record) = self.record.take() {
            let record = slice::from_ref(&record);
            audit::append(&mut transaction, self.pool.now_ms(), record).await?;
        }
        Ok(transaction)
    }

    /// Removes a part that is not told.
    async fn remove(&mut self, sql: &'static str, of: Vec<Value>) -> Result<(), Error> {
        let mut transaction = if self.record.is_some() {
            self.begin().await?
        } else {
            self.pool.begin_unserialized().await?
        };
        transaction.run(sql, with_part(of)).await?;
        Ok(transaction.commit().await?)
    }
}

async fn of_client(mut parts: Parts<'_>, (tenant, client): (&str, &str)) -> Result<(), Error> {
    let pool = parts.pool;
    let of = || -> Vec<Value> { vec![tenant.into(), client.into()] };
    while are_many(pool, OF_CLIENT, of()).await? {
        let mut transaction = parts.begin().await?;
        revocations::end_part(&mut transaction, (tenant, client), pool.now_ms()).await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Not its clients, and not what people would have to make anew: keys, secrets and connections.
async fn of_tenant(mut parts: Parts<'_>, tenant: &str) -> Result<(), Error> {
    let pool = parts.pool;
    let of = || -> Vec<Value> { vec![tenant.into()] };
    // First what begins grants without a log-in.
    for (rows, part) in [("logins", LOGINS), ("consents", CONSENTS), ("codes", CODES)] {
        while are_many(pool, Sql::on(rows, OF_TENANT), of()).await? {
            parts.remove(part, of()).await?;
        }
    }
    // One grant may have very many tokens, so that these go before it.
    while are_many(pool, Sql::on("grants", OF_TENANT), of()).await?
        || are_many(pool, TOKENS_OF_TENANT, of()).await?
    {
        parts.remove(TOKENS, of()).await?;
        let mut transaction = parts.begin().await?;
        let now_ms = pool.now_ms();
        let mut ended = Vec::new();
        for row in transaction.run(GRANTS, with_part(of())).await? {
            if may_have_access(&row, now_ms)? {
                ended.push(row);
            }
        }
        // Nothing could end their access tokens any more if the tenant stayed.
        revocations::number_grants(&mut transaction, tenant, &ended, now_ms).await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Reports whether a removed grant may have an access token that is good. There may be a million of those that have none,
/// and all replicas have each that is told in memory for a day.
fn may_have_access(row: &Row, now_ms: i64) -> Result<bool, Error> {
    let revoked_ms: Option<i64> = row.get("revoked_ms")?;
    let last_ms: i64 = row.get("last_ms")?;
    Ok(revoked_ms.is_none() && last_ms > now_ms - KEPT_MS)
}

/// Reports whether there are more rows than a part.
async fn are_many(pool: &Pool, sql: impl Into<Sql>, of: Vec<Value>) -> Result<bool, Error> {
    let mut values = of;
    values.push((i64::from(revocations::PART) + 1).into());
    let rows = pool.read(sql, values).await?;
    let most: i64 = rows.first().map_or(Ok(0), |row| row.get("most"))?;
    Ok(most > i64::from(revocations::PART))
}

fn with_part(mut values: Vec<Value>) -> Vec<Value> {
    values.push(i64::from(revocations::PART).into());
    values
}

const OF_CLIENT: &str = "
    SELECT MAX(many) AS most
      FROM (SELECT COUNT(*) AS many
              FROM (SELECT 1 AS one
                      FROM grants
                     WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NULL
                     LIMIT $3) AS found
             UNION ALL
            SELECT COUNT(*)
              FROM (SELECT 1 AS one
                      FROM codes
                     WHERE tenant = $1 AND client_id = $2
                     LIMIT $3) AS found
             UNION ALL
            SELECT COUNT(*)
              FROM (SELECT 1 AS one
                      FROM consents
                     WHERE tenant = $1 AND client_id = $2
                     LIMIT $3) AS found) AS counted";

const OF_TENANT: &str = "
    SELECT COUNT(*) AS most
      FROM (SELECT 1 AS one FROM {table} WHERE tenant = $1 LIMIT $2) AS found";

const TOKENS_OF_TENANT: &str = "
    SELECT COUNT(*) AS most
      FROM (SELECT 1 AS one
              FROM grants
              JOIN refresh_tokens ON refresh_tokens.grant_id = grants.id
             WHERE grants.tenant = $1
             LIMIT $2) AS found";

const LOGINS: &str = "
    DELETE FROM logins
     WHERE (tenant, browser) IN (SELECT tenant, browser FROM logins WHERE tenant = $1 LIMIT $2)";

const CONSENTS: &str = "
    DELETE FROM consents
     WHERE (tenant, subject, client_id, digest) IN (
               SELECT tenant, subject, client_id, digest FROM consents WHERE tenant = $1 LIMIT $2)";

const CODES: &str = "
    DELETE FROM codes
     WHERE hash IN (SELECT hash FROM codes WHERE tenant = $1 LIMIT $2)";

// Of the same grants as below: those that are looked through for a part are as many as those of a part.
const TOKENS: &str = "
    DELETE FROM refresh_tokens
     WHERE hash IN (SELECT hash
                      FROM refresh_tokens
                     WHERE grant_id IN (SELECT id
                                          FROM grants
                                         WHERE tenant = $1
                                         ORDER BY subject, id
                                         LIMIT $2)
                     LIMIT $2)";

// Those with tokens wait: a token of one may be used at this moment, and the next part has it.
const GRANTS: &str = "
    DELETE FROM grants
     WHERE id IN (SELECT id
                    FROM (SELECT id
                            FROM grants
                           WHERE tenant = $1
                           ORDER BY subject, id
                           LIMIT $2) AS page
                   WHERE NOT EXISTS (SELECT 1 FROM refresh_tokens WHERE grant_id = page.id))
    RETURNING id, revoked_ms, COALESCE(used_ms, created_ms) AS last_ms";

//! What ends before its time, and how every replica learns of it.
//!
//! A revocation ends the grants that it means and numbers what it did, in one transaction; the
//! numbers grow in the order of the commits, so that a replica that has read up to one has missed
//! none (DESIGN section 6). Grants are named one by one: no clock decides which tokens are meant.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    grants::{self, Grant, Revoked},
    signing_keys,
};
use crate::{
    database::{Failure, Row, Store, Transaction, Value},
    declare::Issued,
};

/// How far the store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The number of the last change of what is declared.
    pub(crate) version: i64,
    /// The number of the last change of what is issued.
    pub(crate) revocation: i64,
}

/// A grant as an operator sees it.
#[derive(Clone, Debug)]
pub(crate) struct SeenGrant {
    /// What was allowed whom.
    pub(crate) grant: Grant,
    /// When it began, in milliseconds since 1970.
    pub(crate) created_ms: i64,
}

/// Which grants are wanted; what is none does not matter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantFilter<'f> {
    /// Of this person.
    pub(crate) subject: Option<&'f str>,
    /// Of this client.
    pub(crate) client: Option<&'f str>,
    /// Behind this one.
    pub(crate) after: Option<Uuid>,
}

impl Store {
    /// Revokes: tokens are refused from the next read of the revocations on, and refresh tokens
    /// and codes at once. The log-ins of a subject end too, and whom a client or a person is
    /// revoked, is asked for consent again.
    pub(crate) async fn revoke(&self, tenant: &str, what: &Revoked) -> Result<(), Failure> {
        let now_ms = self.0.now_ms();
        let mut transaction = self.0.pool.begin_beside().await?;
        end(&mut transaction, tenant, what, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// How far the store has come, and what time it is there: one cheap query.
    pub(crate) async fn reached(&self) -> Result<Reached, Failure> {
        let (pool, clock) = (&self.0.pool, &self.0.opening.clock);
        reached_in(&pool.read_in_time(clock, REACHED).await?)
    }

    /// What was issued and revoked, with the number up to which it is known; only what is new is
    /// read if something is known `before`.
    pub(crate) async fn issued(&self, before: (&Issued, i64)) -> Result<(Issued, i64), Failure> {
        let mut transaction = self.0.pool.snapshot().await?;
        let number = reached_in(&transaction.run(REACHED, Vec::new()).await?)?.revocation;
        let (known, known_to) = before;
        let since_ms = self.0.now_ms() - KEPT_MS;
        let mut issued = known.clone();
        // Nothing has number 0: whoever knows nothing yet reads all keys.
        let mut is_keys = known_to <= 0;
        let newer = transaction.run(NEWER, vec![known_to.into()]).await?;
        // Every number had its row: one that is missing was forgotten, and may have been of a key.
        is_keys |= i64::try_from(newer.len()).unwrap_or(i64::MAX) < number - known_to;
        for row in newer {
            let tenant: String = row.get("tenant")?;
            let (kind, value): (String, String) = (row.get("kind")?, row.get("value")?);
            let at_ms: i64 = row.get("at_ms")?;
            let of = &mut issued.revoked;
            match kind.as_str() {
                GRANTS => {
                    let revoked = Arc::make_mut(of.entry(tenant).or_default());
                    revoked.grants.extend(ids(&value).map(|id| (id, at_ms)));
                }
                KEY => {
                    let revoked = Arc::make_mut(of.entry(tenant).or_default());
                    revoked.keys.insert(value, at_ms);
                    is_keys = true;
                }
                KEYS => is_keys = true,
                // For those who begin a grant.
                _ => {}
            }
        }
        forget(&mut issued, since_ms);
        if is_keys {
            self.0.signing.changed();
            issued.keys = signing_keys::public_keys(&mut transaction).await?;
        }
        Ok((issued, number))
    }

    /// The grants of a tenant that have not ended, in the order of their ids.
    pub(crate) async fn grants(
        &self,
        tenant: &str,
        filter: GrantFilter<'_>,
        limit: usize,
    ) -> Result<Vec<SeenGrant>, Failure> {
        let own = |text: Option<&str>| Value::Text(text.map(str::to_owned));
        let values = vec![
            tenant.into(),
            self.0.now_ms().into(),
            own(filter.subject),
            own(filter.client),
            filter.after.unwrap_or_default().into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.0.pool.read(GRANTS_OF, values).await?;
        let seen = |row: &Row| {
            Ok(SeenGrant {
                grant: grants::grant(row)?,
                created_ms: row.get("created_ms")?,
            })
        };
        rows.iter().map(seen).collect()
    }
}

/// Ends what is meant, as part of a transaction.
pub(crate) async fn end(
    transaction: &mut Transaction,
    tenant: &str,
    what: &Revoked,
    now_ms: i64,
) -> Result<(), Failure> {
    match what {
        Revoked::Grant(id) => {
            let values = vec![tenant.into(), (*id).into()];
            transaction.run(DELETE_CODE_OF_GRANT, values).await?;
            end_grant(transaction, tenant, *id, now_ms).await?;
        }
        Revoked::Consent(id) => {
            let values = vec![tenant.into(), (*id).into()];
            transaction.run(DELETE_CONSENTS_OF_GRANT, values).await?;
            Box::pin(end(transaction, tenant, &Revoked::Grant(*id), now_ms)).await?;
        }
        Revoked::Client(client) => {
            let values = || vec![tenant.into(), client.as_str().into()];
            transaction.run(DELETE_CONSENTS_OF_CLIENT, values()).await?;
            transaction.run(DELETE_CODES_OF_CLIENT, values()).await?;
            let mut all = values();
            all.push(now_ms.into());
            let ended = transaction.run(END_OF_CLIENT, all).await?;
            number_grants(transaction, tenant, &ended, now_ms).await?;
        }
        Revoked::Subject(subject) => {
            let values = || vec![tenant.into(), subject.as_str().into()];
            transaction.run(DELETE_LOGINS, values()).await?;
            transaction
                .run(DELETE_CONSENTS_OF_SUBJECT, values())
                .await?;
            transaction.run(DELETE_CODES_OF_SUBJECT, values()).await?;
            let mut all = values();
            all.push(now_ms.into());
            let ended = transaction.run(END_OF_SUBJECT, all).await?;
            number_grants(transaction, tenant, &ended, now_ms).await?;
            // A code of a log-in that ended just now may still be on its way.
            number(transaction, tenant, SUBJECT, subject, now_ms).await?;
        }
    }
    Ok(())
}

/// Ends one grant, once.
pub(super) async fn end_grant(
    transaction: &mut Transaction,
    tenant: &str,
    id: Uuid,
    now_ms: i64,
) -> Result<(), Failure> {
    let values = vec![tenant.into(), id.into(), now_ms.into()];
    let ended = transaction.run(END_GRANT, values).await?;
    number_grants(transaction, tenant, &ended, now_ms).await
}

/// Says that the signing keys of a tenant are others now; `removed` is one that is worth nothing
/// any more.
pub(crate) async fn number_keys(
    transaction: &mut Transaction,
    tenant: &str,
    removed: Option<&str>,
    now_ms: i64,
) -> Result<(), Failure> {
    let kind = if removed.is_some() { KEY } else { KEYS };
    number(transaction, tenant, kind, removed.unwrap_or(""), now_ms).await
}

async fn number_grants(
    transaction: &mut Transaction,
    tenant: &str,
    ended: &[Row],
    now_ms: i64,
) -> Result<(), Failure> {
    let mut value = String::new();
    for row in ended {
        let id: Uuid = row.get("id")?;
        if !value.is_empty() {
            value.push(' ');
        }
        value.push_str(&id.simple().to_string());
    }
    if value.is_empty() {
        return Ok(());
    }
    number(transaction, tenant, GRANTS, &value, now_ms).await
}

/// Writes one numbered row. The last statement of its transaction that others wait for: the row of
/// `changes` is held from here to the commit, which is what keeps the numbers in order.
async fn number(
    transaction: &mut Transaction,
    tenant: &str,
    kind: &str,
    value: &str,
    now_ms: i64,
) -> Result<(), Failure> {
    let next = transaction.run(NEXT, Vec::new()).await?;
    let next = next.first();
    let next: i64 = next
        .ok_or_else(|| Failure::Bug("no number of revocations".to_owned()))?
        .get("revocation")?;
    let values = vec![
        next.into(),
        tenant.into(),
        kind.into(),
        value.into(),
        now_ms.into(),
    ];
    transaction.run(INSERT, values).await?;
    Ok(())
}

fn reached_in(rows: &[Row]) -> Result<Reached, Failure> {
    let row = rows.first();
    let row = row.ok_or_else(|| Failure::Bug("no number of changes".to_owned()))?;
    Ok(Reached {
        version: row.get("version")?,
        revocation: row.get("revocation")?,
    })
}

fn ids(value: &str) -> impl Iterator<Item = Uuid> + '_ {
    let words = value.split(' ');
    words.filter_map(|word| Uuid::try_parse(word).ok())
}

/// Drops what is so old that nothing can rest on it any more.
fn forget(issued: &mut Issued, since_ms: i64) {
    let is_old = |at_ms: &i64| *at_ms < since_ms;
    for revoked in issued.revoked.values_mut() {
        if revoked
            .grants
            .values()
            .chain(revoked.keys.values())
            .any(is_old)
        {
            let revoked = Arc::make_mut(revoked);
            revoked.grants.retain(|_, at_ms| !is_old(at_ms));
            revoked.keys.retain(|_, at_ms| !is_old(at_ms));
        }
    }
    issued
        .revoked
        .retain(|_, revoked| !(revoked.grants.is_empty() && revoked.keys.is_empty()));
}

/// The groups in a row.
pub(super) fn row_groups(row: &Row) -> Result<Vec<String>, Failure> {
    let text: String = row.get("groups")?;
    serde_json::from_str(&text).map_err(|error| Failure::Bug(format!("groups in a row: {error}")))
}

/// How long a revocation is known: longer than an access token, or a session that began with one.
pub(super) const KEPT_MS: i64 = 24 * 3600 * 1000 + 3600 * 1000;

/// Grants, by their ids with blanks between them.
const GRANTS: &str = "grants";
/// All of a person, for the codes of log-ins that ended.
const SUBJECT: &str = "subject";
/// The signing keys of a tenant are others.
const KEYS: &str = "keys";
/// The same, and this one is worth nothing.
const KEY: &str = "key";

const REACHED: &str = "
    SELECT version, revocation
      FROM changes";

const NEXT: &str = "
    UPDATE changes
       SET revocation = revocation + 1
    RETURNING revocation";

const INSERT: &str = "
    INSERT INTO revocations (number, tenant, kind, value, at_ms)
    VALUES ($1, $2, $3, $4, $5)";

const NEWER: &str = "
    SELECT tenant, kind, value, at_ms
      FROM revocations
     WHERE number > $1
     ORDER BY number";

const GRANTS_OF: &str = "
    SELECT id, subject, groups, client_id, resource, scope, auth_ms, created_ms, expires_ms
      FROM grants
     WHERE tenant = $1 AND revoked_ms IS NULL AND expires_ms > $2
       AND (CAST($3 AS TEXT) IS NULL OR subject = $3)
       AND (CAST($4 AS TEXT) IS NULL OR client_id = $4)
       AND id > $5
     ORDER BY id
     LIMIT $6";

const DELETE_CODE_OF_GRANT: &str = "
    DELETE FROM codes
     WHERE tenant = $1 AND grant_id = $2";

const DELETE_CODES_OF_CLIENT: &str = "
    DELETE FROM codes
     WHERE tenant = $1 AND client_id = $2";

const DELETE_CODES_OF_SUBJECT: &str = "
    DELETE FROM codes
     WHERE tenant = $1 AND subject = $2";

const DELETE_LOGINS: &str = "
    DELETE FROM logins
     WHERE tenant = $1 AND subject = $2";

const DELETE_CONSENTS_OF_GRANT: &str = "
    DELETE FROM consents
     WHERE tenant = $1
       AND (subject, client_id) IN (SELECT subject, client_id
                                      FROM grants
                                     WHERE tenant = $1 AND id = $2)";

const DELETE_CONSENTS_OF_CLIENT: &str = "
    DELETE FROM consents
     WHERE tenant = $1 AND client_id = $2";

const DELETE_CONSENTS_OF_SUBJECT: &str = "
    DELETE FROM consents
     WHERE tenant = $1 AND subject = $2";

const END_GRANT: &str = "
    UPDATE grants
       SET revoked_ms = $3
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NULL
    RETURNING id";

const END_OF_CLIENT: &str = "
    UPDATE grants
       SET revoked_ms = $3
     WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NULL
    RETURNING id";

const END_OF_SUBJECT: &str = "
    UPDATE grants
       SET revoked_ms = $3
     WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NULL
    RETURNING id";

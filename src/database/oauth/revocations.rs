//! Revocations: early ends of grants and keys, numbered for replicas.
//!
//! A revocation ends grants and writes numbered rows, in one transaction; that of a client in as many as its grants need.
//! The numbers grow in the order of the commits, so that a replica that has read up to a number has missed none. Rows name
//! single grants, so that no clock decides which tokens are revoked. Not here: reading by replicas (`issued`), and logouts at
//! identity providers (`logins`).

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    base::budget::Turns,
    database::pool::{Error, Pool, Row, Transaction, Value},
    declare::SecretChange,
};

/// The object of a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Revoked {
    /// One grant. Its client may get another grant without a consent page.
    Grant(Uuid),
    /// One grant, the consents of its user to its client, and the codes that the client has not redeemed.
    Consent(Uuid),
    /// The same of every grant of the user to the client, which has one for each log-in.
    Access(Uuid),
    /// All grants of a client, and every consent to it.
    Client(String),
    /// All grants and consents of a subject.
    Subject(String),
}

/// Revocations of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Revocations<'a> {
    pub(crate) pool: &'a Pool,
    /// For what is asked before a revocation, and takes no turn.
    pub(crate) readers: &'a Pool,
    /// Turns by tenant, of which one is waited for first, if there are any.
    pub(crate) turns: Option<&'a Turns>,
}

impl<'a> Revocations<'a> {
    /// Revocations that wait for no turn.
    pub(crate) fn at_once(pool: &'a Pool) -> Self {
        Self {
            pool,
            readers: pool,
            turns: None,
        }
    }

    /// Revokes: refresh tokens and codes end at once, access tokens when replicas read the
    /// revocation. The log-ins of a subject end too. After a client or a subject is revoked, the
    /// consent page is shown again. Returns false if there was nothing to revoke. After an error a part of what a client
    /// has may have ended; a repetition ends the rest.
    pub(crate) async fn revoke(self, tenant: &str, what: &Revoked) -> Result<bool, Error> {
        let (mut is_changed, mut is_more) = (false, true);
        while is_more {
            let pool = self.at_turn(tenant).await?;
            // With the lock first: a grant that begins at this instant is seen here, or sees the revocation (`HOLD_OFF`).
            let mut transaction = pool.begin().await?;
            let now_ms = self.pool.now_ms();
            if let Revoked::Client(client) = what {
                let ended = end_part(&mut transaction, (tenant, client), now_ms).await?;
                is_changed |= ended.is_changed;
                is_more = ended.is_more;
            } else {
                is_changed = end(&mut transaction, tenant, what, now_ms).await?;
                is_more = false;
            }
            transaction.commit().await?;
        }
        Ok(is_changed)
    }

    /// Reports whether grants that a revocation names were revoked before: one that was made and not confirmed comes
    /// again. Those of more than a day ago are removed.
    pub(crate) async fn was_made(self, tenant: &str, what: &Revoked) -> Result<bool, Error> {
        let (sql, of): (_, Value) = match what {
            Revoked::Grant(id) | Revoked::Consent(id) | Revoked::Access(id) => {
                (REVOKED_GRANT, (*id).into())
            }
            Revoked::Client(client) => (REVOKED_OF_CLIENT, client.as_str().into()),
            Revoked::Subject(subject) => (REVOKED_OF_SUBJECT, subject.as_str().into()),
        };
        Ok(!self
            .readers
            .read(sql, vec![tenant.into(), of])
            .await?
            .is_empty())
    }

    /// Reports whether a grant is there and not revoked. Whoever has a token of one that has ended may come with it again
    /// and again: a revocation would take the lock of all writers each time, to find nothing.
    pub(crate) async fn is_live(self, tenant: &str, grant: Uuid) -> Result<bool, Error> {
        let values = vec![tenant.into(), grant.into()];
        Ok(!self.readers.read(LIVE, values).await?.is_empty())
    }

    /// Ends the grant of a refresh token that was used by the time the grant was bound to a key, and now comes with
    /// another key or none: the token was given out unbound, so somebody else may have bound its successors. There is
    /// no grace, because who binds a grant repeats requests with that key. Returns the grant; none if the token is no
    /// such one, or the grant has ended.
    pub(crate) async fn end_of_other_key(
        self,
        tenant: &str,
        hash: &[u8; 32],
        jkt: Option<&str>,
    ) -> Result<Option<Uuid>, Error> {
        let values = vec![hash.into(), tenant.into(), jkt.unwrap_or_default().into()];
        let found = self.readers.read(BOUND_BY_ANOTHER, values).await?;
        let Some(row) = found.first() else {
            return Ok(None);
        };
        let id: Uuid = row.get("id")?;
        let is_ended = self.revoke(tenant, &Revoked::Grant(id)).await?;
        Ok(is_ended.then_some(id))
    }

    /// Ends a grant of whose family an unknown refresh token came with this key or none: it was used so long ago that it
    /// is not kept any more, and has come again. Only who had a token of a family knows it. Returns false if the grant
    /// ended otherwise, as one whose newest token expired unused, or if its code bound it to another key: a thief of its
    /// tokens could do nothing with them.
    pub(crate) async fn end_of_family(
        self,
        tenant: &str,
        grant: Uuid,
        jkt: Option<&str>,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let key = jkt.unwrap_or_default();
        let values = vec![grant.into(), tenant.into(), key.into(), now_ms.into()];
        let found = self.readers.read(CAME_AGAIN, values).await?;
        Ok(!found.is_empty() && self.revoke(tenant, &Revoked::Grant(grant)).await?)
    }

    /// The connections at a turn of the tenant, if there are any, which ends with what runs on them. It costs no time: the
    /// transactions of revocations wait for one another.
    pub(super) async fn at_turn(&self, tenant: &str) -> Result<Pool, Error> {
        let Some(turns) = self.turns else {
            return Ok(self.pool.clone());
        };
        let late = |_| Error::Unavailable("other revocations take long".to_owned());
        let turn = timeout(TURN, turns.take(tenant)).await.map_err(late)?;
        Ok(self.pool.at(vec![turn]))
    }
}

/// Begins a transaction that goes on beside others of its kind, but not beside those of [`Pool::begin`]: it waits for
/// them, and they wait for its commit. Without that wait, one that has changed a row and is about to number the change
/// would deadlock with one that holds `changes` and needs the row; and a master key that it seals with could be removed
/// before the commit.
pub(crate) async fn begin_beside(pool: &Pool) -> Result<Transaction, Error> {
    let mut transaction = pool.begin_unserialized().await?;
    transaction.run(HOLD_OFF, Vec::new()).await?;
    Ok(transaction)
}

/// Revokes within a transaction of [`Pool::begin`]; returns false if there was nothing to revoke.
pub(crate) async fn end(
    transaction: &mut Transaction,
    tenant: &str,
    what: &Revoked,
    now_ms: i64,
) -> Result<bool, Error> {
    match what {
        Revoked::Grant(id) => {
            let values = vec![tenant.into(), (*id).into()];
            let codes = transaction.run(DELETE_CODE_OF_GRANT, values).await?;
            let is_ended = end_grant(transaction, tenant, *id, now_ms).await?;
            Ok(is_ended || !codes.is_empty())
        }
        Revoked::Consent(id) => {
            let values = || vec![tenant.into(), (*id).into()];
            let consents = transaction.run(DELETE_CONSENTS_OF_GRANT, values()).await?;
            // A code that was not redeemed yet would begin another grant.
            let codes = transaction.run(DELETE_CODES_LIKE_GRANT, values()).await?;
            let grant = Revoked::Grant(*id);
            let is_ended = Box::pin(end(transaction, tenant, &grant, now_ms)).await?;
            Ok(is_ended || !(consents.is_empty() && codes.is_empty()))
        }
        Revoked::Access(id) => {
            let [at, until] = ended_at(now_ms);
            let values = vec![tenant.into(), (*id).into(), at, until];
            let ended = transaction.run(END_LIKE_GRANT, values).await?;
            number_grants(transaction, tenant, &ended, now_ms).await?;
            let consent = Revoked::Consent(*id);
            let is_ended = Box::pin(end(transaction, tenant, &consent, now_ms)).await?;
            Ok(is_ended || !ended.is_empty())
        }
        Revoked::Client(client) => {
            let mut is_changed = false;
            loop {
                let ended = end_part(transaction, (tenant, client), now_ms).await?;
                is_changed |= ended.is_changed;
                if !ended.is_more {
                    return Ok(is_changed);
                }
            }
        }
        Revoked::Subject(subject) => {
            let values = || vec![tenant.into(), subject.as_str().into()];
            let mut is_changed = false;
            for sql in [
                DELETE_IDENTITY,
                DELETE_LOGINS,
                DELETE_CONSENTS_OF_SUBJECT,
                DELETE_CODES_OF_SUBJECT,
            ] {
                is_changed |= !transaction.run(sql, values()).await?.is_empty();
            }
            let keys = transaction.run(DELETE_OWN_KEYS, values()).await?;
            if !keys.is_empty() {
                number_own_keys(transaction, tenant, subject, now_ms).await?;
            }
            let mut all = values();
            all.extend(ended_at(now_ms));
            let ended = transaction.run(END_OF_SUBJECT, all).await?;
            number_grants(transaction, tenant, &ended, now_ms).await?;
            // A code of a log-in that has just ended may still be in use.
            number(transaction, tenant, SUBJECT, subject, now_ms).await?;
            Ok(is_changed || !(keys.is_empty() && ended.is_empty()))
        }
    }
}

/// A part of the end of a client.
pub(crate) struct Ended {
    /// There was something to end.
    pub(crate) is_changed: bool,
    /// There may be more to end.
    pub(crate) is_more: bool,
}

/// Ends a part of the consents, codes and grants of a client within a transaction of [`Pool::begin`]. The last part is a
/// revocation of all that is left, so that whatever the client got between two parts ends, too.
pub(crate) async fn end_part(
    transaction: &mut Transaction,
    (tenant, client): (&str, &str),
    now_ms: i64,
) -> Result<Ended, Error> {
    let values = || vec![tenant.into(), client.into(), i64::from(PART).into()];
    let consents = transaction.run(DELETE_CONSENTS_OF_CLIENT, values()).await?;
    let codes = transaction.run(DELETE_CODES_OF_CLIENT, values()).await?;
    let mut all = values();
    all.extend(ended_at(now_ms));
    let ended = transaction.run(END_OF_CLIENT, all).await?;
    number_grants(transaction, tenant, &ended, now_ms).await?;
    // A client that was authenticated before may be about to get a grant.
    number(transaction, tenant, CLIENT, client, now_ms).await?;
    let most = consents.len().max(codes.len()).max(ended.len());
    let mut is_more = most >= usize::from(PART);
    if !is_more {
        // PostgreSQL passes over rows that a sweep removes at this moment, and ends fewer than there are.
        let of = vec![tenant.into(), client.into()];
        is_more = !transaction.run(LEFT_OF_CLIENT, of).await?.is_empty();
    }
    Ok(Ended {
        is_changed: most > 0,
        is_more,
    })
}

/// Ends the log-ins, codes and grants of a subject within a transaction of [`Pool::begin`], and what of log-ins until
/// `before_ms` is under way; the rest of what the person has here stays.
pub(super) async fn end_access(
    transaction: &mut Transaction,
    tenant: &str,
    subject: &str,
    (now_ms, before_ms): (i64, i64),
) -> Result<(), Error> {
    let values = || vec![tenant.into(), subject.into()];
    for sql in [DELETE_LOGINS, DELETE_CODES_OF_SUBJECT] {
        transaction.run(sql, values()).await?;
    }
    let mut all = values();
    all.extend(ended_at(now_ms));
    let ended = transaction.run(END_OF_SUBJECT, all).await?;
    number_grants(transaction, tenant, &ended, now_ms).await?;
    // A code of a log-in that has just ended may still be in use.
    number(transaction, tenant, SUBJECT, subject, before_ms).await?;
    Ok(())
}

/// Ends a grant, once; returns false if it has ended.
async fn end_grant(
    transaction: &mut Transaction,
    tenant: &str,
    id: Uuid,
    now_ms: i64,
) -> Result<bool, Error> {
    let [at, until] = ended_at(now_ms);
    let values = vec![tenant.into(), id.into(), at, until];
    let ended = transaction.run(END_GRANT, values).await?;
    number_grants(transaction, tenant, &ended, now_ms).await?;
    Ok(!ended.is_empty())
}

/// The time at which grants end, and the latest at which they expire from then on: as long as the revocation is kept, since
/// nobody asks for them later.
pub(super) fn ended_at(now_ms: i64) -> [Value; 2] {
    [now_ms.into(), (now_ms + KEPT_MS).into()]
}

/// Announces changed signing keys of a tenant to replicas; `removed` is no longer valid.
pub(crate) async fn number_keys(
    transaction: &mut Transaction,
    tenant: &str,
    removed: Option<&str>,
    now_ms: i64,
) -> Result<(), Error> {
    let kind = if removed.is_some() { KEY } else { KEYS };
    number(transaction, tenant, kind, removed.unwrap_or(""), now_ms).await?;
    Ok(())
}

/// Announces changed secrets of a holder to replicas, which start its children again; returns the number of the
/// change.
pub(crate) async fn number_secret(
    transaction: &mut Transaction,
    change: &SecretChange,
    now_ms: i64,
) -> Result<i64, Error> {
    let value = serde_json::to_string(change);
    let value = value.map_err(|error| Error::Bug(format!("a change of secrets: {error}")))?;
    number(transaction, &change.tenant, SECRETS, &value, now_ms).await
}

/// Announces the groups of a subject to replicas: they are those of all its access tokens but for newer assertions.
pub(super) async fn number_groups(
    transaction: &mut Transaction,
    tenant: &str,
    (subject, groups): (&str, &[String]),
    now_ms: i64,
) -> Result<(), Error> {
    let value = json!([subject, groups]).to_string();
    let what = (GROUPS, Some(subject));
    number_of(transaction, tenant, what, &value, now_ms).await?;
    Ok(())
}

/// Announces changed API keys of a person to replicas; of all people of the tenant without a subject.
pub(super) async fn number_own_keys(
    transaction: &mut Transaction,
    tenant: &str,
    subject: &str,
    now_ms: i64,
) -> Result<(), Error> {
    number(transaction, tenant, OWN_KEYS, subject, now_ms).await?;
    Ok(())
}

/// Reports whether replicas know groups of a subject.
pub(super) async fn has_groups(
    transaction: &mut Transaction,
    tenant: &str,
    subject: &str,
) -> Result<bool, Error> {
    let values = vec![tenant.into(), subject.into()];
    Ok(!transaction.run(HAS_GROUPS, values).await?.is_empty())
}

/// Announces ended grants to replicas.
pub(crate) async fn number_grants(
    transaction: &mut Transaction,
    tenant: &str,
    ended: &[Row],
    now_ms: i64,
) -> Result<(), Error> {
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
    number(transaction, tenant, GRANTS, &value, now_ms).await?;
    Ok(())
}

/// Writes one numbered row and returns its number, last in its transaction: the lock on the row of `changes` until the
/// commit keeps the numbers in order.
pub(super) async fn number(
    transaction: &mut Transaction,
    tenant: &str,
    kind: &str,
    value: &str,
    now_ms: i64,
) -> Result<i64, Error> {
    number_of(transaction, tenant, (kind, None), value, now_ms).await
}

/// The same for a row that is looked for by its subject.
async fn number_of(
    transaction: &mut Transaction,
    tenant: &str,
    (kind, subject): (&str, Option<&str>),
    value: &str,
    now_ms: i64,
) -> Result<i64, Error> {
    let next = transaction.run(NEXT, Vec::new()).await?;
    let next = next.first();
    let next: i64 = next
        .ok_or_else(|| Error::Bug("no number of revocations".to_owned()))?
        .get("revocation")?;
    let values = vec![
        next.into(),
        tenant.into(),
        kind.into(),
        value.into(),
        now_ms.into(),
        Value::Text(subject.map(str::to_owned)),
    ];
    transaction.run(INSERT, values).await?;
    Ok(next)
}

/// The time that a revocation is kept: longer than the lifetime of access tokens, and of sessions
/// that began with one.
pub(crate) const KEPT_MS: i64 = 24 * 3600 * 1000 + 3600 * 1000;
/// Time limit for the turn at a revocation: as long as one may wait for the lock.
const TURN: Duration = Duration::from_secs(5);
/// Maximum rows that a statement ends of a client or a tenant: the number of their people has no bound.
pub(crate) const PART: u16 = if cfg!(test) { 10 } else { 1000 };

/// Row kind: grants, as ids separated by spaces.
pub(super) const GRANTS: &str = "grants";
/// Row kind: a subject, whose codes ended.
const SUBJECT: &str = "subject";
/// Row kind: the groups of a subject, as JSON.
pub(super) const GROUPS: &str = "groups";
/// Row kind: a client, whose grants ended.
const CLIENT: &str = "client";
/// Row kind: changed signing keys of a tenant.
pub(super) const KEYS: &str = "keys";
/// Row kind: changed signing keys, of which this one is invalid.
pub(super) const KEY: &str = "key";
/// Row kind: changed API keys of a person.
pub(super) const OWN_KEYS: &str = "own_keys";
/// Row kind: changed secrets of a holder, as JSON.
pub(super) const SECRETS: &str = "secrets";

/// Changes nothing, but waits for the transactions of [`Pool::begin`] and holds them off until the commit.
pub(super) const HOLD_OFF: &str = "
    UPDATE changes
       SET revocation = revocation
     WHERE revocation < 0";

const NEXT: &str = "
    UPDATE changes
       SET revocation = revocation + 1
    RETURNING revocation";

const INSERT: &str = "
    INSERT INTO revocations (number, tenant, kind, value, at_ms, subject)
    VALUES ($1, $2, $3, $4, $5, $6)";

const LIVE: &str = "
    SELECT id
      FROM grants
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NULL";

const REVOKED_GRANT: &str = "
    SELECT id
      FROM grants
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NOT NULL";

const REVOKED_OF_CLIENT: &str = "
    SELECT id
      FROM grants
     WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NOT NULL
     LIMIT 1";

const REVOKED_OF_SUBJECT: &str = "
    SELECT id
      FROM grants
     WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NOT NULL
     LIMIT 1";

// A used token of a grant that its code bound, or of one bound later, ends nothing: its thief could do nothing with it.
const BOUND_BY_ANOTHER: &str = "
    SELECT grants.id AS id
      FROM refresh_tokens
      JOIN grants ON grants.id = refresh_tokens.grant_id
     WHERE refresh_tokens.hash = $1 AND grants.tenant = $2 AND grants.jkt <> $3
       AND grants.revoked_ms IS NULL
       AND refresh_tokens.used_ms <= grants.bound_ms";

// As long as one token is unused, the others of its family are used. A token that was bound when it was given out is not
// told from one of before its key any more.
const CAME_AGAIN: &str = "
    SELECT id
      FROM grants
     WHERE id = $1 AND tenant = $2 AND revoked_ms IS NULL AND expires_ms > $4
       AND (jkt IS NULL OR jkt = $3 OR bound_ms IS NOT NULL)
       AND EXISTS (SELECT 1
                     FROM refresh_tokens
                    WHERE refresh_tokens.grant_id = grants.id
                      AND refresh_tokens.used_ms IS NULL
                      AND refresh_tokens.expires_ms > $4)";

const DELETE_CODE_OF_GRANT: &str = "
    DELETE FROM codes
     WHERE tenant = $1 AND grant_id = $2
    RETURNING hash";

// The code of another grant stays: if it comes again, it ends that one.
const DELETE_CODES_LIKE_GRANT: &str = "
    DELETE FROM codes
     WHERE tenant = $1
       AND (subject, client_id) IN (SELECT subject, client_id
                                      FROM grants
                                     WHERE tenant = $1 AND id = $2)
       AND NOT EXISTS (SELECT 1
                         FROM grants
                        WHERE grants.id = codes.grant_id)
    RETURNING hash";

const DELETE_CODES_OF_CLIENT: &str = "
    DELETE FROM codes
     WHERE hash IN (SELECT hash FROM codes WHERE tenant = $1 AND client_id = $2 LIMIT $3)
    RETURNING hash";

const DELETE_CODES_OF_SUBJECT: &str = "
    DELETE FROM codes
     WHERE tenant = $1 AND subject = $2
    RETURNING hash";

const DELETE_IDENTITY: &str = "
    DELETE FROM identities
     WHERE tenant = $1 AND subject = $2
    RETURNING subject";

pub(super) const DELETE_OWN_KEYS: &str = "
    DELETE FROM own_keys
     WHERE tenant = $1 AND subject = $2
    RETURNING name, label";

pub(crate) const HAS_GROUPS: &str = "
    SELECT number
      FROM revocations
     WHERE tenant = $1 AND kind = 'groups' AND subject = $2
     LIMIT 1";

const DELETE_LOGINS: &str = "
    DELETE FROM logins
     WHERE tenant = $1 AND subject = $2
    RETURNING subject";

const DELETE_CONSENTS_OF_GRANT: &str = "
    DELETE FROM consents
     WHERE tenant = $1
       AND (subject, client_id) IN (SELECT subject, client_id
                                      FROM grants
                                     WHERE tenant = $1 AND id = $2)
    RETURNING client_id";

pub(crate) const DELETE_CONSENTS_OF_CLIENT: &str = "
    DELETE FROM consents
     WHERE (tenant, subject, client_id, digest) IN (
               SELECT tenant, subject, client_id, digest
                 FROM consents
                WHERE tenant = $1 AND client_id = $2
                LIMIT $3)
    RETURNING client_id";

const DELETE_CONSENTS_OF_SUBJECT: &str = "
    DELETE FROM consents
     WHERE tenant = $1 AND subject = $2
    RETURNING client_id";

const END_GRANT: &str = "
    UPDATE grants
       SET revoked_ms = $3,
           expires_ms = CASE WHEN expires_ms < $4 THEN expires_ms ELSE $4 END
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NULL
    RETURNING id";

const END_LIKE_GRANT: &str = "
    UPDATE grants
       SET revoked_ms = $3,
           expires_ms = CASE WHEN expires_ms < $4 THEN expires_ms ELSE $4 END
     WHERE tenant = $1
       AND (subject, client_id) IN (SELECT subject, client_id
                                      FROM grants
                                     WHERE tenant = $1 AND id = $2)
       AND revoked_ms IS NULL
    RETURNING id";

pub(crate) const END_OF_CLIENT: &str = "
    UPDATE grants
       SET revoked_ms = $4,
           expires_ms = CASE WHEN expires_ms < $5 THEN expires_ms ELSE $5 END
     WHERE id IN (SELECT id
                    FROM grants
                   WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NULL
                   LIMIT $3)
    RETURNING id";

pub(crate) const LEFT_OF_CLIENT: &str = "
    SELECT 1 AS one FROM grants WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NULL
     UNION ALL
    SELECT 1 FROM codes WHERE tenant = $1 AND client_id = $2
     UNION ALL
    SELECT 1 FROM consents WHERE tenant = $1 AND client_id = $2
     LIMIT 1";

const END_OF_SUBJECT: &str = "
    UPDATE grants
       SET revoked_ms = $3,
           expires_ms = CASE WHEN expires_ms < $4 THEN expires_ms ELSE $4 END
     WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NULL
    RETURNING id";

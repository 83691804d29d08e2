//! Authorization codes, grants and refresh tokens.
//!
//! One statement decides each one-time use: the caller whose update finds the row unused succeeds.
//! Not here: revocations (`revocations`), and grants that begin without a code (`direct_grants`).

use uuid::Uuid;

use super::{
    logins::{CONSENTED, FORGET_CONSENTS},
    revocations::{Revocations, Revoked, begin_beside},
};
use crate::database::pool::{Error, Pool, Row, Transaction, Value};

/// A grant: the consent of a user to a client's use of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The id in tokens and revocations.
    pub(crate) id: Uuid,
    /// The subject of the user.
    pub(crate) subject: String,
    /// The user's groups at the log-in; those of a local user are read from its declaration
    /// instead.
    pub(crate) groups: Vec<String>,
    /// The client id.
    pub(crate) client_id: String,
    /// The resource: the audience of the tokens.
    pub(crate) resource: String,
    /// Scopes, separated by spaces.
    pub(crate) scope: String,
    /// The session of the log-in at the identity provider; none if it did not name it.
    pub(crate) session: Option<String>,
    /// The thumbprint of the key to which its refresh tokens are bound; of a code, the key that has to redeem it.
    pub(crate) jkt: Option<String>,
    /// Time of the log-in, in milliseconds since 1970.
    pub(crate) auth_ms: i64,
    /// Expiry of the grant, regardless of refreshes.
    pub(crate) expires_ms: i64,
}

/// A new authorization code, by the hash of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewCode {
    /// The SHA-256 of its text.
    pub(crate) hash: [u8; 32],
    /// The future grant, with its expiry.
    pub(crate) grant: Grant,
    /// The exact redirect URI of the request; empty if the request had none.
    pub(crate) redirect_uri: String,
    /// The S256 challenge of the request, unchanged.
    pub(crate) challenge: String,
    /// Expiry of the code (`oauth.code` after its issue).
    pub(crate) expires_ms: i64,
}

/// The result of taking a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TakenCode {
    /// The first use. The grant exists after [`Grants::start`] has written it.
    First(Box<NewCode>),
    /// A reuse, after the first use at `used_ms`.
    Again {
        /// Time of the first use.
        used_ms: i64,
        /// The code; its grant can be revoked even if it is not written yet.
        code: Box<NewCode>,
    },
    /// The code does not exist in this tenant.
    Unknown,
}

/// A refresh token, by the hash of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRefresh {
    /// The SHA-256 of its text.
    pub(crate) hash: [u8; 32],
    /// The SHA-256 of its family, which is that of its grant; none of a token from before there were families.
    pub(crate) family: Option<[u8; 32]>,
    /// Expiry if unused, within the lifetime of its grant.
    pub(crate) expires_ms: i64,
}

/// The successor of a refresh token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Succession {
    /// The salt from which, with the token's text, the successor's text is derived. It is stored,
    /// so that a retry with the token gets the same successor; without the token it reveals
    /// nothing.
    pub(crate) salt: [u8; 32],
    /// The successor.
    pub(crate) successor: NewRefresh,
    /// The time within which a retry gets the same successor.
    pub(crate) grace_ms: i64,
    /// The time for which a used token is kept, at least that for retries. Later it is told by its family alone.
    pub(crate) kept_ms: i64,
}

/// The result of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// The first use, or a retry within the grace period: the successor is derived from this salt.
    Good {
        /// The grant.
        grant: Box<Grant>,
        /// The salt of the successor.
        salt: [u8; 32],
    },
    /// Invalid: unknown, expired, revoked, of another client, or with a used successor. An unknown one may be a used one
    /// that is not kept any more ([`Revocations::end_of_family`]).
    Refused,
    /// A reuse after the grace period, which has just revoked the whole grant.
    Reused {
        /// The grant.
        grant: Uuid,
    },
}

/// A grant as shown to operators.
#[derive(Clone, Debug)]
pub(crate) struct ListedGrant {
    /// The grant.
    pub(crate) grant: Grant,
    /// Time of creation, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// The time of its last token.
    pub(crate) used_ms: i64,
}

/// A filter of grants; absent members match all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantFilter<'f> {
    /// The subject.
    pub(crate) subject: Option<&'f str>,
    /// The client id.
    pub(crate) client: Option<&'f str>,
    /// The id of the last grant of the previous page.
    pub(crate) after: Option<Uuid>,
}

impl GrantFilter<'_> {
    fn values(self, tenant: &str, now_ms: i64, limit: usize) -> Vec<Value> {
        let own = |text: Option<&str>| Value::Text(text.map(str::to_owned));
        vec![
            tenant.into(),
            now_ms.into(),
            own(self.subject),
            own(self.client),
            self.after.unwrap_or_default().into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ]
    }
}

/// Authorization codes, grants and refresh tokens of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Grants<'a> {
    pub(crate) pool: &'a Pool,
}

impl Grants<'_> {
    /// Stores a code for a request that was begun at `asked_ms`, before the consent was read: one that is remembered, by
    /// its digest. Returns false if all grants of the client were revoked since, or those of the subject since the log-in,
    /// or the consent was taken back.
    pub(crate) async fn add_code(
        self,
        tenant: &str,
        code: &NewCode,
        asked_ms: i64,
        consent: Option<&[u8; 32]>,
    ) -> Result<bool, Error> {
        let grant = &code.grant;
        // A revocation is seen here, or sees the code. That of a session at a provider counts at the start.
        let mut transaction = begin_beside(self.pool).await?;
        let none = "";
        let of_client = vec![
            tenant.into(),
            none.into(),
            grant.client_id.as_str().into(),
            asked_ms.into(),
        ];
        let subject = grant.subject.as_str().into();
        let of_subject = vec![tenant.into(), subject, none.into(), grant.auth_ms.into()];
        let by = || -> Vec<Value> {
            let (subject, client) = (grant.subject.as_str(), grant.client_id.as_str());
            vec![tenant.into(), subject.into(), client.into()]
        };
        let mut revoked = transaction.run(REVOKED, of_client).await?;
        revoked.extend(transaction.run(REVOKED, of_subject).await?);
        if !revoked.is_empty() {
            // One that was stored behind the revocation would be one that nobody gave since.
            transaction.run(FORGET_CONSENTS, by()).await?;
            transaction.commit().await?;
            return Ok(false);
        }
        if let Some(digest) = consent {
            let mut known = by();
            known.push(digest.into());
            if transaction.run(CONSENTED, known).await?.is_empty() {
                return Ok(false);
            }
        }
        let values = vec![
            (&code.hash).into(),
            tenant.into(),
            grant.id.into(),
            grant.subject.as_str().into(),
            groups_text(grant).into(),
            grant.client_id.as_str().into(),
            grant.resource.as_str().into(),
            grant.scope.as_str().into(),
            session(grant),
            Value::Text(grant.jkt.clone()),
            grant.auth_ms.into(),
            grant.expires_ms.into(),
            code.redirect_uri.as_str().into(),
            code.challenge.as_str().into(),
            code.expires_ms.into(),
        ];
        transaction.run(INSERT_CODE, values).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Takes a code, in one statement: only one caller gets [`TakenCode::First`]. The caller checks
    /// expiry, client, redirect URI and challenge afterwards.
    pub(crate) async fn take_code(self, tenant: &str, hash: &[u8; 32]) -> Result<TakenCode, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin_unserialized().await?;
        let values = vec![hash.into(), tenant.into(), now_ms.into()];
        let first = transaction.run(TAKE_CODE, values).await?;
        let taken = if let Some(row) = first.first() {
            TakenCode::First(Box::new(new_code(row, hash)?))
        } else {
            let values = vec![hash.into(), tenant.into()];
            match transaction.run(USED_CODE, values).await?.first() {
                Some(row) => TakenCode::Again {
                    used_ms: row.get("used_ms")?,
                    code: Box::new(new_code(row, hash)?),
                },
                None => TakenCode::Unknown,
            }
        };
        // After an error the code may have been taken; it counts as taken then.
        transaction.commit().await?;
        Ok(taken)
    }

    /// Stores the grant of a taken and valid code, with its first refresh token. Returns false if a
    /// replay of the code has revoked it, or if client or user were removed.
    pub(crate) async fn start(
        self,
        tenant: &str,
        code: &NewCode,
        refresh: &NewRefresh,
    ) -> Result<bool, Error> {
        let (grant, now_ms) = (&code.grant, self.pool.now_ms());
        // The end of a consent spares the codes of grants: it sees this one, or is seen.
        let mut transaction = begin_beside(self.pool).await?;
        // A revocation first removes codes, then ends grants: the lock on the code's row orders
        // both.
        let held = vec![(&code.hash).into(), tenant.into()];
        if transaction.run(HOLD_CODE, held).await?.is_empty() {
            return Ok(false);
        }
        // The user logged in before all of their grants were revoked, or those of this log-in.
        let person = vec![
            tenant.into(),
            grant.subject.as_str().into(),
            grant.auth_ms.into(),
            session(grant),
        ];
        if !transaction.run(REVOKED_SUBJECT, person).await?.is_empty() {
            return Ok(false);
        }
        let values = grant_values(tenant, grant, refresh.family.as_ref(), now_ms);
        if transaction.run(INSERT_GRANT, values).await?.is_empty() {
            return Ok(false);
        }
        add_refresh(&mut transaction, grant, refresh).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Uses a refresh token of `client_id`. Its first use binds its grant to the key `jkt`, if it is not bound to one; a
    /// retry does not, since the successor may be in use by then. A token that is bound to another key, or is and comes
    /// without one, is refused.
    pub(crate) async fn refresh(
        self,
        tenant: &str,
        (client_id, jkt): (&str, Option<&str>),
        hash: &[u8; 32],
        succession: &Succession,
    ) -> Result<Refreshed, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin_unserialized().await?;
        // The lock on the grant's row decides: another use, or a revocation, waits.
        let values = vec![
            hash.into(),
            tenant.into(),
            client_id.into(),
            now_ms.into(),
            Value::Text(jkt.map(str::to_owned)),
        ];
        let held = transaction.run(HOLD_GRANT, values).await?;
        let Some(row) = held.first() else {
            return Ok(Refreshed::Refused);
        };
        let mut grant = Box::new(grant(row)?);
        let next = &succession.successor;
        // A token without a family is known by its row alone, until it would have expired.
        let kept_ms = next.family.map(|_| succession.kept_ms);
        let values = vec![
            hash.into(),
            now_ms.into(),
            (&succession.salt).into(),
            (&next.hash).into(),
            kept_ms.map_or(i64::MAX, |kept_ms| now_ms + kept_ms).into(),
        ];
        let outcome = if transaction.run(USE_REFRESH, values).await?.is_empty() {
            let used = transaction.run(USED_REFRESH, vec![hash.into()]).await?;
            let used = used.first().map(Used::read).transpose()?.flatten();
            match used {
                None => return Ok(Refreshed::Refused),
                Some(used) if now_ms - used.at_ms > succession.grace_ms => {
                    // Revocations take their own lock first.
                    drop(transaction);
                    let grant = grant.id;
                    let all = Revoked::Grant(grant);
                    let revocations = Revocations::at_once(self.pool);
                    let is_ended = revocations.revoke(tenant, &all).await?;
                    return Ok(if is_ended {
                        Refreshed::Reused { grant }
                    } else {
                        Refreshed::Refused
                    });
                }
                Some(used) if used.is_successor_used => return Ok(Refreshed::Refused),
                Some(used) => Refreshed::Good {
                    grant,
                    salt: used.salt,
                },
            }
        } else {
            if let Some(jkt) = jkt.filter(|_| grant.jkt.is_none()) {
                let values = vec![grant.id.into(), jkt.into(), now_ms.into()];
                transaction.run(BIND_GRANT, values).await?;
                grant.jkt = Some(jkt.to_owned());
            }
            add_refresh(&mut transaction, &grant, next).await?;
            let salt = succession.salt;
            Refreshed::Good { grant, salt }
        };
        // After an error a retry within the grace period gets the same successor.
        transaction.commit().await?;
        Ok(outcome)
    }

    /// Reports whether a client has an unexpired grant.
    pub(crate) async fn has_any(self, tenant: &str, client_id: &str) -> Result<bool, Error> {
        let values = vec![tenant.into(), client_id.into(), self.pool.now_ms().into()];
        Ok(!self.pool.read(ANY_OF_CLIENT, values).await?.is_empty())
    }

    /// The unexpired grants of a tenant, ordered by id.
    pub(crate) async fn list(
        self,
        tenant: &str,
        filter: GrantFilter<'_>,
        limit: usize,
    ) -> Result<Vec<ListedGrant>, Error> {
        let values = filter.values(tenant, self.pool.now_ms(), limit);
        let rows = self.pool.read(GRANTS_OF, values).await?;
        rows.iter().map(listed).collect()
    }

    /// The unexpired grants of a tenant with the newest tokens, the newest first.
    pub(crate) async fn newest(
        self,
        tenant: &str,
        filter: GrantFilter<'_>,
        limit: usize,
    ) -> Result<Vec<ListedGrant>, Error> {
        let values = filter.values(tenant, self.pool.now_ms(), limit);
        let rows = self.pool.read(NEWEST_GRANTS_OF, values).await?;
        rows.iter().map(listed).collect()
    }

    /// An unexpired grant of a subject.
    pub(crate) async fn of_subject(
        self,
        tenant: &str,
        subject: &str,
        id: Uuid,
    ) -> Result<Option<Grant>, Error> {
        let values = vec![
            tenant.into(),
            self.pool.now_ms().into(),
            subject.into(),
            id.into(),
        ];
        let rows = self.pool.read(GRANT_OF_SUBJECT, values).await?;
        rows.first().map(grant).transpose()
    }

    /// The grant of a known refresh token, revoked or not.
    pub(crate) async fn of_refresh(
        self,
        tenant: &str,
        hash: &[u8; 32],
    ) -> Result<Option<Grant>, Error> {
        let values = vec![hash.into(), tenant.into()];
        let rows = self.pool.read(GRANT_OF_REFRESH, values).await?;
        rows.first().map(grant).transpose()
    }

    /// The grant of a family of refresh tokens, revoked or not.
    pub(crate) async fn of_family(
        self,
        tenant: &str,
        family: &[u8; 32],
    ) -> Result<Option<Grant>, Error> {
        let values = vec![family.into(), tenant.into()];
        let rows = self.pool.read(GRANT_OF_FAMILY, values).await?;
        rows.first().map(grant).transpose()
    }
}

/// Reads the groups of a row.
fn row_groups(row: &Row) -> Result<Vec<String>, Error> {
    let text: String = row.get("groups")?;
    serde_json::from_str(&text).map_err(|error| Error::Bug(format!("groups in a row: {error}")))
}

/// A used refresh token.
struct Used {
    at_ms: i64,
    salt: [u8; 32],
    /// Its successor was used or removed.
    is_successor_used: bool,
}

impl Used {
    /// Time of the first use; none if it expired unused.
    fn read(row: &Row) -> Result<Option<Self>, Error> {
        let at_ms: Option<i64> = row.get("used_ms")?;
        let salt: Option<Vec<u8>> = row.get("salt")?;
        let salt = salt.and_then(|salt| salt.try_into().ok());
        let unused: i64 = row.get("unused")?;
        Ok(at_ms.zip(salt).map(|(at_ms, salt)| Self {
            at_ms,
            salt,
            is_successor_used: unused == 0,
        }))
    }
}

async fn add_refresh(
    transaction: &mut Transaction,
    grant: &Grant,
    refresh: &NewRefresh,
) -> Result<(), Error> {
    let expires_ms = refresh.expires_ms.min(grant.expires_ms);
    let values = vec![(&refresh.hash).into(), grant.id.into(), expires_ms.into()];
    transaction.run(INSERT_REFRESH, values).await?;
    Ok(())
}

/// Reads a row of `grants`.
pub(super) fn grant(row: &Row) -> Result<Grant, Error> {
    Ok(Grant {
        id: row.get("id")?,
        subject: row.get("subject")?,
        groups: row_groups(row)?,
        client_id: row.get("client_id")?,
        resource: row.get("resource")?,
        scope: row.get("scope")?,
        session: row.get("session")?,
        jkt: row.get("jkt")?,
        auth_ms: row.get("auth_ms")?,
        expires_ms: row.get("expires_ms")?,
    })
}

fn listed(row: &Row) -> Result<ListedGrant, Error> {
    Ok(ListedGrant {
        grant: grant(row)?,
        created_ms: row.get("created_ms")?,
        used_ms: row.get("used_ms")?,
    })
}

/// Reads a row of `codes`.
pub(super) fn new_code(row: &Row, hash: &[u8; 32]) -> Result<NewCode, Error> {
    Ok(NewCode {
        hash: *hash,
        grant: Grant {
            id: row.get("grant_id")?,
            subject: row.get("subject")?,
            groups: row_groups(row)?,
            client_id: row.get("client_id")?,
            resource: row.get("resource")?,
            scope: row.get("scope")?,
            session: row.get("session")?,
            jkt: row.get("jkt")?,
            auth_ms: row.get("auth_ms")?,
            expires_ms: row.get("grant_ms")?,
        },
        redirect_uri: row.get("redirect_uri")?,
        challenge: row.get("challenge")?,
        expires_ms: row.get("expires_ms")?,
    })
}

/// The values of a new row of `grants`; one without refresh tokens has no family.
pub(super) fn grant_values(
    tenant: &str,
    grant: &Grant,
    family: Option<&[u8; 32]>,
    now_ms: i64,
) -> Vec<Value> {
    vec![
        grant.id.into(),
        tenant.into(),
        grant.subject.as_str().into(),
        groups_text(grant).into(),
        grant.client_id.as_str().into(),
        grant.resource.as_str().into(),
        grant.scope.as_str().into(),
        session(grant),
        Value::Text(grant.jkt.clone()),
        grant.auth_ms.into(),
        now_ms.into(),
        grant.expires_ms.into(),
        family.map(|family| family.to_vec()).into(),
    ]
}

fn session(grant: &Grant) -> Value {
    Value::Text(grant.session.clone())
}

fn groups_text(grant: &Grant) -> String {
    // Serialising texts cannot fail.
    serde_json::to_string(&grant.groups).unwrap_or_default()
}

const INSERT_CODE: &str = "
    INSERT INTO codes (hash, tenant, grant_id, subject, groups, client_id, resource, scope,
                       session, jkt, auth_ms, grant_ms, redirect_uri, challenge, expires_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

const TAKE_CODE: &str = "
    UPDATE codes
       SET used_ms = $3, ungranted_ms = expires_ms
     WHERE hash = $1 AND tenant = $2 AND used_ms IS NULL
    RETURNING grant_id, subject, groups, client_id, resource, scope, session, jkt, auth_ms,
              grant_ms, redirect_uri, challenge, expires_ms";

const USED_CODE: &str = "
    SELECT used_ms, grant_id, subject, groups, client_id, resource, scope, session, jkt, auth_ms,
           grant_ms, redirect_uri, challenge, expires_ms
      FROM codes
     WHERE hash = $1 AND tenant = $2 AND used_ms IS NOT NULL";

// Takes the row lock in both databases. Without a grant nothing of it is committed.
const HOLD_CODE: &str = "
    UPDATE codes
       SET ungranted_ms = NULL
     WHERE hash = $1 AND tenant = $2 AND used_ms IS NOT NULL
    RETURNING hash";

/// A revocation of all that a subject had, or of a session at a provider, since a time. The kinds, and the beginnings of
/// values, are as in the index `revocations_of`, which is used for them alone.
pub(crate) const REVOKED_SUBJECT: &str = "
    SELECT number
      FROM revocations
     WHERE tenant = $1 AND at_ms >= $3
       AND kind IN ('client', 'session', 'sessionless', 'subject')
       AND SUBSTR(value, 1, 250) IN (SUBSTR(CAST($2 AS TEXT), 1, 250),
                                     SUBSTR(CAST($4 AS TEXT), 1, 250))
       AND (kind = 'subject' AND value = $2 OR kind = 'session' AND value = $4
            OR CAST($4 AS TEXT) IS NULL AND kind = 'sessionless' AND value = $2)
     LIMIT 1";

/// A revocation of all that a subject or a client had, since a time; by the same index.
pub(crate) const REVOKED: &str = "
    SELECT number
      FROM revocations
     WHERE tenant = $1 AND at_ms >= $4
       AND kind IN ('client', 'session', 'sessionless', 'subject')
       AND SUBSTR(value, 1, 250) IN (SUBSTR(CAST($2 AS TEXT), 1, 250),
                                     SUBSTR(CAST($3 AS TEXT), 1, 250))
       AND ((kind = 'subject' AND value = $2) OR (kind = 'client' AND value = $3))
     LIMIT 1";

pub(super) const INSERT_GRANT: &str = "
    INSERT INTO grants (id, tenant, subject, groups, client_id, resource, scope, session,
                        jkt, auth_ms, created_ms, expires_ms, family)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    ON CONFLICT (id) DO NOTHING
    RETURNING id";

const INSERT_REFRESH: &str = "
    INSERT INTO refresh_tokens (hash, grant_id, expires_ms)
    VALUES ($1, $2, $3)";

// Takes the row lock in both databases. Without a token nothing of it is committed.
const HOLD_GRANT: &str = "
    UPDATE grants
       SET used_ms = $4
     WHERE id = (SELECT grant_id FROM refresh_tokens WHERE hash = $1)
       AND tenant = $2 AND client_id = $3 AND revoked_ms IS NULL AND expires_ms > $4
       AND (jkt IS NULL OR jkt = $5)
    RETURNING id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, expires_ms";

// Once bound to a key, a grant stays so.
const BIND_GRANT: &str = "
    UPDATE grants
       SET jkt = $2, bound_ms = $3
     WHERE id = $1";

const USE_REFRESH: &str = "
    UPDATE refresh_tokens
       SET used_ms = $2, salt = $3, successor = $4,
           expires_ms = CASE WHEN expires_ms < $5 THEN expires_ms ELSE $5 END
     WHERE hash = $1 AND used_ms IS NULL AND expires_ms > $2
    RETURNING hash";

const USED_REFRESH: &str = "
    SELECT used_ms, salt,
           (SELECT COUNT(*)
              FROM refresh_tokens AS follower
             WHERE follower.hash = used.successor AND follower.used_ms IS NULL) AS unused
      FROM refresh_tokens AS used
     WHERE hash = $1";

const GRANT_OF_REFRESH: &str = "
    SELECT grants.id AS id, subject, groups, client_id, resource, scope, session, jkt, auth_ms,
           grants.expires_ms AS expires_ms
      FROM refresh_tokens
      JOIN grants ON grants.id = refresh_tokens.grant_id
     WHERE refresh_tokens.hash = $1 AND grants.tenant = $2";

const GRANT_OF_FAMILY: &str = "
    SELECT id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, expires_ms
      FROM grants
     WHERE family = $1 AND tenant = $2";

const ANY_OF_CLIENT: &str = "
    SELECT 1 AS one
      FROM grants
     WHERE tenant = $1 AND client_id = $2 AND revoked_ms IS NULL AND expires_ms > $3
     LIMIT 1";

const GRANTS_OF: &str = "
    SELECT id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, created_ms,
           expires_ms,
           COALESCE(grants.used_ms,
                    (SELECT MAX(refresh_tokens.used_ms)
                       FROM refresh_tokens
                      WHERE grant_id = grants.id),
                    created_ms) AS used_ms
      FROM grants
     WHERE tenant = $1 AND revoked_ms IS NULL AND expires_ms > $2
       AND (CAST($3 AS TEXT) IS NULL OR subject = $3)
       AND (CAST($4 AS TEXT) IS NULL OR client_id = $4)
       AND id > $5
     ORDER BY id
     LIMIT $6";

const NEWEST_GRANTS_OF: &str = "
    SELECT id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, created_ms,
           expires_ms,
           COALESCE(grants.used_ms,
                    (SELECT MAX(refresh_tokens.used_ms)
                       FROM refresh_tokens
                      WHERE grant_id = grants.id),
                    created_ms) AS used_ms
      FROM grants
     WHERE tenant = $1 AND revoked_ms IS NULL AND expires_ms > $2
       AND (CAST($3 AS TEXT) IS NULL OR subject = $3)
       AND (CAST($4 AS TEXT) IS NULL OR client_id = $4)
       AND id > $5
     ORDER BY used_ms DESC, id
     LIMIT $6";

const GRANT_OF_SUBJECT: &str = "
    SELECT id, subject, groups, client_id, resource, scope, session, jkt, auth_ms, expires_ms
      FROM grants
     WHERE tenant = $1 AND revoked_ms IS NULL AND expires_ms > $2 AND subject = $3 AND id = $4";

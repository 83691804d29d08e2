//! Identities: the last word of identity providers about people, and the tokens by which they are asked again, sealed.
//!
//! There is one row for each person who logged in at a provider. Not here: the requests to providers
//! (`oauth/providers`).

use serde_json::json;

use super::{
    super::{
        pool::{Author, Error, Pool, Record, Row, Transaction, Value, audit},
        vault::{Place, Sealer, Tokens, Vault},
    },
    logins::Person,
    own_keys,
    revocations::{self, Revoked},
};
use crate::declare::{Kind, ObjectName};

/// Identities of people at the providers of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Identities<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
    /// Replicas keep so many groups of the tenant that they are told no others: where those of a person change, all access
    /// that the person has ends in place of it.
    pub(crate) is_full: bool,
    /// The time of the log-in that tells about the person, which goes on when the others end; none of a recheck.
    pub(crate) log_in_ms: Option<i64>,
}

/// The place of an identity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentityAt<'i> {
    /// The tenant.
    pub(crate) tenant: &'i str,
    /// The provider.
    pub(crate) provider: &'i str,
    /// The subject of the person, which begins with the issuer of the provider.
    pub(crate) subject: &'i str,
}

/// A stored identity.
pub(crate) struct Identity {
    /// The tokens that the provider gave.
    pub(crate) tokens: Tokens,
    /// The number of the tokens.
    pub(crate) version: i64,
    /// The time of the provider's last word, in milliseconds since 1970.
    pub(crate) checked_ms: i64,
    /// The mark of tokens that a request left unanswered; that of others, or 0, says nothing about these.
    unanswered: i64,
    /// The end of the last lease, in milliseconds since 1970.
    lease_ms: i64,
}

impl Identity {
    /// Reports whether a request by the refresh token had no answer that was stored: the provider may have given another
    /// one, and take this one no more.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered == mark(self.version)
    }

    /// A request by the refresh token had no answer.
    pub(crate) fn leave_unanswered(&mut self) {
        self.unanswered = mark(self.version);
    }
}

impl Identities<'_> {
    /// Stores the tokens and the groups of a log-in, in place of those of an earlier one; returns true if open sessions
    /// have to learn the groups.
    pub(crate) async fn put(
        self,
        of: IdentityAt<'_>,
        tokens: &Tokens,
        groups: &[String],
    ) -> Result<bool, Error> {
        let (mut transaction, announce) = self.begin(of, Some(groups)).await?;
        let sealed = self.sealed(&mut transaction, of, tokens).await?;
        let mut values = key(of);
        values.extend([
            of.provider.into(),
            Some(sealed).into(),
            self.pool.now_ms().into(),
        ]);
        transaction.run(PUT, values).await?;
        let is_changed = self.tell(&mut transaction, of, groups, announce).await?;
        transaction.commit().await?;
        Ok(is_changed)
    }

    /// The identity; none without a log-in.
    ///
    /// # Errors
    ///
    /// `Bug` for tokens that do not open.
    pub(crate) async fn get(self, of: IdentityAt<'_>) -> Result<Option<Identity>, Error> {
        let mut values = key(of);
        values.push(of.provider.into());
        let rows = self.pool.read(ONE, values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let (at, sealed) = (row_of(of), row.get::<Vec<u8>>("value")?);
        let plain = self.vault.open(place(&at), &sealed);
        let tokens = plain.and_then(|plain| Tokens::of_json(&plain));
        Ok(Some(Identity {
            tokens: tokens.ok_or_else(broken)?,
            version: row.get("version")?,
            checked_ms: row.get("checked_ms")?,
            unanswered: row.get("unanswered")?,
            lease_ms: row.get("lease_ms")?,
        }))
    }

    /// Takes the lease to ask the provider by the tokens of `known` until `until_ms`; false if another replica has it, or
    /// had it when `known` was read, or since. A rotated refresh token that is used twice may end the person's session there (RFC
    /// 9700, section 4.14.2). Until the answer is stored, the request by a refresh token has none.
    pub(crate) async fn lease(
        self,
        of: IdentityAt<'_>,
        known: &Identity,
        until_ms: i64,
    ) -> Result<bool, Error> {
        // Requests that wait come every moment: no write for what cannot be had.
        if known.lease_ms > self.pool.now_ms() {
            return Ok(false);
        }
        let refresh = known.tokens.refresh.as_ref();
        let unanswered = refresh.map_or(0, |_| mark(known.version));
        let mut values = key(of);
        values.extend([
            known.version.into(),
            until_ms.into(),
            self.pool.now_ms().into(),
            known.checked_ms.into(),
            known.unanswered.into(),
            unanswered.into(),
        ]);
        Ok(!self.pool.write(LEASE, values).await?.is_empty())
    }

    /// Changes the end of the lease that this replica has, and stores whether the tokens of this version are unanswered.
    pub(crate) async fn end_lease(
        self,
        of: IdentityAt<'_>,
        (version, is_unanswered): (i64, bool),
        at_ms: i64,
    ) -> Result<(), Error> {
        let mut values = key(of);
        let unanswered = if is_unanswered { mark(version) } else { 0 };
        values.extend([version.into(), at_ms.into(), unanswered.into()]);
        self.pool.write(END_LEASE, values).await?;
        Ok(())
    }

    /// Stores renewed tokens of this version, for which this replica has the lease; returns their version, or none after
    /// another log-in.
    pub(crate) async fn renew(
        self,
        of: IdentityAt<'_>,
        version: i64,
        tokens: &Tokens,
    ) -> Result<Option<i64>, Error> {
        let mut transaction = revocations::begin_beside(self.pool).await?;
        let sealed = self.sealed(&mut transaction, of, tokens).await?;
        let mut values = key(of);
        values.extend([version.into(), Some(sealed).into()]);
        let renewed = transaction.run(RENEW, values).await?;
        transaction.commit().await?;
        let version = renewed.first().map(|row| row.get("version"));
        Ok(version.transpose()?)
    }

    /// Stores the provider's word that the person may come in, and the groups, where it told them; returns true if open
    /// sessions have to learn these.
    pub(crate) async fn vouch(
        self,
        of: IdentityAt<'_>,
        groups: Option<&[String]>,
    ) -> Result<bool, Error> {
        let is_changed = self.say(VOUCH, of, vec![], groups).await?;
        Ok(is_changed.unwrap_or(false))
    }

    /// Stores the word that the provider gave when it was asked by `known`, as [`Self::vouch`] does; none if another
    /// word has come since, as at a log-in: what was asked earlier says nothing against it.
    pub(crate) async fn vouch_after(
        self,
        of: IdentityAt<'_>,
        known: &Identity,
        groups: Option<&[String]>,
    ) -> Result<Option<bool>, Error> {
        let of_known = vec![known.version.into(), known.checked_ms.into()];
        self.say(VOUCH_AFTER, of, of_known, groups).await
    }

    /// None if there is nothing of which this could be said.
    async fn say(
        self,
        vouch: &'static str,
        of: IdentityAt<'_>,
        of_known: Vec<Value>,
        groups: Option<&[String]>,
    ) -> Result<Option<bool>, Error> {
        let (mut transaction, announce) = self.begin(of, groups).await?;
        let mut values = key(of);
        values.push(self.pool.now_ms().into());
        values.extend(of_known);
        if transaction.run(vouch, values).await?.is_empty() {
            return Ok(None);
        }
        let is_changed = match groups {
            Some(groups) => self.tell(&mut transaction, of, groups, announce).await?,
            None => false,
        };
        transaction.commit().await?;
        Ok(Some(is_changed))
    }

    /// Ends an identity of this version with all that the person has here, because the provider's word has ended;
    /// returns false if it is another one.
    pub(crate) async fn end(
        self,
        of: IdentityAt<'_>,
        version: i64,
        author: &Author,
    ) -> Result<bool, Error> {
        let mut transaction = self.pool.begin().await?;
        let now_ms = self.pool.now_ms();
        let with = ("identity.ended", author, now_ms);
        if !delete(&mut transaction, of, version, with).await? {
            return Ok(false);
        }
        let person = Revoked::Subject(of.subject.to_owned());
        revocations::end(&mut transaction, of.tenant, &person, now_ms).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Removes an identity of this version and nothing else of the person, who has to log in again; returns false if it
    /// is another one.
    pub(crate) async fn remove(
        self,
        of: IdentityAt<'_>,
        version: i64,
        author: &Author,
    ) -> Result<bool, Error> {
        let mut transaction = self.pool.begin().await?;
        let with = ("identity.refused", author, self.pool.now_ms());
        let is_removed = delete(&mut transaction, of, version, with).await?;
        transaction.commit().await?;
        Ok(is_removed)
    }

    /// Begins the transaction of a word with these groups, which are announced as is said with it. Only the end of access
    /// holds off all writers.
    async fn begin(
        self,
        of: IdentityAt<'_>,
        groups: Option<&[String]>,
    ) -> Result<(Transaction, Announce), Error> {
        if let Some(groups) = groups.filter(|_| self.is_full) {
            let before = groups_of(&self.pool.read(GROUPS, key(of)).await?)?;
            if !is_same(before.as_deref(), groups) {
                return Ok((self.pool.begin().await?, Announce::ByEnd));
            }
        }
        let beside = revocations::begin_beside(self.pool).await?;
        Ok((beside, Announce::Groups))
    }

    /// Gives what the person has here other groups, and announces them; false if they are the same.
    async fn tell(
        self,
        transaction: &mut Transaction,
        of: IdentityAt<'_>,
        groups: &[String],
        announce: Announce,
    ) -> Result<bool, Error> {
        let text = json!(groups).to_string();
        let with = |text: &str| {
            let mut values = key(of);
            values.push(text.into());
            values
        };
        let before = groups_of(&transaction.run(GROUPS, key(of)).await?)?;
        if is_same(before.as_deref(), groups) {
            return Ok(false);
        }
        transaction.run(SET_GROUPS, with(&text)).await?;
        for row in transaction.run(LOGINS, key(of)).await? {
            let browser: Vec<u8> = row.get("browser")?;
            let mut person = Person::of_row(&row)?;
            person.groups = groups.to_vec();
            let values = vec![
                of.tenant.into(),
                Some(browser).into(),
                person.text()?.into(),
            ];
            transaction.run(SET_PERSON, values).await?;
        }
        let grants = transaction.run(SET_GRANTS, with(&text)).await?;
        let (person, now_ms) = ((of.subject, text.as_str()), self.pool.now_ms());
        let has_keys = own_keys::tell(transaction, of.tenant, person, now_ms).await?;
        let is_known = before.is_some()
            || !grants.is_empty()
            || revocations::has_groups(transaction, of.tenant, of.subject).await?;
        if is_known {
            // Access tokens that were issued before have the old ones.
            let (tenant, subject) = (of.tenant, of.subject);
            match announce {
                Announce::Groups => {
                    let told = (subject, groups);
                    revocations::number_groups(transaction, tenant, told, now_ms).await?;
                }
                Announce::ByEnd => {
                    let before_ms = self.log_in_ms.map_or(now_ms, |at_ms| now_ms.min(at_ms - 1));
                    let ends = (now_ms, before_ms);
                    revocations::end_access(transaction, tenant, subject, ends).await?;
                    tracing::warn!(
                        tenant.id = tenant,
                        "the groups of so many people changed within a day that replicas keep no more of the tenant: \
                         the access of a person ends, who has to log in again"
                    );
                }
            }
        }
        Ok(is_known || has_keys)
    }

    async fn sealed(
        self,
        transaction: &mut Transaction,
        of: IdentityAt<'_>,
        tokens: &Tokens,
    ) -> Result<Vec<u8>, Error> {
        // Tokens sealed under a rotated master key could not be opened.
        let keys = self.vault.current_keys(transaction).await?;
        let (row, plain) = (row_of(of), tokens.to_json());
        let sealed = keys.seal(&self.vault.random, place(&row), plain.as_bytes());
        sealed.ok_or_else(Error::no_randomness)
    }
}

/// How replicas learn that the groups of a person are others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announce {
    /// They are told the groups.
    Groups,
    /// Nothing is left that has others: all access of the person ends.
    ByEnd,
}

/// The groups of an identity; none if none were told.
fn groups_of(rows: &[Row]) -> Result<Option<Vec<String>>, Error> {
    let text: Option<String> = rows.first().map_or(Ok(None), |row| row.get("groups"))?;
    let read = |text: String| serde_json::from_str(&text);
    let read = text.map(read).transpose();
    read.map_err(|error| Error::Bug(format!("groups in a row: {error}")))
}

/// Whether groups are the same, in whatever order a provider named them.
fn is_same(before: Option<&[String]>, groups: &[String]) -> bool {
    let in_order = |groups: &[String]| {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        groups
    };
    before.is_some_and(|before| in_order(before) == in_order(groups))
}

/// Deletes an identity of this version, with an audit record of this kind; returns false if it is another one.
async fn delete(
    transaction: &mut Transaction,
    of: IdentityAt<'_>,
    version: i64,
    (kind, author, now_ms): (&str, &Author, i64),
) -> Result<bool, Error> {
    let mut values = key(of);
    values.push(version.into());
    if transaction.run(DELETE, values).await?.is_empty() {
        return Ok(false);
    }
    let target = format!("tenant {}", of.tenant);
    let mut detail = author.detail.clone();
    detail.insert("subject".to_owned(), of.subject.into());
    let tenant = Some(of.tenant);
    let record = Record::new(tenant, kind, &author.actor, &target, detail.into());
    audit::append(transaction, now_ms, &[record]).await?;
    Ok(true)
}

/// Removes the identities of a removed provider.
pub(crate) async fn forget(
    transaction: &mut Transaction,
    removed: &ObjectName,
) -> Result<(), Error> {
    if removed.kind() == Kind::Provider {
        let tenant = removed.owner().unwrap_or_default();
        let values = vec![tenant.into(), removed.name().into()];
        transaction.run(FORGET_PROVIDER, values).await?;
    }
    Ok(())
}

/// Seals the tokens of identities again that another key than the first has sealed: some in each transaction, which is
/// what other writers wait for.
pub(crate) async fn reseal(pool: &Pool, Sealer { keys, random }: &Sealer<'_>) -> Result<(), Error> {
    let mut after: Vec<Value> = vec!["".into(), "".into()];
    loop {
        let mut transaction = pool.begin().await?;
        after.push(Some(keys.beginning()).into());
        let rows = transaction.run(PART, after).await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        let [tenant, _, subject] = names(last)?;
        after = vec![tenant.into(), subject.into()];
        for row in &rows {
            let ([tenant, provider, subject], sealed) = (names(row)?, row.get::<Vec<u8>>("value")?);
            let of = IdentityAt {
                tenant: &tenant,
                provider: &provider,
                subject: &subject,
            };
            let at = row_of(of);
            let plain = keys.open(place(&at), &sealed).map_err(|_| broken())?;
            let sealed = keys.seal(*random, place(&at), &plain);
            let mut values = key(of);
            values.push(Some(sealed.ok_or_else(Error::no_randomness)?).into());
            transaction.run(RESEAL, values).await?;
        }
        transaction.commit().await?;
    }
}

fn names(row: &Row) -> Result<[String; 3], Error> {
    Ok([
        row.get("tenant")?,
        row.get("provider")?,
        row.get("subject")?,
    ])
}

/// The mark of tokens of this version that a request left unanswered. Whatever changes tokens, the program of an earlier
/// version included, gives them another version, of which it says nothing.
fn mark(version: i64) -> i64 {
    version.saturating_add(1)
}

fn key(of: IdentityAt<'_>) -> Vec<Value> {
    vec![of.tenant.into(), of.subject.into()]
}

/// The row of an identity in its seal; JSON keeps the parts apart.
fn row_of(of: IdentityAt<'_>) -> String {
    json!([of.tenant, of.provider, of.subject]).to_string()
}

fn place(row: &str) -> Place<'_> {
    Place {
        table: "identities",
        row,
        column: "value",
    }
}

fn broken() -> Error {
    Error::Bug("the seal of an identity".to_owned())
}

const PUT: &str = "
    INSERT INTO identities (tenant, subject, provider, value, version, lease_ms, checked_ms)
    VALUES ($1, $2, $3, $4, 0, 0, $5)
    ON CONFLICT (tenant, subject)
    DO UPDATE SET provider = excluded.provider, value = excluded.value, version = identities.version + 1,
                  lease_ms = 0, checked_ms = excluded.checked_ms";

const ONE: &str = "
    SELECT value, version, checked_ms, unanswered, lease_ms
      FROM identities
     WHERE tenant = $1 AND subject = $2 AND provider = $3";

const LEASE: &str = "
    UPDATE identities
       SET lease_ms = $4, unanswered = $8
     WHERE tenant = $1 AND subject = $2 AND version = $3 AND lease_ms <= $5 AND checked_ms = $6 AND unanswered = $7
    RETURNING version";

const END_LEASE: &str = "
    UPDATE identities
       SET lease_ms = $4, unanswered = $5
     WHERE tenant = $1 AND subject = $2 AND version = $3";

const RENEW: &str = "
    UPDATE identities
       SET value = $4, version = version + 1
     WHERE tenant = $1 AND subject = $2 AND version = $3
    RETURNING version";

const VOUCH: &str = "
    UPDATE identities
       SET checked_ms = $3, lease_ms = 0
     WHERE tenant = $1 AND subject = $2
    RETURNING version";

const VOUCH_AFTER: &str = "
    UPDATE identities
       SET checked_ms = $3, lease_ms = 0
     WHERE tenant = $1 AND subject = $2 AND version = $4 AND checked_ms = $5
    RETURNING version";

const DELETE: &str = "
    DELETE FROM identities
     WHERE tenant = $1 AND subject = $2 AND version = $3
    RETURNING version";

const GROUPS: &str = "
    SELECT groups
      FROM identities
     WHERE tenant = $1 AND subject = $2";

const SET_GROUPS: &str = "
    UPDATE identities
       SET groups = $3
     WHERE tenant = $1 AND subject = $2";

const LOGINS: &str = "
    SELECT browser, person
      FROM logins
     WHERE tenant = $1 AND subject = $2";

const SET_PERSON: &str = "
    UPDATE logins
       SET person = $3
     WHERE tenant = $1 AND browser = $2";

const SET_GRANTS: &str = "
    UPDATE grants
       SET groups = $3
     WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NULL AND groups <> $3
    RETURNING id";

const PART: &str = "
    SELECT tenant, provider, subject, value
      FROM identities
     WHERE (tenant, subject) > ($1, $2)
       AND SUBSTR(value, 1, 9) <> $3
     ORDER BY tenant, subject
     LIMIT 100";

const RESEAL: &str = "
    UPDATE identities
       SET value = $3
     WHERE tenant = $1 AND subject = $2";

const FORGET_PROVIDER: &str = "
    DELETE FROM identities
     WHERE tenant = $1 AND provider = $2";

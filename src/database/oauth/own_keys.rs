//! API keys that people made for themselves, by the hashes of their values.
//!
//! Replicas keep them in memory, and each change is numbered like a revocation. Not here: the page (`oauth/browser`) and
//! the check of a request (`auth`).

use std::{collections::HashSet, num::NonZeroU64, sync::Arc, time::Duration};

use serde_json::json;

use super::{
    grants::REVOKED,
    logins::USE_ONCE,
    revocations::{DELETE_OWN_KEYS, begin_beside, number_own_keys},
};
use crate::{
    database::pool::{Author, Error, Pool, Record, Row, Transaction, Value, audit},
    declare::{Issued, OwnKey, OwnKeyRules, OwnKeys as Known, Servers},
};

/// The API keys of people of tenants.
#[derive(Clone, Copy)]
pub(crate) struct OwnKeys<'a> {
    pub(crate) pool: &'a Pool,
}

/// A stored key.
#[derive(Clone, Debug)]
pub(crate) struct ListedOwnKey {
    /// The key; in a list without its groups, which no list shows.
    pub(crate) key: OwnKey,
    /// What the person calls it.
    pub(crate) label: String,
    /// The number of its value.
    pub(crate) version: i64,
    /// Time of creation, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// The hour of its last use.
    pub(crate) used_ms: Option<i64>,
}

/// A page of a list of keys.
#[derive(Debug, Default)]
pub(crate) struct OwnKeyPage {
    /// The keys, by name.
    pub(crate) keys: Vec<ListedOwnKey>,
    /// Bytes of their texts.
    pub(crate) bytes: usize,
    /// There are others behind them.
    pub(crate) is_more: bool,
}

impl OwnKeyPage {
    /// Adds a key; false if it is the first one behind the page, by the number or by the bytes.
    fn add(&mut self, listed: ListedOwnKey, limit: usize) -> bool {
        let bytes = self.bytes + listed.bytes();
        let is_full = bytes > PAGE_BYTES && !self.keys.is_empty();
        self.is_more = is_full || self.keys.len() == limit;
        if !self.is_more {
            self.bytes = bytes;
            self.keys.push(listed);
        }
        !self.is_more
    }
}

/// A key to be made.
pub(crate) struct NewOwnKey {
    /// The key, from now on.
    pub(crate) key: OwnKey,
    /// What the person calls it.
    pub(crate) label: String,
    /// Time of the person's log-in.
    pub(crate) auth_ms: i64,
}

/// The most keys.
#[derive(Clone, Copy)]
pub(crate) struct OwnKeyBounds {
    /// Of a person.
    pub(crate) person: u32,
    /// Of all people of the tenant.
    pub(crate) tenant: Option<NonZeroU64>,
}

/// A form that counts once: the hash that names it, and the time until which it is good.
pub(crate) type Once<'o> = (&'o [u8; 32], i64);

/// The result of making or rotating a key.
#[derive(Clone, Debug)]
pub(crate) enum OwnKeyChange {
    /// As it is now.
    Done(Box<ListedOwnKey>),
    /// The form was sent before.
    Again,
    /// The person has as many keys as they may have.
    PersonFull,
    /// The people of the tenant have as many keys as they may have, or those with keys as many groups.
    TenantFull,
    /// There is no such key, or the person's log-in has ended.
    Gone,
}

/// The names of a key.
#[derive(Clone, Copy)]
pub(crate) struct OwnKeyAt<'k> {
    /// The tenant.
    pub(crate) tenant: &'k str,
    /// The key.
    pub(crate) name: &'k str,
    /// Its person; none for any.
    pub(crate) subject: Option<&'k str>,
}

impl OwnKeys<'_> {
    /// Stores a key, unless there are too many or the log-in that it is made by was ended.
    pub(crate) async fn add(
        self,
        tenant: &str,
        new: NewOwnKey,
        bounds: OwnKeyBounds,
        once: Once<'_>,
        author: &Author,
    ) -> Result<OwnKeyChange, Error> {
        let (mut key, now_ms) = (new.key, self.pool.now_ms());
        // A revocation is seen here, or sees the key.
        let mut transaction = begin_beside(self.pool).await?;
        if !is_first(&mut transaction, tenant, once).await? {
            return Ok(OwnKeyChange::Again);
        }
        let person = || vec![tenant.into(), key.subject.as_str().into()];
        let revoked = vec![
            tenant.into(),
            key.subject.as_str().into(),
            key.name.as_str().into(),
            new.auth_ms.into(),
        ];
        if !transaction.run(REVOKED, revoked).await?.is_empty() {
            return Ok(OwnKeyChange::Gone);
        }
        // With the lock on its row: groups that are told at this instant are read here, or written to the key.
        let told = transaction.run(HOLD_IDENTITY, person()).await?;
        let told: Option<String> = told.first().map_or(Ok(None), |row| row.get("groups"))?;
        // The lock on the row of `changes` makes others wait that count.
        number_own_keys(&mut transaction, tenant, &key.subject, now_ms).await?;
        let mut of_now = person();
        of_now.push(now_ms.into());
        let own = count(&mut transaction, COUNT_OF_PERSON, of_now).await?;
        if own >= u64::from(bounds.person) {
            return Ok(OwnKeyChange::PersonFull);
        }
        let of_now = vec![tenant.into(), now_ms.into()];
        let all = count(&mut transaction, COUNT_OF_TENANT, of_now).await?;
        if bounds.tenant.is_some_and(|most| all >= most.get()) {
            return Ok(OwnKeyChange::TenantFull);
        }
        if let Some(told) = told {
            key.groups = list(&told)?.into();
        }
        let groups = json!(&*key.groups).to_string();
        let of = (key.subject.as_str(), groups.as_str());
        if !has_room(&mut transaction, tenant, of, now_ms).await? {
            return Ok(OwnKeyChange::TenantFull);
        }
        let listed = ListedOwnKey {
            key,
            label: new.label,
            version: 1,
            created_ms: now_ms,
            used_ms: None,
        };
        transaction.run(INSERT, listed.values(tenant)).await?;
        let record = listed.record(tenant, "api_key.added", author);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        transaction.commit().await?;
        Ok(OwnKeyChange::Done(Box::new(listed)))
    }

    /// Gives a key of a person another value, with as long a life. The one before stays good for a while, at most to its
    /// end; the one before that ends.
    pub(crate) async fn rotate(
        self,
        at: OwnKeyAt<'_>,
        hash: &[u8; 32],
        rules: &OwnKeyRules,
        once: Once<'_>,
        author: &Author,
    ) -> Result<OwnKeyChange, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = begin_beside(self.pool).await?;
        if !is_first(&mut transaction, at.tenant, once).await? {
            return Ok(OwnKeyChange::Again);
        }
        let mut values = at.values();
        values.extend([
            now_ms.into(),
            hash.into(),
            now_ms.saturating_add(millis(rules.overlap)).into(),
            millis(rules.ttl).into(),
        ]);
        let rotated = transaction.run(ROTATE, values).await?;
        let Some(row) = rotated.first() else {
            return Ok(OwnKeyChange::Gone);
        };
        let listed = ListedOwnKey::of_row(row)?;
        let mut author = author.clone();
        author.detail.insert("members".to_owned(), json!(["hash"]));
        let record = listed.record(at.tenant, "api_key.changed", &author);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        number_own_keys(&mut transaction, at.tenant, &listed.key.subject, now_ms).await?;
        transaction.commit().await?;
        Ok(OwnKeyChange::Done(Box::new(listed)))
    }

    /// Removes a key; returns false if there is none.
    pub(crate) async fn remove(self, at: OwnKeyAt<'_>, author: &Author) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = begin_beside(self.pool).await?;
        let removed = transaction.run(REMOVE, at.values()).await?;
        let Some(row) = removed.first() else {
            return Ok(false);
        };
        let listed = ListedOwnKey::of_row(row)?;
        let record = listed.record(at.tenant, "api_key.removed", author);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        number_own_keys(&mut transaction, at.tenant, &listed.key.subject, now_ms).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The keys of a person, or of all people of a tenant, that have not expired, ordered by name.
    pub(crate) async fn list(
        self,
        tenant: &str,
        subject: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Vec<ListedOwnKey>, Error> {
        let values = vec![
            tenant.into(),
            Value::Text(subject.map(str::to_owned)),
            self.pool.now_ms().into(),
            after.into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.pool.read(LIST, values).await?;
        rows.iter().map(ListedOwnKey::of_row).collect()
    }

    /// A page of the keys of all people of a tenant that have not expired, in the order of their names, behind `after`: at
    /// most `limit` of them, with at most [`PAGE_BYTES`] of texts, or one. They are read in parts: the names of servers and
    /// scopes that people choose may be long.
    pub(crate) async fn page(
        self,
        tenant: &str,
        after: &str,
        limit: usize,
    ) -> Result<OwnKeyPage, Error> {
        let mut transaction = self.pool.snapshot().await?;
        let (now_ms, mut page) = (self.pool.now_ms(), OwnKeyPage::default());
        loop {
            // One key more than the limit shows that there is another page.
            let part = usize::from(PART).min(limit + 1 - page.keys.len());
            let last = page.keys.last();
            let values = vec![
                tenant.into(),
                Value::Text(None),
                now_ms.into(),
                last.map_or(after, |last| &*last.key.name).into(),
                i64::try_from(part).unwrap_or(i64::MAX).into(),
            ];
            let rows = transaction.run(LIST, values).await?;
            for row in &rows {
                if !page.add(ListedOwnKey::of_row(row)?, limit) {
                    return Ok(page);
                }
            }
            if rows.len() < part {
                return Ok(page);
            }
        }
    }

    /// One key.
    pub(crate) async fn get(self, at: OwnKeyAt<'_>) -> Result<Option<ListedOwnKey>, Error> {
        let rows = self.pool.read(ONE, at.values()).await?;
        rows.first().map(ListedOwnKey::of_row).transpose()
    }

    /// Notes the hour of the last use of a key.
    pub(crate) async fn note_use(self, at: OwnKeyAt<'_>, hour_ms: i64) -> Result<(), Error> {
        let mut values = at.values();
        values.push(hour_ms.into());
        self.pool.write(NOTE_USE, values).await?;
        Ok(())
    }

    /// Gives the keys of a person the groups that an identity provider told; false if they have them.
    pub(crate) async fn tell(
        self,
        tenant: &str,
        subject: &str,
        groups: &[String],
    ) -> Result<bool, Error> {
        let mut transaction = begin_beside(self.pool).await?;
        let (groups, now_ms) = (json!(groups).to_string(), self.pool.now_ms());
        let is_told = tell(&mut transaction, tenant, (subject, &groups), now_ms).await?;
        if is_told {
            transaction.commit().await?;
        }
        Ok(is_told)
    }
}

impl ListedOwnKey {
    fn of_row(row: &Row) -> Result<Self, Error> {
        let scopes: String = row.get("scopes")?;
        let scopes = scopes.split(' ').filter(|scope| !scope.is_empty());
        let servers: Option<Vec<String>> = json_of(&row.get::<String>("servers")?)?;
        let previous: Option<Vec<u8>> = row.get("previous")?;
        let previous = previous.map(hash).transpose()?;
        let previous_ms: Option<i64> = row.get("previous_ms")?;
        Ok(Self {
            label: row.get("label")?,
            version: row.get("version")?,
            created_ms: row.get("created_ms")?,
            used_ms: row.get("used_ms")?,
            key: OwnKey {
                name: row.get("name")?,
                subject: row.get("subject")?,
                groups: list(&row.get::<String>("groups")?)?.into(),
                scopes: scopes.map(str::to_owned).collect(),
                servers: servers.map_or(Servers::All, |names| {
                    Servers::Named(names.into_iter().collect())
                }),
                hash: hash(row.get("hash")?)?,
                previous: previous.zip(previous_ms),
                since_ms: row.get("since_ms")?,
                expires_ms: row.get("expires_ms")?,
            },
        })
    }

    /// The bytes of the texts that a list shows.
    fn bytes(&self) -> usize {
        let key = &self.key;
        let servers = key.servers.names().into_iter().flatten();
        let chosen: usize = servers.chain(key.scopes.iter()).map(String::len).sum();
        key.subject.len() + self.label.len() + chosen
    }

    fn values(&self, tenant: &str) -> Vec<Value> {
        let key = &self.key;
        vec![
            tenant.into(),
            key.name.as_str().into(),
            key.subject.as_str().into(),
            self.label.as_str().into(),
            (&key.hash).into(),
            json!(&*key.groups).to_string().into(),
            json!(key.servers.names()).to_string().into(),
            key.scopes.join(" ").into(),
            self.version.into(),
            self.created_ms.into(),
            key.since_ms.into(),
            key.expires_ms.into(),
        ]
    }

    fn record(&self, tenant: &str, kind: &str, author: &Author) -> Record {
        let key = &self.key;
        let mut detail = author.detail.clone();
        for (name, value) in [
            ("subject", json!(key.subject)),
            ("label", json!(self.label)),
            ("servers", json!(key.servers.names())),
            ("scopes", json!(&*key.scopes)),
        ] {
            detail.insert(name.to_owned(), value);
        }
        let target = format!("api_key {tenant}/{}", key.name);
        Record::new(Some(tenant), kind, &author.actor, &target, detail.into())
    }
}

impl OwnKeyAt<'_> {
    fn values(&self) -> Vec<Value> {
        let subject = Value::Text(self.subject.map(str::to_owned));
        vec![self.tenant.into(), self.name.into(), subject]
    }
}

/// Reads the keys of a person, of a tenant where the person is empty, or of all, in place of those in `issued`. A key that
/// did not change keeps its address, by which its callers are known. Equal groups, as those of one person, are kept once:
/// rows are read in parts, since each has them.
pub(super) async fn read(
    transaction: &mut Transaction,
    issued: &mut Issued,
    of: Option<(&str, &str)>,
) -> Result<(), Error> {
    let before = take(issued, of);
    let shared = before.values().map(|key| Arc::clone(&key.groups));
    let mut shared: HashSet<Arc<[String]>> = shared.collect();
    let mut behind = (String::new(), String::new());
    loop {
        let (behind_tenant, name) = (behind.0.as_str(), behind.1.as_str());
        let (sql, tenant, subject) = match of {
            None => (ALL, behind_tenant, None),
            // It was removed with its keys. Those that were made since have numbers of their own.
            Some((_, "")) => return Ok(()),
            Some((tenant, subject)) => (OF_PERSON, tenant, Some(subject)),
        };
        let mut values: Vec<Value> = vec![tenant.into(), name.into(), i64::from(PART).into()];
        values.extend(subject.map(Value::from));
        let rows = transaction.run(sql, values).await?;
        for row in &rows {
            let mut key = ListedOwnKey::of_row(row)?.key;
            if let Some(groups) = shared.get(&*key.groups) {
                key.groups = Arc::clone(groups);
            } else {
                shared.insert(Arc::clone(&key.groups));
            }
            let same = before.get(&key.hash).filter(|known| ***known == key);
            let key = same.map_or_else(|| Arc::new(key), Arc::clone);
            let known = issued.own_keys.entry(row.get("tenant")?).or_default();
            let known: &mut Known = Arc::make_mut(known);
            if let Some((previous, _)) = key.previous {
                known.insert(previous, Arc::clone(&key));
            }
            known.insert(key.hash, key);
        }
        match rows.last() {
            Some(last) if rows.len() == usize::from(PART) => {
                behind = (last.get("tenant")?, last.get("name")?);
            }
            _ => return Ok(()),
        }
    }
}

/// Takes the keys of a person, of a tenant where the person is empty, or of all, out of memory.
fn take(issued: &mut Issued, of: Option<(&str, &str)>) -> Known {
    let mut taken = Known::default();
    let tenants = issued.own_keys.iter_mut();
    for (_, known) in tenants.filter(|(name, _)| of.is_none_or(|(tenant, _)| tenant == *name)) {
        let is_of = |key: &OwnKey| of.is_none_or(|(_, one)| one.is_empty() || one == key.subject);
        let theirs = known.iter().filter(|(_, key)| is_of(key));
        taken.extend(theirs.map(|(hash, key)| (*hash, Arc::clone(key))));
        Arc::make_mut(known).retain(|_, key| !is_of(key));
    }
    taken
}

/// Drops keys that have expired from memory.
pub(super) fn drop_expired(issued: &mut Issued, now_ms: i64) {
    for known in issued.own_keys.values_mut() {
        if known.values().any(|key| key.expires_ms < now_ms) {
            Arc::make_mut(known).retain(|_, key| key.expires_ms >= now_ms);
        }
    }
    issued.own_keys.retain(|_, known| !known.is_empty());
}

/// Announces the end of all keys of a tenant, whose rows are removed with it.
pub(crate) async fn forget(
    transaction: &mut Transaction,
    tenant: &str,
    now_ms: i64,
) -> Result<(), Error> {
    if !transaction.run(ANY, vec![tenant.into()]).await?.is_empty() {
        number_own_keys(transaction, tenant, "", now_ms).await?;
    }
    Ok(())
}

/// Gives the keys of a person these groups, as JSON; false if they have them. Where there is no room for them and they
/// are more than before, the keys end: with the groups of before they might be worth more than their person.
pub(super) async fn tell(
    transaction: &mut Transaction,
    tenant: &str,
    (subject, groups): (&str, &str),
    now_ms: i64,
) -> Result<bool, Error> {
    let person = vec![tenant.into(), subject.into()];
    let before = count(transaction, BYTES_OF_PERSON, person).await?;
    let values = vec![tenant.into(), subject.into(), groups.into()];
    let is_told = !transaction.run(SET_GROUPS, values).await?.is_empty();
    if is_told {
        number_own_keys(transaction, tenant, subject, now_ms).await?;
        // One key had these groups unless they are more than before. So the locks on all keys are held here, and none is
        // waited for that is rotated at this instant, and waits for the number.
        let is_more = kept_bytes(groups) > before;
        if is_more && !has_room(transaction, tenant, (subject, groups), now_ms).await? {
            end_of(transaction, tenant, subject, now_ms).await?;
        }
    }
    Ok(is_told)
}

/// Ends the keys of a person whose groups have no room, with a record of each.
async fn end_of(
    transaction: &mut Transaction,
    tenant: &str,
    subject: &str,
    now_ms: i64,
) -> Result<(), Error> {
    let values = vec![tenant.into(), subject.into()];
    let ended = transaction.run(DELETE_OWN_KEYS, values).await?;
    let record = |row: &Row| {
        let (name, label): (String, String) = (row.get("name")?, row.get("label")?);
        let (of, target) = (Some(tenant), format!("api_key {tenant}/{name}"));
        let detail = json!({"subject": subject, "label": label, "why": NO_ROOM});
        let record = Record::new(of, "api_key.removed", "", &target, detail);
        Ok::<_, Error>(record)
    };
    let records: Result<Vec<Record>, Error> = ended.iter().map(record).collect();
    audit::append(transaction, now_ms, &records?).await?;
    tracing::warn!(
        tenant.id = tenant,
        "people with API keys are in so many groups that replicas keep no more of the tenant: \
         the keys of a person end, who may make others once there is room"
    );
    Ok(())
}

/// Reports whether there is room for the groups of a person, as JSON, beside those of others with keys. The lock on the
/// row of `changes` makes others wait that count.
async fn has_room(
    transaction: &mut Transaction,
    tenant: &str,
    (subject, groups): (&str, &str),
    now_ms: i64,
) -> Result<bool, Error> {
    let values = vec![tenant.into(), subject.into(), now_ms.into()];
    let others = count(transaction, BYTES_OF_OTHERS, values).await?;
    Ok(others.saturating_add(kept_bytes(groups)) <= GROUPS_KEPT)
}

/// What groups, as JSON, count as: 48 bytes for each text behind the first, as in [`BYTES_OF_OTHERS`].
fn kept_bytes(groups: &str) -> u64 {
    let bytes = groups.len() + TEXT * groups.matches(BETWEEN).count();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

async fn is_first(
    transaction: &mut Transaction,
    tenant: &str,
    (once, until_ms): Once<'_>,
) -> Result<bool, Error> {
    let values = vec![tenant.into(), once.into(), until_ms.into()];
    Ok(!transaction.run(USE_ONCE, values).await?.is_empty())
}

async fn count(
    transaction: &mut Transaction,
    sql: &'static str,
    values: Vec<Value>,
) -> Result<u64, Error> {
    let rows = transaction.run(sql, values).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.get("total"))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn list(text: &str) -> Result<Vec<String>, Error> {
    json_of(text)
}

fn json_of<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Bug(format!("an own key: {error}")))
}

fn hash(bytes: Vec<u8>) -> Result<[u8; 32], Error> {
    let bytes = bytes.try_into();
    bytes.map_err(|_| Error::Bug("the hash of an own key".to_owned()))
}

/// The most rows that are read at once: some MiB, since each may have tens of KiB.
const PART: u8 = 100;
/// The most bytes of texts of a page, but for a larger key.
const PAGE_BYTES: usize = 1 << 20;
/// The most that every replica keeps of the groups of a tenant's people with keys, in bytes of JSON and `TEXT`: those of
/// almost a thousand people with fifty groups each.
const GROUPS_KEPT: u64 = 4 << 20;
/// What a text takes in memory beside its bytes.
const TEXT: usize = 48;
/// Between two texts in JSON. Within one, quotes have a backslash before them.
const BETWEEN: &str = "\",\"";
/// Why keys end whose person has too many groups.
const NO_ROOM: &str = "replicas keep no more groups of people with API keys";

// Changes nothing, but takes the row lock in both databases.
const HOLD_IDENTITY: &str = "
    UPDATE identities
       SET groups = groups
     WHERE tenant = $1 AND subject = $2
    RETURNING groups";

const COUNT_OF_PERSON: &str = "
    SELECT COUNT(*) AS total
      FROM own_keys
     WHERE tenant = $1 AND subject = $2 AND expires_ms > $3";

const COUNT_OF_TENANT: &str = "
    SELECT COUNT(*) AS total
      FROM own_keys
     WHERE tenant = $1 AND expires_ms > $2";

// Those of one person are kept once: the longest are read, of one key, since a person may have a hundred.
const BYTES_OF_OTHERS: &str = r#"
    SELECT CAST(COALESCE(SUM(OCTET_LENGTH(groups)
                             + 16 * (OCTET_LENGTH(groups) - OCTET_LENGTH(REPLACE(groups, '","', '')))),
                         0) AS BIGINT) AS total
      FROM own_keys
     WHERE tenant = $1
       AND name IN (SELECT name
                      FROM (SELECT name,
                                   ROW_NUMBER() OVER (PARTITION BY subject
                                                          ORDER BY OCTET_LENGTH(groups) DESC, name) AS place
                              FROM own_keys
                             WHERE tenant = $1 AND subject <> $2 AND expires_ms > $3) AS keys
                     WHERE place = 1)"#;

// 16 for each byte between two texts, which are three.
const BYTES_OF_PERSON: &str = r#"
    SELECT CAST(COALESCE(MAX(OCTET_LENGTH(groups)
                             + 16 * (OCTET_LENGTH(groups) - OCTET_LENGTH(REPLACE(groups, '","', '')))),
                         0) AS BIGINT) AS total
      FROM own_keys
     WHERE tenant = $1 AND subject = $2"#;

const INSERT: &str = "
    INSERT INTO own_keys (tenant, name, subject, label, hash, groups, servers, scopes, version,
                          created_ms, since_ms, expires_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

const ROTATE: &str = "
    UPDATE own_keys
       SET previous = hash, hash = $5, version = version + 1, since_ms = $4,
           previous_ms = CASE WHEN expires_ms < $6 THEN expires_ms ELSE $6 END,
           expires_ms = $4 + CASE WHEN expires_ms - since_ms < $7 THEN expires_ms - since_ms ELSE $7 END
     WHERE tenant = $1 AND name = $2 AND subject = $3 AND expires_ms > $4
    RETURNING tenant, name, subject, label, hash, previous, previous_ms, groups, servers, scopes, version,
              created_ms, since_ms, expires_ms, used_ms";

const REMOVE: &str = "
    DELETE FROM own_keys
     WHERE tenant = $1 AND name = $2 AND (CAST($3 AS TEXT) IS NULL OR subject = $3)
    RETURNING tenant, name, subject, label, hash, previous, previous_ms, groups, servers, scopes, version,
              created_ms, since_ms, expires_ms, used_ms";

// Without the groups: each key of a person has all of them.
const LIST: &str = "
    SELECT tenant, name, subject, label, hash, previous, previous_ms, '[]' AS groups, servers, scopes, version,
           created_ms, since_ms, expires_ms, used_ms
      FROM own_keys
     WHERE tenant = $1 AND (CAST($2 AS TEXT) IS NULL OR subject = $2) AND expires_ms > $3 AND name > $4
     ORDER BY name
     LIMIT $5";

const ONE: &str = "
    SELECT tenant, name, subject, label, hash, previous, previous_ms, groups, servers, scopes, version,
           created_ms, since_ms, expires_ms, used_ms
      FROM own_keys
     WHERE tenant = $1 AND name = $2 AND (CAST($3 AS TEXT) IS NULL OR subject = $3)";

const ALL: &str = "
    SELECT tenant, name, subject, label, hash, previous, previous_ms, groups, servers, scopes, version,
           created_ms, since_ms, expires_ms, used_ms
      FROM own_keys
     WHERE (tenant, name) > ($1, $2)
     ORDER BY tenant, name
     LIMIT $3";

const OF_PERSON: &str = "
    SELECT tenant, name, subject, label, hash, previous, previous_ms, groups, servers, scopes, version,
           created_ms, since_ms, expires_ms, used_ms
      FROM own_keys
     WHERE tenant = $1 AND subject = $4 AND name > $2
     ORDER BY name
     LIMIT $3";

const NOTE_USE: &str = "
    UPDATE own_keys
       SET used_ms = $4
     WHERE tenant = $1 AND name = $2 AND subject = $3 AND (used_ms IS NULL OR used_ms < $4)";

const ANY: &str = "
    SELECT name
      FROM own_keys
     WHERE tenant = $1
     LIMIT 1";

const SET_GROUPS: &str = "
    UPDATE own_keys
       SET groups = $3
     WHERE tenant = $1 AND subject = $2 AND groups <> $3
    RETURNING name";

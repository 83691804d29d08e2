//! Signing keys of tenants.
//!
//! A key is published before its first signature, and after its last one for the lifetime of its
//! tokens. Not here: tokens (`oauth` issues them, `auth` verifies them), and reading by replicas
//! (`issued`).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::revocations;
use crate::{
    base::sha256,
    config::OauthSettings,
    database::{
        pool::{Author, Error, Pool, Record, Row, Transaction, audit},
        vault::{Place, Sealer, Vault},
    },
    declare::PublicKey,
};

/// The current signing key of a tenant.
#[derive(Clone)]
pub(crate) struct SigningKey {
    /// Its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// The private key, in PKCS#8.
    pub(crate) pkcs8: Arc<Zeroizing<Vec<u8>>>,
}

/// A signing key as shown to operators; times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedKey {
    /// Its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// Time of creation and publication.
    pub(crate) created_ms: i64,
    /// Time from which it signs.
    pub(crate) active_ms: i64,
    /// End of publication; none before a successor is created.
    pub(crate) retired_ms: Option<i64>,
}

/// The schedule of key rotation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// The time that a key is published before its first signature.
    ahead_ms: i64,
    /// The time that a key is published after its last signature.
    keep_ms: i64,
}

impl Schedule {
    /// Reads the schedule from the settings.
    pub(crate) fn of(settings: &OauthSettings) -> Self {
        let ms = |time: std::time::Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Self {
            ahead_ms: ms(settings.key_ahead),
            keep_ms: ms(settings.access).saturating_add(MARGIN_MS),
        }
    }
}

/// A cache of unsealed signing keys.
#[derive(Default)]
pub(crate) struct Signing {
    known: ArcSwap<HashMap<String, Arc<Opened>>>,
    /// Incremented when keys may have changed.
    generation: AtomicU64,
}

struct Opened {
    generation: u64,
    keys: Vec<(ListedKey, SigningKey)>,
}

impl Signing {
    /// Invalidates the cache.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn find(&self, tenant: &str, now_ms: i64) -> Option<SigningKey> {
        let known = self.known.load();
        let opened = known.get(tenant)?;
        let is_new = opened.generation == self.generation();
        is_new.then(|| current(&opened.keys, now_ms)).flatten()
    }

    fn keep(&self, tenant: &str, opened: Opened) {
        let opened = Arc::new(opened);
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            known.insert(tenant.to_owned(), Arc::clone(&opened));
            known
        });
    }
}

/// The newest key that is active at this time.
fn current(keys: &[(ListedKey, SigningKey)], now_ms: i64) -> Option<SigningKey> {
    let signs = keys.iter().filter(|(listed, _)| {
        listed.active_ms <= now_ms && listed.retired_ms.is_none_or(|retired| now_ms < retired)
    });
    let newest = signs.max_by(|(one, _), (other, _)| {
        (one.active_ms, &one.kid).cmp(&(other.active_ms, &other.kid))
    });
    newest.map(|(_, key)| key.clone())
}

/// Signing keys of tenants.
#[derive(Clone, Copy)]
pub(crate) struct SigningKeys<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
    pub(crate) cache: &'a Signing,
}

impl SigningKeys<'_> {
    /// Returns the key that signs for a tenant; creates it if needed.
    pub(crate) async fn current(self, tenant: &str) -> Result<SigningKey, Error> {
        let now_ms = self.pool.now_ms();
        if let Some(key) = self.cache.find(tenant, now_ms) {
            return Ok(key);
        }
        let generation = self.cache.generation();
        let rows = self.pool.read(KEYS_OF, vec![tenant.into()]).await?;
        let keys = opened(self.vault, &rows)?;
        if let Some(key) = current(&keys, now_ms) {
            self.cache.keep(tenant, Opened { generation, keys });
            return Ok(key);
        }
        // Writers of all replicas are serialised: one of several concurrent callers creates the
        // key.
        let mut transaction = self.pool.begin().await?;
        let rows = transaction.run(KEYS_OF, vec![tenant.into()]).await?;
        if let Some(key) = current(&opened(self.vault, &rows)?, now_ms) {
            return Ok(key);
        }
        let made = add((self.pool, self.vault), &mut transaction, tenant, now_ms).await?;
        revocations::number_keys(&mut transaction, tenant, None, now_ms).await?;
        transaction.commit().await?;
        self.cache.changed();
        Ok(made.1)
    }

    /// The signing keys of a tenant, newest first.
    pub(crate) async fn list(self, tenant: &str) -> Result<Vec<ListedKey>, Error> {
        let rows = self.pool.read(KEYS_OF, vec![tenant.into()]).await?;
        rows.iter().map(listed).collect()
    }

    /// Creates the next key of a tenant: published at once, active later.
    ///
    /// # Errors
    ///
    /// `Conflict` if a next key exists already; `NotFound`, `Unavailable`.
    pub(crate) async fn rotate(
        self,
        tenant: &str,
        schedule: Schedule,
        author: &Author,
    ) -> Result<ListedKey, Error> {
        let made = self
            .add_successor(tenant, schedule, i64::MIN, author)
            .await?;
        made.ok_or(Error::Conflict)
    }

    /// Creates the next key of every tenant whose newest key is older than `age_ms`; returns these
    /// tenants.
    pub(crate) async fn rotate_old(
        self,
        schedule: Schedule,
        age_ms: i64,
    ) -> Result<Vec<String>, Error> {
        let before_ms = self.pool.now_ms().saturating_sub(age_ms);
        let rows = self.pool.read(OLD_KEYS, vec![before_ms.into()]).await?;
        let mut rotated = Vec::new();
        let author = Author::named("rotation");
        for row in rows {
            let tenant: String = row.get("tenant")?;
            // Another replica may have been faster.
            match self.add_successor(&tenant, schedule, age_ms, &author).await {
                Ok(Some(_)) => rotated.push(tenant),
                Ok(None) | Err(Error::NotFound) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(rotated)
    }

    /// Creates the next key; none if one exists already, or if the newest is too young.
    async fn add_successor(
        self,
        tenant: &str,
        schedule: Schedule,
        age_ms: i64,
        author: &Author,
    ) -> Result<Option<ListedKey>, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin().await?;
        let rows = transaction.run(KEYS_OF, vec![tenant.into()]).await?;
        let keys: Vec<ListedKey> = rows.iter().map(listed).collect::<Result<_, _>>()?;
        let is_young = |key: &ListedKey| {
            key.active_ms > now_ms || (age_ms > 0 && key.created_ms >= now_ms - age_ms)
        };
        if keys.iter().any(is_young) {
            return Ok(None);
        }
        let active_ms = now_ms.saturating_add(schedule.ahead_ms);
        let (made, _) = add((self.pool, self.vault), &mut transaction, tenant, active_ms).await?;
        let retired_ms = active_ms.saturating_add(schedule.keep_ms);
        let values = vec![tenant.into(), made.kid.as_str().into(), retired_ms.into()];
        transaction.run(RETIRE_OTHERS, values).await?;
        revocations::number_keys(&mut transaction, tenant, None, now_ms).await?;
        let record = record(tenant, "added", &made.kid, author);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        transaction.commit().await?;
        self.cache.changed();
        Ok(Some(made))
    }

    /// Removes a key: its tokens are invalid once replicas read the revocation, and another key is
    /// active at once. Returns false if the key does not exist.
    pub(crate) async fn remove(
        self,
        tenant: &str,
        kid: &str,
        author: &Author,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin().await?;
        let values = vec![tenant.into(), kid.into()];
        if transaction.run(DELETE, values).await?.is_empty() {
            return Ok(false);
        }
        let rows = transaction.run(KEYS_OF, vec![tenant.into()]).await?;
        let left: Vec<ListedKey> = rows.iter().map(listed).collect::<Result<_, _>>()?;
        // Replicas know every published key: the next one becomes active, a retiring one stays.
        match left
            .iter()
            .find(|key| key.retired_ms.is_none_or(|at| at > now_ms))
        {
            Some(next) => {
                let active_ms = next.active_ms.min(now_ms);
                let values = vec![next.kid.as_str().into(), active_ms.into()];
                transaction.run(KEEP, values).await?;
            }
            None => _ = add((self.pool, self.vault), &mut transaction, tenant, now_ms).await?,
        }
        revocations::number_keys(&mut transaction, tenant, Some(kid), now_ms).await?;
        let record = record(tenant, "removed", kid, author);
        audit::append(&mut transaction, now_ms, &[record]).await?;
        transaction.commit().await?;
        self.cache.changed();
        Ok(true)
    }
}

/// The public keys of all tenants.
pub(super) async fn public_keys(
    transaction: &mut Transaction,
) -> Result<HashMap<String, Arc<[PublicKey]>>, Error> {
    let mut keys: HashMap<String, Vec<PublicKey>> = HashMap::new();
    for row in transaction.run(PUBLIC_KEYS, Vec::new()).await? {
        let public: Vec<u8> = row.get("public")?;
        let x = public.try_into();
        let x = x.map_err(|_| Error::Bug("a public key of another length".to_owned()))?;
        let of = keys.entry(row.get("tenant")?).or_default();
        let kid = row.get("kid")?;
        of.push(PublicKey { kid, x });
    }
    let keys = keys.into_iter();
    Ok(keys.map(|(tenant, keys)| (tenant, keys.into())).collect())
}

/// Removes retired keys; returns their number.
pub(super) async fn forget(transaction: &mut Transaction, now_ms: i64) -> Result<usize, Error> {
    let gone = transaction.run(DELETE_RETIRED, vec![now_ms.into()]).await?;
    let mut tenants: Vec<String> = gone
        .iter()
        .map(|row| row.get("tenant"))
        .collect::<Result<_, _>>()?;
    tenants.sort_unstable();
    tenants.dedup();
    for tenant in &tenants {
        revocations::number_keys(transaction, tenant, None, now_ms).await?;
    }
    Ok(gone.len())
}

/// Seals the keys again that another master key than the first has sealed: some in each transaction, which is what other
/// writers wait for.
pub(crate) async fn reseal(pool: &Pool, Sealer { keys, random }: &Sealer<'_>) -> Result<(), Error> {
    let mut after = Uuid::nil();
    loop {
        let mut transaction = pool.begin().await?;
        let values = vec![after.into(), Some(keys.beginning()).into()];
        let rows = transaction.run(PART, values).await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = last.get("id")?;
        for row in &rows {
            let id: Uuid = row.get("id")?;
            let sealed: Vec<u8> = row.get("secret")?;
            let name = id.simple().to_string();
            let plain = keys.open(place(&name), &sealed);
            let plain = plain.map_err(|_| Error::Bug("the seal of a signing key".to_owned()))?;
            let sealed = keys.seal(*random, place(&name), &plain);
            if sealed.is_none() {
                return Err(Error::no_randomness());
            }
            transaction
                .run(RESEAL, vec![id.into(), sealed.into()])
                .await?;
        }
        transaction.commit().await?;
    }
}

/// Creates a key that is active from `active_ms` on.
async fn add(
    (pool, vault): (&Pool, &Vault),
    transaction: &mut Transaction,
    tenant: &str,
    active_ms: i64,
) -> Result<(ListedKey, SigningKey), Error> {
    let pkcs8 =
        Ed25519KeyPair::generate_pkcs8(&vault.random).map_err(|_| Error::no_randomness())?;
    let pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
    let pair = Ed25519KeyPair::from_pkcs8(&pkcs8);
    let pair = pair.map_err(|_| Error::Bug("a key that was just made".to_owned()))?;
    let public = pair.public_key().as_ref();
    let kid = thumbprint(public);
    let id = Uuid::now_v7();
    let name = id.simple().to_string();
    // A value sealed under a rotated master key could not be opened.
    let keys = vault.current_keys(transaction).await?;
    let sealed = keys.seal(&vault.random, place(&name), &pkcs8);
    if sealed.is_none() {
        return Err(Error::no_randomness());
    }
    let created_ms = pool.now_ms();
    let values = vec![
        id.into(),
        tenant.into(),
        kid.as_str().into(),
        Some(public.to_vec()).into(),
        sealed.into(),
        created_ms.into(),
        active_ms.into(),
    ];
    transaction.run(INSERT, values).await?;
    let listed = ListedKey {
        kid: kid.clone(),
        created_ms,
        active_ms,
        retired_ms: None,
    };
    let pkcs8 = Arc::new(pkcs8);
    Ok((listed, SigningKey { kid, pkcs8 }))
}

/// The thumbprint of a public key (RFC 7638, section 3; RFC 8037, appendix A.3).
fn thumbprint(public: &[u8]) -> String {
    let x = URL_SAFE_NO_PAD.encode(public);
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(sha256(members.as_bytes()))
}

fn opened(vault: &Vault, rows: &[Row]) -> Result<Vec<(ListedKey, SigningKey)>, Error> {
    let one = |row: &Row| {
        let id: Uuid = row.get("id")?;
        let sealed: Vec<u8> = row.get("secret")?;
        let plain = vault.open(place(&id.simple().to_string()), &sealed);
        let plain = plain.ok_or_else(|| Error::Bug("the seal of a signing key".to_owned()))?;
        let listed = listed(row)?;
        let key = SigningKey {
            kid: listed.kid.clone(),
            pkcs8: Arc::new(plain),
        };
        Ok((listed, key))
    };
    rows.iter().map(one).collect()
}

fn listed(row: &Row) -> Result<ListedKey, Error> {
    Ok(ListedKey {
        kid: row.get("kid")?,
        created_ms: row.get("created_ms")?,
        active_ms: row.get("active_ms")?,
        retired_ms: row.get("retired_ms")?,
    })
}

fn record(tenant: &str, what: &str, kid: &str, author: &Author) -> Record {
    let mut detail = author.detail.clone();
    detail.insert("kid".to_owned(), json!(kid));
    let (kind, target) = (
        format!("signing_key.{what}"),
        format!("signing_key {tenant}/{kid}"),
    );
    Record::new(Some(tenant), &kind, &author.actor, &target, detail.into())
}

fn place(row: &str) -> Place<'_> {
    Place {
        table: "signing_keys",
        row,
        column: "secret",
    }
}

/// Margin beyond the lifetime of tokens, for clock differences and the delay of the last token.
const MARGIN_MS: i64 = 120_000;

const KEYS_OF: &str = "
    SELECT id, kid, secret, created_ms, active_ms, retired_ms
      FROM signing_keys
     WHERE tenant = $1
     ORDER BY active_ms DESC, kid";

const OLD_KEYS: &str = "
    SELECT tenant
      FROM signing_keys
     GROUP BY tenant
    HAVING MAX(created_ms) < $1";

const PUBLIC_KEYS: &str = "
    SELECT tenant, kid, public
      FROM signing_keys
     ORDER BY tenant, active_ms DESC, kid";

const PART: &str = "
    SELECT id, secret
      FROM signing_keys
     WHERE id > $1
       AND SUBSTR(secret, 1, 9) <> $2
     ORDER BY id
     LIMIT 100";

const INSERT: &str = "
    INSERT INTO signing_keys (id, tenant, kid, public, secret, created_ms, active_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

const RETIRE_OTHERS: &str = "
    UPDATE signing_keys
       SET retired_ms = $3
     WHERE tenant = $1 AND kid <> $2 AND retired_ms IS NULL";

const KEEP: &str = "
    UPDATE signing_keys
       SET active_ms = $2, retired_ms = NULL
     WHERE kid = $1";

const DELETE: &str = "
    DELETE FROM signing_keys
     WHERE tenant = $1 AND kid = $2
    RETURNING kid";

const DELETE_RETIRED: &str = "
    DELETE FROM signing_keys
     WHERE retired_ms <= $1
    RETURNING tenant";

const RESEAL: &str = "
    UPDATE signing_keys
       SET secret = $2
     WHERE id = $1";

//! Secrets in the slots of servers: of a tenant, or of one person, sealed.
//!
//! Every change is numbered like a revocation, so that all replicas start the children of its holder
//! again; so is a restart of a server. Not here: the slots themselves (`declare/launch`), and secrets of declared objects
//! (`secrets`).

use std::{collections::BTreeMap, num::NonZeroU64, slice};

use super::{
    super::{
        oauth::{grants::REVOKED, revocations},
        pool::{Author, Error, Pool, Record, Row, Transaction, Value, audit},
        vault::{Keyring, Place, Sealer, Vault},
    },
    rows::Selection,
};
use crate::{
    base::{Random, Secret},
    config::Wrong,
    declare::{Kind, ObjectName, PLACE, SecretChange, machine_subject},
};

/// Secrets in the slots of the servers of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Secrets<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
}

/// The holder of secrets for a server; the tenant itself if it has no name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderAt<'h> {
    /// The tenant.
    pub(crate) tenant: &'h str,
    /// The server.
    pub(crate) server: &'h str,
    /// The name of a person or another principal.
    pub(crate) holder: Option<&'h str>,
}

/// A stored secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredSecret {
    /// The server.
    pub(crate) server: String,
    /// The holder; none for the tenant itself.
    pub(crate) holder: Option<String>,
    /// The slot.
    pub(crate) name: String,
    /// The time of the last change, in milliseconds since 1970.
    pub(crate) updated_ms: i64,
}

/// The values of a holder, and those of its tenant.
pub(crate) struct Values {
    /// By their slots.
    pub(crate) own: BTreeMap<String, Secret>,
    /// Those of the tenant.
    pub(crate) of_tenant: BTreeMap<String, Secret>,
}

/// The most secrets of one tenant, which backups and changes of the master key have to carry.
const MOST: u64 = 20_000;
/// The most bytes of a holder's name.
const HOLDER_MAX: usize = 1 << 10;

impl Secrets<'_> {
    /// Stores a secret, within the tenant's quota of objects; the same value again changes nothing. `auth_ms` is the
    /// time at which the person logged in who sets it: a later person of that name must not inherit it.
    ///
    /// # Errors
    ///
    /// `NotFound` without the server, or if all that the person had here has ended since; `Invalid` for a holder that
    /// cannot be one, or too many secrets.
    pub(crate) async fn put(
        self,
        of: HolderAt<'_>,
        name: &str,
        (value, auth_ms): (&Secret, Option<i64>),
        quota: Option<NonZeroU64>,
        author: &Author,
    ) -> Result<(), Error> {
        check_holder(of.holder)?;
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin().await?;
        if let (Some(holder), Some(auth_ms)) = (of.holder, auth_ms) {
            let (tenant, no_client) = (of.tenant.into(), "".into());
            let revoked = vec![tenant, holder.into(), no_client, auth_ms.into()];
            if !transaction.run(REVOKED, revoked).await?.is_empty() {
                return Err(Error::NotFound);
            }
        }
        let server = vec![of.tenant.into(), of.server.into()];
        if transaction.run(SERVER, server).await?.is_empty() {
            return Err(Error::NotFound);
        }
        let known = transaction.run(ONE, key(of, name)).await?;
        if let Some(row) = known.first() {
            let old = self
                .vault
                .open(place(&row_of(of), name), &row.get::<Vec<u8>>("value")?);
            if old.is_some_and(|old| old[..] == *value.expose().as_bytes()) {
                return Ok(());
            }
        } else {
            admit(&mut transaction, of.tenant, quota).await?;
        }
        // A value sealed under a rotated master key could not be opened.
        let keys = self.vault.current_keys(&mut transaction).await?;
        let plain = value.expose().as_bytes();
        let sealed = keys.seal(&self.vault.random, place(&row_of(of), name), plain);
        if sealed.is_none() {
            return Err(Error::no_randomness());
        }
        let mut values = key(of, name);
        values.extend([sealed.into(), now_ms.into()]);
        transaction.run(PUT, values).await?;
        changed(&mut transaction, of, ("secret.set", name), author, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// Removes a secret; returns false if there is none.
    pub(crate) async fn remove(
        self,
        of: HolderAt<'_>,
        name: &str,
        author: &Author,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = revocations::begin_beside(self.pool).await?;
        if transaction.run(DELETE, key(of, name)).await?.is_empty() {
            return Ok(false);
        }
        changed(
            &mut transaction,
            of,
            ("secret.removed", name),
            author,
            now_ms,
        )
        .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Restarts the children of a server at every replica, now or after their calls: they may be anywhere, and each may
    /// have an old value.
    pub(crate) async fn restart(
        self,
        [tenant, server]: [&str; 2],
        is_now: bool,
        record: &Record,
    ) -> Result<(), Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin().await?;
        audit::append(&mut transaction, now_ms, slice::from_ref(record)).await?;
        let change = SecretChange {
            tenant: tenant.to_owned(),
            server: server.to_owned(),
            is_now,
            ..SecretChange::default()
        };
        revocations::number_secret(&mut transaction, &change, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// The number of a tenant's secrets.
    pub(crate) async fn count(self, tenant: &str) -> Result<u64, Error> {
        let rows = self.pool.read(COUNT, vec![tenant.into()]).await?;
        rows.first().map_or(Ok(0), |row| number(row, "secrets"))
    }

    /// The secrets of a server after `after`, a holder and a slot, without their values; of one holder if
    /// one is named.
    pub(crate) async fn of_server(
        self,
        of: HolderAt<'_>,
        after: (&str, &str),
        limit: usize,
    ) -> Result<Vec<StoredSecret>, Error> {
        let values = vec![
            of.tenant.into(),
            of.server.into(),
            after.0.into(),
            after.1.into(),
            i64::from(of.holder.is_some()).into(),
            of.holder.unwrap_or_default().into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.pool.read(OF_SERVER, values).await?;
        rows.iter().map(stored).collect()
    }

    /// The secrets of a holder for every server, without their values.
    pub(crate) async fn of_holder(
        self,
        tenant: &str,
        holder: &str,
    ) -> Result<Vec<StoredSecret>, Error> {
        let values = vec![tenant.into(), holder.into()];
        let rows = self.pool.read(OF_HOLDER, values).await?;
        rows.iter().map(stored).collect()
    }

    /// The values that a child of a server may need.
    ///
    /// # Errors
    ///
    /// `Bug` for a value that does not open.
    pub(crate) async fn values(self, of: HolderAt<'_>) -> Result<Values, Error> {
        let values = vec![
            of.tenant.into(),
            of.server.into(),
            of.holder.unwrap_or_default().into(),
        ];
        let mut found = Values {
            own: BTreeMap::new(),
            of_tenant: BTreeMap::new(),
        };
        for row in self.pool.read(VALUES, values).await? {
            let (secret, value) = (stored(&row)?, row.get::<Vec<u8>>("value")?);
            let holder = secret.holder.as_deref();
            let row = row_of(HolderAt { holder, ..of });
            let plain = self.vault.open(place(&row, &secret.name), &value);
            let plain = plain.and_then(|plain| String::from_utf8(plain.to_vec()).ok());
            let plain = plain.ok_or_else(|| Error::Bug("the seal of a secret".to_owned()))?;
            let kept = match holder {
                Some(_) => &mut found.own,
                None => &mut found.of_tenant,
            };
            kept.insert(secret.name, Secret::new(plain));
        }
        Ok(found)
    }
}

/// How many secrets each of the selected tenants has; one without secrets is not listed.
pub(super) async fn counts(
    transaction: &mut Transaction,
    selection: Selection<'_>,
) -> Result<BTreeMap<String, u64>, Error> {
    let (sql, values) = match selection {
        Selection::All => (COUNTS, Vec::new()),
        Selection::Tenant(tenant) => (COUNT, vec![tenant.into()]),
        Selection::Operators | Selection::One(_) | Selection::Page { .. } => {
            return Ok(BTreeMap::new());
        }
    };
    let rows = transaction.run(sql, values).await?;
    let counts = rows
        .iter()
        .map(|row| Ok((row.get("tenant")?, number(row, "secrets")?)));
    counts.collect()
}

/// Refuses a further secret of a tenant that has as many, or as many objects, as it may have.
async fn admit(
    transaction: &mut Transaction,
    tenant: &str,
    quota: Option<NonZeroU64>,
) -> Result<(), Error> {
    let rows = transaction.run(USED, vec![tenant.into()]).await?;
    let row = rows.first();
    let row = row.ok_or_else(|| Error::Bug("no count of secrets".to_owned()))?;
    let secrets = number(row, "secrets")?;
    let invalid = |what: String, remedy: &str, key: &str| {
        Err(Error::Invalid(vec![
            Wrong::new(what, remedy).at(PLACE, key),
        ]))
    };
    if secrets >= MOST {
        let what = format!("the tenant has {MOST} secrets, which is the most");
        return invalid(what, "remove those that no server needs", "value");
    }
    let objects = secrets + number(row, "objects")? + 1;
    if let Some(quota) = quota.filter(|quota| objects > quota.get()) {
        let what = format!("permits {quota} objects, and there would be {objects}");
        let remedy = "remove objects or secrets of the tenant, or let an operator raise the quota";
        return invalid(what, remedy, &format!("tenants.{tenant}.quotas.objects"));
    }
    Ok(())
}

/// A count, which is never negative.
fn number(row: &Row, column: &str) -> Result<u64, Error> {
    Ok(u64::try_from(row.get::<i64>(column)?).unwrap_or(0))
}

/// Removes the secrets of a removed object, so that a later object of that name does not inherit them.
pub(super) async fn forget(
    transaction: &mut Transaction,
    removed: &ObjectName,
) -> Result<(), Error> {
    let name = match removed.kind() {
        Kind::Client => machine_subject(removed.name()),
        _ => removed.name().to_owned(),
    };
    let values = vec![removed.owner().unwrap_or_default().into(), name.into()];
    match removed.kind() {
        Kind::Server => transaction.run(FORGET_SERVER, values).await?,
        Kind::User | Kind::Client => transaction.run(FORGET_HOLDER, values).await?,
        _ => return Ok(()),
    };
    Ok(())
}

/// Seals the secrets again that another key than the first has sealed: some in each transaction, which is what other
/// writers wait for.
pub(crate) async fn reseal(pool: &Pool, Sealer { keys, random }: &Sealer<'_>) -> Result<(), Error> {
    let mut after: Vec<Value> = vec!["".into(), "".into(), "".into(), "".into()];
    loop {
        let mut transaction = pool.begin().await?;
        after.push(Some(keys.beginning()).into());
        let rows = transaction.run(PART, after).await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        let (tenant, secret) = (last.get::<String>("tenant")?, stored(last)?);
        let of = HolderAt {
            tenant: &tenant,
            server: &secret.server,
            holder: secret.holder.as_deref(),
        };
        after = key(of, &secret.name);
        reseal_part(&mut transaction, (keys, *random), &rows).await?;
        transaction.commit().await?;
    }
}

async fn reseal_part(
    transaction: &mut Transaction,
    (keys, random): (&Keyring, &Random),
    rows: &[Row],
) -> Result<(), Error> {
    for row in rows {
        let (secret, sealed) = (stored(row)?, row.get::<Vec<u8>>("value")?);
        let tenant: String = row.get("tenant")?;
        let of = HolderAt {
            tenant: &tenant,
            server: &secret.server,
            holder: secret.holder.as_deref(),
        };
        let (row, name) = (row_of(of), &secret.name);
        let plain = keys.open(place(&row, name), &sealed);
        let plain = plain.map_err(|_| Error::Bug("the seal of a secret".to_owned()))?;
        let sealed = keys.seal(random, place(&row, name), &plain);
        if sealed.is_none() {
            return Err(Error::no_randomness());
        }
        let mut values = key(of, name);
        values.push(sealed.into());
        transaction.run(RESEAL, values).await?;
    }
    Ok(())
}

/// Records a change and announces it to replicas, last in its transaction.
async fn changed(
    transaction: &mut Transaction,
    of: HolderAt<'_>,
    (kind, name): (&str, &str),
    author: &Author,
    now_ms: i64,
) -> Result<(), Error> {
    let mut detail = author.detail.clone();
    detail.insert("holder".to_owned(), of.holder.into());
    let target = format!("secret {}/{}/{name}", of.tenant, of.server);
    let record = Record::new(Some(of.tenant), kind, &author.actor, &target, detail.into());
    audit::append(transaction, now_ms, &[record]).await?;
    let change = SecretChange {
        tenant: of.tenant.to_owned(),
        server: of.server.to_owned(),
        holder: of.holder.map(str::to_owned),
        upstream: None,
        is_now: false,
    };
    revocations::number_secret(transaction, &change, now_ms).await?;
    Ok(())
}

fn check_holder(holder: Option<&str>) -> Result<(), Error> {
    let fits = |name: &str| !name.is_empty() && !name.contains('\0') && name.len() <= HOLDER_MAX;
    if holder.is_none_or(fits) {
        return Ok(());
    }
    let what =
        format!("is no name of a holder: empty, longer than {HOLDER_MAX} bytes, or with a NUL");
    let wrong = Wrong::new(what, "write the subject of a person");
    Err(Error::Invalid(vec![wrong.at(PLACE, "subject")]))
}

fn key(of: HolderAt<'_>, name: &str) -> Vec<Value> {
    vec![
        of.tenant.into(),
        of.server.into(),
        of.holder.unwrap_or_default().into(),
        name.into(),
    ]
}

fn stored(row: &Row) -> Result<StoredSecret, Error> {
    let holder: String = row.get("holder")?;
    Ok(StoredSecret {
        server: row.get("server")?,
        holder: (!holder.is_empty()).then_some(holder),
        name: row.get("name")?,
        updated_ms: row.get("updated_ms")?,
    })
}

/// The row of a holder's secrets in their seal; JSON keeps the parts apart.
fn row_of(of: HolderAt<'_>) -> String {
    serde_json::json!([of.tenant, of.server, of.holder]).to_string()
}

fn place<'p>(row: &'p str, name: &'p str) -> Place<'p> {
    Place {
        table: "secrets",
        row,
        column: name,
    }
}

const SERVER: &str = "
    SELECT name
      FROM servers
     WHERE tenant = $1 AND name = $2";

const ONE: &str = "
    SELECT value
      FROM secrets
     WHERE tenant = $1 AND server = $2 AND holder = $3 AND name = $4";

const COUNT: &str = "
    SELECT tenant, COUNT(*) AS secrets
      FROM secrets
     WHERE tenant = $1
     GROUP BY tenant";

const COUNTS: &str = "
    SELECT tenant, COUNT(*) AS secrets
      FROM secrets
     GROUP BY tenant";

const USED: &str = "
    SELECT (SELECT COUNT(*) FROM secrets WHERE tenant = $1) AS secrets,
           (SELECT COUNT(*) FROM servers WHERE tenant = $1)
           + (SELECT COUNT(*) FROM users WHERE tenant = $1)
           + (SELECT COUNT(*) FROM clients WHERE tenant = $1)
           + (SELECT COUNT(*) FROM providers WHERE tenant = $1)
           + (SELECT COUNT(*) FROM upstreams WHERE tenant = $1)
           + (SELECT COUNT(*) FROM api_keys WHERE tenant = $1) AS objects";

const PUT: &str = "
    INSERT INTO secrets (tenant, server, holder, name, value, updated_ms)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (tenant, server, holder, name)
    DO UPDATE SET value = excluded.value, updated_ms = excluded.updated_ms";

const DELETE: &str = "
    DELETE FROM secrets
     WHERE tenant = $1 AND server = $2 AND holder = $3 AND name = $4
    RETURNING name";

const OF_SERVER: &str = "
    SELECT server, holder, name, updated_ms
      FROM secrets
     WHERE tenant = $1 AND server = $2
       AND (holder > $3 OR (holder = $3 AND name > $4))
       AND ($5 = 0 OR holder = $6)
     ORDER BY holder, name
     LIMIT $7";

const OF_HOLDER: &str = "
    SELECT server, holder, name, updated_ms
      FROM secrets
     WHERE tenant = $1 AND holder = $2";

const VALUES: &str = "
    SELECT server, holder, name, value, updated_ms
      FROM secrets
     WHERE tenant = $1 AND server = $2 AND holder IN ('', $3)";

const PART: &str = "
    SELECT tenant, server, holder, name, value, updated_ms
      FROM secrets
     WHERE (tenant, server, holder, name) > ($1, $2, $3, $4)
       AND SUBSTR(value, 1, 9) <> $5
     ORDER BY tenant, server, holder, name
     LIMIT 100";

const RESEAL: &str = "
    UPDATE secrets
       SET value = $5
     WHERE tenant = $1 AND server = $2 AND holder = $3 AND name = $4";

const FORGET_SERVER: &str = "
    DELETE FROM secrets
     WHERE tenant = $1 AND server = $2";

const FORGET_HOLDER: &str = "
    DELETE FROM secrets
     WHERE tenant = $1 AND holder = $2";

//! Connections of people to upstreams: their access and refresh tokens, sealed.
//!
//! A change is numbered like a revocation, so that all replicas give the new token to the children that
//! run, and its number is the version of the connection. Not here: the requests to upstreams
//! (`oauth/upstreams`).

use serde_json::json;

use super::super::{
    oauth::{grants::REVOKED, revocations},
    pool::{Author, Error, Pool, Record, Row, Transaction, Value, audit},
    vault::{Keyring, Place, Sealer, Tokens, Vault},
};
use crate::{
    base::Random,
    config::Wrong,
    declare::{Kind, ObjectName, PLACE, SecretChange},
};

/// Connections of people to the upstreams of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Connections<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
}

/// The place of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionAt<'c> {
    /// The tenant.
    pub(crate) tenant: &'c str,
    /// The upstream.
    pub(crate) upstream: &'c str,
    /// The subject of the person.
    pub(crate) holder: &'c str,
}

/// A stored connection.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Its tokens.
    pub(crate) tokens: Tokens,
    /// The number of its last change.
    pub(crate) version: i64,
    /// The time at which the upstream was last asked about the access token.
    pub(crate) checked_ms: i64,
    /// The end of the last lease, in milliseconds since 1970.
    lease_ms: i64,
}

impl Connection {
    /// Reports whether a request for new tokens was under way when this was read, or one has just failed.
    pub(crate) fn is_leased(&self, now_ms: i64) -> bool {
        self.lease_ms > now_ms
    }
}

/// A connection without its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredConnection {
    /// The upstream.
    pub(crate) upstream: String,
    /// The subject of the person.
    pub(crate) holder: String,
    /// The time at which the person connected, in milliseconds since 1970.
    pub(crate) connected_ms: i64,
    /// The time of its last tokens.
    pub(crate) updated_ms: i64,
    /// The time at which the access token expires, if that was said.
    pub(crate) expires_ms: Option<i64>,
    /// Whether the access token can be refreshed.
    pub(crate) is_refreshable: bool,
    /// The service and the client that the tokens are for; none if they do not open.
    pub(crate) authority: Option<String>,
}

/// The connections to list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionFilter<'f> {
    /// To this upstream.
    pub(crate) upstream: Option<&'f str>,
    /// Of this person.
    pub(crate) holder: Option<&'f str>,
    /// Behind that of this upstream and this person.
    pub(crate) after: (&'f str, &'f str),
}

/// The most upstreams of one person that are read.
const OF_ONE: usize = 1_000;
/// The most connections of one tenant, which backups and changes of the master key have to carry.
const MOST: i64 = 20_000;

impl Connections<'_> {
    /// Stores the tokens of a new connection, of a person who logged in at `auth_ms`, in place of an old one. Returns
    /// false if all that the person had here has ended since: a later person of that name must not inherit it.
    ///
    /// # Errors
    ///
    /// `NotFound` without the upstream; `Invalid` for too many connections.
    pub(crate) async fn put(
        self,
        of: ConnectionAt<'_>,
        tokens: &Tokens,
        auth_ms: i64,
        author: &Author,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = self.pool.begin().await?;
        let no_client = "";
        let revoked = vec![
            of.tenant.into(),
            of.holder.into(),
            no_client.into(),
            auth_ms.into(),
        ];
        if !transaction.run(REVOKED, revoked).await?.is_empty() {
            return Ok(false);
        }
        let upstream = vec![of.tenant.into(), of.upstream.into()];
        if transaction.run(UPSTREAM, upstream).await?.is_empty() {
            return Err(Error::NotFound);
        }
        let count = transaction.run(COUNT_OTHERS, key(of)).await?;
        let count = count.first().map(|row| row.get::<i64>("count"));
        if count.transpose()?.unwrap_or(0) >= MOST {
            let what = format!("the tenant has {MOST} connections, which is the most");
            let wrong = Wrong::new(what, "remove upstreams that no server needs");
            return Err(Error::Invalid(vec![wrong.at(PLACE, "upstream")]));
        }
        let sealed = self.sealed(&mut transaction, of, tokens).await?;
        let mut values = key(of);
        values.extend([Some(sealed).into(), now_ms.into()]);
        transaction.run(PUT, values).await?;
        record(&mut transaction, of, "upstream.connected", author, now_ms).await?;
        announce(&mut transaction, of, now_ms).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The connection; none without one.
    ///
    /// # Errors
    ///
    /// `Bug` for tokens that do not open.
    pub(crate) async fn get(self, of: ConnectionAt<'_>) -> Result<Option<Connection>, Error> {
        let rows = self.pool.read(ONE, key(of)).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let (at, sealed) = (row_of(of), row.get::<Vec<u8>>("value")?);
        let plain = self.vault.open(place(&at), &sealed);
        let tokens = plain.and_then(|plain| Tokens::of_json(&plain));
        Ok(Some(Connection {
            tokens: tokens.ok_or_else(broken)?,
            version: row.get("version")?,
            checked_ms: row.get("checked_ms")?,
            lease_ms: row.get("lease_ms")?,
        }))
    }

    /// The upstreams to which a person is connected.
    pub(crate) async fn of_holder(
        self,
        tenant: &str,
        holder: &str,
    ) -> Result<Vec<StoredConnection>, Error> {
        let filter = ConnectionFilter {
            holder: Some(holder),
            ..ConnectionFilter::default()
        };
        self.list(tenant, filter, OF_ONE).await
    }

    /// Connections of a tenant, by upstream and person.
    pub(crate) async fn list(
        self,
        tenant: &str,
        filter: ConnectionFilter<'_>,
        limit: usize,
    ) -> Result<Vec<StoredConnection>, Error> {
        let own = |text: Option<&str>| Value::Text(text.map(str::to_owned));
        let values = vec![
            tenant.into(),
            own(filter.upstream),
            own(filter.holder),
            filter.after.0.into(),
            filter.after.1.into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.pool.read(LIST, values).await?;
        rows.iter().map(|row| self.stored(tenant, row)).collect()
    }

    fn stored(self, tenant: &str, row: &Row) -> Result<StoredConnection, Error> {
        let (upstream, holder): (String, String) = (row.get("upstream")?, row.get("holder")?);
        let at = row_of(ConnectionAt {
            tenant,
            upstream: &upstream,
            holder: &holder,
        });
        let plain = self.vault.open(place(&at), &row.get::<Vec<u8>>("value")?);
        let tokens = plain.and_then(|plain| Tokens::of_json(&plain));
        Ok(StoredConnection {
            upstream,
            holder,
            connected_ms: row.get("connected_ms")?,
            updated_ms: row.get("updated_ms")?,
            expires_ms: tokens.as_ref().and_then(|tokens| tokens.expires_ms),
            is_refreshable: tokens
                .as_ref()
                .is_some_and(|tokens| tokens.refresh.is_some()),
            authority: tokens.map(|tokens| tokens.authority),
        })
    }

    /// Takes the lease to refresh the tokens of `known` until `until_ms`; false if another replica has it, or had it
    /// when `known` was read, or if that is an old version. A rotated refresh token that is used twice may end the
    /// connection at the upstream (RFC 9700, section 4.14.2).
    pub(crate) async fn lease(
        self,
        of: ConnectionAt<'_>,
        known: &Connection,
        until_ms: i64,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        // Children and starts that wait come every moment: no write for what cannot be had.
        if known.is_leased(now_ms) {
            return Ok(false);
        }
        let mut values = key(of);
        values.extend([known.version.into(), until_ms.into(), now_ms.into()]);
        Ok(!self.pool.write(LEASE, values).await?.is_empty())
    }

    /// Changes the end of the lease that this replica has.
    pub(crate) async fn end_lease(
        self,
        of: ConnectionAt<'_>,
        version: i64,
        at_ms: i64,
    ) -> Result<(), Error> {
        let mut values = key(of);
        values.extend([version.into(), at_ms.into()]);
        self.pool.write(END_LEASE, values).await?;
        Ok(())
    }

    /// Stores refreshed tokens in place of those of this version; false if it is an old one.
    pub(crate) async fn refreshed(
        self,
        of: ConnectionAt<'_>,
        version: i64,
        tokens: &Tokens,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = revocations::begin_beside(self.pool).await?;
        let sealed = self.sealed(&mut transaction, of, tokens).await?;
        let mut values = key(of);
        values.extend([version.into(), Some(sealed).into(), now_ms.into()]);
        if transaction.run(REFRESHED, values).await?.is_empty() {
            return Ok(false);
        }
        announce(&mut transaction, of, now_ms).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Takes the turn to ask the upstream about the access token of this version, unless that was done
    /// after `since_ms`.
    pub(crate) async fn check(
        self,
        of: ConnectionAt<'_>,
        version: i64,
        since_ms: i64,
    ) -> Result<bool, Error> {
        let mut values = key(of);
        values.extend([version.into(), self.pool.now_ms().into(), since_ms.into()]);
        Ok(!self.pool.write(CHECK, values).await?.is_empty())
    }

    /// Removes a connection, of this version if one is given; returns false if there is none. `kind` is
    /// that of the audit record.
    pub(crate) async fn remove(
        self,
        of: ConnectionAt<'_>,
        version: Option<i64>,
        kind: &str,
        author: &Author,
    ) -> Result<bool, Error> {
        let now_ms = self.pool.now_ms();
        let mut transaction = revocations::begin_beside(self.pool).await?;
        let mut values = key(of);
        values.extend([
            i64::from(version.is_some()).into(),
            version.unwrap_or(0).into(),
        ]);
        if transaction.run(DELETE, values).await?.is_empty() {
            return Ok(false);
        }
        record(&mut transaction, of, kind, author, now_ms).await?;
        announce(&mut transaction, of, now_ms).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn sealed(
        self,
        transaction: &mut Transaction,
        of: ConnectionAt<'_>,
        tokens: &Tokens,
    ) -> Result<Vec<u8>, Error> {
        // Tokens sealed under a rotated master key could not be opened.
        let keys = self.vault.current_keys(transaction).await?;
        let (row, plain) = (row_of(of), tokens.to_json());
        let sealed = keys.seal(&self.vault.random, place(&row), plain.as_bytes());
        sealed.ok_or_else(Error::no_randomness)
    }
}

/// Removes the connections of a removed object, so that a later object of that name does not inherit them.
pub(super) async fn forget(
    transaction: &mut Transaction,
    removed: &ObjectName,
) -> Result<(), Error> {
    let values = vec![
        removed.owner().unwrap_or_default().into(),
        removed.name().into(),
    ];
    match removed.kind() {
        Kind::Upstream => transaction.run(FORGET_UPSTREAM, values).await?,
        Kind::User => transaction.run(FORGET_HOLDER, values).await?,
        _ => return Ok(()),
    };
    Ok(())
}

/// Seals the tokens of connections again that another key than the first has sealed: some in each transaction, which is
/// what other writers wait for.
pub(crate) async fn reseal(pool: &Pool, Sealer { keys, random }: &Sealer<'_>) -> Result<(), Error> {
    let mut after: Vec<Value> = vec!["".into(), "".into(), "".into()];
    loop {
        let mut transaction = pool.begin().await?;
        after.push(Some(keys.beginning()).into());
        let rows = transaction.run(PART, after).await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        let names = names(last)?;
        after = names.iter().map(|name| name.as_str().into()).collect();
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
        let ([tenant, upstream, holder], sealed) = (names(row)?, row.get::<Vec<u8>>("value")?);
        let of = ConnectionAt {
            tenant: &tenant,
            upstream: &upstream,
            holder: &holder,
        };
        let row = row_of(of);
        let plain = keys.open(place(&row), &sealed).map_err(|_| broken())?;
        let sealed = keys.seal(random, place(&row), &plain);
        let mut values = key(of);
        values.push(Some(sealed.ok_or_else(Error::no_randomness)?).into());
        transaction.run(RESEAL, values).await?;
    }
    Ok(())
}

fn names(row: &Row) -> Result<[String; 3], Error> {
    Ok([row.get("tenant")?, row.get("upstream")?, row.get("holder")?])
}

async fn record(
    transaction: &mut Transaction,
    of: ConnectionAt<'_>,
    kind: &str,
    author: &Author,
    now_ms: i64,
) -> Result<(), Error> {
    let mut detail = author.detail.clone();
    detail.insert("holder".to_owned(), of.holder.into());
    let target = format!("upstream {}/{}", of.tenant, of.upstream);
    let record = Record::new(Some(of.tenant), kind, &author.actor, &target, detail.into());
    Ok(audit::append(transaction, now_ms, &[record]).await?)
}

/// Announces a change to replicas, last in its transaction; its number becomes the version.
async fn announce(
    transaction: &mut Transaction,
    of: ConnectionAt<'_>,
    now_ms: i64,
) -> Result<(), Error> {
    let change = SecretChange {
        tenant: of.tenant.to_owned(),
        server: String::new(),
        upstream: Some(of.upstream.to_owned()),
        holder: Some(of.holder.to_owned()),
        is_now: false,
    };
    let number = revocations::number_secret(transaction, &change, now_ms).await?;
    let mut values = key(of);
    values.push(number.into());
    transaction.run(VERSION, values).await?;
    Ok(())
}

fn key(of: ConnectionAt<'_>) -> Vec<Value> {
    vec![of.tenant.into(), of.upstream.into(), of.holder.into()]
}

/// The row of a connection in its seal; JSON keeps the parts apart.
fn row_of(of: ConnectionAt<'_>) -> String {
    json!([of.tenant, of.upstream, of.holder]).to_string()
}

fn place(row: &str) -> Place<'_> {
    Place {
        table: "connections",
        row,
        column: "value",
    }
}

fn broken() -> Error {
    Error::Bug("the seal of a connection".to_owned())
}

const UPSTREAM: &str = "
    SELECT name
      FROM upstreams
     WHERE tenant = $1 AND name = $2";

const COUNT_OTHERS: &str = "
    SELECT COUNT(*) AS count
      FROM connections
     WHERE tenant = $1 AND NOT (upstream = $2 AND holder = $3)";

const PUT: &str = "
    INSERT INTO connections (tenant, upstream, holder, value, version, lease_ms, checked_ms, updated_ms, connected_ms)
    VALUES ($1, $2, $3, $4, 0, 0, $5, $5, $5)
    ON CONFLICT (tenant, upstream, holder)
    DO UPDATE SET value = excluded.value, lease_ms = 0, checked_ms = excluded.checked_ms,
                  updated_ms = excluded.updated_ms, connected_ms = excluded.connected_ms";

const ONE: &str = "
    SELECT value, version, checked_ms, lease_ms
      FROM connections
     WHERE tenant = $1 AND upstream = $2 AND holder = $3";

const LIST: &str = "
    SELECT upstream, holder, value, updated_ms,
           -- A replica of an earlier version does not write it.
           CASE WHEN connected_ms = 0 THEN updated_ms ELSE connected_ms END AS connected_ms
      FROM connections
     WHERE tenant = $1
       AND (CAST($2 AS TEXT) IS NULL OR upstream = $2)
       AND (CAST($3 AS TEXT) IS NULL OR holder = $3)
       AND (upstream, holder) > ($4, $5)
     ORDER BY upstream, holder
     LIMIT $6";

const LEASE: &str = "
    UPDATE connections
       SET lease_ms = $5
     WHERE tenant = $1 AND upstream = $2 AND holder = $3 AND version = $4 AND lease_ms <= $6
    RETURNING version";

const END_LEASE: &str = "
    UPDATE connections
       SET lease_ms = $5
     WHERE tenant = $1 AND upstream = $2 AND holder = $3 AND version = $4";

const REFRESHED: &str = "
    UPDATE connections
       SET value = $5, lease_ms = 0, checked_ms = $6, updated_ms = $6
     WHERE tenant = $1 AND upstream = $2 AND holder = $3 AND version = $4
    RETURNING version";

const CHECK: &str = "
    UPDATE connections
       SET checked_ms = $5
     WHERE tenant = $1 AND upstream = $2 AND holder = $3 AND version = $4 AND checked_ms <= $6
    RETURNING version";

const VERSION: &str = "
    UPDATE connections
       SET version = $4
     WHERE tenant = $1 AND upstream = $2 AND holder = $3";

const DELETE: &str = "
    DELETE FROM connections
     WHERE tenant = $1 AND upstream = $2 AND holder = $3 AND ($4 = 0 OR version = $5)
    RETURNING upstream";

const PART: &str = "
    SELECT tenant, upstream, holder, value
      FROM connections
     WHERE (tenant, upstream, holder) > ($1, $2, $3)
       AND SUBSTR(value, 1, 9) <> $4
     ORDER BY tenant, upstream, holder
     LIMIT 100";

const RESEAL: &str = "
    UPDATE connections
       SET value = $4
     WHERE tenant = $1 AND upstream = $2 AND holder = $3";

const FORGET_UPSTREAM: &str = "
    DELETE FROM connections
     WHERE tenant = $1 AND upstream = $2";

const FORGET_HOLDER: &str = "
    DELETE FROM connections
     WHERE tenant = $1 AND holder = $2";

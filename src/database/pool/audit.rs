//! The audit trail: actor, action, target and time.
//!
//! Records of changes are written in the transaction of the change; others (log-ins, denials) are
//! appended afterwards. A record never holds a secret. A new column also needs a migration in
//! `migrations/` that `sql` lists, its member in `http/admin/audit`, and its place in
//! `cli/remote/audit`.

use std::{fmt, str::FromStr, time::Duration};

use serde_json::Value as Json;
use uuid::Uuid;

use super::{
    error::Error,
    sql::{Pool, Row, SqlError, Transaction},
    value::Value,
};

/// An audited event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// The tenant concerned; none for the gateway as a whole.
    pub(crate) tenant: Option<String>,
    /// The kind of event, like `server.changed`.
    pub(crate) kind: String,
    /// The actor.
    pub(crate) actor: String,
    /// The target, like `server acme/files`.
    pub(crate) target: String,
    /// Further members; an object.
    pub(crate) detail: Json,
}

/// A stored record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The id; grows with time.
    pub(crate) id: Uuid,
    /// The time in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// The event.
    pub(crate) record: Record,
}

/// A selection of records; a member that is none selects all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Of this tenant.
    pub(crate) tenant: Option<String>,
    /// Of this kind.
    pub(crate) kind: Option<String>,
    /// By this actor.
    pub(crate) actor: Option<String>,
    /// At or after this time, in milliseconds since 1970.
    pub(crate) from_ms: Option<i64>,
    /// Before this time.
    pub(crate) until_ms: Option<i64>,
}

/// The position behind a record, newest first; opaque as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    at_ms: i64,
    id: Uuid,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.at_ms, self.id.simple())
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (at_ms, id) = text.split_once('-').ok_or(())?;
        Ok(Self {
            at_ms: i64::from_str_radix(at_ms, 16).map_err(drop)?,
            id: Uuid::try_parse(id).map_err(drop)?,
        })
    }
}

/// A page of records, newest first.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// At most as many as requested.
    pub(crate) entries: Vec<Entry>,
    /// The position to continue at, if there are more.
    pub(crate) next: Option<Cursor>,
}

/// The author of a change, for the audit trail.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    /// The subject, or the part of the gateway that acts: `ada`, `key:ci`, `manifest`.
    pub(crate) actor: String,
    /// Further detail, like an address; never a secret.
    pub(crate) detail: serde_json::Map<String, Json>,
}

impl Author {
    /// An author without further detail.
    pub(crate) fn named(actor: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            detail: serde_json::Map::new(),
        }
    }
}

/// The audit trail of a database.
#[derive(Clone, Copy)]
pub(crate) struct Audit<'a> {
    pub(crate) pool: &'a Pool,
}

impl Audit<'_> {
    /// Appends records, all or none.
    pub(crate) async fn append(self, records: &[Record]) -> Result<(), Error> {
        let mut transaction = self.pool.begin_unserialized().await?;
        append(&mut transaction, self.pool.now_ms(), records).await?;
        Ok(transaction.commit().await?)
    }

    /// Reads records after `after`, newest first.
    pub(crate) async fn page(
        self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, Error> {
        query(self.pool, filter, after, limit).await
    }

    /// Removes records that are older than `keep`.
    pub(crate) async fn prune(self, keep: Duration) -> Result<(), Error> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let before_ms = self.pool.now_ms().saturating_sub(keep_ms);
        while prune(self.pool, before_ms).await? > 0 {}
        Ok(())
    }
}

/// Writes records in a transaction.
pub(crate) async fn append(
    transaction: &mut Transaction,
    at_ms: i64,
    records: &[Record],
) -> Result<(), SqlError> {
    for record in records {
        let values = vec![
            // Ids grow within a process, so that records of the same millisecond keep their order.
            Uuid::now_v7().into(),
            at_ms.into(),
            Value::Text(record.tenant.clone()),
            record.kind.as_str().into(),
            storable(&record.actor).into(),
            storable(&record.target).into(),
            record.detail.to_string().into(),
        ];
        transaction.run(INSERT, values).await?;
    }
    Ok(())
}

/// Replaces NUL, which PostgreSQL rejects: a `sub` of a provider may contain one, and must not fail
/// the other records of the batch.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Reads records after `after`, newest first.
async fn query(
    pool: &Pool,
    filter: &Filter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page, Error> {
    let values = vec![
        Value::Text(filter.tenant.clone()),
        Value::Text(filter.kind.clone()),
        Value::Text(filter.actor.clone()),
        Value::Whole(filter.from_ms),
        Value::Whole(filter.until_ms),
        Value::Whole(after.map(|cursor| cursor.at_ms)),
        after.map_or(Uuid::nil(), |cursor| cursor.id).into(),
        // One more record tells whether another page follows.
        (i64::from(limit) + 1).into(),
    ];
    let rows = pool.read(SELECT, values).await?;
    let mut entries = rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    let is_more = entries.len() > limit as usize;
    entries.truncate(limit as usize);
    let last = entries.last().filter(|_| is_more);
    let next = last.map(|entry| Cursor {
        at_ms: entry.at_ms,
        id: entry.id,
    });
    Ok(Page { entries, next })
}

/// Removes some records before `before_ms`, and returns their number; zero if none is left.
async fn prune(pool: &Pool, before_ms: i64) -> Result<usize, SqlError> {
    let mut transaction = pool.begin_unserialized().await?;
    let removed = transaction.run(DELETE, vec![before_ms.into()]).await?.len();
    transaction.commit().await?;
    Ok(removed)
}

fn entry(row: &Row) -> Result<Entry, Error> {
    let detail: String = row.get("detail")?;
    let bug = |error| Error::Bug(format!("a record of the audit trail: {error}"));
    Ok(Entry {
        id: row.get("id")?,
        at_ms: row.get("at_ms")?,
        record: Record {
            tenant: row.get("tenant")?,
            kind: row.get("kind")?,
            actor: row.get("actor")?,
            target: row.get("target")?,
            detail: serde_json::from_str(&detail).map_err(bug)?,
        },
    })
}

const INSERT: &str = "
    INSERT INTO audit (id, at_ms, tenant, kind, actor, target, detail)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

const SELECT: &str = "
    SELECT id, at_ms, tenant, kind, actor, target, detail
      FROM audit
     WHERE (CAST($1 AS TEXT) IS NULL OR tenant = $1)
       AND (CAST($2 AS TEXT) IS NULL OR kind = $2)
       AND (CAST($3 AS TEXT) IS NULL OR actor = $3)
       AND (CAST($4 AS BIGINT) IS NULL OR at_ms >= $4)
       AND (CAST($5 AS BIGINT) IS NULL OR at_ms < $5)
       AND (CAST($6 AS BIGINT) IS NULL OR at_ms < $6 OR (at_ms = $6 AND id < $7))
     ORDER BY at_ms DESC, id DESC
     LIMIT $8";

// Small batches keep the wait of other writers short.
const DELETE: &str = "
    DELETE FROM audit
     WHERE id IN (SELECT id FROM audit WHERE at_ms < $1 ORDER BY at_ms LIMIT 1000)
    RETURNING id";

#[cfg(test)]
mod tests {
    use super::super::audit::*;

    #[test]
    fn cursors_come_back() {
        let cursor = Cursor {
            at_ms: 1_790_000_000_000,
            id: Uuid::now_v7(),
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "-", "1-", "x-0", "1-00", "0"] {
            assert_eq!(wrong.parse::<Cursor>(), Err(()), "{wrong}");
        }
    }
}

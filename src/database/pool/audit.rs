//! The audit trail: actor, action, target and time.
//!
//! Records of changes are written in the transaction of the change; others (log-ins, denials) are
//! appended afterwards. A record never holds a secret, and its size is bounded. A new column also needs
//! a migration in `migrations/` that `sql` lists, its member in `http/admin/audit`, and its place in
//! `cli/remote/audit`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use serde_json::Value as Json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{
    error::Error,
    sql::{Pool, Row, Sql, Transaction},
    sql_error::SqlError,
    value::Value,
};
use crate::base::budget::OwnersTurn;

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
    /// The time in milliseconds since 1970 by which the record is found again; none for that of its writing.
    at_ms: Option<i64>,
    /// When the event began, of a record that is written afterwards. Its tenant may be gone by then, and the
    /// name another's.
    began: Option<Instant>,
    /// Only [`Record::new`] makes a record, so that none is larger than its fields may be.
    bounded: (),
}

impl Record {
    /// A record whose fields are cut to [`FIELD`] bytes, those that name an object to [`NAME`].
    pub(crate) fn new(
        tenant: Option<&str>,
        kind: &str,
        actor: &str,
        target: &str,
        mut detail: Json,
    ) -> Self {
        if let Some(members) = detail.as_object_mut() {
            members.values_mut().for_each(bound);
        }
        let name = |text| cut(text, NAME).into_owned();
        Self {
            tenant: tenant.map(name),
            kind: name(kind),
            actor: name(actor),
            target: name(target),
            detail,
            at_ms: None,
            began: None,
            bounded: (),
        }
    }

    /// The record of an event that began at this instant, or at an earlier one that it was told before.
    pub(crate) fn since(self, began: Instant) -> Self {
        Self {
            began: Some(self.began.map_or(began, |earlier| earlier.min(began))),
            ..self
        }
    }

    /// When the event began, of a record that was told.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began
    }

    /// The record with this time, in milliseconds since 1970.
    pub(crate) fn at(self, at_ms: i64) -> Self {
        Self {
            at_ms: Some(at_ms),
            ..self
        }
    }

    /// About the bytes that the record takes in memory.
    pub(crate) fn size(&self) -> usize {
        let tenant = self.tenant.as_ref().map_or(0, String::len);
        let texts = tenant + self.kind.len() + self.actor.len() + self.target.len();
        let members = self.detail.as_object().into_iter().flatten();
        let members =
            members.map(|(name, value)| name.len() + size_of_val(value) + json_size(value));
        size_of::<Self>() + texts + members.sum::<usize>()
    }
}

/// `text`, cut to `max` bytes at the end of a character. A mark shows that it was cut.
pub(crate) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(max.saturating_sub(CUT.len()));
    Cow::Owned(format!("{}{CUT}", text.get(..end).unwrap_or_default()))
}

/// Cuts a member of the detail: a text, or the texts of a list, to [`FIELD`] bytes in all. Members
/// below a member are no field that the gateway writes, and become text.
fn bound(member: &mut Json) {
    match member {
        Json::String(text) if text.len() > FIELD => *text = cut(text, FIELD).into_owned(),
        Json::Array(items) => {
            let mut left = FIELD.saturating_sub(CUT.len());
            let fitting = items.iter().take_while(|item| {
                let size = json_size(item).max(1);
                let fits = size <= left;
                left = left.saturating_sub(size);
                fits
            });
            let count = fitting.count();
            if count < items.len() {
                items.truncate(count);
                items.push(CUT.into());
                items.shrink_to_fit();
            }
        }
        Json::Object(_) if json_size(member) > FIELD => {
            *member = cut(&member.to_string(), FIELD).into_owned().into();
        }
        _ => {}
    }
}

/// About the bytes of a value as text.
fn json_size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(json_size).sum(),
        Json::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| name.len() + json_size(value))
                .sum()
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => 8,
    }
}

/// Maximum bytes of a member of the detail.
pub(crate) const FIELD: usize = 256;
/// Maximum bytes of a tenant, an actor or a target: a subject of an identity provider has 255 bytes
/// behind the URL of its issuer.
const NAME: usize = 1024;
/// The mark at the end of a text that was cut.
const CUT: &str = "…";

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
    /// Of this kind, one of [`KINDS`].
    pub(crate) kind: Option<String>,
    /// By this actor.
    pub(crate) actor: Option<String>,
    /// At or after this time, in milliseconds since 1970.
    pub(crate) from_ms: Option<i64>,
    /// Before this time.
    pub(crate) until_ms: Option<i64>,
    /// Only of tenants that are there, since their creation: an earlier tenant of that name was another's.
    pub(crate) of_present: bool,
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
    /// For what must be written before something else happens.
    pub(crate) pool: &'a Pool,
    /// For pages, of which operators may read a whole trail at leisure.
    pub(crate) readers: &'a Pool,
}

impl Audit<'_> {
    /// Appends records, all or none.
    pub(crate) async fn append(self, records: &[Record]) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        let mut pause = TURN;
        loop {
            let begun = self.pool.begin_unserialized().await.map_err(Error::from);
            let mut transaction = match begun {
                // Who waits has given its connection to others: that there is none now is one more wait.
                Err(Error::Unavailable(_)) if pause > TURN && Instant::now() < until => {
                    sleep(pause).await;
                    continue;
                }
                begun => begun?,
            };
            if is_beside_no_creation(&mut transaction).await? || Instant::now() >= until {
                append(&mut transaction, self.pool.now_ms(), records).await?;
                return Ok(transaction.commit().await?);
            }
            // Others have the connection meanwhile.
            drop(transaction);
            sleep(pause).await;
            pause = (pause * 2).min(TURN * 10);
        }
    }

    /// Reads records after `after`, newest first, at turns that end with the statement.
    pub(crate) async fn page_at(
        self,
        turns: Vec<OwnersTurn>,
        filter: &Filter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, Error> {
        query(&self.readers.at(turns), filter, after, limit).await
    }

    /// The same at no turn.
    #[cfg(test)]
    pub(crate) async fn page(
        self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, Error> {
        self.page_at(Vec::new(), filter, after, limit).await
    }

    /// Removes some records that are older than `keep`; returns true if there may be more.
    pub(crate) async fn prune(self, keep: Duration) -> Result<bool, Error> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let before_ms = self.pool.now_ms().saturating_sub(keep_ms);
        let removed = self.pool.write(DELETE, vec![before_ms.into()]).await?;
        Ok(removed.len() == PART)
    }
}

/// Whether no other transaction creates a tenant, and none does until this one ends: a record that is written meanwhile
/// sees no row of it, and would be younger than the tenant of its name. That is waited for, but not for long, since a
/// record that is not written is lost.
async fn is_beside_no_creation(transaction: &mut Transaction) -> Result<bool, SqlError> {
    let tried = transaction.run_in_postgres(TRY_BESIDE_CREATIONS).await?;
    let is_free = tried.first().map(|row| row.get::<i64>("is_free"));
    Ok(is_free.transpose()?.unwrap_or(1) == 1)
}

/// Writes records in a transaction.
pub(crate) async fn append(
    transaction: &mut Transaction,
    at_ms: i64,
    records: &[Record],
) -> Result<(), SqlError> {
    // Their ages are those at `at_ms`: to write many takes time.
    let now = Instant::now();
    for record in records {
        let age = record
            .began
            .map(|began| now.saturating_duration_since(began));
        let age = age.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let values = vec![
            // Ids grow within a process, so that records of the same millisecond keep their order.
            Uuid::now_v7().into(),
            record.at_ms.unwrap_or(at_ms).into(),
            Value::Text(record.tenant.clone()),
            record.kind.as_str().into(),
            storable(&record.actor).into(),
            storable(&record.target).into(),
            record.detail.to_string().into(),
            Value::Whole(age.map(|age| at_ms.saturating_sub(age))),
        ];
        transaction.run(INSERT, values).await?;
    }
    Ok(())
}

/// Replaces NUL, which PostgreSQL rejects: a `sub` of a provider may contain one, and must not fail
/// the other records of the batch.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Reads records after `after`, newest first.
async fn query(
    pool: &Pool,
    filter: &Filter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page, Error> {
    let (owner, values) = selection(filter, after, limit);
    let sql = Sql::from(SELECT).owned_by(owner);
    let rows = pool.read(sql, values).await?;
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

/// The condition for the owner of the records, and the values of [`SELECT`]. A tenant and times are bounds of an index,
/// in which a page begins: a condition that may be none is tried on each record from the newest on.
fn selection(filter: &Filter, after: Option<Cursor>, limit: u32) -> (&'static str, Vec<Value>) {
    // No id is before the nil one.
    let until = (filter.until_ms.unwrap_or(i64::MAX), Uuid::nil());
    let (before_ms, before) = after.map_or(until, |cursor| until.min((cursor.at_ms, cursor.id)));
    let mut values: Vec<Value> = vec![
        filter.from_ms.unwrap_or(i64::MIN).into(),
        before_ms.into(),
        before.into(),
        Value::Text(filter.kind.clone()),
        Value::Text(filter.actor.clone()),
        i64::from(filter.of_present).into(),
        // One more record tells whether another page follows.
        (i64::from(limit) + 1).into(),
    ];
    let Some(tenant) = &filter.tenant else {
        return ("TRUE", values);
    };
    values.push(tenant.as_str().into());
    ("tenant = $8", values)
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
            at_ms: None,
            began: None,
            bounded: (),
        },
    })
}

/// The longest wait for the creation of a tenant, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(4);
const TURN: Duration = Duration::from_millis(20);

// A lock of its own: there is no need to wait for other changes.
const TRY_BESIDE_CREATIONS: &str = "
    SELECT CAST(CAST(pg_try_advisory_xact_lock_shared(5507730182244496485) AS INT) AS BIGINT) AS is_free";

/// Makes the records of others wait, from before the time of a tenant that a transaction creates until its end.
pub(crate) const CREATION: &str = "SELECT pg_advisory_xact_lock(5507730182244496485)";

// What began before the tenant of that name was created concerns an earlier one, and is shown to the operators alone.
const INSERT: &str = "
    INSERT INTO audit (id, at_ms, tenant, kind, actor, target, detail)
    VALUES ($1, $2,
            CASE WHEN EXISTS (SELECT 1
                                FROM tenants
                               WHERE name = CAST($3 AS TEXT) AND created_ms > CAST($8 AS BIGINT))
                 THEN NULL
                 ELSE CAST($3 AS TEXT) END,
            $4, $5, $6, $7)";

// The id of a tenant is made before that of the record of its creation, and after that of the record of an earlier
// one's removal.
const SELECT: &str = "
    SELECT id, at_ms, tenant, kind, actor, target, detail
      FROM audit
     WHERE {owner}
       AND at_ms >= $1
       AND (at_ms, id) < ($2, $3)
       AND (CAST($4 AS TEXT) IS NULL OR kind = $4)
       AND (CAST($5 AS TEXT) IS NULL OR actor = $5)
       AND ($6 = 0 OR EXISTS (SELECT 1
                                FROM tenants
                               WHERE tenants.name = audit.tenant
                                 AND (audit.at_ms > tenants.created_ms
                                      OR (audit.at_ms = tenants.created_ms AND audit.id > tenants.id))))
     ORDER BY at_ms DESC, id DESC
     LIMIT $7";

/// The most records that are removed at once, so that other writers do not wait long.
const PART: usize = 1000;

const DELETE: &str = "
    DELETE FROM audit
     WHERE id IN (SELECT id FROM audit WHERE at_ms < $1 ORDER BY at_ms LIMIT 1000)
    RETURNING id";

/// All kinds of records, as `docs/administration.md` lists them.
pub(crate) const KINDS: [&str; 45] = [
    "tenant.added",
    "tenant.changed",
    "tenant.removed",
    "server.added",
    "server.changed",
    "server.removed",
    "api_key.added",
    "api_key.changed",
    "api_key.removed",
    "user.added",
    "user.changed",
    "user.removed",
    "client.added",
    "client.changed",
    "client.removed",
    "client.registered",
    "client.expired",
    "provider.added",
    "provider.changed",
    "provider.removed",
    "upstream.added",
    "upstream.changed",
    "upstream.removed",
    "upstream.connected",
    "upstream.disconnected",
    "upstream.expired",
    "login",
    "login.ended",
    "login.refused",
    "identity.ended",
    "identity.refused",
    "consent.given",
    "consent.denied",
    "grant.started",
    "grant.revoked",
    "grants.revoked",
    "signing_key.added",
    "signing_key.removed",
    "secret.set",
    "secret.removed",
    "session.ended",
    "server.restarted",
    "denied",
    "call",
    "calls.dropped",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::audit::*;
    use crate::{base::Clock, telemetry::StoreTimes};

    /// For a page of a tenant with few records, or of the end of an export, all records of all tenants were read.
    #[tokio::test]
    async fn a_page_begins_at_its_place_in_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let (file, times) = (dir.path().join("lockgate.db"), StoreTimes::default());
        let pool = Pool::sqlite(&file, Clock::system(), times).await.unwrap();
        let all = Filter::default();
        let of_one = Filter {
            tenant: Some("a".to_owned()),
            ..all.clone()
        };
        for (filter, index) in [
            (all, "audit_by_time (at_ms>?"),
            (of_one, "audit_by_tenant (tenant=? AND at_ms>?"),
        ] {
            let (owner, values) = selection(&filter, None, 9);
            let plan = Sql::on(SELECT, "EXPLAIN QUERY PLAN {table}").owned_by(owner);
            let rows = pool.read(plan, values).await.unwrap();
            let plan: String = rows[0].get("detail").unwrap();
            let wanted = format!("SEARCH audit USING INDEX {index} AND (at_ms,id)<(?,?))");
            assert_eq!(plan, wanted);
        }
        pool.close().await;
    }

    #[test]
    fn the_page_of_the_audit_trail_lists_every_kind() {
        let page = include_str!("../../../docs/administration.md");
        let (_, table) = page.split_once("## The audit trail").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        assert_eq!(names.collect::<Vec<_>>(), KINDS);
    }

    #[test]
    fn records_are_cut_at_the_end_of_a_character() {
        let of = |detail| Record::new(Some("a"), "call", "ada", "server a/x", detail).detail;
        let fits = "ü".repeat(FIELD / 2);
        assert_eq!(of(json!({"name": fits})), json!({"name": fits}));
        for long in ["ü".repeat(FIELD), format!("x{fits}"), "x".repeat(3 << 20)] {
            let detail = of(json!({"name": long, "ms": 1}));
            let name = detail["name"].as_str().unwrap();
            assert!((FIELD - 1..=FIELD).contains(&name.len()), "{}", name.len());
            let rest = name.strip_suffix(CUT).unwrap();
            assert!(long.starts_with(rest), "{rest}");
        }
        let uris = vec!["https://app.test/cb"; 1000];
        let list = of(json!({"redirect_uris": uris}))["redirect_uris"].clone();
        let list = list.as_array().unwrap();
        assert_eq!(list.len(), 14, "13 of 19 bytes, and the mark");
        assert_eq!((&list[12], &list[13]), (&json!(uris[0]), &json!(CUT)));
        let few = json!({"redirect_uris": ["https://app.test/cb"], "client_name": null});
        assert_eq!(of(few.clone()), few);
        let deep = of(json!({"x": {"y": "z".repeat(1000)}}));
        assert!(deep["x"].as_str().unwrap().ends_with(CUT));
        let long = "x".repeat(1 << 20);
        let record = Record::new(Some(&long), &long, &long, &long, json!({"a": long}));
        assert!(record.size() < 8 << 10, "{}", record.size());
    }

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

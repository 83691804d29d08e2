//! Public keys and revocations, as replicas read them.
//!
//! Not here: revocation itself (`revocations`), and the private keys (`signing_keys`).

use std::{collections::BTreeSet, sync::Arc};

use uuid::Uuid;

use super::{
    own_keys,
    revocations::{GRANTS, GROUPS, KEPT_MS, KEY, KEYS, OWN_KEYS, SECRETS},
    signing_keys::{self, Signing},
};
use crate::{
    database::pool::{Error, Pool, Row, Transaction},
    declare::{Issued, TenantRevocations},
};

/// The numbers of the last changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Of the declared state.
    pub(crate) version: i64,
    /// Of keys and revocations.
    pub(crate) revocation: i64,
}

/// Public keys and revocations of a database.
#[derive(Clone, Copy)]
pub(crate) struct Issuance<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) cache: &'a Signing,
}

impl Issuance<'_> {
    /// The numbers of the last changes, and the time of the server, by one cheap query.
    pub(crate) async fn reached(self) -> Result<Reached, Error> {
        reached_in(&self.pool.read_in_time(REACHED).await?)
    }

    /// Keys and revocations, with the number of the last change. Reads only rows after the number
    /// in `before`.
    pub(crate) async fn newer(self, before: (&Issued, i64)) -> Result<(Issued, i64), Error> {
        let mut transaction = self.pool.snapshot().await?;
        let number = reached_in(&transaction.run(REACHED, Vec::new()).await?)?.revocation;
        let (known, known_to) = before;
        let since_ms = self.pool.now_ms() - KEPT_MS;
        let mut issued = known.clone();
        let told = told(&mut transaction, &mut issued, (known_to, number)).await?;
        // Numbers begin at 1, so the first read takes all keys. Every number had a row: a missing one was swept, and may
        // have been of a key.
        let is_unknown = known_to <= 0 || told.rows < number - known_to;
        if is_unknown {
            own_keys::read(&mut transaction, &mut issued, None).await?;
        } else {
            // Those of a tenant come before those of its people.
            for (tenant, subject) in &told.own_keys {
                own_keys::read(&mut transaction, &mut issued, Some((tenant, subject))).await?;
            }
        }
        forget(&mut issued, since_ms);
        own_keys::drop_expired(&mut issued, self.pool.now_ms());
        if is_unknown || told.is_keys {
            self.cache.changed();
            issued.keys = signing_keys::public_keys(&mut transaction).await?;
        }
        Ok((issued, number))
    }
}

/// What numbered rows say, beside what they change in memory.
#[derive(Default)]
struct Told {
    /// The number of rows.
    rows: i64,
    /// The public keys are others now.
    is_keys: bool,
    /// Tenants, and their people whose API keys are others now.
    own_keys: BTreeSet<(String, String)>,
}

impl Told {
    /// Takes over a row.
    fn add(&mut self, issued: &mut Issued, row: &Row) -> Result<(), Error> {
        self.rows += 1;
        let tenant: String = row.get("tenant")?;
        let (kind, value): (String, String) = (row.get("kind")?, row.get("value")?);
        let at_ms: i64 = row.get("at_ms")?;
        let of = &mut issued.revoked;
        match kind.as_str() {
            GRANTS => {
                let revoked = Arc::make_mut(of.entry(tenant).or_default());
                revoked.grants.extend(ids(&value).map(|id| (id, at_ms)));
            }
            GROUPS => {
                if let Ok((subject, groups)) = serde_json::from_str::<(_, Vec<_>)>(&value) {
                    let revoked = Arc::make_mut(of.entry(tenant).or_default());
                    revoked.groups.insert(subject, (groups.into(), at_ms));
                }
            }
            KEY => {
                let revoked = Arc::make_mut(of.entry(tenant).or_default());
                revoked.keys.insert(value, at_ms);
                self.is_keys = true;
            }
            KEYS => self.is_keys = true,
            OWN_KEYS => _ = self.own_keys.insert((tenant, value)),
            SECRETS => {
                let changes = Arc::make_mut(&mut issued.secrets);
                if let Ok(change) = serde_json::from_str(&value) {
                    changes.insert(row.get("number")?, change);
                }
                while changes.len() > CHANGES {
                    changes.pop_first();
                }
            }
            // Relevant only when a grant is written.
            _ => {}
        }
        Ok(())
    }
}

/// Takes over the rows behind one number and up to another. There may be millions: each part is read within the time of
/// a statement, and little is in memory at once.
async fn told(
    transaction: &mut Transaction,
    issued: &mut Issued,
    (known_to, number): (i64, i64),
) -> Result<Told, Error> {
    let mut told = Told::default();
    let (sql, mut read_to) = if known_to > 0 {
        (NEWER, known_to)
    } else {
        let rows = transaction.run(OLDEST, Vec::new()).await?;
        let oldest: Option<i64> = rows.first().map_or(Ok(None), |row| row.get("oldest"))?;
        (KEPT, oldest.map_or(number, |oldest| oldest - 1))
    };
    while read_to < number {
        let to = read_to.saturating_add(PART).min(number);
        let rows = transaction.run(sql, vec![read_to.into(), to.into()]);
        for row in rows.await? {
            told.add(issued, &row)?;
        }
        told_groups(transaction, (&mut *issued, &mut told), (read_to, to)).await?;
        read_to = to;
    }
    Ok(told)
}

/// Takes over the groups behind one number and up to another, some at a time: those of one person may be of many KiB.
async fn told_groups(
    transaction: &mut Transaction,
    (issued, told): (&mut Issued, &mut Told),
    (known_to, number): (i64, i64),
) -> Result<(), Error> {
    let mut behind = known_to;
    loop {
        let values = vec![behind.into(), number.into(), PART_OF_GROUPS.into()];
        let rows = transaction.run(TOLD_GROUPS, values).await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        behind = last.get("number")?;
        for row in &rows {
            told.add(issued, row)?;
        }
    }
}

fn reached_in(rows: &[Row]) -> Result<Reached, Error> {
    let row = rows.first();
    let row = row.ok_or_else(|| Error::Bug("no number of changes".to_owned()))?;
    Ok(Reached {
        version: row.get("version")?,
        revocation: row.get("revocation")?,
    })
}

fn ids(value: &str) -> impl Iterator<Item = Uuid> + '_ {
    let words = value.split(' ');
    words.filter_map(|word| Uuid::try_parse(word).ok())
}

/// Drops revocations that are older than every token.
fn forget(issued: &mut Issued, since_ms: i64) {
    let is_old = |at_ms: &i64| *at_ms < since_ms;
    for revoked in issued.revoked.values_mut() {
        let grants = revoked.grants.values().chain(revoked.keys.values());
        let mut times = grants.chain(revoked.groups.values().map(|(_, at_ms)| at_ms));
        if times.any(is_old) {
            let revoked = Arc::make_mut(revoked);
            revoked.grants.retain(|_, at_ms| !is_old(at_ms));
            revoked.keys.retain(|_, at_ms| !is_old(at_ms));
            revoked.groups.retain(|_, (_, at_ms)| !is_old(at_ms));
        }
    }
    let is_over = |revoked: &TenantRevocations| *revoked == TenantRevocations::default();
    issued.revoked.retain(|_, revoked| !is_over(revoked));
}

/// The most changes of secrets that are kept: more than come while one snapshot is followed.
const CHANGES: usize = 10_000;

const REACHED: &str = "
    SELECT version, revocation
      FROM changes";

/// The most rows that are read at once.
const PART: i64 = 10_000;
/// The same of groups: some MiB.
const PART_OF_GROUPS: i64 = 100;

/// The oldest row: those before it were swept.
const OLDEST: &str = "
    SELECT MIN(number) AS oldest
      FROM revocations";

const NEWER: &str = "
    SELECT number, tenant, kind, value, at_ms
      FROM revocations
     WHERE number > $1 AND number <= $2 AND kind <> 'groups'
     ORDER BY number";

/// The same without those that are relevant only when a grant is written: at the first read no row has to be counted.
const KEPT: &str = "
    SELECT number, tenant, kind, value, at_ms
      FROM revocations
     WHERE number > $1 AND number <= $2
       AND kind NOT IN ('client', 'groups', 'subject', 'session', 'sessionless')
     ORDER BY number";

const TOLD_GROUPS: &str = "
    SELECT number, tenant, kind, value, at_ms
      FROM revocations
     WHERE number > $1 AND number <= $2 AND kind = 'groups'
     ORDER BY number
     LIMIT $3";

//! Steps of attempts of clients to be let in.
//!
//! They are kept for a day, and the newest of each tenant alone. Not here: which steps there are
//! (`oauth/server/login_attempt`), and their way here (`snapshot/audit_queue`).

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::database::pool::{Error, Pool, Row, cut, storable};

/// A step of an attempt. Texts that are not known are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The tenant.
    pub(crate) tenant: String,
    /// The attempt that it belongs to.
    pub(crate) attempt: String,
    /// The time in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// What happened.
    pub(crate) step: String,
    /// The client, and the name that it gives itself.
    pub(crate) client_id: String,
    pub(crate) client: String,
    /// The server.
    pub(crate) server: String,
    /// The person.
    pub(crate) subject: String,
    /// The address that the request came from.
    pub(crate) address: String,
    /// Why it went no further.
    pub(crate) reason: String,
}

impl Step {
    /// About the bytes that it takes in memory.
    pub(crate) fn size(&self) -> usize {
        let texts = self.texts().into_iter().map(String::len);
        size_of::<Self>() + texts.sum::<usize>()
    }

    /// The same step with texts of at most [`FIELD`] bytes.
    pub(crate) fn bounded(mut self) -> Self {
        for text in [
            &mut self.client_id,
            &mut self.client,
            &mut self.subject,
            &mut self.reason,
        ] {
            if text.len() > FIELD {
                *text = cut(text, FIELD).into_owned();
            }
        }
        self
    }

    fn texts(&self) -> [&String; 9] {
        [
            &self.tenant,
            &self.attempt,
            &self.step,
            &self.client_id,
            &self.client,
            &self.server,
            &self.subject,
            &self.address,
            &self.reason,
        ]
    }
}

/// The steps of a database.
#[derive(Clone, Copy)]
pub(crate) struct LoginSteps<'a> {
    pub(crate) pool: &'a Pool,
}

impl LoginSteps<'_> {
    /// Adds steps, all or none, and removes the oldest of their tenants beyond those that are kept.
    pub(crate) async fn add(self, steps: &[Step]) -> Result<(), Error> {
        let mut transaction = self.pool.begin_unserialized().await?;
        for step in steps {
            let mut values = vec![Uuid::now_v7().into(), step.at_ms.into()];
            let texts = step.texts().into_iter();
            values.extend(texts.map(|text| storable(text).into()));
            transaction.run(INSERT, values).await?;
        }
        let tenants: BTreeSet<&str> = steps.iter().map(|step| &*step.tenant).collect();
        for tenant in tenants {
            let values = vec![tenant.into(), KEPT.into()];
            transaction.run(REMOVE_SURPLUS, values).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// The newest steps of a tenant, the newest first.
    pub(crate) async fn newest(self, tenant: &str) -> Result<Vec<Step>, Error> {
        let values = vec![tenant.into(), self.since().into(), KEPT.into()];
        let rows = self.pool.read(NEWEST, values).await?;
        rows.iter().map(step).collect()
    }

    /// The steps of one attempt, the oldest first.
    pub(crate) async fn of(self, tenant: &str, attempt: &str) -> Result<Vec<Step>, Error> {
        let values = vec![tenant.into(), attempt.into(), self.since().into()];
        let rows = self.pool.read(OF_ATTEMPT, values).await?;
        rows.iter().map(step).collect()
    }

    fn since(self) -> i64 {
        self.pool.now_ms().saturating_sub(KEPT_MS)
    }
}

fn step(row: &Row) -> Result<Step, Error> {
    Ok(Step {
        tenant: row.get("tenant")?,
        attempt: row.get("attempt")?,
        at_ms: row.get("at_ms")?,
        step: row.get("step")?,
        client_id: row.get("client_id")?,
        client: row.get("client")?,
        server: row.get("server")?,
        subject: row.get("subject")?,
        address: row.get("address")?,
        reason: row.get("reason")?,
    })
}

/// Maximum bytes of a text.
const FIELD: usize = 256;

/// The time for which steps are kept, in milliseconds.
pub(super) const KEPT_MS: i64 = 24 * 3600 * 1000;

/// The steps of a tenant that are kept.
const KEPT: i64 = 2000;

const INSERT: &str = "
    INSERT INTO login_steps
           (id, at_ms, tenant, attempt, step, client_id, client, server, subject, address, reason)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
     WHERE EXISTS (SELECT 1 FROM tenants WHERE name = $3)";

const NEWEST: &str = "
    SELECT tenant, attempt, at_ms, step, client_id, client, server, subject, address, reason
      FROM login_steps
     WHERE tenant = $1 AND at_ms >= $2
     ORDER BY at_ms DESC, id DESC
     LIMIT $3";

const OF_ATTEMPT: &str = "
    SELECT tenant, attempt, at_ms, step, client_id, client, server, subject, address, reason
      FROM login_steps
     WHERE tenant = $1 AND attempt = $2 AND at_ms >= $3
     ORDER BY at_ms, id";

/// Removes some of the steps of a tenant that are more than it keeps: a batch adds fewer.
const REMOVE_SURPLUS: &str = "
    DELETE FROM login_steps
     WHERE id IN (SELECT id
                    FROM login_steps
                   WHERE tenant = $1
                   ORDER BY at_ms DESC, id DESC
                   LIMIT 1000 OFFSET $2)";

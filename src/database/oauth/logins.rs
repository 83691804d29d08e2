//! People who are logged in, consents, log-ins in progress at a provider, and logouts there.
//!
//! Not here: what is stored of each person in bounds, the browsers that they are logged in with and new consents
//! (`browser_logins`).

use std::slice;

use zeroize::Zeroizing;

use super::revocations::{Revocations, Revoked, end, ended_at, number, number_grants};
use crate::{
    base::hex,
    database::{
        pool::{Error, Pool, Record, Row, Transaction, Value, audit},
        vault::{Place, Vault},
    },
};

/// A user who is logged in.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Person {
    /// The subject: a local user's name, or `{issuer}#{sub}` of a provider.
    pub(crate) subject: String,
    /// The displayed name, which never identifies the user.
    pub(crate) title: String,
    /// The provider's groups; empty for local users.
    pub(crate) groups: Vec<String>,
    /// The provider's name; none for local users.
    pub(crate) provider: Option<String>,
    /// The session at the provider, after the issuer of the provider; none if it does not name it.
    #[serde(default)]
    pub(crate) session: Option<String>,
    /// Time of the log-in, in milliseconds since 1970.
    pub(crate) auth_ms: i64,
    /// The SHA-256 of a local user's password hash: a new password ends the log-in.
    #[serde(default)]
    pub(crate) password: Option<[u8; 32]>,
}

impl Person {
    /// The text of a row.
    pub(super) fn text(&self) -> Result<String, Error> {
        let text = serde_json::to_string(self);
        text.map_err(|error| Error::Bug(format!("a person: {error}")))
    }

    /// The person of a row.
    pub(super) fn of_row(row: &Row) -> Result<Self, Error> {
        let text: String = row.get("person")?;
        let person = serde_json::from_str(&text);
        person.map_err(|error| Error::Bug(format!("a person: {error}")))
    }
}

/// What a person logged out of at an identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoggedOut {
    /// One session there; with a subject also log-ins of the person of which the provider named no session.
    Session {
        /// The session, after the issuer of the provider.
        session: String,
        /// The subject of the person.
        subject: Option<String>,
    },
    /// All sessions of a subject.
    Subject(String),
}

/// Log-ins, consents and one-time values of tenants.
#[derive(Clone, Copy)]
pub(crate) struct Logins<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
}

impl Logins<'_> {
    /// Reports whether a user gave exactly this consent: `digest` covers everything that the page
    /// showed.
    pub(crate) async fn has_consented(
        self,
        tenant: &str,
        subject: &str,
        client_id: &str,
        digest: &[u8; 32],
    ) -> Result<bool, Error> {
        let values = vec![
            tenant.into(),
            subject.into(),
            client_id.into(),
            digest.into(),
        ];
        Ok(!self.pool.read(CONSENTED, values).await?.is_empty())
    }

    /// Stores the state of a log-in at a provider, sealed; `key` is the SHA-256 of its `state`.
    pub(crate) async fn add_trip(
        self,
        tenant: &str,
        key: &[u8; 32],
        content: &[u8],
        expires_ms: i64,
    ) -> Result<(), Error> {
        let row = trip_row(tenant, key);
        let sealed = self.vault.seal(trip_place(&row), content);
        if sealed.is_none() {
            return Err(Error::no_randomness());
        }
        let values = vec![tenant.into(), key.into(), sealed.into(), expires_ms.into()];
        self.pool.write(ADD_TRIP, values).await?;
        Ok(())
    }

    /// Takes the state of a log-in at a provider: once, and only before its expiry. A state sealed
    /// under a rotated master key is lost.
    pub(crate) async fn take_trip(
        self,
        tenant: &str,
        key: &[u8; 32],
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let values = vec![tenant.into(), key.into(), self.pool.now_ms().into()];
        let taken = self.pool.write(TAKE_TRIP, values).await?;
        let Some(row) = taken.first() else {
            return Ok(None);
        };
        let sealed: Vec<u8> = row.get("content")?;
        Ok(self.vault.open(trip_place(&trip_row(tenant, key)), &sealed))
    }

    /// Returns true at the first use of a value (a SHA-256 with its purpose and owner), which is
    /// stored until `expires_ms`.
    pub(crate) async fn use_once(
        self,
        tenant: &str,
        value: &[u8; 32],
        expires_ms: i64,
    ) -> Result<bool, Error> {
        let values = vec![tenant.into(), value.into(), expires_ms.into()];
        Ok(!self.pool.write(USE_ONCE, values).await?.is_empty())
    }

    /// Forgets a use of a value of which nothing came.
    pub(crate) async fn give_back(self, tenant: &str, value: &[u8; 32]) -> Result<(), Error> {
        let values = vec![tenant.into(), value.into()];
        self.pool.write(GIVE_BACK, values).await?;
        Ok(())
    }

    /// Seals the state of a form for a browser, bound to `purpose`.
    pub(crate) fn seal(self, tenant: &str, purpose: &'static str, plain: &[u8]) -> Option<Vec<u8>> {
        self.vault.seal(form_place(tenant, purpose), plain)
    }

    /// Opens the sealed state of a form.
    pub(crate) fn open_sealed(
        self,
        tenant: &str,
        purpose: &'static str,
        sealed: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        self.vault.open(form_place(tenant, purpose), sealed)
    }
}

impl Revocations<'_> {
    /// Ends the log-ins and grants of a logout at an identity provider. Returns false if the value `once`, which is
    /// stored until a time, was used before.
    pub(crate) async fn log_out(
        self,
        tenant: &str,
        what: &LoggedOut,
        (once, until_ms): (&[u8; 32], i64),
        record: &Record,
    ) -> Result<bool, Error> {
        let pool = self.at_turn(tenant).await?;
        let mut transaction = pool.begin().await?;
        let now_ms = self.pool.now_ms();
        let values = vec![tenant.into(), once.into(), until_ms.into()];
        if transaction.run(USE_ONCE, values).await?.is_empty() {
            return Ok(false);
        }
        audit::append(&mut transaction, now_ms, slice::from_ref(record)).await?;
        match what {
            LoggedOut::Session { session, subject } => {
                let of = (session.as_str(), subject.as_ref());
                end_session(&mut transaction, tenant, of, now_ms).await?;
            }
            LoggedOut::Subject(subject) => {
                let person = Revoked::Subject(subject.clone());
                end(&mut transaction, tenant, &person, now_ms).await?;
            }
        }
        transaction.commit().await?;
        Ok(true)
    }
}

/// Ends the log-ins of a session at an identity provider, with their grants.
async fn end_session(
    transaction: &mut Transaction,
    tenant: &str,
    (session, subject): (&str, Option<&String>),
    now_ms: i64,
) -> Result<(), Error> {
    end_found(transaction, tenant, (OF_SESSION, session), now_ms).await?;
    // A code of a log-in that has just ended may still be in use.
    number(transaction, tenant, SESSION, session, now_ms).await?;
    if let Some(subject) = subject {
        end_found(transaction, tenant, (OF_NO_SESSION, subject), now_ms).await?;
        number(transaction, tenant, SESSIONLESS, subject, now_ms).await?;
    }
    Ok(())
}

/// Ends the log-ins, codes and grants that statements find by a value.
async fn end_found(
    transaction: &mut Transaction,
    tenant: &str,
    ([logins, codes, grants], value): ([&'static str; 3], &str),
    now_ms: i64,
) -> Result<(), Error> {
    let values = || -> Vec<Value> { vec![tenant.into(), value.into()] };
    for sql in [logins, codes] {
        transaction.run(sql, values()).await?;
    }
    let mut all = values();
    all.extend(ended_at(now_ms));
    let ended = transaction.run(grants, all).await?;
    number_grants(transaction, tenant, &ended, now_ms).await
}

fn form_place<'a>(tenant: &'a str, purpose: &'static str) -> Place<'a> {
    Place {
        table: "forms",
        row: tenant,
        column: purpose,
    }
}

fn trip_place(row: &str) -> Place<'_> {
    Place {
        table: "trips",
        row,
        column: "content",
    }
}

/// The place of a row of `trips`, by its key.
fn trip_row(tenant: &str, key: &[u8; 32]) -> String {
    format!("{tenant}/{}", hex(key))
}

/// Row kind: a session at an identity provider, whose codes ended.
const SESSION: &str = "session";
/// Row kind: a subject, whose codes of log-ins without a session ended.
const SESSIONLESS: &str = "sessionless";

// Statements of their own for those without a session: SQLite looks for one of two conditions by no index.
/// What ends the log-ins, codes and grants of a session.
pub(crate) const OF_SESSION: [&str; 3] = [
    "DELETE FROM logins
      WHERE tenant = $1 AND session = $2",
    "DELETE FROM codes
      WHERE tenant = $1 AND session = $2",
    "UPDATE grants
        SET revoked_ms = $3,
            expires_ms = CASE WHEN expires_ms < $4 THEN expires_ms ELSE $4 END
      WHERE tenant = $1 AND session = $2 AND revoked_ms IS NULL
     RETURNING id",
];

/// What ends those of a subject that are of no session.
pub(crate) const OF_NO_SESSION: [&str; 3] = [
    "DELETE FROM logins
      WHERE tenant = $1 AND session IS NULL AND subject = $2",
    "DELETE FROM codes
      WHERE tenant = $1 AND session IS NULL AND subject = $2",
    "UPDATE grants
        SET revoked_ms = $3,
            expires_ms = CASE WHEN expires_ms < $4 THEN expires_ms ELSE $4 END
      WHERE tenant = $1 AND session IS NULL AND subject = $2 AND revoked_ms IS NULL
     RETURNING id",
];

pub(super) const CONSENTED: &str = "
    SELECT created_ms
      FROM consents
     WHERE tenant = $1 AND subject = $2 AND client_id = $3 AND digest = $4";

pub(super) const FORGET_CONSENTS: &str = "
    DELETE FROM consents
     WHERE tenant = $1 AND subject = $2 AND client_id = $3";

const ADD_TRIP: &str = "
    INSERT INTO trips (tenant, state, content, expires_ms)
    VALUES ($1, $2, $3, $4)";

const TAKE_TRIP: &str = "
    DELETE FROM trips
     WHERE tenant = $1 AND state = $2 AND expires_ms > $3
    RETURNING content";

const GIVE_BACK: &str = "
    DELETE FROM used
     WHERE tenant = $1 AND value = $2";

pub(super) const USE_ONCE: &str = "
    INSERT INTO used (tenant, value, expires_ms)
    VALUES ($1, $2, $3)
    ON CONFLICT (tenant, value) DO NOTHING
    RETURNING value";

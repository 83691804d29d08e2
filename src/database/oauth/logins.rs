//! People who are logged in, consents, and log-ins in progress at a provider.
//!
//! Not here: what is stored of each person in bounds, the browsers that they are logged in with and new consents
//! (`browser_logins`).

use zeroize::Zeroizing;

use crate::{
    base::hex,
    database::{
        pool::{Error, Pool, Row},
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

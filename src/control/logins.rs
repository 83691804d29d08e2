//! Who is logged in in which browser, what they consented to, and log-ins that are under way, as
//! rows.

use super::store::{Failure, Store};

/// Somebody who logged in.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Person {
    /// The subject: a local user's name, or `{issuer}#{sub}` of a provider.
    pub(crate) subject: String,
    /// What to show: never used to tell people apart.
    pub(crate) title: String,
    /// The provider's groups; empty for local users.
    pub(crate) groups: Vec<String>,
    /// The provider's name; none for local users.
    pub(crate) provider: Option<String>,
    /// When, in milliseconds since 1970.
    pub(crate) auth_ms: i64,
}

impl Store {
    /// Remembers that a browser, by the SHA-256 of its cookie, is logged in as `person`.
    pub(crate) async fn log_in(
        &self,
        tenant: &str,
        browser: &[u8; 32],
        person: &Person,
        expires_ms: i64,
    ) -> Result<(), Failure> {
        todo!()
    }

    /// Who is logged in in a browser.
    pub(crate) async fn logged_in(
        &self,
        tenant: &str,
        browser: &[u8; 32],
    ) -> Result<Option<Person>, Failure> {
        todo!()
    }

    /// Ends a browser's log-in.
    pub(crate) async fn log_out(&self, tenant: &str, browser: &[u8; 32]) -> Result<(), Failure> {
        todo!()
    }

    /// Whether a person consented to exactly this: `digest` is of all that the page showed.
    pub(crate) async fn has_consented(
        &self,
        tenant: &str,
        subject: &str,
        client_id: &str,
        digest: &[u8; 32],
    ) -> Result<bool, Failure> {
        todo!()
    }

    /// Remembers a consent.
    pub(crate) async fn consent(
        &self,
        tenant: &str,
        subject: &str,
        client_id: &str,
        digest: &[u8; 32],
    ) -> Result<(), Failure> {
        todo!()
    }

    /// Keeps what a log-in at a provider needs when it comes back, sealed; `key` is the SHA-256 of
    /// its `state`.
    pub(crate) async fn add_trip(
        &self,
        tenant: &str,
        key: &[u8; 32],
        content: &[u8],
        expires_ms: i64,
    ) -> Result<(), Failure> {
        todo!()
    }

    /// Takes it: only one of all who come with it gets it, and only before its end.
    pub(crate) async fn take_trip(
        &self,
        tenant: &str,
        key: &[u8; 32],
    ) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, Failure> {
        todo!()
    }

    /// Whether a value (the SHA-256 of what it is and whose) is used for the first time; it is
    /// remembered until `expires_ms`.
    pub(crate) async fn use_once(
        &self,
        tenant: &str,
        value: &[u8; 32],
        expires_ms: i64,
    ) -> Result<bool, Failure> {
        todo!()
    }

    /// Seals a form's state for the time that a browser has it; `purpose` is bound to it.
    pub(crate) fn seal(
        &self,
        tenant: &str,
        purpose: &'static str,
        plain: &[u8],
    ) -> Option<Vec<u8>> {
        todo!()
    }

    /// Opens it.
    pub(crate) fn open_sealed(
        &self,
        tenant: &str,
        purpose: &'static str,
        sealed: &[u8],
    ) -> Option<zeroize::Zeroizing<Vec<u8>>> {
        todo!()
    }
}

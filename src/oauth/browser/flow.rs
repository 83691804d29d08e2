//! State of a flow from authorization request to response, carried in a hidden form field: sealed,
//! bound to one browser, and limited in time.
//!
//! The state needs no row, so requests without a log-in write nothing. A flow is decided once. The
//! parameters are stored as received and parsed again at every step. Not here: the steps.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::cookie::BrowserId;
use crate::{
    base::Sha256,
    database::{self, Database},
};

/// An unfinished authorization request of a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flow {
    /// The random name under which its decision is recorded.
    id: [u8; 16],
    /// The parameters, as received.
    pub(crate) query: String,
    /// Set if the request used the short path of the default tenant.
    pub(crate) is_short: bool,
    /// The digest of the browser's cookie.
    browser: [u8; 32],
    /// Its expiry, in milliseconds since 1970.
    pub(super) expires_ms: i64,
    /// The chosen identity provider.
    pub(crate) provider: Option<String>,
    /// Set if it leads to the account page: it belongs to no client and has no parameters.
    #[serde(default)]
    pub(super) is_account: bool,
    /// Digest of the contents of the consent page; `None` before that page.
    pub(super) shown: Option<[u8; 32]>,
}

/// The flow of a form, by the browser that sends it.
#[derive(Debug)]
pub(super) enum Opened {
    /// That of the flow.
    Here(Flow),
    /// Another one, or the same after it got another cookie.
    Elsewhere(Flow),
}

/// Form that carries a flow. A flow sealed for one form is invalid in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormKind {
    /// The log-in form.
    Login,
    /// The consent form.
    Consent,
    /// The forms of the account page.
    Account,
}

impl FormKind {
    fn purpose(self) -> &'static str {
        match self {
            Self::Login => "log-in form",
            Self::Consent => "consent form",
            Self::Account => "account form",
        }
    }
}

impl Flow {
    /// Starts a flow in `browser`.
    pub(crate) fn new(query: String, is_short: bool, browser: &BrowserId, expires_ms: i64) -> Self {
        Self {
            id: Uuid::new_v4().into_bytes(),
            query,
            is_short,
            browser: browser.hash(),
            expires_ms,
            provider: None,
            is_account: false,
            shown: None,
        }
    }

    /// Starts a flow to the account page in `browser`.
    pub(super) fn for_account(browser: &BrowserId, expires_ms: i64) -> Self {
        Self {
            is_account: true,
            ..Self::new(String::new(), false, browser, expires_ms)
        }
    }

    /// Records that the flow is decided; returns false if it was decided before.
    pub(super) async fn decide(
        &self,
        store: &Database,
        tenant: &str,
    ) -> Result<bool, database::Error> {
        let (logins, value) = (store.logins(), self.decision());
        logins.use_once(tenant, &value, self.expires_ms).await
    }

    /// Takes back that the flow is decided.
    pub(super) async fn undecide(
        &self,
        store: &Database,
        tenant: &str,
    ) -> Result<(), database::Error> {
        store.logins().give_back(tenant, &self.decision()).await
    }

    /// The hash by which its decision counts once.
    fn decision(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [&b"flow"[..], &self.id] {
            digest.add_part(part);
        }
        digest.finish()
    }

    /// The hash by which a form of the flow counts once for a purpose.
    pub(super) fn once(&self, purpose: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [&b"form"[..], &self.id, purpose.as_bytes()] {
            digest.add_part(part);
        }
        digest.finish()
    }

    /// Seals the flow for a hidden field; `None` if the system has no randomness.
    pub(super) fn seal(&self, store: &Database, tenant: &str, page: FormKind) -> Option<String> {
        let plain = serde_json::to_vec(self).ok()?;
        let sealed = store.logins().seal(tenant, page.purpose(), &plain)?;
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens a sealed flow of this form and tenant, unless it has expired; none without a browser.
    pub(super) fn open(
        store: &Database,
        tenant: &str,
        page: FormKind,
        text: &str,
        browser: Option<&BrowserId>,
        now_ms: i64,
    ) -> Option<Opened> {
        let sealed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let plain = store
            .logins()
            .open_sealed(tenant, page.purpose(), &sealed)?;
        let flow: Self = serde_json::from_slice(&plain).ok()?;
        let browser = browser.filter(|_| now_ms < flow.expires_ms)?;
        let is_here = browser.hash() == flow.browser;
        Some(if is_here {
            Opened::Here(flow)
        } else {
            Opened::Elsewhere(flow)
        })
    }
}

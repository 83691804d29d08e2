//! What a form carries through the browser from the authorization request to its answer: sealed,
//! bound to the browser that it was given to, and only for a while.
//!
//! Nothing of it is a row: who asks without logging in, however often, writes nothing. Whatever was
//! asked is kept as it came and judged anew at every step. Not here: the steps.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::cookie::BrowserId;
use crate::database::Store;

/// An authorization request that is under way in a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flow {
    /// The request's parameters, as they came.
    pub(crate) query: String,
    /// Whether it came by the short path of the default tenant.
    pub(crate) is_short: bool,
    /// The hash of the browser's cookie.
    browser: [u8; 32],
    /// When it is worth nothing, in milliseconds since 1970.
    expires_ms: i64,
    /// The identity provider that was chosen.
    pub(crate) provider: Option<String>,
    /// What the consent page showed; none on pages that ask for no consent.
    pub(super) shown: Option<[u8; 32]>,
}

/// Whose form it is: that of one page is no answer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormKind {
    /// Who somebody is.
    Login,
    /// Whether a client may.
    Consent,
}

impl FormKind {
    fn purpose(self) -> &'static str {
        match self {
            Self::Login => "log-in form",
            Self::Consent => "consent form",
        }
    }
}

impl Flow {
    /// A request that begins in `browser`.
    pub(crate) fn new(query: String, is_short: bool, browser: &BrowserId, expires_ms: i64) -> Self {
        Self {
            query,
            is_short,
            browser: browser.hash(),
            expires_ms,
            provider: None,
            shown: None,
        }
    }

    /// It as the value of a hidden field; none when the system has no randomness.
    pub(super) fn seal(&self, store: &Store, tenant: &str, page: FormKind) -> Option<String> {
        let plain = serde_json::to_vec(self).ok()?;
        let sealed = store.seal(tenant, page.purpose(), &plain)?;
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens it, if it was made by us, for this form of this tenant and for this browser, and not
    /// too long ago.
    pub(super) fn open(
        store: &Store,
        tenant: &str,
        page: FormKind,
        text: &str,
        browser: Option<&BrowserId>,
        now_ms: i64,
    ) -> Option<Self> {
        let sealed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let plain = store.open_sealed(tenant, page.purpose(), &sealed)?;
        let flow: Self = serde_json::from_slice(&plain).ok()?;
        let is_here = browser.is_some_and(|browser| browser.hash() == flow.browser);
        (is_here && now_ms < flow.expires_ms).then_some(flow)
    }
}

//! The seam behind which identity providers are: who somebody is, document by somebody else.
//!
//! Not here: what is done about it (`callback`), and the two kinds that there are
//! (`provider_openid`, `provider_oauth`).

use std::{future::Future, pin::Pin};

use serde_json::Value;
use url::Url;

use crate::base::Refused;

/// A future that the seam returns.
pub(crate) type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a log-in at a provider is made of; each value is random and of this log-in alone.
#[derive(Clone, Debug)]
pub(crate) struct ProviderLogin<'j> {
    /// Where the provider sends people back to.
    pub(crate) callback: &'j str,
    /// Ties the answer to the browser (RFC 6749, section 10.12).
    pub(crate) state: &'j str,
    /// Ties an ID token to the log-in (OpenID Connect Core, section 3.1.2.1).
    pub(crate) nonce: &'j str,
    /// Ties the code to us (RFC 7636).
    pub(crate) verifier: &'j str,
}

/// Somebody, as a provider knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProviderIdentity {
    /// Never changes, and is never anybody else's at that provider.
    pub(crate) subject: String,
    /// What to show.
    pub(crate) title: Option<String>,
    /// Groups.
    pub(crate) groups: Vec<String>,
    /// An e-mail address that the provider has verified. It tells nobody apart: it may be given to
    /// somebody else (CONTRACT P88).
    pub(crate) email: Option<String>,
}

/// What of somebody is wanted beside the subject; what is not, is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedClaims {
    /// Groups.
    pub(crate) groups: bool,
    /// A verified e-mail address.
    pub(crate) email: bool,
}

/// Why nobody knows who somebody is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProviderError {
    /// The provider does not answer, or not in time; the text is for the log.
    Unavailable(String),
    /// What it answers is not worth anything; the text is for the log.
    Invalid(String),
}

impl From<Refused> for ProviderError {
    fn from(refused: Refused) -> Self {
        match refused {
            // An answer that is no document says that something stands before it that is broken.
            Refused::Unreachable(what) | Refused::Answer(what) => Self::Unavailable(what),
            Refused::Url(what) => Self::Invalid(what.to_owned()),
        }
    }
}

/// Says who somebody is.
///
/// 1. `authorization_url` gives the URL at which the provider asks; it carries `state`, a code challenge of
///    `verifier`, and where there are ID tokens `nonce`, and tells the provider nothing else of the
///    browser or the client.
/// 2. `identify` takes what came back and answers `ProviderIdentity` only if the provider itself, asked over a
///    connection of our own, says so for this very login: another nonce, verifier, audience or
///    issuer is `Wrong`.
/// 3. `ProviderIdentity::subject` alone tells people apart, and only together with the issuer.
/// 4. Both end within a bounded time, whatever the provider does; one that is away is `Away`.
/// 5. Nothing that the provider sends is followed: no redirect, no URL but those that its operator
///    or its own metadata name, and those only where `outbound` lets us.
pub(crate) trait IdentityProvider: Send + Sync {
    /// Where people are sent; `again` asks the provider to ask them again who they are.
    fn authorization_url<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        again: bool,
    ) -> ProviderFuture<'a, Result<Url, ProviderError>>;

    /// Who came back with `code`.
    fn identify<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        code: &'a str,
        wanted: WantedClaims,
    ) -> ProviderFuture<'a, Result<ProviderIdentity, ProviderError>>;
}

/// The first of these members that is a text with something in it.
pub(crate) fn title(claims: &serde_json::Map<String, Value>, names: &[&str]) -> Option<String> {
    let texts = names.iter().filter_map(|name| claims.get(*name)?.as_str());
    let mut texts = texts.filter(|text| !text.trim().is_empty());
    texts.next().map(|text| text.chars().take(TITLE).collect())
}

/// Letters of a title that are kept; fewer are shown.
const TITLE: usize = 200;
/// Bytes of a subject: those of OpenID Connect Core, section 2, have at most 255 letters.
pub(super) const SUBJECT: usize = 255;
/// Bytes of any answer of a provider.
pub(super) const ANSWER: usize = 64 << 10;

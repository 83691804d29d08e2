//! The seam for identity providers, and its contract.
//!
//! Not here: the log-in of an identified person (`oauth::browser`), and the two implementations
//! (`openid`, `oauth`).

use std::{fmt, future::Future, pin::Pin, time::Duration};

use serde_json::Value;
use url::Url;

use crate::{
    base::{OutboundError, Secret, is_unseen},
    database::Tokens,
    declare::{Provider, Tenant, are_too_many},
};

/// A future that the seam returns.
pub(crate) type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The parameters of one log-in at a provider; each value is random and used once.
#[derive(Clone, Debug)]
pub(crate) struct ProviderLogin<'j> {
    /// The redirect URI at the gateway.
    pub(crate) callback: &'j str,
    /// Binds the response to the browser (RFC 6749, section 10.12).
    pub(crate) state: &'j str,
    /// Binds an ID token to the log-in (OpenID Connect Core, section 3.1.2.1).
    pub(crate) nonce: &'j str,
    /// Binds the code to the gateway (RFC 7636).
    pub(crate) verifier: &'j str,
    /// Whether to ask for a refresh token.
    pub(crate) is_kept: bool,
}

/// A person as a provider identifies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProviderIdentity {
    /// The permanent id of the person, unique at that provider.
    pub(crate) subject: String,
    /// The name to show.
    pub(crate) title: Option<String>,
    /// Group memberships; none if the provider does not tell them.
    pub(crate) groups: Option<Vec<String>>,
    /// A verified e-mail address. It does not identify a person, since it may be reassigned.
    pub(crate) email: Option<String>,
    /// The person's session there, if the provider names it (OpenID Connect Back-Channel Logout 1.0, section 2.1).
    pub(crate) session: Option<String>,
    /// The time at which the provider asked the person to log in, in seconds since 1970, if it tells it (OpenID Connect
    /// Core, section 2, `auth_time`).
    pub(crate) asked_s: Option<u64>,
}

/// The tokens of a person that a provider gave.
pub(crate) struct ProviderTokens {
    /// The access token.
    pub(crate) access: Secret,
    /// The refresh token, if there is one.
    pub(crate) refresh: Option<Secret>,
    /// The lifetime of the access token, if the provider told it.
    pub(crate) lasts: Option<Duration>,
}

/// What became of asking a provider about a person again.
pub(crate) struct AskedAgain {
    /// New tokens in place of those by which it was asked, whatever its word.
    pub(crate) tokens: Option<ProviderTokens>,
    /// Whether a refresh token was sent: without an answer it may be used up.
    pub(crate) is_sent: bool,
    /// The person, if it described them.
    pub(crate) word: Result<Option<ProviderIdentity>, ProviderError>,
}

/// What a provider ends: a session there, a person, or a session of a person.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogoutToken {
    /// The person at the provider.
    pub(crate) subject: Option<String>,
    /// The session at the provider.
    pub(crate) session: Option<String>,
    /// Its `jti`, valid for one use.
    pub(crate) id: String,
    /// The time from which it is refused, in seconds since 1970.
    pub(crate) expires_s: i64,
}

/// The claims that are needed beside the subject; others are not requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedClaims {
    /// Group memberships.
    pub(crate) groups: bool,
    /// A verified e-mail address.
    pub(crate) email: bool,
}

impl WantedClaims {
    /// Those on which access to the servers of a tenant depends.
    pub(crate) fn of(tenant: &Tenant, provider: &Provider) -> Self {
        let mut servers = tenant.servers.values();
        let has_groups = servers.any(|server| {
            let grants = server.grants.as_ref();
            server.policy.has_groups() || grants.is_some_and(|grants| !grants.groups.is_empty())
        });
        Self {
            groups: has_groups || !provider.allow.groups.is_empty(),
            email: !provider.allow.domains.is_empty(),
        }
    }
}

/// Reason why a provider did not identify the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProviderError {
    /// The provider is unreachable or too slow; the text is for the log.
    Unavailable(String),
    /// The provider answers with no document, which may pass; the text is for the log.
    Unusable(String),
    /// The provider's response is invalid; the text is for the log.
    Invalid(String),
    /// The provider refuses the code of a log-in or a refresh token, by this error (RFC 6749, section 5.2).
    Refused(&'static str),
    /// The provider does not honour the tokens of the person any more.
    Ended,
}

impl ProviderError {
    /// Reports whether the provider may answer another time.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unusable(_))
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(what) | Self::Unusable(what) | Self::Invalid(what) => {
                f.write_str(what)
            }
            Self::Refused(error) => write!(f, "the token endpoint answers {error}"),
            Self::Ended => f.write_str("it does not honour the tokens of the person any more"),
        }
    }
}

/// Reason why a provider gave no token for another audience.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    /// The provider refuses it, by this error (RFC 8693, section 2.2.2).
    Refused(&'static str),
    /// The provider is away, or its answer is invalid.
    Failed(ProviderError),
}

impl<E: Into<ProviderError>> From<E> for ExchangeError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl From<OutboundError> for ProviderError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Unconnected(what) | OutboundError::Unreachable(what) => {
                Self::Unavailable(what)
            }
            // It suggests a broken proxy in front of the provider.
            OutboundError::Response(unexpected) => Self::Unusable(unexpected.to_string()),
            OutboundError::Url(what) => Self::Invalid(what.to_owned()),
        }
    }
}

/// An identity provider.
///
/// 1. `authorization_url` returns the URL of the provider's log-in; it carries `state`, a code
///    challenge of `verifier` and, for OpenID Connect, `nonce`, and reveals nothing else about the
///    browser or the client.
/// 2. `identify` returns a `ProviderIdentity` only if the provider itself, over a connection of the
///    gateway, confirms it for this log-in: another nonce, verifier, audience or issuer is
///    `Invalid`.
/// 3. `ask_again` answers `Ended` only if the provider itself refuses the tokens; new tokens are returned whatever
///    follows, since the old ones may be used up. So they may be where one was sent, there are no new ones, and the error
///    is one that `may_pass`.
/// 4. `logout_token` returns only what the provider itself has signed for the gateway just now. Anybody can cause it, so
///    what it fetches is bounded.
/// 5. `exchange` sends the token to the token endpoint alone, and gives only what is an access token by the answer. Its
///    caller has checked that the provider may be asked for the audience.
/// 6. Only `ProviderIdentity::subject`, together with the issuer, identifies a person.
/// 7. All end within a bounded time; an unreachable provider is `Unavailable`, and a response that is too large, a
///    redirect or no document is `Unusable`.
/// 8. No redirect and no URL of the provider is followed, except those that its operator or its own
///    metadata name, as far as `outbound` allows them.
pub(crate) trait IdentityProvider: Send + Sync {
    /// Builds the URL of the provider's log-in; `again` requests a fresh log-in, or another account where the provider
    /// has no such request. Whether it asks the person is up to the provider, and told by `ProviderIdentity::asked_s`.
    fn authorization_url<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        again: bool,
    ) -> ProviderFuture<'a, Result<Url, ProviderError>>;

    /// Reports whether a response may come from the provider by its `iss` (RFC 9207, section 2.4).
    fn is_from<'a>(
        &'a self,
        iss: Option<&'a str>,
    ) -> ProviderFuture<'a, Result<bool, ProviderError>>;

    /// Identifies the person who returned with `code`.
    fn identify<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        code: &'a str,
        wanted: WantedClaims,
    ) -> ProviderFuture<'a, Result<(ProviderIdentity, ProviderTokens), ProviderError>>;

    /// Asks about a person again who logged in before, by tokens of that log-in.
    fn ask_again<'a>(
        &'a self,
        tokens: &'a Tokens,
        wanted: WantedClaims,
    ) -> ProviderFuture<'a, AskedAgain>;

    /// Exchanges an access token that the provider gave of a person for one of another audience (RFC 8693).
    fn exchange<'a>(
        &'a self,
        subject: &'a Secret,
        audience: &'a str,
    ) -> ProviderFuture<'a, Result<ProviderTokens, ExchangeError>>;

    /// Verifies a logout token of the provider.
    fn logout_token<'a>(
        &'a self,
        text: &'a str,
    ) -> ProviderFuture<'a, Result<LogoutToken, ProviderError>>;
}

/// Returns the first non-blank text among these members, without control characters.
pub(crate) fn title(claims: &serde_json::Map<String, Value>, names: &[&str]) -> Option<String> {
    let texts = names.iter().filter_map(|name| claims.get(*name)?.as_str());
    // No database keeps a NUL.
    let printed = texts.map(|text| text.replace(char::is_control, " "));
    let mut titles = printed.filter(|text| !text.trim().is_empty());
    titles.next().map(|text| text.chars().take(TITLE).collect())
}

/// Checks the permanent id of a person or a session, whichever kind of provider or assertion told it.
///
/// # Errors
///
/// The reason why it names nobody, for the log.
pub(super) fn check_subject(subject: &str) -> Result<(), &'static str> {
    // No database keeps a NUL, and lists must not show two people by one name.
    let is_shown = !subject.trim().is_empty() && !subject.chars().any(is_unseen);
    if subject.len() > SUBJECT || !is_shown {
        return Err("no subject, or one that is blank, too long or not to be shown");
    }
    Ok(())
}

/// Checks the groups that a provider names of one person.
///
/// # Errors
///
/// The bound, for the log and for the client of an assertion.
pub(super) fn check_groups(groups: &[String]) -> Result<(), &'static str> {
    if are_too_many(groups) {
        return Err("more than 1,000 groups of one person, or more than 32 KiB of them");
    }
    if groups.iter().any(|group| group.contains('\0')) {
        return Err("a group whose name has a NUL");
    }
    Ok(())
}

/// Maximum length of a stored title in characters; pages show less.
const TITLE: usize = 200;
/// Maximum size of a subject in bytes: OpenID Connect Core, section 2, allows 255 characters.
const SUBJECT: usize = 255;
/// Maximum size of a provider's response in bytes.
pub(super) const ANSWER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_title_can_be_stored_and_shown() {
        for (claims, wanted) in [
            (json!({"name": "Ada", "login": "ada"}), Some("Ada")),
            (json!({"name": "A\u{0}da"}), Some("A da")),
            (json!({"name": "\u{0}", "login": "ada"}), Some("ada")),
            (json!({"name": 1}), None),
        ] {
            let found = title(claims.as_object().unwrap(), &["name", "login"]);
            assert_eq!(found.as_deref(), wanted, "{claims}");
        }
    }

    #[test]
    fn a_subject_names_somebody() {
        let longest = "x".repeat(SUBJECT);
        for good in ["1", "ada lovelace", "ä", longest.as_str()] {
            assert_eq!(check_subject(good), Ok(()), "{good:?}");
        }
        let longer = "x".repeat(SUBJECT + 1);
        for bad in [
            "",
            " ",
            "\u{3000}",
            "a\0",
            "a\nb",
            "\u{1b}[2J",
            "\u{9b}",
            "ada\u{200b}",
            "\u{202e}ada",
            longer.as_str(),
        ] {
            assert!(check_subject(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn groups_of_a_person_have_a_bound() {
        let of = |count: usize, size: usize| check_groups(&vec!["x".repeat(size); count]);
        assert_eq!(of(0, 0), Ok(()));
        assert_eq!(of(1000, 32), Ok(()));
        assert_eq!(of(32, 1 << 10), Ok(()));
        assert!(of(1001, 0).is_err() && of(1, (32 << 10) + 1).is_err());
    }
}

//! Error responses of the endpoints for clients (RFC 6749, section 5.2; RFC 7591, section 3.2.2),
//! and the only mapping from refusal to status code.

use std::time::Duration;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, PRAGMA, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::json;

use crate::database;

/// A refusal. Its texts are constants, so that nothing leaks into them, and avoid the characters
/// that RFC 6749 forbids.
#[derive(Debug)]
pub(crate) struct OauthRefusal {
    code: RefusalCode,
    what: &'static str,
    retry: Option<Duration>,
    challenge: Option<&'static str>,
    /// Whether what is refused may have been guessed.
    is_guess: bool,
}

/// The kinds of refusals, named as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCode {
    /// A parameter is missing, malformed or repeated.
    InvalidRequest,
    /// The client is unknown, or failed to authenticate.
    InvalidClient,
    /// A code or refresh token is invalid, or belongs to another client.
    InvalidGrant,
    /// The proof of the possession of a key is missing or invalid (RFC 9449, section 5).
    InvalidDpopProof,
    /// The client may not use the grant type.
    UnauthorizedClient,
    /// The grant type is not supported.
    UnsupportedGrantType,
    /// The scope exceeds the grant.
    InvalidScope,
    /// The resource is not that of the grant (RFC 8707).
    InvalidTarget,
    /// A redirect URI is not allowed (RFC 7591).
    InvalidRedirectUri,
    /// Other client metadata is not allowed (RFC 7591).
    InvalidClientMetadata,
    /// The registration access token is invalid (RFC 6750).
    InvalidToken,
    /// A logout token is invalid (OpenID Connect Back-Channel Logout 1.0, section 2.8).
    InvalidLogoutToken,
    /// The body is too long.
    TooLarge,
    /// No authorization server or resource exists at this path.
    NotFound,
    /// The request exceeds a rate limit.
    TooMany,
    /// A dependency is unavailable, for every client.
    Unavailable,
}

impl RefusalCode {
    /// The name on the wire.
    pub(crate) const fn name(self) -> &'static str {
        self.parts().1
    }

    /// Status and wire name of each kind. When you add one, decide here whose fault it is.
    const fn parts(self) -> (StatusCode, &'static str) {
        let bad = StatusCode::BAD_REQUEST;
        match self {
            Self::InvalidRequest | Self::InvalidLogoutToken => (bad, "invalid_request"),
            Self::UnauthorizedClient => (bad, "unauthorized_client"),
            Self::InvalidClient => (StatusCode::UNAUTHORIZED, "invalid_client"),
            Self::InvalidGrant => (bad, "invalid_grant"),
            Self::InvalidDpopProof => (bad, "invalid_dpop_proof"),
            Self::UnsupportedGrantType => (bad, "unsupported_grant_type"),
            Self::InvalidScope => (bad, "invalid_scope"),
            Self::InvalidTarget => (bad, "invalid_target"),
            Self::InvalidRedirectUri => (bad, "invalid_redirect_uri"),
            Self::InvalidClientMetadata => (bad, "invalid_client_metadata"),
            Self::InvalidToken => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "invalid_request"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable"),
        }
    }
}

impl OauthRefusal {
    /// A refusal of this kind, described by `what`.
    pub(crate) const fn new(code: RefusalCode, what: &'static str) -> Self {
        Self {
            code,
            what,
            retry: None,
            challenge: None,
            is_guess: true,
        }
    }

    /// There is no such authorization server.
    pub(crate) const fn gone() -> Self {
        let what = "there is no authorization server here";
        Self::new(RefusalCode::NotFound, what)
    }

    /// A temporary failure: the client may retry in a second.
    pub(crate) const fn later(what: &'static str) -> Self {
        Self::away(what, SOON)
    }

    /// A dependency is away: the client may retry after `retry`.
    pub(crate) const fn away(what: &'static str, retry: Duration) -> Self {
        let mut refusal = Self::new(RefusalCode::Unavailable, what);
        refusal.retry = Some(retry);
        refusal
    }

    /// A rate limit: the client may retry after `retry`.
    pub(crate) const fn too_many(what: &'static str, retry: Duration) -> Self {
        let mut refusal = Self::new(RefusalCode::TooMany, what);
        refusal.retry = Some(retry);
        refusal
    }

    /// Adds a `WWW-Authenticate` challenge.
    pub(crate) const fn challenged(mut self, challenge: &'static str) -> Self {
        self.challenge = Some(challenge);
        self
    }

    /// Is about a credential that the client has got here, which nobody guesses.
    pub(crate) const fn no_guess(mut self) -> Self {
        self.is_guess = false;
        self
    }

    /// Whether what is refused may have been guessed.
    pub(crate) fn is_guess(&self) -> bool {
        self.is_guess
    }

    /// The kind.
    pub(crate) fn code(&self) -> RefusalCode {
        self.code
    }

    /// The description.
    pub(crate) fn what(&self) -> &'static str {
        self.what
    }
}

impl From<database::Error> for OauthRefusal {
    /// A failure of the store is never the client's fault.
    fn from(failure: database::Error) -> Self {
        match failure {
            // With its tenant, meanwhile.
            database::Error::NotFound => return Self::gone(),
            database::Error::Unavailable(_) => {
                tracing::warn!(%failure, "an authorization server waits");
            }
            _ => tracing::error!(%failure, "an authorization server cannot answer"),
        }
        Self::later("the database is not available")
    }
}

impl IntoResponse for OauthRefusal {
    fn into_response(self) -> Response {
        let (status, name) = self.code.parts();
        let body = json!({"error": name, "error_description": self.what});
        let mut response = answer(status, &body);
        let headers = response.headers_mut();
        if let Some(retry) = self.retry {
            // Rounded up, so that a client that retries at that time is not early.
            let seconds = retry.as_millis().div_ceil(1000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

/// A JSON response that must not be cached (RFC 6749, section 5.1).
pub(crate) fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    forbid_storing(headers);
    response
}

/// Forbids caches from storing a response.
pub(crate) fn forbid_storing(headers: &mut HeaderMap) {
    let fields: [(HeaderName, &str); 2] = [(CACHE_CONTROL, "no-store"), (PRAGMA, "no-cache")];
    for (name, value) in fields {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// The refusal while the system has no randomness.
pub(crate) const NO_RANDOM: OauthRefusal = OauthRefusal::later("there is no randomness now");
/// The challenge for client authentication by secret.
pub(crate) const BASIC_CHALLENGE: &str = "Basic realm=\"lockgate\", charset=\"UTF-8\"";
/// Delay before a retry while the store is unavailable.
const SOON: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Registrations at a tenant that was being removed were told that the database was away.
    #[test]
    fn what_was_removed_is_not_a_database_that_is_away() {
        for (failure, code) in [
            (database::Error::NotFound, RefusalCode::NotFound),
            (
                database::Error::Unavailable(String::new()),
                RefusalCode::Unavailable,
            ),
            (database::Error::Conflict, RefusalCode::Unavailable),
        ] {
            assert_eq!(OauthRefusal::from(failure).code(), code);
        }
    }

    #[test]
    fn the_status_table() {
        let all = [
            RefusalCode::InvalidRequest,
            RefusalCode::InvalidClient,
            RefusalCode::InvalidGrant,
            RefusalCode::InvalidDpopProof,
            RefusalCode::UnsupportedGrantType,
            RefusalCode::InvalidScope,
            RefusalCode::InvalidTarget,
            RefusalCode::InvalidRedirectUri,
            RefusalCode::InvalidClientMetadata,
            RefusalCode::InvalidToken,
            RefusalCode::InvalidLogoutToken,
            RefusalCode::TooLarge,
            RefusalCode::NotFound,
            RefusalCode::TooMany,
            RefusalCode::Unavailable,
        ];
        let line = |code: &RefusalCode| {
            let (status, name) = code.parts();
            format!("{code:?}: {} {name}", status.as_u16())
        };
        let table: Vec<String> = all.iter().map(line).collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        InvalidRequest: 400 invalid_request
        InvalidClient: 401 invalid_client
        InvalidGrant: 400 invalid_grant
        InvalidDpopProof: 400 invalid_dpop_proof
        UnsupportedGrantType: 400 unsupported_grant_type
        InvalidScope: 400 invalid_scope
        InvalidTarget: 400 invalid_target
        InvalidRedirectUri: 400 invalid_redirect_uri
        InvalidClientMetadata: 400 invalid_client_metadata
        InvalidToken: 401 invalid_token
        InvalidLogoutToken: 400 invalid_request
        TooLarge: 413 invalid_request
        NotFound: 404 not_found
        TooMany: 429 temporarily_unavailable
        Unavailable: 503 temporarily_unavailable
        ");
    }

    #[test]
    fn refusals_are_uncacheable_and_carry_retry_after() {
        let refusal = OauthRefusal::too_many("too often", Duration::from_millis(1001));
        let response = refusal.into_response();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(
            (
                header("cache-control"),
                header("pragma"),
                header("retry-after")
            ),
            ("no-store".into(), "no-cache".into(), "2".into())
        );
        let failure = OauthRefusal::from(database::Error::Bug("secret".to_owned())).into_response();
        assert_eq!(failure.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

//! Tokens of people at other services, as they are sealed.
//!
//! Not here: the rows of connections (`objects`) and identities (`oauth`).

use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::base::Secret;

/// The tokens of a person at another service.
#[derive(Clone)]
pub(crate) struct Tokens {
    /// The access token.
    pub(crate) access: Secret,
    /// The refresh token, if there is one.
    pub(crate) refresh: Option<Secret>,
    /// The time at which the access token was given, in milliseconds since 1970.
    pub(crate) given_ms: i64,
    /// The time at which the access token expires, if that was said.
    pub(crate) expires_ms: Option<i64>,
    /// The service and the client that they are for.
    pub(crate) authority: String,
}

impl Tokens {
    /// The time from which the access token is refreshed: a minute before it expires, or a quarter of a
    /// shorter life.
    pub(crate) fn refresh_ms(&self) -> Option<i64> {
        let expires_ms = self.expires_ms?;
        let life = expires_ms.saturating_sub(self.given_ms).max(0);
        Some(expires_ms.saturating_sub(EARLY_MS.min(life / 4)))
    }

    /// The text that is sealed.
    pub(crate) fn to_json(&self) -> Zeroizing<String> {
        let refresh = self.refresh.as_ref().map(Secret::expose);
        let all = json!({
            "access": self.access.expose(), "refresh": refresh, "given_ms": self.given_ms,
            "expires_ms": self.expires_ms, "authority": self.authority,
        });
        Zeroizing::new(all.to_string())
    }

    /// The tokens of such a text.
    pub(crate) fn of_json(plain: &[u8]) -> Option<Self> {
        let all: Value = serde_json::from_slice(plain).ok()?;
        let text = |name: &str| all[name].as_str().map(str::to_owned);
        Some(Self {
            access: Secret::new(text("access")?),
            refresh: text("refresh").map(Secret::new),
            given_ms: all["given_ms"].as_i64()?,
            expires_ms: all["expires_ms"].as_i64(),
            authority: text("authority")?,
        })
    }
}

/// The most time before its end that an access token is refreshed, in milliseconds.
const EARLY_MS: i64 = 60_000;

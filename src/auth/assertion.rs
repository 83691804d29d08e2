//! Assertion of a caller by the replica that verified the credentials, which stay there.
//!
//! A hop carries it under its signature (`http::peers::hop`), so its content is trusted here. What was
//! declared, granted or revoked meanwhile counts all the same: `access` decides with the catalog of this
//! replica.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

/// What identifies a caller without credentials.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Assertion {
    pub(super) issuer: Option<String>,
    pub(super) subject: Option<String>,
    pub(super) client: Option<String>,
    pub(super) scopes: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) basis: AssertedBasis,
    /// Whether a key was proved with the token. Replicas of an older release do not say so.
    #[serde(default)]
    pub(super) is_bound: bool,
}

/// The credential that was verified, by what can be revoked of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AssertedBasis {
    /// There was none: the tenant has no authentication.
    Open,
    /// The SHA-256 digest of an API key.
    ApiKey([u8; 32]),
    /// The SHA-256 digest of an API key that a person made.
    OwnKey([u8; 32]),
    /// A token of another authorization server.
    Token,
    /// Grant and signing key of a token of the tenant's own authorization server.
    Own(Vec<(u128, String)>),
}

impl Assertion {
    /// Writes it as base64url.
    pub(super) fn encode(&self) -> String {
        // Texts and numbers: serialization cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads it; `None` for anything else.
    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

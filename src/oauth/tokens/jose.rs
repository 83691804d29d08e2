//! Signing of access tokens (RFC 9068) and parsing of client assertions (RFC 7523).
//!
//! Not here: verification of access tokens by MCP endpoints (`auth`).

use jsonwebtoken::{Algorithm as Alg, EncodingKey, Header, encode};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    auth::{
        Jws, Thumbprint,
        jose::{numeric_date, parse_unverified, string, strings},
    },
    base::LEEWAY_S,
    database::oauth::{Grant, SigningKey},
    declare::{Algorithm, PublicKey},
};

/// The content of a new access token.
pub(super) struct AccessToken<'t> {
    /// The issuer.
    pub(crate) issuer: &'t str,
    /// The grant behind it.
    pub(crate) grant: &'t Grant,
    /// The groups of its subject.
    pub(crate) groups: &'t [String],
    /// Its scopes: all those of the grant, or fewer.
    pub(crate) scope: &'t str,
    /// Issue time, in seconds since 1970.
    pub(crate) issued: i64,
    /// Expiry, in seconds since 1970.
    pub(crate) expires: i64,
    /// The key that its holder has to prove.
    pub(super) holder: Option<Thumbprint>,
}

impl AccessToken<'_> {
    /// Signs the token; none if the key is unusable.
    pub(crate) fn sign(&self, key: &SigningKey) -> Option<String> {
        let header = Header {
            typ: Some("at+jwt".to_owned()),
            kid: Some(key.kid.clone()),
            ..Header::new(Alg::EdDSA)
        };
        // RFC 9068, section 2.2. No `nbf`: it is optional, and clocks differ.
        let mut claims = json!({
            "iss": self.issuer,
            "sub": self.grant.subject,
            "aud": self.grant.resource,
            "client_id": self.grant.client_id,
            "iat": self.issued,
            "exp": self.expires,
            "auth_time": self.grant.auth_ms / 1000,
            "jti": Uuid::new_v4().to_string(),
            "groups": self.groups,
            "grant": self.grant.id.to_string(),
        });
        if !self.scope.is_empty() {
            claims["scope"] = self.scope.into();
        }
        if let Some(holder) = self.holder {
            // RFC 9449, section 6.1.
            claims["cnf"] = json!({ "jkt": holder.text() });
        }
        encode(&header, &claims, &EncodingKey::from_ed_der(&key.pkcs8)).ok()
    }
}

/// Returns the grant and the client of an access token that this server signed, expired or not. To
/// revoke a token means to revoke its grant.
pub(super) fn grant_of(text: &str, issuer: &str, keys: &[PublicKey]) -> Option<(Uuid, String)> {
    let (header, payload, jws) = parse_unverified(text, &[Algorithm::EdDsa]).ok()?;
    if string(&header, "typ").ok()? != Some("at+jwt") {
        return None;
    }
    if !jws.is_of(keys.iter().map(|key| (key.kid.as_str(), &key.x))) {
        return None;
    }
    if string(&payload, "iss").ok()? != Some(issuer) {
        return None;
    }
    let grant = string(&payload, "grant").ok()??;
    let client = string(&payload, "client_id").ok()??;
    Some((Uuid::try_parse(grant).ok()?, client.to_owned()))
}

/// A client assertion with its signature not yet verified.
pub(crate) struct Assertion<'t> {
    /// The claimed client: issuer and subject alike.
    pub(crate) client: String,
    /// Its `jti`, valid for one use.
    pub(crate) id: String,
    /// Expiry, in seconds since 1970.
    pub(crate) expires: i64,
    /// Its signature.
    pub(crate) jws: Jws<'t>,
}

impl<'t> Assertion<'t> {
    /// Parses an assertion that is valid at `now` for one of `audiences` (RFC 7523, section 3).
    ///
    /// # Errors
    ///
    /// The reason why it is invalid.
    pub(crate) fn parse(text: &'t str, audiences: &[&str], now: i64) -> Result<Self, &'static str> {
        let (header, payload, jws) = parse_unverified(text, &ALGORITHMS)?;
        let kind = string(&header, "typ")?.unwrap_or("JWT");
        // rfc7523bis defines a type of its own; any other type is another token.
        let is_kind = |known: &str| kind.eq_ignore_ascii_case(known);
        if !is_kind("JWT") && !is_kind("client-authentication+jwt") {
            return Err("another type of token");
        }
        let need = |name: &str| -> Result<String, &'static str> {
            let found = string(&payload, name)?.filter(|text| !text.is_empty());
            let found = found.ok_or("a claim is missing")?;
            Ok(found.to_owned())
        };
        let client = need("iss")?;
        if need("sub")? != client {
            return Err("iss and sub differ");
        }
        check_audience(&payload, audiences)?;
        let expires = check_times(&payload, now, AHEAD)?;
        let id = need("jti")?;
        if id.len() > ID_MAX {
            return Err("a jti that is too long");
        }
        Ok(Self {
            client,
            id,
            expires,
            jws,
        })
    }
}

/// Reports whether an assertion is an identity assertion (ID-JAG), by its header.
pub(super) fn is_id_jag(header: &Map<String, Value>) -> bool {
    let kind = string(header, "typ").ok().flatten();
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("oauth-id-jag+jwt"))
}

/// Returns the expiry of an assertion that is valid at `now`, and for `ahead` seconds at most (RFC 7523, section 3).
pub(super) fn check_times(
    payload: &Map<String, Value>,
    now: i64,
    ahead: i64,
) -> Result<i64, &'static str> {
    let expires = whole(payload, "exp")?.ok_or("no exp")?;
    let leeway = i64::from(LEEWAY_S);
    if expires <= now.saturating_sub(leeway) {
        return Err("expired");
    }
    if expires > now.saturating_add(ahead + leeway) {
        return Err("it would hold for too long");
    }
    for name in ["nbf", "iat"] {
        if whole(payload, name)?.is_some_and(|at| at > now.saturating_add(leeway)) {
            return Err("not valid yet");
        }
    }
    Ok(expires)
}

/// Requires this server as the only audience, because another one could replay the assertion here.
pub(super) fn check_audience(
    payload: &Map<String, Value>,
    ours: &[&str],
) -> Result<(), &'static str> {
    let named = payload.get("aud").map(strings).ok_or("no aud")??;
    let is_ours = |audience: &String| ours.contains(&audience.as_str());
    if named.is_empty() || !named.iter().all(is_ours) {
        return Err("another audience");
    }
    Ok(())
}

pub(super) fn whole(payload: &Map<String, Value>, name: &str) -> Result<Option<i64>, &'static str> {
    let moment = numeric_date(payload, name)?;
    Ok(moment.map(|moment| i64::try_from(moment).unwrap_or(i64::MAX)))
}

/// The `alg` values that metadata offer for assertions.
pub(crate) const ASSERTIONS: [&str; 4] = ["EdDSA", "ES256", "RS256", "PS256"];

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::EdDsa,
    Algorithm::Es256,
    Algorithm::Rs256,
    Algorithm::Ps256,
];

/// Maximum lifetime of an assertion in seconds, for which its `jti` is recorded.
const AHEAD: i64 = 300;
/// Maximum size of a `jti` in bytes.
const ID_MAX: usize = 256;

//! Access tokens as JWTs, without I/O: claims, signature, and the distinction from other tokens
//! (RFC 7519, 7515, 9068; RFC 8725).
//!
//! Not here: the fetching of keys (`external`), and decisions by claims (`access`).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Map, Value};

use super::jose::{Jws, Thumbprint, declared, numeric_date, parse_unverified, string, strings};
use crate::{
    base::LEEWAY_S,
    declare::{Algorithm, External, GroupsClaim, are_too_many},
};

/// A token with its signature not yet verified.
pub(super) struct Token<'t> {
    /// Its signature.
    pub(super) jws: Jws<'t>,
    /// The header's `typ`, unchanged.
    pub(super) kind: Option<String>,
    /// Its claims.
    pub(super) claims: Claims,
    /// Its whole payload.
    payload: Map<String, Value>,
}

/// The expected properties of a token.
#[derive(Clone, Copy)]
pub(super) struct ExpectedToken<'e> {
    /// `iss`, byte for byte.
    pub(super) issuer: &'e str,
    /// Accepted signature algorithms.
    pub(super) algorithms: &'e [Algorithm],
    /// The claim that holds the subject's groups, and what they are called here.
    pub(super) groups: &'e GroupsClaim,
    /// The claim that holds the scopes; none for `scope`, else `scp`.
    pub(super) scopes_claim: Option<&'e str>,
}

impl<'e> From<&'e External> for ExpectedToken<'e> {
    fn from(settings: &'e External) -> Self {
        Self {
            issuer: &settings.issuer,
            algorithms: &settings.algorithms,
            groups: &settings.groups,
            scopes_claim: settings.scopes_claim.as_deref(),
        }
    }
}

/// The issuer of a token, by whose clock its times are.
#[derive(Clone, Copy, Debug)]
pub(super) enum IssuedBy {
    /// This deployment, whose replicas follow one clock.
    Us,
    /// Another authorization server (RFC 7519, section 4.1.4: "some small leeway").
    Another,
}

impl IssuedBy {
    /// The tolerated difference of the clocks, in seconds.
    fn leeway(self) -> u64 {
        match self {
            Self::Us => 0,
            Self::Another => LEEWAY_S.into(),
        }
    }
}

/// The reason why a token is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// The token is invalid; the text is for the log.
    Invalid(&'static str),
    /// The issuer's keys, or what it says, are unavailable.
    Unavailable(Duration),
}

/// The supported claims of an access token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// `sub`
    pub(super) subject: String,
    /// `client_id`, or what others call it
    pub(super) client: Option<String>,
    /// `aud`
    pub(super) audiences: Vec<String>,
    /// `exp`
    expires: u64,
    /// `nbf`
    not_before: u64,
    /// `scope`, or `scp`, or the claim that the operator declared, each once.
    pub(super) scopes: Arc<[String]>,
    /// The groups of the claim that the operator declared, as they are called here, each once.
    pub(super) groups: Arc<[String]>,
    /// `cnf`: the key that its holder has to prove.
    pub(super) holder: Option<Thumbprint>,
}

impl Claims {
    /// The time at `now` for which the token is accepted.
    pub(super) fn life(&self, now: u64, issued: IssuedBy) -> Duration {
        let end = self.expires.saturating_add(issued.leeway());
        Duration::from_secs(end.saturating_sub(now))
    }

    /// The size of its texts, in bytes.
    pub(super) fn size(&self) -> usize {
        let all = |texts: &[String]| -> usize {
            let each = texts.iter().map(|text| text.len() + size_of::<String>());
            each.sum()
        };
        let named = self.subject.len() + self.client.as_ref().map_or(0, String::len);
        // The names are in the principal again, twice.
        3 * named + all(&self.audiences) + all(&self.scopes) + all(&self.groups)
    }

    /// Checks the validity period at `now`.
    pub(super) fn check_validity(&self, now: u64, issued: IssuedBy) -> Result<(), &'static str> {
        let leeway = issued.leeway();
        if now >= self.expires.saturating_add(leeway) {
            return Err("expired");
        }
        if self.not_before > now.saturating_add(leeway) {
            return Err("not valid yet");
        }
        Ok(())
    }
}

impl<'t> Token<'t> {
    /// Parses a token of the expected issuer, and checks all that needs neither key nor time nor
    /// resource.
    ///
    /// # Errors
    ///
    /// The reason why it is not an access token of that issuer, for the log.
    pub(super) fn parse(text: &'t str, expected: ExpectedToken<'_>) -> Result<Self, &'static str> {
        let (header, payload, jws) = parse_unverified(text, expected.algorithms)?;
        let kind = string(&header, "typ")?;
        let is_at_jwt = is_at_jwt(kind)?;
        if string(&payload, "iss")? != Some(expected.issuer) {
            return Err("another issuer");
        }
        check_kind(&payload, is_at_jwt)?;
        let claims = claims(&payload, expected, is_at_jwt)?;
        Ok(Self {
            jws,
            kind: kind.map(str::to_owned),
            claims,
            payload,
        })
    }

    /// The id of its key.
    pub(super) fn kid(&self) -> Option<&str> {
        self.jws.kid.as_deref()
    }

    /// Another claim, which must be a string.
    pub(super) fn text(&self, claim: &str) -> Result<Option<&str>, &'static str> {
        string(&self.payload, claim)
    }

    /// Another claim, which must be a time.
    pub(super) fn numeric_date(&self, claim: &str) -> Result<Option<u64>, &'static str> {
        numeric_date(&self.payload, claim)
    }
}

/// The type of a token (RFC 9068, section 2.1): an access token, or unspecified.
fn is_at_jwt(kind: Option<&str>) -> Result<bool, &'static str> {
    let Some(kind) = kind else { return Ok(false) };
    match kind.to_ascii_lowercase().as_str() {
        "at+jwt" | "application/at+jwt" => Ok(true),
        "jwt" | "application/jwt" => Ok(false),
        _ => Err("another type of token"),
    }
}

/// Refuses a plain JWT that serves another purpose: ID tokens (OpenID Connect Core), logout and
/// security event tokens have claims that access tokens lack, and some issuers state the type in
/// the payload.
fn check_kind(payload: &Map<String, Value>, is_at_jwt: bool) -> Result<(), &'static str> {
    if !is_at_jwt && FOREIGN.iter().any(|claim| payload.contains_key(*claim)) {
        return Err("a token that is no access token");
    }
    let is_foreign = |claim, own: [&str; 3]| match payload.get(claim) {
        None => false,
        // Keycloak states the type of bound tokens so.
        Some(Value::String(kind)) if claim == "typ" && kind == "DPoP" => !is_bound(payload),
        Some(Value::String(kind)) => !own.contains(&kind.to_ascii_lowercase().as_str()),
        Some(_) => true,
    };
    if is_foreign("typ", ["bearer", "at+jwt", "jwt"])
        || is_foreign("token_use", ["access", "access_token", "at"])
    {
        return Err("a token that is no access token");
    }
    Ok(())
}

/// The claims that the issuer itself says of an opaque token (RFC 7662, section 2.2).
///
/// # Errors
///
/// The reason why it is no access token of that issuer that can be used here, for the log.
pub(super) fn introspected(
    said: &Map<String, Value>,
    expected: ExpectedToken<'_>,
) -> Result<Claims, &'static str> {
    if string(said, "iss")?.is_some_and(|issuer| issuer != expected.issuer) {
        return Err("another issuer");
    }
    // A server may say that refresh tokens are active, too (section 2.1).
    let is_type = |kind: &str| {
        kind.eq_ignore_ascii_case("bearer") || kind.eq_ignore_ascii_case("dpop") && is_bound(said)
    };
    if !string(said, "token_type")?.is_none_or(is_type) {
        return Err("a token that is no access token");
    }
    check_kind(said, true)?;
    let mut payload = said.clone();
    // The client itself is the subject of a token without one.
    if let (None, Some(client)) = (said.get("sub"), said.get("client_id")) {
        payload.insert("sub".to_owned(), client.clone());
    }
    // "OPTIONAL": it is asked about again before it could matter.
    let never = Value::from(u64::MAX);
    payload.entry("exp").or_insert(never);
    claims(&payload, expected, false)
}

fn claims(
    payload: &Map<String, Value>,
    expected: ExpectedToken<'_>,
    is_at_jwt: bool,
) -> Result<Claims, &'static str> {
    let subject = string(payload, "sub")?.filter(|subject| !subject.is_empty());
    if subject.is_some_and(|subject| subject.contains('\0')) {
        return Err("a NUL in sub, which no database keeps");
    }
    let named = |name| {
        let client = string(payload, name)?;
        Ok::<_, &str>(client.filter(|client| !client.is_empty()))
    };
    let client = match named("client_id")? {
        Some(client) => Some(client),
        // RFC 9068, section 2.2: required.
        None if is_at_jwt => return Err("no client_id"),
        // OpenID Connect, Okta, Microsoft Entra (v1.0).
        None => match named("azp")? {
            Some(client) => Some(client),
            None => named("cid")?.or(named("appid")?),
        },
    };
    Ok(Claims {
        subject: subject.ok_or("no sub")?.to_owned(),
        client: client.map(str::to_owned),
        audiences: payload.get("aud").map(strings).ok_or("no aud")??,
        expires: numeric_date(payload, "exp")?.ok_or("no exp")?,
        not_before: numeric_date(payload, "nbf")?.unwrap_or(0),
        scopes: scopes(payload, expected.scopes_claim)?,
        groups: groups(payload, expected.groups)?,
        holder: holder(payload)?,
    })
}

/// The scopes of a token, in its order.
fn scopes(
    payload: &Map<String, Value>,
    claim: Option<&str>,
) -> Result<Arc<[String]>, &'static str> {
    let found = match claim {
        Some(name) => declared(payload, name),
        None => match payload.get("scope") {
            Some(scope) if !scope.is_string() => return Err("a scope that is no text"),
            scope => scope.or_else(|| payload.get("scp")),
        },
    };
    let claimed = match found {
        Some(Value::String(scopes)) => scopes
            .split(' ')
            .filter(|scope| !scope.is_empty())
            .map(str::to_owned)
            .collect(),
        Some(scopes) => strings(scopes)?,
        None => Vec::new(),
    };
    // An issuer may repeat one any number of times, and each is looked up at each request.
    let mut seen = BTreeSet::new();
    let each = claimed.iter().filter(|scope| seen.insert(*scope));
    let scopes: Vec<String> = each.cloned().collect();
    if are_too_many(&scopes) {
        return Err("more than 1,000 scopes, or more than 32 KiB of them");
    }
    Ok(scopes.into())
}

/// The groups of the subject of a token.
fn groups(
    payload: &Map<String, Value>,
    claim: &GroupsClaim,
) -> Result<Arc<[String]>, &'static str> {
    let claimed = declared(payload, &claim.name).map(strings).transpose()?;
    let groups = claim.groups(&claimed.unwrap_or_default());
    if are_too_many(&groups) {
        return Err("more than 1,000 groups of one person, or more than 32 KiB of them");
    }
    Ok(groups.into())
}

fn is_bound(payload: &Map<String, Value>) -> bool {
    payload.contains_key("cnf")
}

/// The key that the holder of a token has to prove (RFC 9449, section 6). Any other confirmation, as that of a
/// certificate (RFC 8705), cannot be asked for here, and without it the token is worth nothing (RFC 7800, section 3.1).
pub(crate) fn holder(payload: &Map<String, Value>) -> Result<Option<Thumbprint>, &'static str> {
    let Some(confirmation) = payload.get("cnf") else {
        return Ok(None);
    };
    let members = confirmation.as_object();
    let only = members.filter(|members| members.len() == 1);
    let key = only.and_then(|members| members.get("jkt")?.as_str());
    let key = key.and_then(Thumbprint::parse);
    key.map(Some)
        .ok_or("a token that is bound to what cannot be proved here")
}

/// Claims of ID tokens (`nonce` and the hashes), of logout and security event tokens (`events`).
const FOREIGN: [&str; 5] = ["nonce", "at_hash", "c_hash", "s_hash", "events"];

#[cfg(test)]
#[path = "tests/jwt.rs"]
mod tests;

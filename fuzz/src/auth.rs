//! `src/auth`: the parts that read tokens.

#[expect(dead_code, unused_imports, reason = "the targets use a part of it")]
#[path = "../../src/auth/jose/mod.rs"]
pub(crate) mod jose;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/auth/jwt.rs"]
mod jwt;

use self::jose::{KeySet, Signature};
use self::jwt::{ExpectedToken, IssuedBy, Token};
use crate::declare::{ALGORITHMS, GroupsClaim};

/// The subject of an access token, if the gateway accepts it: as `auth::external` goes about it.
pub(crate) fn accepted(text: &str, issuer: &str, keys: &KeySet, now: u64) -> Option<String> {
    let expected = ExpectedToken {
        issuer,
        algorithms: &ALGORITHMS.map(|(_, algorithm)| algorithm),
        groups: &groups(),
        scopes_claim: None,
    };
    let token = Token::parse(text, expected).ok()?;
    token.claims.check_validity(now, IssuedBy::Another).ok()?;
    let is_signed = matches!(keys.check(&token.jws), Signature::By(_));
    is_signed.then_some(token.claims.subject)
}

/// The subject of an access token of the tenant's own server: as `auth::builtin` goes about it.
pub(crate) fn accepted_own(text: &str, issuer: &str, key: &[u8; 32], now: u64) -> Option<String> {
    let expected = ExpectedToken {
        issuer,
        algorithms: &[crate::declare::Algorithm::EdDsa],
        groups: &groups(),
        scopes_claim: None,
    };
    let token = Token::parse(text, expected).ok()?;
    token.claims.check_validity(now, IssuedBy::Us).ok()?;
    token.jws.is_signed_by(key).then_some(token.claims.subject)
}

/// The claim of the tenant's own server, and that of others by default.
fn groups() -> GroupsClaim {
    GroupsClaim {
        name: "groups".to_owned(),
        map: None,
    }
}

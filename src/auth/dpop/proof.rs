//! DPoP proofs (RFC 9449, section 4): their syntax, and the checks of section 4.3, without I/O.
//!
//! Not here: whether a proof was used before (`used_proofs`).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::target;
use crate::{
    auth::jose::{EmbeddedKey, Thumbprint, numeric_date, parse_with_key, string},
    base::{Sha256, sha256},
    declare::Algorithm,
};

/// The request that a proof has to be for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProvenRequest<'r> {
    /// Its method.
    pub(crate) method: &'r str,
    /// Its URL, as the client has it.
    pub(crate) url: &'r str,
}

/// A proof for this request and time. It may have been used before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    key: Thumbprint,
    /// Digest of its key and its `jti`.
    id: [u8; 32],
    /// `ath`: the digest of an access token in base64url.
    token: Option<String>,
    /// `iat`, in seconds since 1970.
    issued: u64,
}

impl Proof {
    /// Verifies the text of a proof for a request at `now`.
    ///
    /// # Errors
    ///
    /// The reason why it proves nothing, for the client's developer.
    pub(super) fn verify(
        text: &str,
        request: ProvenRequest<'_>,
        now: u64,
    ) -> Result<Self, &'static str> {
        if text.len() > PROOF_MAX {
            return Err("the proof is too long");
        }
        let (header, claims, jws) = parse_with_key(text, &ALGORITHMS)?;
        if string(&header, "typ")? != Some("dpop+jwt") {
            return Err("typ is not dpop+jwt");
        }
        let key = EmbeddedKey::parse(header.get("jwk").ok_or("there is no jwk")?)?;
        let jti = string(&claims, "jti")?.filter(|jti| !jti.is_empty());
        let jti = jti.ok_or("there is no jti")?;
        if jti.len() > JTI_MAX {
            return Err("jti is too long");
        }
        if string(&claims, "htm")? != Some(request.method) {
            return Err("htm is not the method of the request");
        }
        let url = string(&claims, "htu")?.unwrap_or_default();
        if !target::is_same(url, request.url) {
            return Err("htu is not the URL of the request");
        }
        let issued = numeric_date(&claims, "iat")?.ok_or("there is no iat")?;
        if issued > now.saturating_add(FUTURE_S) {
            return Err("iat is in the future");
        }
        // The claims of every JWT (RFC 7519, sections 4.1.4 and 4.1.5) hold too.
        let is_over = numeric_date(&claims, "exp")?.is_some_and(|end| end <= now);
        if is_over || issued.saturating_add(PAST_S) < now {
            return Err(TOO_OLD);
        }
        if numeric_date(&claims, "nbf")?.is_some_and(|begin| begin > now + FUTURE_S) {
            return Err("the proof is not valid yet");
        }
        let token = string(&claims, "ath")?.map(str::to_owned);
        // The most expensive step comes last.
        if !key.has_signed(&jws) {
            return Err("the signature is not of the jwk");
        }
        let key = key.thumbprint();
        let mut id = Sha256::new();
        for part in ["dpop", &key.text(), jti] {
            id.add_part(part.as_bytes());
        }
        let id = id.finish();
        Ok(Self {
            key,
            id,
            token,
            issued,
        })
    }

    /// The thumbprint of its key.
    pub(crate) fn key(&self) -> Thumbprint {
        self.key
    }

    /// The time of its issue, in seconds since 1970.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// Its identity: another proof of the same key has another one.
    pub(super) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// Checks that it goes with an access token that is bound to `key` (section 4.3, items 11 and 12).
    ///
    /// # Errors
    ///
    /// The reason why it does not, for the client's developer.
    pub(crate) fn check_token(&self, text: &str, key: Thumbprint) -> Result<(), &'static str> {
        let digest = URL_SAFE_NO_PAD.encode(sha256(text.as_bytes()));
        match &self.token {
            None => Err("there is no ath"),
            Some(token) if *token != digest => Err("ath is not of the access token"),
            Some(_) if self.key != key => Err("the access token is bound to another key"),
            Some(_) => Ok(()),
        }
    }
}

/// The `alg` values of proofs that metadata offer.
pub(crate) const PROOF_ALGORITHMS: [&str; 5] = ["ES256", "Ed25519", "EdDSA", "RS256", "PS256"];

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Es256,
    Algorithm::EdDsa,
    Algorithm::Rs256,
    Algorithm::Ps256,
];

/// The reason for the refusal of a proof that was made too long ago.
pub(super) const TOO_OLD: &str = "the proof is too old";

/// Maximum size of a proof in bytes: with a key of RSA of 4096 bits it has about 2 KiB.
const PROOF_MAX: usize = 4 << 10;
/// Maximum size of a `jti` in bytes.
const JTI_MAX: usize = 256;
/// Seconds after its issue for which a proof is good.
pub(super) const PAST_S: u64 = 60;
/// Seconds by which the clock of a client may be ahead.
pub(super) const FUTURE_S: u64 = 10;

#[cfg(test)]
#[path = "../tests/proof.rs"]
mod tests;

//! The public key in the header of a token (RFC 7515, section 4.1.3), by which its sender proves to have the
//! private one.
//!
//! Such a key says nothing of the sender but that: any program can make one. Not here: keys of issuers (`jws`).

use serde_json::Value;

use super::{
    jws::{Jws, Key, OF_ANYBODY},
    thumbprint::Thumbprint,
};
use crate::declare::PRIVATE_MEMBERS;

/// A public key that a token carries.
pub(crate) struct EmbeddedKey {
    key: Key,
    thumbprint: Thumbprint,
}

impl EmbeddedKey {
    /// Parses a JWK.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used.
    pub(crate) fn parse(jwk: &Value) -> Result<Self, &'static str> {
        let members = jwk.as_object().ok_or("the jwk is no object")?;
        // Whoever sends it has shown the key to all who read the request.
        if PRIVATE_MEMBERS
            .iter()
            .any(|name| members.contains_key(*name))
        {
            return Err("the jwk has a private part");
        }
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        // The sender chooses the key, and a longer one takes longer to verify with.
        if text("n").is_some_and(|n| n.len() > RSA_MAX) {
            return Err("the jwk is too long");
        }
        let key = Key::parse(jwk, &OF_ANYBODY).ok_or("the jwk is no key that is supported")?;
        let member = |name: &'static str| (name, text(name).unwrap_or_default());
        // RFC 7638, section 3.2; RFC 8037, section 2.
        let required = match text("kty") {
            Some("EC") => ["crv", "kty", "x", "y"].map(member).to_vec(),
            Some("RSA") => ["e", "kty", "n"].map(member).to_vec(),
            _ => ["crv", "kty", "x"].map(member).to_vec(),
        };
        let thumbprint = Thumbprint::of(&required);
        Ok(Self { key, thumbprint })
    }

    /// Its thumbprint.
    pub(crate) fn thumbprint(&self) -> Thumbprint {
        self.thumbprint
    }

    /// Verifies that its private key has signed a token.
    pub(crate) fn has_signed(&self, token: &Jws<'_>) -> bool {
        self.key.fits(token) && self.key.made(token)
    }
}

/// Longest modulus of RSA in base64url: 4096 bits.
const RSA_MAX: usize = 683;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::embedded_key::*;

    /// The key of RFC 7638, section 3.1.
    const RSA: &str = r#"{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","e":"AQAB","alg":"RS256","kid":"2011-04-29"}"#;

    #[test]
    fn thumbprints_are_those_of_the_standards() {
        let of = |jwk: &Value| EmbeddedKey::parse(jwk).unwrap().thumbprint().text();
        let rsa: Value = serde_json::from_str(RSA).unwrap();
        assert_eq!(of(&rsa), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        // RFC 8037, appendix A.3.
        let ed25519 = json!({
            "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        });
        assert_eq!(of(&ed25519), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        // RFC 9449, section 6.1.
        let ec = json!({
            "kty": "EC", "crv": "P-256", "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
            "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA",
        });
        assert_eq!(of(&ec), "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I");
    }

    #[test]
    fn only_public_keys_of_known_kinds_count() {
        let refused = |jwk: &Value| EmbeddedKey::parse(jwk).map(drop).unwrap_err();
        let rsa: Value = serde_json::from_str(RSA).unwrap();
        let with = |name: &str, value: Value| {
            let mut jwk = rsa.clone();
            jwk[name] = value;
            jwk
        };
        for name in PRIVATE_MEMBERS {
            let jwk = with(name, json!("AQAB"));
            assert_eq!(refused(&jwk), "the jwk has a private part", "{name}");
        }
        assert_eq!(refused(&json!("k")), "the jwk is no object");
        // 4096 bits are 683 letters.
        let long = with("n", json!("A".repeat(684)));
        assert_eq!(refused(&long), "the jwk is too long");
        for jwk in [
            json!({}),
            json!({"kty": "oct"}),
            json!({"kty": "EC", "crv": "secp256k1", "x": "AQAB", "y": "AQAB"}),
            json!({"kty": "EC", "crv": "P-256", "x": "AQAB"}),
            json!({"kty": "OKP", "crv": "X25519", "x": "AQAB"}),
            with("n", json!("AQAB")),
            with("use", json!("enc")),
            with("key_ops", json!(["encrypt"])),
        ] {
            assert_eq!(
                refused(&jwk),
                "the jwk is no key that is supported",
                "{jwk}"
            );
        }
    }
}

//! A client that proves the possession of a key (RFC 9449), written after the RFC alone.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    harness::client_with,
    issuer::{Key, now},
};

/// A client with a key on P-256.
pub(crate) struct Prover(Key);

impl Prover {
    pub(crate) fn new() -> Self {
        Self(Key::new("client"))
    }

    /// The public key as a JWK, with the required members alone.
    pub(crate) fn jwk(&self) -> Value {
        let all = self.0.public();
        json!({"kty": "EC", "crv": "P-256", "x": all["x"], "y": all["y"]})
    }

    /// The thumbprint of the key (RFC 7638, section 3).
    pub(crate) fn thumbprint(&self) -> String {
        let jwk = self.jwk();
        let (x, y) = (jwk["x"].as_str().unwrap(), jwk["y"].as_str().unwrap());
        let text = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        hashed(&text)
    }

    /// The header of a proof.
    pub(crate) fn header(&self) -> Value {
        json!({"typ": "dpop+jwt", "alg": "ES256", "jwk": self.jwk()})
    }

    /// A proof of these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.header(), claims)
    }

    /// A proof with any header.
    pub(crate) fn sign_as(&self, header: &Value, claims: &Value) -> String {
        self.0.sign_as(&header.to_string(), &claims.to_string())
    }

    /// A proof for a token request.
    pub(crate) fn for_token(&self, url: &str) -> String {
        self.sign(&claims("POST", url))
    }

    /// A proof for a request with an access token.
    pub(crate) fn with_token(&self, method: &str, url: &str, token: &str) -> String {
        self.sign(&claims_with(method, url, token))
    }
}

/// The claims of a new proof.
pub(crate) fn claims(method: &str, url: &str) -> Value {
    let jti = Uuid::new_v4().to_string();
    json!({"jti": jti, "htm": method, "htu": url, "iat": now()})
}

/// The claims of a new proof that goes with an access token.
pub(crate) fn claims_with(method: &str, url: &str, token: &str) -> Value {
    let mut claims = claims(method, url);
    claims["ath"] = hashed(token).into();
    claims
}

/// A client that sends a token of the scheme DPoP and this proof with each request.
pub(crate) fn proving(token: &str, proof: &str) -> reqwest::Client {
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", format!("DPoP {token}").parse().unwrap());
    headers.insert("DPoP", proof.parse().unwrap());
    client_with(headers)
}

fn hashed(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    URL_SAFE_NO_PAD.encode(digest)
}

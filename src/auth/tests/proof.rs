//! Tests of `auth::dpop::proof`.

use std::sync::Arc;

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _},
};
use jsonwebtoken::{Algorithm as Alg, EncodingKey, crypto};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::super::UsedProofs;
use super::*;
use crate::{base::Clock, state::memory::MemoryLimiter};

const URL: &str = "https://gw.test/t/a/x/mcp";
const NOW: u64 = 1_800_000_000;
const TOKEN: &str = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU";

/// A key of a client.
struct Holder {
    private: EncodingKey,
    jwk: Value,
    alg: Alg,
    /// `alg` in the header.
    name: &'static str,
}

impl Holder {
    fn es256() -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref()).unwrap();
        let point = pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        Self {
            private: EncodingKey::from_ec_der(pkcs8.as_ref()),
            jwk: json!({"kty": "EC", "crv": "P-256", "x": x, "y": y}),
            alg: Alg::ES256,
            name: "ES256",
        }
    }

    fn ed25519() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Self {
            private: EncodingKey::from_ed_der(pkcs8.as_ref()),
            jwk: json!({"kty": "OKP", "crv": "Ed25519", "x": x}),
            alg: Alg::EdDSA,
            name: "EdDSA",
        }
    }

    fn header(&self) -> Value {
        json!({"typ": "dpop+jwt", "alg": self.name, "jwk": self.jwk})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let [header, claims] =
            [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let text = format!("{header}.{claims}");
        let signature = crypto::sign(text.as_bytes(), &self.private, self.alg).unwrap();
        format!("{text}.{signature}")
    }

    fn proof(&self, claims: &Value) -> String {
        self.sign(&self.header(), claims)
    }

    fn thumbprint(&self) -> Thumbprint {
        EmbeddedKey::parse(&self.jwk).unwrap().thumbprint()
    }
}

fn claims() -> Value {
    json!({"jti": "j1", "htm": "POST", "htu": URL, "iat": NOW})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn verify(text: &str) -> Result<Proof, &'static str> {
    let (method, url) = ("POST", URL);
    Proof::verify(text, ProvenRequest { method, url }, NOW)
}

#[test]
fn a_proof_is_of_a_key_for_a_request() {
    let renamed = Holder {
        name: "Ed25519",
        ..Holder::ed25519()
    };
    for holder in [Holder::es256(), Holder::ed25519(), renamed] {
        let proof = verify(&holder.proof(&claims())).unwrap();
        assert_eq!(proof.key(), holder.thumbprint());
        let again = verify(&holder.proof(&claims())).unwrap();
        assert_eq!(proof.id(), again.id(), "the same jti of the same key");
        let other = verify(&holder.proof(&with("jti", json!("j2")))).unwrap();
        assert_ne!(proof.id(), other.id());
        let other = verify(&Holder::es256().proof(&claims())).unwrap();
        assert_ne!(proof.id(), other.id(), "the same jti of another key");
    }
}

#[test]
fn each_claim_counts() {
    let holder = Holder::es256();
    let refused = |claims: &Value| verify(&holder.proof(claims)).unwrap_err();
    for (name, wanted) in [
        ("jti", "there is no jti"),
        ("htm", "htm is not the method of the request"),
        ("htu", "htu is not the URL of the request"),
        ("iat", "there is no iat"),
    ] {
        let mut without = claims();
        without.as_object_mut().unwrap().remove(name);
        assert_eq!(refused(&without), wanted);
        let null = verify(&holder.proof(&with(name, Value::Null)));
        assert!(null.is_err(), "{name}");
    }
    for (name, value, wanted) in [
        ("jti", json!(""), "there is no jti"),
        ("jti", json!("j".repeat(257)), "jti is too long"),
        ("htm", json!("GET"), "htm is not the method of the request"),
        ("htm", json!("post"), "htm is not the method of the request"),
        (
            "htu",
            json!("https://gw.test/t/a/y/mcp"),
            "htu is not the URL of the request",
        ),
        (
            "htu",
            json!("http://gw.test/t/a/x/mcp"),
            "htu is not the URL of the request",
        ),
        ("iat", json!("now"), "a time that is no number"),
        ("iat", json!(NOW + 11), "iat is in the future"),
        ("iat", json!(NOW - 61), "the proof is too old"),
        ("iat", json!(0), "the proof is too old"),
        ("exp", json!(NOW), "the proof is too old"),
        ("nbf", json!(NOW + 11), "the proof is not valid yet"),
        ("ath", json!(1), "a member that is no text"),
        ("x", json!("x".repeat(4096)), "the proof is too long"),
    ] {
        assert_eq!(
            refused(&with(name, value.clone())),
            wanted,
            "{name} {value}"
        );
    }
    for (name, value) in [
        ("iat", json!(NOW + 10)),
        ("iat", json!(NOW - 60)),
        ("iat", json!(1_800_000_000.9)),
        ("jti", json!("j".repeat(256))),
        ("htu", json!("https://GW.test:443/t/a/x/mcp?q#f")),
        ("nonce", json!("n")),
    ] {
        let proof = holder.proof(&with(name, value.clone()));
        assert!(verify(&proof).is_ok(), "{name} {value}");
    }
}

#[test]
fn each_part_of_the_header_counts() {
    let (holder, other) = (Holder::es256(), Holder::es256());
    let headed = |name: &str, value: Value| {
        let mut header = holder.header();
        header[name] = value;
        verify(&holder.sign(&header, &claims())).unwrap_err()
    };
    for typ in ["JWT", "at+jwt", "DPOP+JWT", "application/dpop+jwt"] {
        assert_eq!(headed("typ", json!(typ)), "typ is not dpop+jwt");
    }
    for alg in ["none", "HS256", "ES384", "RS512", "es256"] {
        assert_eq!(
            headed("alg", json!(alg)),
            "an algorithm that is not allowed"
        );
    }
    assert_eq!(
        headed("alg", json!("EdDSA")),
        "the signature is not of the jwk"
    );
    assert_eq!(headed("jwk", other.jwk), "the signature is not of the jwk");
    assert_eq!(
        headed("crit", json!(["exp"])),
        "a header that is not understood"
    );
    let mut private = holder.jwk.clone();
    private["d"] = json!("AQAB");
    assert_eq!(headed("jwk", private), "the jwk has a private part");
    let mut header = holder.header();
    header.as_object_mut().unwrap().remove("jwk");
    let without = verify(&holder.sign(&header, &claims()));
    assert_eq!(without, Err("there is no jwk"));
    for text in ["", "a", "a.b", "a.b.c", "a.b.c.d.e", "..."] {
        assert!(verify(text).is_err(), "{text}");
    }
}

#[test]
fn a_proof_goes_with_one_token_of_its_key() {
    let (holder, other) = (Holder::es256(), Holder::es256());
    // RFC 9449, section 7.1.
    let hash = "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo";
    let proof = verify(&holder.proof(&with("ath", json!(hash)))).unwrap();
    assert_eq!(proof.check_token(TOKEN, holder.thumbprint()), Ok(()));
    let stolen = proof.check_token(TOKEN, other.thumbprint());
    assert_eq!(stolen, Err("the access token is bound to another key"));
    let swapped = proof.check_token("another", holder.thumbprint());
    assert_eq!(swapped, Err("ath is not of the access token"));
    let without = verify(&holder.proof(&claims())).unwrap();
    let without = without.check_token(TOKEN, holder.thumbprint());
    assert_eq!(without, Err("there is no ath"));
}

proptest! {
    #[test]
    fn nothing_panics(text in ".*") {
        let _ = verify(&text);
    }

    #[test]
    fn one_changed_byte_is_another_proof(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
        let text = Holder::ed25519().proof(&claims());
        let at = at.index(text.len());
        let mut changed = text.clone();
        changed.replace_range(at..=at, &to);
        prop_assert!(changed == text || verify(&changed).is_err());
    }

    #[test]
    fn a_proof_is_good_for_its_time_alone(ahead in -200_i64..200) {
        let issued = NOW.checked_add_signed(ahead).unwrap();
        let proof = Holder::ed25519().proof(&with("iat", json!(issued)));
        prop_assert_eq!(verify(&proof).is_ok(), (-60..=10).contains(&ahead));
    }
}

/// A restart forgot what was used, and each proof of the last minute was good once more.
#[test]
fn a_proof_from_before_the_memory_of_used_ones_is_too_old() {
    let now_ms = i64::try_from(NOW * 1000).unwrap();
    let remembered = |is_shared: bool| {
        let clock = Clock::of(move || now_ms);
        UsedProofs::new(Arc::new(MemoryLimiter::default()), clock, is_shared)
    };
    let holder = Holder::es256();
    let verified = |proofs: &UsedProofs, issued: u64| {
        let (method, url) = ("POST", URL);
        let proof = holder.proof(&with("iat", json!(issued)));
        let verified = proofs.verify(&proof, ProvenRequest { method, url });
        verified.map(|proof| proof.issued)
    };
    let (alone, shared) = (remembered(false), remembered(true));
    assert_eq!(verified(&alone, NOW), Ok(NOW));
    assert_eq!(verified(&alone, NOW - 30), Err("the proof is too old"));
    assert_eq!(verified(&shared, NOW - 30), Ok(NOW - 30));
}

//! Any text as an access token, and any change of a valid one: what the key did not sign is never
//! accepted, and what it signed is accepted only by the letter of its claims.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::auth::jose::KeySet;
use crate::auth::{accepted, accepted_own};
use crate::base::LEEWAY_S;

const ISSUER: &str = "https://issuer.test";
const NOW: u64 = 1_000_000;

/// An issuer with two keys, and a token by each.
struct Issuer {
    ed: Ed25519KeyPair,
    public: [u8; 32],
    point: Vec<u8>,
    keys: KeySet,
    valid: [String; 2],
}

static OF: LazyLock<Issuer> = LazyLock::new(|| {
    let ed = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let public: [u8; 32] = ed.public_key().as_ref().try_into().unwrap();
    // 0x04, x and y (SEC 1, section 2.3.3).
    let point = ec.public_key().as_ref().to_vec();
    let set = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encoded(public)},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "x": encoded(&point[1..33]), "y": encoded(&point[33..])},
    ]});
    let payload = json!({"iss": ISSUER, "sub": "ada", "aud": "https://gw.test/mcp", "exp": NOW + 60,
        "client_id": "c", "scope": "a b"});
    let by_ec = |signed: &str| {
        let made = ec.sign(&SystemRandom::new(), signed.as_bytes());
        made.unwrap().as_ref().to_vec()
    };
    let by_ed = |signed: &str| ed.sign(signed.as_bytes()).as_ref().to_vec();
    let payload = payload.to_string();
    let valid = [
        signed(
            r#"{"alg":"EdDSA","kid":"ed","typ":"at+jwt"}"#,
            &payload,
            by_ed,
        ),
        signed(
            r#"{"alg":"ES256","kid":"ec","typ":"at+jwt"}"#,
            &payload,
            by_ec,
        ),
    ];
    let keys = KeySet::parse(set.to_string().as_bytes()).unwrap();
    for text in &valid {
        assert_eq!(accepted(text, ISSUER, &keys, NOW).as_deref(), Some("ada"));
    }
    Issuer {
        ed,
        public,
        point,
        keys,
        valid,
    }
});

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn signed(header: &str, payload: &str, sign: impl Fn(&str) -> Vec<u8>) -> String {
    let text = format!("{}.{}", encoded(header), encoded(payload));
    let signature = encoded(sign(&text));
    format!("{text}.{signature}")
}

/// A byte that chooses the kind of attack, then what it needs; a line end between two texts.
pub fn run(data: &[u8]) {
    let [kind, rest @ ..] = data else { return };
    let text = String::from_utf8_lossy(rest);
    let (one, other) = text.split_once('\n').unwrap_or((&text, ""));
    match kind % 5 {
        0 => refused(&text),
        1 => changed(rest),
        2 => by_another(one, other),
        3 => own(one, other),
        _ => keys(rest),
    }
}

/// Asserts that a text that no key made is not accepted.
fn refused(text: &str) {
    if OF.valid.iter().all(|valid| valid != text) {
        assert_eq!(accepted(text, ISSUER, &OF.keys, NOW), None, "{text}");
        assert_eq!(accepted_own(text, ISSUER, &OF.public, NOW), None, "{text}");
    }
}

/// Valid tokens with changes: three bytes each, and pieces of one in the other.
fn changed(script: &[u8]) {
    for (valid, other) in [(0, 1), (1, 0)] {
        let mut text = OF.valid[valid].clone().into_bytes();
        for step in script.chunks_exact(4).take(8) {
            let at = usize::from(u16::from_be_bytes([step[0], step[1]])) % text.len().max(1);
            match step[2] % 5 {
                0 if text.len() > 1 => text[at] = step[3],
                1 => text.insert(at, step[3]),
                2 if text.len() > 1 => drop(text.remove(at)),
                3 => text.truncate(at.max(1)),
                _ => {
                    let from = OF.valid[other].as_bytes();
                    let to = (at + usize::from(step[3])).min(text.len()).min(from.len());
                    if at < to {
                        text[at..to].copy_from_slice(&from[at..to]);
                    }
                }
            }
        }
        refused(&String::from_utf8_lossy(&text));
        // Each part of the one with the others of the other.
        let parts = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let (one, other) = (parts(&OF.valid[valid]), parts(&OF.valid[other]));
        for at in 0..3 {
            let mut mixed = one.clone();
            mixed[at].clone_from(&other[at]);
            refused(&mixed.join("."));
        }
    }
}

/// Any header and payload with a signature that anyone can make: none, by a public key as a secret,
/// by a key of one's own, or that of a valid token.
fn by_another(header: &str, payload: &str) {
    let mine = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
    let own = mine.sign(payload.as_bytes());
    refused(&signed(header, payload, |_| Vec::new()));
    refused(&signed(header, payload, |text| {
        mine.sign(text.as_bytes()).as_ref().to_vec()
    }));
    refused(&signed(header, payload, |_| own.as_ref().to_vec()));
    for secret in [&OF.public[..], &OF.point] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        refused(&signed(header, payload, |text| {
            hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
        }));
    }
    let signature = OF.valid[0].rsplit('.').next().unwrap_or_default();
    refused(&format!(
        "{}.{}.{signature}",
        encoded(header),
        encoded(payload)
    ));
}

/// Any header and payload that the key did sign.
fn own(header: &str, payload: &str) {
    let text = signed(header, payload, |text| {
        OF.ed.sign(text.as_bytes()).as_ref().to_vec()
    });
    let Some(subject) = accepted(&text, ISSUER, &OF.keys, NOW) else {
        return;
    };
    let header: Value = serde_json::from_str(header).expect("a header is JSON");
    let payload: Value = serde_json::from_str(payload).expect("a payload is JSON");
    assert_eq!(header["alg"], "EdDSA");
    for name in ["crit", "b64", "zip"] {
        assert!(header.get(name).is_none(), "{name}");
    }
    assert_eq!(payload["iss"], ISSUER);
    assert_eq!(payload["sub"].as_str(), Some(subject.as_str()));
    assert!(!subject.is_empty() && payload.get("aud").is_some());
    let leeway = f64::from(LEEWAY_S) + 1.0;
    let expires = payload["exp"].as_f64().expect("a token ends");
    assert!(expires + leeway > NOW as f64, "an old one");
    if let Some(begins) = payload["nbf"].as_f64() {
        assert!(begins < NOW as f64 + leeway, "not yet");
    }
}

/// Any bytes as a key set: it makes no token valid that another key signed.
fn keys(set: &[u8]) {
    let Ok(keys) = KeySet::parse(set) else { return };
    let has_key = String::from_utf8_lossy(set).contains(&encoded(OF.public));
    for valid in &OF.valid {
        let is_accepted = accepted(valid, ISSUER, &keys, NOW).is_some();
        assert!(!is_accepted || has_key, "an empty key");
    }
}

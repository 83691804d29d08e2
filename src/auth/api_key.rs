//! API keys: generation, syntax and lookup.
//!
//! A key is `lgk_`, 43 random letters and digits (256 bits), and a checksum of 6. The prefix lets
//! scanners find leaked keys, and the checksum spares the lookup of mistyped ones. Only the SHA-256 of
//! the whole text is stored: that suffices for a random secret, and a lookup by it leaks nothing
//! through timing.

use std::sync::Arc;

use aws_lc_rs::{error::Unspecified, rand::SecureRandom};

use crate::base::{hex, sha256};
use crate::declare::{ApiKey, Tenant};

/// Generates a key; its text is shown once and not stored.
pub(crate) fn generate(random: &dyn SecureRandom) -> Result<String, Unspecified> {
    let mut text = PREFIX.to_owned();
    let mut bytes = [0; 64];
    while text.len() < PREFIX.len() + RANDOM {
        random.fill(&mut bytes)?;
        // Bytes above the last multiple of 62 would favour the first letters.
        let unbiased = bytes.iter().filter(|byte| usize::from(**byte) < 62 * 4);
        let letters = unbiased.map(|byte| char::from(LETTERS[usize::from(*byte) % 62]));
        text.extend(letters.take(PREFIX.len() + RANDOM - text.len()));
    }
    let sum = checksum(&text);
    Ok(text + &sum)
}

/// The digest of a key, as manifests contain it.
pub(crate) fn fingerprint(key: &str) -> String {
    format!("sha256:{}", hex(&sha256(key.as_bytes())))
}

/// Reports whether a credential has the prefix of API keys, valid or not.
pub(super) fn has_prefix(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The digest to look the key `text` up by; none if it cannot be a key.
pub(super) fn digest(text: &str) -> Option<[u8; 32]> {
    // Without the checksum, which is a hash of its own: whoever has a declared key has typed it well.
    has_length(text).then(|| sha256(text.as_bytes()))
}

/// The key of this tenant with the digest `hash`, if it is valid at `now`.
pub(super) fn find(tenant: &Tenant, hash: [u8; 32], now: u64) -> Option<([u8; 32], Arc<ApiKey>)> {
    let key = tenant.api_keys.get(&hash)?;
    // No leeway: operator and gateway use the same clock.
    let is_valid = key.expires.is_none_or(|expires| now < expires);
    is_valid.then(|| (hash, Arc::clone(key)))
}

/// The digest of a well-formed key.
pub(crate) fn hash_of(text: &str) -> Option<[u8; 32]> {
    is_well_formed(text).then(|| sha256(text.as_bytes()))
}

fn is_well_formed(text: &str) -> bool {
    let is_whole = has_length(text) && text.is_ascii();
    let Some((body, sum)) = is_whole.then(|| text.split_at(PREFIX.len() + RANDOM)) else {
        return false;
    };
    let random = body.strip_prefix(PREFIX);
    let is_letters = |random: &str| random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    random.is_some_and(is_letters) && checksum(body) == sum
}

fn has_length(text: &str) -> bool {
    text.len() == PREFIX.len() + RANDOM + SUM && has_prefix(text)
}

fn checksum(body: &str) -> String {
    let digest = sha256(body.as_bytes());
    let mut number = digest[..4]
        .iter()
        .fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
    let mut sum = [b'0'; SUM];
    for letter in sum.iter_mut().rev() {
        *letter = LETTERS[number % 62];
        number /= 62;
    }
    sum.map(char::from).iter().collect()
}

/// The prefix of every key.
const PREFIX: &str = "lgk_";
/// 62^43 is more than 2^256.
const RANDOM: usize = 43;
/// 62^6 is more than 2^32.
const SUM: usize = 6;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;

    use super::*;

    #[test]
    fn mistyped_keys_are_not_recognised() {
        let key = generate(&SystemRandom::new()).unwrap();
        assert_ne!(key, generate(&SystemRandom::new()).unwrap());
        assert_eq!(key.len(), 53);
        assert!(has_prefix(&key) && is_well_formed(&key));
        for at in 0..key.len() {
            let mut typed = key.clone().into_bytes();
            typed[at] = if typed[at] == b'x' { b'y' } else { b'x' };
            assert!(
                !is_well_formed(std::str::from_utf8(&typed).unwrap()),
                "{at}"
            );
            let mut short = key.clone();
            short.remove(at);
            assert!(!is_well_formed(&short));
        }
        for odd in ["", "lgk_", "lgk_é", &"é".repeat(53), &format!("{key}0")] {
            assert!(!is_well_formed(odd), "{odd}");
        }
    }

    #[test]
    fn the_key_format_is_stable() {
        let body = format!("lgk_{}", "0".repeat(43));
        let key = format!("{body}{}", checksum(&body));
        assert_eq!(key, "lgk_00000000000000000000000000000000000000000003RK6Ff");
        let hash = "6f3a9bf15e0ac46ecf437da43d790abade71140e4a45a4d891c3f61a2b27c709";
        assert_eq!(fingerprint(&key), format!("sha256:{hash}"));
    }
}

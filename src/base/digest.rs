//! SHA-256, message authentication codes with it, and hexadecimal text.

use std::sync::Arc;

use aws_lc_rs::{
    constant_time,
    digest::{Context, SHA256, digest},
    hmac,
};

/// Computes the SHA-256 digest of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    array(digest(&SHA256, bytes).as_ref())
}

/// SHA-256 digest over several parts.
pub(crate) struct Sha256(Context);

impl Sha256 {
    /// Begins an empty digest.
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    /// Adds bytes without their length.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds `bytes` after their length, so that parts cannot run into each other.
    pub(crate) fn add_part(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    /// Returns the digest of all added bytes.
    pub(crate) fn finish(self) -> [u8; 32] {
        array(self.0.finish().as_ref())
    }
}

/// Keys of message authentication codes (HMAC-SHA256), the same on all replicas; a handle.
#[derive(Clone)]
pub(crate) struct MacKeys(Arc<[hmac::Key]>);

impl MacKeys {
    /// Makes keys from 32 bytes derived from each master key. The first key signs and all keys
    /// verify, so that the master key can be rotated while replicas run.
    pub(crate) fn new<'k>(keys: impl IntoIterator<Item = &'k [u8; 32]>) -> Self {
        let key = |key: &[u8; 32]| hmac::Key::new(hmac::HMAC_SHA256, key);
        Self(keys.into_iter().map(key).collect())
    }

    /// Signs `parts`; `None` if there is no key.
    pub(crate) fn sign(&self, parts: &[&[u8]]) -> Option<[u8; 32]> {
        Some(code(self.0.first()?, parts))
    }

    /// Returns whether one of the keys signed `parts`. A code may be cut to half its length (RFC
    /// 2104, section 5).
    pub(crate) fn verify(&self, parts: &[&[u8]], given: &[u8]) -> bool {
        (HALF..=2 * HALF).contains(&given.len())
            && self.0.iter().any(|key| {
                let own = code(key, parts);
                constant_time::verify_slices_are_equal(&own[..given.len()], given).is_ok()
            })
    }
}

/// Each part is preceded by its length, so that parts cannot run into each other.
fn code(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    array(context.sign().as_ref())
}

/// Half the length of a code.
const HALF: usize = 16;

/// Encodes `bytes` in lowercase hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn array(digest: &[u8]) -> [u8; 32] {
    let mut array = [0; 32];
    array.copy_from_slice(digest);
    array
}

#[cfg(test)]
mod tests {
    use super::super::digest::*;

    #[test]
    fn parts_are_digested_as_the_whole() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(b"abc")), abc);
        let mut context = Sha256::new();
        context.add(b"a");
        context.add(b"bc");
        assert_eq!(hex(&context.finish()), abc);
        let of = |parts: [&[u8]; 2]| {
            let mut context = Sha256::new();
            for part in parts {
                context.add_part(part);
            }
            context.finish()
        };
        assert_ne!(of([b"a", b"bc"]), of([b"ab", b"c"]));
    }

    #[test]
    fn codes_are_those_of_a_key_and_of_parts() {
        let (old, new) = (MacKeys::new([&[7; 32]]), MacKeys::new([&[8; 32], &[7; 32]]));
        let code = old.sign(&[b"a", b"bc"]).unwrap();
        assert!(old.verify(&[b"a", b"bc"], &code) && new.verify(&[b"a", b"bc"], &code));
        assert!(old.verify(&[b"a", b"bc"], &code[..16]));
        assert!(!old.verify(&[b"a", b"bc"], &code[..15]));
        assert!(!old.verify(&[b"ab", b"c"], &code));
        let other = new.sign(&[b"a", b"bc"]).unwrap();
        assert!(!old.verify(&[b"a", b"bc"], &other));
        let none = MacKeys::new([]);
        assert!(none.sign(&[b"a"]).is_none() && !none.verify(&[b"a"], &code));
    }
}

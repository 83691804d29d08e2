//! SHA-256 and hexadecimal text.

use aws_lc_rs::digest::{Context, SHA256, digest};

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
}

//! SHA-256 and hexadecimal text.

use aws_lc_rs::digest::{Context, SHA256, digest};

/// The SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    array(digest(&SHA256, bytes).as_ref())
}

/// A SHA-256 over several parts.
pub(crate) struct Sha256(Context);

impl Sha256 {
    /// A digest of nothing yet.
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    /// Adds bytes as they are.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the length of `bytes` and then `bytes`, so that no part runs into the next.
    pub(crate) fn add_part(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    /// The digest of everything added.
    pub(crate) fn finish(self) -> [u8; 32] {
        array(self.0.finish().as_ref())
    }
}

/// `bytes` in lowercase hexadecimal.
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

//! Random secrets and the digests stored for them.
//!
//! Each has 256 random bits, so that an unsalted SHA-256 is enough to store. A prefix names its
//! kind, for scanners of leaked secrets. A refresh token has its family at its end, 128 random bits that all tokens of
//! a grant have in common.

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::SecureRandom,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::auth::REGISTERED;
use crate::base::sha256;

/// The purpose of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretKind {
    /// An authorization code.
    Code,
    /// A refresh token.
    Refresh,
    /// A registration access token (RFC 7592).
    Registration,
    /// A client secret.
    Client,
}

impl SecretKind {
    /// The prefix of such a secret.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Code => "lgc_",
            Self::Refresh => "lgr_",
            Self::Registration => "lga_",
            Self::Client => "lgs_",
        }
    }
}

/// Generates a secret; `None` if the system has no randomness. A refresh token begins a family, which its text names.
pub(crate) fn generate(random: &dyn SecureRandom, kind: SecretKind) -> Option<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; 32]);
    random.fill(&mut *bytes).ok()?;
    let mut text = written(kind, &bytes);
    if kind == SecretKind::Refresh {
        let mut family = Zeroizing::new([0; 16]);
        random.fill(&mut *family).ok()?;
        text.push(FAMILY);
        URL_SAFE_NO_PAD.encode_string(family.as_slice(), &mut text);
    }
    Some(text)
}

/// Generates 256 random bits as text without a prefix, for values that no scanner needs to find;
/// `None` if the system has no randomness.
pub(crate) fn plain(random: &dyn SecureRandom) -> Option<String> {
    let mut bytes = [0; 32];
    random.fill(&mut bytes).ok()?;
    Some(encoded(&bytes))
}

/// A new client id, which is neither secret nor a URL.
pub(crate) fn client_id(random: &dyn SecureRandom) -> Option<String> {
    let mut bytes = [0; 16];
    random.fill(&mut bytes).ok()?;
    Some(format!("{REGISTERED}{}", encoded(&bytes)))
}

/// A random salt from which, with a refresh token, its successor is derived.
pub(crate) fn salt(random: &dyn SecureRandom) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    random.fill(&mut bytes).ok().map(|()| bytes)
}

/// The digest that is stored for a secret.
pub(crate) fn hash(text: &str) -> [u8; 32] {
    sha256(text.as_bytes())
}

/// Compares two digests in constant time.
pub(crate) fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

/// The refresh token that succeeds `predecessor`. It is derived, so that a client that holds the
/// predecessor can receive the same successor again although only its digest is stored. It is of the same family.
pub(crate) fn successor(predecessor: &str, salt: &[u8; 32]) -> Option<Zeroizing<String>> {
    let key = Salt::new(HKDF_SHA256, salt).extract(predecessor.as_bytes());
    let mut bytes = Zeroizing::new([0; 32]);
    key.expand(&[SUCCESSOR], Bytes32)
        .and_then(|expanded| expanded.fill(&mut *bytes))
        .ok()?;
    let mut text = written(SecretKind::Refresh, &bytes);
    if let Some((_, family)) = predecessor.split_once(FAMILY) {
        text.push(FAMILY);
        text.push_str(family);
    }
    Some(text)
}

/// The digest of the family of a refresh token: whoever knows the family has had one of its tokens. `None` for a token
/// from before there were families.
pub(crate) fn family(token: &str) -> Option<[u8; 32]> {
    let (_, family) = token.split_once(FAMILY)?;
    Some(hash(family))
}

/// Encodes bytes in base64url without padding (RFC 4648, section 5).
pub(crate) fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The S256 challenge of a verifier (RFC 7636, section 4.2).
pub(crate) fn challenge(verifier: &str) -> String {
    encoded(&hash(verifier))
}

fn written(kind: SecretKind, bytes: &[u8; 32]) -> Zeroizing<String> {
    // With room for a family: a text that moves leaves a copy behind.
    let mut text = Zeroizing::new(String::with_capacity(96));
    text.push_str(kind.prefix());
    URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
    text
}

/// Stands before the family in the text of a refresh token, and is no character of base64url.
const FAMILY: char = '.';
/// The HKDF `info` of successors (RFC 5869, section 3.2).
const SUCCESSOR: &[u8] = b"lockgate refresh token successor";

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;

    use super::*;

    #[test]
    fn secrets_have_prefixes_and_random_text() {
        let random = SystemRandom::new();
        for kind in [
            SecretKind::Code,
            SecretKind::Refresh,
            SecretKind::Registration,
            SecretKind::Client,
        ] {
            let (one, other) = (
                generate(&random, kind).unwrap(),
                generate(&random, kind).unwrap(),
            );
            assert_ne!(one, other);
            let rest = one.strip_prefix(kind.prefix()).unwrap();
            let lengths = rest.split('.').map(|part| {
                let bytes = URL_SAFE_NO_PAD.decode(part).unwrap();
                bytes.len()
            });
            let wanted: &[usize] = if kind == SecretKind::Refresh {
                &[32, 16]
            } else {
                &[32]
            };
            assert_eq!(lengths.collect::<Vec<_>>(), wanted, "{kind:?}");
        }
        let id = client_id(&random).unwrap();
        assert_eq!(id.len(), 24);
        assert_ne!(id, client_id(&random).unwrap());
    }

    #[test]
    fn a_successor_comes_from_predecessor_and_salt() {
        let of = |text, salt| successor(text, &[salt; 32]).unwrap();
        assert_eq!(of("a", 1), of("a", 1));
        assert_ne!(of("a", 1), of("b", 1));
        assert_ne!(of("a", 1), of("a", 2));
        assert!(of("a", 1).starts_with("lgr_"));
        assert_eq!(of("a", 1).len(), 47);
    }

    #[test]
    fn a_successor_is_of_the_same_family() {
        let random = SystemRandom::new();
        let [one, other] = [0; 2].map(|_| generate(&random, SecretKind::Refresh).unwrap());
        let of_one = family(&one).unwrap();
        assert_ne!(Some(of_one), family(&other));
        let mut last = one.clone();
        for salt in 0..3 {
            let next = successor(&last, &[salt; 32]).unwrap();
            assert_eq!((family(&next), next.len()), (Some(of_one), one.len()));
            assert_ne!(
                next.split_once('.').unwrap().0,
                last.split_once('.').unwrap().0
            );
            last = next;
        }
        // One of before.
        assert_eq!(family("lgr_a"), None);
        assert_eq!(family(&successor("lgr_a", &[1; 32]).unwrap()), None);
    }

    #[test]
    fn the_challenge_of_rfc_7636() {
        // RFC 7636, Appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let wanted = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert_eq!(challenge(verifier), wanted);
    }

    #[test]
    fn digests_are_compared_completely() {
        let (one, mut other) = (hash("a"), hash("a"));
        assert!(is_same(&one, &other));
        other[31] ^= 1;
        assert!(!is_same(&one, &other));
    }
}

//! Sealing of secrets, so that a file or dump of the database alone reveals none.
//!
//! AES-256-GCM under a key derived from a master key, bound to table, row and column. Pure. Not
//! here: the source of master keys (`master_key`).

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    hmac,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

use crate::{
    base::{Random, hex},
    config::Wrong,
};

/// The place of a sealed value; a value that was moved does not open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The table.
    pub(crate) table: &'a str,
    /// The row, by its id.
    pub(crate) row: &'a str,
    /// The column.
    pub(crate) column: &'a str,
}

/// The reason why a sealed value does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// The value was sealed under an unknown master key.
    UnknownKey,
    /// The value was altered, truncated, or sealed for another place.
    Forged,
}

/// One master key: 32 random bytes.
pub(crate) struct MasterKey {
    bytes: Zeroizing<[u8; KEY]>,
    id: [u8; ID],
    sealing: LessSafeKey,
}

impl MasterKey {
    /// Creates a key.
    ///
    /// # Errors
    ///
    /// No randomness.
    pub(crate) fn new(random: &Random) -> Result<Self, Wrong> {
        let mut bytes = Zeroizing::new([0; KEY]);
        let filled = random.fill(&mut *bytes);
        filled.map_err(|_| Wrong::new("cannot be made: no randomness", "start again"))?;
        Ok(Self::of(bytes))
    }

    fn of(bytes: Zeroizing<[u8; KEY]>) -> Self {
        let mut id = [0; ID];
        id.copy_from_slice(&derived(&bytes, b"lockgate master key id")[..ID]);
        let key = derived(&bytes, b"lockgate seal");
        let key = UnboundKey::new(&AES_256_GCM, &*key).expect("an AES-256 key has 32 bytes");
        Self {
            bytes,
            id,
            sealing: LessSafeKey::new(key),
        }
    }

    /// An id that does not reveal the key.
    pub(crate) fn id(&self) -> String {
        hex(&self.id)
    }

    /// The key for the purpose `label`, equal at every replica with this master key.
    pub(crate) fn derive(&self, label: &str) -> Zeroizing<[u8; KEY]> {
        derived(&self.bytes, label.as_bytes())
    }

    /// A text that is equal at replicas with the same master key and public URL, and reveals
    /// neither.
    pub(crate) fn fingerprint(&self, public_url: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*self.derive("lockgate replicas v1"));
        let tag = hmac::sign(&key, public_url.as_bytes());
        hex(&tag.as_ref()[..FINGERPRINT])
    }

    /// The key as text, for the key file.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(*self.bytes))
    }

    /// The associated data: every part with its length, so that parts cannot be confused.
    fn associated(&self, place: Place<'_>) -> Vec<u8> {
        let mut data = vec![FORM];
        data.extend_from_slice(&self.id);
        for part in [place.table, place.row, place.column] {
            data.extend_from_slice(&(part.len() as u64).to_le_bytes());
            data.extend_from_slice(part.as_bytes());
        }
        data
    }
}

/// The master keys of one gateway: the first seals, all open.
pub(crate) struct Keyring(Vec<MasterKey>);

impl Keyring {
    /// Parses one key, or several separated by commas or line breaks, each 32 bytes in Base64.
    pub(crate) fn parse(text: &str) -> Result<Self, Wrong> {
        let words = text.split([',', '\n']).map(str::trim);
        let keys = words.filter(|word| !word.is_empty()).map(|word| {
            let decoded = STANDARD.decode(word).map(Zeroizing::new).ok();
            let bytes = decoded.and_then(|bytes| <[u8; KEY]>::try_from(&bytes[..]).ok());
            // Without the text, which may be a key with a typing error.
            let what = "is not 32 bytes in Base64";
            let wrong = || Wrong::new(what, "write what `openssl rand -base64 32` prints");
            bytes
                .map(|bytes| MasterKey::of(Zeroizing::new(bytes)))
                .ok_or_else(wrong)
        });
        let keys: Vec<MasterKey> = keys.collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(Wrong::new("holds no key", "write 32 bytes in Base64"));
        }
        Ok(Self(keys))
    }

    /// These keys; at least one.
    pub(crate) fn of(first: MasterKey, others: Vec<MasterKey>) -> Self {
        Self(std::iter::once(first).chain(others).collect())
    }

    /// The key that seals.
    pub(crate) fn first(&self) -> &MasterKey {
        self.0.first().expect("every constructor puts one in")
    }

    /// All keys, the sealing one first.
    pub(crate) fn keys(&self) -> &[MasterKey] {
        &self.0
    }

    /// The keys themselves.
    pub(crate) fn into_keys(self) -> Vec<MasterKey> {
        self.0
    }

    /// The first 9 bytes of every value that the first key seals: the format, and the id of the key. Statements look for
    /// values of other keys by them.
    pub(crate) fn beginning(&self) -> Vec<u8> {
        let mut beginning = vec![FORM];
        beginning.extend_from_slice(&self.first().id);
        beginning
    }

    /// Seals `plain` for `place`; none without randomness.
    pub(crate) fn seal(&self, random: &Random, place: Place<'_>, plain: &[u8]) -> Option<Vec<u8>> {
        let key = self.first();
        // Random nonces: 2^32 values under one key stay far below the limit of SP 800-38D, 8.3.
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let aad = Aad::from(key.associated(place));
        let once = Nonce::assume_unique_for_key(nonce);
        key.sealing
            .seal_in_place_append_tag(once, aad, &mut sealed)
            .ok()?;
        let mut out = self.beginning();
        out.extend_from_slice(&nonce);
        out.append(&mut sealed);
        Some(out)
    }

    /// Opens a value sealed for `place`.
    pub(crate) fn open(
        &self,
        place: Place<'_>,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        let (form, rest) = sealed.split_first().ok_or(NotOpened::Forged)?;
        let (id, rest) = rest.split_at_checked(ID).ok_or(NotOpened::Forged)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or(NotOpened::Forged)?;
        if *form != FORM {
            return Err(NotOpened::Forged);
        }
        let key = self.0.iter().find(|key| key.id == *id);
        let key = key.ok_or(NotOpened::UnknownKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| NotOpened::Forged)?;
        let mut text = Zeroizing::new(rest.to_vec());
        let aad = Aad::from(key.associated(place));
        let plain = key.sealing.open_in_place(nonce, aad, &mut text);
        let length = plain.map_err(|_| NotOpened::Forged)?.len();
        text.truncate(length);
        Ok(text)
    }
}

/// The master keys and the source of nonces, for sealing.
pub(crate) struct Sealer<'a> {
    /// The keys, of which the first seals.
    pub(crate) keys: &'a Keyring,
    /// The source of nonces.
    pub(crate) random: &'a Random,
}

impl std::fmt::Debug for Keyring {
    /// Prints the ids of the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.0.iter().map(MasterKey::id);
        f.debug_list().entries(ids).finish()
    }
}

/// Derives a key for one purpose (RFC 5869), independent of those for other purposes.
fn derived(master: &[u8; KEY], purpose: &[u8]) -> Zeroizing<[u8; KEY]> {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            KEY
        }
    }
    let mut key = Zeroizing::new([0; KEY]);
    let extracted = Salt::new(HKDF_SHA256, b"").extract(master);
    let info = [purpose];
    let expanded = extracted.expand(&info, Length);
    let filled = expanded.and_then(|okm| okm.fill(&mut *key));
    filled.expect("32 bytes are within what HKDF-SHA256 gives");
    key
}

/// Bytes of a key.
const KEY: usize = 32;
/// Bytes of a key's id.
const ID: usize = 8;
/// Bytes of a fingerprint: enough to be unique among installations.
const FINGERPRINT: usize = 16;
/// The first byte of every sealed value: the format of the rest.
const FORM: u8 = 1;

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;

    use super::super::seal::*;

    const HERE: Place<'_> = Place {
        table: "servers",
        row: "a",
        column: "secret",
    };

    fn key() -> MasterKey {
        MasterKey::new(&SystemRandom::new()).unwrap()
    }

    fn sealed(ring: &Keyring) -> Vec<u8> {
        ring.seal(&SystemRandom::new(), HERE, b"s3cret").unwrap()
    }

    #[test]
    fn replicas_derive_the_same_and_others_something_else() {
        let (one, text) = (key(), "https://mcp.example.com");
        let same = Keyring::parse(&one.text()).unwrap();
        assert_eq!(*one.derive("a"), *same.first().derive("a"));
        assert_ne!(*one.derive("a"), *one.derive("b"));
        assert_ne!(*one.derive("a"), *key().derive("a"));
        assert_eq!(one.fingerprint(text), same.first().fingerprint(text));
        assert_ne!(
            one.fingerprint(text),
            one.fingerprint("https://mcp.example.org")
        );
        assert_ne!(one.fingerprint(text), key().fingerprint(text));
    }

    #[test]
    fn opens_what_it_sealed_and_nothing_else() {
        let ring = Keyring::of(key(), Vec::new());
        let value = sealed(&ring);
        assert_eq!(ring.open(HERE, &value).unwrap().as_slice(), b"s3cret");
        assert!(!value.windows(6).any(|part| part == b"s3cret"));
        assert_ne!(value, sealed(&ring), "a nonce is used once");
        for at in 0..value.len() {
            let mut bent = value.clone();
            bent[at] ^= 1;
            assert!(ring.open(HERE, &bent).is_err(), "byte {at}");
            assert!(ring.open(HERE, &value[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn is_bound_to_its_place() {
        let ring = Keyring::of(key(), Vec::new());
        let value = sealed(&ring);
        let elsewhere = [
            Place {
                table: "users",
                ..HERE
            },
            Place { row: "b", ..HERE },
            Place {
                column: "spec",
                ..HERE
            },
            Place {
                table: "serversa",
                row: "",
                ..HERE
            },
        ];
        for place in elsewhere {
            let opened = ring.open(place, &value);
            assert_eq!(opened.unwrap_err(), NotOpened::Forged, "{place:?}");
        }
    }

    #[test]
    fn the_first_seals_and_all_open() {
        let (old, new) = (key(), key());
        let texts = (old.text(), new.text());
        let before = Keyring::of(old, Vec::new());
        let both = Keyring::parse(&format!("{},{}", *texts.1, *texts.0)).unwrap();
        let after = Keyring::of(new, Vec::new());
        assert!(both.open(HERE, &sealed(&before)).is_ok());
        let renewed = sealed(&both);
        assert!(after.open(HERE, &renewed).is_ok());
        let unknown = before.open(HERE, &renewed);
        assert_eq!(unknown.unwrap_err(), NotOpened::UnknownKey);
    }

    #[test]
    fn keys_are_read_and_never_shown() {
        let text = key().text();
        let ring = Keyring::parse(&format!("\n{}\n", *text)).unwrap();
        assert_eq!(*ring.first().text(), *text);
        assert!(!format!("{ring:?}").contains(&text[..8]));
        for wrong in ["", ",", "AAAA", "x", &text[1..], &format!("{},AAAA", *text)] {
            let wrong = Keyring::parse(wrong).unwrap_err();
            assert!(!wrong.what.contains(&text[1..]));
        }
    }
}

//! Signatures and key sets (RFC 7515, 7517), without I/O.
//!
//! Not here: claims (`auth::jwt`), and the fetching of keys (`auth::external`).

use std::{cell::Cell, collections::HashSet, fmt};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm as Alg, DecodingKey, crypto};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::base::sha256;
use crate::declare::{ALGORITHMS, Algorithm};

/// A signed text with its signature not yet verified, without its payload.
pub(crate) struct Jws<'t> {
    /// The signed part: header and payload.
    signed: &'t str,
    /// The signature part.
    signature: &'t str,
    algorithm: Algorithm,
    pub(crate) kid: Option<String>,
    /// Its `iat`, in seconds since 1970; none if there is none that can be read.
    pub(crate) issued: Option<u64>,
}

impl Jws<'_> {
    /// Its claims, parsed again: a token has this only once it is verified, so that whoever waits for keys keeps its text
    /// and not the many times larger tree.
    ///
    /// # Errors
    ///
    /// None, as they were parsed before.
    pub(crate) fn claims(&self) -> Result<Map<String, Value>, &'static str> {
        let (_, payload) = self.signed.split_once('.').ok_or("no JWT")?;
        object(payload)
    }

    /// Verifies the signature with this Ed25519 key. The key determines the algorithm; the token
    /// does not.
    pub(crate) fn is_signed_by(&self, public: &[u8; 32]) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(self.signature) else {
            return false;
        };
        let key = UnparsedPublicKey::new(&ED25519, public);
        self.algorithm == Algorithm::EdDsa && key.verify(self.signed.as_bytes(), &signature).is_ok()
    }

    /// Verifies the signature with the key among `keys` that the token names.
    pub(crate) fn is_of<'k>(
        &self,
        mut keys: impl Iterator<Item = (&'k str, &'k [u8; 32])>,
    ) -> bool {
        let named = keys.find(|(kid, _)| self.kid.as_deref() == Some(*kid));
        named.is_some_and(|(_, public)| self.is_signed_by(public))
    }
}

/// Header, payload and signature of a JWT, not yet verified.
pub(crate) type Unverified<'t> = (Map<String, Value>, Map<String, Value>, Jws<'t>);

/// Parses a JWT that is signed by one of `algorithms`, without verification.
///
/// # Errors
///
/// The reason why it is invalid, for the log.
pub(crate) fn parse_unverified<'t>(
    text: &'t str,
    algorithms: &[Algorithm],
) -> Result<Unverified<'t>, &'static str> {
    parse_as(text, algorithms, |name| name)
}

/// Parses a JWT that carries its key, as [`parse_unverified`] does. Its `alg` may be a name of RFC 9864.
///
/// # Errors
///
/// The reason why it is invalid, for its author.
pub(crate) fn parse_with_key<'t>(
    text: &'t str,
    algorithms: &[Algorithm],
) -> Result<Unverified<'t>, &'static str> {
    parse_as(text, algorithms, |name| match name {
        "Ed25519" => "EdDSA",
        name => name,
    })
}

fn parse_as<'t>(
    text: &'t str,
    algorithms: &[Algorithm],
    named: fn(&str) -> &str,
) -> Result<Unverified<'t>, &'static str> {
    if text.len() > TOKEN_MAX {
        return Err("too long");
    }
    let (signed, signature) = text.rsplit_once('.').ok_or("no JWT")?;
    let (header, payload) = signed.split_once('.').ok_or("no JWT")?;
    let header = object(header)?;
    let algorithm = string(&header, "alg")?.ok_or("no alg")?;
    let algorithm = named(algorithm);
    let known = ALGORITHMS.iter().find(|(name, _)| *name == algorithm);
    let algorithm = known.map(|(_, algorithm)| *algorithm);
    let algorithm = algorithm.filter(|algorithm| algorithms.contains(algorithm));
    let algorithm = algorithm.ok_or("an algorithm that is not allowed")?;
    // Critical extensions are not supported (RFC 7515, section 4.1.11). Keys and key URLs in a
    // token (jwk, jku, x5c, x5u) are ignored.
    if header.contains_key("crit") || header.contains_key("b64") || header.contains_key("zip") {
        return Err("a header that is not understood");
    }
    let kid = string(&header, "kid")?.map(str::to_owned);
    if kid.as_ref().is_some_and(|kid| kid.len() > KID_MAX) {
        return Err("a kid that is too long");
    }
    let payload = object(payload)?;
    let jws = Jws {
        signed,
        signature,
        algorithm,
        kid,
        issued: numeric_date(&payload, "iat").ok().flatten(),
    };
    Ok((header, payload, jws))
}

/// An optional string member.
pub(crate) fn string<'p>(
    object: &'p Map<String, Value>,
    name: &str,
) -> Result<Option<&'p str>, &'static str> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err("a member that is no text"),
    }
}

/// A string, or an array of strings.
pub(crate) fn strings(value: &Value) -> Result<Vec<String>, &'static str> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        _ => Err("a member that is no text"),
    };
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// The claim that an operator declared: by its whole name, which may be a URL, else from object to object by its
/// dots.
pub(crate) fn declared<'p>(payload: &'p Map<String, Value>, name: &str) -> Option<&'p Value> {
    if let Some(found) = payload.get(name) {
        return Some(found);
    }
    let mut steps = name.split('.');
    let first = payload.get(steps.next()?)?;
    steps.try_fold(first, |at, step| at.as_object()?.get(step))
}

/// A `NumericDate` (RFC 7519, section 2), which may have a fraction.
pub(crate) fn numeric_date(
    payload: &Map<String, Value>,
    name: &str,
) -> Result<Option<u64>, &'static str> {
    let bad = "a time that is no number";
    match payload.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            let whole = number.as_u64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the conversion saturates"
            )]
            let rounded = number.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64);
            whole.or(rounded).ok_or(bad).map(Some)
        }
        Some(_) => Err(bad),
    }
}

/// A part of a token: an object without repeated names.
fn object(part: &str) -> Result<Map<String, Value>, &'static str> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| "no base64url")?;
    members_of_anybody(&bytes).ok_or("no JSON object, a name twice, or too many objects and lists")
}

/// The members of a JSON object without repeated names.
pub(crate) fn members(json: &[u8]) -> Option<Map<String, Value>> {
    match strict(json, usize::MAX)? {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

/// The same of what anybody may have sent: it has few objects and lists.
pub(crate) fn members_of_anybody(json: &[u8]) -> Option<Map<String, Value>> {
    match strict(json, CONTAINERS)? {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

/// JSON with unique names (RFC 7519, section 4): of two parsers, one might take the first value and
/// the other the last. None if it has more than `most` objects and lists.
fn strict(json: &[u8], most: usize) -> Option<Value> {
    let left = Cell::new(most);
    let mut from = serde_json::Deserializer::from_slice(json);
    let value = Unique { left: &left }.deserialize(&mut from).ok()?;
    from.end().ok()?;
    Some(value)
}

/// Reads one value of such JSON.
#[derive(Clone, Copy)]
struct Unique<'l> {
    /// The objects and lists that may still come.
    left: &'l Cell<usize>,
}

impl Unique<'_> {
    /// Takes an object or a list of those that may still come.
    fn begin<E: Error>(self) -> Result<(), E> {
        let left = self.left.get().checked_sub(1);
        let left = left.ok_or_else(|| E::custom("too many objects and lists"))?;
        self.left.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.begin::<A::Error>()?;
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.begin::<A::Error>()?;
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(self)?;
            if all.insert(name, value).is_some() {
                return Err(A::Error::custom("a name twice"));
            }
        }
        Ok(Value::Object(all))
    }
}

/// The keys of an issuer, or of a client.
pub(crate) struct KeySet {
    keys: Vec<Key>,
    ids: HashSet<KeyId>,
    /// Maximum keys to try for one token.
    tries: usize,
}

/// The identity of a key, independent of its `kid`.
pub(crate) type KeyId = [u8; 32];

pub(super) struct Key {
    kid: Option<String>,
    /// The algorithms that it may verify.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    id: KeyId,
}

/// Bounds of keys, by who has chosen them: the larger ones take longer to verify with.
pub(super) struct Bounds {
    /// Maximum size of an RSA modulus in bytes.
    modulus: usize,
    /// Maximum exponent of RSA.
    exponent: u64,
    /// Maximum keys to try for one token that names none.
    tries: usize,
    /// Maximum objects and lists of a key set.
    containers: usize,
}

/// The bounds of keys that operators declare, and of issuers that they trust.
const TRUSTED: Bounds = Bounds {
    modulus: RSA_MAX,
    exponent: (1 << 33) - 1,
    tries: TRIES,
    containers: usize::MAX,
};

/// The bounds of keys that anybody may have chosen.
pub(super) const OF_ANYBODY: Bounds = Bounds {
    modulus: RSA_MAX / 2,
    exponent: 65_537,
    tries: 2,
    containers: CONTAINERS,
};

/// The result of a verification against a key set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    /// Signed by this key.
    By(KeyId),
    /// Not signed by the key that the token names.
    Bad,
    /// The named key is unknown: the issuer may have newer ones.
    NoKey,
}

impl KeySet {
    /// Parses the JWK set of an operator or a trusted issuer; unsupported keys are ignored (RFC 7517, section 5).
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        Self::within(&TRUSTED, bytes)
    }

    /// Parses the JWK set of a client that no operator declared; keys that take long to verify with are ignored as well.
    pub(crate) fn parse_of_anybody(bytes: &[u8]) -> Result<Self, &'static str> {
        Self::within(&OF_ANYBODY, bytes)
    }

    fn within(bounds: &Bounds, bytes: &[u8]) -> Result<Self, &'static str> {
        let set = strict(bytes, bounds.containers).ok_or("no JSON, or a name twice")?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("no keys")?;
        let keys = keys.iter().filter_map(|jwk| Key::parse(jwk, bounds));
        let keys: Vec<Key> = keys.take(KEYS_MAX).collect();
        let ids = keys.iter().map(|key| key.id).collect();
        let tries = bounds.tries;
        Ok(Self { keys, ids, tries })
    }

    /// Reports whether the set contains a key.
    pub(crate) fn has(&self, id: &KeyId) -> bool {
        self.ids.contains(id)
    }

    /// Reports whether the set has no usable key.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Verifies a token's signature.
    pub(crate) fn check(&self, token: &Jws<'_>) -> Signature {
        let is_meant = |key: &&Key| match (&token.kid, &key.kid) {
            (Some(wanted), Some(kid)) => wanted == kid,
            _ => true,
        };
        let mut meant = self.keys.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Signature::NoKey;
        }
        let fits = |key: &&Key| key.fits(token);
        let signer = meant
            .filter(fits)
            .take(self.tries)
            .find(|key| key.made(token));
        match signer {
            Some(key) => Signature::By(key.id),
            // A token without a kid names no key.
            None if token.kid.is_none() => Signature::NoKey,
            None => Signature::Bad,
        }
    }
}

impl Key {
    /// Parses a public key; none if it is not supported, not within `bounds`, or not for signatures.
    pub(super) fn parse(jwk: &Value, bounds: &Bounds) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let operations = jwk.get("key_ops").and_then(Value::as_array);
        if operations.is_some_and(|all| !all.iter().any(|one| one == "verify")) {
            return None;
        }
        // The key type and curve determine the algorithms; the token does not.
        let (key, able, parts): (_, &[Algorithm], _) = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let (n, e) = (text("n")?, text("e")?);
                let bytes = URL_SAFE_NO_PAD.decode(n).ok()?;
                let is_size = (RSA_MIN..=bounds.modulus).contains(&bytes.len());
                if !is_size || exponent(e)? > bounds.exponent {
                    return None;
                }
                (DecodingKey::from_rsa_components(n, e), &RSA, [n, e])
            }
            ("EC", Some(curve)) => {
                let (x, y) = (text("x")?, text("y")?);
                let able: &[Algorithm] = match curve {
                    "P-256" => &[Algorithm::Es256],
                    "P-384" => &[Algorithm::Es384],
                    _ => return None,
                };
                (DecodingKey::from_ec_components(x, y), able, [x, y])
            }
            ("OKP", Some("Ed25519")) => {
                let x = text("x")?;
                (
                    DecodingKey::from_ed_components(x),
                    &[Algorithm::EdDsa],
                    [x, ""],
                )
            }
            _ => return None,
        };
        let named = |algorithm: &Algorithm| match text("alg") {
            None => true,
            // RFC 9864 names EdDSA on this curve separately.
            Some("Ed25519") => *algorithm == Algorithm::EdDsa,
            Some(alg) => ALGORITHMS.contains(&(alg, *algorithm)),
        };
        let kid = text("kid").map(str::to_owned);
        let named_parts = format!("{kid:?} {parts:?}");
        let id: KeyId = sha256(named_parts.as_bytes());
        Some(Self {
            kid,
            algorithms: able.iter().copied().filter(named).collect(),
            key: key.ok()?,
            id,
        })
    }

    /// Reports whether the key is for the algorithm of a token.
    pub(super) fn fits(&self, token: &Jws<'_>) -> bool {
        self.algorithms.contains(&token.algorithm)
    }

    /// Verifies the signature of a token whose algorithm fits.
    pub(super) fn made(&self, token: &Jws<'_>) -> bool {
        let algorithm = match token.algorithm {
            Algorithm::Rs256 => Alg::RS256,
            Algorithm::Rs384 => Alg::RS384,
            Algorithm::Rs512 => Alg::RS512,
            Algorithm::Ps256 => Alg::PS256,
            Algorithm::Ps384 => Alg::PS384,
            Algorithm::Ps512 => Alg::PS512,
            Algorithm::Es256 => Alg::ES256,
            Algorithm::Es384 => Alg::ES384,
            Algorithm::EdDsa => Alg::EdDSA,
        };
        let signed = token.signed.as_bytes();
        crypto::verify(token.signature, signed, &self.key, algorithm).unwrap_or(false)
    }
}

const RSA: [Algorithm; 6] = [
    Algorithm::Rs256,
    Algorithm::Rs384,
    Algorithm::Rs512,
    Algorithm::Ps256,
    Algorithm::Ps384,
    Algorithm::Ps512,
];
/// Maximum size of a token in bytes: proxies accept no larger header field.
pub(crate) const TOKEN_MAX: usize = 8 << 10;
/// Maximum objects and lists of a token, and of JSON that anybody may have sent: one of 5 bytes takes 600 once it is parsed.
const CONTAINERS: usize = 512;
/// Maximum size of a key id in bytes.
const KID_MAX: usize = 256;
/// Maximum keys of one issuer.
const KEYS_MAX: usize = 64;
/// Maximum keys to try for a token that names none.
const TRIES: usize = 8;
/// Minimum size of an RSA modulus in bytes: 2048 bits.
const RSA_MIN: usize = 256;
/// Maximum size of an RSA modulus in bytes: 8192 bits, beyond which no signature can be verified.
const RSA_MAX: usize = 1024;

/// Returns an exponent that keys have from its base64url: odd, from 3 (RFC 8017 section 3.1) to the 33
/// bits that verification takes. Signatures for an exponent of 1 need no private key.
fn exponent(e: &str) -> Option<u64> {
    let bytes = URL_SAFE_NO_PAD.decode(e).ok()?;
    let value = bytes.iter().try_fold(0_u64, |value, byte| {
        let value = value << 8 | u64::from(*byte);
        (value < 1 << 33).then_some(value)
    });
    value.filter(|value| *value >= 3 && value % 2 == 1)
}

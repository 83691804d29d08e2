//! JSON Web Tokens as pure functions: what one says, by which key it is signed, and whether it is
//! an access token at all (RFC 7519, 7515, 9068; RFC 8725 for what to look at).
//!
//! Not here: where keys come from (`external`), and what a claim allows (`auth`).

use std::{collections::HashSet, fmt, sync::Arc};

use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{ED25519, UnparsedPublicKey},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm as Alg, DecodingKey, crypto};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::control::identity::{ALGORITHMS, Algorithm, External};

/// A token whose signature nobody has looked at yet.
pub(super) struct Token<'t> {
    /// How it is signed.
    pub(super) jws: Jws<'t>,
    /// `typ` of the header, as it stands there.
    pub(super) kind: Option<String>,
    /// What it says.
    pub(super) claims: Claims,
    /// All of what it says.
    payload: Map<String, Value>,
}

/// Something signed, without what it says (RFC 7515).
pub(crate) struct Jws<'t> {
    /// What is signed: the first two parts.
    signed: &'t str,
    /// The third part.
    signature: &'t str,
    algorithm: Algorithm,
    kid: Option<String>,
}

/// What is looked for in a token.
#[derive(Clone, Copy)]
pub(super) struct Expected<'e> {
    /// `iss`, byte for byte.
    pub(super) issuer: &'e str,
    /// Signature algorithms that are believed.
    pub(super) algorithms: &'e [Algorithm],
    /// The claim that holds the subject's groups.
    pub(super) groups_claim: &'e str,
}

impl<'e> From<&'e External> for Expected<'e> {
    fn from(settings: &'e External) -> Self {
        Self {
            issuer: &settings.issuer,
            algorithms: &settings.algorithms,
            groups_claim: &settings.groups_claim,
        }
    }
}

/// What an access token says, as far as anybody asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// `sub`
    pub(super) subject: String,
    /// `client_id`, or `azp`
    pub(super) client: Option<String>,
    /// `aud`
    pub(super) audiences: Vec<String>,
    /// `exp`
    expires: u64,
    /// `nbf`
    not_before: u64,
    /// `scope`, or `scp`
    pub(super) scopes: Arc<[String]>,
    /// The claim that the operator named.
    pub(super) groups: Arc<[String]>,
}

impl Claims {
    /// Whether it holds at `now`, the clocks of issuer and gateway being a minute apart at most.
    pub(super) fn hold(&self, now: u64) -> Result<(), &'static str> {
        if now >= self.expires.saturating_add(LEEWAY) {
            return Err("expired");
        }
        if self.not_before > now.saturating_add(LEEWAY) {
            return Err("not valid yet");
        }
        Ok(())
    }
}

impl<'t> Token<'t> {
    /// Reads a token of the issuer that is expected; everything is checked that needs neither a key
    /// nor the time nor the resource.
    ///
    /// # Errors
    ///
    /// Why it is no access token of that issuer, for the log.
    pub(super) fn parse(text: &'t str, expected: Expected<'_>) -> Result<Self, &'static str> {
        let (header, payload, jws) = opened(text, expected.algorithms)?;
        let kind = string(&header, "typ")?;
        let is_at_jwt = is_at_jwt(kind)?;
        if string(&payload, "iss")? != Some(expected.issuer) {
            return Err("another issuer");
        }
        check_kind(&payload, is_at_jwt)?;
        let claims = claims(&payload, expected.groups_claim, is_at_jwt)?;
        Ok(Self {
            jws,
            kind: kind.map(str::to_owned),
            claims,
            payload,
        })
    }

    /// The key that it asks for.
    pub(super) fn kid(&self) -> Option<&str> {
        self.jws.kid.as_deref()
    }

    /// A further claim, which must be a text.
    pub(super) fn text(&self, claim: &str) -> Result<Option<&str>, &'static str> {
        string(&self.payload, claim)
    }

    /// A further claim, which must be a time.
    pub(super) fn moment(&self, claim: &str) -> Result<Option<u64>, &'static str> {
        moment(&self.payload, claim)
    }

    /// Whether this Ed25519 key signed it. The key says what it is for; the token does not.
    pub(super) fn is_signed_by(&self, public: &[u8; 32]) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(self.jws.signature) else {
            return false;
        };
        let key = UnparsedPublicKey::new(&ED25519, public);
        let signed = self.jws.signed.as_bytes();
        self.jws.algorithm == Algorithm::EdDsa && key.verify(signed, &signature).is_ok()
    }
}

impl Jws<'_> {
    /// Whether it is signed by an Ed25519 key of these, each with its id: by the one that it names.
    pub(crate) fn is_of<'k>(
        &self,
        mut keys: impl Iterator<Item = (&'k str, &'k [u8; 32])>,
    ) -> bool {
        let Some((_, public)) = keys.find(|(kid, _)| self.kid.as_deref() == Some(*kid)) else {
            return false;
        };
        let key = DecodingKey::from_ed_der(public);
        self.algorithm == Algorithm::EdDsa
            && crypto::verify(self.signature, self.signed.as_bytes(), &key, Alg::EdDSA)
                .unwrap_or(false)
    }
}

/// The header and the payload of a JWT whose signature nobody has looked at yet.
pub(crate) type Opened<'t> = (Map<String, Value>, Map<String, Value>, Jws<'t>);

/// Takes a JWT apart that is signed by one of `algorithms`.
///
/// # Errors
///
/// Why it cannot be believed, for the log.
pub(crate) fn opened<'t>(
    text: &'t str,
    algorithms: &[Algorithm],
) -> Result<Opened<'t>, &'static str> {
    if text.len() > TOKEN_MAX {
        return Err("too long");
    }
    let (signed, signature) = text.rsplit_once('.').ok_or("no JWT")?;
    let (header, payload) = signed.split_once('.').ok_or("no JWT")?;
    let header = object(header)?;
    let algorithm = string(&header, "alg")?.ok_or("no alg")?;
    let known = ALGORITHMS.iter().find(|(name, _)| *name == algorithm);
    let algorithm = known.map(|(_, algorithm)| *algorithm);
    let algorithm = algorithm.filter(|algorithm| algorithms.contains(algorithm));
    let algorithm = algorithm.ok_or("an algorithm that is not allowed")?;
    // What must be understood is not (RFC 7515, section 4.1.11). Keys and places of keys that a
    // token brings along (jwk, jku, x5c, x5u) are never looked at.
    if header.contains_key("crit") || header.contains_key("b64") || header.contains_key("zip") {
        return Err("a header that is not understood");
    }
    let kid = string(&header, "kid")?.map(str::to_owned);
    if kid.as_ref().is_some_and(|kid| kid.len() > KID_MAX) {
        return Err("a kid that is too long");
    }
    let jws = Jws {
        signed,
        signature,
        algorithm,
        kid,
    };
    Ok((header, object(payload)?, jws))
}

/// The type of a token (RFC 9068, section 2.1): an access token, or none in particular.
fn is_at_jwt(kind: Option<&str>) -> Result<bool, &'static str> {
    let Some(kind) = kind else { return Ok(false) };
    match kind.to_ascii_lowercase().as_str() {
        "at+jwt" | "application/at+jwt" => Ok(true),
        "jwt" | "application/jwt" => Ok(false),
        _ => Err("another type of token"),
    }
}

/// A plain JWT must not be a token that was made for something else: ID tokens (OpenID Connect
/// Core), logout and security event tokens have claims that access tokens do not have, and some
/// issuers say in the payload what a token is.
fn check_kind(payload: &Map<String, Value>, is_at_jwt: bool) -> Result<(), &'static str> {
    if !is_at_jwt && FOREIGN.iter().any(|claim| payload.contains_key(*claim)) {
        return Err("a token that is no access token");
    }
    let is_foreign = |claim, own: [&str; 3]| match payload.get(claim) {
        None => false,
        Some(Value::String(kind)) => !own.contains(&kind.to_ascii_lowercase().as_str()),
        Some(_) => true,
    };
    if is_foreign("typ", ["bearer", "at+jwt", "jwt"])
        || is_foreign("token_use", ["access", "access_token", "at"])
    {
        return Err("a token that is no access token");
    }
    Ok(())
}

fn claims(
    payload: &Map<String, Value>,
    groups: &str,
    is_at_jwt: bool,
) -> Result<Claims, &'static str> {
    let subject = string(payload, "sub")?.filter(|subject| !subject.is_empty());
    let named = |name| {
        let client = string(payload, name)?;
        Ok::<_, &str>(client.filter(|client| !client.is_empty()))
    };
    let client = match named("client_id")? {
        Some(client) => Some(client),
        // RFC 9068, section 2.2: required.
        None if is_at_jwt => return Err("no client_id"),
        None => named("azp")?,
    };
    let scopes = match (payload.get("scope"), payload.get("scp")) {
        (Some(Value::String(scopes)), _) | (None, Some(Value::String(scopes))) => scopes
            .split(' ')
            .filter(|scope| !scope.is_empty())
            .map(str::to_owned)
            .collect(),
        (None, Some(scopes)) => strings(scopes)?,
        (None, None) => Vec::new(),
        (Some(_), _) => return Err("a scope that is no text"),
    };
    Ok(Claims {
        subject: subject.ok_or("no sub")?.to_owned(),
        client: client.map(str::to_owned),
        audiences: payload.get("aud").map(strings).ok_or("no aud")??,
        expires: moment(payload, "exp")?.ok_or("no exp")?,
        not_before: moment(payload, "nbf")?.unwrap_or(0),
        scopes: scopes.into(),
        groups: payload
            .get(groups)
            .map(strings)
            .transpose()?
            .unwrap_or_default()
            .into(),
    })
}

/// A member that is a text, if it is there.
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

/// One text, or an array of texts.
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

/// A `NumericDate` (RFC 7519, section 2), which may have a fraction.
pub(crate) fn moment(
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

/// A part of a token: an object in which no name comes twice.
fn object(part: &str) -> Result<Map<String, Value>, &'static str> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| "no base64url")?;
    match serde_json::from_slice(&bytes) {
        Ok(Strict(Value::Object(members))) => Ok(members),
        _ => Err("no JSON object, or a name twice"),
    }
}

/// JSON in which names are unique (RFC 7519, section 4): of two readers, one would take the first
/// and the other the last.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Unique.deserialize(from).map(Strict)
    }
}

struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
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
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Self)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(Self)?;
            if all.insert(name, value).is_some() {
                return Err(A::Error::custom("a name twice"));
            }
        }
        Ok(Value::Object(all))
    }
}

/// The keys of an issuer.
pub(crate) struct KeySet {
    keys: Vec<Key>,
    ids: HashSet<KeyId>,
}

/// Tells keys apart, whatever the issuer calls them.
pub(crate) type KeyId = [u8; 32];

struct Key {
    kid: Option<String>,
    /// What it can verify, and may.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    id: KeyId,
}

/// What a key set makes of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    /// Made by this key.
    By(KeyId),
    /// Not made by the key that it names.
    Bad,
    /// No key here is the one that it names: the issuer may have a newer one.
    NoKey,
}

impl KeySet {
    /// Reads a JWK set; keys that are not ours to use are passed over, as RFC 7517, section 5 says.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let Ok(Strict(set)) = serde_json::from_slice(bytes) else {
            return Err("no JSON, or a name twice");
        };
        let keys = set.get("keys").and_then(Value::as_array).ok_or("no keys")?;
        let keys: Vec<Key> = keys.iter().filter_map(Key::parse).take(KEYS_MAX).collect();
        let ids = keys.iter().map(|key| key.id).collect();
        Ok(Self { keys, ids })
    }

    /// Whether a key is still one of them.
    pub(super) fn has(&self, id: &KeyId) -> bool {
        self.ids.contains(id)
    }

    /// Whether there is nothing in it that could be used.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Looks at a token's signature.
    pub(crate) fn check(&self, token: &Jws<'_>) -> Signature {
        let is_meant = |key: &&Key| match (&token.kid, &key.kid) {
            (Some(wanted), Some(kid)) => wanted == kid,
            _ => true,
        };
        let mut meant = self.keys.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Signature::NoKey;
        }
        let fits = |key: &&Key| key.algorithms.contains(&token.algorithm);
        let signer = meant.filter(fits).take(TRIES).find(|key| key.made(token));
        match signer {
            Some(key) => Signature::By(key.id),
            // A token without a kid says nothing about which key it means.
            None if token.kid.is_none() => Signature::NoKey,
            None => Signature::Bad,
        }
    }
}

impl Key {
    fn parse(jwk: &Value) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let operations = jwk.get("key_ops").and_then(Value::as_array);
        if operations.is_some_and(|all| !all.iter().any(|one| one == "verify")) {
            return None;
        }
        // The curve, or the size, decides what a key is for; a token does not.
        let (key, able, parts): (_, &[Algorithm], _) = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let (n, e) = (text("n")?, text("e")?);
                let bytes = URL_SAFE_NO_PAD.decode(n).ok()?;
                if bytes.len() < RSA_MIN {
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
            // RFC 9864 gives EdDSA on this curve a name of its own.
            Some("Ed25519") => *algorithm == Algorithm::EdDsa,
            Some(alg) => ALGORITHMS.contains(&(alg, *algorithm)),
        };
        let kid = text("kid").map(str::to_owned);
        let named_parts = format!("{kid:?} {parts:?}");
        let mut id = KeyId::default();
        id.copy_from_slice(digest(&SHA256, named_parts.as_bytes()).as_ref());
        Some(Self {
            kid,
            algorithms: able.iter().copied().filter(named).collect(),
            key: key.ok()?,
            id,
        })
    }

    fn made(&self, token: &Jws<'_>) -> bool {
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
/// Claims of ID tokens (`nonce` and the hashes), of logout and security event tokens (`events`).
const FOREIGN: [&str; 5] = ["nonce", "at_hash", "c_hash", "s_hash", "events"];
/// How far clocks may be apart (CONTRACT P66), in seconds.
const LEEWAY: u64 = 60;
/// Larger ones do not fit into what proxies take as one header field.
const TOKEN_MAX: usize = 8 << 10;
/// Longer ones are not names of keys.
const KID_MAX: usize = 256;
/// Keys of one issuer that are kept.
const KEYS_MAX: usize = 64;
/// Keys that are tried for a token that names none.
const TRIES: usize = 8;
/// 2048 bits.
const RSA_MIN: usize = 256;

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        encoding::{AsDer, Pkcs8V1Der},
        rand::SystemRandom,
        rsa::{KeyPair as Rsa, KeySize},
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
    };
    use base64::engine::general_purpose::STANDARD;
    use jsonwebtoken::EncodingKey;
    use serde_json::json;

    use super::*;

    fn settings() -> External {
        External {
            issuer: "https://issuer.test".to_owned(),
            algorithms: ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec(),
            groups_claim: "groups".to_owned(),
            scopes: Vec::new(),
        }
    }

    fn payload() -> Value {
        json!({"iss": "https://issuer.test", "sub": "ada", "aud": "https://gw.test/mcp",
            "exp": 1000, "client_id": "c", "scope": "a b", "groups": ["g"]})
    }

    fn part(text: &str) -> String {
        URL_SAFE_NO_PAD.encode(text)
    }

    fn unsigned(header: &str, payload: &str) -> String {
        format!("{}.{}.c2ln", part(header), part(payload))
    }

    fn parsed(header: &str, payload: &str) -> Result<Claims, &'static str> {
        let text = unsigned(header, payload);
        Token::parse(&text, (&settings()).into()).map(|token| token.claims)
    }

    const HEADER: &str = r#"{"alg":"ES256","kid":"k"}"#;

    #[test]
    fn claims_are_read() {
        let claims = parsed(HEADER, &payload().to_string()).unwrap();
        assert_eq!(
            (claims.subject.as_str(), claims.client.as_deref()),
            ("ada", Some("c"))
        );
        assert_eq!(
            (&*claims.scopes, &*claims.groups),
            (&["a".to_owned(), "b".into()][..], &["g".to_owned()][..])
        );
        let with = |name: &str, value: Value| {
            let mut all = payload();
            all[name] = value;
            parsed(HEADER, &all.to_string())
        };
        let mut plain = payload();
        plain
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name != "scope" && name != "client_id");
        plain["scp"] = json!(["x", "y"]);
        plain["azp"] = json!("z");
        let claims = parsed(HEADER, &plain.to_string()).unwrap();
        assert_eq!(
            (claims.scopes.len(), claims.client.as_deref()),
            (2, Some("z"))
        );
        let text = r#"{"alg":"ES256","typ":"at+JWT"}"#;
        assert_eq!(parsed(text, &plain.to_string()), Err("no client_id"));
        assert_eq!(
            with("aud", json!(["a", "b"])).unwrap().audiences,
            ["a", "b"]
        );
        assert_eq!(with("exp", json!(12.9)).unwrap().expires, 12);
    }

    #[test]
    fn times_have_a_minute_of_leeway_and_no_more() {
        let mut all = payload();
        all["nbf"] = json!(500);
        let claims = parsed(HEADER, &all.to_string()).unwrap();
        for (now, is_good) in [
            (439, false),
            (440, true),
            (999, true),
            (1059, true),
            (1060, false),
        ] {
            assert_eq!(claims.hold(now).is_ok(), is_good, "{now}");
        }
        all["exp"] = json!(u64::MAX);
        assert!(
            parsed(HEADER, &all.to_string())
                .unwrap()
                .hold(u64::MAX - 1)
                .is_ok()
        );
    }

    #[test]
    fn what_is_no_access_token_by_its_header_is_refused() {
        let good = payload().to_string();
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None"}"#,
            r#"{"alg":"HS256"}"#,
            r#"{"alg":"HS512","kid":"k"}"#,
            r#"{"alg":"es256"}"#,
            r#"{"alg":["ES256"]}"#,
            r#"{"kid":"k"}"#,
            r#"{"alg":"ES256","crit":["exp"],"exp":1}"#,
            r#"{"alg":"ES256","crit":[]}"#,
            r#"{"alg":"ES256","b64":false}"#,
            r#"{"alg":"ES256","zip":"DEF"}"#,
            r#"{"alg":"ES256","alg":"ES256"}"#,
            r#"{"alg":"ES256","\u0061lg":"none"}"#,
            r#"{"alg":"ES256","typ":"id_token+jwt"}"#,
            r#"{"alg":"ES256","typ":"dpop+jwt"}"#,
            r#"{"alg":"ES256","typ":"logout+jwt"}"#,
            r#"{"alg":"ES256","typ":1}"#,
            r#"{"alg":"ES256","kid":1}"#,
            r#"["ES256"]"#,
            "",
        ] {
            assert!(parsed(header, &good).is_err(), "{header}");
        }
    }

    #[test]
    fn what_is_no_access_token_by_its_claims_is_refused() {
        let good = payload().to_string();
        for header in [
            HEADER,
            r#"{"alg":"ES256","typ":"application/AT+jwt"}"#,
            r#"{"alg":"RS256","typ":"JWT","jku":"https://evil.test","jwk":{"kty":"EC"}}"#,
        ] {
            assert!(parsed(header, &good).is_ok(), "{header}");
        }
        for (name, value) in [
            ("iss", json!("https://issuer.test/")),
            ("iss", json!("https://ISSUER.test")),
            ("iss", json!(["https://issuer.test"])),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("aud", json!(7)),
            ("aud", json!(["a", 7])),
            ("exp", json!("1000")),
            ("exp", json!(-1)),
            ("nbf", json!("1")),
            ("nonce", json!("n")),
            ("at_hash", json!("h")),
            ("events", json!({})),
            ("typ", json!("ID")),
            ("typ", json!("Refresh")),
            ("token_use", json!("id")),
            ("scope", json!(["a"])),
            ("groups", json!({})),
            ("client_id", json!(5)),
        ] {
            let mut all = payload();
            all[name] = value.clone();
            assert!(parsed(HEADER, &all.to_string()).is_err(), "{name}: {value}");
        }
        for missing in ["iss", "sub", "aud", "exp"] {
            let mut all = payload();
            all.as_object_mut().unwrap().remove(missing);
            assert!(parsed(HEADER, &all.to_string()).is_err(), "{missing}");
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let good = payload().to_string();
        let twice = good.replacen('{', r#"{"sub":"eve","#, 1);
        let escaped = good.replacen('{', r#"{"s\u0075b":"eve","#, 1);
        let deep = good.replacen('{', r#"{"x":{"a":1,"a":2},"#, 1);
        for payload in [&twice, &escaped, &deep] {
            assert!(parsed(HEADER, payload).is_err(), "{payload}");
        }
        for text in ["", ".", "..", "a.b", "a.b.c.d", &"a".repeat(9000)] {
            assert!(Token::parse(text, (&settings()).into()).is_err(), "{text}");
        }
        let padded = format!("{}=.{}.c2ln", part(HEADER), part(&good));
        assert!(Token::parse(&padded, (&settings()).into()).is_err());
        let long = unsigned(
            HEADER,
            &good.replacen('{', &format!(r#"{{"x":"{}","#, "y".repeat(6100)), 1),
        );
        assert!(long.len() > TOKEN_MAX && Token::parse(&long, (&settings()).into()).is_err());
    }

    fn signed(alg: &str, kid: Option<&str>, key: &EncodingKey, by: Alg) -> String {
        let mut header = json!({"alg": alg});
        if let Some(kid) = kid {
            header["kid"] = kid.into();
        }
        let text = format!(
            "{}.{}",
            part(&header.to_string()),
            part(&payload().to_string())
        );
        let signature = crypto::sign(text.as_bytes(), key, by).unwrap();
        format!("{text}.{signature}")
    }

    fn check(set: &Value, text: &str) -> Signature {
        let set = KeySet::parse(set.to_string().as_bytes()).unwrap();
        set.check(&Token::parse(text, (&settings()).into()).unwrap().jws)
    }

    #[test]
    fn keys_decide_what_they_verify() {
        let random = SystemRandom::new();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let point =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref()).unwrap();
        let point = point.public_key().as_ref();
        let (x, y) = (
            URL_SAFE_NO_PAD.encode(&point[1..33]),
            URL_SAFE_NO_PAD.encode(&point[33..]),
        );
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let public = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
        let public = URL_SAFE_NO_PAD.encode(public.public_key().as_ref());
        let ec_key = EncodingKey::from_ec_der(ec.as_ref());
        let ed_key = EncodingKey::from_ed_der(ed.as_ref());
        let ec_jwk = json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "k", "use": "sig"});
        let ed_jwk =
            json!({"kty": "OKP", "crv": "Ed25519", "x": public, "kid": "e", "alg": "EdDSA"});
        let both =
            json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "o"}, ec_jwk, ed_jwk, {"kty": 5}]});
        let by = |text: &str| check(&both, text);
        let es = |kid| signed("ES256", kid, &ec_key, Alg::ES256);
        assert!(matches!(by(&es(Some("k"))), Signature::By(_)));
        assert!(matches!(by(&es(None)), Signature::By(_)));
        assert_eq!(
            by(&es(Some("e"))),
            Signature::Bad,
            "the key of another curve"
        );
        assert_eq!(by(&es(Some("x"))), Signature::NoKey);
        assert!(matches!(
            by(&signed("EdDSA", Some("e"), &ed_key, Alg::EdDSA)),
            Signature::By(_)
        ));
        assert_eq!(
            by(&signed("EdDSA", Some("k"), &ed_key, Alg::EdDSA)),
            Signature::Bad
        );
        let mut text = es(Some("k"));
        let last = if text.pop() == Some('A') { "Q" } else { "A" };
        assert_eq!(by(&(text + last)), Signature::Bad);
        for (name, value) in [
            ("use", json!("enc")),
            ("key_ops", json!(["sign"])),
            ("crv", json!("P-384")),
            ("alg", json!("ES384")),
        ] {
            let mut jwk = ec_jwk.clone();
            jwk[name] = value;
            let outcome = check(&json!({"keys": [jwk]}), &es(Some("k")));
            assert!(!matches!(outcome, Signature::By(_)), "{name}: {outcome:?}");
        }
    }

    #[test]
    fn rsa_keys_are_long_enough() {
        let pair = Rsa::generate(KeySize::Rsa2048).unwrap();
        let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        let pem = STANDARD.encode(der.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\n");
        let key = EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap();
        let public = pair.public_key();
        let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let n = public.modulus().big_endian_without_leading_zero().to_vec();
        let e = number(public.exponent().big_endian_without_leading_zero());
        let set = |n: &[u8]| json!({"keys": [{"kty": "RSA", "n": number(n), "e": e, "kid": "r"}]});
        for (name, alg) in [("RS256", Alg::RS256), ("PS512", Alg::PS512)] {
            let text = signed(name, Some("r"), &key, alg);
            assert!(matches!(check(&set(&n), &text), Signature::By(_)), "{name}");
            assert_eq!(check(&set(&n[1..]), &text), Signature::NoKey, "2040 bits");
        }
        let swapped = signed("RS256", Some("r"), &key, Alg::RS384);
        assert_eq!(check(&set(&n), &swapped), Signature::Bad);
    }
}

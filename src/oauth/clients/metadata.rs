//! Client metadata (RFC 7591, section 2): validation for registrations and client ID metadata
//! documents.
//!
//! Not here: lookup of clients (`client`).

use serde_json::{Map, Value, json};
use url::Url;

use super::redirect;
use crate::{
    auth::KeySet,
    declare::{PRIVATE_MEMBERS, redirect::check_redirect_uri},
};

/// The supported metadata of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientMetadata {
    /// Its redirect URIs; at least one.
    pub(crate) redirect_uris: Vec<String>,
    /// Its authentication method.
    pub(crate) method: ClientAuthMethod,
    /// Its name.
    pub(crate) name: Option<String>,
    /// Its home page; https.
    pub(crate) uri: Option<String>,
    /// Its public keys, for `private_key_jwt`.
    pub(crate) keys: Option<Keys>,
    /// Whether its access tokens are always bound to a key (RFC 9449, section 5.2).
    pub(crate) is_bound: bool,
    /// Metadata that is stored only to be returned.
    others: Map<String, Value>,
}

/// Client authentication methods (RFC 7591, section 2, `token_endpoint_auth_method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientAuthMethod {
    /// No authentication: a public client.
    None,
    /// A secret in the header `Authorization`.
    Basic,
    /// A secret in the form.
    Post,
    /// A JWT signed by the client (RFC 7523).
    Jwt,
}

impl ClientAuthMethod {
    /// All methods, in the order of the metadata document. Some clients that were not registered, among them those of
    /// the C# SDK, use the first, whether or not they have a secret: `none` would keep the secret back. Without a secret
    /// they then send an empty one, which counts as none.
    pub(crate) const ALL: [Self; 4] = [Self::Basic, Self::Post, Self::Jwt, Self::None];

    /// Its registered name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic => "client_secret_basic",
            Self::Post => "client_secret_post",
            Self::Jwt => "private_key_jwt",
        }
    }

    /// Reports whether the method uses a secret.
    pub(crate) const fn has_secret(self) -> bool {
        matches!(self, Self::Basic | Self::Post)
    }
}

/// The location of a client's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Inline: a JWK set in JSON.
    Inline(String),
    /// At a URL.
    Url(String),
}

/// The reason why metadata are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataError {
    /// An invalid redirect URI.
    RedirectUri(&'static str),
    /// Other invalid metadata.
    Metadata(&'static str),
}

impl ClientMetadata {
    /// Checks metadata; `default` is the method where none is named. Unknown members are ignored
    /// (RFC 7591, section 2).
    pub(crate) fn read(
        all: &Map<String, Value>,
        default: ClientAuthMethod,
    ) -> Result<Self, MetadataError> {
        let read = Self::read_stored(all, default)?;
        // Those that were stored before this bound remain clients, whose other keys are ignored.
        if let Some(Keys::Inline(set)) = &read.keys
            && !is_usable(KeySet::parse_of_anybody(set.as_bytes()))
        {
            return Err(NO_KEY);
        }
        Ok(read)
    }

    /// Checks the metadata of a registration, which every request of its client reads as a whole.
    pub(crate) fn read_registration(all: &Map<String, Value>) -> Result<Self, MetadataError> {
        let read = Self::read(all, ClientAuthMethod::Basic)?;
        let length: usize = read.redirect_uris.iter().map(String::len).sum();
        if length > URIS_LENGTH {
            let what = "redirect_uris have more than 8,192 bytes in all";
            return Err(MetadataError::RedirectUri(what));
        }
        Ok(read)
    }

    fn read_stored(
        all: &Map<String, Value>,
        default: ClientAuthMethod,
    ) -> Result<Self, MetadataError> {
        let redirect_uris = redirect_uris(all)?;
        let mut others = Map::new();
        let method = match text(all, "token_endpoint_auth_method", SHORT)? {
            None => default,
            Some(name) => ClientAuthMethod::ALL
                .into_iter()
                .find(|method| method.name() == name)
                .ok_or(MetadataError::Metadata(
                    "an authentication method not supported",
                ))?,
        };
        // Unsupported entries are dropped, but this one is required.
        check_list(all, "grant_types", "authorization_code")?;
        check_list(all, "response_types", "code")?;
        if let Some(kind) = application_type(all, &redirect_uris)? {
            others.insert("application_type".to_owned(), kind.into());
        }
        // Clients repeat the scopes of their server here, which may be any number. A server may replace any value
        // (RFC 7591, section 3.2.1), and what an authorization request may name does not depend on this one.
        if let Some(scope) = text(all, "scope", usize::MAX)?.filter(|scope| scope.len() <= LONG) {
            others.insert("scope".to_owned(), scope.into());
        }
        for name in ["software_id", "software_version"] {
            if let Some(text) = text(all, name, LONG)? {
                others.insert(name.to_owned(), text.into());
            }
        }
        for name in ["logo_uri", "policy_uri", "tos_uri"] {
            if let Some(uri) = page(all, name)? {
                others.insert(name.to_owned(), uri.into());
            }
        }
        let contacts = strings(all, "contacts")?;
        if !contacts.is_empty() {
            others.insert("contacts".to_owned(), contacts.into());
        }
        Ok(Self {
            redirect_uris,
            method,
            name: text(all, "client_name", SHORT)?.map(str::to_owned),
            uri: page(all, "client_uri")?.map(str::to_owned),
            keys: keys(all, method)?,
            is_bound: is_bound(all)?,
            others,
        })
    }

    /// Parses the output of [`Self::write`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all: Map<String, Value> = serde_json::from_str(text).ok()?;
        Self::read_stored(&all, ClientAuthMethod::Basic).ok()
    }

    /// All metadata, as stored and returned.
    pub(crate) fn write(&self) -> Map<String, Value> {
        let mut all = self.others.clone();
        let mut set = |name: &str, value: Value| all.insert(name.to_owned(), value);
        set("redirect_uris", json!(self.redirect_uris));
        set("token_endpoint_auth_method", self.method.name().into());
        set("grant_types", json!(GRANT_TYPES));
        set("response_types", json!(["code"]));
        if let Some(name) = &self.name {
            set("client_name", name.as_str().into());
        }
        if let Some(uri) = &self.uri {
            set("client_uri", uri.as_str().into());
        }
        if self.is_bound {
            set(BOUND, true.into());
        }
        match &self.keys {
            Some(Keys::Inline(set_)) => {
                set("jwks", serde_json::from_str(set_).unwrap_or_default());
            }
            Some(Keys::Url(url)) => {
                set("jwks_uri", url.as_str().into());
            }
            None => {}
        }
        all
    }
}

/// The metadata of clients whose tokens are always bound to a key.
const BOUND: &str = "dpop_bound_access_tokens";
/// The grant types of every client.
pub(crate) const GRANT_TYPES: [&str; 2] = ["authorization_code", "refresh_token"];
/// The grant type of clients that act for themselves, which an operator declares.
pub(crate) const CLIENT_CREDENTIALS: &str = "client_credentials";
/// The grant type of assertions (RFC 7523, section 2.1).
pub(crate) const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

fn is_bound(all: &Map<String, Value>) -> Result<bool, MetadataError> {
    match all.get(BOUND) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(MetadataError::Metadata(
            "dpop_bound_access_tokens is neither true nor false",
        )),
    }
}

fn redirect_uris(all: &Map<String, Value>) -> Result<Vec<String>, MetadataError> {
    let given = all.get("redirect_uris").and_then(Value::as_array);
    let given = given.ok_or(MetadataError::RedirectUri("redirect_uris is no list"))?;
    if given.is_empty() || given.len() > URIS_MAX {
        return Err(MetadataError::RedirectUri(
            "redirect_uris is empty or too long",
        ));
    }
    let mut uris = Vec::with_capacity(given.len());
    for uri in given {
        let uri = uri.as_str();
        let uri = uri.ok_or(MetadataError::RedirectUri("a redirect URI is no text"))?;
        check_redirect_uri(uri).map_err(MetadataError::RedirectUri)?;
        uris.push(uri.to_owned());
    }
    Ok(uris)
}

/// Checks `application_type` (OpenID Connect registration, section 2). Many local clients say
/// `web`; the response corrects them.
fn application_type(
    all: &Map<String, Value>,
    uris: &[String],
) -> Result<Option<&'static str>, MetadataError> {
    let is_native = |uri: &String| redirect::is_loopback(uri) || !uri.starts_with("https:");
    match text(all, "application_type", SHORT)? {
        None => Ok(None),
        Some("native") => Ok(Some("native")),
        Some("web") if uris.iter().all(is_native) => Ok(Some("native")),
        Some("web") => Ok(Some("web")),
        Some(_) => Err(MetadataError::Metadata(
            "application_type is neither web nor native",
        )),
    }
}

/// Requires `needed` in a list, if the list is present.
fn check_list(all: &Map<String, Value>, name: &str, needed: &str) -> Result<(), MetadataError> {
    let given = strings(all, name)?;
    if given.is_empty() || given.iter().any(|item| item == needed) {
        return Ok(());
    }
    Err(MetadataError::Metadata(
        "grant_types lacks authorization_code, or response_types lacks code",
    ))
}

/// Reads the keys from exactly one source (RFC 7591, section 2), and only for the method that uses
/// them.
fn keys(all: &Map<String, Value>, method: ClientAuthMethod) -> Result<Option<Keys>, MetadataError> {
    let at = page(all, "jwks_uri")?;
    // `page` drops plain http, as no client depends on its pages. It does on its keys.
    let is_plain = at.is_none() && text(all, "jwks_uri", LONG)?.is_some();
    let here = all.get("jwks").filter(|set| !set.is_null());
    match (here, at) {
        _ if method != ClientAuthMethod::Jwt => Ok(None),
        _ if is_plain => Err(MetadataError::Metadata("jwks_uri is not https")),
        (Some(set), None) if has_private_key(set) => {
            Err(MetadataError::Metadata("jwks has a private key"))
        }
        (Some(set), None) => {
            let text = set.to_string();
            let is_usable = text.len() <= JWKS_MAX && is_usable(KeySet::parse(text.as_bytes()));
            is_usable.then_some(Some(Keys::Inline(text))).ok_or(NO_KEY)
        }
        (None, Some(url)) => Ok(Some(Keys::Url(url.to_owned()))),
        _ => Err(MetadataError::Metadata(
            "private_key_jwt takes either jwks or jwks_uri",
        )),
    }
}

fn is_usable(set: Result<KeySet, &'static str>) -> bool {
    set.is_ok_and(|set| !set.is_empty())
}

/// Whether a key of the set has members that only its owner may know.
fn has_private_key(set: &Value) -> bool {
    let keys = set.get("keys").and_then(Value::as_array);
    let is_private = |key: &Value| PRIVATE_MEMBERS.iter().any(|name| key.get(name).is_some());
    keys.is_some_and(|keys| keys.iter().any(is_private))
}

/// Returns an optional text. Null and an empty text, which many clients send, count as absent.
fn text<'m>(
    all: &'m Map<String, Value>,
    name: &str,
    max: usize,
) -> Result<Option<&'m str>, MetadataError> {
    match all.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() > max => {
            Err(MetadataError::Metadata("a value is too long"))
        }
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(MetadataError::Metadata(
            "a value that has to be a text is none",
        )),
    }
}

/// Returns the URL of a page for people. Plain http is dropped, as RFC 7591, section 2 allows; any
/// other scheme is refused, because it could harm a person who opens the page.
fn page<'m>(all: &'m Map<String, Value>, name: &str) -> Result<Option<&'m str>, MetadataError> {
    let Some(text) = text(all, name, LONG)? else {
        return Ok(None);
    };
    let url = Url::parse(text).map_err(|_| MetadataError::Metadata("a URI is none"))?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    match url.scheme() {
        "https" if is_plain && url.username().is_empty() && url.password().is_none() => {
            Ok(Some(text))
        }
        "http" => Ok(None),
        _ => Err(MetadataError::Metadata("a URI of a page is not https")),
    }
}

fn strings(all: &Map<String, Value>, name: &str) -> Result<Vec<String>, MetadataError> {
    let wrong = MetadataError::Metadata("a list of texts is none, or too long");
    let items = match all.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= ITEMS_MAX => items,
        Some(_) => return Err(wrong),
    };
    let text = |item: &Value| {
        let text = item.as_str().filter(|text| text.len() <= SHORT);
        text.map(str::to_owned).ok_or(wrong)
    };
    items.iter().map(text).collect()
}

/// The refusal of keys by none of which a client can sign.
const NO_KEY: MetadataError =
    MetadataError::Metadata("jwks has no key that can be used, or is too long");
/// Maximum redirect URIs of a client: some list one for each possible port.
const URIS_MAX: usize = 64;
/// Maximum bytes of all redirect URIs of a registration: 64 of usual length.
const URIS_LENGTH: usize = 8 << 10;
/// Maximum members of other lists.
const ITEMS_MAX: usize = 32;
/// Maximum size of a name in bytes.
const SHORT: usize = 256;
/// Maximum size of a URL or a list of scopes in bytes.
const LONG: usize = 2048;
/// Maximum size of a key set in bytes.
const JWKS_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<ClientMetadata, MetadataError> {
        let Value::Object(all) = value else {
            panic!("an object");
        };
        ClientMetadata::read(&all, ClientAuthMethod::Basic)
    }

    fn with(name: &str, value: Value) -> Value {
        let mut all = json!({"redirect_uris": ["https://app.test/cb"]});
        all[name] = value;
        all
    }

    fn key() -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"})
    }

    #[test]
    fn metadata_are_stored_and_returned() {
        let all = json!({
            "redirect_uris": ["http://localhost:6274/cb", "cursor://x/cb"],
            "client_name": "Ada <b>", "client_uri": "https://app.test",
            "logo_uri": "https://app.test/l.png", "contacts": ["a@app.test"],
            "token_endpoint_auth_method": "none", "scope": "a b",
            "grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
            "response_types": ["code"], "software_id": "x", "software_version": "1",
            "application_type": "web", "unknown": {"deep": [1]}, "tos_uri": null, "policy_uri": "",
        });
        let read = read(all).unwrap();
        assert_eq!(read.method, ClientAuthMethod::None);
        let kept = read.write();
        assert_eq!(
            Value::Object(kept.clone()),
            json!({
                "redirect_uris": ["http://localhost:6274/cb", "cursor://x/cb"],
                "client_name": "Ada <b>", "client_uri": "https://app.test",
                "logo_uri": "https://app.test/l.png", "contacts": ["a@app.test"],
                "token_endpoint_auth_method": "none", "scope": "a b",
                "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
                "software_id": "x", "software_version": "1", "application_type": "native",
            })
        );
        let again = ClientMetadata::parse(&Value::Object(kept).to_string());
        assert_eq!(again, Some(read));
    }

    #[test]
    fn minimal_metadata_are_enough() {
        let read = read(json!({"redirect_uris": ["https://app.test/cb"]})).unwrap();
        assert_eq!(
            (read.method, read.name, read.keys),
            (ClientAuthMethod::Basic, None, None)
        );
    }

    #[test]
    fn invalid_metadata_are_refused() {
        let long = "a".repeat(3000);
        let many = vec!["https://app.test/cb"; 65];
        for uris in [
            json!(null),
            json!([]),
            json!("https://app.test/cb"),
            json!([1]),
            json!(["https://app.test/cb", "http://app.test/cb"]),
            json!(["https://app.test/cb#x"]),
            json!(["javascript:alert(1)"]),
            json!(["data:text/html,x"]),
            json!(["https://*.app.test/cb"]),
            json!(many),
        ] {
            let refused = read(with("redirect_uris", uris.clone()));
            assert!(
                matches!(refused, Err(MetadataError::RedirectUri(_))),
                "{uris}"
            );
        }
        for (name, value) in [
            ("token_endpoint_auth_method", json!("client_secret_jwt")),
            ("token_endpoint_auth_method", json!(1)),
            ("token_endpoint_auth_method", json!("private_key_jwt")),
            ("grant_types", json!(["implicit"])),
            ("grant_types", json!("authorization_code")),
            ("grant_types", json!([1])),
            ("response_types", json!(["token"])),
            ("application_type", json!("desktop")),
            ("client_name", json!({})),
            ("client_name", json!(long)),
            ("client_uri", json!("javascript:alert(1)")),
            ("client_uri", json!("no url")),
            ("client_uri", json!("https://u:p@app.test/")),
            ("client_uri", json!("https://app.test/\nx")),
            ("logo_uri", json!("data:image/png;base64,")),
            ("tos_uri", json!(7)),
            ("contacts", json!(vec!["a"; 33])),
            ("scope", json!(["a"])),
            ("software_id", json!(long)),
        ] {
            let refused = read(with(name, value.clone()));
            assert!(
                matches!(refused, Err(MetadataError::Metadata(_))),
                "{name}: {value}"
            );
        }
        let plain = read(with("client_uri", json!("http://localhost:3000"))).unwrap();
        assert_eq!(plain.uri, None);
    }

    /// A request of fifty bytes read and held sixty thousand of its client while the database was waited for.
    #[test]
    fn redirect_uris_of_a_registration_have_a_bound_in_all() {
        let of = |last: usize| {
            let mut uris = vec![format!("https://app.test/{}", "a".repeat(1024 - 17)); 7];
            uris.push(format!("https://app.test/{}", "a".repeat(last - 17)));
            with("redirect_uris", json!(uris))
        };
        let registered = |all: Value| ClientMetadata::read_registration(all.as_object().unwrap());
        assert!(registered(of(1024)).is_ok());
        let refused = registered(of(1025)).unwrap_err();
        assert!(matches!(refused, MetadataError::RedirectUri(_)));
        // One of before, and the document of a client, which has a bound of its own.
        assert!(ClientMetadata::parse(&of(1025).to_string()).is_some());
        assert!(read(of(1025)).is_ok());
    }

    #[test]
    fn a_scope_that_is_too_long_is_dropped() {
        for (length, is_kept) in [(LONG, true), (LONG + 1, false), (1 << 16, false)] {
            let given = json!("a".repeat(length));
            let kept = read(with("scope", given.clone())).unwrap().write();
            let wanted = is_kept.then_some(&given);
            assert_eq!(kept.get("scope"), wanted, "{length}");
        }
    }

    #[test]
    fn keys_come_from_one_source() {
        let private = || {
            let mut key = key();
            key["d"] = json!("AAAA");
            key
        };
        let jwt = |more: Value| {
            let mut all = with("token_endpoint_auth_method", json!("private_key_jwt"));
            all.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            read(all)
        };
        let here = jwt(json!({"jwks": {"keys": [key()]}})).unwrap();
        assert!(matches!(here.keys, Some(Keys::Inline(_))));
        let at = jwt(json!({"jwks_uri": "https://app.test/jwks"})).unwrap();
        assert_eq!(at.keys, Some(Keys::Url("https://app.test/jwks".to_owned())));
        let kept = Value::Object(here.write()).to_string();
        assert_eq!(ClientMetadata::parse(&kept), Some(here));
        // Of 8184 bits: it takes long to verify with, and anybody can register it.
        let long = json!({"kty": "RSA", "n": "q".repeat(1364), "e": "AQAB"});
        let old = with("token_endpoint_auth_method", json!("private_key_jwt"));
        let stored = |key: &Value| {
            let mut all = old.clone();
            all["jwks"] = json!({"keys": [key]});
            ClientMetadata::parse(&all.to_string())
        };
        assert!(stored(&long).is_some(), "a client of before");
        for more in [
            json!({}),
            json!({"jwks": {"keys": []}}),
            json!({"jwks": {"keys": [{"kty": "oct", "k": "AAAA"}]}}),
            json!({"jwks": {"keys": [key(), private()]}}),
            json!({"jwks": {"keys": [{"kty": "RSA", "n": "q".repeat(5336), "e": "AQAB"}]}}),
            json!({"jwks": {"keys": [long]}}),
            json!({"jwks": 1}),
            json!({"jwks": {"keys": [key()]}, "jwks_uri": "http://app.test/jwks"}),
            json!({"jwks": {"keys": [key()]}, "jwks_uri": "https://app.test/jwks"}),
        ] {
            assert!(jwt(more.clone()).is_err(), "{more}");
        }
        // It was told that it has to have either jwks or jwks_uri.
        let plain = json!({"jwks_uri": "http://app.test/jwks"});
        let why = MetadataError::Metadata("jwks_uri is not https");
        assert_eq!(jwt(plain).unwrap_err(), why);
        let unused = with("jwks_uri", json!("http://app.test/jwks"));
        assert_eq!(read(unused).unwrap().keys, None);
    }
}

//! Tests of `auth::builtin`.

use std::collections::{BTreeMap, HashMap};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

use super::*;
use crate::config::Format;
use crate::{
    declare::{
        Allow, AuthMode, Catalog, DeclaredClient, GroupsClaim, Provider, ProviderKind, PublicKey,
        TenantRevocations,
    },
    manifest::reader::parse,
};

const ISSUER: &str = "https://gw.test/t/a";
const RESOURCE: &str = "https://gw.test/t/a/x/mcp";
const NOW: u64 = 1_000_000;

/// A signing key of a tenant.
struct Key {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl Key {
    fn new(kid: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let x = pair.public_key().as_ref().try_into().unwrap();
        let kid = kid.to_owned();
        let public = PublicKey { kid, x };
        Self { pair, public }
    }

    fn sign_raw(&self, header: &str, payload: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", part(header), part(payload));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn sign_with(&self, header: &Value, payload: &Value) -> String {
        self.sign_raw(&header.to_string(), &payload.to_string())
    }

    fn sign(&self, payload: &Value) -> String {
        self.sign_with(&header(&self.public.kid), payload)
    }
}

fn header(kid: &str) -> Value {
    json!({"typ": "at+jwt", "alg": "EdDSA", "kid": kid})
}

fn claims(grant: Uuid) -> Value {
    json!({"iss": ISSUER, "sub": "ada", "aud": RESOURCE, "client_id": "c_app",
        "iat": NOW - 10, "exp": NOW + 890, "auth_time": NOW - 20, "jti": "1", "scope": "r w", "groups": ["said"],
        "grant": grant.to_string()})
}

fn user(name: &str, disabled: bool) -> (String, Arc<User>) {
    let user = User {
        name: name.to_owned(),
        password: None,
        groups: vec!["declared".to_owned()],
        admin: false,
        disabled,
    };
    (name.to_owned(), Arc::new(user))
}

fn provider(issuer: &str) -> Arc<Provider> {
    Arc::new(Provider {
        name: "corp".to_owned(),
        title: "Corp".to_owned(),
        kind: ProviderKind::OpenId {
            issuer: issuer.to_owned(),
            groups: GroupsClaim {
                name: "groups".to_owned(),
                map: None,
            },
            vouches: false,
        },
        client_id: "gw".to_owned(),
        client_secret: None,
        scopes: Vec::new(),
        authorization_parameters: BTreeMap::new(),
        exchange: Vec::new(),
        allow: Allow::default(),
    })
}

/// The authorization server of tenant `a`.
fn declared() -> Builtin {
    let client = DeclaredClient {
        is_machine: false,
        id: "desk".to_owned(),
        title: "Desk".to_owned(),
        redirect_uris: Vec::new(),
        secret: None,
        jwks: None,
        workload: None,
    };
    Builtin {
        users: [user("ada", false), user("eve", true)].into(),
        clients: [("desk".to_owned(), Arc::new(client))].into(),
        providers: [("corp".to_owned(), provider("https://idp.test"))].into(),
        documents: true,
        registration: true,
        ..Builtin::default()
    }
}

/// Tenants `a` and `b` with their servers; tenant `a` publishes `keys`.
fn catalog(builtin: Builtin, keys: &[&Key]) -> Catalog {
    let servers = "{auth: {mode: keys}, servers: {x: {command: cat}, y: {command: cat}, few: {command: cat, grants: {groups: [declared]}}}}";
    let text = format!("tenants: {{a: {servers}, b: {servers}}}");
    let read = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
    let mut catalog = read.catalog;
    let builtin = Arc::new(builtin);
    for tenant in catalog.tenants.values_mut() {
        let tenant = Arc::get_mut(tenant).unwrap();
        tenant.auth = AuthMode::Builtin(Arc::clone(&builtin));
    }
    catalog.issued = Arc::new(issued(keys));
    catalog
}

fn issued(keys: &[&Key]) -> Issued {
    let keys = keys.iter().map(|key| key.public.clone()).collect();
    Issued {
        keys: HashMap::from([("a".to_owned(), keys)]),
        revoked: HashMap::new(),
        secrets: Arc::default(),
        own_keys: HashMap::new(),
    }
}

async fn verified(
    tokens: &Tokens,
    catalog: &Catalog,
    text: &str,
    now: u64,
) -> Result<Arc<OwnToken>, &'static str> {
    let at = (&*catalog.tenants["a"], &*catalog.issued);
    let issuer = || (ISSUER.to_owned(), ISSUER.to_owned());
    let is_audience = |audience: &str| audience == RESOURCE;
    tokens.verify(at, issuer, text, now, is_audience).await
}

#[tokio::test]
async fn own_tokens_are_valid_until_they_expire() {
    let key = Key::new("k");
    let catalog = catalog(declared(), &[&key]);
    let grant = Uuid::now_v7();
    let text = key.sign(&claims(grant));
    let tokens = Tokens::new();
    for _ in 0..2 {
        let known = verified(&tokens, &catalog, &text, NOW).await.unwrap();
        let principal = &known.principal;
        assert_eq!(principal.issuer(), Some(ISSUER));
        assert_eq!(
            (principal.subject(), principal.client()),
            (Some("ada"), Some("c_app"))
        );
        assert_eq!(*known.claims.scopes, ["r".to_owned(), "w".to_owned()]);
        assert_eq!(known.basis, GrantBasis::of(grant, "k", NOW - 20));
    }
    let late = async |now| verified(&tokens, &catalog, &text, now).await.err();
    assert_eq!(late(NOW + 889).await, None);
    assert_eq!(late(NOW + 890).await, Some("expired"));
    let fresh = Tokens::new();
    let late = verified(&fresh, &catalog, &text, NOW + 890).await;
    assert_eq!(late.err(), Some("expired"));
    // A token that is valid for another tenant is not valid here.
    let at = (&*catalog.tenants["b"], &*catalog.issued);
    let foreign = tokens
        .verify(
            at,
            || (ISSUER.to_owned(), ISSUER.to_owned()),
            &text,
            NOW,
            |_| true,
        )
        .await;
    assert!(foreign.is_err());
}

#[tokio::test]
async fn removing_a_key_invalidates_its_tokens() {
    let (key, next) = (Key::new("k"), Key::new("n"));
    let text = key.sign(&claims(Uuid::now_v7()));
    let tokens = Tokens::new();
    let both = catalog(declared(), &[&next, &key]);
    assert!(verified(&tokens, &both, &text, NOW).await.is_ok());
    let gone = catalog(declared(), &[&next]);
    assert_eq!(
        verified(&tokens, &gone, &text, NOW).await.err(),
        Some("an unknown key")
    );
    // Another key with the same name does not help.
    let imitation = catalog(declared(), &[&Key::new("k")]);
    assert!(verified(&tokens, &imitation, &text, NOW).await.is_err());
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn forged_tokens_are_refused() {
    let (key, other) = (Key::new("k"), Key::new("k"));
    let catalog = catalog(declared(), &[&key, &Key::new("other")]);
    let good = claims(Uuid::now_v7());
    let with = |name: &str, value: Value| {
        let mut all = good.clone();
        all[name] = value;
        key.sign(&all)
    };
    let without = |name: &str| {
        let mut all = good.clone();
        all.as_object_mut().unwrap().remove(name);
        key.sign(&all)
    };
    let headed = |name: &str, value: Value| {
        let mut all = header("k");
        all[name] = value;
        key.sign_with(&all, &good)
    };
    let (plain, hmac) = (json!({"typ": "at+jwt", "alg": "none", "kid": "k"}), {
        let mut header = header("k");
        header["alg"] = json!("HS256");
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", part(&header.to_string()), part(&good.to_string()));
        let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key.public.x);
        let tag = aws_lc_rs::hmac::sign(&secret, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    });
    let unsigned = key.sign_with(&plain, &good);
    let (head, _) = unsigned.rsplit_once('.').unwrap();
    let twice = good.to_string().replacen('{', "{\"sub\":\"root\",", 1);
    let real = key.sign(&good);
    let (body, signature) = real.rsplit_once('.').unwrap();
    let padded = STANDARD.encode(URL_SAFE_NO_PAD.decode(signature).unwrap());
    let forged = [
        other.sign(&good),
        key.sign_with(&header("other"), &good),
        key.sign_with(&header("../k"), &good),
        key.sign_with(&header("k' OR '1'='1"), &good),
        format!("{head}."),
        unsigned.clone(),
        hmac,
        format!("{body}."),
        format!("{body}.{padded}"),
        format!("{real}A"),
        key.sign_raw(&header("k").to_string(), &twice),
        headed("typ", json!("JWT")),
        headed("typ", json!("application/at+jwt")),
        headed("typ", json!("id+jwt")),
        headed("typ", Value::Null),
        headed("alg", json!("Ed25519")),
        headed("alg", json!("RS256")),
        headed("kid", json!(["k"])),
        headed("crit", json!(["exp"])),
        headed("b64", json!(false)),
        headed("zip", json!("DEF")),
        key.sign_with(&json!({"typ": "at+jwt", "alg": "EdDSA"}), &good),
        with("iss", json!("https://gw.test/t/a/")),
        with("iss", json!("https://gw.test")),
        with("aud", json!("https://gw.test/t/a/y/mcp")),
        with("aud", json!([RESOURCE, "https://gw.test/t/a/y/mcp"])),
        with("aud", json!([])),
        with("grant", json!("x")),
        with("exp", json!("never")),
        with("nbf", json!(NOW + 61)),
        without("iss"),
        without("sub"),
        without("aud"),
        without("client_id"),
        without("exp"),
        without("iat"),
        without("grant"),
    ];
    let tokens = Tokens::new();
    for text in &forged {
        // A valid token, verified before, does not make a similar one valid.
        assert!(verified(&tokens, &catalog, &real, NOW).await.is_ok());
        let refused = verified(&tokens, &catalog, text, NOW).await;
        assert!(refused.is_err(), "{text}");
    }
    // Keys inside a token are ignored.
    for name in ["jku", "x5u", "jwk", "x5c"] {
        let mut brought = header("k");
        brought[name] = json!("https://evil.test/keys");
        assert!(
            verified(&tokens, &catalog, &key.sign_with(&brought, &good), NOW)
                .await
                .is_ok()
        );
        let stolen = other.sign_with(&brought, &good);
        assert!(verified(&tokens, &catalog, &stolen, NOW).await.is_err());
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
fn subject_client_and_grant_of_a_token_must_still_exist() {
    let (grant, other) = (Uuid::now_v7(), Uuid::now_v7());
    let basis = GrantBasis::of(grant, "k", 0);
    let said = Groups::Claimed(["said".to_owned()].into());
    let of = |builtin: &Builtin, issued: &Issued, subject: &str, client: &str| {
        let principal = Principal::new("a", Some(ISSUER), Some(subject), Some(client));
        let groups = groups(("a", builtin), issued, &principal, &basis, &said)?;
        Ok::<_, &str>(groups.join(" "))
    };
    let (none, builtin) = (Issued::default(), declared());
    let corp = "https://idp.test#42";
    for (subject, client, wanted) in [
        ("ada", "c_app", Ok("declared")),
        ("ada", "desk", Ok("declared")),
        ("ada", "https://app.test/client", Ok("declared")),
        ("ada", "table", Err("a client that is gone")),
        ("eve", "c_app", Err("a user that is gone or disabled")),
        ("bob", "c_app", Err("a user that is gone or disabled")),
        (corp, "c_app", Ok("said")),
        ("https://idp.test#4#2", "c_app", Ok("said")),
        (
            "https://idp.test/#42",
            "c_app",
            Err("of nobody whom a provider lets in"),
        ),
        ("#42", "c_app", Err("of nobody whom a provider lets in")),
    ] {
        let found = of(&builtin, &none, subject, client);
        assert_eq!(
            found.as_deref(),
            wanted.as_ref().copied(),
            "{subject} {client}"
        );
    }
    let mut narrowed = declared();
    let corps = Arc::get_mut(narrowed.providers.get_mut("corp").unwrap()).unwrap();
    corps.allow.groups = vec!["said".to_owned()];
    assert!(of(&narrowed, &none, corp, "c_app").is_ok());
    let corps = Arc::get_mut(narrowed.providers.get_mut("corp").unwrap()).unwrap();
    corps.allow.groups = vec!["others".to_owned()];
    assert!(of(&narrowed, &none, corp, "c_app").is_err());
    let closed = Builtin {
        documents: false,
        ..declared()
    };
    assert!(of(&closed, &none, "ada", "https://app.test/client").is_err());
    let revoked = |tenant: &str, grant, kid: &str| {
        let revoked = TenantRevocations {
            grants: HashMap::from([(grant, 1)]),
            keys: HashMap::from([(kid.to_owned(), 1)]),
            ..TenantRevocations::default()
        };
        Issued {
            revoked: HashMap::from([(tenant.to_owned(), Arc::new(revoked))]),
            ..Issued::default()
        }
    };
    for (issued, is_good) in [
        (revoked("a", other, "n"), true),
        (revoked("b", grant, "k"), true),
        (revoked("a", grant, "n"), false),
        (revoked("a", other, "k"), false),
    ] {
        assert_eq!(of(&builtin, &issued, "ada", "c_app").is_ok(), is_good);
    }
    // A session depends on every token that it was used with.
    let joined = GrantBasis::of(other, "n", 0).joined(&basis).unwrap();
    assert_eq!(joined.joined(&basis), None);
    let principal = Principal::new("a", Some(ISSUER), Some("ada"), Some("c_app"));
    for issued in [revoked("a", grant, "-"), revoked("a", Uuid::nil(), "n")] {
        let at = ("a", &builtin);
        assert!(groups(at, &issued, &principal, &joined, &said).is_err());
    }
}

/// The groups of an identity assertion were replaced for a day by what a log-in had told before.
#[test]
fn an_older_word_about_groups_does_not_replace_newer_claims() {
    let (builtin, subject) = (declared(), "https://idp.test#42");
    let principal = Principal::new("a", Some(ISSUER), Some(subject), Some("c_app"));
    let claimed = Groups::Claimed(["claimed".to_owned()].into());
    let told = |at_ms: i64| {
        let groups = (["told".to_owned()].into(), at_ms);
        let revoked = TenantRevocations {
            groups: HashMap::from([(subject.to_owned(), groups)]),
            ..TenantRevocations::default()
        };
        Issued {
            revoked: HashMap::from([("a".to_owned(), Arc::new(revoked))]),
            ..Issued::default()
        }
    };
    let grant = Uuid::now_v7();
    let basis = GrantBasis::of(grant, "k", 100);
    let of = |basis: &GrantBasis, at_ms: i64| {
        let groups = groups(("a", &builtin), &told(at_ms), &principal, basis, &claimed);
        groups.unwrap().join(" ")
    };
    assert_eq!(of(&basis, 99_999), "claimed");
    // The token has whole seconds: within one of them the word may be newer.
    for at_ms in [100_000, 100_999, 5_000_000] {
        assert_eq!(of(&basis, at_ms), "told", "{at_ms}");
    }
    // A replica of an older release does not say when.
    let asserted = GrantBasis::of_numbers(basis.numbers(), 0);
    assert_eq!(of(&asserted, 99_999), "told");
    let asserted = GrantBasis::of_numbers(basis.numbers(), basis.since_s());
    assert_eq!(of(&asserted, 99_999), "claimed");
    // The groups of a session are those of its first token.
    let newer = GrantBasis::of(Uuid::now_v7(), "k", 200);
    let joined = basis.joined(&newer).unwrap();
    assert_eq!(of(&joined, 150_000), "told");
}

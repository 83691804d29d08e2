//! Tests of `auth::jwt`.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa::{KeyPair as Rsa, KeySize},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm as Alg, EncodingKey, crypto};
use serde_json::json;

use super::super::jose::{KeySet, Signature, TOKEN_MAX};
use super::*;
use crate::declare::{ALGORITHMS, GroupsClaim};

fn settings() -> External {
    External {
        issuer: "https://issuer.test".to_owned(),
        algorithms: ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec(),
        groups: GroupsClaim {
            name: "groups".to_owned(),
            map: None,
        },
        scopes: Vec::new(),
        audiences: Vec::new(),
        scopes_claim: None,
        introspection: None,
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
    // As Okta and Microsoft Entra (v1.0) call the client.
    for name in ["cid", "appid"] {
        plain.as_object_mut().unwrap().remove("azp");
        plain[name] = json!(name);
        let claims = parsed(HEADER, &plain.to_string()).unwrap();
        assert_eq!(claims.client.as_deref(), Some("cid"));
    }
    let text = r#"{"alg":"ES256","typ":"at+JWT"}"#;
    assert_eq!(parsed(text, &plain.to_string()), Err("no client_id"));
    assert_eq!(
        with("aud", json!(["a", "b"])).unwrap().audiences,
        ["a", "b"]
    );
    assert_eq!(with("exp", json!(12.9)).unwrap().expires, 12);
}

/// Other texts, as many as this.
fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// An issuer repeated them for as long as its answer was, and each request looked at all of them.
#[test]
fn scopes_and_groups_count_once_and_have_a_bound() {
    let of = |settings: &External, scope: &str, groups: &[String]| {
        let mut said = payload();
        (said["scope"], said["groups"]) = (json!(scope), json!(groups));
        introspected(said.as_object().unwrap(), settings.into())
    };
    let mut settings = settings();
    let repeated = ["ops", "eng", "ops"].map(str::to_owned);
    let claims = of(&settings, "b a b", &repeated).unwrap();
    assert_eq!(&*claims.scopes, ["b", "a"]);
    assert_eq!(&*claims.groups, ["eng", "ops"]);
    for (count, is_good) in [(1000, true), (1001, false)] {
        let (scopes, groups) = (names(count).join(" "), names(count));
        assert_eq!(of(&settings, &scopes, &[]).is_ok(), is_good, "{count}");
        assert_eq!(of(&settings, "a", &groups).is_ok(), is_good, "{count}");
    }
    let long = "x".repeat((32 << 10) + 1);
    assert!(of(&settings, &long, &[]).is_err() && of(&settings, "a", &[long]).is_err());
    // Those that have no name here do not count, and several names may be of one group.
    let staff = ["1", "2"].map(|name| (name.to_owned(), "staff".to_owned()));
    settings.groups.map = Some(staff.into());
    let claims = of(&settings, "a", &names(2000)).unwrap();
    assert_eq!(&*claims.groups, ["staff"]);
}

/// What a cache keeps of a token is bounded by the bytes that its issuer put into it, wherever they are.
#[test]
fn each_claim_has_its_size() {
    let size = |payload: &Value| parsed(HEADER, &payload.to_string()).unwrap().size();
    let small = size(&payload());
    let long = "x".repeat(1000);
    for (name, value) in [
        ("sub", json!(long)),
        ("client_id", json!(long)),
        ("aud", json!(["a", long])),
        ("scope", json!(long)),
        ("groups", json!([long])),
        ("groups", json!(names(500))),
    ] {
        let mut large = payload();
        large[name] = value;
        assert!(size(&large) >= small + 900, "{name}");
    }
}

#[test]
fn claims_are_where_the_operator_says() {
    let mut all = payload();
    all["realm_access"] = json!({"roles": ["r", "s"]});
    all["https://a.test/groups"] = json!(["url"]);
    all["permissions"] = json!(["read", "write"]);
    let text = all.to_string();
    for (groups, scopes, wanted) in [
        ("realm_access.roles", Some("permissions"), "r s; read write"),
        ("https://a.test/groups", None, "url; a b"),
        ("realm_access.none", Some("scope"), "; a b"),
        ("realm_access.roles.r", Some("realm_access.none"), "; "),
        ("", Some("groups"), "; g"),
    ] {
        let mut settings = settings();
        settings.groups.name = groups.to_owned();
        settings.scopes_claim = scopes.map(str::to_owned);
        let token = unsigned(HEADER, &text);
        let claims = Token::parse(&token, (&settings).into()).unwrap().claims;
        let found = format!("{}; {}", claims.groups.join(" "), claims.scopes.join(" "));
        assert_eq!(found, wanted, "{groups}");
    }
    let mut settings = settings();
    settings.scopes_claim = Some("realm_access".to_owned());
    let token = unsigned(HEADER, &text);
    assert!(
        Token::parse(&token, (&settings).into()).is_err(),
        "an object is no list of scopes"
    );
}

#[test]
fn times_of_another_issuer_have_a_minute_of_leeway_and_no_more() {
    let mut all = payload();
    all["nbf"] = json!(500);
    let claims = parsed(HEADER, &all.to_string()).unwrap();
    for (now, of_another, of_ours) in [
        (439, false, false),
        (440, true, false),
        (499, true, false),
        (500, true, true),
        (999, true, true),
        (1000, true, false),
        (1059, true, false),
        (1060, false, false),
    ] {
        let is_good = |issued| claims.check_validity(now, issued).is_ok();
        assert_eq!(is_good(IssuedBy::Another), of_another, "{now}");
        assert_eq!(is_good(IssuedBy::Us), of_ours, "{now}");
    }
    for (issued, life) in [(IssuedBy::Another, 70), (IssuedBy::Us, 10)] {
        assert_eq!(claims.life(990, issued).as_secs(), life);
    }
    all["exp"] = json!(u64::MAX);
    assert!(
        parsed(HEADER, &all.to_string())
            .unwrap()
            .check_validity(u64::MAX - 1, IssuedBy::Another)
            .is_ok()
    );
}

#[test]
fn other_token_types_in_the_header_are_refused() {
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
fn other_token_types_in_the_claims_are_refused() {
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
        ("sub", json!("a\0b")),
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
fn ambiguous_json_is_refused() {
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
fn keys_determine_their_algorithms() {
    let random = SystemRandom::new();
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let point = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref()).unwrap();
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
    let ed_jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": public, "kid": "e", "alg": "EdDSA"});
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

/// As a tree they take many times their length, and anybody can send them.
#[test]
fn a_token_has_few_objects_and_lists() {
    let with = |value: Value| {
        let mut all = payload();
        all["x"] = value;
        parsed(HEADER, &all.to_string()).map(drop)
    };
    let many = "no JSON object, a name twice, or too many objects and lists";
    for item in [json!({}), json!([])] {
        // The payload is one, and has one in `groups` and one in `x`.
        assert_eq!(with(vec![item.clone(); 509].into()), Ok(()), "{item}");
        assert_eq!(with(vec![item.clone(); 510].into()), Err(many), "{item}");
    }
}

/// While keys are fetched, nothing of a token is kept but its text.
#[test]
fn claims_are_parsed_again() {
    let text = unsigned(HEADER, &payload().to_string());
    let jws = Token::parse(&text, (&settings()).into()).unwrap().jws;
    assert_eq!(jws.claims().map(Value::Object), Ok(payload()));
}

#[test]
fn short_rsa_keys_are_ignored() {
    let pair = Rsa::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    // PKCS #8 is a header followed by PKCS #1; for this key size the header has a fixed length.
    let key = EncodingKey::from_rsa_der(&der.as_ref()[26..]);
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
    // A signature for the exponent 1 is the padded digest itself.
    let exponents: &[(&[u8], bool)] = &[
        (&[3], true),
        (&[0, 1, 0, 1], true),
        (&[1, 0xff, 0xff, 0xff, 0xff], true),
        (&[2, 0, 0, 0, 1], false),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 3], false),
        (&[1, 0, 0], false),
        (&[1], false),
        (&[0], false),
        (&[], false),
    ];
    for (e, is_key) in exponents {
        let jwk = json!({"keys": [{"kty": "RSA", "n": number(&n), "e": number(e)}]});
        let keys = KeySet::parse(jwk.to_string().as_bytes());
        assert_eq!(keys.is_ok_and(|keys| !keys.is_empty()), *is_key, "{e:?}");
    }
}

/// A client could register a key by which no signature is ever good.
#[test]
fn long_rsa_keys_are_ignored() {
    for (size, is_key) in [(1024, true), (1025, false), (4000, false)] {
        let n = URL_SAFE_NO_PAD.encode(vec![0xab; size]);
        let jwk = json!({"keys": [{"kty": "RSA", "n": n, "e": "AQAB"}]});
        let keys = KeySet::parse(jwk.to_string().as_bytes());
        assert_eq!(keys.is_ok_and(|keys| !keys.is_empty()), is_key, "{size}");
    }
}

/// One assertion of a client that anybody may register was tried with eight keys of 8192 bits.
#[test]
fn keys_of_anybody_are_small_and_few_are_tried() {
    let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let is_key = |size: usize, e: &[u8]| {
        let jwk = json!({"kty": "RSA", "n": number(&vec![0xab; size]), "e": number(e)});
        let set = json!({"keys": [jwk]}).to_string();
        let [anybody, trusted] = [KeySet::parse_of_anybody, KeySet::parse]
            .map(|parse| parse(set.as_bytes()).is_ok_and(|keys| !keys.is_empty()));
        assert!(trusted, "{size} {e:?}");
        anybody
    };
    assert!(is_key(512, &[1, 0, 1]));
    assert!(!is_key(513, &[1, 0, 1]));
    assert!(!is_key(512, &[1, 0, 3]));
    let random = SystemRandom::new();
    let pair = || Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let jwk = |pair: &[u8]| {
        let public = Ed25519KeyPair::from_pkcs8(pair).unwrap();
        json!({"kty": "OKP", "crv": "Ed25519", "x": number(public.public_key().as_ref())})
    };
    let own = pair();
    let text = signed(
        "EdDSA",
        None,
        &EncodingKey::from_ed_der(own.as_ref()),
        Alg::EdDSA,
    );
    let jws = Token::parse(&text, (&settings()).into()).unwrap().jws;
    for (others, is_tried) in [(1, true), (2, false)] {
        let mut keys: Vec<Value> = (0..others).map(|_| jwk(pair().as_ref())).collect();
        keys.push(jwk(own.as_ref()));
        let set = json!({"keys": keys}).to_string();
        let by = |set: Result<KeySet, &str>| matches!(set.unwrap().check(&jws), Signature::By(_));
        assert_eq!(by(KeySet::parse_of_anybody(set.as_bytes())), is_tried);
        assert!(by(KeySet::parse(set.as_bytes())));
    }
}

#[test]
fn what_an_issuer_says_of_an_opaque_token() {
    let of = |said: Value| {
        let said = said.as_object().cloned().unwrap();
        introspected(&said, (&settings()).into())
    };
    let full = of(
        json!({"active": true, "iss": "https://issuer.test", "sub": "ada", "client_id": "app",
        "aud": ["a", "b"], "exp": 100, "scope": "x y", "groups": ["g"]}),
    );
    let full = full.unwrap();
    assert_eq!(
        (&*full.subject, full.client.as_deref()),
        ("ada", Some("app"))
    );
    assert_eq!(
        (full.audiences, &*full.scopes),
        (
            vec!["a".to_owned(), "b".to_owned()],
            &["x".to_owned(), "y".to_owned()][..]
        )
    );
    assert_eq!(full.expires, 100);
    let machine = of(json!({"active": true, "client_id": "app", "aud": "a"})).unwrap();
    assert_eq!(
        (&*machine.subject, machine.client.as_deref()),
        ("app", Some("app"))
    );
    assert!(machine.check_validity(u64::MAX - 1, IssuedBy::Us).is_ok());
    for (said, why) in [
        (json!({"active": true, "aud": "a"}), "no sub"),
        (json!({"active": true, "sub": "ada"}), "no aud"),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "iss": "https://other.test"}),
            "another issuer",
        ),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "iss": 1}),
            "a member that is no text",
        ),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "cnf": {"jkt": "x"}}),
            "a token that is bound to what cannot be proved here",
        ),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "token_type": "DPoP"}),
            "a token that is no access token",
        ),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "token_type": "refresh_token"}),
            "a token that is no access token",
        ),
        (
            json!({"active": true, "sub": "ada", "aud": "a", "token_type": "Bearer", "typ": "Refresh"}),
            "a token that is no access token",
        ),
    ] {
        assert_eq!(of(said), Err(why));
    }
}

/// RFC 7800, RFC 8705 and RFC 9449, section 6: what the holder of a token has to prove.
#[test]
fn tokens_are_bound_to_a_key_or_refused() {
    let jkt = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I";
    let key = Thumbprint::parse(jkt).unwrap();
    let of = |cnf: Value| {
        let mut payload = payload();
        payload["cnf"] = cnf;
        parsed(r#"{"alg":"ES256","typ":"at+jwt"}"#, &payload.to_string())
    };
    assert_eq!(of(json!({"jkt": jkt})).unwrap().holder, Some(key));
    for cnf in [
        Value::Null,
        json!({}),
        json!(jkt),
        json!({"jkt": 1}),
        json!({"jkt": "x"}),
        json!({"jkt": format!("{jkt}=")}),
        json!({"x5t#S256": jkt}),
        json!({"jkt": jkt, "x5t#S256": jkt}),
        json!({"jwk": {"kty": "EC"}}),
        json!({"kid": "k"}),
    ] {
        let why = "a token that is bound to what cannot be proved here";
        assert_eq!(of(cnf.clone()).unwrap_err(), why, "{cnf}");
    }
    // Keycloak says so in the payload too, and in the answer to introspection.
    let mut bound = payload();
    bound["typ"] = json!("DPoP");
    let header = r#"{"alg":"ES256","typ":"JWT"}"#;
    assert!(parsed(header, &bound.to_string()).is_err());
    bound["cnf"] = json!({"jkt": jkt});
    assert_eq!(
        parsed(header, &bound.to_string()).unwrap().holder,
        Some(key)
    );
    let said = json!({"active": true, "sub": "ada", "aud": "a", "token_type": "DPoP",
        "cnf": {"jkt": jkt}});
    let said = introspected(said.as_object().unwrap(), (&settings()).into());
    assert_eq!(said.unwrap().holder, Some(key));
}

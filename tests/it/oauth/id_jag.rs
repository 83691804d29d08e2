//! Identity assertions (ID-JAG): the provider of a person lets a client act for that person.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    support::{
        dpop::Prover,
        harness::{NEWEST, Session, child, client, json_of, until, within},
        issuer::{Issuer, Key, now},
        oauth_client::{Answer, App, SECRET, basic, post_proved, post_with, said, send},
        pair::Pair,
        served::Served,
    },
};

/// The grant type.
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

fn config() -> Value {
    json!({"outbound": {"allow": ["127.0.0.0/8"]}, "oauth": {"failures": 1000}})
}

/// Tenant `a`, whose provider corp vouches for the groups eng and ops; at tenant `b` the same provider only logs
/// people in. eng may have files:read of server x, ops everything of it, and nobody has z.
fn tenants(issuer: &str) -> Value {
    let policy = json!({"scopes": {"env": ["files:write"], "received": ["files:read"]},
        "implies": {"files:write": ["files:read"]}});
    let tenant = |is_vouching: bool| {
        json!({
            "auth": {"mode": "builtin"},
            "default_server": "x",
            "providers": {"corp": {"issuer": issuer, "client_id": "lockgate", "id_jag": is_vouching,
                "allow": {"groups": ["eng", "ops"]}}},
            "clients": {
                "app": {"secret": SECRET, "redirect_uris": ["https://app.test/cb"]},
                "other": {"secret": SECRET, "redirect_uris": ["https://app.test/cb"]},
                "third": {"secret": SECRET, "redirect_uris": ["https://app.test/cb"]},
                "open": {"redirect_uris": ["https://app.test/cb"]},
            },
            "servers": {
                "x": {"command": child(), "policy": policy,
                    "grants": {"groups": {"eng": ["files:read"], "ops": ["*"]}}},
                "y": {"command": child(), "policy": policy},
                "z": {"command": child(), "grants": {"users": ["ada"]}},
            },
        })
    };
    json!({"a": tenant(true), "b": tenant(false)})
}

async fn metadata(gateway: &Served, tenant: &str) -> Value {
    let place = "/.well-known/oauth-authorization-server";
    let url = format!("{}{place}/t/{tenant}", gateway.origin());
    json_of(client().get(url).send().await.unwrap()).await
}

async fn issuer_of(gateway: &Served) -> String {
    metadata(gateway, "a").await["issuer"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The claims of an assertion for ada of eng and the client app at server x of the issuer `ours`, with these changed;
/// null leaves one out.
fn claims(issuer: &Issuer, ours: &str, changed: &[(&str, Value)]) -> Value {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let id = LAST.fetch_add(1, Ordering::Relaxed);
    let mut claims = json!({"iss": issuer.url, "sub": "ada", "aud": ours, "client_id": "app",
        "resource": format!("{ours}/x/mcp"), "scope": "files:read files:write", "groups": ["eng"],
        "iat": now(), "exp": now() + 300, "jti": format!("assertion {id}")});
    for (name, value) in changed {
        claims[*name] = value.clone();
    }
    claims
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    claims
}

fn signed(key: &Key, claims: &Value) -> String {
    let header = json!({"alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": key.kid});
    key.sign_as(&header.to_string(), &claims.to_string())
}

/// The answer to an assertion of the client app.
async fn asked(gateway: &Served, assertion: &str, more: &[(&str, &str)]) -> Answer {
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let own = [("grant_type", JWT_BEARER), ("assertion", assertion)];
    post_with(
        &url,
        &[&own[..], more].concat(),
        Some(&basic("app", SECRET)),
    )
    .await
}

/// Whether a server lets a token in; a request without a session is then its client's mistake.
async fn is_good(gateway: &Served, server: &str, token: &str) -> bool {
    let url = format!("{}/t/a/{server}/mcp", gateway.origin());
    let asked = client().get(url).bearer_auth(token);
    let asked = asked.header("Accept", "text/event-stream").send();
    let status = within("a status", asked).await.unwrap().status();
    status == StatusCode::BAD_REQUEST
}

#[expect(clippy::too_many_lines, reason = "one story")]
async fn people_are_vouched_for(replicas: [&Served; 2], issuer: &Issuer, key: &Key) {
    let [first, last] = replicas;
    let (vouched, other) = (metadata(first, "a").await, metadata(first, "b").await);
    let types = json!(["authorization_code", "refresh_token", JWT_BEARER]);
    assert_eq!(vouched["grant_types_supported"], types);
    let profiles = json!(["urn:ietf:params:oauth:grant-profile:id-jag"]);
    assert_eq!(vouched["authorization_grant_profiles_supported"], profiles);
    assert_eq!(other.get("authorization_grant_profiles_supported"), None);
    let ours = issuer_of(first).await;
    let assertion = signed(key, &claims(issuer, &ours, &[]));
    let answer = asked(first, &assertion, &[]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.assert_not_kept();
    assert_eq!(answer.text("scope"), "files:read", "what eng may have");
    assert_eq!(answer.body.get("refresh_token"), None);
    let access = answer.text("access_token");
    let token = said(&access).1;
    let subject = format!("{}#ada", issuer.url);
    for (name, wanted) in [
        ("sub", json!(subject)),
        ("client_id", json!("app")),
        ("aud", json!(format!("{ours}/x/mcp"))),
        ("groups", json!(["eng"])),
    ] {
        assert_eq!(token[name], wanted);
    }
    // Once, at whichever replica.
    for replica in replicas {
        let again = asked(replica, &assertion, &[]).await;
        again.assert_refused(400, "invalid_grant");
        assert_eq!(
            again.text("error_description"),
            "the assertion was used before"
        );
    }
    // It is the principal of a log-in there: its sessions go on with the next token.
    let mut session = Session::at(bearer(&access), format!("{}/t/a/x/mcp", last.origin()));
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let next = signed(key, &claims(issuer, &ours, &[("groups", json!(["ops"]))]));
    let next = asked(last, &next, &[("scope", "files:read")]).await;
    assert_eq!(next.text("scope"), "files:read");
    assert!(is_good(first, "x", &next.text("access_token")).await);
    // An operator sees it, and ends all of the person's access; an assertion of before is worth nothing then.
    let operator = first.administrator();
    let api = |path: &str| format!("{}/api/v1/tenants/a{path}", first.origin());
    let kept = signed(key, &claims(issuer, &ours, &[]));
    let audit = format!("{}/api/v1/audit?tenant=a", first.origin());
    until("a record", async || {
        let found = send(Method::GET, &audit, &operator, None).await;
        let items = found.body["items"].as_array().cloned().unwrap_or_default();
        let is_it = |item: &Value| item["kind"] == "login" && item["actor"] == json!(subject);
        items.iter().any(is_it)
    })
    .await;
    let revoked = json!({"subject": subject});
    let revoked = send(
        Method::POST,
        &api("/revocations"),
        &operator,
        Some(&revoked),
    )
    .await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    for replica in replicas {
        until("a revoked person", async || {
            !is_good(replica, "x", &access).await
        })
        .await;
    }
    asked(last, &kept, &[])
        .await
        .assert_refused(400, "invalid_grant");
    // Whoever the provider vouches for anew comes in.
    let access = RefCell::default();
    until("a new second", async || {
        let anew = signed(key, &claims(issuer, &ours, &[]));
        let answer = asked(last, &anew, &[]).await;
        let is_in = answer.status == StatusCode::OK;
        if is_in {
            access.replace(answer.text("access_token"));
        }
        is_in
    })
    .await;
    let access = access.take();
    assert!(is_good(first, "x", &access).await);
    // A provider that vouches no longer gives no new tokens; one that is gone ends those that it gave.
    let mut spec = send(Method::GET, &api("/providers/corp"), &operator, None)
        .await
        .body["spec"]
        .take();
    spec["id_jag"] = json!(false);
    let put = send(Method::PUT, &api("/providers/corp"), &operator, Some(&spec)).await;
    assert!(put.status.is_success(), "{}", put.body);
    until("no assertions", async || {
        let late = signed(key, &claims(issuer, &ours, &[]));
        asked(last, &late, &[]).await.body["error"] == "unsupported_grant_type"
    })
    .await;
    let gone = send(Method::DELETE, &api("/providers/corp"), &operator, None).await;
    assert!(gone.status.is_success(), "{}", gone.body);
    for replica in replicas {
        until("a removed provider", async || {
            !is_good(replica, "x", &access).await
        })
        .await;
    }
}

#[tokio::test]
async fn a_provider_vouches_for_people_on_sqlite() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url)).await;
    people_are_vouched_for([&gateway, &gateway], &issuer, &key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_vouches_for_people_on_two_replicas() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let pair = Pair::of(config(), tenants(&issuer.url)).await;
    people_are_vouched_for(pair.both(), &issuer, &key).await;
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[tokio::test]
async fn every_check_of_an_identity_assertion_is_made() {
    let (key, stranger) = (Key::new("k"), Key::new("k"));
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url)).await;
    let ours = issuer_of(&gateway).await;
    let of = |changed: &[(&str, Value)]| claims(&issuer, &ours, changed);
    let (grant, scope, target) = ("invalid_grant", "invalid_scope", "invalid_target");
    let (x, y, z) = (
        format!("{ours}/x/mcp"),
        format!("{ours}/y/mcp"),
        format!("{ours}/z/mcp"),
    );
    for (changed, more, error) in [
        (vec![("client_id", json!("other"))], vec![], grant),
        (vec![("aud", json!("https://other.test"))], vec![], grant),
        (
            vec![("aud", json!(format!("{}/t/b", gateway.origin())))],
            vec![],
            grant,
        ),
        (
            vec![("aud", json!([ours, "https://other.test"]))],
            vec![],
            grant,
        ),
        (vec![("aud", json!(x))], vec![], grant),
        (
            vec![("iss", json!(format!("{}/", issuer.url)))],
            vec![],
            grant,
        ),
        (vec![("sub", json!(""))], vec![], grant),
        (vec![("jti", Value::Null)], vec![], grant),
        (vec![("resource", Value::Null)], vec![], grant),
        (vec![("exp", json!(now() - 120))], vec![], grant),
        (vec![("exp", json!(now() + 2 * 3600))], vec![], grant),
        (vec![("iat", json!(now() - 7100))], vec![], grant),
        (vec![("groups", json!(["sales"]))], vec![], grant),
        (vec![("groups", Value::Null)], vec![], grant),
        (vec![("resource", json!(z))], vec![], target),
        (
            vec![("resource", json!("https://other.test/mcp"))],
            vec![],
            target,
        ),
        (vec![("resource", json!([x, y]))], vec![], target),
        (vec![], vec![("resource", y.as_str())], target),
        (vec![("scope", json!("files:write"))], vec![], scope),
        (vec![("scope", json!("unknown"))], vec![], scope),
        (
            vec![("groups", json!(["ops"])), ("scope", json!("files:read"))],
            vec![("scope", "files:write")],
            scope,
        ),
        (vec![], vec![("scope", "files:write")], scope),
    ] {
        let answer = asked(&gateway, &signed(&key, &of(&changed)), &more).await;
        let got = (answer.status, answer.body["error"].as_str());
        assert_eq!(
            got,
            (StatusCode::BAD_REQUEST, Some(error)),
            "{changed:?} {more:?} {}",
            answer.body
        );
    }
    // What is granted is what the provider, the client and the person's groups have in common.
    let ops = ("groups", json!(["ops"]));
    for (changed, more, wanted) in [
        (vec![], vec![], "files:read"),
        (vec![ops.clone()], vec![], "files:read files:write"),
        (
            vec![ops.clone(), ("scope", json!("files:write"))],
            vec![("scope", "files:read")],
            "files:read",
        ),
        (
            vec![ops.clone()],
            vec![("scope", "files:write unknown")],
            "files:write",
        ),
        (
            vec![("scope", Value::Null)],
            vec![("scope", "files:read files:write")],
            "files:read",
        ),
        (
            vec![("resource", json!([x, y]))],
            vec![("resource", x.as_str())],
            "files:read",
        ),
        (
            vec![("aud", json!([format!("{ours}/")]))],
            vec![],
            "files:read",
        ),
    ] {
        let answer = asked(&gateway, &signed(&key, &of(&changed)), &more).await;
        assert_eq!(
            answer.body["scope"], wanted,
            "{changed:?} {more:?} {}",
            answer.body
        );
    }
    let forged = asked(&gateway, &signed(&stranger, &of(&[])), &[]).await;
    forged.assert_refused(400, "invalid_grant");
    // The client has to prove itself, and a public one cannot.
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let assertion = signed(&key, &of(&[("client_id", json!("open"))]));
    let fields = [("grant_type", JWT_BEARER), ("assertion", &assertion)];
    let nobody = post_with(&url, &fields, None).await;
    nobody.assert_refused(400, "invalid_request");
    let wrong = post_with(
        &url,
        &fields,
        Some(&basic("app", "another secret of that length")),
    )
    .await;
    wrong.assert_refused(401, "invalid_client");
    let open = App::of(&gateway, "a", "open").ask(&fields).await;
    open.assert_refused(400, "unauthorized_client");
    let taken = post_with(&url, &fields, Some(&basic("other", SECRET))).await;
    taken.assert_refused(400, "invalid_grant");
    // The provider logs people in at the other tenant, and does not vouch for them there.
    let there = format!("{}/t/b/oauth/token", gateway.origin());
    let fields = [
        ("grant_type", JWT_BEARER),
        ("assertion", &signed(&key, &of(&[]))),
    ];
    let there = post_with(&there, &fields, Some(&basic("app", SECRET))).await;
    there.assert_refused(400, "unsupported_grant_type");
    // An ID token of the provider is no such assertion.
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": "k"}).to_string();
    let id_token = key.sign_as(&header, &of(&[]).to_string());
    let answer = asked(&gateway, &id_token, &[]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    // Operators see each attempt with its person.
    let logins = format!("{}/api/v1/tenants/a/logins", gateway.origin());
    until("steps", async || {
        let kept = send(Method::GET, &logins, &gateway.administrator(), None).await;
        let kept = kept.body.to_string();
        kept.contains("token_issued") && kept.contains("client_id is other")
    })
    .await;
}

/// The assertions of all people of a service come from its address. One whom the tenant did not let in ended the access of
/// all others.
#[tokio::test]
async fn people_who_are_not_let_in_keep_no_others_of_a_service_out() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let mut config = config();
    config["oauth"]["failures"] = json!(3);
    let gateway = Served::start(config, tenants(&issuer.url)).await;
    let ours = issuer_of(&gateway).await;
    let of = |changed: &[(&str, Value)]| signed(&key, &claims(&issuer, &ours, changed));
    let refused = async || {
        let sales = of(&[("groups", json!(["sales"]))]);
        asked(&gateway, &sales, &[]).await
    };
    for _ in 0..10 {
        refused().await.assert_refused(400, "invalid_grant");
    }
    // A client may repeat a request whose answer was lost.
    let other = of(&[("sub", json!("eve"))]);
    let first = asked(&gateway, &other, &[]).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.body);
    for _ in 0..10 {
        let again = asked(&gateway, &other, &[]).await;
        again.assert_refused(400, "invalid_grant");
    }
    let next = asked(&gateway, &of(&[("sub", json!("eve"))]), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    // Those of one person do not come for ever.
    for _ in 0..3 {
        refused().await.assert_refused(400, "invalid_grant");
    }
    let late = refused().await;
    late.assert_refused(429, "temporarily_unavailable");
}

/// They were bounded for each client alone, of which anybody registers as many as they like.
#[tokio::test]
async fn a_person_gets_600_tokens_a_minute_by_assertions() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url)).await;
    let ours = issuer_of(&gateway).await;
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let ask = |client: &'static str, person: &'static str| {
        let of = [("client_id", json!(client)), ("sub", json!(person))];
        let (url, assertion) = (&url, signed(&key, &claims(&issuer, &ours, &of)));
        async move {
            let fields = [
                ("grant_type", JWT_BEARER),
                ("assertion", assertion.as_str()),
            ];
            post_with(url, &fields, Some(&basic(client, SECRET))).await
        }
    };
    for client in ["app", "other"] {
        for _ in 0..30 {
            for answer in join_all((0..10).map(|_| ask(client, "ada"))).await {
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
            }
        }
    }
    let late = ask("third", "ada").await;
    late.assert_refused(429, "temporarily_unavailable");
    let other = ask("third", "eve").await;
    assert_eq!(other.status, StatusCode::OK, "{}", other.body);
}

/// RFC 9449, section 6: whoever has found the assertion of a client with a key gets nothing for it.
#[tokio::test]
async fn an_assertion_of_a_key_is_good_with_its_proof_alone() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url)).await;
    let ours = issuer_of(&gateway).await;
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let (own, other) = (Prover::new(), Prover::new());
    let of = |confirmation: Value| signed(&key, &claims(&issuer, &ours, &[("cnf", confirmation)]));
    let ask = async |assertion: &str, proof: Option<&Prover>| {
        let fields = [("grant_type", JWT_BEARER), ("assertion", assertion)];
        let by = basic("app", SECRET);
        let answer = post_proved(&url, &fields, Some(&by), proof).await;
        (answer.status, answer.body)
    };
    let jkt = own.thumbprint();
    let bound = of(json!({"jkt": jkt}));
    // None of the refusals uses the assertion up.
    for (assertion, proof, error) in [
        (&bound, None, "invalid_dpop_proof"),
        (&bound, Some(&other), "invalid_grant"),
        (&of(json!({"x5t#S256": jkt})), Some(&own), "invalid_grant"),
        (
            &of(json!({"jkt": jkt, "kid": "k"})),
            Some(&own),
            "invalid_grant",
        ),
    ] {
        let (status, body) = ask(assertion, proof).await;
        assert_eq!(
            (status, &body["error"]),
            (StatusCode::BAD_REQUEST, &json!(error)),
            "{body}"
        );
    }
    let (status, body) = ask(&bound, Some(&own)).await;
    assert_eq!(
        (status, &body["token_type"]),
        (StatusCode::OK, &json!("DPoP")),
        "{body}"
    );
    let token = said(body["access_token"].as_str().unwrap()).1;
    assert_eq!(token["cnf"], json!({"jkt": jkt}));
}

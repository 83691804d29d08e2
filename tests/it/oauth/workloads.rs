//! Workloads, which get tokens by those of their platform (RFC 7523, section 2.1).

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{
    auth::external_tokens::bearer,
    support::{
        dpop::Prover,
        harness::{NEWEST, Session, child, client, json_of, until, within},
        issuer::{Issuer, Key, Mood, now},
        oauth_client::{Answer, SECRET, basic, post_proved, post_with, said, send},
        pair::Pair,
        postgres::Postgres,
        served::Served,
    },
};

/// The grant type.
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

fn config() -> Value {
    json!({"outbound": {"allow": ["127.0.0.0/8"]}, "oauth": {"failures": 1000}})
}

/// Tenant `a` with the workloads ci and deploy of a platform, pod of a cluster whose tokens are good again, and
/// offline, whose platform cannot be asked; tenant `b` has none. ci may have files:read of server x, everything of
/// y, and nothing of z.
fn tenants(issuer: &str, offline: &Key) -> Value {
    let policy = json!({"scopes": {"env": ["files:write"], "received": ["files:read"]}});
    let workload = |more: Value| {
        let mut workload = json!({"issuer": issuer});
        workload
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"workload": workload})
    };
    let refs = json!(["refs/heads/main", "refs/tags/v*"]);
    let clients = json!({
        "ci": workload(json!({"claims": {"repository": "acme/app", "ref": refs}})),
        "deploy": workload(json!({"claims": {"repository": "acme/app", "environment": "production"}})),
        "pod": workload(json!({"claims": {"sub": "system:serviceaccount:prod:agent"},
            "audience": "lockgate", "reusable": true})),
        "offline": {"workload": {"issuer": "https://kubernetes.default.svc", "claims": {"sub": "o"},
            "jwks": {"keys": [offline.public()]}}},
        "app": {"secret": SECRET, "redirect_uris": ["https://app.test/cb"]},
    });
    let tenant = |clients: Value| {
        json!({
            "auth": {"mode": "builtin"},
            "default_server": "x",
            "users": {"ada": {"password": "correct horse"}},
            "clients": clients,
            "servers": {
                "x": {"command": child(), "policy": policy,
                    "grants": {"users": ["ada"], "clients": {"ci": ["files:read"], "pod": ["*"]}}},
                "y": {"command": child(), "policy": policy},
                "z": {"command": child(), "grants": {"users": ["ci", "ada"]}},
            },
        })
    };
    json!({"a": tenant(clients), "b": tenant(json!({}))})
}

async fn metadata(gateway: &Served, tenant: &str) -> Value {
    let place = "/.well-known/oauth-authorization-server";
    let url = format!("{}{place}/t/{tenant}", gateway.origin());
    json_of(client().get(url).send().await.unwrap()).await
}

/// The issuer of tenant `a`.
async fn issuer_of(gateway: &Served) -> String {
    metadata(gateway, "a").await["issuer"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The claims of a token of the platform for the issuer `ours`, with these changed; null leaves one out.
fn claims(issuer: &Issuer, ours: &str, changed: &[(&str, Value)]) -> Value {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let id = LAST.fetch_add(1, Ordering::Relaxed);
    let mut claims = json!({"iss": issuer.url, "aud": ours,
        "sub": "repo:acme/app:ref:refs/heads/main", "repository": "acme/app",
        "ref": "refs/heads/main", "iat": now(), "nbf": now(), "exp": now() + 300,
        "jti": format!("run {id}")});
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
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": key.kid});
    key.sign_as(&header.to_string(), &claims.to_string())
}

/// The answer to an assertion, at a tenant.
async fn asked(gateway: &Served, assertion: &str, more: &[(&str, &str)]) -> Answer {
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let own = [("grant_type", JWT_BEARER), ("assertion", assertion)];
    post_with(&url, &[&own[..], more].concat(), None).await
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
async fn workloads_get_tokens(replicas: [&Served; 2], issuer: &Issuer, key: &Key) {
    let [first, last] = replicas;
    let types = metadata(first, "a").await["grant_types_supported"].clone();
    assert_eq!(
        types,
        json!(["authorization_code", "refresh_token", JWT_BEARER])
    );
    let types = metadata(first, "b").await["grant_types_supported"].clone();
    assert_eq!(types, json!(["authorization_code", "refresh_token"]));
    let ours = issuer_of(first).await;
    let token = |changed: &[(&str, Value)]| signed(key, &claims(issuer, &ours, changed));
    let assertion = token(&[]);
    let answer = asked(first, &assertion, &[]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.assert_not_kept();
    assert_eq!(answer.text("scope"), "files:read");
    assert_eq!(answer.body.get("refresh_token"), None);
    let access = answer.text("access_token");
    let said_of = said(&access).1;
    for (name, wanted) in [
        ("sub", "client#ci"),
        ("client_id", "ci"),
        ("scope", "files:read"),
    ] {
        assert_eq!(said_of[name], wanted);
    }
    // Once, at whichever replica, and by whichever name.
    for replica in replicas {
        for more in [&[][..], &[("client_id", "ci")]] {
            let again = asked(replica, &assertion, more).await;
            again.assert_refused(400, "invalid_grant");
            assert_eq!(
                again.text("error_description"),
                "the assertion was used before"
            );
        }
    }
    // Its grant counts, at each replica, and changes in an open session.
    let mut session = Session::at(bearer(&access), format!("{}/t/a/x/mcp", last.origin()));
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let hidden = session.call("env", json!({})).await;
    assert_eq!(hidden["error"]["message"], "Unknown tool: env");
    assert!(!is_good(last, "y", &access).await, "another audience");
    let operator = first.administrator();
    let api = |path: &str| format!("{}/api/v1/tenants/a{path}", first.origin());
    let server = send(Method::GET, &api("/servers/x"), &operator, None).await;
    let mut spec = server.body["spec"].clone();
    spec["grants"]["clients"]["ci"] = json!(["*"]);
    let put = send(Method::PUT, &api("/servers/x"), &operator, Some(&spec)).await;
    assert!(put.status.is_success(), "{}", put.body);
    until("a wider grant", async || {
        let wide = token(&[("ref", "refs/tags/v1".into())]);
        let wide = asked(last, &wide, &[("scope", "files:write")]).await;
        wide.body["scope"] == "files:write"
    })
    .await;
    spec["grants"]["clients"]
        .as_object_mut()
        .unwrap()
        .remove("ci");
    let put = send(Method::PUT, &api("/servers/x"), &operator, Some(&spec)).await;
    assert!(put.status.is_success(), "{}", put.body);
    for replica in replicas {
        until("a lost grant", async || {
            !is_good(replica, "x", &access).await
        })
        .await;
    }
    asked(last, &token(&[]), &[])
        .await
        .assert_refused(400, "invalid_target");
    // An operator ends the grant of another server; the next token has another one.
    let resource = format!("{ours}/y/mcp");
    let other = asked(first, &token(&[]), &[("resource", &resource)]).await;
    let other = other.text("access_token");
    assert!(is_good(last, "y", &other).await);
    let grant = json!({"grant": said(&other).1["grant"]});
    let revoked = send(Method::POST, &api("/revocations"), &operator, Some(&grant)).await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    for replica in replicas {
        until("a revoked grant", async || {
            !is_good(replica, "y", &other).await
        })
        .await;
    }
    let next = asked(last, &token(&[]), &[("resource", &resource)]).await;
    let next = next.text("access_token");
    assert!(is_good(first, "y", &next).await);
    // A workload that is removed loses its tokens.
    let gone = send(Method::DELETE, &api("/clients/ci"), &operator, None).await;
    assert!(gone.status.is_success(), "{}", gone.body);
    for replica in replicas {
        until("a removed workload", async || {
            !is_good(replica, "y", &next).await
        })
        .await;
    }
    asked(first, &token(&[]), &[])
        .await
        .assert_refused(400, "invalid_grant");
}

#[tokio::test]
async fn a_workload_gets_tokens_by_those_of_its_platform_on_sqlite() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url, &key)).await;
    workloads_get_tokens([&gateway, &gateway], &issuer, &key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_gets_tokens_by_those_of_its_platform_on_two_replicas() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let pair = Pair::of(config(), tenants(&issuer.url, &key)).await;
    workloads_get_tokens(pair.both(), &issuer, &key).await;
}

/// The description of the refusal of an assertion.
async fn reason(gateway: &Served, assertion: &str, more: &[(&str, &str)]) -> String {
    let answer = asked(gateway, assertion, more).await;
    answer.assert_refused(400, "invalid_grant");
    answer.text("error_description")
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[tokio::test]
async fn every_check_of_a_workload_is_made() {
    let (key, stranger, cluster) = (Key::new("k"), Key::new("k"), Key::new("c"));
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url, &cluster)).await;
    let ours = issuer_of(&gateway).await;
    let of = |changed: &[(&str, Value)]| claims(&issuer, &ours, changed);
    let claim = "a claim is not as declared";
    let audience = "the assertion is for another audience";
    let unknown = "no such workload has tokens of this issuer";
    for (changed, more, wanted) in [
        (vec![("repository", json!("acme/app2"))], None, claim),
        (vec![("repository", json!("Acme/app"))], None, claim),
        (vec![("repository", json!(["acme/app"]))], None, claim),
        (vec![("repository", Value::Null)], None, claim),
        (vec![("ref", json!("refs/heads/main2"))], None, claim),
        (vec![("ref", json!("refs/tags/x"))], None, claim),
        (vec![("ref", Value::Null)], None, claim),
        (vec![], Some("deploy"), claim),
        (vec![("aud", json!("https://other.test"))], None, audience),
        (
            vec![("aud", json!([ours, "https://other.test"]))],
            None,
            audience,
        ),
        (
            vec![("aud", json!(format!("{ours}/x/mcp")))],
            None,
            audience,
        ),
        (vec![("aud", json!("lockgate"))], Some("ci"), audience),
        (
            vec![("aud", json!(format!("{}/t/b", gateway.origin())))],
            None,
            audience,
        ),
        (
            vec![("iss", json!(format!("{}/", issuer.url)))],
            None,
            unknown,
        ),
        (vec![], Some("app"), unknown),
        (vec![], Some("offline"), unknown),
        (vec![], Some("nobody"), unknown),
        (vec![("exp", json!(now() - 120))], None, "expired"),
        (
            vec![("exp", json!(now() + 2 * 24 * 3600))],
            None,
            "it would hold for too long",
        ),
        (vec![("exp", Value::Null)], None, "no exp"),
        (vec![("sub", Value::Null)], None, "no sub"),
        (vec![("nbf", json!(now() + 120))], None, "not valid yet"),
        (
            vec![("environment", json!("production"))],
            None,
            "several workloads fit: name one by client_id",
        ),
    ] {
        let more: Vec<(&str, &str)> = more.iter().map(|id| ("client_id", *id)).collect();
        let got = reason(&gateway, &signed(&key, &of(&changed)), &more).await;
        assert_eq!(got, wanted, "{changed:?} {more:?}");
    }
    let both = signed(&key, &of(&[("environment", json!("production"))]));
    let ci = asked(&gateway, &both, &[("client_id", "ci")]).await;
    assert_eq!(ci.status, StatusCode::OK, "{}", ci.body);
    let with_path = signed(&key, &of(&[("aud", json!(format!("{ours}/")))]));
    let ci = asked(&gateway, &with_path, &[]).await;
    assert_eq!(ci.status, StatusCode::OK, "{}", ci.body);
    // Before the signature is verified, nothing that is declared decides.
    let bad = "the signature is of no key of the issuer";
    for changed in [
        vec![],
        vec![("repository", json!("acme/none"))],
        vec![("aud", json!("x"))],
    ] {
        assert_eq!(
            reason(&gateway, &signed(&stranger, &of(&changed)), &[]).await,
            bad
        );
    }
    for kind in ["at+jwt", "logout+jwt"] {
        let header = json!({"alg": "ES256", "typ": kind, "kid": "k"}).to_string();
        let other = key.sign_as(&header, &of(&[]).to_string());
        assert_eq!(reason(&gateway, &other, &[]).await, "another type of token");
    }
    // A token without jti is good once, too; one of a platform that writes it in a file again and again.
    let once = signed(&key, &of(&[("jti", Value::Null)]));
    assert_eq!(asked(&gateway, &once, &[]).await.status, StatusCode::OK);
    assert_eq!(
        reason(&gateway, &once, &[]).await,
        "the assertion was used before"
    );
    let pod = [
        ("sub", json!("system:serviceaccount:prod:agent")),
        ("aud", json!(["lockgate"])),
    ];
    let pod = signed(&key, &of(&pod));
    for _ in 0..2 {
        let answer = asked(&gateway, &pod, &[]).await;
        assert_eq!(answer.text("scope"), "files:read files:write");
        assert_eq!(said(&answer.text("access_token")).1["sub"], "client#pod");
    }
    let offline = [
        ("iss", json!("https://kubernetes.default.svc")),
        ("sub", json!("o")),
    ];
    let resource = format!("{}/t/a/y/mcp", gateway.origin());
    let offline = signed(&cluster, &of(&offline));
    let answer = asked(&gateway, &offline, &[("resource", &resource)]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    // A name of the client proves nothing, nor do credentials beside the assertion.
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let fresh = signed(&key, &of(&[]));
    let fields = [("grant_type", JWT_BEARER), ("assertion", &fresh)];
    let by = post_with(&url, &fields, Some(&basic("app", SECRET))).await;
    by.assert_refused(400, "invalid_request");
    for grant in ["client_credentials", "refresh_token", "authorization_code"] {
        let fields = [
            ("grant_type", grant),
            ("client_id", "ci"),
            ("code", "x"),
            ("refresh_token", "x"),
        ];
        let refused = post_with(&url, &fields, None).await;
        let error = match grant {
            "client_credentials" => "unsupported_grant_type",
            _ => "invalid_client",
        };
        assert_eq!(refused.body["error"], error, "{grant}");
    }
    for resource in ["z", "none"] {
        let resource = format!("{ours}/{resource}/mcp");
        let refused = asked(&gateway, &fresh, &[("resource", &resource)]).await;
        refused.assert_refused(400, "invalid_target");
    }
    let refused = asked(&gateway, &fresh, &[("scope", "files:write")]).await;
    refused.assert_refused(400, "invalid_scope");
    // A job has one token: none of that has used it up.
    assert_eq!(asked(&gateway, &fresh, &[]).await.status, StatusCode::OK);
    let again = reason(&gateway, &fresh, &[]).await;
    assert_eq!(again, "the assertion was used before");
    // Operators are told which claim it was.
    let logins = format!("{}/api/v1/tenants/a/logins", gateway.origin());
    until("a step", async || {
        let kept = send(Method::GET, &logins, &gateway.administrator(), None).await;
        kept.body
            .to_string()
            .contains("a claim is not as declared (ci: ref, deploy: environment)")
    })
    .await;
}

/// A job was refused when it came again as it was told, and had no other token.
#[tokio::test]
async fn a_request_that_fails_for_the_gateway_uses_no_token_up() {
    let (key, cluster) = (Key::new("k"), Key::new("c"));
    let (issuer, postgres) = (Issuer::start(&[&key]).await, Postgres::start());
    let mut config = config();
    config["sql"] = json!({"url": postgres.url()});
    let gateway = Served::start(config, tenants(&issuer.url, &cluster)).await;
    let ours = issuer_of(&gateway).await;
    let token = || signed(&key, &claims(&issuer, &ours, &[]));
    // With it begins the key that signs.
    let first = asked(&gateway, &token(), &[]).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.body);
    let mut sql = PgConnection::connect(&postgres.url()).await.unwrap();
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE changes IN SHARE ROW EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    let (token, resource) = (token(), format!("{ours}/y/mcp"));
    let more = [("resource", resource.as_str())];
    let away = within("a refusal", asked(&gateway, &token, &more)).await;
    away.assert_refused(503, "temporarily_unavailable");
    lock.rollback().await.unwrap();
    let good = asked(&gateway, &token, &more).await;
    assert_eq!(good.status, StatusCode::OK, "{}", good.body);
    let again = reason(&gateway, &token, &more).await;
    assert_eq!(again, "the assertion was used before");
}

/// Runners of a platform have few addresses. A job that came again and again kept the others out.
#[tokio::test]
async fn workloads_that_are_refused_keep_no_others_out() {
    let (key, stranger, cluster) = (Key::new("k"), Key::new("k"), Key::new("c"));
    let issuer = Issuer::start(&[&key]).await;
    let mut config = config();
    config["oauth"]["failures"] = json!(3);
    let gateway = Served::start(config, tenants(&issuer.url, &cluster)).await;
    let ours = issuer_of(&gateway).await;
    let of = |changed: &[(&str, Value)]| claims(&issuer, &ours, changed);
    let used = signed(&key, &of(&[]));
    assert_eq!(asked(&gateway, &used, &[]).await.status, StatusCode::OK);
    for _ in 0..10 {
        let again = reason(&gateway, &used, &[]).await;
        assert_eq!(again, "the assertion was used before");
        let wrong = signed(&key, &of(&[("ref", json!("refs/heads/x"))]));
        let wrong = reason(&gateway, &wrong, &[]).await;
        assert_eq!(wrong, "a claim is not as declared");
    }
    let next = asked(&gateway, &signed(&key, &of(&[])), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    // What is signed by a stranger is a guess.
    for _ in 0..3 {
        reason(&gateway, &signed(&stranger, &of(&[])), &[]).await;
    }
    let late = asked(&gateway, &signed(&key, &of(&[])), &[]).await;
    late.assert_refused(429, "temporarily_unavailable");
}

/// RFC 7800, section 3.1.
#[tokio::test]
async fn a_token_of_a_key_is_good_with_its_proof_alone() {
    let (key, cluster) = (Key::new("k"), Key::new("c"));
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url, &cluster)).await;
    let ours = issuer_of(&gateway).await;
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let (own, other) = (Prover::new(), Prover::new());
    let of = |confirmation: Value| signed(&key, &claims(&issuer, &ours, &[("cnf", confirmation)]));
    let ask = async |assertion: &str, proof: Option<&Prover>| {
        let fields = [("grant_type", JWT_BEARER), ("assertion", assertion)];
        post_proved(&url, &fields, None, proof).await
    };
    let bound = of(json!({"jkt": own.thumbprint()}));
    let otherwise = of(json!({"x5t#S256": own.thumbprint()}));
    // None of the refusals uses the token up.
    for (assertion, proof, error) in [
        (&bound, None, "invalid_dpop_proof"),
        (&bound, Some(&other), "invalid_grant"),
        (&otherwise, Some(&own), "invalid_grant"),
    ] {
        let refused = ask(assertion, proof).await;
        refused.assert_refused(400, error);
    }
    let tokens = ask(&bound, Some(&own)).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
    let again = ask(&bound, Some(&own)).await;
    again.assert_refused(400, "invalid_grant");
}

#[tokio::test]
async fn an_issuer_that_misbehaves_takes_little_of_the_gateway() {
    let (key, cluster) = (Key::new("k"), Key::new("c"));
    let issuer = Issuer::start(&[&key]).await;
    let gateway = Served::start(config(), tenants(&issuer.url, &cluster)).await;
    let ours = issuer_of(&gateway).await;
    for mood in [
        Mood::Gone,
        Mood::Slow,
        Mood::Huge,
        Mood::Redirecting,
        Mood::Failing,
        Mood::Steering,
    ] {
        issuer.turn(mood);
        let began = Instant::now();
        let away = asked(&gateway, &signed(&key, &claims(&issuer, &ours, &[])), &[]).await;
        away.assert_refused(503, "temporarily_unavailable");
        assert!(away.headers.contains_key("retry-after"));
        assert!(began.elapsed() < Duration::from_secs(10), "{mood:?}");
    }
    issuer.turn(Mood::Good);
    until("the issuer is back", async || {
        let token = signed(&key, &claims(&issuer, &ours, &[]));
        asked(&gateway, &token, &[]).await.status == StatusCode::OK
    })
    .await;
    // A new key may be there while the keys cannot be fetched: no platform sends a token again after `invalid_grant`.
    issuer.turn(Mood::Failing);
    let new = signed(&Key::new("new"), &claims(&issuer, &ours, &[]));
    let away = asked(&gateway, &new, &[]).await;
    away.assert_refused(503, "temporarily_unavailable");
    issuer.turn(Mood::Good);
    until("the keys are fetched", async || {
        asked(&gateway, &new, &[]).await.status == StatusCode::BAD_REQUEST
    })
    .await;
    // Invented keys cause few fetches.
    let hits = issuer.hits();
    let mut refused = 0;
    for number in 0..50 {
        let invented = Key::new(&format!("k{number}"));
        let token = signed(&invented, &claims(&issuer, &ours, &[]));
        let answer = asked(&gateway, &token, &[]).await;
        if answer.status == StatusCode::BAD_REQUEST {
            refused += 1;
        } else {
            // Nobody asks for it now, and it may be a new one.
            answer.assert_refused(503, "temporarily_unavailable");
            assert!(answer.headers.contains_key("retry-after"));
        }
    }
    let more = issuer.hits() - hits;
    assert!(more <= 4 * 2 + 4, "{more} connections");
    assert!(refused <= more / 2, "{refused}, {more} connections");
}

/// The keys of an issuer that strangers kept the gateway from asking shut out workloads whose keys are declared: the set that is
/// fetched was tried first, and no other one.
#[tokio::test]
async fn workloads_of_declared_keys_do_without_those_of_their_issuer() {
    let (key, cluster) = (Key::new("k"), Key::new("c"));
    let issuer = Issuer::start(&[&key]).await;
    let mut tenants = tenants(&issuer.url, &cluster);
    tenants["a"]["clients"]["offline"]["workload"]["issuer"] = json!(issuer.url);
    let gateway = Served::start(config(), tenants).await;
    let ours = issuer_of(&gateway).await;
    issuer.turn(Mood::Failing);
    let resource = format!("{}/t/a/y/mcp", gateway.origin());
    let by = async |key: &Key| {
        let token = signed(key, &claims(&issuer, &ours, &[("sub", json!("o"))]));
        asked(&gateway, &token, &[("resource", &resource)]).await
    };
    let declared = by(&cluster).await;
    assert_eq!(declared.status, StatusCode::OK, "{}", declared.body);
    // A key of no declared set may be one of the issuer.
    let away = by(&key).await;
    away.assert_refused(503, "temporarily_unavailable");
}

/// One cluster is declared for one workload and asked for another one: while it was away, the token of the second was
/// signed, by the declared set, and of no workload.
#[tokio::test]
async fn a_declared_set_decides_nothing_about_workloads_whose_keys_are_away() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let mut tenants = tenants(&issuer.url, &key);
    tenants["a"]["clients"]["offline"]["workload"]["issuer"] = json!(issuer.url);
    let gateway = Served::start(config(), tenants).await;
    let ours = issuer_of(&gateway).await;
    issuer.turn(Mood::Failing);
    let of_ci = || signed(&key, &claims(&issuer, &ours, &[]));
    // For another audience than that of the declared set.
    let sub = json!("system:serviceaccount:prod:agent");
    let changed = [("sub", sub), ("aud", json!("lockgate"))];
    let of_pod = signed(&key, &claims(&issuer, &ours, &changed));
    for token in [&of_ci(), &of_pod] {
        let away = asked(&gateway, token, &[]).await;
        away.assert_refused(503, "temporarily_unavailable");
        assert!(away.headers.contains_key("retry-after"));
    }
    issuer.turn(Mood::Good);
    until("the keys are fetched", async || {
        asked(&gateway, &of_ci(), &[]).await.status == StatusCode::OK
    })
    .await;
    let answer = asked(&gateway, &of_pod, &[]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
}

//! Standing of people at their identity providers, which are asked again and log people out.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    oauth::{
        account, own_keys,
        pages::{self, BACK, claims, redeem, request},
        providers::{ALLOW, Hostile, departed, openid, returned},
    },
    support::{
        browser::{Browser, Shown},
        harness::{NEWEST, Session, child, client, until, within},
        issuer::{Key, Provider, now, unsigned},
        oauth_client::{App, post, send},
        pair::Pair,
        postgres::Postgres,
        served::Served,
        stage::{Answer, Stage},
    },
};

/// So short that a provider is asked each time, and that no word outlives its silence.
const ALWAYS: &str = "1ms";

/// A gateway whose tenant has one provider, and server `x` for its group `eng`.
async fn gateway(config: Value, recheck: &str, provider: Value) -> Served {
    serving(config, tenant(recheck, provider)).await
}

async fn serving(mut config: Value, tenant: Value) -> Served {
    config["outbound"] = json!({"allow": ["127.0.0.0/8"]});
    pages::gateway(config, tenant).await
}

fn tenant(recheck: &str, provider: Value) -> Value {
    json!({
        "auth": {"recheck": recheck},
        "providers": {"acme": provider},
        "servers": {"x": {"command": child(), "grants": {"groups": ["eng"]}}},
    })
}

/// What a provider answers to codes and refresh tokens.
fn give(hostile: &Hostile, claims: &Value, refresh: Option<&str>) {
    let mut tokens = json!({"access_token": "at", "token_type": "Bearer", "expires_in": 300,
        "id_token": hostile.signed(claims)});
    if let Some(refresh) = refresh {
        tokens["refresh_token"] = json!(refresh);
    }
    hostile.stage.json("/token", tokens);
}

/// Lets the provider give refresh tokens that are good for one use, of which this is the number of the last one.
fn rotate(hostile: &Hostile, claims: &Value, number: u32) {
    let tokens = json!({"access_token": "at", "token_type": "Bearer", "expires_in": 300,
        "id_token": hostile.signed(claims)});
    let rotating = Answer::Rotating(tokens, number);
    hostile.stage.set("/token", rotating);
}

/// Logs a person in at a scripted provider, which gives this refresh token: the claims of the person, the tokens of the
/// application, and the browser.
async fn logged_in(
    gateway: &Served,
    hostile: &Hostile,
    refresh: Option<&str>,
) -> (Value, Value, Browser) {
    let mut browser = Browser::new();
    let sent = departed(gateway, &mut browser, "acme").await;
    let claims = hostile.claims(&sent);
    give(hostile, &claims, refresh);
    let done = returned(gateway, &mut browser, &sent, "&code=c").await;
    let tokens = redeem(gateway, &done.answer()["code"], &[]).await;
    (claims, tokens, browser)
}

fn text<'t>(tokens: &'t Value, name: &str) -> &'t str {
    tokens[name].as_str().unwrap_or_else(|| panic!("{tokens}"))
}

/// The status that a server gives the holder of an access token.
async fn status(gateway: &Served, access: &str) -> StatusCode {
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let asked = client().get(url).bearer_auth(access);
    let asked = asked.header("Accept", "text/event-stream").send();
    within("a status", asked).await.unwrap().status()
}

/// The details of the audit records about ended identities.
async fn ended(gateway: &Served) -> Vec<Value> {
    recorded(gateway, "identity.ended").await
}

async fn recorded(gateway: &Served, kind: &str) -> Vec<Value> {
    let url = format!("{}/api/v1/audit?tenant=a&kind={kind}", gateway.origin());
    let records = send(Method::GET, &url, &gateway.administrator(), None).await;
    let items = records.body["items"].as_array().unwrap().iter();
    items.map(|item| item["detail"].clone()).collect()
}

async fn put(gateway: &Served, path: &str, spec: &Value) {
    let url = format!("{}/api/v1/{path}", gateway.origin());
    let put = send(Method::PUT, &url, &gateway.administrator(), Some(spec)).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.body);
}

/// Makes the provider's last word this many minutes older.
fn age(postgres: &Postgres, minutes: u32) {
    let sql =
        format!("UPDATE identities SET checked_ms = checked_ms - {minutes} * 60000, lease_ms = 0");
    let done = postgres
        .command("psql")
        .args([&postgres.url(), "-c", &sql])
        .output();
    assert!(done.unwrap().status.success());
}

fn on(postgres: &Postgres) -> Value {
    json!({"sql": {"url": postgres.url()}})
}

async fn a_real_provider_is_asked_again(config: Value) {
    let mut provider = Provider::start().await;
    let mut acme = openid(&provider.issuer);
    acme["scopes"] = json!(["openid", "groups"]);
    acme["authorization_parameters"] = json!({"prompt": "consent"});
    let gateway = gateway(config, ALWAYS, acme).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    let back = browser.follow(sent, &provider.issuer).await;
    let done = browser.follow(back, gateway.origin()).await;
    let mut tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
    let first = text(&tokens, "access_token").to_owned();
    let app = App::of(&gateway, "a", "app");
    // Refresh tokens of the provider rotate: each is used once, and the next one counts.
    for groups in ["eng", "eng,ops", "ops", "eng"] {
        provider.groups(groups).await;
        tokens = app.refresh(text(&tokens, "refresh_token"), &[]).await.body;
        let wanted: Vec<&str> = groups.split(',').collect();
        assert_eq!(claims(&tokens)["groups"], json!(wanted));
        // A token of before has them, too.
        let wanted = if groups == "ops" {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::BAD_REQUEST
        };
        until("the groups of all tokens", async || {
            status(&gateway, &first).await == wanted
        })
        .await;
    }
    assert!(
        browser
            .open(&request(&gateway, &[]))
            .await
            .location()
            .is_some()
    );
    assert!(ended(&gateway).await.is_empty());
    provider.disable().await;
    let refused = app.refresh(text(&tokens, "refresh_token"), &[]).await;
    refused.assert_refused(400, "invalid_grant");
    let access = text(&tokens, "access_token");
    for token in [access, &first] {
        until("the end of the token", async || {
            status(&gateway, token).await == StatusCode::UNAUTHORIZED
        })
        .await;
    }
    let page = browser.open(&request(&gateway, &[])).await;
    assert!(page.text.contains("name=\"password\""), "{}", page.text);
    let details = ended(&gateway).await;
    assert_eq!(details.len(), 1, "{details:?}");
    assert_eq!(details[0]["by"], "acme");
    assert_eq!(details[0]["subject"], format!("{}#ada", provider.issuer));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_provider_is_asked_again_on_sqlite() {
    a_real_provider_is_asked_again(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_provider_is_asked_again_on_postgres() {
    let postgres = Postgres::start();
    a_real_provider_is_asked_again(on(&postgres)).await;
}

/// Two replicas whose tenant has a scripted provider.
async fn pair(hostile: &Hostile) -> Pair {
    let mut declared = tenant("1h", openid(&hostile.stage.url));
    declared["auth"]["mode"] = json!("builtin");
    declared["users"] = json!({"ada": {"password": "correct horse"}});
    declared["clients"] = json!({"app": {"title": "The App", "redirect_uris": [BACK]}});
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    Pair::of(config, json!({"a": declared})).await
}

/// The claims of a refreshed ID token.
fn person(hostile: &Hostile) -> Value {
    json!({"iss": hostile.stage.url, "sub": "1", "aud": "gateway", "iat": now(), "exp": now() + 300,
        "groups": ["eng"]})
}

/// The refresh tokens of two grants of one log-in at a replica.
async fn granted_twice(hostile: &Hostile, first: &Served) -> Vec<String> {
    let resource = ("resource", "https://gw.test/t/a/x/mcp");
    let mut browser = Browser::new();
    let login = browser.open(&request(first, &[resource])).await;
    let consent = browser.submit(&login, &[("provider", "acme")]).await;
    let sent = browser.submit(&consent, &ALLOW).await;
    give(hostile, &hostile.claims(&sent), Some("r1"));
    let done = returned(first, &mut browser, &sent, "&code=c").await;
    let again = browser.open(&request(first, &[resource])).await;
    let mut refresh = Vec::new();
    for shown in [done, again] {
        let tokens = redeem(first, &shown.answer()["code"], &[]).await;
        refresh.push(text(&tokens, "refresh_token").to_owned());
    }
    refresh
}

/// Two applications of a person refresh at two replicas at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_ask_a_provider_once() {
    let hostile = Hostile::start().await;
    let pair = pair(&hostile).await;
    let [first, second] = pair.both();
    let refresh = granted_twice(&hostile, first).await;
    age(&pair.postgres, 24 * 60);
    give(&hostile, &person(&hostile), Some("r2"));
    let (here, there) = (App::of(first, "a", "app"), App::of(second, "a", "app"));
    let (one, two) = tokio::join!(
        here.refresh(&refresh[0], &[]),
        there.refresh(&refresh[1], &[])
    );
    assert_eq!((one.status, two.status), (StatusCode::OK, StatusCode::OK));
    let count = |token: &str| {
        let asked = hostile.stage.asked("POST /token");
        let with = format!("refresh_token={token}");
        asked.iter().filter(|asked| asked.contains(&with)).count()
    };
    assert_eq!(count("r1"), 1, "a rotated token is used once");
    age(&pair.postgres, 24 * 60);
    let next = there.refresh(&two.text("refresh_token"), &[]).await;
    assert_eq!((next.status, count("r2")), (StatusCode::OK, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_of_a_provider_that_is_away_holds_for_a_while() {
    let (hostile, postgres) = (Hostile::start().await, Postgres::start());
    let gateway = gateway(on(&postgres), "1h", openid(&hostile.stage.url)).await;
    let (claims, tokens, mut browser) = logged_in(&gateway, &hostile, Some("r1")).await;
    let app = App::of(&gateway, "a", "app");
    let mut refresh = text(&tokens, "refresh_token").to_owned();
    let asked = || hostile.stage.asked("POST /token").len();
    assert_eq!(asked(), 1);
    refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
    assert_eq!(asked(), 1, "its word is new");
    for answer in [
        Answer::Slow,
        Answer::Json(503, json!({})),
        Answer::Json(401, json!({"error": "invalid_client"})),
        Answer::Json(
            200,
            json!({"access_token": "at", "token_type": "Bearer", "id_token": "x"}),
        ),
    ] {
        hostile.stage.set("/token", answer);
        let before = asked();
        age(&postgres, 70);
        refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
        assert_eq!(asked(), before + 1);
        age(&postgres, 70);
        let refused = app.refresh(&refresh, &[]).await;
        refused.assert_refused(503, "temporarily_unavailable");
        assert!(refused.headers.contains_key("retry-after"));
        age(&postgres, 0);
        let page = browser.open(&request(&gateway, &[])).await;
        assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
        // The grant and its token stay.
        give(&hostile, &claims, Some("r1"));
        age(&postgres, 0);
        refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
    }
    assert!(
        browser
            .open(&request(&gateway, &[]))
            .await
            .location()
            .is_some()
    );
    assert!(ended(&gateway).await.is_empty());
}

/// A request that was begun must end nothing, although its outcome cannot be stored.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_out_because_the_database_goes_away_meanwhile() {
    let (hostile, mut postgres) = (Hostile::start().await, Postgres::start());
    let gateway = gateway(on(&postgres), "1h", openid(&hostile.stage.url)).await;
    let (claims, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    age(&postgres, 180);
    hostile.stage.set("/token", Answer::Slow);
    let away = async {
        until("it is asked", async || {
            hostile.stage.asked("POST /token").len() == 2
        })
        .await;
        postgres.pause();
    };
    let (refused, ()) = tokio::join!(app.refresh(refresh, &[]), away);
    refused.assert_refused(503, "temporarily_unavailable");
    give(&hostile, &claims, Some("r2"));
    postgres.resume();
    // Otherwise the lease of the request that was lost has to end first.
    age(&postgres, 0);
    until("it goes on", async || {
        app.refresh(refresh, &[]).await.status == StatusCode::OK
    })
    .await;
    assert!(ended(&gateway).await.is_empty());
}

/// The provider has used up the refresh token, and the database is away when it gives the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_refresh_token_is_stored_once_the_database_is_back() {
    let (hostile, mut postgres) = (Hostile::start().await, Postgres::start());
    let gateway = gateway(on(&postgres), "1h", openid(&hostile.stage.url)).await;
    let (claims, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    age(&postgres, 180);
    hostile.stage.set("/token", Answer::Held);
    let away = async {
        until("it is asked", async || {
            hostile.stage.asked("POST /token").len() == 2
        })
        .await;
        postgres.pause();
        rotate(&hostile, &claims, 1);
    };
    let (refused, ()) = tokio::join!(app.refresh(refresh, &[]), away);
    refused.assert_refused(503, "temporarily_unavailable");
    postgres.resume();
    until("it goes on", async || {
        app.refresh(refresh, &[]).await.status == StatusCode::OK
    })
    .await;
    let asked = hostile.stage.asked("POST /token");
    assert!(asked.last().unwrap().contains("refresh_token=r2"));
    assert!(ended(&gateway).await.is_empty());
}

/// A refresh token that was used up by a request without an answer tells nothing about the person: the provider's refusal
/// ended all that the person had, API keys included.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_provider_takes_nothing_away() {
    let (hostile, postgres) = (Hostile::start().await, Postgres::start());
    let mut declared = tenant("1h", openid(&hostile.stage.url));
    declared["auth"]["own_keys"] = json!({});
    let gateway = serving(on(&postgres), declared).await;
    let (claims, tokens, mut browser) = logged_in(&gateway, &hostile, Some("r1")).await;
    let page = browser.open(&account::page_of(&gateway, "a")).await;
    let fields = [
        ("do", "make-key"),
        ("label", "job"),
        ("server.x", "yes"),
        ("life", "86400"),
    ];
    let (key, _) = own_keys::made(&mut browser, &page, &fields).await;
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    age(&postgres, 180);
    hostile.stage.set("/token", Answer::Slow);
    let unheard = app.refresh(refresh, &[]).await;
    unheard.assert_refused(503, "temporarily_unavailable");
    rotate(&hostile, &claims, 2);
    age(&postgres, 0);
    let refused = app.refresh(refresh, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    assert_eq!(status(&gateway, &key).await, StatusCode::UNAUTHORIZED);
    let page = browser.open(&request(&gateway, &[])).await;
    assert!(page.text.contains("name=\"password\""), "{}", page.text);
    assert!(ended(&gateway).await.is_empty());
    let refused = recorded(&gateway, "identity.refused").await;
    let who = json!({"by": "acme", "why": "a request had no answer",
        "subject": format!("{}#1", hostile.stage.url)});
    assert_eq!(refused, [who]);
    // The person logs in, and key and client go on.
    logged_in(&gateway, &hostile, Some("r3")).await;
    app.refresh(refresh, &[]).await.text("refresh_token");
    until("the key is good again", async || {
        status(&gateway, &key).await == StatusCode::BAD_REQUEST
    })
    .await;
}

/// A provider that was away before it could be asked was taken for one that may have used the refresh token up: nothing of a
/// person who had left ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_was_not_asked_has_used_nothing_up() {
    let metadata = "/.well-known/openid-configuration";
    let hostile = Hostile::start().await;
    let pair = pair(&hostile).await;
    // The second one knows nothing of the provider yet.
    let [first, second] = pair.both();
    let refresh = granted_twice(&hostile, first).await;
    let app = App::of(second, "a", "app");
    age(&pair.postgres, 180);
    hostile.stage.set(metadata, Answer::Json(500, json!({})));
    let unheard = app.refresh(&refresh[0], &[]).await;
    unheard.assert_refused(503, "temporarily_unavailable");
    assert_eq!(hostile.stage.asked("POST /token").len(), 1);
    hostile
        .stage
        .json(metadata, Hostile::metadata(&hostile.stage));
    let left = Answer::Json(400, json!({"error": "invalid_grant"}));
    hostile.stage.set("/token", left);
    age(&pair.postgres, 0);
    let refused = app.refresh(&refresh[0], &[]).await;
    refused.assert_refused(400, "invalid_grant");
    assert_eq!(ended(first).await.len(), 1);
    assert!(recorded(first, "identity.refused").await.is_empty());
    let other = app.refresh(&refresh[1], &[]).await;
    other.assert_refused(400, "invalid_grant");
}

/// The next refusal was that of a token whose request had no answer, which ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_person_is_stored_once_the_database_is_back() {
    let (hostile, mut postgres) = (Hostile::start().await, Postgres::start());
    let gateway = gateway(on(&postgres), "1h", openid(&hostile.stage.url)).await;
    let (_, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    age(&postgres, 180);
    hostile.stage.set("/token", Answer::Held);
    let away = async {
        until("it is asked", async || {
            hostile.stage.asked("POST /token").len() == 2
        })
        .await;
        postgres.pause();
        let left = Answer::Json(400, json!({"error": "invalid_grant"}));
        hostile.stage.set("/token", left);
    };
    let (refused, ()) = tokio::join!(app.refresh(refresh, &[]), away);
    refused.assert_refused(503, "temporarily_unavailable");
    postgres.resume();
    until("it has ended", async || {
        app.refresh(refresh, &[]).await.status == StatusCode::BAD_REQUEST
    })
    .await;
    assert_eq!(ended(&gateway).await.len(), 1);
    assert_eq!(hostile.stage.asked("POST /token").len(), 2);
}

/// What cannot be read may have been another refresh token.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_provider_that_cannot_be_read_takes_nothing_away() {
    let hostile = Hostile::start().await;
    let gateway = gateway(json!({}), ALWAYS, openid(&hostile.stage.url)).await;
    let (claims, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    hostile.stage.json("/token", json!({"refresh_token": "r2"}));
    let unread = app.refresh(refresh, &[]).await;
    unread.assert_refused(503, "temporarily_unavailable");
    rotate(&hostile, &claims, 2);
    until("it is asked again", async || {
        app.refresh(refresh, &[]).await.status == StatusCode::BAD_REQUEST
    })
    .await;
    assert!(ended(&gateway).await.is_empty());
    logged_in(&gateway, &hostile, Some("r3")).await;
    app.refresh(refresh, &[]).await.text("refresh_token");
}

/// A refreshed ID token that is about another person, by another issuer or by another key.
#[tokio::test]
async fn another_word_than_the_provider_s_about_the_person_is_not_believed() {
    let hostile = Hostile::start().await;
    let gateway = gateway(json!({}), ALWAYS, openid(&hostile.stage.url)).await;
    let (claims, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
    let app = App::of(&gateway, "a", "app");
    let refresh = text(&tokens, "refresh_token");
    let own = Key::new("k").sign_as(
        &json!({"alg": "ES256", "kid": "k"}).to_string(),
        &claims.to_string(),
    );
    let changed = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        hostile.signed(&claims)
    };
    let tokens = [
        changed("sub", json!("2")),
        changed("iss", json!("https://idp.test")),
        changed("aud", json!("another")),
        changed("exp", json!(1)),
        own,
    ];
    for (at, id_token) in tokens.iter().enumerate() {
        let answer = json!({"access_token": "at", "token_type": "Bearer", "id_token": id_token});
        hostile.stage.json("/token", answer);
        until("it is asked", async || {
            let before = hostile.stage.asked("POST /token").len();
            let refused = app.refresh(refresh, &[]).await;
            refused.assert_refused(503, "temporarily_unavailable");
            hostile.stage.asked("POST /token").len() > before
        })
        .await;
        assert!(ended(&gateway).await.is_empty(), "{at}");
    }
    give(&hostile, &claims, None);
    until("it is believed", async || {
        app.refresh(refresh, &[]).await.status == StatusCode::OK
    })
    .await;
}

/// A person whom the provider's own groups no longer admit, or with whom it wants to talk.
#[tokio::test]
async fn a_person_who_is_not_let_in_any_more_is_out() {
    let hostile = Hostile::start().await;
    for refusal in ["interaction_required", "invalid_grant", ""] {
        let mut acme = openid(&hostile.stage.url);
        acme["allow"] = json!({"groups": ["eng"]});
        let gateway = gateway(json!({}), ALWAYS, acme).await;
        let (mut claims, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
        if refusal.is_empty() {
            claims["groups"] = json!(["ops"]);
            give(&hostile, &claims, Some("r2"));
        } else {
            let refused = Answer::Json(400, json!({"error": refusal}));
            hostile.stage.set("/token", refused);
        }
        let app = App::of(&gateway, "a", "app");
        let refused = app.refresh(text(&tokens, "refresh_token"), &[]).await;
        refused.assert_refused(400, "invalid_grant");
        assert_eq!(ended(&gateway).await.len(), 1, "{refusal}");
    }
}

/// A server refuses tokens that are too long, so that one for very many groups would be of no use.
#[tokio::test]
async fn people_of_very_many_groups_get_tokens_that_servers_read() {
    let hostile = Hostile::start().await;
    let long = |at: usize| format!("{at}-{}", "x".repeat(40));
    let short = ["eng", "staff"].map(str::to_owned);
    let many: Vec<String> = (0..300).map(long).chain(short).collect();
    let mut acme = openid(&hostile.stage.url);
    acme["allow"] = json!({"groups": ["staff"]});
    let mut declared = tenant("1h", acme);
    // Another server than that of the token.
    declared["servers"]["y"] = json!({"grants": {"groups": many}});
    let gateway = serving(json!({"oauth": {"grace": "1ms"}}), declared).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    let mut claims = hostile.claims(&sent);
    claims.as_object_mut().unwrap().remove("groups");
    hostile
        .stage
        .json("/user", json!({"sub": "1", "groups": many}));
    give(&hostile, &claims, None);
    let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
    let tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
    assert_eq!(pages::claims(&tokens)["groups"], json!(["eng", "staff"]));
    let access = text(&tokens, "access_token");
    assert_eq!(status(&gateway, access).await, StatusCode::BAD_REQUEST);
    // All of them decide: no token can tell them, and the client is told so.
    let (app, refresh) = (
        App::of(&gateway, "a", "app"),
        text(&tokens, "refresh_token"),
    );
    let x = |groups: Value| json!({"command": child(), "grants": {"groups": groups}});
    put(&gateway, "tenants/a/servers/x", &x(json!(many))).await;
    let refused = app.refresh(refresh, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    assert!(
        refused.text("error_description").contains("too long"),
        "{}",
        refused.body
    );
    // The grant lives on, and the token is unused.
    put(&gateway, "tenants/a/servers/x", &x(json!([many[0]]))).await;
    let next = app.refresh(refresh, &[]).await;
    let groups = json!([many[0], "staff"]);
    assert_eq!(pages::claims(&next.body)["groups"], groups);
}

/// Some providers give a refresh token at the first log-in alone, some none, and some know no OpenID.
#[tokio::test]
async fn providers_are_asked_by_what_they_gave() {
    let hostile = Hostile::start().await;
    let place = "/.well-known/openid-configuration";
    let mut metadata = Hostile::metadata(&hostile.stage);
    metadata["scopes_supported"] = json!(["openid", "offline_access"]);
    hostile.stage.json(place, metadata);
    let gateway = gateway(json!({}), ALWAYS, openid(&hostile.stage.url)).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    assert!(sent.answer()["scope"].contains("offline_access"));
    // Without a refresh token it is asked by the access token.
    let app = App::of(&gateway, "a", "app");
    let (mut claims, tokens, _) = logged_in(&gateway, &hostile, None).await;
    hostile
        .stage
        .json("/user", json!({"sub": "1", "groups": ["eng", "ops"]}));
    let next = app.refresh(text(&tokens, "refresh_token"), &[]).await;
    assert_eq!(pages::claims(&next.body)["groups"], json!(["eng", "ops"]));
    assert!(hostile.stage.asked("GET /user")[0].contains("Bearer at"));
    // One of a log-in stays, when another gives none.
    logged_in(&gateway, &hostile, Some("r1")).await;
    let (_, tokens, _) = logged_in(&gateway, &hostile, None).await;
    claims["groups"] = json!(["eng"]);
    give(&hostile, &claims, None);
    app.refresh(text(&tokens, "refresh_token"), &[])
        .await
        .text("refresh_token");
    let asked = hostile.stage.asked("POST /token");
    assert!(asked.last().unwrap().contains("refresh_token=r1"));
    // Tokens never go to another provider, or by another client, that is declared by this name.
    let (_, tokens, _) = logged_in(&gateway, &hostile, Some("r2")).await;
    let mut acme = openid(&hostile.stage.url);
    acme["client_id"] = json!("another");
    put(&gateway, "tenants/a/providers/acme", &acme).await;
    let before = hostile.stage.asked("POST /token").len();
    let refused = app.refresh(text(&tokens, "refresh_token"), &[]).await;
    refused.assert_refused(400, "invalid_grant");
    assert_eq!(hostile.stage.asked("POST /token").len(), before);
    assert!(ended(&gateway).await.is_empty());
}

/// Nobody can be asked about people who logged in before; with `recheck: "0s"` nobody is asked anyway.
#[tokio::test]
async fn people_of_a_renamed_provider_log_in_again() {
    for recheck in ["1h", "0s"] {
        let hostile = Hostile::start().await;
        let gateway = gateway(json!({}), recheck, openid(&hostile.stage.url)).await;
        let (_, tokens, _) = logged_in(&gateway, &hostile, Some("r1")).await;
        let app = App::of(&gateway, "a", "app");
        let tokens = app.refresh(text(&tokens, "refresh_token"), &[]).await;
        let refresh = tokens.text("refresh_token");
        let rename = async |from: &str, to: &str| {
            let url = format!("{}/api/v1/tenants/a/providers/{from}", gateway.origin());
            let removed = send(Method::DELETE, &url, &gateway.administrator(), None).await;
            assert!(removed.status.is_success(), "{}", removed.body);
            let url = format!("{}/api/v1/tenants/a/providers/{to}", gateway.origin());
            let spec = openid(&hostile.stage.url);
            let made = send(Method::PUT, &url, &gateway.administrator(), Some(&spec)).await;
            assert!(made.status.is_success(), "{}", made.body);
        };
        rename("acme", "corp").await;
        let next = app.refresh(&refresh, &[]).await;
        if recheck == "0s" {
            assert_eq!(next.status, StatusCode::OK, "{}", next.body);
            continue;
        }
        next.assert_refused(400, "invalid_grant");
        // Nothing has ended: the person logs in again, and the application goes on.
        rename("corp", "acme").await;
        logged_in(&gateway, &hostile, Some("r2")).await;
        app.refresh(&refresh, &[]).await.text("refresh_token");
        assert!(ended(&gateway).await.is_empty());
    }
}

/// An API key that a person made is asked about as a refresh token is.
async fn an_own_key_holds_as_long_as_the_word_of_a_provider(config: Value) {
    let hostile = Hostile::start().await;
    let mut declared = tenant(ALWAYS, openid(&hostile.stage.url));
    declared["auth"]["own_keys"] = json!({});
    let gateway = serving(config, declared).await;
    let (mut claims, _, mut browser) = logged_in(&gateway, &hostile, Some("r1")).await;
    give(&hostile, &claims, None);
    let page = browser.open(&account::page_of(&gateway, "a")).await;
    let fields = [
        ("do", "make-key"),
        ("label", "job"),
        ("server.x", "yes"),
        ("life", "86400"),
    ];
    let (key, _) = own_keys::made(&mut browser, &page, &fields).await;
    let asked = || hostile.stage.asked("POST /token").len();
    // The provider is asked at a use, and the groups of its answer count for it.
    for (groups, wanted) in [
        ("eng", StatusCode::BAD_REQUEST),
        ("ops", StatusCode::NOT_FOUND),
        ("eng", StatusCode::BAD_REQUEST),
    ] {
        claims["groups"] = json!([groups]);
        give(&hostile, &claims, None);
        let before = asked();
        assert_eq!(status(&gateway, &key).await, wanted, "{groups}");
        assert!(asked() > before);
    }
    // While it is away, the key is good for as long as the last word, and then neither refused nor let in.
    hostile.stage.set("/token", Answer::Json(500, json!({})));
    until("nobody knows", async || {
        status(&gateway, &key).await == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    let before = asked();
    for _ in 0..20 {
        assert_eq!(
            status(&gateway, &key).await,
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
    assert!(asked() <= before + 1, "requests wait for the next attempt");
    give(&hostile, &claims, None);
    until("it is back", async || {
        status(&gateway, &key).await == StatusCode::BAD_REQUEST
    })
    .await;
    assert!(ended(&gateway).await.is_empty());
    // A person whom it lets in no more has no key, on open streams neither.
    let mut session = Session::at(bearer(&key), format!("{}/t/a/x/mcp", gateway.origin()));
    session.initialize(NEWEST).await;
    let mut open = session.listen().await;
    let refused = Answer::Json(400, json!({"error": "invalid_grant"}));
    hostile.stage.set("/token", refused);
    assert_eq!(status(&gateway, &key).await, StatusCode::UNAUTHORIZED);
    within("the end of the stream", open.rest()).await;
    give(&hostile, &claims, None);
    assert_eq!(status(&gateway, &key).await, StatusCode::UNAUTHORIZED);
    assert_eq!(ended(&gateway).await.len(), 1);
    // Nor does it come back with the person.
    logged_in(&gateway, &hostile, Some("r1")).await;
    assert_eq!(status(&gateway, &key).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_key_holds_as_long_as_the_word_of_a_provider_on_sqlite() {
    an_own_key_holds_as_long_as_the_word_of_a_provider(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_key_holds_as_long_as_the_word_of_a_provider_on_postgres() {
    let postgres = Postgres::start();
    an_own_key_holds_as_long_as_the_word_of_a_provider(on(&postgres)).await;
}

/// Access tokens of providers without OpenID may not expire.
#[tokio::test]
async fn a_provider_without_openid_is_asked_by_its_access_token() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    let provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
        "client_secret": "secret", "authorization_url": at("/authorize"), "token_url": at("/token"),
        "user_url": at("/user")});
    let mut tenant = tenant(ALWAYS, provider);
    tenant["servers"] = json!({});
    let gateway = serving(json!({}), tenant).await;
    let app = App::of(&gateway, "a", "app");
    let log_in = async |tokens: Value| -> String {
        stage.json("/token", tokens);
        stage.json("/user", json!({"id": 1}));
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let done: Shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        let tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
        text(&tokens, "refresh_token").to_owned()
    };
    let refresh = log_in(json!({"access_token": "gho_x", "token_type": "bearer"})).await;
    let refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
    assert_eq!(stage.asked("GET /user").len(), 2);
    stage.set(
        "/user",
        Answer::Json(401, json!({"message": "Bad credentials"})),
    );
    app.refresh(&refresh, &[])
        .await
        .assert_refused(400, "invalid_grant");
    // With a refresh token, which GitHub refuses with 200.
    let tokens = json!({"access_token": "ghu_x", "token_type": "bearer", "expires_in": 0, "refresh_token": "ghr_x"});
    let refresh = log_in(tokens).await;
    let refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
    stage.json("/token", json!({"error": "bad_refresh_token"}));
    app.refresh(&refresh, &[])
        .await
        .assert_refused(400, "invalid_grant");
    assert_eq!(ended(&gateway).await.len(), 2);
    // An access token that has expired tells nothing, nor does a provider that is never asked again.
    let refresh =
        log_in(json!({"access_token": "gho_y", "token_type": "bearer", "expires_in": 0})).await;
    stage.set("/user", Answer::Json(401, json!({})));
    let refresh = app.refresh(&refresh, &[]).await.text("refresh_token");
    app.refresh(&refresh, &[]).await.text("refresh_token");
    let refresh = log_in(json!({"access_token": "gho_z", "token_type": "bearer"})).await;
    let never = json!({"auth": {"mode": "builtin", "recheck": "0s"}, "default_server": "x"});
    put(&gateway, "tenants/a", &never).await;
    let before = stage.asked("GET /user").len();
    app.refresh(&refresh, &[]).await.text("refresh_token");
    assert_eq!(stage.asked("GET /user").len(), before);
}

/// The body of a logout token of a scripted provider.
fn logout(hostile: &Hostile, id: &str, more: &Value) -> Value {
    let mut claims = json!({"iss": hostile.stage.url, "aud": "gateway", "iat": now(), "exp": now() + 120,
        "jti": id, "events": {"http://schemas.openid.net/event/backchannel-logout": {}}});
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

/// Sends a logout token to the gateway.
async fn sent(gateway: &Served, token: &str) -> crate::support::oauth_client::Answer {
    let url = format!("{}/t/a/oauth/logout/acme", gateway.origin());
    post(&url, &[("logout_token", token)]).await
}

/// Logs a person in whose session at the provider has this name.
async fn logged_in_with(gateway: &Served, hostile: &Hostile, session: &str) -> (Value, Browser) {
    let mut browser = Browser::new();
    let sent = departed(gateway, &mut browser, "acme").await;
    let mut claims = hostile.claims(&sent);
    if !session.is_empty() {
        claims["sid"] = json!(session);
    }
    give(hostile, &claims, Some("r"));
    let done = returned(gateway, &mut browser, &sent, "&code=c").await;
    let tokens = redeem(gateway, &done.answer()["code"], &[]).await;
    (tokens, browser)
}

/// Whether tokens and log-in are good; both are, or none.
async fn is_in(gateway: &Served, (tokens, browser): &mut (Value, Browser)) -> bool {
    let access = text(tokens, "access_token");
    let is_in = browser
        .open(&request(gateway, &[]))
        .await
        .location()
        .is_some();
    if is_in {
        assert_eq!(status(gateway, access).await, StatusCode::BAD_REQUEST);
        return true;
    }
    until("the end of the token", async || {
        status(gateway, access).await == StatusCode::UNAUTHORIZED
    })
    .await;
    let refresh = text(tokens, "refresh_token");
    let refused = App::of(gateway, "a", "app").refresh(refresh, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    false
}

async fn a_logout_ends_what_it_names(config: Value) {
    let hostile = Hostile::start().await;
    let gateway = gateway(config, "1h", openid(&hostile.stage.url)).await;
    let mut people = Vec::new();
    for session in ["s1", "s2", "", "s3"] {
        people.push(logged_in_with(&gateway, &hostile, session).await);
    }
    let url = &hostile.stage.url;
    for (at, (more, wanted)) in [
        (json!({"sid": "s"}), [true, true, true, true]),
        (json!({"sid": "s1"}), [false, true, true, true]),
        // The provider did not name the session of the third log-in, so it may be this one.
        (
            json!({"sub": "1", "sid": "s2"}),
            [false, false, false, true],
        ),
        (
            json!({"sub": "2", "sid": "s4"}),
            [false, false, false, true],
        ),
        (json!({"sub": "2"}), [false, false, false, true]),
        (json!({"sub": "1"}), [false, false, false, false]),
    ]
    .into_iter()
    .enumerate()
    {
        let token = hostile.signed(&logout(&hostile, &format!("j{at}"), &more));
        let answer = sent(&gateway, &token).await;
        assert_eq!(
            (answer.status, &answer.body),
            (StatusCode::OK, &Value::Null)
        );
        answer.assert_not_kept();
        for (person, is_wanted) in people.iter_mut().zip(wanted) {
            assert_eq!(is_in(&gateway, person).await, is_wanted, "{more}");
        }
    }
    let details = ended(&gateway).await;
    assert_eq!(details.len(), 6);
    assert_eq!(
        details[0],
        json!({"by": "acme", "why": "logged out there", "subject": format!("{url}#1")})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_ends_what_it_names_on_sqlite() {
    a_logout_ends_what_it_names(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_ends_what_it_names_on_postgres() {
    let postgres = Postgres::start();
    a_logout_ends_what_it_names(on(&postgres)).await;
}

/// Nothing but a fresh logout token of the provider, for this gateway and for the first time, ends anything.
#[tokio::test(flavor = "multi_thread")]
async fn logout_tokens_are_believed_only_if_all_of_them_is_right() {
    let hostile = Hostile::start().await;
    let config = json!({"oauth": {"failures": 1000}});
    let gateway = gateway(config, "1h", openid(&hostile.stage.url)).await;
    let mut person = logged_in_with(&gateway, &hostile, "s1").await;
    let good = logout(&hostile, "j", &json!({"sub": "1"}));
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        hostile.signed(&claims)
    };
    let header = json!({"alg": "ES256", "kid": "k"}).to_string();
    let id_token = json!({"iss": hostile.stage.url, "sub": "1", "aud": "gateway", "iat": now(),
        "exp": now() + 300, "nonce": "n", "jti": "j"});
    let tokens = [
        changed("iss", json!("https://idp.test")),
        changed("aud", json!("another")),
        changed("iat", json!(now() - 3600)),
        changed("exp", json!(now() - 120)),
        changed("events", json!({})),
        changed("nonce", json!("n")),
        changed("jti", Value::Null),
        changed("jti", json!("j".repeat(9000))),
        hostile.signed(&id_token),
        Key::new("k").sign_as(&header, &good.to_string()),
        unsigned(&json!({"alg": "none"}).to_string(), &good.to_string()) + ".",
        String::new(),
        "x".to_owned(),
    ];
    let fetched = || hostile.stage.asked("GET /keys").len();
    let before = fetched();
    for token in &tokens {
        let answer = sent(&gateway, token).await;
        answer.assert_refused(400, "invalid_request");
    }
    // Keys that strangers invent cause no request to the provider. They may be new ones, of which nothing is known yet.
    for kid in 0..20 {
        let header = json!({"alg": "ES256", "kid": format!("k{kid}")}).to_string();
        let token = Key::new("k").sign_as(&header, &good.to_string());
        let answer = sent(&gateway, &token).await;
        answer.assert_refused(503, "temporarily_unavailable");
        assert_eq!(answer.headers["retry-after"], "15");
    }
    assert_eq!(fetched(), before);
    let elsewhere = format!("{}/t/a/oauth/logout/other", gateway.origin());
    let token = hostile.signed(&good);
    post(&elsewhere, &[("logout_token", &token)])
        .await
        .assert_refused(400, "invalid_request");
    assert!(is_in(&gateway, &mut person).await);
    assert!(ended(&gateway).await.is_empty());
    assert_eq!(sent(&gateway, &token).await.status, StatusCode::OK);
    assert!(!is_in(&gateway, &mut person).await);
    // It counts once.
    let mut person = logged_in_with(&gateway, &hostile, "s2").await;
    sent(&gateway, &token)
        .await
        .assert_refused(400, "invalid_request");
    assert!(is_in(&gateway, &mut person).await);
}

/// While the keys of the provider could not be fetched, its logouts were lost, counted as guesses, and each caused a fetch.
#[tokio::test(flavor = "multi_thread")]
async fn a_logout_can_come_again_while_there_are_no_keys() {
    let metadata = "/.well-known/openid-configuration";
    let hostile = Hostile::start().await;
    let config = json!({"oauth": {"failures": 3}});
    let gateway = gateway(config, "1h", openid(&hostile.stage.url)).await;
    hostile.stage.set(metadata, Answer::Json(500, json!({})));
    let token = hostile.signed(&logout(&hostile, "j", &json!({"sub": "1"})));
    for _ in 0..10 {
        let answer = sent(&gateway, &token).await;
        answer.assert_refused(503, "temporarily_unavailable");
        assert_eq!(answer.headers["retry-after"], "15");
    }
    assert_eq!(hostile.stage.asked(&format!("GET {metadata}")).len(), 1);
    // A log-in waits for nothing, and brings the keys.
    hostile
        .stage
        .json(metadata, Hostile::metadata(&hostile.stage));
    let mut person = logged_in_with(&gateway, &hostile, "s1").await;
    assert_eq!(sent(&gateway, &token).await.status, StatusCode::OK);
    assert!(!is_in(&gateway, &mut person).await);
}

/// A provider that has a new key since a moment ago was told 400, after which none sends a logout again, and used up the
/// failures of its address.
#[tokio::test(flavor = "multi_thread")]
async fn a_logout_by_a_new_key_can_come_again() {
    let hostile = Hostile::start().await;
    let config = json!({"oauth": {"failures": 3}});
    let gateway = gateway(config, "1h", openid(&hostile.stage.url)).await;
    let mut person = logged_in_with(&gateway, &hostile, "s1").await;
    let claims = logout(&hostile, "j", &json!({"sub": "1"}));
    let header = json!({"alg": "ES256", "kid": "new"}).to_string();
    let by_new = Key::new("new").sign_as(&header, &claims.to_string());
    for _ in 0..10 {
        let answer = sent(&gateway, &by_new).await;
        answer.assert_refused(503, "temporarily_unavailable");
        assert_eq!(answer.headers["retry-after"], "15");
    }
    assert!(is_in(&gateway, &mut person).await);
    let by_known = hostile.signed(&claims);
    assert_eq!(sent(&gateway, &by_known).await.status, StatusCode::OK);
    assert!(!is_in(&gateway, &mut person).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_counts_at_all_replicas_once() {
    let hostile = Hostile::start().await;
    let pair = pair(&hostile).await;
    let [first, second] = pair.both();
    let refresh = granted_twice(&hostile, first).await;
    let app = App::of(second, "a", "app");
    let tokens = app.refresh(&refresh[0], &[]).await;
    let reached = async |access: &str| {
        let url = format!("{}/t/a/x/mcp", second.origin());
        let asked = client()
            .get(url)
            .bearer_auth(access)
            .header("Accept", "text/event-stream");
        within("a status", asked.send()).await.unwrap().status()
    };
    let access = tokens.text("access_token");
    assert_eq!(reached(&access).await, StatusCode::BAD_REQUEST);
    let token = hostile.signed(&logout(&hostile, "j", &json!({"sub": "1"})));
    let (one, two) = tokio::join!(sent(first, &token), sent(second, &token));
    let mut both = [one.status.as_u16(), two.status.as_u16()];
    both.sort_unstable();
    assert_eq!(both, [200, 400]);
    until("the end of the token", async || {
        reached(&access).await == StatusCode::UNAUTHORIZED
    })
    .await;
    for token in [tokens.text("refresh_token"), refresh[1].clone()] {
        app.refresh(&token, &[])
            .await
            .assert_refused(400, "invalid_grant");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_at_a_real_provider_is_one_here() {
    let mut provider = Provider::start().await;
    let mut acme = openid(&provider.issuer);
    acme["scopes"] = json!(["openid", "groups"]);
    let gateway = gateway(json!({}), "1h", acme).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    let [mut here, mut elsewhere] = [Browser::new(), Browser::new()];
    let mut people = Vec::new();
    for browser in [&mut here, &mut elsewhere] {
        let sent = departed(&gateway, browser, "acme").await;
        let back = browser.follow(sent, &provider.issuer).await;
        let done = browser.follow(back, gateway.origin()).await;
        people.push(redeem(&gateway, &done.answer()["code"], &[]).await);
    }
    let asked = here.open(&format!("{}/session/end", provider.issuer)).await;
    let xsrf = asked.text.split("name=\"xsrf\" value=\"").nth(1).unwrap();
    let fields = [("xsrf", xsrf.split('"').next().unwrap()), ("logout", "yes")];
    let confirm = format!("{}/session/end/confirm", provider.issuer);
    here.post(&confirm, &fields).await;
    until("the end of the token", async || {
        status(&gateway, text(&people[0], "access_token")).await == StatusCode::UNAUTHORIZED
    })
    .await;
    let page = here.open(&request(&gateway, &[])).await;
    assert!(page.text.contains("name=\"password\""), "{}", page.text);
    // The session of the other browser goes on.
    let access = text(&people[1], "access_token");
    assert_eq!(status(&gateway, access).await, StatusCode::BAD_REQUEST);
    assert!(
        elsewhere
            .open(&request(&gateway, &[]))
            .await
            .location()
            .is_some()
    );
    let details = ended(&gateway).await;
    assert_eq!(details.len(), 1, "{details:?}");
}

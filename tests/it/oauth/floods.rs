//! Floods of requests that want something written: each change is written once, and one address
//! can have only so much written in a minute.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::{
    auth::dpop::with_proof,
    oauth::{
        pages::{self, ADA, consent_page, request},
        providers::{Hostile, behind, chosen, openid},
    },
    support::{
        browser::{Browser, Shown},
        dpop::Prover,
        harness::{client_with, until, within},
        oauth_client::{App, BACK, gateway, register, said, send, tenants},
        postgres::Postgres,
        served::Served,
    },
};

/// Waits until there are as many audit records of a kind, repetitions included: they are written behind the
/// response. Those that are too many are seen at once.
async fn assert_recorded(gateway: &Served, kind: &str, expected: usize) {
    let found = Cell::new(0);
    until("all is recorded", || async {
        found.set(recorded(gateway, kind).await);
        found.get() >= expected
    })
    .await;
    assert_eq!(found.get(), expected, "{kind}");
}

/// The number of audit records of a kind, repetitions included.
async fn recorded(gateway: &Served, kind: &str) -> usize {
    let url = format!("{}/api/v1/audit?kind={kind}&limit=1000", gateway.origin());
    let page = send(Method::GET, &url, &gateway.administrator(), None).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    page.body["items"].as_array().unwrap().len()
}

fn assert_delayed(shown: &Shown) {
    assert_eq!(
        shown.status,
        StatusCode::TOO_MANY_REQUESTS,
        "{}",
        shown.text
    );
    let retry: u64 = shown.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry), "{retry}");
    shown.assert_guarded();
}

/// 278 MiB of records in 10 s were possible with one registration.
#[tokio::test]
async fn a_registration_is_changed_ten_times_a_minute_and_only_if_it_differs() {
    let gateway = gateway(json!({})).await;
    let made = register(&gateway, "a", &json!({"redirect_uris": [BACK]})).await;
    let (url, token) = (
        made.text("registration_client_uri"),
        made.text("registration_access_token"),
    );
    let metadata = |name: &str| json!({"client_id": made.text("client_id"), "redirect_uris": [BACK], "client_name": name});
    let put = async |metadata: Value| send(Method::PUT, &url, &token, Some(&metadata)).await;
    for _ in 0..100 {
        let same = put(metadata("One")).await;
        assert_eq!(same.status, StatusCode::OK, "{}", same.body);
        assert_eq!(same.text("client_name"), "One");
    }
    assert_recorded(&gateway, "client.changed", 1).await;
    let mut changed = 1;
    let refused = loop {
        let answer = put(metadata(&format!("Number {changed}"))).await;
        if answer.status != StatusCode::OK || changed == 100 {
            break answer;
        }
        changed += 1;
    };
    refused.assert_refused(429, "temporarily_unavailable");
    let retry: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry), "{retry}");
    assert_eq!(changed, 10);
    assert_recorded(&gateway, "client.changed", 10).await;
    // What does not differ is answered, and another client has a budget of its own.
    assert_eq!(put(metadata("Number 9")).await.status, StatusCode::OK);
    let other = register(&gateway, "a", &json!({"redirect_uris": [BACK]})).await;
    let body = json!({"client_id": other.text("client_id"), "redirect_uris": [BACK],
        "client_name": "Other"});
    let (url, token) = (
        other.text("registration_client_uri"),
        other.text("registration_access_token"),
    );
    let answer = send(Method::PUT, &url, &token, Some(&body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
}

/// Registrations and their changes have one budget for each address.
#[tokio::test]
async fn changes_count_as_registrations_of_their_address() {
    let gateway = gateway(json!({"oauth": {"registrations_address": 4}})).await;
    let made = register(&gateway, "a", &json!({"redirect_uris": [BACK]})).await;
    let (url, token) = (
        made.text("registration_client_uri"),
        made.text("registration_access_token"),
    );
    let mut statuses = Vec::new();
    for name in 0..6 {
        let body = json!({"client_id": made.text("client_id"), "redirect_uris": [BACK],
            "client_name": name.to_string()});
        let answer = send(Method::PUT, &url, &token, Some(&body)).await;
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    assert_recorded(&gateway, "client.changed", 3).await;
}

/// The records of such changes stay, so that they are few; two addresses used them up for all tenants.
#[tokio::test]
async fn first_changes_at_one_tenant_leave_some_to_others() {
    let limits = json!({"registrations_address": 1000, "registrations": 4000});
    let gateway = gateway(json!({"oauth": limits})).await;
    let changed = async |tenant: &str, times: usize| {
        let made = register(&gateway, tenant, &json!({"redirect_uris": [BACK]})).await;
        let (url, token) = (
            made.text("registration_client_uri"),
            made.text("registration_access_token"),
        );
        // The first one alone finds a registration that nobody used and that has not changed.
        let mut statuses = Vec::new();
        for name in 0..times {
            let body = json!({"client_id": made.text("client_id"), "redirect_uris": [BACK],
                "client_name": name.to_string()});
            let answer = send(Method::PUT, &url, &token, Some(&body)).await;
            statuses.push(answer.status.as_u16());
        }
        statuses
    };
    for _ in 0..60 {
        assert_eq!(changed("a", 1).await, [200]);
    }
    assert_eq!(changed("a", 1).await, [429]);
    assert_eq!(changed("b", 2).await, [200, 200]);
}

/// Forty clients that changed nothing of their registrations kept the database and a processor busy.
#[tokio::test]
async fn an_address_asks_about_registrations_300_times_a_minute() {
    let gateway = gateway(json!({})).await;
    let made = register(&gateway, "a", &json!({"redirect_uris": [BACK]})).await;
    let (url, token) = (
        made.text("registration_client_uri"),
        made.text("registration_access_token"),
    );
    let same = json!({"client_id": made.text("client_id"), "redirect_uris": [BACK]});
    // Wrong tokens count too; a hundred of them would be refused for their own sake.
    let wrong = send(Method::GET, &url, "wrong", None).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    for at in 1..300 {
        let (method, body) = if at % 2 == 0 {
            (Method::PUT, Some(&same))
        } else {
            (Method::GET, None)
        };
        let answer = send(method, &url, &token, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{at}: {}", answer.body);
    }
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let answer = send(method, &url, &token, Some(&same)).await;
        answer.assert_refused(429, "temporarily_unavailable");
        let retry: u64 = answer.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&retry), "{retry}");
    }
}

/// 9,969 records in 5 s were possible with one form.
#[tokio::test]
async fn a_consent_form_is_taken_once() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[("prompt", "consent")]);
    let denied = consent_page(&gateway, &mut browser, &url).await;
    let allowed = browser.open(&url).await;
    for (page, decision, kind) in [
        (&denied, "deny", "consent.denied"),
        (&allowed, "allow", "consent.given"),
    ] {
        let first = browser.submit(page, &[("decision", decision)]).await;
        assert_eq!(first.status, StatusCode::SEE_OTHER, "{}", first.text);
        for _ in 0..50 {
            for again in ["deny", "allow"] {
                let again = browser.submit(page, &[("decision", again)]).await;
                assert_eq!(again.status, StatusCode::BAD_REQUEST, "{}", again.text);
                again.assert_guarded();
            }
        }
        assert_recorded(&gateway, kind, 1).await;
    }
}

/// Before the log-in at a provider anybody may deny: 600 records a minute of each address were kept for months.
#[tokio::test]
async fn denials_of_nobody_leave_no_record() {
    let hostile = Hostile::start().await;
    let providers = json!({"acme": openid(&hostile.stage.url)});
    let gateway = behind(json!({}), providers).await;
    for _ in 0..3 {
        let mut stranger = Browser::new();
        let page = chosen(&gateway, &mut stranger, "acme").await;
        let denied = stranger.submit(&page, &[("decision", "deny")]).await;
        assert_eq!(denied.answer()["error"], "access_denied");
    }
    let mut browser = Browser::new();
    let page = consent_page(&gateway, &mut browser, &request(&gateway, &[])).await;
    let denied = browser.submit(&page, &[("decision", "deny")]).await;
    assert_eq!(denied.answer()["error"], "access_denied");
    assert_recorded(&gateway, "consent.denied", 1).await;
}

/// 54 MB of log-ins in progress in 5 s were possible with one form.
#[tokio::test]
async fn a_form_leads_to_a_provider_once() {
    let provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
        "client_secret": "secret", "authorization_url": "http://127.0.0.1:9/authorize",
        "token_url": "http://127.0.0.1:9/token", "user_url": "http://127.0.0.1:9/user"});
    let gateway = behind(json!({"oauth": {"writes": 5}}), json!({"acme": provider})).await;
    let mut browser = Browser::new();
    let allow = [("decision", "allow")];
    let consent = chosen(&gateway, &mut browser, "acme").await;
    let sent = browser.submit(&consent, &allow).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let again = browser.submit(&consent, &allow).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST, "{}", again.text);
    // A page opened again has another form; the budget of the address ends that.
    let mut sent = 1;
    let refused = loop {
        let consent = chosen(&gateway, &mut browser, "acme").await;
        let shown = browser.submit(&consent, &allow).await;
        if shown.status != StatusCode::SEE_OTHER || sent == 20 {
            break shown;
        }
        sent += 1;
    };
    assert_delayed(&refused);
    assert!(sent <= 5, "{sent}");
}

/// Such a form was told that its first answer counts, which was none.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_good_again_if_nobody_could_be_sent_on() {
    let provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
        "client_secret": "secret", "authorization_url": "http://127.0.0.1:9/authorize",
        "token_url": "http://127.0.0.1:9/token", "user_url": "http://127.0.0.1:9/user"});
    let postgres = Postgres::start();
    let config = json!({"sql": {"url": postgres.url()}, "oauth": {"writes": 1}});
    let gateway = behind(config, json!({"acme": provider})).await;
    let mut sql = PgConnection::connect(&postgres.url()).await.unwrap();
    let mut browser = Browser::new();
    let consent = chosen(&gateway, &mut browser, "acme").await;
    let hide = "ALTER TABLE trips RENAME TO hidden";
    sqlx::query(hide).execute(&mut sql).await.unwrap();
    let refused = browser.submit(&consent, &[("decision", "allow")]).await;
    assert_eq!(
        refused.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        refused.text
    );
    let show = "ALTER TABLE hidden RENAME TO trips";
    sqlx::query(show).execute(&mut sql).await.unwrap();
    let sent = browser.submit(&consent, &[("decision", "allow")]).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
}

/// Decisions, log-ins and codes of one address have a budget.
#[tokio::test]
async fn an_address_has_only_so_much_written() {
    let gateway = pages::gateway(json!({"oauth": {"writes": 8}}), json!({})).await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[("prompt", "consent")]);
    consent_page(&gateway, &mut browser, &url).await;
    let mut denied = 0;
    let refused = loop {
        let page = browser.open(&url).await;
        let shown = browser.submit(&page, &[("decision", "deny")]).await;
        if shown.status != StatusCode::SEE_OTHER || denied == 50 {
            break shown;
        }
        denied += 1;
    };
    assert_delayed(&refused);
    assert_eq!(denied, 7, "and the log-in");
    assert_recorded(&gateway, "consent.denied", 7).await;
    let login = Browser::new().open(&request(&gateway, &[])).await;
    assert_eq!(login.status, StatusCode::OK, "pages are still shown");
    let mut other = Browser::new();
    let login = other.open(&request(&gateway, &[])).await;
    assert_delayed(&other.submit(&login, &ADA).await);
    assert_recorded(&gateway, "login", 1).await;
}

/// A remembered consent gives a code without a page, as often as the budget allows.
#[tokio::test]
async fn codes_without_a_page_have_a_budget() {
    let gateway = pages::gateway(json!({"oauth": {"writes": 8}}), json!({})).await;
    let mut browser = Browser::new();
    let consent = consent_page(&gateway, &mut browser, &request(&gateway, &[])).await;
    let done = browser.submit(&consent, &[("decision", "allow")]).await;
    assert!(done.answer().contains_key("code"));
    let mut codes = 0;
    let refused = loop {
        let shown = browser.open(&request(&gateway, &[])).await;
        if shown.status != StatusCode::FOUND || codes == 50 {
            break shown;
        }
        codes += 1;
    };
    assert_delayed(&refused);
    assert_eq!(codes, 6, "and the log-in and the consent");
}

/// A person at a few addresses had as many times the codes of one.
#[tokio::test]
async fn codes_of_a_person_have_a_budget_at_all_addresses() {
    let config = json!({"oauth": {"writes": 8}, "http": {"trusted_proxies": ["127.0.0.1/32"]}});
    let gateway = pages::gateway(config, json!({})).await;
    let from = |address: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("X-Forwarded-For", address.parse().unwrap());
        Browser::with(client_with(headers))
    };
    let (mut home, mut away) = (from("192.0.2.1"), from("192.0.2.2"));
    let consent = consent_page(&gateway, &mut home, &request(&gateway, &[])).await;
    let done = home.submit(&consent, &[("decision", "allow")]).await;
    assert!(done.answer().contains_key("code"));
    away.steal(&home);
    for at in 1..8 {
        let shown = away.open(&request(&gateway, &[])).await;
        assert_eq!(shown.status, StatusCode::FOUND, "{at}: {}", shown.text);
    }
    for browser in [&mut home, &mut away] {
        assert_delayed(&browser.open(&request(&gateway, &[])).await);
    }
    let again = request(&gateway, &[("prompt", "consent")]);
    let page = home.open(&again).await;
    assert_delayed(&home.submit(&page, &[("decision", "allow")]).await);
    assert_recorded(&gateway, "consent.given", 1).await;
}

/// 7,819 records in 4 s were possible with one token.
#[tokio::test]
async fn a_revoked_token_is_revoked_once() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let (access, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
    for _ in 0..50 {
        for token in [&refresh, &access] {
            assert_eq!(app.revoke(token).await, StatusCode::OK);
        }
    }
    assert_recorded(&gateway, "grant.revoked", 1).await;
    let refused = app.refresh(&refresh, &[]).await;
    refused.assert_refused(400, "invalid_grant");
}

/// Whoever had such a token took the lock of all writers with it, at each replica, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_grant_that_has_ended_waits_for_no_writer() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    // As if it had expired: no replica remembers a revocation.
    for statement in ["DELETE FROM refresh_tokens", "DELETE FROM grants"] {
        sqlx::query(statement).execute(&mut sql).await.unwrap();
    }
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE changes IN SHARE ROW EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    for _ in 0..10 {
        assert_eq!(app.revoke(&token).await, StatusCode::OK);
    }
    lock.rollback().await.unwrap();
}

/// Each refresh writes a token that lives for weeks. One too many used up a proof before it was refused.
#[tokio::test]
async fn a_grant_is_refreshed_300_times_a_minute() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let mut token = app.tokens().await.text("refresh_token");
    let mut count = 0;
    let refused = loop {
        let answer = within("an answer", app.refresh(&token, &[])).await;
        if answer.status != StatusCode::OK || count == 1000 {
            break answer;
        }
        token = answer.text("refresh_token");
        count += 1;
    };
    refused.assert_refused(429, "temporarily_unavailable");
    assert_eq!(count, 300);
    let proof = Prover::new().for_token(&app.endpoint("token"));
    let proved = with_proof(&app, &proof);
    let refused = proved.refresh(&token, &[]).await;
    refused.assert_refused(429, "temporarily_unavailable");
    let code = app.code(&[]).await;
    let tokens = proved.redeem(&code, &[]).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
    // Another grant is not affected, and this one goes on later: the token was not used.
    let other = app.tokens().await.text("refresh_token");
    assert_eq!(app.refresh(&other, &[]).await.status, StatusCode::OK);
}

/// Each retry took the lock of its grant's row and a commit, on which all others waited, and was in no budget.
#[tokio::test]
async fn a_refresh_token_comes_again_within_the_budget_of_its_grant() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("refresh_token");
    let next = app.refresh(&token, &[]).await.text("refresh_token");
    let mut count = 1;
    let refused = loop {
        let again = within("an answer", app.refresh(&token, &[])).await;
        if again.status != StatusCode::OK || count == 1000 {
            break again;
        }
        assert_eq!(again.text("refresh_token"), next);
        count += 1;
    };
    refused.assert_refused(429, "temporarily_unavailable");
    assert_eq!(count, 300);
    let other = app.tokens().await.text("refresh_token");
    assert_eq!(app.refresh(&other, &[]).await.status, StatusCode::OK);
}

async fn assert_used_up(grants: &[(&App, String)]) {
    for (app, token) in grants {
        let refused = app.refresh(token, &[]).await;
        refused.assert_refused(429, "temporarily_unavailable");
        let retry: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&retry), "{retry}");
    }
}

/// Nothing bounded the refreshes of a person who had many grants, and one client could take all of them.
#[tokio::test]
async fn a_person_refreshes_1200_times_a_minute() {
    let gateway = gateway(json!({})).await;
    let (app, other) = (
        App::public(&gateway, "a").await,
        App::public(&gateway, "a").await,
    );
    let mut grants = Vec::new();
    for (app, rounds) in [(&app, [180; 5]), (&other, [60; 5])] {
        for count in rounds {
            let token = app.tokens().await.text("refresh_token");
            grants.push((app, token, count));
        }
    }
    let refreshed = grants
        .into_iter()
        .map(|(app, mut token, count)| async move {
            for _ in 0..count {
                let answer = within("an answer", app.refresh(&token, &[])).await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
                token = answer.text("refresh_token");
            }
            (app, token)
        });
    let mut refreshed: Vec<_> = refreshed.collect();
    let of_other = refreshed.split_off(5);
    // One client has 900 of them.
    assert_used_up(&join_all(refreshed).await).await;
    assert_used_up(&join_all(of_other).await).await;
}

/// A code was free where its consent is remembered, and each began a grant that stays for months.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_has_100_grants_to_a_client() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::site(&gateway, "a").await;
    let mut browser = Browser::new();
    let login = browser.open(&app.request(&[])).await;
    let sent = browser.submit(&login, &ADA).await;
    let consent = browser.follow(sent, &app.origin).await;
    let done = browser.submit(&consent, &[("decision", "allow")]).await;
    let (mut code, mut tokens) = (done.answer()["code"].clone(), Vec::new());
    for _ in 0..100 {
        let answer = within("an answer", app.redeem(&code, &[])).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        tokens.push(answer.text("refresh_token"));
        let next = browser.open(&app.request(&[])).await;
        code = next.answer()["code"].clone();
    }
    let refused = app.redeem(&code, &[]).await;
    refused.assert_refused(429, "temporarily_unavailable");
    let retry: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=900).contains(&retry), "{retry}");
    // Another client has room.
    App::public(&gateway, "a").await.tokens().await;
    assert_recorded(&gateway, "grant.revoked", 0).await;
    // The code is good still, once a grant is not in use any more.
    let aged = "UPDATE grants SET created_ms = created_ms - 3600000
                 WHERE id = (SELECT id FROM grants ORDER BY created_ms LIMIT 1)";
    sqlx::query(aged).execute(&mut sql).await.unwrap();
    let answer = app.redeem(&code, &[]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_recorded(&gateway, "grant.revoked", 1).await;
    let ended = app.refresh(&tokens[0], &[]).await;
    ended.assert_refused(400, "invalid_grant");
    let other = app.refresh(&tokens[1], &[]).await;
    assert_eq!(other.status, StatusCode::OK, "{}", other.body);
}

/// Used tokens were kept for a month, so that their reuse is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_token_of_long_ago_ends_its_grant() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let (app, other) = (
        App::public(&gateway, "a").await,
        App::public(&gateway, "a").await,
    );
    let mut used = Vec::new();
    for _ in 0..2 {
        let old = app.tokens().await.text("refresh_token");
        let tokens = app.refresh(&old, &[]).await;
        let (access, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
        used.push((old, access, refresh));
    }
    // As an hour later.
    let swept = "DELETE FROM refresh_tokens WHERE used_ms IS NOT NULL";
    sqlx::query(swept).execute(&mut sql).await.unwrap();
    for (token, _, _) in &used {
        let refused = other.refresh(token, &[]).await;
        refused.assert_refused(400, "invalid_grant");
        assert_eq!(other.revoke(token).await, StatusCode::OK);
    }
    let (text, family) = used[0].2.split_once('.').unwrap();
    let foreign = format!("{text}.{}", family.replace(|_: char| true, "A"));
    let refused = app.refresh(&foreign, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    for (_, access, _) in &used {
        assert!(app.reaches("x", access).await, "it has ended");
    }
    let refused = app.refresh(&used[0].0, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    assert_eq!(app.revoke(&used[1].0).await, StatusCode::OK);
    for (_, access, refresh) in &used {
        assert!(!app.reaches("x", access).await, "it is good still");
        let refused = app.refresh(refresh, &[]).await;
        refused.assert_refused(400, "invalid_grant");
    }
    assert_recorded(&gateway, "grant.revoked", 2).await;
}

/// One address held the turns of all tenants, by a few requests at each.
#[tokio::test]
async fn slow_requests_of_one_address_leave_turns_to_others() {
    let tenant = json!({"auth": {"mode": "builtin"}, "servers": {"x": {"command": "cat"}}});
    let tenants: serde_json::Map<_, _> = (0..60)
        .map(|at| (format!("t{at}"), tenant.clone()))
        .collect();
    let gateway = Served::start(json!({}), tenants.into()).await;
    let host = gateway.origin().split_once("://").unwrap().1.to_owned();
    let mut held = Vec::new();
    for at in 0..1200 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut socket = socket.connect(host.parse().unwrap()).await.unwrap();
        let request = format!(
            "POST /t/t{}/oauth/token HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\ngrant_type=",
            at % 60
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        held.push(socket);
    }
    until("the flood has all turns that it can have", || async {
        let refused = held.iter().filter(|socket| {
            let mut first = [0];
            socket.try_read(&mut first).is_ok()
        });
        refused.count() >= 600
    })
    .await;
    let jwks = format!("{}/t/t0/oauth/jwks", gateway.origin());
    let others = (0..16).map(|_| async {
        // Each takes its turn for as long as its body takes.
        let mut socket = TcpStream::connect(&host).await.unwrap();
        let request = format!(
            "POST /t/t0/oauth/token HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\na"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        socket
    });
    let others = join_all(others).await;
    let answer = reqwest::get(&jwks).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    for mut socket in others {
        socket.write_all(b"b").await.unwrap();
        let mut answer = [0; 12];
        within("an answer", socket.read_exact(&mut answer))
            .await
            .unwrap();
        assert_eq!(&answer, b"HTTP/1.1 400");
    }
    drop(held);
}

/// A gateway over a PostgreSQL, whose tables a test changes by `sql`.
async fn over_postgres() -> (Served, Postgres, PgConnection) {
    let postgres = Postgres::start();
    let config = json!({"sql": {"url": postgres.url()}, "public_url": "https://gw.test"});
    let sql = PgConnection::connect(&postgres.url()).await.unwrap();
    (gateway(config).await, postgres, sql)
}

/// Ends grants as an administrator; the status.
async fn end(gateway: &Served, what: Value) -> StatusCode {
    let url = format!("{}/api/v1/tenants/a/revocations", gateway.origin());
    let operator = gateway.administrator();
    send(Method::POST, &url, &operator, Some(&what))
        .await
        .status
}

/// The grant of an access token.
fn grant_of(token: &str) -> Value {
    said(token).1["grant"].clone()
}

/// A token that an administrator had revoked was good until such a flood ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_bites_while_requests_have_all_connections_to_the_database() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::public(&gateway, "a").await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(app.tokens().await.text("access_token"));
    }
    // Each request waits for this, with its connection.
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE registrations IN ACCESS EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    let full = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..64 {
        let (url, http, full) = (app.request(&[]), app.http.clone(), Arc::clone(&full));
        flood.spawn(async move {
            loop {
                let status = http.get(&url).send().await.unwrap().status();
                full.fetch_add(usize::from(status == 503), Ordering::Relaxed);
            }
        });
    }
    until("a flood that no connection is left for", || async {
        full.load(Ordering::Relaxed) >= 64
    })
    .await;
    for token in &tokens[..2] {
        assert!(app.reaches("x", token).await);
        let ended = end(&gateway, json!({"grant": grant_of(token)})).await;
        assert_eq!(ended, StatusCode::NO_CONTENT);
        assert!(!app.reaches("x", token).await, "it is good still");
    }
    let ended = end(&gateway, json!({"subject": said(&tokens[2]).1["sub"]})).await;
    assert_eq!(ended, StatusCode::NO_CONTENT);
    assert!(!app.reaches("x", &tokens[2]).await, "it is good still");
    flood.shutdown().await;
    lock.rollback().await.unwrap();
}

/// Two lists of a tenant's administrator held the connections by which a replica learns of revocations, and by which
/// operators could have removed the key.
#[tokio::test(flavor = "multi_thread")]
async fn lists_of_a_tenants_administrator_keep_nobody_else_waiting() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    let (operator, api) = (
        gateway.administrator(),
        format!("{}/api/v1", gateway.origin()),
    );
    let key = json!({"name": "boss", "subject": "boss", "scopes": ["admin"], "servers": ["*"]});
    let keys = format!("{api}/tenants/a/api-keys");
    let made = send(Method::POST, &keys, &operator, Some(&key)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    // Each list waits for this, with its connection.
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE users IN ACCESS EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let mut lists = JoinSet::new();
    for _ in 0..40 {
        let (url, boss) = (format!("{api}/tenants/a/users"), made.text("key"));
        let refused = Arc::clone(&refused);
        lists.spawn(async move {
            loop {
                let status = send(Method::GET, &url, &boss, None).await.status;
                refused.fetch_add(usize::from(status == 503), Ordering::Relaxed);
            }
        });
    }
    until("lists that waited too long", || async {
        refused.load(Ordering::Relaxed) > 0
    })
    .await;
    for _ in 0..10 {
        let url = format!("{api}/operator-keys");
        let listed = send(Method::GET, &url, &operator, None).await;
        assert_eq!(listed.status, StatusCode::OK, "{}", listed.body);
    }
    assert!(app.reaches("x", &token).await);
    let ended = end(&gateway, json!({"grant": grant_of(&token)})).await;
    assert_eq!(ended, StatusCode::NO_CONTENT);
    assert!(!app.reaches("x", &token).await, "it is good still");
    lists.shutdown().await;
    lock.rollback().await.unwrap();
}

/// They were parsed first, and waited as trees of many times the bytes that had counted.
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_parsed_at_the_turn_of_their_change() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let api = format!("{}/api/v1/tenants/a", gateway.origin());
    let key = json!({"name": "boss", "subject": "boss", "scopes": ["admin"], "servers": ["*"]});
    let (keys, operator) = (format!("{api}/api-keys"), gateway.administrator());
    let made = send(Method::POST, &keys, &operator, Some(&key)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let mut asked = JoinSet::new();
    let mut ask = |method: Method, path: &str, body: Value| {
        let (url, boss) = (format!("{api}/{path}"), made.text("key"));
        asked.spawn(async move { send(method, &url, &boss, Some(&body)).await.status });
    };
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE users IN ACCESS EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    ask(Method::PUT, "users/eve", json!({"disabled": true}));
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'users'::regclass";
    within("a change that waits", async {
        loop {
            let found = sqlx::query_scalar::<_, i64>(waiting);
            if found.fetch_one(&mut *lock).await.unwrap() > 0 {
                break;
            }
        }
    })
    .await;
    // Neither is an object.
    ask(Method::PUT, "users/ada", json!([]));
    ask(Method::POST, "api-keys", json!([]));
    let early = timeout(Duration::from_millis(500), asked.join_next()).await;
    assert!(early.is_err(), "one did not wait: {early:?}");
    lock.rollback().await.unwrap();
    let said = within("all of them", asked.join_all()).await;
    let refused = said.iter().filter(|one| **one == StatusCode::BAD_REQUEST);
    assert_eq!(refused.count(), 2, "{said:?}");
}

/// A request to a tenant's part of the administration API: its method, its path there and its body.
type Request = (Method, &'static str, Value);

/// Requests that end access, or remove a secret.
fn endings() -> Vec<Request> {
    vec![
        (Method::POST, "revocations", json!({"client": "nobody"})),
        (Method::PUT, "users/eve", json!({"disabled": true})),
        (Method::DELETE, "users/nobody", Value::Null),
        (Method::DELETE, "clients/nobody", Value::Null),
        (Method::DELETE, "clients/c_nobody", Value::Null),
        (Method::DELETE, "api-keys/k_nobody", Value::Null),
        (Method::DELETE, "api-keys/nobody", Value::Null),
        (Method::POST, "api-keys/nobody/rotate", Value::Null),
        (
            Method::DELETE,
            "connections/nobody?subject=ada",
            Value::Null,
        ),
        (Method::DELETE, "servers/x/secrets/NOTHING", Value::Null),
    ]
}

/// Other changes. Each was a record and made every replica read the tenant again, without a bound.
fn changes() -> Vec<Request> {
    let key = json!({"name": "more", "subject": "more", "servers": ["*"]});
    let client = json!({"redirect_uris": ["https://app.test/cb"]});
    vec![
        (Method::PUT, "users/eve", json!({"groups": ["a"]})),
        (Method::PUT, "clients/more", client),
        (Method::POST, "api-keys", key),
        (Method::PUT, "api-keys/other", json!({})),
        (
            Method::PUT,
            "servers/y/secrets/SHARED",
            json!({"value": "x"}),
        ),
    ]
}

async fn asked(api: &str, key: &str, (method, path, body): &Request) -> StatusCode {
    let body = (!body.is_null()).then_some(body);
    let url = format!("{api}/{path}");
    send(method.clone(), &url, key, body).await.status
}

/// Repeats a request that fails, several at once, until it is 429. Returns how many were not.
async fn used_up(api: &str, key: &str, (method, path, body): &Request) -> usize {
    let http = reqwest::Client::new();
    let mut asking = JoinSet::new();
    for _ in 0..3 {
        let mut request = http
            .request(method.clone(), format!("{api}/{path}"))
            .bearer_auth(key);
        if !body.is_null() {
            request = request
                .header("Content-Type", "application/json")
                .body(body.to_string());
        }
        asking.spawn(async move {
            let mut counted: usize = 0;
            loop {
                let asked = request.try_clone().unwrap().send();
                let status = asked.await.unwrap().status();
                if status == StatusCode::TOO_MANY_REQUESTS {
                    return counted;
                }
                assert!(status.is_client_error(), "{status}");
                counted += 1;
            }
        });
    }
    let counted = within("the bound of a minute", asking.join_all()).await;
    counted.into_iter().sum()
}

/// Asserts that requests are 429 for a tenant's administrator, and not for an operator.
async fn assert_bounded(api: &str, [boss, operator]: [&str; 2], requests: Vec<Request>) {
    for one in requests {
        let refused = asked(api, boss, &one).await;
        assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS, "{one:?}");
        let done = asked(api, operator, &one).await;
        assert_ne!(done, StatusCode::TOO_MANY_REQUESTS, "{one:?}");
    }
}

/// Each is a row that all replicas keep for a day and read at their start, and there was no bound. Then there was one for
/// all: a program that kept the users of a tenant in order used up the ends of access.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenants_administrator_ends_is_bounded_by_the_minute() {
    let mut all = tenants();
    all["a"]["servers"]["y"]["secrets"] = json!({"SHARED": {"for": "tenant"}});
    let gateway = Served::start(json!({}), all).await;
    let (operator, api) = (
        gateway.administrator(),
        format!("{}/api/v1/tenants/a", gateway.origin()),
    );
    let key = json!({"name": "boss", "subject": "boss", "scopes": ["admin"], "servers": ["*"]});
    let keys = format!("{api}/api-keys");
    let made = send(Method::POST, &keys, &operator, Some(&key)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let boss = made.text("key");
    let both = [boss.as_str(), operator.as_str()];
    let signing_key = (Method::DELETE, "signing-keys/nobody", Value::Null);
    for _ in 0..10 {
        let status = asked(&api, &boss, &signing_key).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    let user = (Method::PUT, "users/ada", json!({"groups": ["b"]}));
    for _ in 0..5 {
        assert_eq!(asked(&api, &boss, &user).await, StatusCode::OK);
    }
    // There is such a key. Four of the five before it changed nothing.
    let again = (Method::POST, "api-keys", key);
    assert_eq!(used_up(&api, &boss, &again).await, 599);
    assert_bounded(&api, both, changes()).await;
    for one in endings() {
        let status = asked(&api, &boss, &one).await;
        assert_ne!(status, StatusCode::TOO_MANY_REQUESTS, "{one:?}");
    }
    let secret = (Method::DELETE, "servers/x/secrets/NOTHING", Value::Null);
    used_up(&api, &boss, &secret).await;
    let new_key = (Method::POST, "signing-keys", Value::Null);
    let others = [vec![signing_key, new_key], endings()].concat();
    assert_bounded(&api, both, others).await;
}

/// It was 200, and ended without a record.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_cannot_begin_is_503() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let mut lock = sql.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE audit IN ACCESS EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    let asked = reqwest::Client::new()
        .get(format!("{}/api/v1/audit", gateway.origin()))
        .bearer_auth(gateway.administrator())
        .header("Accept", "application/x-ndjson");
    let answer = within("an answer", asked.send()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_that_does_not_hold_yet_is_503() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    // With the commit of a revocation its number cannot be read any more.
    for statement in [
        "CREATE FUNCTION hide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             ALTER TABLE changes RENAME COLUMN revocation TO hidden; RETURN NULL;
         END $$",
        "CREATE CONSTRAINT TRIGGER hide AFTER INSERT ON revocations
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hide()",
    ] {
        sqlx::query(statement).execute(&mut sql).await.unwrap();
    }
    let ended = end(&gateway, json!({"grant": grant_of(&token)})).await;
    assert_eq!(ended, StatusCode::SERVICE_UNAVAILABLE);
    assert!(app.reaches("x", &token).await, "nothing tells this replica");
    let shown = "ALTER TABLE changes RENAME COLUMN hidden TO revocation";
    sqlx::query(shown).execute(&mut sql).await.unwrap();
    until("the end of the grant", || async {
        !app.reaches("x", &token).await
    })
    .await;
    // It was told to come again, and must not hear that there is no such grant.
    let again = end(&gateway, json!({"grant": grant_of(&token)})).await;
    assert_eq!(again, StatusCode::NO_CONTENT);
}

/// A code was used up, and its client was told to come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_kept_no_longer_gets_its_tokens() {
    let (gateway, _postgres, mut sql) = over_postgres().await;
    let app = App::public(&gateway, "a").await;
    let code = app.code(&[]).await;
    for statement in [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'no change'; END $$",
        "CREATE TRIGGER refuse BEFORE UPDATE ON registrations
             FOR EACH ROW EXECUTE FUNCTION refuse()",
    ] {
        sqlx::query(statement).execute(&mut sql).await.unwrap();
    }
    let tokens = app.redeem(&code, &[]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
}

//! Tokens of a tenant's own authorization server: discovery, audience, forgery, revocation while
//! streams are open, and signing keys.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::{
    auth::external_tokens::bearer,
    support::{
        browser::{Browser, Shown},
        cluster::place,
        faulty::{Faulty, Mode},
        harness::{BOTH, Events, NEWEST, Session, client, opening, tool_call, until, within},
        issuer::Key,
        oauth_client::{Answer, App, gateway, said, send},
        postgres::Postgres,
        served::Served,
    },
};

/// The replicas over one database: one over SQLite, two over PostgreSQL.
struct Ground {
    replicas: Vec<Served>,
    /// PostgreSQL, and the way of the last replica to it.
    _postgres: Option<(Postgres, Arc<Faulty>)>,
}

impl Ground {
    async fn sqlite(oauth: Value) -> Self {
        Self {
            replicas: vec![gateway(json!({"oauth": oauth})).await],
            _postgres: None,
        }
    }

    async fn postgres(oauth: Value) -> Self {
        Self::postgres_by_way(oauth).await.0
    }

    /// [`Ground::postgres`], and the way of the last replica to PostgreSQL.
    async fn postgres_by_way(oauth: Value) -> (Self, Arc<Faulty>) {
        let postgres = Postgres::start();
        let server = place(&postgres.url());
        let way = Arc::new(Faulty::before(&server).await);
        let mut config = json!({
            "sql": {"url": postgres.url()}, "public_url": "https://gw.test",
            "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "oauth": oauth,
        });
        let first = gateway(config.clone()).await;
        let url = postgres.url().replace(&server, &way.address.to_string());
        config["sql"]["url"] = json!(url);
        let ground = Self {
            replicas: vec![first, gateway(config).await],
            _postgres: Some((postgres, Arc::clone(&way))),
        };
        (ground, way)
    }

    fn first(&self) -> &Served {
        &self.replicas[0]
    }

    fn last(&self) -> &Served {
        self.replicas.last().unwrap()
    }

    /// Sends an administration request as an operator. Only the first replica has the key file.
    async fn operate(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        operate(
            self.first(),
            &self.first().administrator(),
            method,
            path,
            body,
        )
        .await
    }

    /// The statuses of all replicas for an access token for server x.
    async fn statuses(&self, token: &str) -> Vec<u16> {
        let mut statuses = Vec::new();
        for replica in &self.replicas {
            statuses.push(status(replica, token).await);
        }
        statuses
    }
}

async fn operate(
    gateway: &Served,
    key: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let url = format!("{}/api/v1{path}", gateway.origin());
    send(method, &url, key, body).await
}

/// A valid token without a session id gets 400.
const GOOD: u16 = 400;

async fn status(gateway: &Served, token: &str) -> u16 {
    status_at(&format!("{}/t/a/x/mcp", gateway.origin()), token).await
}

async fn status_at(url: &str, token: &str) -> u16 {
    let asked = client().get(url).bearer_auth(token);
    let asked = asked.header("Accept", "text/event-stream").send();
    within("a status", asked).await.unwrap().status().as_u16()
}

/// A session with an access token, and its listener.
async fn listening(gateway: &Served, token: &str) -> (Session, Events) {
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(bearer(token), url);
    session.initialize(NEWEST).await;
    let listener = session.listen().await;
    (session, listener)
}

/// The time until every replica refuses a token. Waits for the end of a stream, too.
async fn ended(ground: &Ground, token: &str, stream: Events) -> Duration {
    let began = Instant::now();
    let mut refused = None;
    while refused.is_none() {
        let statuses = ground.statuses(token).await;
        if statuses.iter().all(|status| *status == 401) {
            refused = Some(began.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{statuses:?}");
    }
    let rest = within("the end of the stream", stream_end(stream));
    rest.await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "the stream goes on"
    );
    refused.unwrap()
}

async fn stream_end(mut stream: Events) {
    while stream.next().await.is_some() {}
}

/// The answer to the registration of a public client.
async fn registered(gateway: &Served) -> Answer {
    let metadata = json!({"redirect_uris": [crate::support::oauth_client::BACK],
        "token_endpoint_auth_method": "none"});
    crate::support::oauth_client::register(gateway, "a", &metadata).await
}

/// Every way to revoke a token, each with an open stream of that token.
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn revocations_reach_streams(ground: Ground) {
    let gateway = ground.first();
    let mut times = Vec::new();
    // Another client of the same person: only revocations of the person end its tokens.
    let other = App::public(gateway, "a").await;
    let mut bystander = other.tokens().await.text("access_token");
    let (_kept, mut listener) = listening(ground.last(), &bystander).await;
    let ada = "/tenants/a/users/ada";
    let enabled = json!({"password": "correct horse", "groups": ["eng"]});
    for way in [
        "its own revocation",
        "the grant",
        "the client",
        "the registration",
        "the person",
        "a disabled user",
        "a removed user",
        "the key",
    ] {
        let registered = registered(gateway).await;
        let app = App::of(gateway, "a", &registered.text("client_id"));
        let tokens = app.tokens().await;
        let token = tokens.text("access_token");
        // A replaced key or user reaches every replica after a moment.
        let began = Instant::now();
        while ground
            .statuses(&token)
            .await
            .iter()
            .any(|status| *status != GOOD)
        {
            assert!(began.elapsed() < Duration::from_secs(5), "{way}");
        }
        let (_session, stream) = listening(ground.last(), &token).await;
        let (header, claims) = said(&token);
        let revoke = async |what: Value| {
            let path = "/tenants/a/revocations";
            let answer = ground.operate(Method::POST, path, Some(&what)).await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        };
        let mut is_of_person = false;
        match way {
            "its own revocation" => {
                let refresh = tokens.text("refresh_token");
                assert_eq!(app.revoke(&refresh).await, StatusCode::OK);
            }
            "the grant" => revoke(json!({"grant": claims["grant"]})).await,
            "the client" => revoke(json!({"client": app.id})).await,
            "the registration" => {
                // The removal of another registration does not affect this token.
                let other = self::registered(gateway).await;
                for (made, is_own) in [(&other, false), (&registered, true)] {
                    let url = made.text("registration_client_uri");
                    let url = url.replace("https://gw.test", gateway.origin());
                    let rat = made.text("registration_access_token");
                    let gone = send(Method::DELETE, &url, &rat, None).await;
                    assert_eq!(gone.status, StatusCode::NO_CONTENT);
                    if !is_own {
                        assert_eq!(status(ground.last(), &token).await, GOOD);
                    }
                }
            }
            "the person" => {
                is_of_person = true;
                revoke(json!({"subject": "ada"})).await;
            }
            "a disabled user" => {
                is_of_person = true;
                let mut disabled = enabled.clone();
                disabled["disabled"] = json!(true);
                let put = ground.operate(Method::PUT, ada, Some(&disabled)).await;
                assert_eq!(put.status, StatusCode::OK, "{}", put.body);
            }
            "a removed user" => {
                is_of_person = true;
                let gone = ground.operate(Method::DELETE, ada, None).await;
                assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.body);
            }
            _ => {
                is_of_person = true;
                let kid = header["kid"].as_str().unwrap();
                let path = format!("/tenants/a/signing-keys/{kid}");
                let gone = ground.operate(Method::DELETE, &path, None).await;
                assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.body);
            }
        }
        times.push(ended(&ground, &token, stream).await);
        let refreshed = app.refresh(&tokens.text("refresh_token"), &[]).await;
        let is_dead = refreshed.status != StatusCode::OK;
        assert_eq!(is_dead, way != "the key", "{way}: {}", refreshed.body);
        if is_of_person {
            within("the bystander's end", stream_end(listener)).await;
            assert_eq!(
                ground.statuses(&bystander).await,
                vec![401; ground.replicas.len()]
            );
            let put = ground.operate(Method::PUT, ada, Some(&enabled)).await;
            assert!(put.status.is_success(), "{}", put.body);
            // A user who is added or enabled again inherits no tokens.
            assert_eq!(status(gateway, &token).await, 401, "{way}");
            let refreshed = app.refresh(&tokens.text("refresh_token"), &[]).await;
            assert_eq!(
                refreshed.status == StatusCode::OK,
                way == "the key",
                "{way}"
            );
            bystander = other.tokens().await.text("access_token");
            let began = Instant::now();
            while ground
                .statuses(&bystander)
                .await
                .iter()
                .any(|status| *status != GOOD)
            {
                assert!(began.elapsed() < Duration::from_secs(5), "{way}");
            }
            listener = listening(ground.last(), &bystander).await.1;
        } else {
            assert_eq!(status(ground.last(), &bystander).await, GOOD, "{way}");
        }
    }
    // The median: a busy machine may be late once.
    times.sort_unstable();
    println!("{times:?}");
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
}

#[tokio::test]
async fn revocations_end_tokens_and_streams_on_sqlite() {
    revocations_reach_streams(Ground::sqlite(json!({"failures": 100_000})).await).await;
}

#[tokio::test]
async fn revocations_end_tokens_and_streams_on_two_replicas() {
    revocations_reach_streams(Ground::postgres(json!({"failures": 100_000})).await).await;
}

/// The page after a new log-in of ada.
async fn shown(app: &App) -> Shown {
    let mut browser = Browser::new();
    let login = browser.open(&app.request(&[])).await;
    let ada = [("username", "ada"), ("password", "correct horse")];
    let sent = browser.submit(&login, &ada).await;
    browser.follow(sent, &app.origin).await
}

/// A grant that an operator revoked returns only with a new consent.
#[tokio::test]
async fn a_revocation_by_an_operator_asks_for_consent_again() {
    let ground = Ground::sqlite(json!({"failures": 100_000})).await;
    let other = App::site(ground.first(), "a").await;
    other.tokens().await;
    for (way, of_other) in [
        ("itself", false),
        ("grant", false),
        ("client", false),
        ("subject", true),
    ] {
        let app = App::site(ground.first(), "a").await;
        let tokens = app.tokens().await;
        let what = match way {
            "grant" => said(&tokens.text("access_token")).1["grant"].clone(),
            "client" => json!(app.id),
            _ => json!("ada"),
        };
        if way == "itself" {
            let revoked = app.revoke(&tokens.text("refresh_token")).await;
            assert_eq!(revoked, StatusCode::OK);
        } else {
            let (path, what) = ("/tenants/a/revocations", json!({way: what}));
            let revoked = ground.operate(Method::POST, path, Some(&what)).await;
            assert_eq!(revoked.status, StatusCode::NO_CONTENT, "{way}");
        }
        let is_asked = shown(&app).await.location().is_none();
        assert_eq!(is_asked, way != "itself", "{way}");
        assert_eq!(shown(&other).await.location().is_none(), of_other, "{way}");
    }
}

/// A registered client is removed like a declared one.
#[tokio::test]
async fn an_operator_removes_a_client_that_registered_itself() {
    let ground = Ground::sqlite(json!({})).await;
    let (app, other) = (
        App::public(ground.first(), "a").await,
        App::public(ground.first(), "a").await,
    );
    let (tokens, kept) = (app.tokens().await, other.tokens().await);
    let path = format!("/tenants/a/clients/{}", app.id);
    let url = format!("{}/api/v1{path}", ground.first().origin());
    let conditional = client()
        .delete(url)
        .bearer_auth(ground.first().administrator())
        .header("If-Match", "\"1\"");
    let refused = within("an answer", conditional.send()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::PRECONDITION_FAILED);
    assert_eq!(
        status(ground.first(), &tokens.text("access_token")).await,
        GOOD
    );
    for (path, wanted) in [
        (path.replace("/a/", "/b/"), StatusCode::NOT_FOUND),
        (path.clone(), StatusCode::NO_CONTENT),
        (path, StatusCode::NOT_FOUND),
    ] {
        let removed = ground.operate(Method::DELETE, &path, None).await;
        assert_eq!(removed.status, wanted, "{}", removed.body);
    }
    assert_eq!(
        status(ground.first(), &tokens.text("access_token")).await,
        401
    );
    assert_eq!(
        status(ground.first(), &kept.text("access_token")).await,
        GOOD
    );
    let mut browser = Browser::new();
    let unknown = browser.open(&app.request(&[])).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST, "{}", unknown.text);
    let trail = ground
        .operate(Method::GET, "/audit?kind=client.removed", None)
        .await;
    let targets: Vec<&Value> = trail.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| &record["target"])
        .collect();
    assert_eq!(targets, [&json!(format!("client a/{}", app.id))]);
}

/// A session that was used with two grants ends with either of them.
#[tokio::test]
async fn a_session_ends_with_each_grant_that_it_was_used_with() {
    let ground = Ground::sqlite(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let (first, second) = (app.tokens().await, app.tokens().await);
    let (session, stream) = listening(ground.first(), &first.text("access_token")).await;
    let mut again = session.again();
    again.http = bearer(&second.text("access_token"));
    assert_eq!(again.text("counter", json!({})).await, "1");
    let revoked = app.revoke(&second.text("refresh_token")).await;
    assert_eq!(revoked, StatusCode::OK);
    ended(&ground, &second.text("access_token"), stream).await;
    assert_eq!(
        status(ground.first(), &first.text("access_token")).await,
        GOOD
    );
    let gone = session.begin("counter", json!({})).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
}

/// A replica that was stopped during a revocation accepts no token before it has read the database.
#[tokio::test]
async fn a_replica_that_stood_still_asks_before_it_believes() {
    let ground = Ground::postgres(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let (gone, kept) = (app.tokens().await, app.tokens().await);
    let (gone_token, kept_token) = (gone.text("access_token"), kept.text("access_token"));
    assert_eq!(ground.statuses(&gone_token).await, [GOOD; 2]);
    assert_eq!(ground.statuses(&kept_token).await, [GOOD; 2]);
    ground.last().send(Signal::STOP);
    assert_eq!(
        app.revoke(&gone.text("refresh_token")).await,
        StatusCode::OK
    );
    sleep(Duration::from_millis(2500)).await;
    // A request that is sent while the replica is stopped is handled before its next read.
    let url = format!("{}/t/a/x/mcp", ground.last().origin());
    let asking = (0..20).map(|number| {
        let token = if number % 2 == 0 {
            &gone_token
        } else {
            &kept_token
        };
        status_at(&url, token)
    });
    let going_on = async {
        sleep(Duration::from_millis(300)).await;
        ground.last().send(Signal::CONT);
    };
    let (statuses, ()) = tokio::join!(futures_util::future::join_all(asking), going_on);
    for pair in statuses.chunks(2) {
        assert!(matches!(pair[0], 401 | 503), "{statuses:?}");
        assert!(matches!(pair[1], GOOD | 503), "{statuses:?}");
    }
    let began = Instant::now();
    while ground.statuses(&kept_token).await != [GOOD; 2] {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(ground.statuses(&gone_token).await, [401; 2]);
}

/// The answer to a poll that began before a replica was stopped is older than the revocations of
/// that time.
#[tokio::test]
async fn an_answer_from_before_a_standstill_is_not_believed() {
    let (ground, way) = Ground::postgres_by_way(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let gone = app.tokens().await;
    let token = gone.text("access_token");
    // A poll of the last replica takes longer than the interval, so that one is always under way.
    way.set(Mode::Delay(Duration::from_millis(120)));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        assert_eq!(ground.statuses(&token).await, [GOOD; 2]);
    }
    ground.last().send(Signal::STOP);
    assert_eq!(
        app.revoke(&gone.text("refresh_token")).await,
        StatusCode::OK
    );
    sleep(Duration::from_millis(2500)).await;
    ground.last().send(Signal::CONT);
    let began = Instant::now();
    let mut last = 0;
    while began.elapsed() < Duration::from_secs(5) && last != 401 {
        last = status(ground.last(), &token).await;
        assert!(matches!(last, 401 | 503), "{last}");
    }
    assert_eq!(last, 401);
}

/// A poll that takes longer than usual behind a standstill made revoked tokens good again.
#[tokio::test]
async fn a_slow_database_is_waited_for_behind_a_standstill() {
    let (ground, way) = Ground::postgres_by_way(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let gone = app.tokens().await;
    let token = gone.text("access_token");
    assert_eq!(ground.statuses(&token).await, [GOOD; 2]);
    ground.last().send(Signal::STOP);
    assert_eq!(
        app.revoke(&gone.text("refresh_token")).await,
        StatusCode::OK
    );
    sleep(Duration::from_millis(2500)).await;
    way.set(Mode::Delay(Duration::from_millis(220)));
    ground.last().send(Signal::CONT);
    let (began, mut last) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(15) && last != 401 {
        last = status(ground.last(), &token).await;
        assert!(matches!(last, 401 | 503), "{last}");
    }
    assert_eq!(last, 401);
}

/// A poll of a slow database is answered in time, and the read after it takes longer than that.
#[tokio::test]
async fn revocations_are_read_from_a_slow_database() {
    let (ground, way) = Ground::postgres_by_way(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let (gone, kept) = (app.tokens().await, app.tokens().await);
    let (gone_token, kept_token) = (gone.text("access_token"), kept.text("access_token"));
    assert_eq!(ground.statuses(&gone_token).await, [GOOD; 2]);
    way.set(Mode::Delay(Duration::from_millis(160)));
    let revoked = app.revoke(&gone.text("refresh_token")).await;
    assert_eq!(revoked, StatusCode::OK);
    until("the revocation at the last replica", async || {
        status(ground.last(), &gone_token).await == 401
    })
    .await;
    until("another token at the last replica", async || {
        status(ground.last(), &kept_token).await == GOOD
    })
    .await;
}

/// A database a region away was told to be away whenever there was a revocation to read.
#[tokio::test]
async fn a_read_of_many_statements_is_no_silence() {
    let (mut ground, way) = Ground::postgres_by_way(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let gone = app.tokens().await;
    let token = gone.text("access_token");
    assert_eq!(ground.statuses(&token).await, [GOOD; 2]);
    way.set(Mode::Delay(Duration::from_millis(100)));
    let revoked = app.revoke(&gone.text("refresh_token")).await;
    assert_eq!(revoked, StatusCode::OK);
    until("the revocation at the last replica", async || {
        status(ground.last(), &token).await == 401
    })
    .await;
    let lines = ground.replicas.pop().unwrap().end().await;
    let is_away = |line: &&Value| line["event"] == "store.away";
    assert_eq!(lines.iter().find(is_away), None);
}

/// One that answers each poll too late to count as reachable was never read.
#[tokio::test]
async fn revocations_are_read_from_a_database_that_is_slower_than_reachable() {
    let (mut ground, way) = Ground::postgres_by_way(json!({})).await;
    let app = App::public(ground.first(), "a").await;
    let (gone, kept) = (app.tokens().await, app.tokens().await);
    let (gone_token, kept_token) = (gone.text("access_token"), kept.text("access_token"));
    assert_eq!(ground.statuses(&gone_token).await, [GOOD; 2]);
    way.set(Mode::Delay(Duration::from_millis(220)));
    let revoked = app.revoke(&gone.text("refresh_token")).await;
    assert_eq!(revoked, StatusCode::OK);
    let began = Instant::now();
    while status(ground.last(), &gone_token).await != 401 {
        assert!(began.elapsed() < Duration::from_secs(25));
        sleep(Duration::from_millis(50)).await;
    }
    until("another token at the last replica", async || {
        status(ground.last(), &kept_token).await == GOOD
    })
    .await;
    // It counts as away all the time, and is so in the log once.
    let lines = ground.replicas.pop().unwrap().end().await;
    let logged = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((logged("store.away"), logged("store.back")), (1, 0));
}

/// Tokens stay valid while the database is unreachable.
#[tokio::test]
async fn tokens_are_good_while_the_database_is_away() {
    let mut postgres = Postgres::start();
    let gateway = gateway(json!({"sql": {"url": postgres.url()}})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let token = tokens.text("access_token");
    assert_eq!(status(&gateway, &token).await, GOOD);
    postgres.pause();
    let began = Instant::now();
    // Longer than the longest delay of a revocation.
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(status(&gateway, &token).await, GOOD);
        sleep(Duration::from_millis(50)).await;
    }
    postgres.resume();
    assert_eq!(
        app.revoke(&tokens.text("refresh_token")).await,
        StatusCode::OK
    );
    let began = Instant::now();
    while status(&gateway, &token).await != 401 {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

/// A statement that waits for a lock is the silence of a database whose connections answer.
#[tokio::test]
async fn tokens_are_good_while_statements_wait() {
    let postgres = Postgres::start();
    let gateway = gateway(json!({"sql": {"url": postgres.url()}})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let token = tokens.text("access_token");
    let mut holder = PgConnection::connect(&postgres.url()).await.unwrap();
    let mut lock = holder.begin().await.unwrap();
    let held = sqlx::query("LOCK TABLE changes IN ACCESS EXCLUSIVE MODE");
    held.execute(&mut *lock).await.unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        assert_eq!(status(&gateway, &token).await, GOOD);
        sleep(Duration::from_millis(50)).await;
    }
    lock.rollback().await.unwrap();
    assert_eq!(
        app.revoke(&tokens.text("refresh_token")).await,
        StatusCode::OK
    );
    until("the revocation", async || {
        status(&gateway, &token).await == 401
    })
    .await;
}

/// Signing keys rotate while tokens are used, without a failed request.
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn keys_follow(ground: Ground) {
    let app = App::public(ground.first(), "a").await;
    let first = app.tokens().await;
    let old = first.text("access_token");
    let old_kid = said(&old).0["kid"].clone();
    let path = "/tenants/a/signing-keys";
    let began = Instant::now();
    let made = ground.operate(Method::POST, path, None).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let new_kid = made.body["kid"].clone();
    assert_ne!(new_kid, old_kid);
    let waits = ground.operate(Method::POST, path, None).await;
    assert_eq!(waits.status, StatusCode::CONFLICT);
    let (mut token, mut refresh) = (old.clone(), first.text("refresh_token"));
    while said(&token).0["kid"] != new_kid {
        assert!(began.elapsed() < Duration::from_secs(20));
        let next = app.refresh(&refresh, &[]).await;
        (token, refresh) = (next.text("access_token"), next.text("refresh_token"));
        for token in [&old, &token] {
            let statuses = ground.statuses(token).await;
            assert!(
                statuses.iter().all(|status| *status == GOOD),
                "{statuses:?}"
            );
        }
    }
    // From before it was made: each of the requests between may take its time.
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "it was published before it signed"
    );
    let listed = ground.operate(Method::GET, path, None).await;
    let kids: Vec<&Value> = listed.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| &key["kid"])
        .collect();
    assert_eq!(kids, [&new_kid, &old_kid]);
    assert!(listed.body["items"][1]["retired"].is_string());
    // A key is published as long as its tokens may be valid.
    for replica in &ground.replicas {
        let jwks = client()
            .get(format!("{}/t/a/oauth/jwks", replica.origin()))
            .send();
        let jwks = Answer::of(within("keys", jwks).await.unwrap()).await;
        let keys = jwks.body["keys"].as_array().unwrap();
        let kids: Vec<&Value> = keys.iter().map(|key| &key["kid"]).collect();
        assert!(
            kids.contains(&&new_kid) && kids.contains(&&old_kid),
            "{kids:?}"
        );
    }
    let gone = format!("{path}/{}", old_kid.as_str().unwrap());
    assert_eq!(
        ground.operate(Method::DELETE, &gone, None).await.status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        ground.operate(Method::DELETE, &gone, None).await.status,
        StatusCode::NOT_FOUND
    );
    let began = Instant::now();
    while ground
        .statuses(&old)
        .await
        .iter()
        .any(|status| *status != 401)
    {
        assert!(began.elapsed() < Duration::from_secs(3));
    }
    assert!(
        ground
            .statuses(&token)
            .await
            .iter()
            .all(|status| *status == GOOD)
    );
}

#[tokio::test]
async fn keys_follow_each_other_on_sqlite() {
    keys_follow(Ground::sqlite(json!({"key_ahead": "1s"})).await).await;
}

#[tokio::test]
async fn keys_follow_each_other_on_two_replicas() {
    keys_follow(Ground::postgres(json!({"key_ahead": "1s"})).await).await;
}

/// A signing key is replaced when it reaches its maximum age.
#[tokio::test]
async fn an_old_key_is_replaced() {
    let oauth = json!({"key_ahead": "100ms", "key_age": "2s"});
    let ground = Ground::postgres(oauth).await;
    let began = Instant::now();
    loop {
        let listed = ground
            .operate(Method::GET, "/tenants/a/signing-keys", None)
            .await;
        let keys = listed.body["items"].as_array().unwrap();
        if keys.len() > 1 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}

/// Requests without a token: no access, and a challenge that leads to the authorization server.
#[tokio::test]
async fn requests_without_a_token_get_a_challenge() {
    let config = json!({"default": {"tenant": "a", "server": "x"}});
    let gateway = gateway(config).await;
    let origin = gateway.origin().to_owned();
    // The scopes to begin with: others are requested when a call needs them (2025-11-25 authorization,
    // "Scope Selection Strategy").
    let scope = "files:read";
    for (base, tenant, server) in [
        ("/t/a/x", "a", "x"),
        ("/t/a/y", "a", "y"),
        ("/t/b/x", "b", "x"),
        ("", "a", "x"),
    ] {
        for (method, kind) in [
            (Method::POST, "mcp"),
            (Method::GET, "mcp"),
            (Method::DELETE, "mcp"),
            (Method::PATCH, "mcp"),
            (Method::GET, "sse"),
            (Method::POST, "messages"),
        ] {
            let url = format!("{origin}{base}/{kind}");
            let part = if kind == "messages" { "sse" } else { kind };
            let metadata = format!("{origin}/.well-known/oauth-protected-resource{base}/{part}");
            for token in [None, Some("x.y.z")] {
                let mut asked = client()
                    .request(method.clone(), &url)
                    .header("Accept", BOTH);
                asked = asked.header("Content-Type", "application/json");
                asked = asked.body(opening(NEWEST).to_string());
                if let Some(token) = token {
                    asked = asked.bearer_auth(token);
                }
                let answer = Answer::of(within("a refusal", asked.send()).await.unwrap()).await;
                assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {url}");
                let error = token.map_or("", |_| "error=\"invalid_token\", ");
                let wanted =
                    format!("Bearer {error}resource_metadata=\"{metadata}\", scope=\"{scope}\"");
                assert_eq!(answer.header("www-authenticate"), wanted);
            }
            if kind == "messages" {
                continue;
            }
            let document = within("a document", client().get(&metadata).send()).await;
            let document = Answer::of(document.unwrap()).await;
            let issuer = if tenant == "a" {
                origin.clone()
            } else {
                format!("{origin}/t/{tenant}")
            };
            assert_eq!(document.status, StatusCode::OK, "{server}");
            assert_eq!(document.body["resource"], json!(url));
            assert_eq!(document.body["authorization_servers"], json!([issuer]));
            assert_eq!(document.body["scopes_supported"], json!([scope]));
            // The chain ends at the issuer's own metadata.
            let path = issuer.strip_prefix(&origin).unwrap();
            let at = format!("{origin}/.well-known/oauth-authorization-server{path}");
            let server = within("metadata", client().get(at).send()).await.unwrap();
            assert_eq!(Answer::of(server).await.body["issuer"], json!(issuer));
        }
    }
    assert!(gateway.children().await.is_empty(), "a child was started");
}

/// The challenge names all missing scopes and the authorization server.
#[tokio::test]
async fn a_missing_scope_is_asked_for() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    assert_eq!(
        tokens.text("scope"),
        "files:read",
        "the scopes to begin with"
    );
    let (session, _listener) = listening(&gateway, &tokens.text("access_token")).await;
    let call = tool_call(json!(7), "delete_all", json!({}));
    let refused = session.post(&call).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let metadata = format!(
        "{}/.well-known/oauth-protected-resource/t/a/x/mcp",
        gateway.origin()
    );
    let wanted = format!(
        "Bearer error=\"insufficient_scope\", scope=\"files:read files:write\", resource_metadata=\"{metadata}\""
    );
    assert_eq!(
        refused.headers()["www-authenticate"].to_str().unwrap(),
        wanted
    );
    // A token with them is good for the same session, whose principal it has.
    let code = app.code(&[("scope", "files:read files:write")]).await;
    let wider = app.redeem(&code, &[]).await.text("access_token");
    let mut same = Session::at(bearer(&wider), session.url.clone());
    same.id.clone_from(&session.id);
    let called = same.post(&call).await;
    assert_eq!(called.status(), StatusCode::OK);
}

/// A token is valid for one server, at each of its URLs.
#[tokio::test]
async fn a_token_of_ours_is_for_one_server() {
    let config = json!({"default": {"tenant": "a", "server": "x"}});
    let gateway = gateway(config).await;
    let origin = gateway.origin();
    let app = App::public(&gateway, "a").await;
    let own = format!("{origin}/t/a/x/mcp");
    let code = app.code(&[("resource", &own)]).await;
    let token = app.redeem(&code, &[]).await.text("access_token");
    assert_eq!(said(&token).1["aud"], json!(own));
    for (path, wanted) in [
        ("/t/a/x/mcp", GOOD),
        ("/mcp", GOOD),
        ("/t/a/y/mcp", 401),
        ("/t/b/x/mcp", 401),
        ("/t/k/oauth/mcp", 401),
        ("/t/a/z/mcp", 401),
    ] {
        assert_eq!(
            status_at(&format!("{origin}{path}"), &token).await,
            wanted,
            "{path}"
        );
    }
    let sse = bearer(&token).get(format!("{origin}/t/a/x/sse"));
    let sse = within("a stream", sse.header("Accept", "text/event-stream").send()).await;
    assert_eq!(sse.unwrap().status(), StatusCode::OK);
    // A token in the query or with another scheme is ignored.
    let in_query = format!("{own}?access_token={token}");
    let asked = client().get(in_query).header("Accept", BOTH).send();
    assert_eq!(within("a refusal", asked).await.unwrap().status(), 401);
    let basic = client().get(&own).header("Accept", BOTH);
    let basic = basic
        .header("Authorization", format!("DPoP {token}"))
        .send();
    assert_eq!(within("a refusal", basic).await.unwrap().status(), 401);
    // Other tokens of the gateway are not access tokens.
    let refresh = app.tokens().await.text("refresh_token");
    for other in [refresh.as_str(), "lgc_x", "lgk_x", "x"] {
        assert_eq!(status_at(&own, other).await, 401, "{other}");
    }
}

/// Forged tokens are refused at once, without an outbound request.
#[tokio::test]
async fn forged_tokens_are_refused_at_once() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    let parts: Vec<&str> = token.split('.').collect();
    let (header, claims) = said(&token);
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let headed = |name: &str, value: Value| {
        let mut header = header.clone();
        header[name] = value;
        format!("{}.{}.{}", part(&header), parts[1], parts[2])
    };
    let claimed = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        format!("{}.{}.{}", parts[0], part(&claims), parts[2])
    };
    // No server listens there; a request to it would be slow.
    let elsewhere = json!("http://192.0.2.1/keys");
    let forged = [
        headed("alg", json!("none")),
        headed("alg", json!("HS256")),
        headed("jku", elsewhere.clone()),
        headed("x5u", elsewhere.clone()),
        headed("kid", json!("../../etc/passwd")),
        headed("kid", json!("' OR 1=1 --")),
        headed("crit", json!(["x"])),
        headed("typ", json!("JWT")),
        claimed("sub", json!("eve")),
        claimed("aud", json!("https://elsewhere.test/mcp")),
        claimed("iss", elsewhere),
        claimed("exp", json!(9_999_999_999_u64)),
        claimed("scope", json!("admin")),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{token}x"),
        Key::new("k").sign(&claims),
        "x".repeat(9000),
    ];
    let mut times = Vec::new();
    for text in &forged {
        let began = Instant::now();
        assert_eq!(status(&gateway, text).await, 401, "{text}");
        times.push(began.elapsed());
    }
    times.sort_unstable();
    assert!(
        times[times.len() / 2] < Duration::from_millis(50),
        "{times:?}"
    );
    assert_eq!(status(&gateway, &token).await, GOOD);
}

/// The administration of issued grants: access and audit records.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn administrators_see_and_end_what_was_issued() {
    let ground = Ground::sqlite(json!({})).await;
    let gateway = ground.first();
    let app = App::public(gateway, "a").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let token = app.tokens().await.text("access_token");
        ids.push(said(&token).1["grant"].as_str().unwrap().to_owned());
    }
    let all = ground
        .operate(Method::GET, "/tenants/a/grants?limit=2", None)
        .await;
    assert_eq!(all.body["items"].as_array().unwrap().len(), 2);
    let next = all.text("next");
    let path = format!("/tenants/a/grants?limit=2&after={next}");
    let rest = ground.operate(Method::GET, &path, None).await;
    assert_eq!(rest.body["items"].as_array().unwrap().len(), 1);
    assert_eq!(rest.body["next"], Value::Null);
    let mut seen: Vec<&str> = Vec::new();
    for page in [&all, &rest] {
        let items = page.body["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap()));
    }
    seen.sort_unstable();
    ids.sort_unstable();
    assert_eq!(seen, ids);
    let item = &rest.body["items"][0];
    assert_eq!(
        (&item["subject"], &item["client"]),
        (&json!("ada"), &json!(app.id))
    );
    for (query, count) in [("subject=eve", 0), ("subject=ada", 3), ("client=c_x", 0)] {
        let path = format!("/tenants/a/grants?{query}");
        let found = ground.operate(Method::GET, &path, None).await;
        assert_eq!(
            found.body["items"].as_array().unwrap().len(),
            count,
            "{query}"
        );
    }
    // A tenant's administrator sees its own tenant only.
    let made = json!({"name": "boss", "subject": "boss", "scopes": ["admin"], "servers": ["*"]});
    let made = ground
        .operate(Method::POST, "/tenants/b/api-keys", Some(&made))
        .await;
    let boss = made.text("key");
    let as_boss = async |method, path: &str, body: Option<&Value>| {
        operate(gateway, &boss, method, path, body)
            .await
            .status
            .as_u16()
    };
    assert_eq!(
        as_boss(Method::GET, "/tenants/b/signing-keys", None).await,
        200
    );
    assert_eq!(
        as_boss(Method::POST, "/tenants/b/signing-keys", None).await,
        201
    );
    let ada = json!({"subject": "ada"});
    assert_eq!(
        as_boss(Method::POST, "/tenants/b/revocations", Some(&ada)).await,
        404,
        "nothing is granted there"
    );
    for (method, path, body) in [
        (Method::GET, "/tenants/a/signing-keys", None),
        (Method::POST, "/tenants/a/signing-keys", None),
        (Method::DELETE, "/tenants/a/signing-keys/x", None),
        (Method::GET, "/tenants/a/grants", None),
        (Method::POST, "/tenants/a/revocations", Some(&ada)),
    ] {
        assert_eq!(as_boss(method, path, body).await, 404, "{path}");
    }
    let left = ground.operate(Method::GET, "/tenants/a/grants", None).await;
    assert_eq!(left.body["items"].as_array().unwrap().len(), 3);
    // Invalid requests.
    for (path, body, status) in [
        ("/tenants/a/revocations", json!({}), 422),
        ("/tenants/a/revocations", json!({"grant": "x"}), 422),
        ("/tenants/a/revocations", json!([]), 400),
        ("/tenants/k/revocations", ada.clone(), 409),
        ("/tenants/k/signing-keys", json!({}), 409),
        ("/tenants/nobody/revocations", ada.clone(), 404),
        ("/tenants/a/revocations", json!({"subject": "ad"}), 404),
        ("/tenants/a/revocations", json!({"client": "c_x"}), 404),
        (
            "/tenants/a/revocations",
            json!({"grant": uuid::Uuid::nil().to_string()}),
            404,
        ),
    ] {
        let answer = ground.operate(Method::POST, path, Some(&body)).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}");
    }
    let grant = json!({"grant": ids[0]});
    let path = "/tenants/a/revocations";
    assert_eq!(
        ground
            .operate(Method::POST, path, Some(&grant))
            .await
            .status,
        204
    );
    let left = ground.operate(Method::GET, "/tenants/a/grants", None).await;
    assert_eq!(left.body["items"].as_array().unwrap().len(), 2);
    for (kind, actor, target) in [
        (
            "grants.revoked",
            "operator:first",
            format!("grant a/{}", ids[0]),
        ),
        ("grants.revoked", "key:b/boss", "subject b/ada".to_owned()),
        (
            "signing_key.added",
            "key:b/boss",
            "signing_key b/".to_owned(),
        ),
    ] {
        let audit = ground
            .operate(Method::GET, &format!("/audit?kind={kind}"), None)
            .await;
        let items = audit.body["items"].as_array().unwrap();
        let is_there = items.iter().any(|item| {
            item["actor"] == actor && item["target"].as_str().unwrap().starts_with(&target)
        });
        assert!(is_there, "{kind} {actor}: {items:?}");
    }
}

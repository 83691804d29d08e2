//! Access at two replicas that share Redis and PostgreSQL: grants, tokens, deleted tenants and
//! users, shared limits, and log-ins whose steps reach different replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Client, Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auth::external_tokens::bearer,
    database::persistence::mark,
    oauth::{
        client_metadata_documents::Site,
        tokens::{redeems_once, refreshes_once},
    },
    replicas::sessions::{final_message, progress, read},
    support::{
        balancer::Balancer,
        browser::Browser,
        harness::{BOTH, Events, NEWEST, Session, child, text_of, until, within},
        oauth_client::{Answer, App, BACK, SECRET, register, send},
        pair::Pair,
        served::Served,
    },
};

/// The session through a replica, with a token.
fn by(session: &Session, replica: &Served, token: &str) -> Session {
    let mut other = session.again();
    other.http = bearer(token);
    other.url = format!("{}/t/a/x/mcp", replica.origin());
    other
}

/// The same client at another replica.
fn app_at(app: &App, replica: &Served) -> App {
    App {
        origin: replica.origin().to_owned(),
        ..app.clone()
    }
}

/// A new session of a tenant's server, opened at a replica.
async fn session(replica: &Served, tenant: &str, token: &str) -> Session {
    let url = format!("{}/t/{tenant}/x/mcp", replica.origin());
    let mut session = Session::at(bearer(token), url);
    session.initialize(NEWEST).await;
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refreshed_token_of_the_grant_resumes_at_the_other_replica() {
    let pair = Pair::issuing(json!({})).await;
    let [first, second] = pair.both();
    let app = App::public(first, "a").await;
    let tokens = app.tokens().await;
    let old = tokens.text("access_token");
    let here = session(first, "a", &old).await;
    let args = json!({"n": 100, "ms": 20});
    let mut events = here.stream("slow", args, json!("t")).await;
    let seen = progress(&read(&mut events, 5).await);
    drop(events);
    let cursor = seen.last().unwrap().0.clone();
    let refreshed = app_at(&app, second)
        .refresh(&tokens.text("refresh_token"), &[])
        .await;
    let new = refreshed.text("access_token");
    assert_ne!(new, old);
    // The same person with another client is another principal.
    let other = App::public(second, "a").await.tokens().await;
    let stranger = by(&here, second, &other.text("access_token"));
    let refused = stranger.get(Some(&cursor)).await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
    let there = by(&here, second, &new);
    let rest = there.resume(&cursor).await.rest().await;
    let numbers: Vec<u64> = seen.iter().map(|(_, number)| *number).collect();
    let more = progress(&rest).into_iter().map(|(_, number)| number);
    let numbers: Vec<u64> = numbers.into_iter().chain(more).collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    assert_eq!(text_of(&final_message(&rest)), "done");
    assert_eq!(there.text("counter", json!({})).await, "1");
    assert_eq!(
        by(&here, first, &new).text("counter", json!({})).await,
        "2",
        "one child"
    );
}

/// Open sessions and streams, through each replica, of a principal that will be deleted.
async fn opened(pair: &Pair, token: &str) -> Vec<(Session, Vec<Events>)> {
    let mut open = Vec::new();
    let [first, second] = pair.both();
    for (at, elsewhere) in [(first, second), (second, first)] {
        let own = session(at, "a", token).await;
        let there = by(&own, elsewhere, token);
        let args = json!({"n": 100_000, "ms": 20});
        let streams = vec![
            there.listen().await,
            there.stream("slow", args.clone(), json!("t")).await,
            own.stream("slow", args, json!("o")).await,
        ];
        open.push((own, streams));
    }
    open
}

/// Waits, for at most 5 s from `began`, until everything in `open` is gone, from Redis too, and
/// `token` opens nothing at either replica. `kept` are the children of others.
async fn all_gone(
    pair: &Pair,
    (token, open): (&str, Vec<(Session, Vec<Events>)>),
    kept: &[u32],
    began: Instant,
) {
    let mut ids = Vec::new();
    for (session, streams) in open {
        for mut stream in streams {
            within("the end of a stream", async {
                while stream.next().await.is_some() {}
            })
            .await;
        }
        for replica in pair.both() {
            let way = by(&session, replica, token);
            // A request without a session starts no child; a valid token would get 400.
            let stranger = Session::at(bearer(token), way.url.clone());
            until("no entry", || async {
                for way in [&way, &stranger] {
                    let status = way.get(None).await.status().as_u16();
                    if !matches!(status, 401 | 404) {
                        return false;
                    }
                }
                true
            })
            .await;
        }
        ids.push(session.id.unwrap());
    }
    until("the end of the children", || async {
        pair.descendants().iter().all(|pid| kept.contains(pid))
    })
    .await;
    until("no key of a session", || async {
        let keys = pair.redis.keys();
        !keys.iter().any(|key| ids.iter().any(|id| key.contains(id)))
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    // Counters of the deleted principal expire soon.
    for key in pair.redis.keys() {
        let left = pair.redis.command(&["PTTL", &key]).number();
        assert_ne!(left, -1, "{key} stays for ever");
    }
}

/// A session of another tenant, its listener, and the children so far, which are its own.
async fn bystander(pair: &Pair) -> (Session, Events, Vec<u32>) {
    let [first, second] = pair.both();
    let tokens = App::public(first, "b").await.tokens().await;
    let token = tokens.text("access_token");
    let session = session(first, "b", &token).await;
    let mut there = session.again();
    there.http = bearer(&token);
    there.url = format!("{}/t/b/x/mcp", second.origin());
    assert_eq!(there.text("counter", json!({})).await, "1");
    let listener = there.listen().await;
    (there, listener, pair.descendants())
}

/// Asserts that the bystander's stream is open, and that its child is the same.
async fn is_untouched((session, mut listener, _): (Session, Events, Vec<u32>)) {
    let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
    assert_eq!(session.text("notify", changed).await, "sent");
    let heard = within("a notification", listener.message()).await;
    assert_eq!(
        heard.unwrap().1["method"],
        "notifications/tools/list_changed"
    );
    assert_eq!(session.text("counter", json!({})).await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_tenant_is_gone_from_both_replicas_and_redis() {
    deleted("/tenants/a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_user_is_gone_from_both_replicas_and_redis() {
    deleted("/tenants/a/users/ada").await;
}

/// Deletes the object at `path`: everything below it ends, and nothing else.
async fn deleted(path: &str) {
    let pair = Pair::issuing(json!({})).await;
    let other = bystander(&pair).await;
    let app = App::public(pair.both()[1], "a").await;
    let token = app.tokens().await.text("access_token");
    let open = opened(&pair, &token).await;
    assert!(pair.descendants().len() > other.2.len());
    let began = Instant::now();
    operate(&pair, path).await;
    all_gone(&pair, (&token, open), &other.2, began).await;
    is_untouched(other).await;
}

/// Deletes a declared object.
async fn operate(pair: &Pair, path: &str) {
    let first = pair.both()[0];
    let url = format!("{}/api/v1{path}", first.origin());
    let gone = send(Method::DELETE, &url, &first.administrator(), None).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.body);
}

/// The fence of a session in Redis: the number of its owner.
fn fence(pair: &Pair, session: &Session) -> String {
    let end = format!("{{{}}}", session.id.as_deref().unwrap());
    let key = pair
        .redis
        .keys()
        .into_iter()
        .find(|key| key.ends_with(&end));
    let fence = pair.redis.command(&["HGET", &key.unwrap(), "fence"]);
    fence.text()
}

/// The stream claimed the session for the server of when it was opened, whose child started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_a_relayed_stream_takes_over_has_the_server_of_now() {
    let server = json!({"command": child(), "env": {"MARK": "1"}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server}}});
    let pair = Pair::of(json!({"public_url": "http://127.0.0.1:8080"}), tenants).await;
    let [first, second] = pair.both();
    let here = first.session("a", "x").await;
    let mut there = here.again();
    there.url = format!("{}/t/a/x/mcp", second.origin());
    assert_eq!(mark(&there).await, "1");
    let listener = there.listen().await;
    let url = format!("{}/api/v1/tenants/a/servers/x", first.origin());
    let operator = first.administrator();
    let before = send(Method::GET, &url, &operator, None).await;
    let mut spec = before.body["spec"].clone();
    spec["env"]["MARK"] = json!("2");
    let put = send(Method::PUT, &url, &operator, Some(&spec)).await;
    assert!(put.status.is_success(), "{}", put.body);
    for replica in pair.both() {
        until("the new server", async || {
            mark(&replica.session("a", "x").await).await == "2"
        })
        .await;
    }
    first.send(Signal::KILL);
    // By the stream: no request of the session is made.
    until("the takeover", async || fence(&pair, &here) == "2").await;
    assert_eq!(mark(&there).await, "2");
    drop(listener);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_deleted_user_takes_over_no_session() {
    let pair = Pair::issuing(json!({})).await;
    let [first, second] = pair.both();
    let app = App::public(second, "a").await;
    let token = app.tokens().await.text("access_token");
    let here = session(first, "a", &token).await;
    let there = by(&here, second, &token);
    let mut listener = there.listen().await;
    // The owner cannot be told.
    first.send(Signal::STOP);
    let url = format!("{}/api/v1/tenants/a/users/ada", second.origin());
    let gone = send(Method::DELETE, &url, &first.administrator(), None).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.body);
    until("no entry", async || {
        let stranger = Session::at(bearer(&token), there.url.clone());
        stranger.get(None).await.status() == StatusCode::UNAUTHORIZED
    })
    .await;
    first.send(Signal::KILL);
    within("the end of the stream", async {
        while listener.next().await.is_some() {}
    })
    .await;
    assert_eq!(fence(&pair, &here), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_principal_are_limited_over_both_replicas() {
    let server = json!({"command": child(), "isolation": "tenant"});
    let quotas = json!({"principal": {"streams": 3}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "quotas": quotas,
        "servers": {"x": server}}});
    let config = json!({"public_url": "http://127.0.0.1:8080"});
    let pair = Pair::of(config, tenants).await;
    let [first, second] = pair.both();
    let sessions = [
        first.session("a", "x").await,
        second.session("a", "x").await,
        first.session("a", "x").await,
        second.session("a", "x").await,
    ];
    let mut open = Vec::new();
    for session in &sessions[..3] {
        open.push(session.listen().await);
    }
    for session in &sessions {
        let refused = session.get(None).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key("retry-after"));
        let policy = refused.headers()["ratelimit-policy"].to_str().unwrap();
        assert!(policy.starts_with("\"principal_streams\";q=3"), "{policy}");
    }
    // Open streams continue.
    let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
    for (session, listener) in sessions.iter().zip(&mut open) {
        let mut plain = session.again();
        plain.accept = "application/json";
        assert_eq!(plain.text("notify", changed.clone()).await, "sent");
        let heard = within("a notification", listener.message()).await;
        assert_eq!(
            heard.unwrap().1["method"],
            "notifications/tools/list_changed"
        );
    }
    // A place that is freed at one replica can be used at the other.
    open.remove(0);
    until("a place", || async {
        sessions[3].get(None).await.status() == StatusCode::OK
    })
    .await;
}

/// One code used many times at once, with all shared stores.
#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_redeemed_once_by_replicas_that_share_redis() {
    let pair = Pair::issuing(json!({"oauth": {"failures": 100_000}})).await;
    redeems_once(pair.both()).await;
}

/// One refresh token used many times at once, with all shared stores.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_token_has_one_successor_by_replicas_that_share_redis() {
    let pair = Pair::issuing(json!({"oauth": {"failures": 100_000}})).await;
    refreshes_once(pair.both()).await;
}

/// Replicas behind a load balancer that alternates between them.
struct Alternating {
    pair: Pair,
    /// The balancer's URL, which is the public URL.
    origin: String,
    requests: Arc<AtomicUsize>,
    _balancer: Balancer,
}

impl Alternating {
    async fn start() -> Self {
        let mut balancer = Balancer::new().await;
        let origin = format!("http://{}", balancer.address);
        let config = json!({"public_url": origin, "outbound": {"allow": ["127.0.0.0/8"]}});
        let pair = Pair::issuing(config).await;
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let hosts = pair.both().map(|one| one.origin().replace("http://", ""));
        balancer.before(hosts.to_vec(), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            usize::MAX
        });
        Self {
            pair,
            origin,
            requests,
            _balancer: balancer,
        }
    }

    async fn get(&self, url: &str) -> Answer {
        let asked = fresh(None).get(url).header("Accept", BOTH).send();
        Answer::of(within("an answer", asked).await.unwrap()).await
    }

    /// Discovery: from the URL of a server to the metadata of the authorization server.
    async fn discover(&self) -> Value {
        let refused = self.get(&format!("{}/t/a/x/mcp", self.origin)).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        let challenge = refused.header("www-authenticate");
        let (_, rest) = challenge.split_once("resource_metadata=\"").unwrap();
        let resource = self.get(rest.split('"').next().unwrap()).await;
        let issuer = resource.body["authorization_servers"][0].as_str().unwrap();
        let path = issuer.strip_prefix(&self.origin).unwrap();
        let at = format!(
            "{}/.well-known/oauth-authorization-server{path}",
            self.origin
        );
        let metadata = self.get(&at).await;
        assert_eq!(metadata.body["issuer"], issuer, "RFC 8414, section 3.3");
        metadata.body
    }

    /// The happy path of a client, from discovery to a session that outlives its token.
    async fn connects(&self, app: &App) {
        let metadata = self.discover().await;
        for (name, endpoint) in [
            ("authorization_endpoint", "authorize"),
            ("token_endpoint", "token"),
        ] {
            assert_eq!(metadata[name], app.endpoint(endpoint));
        }
        let resource = format!("{}/t/a/x/mcp", self.origin);
        let asked = [("resource", resource.as_str())];
        let before = self.requests.load(Ordering::Relaxed);
        let mut browser = Browser::with(fresh(None));
        let login = browser.open(&app.request(&asked)).await;
        let ada = [("username", "ada"), ("password", "correct horse")];
        let sent = browser.submit(&login, &ada).await;
        let consent = browser.follow(sent, &self.origin).await;
        let answer = browser
            .submit(&consent, &[("decision", "allow")])
            .await
            .answer();
        let pages = self.requests.load(Ordering::Relaxed) - before;
        assert!(pages >= 3, "each page from the other replica: {pages}");
        // RFC 9207
        assert_eq!(answer["iss"], metadata["issuer"].as_str().unwrap());
        let tokens = app.redeem(&answer["code"], &asked).await;
        let mut session = Session::at(fresh(Some(&tokens.text("access_token"))), resource.clone());
        session.initialize(NEWEST).await;
        for number in 1..=4 {
            let counted = session.text("counter", json!({})).await;
            assert_eq!(counted, number.to_string(), "one child");
        }
        let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
        session.http = fresh(Some(&next.text("access_token")));
        for number in 5..=6 {
            let counted = session.text("counter", json!({})).await;
            assert_eq!(counted, number.to_string(), "the same session");
        }
        assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
        let revoked = app.revoke(&next.text("refresh_token")).await;
        assert_eq!(revoked, StatusCode::OK);
        until("no entry at either replica", || async {
            let mut statuses = Vec::new();
            for _ in 0..2 {
                statuses.push(session.get(None).await.status().as_u16());
            }
            statuses == [401, 401]
        })
        .await;
    }

    /// A client that opens a new connection for each request.
    fn app(&self, id: &str, secret: Option<&str>) -> App {
        App {
            origin: self.origin.clone(),
            secret: secret.map(str::to_owned),
            http: fresh(None),
            ..App::of(self.pair.both()[0], "a", id)
        }
    }
}

/// An HTTP client that keeps no connection, and sends this token.
fn fresh(token: Option<&str>) -> Client {
    let mut headers = reqwest::header::HeaderMap::new();
    if let Some(token) = token {
        headers.insert("Authorization", format!("Bearer {token}").parse().unwrap());
    }
    Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .pool_max_idle_per_host(0)
        .default_headers(headers)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_client_connects_where_no_two_steps_meet_one_replica() {
    let replicas = Alternating::start().await;
    // A client that registered itself (RFC 7591), at one replica.
    let metadata = json!({"redirect_uris": [BACK], "client_name": "Public",
        "token_endpoint_auth_method": "none"});
    let registered = register(replicas.pair.both()[1], "a", &metadata).await;
    let app = replicas.app(&registered.text("client_id"), None);
    replicas.connects(&app).await;
    // A client with a metadata document, fetched by the replica that needs it.
    let site = Site::start().await;
    let id = site.document("/client.json", "max-age=600", json!({}));
    replicas.connects(&replicas.app(&id, None)).await;
    // A client that the operator declared.
    replicas.connects(&replicas.app("app", Some(SECRET))).await;
}

//! API keys, and the rules for every credential on every MCP route.

use std::process::Command;

use reqwest::{Method, RequestBuilder, Response, StatusCode, header::HeaderMap};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::Instant;

use crate::{
    auth::external_tokens::bearer,
    support::{
        harness::{
            BOTH, Legacy, NEWEST, Session, child, client, client_with, json_of, opening, tool_call,
            until, within,
        },
        issuer::now,
        modern::{Modern, asked},
        oauth_client::send,
        pair::Pair,
        served::Served,
        wire::statuses,
    },
};

/// A new API key, and its hash.
pub(crate) fn key() -> (String, String) {
    let made = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["key", "new"])
        .output()
        .unwrap();
    let text = String::from_utf8(made.stdout).unwrap();
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    (line("key:"), line("hash:"))
}

/// A gateway with two tenants, and their API keys.
struct Keyed {
    served: Served,
    /// Ada's key for every server of `a`.
    ada: String,
    /// Ada's second key for every server of `a`.
    second: String,
    /// Eve's key, for server `y` only.
    eve: String,
    /// An expired key of ada.
    old: String,
    /// The key of tenant `b`, whose subject is also named `ada`.
    bob: String,
}

impl Keyed {
    async fn start() -> Self {
        let (ada, second, eve, old, bob) = (key(), key(), key(), key(), key());
        let of = |hash: &str, subject: &str, servers: Value| json!({"hash": hash, "subject": subject, "servers": servers});
        let mut expired = of(&old.1, "ada", json!(["*"]));
        expired["expires"] = json!("2026-01-31T12:00:00+01:00");
        let x = json!({"command": child(), "reply": {"task_after": "100ms"}});
        let granted =
            json!({"command": child(), "grants": {"users": ["eve"], "clients": ["none"]}});
        let tenants = json!({
            "a": {"auth": {"mode": "keys"},
                "api_keys": {"first": of(&ada.1, "ada", json!(["*"])),
                    "second": of(&second.1, "ada", json!(["*"])),
                    "eve": of(&eve.1, "eve", json!(["y"])), "old": expired},
                "servers": {"x": x, "y": x, "granted": granted}},
            "b": {"auth": {"mode": "keys"}, "api_keys": {"first": of(&bob.1, "ada", json!(["*"]))},
                "servers": {"x": x}}});
        let config = json!({"default": {"tenant": "a", "server": "x"},
            "telemetry": {"log": "warn,lockgate::cli=info,lockgate::audit=info"}});
        let served = Served::start(config, tenants).await;
        Self {
            served,
            ada: ada.0,
            second: second.0,
            eve: eve.0,
            old: old.0,
            bob: bob.0,
        }
    }

    fn url(&self, tenant: &str, server: &str, kind: &str) -> String {
        self.served
            .stranger(tenant, server)
            .url
            .replace("/mcp", &format!("/{kind}"))
    }

    async fn session(&self, key: &str) -> Session {
        let mut session = Session::at(bearer(key), self.url("a", "x", "mcp"));
        session.initialize(NEWEST).await;
        session
    }
}

/// One request for each operation of the MCP routes, with this session id and event id.
fn surfaces(
    http: &reqwest::Client,
    base: &str,
    id: &str,
    event: &str,
) -> Vec<(&'static str, RequestBuilder)> {
    let call = tool_call(json!(1), "counter", json!({})).to_string();
    let to = |method: Method, kind: &str| {
        let request = http.request(method, format!("{base}/{kind}"));
        request
            .header("Accept", BOTH)
            .header("Content-Type", "application/json")
    };
    let own = |method| to(method, "mcp").header("Mcp-Session-Id", id);
    vec![
        ("POST", own(Method::POST).body(call.clone())),
        ("GET", own(Method::GET)),
        ("resume", own(Method::GET).header("Last-Event-ID", event)),
        ("DELETE", own(Method::DELETE)),
        (
            "initialize",
            to(Method::POST, "mcp").body(opening(NEWEST).to_string()),
        ),
        ("connect", to(Method::GET, "sse")),
        (
            "reconnect",
            to(Method::GET, "sse").header("Last-Event-ID", format!("{id}.{event}")),
        ),
        (
            "messages",
            to(Method::POST, &format!("messages?session_id={id}")).body(call),
        ),
    ]
}

/// The status, the headers without the date, and the body of a response.
async fn whole(response: Response) -> (StatusCode, HeaderMap, String) {
    let (status, mut headers) = (response.status(), response.headers().clone());
    headers.remove("date");
    (
        status,
        headers,
        crate::support::harness::body(response).await,
    )
}

async fn sent(request: RequestBuilder) -> Response {
    within("a response", request.send()).await.unwrap()
}

#[tokio::test]
async fn every_route_authenticates_its_caller() {
    let keyed = Keyed::start().await;
    let (key, _) = key();
    // The last character is replaced by a different one: it may be any of 62.
    let (rest, end) = keyed.ada.split_at(keyed.ada.len() - 1);
    let mistyped = format!("{rest}{}", if end == "x" { "y" } else { "x" });
    let bearers = [
        (key.as_str(), "never given out"),
        (&keyed.old, "expired"),
        (&keyed.bob, "another tenant's"),
        (&mistyped, "mistyped"),
        (&keyed.ada[..20], "cut"),
        ("lgk_", "empty"),
        ("abc", "no key"),
        ("eyJhbGciOiJub25lIn0.e30.", "a JWT where none are taken"),
    ];
    for base in ["/t/a/x", "/t/a/unknown", ""] {
        let base = keyed.url("a", "x", "mcp").replace("/t/a/x/mcp", base);
        let plain = client();
        for (surface, request) in surfaces(&plain, &base, "0123", "0-0-0") {
            let (status, headers, _) = whole(sent(request).await).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{base} {surface}");
            let challenge = &headers["www-authenticate"];
            assert_eq!(challenge, "Bearer realm=\"lockgate\"", "{surface}");
        }
        for (token, what) in bearers {
            let http = bearer(token);
            for (surface, request) in surfaces(&http, &base, "0123", "0-0-0") {
                let (status, headers, _) = whole(sent(request).await).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{base} {surface} {what}");
                assert_eq!(
                    headers["www-authenticate"],
                    "Bearer realm=\"lockgate\", error=\"invalid_token\""
                );
            }
        }
    }
    // Every method but OPTIONS is authenticated before an unsupported one gets 405.
    for kind in ["mcp", "sse", "messages"] {
        let url = keyed.url("a", "x", kind);
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let refused = sent(client().request(method.clone(), &url)).await;
            let what = format!("{method} {kind}");
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{what}");
        }
        let asked = client().request(Method::OPTIONS, &url);
        assert_eq!(sent(asked).await.status(), StatusCode::METHOD_NOT_ALLOWED);
        let known = bearer(&keyed.ada).put(&url);
        let refused = sent(known).await;
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(refused.headers().contains_key("allow"), "{kind}");
    }
    assert!(
        keyed.served.descendants().is_empty(),
        "no child was started"
    );
}

#[tokio::test]
async fn what_a_tenant_with_keys_has_not_is_told_by_its_status() {
    let keyed = Keyed::start().await;
    // A client of both transports falls back upon 400, 404 and 405 (2025-11-25 transports, "Backwards
    // Compatibility").
    let http = bearer(&keyed.ada);
    let posted = http.post(keyed.url("a", "x", "sse"));
    let posted = posted.body(opening(NEWEST).to_string());
    let refused = sent(posted.header("Content-Type", "application/json")).await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    // There is no authorization server that metadata could name.
    let metadata = keyed
        .url("a", "x", "mcp")
        .replace("/t/", "/.well-known/oauth-protected-resource/t/");
    let missing = sent(client().get(&metadata)).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND, "{metadata}");
}

#[tokio::test]
async fn credentials_are_read_from_one_header_only() {
    let keyed = Keyed::start().await;
    let (base, own) = (keyed.url("a", "x", "mcp").replace("/mcp", ""), &keyed.ada);
    let plain = client();
    for (surface, request) in surfaces(&plain, &base, "0123", "0-0-0") {
        let twice = request.try_clone().unwrap();
        let twice = twice
            .header("Authorization", format!("Bearer {own}"))
            .header("Authorization", format!("Bearer {own}"));
        assert_eq!(
            sent(twice).await.status(),
            StatusCode::BAD_REQUEST,
            "{surface}"
        );
        let mixed = request.try_clone().unwrap();
        let mixed = mixed
            .header("Authorization", "Basic YTpi")
            .header("Authorization", format!("Bearer {own}"));
        assert_eq!(
            sent(mixed).await.status(),
            StatusCode::BAD_REQUEST,
            "{surface}"
        );
        let basic = request.try_clone().unwrap().basic_auth("ada", Some(own));
        assert_eq!(
            sent(basic).await.status(),
            StatusCode::UNAUTHORIZED,
            "{surface}"
        );
        let (http, query) = request.try_clone().unwrap().build_split();
        let mut query = query.unwrap();
        let mut pairs = query.url_mut().query_pairs_mut();
        pairs.append_pair("access_token", own);
        drop(pairs);
        let query = RequestBuilder::from_parts(http, query);
        assert_eq!(
            sent(query).await.status(),
            StatusCode::UNAUTHORIZED,
            "{surface}"
        );
        let elsewhere = request
            .header("Cookie", format!("access_token={own}"))
            .header("X-Api-Key", own);
        assert_eq!(
            sent(elsewhere).await.status(),
            StatusCode::UNAUTHORIZED,
            "{surface}"
        );
    }
    let form = plain
        .post(format!("{base}/mcp"))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(format!("access_token={own}"));
    assert_eq!(sent(form).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn callers_are_authenticated_before_the_body_is_read() {
    let keyed = Keyed::start().await;
    let base = keyed.url("a", "x", "mcp").replace("/mcp", "");
    // This request never sends its body.
    let host = base.split('/').nth(2).unwrap();
    let mut socket = tokio::net::TcpStream::connect(host).await.unwrap();
    let head = format!(
        "POST /t/a/x/mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes())
        .await
        .unwrap();
    let answer = within("an answer", crate::support::wire::rest(&mut socket)).await;
    assert_eq!(statuses(&answer), [401], "{answer}");
}

#[tokio::test]
async fn sessions_are_of_one_principal() {
    let keyed = Keyed::start().await;
    let base = keyed.url("a", "x", "mcp").replace("/mcp", "");
    let session = keyed.session(&keyed.ada).await;
    assert_eq!(session.text("counter", json!({})).await, "1");
    let mut listener = session.listen().await;
    let event = listener.next().await.unwrap().id.unwrap();
    let own = session.id.clone().unwrap();
    // Another key of the same person, another person's key, no key, a key of another tenant.
    let mut anonymous = HeaderMap::new();
    anonymous.insert("X-Nobody", "1".parse().unwrap());
    let callers = [
        (
            "the other key",
            bearer(&keyed.second),
            StatusCode::NOT_FOUND,
        ),
        ("eve", bearer(&keyed.eve), StatusCode::NOT_FOUND),
        ("nobody", client(), StatusCode::UNAUTHORIZED),
        (
            "another tenant",
            bearer(&keyed.bob),
            StatusCode::UNAUTHORIZED,
        ),
    ];
    for (who, http, wanted) in callers {
        let unknown = "0".repeat(32);
        let theirs = surfaces(&http, &base, &own, &event);
        let nobodys = surfaces(&http, &base, &unknown, &event);
        for ((surface, stolen), (_, made_up)) in theirs.into_iter().zip(nobodys) {
            if matches!(surface, "initialize" | "connect") {
                continue;
            }
            let stolen = whole(sent(stolen).await).await;
            assert_eq!(stolen.0, wanted, "{who} {surface}");
            assert_eq!(stolen, whole(sent(made_up).await).await, "{who} {surface}");
        }
    }
    // On the path of its own tenant that key is valid, but the session is unknown.
    let other = keyed.url("b", "x", "mcp").replace("/mcp", "");
    for (surface, request) in surfaces(&bearer(&keyed.bob), &other, &own, &event) {
        if !matches!(surface, "initialize" | "connect") {
            assert_eq!(
                sent(request).await.status(),
                StatusCode::NOT_FOUND,
                "{surface}"
            );
        }
    }
    assert_eq!(
        session.text("counter", json!({})).await,
        "2",
        "nothing happened to it"
    );
    assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_session_of_http_sse_is_of_one_principal() {
    let keyed = Keyed::start().await;
    let base = keyed.url("a", "x", "mcp").replace("/mcp", "");
    let connect = bearer(&keyed.ada)
        .get(format!("{base}/sse"))
        .header("Accept", "text/event-stream");
    let mut events = crate::support::harness::Events::of(sent(connect).await);
    let endpoint = events.next().await.unwrap();
    let (path, cursor) = (endpoint.data.unwrap(), endpoint.id.unwrap());
    let messages = format!("{}{path}", base.replace("/t/a/x", ""));
    let post = |http: reqwest::Client, url: &str, message: Value| {
        http.post(url)
            .header("Content-Type", "application/json")
            .body(message.to_string())
    };
    let opened = sent(post(bearer(&keyed.ada), &messages, opening("2024-11-05"))).await;
    assert_eq!(opened.status(), StatusCode::ACCEPTED);
    assert!(events.message().await.unwrap().1["result"].is_object());
    let call = tool_call(json!(7), "counter", json!({}));
    for (http, wanted) in [
        (bearer(&keyed.second), StatusCode::NOT_FOUND),
        (client(), StatusCode::UNAUTHORIZED),
        (bearer(&keyed.bob), StatusCode::UNAUTHORIZED),
    ] {
        let again = http
            .get(format!("{base}/sse"))
            .header("Accept", "text/event-stream");
        let again = sent(again.header("Last-Event-ID", &cursor)).await;
        assert_eq!(again.status(), wanted);
        let stolen = whole(sent(post(http.clone(), &messages, call.clone())).await).await;
        let id = path.rsplit_once('=').unwrap().1;
        let unknown = messages.replace(id, &"0".repeat(id.len()));
        assert_eq!(stolen.0, wanted);
        assert_eq!(
            stolen,
            whole(sent(post(http, &unknown, call.clone())).await).await
        );
    }
    // The Streamable HTTP endpoint refuses the session too.
    let mixed = bearer(&keyed.second).post(format!("{base}/mcp"));
    let mixed = mixed.header("Mcp-Session-Id", path.rsplit_once('=').unwrap().1);
    let mixed = mixed
        .header("Content-Type", "application/json")
        .header("Accept", BOTH);
    assert_eq!(
        sent(mixed.body(call.to_string())).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        sent(post(bearer(&keyed.ada), &messages, call))
            .await
            .status(),
        StatusCode::ACCEPTED
    );
    let (_, answer) = events.message().await.unwrap();
    assert_eq!(
        crate::support::harness::text_of(&answer),
        "1",
        "nobody else called"
    );
}

#[tokio::test]
async fn a_server_without_grant_is_no_server() {
    let keyed = Keyed::start().await;
    let url = |server: &str| keyed.url("a", server, "mcp").replace("/mcp", "");
    for (who, key, hidden) in [
        ("eve has y only", &keyed.eve, "x"),
        ("eve has the grant, her key has not", &keyed.eve, "granted"),
        ("ada's key has it, she has no grant", &keyed.ada, "granted"),
    ] {
        let http = bearer(key);
        let there = surfaces(&http, &url(hidden), "0123", "0-0-0");
        let nowhere = surfaces(&http, &url("nowhere"), "0123", "0-0-0");
        for ((surface, there), (_, nowhere)) in there.into_iter().zip(nowhere) {
            let there = whole(sent(there).await).await;
            assert_eq!(there.0, StatusCode::NOT_FOUND, "{who} {surface}");
            assert!(!there.2.contains("session"), "{}", there.2);
            assert_eq!(there, whole(sent(nowhere).await).await, "{who} {surface}");
        }
    }
    let mut own = Session::at(bearer(&keyed.eve), keyed.url("a", "y", "mcp"));
    own.initialize(NEWEST).await;
    assert_eq!(keyed.served.descendants().len(), 1, "hers, and no other");
}

#[tokio::test]
async fn paths_are_compared_literally() {
    let keyed = Keyed::start().await;
    let root = keyed.url("a", "x", "mcp").replace("/t/a/x/mcp", "");
    let host = root.split('/').nth(2).unwrap().to_owned();
    for path in [
        "/t/b/../a/x/mcp",
        "/t/b/x/../../a/x/mcp",
        "/t/a/./x/mcp",
        "/t/b/%2e%2e/a/x/mcp",
        "/t/b%2f..%2fa/x/mcp",
        "/t/%61/x/mcp",
        "/t//x/mcp",
        "/t/a//mcp",
        "//t/a/x/mcp",
        "/t/A/x/mcp",
        "/t/a/X/mcp",
        "/t/a./x/mcp",
        "/t/a/x./mcp",
        "/t/a/x%00/mcp",
        "/t/a/x/mcp/",
        "/t/a/x/MCP",
        "/t/a/x;y/mcp",
        "/t/a/0/mcp",
        "/t/b/x/mcp",
        "/t/c/x/mcp",
        "/T/a/x/mcp",
    ] {
        let message = opening(NEWEST).to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nAccept: {BOTH}\r\nContent-Length: {}\r\n\r\n{message}",
            keyed.ada,
            message.len(),
        );
        let mut socket = tokio::net::TcpStream::connect(&host).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, request.as_bytes())
            .await
            .unwrap();
        let answer = within("an answer", crate::support::wire::rest(&mut socket)).await;
        assert!(
            matches!(statuses(&answer)[..], [400 | 401 | 404]),
            "{path}: {answer}"
        );
    }
    assert!(
        keyed.served.descendants().is_empty(),
        "no child was started"
    );
}

#[tokio::test]
async fn children_see_nothing_of_the_credentials() {
    let keyed = Keyed::start().await;
    let secrets = [&keyed.ada[4..30]];
    are_unseen(keyed.url("a", "x", "mcp"), &keyed.ada, &secrets).await;
}

/// Asserts that a child sees nothing of the token, of `parts`, or of its client's headers.
pub(crate) async fn are_unseen(url: String, token: &str, parts: &[&str]) {
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", format!("Bearer {token}").parse().unwrap());
    headers.insert("Cookie", "canary-cookie=1".parse().unwrap());
    headers.insert("X-Canary", "canary-header".parse().unwrap());
    let mut session = Session::at(client_with(headers), url);
    session.initialize(NEWEST).await;
    let id = session.id.clone().unwrap();
    let secrets = [parts, &[token, "canary-", &id, "Bearer"]].concat();
    for tool in ["env", "args", "received", "cwd"] {
        let seen = session.text(tool, json!({})).await;
        assert!(seen.len() > 10, "{tool}: {seen}");
        for secret in &secrets {
            assert!(!seen.contains(secret), "{tool} shows {secret}: {seen}");
        }
    }
}

#[tokio::test]
async fn denials_are_folded() {
    let mut keyed = Keyed::start().await;
    let url = keyed.url("a", "x", "mcp");
    for _ in 0..30 {
        assert_eq!(
            sent(client().get(&url)).await.status(),
            StatusCode::UNAUTHORIZED
        );
    }
    for _ in 0..20 {
        let eve = bearer(&keyed.eve).get(&url).send();
        assert_eq!(
            within("a response", eve).await.unwrap().status(),
            StatusCode::NOT_FOUND
        );
    }
    let shown = keyed.served.ops("/metrics").await;
    assert!(
        shown.contains("lockgate_denied_total{reason=\"no_token\"} 30"),
        "{shown}"
    );
    assert!(
        shown.contains("lockgate_denied_total{reason=\"no_grant\"} 20"),
        "{shown}"
    );
    let logs = keyed.served.end().await;
    let denied: Vec<&Value> = logs
        .iter()
        .filter(|line| line["target"] == "lockgate::audit")
        .collect();
    let counts = |reason: &str| -> Vec<u64> {
        let of = denied.iter().filter(|line| line["reason"] == reason);
        of.map(|line| line["count"].as_u64().unwrap()).collect()
    };
    assert_eq!(counts("no_token"), [1, 29], "{denied:?}");
    assert_eq!(counts("no_grant"), [1, 19], "{denied:?}");
    for line in &denied {
        assert!(line["tenant.id"] == "a" && line["route"] == "mcp", "{line}");
        assert!(
            line["timestamp"].is_string() || line["time"].is_string(),
            "{line}"
        );
        let who = line["client.address"]
            .as_str()
            .or(line["principal"].as_str())
            .unwrap();
        assert!(who == "127.0.0.1" || who.contains("\"eve\""), "{line}");
    }
    let text = format!("{logs:?}");
    assert!(!text.contains("lgk_"), "{text}");
    until("nothing is left", async || {
        keyed.served.descendants().is_empty()
    })
    .await;
}

/// Keys that end by themselves, and by a change: new requests were refused, and what was open went on.
#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_key_at_every_replica() {
    let (near, past) = (key(), key());
    let spec = |hash: &str| json!({"hash": hash, "subject": "ada", "servers": ["x"]});
    let tenants = json!({"a": {"auth": {"mode": "keys"},
        "api_keys": {"near": spec(&near.1), "past": spec(&past.1)},
        "servers": {"x": {"command": child()}}}});
    let pair = Pair::of(json!({}), tenants).await;
    let opened = async |replica: &Served, key: &str| {
        let url = format!("{}/t/a/x/mcp", replica.origin());
        let mut session = Session::at(bearer(key), url);
        session.initialize(NEWEST).await;
        session.listen().await
    };
    let [first, second] = pair.both();
    let mut open = Vec::new();
    for replica in [first, second] {
        open.push([
            opened(replica, &past.0).await,
            opened(replica, &near.0).await,
        ]);
    }
    let expire = async |name: &str, hash: &str, at: u64| {
        let at = OffsetDateTime::from_unix_timestamp(i64::try_from(at).unwrap()).unwrap();
        let mut ends = spec(hash);
        ends["expires"] = json!(at.format(&Rfc3339).unwrap());
        let url = format!("{}/api/v1/tenants/a/api-keys/{name}", first.origin());
        let put = send(Method::PUT, &url, &first.administrator(), Some(&ends)).await;
        assert!(put.status.is_success(), "{}", put.body);
    };
    let end = now() + 4;
    expire("near", &near.1, end).await;
    let began = Instant::now();
    expire("past", &past.1, now() - 60).await;
    for [past, _] in &mut open {
        within("the end of a stream", past.rest()).await;
    }
    assert!(began.elapsed().as_secs() < 5);
    for [_, near] in &mut open {
        within("the end of a stream", near.rest()).await;
        // The clock of the database decides.
        assert!((end - 1..end + 6).contains(&now()));
    }
}

/// A gateway without authentication serves a client without credentials, ignores an API key, and
/// has no protected resource metadata.
#[tokio::test]
async fn what_is_open_stays_open() {
    let gateway = crate::support::harness::Gateway::start(&[]).await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    assert!(legacy.initialize().await["result"].is_object());
    let with = Session::at(bearer("lgk_whatever"), gateway.url.clone());
    assert_eq!(with.post(&opening(NEWEST)).await.status(), StatusCode::OK);
    let base = gateway.base();
    let page = client().get(format!("{base}/.well-known/oauth-protected-resource/mcp"));
    assert_eq!(sent(page).await.status(), StatusCode::NOT_FOUND);
}

/// The parked call of one principal, retried by others with its own ticket and request.
#[tokio::test]
async fn a_ticket_is_its_principals() {
    let keyed = Keyed::start().await;
    let url = keyed.url("a", "x", "mcp");
    let of = |token: &str| {
        let asks = json!({"elicitation": {}});
        let mut client = Modern::at(&url).with(asks);
        client.token = Some(token.to_owned());
        client
    };
    let (ada, second) = (of(&keyed.ada), of(&keyed.second));
    let call = ada.tool("ask", json!({"kind": "elicitation", "message": "Who?"}));
    let required = ada.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let retry = ada.retry(&call, &required, json!({key: {"action": "decline"}}));
    let refused = second.post(&retry).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let refused = json_of(refused).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    // Eve may not use this server.
    let refused = of(&keyed.eve).post(&retry).await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
    let mut nobody = Modern::at(&url);
    assert_eq!(nobody.post(&retry).await.status(), StatusCode::UNAUTHORIZED);
    nobody.token = Some(keyed.bob.clone());
    assert_eq!(nobody.post(&retry).await.status(), StatusCode::UNAUTHORIZED);
    let answer = ada.answer(&retry).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    // Each principal has sessions and children of its own.
    for (client, count) in [(&ada, "1"), (&ada, "2"), (&second, "1")] {
        assert_eq!(client.text("counter", json!({})).await, count);
    }
}

/// The state of a server in the ticket of one principal, which others send as their own.
#[tokio::test]
async fn a_carried_ticket_is_its_principals() {
    let (ada, bob) = (key(), key());
    let of = |hash: &str, name: &str| json!({"hash": hash, "subject": name, "servers": ["*"]});
    let server = json!({"command": child(), "isolation": "tenant", "env": {"CHILD_ERA": "modern"}});
    let tenants = json!({"a": {"auth": {"mode": "keys"}, "servers": {"x": server},
        "api_keys": {"ada": of(&ada.1, "ada"), "bob": of(&bob.1, "bob")}}});
    let served = Served::start(json!({}), tenants).await;
    let at = |token: &str| {
        let url = format!("{}/t/a/x/mcp", served.origin());
        let mut client = Modern::at(&url).with(json!({"roots": {}}));
        client.token = Some(token.to_owned());
        client
    };
    let (ada, bob) = (at(&ada.0), at(&bob.0));
    let call = ada.tool("ask", json!({"kind": "roots"}));
    let required = ada.answer(&call).await;
    let retry = ada.retry(&call, &required, json!({"first": {"roots": []}}));
    assert_eq!(bob.post(&retry).await.status(), StatusCode::BAD_REQUEST);
    let answer = ada.answer(&retry).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

/// A task of one principal, named by others: they learn nothing of it and do nothing to it.
#[tokio::test]
async fn a_task_is_its_principals() {
    let keyed = Keyed::start().await;
    let of = |server: &str, token: &str| {
        let extensions = json!({"io.modelcontextprotocol/tasks": {}});
        let url = keyed.url("a", server, "mcp");
        let mut client = Modern::at(&url).with(json!({"extensions": extensions}));
        client.token = Some(token.to_owned());
        client
    };
    let ada = of("x", &keyed.ada);
    let task = ada.call("sleep", json!({"ms": 1000})).await["result"].clone();
    assert_eq!(task["resultType"], "task", "{task}");
    for other in [
        of("x", &keyed.second),
        of("y", &keyed.ada),
        of("y", &keyed.eve),
    ] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": task["taskId"], "inputResponses": {}});
            let refused = other.post(&other.message(method, params)).await;
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
            assert_eq!(json_of(refused).await["error"]["code"], -32602);
        }
        let (acknowledged, _) = other.listen(json!({"taskIds": [task["taskId"]]})).await;
        assert_eq!(acknowledged["params"]["notifications"], json!({}));
    }
    let request = ada.message("tasks/cancel", json!({"taskId": task["taskId"]}));
    for (client, status) in [(of("x", &keyed.eve), 404), (of("x", &keyed.bob), 401)] {
        assert_eq!(client.post(&request).await.status(), status);
    }
    ada.polled(&task, "completed").await;
}

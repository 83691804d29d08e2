//! `lockgate doctor` in front of right deployments, of broken ones, and of a hostile server.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
    response::Response,
};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};

use super::commands::{Said, stranger};
use crate::{
    auth::api_keys::key,
    support::{
        harness::{Gateway, child, run_args, within},
        reverse_proxy::{self, Fault, ReverseProxy},
        served::Served,
    },
};

/// A report, with the exit code and the text of the command.
struct Examined {
    code: i32,
    report: Value,
}

impl Examined {
    /// The codes of the findings.
    fn codes(&self) -> Vec<&str> {
        let findings = self.report["findings"].as_array().unwrap();
        let codes = findings.iter().map(|one| one["code"].as_str().unwrap());
        codes.collect()
    }

    /// The result of a check or a client, and the code of its finding.
    fn line(&self, name: &str) -> (&str, Option<&str>) {
        let lines = ["checks", "clients"].map(|list| self.report[list].as_array().unwrap());
        let mut lines = lines.into_iter().flatten();
        let line = lines.find(|line| line["name"] == name);
        let line = line.unwrap_or_else(|| panic!("no {name}: {}", self.report));
        let at = line["finding"].as_u64();
        let finding = at.map(|at| self.codes()[usize::try_from(at).unwrap() - 1]);
        (line["result"].as_str().unwrap(), finding)
    }
}

/// Runs the command; a token is in the variable `TOKEN`.
async fn run(args: &[&str], token: &str) -> Said {
    let mut command = stranger(&[&["doctor"], args].concat());
    command.env("TOKEN", token).stdin(Stdio::null());
    Said::of(within("an examination", command.output()).await.unwrap())
}

/// Examines a URL, with short limits.
async fn examine(url: &str, token: &str, args: &[&str]) -> Examined {
    examine_within("3s", url, token, args).await
}

async fn examine_within(limit: &str, url: &str, token: &str, args: &[&str]) -> Examined {
    let limits = ["--idle", "1500ms", "--json", "--timeout"];
    let token_env: &[&str] = if token.is_empty() {
        &[]
    } else {
        &["--token-env", "TOKEN"]
    };
    let said = run(
        &[&[url], &limits[..], &[limit], token_env, args].concat(),
        token,
    )
    .await;
    let report = serde_json::from_str(&said.out);
    Examined {
        code: said.code,
        report: report.unwrap_or_else(|_| panic!("{}{}", said.out, said.err)),
    }
}

/// A gateway behind a proxy with a fault: tenant `a` with log-ins and an API key, `open` without authentication.
struct Deployment {
    proxy: ReverseProxy,
    _gateway: Served,
    key: String,
}

impl Deployment {
    async fn with(fault: Fault) -> Self {
        let auth = json!({"mode": "builtin", "scopes": ["files:read"]});
        Self::of(fault, auth, |proxy| json!({"public_url": proxy})).await
    }

    /// With the authentication of `a`, and settings for the URL of the proxy.
    async fn of(fault: Fault, auth: Value, config: impl Fn(&str) -> Value) -> Self {
        let proxy = ReverseProxy::with(fault).await;
        let (key, hash) = key();
        let key_of_ada = json!({"hash": hash, "subject": "ada", "servers": ["*"]});
        let tenants = json!({
            "a": {"auth": auth,
                "api_keys": {"ci": key_of_ada}, "servers": {"x": {"command": child()}}},
            "open": {"auth": {"mode": "none"}, "servers": {"x": {"command": child()}}},
        });
        let mut config = config(&proxy.origin());
        config["stream"] = json!({"keep_alive": "500ms"});
        // Each examination registers clients.
        config["oauth"] = json!({"registrations_address": 1000, "registrations_host": 1000});
        let gateway = Served::start(config, tenants).await;
        proxy.lead_to(gateway.origin());
        Self {
            proxy,
            _gateway: gateway,
            key,
        }
    }

    fn url(&self, tenant: &str) -> String {
        format!("{}/t/{tenant}/x/mcp", self.proxy.origin())
    }

    /// Examines the server with log-ins.
    async fn examine(&self) -> Examined {
        examine(&self.url("a"), &self.key, &[]).await
    }
}

const CLIENTS: [&str; 9] = [
    "claude",
    "chatgpt",
    "vscode",
    "cursor",
    "codex",
    "inspector",
    "mcp-remote",
    "typescript-sdk",
    "python-sdk",
];
const TRANSPORTS: [&str; 5] = [
    "2026-07-28",
    "2025-11-25",
    "2025-06-18",
    "2025-03-26",
    "2024-11-05",
];

#[tokio::test]
async fn nothing_is_found_in_a_right_deployment() {
    let deployment = Deployment::with(Fault::None).await;
    for (tenant, token) in [("a", deployment.key.as_str()), ("open", "")] {
        let examined = examine(&deployment.url(tenant), token, &[]).await;
        assert_eq!(
            (examined.code, examined.codes()),
            (0, vec![]),
            "{tenant}: {}",
            examined.report
        );
        for name in CLIENTS.into_iter().chain(TRANSPORTS) {
            assert_eq!(
                examined.line(name),
                ("ok", None),
                "{name} {}",
                examined.report
            );
        }
    }
    // HTTP+SSE alone, as it is at the URL of that transport.
    let sse = deployment.url("open").replace("/mcp", "/sse");
    let examined = examine(&sse, "", &[]).await;
    assert_eq!(
        (examined.code, examined.line("2024-11-05")),
        (0, ("ok", None))
    );
    assert_eq!(examined.line("2025-11-25"), ("skipped", None));
    // It resumes a stream, and leaves nothing behind: no session, no client.
    let proxy = &deployment.proxy;
    assert!(proxy.saw_header("last-event-id"));
    assert!(
        proxy.saw(&Method::DELETE, "/t/a/x/mcp") && proxy.saw(&Method::DELETE, "/oauth/register/")
    );
    // Without a token it ends at the log-in page.
    let examined = examine(
        &deployment.url("a"),
        "",
        &["--client", "vscode", "--client", "cursor"],
    )
    .await;
    assert_eq!(
        (examined.code, examined.line("transports")),
        (0, ("skipped", None))
    );
    assert_eq!(examined.report["clients"].as_array().unwrap().len(), 2);
    // For people, the same.
    let said = run(&[&deployment.url("a"), "--client", "codex"], "").await;
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(
        lines.last(),
        Some(&"Codex          ok       log-in page; client ID metadata document")
    );
}

/// Faults, the cause of each, and a line that has it.
const BROKEN: &[(Fault, &str, &str)] = &[
    (
        Fault::Strips("www-authenticate"),
        "challenge_missing",
        "front",
    ),
    (
        Fault::ForgetsWellKnown,
        "resource_metadata_missing",
        "claude",
    ),
    (Fault::RenamesIssuer, "issuer_mismatch", "python-sdk"),
    (Fault::Buffers, "stream_buffered", "2025-11-25"),
    (Fault::HoldsBodies, "stream_buffered", "2025-11-25"),
    (
        Fault::CutsAfter(Duration::from_millis(200)),
        "stream_cut",
        "2025-11-25",
    ),
    (Fault::IsOld, "http_1_0", "front"),
    (Fault::WasOld, "http_1_0", "front"),
    (
        Fault::Moves(StatusCode::MOVED_PERMANENTLY),
        "redirected",
        "front",
    ),
    (
        Fault::Moves(StatusCode::PERMANENT_REDIRECT),
        "redirected",
        "front",
    ),
    (Fault::Limits(1 << 20), "body_limit", "2025-11-25"),
    (
        Fault::Strips("mcp-session-id"),
        "session_id_missing",
        "2025-06-18",
    ),
    (
        Fault::Drops("mcp-session-id"),
        "session_id_dropped",
        "2025-06-18",
    ),
    (
        Fault::Drops("mcp-method"),
        "mirrored_header_dropped",
        "2026-07-28",
    ),
    (Fault::Drops("authorization"), "token_refused", "2026-07-28"),
    (Fault::RefusesGet, "stream_refused", "2025-11-25"),
    (Fault::RefusesDelete, "delete_refused", "2025-03-26"),
    (
        Fault::RefusesWith("last-event-id"),
        "resume_refused",
        "2025-11-25",
    ),
    (Fault::IsAlone, "server_error", "front"),
];

#[tokio::test]
async fn each_broken_deployment_has_its_cause() {
    let deployment = Deployment::with(Fault::None).await;
    let mut wrong = Vec::new();
    for &(fault, code, name) in BROKEN {
        deployment.proxy.set(fault);
        let examined = deployment.examine().await;
        // One cause, and nothing else.
        let is_found = examined.line(name) == ("finding", Some(code));
        let is_alone = examined.codes().iter().all(|one| *one == code);
        if examined.code != 1 || !is_found || !is_alone {
            wrong.push(format!("{fault:?} {:#}", examined.report["findings"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The URL of clients is not that of the gateway: its metadata is of another one, or it hears a strange host.
#[tokio::test]
async fn a_public_url_that_nobody_uses_is_found() {
    let auth = json!({"mode": "builtin"});
    for (fault, code, name) in [
        (Fault::RewritesHost, "resource_mismatch", "python-sdk"),
        (Fault::None, "forbidden", "front"),
    ] {
        let config =
            |_: &str| json!({"public_url": "http://127.0.0.1:1", "http": {"allowed_hosts": []}});
        let deployment = Deployment::of(fault, auth.clone(), config).await;
        let examined = examine(&deployment.url("a"), "", &[]).await;
        assert_eq!(
            examined.line(name),
            ("finding", Some(code)),
            "{:#}",
            examined.report
        );
    }
}

#[tokio::test]
async fn clients_without_a_client_id_are_found() {
    let public = |proxy: &str| json!({"public_url": proxy});
    let auth = json!({"mode": "builtin", "registration": false});
    let deployment = Deployment::of(Fault::None, auth, public).await;
    let examined = deployment.examine().await;
    assert_eq!(
        (examined.code, examined.codes()),
        (1, vec!["no_registration"]),
        "{:#}",
        examined.report
    );
    assert_eq!(examined.line("vscode"), ("ok", None), "it has a document");
    assert_eq!(
        examined.line("cursor"),
        ("finding", Some("no_registration"))
    );
    // The mend names what to declare; an ID that is not declared is refused at the authorization endpoint.
    let args = ["--client", "cursor", "--client-id", "nobody"];
    let examined = examine(&deployment.url("a"), "", &args).await;
    assert_eq!(
        examined.line("cursor"),
        ("finding", Some("authorization_refused"))
    );
    // API keys alone: with one, there is no log-in to find.
    let deployment = Deployment::of(Fault::None, json!({"mode": "keys"}), public).await;
    let examined = deployment.examine().await;
    assert_eq!(
        (examined.code, examined.line("claude")),
        (0, ("skipped", None)),
        "{:#}",
        examined.report
    );
    let examined = examine(&deployment.url("a"), "", &[]).await;
    assert_eq!(
        examined.line("claude"),
        ("finding", Some("resource_metadata_missing"))
    );
    let mend = examined.report["findings"][0]["mend"].as_str().unwrap();
    assert!(mend.contains("--token-env"), "{mend}");
}

#[tokio::test]
async fn each_redirect_uri_of_a_declared_client_is_tried() {
    let all = [
        "https://www.cursor.com/agents/mcp/oauth/callback",
        "cursor://anysphere.cursor-mcp/oauth/callback",
        "http://localhost:8787/callback",
    ];
    let tenants = json!({"a": {
        "auth": {"mode": "builtin", "registration": false},
        "clients": {"whole": {"redirect_uris": all}, "part": {"redirect_uris": all[..2]}},
        "servers": {"x": {"command": child()}},
    }});
    let gateway = Served::start(json!({}), tenants).await;
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let args = ["--client", "cursor", "--client-id"];
    let examined = examine(&url, "", &[&args[..], &["whole"]].concat()).await;
    let line = examined.line("cursor");
    assert_eq!(line, ("ok", None), "{:#}", examined.report);
    let examined = examine(&url, "", &[&args[..], &["part"]].concat()).await;
    let line = examined.line("cursor");
    assert_eq!(
        line,
        ("finding", Some("authorization_refused")),
        "{:#}",
        examined.report
    );
    let mend = examined.report["findings"][0]["mend"].as_str().unwrap();
    assert!(mend.ends_with(all[2]), "{mend}");
}

#[tokio::test]
async fn web_pages_that_may_not_call_are_found() {
    let origin = [
        "--origin",
        "https://inspector.test",
        "--client",
        "inspector",
    ];
    let deployment = Deployment::with(Fault::None).await;
    let examined = examine(&deployment.url("a"), "", &origin).await;
    assert_eq!(
        examined.line("cors"),
        ("finding", Some("cors_missing")),
        "{:#}",
        examined.report
    );
    let config = |proxy: &str| json!({"public_url": proxy, "http": {"allowed_origins": ["https://inspector.test"]}});
    let deployment = Deployment::of(Fault::None, json!({"mode": "builtin"}), config).await;
    let examined = examine(&deployment.url("a"), "", &origin).await;
    assert_eq!(
        (examined.code, examined.line("cors")),
        (0, ("ok", None)),
        "{:#}",
        examined.report
    );
}

/// A gateway with a certificate for these names, up to the begin of a year; the PEM of the certificate is in `folder`.
async fn secured(folder: &Path, name: &str, end: i32) -> Gateway {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(end, 1, 1);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let (cert_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let sets = [
        format!("http.tls.cert={}", cert_file.display()),
        format!("http.tls.key={}", key_file.display()),
    ];
    Gateway::through(&[], &run_args(&[&sets[0], &sets[1]], &[]), &[&child()]).await
}

#[tokio::test]
async fn certificates_that_clients_refuse_are_found() {
    for (name, end, is_known, code) in [
        ("127.0.0.1", 4000, true, None),
        ("gw.test", 4000, true, Some("certificate_name")),
        ("127.0.0.1", 2021, true, Some("certificate_expired")),
        ("127.0.0.1", 4000, false, Some("certificate_untrusted")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let gateway = secured(folder.path(), name, end).await;
        let file = folder.path().join("cert.pem");
        let known = ["--ca-file", file.to_str().unwrap()];
        let args: &[&str] = if is_known { &known } else { &[] };
        let examined = examine(&gateway.url, "", args).await;
        let result = if code.is_some() { "finding" } else { "ok" };
        assert_eq!(
            examined.line("front"),
            (result, code),
            "{:#}",
            examined.report
        );
        assert_eq!(examined.code, i32::from(code.is_some()));
    }
    // TLS where there is none.
    let plain = Gateway::start(&[]).await;
    let examined = examine(&plain.url.replace("http:", "https:"), "", &[]).await;
    assert_eq!(
        examined.line("front"),
        ("finding", Some("tls")),
        "{:#}",
        examined.report
    );
}

/// A server that answers each path in a way of its own, and keeps what it was sent.
struct Hostile {
    address: SocketAddr,
    heard: std::sync::Arc<std::sync::RwLock<String>>,
    _serving: JoinSet<()>,
}

impl Hostile {
    async fn start(other: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = std::sync::Arc::<std::sync::RwLock<String>>::default();
        let (mut serving, told) = (JoinSet::new(), heard.clone());
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(answer(socket, address, other, told.clone()));
            }
        });
        Self {
            address,
            heard,
            _serving: serving,
        }
    }
}

/// Answers one request.
async fn answer(
    mut socket: TcpStream,
    own: SocketAddr,
    other: Option<SocketAddr>,
    heard: std::sync::Arc<std::sync::RwLock<String>>,
) {
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    *heard.write().unwrap() += &request;
    let path = request.split(' ').nth(1).unwrap();
    let other = other.unwrap_or(own);
    let head =
        |status: &str, more: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}\r\n");
    let challenge = |path: &str| {
        let url = format!("http://{other}{path}");
        head(
            "401 x",
            &format!(
                "WWW-Authenticate: Bearer resource_metadata=\"{url}\"\r\nContent-Length: 0\r\n"
            ),
        )
    };
    let has_token = request.to_lowercase().contains("authorization");
    let sized = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let refusal = |body: &str| head("400 x", &sized(body));
    let away = head(
        "307 x",
        &format!("Location: http://{other}/away\r\nContent-Length: 0\r\n"),
    );
    let evil = "\u{1b}[2J\u{9b}31m\u{202e}evil\r\nok";
    let said = match path {
        "/endless" => challenge("/endless-body"),
        "/slow" => challenge("/drip"),
        "/loop" => head("307 x", "Location: /loop\r\nContent-Length: 0\r\n"),
        "/escapes" => refusal(evil).replacen("400", "200", 1),
        // With a token they answer with it, and lead it away.
        "/echo" | "/lure" if !has_token => challenge("/nothing"),
        "/echo" => refusal(&request),
        "/lure" | "/away" => away,
        "/elsewhere" => challenge("/resource"),
        "/resource" => {
            let body = json!({"resource": format!("http://{own}/elsewhere"), "authorization_servers": [format!("http://{other}/as")]}).to_string();
            head("200 x", &format!("Content-Length: {}\r\n", body.len())) + &body
        }
        "/endless-body" | "/drip" => head("200 x", ""),
        _ => head("404 x", "Content-Length: 0\r\n"),
    };
    if socket.write_all(said.as_bytes()).await.is_err() {
        return;
    }
    let size = match path {
        "/drip" => 1,
        "/endless-body" => 64 * 1024,
        _ => return,
    };
    while socket.write_all(&vec![b' '; size]).await.is_ok() {
        if size == 1 {
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_hostile_server_gets_nothing_and_ends() {
    let other = Hostile::start(None).await;
    let hostile = Hostile::start(Some(other.address)).await;
    let mut wrong = Vec::new();
    for (path, code, came) in [
        (
            "endless",
            "resource_metadata_missing",
            "an answer of more than 262144 bytes",
        ),
        (
            "slow",
            "resource_metadata_missing",
            "no whole answer within 500ms",
        ),
        ("loop", "redirected", "307"),
        ("away", "redirected", "307"),
        ("elsewhere", "resource_mismatch", "resource: http"),
        ("escapes", "not_mcp", "200 OK (no type) \\u{1b}[2J"),
        ("echo", "initialize_refused", "400"),
        ("lure", "initialize_refused", "307"),
    ] {
        let (began, url) = (Instant::now(), format!("http://{}/{path}", hostile.address));
        let examined = examine_within("500ms", &url, "the-secret", &[]).await;
        let findings = examined.report["findings"].as_array().unwrap();
        let is_it =
            |one: &Value| one["code"] == code && one["came"].as_str().unwrap().starts_with(came);
        let mut is_good = findings.iter().any(is_it) && began.elapsed() < Duration::from_secs(15);
        for json in [&["--json"][..], &[]] {
            let args = [url.as_str(), "--token-env", "TOKEN", "--timeout", "500ms"];
            let said = run(&[&args[..], json].concat(), "the-secret").await;
            let steers =
                |letter: char| letter.is_control() && letter != '\n' || letter == '\u{202e}';
            is_good &= !said.out.contains(steers) && !said.out.contains("the-secret");
        }
        if !is_good {
            wrong.push(format!("{path} {findings:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let heard = other.heard.read().unwrap().to_lowercase();
    assert!(!heard.contains("authorization"), "{heard}");
}

#[tokio::test]
async fn mistakes_in_usage_are_told() {
    for (args, what) in [
        (&["gw.test"][..], "URL: is no URL"),
        (
            &["http://ada:secret@127.0.0.1:9/mcp"],
            "URL: has a user name",
        ),
        (
            &["http://127.0.0.1:9/mcp", "--token-env", "NOBODY_HAS_IT"],
            "--token-env: NOBODY_HAS_IT",
        ),
        (
            &["http://127.0.0.1:9/mcp", "--client", "nobody"],
            "possible values: claude",
        ),
        (
            &["http://127.0.0.1:9/mcp", "--client-id", "x"],
            "--client-id: is of one client",
        ),
        (
            &["http://127.0.0.1:9/mcp", "--ca-file", "/nonexistent"],
            "--ca-file: /nonexistent",
        ),
        (
            &["http://127.0.0.1:9/mcp", "--timeout", "0s"],
            "use 100ms to 1h",
        ),
    ] {
        let said = run(args, "").await;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{args:?}");
        assert!(said.err.contains(what), "{args:?} {}", said.err);
    }
    // Nobody listens there.
    let examined = examine("http://127.0.0.1:9/mcp", "", &[]).await;
    assert_eq!((examined.code, examined.codes()), (1, vec!["unreachable"]));
}

/// A server without metadata has its endpoints at fixed places (2025-03-26 authorization, "Fallbacks for Servers without
/// Metadata Discovery").
#[tokio::test]
async fn a_server_of_the_first_generation_is_let_in() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = Router::new().fallback(|request: Request<Body>| async move {
        let (status, body) = match request.uri().path() {
            "/register" => (201, "{\"client_id\":\"c\"}"),
            "/authorize"
                if request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains("S256")) =>
            {
                (200, "log in")
            }
            "/mcp" => (401, ""),
            _ => (404, ""),
        };
        let answer = Response::builder()
            .status(status)
            .header("WWW-Authenticate", "Bearer realm=\"x\"");
        answer.body(Body::from(body)).unwrap()
    });
    let mut serving = JoinSet::new();
    serving.spawn(reverse_proxy::serve(listener, app));
    let examined = examine(&url, "", &[]).await;
    assert_eq!(
        (examined.code, examined.codes()),
        (0, vec![]),
        "{:#}",
        examined.report
    );
    for name in CLIENTS {
        assert_eq!(examined.line(name), ("ok", None), "{name}");
    }
}

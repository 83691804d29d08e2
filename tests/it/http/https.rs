//! HTTPS on a real socket, and the replacement of certificates in a running gateway.

use std::{path::Path, time::Duration};

use reqwest::{Certificate, Client, Version};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    harness::{Gateway, Session, child, run_args, until, within},
    wire::connect,
};

/// A certificate for the loopback address and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        Self { cert, key }
    }

    /// Replaces the files of the key and of the certificate.
    pub(crate) fn install(&self, folder: &Path) {
        for (name, text) in [("key.pem", &self.key), ("cert.pem", &self.cert)] {
            let new = folder.join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, folder.join(name)).unwrap();
        }
    }

    /// A client that trusts this certificate alone, with no connection yet.
    pub(crate) fn client(&self) -> Client {
        let trusted = Certificate::from_pem(self.cert.as_bytes()).unwrap();
        Client::builder()
            .no_proxy()
            .tls_certs_only([trusted])
            .retry(reqwest::retry::never())
            .build()
            .unwrap()
    }

    /// True if a new connection gets this certificate.
    async fn is_shown(&self, gateway: &Gateway) -> bool {
        let request = self
            .client()
            .get(format!("{}/livez", gateway.base()))
            .send();
        within("livez", request)
            .await
            .is_ok_and(|answer| answer.status() == 200)
    }
}

/// A gateway with a certificate in `folder`.
async fn secured(folder: &Path) -> Gateway {
    let of = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let cert = format!("http.tls.cert={}", of("cert.pem"));
    let key = format!("http.tls.key={}", of("key.pem"));
    let args = run_args(&[&cert, &key], &[]);
    let gateway = Gateway::through(&[], &args, &[&child()]).await;
    assert!(gateway.url.starts_with("https://"), "{}", gateway.url);
    gateway
}

/// A session through `client`.
async fn session(gateway: &Gateway, client: Client) -> Session {
    let mut session = gateway.stranger();
    session.http = client;
    session.initialize("2025-11-25").await;
    session
}

#[tokio::test]
async fn both_protocols_are_served_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::new();
    pair.install(folder.path());
    let gateway = secured(folder.path()).await;
    let trusted = Certificate::from_pem(pair.cert.as_bytes()).unwrap();
    let old = Client::builder().no_proxy().tls_certs_only([trusted]);
    let old = old.http1_only().build().unwrap();
    for (client, version) in [(pair.client(), Version::HTTP_2), (old, Version::HTTP_11)] {
        let session = session(&gateway, client).await;
        let args = json!({"n": 3, "ms": 1});
        let mut stream = session.stream("slow", args, json!(1)).await;
        assert_eq!(stream.messages().await.len(), 4);
        let answer = session.begin("echo", json!({"text": "x"})).await;
        assert_eq!(answer.version(), version);
        // An origin of this listener has the scheme https.
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
        for (scheme, status) in [("https", 200), ("http", 403)] {
            let own = gateway.base().replace("https", scheme);
            let request = session.request(reqwest::Method::POST).header("Origin", own);
            let request = request.header("Content-Type", "application/json");
            let request = request.header("Accept", session.accept).body(ping.clone());
            let answer = within("an answer", request.send()).await.unwrap();
            assert_eq!(answer.status(), status, "{scheme}");
        }
    }
    assert!(
        !Pair::new().is_shown(&gateway).await,
        "any certificate will do"
    );
    // A plain HTTP request gets no HTTP answer.
    let mut socket = connect(&gateway).await;
    let (mut said, request) = (
        Vec::new(),
        b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    );
    socket.write_all(request).await.unwrap();
    drop(within("the end", socket.read_to_end(&mut said)).await);
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
}

#[tokio::test]
async fn a_new_certificate_drops_no_stream() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Pair::new(), Pair::new());
    first.install(folder.path());
    let gateway = secured(folder.path()).await;
    assert!(first.is_shown(&gateway).await);
    let session = session(&gateway, first.client()).await;
    let mut listener = session.listen().await;
    let args = json!({"n": 100_000, "ms": 5});
    let mut call = session.stream("slow", args, json!(1)).await;
    second.install(folder.path());
    // The gateway checks the files every five seconds.
    until("the new certificate", || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        second.is_shown(&gateway).await
    })
    .await;
    assert!(!first.is_shown(&gateway).await, "both are shown");
    // The earlier connections are still open.
    for number in 1..1000 {
        let (_, message) = call.message().await.unwrap();
        assert_eq!(message["params"]["progress"], number);
    }
    let args = json!({"method": "notifications/still", "params": {}});
    assert_eq!(session.text("notify", args).await, "sent");
    let (_, message) = listener.message().await.unwrap();
    assert_eq!(message["method"], "notifications/still");
    session.delete().await;
}

/// The message of `check` and of `serve` for unusable settings, with exit code 2.
async fn refused(env: &[(&str, &str)], sets: &[&str]) -> String {
    let mut said = Vec::new();
    for command in ["check", "serve"] {
        let mut own = tokio::process::Command::new(env!("CARGO_BIN_EXE_lockgate"));
        own.arg(command).envs(env.iter().copied());
        own.args(sets.iter().flat_map(|set| ["--set", set]));
        let output = within("its end", own.kill_on_drop(true).output())
            .await
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        said.push(String::from_utf8(output.stderr).unwrap());
    }
    assert_eq!(said[0], said[1]);
    said.swap_remove(0)
}

#[tokio::test]
async fn what_cannot_be_used_is_known_before_anything_listens() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let data = format!("data_dir={}", at("data"));
    let (one, other) = (Pair::new(), Pair::new());
    std::fs::write(at("cert"), &one.cert).unwrap();
    std::fs::write(at("key"), &one.key).unwrap();
    std::fs::write(at("other"), &other.key).unwrap();
    let tls = async |cert: &str, key: &str| {
        let cert = format!("http.tls.cert={}", at(cert));
        let key = format!("http.tls.key={}", at(key));
        refused(&[], &[&data, &cert, &key]).await
    };
    let is_at = |said: String, begins: &str| assert!(said.starts_with(begins), "{said}");
    is_at(
        tls("none", "key").await,
        "--set: http.tls.cert: cannot read ",
    );
    is_at(tls("cert", "cert").await, "--set: http.tls.key: ");
    let said = tls("cert", "other").await;
    assert_eq!(
        said.matches("certificate and key do not serve").count(),
        1,
        "{said}"
    );
    is_at(said, "--set: http.tls.key: certificate and key");
    let said = refused(&[], &[&data, "redis.url=redis://h:99999"]).await;
    is_at(said, "--set: redis.url: is no URL of Redis");
    let said = refused(&[("LOCKGATE_MASTER_KEY", "abc")], &[&data]).await;
    is_at(
        said,
        "LOCKGATE_MASTER_KEY: master_key: is not 32 bytes in Base64",
    );
    let said = refused(&[("LOCKGATE_ADMIN_KEY", "foo")], &[&data]).await;
    is_at(said, "environment: LOCKGATE_ADMIN_KEY: is no API key");
    let file = at("lockgate.toml");
    std::fs::write(&file, "\nmaster_key = \"abc\"\n").unwrap();
    let said = refused(&[("LOCKGATE_CONFIG", &file)], &[&data]).await;
    is_at(said, &format!("{file}:2: master_key: "));
}

#[tokio::test]
async fn a_taken_port_says_which_key_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for key in ["http.listen", "ops.listen", "admin.listen"] {
        let mut sets = vec![format!("data_dir={}", dir.path().join("data").display())];
        sets.extend(["http.listen", "ops.listen"].map(|key| format!("{key}=127.0.0.1:0")));
        sets.push(format!("{key}={address}"));
        let mut serve = tokio::process::Command::new(env!("CARGO_BIN_EXE_lockgate"));
        serve
            .arg("serve")
            .args(sets.iter().flat_map(|set| ["--set", set]));
        let output = within("its end", serve.kill_on_drop(true).output())
            .await
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let begins = format!("lockgate: --set: {key}: cannot listen on {address}: ");
        assert!(said.starts_with(&begins), "{said}");
        let flag = if key == "http.listen" {
            ": --listen ADDR"
        } else {
            ""
        };
        let remedy = format!("; end what has it, or write another port{flag}\n");
        assert!(said.ends_with(&remedy), "{said}");
    }
}

/// A gateway that runs as a user without rights, as in a container. Skipped where this process
/// cannot change its user, or where that user cannot execute the binary.
#[tokio::test]
async fn a_user_without_rights_can_run_it() {
    let become_nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let binary = env!("CARGO_BIN_EXE_lockgate");
    let child = child();
    for path in [binary, &child] {
        let mut probe = tokio::process::Command::new("setpriv");
        let probe = probe
            .args(&become_nobody[1..])
            .args(["test", "-x", path])
            .status();
        if !within("a probe", probe)
            .await
            .is_ok_and(|status| status.success())
        {
            println!("skipped: nobody else can execute {path}");
            return;
        }
    }
    let gateway = Gateway::through(&become_nobody, &run_args(&[], &[]), &[&child]).await;
    let session = gateway.session().await;
    let place = session.text("cwd", json!({})).await;
    assert!(
        place.contains(r#""uid":"65534"#) || place.contains("65534"),
        "{place}"
    );
    session.call("spawn_tree", json!({})).await;
    assert!(gateway.descendants().len() >= 8);
    assert_eq!(session.delete().await.status(), 204);
    until("the end of all children", || async {
        gateway.descendants().is_empty()
    })
    .await;
}

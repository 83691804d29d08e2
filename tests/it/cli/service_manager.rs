//! A gateway under a service manager: readiness, watchdog, reload at SIGHUP, and stop.

use std::{
    os::{linux::net::SocketAddrExt, unix::net},
    path::Path,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::UnixDatagram;

use crate::support::{
    harness::{Session, child, client, within},
    served::Served,
};

/// The socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        Self(UnixDatagram::bind(path).unwrap())
    }

    /// The lines of the next message.
    async fn said(&self) -> Vec<String> {
        let mut message = [0; 4096];
        let length = within("a message", self.0.recv(&mut message))
            .await
            .unwrap();
        let text = std::str::from_utf8(&message[..length]).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The next message that is no sign of life.
    async fn state(&self) -> Vec<String> {
        loop {
            let said = self.said().await;
            if said != ["WATCHDOG=1"] {
                return said;
            }
        }
    }
}

fn plain() -> Value {
    json!({"acme": {"auth": {"mode": "none"}, "servers": {"x": {"command": child()}}}})
}

/// A server whose environment has the content of a file.
fn tenants(secret: &Path) -> Value {
    let token = format!("${{file:{}}}", secret.display());
    json!({"acme": {
        "auth": {"mode": "none"},
        "servers": {"x": {"command": child(), "env": {"CHILD_USER": token}}},
    }})
}

/// The environment of a child.
async fn variables(session: &Session) -> Value {
    serde_json::from_str(&session.text("env", json!({})).await).unwrap()
}

/// The number behind `name=` in a message.
fn number(message: &[String], name: &str) -> u64 {
    let mut values = message.iter().filter_map(|line| line.strip_prefix(name));
    values.next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_service_manager_learns_each_state() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = Manager::at(&socket);
    let socket = socket.to_str().unwrap();
    let env = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "300000")];
    let config = json!({"drain": {"timeout": "7s", "delay": "1s"}});
    let mut gateway = Served::with(&env, config, plain()).await;
    let ready = manager.state().await;
    assert_eq!(ready[0], "READY=1");
    assert_eq!(ready[1], format!("STATUS=serving on {}", gateway.origin()));
    // It serves at once, and goes on to say that it lives.
    gateway.session("acme", "x").await;
    for _ in 0..3 {
        assert_eq!(manager.said().await, ["WATCHDOG=1"]);
    }
    gateway.send(Signal::TERM);
    let stopping = manager.state().await;
    assert_eq!(&stopping[..2], ["STOPPING=1", "STATUS=draining"]);
    // The drain, the ends of children, the stages behind them, and the last spans.
    assert_eq!(number(&stopping, "EXTEND_TIMEOUT_USEC="), 29_000_000);
    gateway.end().await;
}

#[tokio::test]
async fn sighup_applies_the_manifest_and_the_files_that_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, secret) = (dir.path().join("notify"), dir.path().join("secret"));
    std::fs::write(&secret, "first").unwrap();
    let manager = Manager::at(&socket);
    let env = [("NOTIFY_SOCKET", socket.to_str().unwrap())];
    let mut gateway = Served::with(&env, json!({}), tenants(&secret)).await;
    assert_eq!(manager.state().await[0], "READY=1");
    let before = gateway.session("acme", "x").await;
    assert_eq!(variables(&before).await["CHILD_USER"], "first");
    // The file is not watched, and the manifest has not changed.
    std::fs::write(&secret, "second").unwrap();
    let mut last = 0;
    for _ in 0..2 {
        gateway.send(Signal::HUP);
        let reloading = manager.state().await;
        assert_eq!(reloading[0], "RELOADING=1");
        let now = number(&reloading, "MONOTONIC_USEC=");
        assert!(now > last, "{now} after {last}");
        last = now;
        assert_eq!(manager.state().await[0], "READY=1");
    }
    let after = gateway.session("acme", "x").await;
    assert_eq!(variables(&after).await["CHILD_USER"], "second");
    // A mistake keeps what was served, and the gateway.
    std::fs::remove_file(&secret).unwrap();
    gateway.send(Signal::HUP);
    assert_eq!(manager.state().await[0], "RELOADING=1");
    assert_eq!(manager.state().await[0], "READY=1");
    let still = gateway.session("acme", "x").await;
    assert_eq!(variables(&still).await["CHILD_USER"], "second");
    gateway.send(Signal::TERM);
    assert_eq!(manager.state().await[0], "STOPPING=1");
    let log = gateway.end().await;
    let refused = log.iter().any(|line| line["event"] == "manifest.refused");
    assert!(refused, "{log:?}");
}

/// Names that begin with `@` are in no file system; children get neither the socket nor its name.
#[tokio::test]
async fn an_abstract_socket_serves_too_and_children_do_not_know_it() {
    let name = format!("lockgate-it-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let socket = net::UnixDatagram::bind_addr(&address).unwrap();
    socket.set_nonblocking(true).unwrap();
    let manager = Manager(UnixDatagram::from_std(socket).unwrap());
    let name = format!("@{name}");
    let env = [("NOTIFY_SOCKET", name.as_str())];
    let mut gateway = Served::with(&env, json!({}), plain()).await;
    assert_eq!(manager.state().await[0], "READY=1");
    let session = gateway.session("acme", "x").await;
    let seen = variables(&session).await;
    assert!(seen["IT_MARKER"].is_string() && seen["NOTIFY_SOCKET"].is_null());
    gateway.stop().await;
}

/// A manager that is gone costs a warning.
#[tokio::test]
async fn without_its_manager_it_serves() {
    let env = [("NOTIFY_SOCKET", "/nonexistent/notify")];
    let mut gateway = Served::with(&env, json!({}), plain()).await;
    gateway.session("acme", "x").await;
    let live = client().get(format!("{}/livez", gateway.origin())).send();
    assert_eq!(live.await.unwrap().status(), 200);
    tokio::time::timeout(Duration::from_secs(10), gateway.stop())
        .await
        .unwrap();
}

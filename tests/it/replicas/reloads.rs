//! Settings and certificates that change under two replicas while streams are open.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use crate::{
    database::persistence::{Ground, Replica, server},
    http::https::Pair,
    support::{
        harness::{Events, NEWEST, Session, until, within},
        redis::{Kind, Redis},
    },
};

/// The MCP endpoint of a server at a replica, over TLS.
fn url(replica: &Replica, name: &str) -> String {
    let origin = replica.http.replace("http://", "https://");
    format!("{origin}/t/a/{name}/mcp")
}

/// The status of a request without a session: 400 if the server exists.
async fn status(replica: &Replica, http: &Client, name: &str) -> u16 {
    let asked = http.get(url(replica, name));
    let asked = asked.header("Accept", "text/event-stream").send();
    within("a status", asked)
        .await
        .map_or(0, |answer| answer.status().as_u16())
}

/// Reads 100 further messages of a progress stream, without a gap.
async fn goes_on(stream: &mut Events, seen: &mut u64) {
    for _ in 0..100 {
        let (_, message) = stream.message().await.expect("it lives");
        assert_eq!(message["params"]["progress"], *seen + 1);
        *seen += 1;
    }
}

fn tenants(servers: Value) -> Value {
    json!({"a": {"auth": {"mode": "none"}, "servers": servers}})
}

#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
#[tokio::test(flavor = "multi_thread")]
async fn reloads_on_two_replicas_drop_no_stream_and_bad_ones_change_nothing() {
    let (ground, redis) = (Ground::postgres(), Redis::start(Kind::Redis));
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Pair::new(), Pair::new());
    first.install(folder.path());
    let of = |name: &str| folder.path().join(name).display().to_string();
    let sets = [
        format!("--set=redis.url={}", redis.url()),
        format!("--set=http.tls.cert={}", of("cert.pem")),
        format!("--set=http.tls.key={}", of("key.pem")),
        "--set=cluster.listen=127.0.0.1:0".to_owned(),
        "--set=public_url=https://gw.test".to_owned(),
        "--set=drain.delay=0s".to_owned(),
    ];
    let mut args: Vec<&str> = sets.iter().map(String::as_str).collect();
    let file = ground.manifest(&tenants(json!({"x": server("1")})));
    let other = ground.serve(&args).await;
    args.extend(["--apply", file.to_str().unwrap()]);
    let one = ground.serve(&args).await;
    let replicas = [&one, &other];
    let http = first.client();
    for replica in replicas {
        until("a replica that is ready", async || {
            replica.probe(&replica.ops, "/readyz").await.0 == 200
                && status(replica, &http, "x").await == 400
        })
        .await;
    }
    let mut here = Session::at(http.clone(), url(&one, "x"));
    here.initialize(NEWEST).await;
    let mut there = here.again();
    (there.http, there.url) = (http.clone(), url(&other, "x"));
    assert_eq!(there.text("counter", json!({})).await, "1");
    let mut listener = there.listen().await;
    let args = json!({"n": 1_000_000, "ms": 5});
    let mut calls = [
        here.stream("slow", args.clone(), json!("here")).await,
        there.stream("slow", args, json!("there")).await,
    ];
    let mut seen = [0, 0];
    // An invalid certificate, and a manifest with a mistake.
    let bad = Pair {
        cert: "no certificate".to_owned(),
        key: second.key.clone(),
    };
    bad.install(folder.path());
    ground.manifest(&tenants(json!({"x": server("2"), "z": {"comand": "z"}})));
    until("the mistake", async || {
        !one.logged("manifest.refused").is_empty()
    })
    .await;
    for replica in replicas {
        until("the bad certificate", async || {
            replica.said("new TLS certificate refused; keeping the old")
        })
        .await;
        assert_eq!(
            status(replica, &first.client(), "x").await,
            400,
            "as before"
        );
        assert_eq!(
            status(replica, &first.client(), "z").await,
            404,
            "as before"
        );
    }
    for (call, seen) in calls.iter_mut().zip(&mut seen) {
        goes_on(call, seen).await;
    }
    // Valid files, with another environment of the server for new sessions.
    second.install(folder.path());
    ground.manifest(&tenants(json!({"x": server("2"), "y": server("1")})));
    let new = second.client();
    for replica in replicas {
        until("the new certificate", async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            status(replica, &second.client(), "y").await == 400
        })
        .await;
        assert_eq!(
            status(replica, &first.client(), "x").await,
            0,
            "the old one is shown"
        );
        let mut fresh = Session::at(new.clone(), url(replica, "x"));
        fresh.initialize(NEWEST).await;
        assert_eq!(crate::database::persistence::mark(&fresh).await, "2");
    }
    // The earlier connections are still open, with the same child.
    for (call, seen) in calls.iter_mut().zip(&mut seen) {
        goes_on(call, seen).await;
    }
    assert_eq!(crate::database::persistence::mark(&there).await, "1");
    let args = json!({"method": "notifications/still", "params": {}});
    assert_eq!(here.text("notify", args).await, "sent");
    let (_, message) = within("a notification", listener.message()).await.unwrap();
    assert_eq!(message["method"], "notifications/still");
    assert_eq!(there.text("counter", json!({})).await, "2");
    assert_eq!(here.delete().await.status(), 204);
    drop((calls, listener));
    one.stop().await;
    other.stop().await;
}

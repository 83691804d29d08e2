//! Replicas of two versions over one Redis. The tests write the records of the other version where
//! they differ.

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    replicas::sessions::Replicas,
    support::{
        harness::{Events, Session, json_of, until, within},
        redis::Reply,
    },
};

/// The stored session, as its owner wrote it.
struct Kept<'r> {
    replicas: &'r Replicas,
    key: String,
}

impl<'r> Kept<'r> {
    fn of(replicas: &'r Replicas, session: &Session) -> Self {
        let key = format!("lockgate:v1:{{{}}}", session.id.as_deref().unwrap());
        Self { replicas, key }
    }

    fn get(&self, field: &str) -> Reply {
        let redis = &self.replicas.redis;
        redis.command(&["HGET", &self.key, field])
    }

    fn set(&self, field: &str, value: &str) {
        let redis = &self.replicas.redis;
        redis.command(&["HSET", &self.key, field, value]);
    }

    /// The record for the next owner.
    fn record(&self) -> Value {
        serde_json::from_str(&self.get("kept").text()).unwrap()
    }
}

/// True if a request is served; asserts 503 otherwise.
fn is_served(response: &Response) -> bool {
    let status = response.status().as_u16();
    assert!([200, 503].contains(&status), "{status}");
    status == 200
}

/// The count of a session's child, once a replica has claimed the session.
async fn count(way: &Session) -> String {
    until("an owner", || async {
        is_served(&way.begin("whoami", json!({})).await)
    })
    .await;
    way.text("counter", json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn additions_of_a_newer_version_are_tolerated_and_stay() {
    let mut replicas = Replicas::with(3, &[], "idle: 10m").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    here.ask("logging/setLevel", json!({"level": "error"}))
        .await;
    here.ask("resources/subscribe", json!({"uri": "test://a"}))
        .await;
    let mut listener = there.listen().await;
    let heard = json!({"method": "notifications/old", "params": {}});
    here.call("notify", heard).await;
    let (cursor, _) = within("a notification", listener.message()).await.unwrap();
    // The data of a newer version: more fields, a longer record, an event of two parts.
    let kept = Kept::of(&replicas, &here);
    let mut record = kept.record();
    record["future"] = json!({"of": ["another", {"kind": null}]});
    kept.set("kept", &record.to_string());
    kept.set("future", "1");
    kept.set("f:7", "of a stream");
    let last = kept.get("n:0").number() + 1;
    let event = r#"{"jsonrpc":"2.0","method":"notifications/new"}"#;
    let redis = &replicas.redis;
    let (stream, id) = (format!("{}:0", kept.key), format!("{last}-0"));
    redis.command(&["XADD", &stream, &id, "e", event, "part", "two"]);
    kept.set("n:0", &last.to_string());
    // A live replica of a newer version, with unknown contents of its heartbeat.
    for (key, value) in [
        (
            "lockgate:v1:replica:0123",
            "{\"address\":\"10.9.9.9:1\",\"version\":9}",
        ),
        ("lockgate:v1:future", "x"),
    ] {
        redis.command(&["SET", key, value, "PX", "60000"]);
    }
    // Both versions serve side by side.
    for way in [&here, &there] {
        assert!(is_served(&way.begin("echo", json!({})).await));
        assert!(is_served(&way.get(Some(&cursor)).await));
    }
    assert_eq!(
        replicas
            .node(2)
            .session()
            .await
            .text("counter", json!({}))
            .await,
        "1"
    );
    // After the downgrade this version continues with the newer version's data.
    replicas.kill(0).await;
    assert_eq!(count(&there).await, "1", "another child");
    let subscribed = there.text("subscribed", json!({})).await;
    assert!(subscribed.contains("test://a"), "{subscribed}");
    let mut resumed = Events::of(there.get(Some(&cursor)).await);
    let (_, heard) = within("the event", resumed.message()).await.unwrap();
    assert_eq!(heard["method"], "notifications/new");
    let kept = Kept::of(&replicas, &here);
    assert_eq!(kept.get("future").text(), "1", "it is not ours to remove");
    // All of it is removed with the session.
    assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
    let id = here.id.clone().unwrap();
    assert!(!replicas.redis.keys().iter().any(|key| key.contains(&id)));
}

/// An older version wrote less: missing members count as absent.
#[tokio::test(flavor = "multi_thread")]
async fn missing_members_of_an_older_version_are_tolerated() {
    let mut replicas = Replicas::two(&[]).await;
    let sessions = [
        replicas.node(0).session().await,
        replicas.node(0).session().await,
    ];
    for session in &sessions {
        let kept = Kept::of(&replicas, session);
        let record = kept.record();
        let (names, written) = (["revision", "initialize"], record.as_object().unwrap());
        let written = written
            .iter()
            .filter(|(name, _)| names.contains(&name.as_str()));
        let written: serde_json::Map<String, Value> = written
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        assert_eq!(written.len(), 2, "{record}");
        kept.set("kept", &Value::Object(written).to_string());
        let redis = &replicas.redis;
        redis.command(&["HDEL", &kept.key, "born", "h", "eb"]);
    }
    // A record that this version cannot continue ends its session, without a failure.
    let kept = Kept::of(&replicas, &sessions[1]);
    let mut record = kept.record();
    record["revision"] = json!("2099-01-01");
    kept.set("kept", &record.to_string());
    let ways = sessions.each_ref().map(|session| replicas.by(session, 1));
    replicas.kill(0).await;
    assert_eq!(count(&ways[0]).await, "1");
    let mut events = ways[0]
        .stream("slow", json!({"n": 3, "ms": 5}), json!("t"))
        .await;
    assert_eq!(events.messages().await.len(), 4);
    let gone = ways[1].begin("counter", json!({})).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    assert!(json_of(gone).await["error"].is_object());
}

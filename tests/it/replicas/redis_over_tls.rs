//! Redis over TLS, with a certificate of a private authority and a user of its own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::StatusCode;
use serde_json::json;

use crate::{
    replicas::sessions::{Replicas, count, final_message, progress, read},
    support::{
        harness::{opening, package},
        redis::{Kind, Redis, Reply},
        served::Served,
    },
};

/// A certificate authority; `file` has its certificate.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    /// A certificate for this machine, and its key.
    fn certificate(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    fn file(&self) -> String {
        self.dir.path().join("ca.pem").to_str().unwrap().to_owned()
    }
}

/// Adds the documented user to Redis.
fn restrict(redis: &Redis) {
    let text = std::fs::read_to_string(package().join("docs/replicas.md")).unwrap();
    let line = text.split("```text\nuser lockgate ").nth(1).unwrap();
    let line = line.split("```").next().unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words.contains(&"~lockgate:v1:*") && words.contains(&">PASSWORD"));
    let asked = [&["ACL", "SETUSER", "lockgate"], words.as_slice()].concat();
    assert_eq!(redis.command(&asked).text(), "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_a_redis_of_a_private_authority_as_the_documented_user() {
    let authority = Authority::new();
    let (certificate, key) = authority.certificate();
    let redis = Redis::secured(Kind::Redis, &certificate, &key);
    restrict(&redis);
    let url = redis.secure_url("lockgate:PASSWORD");
    let file = format!("redis.ca_file={}", authority.file());
    let sets = [&*file, "session.idle=10s"];
    let mut replicas = Replicas::over(redis, &[&url, &url], &sets, "idle: 10m").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!((count(&here).await, count(&there).await), (1, 2));
    let slow = json!({"n": 1000, "ms": 10});
    let mut events = there.stream("slow", slow, json!("t")).await;
    let seen = read(&mut events, 5).await;
    drop(events);
    replicas.kill(0).await;
    let cursor = progress(&seen).last().unwrap().0.clone();
    let rest = there.resume(&cursor).await.rest().await;
    assert_eq!(
        final_message(&rest)["error"]["data"]["reason"],
        "owner_lost"
    );
    assert_eq!(count(&there).await, 1, "claimed");
    assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
    // Redis refused that user nothing.
    let refused = replicas.redis.command(&["ACL", "LOG"]);
    assert_eq!(refused, Reply::List(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_of_another_authority_is_not_believed() {
    let (certificate, key) = Authority::new().certificate();
    let redis = Redis::secured(Kind::Redis, &certificate, &key);
    let (other, url) = (Authority::new(), redis.secure_url(":"));
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": "cat"}}}});
    let file = other.file();
    let config = json!({
        "redis": {"url": url, "ca_file": file},
        "cluster": {"listen": "127.0.0.1:0"}
    });
    let mut served = Served::start(config, tenants).await;
    let opened = served.stranger("a", "x").post(&opening("2025-11-25")).await;
    assert_eq!(opened.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(redis.keys().is_empty(), "nothing was told to it");
    let logs = served.end().await;
    let away = logs
        .iter()
        .find(|line| line["event"] == "redis.away")
        .unwrap();
    assert!(
        away["why"].as_str().unwrap().contains("certificate"),
        "{away}"
    );
}

//! Secrets in files that change while a gateway serves, as an orchestrator changes them.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    auth::api_keys::key,
    database::persistence::{Ground, Replica, mark, server},
    http::administration::Admin,
    support::{
        harness::{NEWEST, client, opening, until, within},
        postgres::Postgres,
        redis::{Kind, Redis},
    },
};

/// A volume of secrets, which a link replaces as a whole.
struct Volume(tempfile::TempDir);

impl Volume {
    fn new(files: &[(&str, &str)]) -> Self {
        let volume = Self(tempfile::tempdir().unwrap());
        volume.write("1", files);
        for (name, _) in files {
            symlink(Path::new("..data").join(name), volume.file(name)).unwrap();
        }
        volume
    }

    /// Replaces all files at once.
    fn write(&self, version: &str, files: &[(&str, &str)]) {
        let at = |name: &str| self.0.path().join(name);
        let folder = at(&format!("..{version}"));
        std::fs::create_dir(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        symlink(folder, at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

/// A PostgreSQL with the user `gate`, who needs a password, and a Redis with the same one.
struct Stores {
    postgres: Postgres,
    redis: Redis,
}

impl Stores {
    fn new(password: &str) -> Self {
        let (postgres, redis) = (Postgres::start(), Redis::start(Kind::Redis));
        let rules = postgres.data().join("pg_hba.conf");
        let before = std::fs::read_to_string(&rules).unwrap();
        let own = format!("host all gate 127.0.0.1/32 scram-sha-256\n{before}");
        std::fs::write(&rules, own).unwrap();
        let stores = Self { postgres, redis };
        stores.sql("SELECT pg_reload_conf()");
        stores.sql("CREATE ROLE gate SUPERUSER LOGIN");
        stores.set(password);
        stores
    }

    fn sql(&self, statement: &str) {
        let mut psql = self.postgres.command("psql");
        psql.args(["-qAt", "-d", &self.postgres.url(), "-c", statement]);
        let done = psql.output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// Gives both users another password, and ends their connections.
    fn set(&self, password: &str) {
        self.sql(&format!("ALTER ROLE gate PASSWORD '{password}'"));
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gate'");
        let rule = format!(">{password}");
        let words = [
            "ACL", "SETUSER", "gate", "reset", "on", "~*", "&*", "+@all", &rule,
        ];
        assert_eq!(self.redis.command(&words).text(), "OK");
        self.redis.command(&["CLIENT", "KILL", "USER", "gate"]);
    }

    /// The URLs with this password.
    fn urls(&self, password: &str) -> [String; 2] {
        let user = format!("//gate:{password}@");
        [
            self.postgres.url().replace("//postgres@", &user),
            self.redis.url().replace("//", &user),
        ]
    }
}

/// The keys of settings that were taken over.
fn rotated(replica: &Replica) -> usize {
    replica.logged("secret.rotated").len()
}

async fn is_ready(replica: &Replica) -> bool {
    let (status, body) = replica.probe(&replica.ops, "/readyz").await;
    (status, &body["degraded"]) == (200, &json!([]))
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_rotate_in_place_are_taken_over_without_a_restart() {
    let stores = Stores::new("old");
    let ([sql, redis], (first, _), (second, _)) = (stores.urls("old"), key(), key());
    let named = |sql, redis, admin, token| {
        [
            ("sql", sql),
            ("redis", redis),
            ("admin", admin),
            ("token", token),
        ]
    };
    let volume = Volume::new(&named(&*sql, &*redis, &*first, "one\n"));
    let ground = Ground::sqlite();
    let token = format!("${{file:{}}}", volume.path("token"));
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server(&token)}}});
    let manifest = ground.manifest(&tenants);
    let env = [
        ("LOCKGATE_SQL__URL_FILE", volume.path("sql")),
        ("LOCKGATE_REDIS__URL_FILE", volume.path("redis")),
        ("LOCKGATE_ADMIN_KEY_FILE", volume.path("admin")),
    ];
    let env = env.each_ref().map(|(name, path)| (*name, path.as_str()));
    let sets = [
        "--set=cluster.listen=127.0.0.1:0",
        "--set=public_url=https://gw.test",
    ];
    let args = [sets.as_slice(), &["--apply", manifest.to_str().unwrap()]].concat();
    let replica = ground.serve_with(&env, &args).await;
    until("readiness", || is_ready(&replica)).await;
    let session = replica.session("a", "x").await;
    assert_eq!(mark(&session).await, "one");
    let admin = Admin::with(&replica, &first);
    assert_eq!(admin.get("/tenants").await.0, 200);

    // The old password is worth nothing, and all connections are gone.
    stores.set("new");
    until("an outage", || async { !is_ready(&replica).await }).await;
    let [sql, redis] = stores.urls("new");
    volume.write("2", &named(&*sql, &*redis, &*second, "two\n"));
    until("readiness with new credentials", || is_ready(&replica)).await;
    until("all secrets", || async { rotated(&replica) == 3 }).await;
    let other = Admin::with(&replica, &second);
    assert_eq!(
        (other.get("/tenants").await.0, admin.get("/tenants").await.0),
        (200, 401)
    );
    // A connection to Redis may take a moment longer than readiness shows.
    until("a session", || async {
        let opened = replica.stranger("a", "x").post(&opening(NEWEST)).await;
        opened.status() == 200
    })
    .await;
    until("the token in the manifest", || async {
        mark(&replica.session("a", "x").await).await == "two"
    })
    .await;
    assert_eq!(replica.logged("manifest.file_changed").len(), 1);
    // Neither the passwords nor their URLs are in the log.
    let log = replica.kill().await;
    let text = serde_json::to_string(&log).unwrap();
    for secret in ["gate:old", "gate:new", &first, &second] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_secrets_and_missing_files_change_nothing() {
    let ((first, _), (second, _)) = (key(), key());
    let master = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let volume = Volume::new(&[("admin", &first), ("token", "one"), ("master", master)]);
    let ground = Ground::sqlite();
    let token = format!("${{file:{}}}", volume.path("token"));
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server(&token)}}});
    let manifest = ground.manifest(&tenants);
    let env = [
        ("LOCKGATE_ADMIN_KEY_FILE", volume.path("admin")),
        ("LOCKGATE_MASTER_KEY_FILE", volume.path("master")),
    ];
    let env = env.each_ref().map(|(name, path)| (*name, path.as_str()));
    let replica = ground
        .serve_with(&env, &["--apply", manifest.to_str().unwrap()])
        .await;
    let admin = Admin::with(&replica, &first);
    let logs = |event: &'static str| replica.logged(event);
    // No token, no key of this form, and a master key that only a start takes over.
    volume.write("2", &[("admin", "foo"), ("master", "BAAA")]);
    until("what is wrong", || async {
        [
            logs("secret.refused"),
            logs("secret.restart"),
            logs("file.unreadable"),
        ]
        .iter()
        .all(|lines| !lines.is_empty())
    })
    .await;
    assert!(logs("secret.refused")[0].contains("is no API key"));
    assert_eq!(admin.get("/tenants").await.0, 200);
    assert_eq!(mark(&replica.session("a", "x").await).await, "one");
    volume.write(
        "3",
        &[("admin", &second), ("master", master), ("token", "two")],
    );
    until("the secrets", || async {
        rotated(&replica) == 1 && mark(&replica.session("a", "x").await).await == "two"
    })
    .await;
    let other = Admin::with(&replica, &second);
    assert_eq!(
        (other.get("/tenants").await.0, admin.get("/tenants").await.0),
        (200, 401)
    );
    assert_eq!(logs("file.unreadable").len(), 1, "told once");
    replica.stop().await;
}

/// A kubelet and a load balancer ask by the address of a pod, which is no host of the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn probes_of_the_public_listener_need_no_host() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&["--set=public_url=https://gw.test"]).await;
    let status = async |path: &str, host: &str| {
        let asked = client()
            .get(format!("{}{path}", replica.http))
            .header("Host", host);
        within("a status", asked.send())
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    for path in ["/livez", "/readyz"] {
        assert_eq!(status(path, "10.1.2.3:8080").await, 200, "{path}");
        assert_eq!(status(path, "gw.test").await, 200, "{path}");
    }
    assert_eq!(status("/mcp", "10.1.2.3:8080").await, 403);
    assert_eq!(status("/livez/x", "10.1.2.3:8080").await, 403);
    replica.stop().await;
}

//! Fixture: the database of a test, the objects that tests put into it, and authorization servers of two tenants with
//! codes, tokens, people and clients.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::future::LocalBoxFuture;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::base::{Clock, Secret};
use crate::config::{Format, Wrong};
use crate::database::oauth::{
    Grant, NewCode, NewRefresh, Person, Registered, Succession, TakenCode,
};
use crate::database::vault::KeySource;
use crate::database::{Author, Database, Error, Expected, Judge, Location, Opening, Pool, Record};
use crate::declare::{Declared, Issued, Kind, Object, ObjectName, When};
use crate::manifest::objects;
use crate::telemetry::StoreTimes;

#[path = "../../../tests/it/support/postgres.rs"]
#[expect(clippy::disallowed_methods, reason = "shared with tests/it")]
mod postgres;

use postgres::Postgres;

/// The database of one test.
pub(crate) struct Place {
    pub(super) dir: tempfile::TempDir,
    pub(super) postgres: Option<Postgres>,
    pub(crate) now_ms: Arc<AtomicI64>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            postgres: None,
            now_ms: Arc::new(AtomicI64::new(1_000_000)),
        }
    }

    pub(crate) fn postgres() -> Self {
        Self {
            postgres: Some(Postgres::start()),
            ..Self::sqlite()
        }
    }

    pub(super) fn opening(&self) -> Opening {
        let file = self.dir.path().join("lockgate.db");
        let url = |postgres: &Postgres| Location::Url(Secret::of(postgres.url()).unwrap());
        let judge: Judge = Arc::new(|manifest, when| {
            let is_bad = manifest.catalog.tenants.contains_key("bad");
            let wrong = Wrong::new("is bad", "name it otherwise");
            let mistake =
                (is_bad && when != When::Serving).then(|| wrong.at("judge", "tenants.bad"));
            mistake.into_iter().collect()
        });
        let now_ms = Arc::clone(&self.now_ms);
        Opening {
            location: self.postgres.as_ref().map_or(Location::File(file), url),
            keys: KeySource::File(self.dir.path().join("master.key")),
            judge,
            clock: Clock::of(move || now_ms.load(Ordering::Relaxed)),
            times: StoreTimes::default(),
        }
    }

    pub(crate) async fn open(&self) -> Database {
        Database::open(self.opening()).await.unwrap()
    }

    /// Reports whether any file of the database contains `text`.
    pub(super) fn holds(&self, text: &str) -> bool {
        let data = self.postgres.as_ref().map(Postgres::data);
        let folders = [Some(self.dir.path().to_owned()), data];
        let mut folders = folders.iter().flatten();
        folders.any(|folder| is_in_files(folder, text))
    }

    /// The connection pool of the database, without the stores in front of it.
    pub(crate) async fn pool(&self) -> Pool {
        let (clock, times) = (Clock::system(), StoreTimes::default());
        match &self.opening().location {
            Location::File(file) => Pool::sqlite(file, clock, times).await.unwrap(),
            Location::Url(url) => Pool::postgres(url.expose(), clock, times).await.unwrap(),
        }
    }
}

/// Reports whether any file below `folder` contains `text`.
fn is_in_files(folder: &std::path::Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return is_in_files(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        memchr::memmem::find(&bytes, text.as_bytes()).is_some()
    })
}

/// Runs each test on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($promise:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $promise() { super::$promise(super::Place::sqlite()).await; })*
        }
        mod on_postgres {
            $(#[tokio::test] async fn $promise() { super::$promise(super::Place::postgres()).await; })*
        }
    };
}
pub(crate) use on_both;

pub(super) fn ada() -> Author {
    Author::named("ada")
}

pub(super) fn object(kind: Kind, json: &Json) -> Object {
    Object::new(kind, json.as_object().unwrap().clone())
}

pub(super) fn tenant(name: &str) -> (ObjectName, Object) {
    let json = json!({"auth": {"mode": "none"}});
    (ObjectName::tenant(name), object(Kind::Tenant, &json))
}

pub(super) fn server(tenant: &str, name: &str, arg: &str) -> (ObjectName, Object) {
    let json =
        json!({"command": "cat", "args": [arg], "env": {"TOKEN": format!("{CANARY}-{name}")}});
    (
        ObjectName::of(tenant, Kind::Server, name),
        object(Kind::Server, &json),
    )
}

/// A secret value that must never appear in the clear.
pub(super) const CANARY: &str = "canary-5b1f0c9d";

pub(super) async fn put(store: &Database, (name, object): (ObjectName, Object)) -> i64 {
    let put = store
        .objects()
        .put(&name, object, Expected::Any, &ada())
        .await;
    put.unwrap().stored.version
}

pub(super) async fn token(store: &Database, tenant: &str, server: &str) -> Option<Json> {
    let name = ObjectName::of(tenant, Kind::Server, server);
    let found = store.objects().get(&name).await.unwrap()?;
    Some(found.object.secret.0["env"]["TOKEN"].clone())
}

pub(super) fn manifest(text: &str) -> Declared {
    objects::parse("F", text, Format::Yaml, &std::collections::BTreeMap::new())
        .unwrap()
        .declared
}

/// Retries a call while the database is unavailable: of many concurrent calls, some time out while
/// they wait for a connection.
pub(super) async fn patient<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 0..100 {
        match ask().await {
            Err(Error::Unavailable(_)) => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            other => return other.unwrap(),
        }
    }
    panic!("the database does not answer")
}

pub(super) fn lines(changes: &[crate::declare::Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

pub(super) fn record(tenant: Option<&str>, kind: &str, actor: &str) -> Record {
    Record::new(tenant, kind, actor, "x", json!({}))
}

pub(super) const SECOND: i64 = 1000;
pub(super) const DAY: i64 = 24 * 3600 * SECOND;
/// The start of the tests' clocks.
pub(super) const BEGIN: i64 = 1_000_000;

pub(super) async fn add_tenant(store: &Database, name: &str) {
    let spec = json!({"auth": {"mode": "none"}});
    let object = Object::new(Kind::Tenant, spec.as_object().unwrap().clone());
    let name = ObjectName::tenant(name);
    let author = Author::named("ada");
    let put = store.objects().put(&name, object, Expected::Any, &author);
    put.await.unwrap();
}

pub(super) async fn open(place: &Place) -> [Database; 2] {
    place.now_ms.store(BEGIN, Ordering::Relaxed);
    let stores = [place.open().await, place.open().await];
    add_tenant(&stores[0], "a").await;
    add_tenant(&stores[0], "b").await;
    stores
}

pub(super) fn later(place: &Place, ms: i64) {
    place.now_ms.fetch_add(ms, Ordering::Relaxed);
}

pub(super) fn code(number: u8) -> NewCode {
    NewCode {
        hash: [number; 32],
        grant: Grant {
            id: Uuid::now_v7(),
            subject: "ada".to_owned(),
            groups: vec!["staff".to_owned()],
            client_id: "c_app".to_owned(),
            resource: "https://gw.test/t/a/x/mcp".to_owned(),
            scope: "r w".to_owned(),
            session: None,
            jkt: None,
            auth_ms: BEGIN,
            expires_ms: BEGIN + 90 * DAY,
        },
        redirect_uri: "https://app.test/cb".to_owned(),
        challenge: "c".repeat(43),
        expires_ms: BEGIN + 60 * SECOND,
    }
}

pub(super) fn refresh(text: &[u8; 32]) -> NewRefresh {
    let expires_ms = BEGIN + 30 * DAY;
    let hash = *text;
    NewRefresh {
        hash,
        family: None,
        expires_ms,
    }
}

/// The succession of a refresh token, whose successor depends on the salt.
pub(super) fn succession(of: &[u8; 32], salt: u8) -> Succession {
    Succession {
        salt: [salt; 32],
        successor: refresh(&successor(of, salt)),
        grace_ms: 60 * SECOND,
        kept_ms: 900 * SECOND,
    }
}

pub(super) fn successor(of: &[u8; 32], salt: u8) -> [u8; 32] {
    let mut hash = *of;
    hash[0] ^= 0x80;
    hash[1] = hash[1].wrapping_add(1);
    hash[2] = salt;
    hash
}

/// Begins a grant with its first refresh token; returns its id.
pub(super) async fn granted(store: &Database, code: &NewCode, token: &[u8; 32]) -> Uuid {
    store
        .grants()
        .add_code("a", code, BEGIN + 1, None)
        .await
        .unwrap();
    let taken = store.grants().take_code("a", &code.hash).await.unwrap();
    assert_eq!(taken, TakenCode::First(Box::new(code.clone())));
    assert!(
        store
            .grants()
            .start("a", code, &refresh(token))
            .await
            .unwrap()
    );
    code.grant.id
}

pub(super) async fn revoked(store: &Database) -> HashSet<Uuid> {
    let (issued, _) = store.issued().newer((&Issued::default(), 0)).await.unwrap();
    let of = issued.revoked.get("a");
    of.map(|of| of.grants.keys().copied().collect())
        .unwrap_or_default()
}

pub(super) fn person(subject: &str) -> Person {
    Person {
        subject: subject.to_owned(),
        title: subject.to_owned(),
        groups: Vec::new(),
        provider: None,
        session: None,
        auth_ms: BEGIN,
        password: Some([7; 32]),
    }
}

pub(super) fn registered(id: &str) -> Registered {
    Registered {
        client_id: id.to_owned(),
        metadata: "{}".to_owned(),
        secret_hash: None,
        access_hash: [1; 32],
        created_ms: BEGIN,
        expires_ms: BEGIN + 3600 * SECOND,
    }
}

/// Waits until this many statements on PostgreSQL wait for a lock, or until `is_over`.
pub(super) async fn until_waiting(pool: &Pool, many: i64, is_over: impl Fn() -> bool) {
    let sql = "SELECT COUNT(*) AS count FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    loop {
        let rows = pool.read(sql, Vec::new()).await.unwrap();
        if is_over() || rows[0].get::<i64>("count").unwrap() >= many {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Makes a change on PostgreSQL while a transaction that has the lock on `changes` runs `sql` on the same row.
pub(super) fn beside<'b, T: 'b>(
    place: &'b Place,
    sql: &'static str,
    change: impl Future<Output = Result<T, Error>> + 'b,
) -> LocalBoxFuture<'b, T> {
    Box::pin(async move {
        let pool = place.pool().await;
        let mut serial = pool.begin().await.unwrap();
        let other = async {
            until_waiting(&pool, 1, || false).await;
            serial.run(sql, Vec::new()).await.unwrap();
            serial.commit().await.unwrap();
        };
        let (changed, ()) = tokio::join!(change, other);
        pool.close().await;
        changed.unwrap()
    })
}

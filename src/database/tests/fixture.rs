//! Fixture: the database of a test, and the objects that tests put into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::{Value as Json, json};

use crate::base::{Clock, Secret};
use crate::config::{Format, Wrong};
use crate::database::vault::KeySource;
use crate::database::{Author, Database, Error, Expected, Judge, Location, Opening, Pool, Record};
use crate::declare::{Declared, Kind, Object, ObjectName, When};
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

//! The store's promises, each kept on both databases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value as Json, json};

use crate::config::{Format, Wrong};
use crate::{
    base::{Clock, Secret},
    database::{
        Author, Database, Error, Expected, Filter, Judge, Location, Opening, Pool, Record, Value,
        vault::{KeySource, Keyring, MasterKey},
    },
    declare::{AuthMode, Declared, Kind, Object, ObjectName, Prune, When, password},
    manifest::objects,
};

#[path = "../../../tests/it/support/postgres.rs"]
#[expect(clippy::disallowed_methods, reason = "shared with tests/it")]
mod postgres;

use postgres::Postgres;

/// A database of a test's own.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    postgres: Option<Postgres>,
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

    fn opening(&self) -> Opening {
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
        }
    }

    pub(crate) async fn open(&self) -> Database {
        Database::open(self.opening()).await.unwrap()
    }

    /// Whether a text stands anywhere in its files.
    fn holds(&self, text: &str) -> bool {
        let data = self.postgres.as_ref().map(Postgres::data);
        let folders = [Some(self.dir.path().to_owned()), data];
        let mut folders = folders.iter().flatten();
        folders.any(|folder| is_in_files(folder, text))
    }

    /// The database without the store in front of it.
    pub(crate) async fn pool(&self) -> Pool {
        match &self.opening().location {
            Location::File(file) => Pool::sqlite(file, Clock::system()).await.unwrap(),
            Location::Url(url) => Pool::postgres(url.expose(), Clock::system()).await.unwrap(),
        }
    }
}

#[tokio::test]
async fn only_its_owner_reads_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::sqlite();
    let mode = |name: &str| {
        let file = place.dir.path().join(name).metadata().unwrap();
        file.permissions().mode() & 0o777
    };
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    for name in ["lockgate.db", "lockgate.db-wal", "lockgate.db-shm"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    store.close().await;
    // One of an earlier version, which everybody could read.
    let file = place.dir.path().join("lockgate.db");
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    place.open().await.close().await;
    assert_eq!(mode("lockgate.db"), 0o600);
}

/// Runs each promise on SQLite and on PostgreSQL.
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

on_both! {
    an_object_is_written_read_and_removed
    a_change_meant_for_another_version_is_refused
    of_writers_that_race_one_wins
    nothing_is_written_that_has_a_mistake
    applying_the_same_again_writes_nothing
    what_belongs_to_a_tenant_goes_with_it
    every_change_is_in_the_audit_trail_or_did_not_happen
    the_audit_trail_is_filtered_and_read_in_pages
    the_audit_trail_takes_every_text
    old_audit_records_are_forgotten
    a_hash_of_a_key_is_there_once
    secrets_are_nowhere_in_clear
    a_password_is_stored_as_its_hash_and_only_once
    a_password_that_is_none_is_not_stored
    who_may_log_in_is_declared_like_the_rest
    a_sealed_value_in_another_row_does_not_open
    another_master_key_is_refused
    a_key_in_the_file_is_rotated_under_a_running_store
    given_keys_are_rotated_to_the_first
    two_stores_see_each_other
    a_schema_with_more_in_it_is_still_used
    stores_that_are_opened_together_take_turns
    a_writer_that_never_ends_is_not_waited_for
    a_plan_changes_nothing
}

fn ada() -> Author {
    Author::named("ada")
}

fn object(kind: Kind, json: &Json) -> Object {
    Object::new(kind, json.as_object().unwrap().clone())
}

fn tenant(name: &str) -> (ObjectName, Object) {
    let json = json!({"auth": {"mode": "none"}});
    (ObjectName::tenant(name), object(Kind::Tenant, &json))
}

fn server(tenant: &str, name: &str, arg: &str) -> (ObjectName, Object) {
    let json =
        json!({"command": "cat", "args": [arg], "env": {"TOKEN": format!("{CANARY}-{name}")}});
    (
        ObjectName::of(tenant, Kind::Server, name),
        object(Kind::Server, &json),
    )
}

/// What may be found nowhere.
const CANARY: &str = "canary-5b1f0c9d";

async fn put(store: &Database, (name, object): (ObjectName, Object)) -> i64 {
    let put = store
        .objects()
        .put(&name, object, Expected::Any, &ada())
        .await;
    put.unwrap().version
}

async fn token(store: &Database, tenant: &str, server: &str) -> Option<Json> {
    let name = ObjectName::of(tenant, Kind::Server, server);
    let found = store.objects().get(&name).await.unwrap()?;
    Some(found.object.secret.0["env"]["TOKEN"].clone())
}

fn manifest(text: &str) -> Declared {
    objects::parse("F", text, Format::Yaml, &std::collections::BTreeMap::new())
        .unwrap()
        .declared
}

async fn an_object_is_written_read_and_removed(place: Place) {
    let store = place.open().await;
    assert_eq!(store.objects().version().await.unwrap(), 0);
    put(&store, tenant("acme")).await;
    let (name, first) = server("acme", "files", "1");
    let written = put(&store, (name.clone(), first.clone())).await;
    assert_eq!(store.objects().version().await.unwrap(), written);
    let found = store.objects().get(&name).await.unwrap().unwrap();
    assert_eq!((found.version, &found.object), (written, &first));
    assert_eq!((found.created_ms, found.updated_ms), (1_000_000, 1_000_000));
    place.now_ms.store(2_000_000, Ordering::Relaxed);
    assert_eq!(
        put(&store, (name.clone(), first)).await,
        written,
        "the same"
    );
    let again = put(&store, server("acme", "files", "2")).await;
    let found = store.objects().get(&name).await.unwrap().unwrap();
    assert!(again > written && found.version == again);
    assert_eq!((found.created_ms, found.updated_ms), (1_000_000, 2_000_000));
    put(&store, server("acme", "b", "")).await;
    let listed = |after| store.objects().list(Kind::Server, Some("acme"), after, 1);
    assert_eq!(listed(None).await.unwrap()[0].name.name(), "b");
    assert_eq!(listed(Some("b")).await.unwrap()[0].name.name(), "files");
    assert!(listed(Some("files")).await.unwrap().is_empty());
    assert!(
        store
            .objects()
            .list(Kind::Server, Some("b"), None, 9)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        store
            .objects()
            .list(Kind::Tenant, None, None, 9)
            .await
            .unwrap()
            .len(),
        1
    );
    store
        .objects()
        .delete(&name, Expected::Any, &ada())
        .await
        .unwrap();
    assert!(store.objects().get(&name).await.unwrap().is_none());
    let gone = store.objects().delete(&name, Expected::Any, &ada()).await;
    assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
    // What was there before it and comes again is never taken for it.
    assert!(put(&store, server("acme", "files", "2")).await > again);
    let (name, orphan) = server("nobody", "files", "");
    let refused = store
        .objects()
        .put(&name, orphan, Expected::Any, &ada())
        .await;
    assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
}

async fn a_change_meant_for_another_version_is_refused(place: Place) {
    let store = place.open().await;
    let (name, acme) = tenant("acme");
    let with = |expected, revisions: Json| {
        let mut changed = acme.clone();
        changed.spec.insert("revisions".to_owned(), revisions);
        let (store, name) = (store.clone(), name.clone());
        async move {
            let put = store.objects().put(&name, changed, expected, &ada()).await;
            put.map(|stored| stored.version).map_err(|error| {
                assert!(matches!(error, Error::Conflict), "{error:?}");
            })
        }
    };
    let (one, two) = (json!(["2025-11-25"]), json!(["2025-06-18"]));
    assert_eq!(with(Expected::Present, one.clone()).await, Err(()));
    assert_eq!(with(Expected::Version(0), one.clone()).await, Err(()));
    let first = with(Expected::Absent, one.clone()).await.unwrap();
    assert_eq!(with(Expected::Absent, one.clone()).await, Err(()));
    let second = with(Expected::Version(first), two.clone()).await.unwrap();
    assert_eq!(with(Expected::Version(first), one.clone()).await, Err(()));
    let old = store
        .objects()
        .delete(&name, Expected::Version(first), &ada())
        .await;
    assert!(matches!(old, Err(Error::Conflict)), "{old:?}");
    let new = store
        .objects()
        .delete(&name, Expected::Version(second), &ada())
        .await;
    assert!(new.is_ok(), "{new:?}");
}

async fn of_writers_that_race_one_wins(place: Place) {
    let store = place.open().await;
    let mut version = put(&store, tenant("acme")).await;
    // Again and again: in the first round most of them still wait for their connection.
    for round in 0..5 {
        let tasks = (0..8).map(|number| {
            let store = store.clone();
            let (name, mut object) = tenant("acme");
            let quota = json!({"children": round * 8 + number + 1});
            object.spec.insert("quotas".to_owned(), quota);
            async move {
                let expected = Expected::Version(version);
                store
                    .objects()
                    .put(&name, object, expected, &ada())
                    .await
                    .is_ok()
            }
        });
        let won = futures_util::future::join_all(tasks).await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        version += 1;
        assert_eq!(store.objects().version().await.unwrap(), version);
    }
}

async fn nothing_is_written_that_has_a_mistake(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let before = store.objects().version().await.unwrap();
    let (name, mut unknown) = server("acme", "files", "1");
    unknown.spec.insert("comand".to_owned(), json!("cat"));
    let refused = store
        .objects()
        .put(&name, unknown, Expected::Any, &ada())
        .await;
    let Err(Error::Invalid(mistakes)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(mistakes[0].key, "tenants.acme.servers.files.comand");
    let (name, bad) = tenant("bad");
    let refused = store.objects().put(&name, bad, Expected::Any, &ada()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let (name, mut curious) = server("acme", "x", "${file:/etc/passwd}");
    let refused = store
        .objects()
        .put(&name, curious.clone(), Expected::Any, &ada())
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    curious
        .spec
        .insert("args".to_owned(), json!(["$${file:/etc/passwd}"]));
    let written = store
        .objects()
        .put(&name, curious, Expected::Any, &ada())
        .await;
    assert_eq!(written.unwrap().version, before + 1);
    let records = store
        .audit()
        .page(&Filter::default(), None, 9)
        .await
        .unwrap()
        .entries;
    assert_eq!(records.len(), 2, "{records:?}");
}

const TWO: &str = "
tenants:
  a: {auth: {mode: none}, servers: {x: {command: cat, env: {T: '1'}}, y: {command: cat}}}
  b: {auth: {mode: none}}
";

const ONE: &str = "
tenants:
  a: {auth: {mode: none}, servers: {x: {command: cat, env: {T: '2'}}}}
";

async fn applying_the_same_again_writes_nothing(place: Place) {
    let store = place.open().await;
    let apply = async |text: &str, prune| {
        let changes = store
            .objects()
            .apply(&manifest(text), prune, &ada())
            .await
            .unwrap();
        changes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let all = ["+ tenant a", "+ server a/x", "+ server a/y", "+ tenant b"];
    assert_eq!(apply(TWO, Prune::Keep).await, all);
    let version = store.objects().version().await.unwrap();
    assert!(apply(TWO, Prune::Remove).await.is_empty());
    assert_eq!(store.objects().version().await.unwrap(), version);
    assert_eq!(apply(ONE, Prune::Keep).await, ["~ server a/x: env"]);
    assert_eq!(store.objects().load().await.unwrap().objects.len(), 4);
    assert_eq!(
        apply(ONE, Prune::Remove).await,
        ["- tenant b", "- server a/y"]
    );
    let left = store.objects().load().await.unwrap();
    let left: Vec<String> = left
        .objects
        .iter()
        .map(|stored| stored.name.to_string())
        .collect();
    assert_eq!(left, ["tenant a", "server a/x"]);
}

async fn what_belongs_to_a_tenant_goes_with_it(place: Place) {
    let store = place.open().await;
    store
        .objects()
        .apply(&manifest(TWO), Prune::Keep, &ada())
        .await
        .unwrap();
    let name = ObjectName::tenant("a");
    store
        .objects()
        .delete(&name, Expected::Present, &ada())
        .await
        .unwrap();
    assert_eq!(store.objects().load().await.unwrap().objects.len(), 1);
    let filter = Filter {
        tenant: Some("a".to_owned()),
        ..Filter::default()
    };
    let records = store.audit().page(&filter, None, 3).await.unwrap().entries;
    let kinds: Vec<&str> = records
        .iter()
        .map(|entry| entry.record.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["tenant.removed", "server.removed", "server.removed"]
    );
}

async fn every_change_is_in_the_audit_trail_or_did_not_happen(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let mut author = ada();
    author
        .detail
        .insert("address".to_owned(), json!("192.0.2.1"));
    let (name, files) = server("acme", "files", "1");
    store
        .objects()
        .put(&name, files, Expected::Any, &author)
        .await
        .unwrap();
    let (_, files) = server("acme", "files", "2");
    store
        .objects()
        .put(&name, files, Expected::Any, &author)
        .await
        .unwrap();
    let entry = store
        .audit()
        .page(&Filter::default(), None, 1)
        .await
        .unwrap()
        .entries
        .remove(0);
    assert_eq!(entry.at_ms, 1_000_000);
    let wanted = Record {
        tenant: Some("acme".to_owned()),
        kind: "server.changed".to_owned(),
        actor: "ada".to_owned(),
        target: "server acme/files".to_owned(),
        detail: json!({"address": "192.0.2.1", "members": ["args"]}),
    };
    assert_eq!(entry.record, wanted);
    // Where no record can be written nothing changes either.
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    transaction
        .run("ALTER TABLE audit RENAME TO away", Vec::new())
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let before = store.objects().version().await.unwrap();
    let (_, files) = server("acme", "files", "3");
    let failed = store
        .objects()
        .put(&name, files, Expected::Any, &author)
        .await;
    assert!(matches!(failed, Err(Error::Bug(_))), "{failed:?}");
    assert_eq!(store.objects().version().await.unwrap(), before);
    let found = store.objects().get(&name).await.unwrap().unwrap();
    assert_eq!(found.object.spec["args"], json!(["2"]));
}

fn record(tenant: Option<&str>, kind: &str, actor: &str) -> Record {
    Record {
        tenant: tenant.map(str::to_owned),
        kind: kind.to_owned(),
        actor: actor.to_owned(),
        target: "x".to_owned(),
        detail: json!({}),
    }
}

async fn the_audit_trail_is_filtered_and_read_in_pages(place: Place) {
    let store = place.open().await;
    for time in 0..5_i64 {
        place.now_ms.store(1_000 + time / 2, Ordering::Relaxed);
        let actor = format!("{time}");
        let records = [
            record(Some("a"), "login", &actor),
            record(Some("b"), "denial", &actor),
            record(None, "login", &actor),
        ];
        store.audit().append(&records).await.unwrap();
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .audit()
            .page(&Filter::default(), after, 4)
            .await
            .unwrap();
        assert!(page.entries.len() <= 4);
        seen.extend(
            page.entries
                .into_iter()
                .map(|entry| (entry.at_ms, entry.id)),
        );
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 15);
    assert!(seen.windows(2).all(|pair| pair[0] > pair[1]), "{seen:?}");
    let all = Filter::default();
    let text = |text: &str| Some(text.to_owned());
    #[rustfmt::skip]
    let cases = [
        (5, Filter { tenant: text("a"), ..all.clone() }),
        (10, Filter { kind: text("login"), ..all.clone() }),
        (3, Filter { actor: text("3"), ..all.clone() }),
        (9, Filter { from_ms: Some(1_001), ..all.clone() }),
        (6, Filter { until_ms: Some(1_001), ..all.clone() }),
        (0, Filter { tenant: text("b"), kind: text("login"), ..all }),
    ];
    for (count, filter) in cases {
        let found = store.audit().page(&filter, None, 99).await.unwrap().entries;
        assert_eq!(found.len(), count, "{filter:?}");
    }
}

async fn the_audit_trail_takes_every_text(place: Place) {
    let store = place.open().await;
    let mut odd = record(Some("a"), "denied", "a\0b");
    odd.detail = json!({"address": "\0"});
    let records = [record(Some("a"), "denied", "ada"), odd];
    store.audit().append(&records).await.unwrap();
    let entries = store
        .audit()
        .page(&Filter::default(), None, 9)
        .await
        .unwrap()
        .entries;
    let actors: Vec<&str> = entries
        .iter()
        .map(|entry| entry.record.actor.as_str())
        .collect();
    assert_eq!(actors, ["a\u{fffd}b", "ada"]);
}

async fn old_audit_records_are_forgotten(place: Place) {
    let store = place.open().await;
    for time in [1_000, 5_000] {
        place.now_ms.store(time, Ordering::Relaxed);
        let records = vec![record(None, "login", "ada"); 1_500];
        store.audit().append(&records).await.unwrap();
    }
    place.now_ms.store(6_000, Ordering::Relaxed);
    store.audit().prune(Duration::from_secs(2)).await.unwrap();
    let left = store
        .audit()
        .page(&Filter::default(), None, 9_999)
        .await
        .unwrap()
        .entries;
    assert_eq!(left.len(), 1_500);
    assert!(left.iter().all(|entry| entry.at_ms == 5_000));
}

async fn a_hash_of_a_key_is_there_once(place: Place) {
    let store = place.open().await;
    let key = |hash: &str| {
        object(
            Kind::ApiKey,
            &json!({"hash": format!("sha256:{}", hash.repeat(64))}),
        )
    };
    let put = async |name: &str, hash: &str| {
        let name = ObjectName::operator_key(name);
        store
            .objects()
            .put(&name, key(hash), Expected::Absent, &ada())
            .await
            .map(drop)
    };
    put("root", "1").await.unwrap();
    let refused = put("other", "1").await;
    assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");
    put("other", "2").await.unwrap();
    let listed = store
        .objects()
        .list(Kind::ApiKey, None, None, 9)
        .await
        .unwrap();
    assert_eq!(listed.len(), 2);
    // A manifest says nothing of operators.
    store
        .objects()
        .apply(&manifest(ONE), Prune::Remove, &ada())
        .await
        .unwrap();
    assert_eq!(
        store
            .objects()
            .list(Kind::ApiKey, None, None, 9)
            .await
            .unwrap()
            .len(),
        2
    );
    let name = ObjectName::operator_key("root");
    store
        .objects()
        .delete(&name, Expected::Any, &ada())
        .await
        .unwrap();
    assert_eq!(
        store
            .objects()
            .list(Kind::ApiKey, None, None, 9)
            .await
            .unwrap()
            .len(),
        1
    );
    // The last one that lets an operator in stays.
    let name = ObjectName::operator_key("other");
    let refused = store.objects().delete(&name, Expected::Any, &ada()).await;
    assert!(matches!(refused, Err(Error::LastKey)), "{refused:?}");
}

/// Whether any file below `folder` holds `text`.
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

async fn secrets_are_nowhere_in_clear(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "files", "plain-5b1f0c9d")).await;
    put(&store, server("acme", "files", "plain-again")).await;
    let is_there = |text: &str| place.holds(text);
    assert_eq!(
        token(&store, "acme", "files").await,
        Some(json!(format!("{CANARY}-files")))
    );
    // PostgreSQL writes its log at a commit, so what is plain shows that this looks in the right place.
    assert!(is_there("plain-5b1f0c9d"));
    assert!(!is_there(CANARY));
    store.close().await;
    assert!(!is_there(CANARY));
}

fn with_password(password: &str) -> Declared {
    manifest(&format!(
        "tenants: {{acme: {{users: {{ada: {{password: \"{password}\"}}, bob: {{groups: [g]}}}}}}}}"
    ))
}

/// The hash of ada's password, which is all that is kept of it.
async fn password_hash(store: &Database) -> String {
    let name = ObjectName::of("acme", Kind::User, "ada");
    let secret = store
        .objects()
        .get(&name)
        .await
        .unwrap()
        .unwrap()
        .object
        .secret
        .0;
    let members: Vec<&String> = secret.keys().collect();
    assert_eq!(members, ["password_hash"]);
    let hash = secret["password_hash"].as_str().unwrap();
    hash.replace("$$", "$")
}

fn lines(changes: &[crate::declare::Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn a_password_is_stored_as_its_hash_and_only_once(place: Place) {
    let store = place.open().await;
    let objects = store.objects();
    let (first, second) = (format!("{CANARY}$$1"), format!("{CANARY}-2"));
    let wanted = with_password(&first);
    let planned = objects.plan(&wanted, Prune::Keep).await.unwrap();
    let applied = objects.apply(&wanted, Prune::Keep, &ada()).await.unwrap();
    assert_eq!(planned, applied);
    assert_eq!(
        lines(&applied),
        ["+ tenant acme", "+ user acme/ada", "+ user acme/bob"]
    );
    let (hash, version) = (
        password_hash(&store).await,
        objects.version().await.unwrap(),
    );
    assert_eq!(
        password::verify(Some(&hash), &format!("{CANARY}$1")).await,
        Some(true)
    );
    assert_eq!(password::verify(Some(&hash), &first).await, Some(false));
    // The same again, as a whole and by itself, is no change: a hash has a salt of its own, and
    // tokens would end for nothing.
    assert!(
        objects
            .plan(&wanted, Prune::Remove)
            .await
            .unwrap()
            .is_empty()
    );
    let again = objects.apply(&wanted, Prune::Remove, &ada()).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
    let name = ObjectName::of("acme", Kind::User, "ada");
    let alone = object(Kind::User, &json!({"password": first}));
    put(&store, (name.clone(), alone)).await;
    assert_eq!(objects.version().await.unwrap(), version);
    assert_eq!(password_hash(&store).await, hash);
    // Another one is a change, which a plan does not make.
    let wanted = with_password(&second);
    let changed = ["~ user acme/ada: password_hash"];
    let planned = objects.plan(&wanted, Prune::Keep).await.unwrap();
    assert_eq!(lines(&planned), changed);
    assert_eq!(password_hash(&store).await, hash);
    let applied = objects.apply(&wanted, Prune::Keep, &ada()).await.unwrap();
    assert_eq!(lines(&applied), changed);
    let new = password_hash(&store).await;
    assert_eq!(password::verify(Some(&new), &second).await, Some(true));
    assert_eq!(
        password::verify(Some(&new), &format!("{CANARY}$1")).await,
        Some(false)
    );
    // It is served as it is stored, and shown as nothing.
    let loaded = objects.load().await.unwrap();
    let served = objects.judged(&loaded, When::Serving).unwrap();
    let AuthMode::Builtin(builtin) = &served.catalog.tenants["acme"].auth else {
        panic!()
    };
    assert_eq!(
        builtin.users["ada"].password.as_ref().unwrap().expose(),
        new
    );
    assert!(builtin.users["bob"].password.is_none());
    let stored = objects.get(&name).await.unwrap().unwrap();
    assert_eq!(stored.object.shown(), json!({"password_hash": null}));
    let all = store
        .audit()
        .page(&Filter::default(), None, 100)
        .await
        .unwrap();
    assert!(!format!("{all:?} {loaded:?} {served:?}").contains(CANARY));
    store.close().await;
    assert!(place.holds("acme"), "it looks in the right place");
    assert!(!place.holds(CANARY) && !place.holds("argon2id"));
    assert!(!format!("{loaded:?} {served:?}").contains("argon2id"));
}

async fn a_password_that_is_none_is_not_stored(place: Place) {
    let store = place.open().await;
    put(
        &store,
        (ObjectName::tenant("acme"), object(Kind::Tenant, &json!({}))),
    )
    .await;
    let name = ObjectName::of("acme", Kind::User, "ada");
    let hash = "$$argon2id$$v=19$$m=19456,t=2,p=1$$c2FsdHNhbHRzYWx0$$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (wrong, key) in [
        (json!({"password": "short"}), "password"),
        (json!({"password": "a $ alone is none"}), "password"),
        (json!({"password": "${env:HOME} and more"}), "password"),
        (json!({"password": 12_345_678}), "password"),
        (json!({"password": null}), "password"),
        (json!({"password_hash": null}), "password_hash"),
        (json!({"password_hash": "$$1$$x"}), "password_hash"),
        (
            json!({"password": "long enough", "password_hash": hash}),
            "password_hash",
        ),
    ] {
        let put = store
            .objects()
            .put(&name, object(Kind::User, &wrong), Expected::Any, &ada())
            .await;
        let Err(Error::Invalid(mistakes)) = put else {
            panic!("{wrong}: {put:?}")
        };
        let wanted = format!("tenants.acme.users.ada.{key}");
        assert_eq!((mistakes.len(), &mistakes[0].key), (1, &wanted), "{wrong}");
    }
    assert!(store.objects().get(&name).await.unwrap().is_none());
    let given = object(Kind::User, &json!({"password_hash": hash}));
    put(&store, (name, given)).await;
    assert_eq!(password_hash(&store).await, hash.replace("$$", "$"));
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn who_may_log_in_is_declared_like_the_rest(place: Place) {
    let store = place.open().await;
    let objects = store.objects();
    let text = |secret: &str| {
        manifest(&format!(
            "tenants:
  acme:
    clients:
      app: {{redirect_uris: [\"https://app.test/cb\"], secret: \"{CANARY}-{secret}\"}}
    providers:
      corp: {{issuer: \"https://corp.test\", client_id: us, client_secret: \"{CANARY}-{secret}\"}}
    users: {{ada@example.com: {{}}}}
"
        ))
    };
    let added = objects
        .apply(&text("1"), Prune::Keep, &ada())
        .await
        .unwrap();
    let wanted = [
        "+ tenant acme",
        "+ user acme/ada@example.com",
        "+ client acme/app",
        "+ provider acme/corp",
    ];
    assert_eq!(lines(&added), wanted);
    let again = objects
        .apply(&text("1"), Prune::Remove, &ada())
        .await
        .unwrap();
    assert!(again.is_empty(), "{again:?}");
    let changed = objects
        .apply(&text("2"), Prune::Keep, &ada())
        .await
        .unwrap();
    let wanted = [
        "~ client acme/app: secret",
        "~ provider acme/corp: client_secret",
    ];
    assert_eq!(lines(&changed), wanted);
    let loaded = objects.load().await.unwrap();
    for stored in &loaded.objects {
        assert!(!stored.object.shown().to_string().contains(CANARY));
    }
    let served = objects.judged(&loaded, When::Serving).unwrap();
    let AuthMode::Builtin(builtin) = &served.catalog.tenants["acme"].auth else {
        panic!()
    };
    let secret = builtin.clients["app"].secret.as_ref().unwrap();
    assert_eq!(secret.expose(), format!("{CANARY}-2"));
    let secret = builtin.providers["corp"].client_secret.as_ref().unwrap();
    assert_eq!(secret.expose(), format!("{CANARY}-2"));
    assert!(place.holds("https://app.test/cb") && !place.holds(CANARY));
    let bare = manifest("tenants: {acme: {}}");
    let gone = objects.apply(&bare, Prune::Remove, &ada()).await.unwrap();
    let wanted = [
        "- provider acme/corp",
        "- client acme/app",
        "- user acme/ada@example.com",
    ];
    assert_eq!(lines(&gone), wanted);
}

async fn a_sealed_value_in_another_row_does_not_open(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "a", "")).await;
    put(&store, server("acme", "b", "")).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let swap = "
        UPDATE servers
           SET secret = (SELECT secret FROM servers WHERE name = $1)
         WHERE name = $2";
    let values: Vec<Value> = vec!["a".into(), "b".into()];
    transaction.run(swap, values).await.unwrap();
    transaction.commit().await.unwrap();
    let refused = store.objects().load().await;
    let Err(Error::Bug(what)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(what, "the seal of server acme/b");
}

async fn another_master_key_is_refused(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    store.close().await;
    let key = place.dir.path().join("master.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let refused = Database::open(place.opening()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(
        !key.exists(),
        "another key would hide that the right one is lost"
    );
    let other = MasterKey::new(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
    std::fs::write(&key, other.text().as_bytes()).unwrap();
    let Err(Error::Invalid(mistakes)) = Database::open(place.opening()).await else {
        panic!("opened")
    };
    assert_eq!(mistakes[0].key, "master_key");
    std::fs::write(&key, kept).unwrap();
    place.open().await;
}

async fn a_key_in_the_file_is_rotated_under_a_running_store(place: Place) {
    let running = place.open().await;
    put(&running, tenant("acme")).await;
    // Nothing is sealed yet that could tell it by not opening.
    place.open().await.rotate().await.unwrap();
    put(&running, server("acme", "a", "")).await;
    assert!(token(&place.open().await, "acme", "a").await.is_some());
    let file = place.dir.path().join("master.key");
    let old = std::fs::read_to_string(&file).unwrap();
    let id = place.open().await.rotate().await.unwrap();
    let new = std::fs::read_to_string(&file).unwrap();
    assert_ne!(old, new);
    assert_eq!(Keyring::parse(&new).unwrap().keys().len(), 1);
    assert_eq!(Keyring::parse(&new).unwrap().first().id(), id);
    // What it writes now has to be open to whoever has the new key alone.
    put(&running, server("acme", "b", "")).await;
    assert!(token(&running, "acme", "a").await.is_some());
    let later = place.open().await;
    assert!(token(&later, "acme", "a").await.is_some());
    assert!(token(&later, "acme", "b").await.is_some());
    std::fs::write(&file, old).unwrap();
    let refused = Database::open(place.opening()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn given_keys_are_rotated_to_the_first(place: Place) {
    let random = aws_lc_rs::rand::SystemRandom::new();
    let [old, new] = [(); 2].map(|()| MasterKey::new(&random).unwrap());
    let with = async |text: String| {
        let keys = KeySource::Given(Secret::of(text).unwrap());
        Database::open(Opening {
            keys,
            ..place.opening()
        })
        .await
    };
    let store = with(old.text().to_string()).await.unwrap();
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "a", "")).await;
    assert!(with(new.text().to_string()).await.is_err());
    let both = with(format!("{},{}", *new.text(), *old.text()))
        .await
        .unwrap();
    assert_eq!(both.rotate().await.unwrap(), new.id());
    let after = with(new.text().to_string()).await.unwrap();
    assert!(token(&after, "acme", "a").await.is_some());
    assert!(with(old.text().to_string()).await.is_err());
    // It would seal what nobody else can open.
    let (name, object) = server("acme", "b", "");
    let refused = store
        .objects()
        .put(&name, object, Expected::Any, &ada())
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn two_stores_see_each_other(place: Place) {
    let (one, other) = (place.open().await, place.open().await);
    put(&one, tenant("acme")).await;
    assert_eq!(other.objects().version().await.unwrap(), 1);
    put(&other, server("acme", "a", "")).await;
    assert!(token(&one, "acme", "a").await.is_some());
}

async fn a_schema_with_more_in_it_is_still_used(place: Place) {
    let store = place.open().await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let newer = "
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'of a newer build', TRUE, $1, 0)";
    transaction
        .run(newer, vec![Some(vec![0_u8]).into()])
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    store.close().await;
    put(&place.open().await, tenant("acme")).await;
}

async fn a_writer_that_never_ends_is_not_waited_for(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let holding = place.pool().await.begin().await.unwrap();
    let ((name, object), author) = (tenant("b"), ada());
    let written = store.objects().put(&name, object, Expected::Any, &author);
    let written = tokio::time::timeout(Duration::from_secs(10), written).await;
    let failed = written.expect("gives up").map(drop);
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert_eq!(store.objects().version().await.unwrap(), 1, "readers go on");
    drop(holding);
    put(&store, tenant("b")).await;
}

async fn a_plan_changes_nothing(place: Place) {
    let store = place.open().await;
    store
        .objects()
        .apply(&manifest(TWO), Prune::Keep, &ada())
        .await
        .unwrap();
    let planned = store
        .objects()
        .plan(&manifest(ONE), Prune::Remove)
        .await
        .unwrap();
    assert_eq!(store.objects().version().await.unwrap(), 1);
    assert_eq!(
        store
            .objects()
            .apply(&manifest(ONE), Prune::Remove, &ada())
            .await
            .unwrap(),
        planned
    );
    let bad = manifest("tenants: {bad: {auth: {mode: none}}}");
    let refused = store.objects().plan(&bad, Prune::Keep).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn stores_that_are_opened_together_take_turns(place: Place) {
    let opened = futures_util::future::join_all((0..4).map(|_| place.open())).await;
    put(&opened[0], tenant("acme")).await;
    for (number, store) in opened.iter().enumerate() {
        let name = number.to_string();
        put(store, server("acme", &name, "")).await;
        assert!(token(&opened[3], "acme", &name).await.is_some());
    }
}

/// Nobody may wait for ever for a database that took a connection and says nothing.
#[tokio::test]
async fn a_database_that_says_nothing_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "postgres://u@{}/x?sslmode=disable",
        listener.local_addr().unwrap()
    );
    let place = Place::sqlite();
    let location = Location::Url(Secret::of(url).unwrap());
    let opened = Database::open(Opening {
        location,
        ..place.opening()
    });
    let opened = tokio::time::timeout(Duration::from_secs(10), opened).await;
    let failed = opened.expect("gives up");
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
}

#[tokio::test]
async fn a_database_that_is_away_is_told_apart_from_everything_else() {
    let mut place = Place::postgres();
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    place.postgres.as_mut().unwrap().pause();
    let failed = [
        store.objects().version().await.map(drop),
        store.objects().load().await.map(drop),
        store.audit().append(&[record(None, "login", "ada")]).await,
        store
            .objects()
            .put(&tenant("b").0, tenant("b").1, Expected::Any, &ada())
            .await
            .map(drop),
        Database::open(place.opening()).await.map(drop),
    ];
    for failed in failed {
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    }
    place.postgres.as_mut().unwrap().resume();
    put(&store, tenant("b")).await;
}

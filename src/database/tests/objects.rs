//! Declared objects: written, removed, planned and applied.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use serde_json::{Value as Json, json};

use super::fixture::{CANARY, Place, ada, lines, manifest, object, on_both, put, server, tenant};
use crate::base::Secret;
use crate::config::{Config, Sources, Wrong};
use crate::database::objects::rows::PAGE;
use crate::database::{Database, Error, Expected, Filter, HolderAt, Judge, Marks, Opening, Pool};
use crate::declare::{AuthMode, Declared, Issued, Kind, Object, ObjectName, Offer, Prune, When};
use crate::manifest::checks;

on_both! {
    an_object_is_written_read_and_removed
    a_page_of_a_list_ends_by_what_it_counts
    a_change_meant_for_another_version_is_refused
    one_of_racing_writers_wins
    versions_tell_nothing_of_other_tenants
    an_object_with_a_mistake_is_not_written
    a_tenant_has_no_other_objects_in_its_document
    applying_the_same_manifest_again_writes_nothing
    a_manifest_reaches_the_tenants_whose_stored_state_it_fits_to
    a_manifest_that_is_wrong_by_itself_changes_nothing
    what_is_left_of_a_manifest_is_told
    a_host_of_another_tenant_is_taken_whatever_this_replica_has_read
    replicas_that_start_together_write_once
    the_objects_of_a_tenant_are_removed_with_it
    the_hash_of_an_api_key_is_unique
    the_hash_of_another_tenants_key_is_no_conflict
    hashes_move_from_key_to_key
    a_mistake_in_another_tenant_stops_no_change
    changed_tenants_are_read_alone
    users_and_providers_are_declared_objects
    a_plan_changes_nothing
    what_replicas_follow_waits_for_no_operator
    administrators_of_tenants_take_no_reserved_connection
    changes_of_a_tenant_take_turns
    a_change_is_checked_beside_other_writers
    a_change_is_checked_again_if_its_tenant_has_changed
    a_large_tenant_that_changes_is_not_checked_while_others_wait
    secrets_beside_a_change_overtake_it_at_the_quota_alone
    new_tenants_beside_a_change_do_not_overtake_it
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
    // A recreated object has a higher version than the removed one.
    assert!(put(&store, server("acme", "files", "2")).await > again);
    let (name, orphan) = server("nobody", "files", "");
    let refused = store
        .objects()
        .put(&name, orphan, Expected::Any, &ada())
        .await;
    assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
}

/// A page had 64 MiB, of which three trees were made at a time.
async fn a_page_of_a_list_ends_by_what_it_counts(place: Place) {
    let store = place.open().await;
    let large = "x".repeat(60 << 10);
    let sized = |number: usize| match number {
        7 => "x".repeat(2 << 20),
        10..40 => large.clone(),
        _ => "x".to_owned(),
    };
    let servers = (0..60).map(|number| server("acme", &format!("s{number:02}"), &sized(number)));
    let all = [tenant("acme")].into_iter().chain(servers);
    let declared = Declared(all.collect());
    let author = ada();
    let applied = store.objects().apply(&declared, Prune::Keep, &author);
    applied.await.unwrap();
    let page = async |after: Option<&str>, limit| {
        let objects = store.objects();
        let page = objects.page(Kind::Server, Some("acme"), after, limit);
        let page = page.await.unwrap();
        let names = page.objects.iter().map(|one| one.name.name().to_owned());
        (names.collect::<Vec<_>>(), page.is_more)
    };
    let names = |numbers: std::ops::Range<usize>| -> Vec<String> {
        numbers.map(|number| format!("s{number:02}")).collect()
    };
    // By their number, also where that is one of whole parts.
    assert_eq!(page(None, 3).await, (names(0..3), true));
    assert_eq!(page(Some("s39"), 19).await, (names(40..59), true));
    assert_eq!(page(Some("s39"), 20).await, (names(40..60), false));
    assert_eq!(page(Some("s43"), 16).await, (names(44..60), false));
    assert_eq!(page(Some("s59"), 9).await, (names(0..0), false));
    // By their bytes; one that is larger than a page is a page.
    assert_eq!(page(None, 1000).await, (names(0..7), true));
    assert_eq!(page(Some("s06"), 1000).await, (names(7..8), true));
    let (mut seen, mut after) = (names(0..8), "s07".to_owned());
    loop {
        let (found, is_more) = page(Some(&after), 1000).await;
        let large = found.iter().filter(|name| names(10..40).contains(name));
        assert!((1..=17).contains(&large.count()), "{found:?}");
        seen.extend(found);
        after.clone_from(seen.last().unwrap());
        if !is_more {
            break;
        }
    }
    assert_eq!(seen, names(0..60), "each is in one page");
}

/// Pages of upstreams were in the order of the locale, and their ends in that of bytes: in Czech `ch` is behind `h`, so an
/// upstream was in two pages or in none.
#[tokio::test]
async fn names_are_in_the_order_of_bytes_in_every_locale() {
    let place = Place::postgres();
    let pool = place.pool().await;
    assert_eq!(of_other_orders(&pool).await, ["upstreams"]);
    // Few builds of PostgreSQL have a locale with another order, so the plan tells by which it is.
    let text = PAGE
        .replace("{table}", "upstreams")
        .replace("{owner}", "tenant");
    let text: &'static str = format!("EXPLAIN {text}").leak();
    let of = vec!["acme".into(), "a".into(), 1_i64.into()];
    let plan = pool.read(text, of).await.unwrap();
    let plan: Vec<String> = plan
        .iter()
        .map(|row| row.get("QUERY PLAN").unwrap())
        .collect();
    let plan = plan.join("\n");
    for by_bytes in ["Sort Key: name COLLATE \"C\"", "name)::text > "] {
        assert!(plan.contains(by_bytes), "{plan}");
    }
    pool.close().await;
}

/// The tables of listed names whose column has not the order of bytes.
async fn of_other_orders(pool: &Pool) -> Vec<String> {
    let asked = "
        SELECT CAST(table_name AS TEXT) AS listed,
               COALESCE(CAST(collation_name AS TEXT), 'of the locale') AS ordering
          FROM information_schema.columns
         WHERE column_name = 'name' AND table_schema = CURRENT_SCHEMA()";
    let rows = pool.read(asked, Vec::new()).await.unwrap();
    let orderings: BTreeMap<String, String> = rows
        .iter()
        .map(|row| (row.get("listed").unwrap(), row.get("ordering").unwrap()))
        .collect();
    let listed = Kind::ALL.map(Kind::plural).into_iter().chain(["own_keys"]);
    let others = listed.filter(|table| orderings[*table] != "C");
    others.map(str::to_owned).collect()
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
            put.map(|put| put.stored.shown_version()).map_err(|error| {
                assert!(matches!(error, Error::Conflict), "{error:?}");
            })
        }
    };
    let (one, two) = (json!(["2025-11-25"]), json!(["2025-06-18"]));
    assert_eq!(with(Expected::Present, one.clone()).await, Err(()));
    assert_eq!(
        with(Expected::Versions(vec![0]), one.clone()).await,
        Err(())
    );
    let first = with(Expected::Absent, one.clone()).await.unwrap();
    assert_eq!(with(Expected::Absent, one.clone()).await, Err(()));
    let second = with(Expected::Versions(vec![first]), two.clone())
        .await
        .unwrap();
    assert_eq!(
        with(Expected::Versions(vec![first]), one.clone()).await,
        Err(())
    );
    let old = store
        .objects()
        .delete(&name, Expected::Versions(vec![first]), &ada())
        .await;
    assert!(matches!(old, Err(Error::Conflict)), "{old:?}");
    let new = store
        .objects()
        .delete(&name, Expected::Versions(vec![second]), &ada())
        .await;
    assert!(new.is_ok(), "{new:?}");
}

async fn one_of_racing_writers_wins(place: Place) {
    let store = place.open().await;
    let mut version = put(&store, tenant("acme")).await;
    let mut shown = 1_000_000;
    // Several rounds, because in the first one most tasks still wait for a connection.
    for round in 0..5 {
        let tasks = (0..8).map(|number| {
            let store = store.clone();
            let (name, mut object) = tenant("acme");
            let quota = json!({"children": round * 8 + number + 1});
            object.spec.insert("quotas".to_owned(), quota);
            async move {
                let expected = Expected::Versions(vec![shown]);
                store
                    .objects()
                    .put(&name, object, expected, &ada())
                    .await
                    .is_ok()
            }
        });
        let won = futures_util::future::join_all(tasks).await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        (version, shown) = (version + 1, shown + 1);
        assert_eq!(store.objects().version().await.unwrap(), version);
    }
}

/// They counted the changes of all tenants: each could see how much the others changed.
async fn versions_tell_nothing_of_other_tenants(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let shown = async |at: i64, others: usize| {
        for change in 0..others {
            let server = server("other", "files", &format!("{at}.{change}"));
            put(&store, server).await;
        }
        place.now_ms.store(at, Ordering::Relaxed);
        let (name, object) = server("acme", "files", &at.to_string());
        let (objects, author) = (store.objects(), ada());
        let put = objects.put(&name, object, Expected::Any, &author).await;
        put.unwrap().stored.shown_version()
    };
    put(&store, tenant("other")).await;
    let versions = [shown(2_000_000, 0).await, shown(2_000_010, 7).await];
    assert_eq!(versions, [2_000_000, 2_000_010]);
    // A clock that was set back makes none that was there before.
    assert_eq!(shown(2_000_005, 1).await, 2_000_011);
}

async fn an_object_with_a_mistake_is_not_written(place: Place) {
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
    assert_eq!(written.unwrap().stored.version, before + 1);
    let records = store
        .audit()
        .page(&Filter::default(), None, 9)
        .await
        .unwrap()
        .entries;
    assert_eq!(records.len(), 2, "{records:?}");
}

/// Their secrets were stored in clear, and shown to the administrators of the tenant.
async fn a_tenant_has_no_other_objects_in_its_document(place: Place) {
    let store = place.open().await;
    let (name, plain) = tenant("acme");
    for kind in &Kind::ALL[1..] {
        let mut with = plain.clone();
        let list = json!({"x": {"command": "cat", "env": {"TOKEN": CANARY}}});
        with.spec.insert(kind.plural().to_owned(), list);
        let (objects, author) = (store.objects(), ada());
        let put = objects.put(&name, with, Expected::Any, &author).await;
        let Err(Error::Invalid(mistakes)) = put else {
            panic!("{put:?}")
        };
        let keys: Vec<&str> = mistakes.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, [format!("tenants.acme.{}", kind.plural())]);
    }
    assert!(!place.holds(CANARY));
    put(&store, (name, plain)).await;
    let read = manifest("tenants: {acme: {servers: {x: {command: cat}}}}");
    let applied = store.objects().apply(&read, Prune::Keep, &ada()).await;
    assert_eq!(applied.unwrap().len(), 2, "a manifest has them");
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

async fn replicas_that_start_together_write_once(place: Place) {
    let store = place.open().await;
    let text = "tenants: {a: {users: {eve: {password: \"correct-horse-battery\"}}}}";
    let applying = (0..3).map(|_| {
        let store = store.clone();
        async move {
            let wanted = manifest(text);
            store.objects().apply(&wanted, Prune::Keep, &ada()).await
        }
    });
    let applied = futures_util::future::join_all(applying).await;
    let wrote = applied
        .iter()
        .filter(|one| !one.as_ref().unwrap().is_empty());
    assert_eq!(wrote.count(), 1, "{applied:?}");
    assert_eq!(store.objects().version().await.unwrap(), 1);
}

async fn applying_the_same_manifest_again_writes_nothing(place: Place) {
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

/// A manifest with two API keys of `a` and one argument of the server of `b`.
fn keys_and_server(arg: &str) -> Declared {
    let key = |digit: &str| {
        let hash = digit.repeat(64);
        format!("{{hash: \"sha256:{hash}\", subject: s, servers: [\"*\"]}}")
    };
    manifest(&format!(
        "tenants:\n  a: {{auth: {{mode: keys}}, api_keys: {{ci: {}, zz: {}}}}}\n  \
         b: {{auth: {{mode: none}}, servers: {{x: {{command: cat, args: [\"{arg}\"]}}}}}}\n",
        key("1"),
        key("2")
    ))
}

/// Nothing was applied, and the next start failed, for all tenants.
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_manifest_reaches_the_tenants_whose_stored_state_it_fits_to(place: Place) {
    let store = place.open().await;
    let (objects, author) = (store.objects(), ada());
    let apply = async |arg: &str, prune| {
        let wanted = keys_and_server(arg);
        let applied = objects.apply_apart(&wanted, prune, (&author, None)).await;
        let applied = applied.unwrap();
        let keys: Vec<String> = applied.mistakes.into_iter().map(|one| one.key).collect();
        assert_eq!(applied.stayed.len(), keys.len(), "{:?}", applied.stayed);
        (lines(&applied.changes), keys)
    };
    let key = async |name: &str, digit: &str| {
        let hash = format!("sha256:{}", digit.repeat(64));
        let json = json!({"hash": hash, "subject": "s", "servers": ["*"]});
        let name = ObjectName::of("a", Kind::ApiKey, name);
        put(&store, (name, object(Kind::ApiKey, &json))).await;
    };
    let (all, none) = apply("1", Prune::Keep).await;
    assert_eq!((all.len(), none), (5, vec![]));
    // The key of the manifest gets another hash, and a key beside it that of the manifest.
    key("ci", "3").await;
    key("own", "1").await;
    put(&store, tenant("c")).await;
    let (changes, mistakes) = apply("2", Prune::Keep).await;
    assert_eq!(changes, ["~ server b/x: args"]);
    assert_eq!(mistakes, ["tenants.a.api_keys.own.hash"]);
    // Two keys that have each other's hash.
    key("own", "4").await;
    key("zz", "5").await;
    key("ci", "2").await;
    key("zz", "1").await;
    let (changes, mistakes) = apply("3", Prune::Keep).await;
    let keys = ["~ api_key a/ci: hash", "~ api_key a/zz: hash"];
    assert_eq!(changes, [keys[0], keys[1], "~ server b/x: args"]);
    assert_eq!(mistakes, Vec::<String>::new());
    // A tenant that is removed does not wait for one that cannot be read either, and nobody's key is.
    key("ci", "3").await;
    key("zz", "6").await;
    let rewrite = async |sql| {
        let mut transaction = objects.pool.begin().await.unwrap();
        transaction.run(sql, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
    };
    rewrite("UPDATE api_keys SET spec = 'x' WHERE name = 'own'").await;
    let (changes, mistakes) = apply("4", Prune::Remove).await;
    assert_eq!(changes, ["~ server b/x: args", "- tenant c"]);
    assert_eq!(mistakes, ["tenants.a"]);
    // Tried again, it changes those alone that stayed: what has changed elsewhere since is not undone.
    put(&store, tenant("d")).await;
    let stayed = BTreeSet::from(["a".to_owned()]);
    let wanted = keys_and_server("5");
    let again = async || {
        let by = (&author, Some(&stayed));
        objects
            .apply_apart(&wanted, Prune::Remove, by)
            .await
            .unwrap()
    };
    let refused = again().await;
    assert_eq!(
        (lines(&refused.changes), &refused.stayed),
        (vec![], &stayed)
    );
    rewrite("UPDATE api_keys SET spec = '{}' WHERE name = 'own'").await;
    let applied = again().await;
    assert!(
        applied
            .changes
            .iter()
            .all(|change| change.name.owner() == Some("a"))
    );
    assert_eq!((applied.changes.len(), applied.stayed.len()), (3, 0));
    let (changes, mistakes) = apply("4", Prune::Remove).await;
    assert_eq!((changes, mistakes), (vec!["- tenant d".to_owned()], vec![]));
}

async fn a_manifest_that_is_wrong_by_itself_changes_nothing(place: Place) {
    let store = place.open().await;
    let (objects, author) = (store.objects(), ada());
    put(&store, tenant("a")).await;
    let before = objects.version().await.unwrap();
    let text = "tenants: {bad: {auth: {mode: none}}, c: {auth: {mode: none}}}";
    let wanted = manifest(text);
    let by = (&author, None);
    let refused = objects.apply_apart(&wanted, Prune::Keep, by).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(objects.version().await.unwrap(), before);
}

/// It was applied whole again, over what administrators had changed since. One tenant's rows kept all others waiting.
async fn what_is_left_of_a_manifest_is_told(place: Place) {
    let store = place.open().await;
    let (objects, author) = (store.objects(), ada());
    put(&store, tenant("a")).await;
    put(&store, server("a", "x", "1")).await;
    let mut transaction = objects.pool.begin().await.unwrap();
    let spoil = "UPDATE servers SET spec = 'x'";
    transaction.run(spoil, Vec::new()).await.unwrap();
    transaction.commit().await.unwrap();
    let wrong = manifest("tenants: {bad: {auth: {mode: none}}, c: {auth: {mode: none}}}");
    for prune in [Prune::Keep, Prune::Remove] {
        let refused = objects.apply_apart(&wrong, prune, (&author, None)).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let wanted = manifest("tenants: {a: {auth: {mode: keys}}, b: {auth: {mode: none}}}");
    let both = BTreeSet::from(["a", "b"].map(str::to_owned));
    let apply = async |stayed: Option<&BTreeSet<String>>| {
        let by = (&author, stayed);
        let applied = objects.apply_apart(&wanted, Prune::Keep, by).await;
        applied.unwrap()
    };
    for (stayed, changes) in [(None, &["+ tenant b"][..]), (Some(&both), &[])] {
        let done = apply(stayed).await;
        assert_eq!(lines(&done.changes), changes);
        assert_eq!(done.mistakes[0].key, "tenants.a");
        assert!(done.stayed.contains("a") && done.stayed.len() == 1);
        assert!(done.failure.is_none());
    }
    store.close().await;
    let away = apply(Some(&both)).await;
    assert!(matches!(away.failure, Some(Error::Unavailable(_))));
    assert_eq!(away.stayed, both);
}

/// Two replicas gave one host to two tenants, and the first by name got the people of the other.
async fn a_host_of_another_tenant_is_taken_whatever_this_replica_has_read(place: Place) {
    let settings = ["public_url=https://gw.test", "sandbox.shared_uid=true"];
    let config = Config::load(&Sources {
        set: settings.map(str::to_owned).to_vec(),
        env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
        ..Sources::default()
    });
    let (config, offer) = (config.unwrap(), Offer::none());
    let judge = Arc::new(move |manifest: &_, when| {
        checks::judge(manifest, when, &config, "/bin:/usr/bin", &offer)
    });
    let opening = Opening {
        judge,
        ..place.opening()
    };
    let store = Database::open(opening).await.unwrap();
    let (objects, author) = (store.objects(), ada());
    let hosts = async |tenant: &str, hosts: Json| {
        let json = json!({"auth": {"mode": "keys"}, "hosts": hosts});
        let (name, object) = (ObjectName::tenant(tenant), object(Kind::Tenant, &json));
        let put = objects.put(&name, object, Expected::Any, &author).await;
        put.map(drop).map_err(|error| error.to_string())
    };
    hosts("b", json!(["mcp.acme.test"])).await.unwrap();
    let taken = "tenants.zeta.hosts: mcp.acme.test is a host of tenant b";
    let refused = hosts("zeta", json!(["zeta.test", "MCP.acme.test:8443"])).await;
    assert!(refused.as_ref().unwrap_err().contains(taken), "{refused:?}");
    let text = "tenants: {zeta: {auth: {mode: keys}, hosts: [mcp.acme.test]}}";
    let refused = objects.apply(&manifest(text), Prune::Keep, &author).await;
    assert!(refused.unwrap_err().to_string().contains(taken));
    hosts("zeta", json!(["zeta.test"])).await.unwrap();
    hosts("b", json!(["mcp.acme.test", "b.test"]))
        .await
        .unwrap();
    let applied = objects.apply(&manifest(text), Prune::Remove, &author).await;
    assert_eq!(applied.unwrap().len(), 2, "tenant b goes");
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

async fn the_objects_of_a_tenant_are_removed_with_it(place: Place) {
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

async fn the_hash_of_an_api_key_is_unique(place: Place) {
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
    let count = async || {
        let listed = store.objects().list(Kind::ApiKey, None, None, 9).await;
        listed.unwrap().len()
    };
    assert_eq!(count().await, 2);
    // A manifest does not declare operator keys, so `Prune::Remove` keeps them.
    store
        .objects()
        .apply(&manifest(ONE), Prune::Remove, &ada())
        .await
        .unwrap();
    assert_eq!(count().await, 2);
    let name = ObjectName::operator_key("root");
    store
        .objects()
        .delete(&name, Expected::Any, &ada())
        .await
        .unwrap();
    assert_eq!(count().await, 1);
    // The last operator key cannot be removed.
    let name = ObjectName::operator_key("other");
    let refused = store.objects().delete(&name, Expected::Any, &ada()).await;
    assert!(matches!(refused, Err(Error::LastKey)), "{refused:?}");
}

/// Keys were written in the order of their names, and one met its hash at the key that was about to give it up.
async fn hashes_move_from_key_to_key(place: Place) {
    let store = place.open().await;
    let hash = |digit: &str| format!("sha256:{}", digit.repeat(64));
    for keys in [
        &[("active", "1"), ("next", "2")][..],
        &[("active", "2"), ("next", "3")],
        &[("active", "3"), ("next", "2")],
        &[("a-new-one", "3"), ("active", "4"), ("next", "2")],
        &[("active", "2"), ("then", "3")],
    ] {
        let declared = keys.iter().map(|(name, digit)| {
            let key = json!({"hash": hash(digit), "subject": "ada", "servers": ["*"]});
            ((*name).to_owned(), key)
        });
        let declared: serde_json::Map<String, Json> = declared.collect();
        let tenant = json!({"auth": {"mode": "keys"}, "api_keys": declared});
        let wanted = manifest(&json!({"tenants": {"a": tenant}}).to_string());
        let objects = store.objects();
        let applied = objects.apply(&wanted, Prune::Remove, &ada()).await;
        applied.unwrap();
        let listed = objects.list(Kind::ApiKey, Some("a"), None, 9).await;
        let stored = listed.unwrap().into_iter().map(|one| {
            let hash = one.object.spec["hash"].clone();
            (one.name.name().to_owned(), hash)
        });
        let wanted = keys.iter().map(|(name, digit)| {
            let hash = Json::from(hash(digit));
            ((*name).to_owned(), hash)
        });
        assert!(stored.eq(wanted), "{keys:?}");
    }
}

/// The conflict told a tenant's administrator that the key existed.
async fn the_hash_of_another_tenants_key_is_no_conflict(place: Place) {
    let store = place.open().await;
    let hash = format!("sha256:{}", "7".repeat(64));
    let key = json!({"hash": hash, "subject": "ada", "servers": ["*"]});
    let put = async |name: ObjectName| {
        let key = object(Kind::ApiKey, &key);
        let objects = store.objects();
        let put = objects.put(&name, key, Expected::Any, &ada()).await;
        put.map(drop)
    };
    for (tenant, spec) in [("a", json!({})), ("b", json!({}))] {
        let name = ObjectName::tenant(tenant);
        self::put(&store, (name, object(Kind::Tenant, &spec))).await;
        put(ObjectName::of(tenant, Kind::ApiKey, "k"))
            .await
            .unwrap();
    }
    let twice = put(ObjectName::of("a", Kind::ApiKey, "other")).await;
    assert!(twice.is_err(), "of one tenant: {twice:?}");
}

/// A program that was gone stopped the administration of every tenant, and was named to each.
async fn a_mistake_in_another_tenant_stops_no_change(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    // The judge of these tests takes "bad" for a mistake, but not while a state is served.
    let text = "INSERT INTO tenants (id, name, version, spec, secret, created_ms, updated_ms)
                VALUES ($1, 'bad', 1, '{\"auth\": {\"mode\": \"none\"}}', NULL, 0, 0)";
    let mut transaction = place.pool().await.begin().await.unwrap();
    let id = uuid::Uuid::now_v7();
    transaction.run(text, vec![id.into()]).await.unwrap();
    transaction.commit().await.unwrap();
    put(&store, server("acme", "files", "1")).await;
    let (objects, author) = (store.objects(), ada());
    let own =
        manifest("tenants:\n  acme: {auth: {mode: none}, servers: {more: {command: more}}}\n");
    let planned = objects.plan(&own, Prune::Keep).await.unwrap();
    let applied = objects.apply(&own, Prune::Keep, &author).await.unwrap();
    assert_eq!((planned.len(), planned), (1, applied));
    let both =
        manifest("tenants:\n  bad: {auth: {mode: none}, servers: {more: {command: more}}}\n");
    let refused = objects.apply(&both, Prune::Keep, &author).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let (name, other) = server("bad", "files", "1");
    let refused = objects.put(&name, other, Expected::Any, &author).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn changed_tenants_are_read_alone(place: Place) {
    let store = place.open().await;
    let objects = store.objects();
    let newer = async |known: &Marks| {
        let newer = objects.newer(known).await.unwrap();
        let read = newer.loaded.objects.iter();
        let read: Vec<String> = read.map(|stored| stored.name.to_string()).collect();
        (read, newer.loaded.others, newer.marks)
    };
    objects
        .apply(&manifest(TWO), Prune::Keep, &ada())
        .await
        .unwrap();
    let (read, others, marks) = newer(&Marks::default()).await;
    assert_eq!((read.len(), others), (4, 0), "{read:?}");
    let (read, others, _) = newer(&marks).await;
    assert_eq!((read, others), (vec![], 2));
    put(&store, server("b", "z", "1")).await;
    let (read, others, marks) = newer(&marks).await;
    assert_eq!(
        (read.join(", ").as_str(), others),
        ("tenant b, server b/z", 1)
    );
    // Fewer objects, of which none is newer, are another state, too.
    let (name, _) = server("a", "y", "");
    objects.delete(&name, Expected::Any, &ada()).await.unwrap();
    let (read, _, marks) = newer(&marks).await;
    assert_eq!(read, ["tenant a", "server a/x"]);
    let name = ObjectName::tenant("b");
    objects.delete(&name, Expected::Any, &ada()).await.unwrap();
    let (read, others, marks) = newer(&marks).await;
    assert_eq!((read, others, marks.len()), (vec![], 1, 1));
    // Many at once.
    let many: String = (0..30)
        .map(|number| format!("  t{number}: {{}}\n"))
        .collect();
    let many = manifest(&format!("tenants:\n{many}"));
    objects.apply(&many, Prune::Keep, &ada()).await.unwrap();
    let (read, others, marks) = newer(&marks).await;
    assert_eq!((read.len(), others, marks.len()), (32, 0, 31), "{read:?}");
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn users_and_providers_are_declared_objects(place: Place) {
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
    let served = objects.judged(&loaded, When::Serving).await.unwrap();
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

/// Connections that a few lists or changes of operators hold.
async fn hold(store: &Database) -> [impl Sized; 2] {
    let pool = store.objects().pool;
    [
        pool.snapshot().await.unwrap(),
        pool.snapshot().await.unwrap(),
    ]
}

async fn what_replicas_follow_waits_for_no_operator(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let held = hold(&store).await;
    let issued = store.issued();
    assert_eq!(issued.reached().await.unwrap().version, 1);
    issued.newer((&Issued::default(), 0)).await.unwrap();
    let objects = store.followed_objects();
    assert_eq!(objects.version().await.unwrap(), 1);
    let newer = objects.newer(&Marks::default()).await.unwrap();
    assert_eq!(newer.marks.len(), 1);
    drop(held);
}

async fn administrators_of_tenants_take_no_reserved_connection(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let held = hold(&store).await;
    let boss = store.for_administrator(false);
    let (name, files) = server("acme", "files", "1");
    let objects = boss.objects();
    objects
        .put(&name, files, Expected::Any, &ada())
        .await
        .unwrap();
    let listed = objects.list(Kind::Server, Some("acme"), None, 9).await;
    assert_eq!(listed.unwrap().len(), 1);
    assert!(boss.login_steps().newest("acme").await.unwrap().is_empty());
    assert_eq!(boss.secrets().count("acme").await.unwrap(), 0);
    drop(held);
}

/// Writes as an administrator of the tenant.
async fn put_as_tenant(
    store: &Database,
    (name, object): (ObjectName, Object),
) -> Result<(), Error> {
    let boss = store.for_administrator(false);
    let _turn = boss.changes().unwrap().take(name.owner().unwrap()).await;
    let (objects, author) = (boss.objects(), ada());
    let put = objects.put(&name, object, Expected::Any, &author);
    put.await.map(drop)
}

async fn changes_of_a_tenant_take_turns(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let boss = store.for_administrator(false);
    let under_way = boss.changes().unwrap().take("acme").await;
    let mut next = pin!(put_as_tenant(&store, server("acme", "files", "1")));
    let others = async {
        for name in ["a", "b", "c"] {
            put_as_tenant(&store, tenant(name)).await.unwrap();
        }
        // Nor do operators wait behind the tenant.
        assert!(store.for_administrator(true).changes().is_none());
        put(&store, server("acme", "other", "1")).await;
    };
    tokio::select! {
        biased;
        done = &mut next => panic!("it did not wait: {done:?}"),
        () = others => {}
    }
    drop(under_way);
    next.await.unwrap();
}

/// A database whose first checks of a tenant, so many, stop at the barrier, and go on when it is met again; and the number
/// of all of them. No tenant may have two servers, or more than its quotas.
async fn stopping_at(
    place: &Place,
    barrier: &Arc<Barrier>,
    (stopping, stops): (&'static str, usize),
) -> (Database, Arc<AtomicUsize>) {
    let (barrier, checks) = (Arc::clone(barrier), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&checks);
    let judge: Judge = Arc::new(move |manifest, _| {
        let is_there = manifest.catalog.tenants.contains_key(stopping);
        if is_there && counted.fetch_add(1, Ordering::Relaxed) < stops {
            barrier.wait();
            barrier.wait();
        }
        let mut tenants = manifest.catalog.tenants.values();
        let is_bad = tenants.any(|tenant| tenant.servers.len() > 1);
        let wrong = Wrong::new("has two servers", "remove one");
        let mut found = checks::check_quotas(manifest);
        found.extend(is_bad.then(|| wrong.at("judge", "servers")));
        found
    });
    let opening = Opening {
        judge,
        ..place.opening()
    };
    (Database::open(opening).await.unwrap(), checks)
}

async fn meet(barrier: &Arc<Barrier>) {
    let barrier = Arc::clone(barrier);
    let met = tokio::task::spawn_blocking(move || barrier.wait());
    met.await.unwrap();
}

/// A tenant with many objects kept the writers of all others waiting while its changes were checked.
async fn a_change_is_checked_beside_other_writers(place: Place) {
    let barrier = Arc::new(Barrier::new(2));
    let (store, _) = stopping_at(&place, &barrier, ("large", 1)).await;
    let other = async {
        meet(&barrier).await;
        let put = put_as_tenant(&store, tenant("small")).await;
        meet(&barrier).await;
        put
    };
    let (large, small) = tokio::join!(put_as_tenant(&store, tenant("large")), other);
    large.unwrap();
    small.unwrap();
}

async fn a_change_is_checked_again_if_its_tenant_has_changed(place: Place) {
    let other = place.open().await;
    put(&other, tenant("acme")).await;
    let barrier = Arc::new(Barrier::new(2));
    let (store, _) = stopping_at(&place, &barrier, ("acme", 1)).await;
    let beside = async {
        meet(&barrier).await;
        let put = put_as_tenant(&other, server("acme", "one", "1")).await;
        meet(&barrier).await;
        put
    };
    let files = put_as_tenant(&store, server("acme", "files", "1"));
    let (files, one) = tokio::join!(files, beside);
    one.unwrap();
    assert!(matches!(files, Err(Error::Invalid(_))), "{files:?}");
}

/// A tenant with this many users and one server.
async fn with_users(store: &Database, name: &str, users: usize) {
    let users: Vec<String> = (0..users).map(|user| format!("u{user}: {{}}")).collect();
    let users = users.join(", ");
    let text =
        format!("tenants: {{{name}: {{users: {{{users}}}, servers: {{one: {{command: cat}}}}}}}}");
    let (objects, author) = (store.objects(), ada());
    let declared = manifest(&text);
    let applied = objects.apply(&declared, Prune::Keep, &author);
    applied.await.unwrap();
}

/// By changes of their tenant at other replicas, its administrators had all of it checked while all other writers waited.
async fn a_large_tenant_that_changes_is_not_checked_while_others_wait(place: Place) {
    let other = place.open().await;
    for (name, users) in [("large", 120), ("small", 3)] {
        with_users(&other, name, users).await;
    }
    for (name, is_operator, checked) in [
        ("large", false, 3),
        ("small", false, 4),
        // Or no operator could limit a tenant that changes all the time.
        ("large", true, 4),
    ] {
        let barrier = Arc::new(Barrier::new(2));
        let (store, checks) = stopping_at(&place, &barrier, (name, 3)).await;
        let beside = async {
            let mut done = Vec::new();
            for round in 0..3 {
                meet(&barrier).await;
                let arg = format!("{is_operator} {round}");
                done.push(put_as_tenant(&other, server(name, "one", &arg)).await);
                meet(&barrier).await;
            }
            done
        };
        let (boss, author) = (store.for_administrator(is_operator), ada());
        let (one, object) = server(name, "one", "own");
        let objects = boss.objects();
        let change = objects.put(&one, object, Expected::Any, &author);
        let (changed, done) = tokio::join!(change, beside);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert_eq!(checks.load(Ordering::Relaxed), checked, "{name}");
        let is_overtaken = matches!(&changed, Err(Error::Overtaken));
        assert_eq!(is_overtaken, checked == 3, "{name}: {changed:?}");
        assert_eq!(changed.is_ok(), checked == 4, "{name}: {changed:?}");
    }
}

/// Each secret that was set meanwhile had the change checked again, at last while all other writers waited.
async fn secrets_beside_a_change_overtake_it_at_the_quota_alone(place: Place) {
    let other = place.open().await;
    let (name, mut acme) = tenant("acme");
    acme.spec.insert("quotas".to_owned(), json!({"objects": 3}));
    put(&other, (name, acme)).await;
    put(&other, server("acme", "one", "0")).await;
    let set = async |holder: &str| {
        let of = HolderAt {
            tenant: "acme",
            server: "one",
            holder: Some(holder),
        };
        let (value, secrets, author) = (Secret::new("x".to_owned()), other.secrets(), ada());
        let given = (&value, None);
        secrets.put(of, "TOKEN", given, None, &author).await
    };
    // A server and two secrets are three objects.
    for (holders, checked) in [(&["ada", "eve"][..], 1_usize), (&["max"][..], 2)] {
        let barrier = Arc::new(Barrier::new(2));
        let (store, checks) = stopping_at(&place, &barrier, ("acme", 1)).await;
        let beside = async {
            meet(&barrier).await;
            let mut done = Vec::new();
            for &holder in holders {
                done.push(set(holder).await);
            }
            meet(&barrier).await;
            done
        };
        let change = put_as_tenant(&store, server("acme", "one", &checked.to_string()));
        let (changed, done) = tokio::join!(change, beside);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert_eq!(checks.load(Ordering::Relaxed), checked, "{changed:?}");
        let is_refused = matches!(&changed, Err(Error::Invalid(_)));
        assert_eq!(is_refused, checked == 2, "{changed:?}");
        assert_eq!(changed.is_ok(), checked == 1, "{changed:?}");
    }
}

/// Their number is not what a change is judged by, but whether there are some.
async fn new_tenants_beside_a_change_do_not_overtake_it(place: Place) {
    let other = place.open().await;
    for name in ["acme", "b", "c"] {
        put(&other, tenant(name)).await;
    }
    let barrier = Arc::new(Barrier::new(2));
    let (store, checks) = stopping_at(&place, &barrier, ("acme", 1)).await;
    let beside = async {
        meet(&barrier).await;
        let put = put_as_tenant(&other, tenant("d")).await;
        meet(&barrier).await;
        put
    };
    let change = put_as_tenant(&store, server("acme", "one", "1"));
    let (changed, added) = tokio::join!(change, beside);
    added.unwrap();
    changed.unwrap();
    assert_eq!(checks.load(Ordering::Relaxed), 1);
}

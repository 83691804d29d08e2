//! Revocations.

use std::cell::Cell;
use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::{FutureExt, future::join_all};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::fixture::{
    BEGIN, DAY, Place, SECOND, ada, add_tenant, code, granted, later, manifest, on_both, open,
    patient, person, record, registered, revoked, succession, until_waiting,
};
use crate::base::budget::Turns;
use crate::database::oauth::{
    GrantFilter, LoggedOut, Refreshed, Revoked, TakenCode, Unused,
    grants::{REVOKED, REVOKED_SUBJECT},
    revocations::{HAS_GROUPS, Revocations},
};
use crate::database::{Author, Database, Error, Expected, Filter, Pool, Value};
use crate::declare::{Issued, Kind, Object, ObjectName, Prune};

on_both! {
    a_revocation_ends_its_grants_and_no_others
    a_revocation_deletes_its_consents
    access_that_is_taken_back_is_that_of_every_log_in
    every_revocation_is_seen_by_other_handles
    a_recreated_tenant_inherits_nothing
    revocations_leave_a_connection_to_operators
    revocations_take_turns_by_tenant
    a_grant_is_live_until_it_is_revoked
    a_revocation_that_was_made_is_told_from_one_of_nothing
    a_day_of_revocations_is_read_in_parts
    told_groups_are_read_some_at_a_time
    what_was_revoked_since_is_found_by_an_index
    revoked_grants_go_with_their_revocation
    a_client_is_revoked_in_parts
    a_client_is_removed_in_parts
    a_declared_client_is_removed_in_parts
    a_tenant_is_removed_in_parts
    a_part_of_a_tenant_is_of_its_first_grants
    a_removed_tenant_tells_of_grants_with_access_alone
    a_removal_that_fails_is_recorded
}

#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn a_revocation_ends_its_grants_and_no_others(place: Place) {
    let [store, _] = open(&place).await;
    let grant = |number: u8, subject: &str, client: &str| {
        let mut code = code(number);
        code.grant.subject = subject.to_owned();
        code.grant.client_id = client.to_owned();
        code
    };
    let mut ids = Vec::new();
    for (number, subject, client) in [
        (1, "ada", "c_app"),
        (2, "ada", "c_web"),
        (3, "bob", "c_app"),
        (4, "bob", "c_web"),
        (5, "eve", "c_web"),
    ] {
        ids.push(granted(&store, &grant(number, subject, client), &[number; 32]).await);
        let waiting = grant(number + 100, subject, client);
        store
            .grants()
            .add_code("a", &waiting, BEGIN + 1, None)
            .await
            .unwrap();
        let browser = [number; 32];
        store
            .logins()
            .log_in("a", &browser, &person(subject), BEGIN + DAY)
            .await
            .unwrap();
    }
    let known = async || {
        let mut known = Vec::new();
        for number in 1..=5 {
            let code = store
                .grants()
                .take_code("a", &[number + 100; 32])
                .await
                .unwrap()
                != TakenCode::Unknown;
            let in_browser = store
                .logins()
                .logged_in("a", &[number; 32])
                .await
                .unwrap()
                .is_some();
            let refreshed = store
                .grants()
                .list("a", GrantFilter::default(), 99)
                .await
                .unwrap();
            let grant = refreshed
                .iter()
                .any(|seen| seen.grant.id == ids[usize::from(number) - 1]);
            known.push((code, in_browser, grant));
        }
        known
    };
    let (all, none) = ((true, true, true), (false, false, false));
    let revoke = async |tenant: &str, what: Revoked| {
        store.revocations().revoke(tenant, &what).await.unwrap()
    };
    let ada = || Revoked::Subject("ada".to_owned());
    assert!(!revoke("b", ada()).await);
    assert!(!revoke("b", Revoked::Grant(ids[0])).await);
    assert_eq!(known().await, [all; 5], "another tenant's");
    assert!(revoke("a", ada()).await);
    assert_eq!(known().await, [none, none, all, all, all]);
    assert!(!revoke("a", ada()).await, "once");
    // A log-in alone is something to end.
    let mut again = person("ada");
    again.auth_ms += 1;
    let logins = store.logins();
    let stored = logins.log_in("a", &[77; 32], &again, BEGIN + DAY);
    assert!(stored.await.unwrap());
    assert!(revoke("a", ada()).await);
    store
        .revocations()
        .revoke("a", &Revoked::Client("c_app".to_owned()))
        .await
        .unwrap();
    let half = (false, true, false);
    assert_eq!(known().await, [none, none, half, all, all]);
    store
        .revocations()
        .revoke("a", &Revoked::Grant(ids[3]))
        .await
        .unwrap();
    assert_eq!(known().await, [none, none, half, (true, true, false), all]);
    assert_eq!(revoked(&store).await, ids[..4].iter().copied().collect());
    // A repeated revocation changes nothing.
    let before = store.issued().reached().await.unwrap();
    store
        .revocations()
        .revoke("a", &Revoked::Grant(ids[3]))
        .await
        .unwrap();
    assert_eq!(store.issued().reached().await.unwrap(), before);
    let only = GrantFilter {
        subject: Some("eve"),
        client: Some("c_web"),
        after: None,
    };
    assert_eq!(store.grants().list("a", only, 9).await.unwrap().len(), 1);
    let after = Some(ids[4]);
    let behind = GrantFilter { after, ..only };
    assert!(
        store
            .grants()
            .list("a", behind, 9)
            .await
            .unwrap()
            .is_empty()
    );
}

/// A client has a grant for each log-in, device and server.
async fn access_that_is_taken_back_is_that_of_every_log_in(place: Place) {
    let [store, _] = open(&place).await;
    let mut ids = Vec::new();
    for (number, subject, client, resource) in [
        (1, "ada", "c_app", "x"),
        (2, "ada", "c_app", "x"),
        (3, "ada", "c_app", "y"),
        (4, "ada", "c_web", "x"),
        (5, "bob", "c_app", "x"),
    ] {
        let mut code = code(number);
        code.grant.subject = subject.to_owned();
        code.grant.client_id = client.to_owned();
        code.grant.resource = resource.to_owned();
        ids.push(granted(&store, &code, &[number; 32]).await);
    }
    let revocations = store.revocations();
    let all = Revoked::Access(ids[1]);
    assert!(!revocations.revoke("b", &all).await.unwrap());
    assert!(revocations.revoke("a", &all).await.unwrap());
    assert_eq!(revoked(&store).await, ids[..3].iter().copied().collect());
    let listed = store.grants().list("a", GrantFilter::default(), 9).await;
    let mut kept: Vec<_> = listed.unwrap().iter().map(|seen| seen.grant.id).collect();
    kept.sort_by_key(|id| ids.iter().position(|known| known == id));
    assert_eq!(kept, ids[3..]);
    assert!(!revocations.revoke("a", &all).await.unwrap());
}

async fn every_revocation_is_seen_by_other_handles(place: Place) {
    let stores = open(&place).await;
    let mut ids = Vec::new();
    for number in 0..60 {
        ids.push(granted(&stores[0], &code(number), &[number; 32]).await);
    }
    let ending = ids.iter().enumerate().map(|(at, id)| {
        let what = Revoked::Grant(*id);
        let store = &stores[at % 2];
        async move { patient(|| store.revocations().revoke("a", &what)).await }
    });
    let reader = place.open().await;
    // Reads only new revocations, as a replica does, during concurrent writes.
    let reading = async {
        let (mut known, mut number) = (Issued::default(), 0);
        loop {
            (known, number) = patient(|| reader.issued().newer((&known, number))).await;
            let of = known.revoked.get("a");
            let seen = of.map_or(0, |of| of.grants.len());
            assert_eq!(i64::try_from(seen).unwrap(), number, "one was missed");
            if seen == ids.len() {
                return known;
            }
            tokio::task::yield_now().await;
        }
    };
    let (_, known) = tokio::join!(join_all(ending), reading);
    assert_eq!(known.revoked["a"].grants.len(), ids.len());
    // Revocations are deleted once no valid token can depend on them.
    later(&place, 2 * DAY);
    let (known, _) = reader.issued().newer((&known, 60)).await.unwrap();
    assert!(known.revoked.is_empty());
}

async fn a_revocation_deletes_its_consents(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let of_code = || ("a", "ada", "c_app");
    for (what, forgotten) in [
        (Revoked::Grant(id), vec![]),
        (Revoked::Consent(id), vec![of_code()]),
        (Revoked::Access(id), vec![of_code()]),
        (
            Revoked::Client("c_app".to_owned()),
            vec![of_code(), ("a", "bob", "c_app")],
        ),
        (
            Revoked::Subject("ada".to_owned()),
            vec![of_code(), ("a", "ada", "c_web")],
        ),
    ] {
        let all = [
            of_code(),
            ("a", "ada", "c_web"),
            ("a", "bob", "c_app"),
            ("b", "ada", "c_app"),
        ];
        for (tenant, subject, client) in all {
            let given = store.logins().consent(tenant, subject, client, &[1; 32]);
            given.await.unwrap();
        }
        store.revocations().revoke("a", &what).await.unwrap();
        for of in all {
            let known = store.logins().has_consented(of.0, of.1, of.2, &[1; 32]);
            assert_ne!(known.await.unwrap(), forgotten.contains(&of), "{what:?}");
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn a_recreated_tenant_inherits_nothing(place: Place) {
    let [store, _] = open(&place).await;
    let author = Author::named("ada");
    let spec = json!({"auth": {"mode": "builtin"}});
    let builtin = Object::new(Kind::Tenant, spec.as_object().unwrap().clone());
    let name = ObjectName::tenant("a");
    let put = store
        .objects()
        .put(&name, builtin, Expected::Any, &author)
        .await;
    put.unwrap();
    let declare = async |kind, name: &str, spec: serde_json::Value| {
        let name = ObjectName::of("a", kind, name);
        let object = Object::new(kind, spec.as_object().unwrap().clone());
        let put = store
            .objects()
            .put(&name, object, Expected::Any, &author)
            .await;
        put.unwrap();
        name
    };
    let ada = declare(Kind::User, "ada", json!({"groups": []})).await;
    let uris = json!({"redirect_uris": ["https://app.test/cb"]});
    let app = declare(Kind::Client, "app", uris).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    store
        .logins()
        .consent("a", "ada", "c_app", &[1; 32])
        .await
        .unwrap();
    store
        .objects()
        .delete(&ada, Expected::Any, &author)
        .await
        .unwrap();
    assert_eq!(revoked(&store).await, HashSet::from([id]));
    let consented = store
        .logins()
        .has_consented("a", "ada", "c_app", &[1; 32])
        .await;
    assert!(!consented.unwrap());
    let mut of_client = code(2);
    of_client.grant.client_id = "app".to_owned();
    of_client.grant.subject = "bob".to_owned();
    let other = granted(&store, &of_client, &[2; 32]).await;
    store
        .objects()
        .delete(&app, Expected::Any, &author)
        .await
        .unwrap();
    assert_eq!(revoked(&store).await, HashSet::from([id, other]));
    let key = store.signing_keys().current("a").await.unwrap();
    let (before, number) = store.issued().newer((&Issued::default(), 0)).await.unwrap();
    assert_eq!(before.keys["a"][0].kid, key.kid);
    let tenant = ObjectName::tenant("a");
    store
        .objects()
        .delete(&tenant, Expected::Any, &author)
        .await
        .unwrap();
    add_tenant(&store, "a").await;
    let (after, _) = store.issued().newer((&before, number)).await.unwrap();
    assert!(!after.keys.contains_key("a"), "{after:?}");
    assert_ne!(
        store.signing_keys().current("a").await.unwrap().kid,
        key.kid
    );
}

/// People who revoke much kept operators waiting.
async fn revocations_leave_a_connection_to_operators(place: Place) {
    let [store, _] = open(&place).await;
    let people = store.revocations();
    let under_way = people.turns.unwrap().take("a").await;
    let gone = Revoked::Subject("ada".to_owned());
    let mut next = pin!(people.revoke("a", &gone));
    let operator = async {
        for tenant in ["a", "b"] {
            let operator = store.for_administrator(true);
            operator.revocations().revoke(tenant, &gone).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        done = &mut next => panic!("it did not wait: {done:?}"),
        () = operator => {}
    }
    drop(under_way);
    next.await.unwrap();
}

/// PostgreSQL went on with one whose client had left, and the next one took the other reserved connection, so that operators
/// had none.
#[tokio::test]
async fn turns_of_revocations_end_with_their_statements() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let (pool, others) = (place.pool().await, place.pool().await);
    let turns = Turns::new(1);
    let revocations = Revocations {
        turns: Some(&turns),
        ..Revocations::at_once(&pool)
    };
    let (gone, unused) = (Revoked::Grant(id), Unused { id, last_ms: DAY });
    let person = LoggedOut::Subject("ada".to_owned());
    let told = record(Some("a"), "identity.ended", "provider");
    for what in ["revocation", "unused grant", "logout"] {
        let writer = others.begin().await.unwrap();
        let ends = async {
            match what {
                "revocation" => revocations.revoke("a", &gone).await,
                "unused grant" => revocations.end_unused("a", unused).await,
                _ => {
                    let once = (&[7; 32], i64::MAX);
                    revocations.log_out("a", &person, once, &told).await
                }
            }
        };
        tokio::select! {
            done = ends => panic!("it did not wait: {done:?}"),
            () = until_waiting(&others, 1, || false) => {}
        }
        // Its client has left, and the server goes on.
        assert!(turns.take("a").now_or_never().is_none(), "{what}");
        writer.commit().await.unwrap();
        let free = timeout(Duration::from_secs(60), turns.take("a"));
        free.await.expect("it is free once the statement has ended");
    }
}

/// Those of one tenant were all in front of another's.
async fn revocations_take_turns_by_tenant(place: Place) {
    let [store, _] = open(&place).await;
    let people = store.revocations();
    let under_way = people.turns.unwrap().take("a").await;
    let gone = Revoked::Subject("ada".to_owned());
    let mut own = pin!(join_all((0..3).map(|_| people.revoke("a", &gone))));
    assert!((&mut own).now_or_never().is_none());
    let mut other = pin!(people.revoke("b", &gone));
    assert!((&mut other).now_or_never().is_none());
    drop(under_way);
    tokio::select! {
        biased;
        done = &mut own => panic!("they were all in front: {done:?}"),
        done = &mut other => assert!(!done.unwrap()),
    }
    for done in own.await {
        assert!(!done.unwrap());
    }
}

/// A client with a token of a grant that has ended took the lock of all writers with it as often as it liked.
async fn a_grant_is_live_until_it_is_revoked(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let people = store.revocations();
    // It is asked without a turn.
    let under_way = people.turns.unwrap().take("a").await;
    assert!(people.is_live("a", id).await.unwrap());
    assert!(!people.is_live("b", id).await.unwrap());
    assert!(!people.is_live("a", code(2).grant.id).await.unwrap());
    drop(under_way);
    people.revoke("a", &Revoked::Grant(id)).await.unwrap();
    assert!(!people.is_live("a", id).await.unwrap());
}

/// One that held, and was not confirmed, was told to have found nothing when it came again.
async fn a_revocation_that_was_made_is_told_from_one_of_nothing(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let (client, subject) = ("c_app".to_owned(), "ada".to_owned());
    let of_grant = [
        Revoked::Grant(id),
        Revoked::Consent(id),
        Revoked::Access(id),
        Revoked::Client(client),
        Revoked::Subject(subject),
    ];
    let of_nothing = [
        Revoked::Consent(code(2).grant.id),
        Revoked::Client("c_ap".to_owned()),
        Revoked::Subject("ad".to_owned()),
    ];
    let was_made = async |tenant: &str, what: &Revoked| {
        let revocations = store.revocations();
        revocations.was_made(tenant, what).await.unwrap()
    };
    for what in &of_grant {
        assert!(!was_made("a", what).await, "{what:?}");
    }
    for what in of_nothing.iter().chain([&of_grant[1]]) {
        store.revocations().revoke("a", what).await.unwrap();
    }
    for what in &of_grant {
        assert!(was_made("a", what).await, "{what:?}");
        assert!(!was_made("b", what).await, "{what:?}");
    }
    for what in &of_nothing {
        assert!(!was_made("a", what).await, "{what:?}");
    }
}

/// One statement read them all, and those that nobody keeps: beyond some millions no replica could start.
async fn a_day_of_revocations_is_read_in_parts(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let write = async |sql: &'static str| {
        let mut transaction = pool.begin().await.unwrap();
        transaction.run(sql, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
    };
    write(
        "INSERT INTO revocations (number, tenant, kind, value, at_ms)
         WITH RECURSIVE numbers (number) AS (
             SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 25000)
         SELECT number, 'a', 'client', 'c_x', 1000000 FROM numbers",
    )
    .await;
    write("UPDATE changes SET revocation = 25000").await;
    write(
        "UPDATE revocations SET kind = 'key', value = CAST(number AS TEXT)
          WHERE number IN (1, 10000, 10001, 12345, 20000, 20001, 25000)",
    )
    .await;
    if place.postgres.is_none() {
        // Who reads them finds no text.
        write("UPDATE revocations SET value = x'ff' WHERE kind = 'client'").await;
    }
    let keys = async |known_to: i64| {
        let newer = store.issued().newer((&Issued::default(), known_to)).await;
        let (issued, number) = newer.unwrap();
        assert_eq!(number, 25_000);
        let of = issued.revoked["a"].keys.keys();
        let mut numbers: Vec<i64> = of.map(|kid| kid.parse().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    };
    let all: [i64; 7] = [1, 10_000, 10_001, 12_345, 20_000, 20_001, 25_000];
    assert_eq!(keys(0).await, all);
    // What is older was swept.
    write("DELETE FROM revocations WHERE number < 12345").await;
    assert_eq!(keys(0).await, all[3..]);
    if place.postgres.is_none() {
        write("UPDATE revocations SET value = 'c_x' WHERE kind = 'client'").await;
    }
    assert_eq!(keys(10_000).await, all[3..]);
    assert_eq!(keys(12_345).await, all[4..]);
    pool.close().await;
}

/// Those of many people were in memory at once, at every start.
async fn told_groups_are_read_some_at_a_time(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    for sql in [
        "INSERT INTO revocations (number, tenant, kind, value, at_ms)
         WITH RECURSIVE numbers (number) AS (
             SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 250)
         SELECT number, 'a', 'groups', '[\"p' || number || '\",[\"eng\"]]', 1000000 FROM numbers",
        "UPDATE changes SET revocation = 250",
    ] {
        transaction.run(sql, Vec::new()).await.unwrap();
    }
    transaction.commit().await.unwrap();
    for (known_to, wanted) in [(0, 250), (1, 249), (50, 200), (249, 1), (250, 0)] {
        let newer = store.issued().newer((&Issued::default(), known_to)).await;
        let (issued, _) = newer.unwrap();
        let of = issued.revoked.get("a");
        let told = of.map_or(0, |of| of.groups.len());
        assert_eq!(told, wanted, "{known_to}");
    }
    pool.close().await;
}

/// Each code and each log-in read the revocations that all tenants made within a day.
async fn what_was_revoked_since_is_found_by_an_index(place: Place) {
    let _stores = open(&place).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let (explain, column) = if place.postgres.is_some() {
        // A table with few rows is read in whole.
        let off = "SET LOCAL enable_seqscan = off";
        transaction.run(off, Vec::new()).await.unwrap();
        ("EXPLAIN", "QUERY PLAN")
    } else {
        ("EXPLAIN QUERY PLAN", "detail")
    };
    let text = |text: &str| Value::from(text);
    let (revoked, of_subject) = (
        vec![text("a"), text("ada"), text("c_app"), BEGIN.into()],
        vec![text("a"), text("ada"), BEGIN.into(), Value::Text(None)],
    );
    for (sql, values, (index, terms)) in [
        (REVOKED, revoked, ("revocations_of", "<expr>=? AND at_ms>?")),
        (
            REVOKED_SUBJECT,
            of_subject,
            ("revocations_of", "<expr>=? AND at_ms>?"),
        ),
        (
            HAS_GROUPS,
            vec![text("a"), text("ada")],
            ("revocations_groups", "subject=?"),
        ),
    ] {
        let wanted = match place.postgres {
            Some(_) => format!("{index} "),
            None => format!("{index} (tenant=? AND {terms})"),
        };
        let sql: &'static str = format!("{explain} {sql}").leak();
        let rows = transaction.run(sql, values).await.unwrap();
        let lines = rows.iter().map(|row| row.get::<String>(column).unwrap());
        let plan = lines.collect::<Vec<_>>().join("\n");
        assert!(plan.contains(&wanted), "{plan}");
    }
    drop(transaction);
    pool.close().await;
}

/// They stayed until they would have expired: months of grants of whoever begins and revokes them.
async fn revoked_grants_go_with_their_revocation(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let mut ids = Vec::new();
    for number in 1..=7 {
        let mut new = code(number);
        new.grant.subject = format!("p{number}");
        new.grant.client_id = format!("c_{number}");
        new.grant.session = (number == 6).then(|| "s".to_owned());
        ids.push(granted(&store, &new, &[number; 32]).await);
    }
    let revocations = store.revocations();
    for what in [
        Revoked::Grant(ids[0]),
        Revoked::Consent(ids[1]),
        Revoked::Access(ids[2]),
        Revoked::Client("c_4".to_owned()),
        Revoked::Subject("p5".to_owned()),
    ] {
        assert!(revocations.revoke("a", &what).await.unwrap(), "{what:?}");
    }
    let session = LoggedOut::Session {
        session: "s".to_owned(),
        subject: None,
    };
    let by = record(Some("a"), "identity.ended", "provider");
    let done = revocations.log_out("a", &session, (&[7; 32], i64::MAX), &by);
    assert!(done.await.unwrap());
    let left = async || {
        store.sweep().await.unwrap();
        let sql = "SELECT id FROM grants";
        let rows = pool.read(sql, Vec::new()).await.unwrap();
        let ids = rows.iter().map(|row| row.get("id").unwrap());
        ids.collect::<Vec<Uuid>>()
    };
    // A day and an hour, and the hour that rows outlive their expiry.
    later(&place, 26 * 3600 * SECOND);
    assert_eq!(left().await.len(), 7);
    later(&place, 1);
    assert_eq!(left().await, ids[6..]);
    pool.close().await;
}

/// Grants of as many people to a client, each with a code, a consent and a log-in: three parts.
async fn grants_of_many(store: &Database, client: &str) -> HashSet<Uuid> {
    let mut ids = HashSet::new();
    for number in 1..=25 {
        let mut new = code(number);
        new.grant.subject = format!("p{number}");
        new.grant.client_id = client.to_owned();
        ids.insert(granted(store, &new, &[number; 32]).await);
        let (logins, subject) = (store.logins(), &new.grant.subject);
        let consent = logins.consent("a", subject, client, &[1; 32]);
        consent.await.unwrap();
        let (browser, person) = ([number; 32], person(subject));
        let logged_in = logins.log_in("a", &browser, &person, BEGIN + DAY);
        assert!(logged_in.await.unwrap());
    }
    ids
}

async fn live(store: &Database) -> usize {
    let listed = store.grants().list("a", GrantFilter::default(), 99);
    listed.await.unwrap().len()
}

/// The number that a statement counts.
async fn counted(pool: &Pool, sql: &'static str) -> i64 {
    pool.read(sql, Vec::new()).await.unwrap()[0]
        .get("count")
        .unwrap()
}

/// Lets one part be announced, and no second one.
const SPOIL: &str = "CREATE UNIQUE INDEX spoil ON revocations (tenant, kind)";
const MEND: &str = "DROP INDEX spoil";

/// One statement for all grants of a client had no time for some hundred thousand: it was rolled back, and each try kept all
/// writers waiting.
async fn a_client_is_revoked_in_parts(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let ids = grants_of_many(&store, "c_app").await;
    let mut other = code(99);
    other.grant.client_id = "c_web".to_owned();
    granted(&store, &other, &[99; 32]).await;
    let client = Revoked::Client("c_app".to_owned());
    let revoke = async || store.revocations().revoke("a", &client).await;
    pool.write(SPOIL, Vec::new()).await.unwrap();
    let failed = revoke().await;
    assert!(matches!(failed, Err(Error::Conflict)), "{failed:?}");
    assert_eq!((live(&store).await, revoked(&store).await.len()), (16, 10));
    // Nothing that was asked for before begins another one.
    let late = code(100);
    let added = store.grants().add_code("a", &late, BEGIN, None);
    assert!(!added.await.unwrap());
    pool.write(MEND, Vec::new()).await.unwrap();
    assert!(revoke().await.unwrap());
    assert_eq!((live(&store).await, revoked(&store).await), (1, ids));
    for number in 1..=25 {
        let token = [number; 32];
        let next = succession(&token, 1);
        let refreshed = store.grants().refresh("a", ("c_app", None), &token, &next);
        assert_eq!(refreshed.await.unwrap(), Refreshed::Refused, "{number}");
        let taken = store.grants().take_code("a", &token).await.unwrap();
        assert_eq!(taken, TakenCode::Unknown, "{number}");
    }
    let consents = counted(&pool, "SELECT COUNT(*) AS count FROM consents");
    assert_eq!(consents.await, 0);
    assert!(!revoke().await.unwrap(), "once");
    assert!(store.revocations().was_made("a", &client).await.unwrap());
    pool.close().await;
}

/// A client that many people used could not be removed.
async fn a_client_is_removed_in_parts(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let clients = store.clients();
    assert!(clients.add("a", &registered("c_app"), 9).await.unwrap());
    grants_of_many(&store, "c_app").await;
    pool.write(SPOIL, Vec::new()).await.unwrap();
    let failed = clients.remove("a", "c_app").await;
    assert!(matches!(failed, Err(Error::Conflict)), "{failed:?}");
    assert_eq!(live(&store).await, 15);
    assert!(clients.get("a", "c_app").await.unwrap().is_some());
    pool.write(MEND, Vec::new()).await.unwrap();
    assert!(clients.remove("a", "c_app").await.unwrap());
    assert_eq!(live(&store).await, 0);
    assert!(clients.get("a", "c_app").await.unwrap().is_none());
    assert!(!clients.remove("a", "c_app").await.unwrap());
    pool.close().await;
}

/// Nor could a manifest without it be applied.
async fn a_declared_client_is_removed_in_parts(place: Place) {
    let [store, _] = open(&place).await;
    let (pool, author) = (place.pool().await, ada());
    let builtin = json!({"auth": {"mode": "builtin"}});
    let uris = json!({"redirect_uris": ["https://app.test/cb"]});
    let (tenant, app) = (
        ObjectName::tenant("a"),
        ObjectName::of("a", Kind::Client, "app"),
    );
    for (name, kind, spec) in [(&tenant, Kind::Tenant, builtin), (&app, Kind::Client, uris)] {
        let object = Object::new(kind, spec.as_object().unwrap().clone());
        let put = store.objects().put(name, object, Expected::Any, &author);
        put.await.unwrap();
    }
    grants_of_many(&store, "app").await;
    let remove = async || {
        let objects = store.objects();
        objects.delete(&app, Expected::Any, &author).await
    };
    pool.write(SPOIL, Vec::new()).await.unwrap();
    let failed = remove().await;
    assert!(matches!(failed, Err(Error::Conflict)), "{failed:?}");
    assert_eq!(live(&store).await, 15);
    assert!(store.objects().get(&app).await.unwrap().is_some());
    pool.write(MEND, Vec::new()).await.unwrap();
    remove().await.unwrap();
    assert_eq!(live(&store).await, 0);
    assert!(store.objects().get(&app).await.unwrap().is_none());
    pool.close().await;
}

/// A tenant with many people could not be removed but by hand: its rows all went with it in one statement.
async fn a_tenant_is_removed_in_parts(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let ids = grants_of_many(&store, "c_app").await;
    // A change that is refused ends nothing.
    let bad = json!({"tenants": {"bad": {"auth": {"mode": "none"}}}}).to_string();
    let bad = manifest(&bad);
    let refused = store.objects().apply(&bad, Prune::Remove, &ada()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(live(&store).await, 25);
    let tenant = ObjectName::tenant("a");
    let remove = async || {
        let objects = store.objects();
        objects.delete(&tenant, Expected::Any, &ada()).await
    };
    pool.write(SPOIL, Vec::new()).await.unwrap();
    let failed = remove().await;
    assert!(matches!(failed, Err(Error::Conflict)), "{failed:?}");
    assert!(store.objects().get(&tenant).await.unwrap().is_some());
    // What has gone is told, since its access tokens are there.
    assert_eq!((live(&store).await, revoked(&store).await.len()), (15, 10));
    pool.write(MEND, Vec::new()).await.unwrap();
    remove().await.unwrap();
    assert!(store.objects().get(&tenant).await.unwrap().is_none());
    let told = revoked(&store).await;
    assert!(told.len() >= 15 && told.is_subset(&ids), "{told:?}");
    for sql in [
        "SELECT COUNT(*) AS count FROM grants",
        "SELECT COUNT(*) AS count FROM refresh_tokens",
        "SELECT COUNT(*) AS count FROM codes",
        "SELECT COUNT(*) AS count FROM consents",
        "SELECT COUNT(*) AS count FROM logins",
    ] {
        assert_eq!(counted(&pool, sql).await, 0, "{sql}");
    }
    pool.close().await;
}

/// Where others removed some grants at the same moment, fewer ended than there are in a part: it was taken for the last one.
#[tokio::test]
async fn a_client_is_revoked_though_others_remove_its_grants() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    grants_of_many(&store, "c_app").await;
    for sql in ["DELETE FROM codes", "DELETE FROM consents"] {
        pool.write(sql, Vec::new()).await.unwrap();
    }
    let mut sweep = pool.begin_unserialized().await.unwrap();
    let some = "DELETE FROM grants WHERE subject IN ('p1', 'p2', 'p3')";
    sweep.run(some, Vec::new()).await.unwrap();
    let client = Revoked::Client("c_app".to_owned());
    let is_over = Cell::new(false);
    let revoke = async {
        let is_ended = store.revocations().revoke("a", &client).await;
        is_over.set(true);
        is_ended.unwrap()
    };
    let end = async {
        until_waiting(&pool, 1, || is_over.get()).await;
        sweep.commit().await.unwrap();
    };
    let (is_ended, ()) = tokio::join!(revoke, end);
    assert!(is_ended);
    assert_eq!(live(&store).await, 0);
    pool.close().await;
}

/// Tries to remove a tenant of which only one part can be announced.
async fn remove_in_vain(store: &Database, pool: &Pool) {
    pool.write(SPOIL, Vec::new()).await.unwrap();
    let (name, author) = (ObjectName::tenant("a"), ada());
    let objects = store.objects();
    let failed = objects.delete(&name, Expected::Any, &author).await;
    assert!(matches!(failed, Err(Error::Conflict)), "{failed:?}");
    pool.write(MEND, Vec::new()).await.unwrap();
}

/// Each part looked through all grants of the tenant for some without tokens, while all writers waited.
async fn a_part_of_a_tenant_is_of_its_first_grants(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    grants_of_many(&store, "c_app").await;
    // The first ones have three tokens each, the others none.
    let others = "DELETE FROM refresh_tokens
                   WHERE grant_id IN (SELECT id FROM grants WHERE subject NOT LIKE 'p1%')";
    pool.write(others, Vec::new()).await.unwrap();
    let first = "SELECT id FROM grants WHERE subject LIKE 'p1%'";
    let first = pool.read(first, Vec::new()).await.unwrap();
    for number in 100..100 + 2 * u8::try_from(first.len()).unwrap() {
        let id: Uuid = first[usize::from(number) % first.len()].get("id").unwrap();
        let values = vec![(&[number; 32]).into(), id.into(), (BEGIN + DAY).into()];
        let sql = "INSERT INTO refresh_tokens (hash, grant_id, expires_ms) VALUES ($1, $2, $3)";
        pool.write(sql, values).await.unwrap();
    }
    remove_in_vain(&store, &pool).await;
    let left = "SELECT COUNT(*) AS count FROM grants WHERE subject NOT LIKE 'p1%'";
    assert_eq!(counted(&pool, left).await, 14);
    pool.close().await;
}

/// All replicas had the grants of years in memory for a day.
async fn a_removed_tenant_tells_of_grants_with_access_alone(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    grants_of_many(&store, "c_app").await;
    for sql in [
        "UPDATE grants SET revoked_ms = 1 WHERE subject LIKE 'p1%'",
        "UPDATE grants SET created_ms = -99000000 WHERE subject LIKE 'p2%'",
    ] {
        pool.write(sql, Vec::new()).await.unwrap();
    }
    // The two parts are of twenty grants in the order of their subjects.
    let others = "SELECT id FROM grants WHERE subject IN ('p3', 'p4')";
    let others = pool.read(others, Vec::new()).await.unwrap();
    let others: HashSet<Uuid> = others.iter().map(|row| row.get("id").unwrap()).collect();
    let (name, author) = (ObjectName::tenant("a"), ada());
    let objects = store.objects();
    let removed = objects.delete(&name, Expected::Any, &author).await;
    removed.unwrap();
    assert_eq!(revoked(&store).await, others);
    pool.close().await;
}

/// People of the tenant were logged out, and no record told by whom.
async fn a_removal_that_fails_is_recorded(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    grants_of_many(&store, "c_app").await;
    let records = async || {
        let filter = Filter {
            kind: Some("grants.revoked".to_owned()),
            ..Filter::default()
        };
        let page = store.audit().page(&filter, None, 9).await.unwrap();
        let records = page.entries.into_iter().map(|entry| entry.record);
        let brief = records.map(|record| (record.tenant, record.actor, record.target));
        brief.collect::<Vec<_>>()
    };
    // A change that cannot be written ends nothing.
    let other_key = "UPDATE seal_keys SET id = 'x' || id";
    pool.write(other_key, Vec::new()).await.unwrap();
    let (name, author) = (ObjectName::tenant("a"), ada());
    let objects = store.objects();
    let refused = objects.delete(&name, Expected::Any, &author).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let logins = "SELECT COUNT(*) AS count FROM logins";
    assert_eq!(counted(&pool, logins).await, 25);
    assert!(records().await.is_empty());
    let same_key = "UPDATE seal_keys SET id = SUBSTR(id, 2)";
    pool.write(same_key, Vec::new()).await.unwrap();
    remove_in_vain(&store, &pool).await;
    assert!(counted(&pool, logins).await < 25);
    let of = |text: &str| text.to_owned();
    let one = (Some(of("a")), of("ada"), of("tenant a"));
    assert_eq!(records().await, [one]);
    pool.close().await;
}

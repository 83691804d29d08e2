//! Registered clients, log-ins, consents and one-time values.

use std::{cell::Cell, collections::HashSet, time::Duration};

use futures_util::future::join_all;

use super::fixture::{
    BEGIN, DAY, Place, SECOND, code, granted, later, on_both, open, patient, person, record,
    registered, revoked, until_waiting,
};
use crate::database::{
    Filter,
    oauth::{LoggedOut, Person, Registered, Revoked, Step, revocations},
};

on_both! {
    registered_clients_are_added_replaced_and_removed
    the_record_of_a_client_goes_with_one_that_nobody_used
    clients_that_nobody_used_give_way
    a_page_of_registered_clients_ends_by_its_bytes
    log_ins_and_consents_are_remembered
    no_log_in_is_stored_after_its_end
    a_person_has_only_so_many_log_ins
    a_person_has_only_so_many_consents
    one_time_values_are_taken_once
    forms_are_sealed
    expired_rows_are_swept
    steps_of_attempts_are_the_newest_of_a_day
}

/// A flood at one tenant costs no other its steps, and no tenant more than its share.
async fn steps_of_attempts_are_the_newest_of_a_day(place: Place) {
    let [store, _] = open(&place).await;
    let step = |tenant: &str, at: i64| Step {
        tenant: tenant.to_owned(),
        attempt: format!("{at}"),
        at_ms: 1_000_000 + at,
        step: "refused".to_owned(),
        client_id: String::new(),
        client: String::new(),
        server: String::new(),
        subject: String::new(),
        address: String::new(),
        reason: "a\0b".to_owned(),
    };
    let steps = store.login_steps();
    steps.add(&[step("b", 0), step("gone", 0)]).await.unwrap();
    for batch in 0..9 {
        let many: Vec<Step> = (0..250).map(|at| step("a", batch * 250 + at)).collect();
        steps.add(&many).await.unwrap();
    }
    let newest = steps.newest("a").await.unwrap();
    assert_eq!(newest.len(), 2000);
    assert_eq!(
        (&*newest[0].attempt, &*newest[1999].attempt),
        ("2249", "250")
    );
    assert!(
        steps.of("a", "249").await.unwrap().is_empty(),
        "it is removed"
    );
    assert_eq!(steps.of("a", "250").await.unwrap().len(), 1);
    assert_eq!(steps.newest("b").await.unwrap()[0].reason, "a\u{fffd}b");
    assert!(
        steps.newest("gone").await.unwrap().is_empty(),
        "no such tenant"
    );
    later(&place, DAY + SECOND);
    assert!(steps.newest("b").await.unwrap().is_empty(), "a day later");
    while store.sweep().await.unwrap() {}
    place
        .now_ms
        .store(1_000_000, std::sync::atomic::Ordering::Relaxed);
    assert!(steps.newest("b").await.unwrap().is_empty(), "they are gone");
}

#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn registered_clients_are_added_replaced_and_removed(place: Place) {
    let [store, other] = open(&place).await;
    let one = registered("c_one");
    assert!(store.clients().add("a", &one, 2).await.unwrap());
    assert!(
        store
            .clients()
            .add("a", &registered("c_two"), 2)
            .await
            .unwrap()
    );
    // Those of before a change of the lifetime count as used.
    let third = Registered {
        expires_ms: BEGIN + 7200 * SECOND,
        ..registered("c_three")
    };
    assert!(!store.clients().add("a", &third, 2).await.unwrap());
    assert!(store.clients().add("b", &one, 1).await.unwrap());
    assert_eq!(
        other.clients().get("a", "c_one").await.unwrap(),
        Some(one.clone())
    );
    assert_eq!(other.clients().get("a", "c_three").await.unwrap(), None);
    let changed = Registered {
        metadata: "{\"client_name\":\"x\"}".to_owned(),
        secret_hash: Some([2; 32]),
        access_hash: [3; 32],
        ..one.clone()
    };
    let used_ms = BEGIN + 3601 * SECOND;
    store.clients().renew("a", "c_one", used_ms).await.unwrap();
    let update = async |known: &Registered, new: &Registered| {
        let updated = store.clients().update("a", known, new).await;
        updated.unwrap()
    };
    assert!(update(&one, &changed).await);
    // A use of meanwhile counts, and a change by what was there before does not.
    let used = Registered {
        expires_ms: used_ms + 1,
        ..changed.clone()
    };
    assert!(!update(&one, &registered("c_one")).await);
    let half = Registered {
        secret_hash: None,
        ..changed.clone()
    };
    assert!(!update(&half, &registered("c_one")).await);
    assert_eq!(store.clients().get("a", "c_one").await.unwrap(), Some(used));
    assert_eq!(
        store.clients().get("b", "c_one").await.unwrap(),
        Some(one.clone())
    );
    store
        .clients()
        .renew("a", "c_one", BEGIN + DAY)
        .await
        .unwrap();
    store
        .clients()
        .renew("a", "c_one", BEGIN + 2 * SECOND)
        .await
        .unwrap();
    later(&place, 3600 * SECOND);
    assert_eq!(
        store.clients().get("a", "c_two").await.unwrap(),
        None,
        "expired"
    );
    assert!(
        !store
            .clients()
            .update("a", &registered("c_two"), &registered("c_two"))
            .await
            .unwrap()
    );
    store
        .clients()
        .renew("a", "c_two", BEGIN + DAY)
        .await
        .unwrap();
    assert_eq!(
        store.clients().get("a", "c_two").await.unwrap(),
        None,
        "not revived"
    );
    let kept = store.clients().get("a", "c_one").await.unwrap().unwrap();
    assert_eq!(kept.expires_ms, BEGIN + DAY);
    assert!(
        store
            .clients()
            .add("a", &registered("c_four"), 2)
            .await
            .unwrap()
    );
    let mut code = code(1);
    code.grant.client_id = "c_one".to_owned();
    let id = granted(&store, &code, &[1; 32]).await;
    store
        .logins()
        .consent("a", "ada", "c_one", &[1; 32])
        .await
        .unwrap();
    assert!(store.clients().remove("a", "c_one").await.unwrap());
    assert!(!store.clients().remove("a", "c_one").await.unwrap());
    assert_eq!(revoked(&store).await, HashSet::from([id]));
    assert!(
        !store
            .logins()
            .has_consented("a", "ada", "c_one", &[1; 32])
            .await
            .unwrap()
    );
    assert!(
        store.clients().get("b", "c_one").await.unwrap().is_none(),
        "expired there"
    );
}

/// Registrations that nobody used filled the audit trail, which is kept for months.
/// A flood of registrations closed a tenant to new clients for as long as it went on.
async fn clients_that_nobody_used_give_way(place: Place) {
    let [store, _] = open(&place).await;
    let clients = store.clients();
    // These are older than the others, and each was used by a part of what a person does.
    let used = ["c_app", "c_allowed", "c_consented", "c_renewed"];
    for id in used {
        assert!(clients.add("a", &registered(id), 7).await.unwrap());
    }
    granted(&store, &code(1), &[1; 32]).await;
    clients.decided("a", "c_allowed").await.unwrap();
    let logins = store.logins();
    logins
        .consent("a", "ada", "c_consented", &[1; 32])
        .await
        .unwrap();
    let until = BEGIN + 3600 * SECOND + 1;
    clients.renew("a", "c_renewed", until).await.unwrap();
    let unused = |at: i64| Registered {
        created_ms: BEGIN + at,
        expires_ms: BEGIN + 3600 * SECOND + at,
        ..registered(&format!("c_{at}"))
    };
    later(&place, 1000);
    for at in 1..=6 {
        let client = unused(at);
        assert!(clients.add("a", &client, 7).await.unwrap(), "{at}");
        let record = client.record("a", serde_json::json!({}));
        store.audit().append(&[record]).await.unwrap();
    }
    assert!(clients.add("b", &registered("c_b"), 1).await.unwrap());
    let listed = clients.page("a", "", 99).await.unwrap().clients;
    let mut left: Vec<&str> = listed.iter().map(|one| &*one.client.client_id).collect();
    left.sort_unstable();
    let mut wanted = [&used[..], &["c_4", "c_5", "c_6"]].concat();
    wanted.sort_unstable();
    assert_eq!(left, wanted);
    let page = store.audit().page(&Filter::default(), None, 99).await;
    let entries = page.unwrap().entries.into_iter().map(|entry| entry.record);
    let of_clients = entries.filter(|record| record.kind.starts_with("client."));
    let mut records: Vec<String> = of_clients
        .map(|record| format!("{} {}", record.kind, record.target))
        .collect();
    records.sort_unstable();
    let gone = ["client.expired tenant a"; 3];
    let there = [4, 5, 6].map(|at| format!("client.registered client c_{at}"));
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    assert_eq!(records, [&gone[..], &there].concat());
    // Those that somebody used give way to nobody.
    for at in 4..=6 {
        clients.decided("a", &format!("c_{at}")).await.unwrap();
    }
    assert!(!clients.add("a", &unused(7), 7).await.unwrap());
}

/// A page of a thousand was 30 MB of rows, which became trees on a worker.
async fn a_page_of_registered_clients_ends_by_its_bytes(place: Place) {
    let [store, _] = open(&place).await;
    let clients = store.clients();
    let names = |numbers: std::ops::Range<usize>| -> Vec<String> {
        numbers.map(|number| format!("c_{number:02}")).collect()
    };
    for (number, name) in names(0..60).iter().enumerate() {
        let length = match number {
            7 => 2 << 20,
            10..40 => 60 << 10,
            _ => 1,
        };
        let long = Registered {
            metadata: "x".repeat(length),
            ..registered(name)
        };
        assert!(clients.add("a", &long, 99).await.unwrap());
    }
    let page = async |after: &str, limit| {
        let page = clients.page("a", after, limit).await.unwrap();
        let listed = page.clients.iter().map(|one| &one.client);
        let bytes: usize = listed.clone().map(|client| client.metadata.len()).sum();
        assert_eq!(page.bytes, bytes);
        let ids = listed.map(|client| client.client_id.clone());
        (ids.collect::<Vec<_>>(), page.is_more)
    };
    // By their number, also where that is one of whole parts.
    assert_eq!(page("", 3).await, (names(0..3), true));
    assert_eq!(page("c_39", 19).await, (names(40..59), true));
    assert_eq!(page("c_39", 20).await, (names(40..60), false));
    assert_eq!(page("c_43", 16).await, (names(44..60), false));
    assert_eq!(page("c_59", 9).await, (names(0..0), false));
    // By their bytes; one that is larger than a page is a page. Of 60 KiB a page has 17.
    assert_eq!(page("", 1000).await, (names(0..7), true));
    assert_eq!(page("c_06", 1000).await, (names(7..8), true));
    assert_eq!(page("c_07", 1000).await, (names(8..27), true));
    assert_eq!(page("c_26", 1000).await, (names(27..60), false));
}

async fn the_record_of_a_client_goes_with_one_that_nobody_used(place: Place) {
    let [store, _] = open(&place).await;
    let (clients, hour) = (store.clients(), Duration::from_hours(1));
    for (tenant, id) in [
        ("a", "c_1"),
        ("a", "c_2"),
        ("b", "c_3"),
        ("a", "c_used"),
        ("a", "c_allowed"),
        ("a", "c_changed"),
        ("a", "c_withdrawn"),
    ] {
        let client = registered(id);
        assert!(clients.add(tenant, &client, 9).await.unwrap());
        let record = client.record(tenant, serde_json::json!({}));
        // Written later.
        later(&place, 1);
        store.audit().append(&[record]).await.unwrap();
    }
    let until = BEGIN + 3600 * SECOND + 1;
    clients.renew("a", "c_used", until).await.unwrap();
    clients.decided("a", "c_allowed").await.unwrap();
    let (known, changed) = (registered("c_changed"), registered("c_changed"));
    assert!(clients.update("a", &known, &changed).await.unwrap());
    let own = registered("c_withdrawn");
    assert!(own.is_unused(hour));
    assert!(clients.remove("a", &own.client_id).await.unwrap());
    clients.forget("a", &own).await.unwrap();
    let records = async || {
        let page = store.audit().page(&Filter::default(), None, 99).await;
        let entries = page.unwrap().entries.into_iter().map(|entry| entry.record);
        let of_clients = entries.filter(|record| record.kind.starts_with("client."));
        let mut shown: Vec<String> = of_clients
            .map(|record| format!("{} {} {}", record.kind, record.target, record.detail))
            .collect();
        shown.sort_unstable();
        shown
    };
    assert!(!clients.expire(hour).await.unwrap());
    assert_eq!(records().await.len(), 6, "none has expired");
    later(&place, 3600 * SECOND + 10);
    assert!(!clients.expire(hour).await.unwrap());
    let kept = [
        "client.expired tenant a {\"count\":2}",
        "client.expired tenant b {\"count\":1}",
        "client.registered client c_allowed {}",
        "client.registered client c_changed {}",
        "client.registered client c_used {}",
    ];
    assert_eq!(records().await, kept);
    assert!(!clients.expire(hour).await.unwrap());
    assert_eq!(records().await, kept, "counted once");
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn log_ins_and_consents_are_remembered(place: Place) {
    let [store, other] = open(&place).await;
    let ends = BEGIN + SECOND;
    store
        .logins()
        .log_in("a", &[1; 32], &person("ada"), ends)
        .await
        .unwrap();
    assert_eq!(
        other.logins().logged_in("a", &[1; 32]).await.unwrap(),
        Some(person("ada"))
    );
    assert_eq!(other.logins().logged_in("b", &[1; 32]).await.unwrap(), None);
    assert_eq!(other.logins().logged_in("a", &[2; 32]).await.unwrap(), None);
    store
        .logins()
        .log_in("a", &[1; 32], &person("bob"), ends)
        .await
        .unwrap();
    assert_eq!(
        other.logins().logged_in("a", &[1; 32]).await.unwrap(),
        Some(person("bob"))
    );
    // The row belongs to bob now, so a revocation of ada does not delete it.
    store
        .revocations()
        .revoke("a", &Revoked::Subject("ada".to_owned()))
        .await
        .unwrap();
    assert!(
        other
            .logins()
            .logged_in("a", &[1; 32])
            .await
            .unwrap()
            .is_some()
    );
    store.logins().log_out("a", &[1; 32]).await.unwrap();
    assert_eq!(other.logins().logged_in("a", &[1; 32]).await.unwrap(), None);
    store
        .logins()
        .log_in("a", &[1; 32], &since(BEGIN + 1, None), ends)
        .await
        .unwrap();
    later(&place, SECOND);
    assert_eq!(other.logins().logged_in("a", &[1; 32]).await.unwrap(), None);
    for _ in 0..2 {
        store
            .logins()
            .consent("a", "ada", "c_app", &[1; 32])
            .await
            .unwrap();
    }
    for (tenant, subject, client, digest, is_known) in [
        ("a", "ada", "c_app", [1; 32], true),
        ("b", "ada", "c_app", [1; 32], false),
        ("a", "bob", "c_app", [1; 32], false),
        ("a", "ada", "c_web", [1; 32], false),
        ("a", "ada", "c_app", [2; 32], false),
    ] {
        let known = other
            .logins()
            .has_consented(tenant, subject, client, &digest)
            .await;
        assert_eq!(known.unwrap(), is_known);
    }
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn one_time_values_are_taken_once(place: Place) {
    let stores = open(&place).await;
    let ends = BEGIN + SECOND;
    stores[0]
        .logins()
        .add_trip("a", &[1; 32], b"content", ends)
        .await
        .unwrap();
    assert!(
        stores[1]
            .logins()
            .take_trip("b", &[1; 32])
            .await
            .unwrap()
            .is_none()
    );
    let takes = (0..50).map(|number: usize| {
        let store = &stores[number % 2];
        patient(move || store.logins().take_trip("a", &[1; 32]))
    });
    let taken = join_all(takes).await.into_iter().flatten();
    let taken: Vec<Vec<u8>> = taken.map(|content| content.to_vec()).collect();
    assert_eq!(taken, [b"content".to_vec()]);
    stores[0]
        .logins()
        .add_trip("a", &[2; 32], b"late", ends)
        .await
        .unwrap();
    let uses = (0..50).map(|number: usize| {
        let store = &stores[number % 2];
        patient(move || store.logins().use_once("a", &[1; 32], ends))
    });
    let first = join_all(uses).await.into_iter();
    assert_eq!(first.filter(|is_first| *is_first).count(), 1);
    assert!(
        stores[0]
            .logins()
            .use_once("b", &[1; 32], ends)
            .await
            .unwrap()
    );
    assert!(
        stores[0]
            .logins()
            .use_once("a", &[2; 32], ends)
            .await
            .unwrap()
    );
    later(&place, SECOND);
    assert!(
        stores[0]
            .logins()
            .take_trip("a", &[2; 32])
            .await
            .unwrap()
            .is_none()
    );
    // The content is not stored in the clear.
    let pool = place.pool().await;
    let rows = pool
        .read("SELECT content FROM trips", Vec::new())
        .await
        .unwrap();
    let content: Vec<u8> = rows[0].get("content").unwrap();
    assert!(!content.windows(4).any(|part| part == b"late"));
}

async fn forms_are_sealed(place: Place) {
    let [store, other] = open(&place).await;
    let sealed = store.logins().seal("a", "login", b"state").unwrap();
    let opened = |tenant, purpose| other.logins().open_sealed(tenant, purpose, &sealed);
    assert_eq!(opened("a", "login").unwrap().as_slice(), b"state");
    assert!(opened("b", "login").is_none());
    assert!(opened("a", "consent").is_none());
    store.rotate().await.unwrap();
    // Another handle reads the new key when it first needs it. Values sealed under the old key no
    // longer open.
    let renewed = place
        .open()
        .await
        .logins()
        .seal("a", "login", b"new")
        .unwrap();
    let opened = other.logins().open_sealed("a", "login", &renewed);
    assert_eq!(opened.unwrap().as_slice(), b"new");
    assert!(other.logins().open_sealed("a", "login", &sealed).is_none());
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn expired_rows_are_swept(place: Place) {
    let [store, _] = open(&place).await;
    let mut short = code(1);
    short.grant.expires_ms = BEGIN + SECOND;
    let id = granted(&store, &short, &[1; 32]).await;
    granted(&store, &code(2), &[2; 32]).await;
    store
        .revocations()
        .revoke("a", &Revoked::Grant(id))
        .await
        .unwrap();
    assert!(
        store
            .clients()
            .add("a", &registered("c_one"), 9)
            .await
            .unwrap()
    );
    store
        .logins()
        .consent("a", "ada", "c_one", &[1; 32])
        .await
        .unwrap();
    store
        .logins()
        .consent("a", "ada", "https://app.test/client", &[1; 32])
        .await
        .unwrap();
    store
        .logins()
        .log_in("a", &[1; 32], &person("ada"), BEGIN + SECOND)
        .await
        .unwrap();
    store
        .logins()
        .add_trip("a", &[1; 32], b"content", BEGIN + SECOND)
        .await
        .unwrap();
    store
        .logins()
        .use_once("a", &[1; 32], BEGIN + SECOND)
        .await
        .unwrap();
    let pool = place.pool().await;
    let counts = async || {
        let mut counts = Vec::new();
        for sql in [
            "SELECT COUNT(*) AS count FROM codes",
            "SELECT COUNT(*) AS count FROM grants",
            "SELECT COUNT(*) AS count FROM refresh_tokens",
            "SELECT COUNT(*) AS count FROM revocations",
            "SELECT COUNT(*) AS count FROM registrations",
            "SELECT COUNT(*) AS count FROM consents",
            "SELECT COUNT(*) AS count FROM logins",
            "SELECT COUNT(*) AS count FROM trips",
            "SELECT COUNT(*) AS count FROM used",
        ] {
            let rows = pool.read(sql, Vec::new()).await.unwrap();
            counts.push(rows[0].get::<i64>("count").unwrap());
        }
        counts
    };
    store.sweep().await.unwrap();
    assert_eq!(counts().await, [1, 2, 2, 1, 1, 2, 1, 1, 1]);
    later(&place, 2 * SECOND);
    store.sweep().await.unwrap();
    assert_eq!(counts().await, [1, 2, 2, 1, 1, 2, 0, 0, 0]);
    later(&place, 3600 * SECOND);
    store.sweep().await.unwrap();
    assert!(!store.expire_clients(Duration::from_hours(1)).await.unwrap());
    assert!(!store.sweep_orphans().await.unwrap());
    assert_eq!(counts().await, [1, 1, 1, 1, 0, 1, 0, 0, 0]);
    later(&place, 2 * DAY);
    assert!(!store.sweep().await.unwrap());
    assert_eq!(counts().await, [0, 1, 1, 0, 0, 1, 0, 0, 0]);
}

/// Ada, who logged in at this time, in this session at a provider.
fn since(auth_ms: i64, session: Option<&str>) -> Person {
    Person {
        session: session.map(|name| format!("https://idp.test#{name}")),
        auth_ms,
        ..person("ada")
    }
}

async fn no_log_in_is_stored_after_its_end(place: Place) {
    let [store, other] = open(&place).await;
    let log_in = async |person: Person| {
        let logins = store.logins();
        let stored = logins.log_in("a", &[1; 32], &person, BEGIN + DAY).await;
        stored.unwrap()
    };
    let what = LoggedOut::Session {
        session: "https://idp.test#s".to_owned(),
        subject: Some("ada".to_owned()),
    };
    let record = record(Some("a"), "identity.ended", "provider");
    let revocations = store.revocations();
    let logged_out = revocations.log_out("a", &what, (&[7; 32], i64::MAX), &record);
    assert!(logged_out.await.unwrap());
    for (auth_ms, session, is_stored) in [
        (BEGIN, Some("s"), false),
        (BEGIN, None, false),
        (BEGIN, Some("t"), true),
        (BEGIN + 1, Some("s"), true),
        (BEGIN + 1, None, true),
    ] {
        let person = since(auth_ms, session);
        assert_eq!(log_in(person).await, is_stored, "{auth_ms} {session:?}");
    }
    let ada = Revoked::Subject("ada".to_owned());
    assert!(revocations.revoke("a", &ada).await.unwrap());
    assert!(!log_in(since(BEGIN, Some("t"))).await);
    let known = other.logins().logged_in("a", &[1; 32]).await;
    assert_eq!(known.unwrap(), None);
    let again = since(BEGIN + 1, Some("t"));
    assert!(log_in(again.clone()).await);
    let known = other.logins().logged_in("a", &[1; 32]).await;
    assert_eq!(known.unwrap(), Some(again));
}

/// A change of groups of a person with very many took the lock of all writers for minutes.
async fn a_person_has_only_so_many_log_ins(place: Place) {
    let [store, _] = open(&place).await;
    let logins = store.logins();
    let log_in = async |(tenant, subject): (&str, &str), at: u8, ends: i64| {
        let (browser, person) = ([at; 32], person(subject));
        let stored = logins.log_in(tenant, &browser, &person, BEGIN + ends);
        assert!(stored.await.unwrap(), "{at}");
    };
    let is_in = async |tenant: &str, at: u8| {
        let person = logins.logged_in(tenant, &[at; 32]).await;
        person.unwrap().is_some()
    };
    let ada = ("a", "ada");
    // These end first, but are not of this person.
    log_in(("a", "bob"), 200, 1).await;
    log_in(("b", "ada"), 200, 1).await;
    for at in 0..100 {
        log_in(ada, at, DAY + i64::from(at)).await;
    }
    assert!(is_in("a", 0).await);
    // The new one stays, though it ends first.
    log_in(ada, 100, SECOND).await;
    let first = [is_in("a", 0).await, is_in("a", 1).await];
    assert_eq!(first, [false, true]);
    assert!(is_in("a", 100).await);
    // A second log-in in the same browser is no other one.
    log_in(ada, 100, SECOND).await;
    assert!(is_in("a", 1).await);
    log_in(ada, 101, DAY).await;
    let first = [is_in("a", 100).await, is_in("a", 1).await];
    assert_eq!(first, [false, true]);
    let others = [is_in("a", 200).await, is_in("b", 200).await];
    assert_eq!(others, [true, true]);
}

/// A person with some millions of them could not be revoked: one statement had no time for all.
async fn a_person_has_only_so_many_consents(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let of_ada = (0..1000_i64).map(|at| ("a", "ada", at));
    // Of another replica, whose clock is ahead. Those of others are as old as the oldest.
    for (tenant, subject, at) in of_ada.chain([("a", "bob", 0), ("b", "ada", 0)]) {
        let sql = "
            INSERT INTO consents (tenant, subject, client_id, digest, created_ms)
            VALUES ($1, $2, $3, $4, $5)";
        let client = format!("c_{at}");
        let values = vec![
            tenant.into(),
            subject.into(),
            client.into(),
            (&[1_u8; 32]).into(),
            (BEGIN + SECOND + at).into(),
        ];
        transaction.run(sql, values).await.unwrap();
    }
    transaction.commit().await.unwrap();
    pool.close().await;
    let logins = store.logins();
    let consent = async |client: &str| {
        let stored = logins.consent("a", "ada", client, &[1; 32]);
        stored.await.unwrap();
    };
    let is_known = async |(tenant, subject): (&str, &str), client: &str| {
        let known = logins.has_consented(tenant, subject, client, &[1; 32]);
        known.await.unwrap()
    };
    let ada = ("a", "ada");
    consent("c_new").await;
    let first = [is_known(ada, "c_0").await, is_known(ada, "c_1").await];
    assert_eq!(first, [false, true]);
    assert!(is_known(ada, "c_new").await, "whatever its time");
    // The same one again is no other one.
    consent("c_new").await;
    assert!(is_known(ada, "c_1").await);
    consent("c_newer").await;
    let first = [is_known(ada, "c_new").await, is_known(ada, "c_1").await];
    assert_eq!(first, [false, true]);
    for of in [("a", "bob"), ("b", "ada")] {
        assert!(is_known(of, "c_0").await, "{of:?}");
    }
}

/// A log-in that was stored while a logout ended those that it saw stayed for as long as any.
#[tokio::test]
async fn a_log_in_at_the_moment_of_a_revocation_does_not_outlive_it() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let mut ending = pool.begin().await.unwrap();
    let ada = Revoked::Subject("ada".to_owned());
    let ended = revocations::end(&mut ending, "a", &ada, BEGIN).await;
    assert!(!ended.unwrap(), "there is nothing yet");
    let is_over = Cell::new(false);
    let log_in = async {
        let (logins, ada) = (store.logins(), person("ada"));
        let stored = logins.log_in("a", &[1; 32], &ada, BEGIN + DAY).await;
        is_over.set(true);
        stored.unwrap()
    };
    let end = async {
        until_waiting(&pool, 1, || is_over.get()).await;
        ending.commit().await.unwrap();
    };
    let (is_stored, ()) = tokio::join!(log_in, end);
    assert!(!is_stored);
    let known = store.logins().logged_in("a", &[1; 32]).await;
    assert_eq!(known.unwrap(), None);
    pool.close().await;
}

/// Both remove rows of the person. Where each waits for one of the other's, the database refuses one of them.
#[tokio::test]
async fn a_consent_waits_for_a_revocation() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let ending = pool.begin().await.unwrap();
    let is_over = Cell::new(false);
    let consent = async {
        let logins = store.logins();
        let stored = logins.consent("a", "ada", "c_app", &[1; 32]).await;
        is_over.set(true);
        stored.unwrap();
    };
    let end = async {
        until_waiting(&pool, 1, || is_over.get()).await;
        let has_waited = !is_over.get();
        ending.commit().await.unwrap();
        has_waited
    };
    let ((), has_waited) = tokio::join!(consent, end);
    assert!(has_waited);
    pool.close().await;
}

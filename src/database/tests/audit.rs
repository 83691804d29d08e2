//! The audit trail.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::fixture::{Place, ada, on_both, put, record, server, tenant};
use crate::base::budget::Turns;
use crate::database::{Error, Expected, Filter, Record};
use crate::declare::ObjectName;

on_both! {
    a_change_and_its_audit_record_are_one_transaction
    the_audit_trail_is_filtered_and_read_in_pages
    an_end_and_a_place_in_the_trail_hold_together
    records_of_an_earlier_tenant_are_not_of_the_present_one
    a_record_that_comes_while_the_next_tenant_is_created_is_not_of_it
    the_place_in_a_batch_makes_no_record_older
    an_audit_record_holds_any_text
    old_audit_records_are_deleted
    pages_of_the_audit_trail_take_no_reserved_connection
}

/// PostgreSQL went on with a page whose client had left, and the next one was read beside it, by another connection: one
/// tenant's administrator had all eight.
#[tokio::test]
async fn a_turn_ends_with_the_statement_that_nobody_waits_for() {
    const WAITING: &str = "
        SELECT pid
          FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let place = Place::postgres();
    let (store, others) = (place.open().await, place.pool().await);
    let turns = Turns::new(1);
    for what in ["page", "list", "record"] {
        let mut lock = others.begin_unserialized().await.unwrap();
        let locked = "LOCK TABLE audit, login_steps IN ACCESS EXCLUSIVE MODE";
        lock.run(locked, Vec::new()).await.unwrap();
        let (turn, filter) = (vec![turns.take("a").await], Filter::default());
        let read = async {
            if what == "page" {
                let page = store.audit().page_at(turn, &filter, None, 1);
                return page.await.map(drop);
            }
            let boss = store.for_administrator(false).at(turn);
            if what == "list" {
                return boss.login_steps().newest("acme").await.map(drop);
            }
            let told = record(None, "session.ended", "ada");
            boss.audit().append(&[told]).await
        };
        let waits = async { while others.read(WAITING, Vec::new()).await.unwrap().is_empty() {} };
        tokio::select! {
            done = read => panic!("it did not wait: {done:?}"),
            () = waits => {}
        }
        // Its client has left, and the server goes on.
        let waiting = others.read(WAITING, Vec::new()).await.unwrap();
        assert!(!waiting.is_empty());
        assert!(turns.take("a").now_or_never().is_none(), "{what}");
        lock.commit().await.unwrap();
        let free = timeout(Duration::from_secs(60), turns.take("a"));
        free.await.expect("it is free once the statement has ended");
    }
}

async fn a_change_and_its_audit_record_are_one_transaction(place: Place) {
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
    let detail = json!({"address": "192.0.2.1", "members": ["args"]});
    let wanted = Record::new(
        Some("acme"),
        "server.changed",
        "ada",
        "server acme/files",
        detail,
    );
    assert_eq!(entry.record, wanted);
    // Without its audit record, a change is not made.
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

async fn an_end_and_a_place_in_the_trail_hold_together(place: Place) {
    let store = place.open().await;
    for at_ms in [1_000, 1_000, 1_001, 1_002] {
        place.now_ms.store(at_ms, Ordering::Relaxed);
        let both = [Some("a"), None].map(|tenant| record(tenant, "login", "ada"));
        store.audit().append(&both).await.unwrap();
    }
    let audit = store.audit();
    let until = |until_ms| Filter {
        tenant: Some("a".to_owned()),
        until_ms: Some(until_ms),
        ..Filter::default()
    };
    let (mut times, mut after) = (Vec::new(), None);
    loop {
        let page = audit.page(&until(1_002), after, 1).await.unwrap();
        times.extend(page.entries.iter().map(|entry| entry.at_ms));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(times, [1_001_i64, 1_000, 1_000]);
    // A place behind the end that is asked for next.
    let newest = audit.page(&Filter::default(), None, 1).await.unwrap();
    let found = audit.page(&until(1_001), newest.next, 9).await.unwrap();
    assert_eq!(found.entries.len(), 2);
    assert!(found.entries.iter().all(|entry| entry.at_ms == 1_000));
}

/// Its administrator read all that was recorded of another owner's tenant of that name.
async fn records_of_an_earlier_tenant_are_not_of_the_present_one(place: Place) {
    let store = place.open().await;
    let of_present = Filter {
        tenant: Some("acme".to_owned()),
        of_present: true,
        ..Filter::default()
    };
    let kinds = async |filter: &Filter| {
        let page = store.audit().page(filter, None, 99).await.unwrap();
        let entries = page.entries.into_iter();
        entries.map(|entry| entry.record.kind).collect::<Vec<_>>()
    };
    let call = [record(Some("acme"), "call", "ada")];
    let name = ObjectName::tenant("acme");
    let remove = async || {
        let objects = store.objects();
        objects
            .delete(&name, Expected::Present, &ada())
            .await
            .unwrap();
    };
    put(&store, tenant("acme")).await;
    store.audit().append(&call).await.unwrap();
    assert_eq!(kinds(&of_present).await, ["call", "tenant.added"]);
    let old = store.audit().page(&of_present, None, 1).await.unwrap().next;
    remove().await;
    assert!(kinds(&of_present).await.is_empty());
    // Within the millisecond of the removal, and later.
    for later in [0, 1] {
        place.now_ms.fetch_add(later, Ordering::Relaxed);
        put(&store, tenant("acme")).await;
        assert_eq!(kinds(&of_present).await, ["tenant.added"]);
        let behind = store.audit().page(&of_present, old, 9).await.unwrap();
        assert!(behind.entries.is_empty(), "{behind:?}");
        let all = Filter {
            of_present: false,
            ..of_present.clone()
        };
        assert!(kinds(&all).await.contains(&"call".to_owned()));
        remove().await;
    }
    // A call of the earlier tenant that ends now, or repetitions of a denial.
    put(&store, tenant("acme")).await;
    place.now_ms.fetch_add(1_000, Ordering::Relaxed);
    let now = Instant::now();
    let long_ago = now.checked_sub(Duration::from_secs(5)).unwrap();
    let late = record(Some("acme"), "denied", "ada").since(now);
    let records = [late.since(long_ago), call[0].clone().since(now)];
    store.audit().append(&records).await.unwrap();
    assert_eq!(kinds(&of_present).await, ["call", "tenant.added"]);
    let page = store.audit().page(&Filter::default(), None, 9).await;
    let late = page.unwrap().entries.into_iter().map(|entry| entry.record);
    let late = late.filter(|record| record.kind == "denied");
    assert_eq!(late.map(|record| record.tenant).collect::<Vec<_>>(), [None]);
}

/// It saw no tenant, kept the name, and was younger than the tenant when that was there.
async fn a_record_that_comes_while_the_next_tenant_is_created_is_not_of_it(place: Place) {
    let store = place.open().await;
    if place.postgres.is_none() {
        // One transaction writes at a time.
        return;
    }
    let pool = place.pool().await;
    let waiting = async || {
        let sql = "SELECT COUNT(*) AS waiting FROM pg_locks WHERE NOT granted";
        loop {
            let rows = pool.read(sql, Vec::new()).await.unwrap();
            let found: i64 = rows[0].get("waiting").unwrap();
            if found > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut holds_up = pool.begin_unserialized().await.unwrap();
    let lock = "LOCK TABLE tenants IN SHARE MODE";
    holds_up.run(lock, Vec::new()).await.unwrap();
    let mut created = Box::pin(put(&store, tenant("acme")));
    tokio::select! {
        _ = &mut created => panic!("nothing holds it up"),
        () = waiting() => {}
    }
    place.now_ms.fetch_add(1_000, Ordering::Relaxed);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
    let call = [record(Some("acme"), "call", "ada").since(long_ago)];
    let audit = store.audit();
    let mut appended = Box::pin(audit.append(&call));
    let early = timeout(Duration::from_millis(200), &mut appended).await;
    assert!(early.is_err(), "beside the creation of its tenant");
    holds_up.commit().await.unwrap();
    let (_, appended) = tokio::join!(created, appended);
    appended.unwrap();
    let page = audit.page(&Filter::default(), None, 9).await.unwrap();
    let records = page.entries.into_iter().map(|entry| entry.record);
    let tenants = records.map(|record| (record.kind, record.tenant));
    let wanted = [("call", None), ("tenant.added", Some("acme"))];
    let wanted = wanted.map(|(kind, tenant)| (kind.to_owned(), tenant.map(str::to_owned)));
    assert_eq!(tenants.collect::<Vec<_>>(), wanted);
}

/// Of a new tenant, the last ones of a large batch seemed to have begun before it was there.
async fn the_place_in_a_batch_makes_no_record_older(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    place.now_ms.fetch_add(60, Ordering::Relaxed);
    // It takes longer than 60 ms to write them, and less to begin with it.
    let of_acme = vec![record(Some("acme"), "call", "ada"); 9_000];
    let began = Instant::now();
    let batch = of_acme.into_iter().map(|one| one.since(began));
    let batch: Vec<Record> = batch.collect();
    store.audit().append(&batch).await.unwrap();
    let calls = Filter {
        kind: Some("call".to_owned()),
        ..Filter::default()
    };
    let page = store.audit().page(&calls, None, 9_999).await.unwrap();
    let tenants = page.entries.iter().map(|entry| &entry.record.tenant);
    let first = tenants.clone().next().unwrap();
    assert!(tenants.clone().all(|tenant| tenant == first));
}

async fn an_audit_record_holds_any_text(place: Place) {
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

async fn old_audit_records_are_deleted(place: Place) {
    let store = place.open().await;
    for time in [1_000, 5_000] {
        place.now_ms.store(time, Ordering::Relaxed);
        let records = vec![record(None, "login", "ada"); 1_500];
        store.audit().append(&records).await.unwrap();
    }
    place.now_ms.store(6_000, Ordering::Relaxed);
    let audit = store.audit();
    for (is_more, count) in [(true, 2_000), (false, 1_500), (false, 1_500)] {
        let pruned = audit.prune(Duration::from_secs(2)).await;
        assert_eq!(pruned.unwrap(), is_more);
        let left = audit.page(&Filter::default(), None, 9_999).await.unwrap();
        let new = left.entries.iter().filter(|entry| entry.at_ms == 5_000);
        assert_eq!((left.entries.len(), new.count()), (count, 1_500));
    }
}

async fn pages_of_the_audit_trail_take_no_reserved_connection(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let audit = store.audit();
    let held = [
        audit.pool.snapshot().await.unwrap(),
        audit.pool.snapshot().await.unwrap(),
    ];
    let page = audit.page(&Filter::default(), None, 1).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    drop(held);
}

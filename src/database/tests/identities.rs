//! Identities at rest: sealed, each in its own row, asked about by one replica at a time, gone with their people.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::json;
use uuid::Uuid;

use super::fixture::{
    BEGIN, CANARY, DAY, Place, ada, beside, code, granted, later, object, on_both, open, person,
    put, record, refresh, revoked, until_waiting,
};
use crate::base::Secret;
use crate::database::{
    Database, Error, Expected, Tokens, Value,
    oauth::{Identities, IdentityAt, LoggedOut, Person, Revoked, TakenCode},
    vault::Keyring,
};
use crate::declare::{Issued, Kind, ObjectName};

on_both! {
    identities_open_in_their_own_row_alone
    one_replica_at_a_time_asks_by_the_tokens_of_a_version
    a_refresh_without_an_answer_is_remembered
    a_lease_that_another_has_is_not_tried_for
    told_groups_reach_grants_log_ins_and_replicas
    groups_that_replicas_do_not_keep_end_access
    what_was_asked_before_a_log_in_says_nothing_against_it
    identities_are_sealed_again_and_go_with_what_they_belong_to
    identities_are_swept_though_consents_are_not
    a_change_of_the_master_key_that_ended_half_way_goes_on
    no_grant_begins_after_the_logout_of_its_session
}

const ADA: IdentityAt<'static> = IdentityAt {
    tenant: "a",
    provider: "corp",
    subject: "https://idp.test#ada",
};
const EVE: IdentityAt<'static> = IdentityAt {
    subject: "https://idp.test#eve",
    ..ADA
};

fn tokens(access: &str) -> Tokens {
    Tokens {
        access: Secret::new(access.to_owned()),
        refresh: Some(Secret::new(format!("{access} refresh"))),
        given_ms: 1_000,
        expires_ms: None,
        authority: "corp".to_owned(),
    }
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn keep(store: &Database, of: IdentityAt<'_>, access: &str, groups: &[&str]) -> bool {
    let kept = store.identities();
    kept.put(of, &tokens(access), &list(groups)).await.unwrap()
}

async fn access(store: &Database, of: IdentityAt<'_>) -> Result<Option<String>, Error> {
    let found = store.identities().get(of).await?;
    Ok(found.map(|found| found.tokens.access.expose().to_owned()))
}

async fn identities_open_in_their_own_row_alone(place: Place) {
    let [store, _] = open(&place).await;
    for (of, text) in [(ADA, "of ada"), (EVE, "of eve")] {
        keep(&store, of, &format!("{CANARY} {text}"), &[]).await;
        let found = access(&store, of).await.unwrap();
        assert_eq!(found, Some(format!("{CANARY} {text}")));
    }
    assert!(!place.holds(CANARY));
    let other = IdentityAt {
        provider: "other",
        ..ADA
    };
    assert_eq!(access(&store, other).await.unwrap(), None);
    let pool = place.pool().await;
    for moved in [
        "UPDATE identities SET value = (SELECT value FROM identities WHERE subject = 'https://idp.test#eve')
          WHERE subject = $1",
        "UPDATE identities SET provider = 'other' WHERE subject = $1",
    ] {
        pool.write(moved, vec![Value::from(ADA.subject)]).await.unwrap();
        for of in [ADA, other] {
            let found = access(&store, of).await;
            assert!(matches!(found, Ok(None) | Err(Error::Bug(_))), "{moved}");
        }
    }
    pool.close().await;
}

async fn one_replica_at_a_time_asks_by_the_tokens_of_a_version(place: Place) {
    let [store, other] = open(&place).await;
    keep(&store, ADA, "first", &[]).await;
    let (kept, there) = (store.identities(), other.identities());
    let first = kept.get(ADA).await.unwrap().unwrap();
    assert!(kept.lease(ADA, &first, i64::MAX).await.unwrap());
    assert!(!there.lease(ADA, &first, i64::MAX).await.unwrap());
    kept.end_lease(ADA, (first.version, false), 0)
        .await
        .unwrap();
    assert!(there.lease(ADA, &first, i64::MAX).await.unwrap());
    // Renewed tokens leave the lease and the age of the word; the word ends both.
    let renewed = there.renew(ADA, first.version, &tokens("renewed")).await;
    let renewed = renewed.unwrap().unwrap();
    there.end_lease(ADA, (renewed, false), 0).await.unwrap();
    assert!(
        !kept.lease(ADA, &first, i64::MAX).await.unwrap(),
        "old tokens"
    );
    later(&place, DAY);
    let second = kept.get(ADA).await.unwrap().unwrap();
    assert_eq!(second.tokens.access.expose(), "renewed");
    assert_eq!((second.version, second.checked_ms), (renewed, BEGIN));
    there.vouch(ADA, None).await.unwrap();
    assert!(
        !kept.lease(ADA, &second, i64::MAX).await.unwrap(),
        "an old word"
    );
    let third = kept.get(ADA).await.unwrap().unwrap();
    assert_eq!(third.checked_ms, BEGIN + DAY);
    assert!(kept.lease(ADA, &third, i64::MAX).await.unwrap());
    // A log-in of meanwhile is another version, which nothing of before changes.
    keep(&other, ADA, "second", &[]).await;
    let late = kept.renew(ADA, third.version, &tokens("late")).await;
    assert_eq!(late.unwrap(), None);
    assert!(!kept.end(ADA, third.version, &ada()).await.unwrap());
    let found = access(&store, ADA).await.unwrap();
    assert_eq!(found.as_deref(), Some("second"));
    // A restored copy does not ask in the name of the original.
    store.end_issued().await.unwrap();
    assert_eq!(access(&store, ADA).await.unwrap(), None);
}

/// Requests that waited for another one took a connection for a write ten times a second each.
async fn a_lease_that_another_has_is_not_tried_for(place: Place) {
    let [store, other] = open(&place).await;
    keep(&store, ADA, "first", &[]).await;
    let (kept, there) = (store.identities(), other.identities());
    let asked = async || there.get(ADA).await.unwrap().unwrap();
    let first = asked().await;
    assert!(kept.lease(ADA, &first, BEGIN + 10).await.unwrap());
    let held = asked().await;
    let ended = kept.end_lease(ADA, (held.version, true), 0).await;
    ended.unwrap();
    // It would get the lease now, if it tried.
    assert!(!there.lease(ADA, &held, BEGIN + 20).await.unwrap());
    let free = asked().await;
    assert!(there.lease(ADA, &free, BEGIN + 20).await.unwrap());
}

/// A replica that is killed while it asks, and a provider that is too slow.
async fn a_refresh_without_an_answer_is_remembered(place: Place) {
    let [store, other] = open(&place).await;
    keep(&store, ADA, "first", &[]).await;
    let (kept, there) = (store.identities(), other.identities());
    let asked = async || kept.get(ADA).await.unwrap().unwrap();
    let first = asked().await;
    assert!(!first.is_unanswered());
    assert!(kept.lease(ADA, &first, BEGIN + 10).await.unwrap());
    later(&place, 10);
    // What was read before knows nothing of it.
    assert!(!there.lease(ADA, &first, BEGIN + 20).await.unwrap());
    let second = asked().await;
    assert!(second.is_unanswered());
    assert!(there.lease(ADA, &second, BEGIN + 20).await.unwrap());
    // A log-in without a refresh token leaves this one.
    there.vouch(ADA, None).await.unwrap();
    assert!(asked().await.is_unanswered());
    for is_unanswered in [false, true] {
        let known = (second.version, is_unanswered);
        there.end_lease(ADA, known, 0).await.unwrap();
        assert_eq!(asked().await.is_unanswered(), is_unanswered);
    }
    let new = tokens("renewed");
    there.renew(ADA, second.version, &new).await.unwrap();
    let third = asked().await;
    assert!(!third.is_unanswered());
    assert!(kept.lease(ADA, &third, BEGIN + 20).await.unwrap());
    keep(&other, ADA, "second", &[]).await;
    assert!(!asked().await.is_unanswered());
    // A request does not use up an access token.
    let bare = Tokens {
        refresh: None,
        ..tokens("bare")
    };
    kept.put(ADA, &bare, &[]).await.unwrap();
    let known = asked().await;
    assert!(kept.lease(ADA, &known, BEGIN + 20).await.unwrap());
    assert!(!asked().await.is_unanswered());
    assert!(!kept.remove(ADA, second.version, &ada()).await.unwrap());
    assert!(kept.remove(ADA, known.version, &ada()).await.unwrap());
    assert_eq!(access(&store, ADA).await.unwrap(), None);
}

async fn told_groups_reach_grants_log_ins_and_replicas(place: Place) {
    let [store, other] = open(&place).await;
    let of_replica = async || {
        let (issued, _) = other.issued().newer((&Issued::default(), 0)).await.unwrap();
        let (groups, _) = issued.revoked.get("a")?.groups.get(ADA.subject)?;
        Some(groups.to_vec())
    };
    assert!(
        !keep(&store, ADA, "x", &["eng"]).await,
        "nothing has other groups"
    );
    let mut new = code(1);
    new.grant.subject = ADA.subject.to_owned();
    new.grant.groups = list(&["eng"]);
    granted(&store, &new, &[1; 32]).await;
    let mut person = person(ADA.subject);
    person.groups = list(&["eng"]);
    let logins = store.logins();
    logins
        .log_in("a", &[1; 32], &person, i64::MAX)
        .await
        .unwrap();
    assert_eq!(of_replica().await, None);
    let kept = store.identities();
    assert!(!kept.vouch(ADA, Some(&list(&["eng"]))).await.unwrap());
    assert!(kept.vouch(ADA, Some(&list(&["ops"]))).await.unwrap());
    assert_eq!(of_replica().await, Some(list(&["ops"])));
    let grant = store
        .grants()
        .of_refresh("a", &[1; 32])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(grant.groups, list(&["ops"]));
    let known = logins.logged_in("a", &[1; 32]).await.unwrap().unwrap();
    assert_eq!(known.groups, list(&["ops"]));
    // What replicas were told holds until they are told otherwise, also after another log-in.
    store
        .revocations()
        .revoke("a", &Revoked::Subject(ADA.subject.to_owned()))
        .await
        .unwrap();
    assert_eq!(
        access(&store, ADA).await.unwrap(),
        None,
        "it went with the person"
    );
    assert!(keep(&store, ADA, "x", &["eng"]).await);
    assert_eq!(of_replica().await, Some(list(&["eng"])));
    assert!(!keep(&store, EVE, "x", &["eng"]).await);
    // After a day no token has any other groups.
    later(&place, 2 * DAY);
    assert_eq!(of_replica().await, None);
}

/// A provider that names other groups at each log-in filled the memory of every replica.
async fn groups_that_replicas_do_not_keep_end_access(place: Place) {
    let [store, other] = open(&place).await;
    keep(&store, ADA, "x", &["eng", "dev"]).await;
    let mut new = code(1);
    new.grant.subject = ADA.subject.to_owned();
    new.grant.groups = list(&["eng", "dev"]);
    let id = granted(&store, &new, &[1; 32]).await;
    let mut waiting = code(2);
    waiting.grant.subject = ADA.subject.to_owned();
    let code = store.grants().add_code("a", &waiting, BEGIN + 1, None);
    assert!(code.await.unwrap());
    let (logins, ada) = (store.logins(), person(ADA.subject));
    let stored = logins.log_in("a", &[1; 32], &ada, i64::MAX).await;
    assert!(stored.unwrap());
    let full = Identities {
        is_full: true,
        ..store.identities()
    };
    let same = list(&["dev", "eng"]);
    assert!(!full.vouch(ADA, Some(&same)).await.unwrap());
    assert!(!full.vouch(ADA, None).await.unwrap());
    assert!(revoked(&store).await.is_empty(), "the same groups");
    assert!(full.vouch(ADA, Some(&list(&["ops"]))).await.unwrap());
    let (issued, _) = other.issued().newer((&Issued::default(), 0)).await.unwrap();
    assert!(issued.revoked["a"].groups.is_empty());
    assert_eq!(revoked(&store).await, HashSet::from([id]));
    assert_eq!(logins.logged_in("a", &[1; 32]).await.unwrap(), None);
    let taken = store.grants().take_code("a", &waiting.hash).await.unwrap();
    assert_eq!(taken, TakenCode::Unknown);
    // A log-in of before would have the groups of before.
    let stored = logins.log_in("a", &[2; 32], &ada, i64::MAX).await;
    assert!(!stored.unwrap());
    // The word is kept: the next log-in has the same groups.
    assert!(!full.vouch(ADA, Some(&list(&["ops"]))).await.unwrap());
    let kept = access(&store, ADA).await.unwrap();
    assert_eq!(kept.as_deref(), Some("x"));
    let stored = full.put(ADA, &tokens("y"), &list(&["eng"])).await;
    assert!(stored.unwrap());
    // The log-in that tells of other groups goes on itself, and one of before does not.
    later(&place, 1000);
    let of_log_in = Identities {
        log_in_ms: Some(BEGIN + 1000),
        ..full
    };
    let stored = of_log_in.put(ADA, &tokens("z"), &list(&["ops"])).await;
    assert!(stored.unwrap());
    for (auth_ms, goes_on) in [(BEGIN + 1000 - 1, false), (BEGIN + 1000, true)] {
        let ada = Person {
            auth_ms,
            ..person(ADA.subject)
        };
        let stored = logins.log_in("a", &[3; 32], &ada, i64::MAX).await;
        assert_eq!(stored.unwrap(), goes_on);
    }
    let (issued, _) = other.issued().newer((&Issued::default(), 0)).await.unwrap();
    assert!(issued.revoked["a"].groups.is_empty());
}

async fn identities_are_sealed_again_and_go_with_what_they_belong_to(place: Place) {
    let [store, _] = open(&place).await;
    let builtin = object(Kind::Tenant, &json!({"auth": {"mode": "builtin"}}));
    put(&store, (ObjectName::tenant("a"), builtin)).await;
    let provider = object(
        Kind::Provider,
        &json!({"issuer": "https://idp.test", "client_id": "c"}),
    );
    let corp = ObjectName::of("a", Kind::Provider, "corp");
    put(&store, (corp.clone(), provider)).await;
    // More than are read at once.
    let of = |subject: &'static str| IdentityAt { subject, ..ADA };
    let all: Vec<&'static str> = (0..110).map(|at| &*format!("i#{at}").leak()).collect();
    for subject in &all {
        keep(&store, of(subject), subject, &[]).await;
    }
    store.rotate().await.unwrap();
    store.close().await;
    let store = place.open().await;
    for at in [0, 99, 100, 109] {
        let found = access(&store, of(all[at])).await.unwrap();
        assert_eq!(found.as_deref(), Some(all[at]));
    }
    // The sweep leaves those with a log-in or a grant, and new ones.
    store
        .logins()
        .log_in("a", &[1; 32], &person(all[0]), i64::MAX)
        .await
        .unwrap();
    let mut new = code(1);
    new.grant.subject = all[1].to_owned();
    let grant: Uuid = granted(&store, &new, &[1; 32]).await;
    later(&place, DAY / 2);
    keep(&store, of(all[2]), all[2], &[]).await;
    while store.sweep_orphans().await.unwrap() {}
    let is_there = async |at: usize| access(&store, of(all[at])).await.unwrap().is_some();
    assert_eq!(
        [
            is_there(0).await,
            is_there(1).await,
            is_there(2).await,
            is_there(3).await
        ],
        [true, true, true, false]
    );
    // The end of an identity is the end of all that the person has.
    let known = store.identities().get(of(all[1])).await.unwrap().unwrap();
    assert!(
        store
            .identities()
            .end(of(all[1]), known.version, &ada())
            .await
            .unwrap()
    );
    assert!(revoked(&store).await.contains(&grant));
    let removed = store.objects().delete(&corp, Expected::Any, &ada()).await;
    removed.unwrap();
    assert_eq!(
        [is_there(0).await, is_there(1).await, is_there(2).await],
        [false, false, false]
    );
}

/// Tokens of people who are gone stayed where the statement for consents failed.
async fn identities_are_swept_though_consents_are_not(place: Place) {
    let [store, _] = open(&place).await;
    keep(&store, ADA, "x", &[]).await;
    let pool = place.pool().await;
    let spoil = "DROP TABLE consents";
    pool.write(spoil, Vec::new()).await.unwrap();
    pool.close().await;
    later(&place, DAY / 2);
    let failed = store.sweep_orphans().await;
    assert!(matches!(failed, Err(Error::Bug(_))), "{failed:?}");
    assert_eq!(access(&store, ADA).await.unwrap(), None);
}

/// On PostgreSQL one transaction for all rows would keep every writer waiting until its end.
async fn a_change_of_the_master_key_that_ended_half_way_goes_on(place: Place) {
    let [store, other] = open(&place).await;
    let of = |subject: &'static str| IdentityAt { subject, ..ADA };
    // More than are sealed at once, and the last one does not open.
    let all: Vec<&'static str> = (0..109).map(|at| &*format!("i#{at}").leak()).collect();
    for subject in all.iter().copied().chain(["j"]) {
        keep(&store, of(subject), subject, &[]).await;
    }
    let pool = place.pool().await;
    let swap = "
        UPDATE identities
           SET value = (SELECT value FROM identities WHERE subject = $1)
         WHERE subject = $2";
    pool.write(swap, vec!["i#0".into(), "j".into()])
        .await
        .unwrap();
    let ended = store.rotate().await;
    assert!(matches!(ended, Err(Error::Bug(_))), "{ended:?}");
    let file = place.dir.path().join("master.key");
    let keys = || Keyring::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let new = keys().first().id();
    assert_eq!(keys().keys().len(), 2);
    let renewed = async || {
        let sql = "SELECT subject FROM identities WHERE SUBSTR(value, 1, 9) = $1";
        let rows = pool.read(sql, vec![Some(keys().beginning()).into()]).await;
        rows.unwrap().len()
    };
    assert_eq!(renewed().await, 100, "a transaction of its own");
    // Gateways that run, and those that start, seal with the new key, and open what either sealed.
    keep(&other, of("j"), "again", &[]).await;
    assert_eq!(renewed().await, 101);
    let started = place.open().await;
    for database in [&store, &started] {
        for subject in &all {
            let found = access(database, of(subject)).await.unwrap();
            assert_eq!(found.as_deref(), Some(*subject));
        }
    }
    assert_eq!(store.rotate().await.unwrap(), new, "it goes on");
    assert_eq!((renewed().await, keys().keys().len()), (110, 1));
    let last = place.open().await;
    let found = access(&last, of("j")).await.unwrap();
    assert_eq!(found.as_deref(), Some("again"));
    pool.close().await;
}

/// A code that is issued while its log-in ends.
async fn no_grant_begins_after_the_logout_of_its_session(place: Place) {
    let [store, _] = open(&place).await;
    let session = |name: &str| Some(format!("https://idp.test#{name}"));
    let what = LoggedOut::Session {
        session: session("s").unwrap(),
        subject: None,
    };
    let record = record(Some("a"), "identity.ended", "provider");
    let revocations = store.revocations();
    for is_first in [true, false] {
        let once = (&[7; 32], i64::MAX);
        let done = revocations.log_out("a", &what, once, &record).await;
        assert_eq!(done.unwrap(), is_first);
    }
    for (number, session, begins) in [
        (1, session("s"), false),
        (2, session("t"), true),
        (3, None, true),
    ] {
        let mut new = code(number);
        new.grant.session = session;
        store
            .grants()
            .add_code("a", &new, BEGIN + 1, None)
            .await
            .unwrap();
        store.grants().take_code("a", &new.hash).await.unwrap();
        let began = store
            .grants()
            .start("a", &new, &refresh(&[number; 32]))
            .await;
        assert_eq!(began.unwrap(), begins, "{number}");
    }
    // A provider that names the person in addition ends log-ins of which it named no session.
    let what = LoggedOut::Session {
        session: session("s").unwrap(),
        subject: Some("ada".to_owned()),
    };
    let done = revocations.log_out("a", &what, (&[8; 32], i64::MAX), &record);
    assert!(done.await.unwrap());
    for (number, subject, session, begins) in [
        (4, "ada", None, false),
        (5, "ada", session("t"), true),
        (6, "eve", None, true),
    ] {
        let mut new = code(number);
        new.grant.session = session;
        subject.clone_into(&mut new.grant.subject);
        let added = store.grants().add_code("a", &new, BEGIN + 1, None).await;
        assert!(added.unwrap());
        store.grants().take_code("a", &new.hash).await.unwrap();
        let began = store
            .grants()
            .start("a", &new, &refresh(&[number; 32]))
            .await;
        assert_eq!(began.unwrap(), begins, "{number}");
    }
}

async fn what_was_asked_before_a_log_in_says_nothing_against_it(place: Place) {
    let [store, _] = open(&place).await;
    let kept = store.identities();
    let (eng, ops) = (list(&["eng"]), list(&["ops"]));
    keep(&store, ADA, "x", &["eng"]).await;
    let asked = async || kept.get(ADA).await.unwrap().unwrap();
    // A log-in that brought no tokens of its own.
    let before = asked().await;
    later(&place, DAY);
    assert!(!kept.vouch(ADA, Some(&eng)).await.unwrap());
    let late = kept.vouch_after(ADA, &before, Some(&ops)).await.unwrap();
    assert_eq!(late, None);
    // One with tokens, in the same millisecond.
    let before = asked().await;
    keep(&store, ADA, "x", &["eng"]).await;
    let late = kept.vouch_after(ADA, &before, Some(&ops)).await.unwrap();
    assert_eq!(late, None);
    assert!(
        !kept.vouch(ADA, Some(&eng)).await.unwrap(),
        "they are as before"
    );
    let now = asked().await;
    let said = kept.vouch_after(ADA, &now, Some(&ops)).await.unwrap();
    assert_eq!(said, Some(true));
    assert_eq!(asked().await.checked_ms, BEGIN + DAY);
}

/// Tokens that are sealed under the key before would never open again, and end each later rotation.
#[tokio::test]
async fn a_log_in_during_a_rotation_is_sealed_under_the_new_key() {
    let place = Place::postgres();
    let [store, other] = open(&place).await;
    keep(&store, ADA, "before", &[]).await;
    let there = other.identities();
    let known = there.get(ADA).await.unwrap().unwrap();
    let pool = place.pool().await;
    // The rotation has sealed everything again, and cannot remove the key of before yet.
    let mut held = pool.begin_unserialized().await.unwrap();
    let sql = "UPDATE seal_keys SET created_ms = created_ms";
    held.run(sql, Vec::new()).await.unwrap();
    let is_over = Cell::new(false);
    let new = tokens("renewed");
    let kept = async {
        until_waiting(&pool, 1, || false).await;
        let put = async {
            keep(&other, EVE, "during", &[]).await;
            is_over.set(true);
        };
        tokio::join!(put, there.renew(ADA, known.version, &new)).1
    };
    let freed = async {
        until_waiting(&pool, 3, || is_over.get()).await;
        drop(held);
    };
    let (rotated, renewed, ()) = tokio::join!(store.rotate(), kept, freed);
    rotated.unwrap();
    assert!(renewed.unwrap().is_some());
    for (of, text) in [(ADA, "renewed"), (EVE, "during")] {
        let found = access(&store, of).await.unwrap();
        assert_eq!(found.as_deref(), Some(text));
    }
    store.rotate().await.unwrap();
    pool.close().await;
}

#[tokio::test]
async fn words_of_providers_are_kept_beside_changes_of_the_same_person() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    keep(&store, ADA, "x", &["eng"]).await;
    let sql = "UPDATE identities SET lease_ms = 0";
    let kept = store.identities();
    let (new, ops, eng) = (tokens("y"), list(&["ops"]), list(&["eng"]));
    assert!(beside(&place, sql, kept.put(ADA, &new, &ops)).await);
    assert!(beside(&place, sql, kept.vouch(ADA, Some(&eng))).await);
    let known = kept.get(ADA).await.unwrap().unwrap();
    let said = beside(&place, sql, kept.vouch_after(ADA, &known, Some(&ops))).await;
    assert_eq!(said, Some(true));
    let found = access(&store, ADA).await.unwrap();
    assert_eq!(found.as_deref(), Some("y"));
}

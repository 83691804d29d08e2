//! API keys that people made: bounded, known to replicas, gone with their people.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::fixture::{
    BEGIN, DAY, Place, SECOND, ada, add_tenant, beside, later, on_both, open, put, tenant,
};
use crate::base::Secret;
use crate::database::{
    Database, Expected, Filter, Tokens,
    oauth::{IdentityAt, NewOwnKey, OwnKeyAt, OwnKeyBounds, OwnKeyChange, Revoked},
};
use crate::declare::{Issued, ObjectName, OwnKey, OwnKeyRules, Servers};

on_both! {
    a_key_is_made_once_and_within_bounds
    a_rotated_key_has_two_values_for_a_while
    replicas_read_what_changed
    keys_go_with_their_people_and_tenants
    groups_that_a_provider_tells_reach_keys
    the_use_of_a_key_is_noted_forwards
    keys_that_did_not_change_stay_and_share_their_groups
    the_groups_of_people_with_keys_have_a_bound
    each_group_of_people_with_keys_counts_beside_its_name
    groups_that_shrink_end_no_key
    a_page_of_keys_has_a_bound_in_bytes
    many_keys_are_read_in_parts
}

const RULES: OwnKeyRules = OwnKeyRules {
    max: 2,
    ttl: Duration::from_hours(30 * 24),
    overlap: Duration::from_hours(24),
};
const BOUNDS: OwnKeyBounds = OwnKeyBounds {
    person: 2,
    tenant: NonZeroU64::new(3),
};

fn new(number: u8, subject: &str, days: i64) -> NewOwnKey {
    NewOwnKey {
        label: format!("key {number}"),
        auth_ms: BEGIN,
        key: OwnKey {
            name: format!("k_{number}"),
            subject: subject.to_owned(),
            groups: vec!["staff".to_owned()].into(),
            scopes: vec!["r".to_owned(), "w".to_owned()].into(),
            servers: Servers::Named(BTreeSet::from(["x".to_owned()])),
            hash: [number; 32],
            previous: None,
            since_ms: BEGIN,
            expires_ms: BEGIN + days * DAY,
        },
    }
}

async fn add(store: &Database, new: NewOwnKey, once: u8) -> OwnKeyChange {
    let (keys, once) = (store.own_keys(), (&[once; 32], BEGIN + DAY));
    keys.add("a", new, BOUNDS, once, &ada()).await.unwrap()
}

async fn made(store: &Database, number: u8, subject: &str) {
    let made = add(store, new(number, subject, 10), number).await;
    assert!(matches!(made, OwnKeyChange::Done(_)), "{made:?}");
}

fn at<'k>(name: &'k str, subject: Option<&'k str>) -> OwnKeyAt<'k> {
    OwnKeyAt {
        tenant: "a",
        name,
        subject,
    }
}

async fn names(store: &Database, subject: Option<&str>) -> Vec<String> {
    let listed = store.own_keys().list("a", subject, "", 10).await.unwrap();
    listed.into_iter().map(|listed| listed.key.name).collect()
}

/// What a replica knows, which reads on from what it knew.
struct Replica(Database, Issued, i64);

impl Replica {
    fn new(store: &Database) -> Self {
        Self(store.clone(), Issued::default(), 0)
    }

    async fn read(&mut self) -> &mut Self {
        let newer = self.0.issued().newer((&self.1, self.2)).await.unwrap();
        (self.1, self.2) = newer;
        self
    }

    fn key(&self, hash: u8) -> Option<Arc<OwnKey>> {
        self.1.own_keys.get("a")?.get(&[hash; 32]).cloned()
    }

    fn hashes(&self) -> Vec<u8> {
        let known = self.1.own_keys.get("a");
        let mut all: Vec<u8> = known
            .iter()
            .flat_map(|known| known.keys().map(|hash| hash[0]))
            .collect();
        all.sort_unstable();
        all
    }
}

async fn a_key_is_made_once_and_within_bounds(place: Place) {
    let [store, _] = open(&place).await;
    made(&store, 1, "ada").await;
    let again = add(&store, new(2, "ada", 10), 1).await;
    assert!(matches!(again, OwnKeyChange::Again), "{again:?}");
    made(&store, 2, "ada").await;
    let full = add(&store, new(3, "ada", 10), 3).await;
    assert!(matches!(full, OwnKeyChange::PersonFull), "{full:?}");
    // A refusal uses nothing up.
    made(&store, 3, "eve").await;
    let full = add(&store, new(4, "bob", 10), 4).await;
    assert!(matches!(full, OwnKeyChange::TenantFull), "{full:?}");
    assert_eq!(names(&store, Some("ada")).await, ["k_1", "k_2"]);
    assert_eq!(names(&store, None).await, ["k_1", "k_2", "k_3"]);
    // What has ended takes no room, and goes.
    later(&place, 11 * DAY);
    assert!(names(&store, None).await.is_empty());
    let mut late = new(5, "ada", 20);
    late.auth_ms = BEGIN + 11 * DAY;
    let once = (&[5; 32], i64::MAX);
    let done = store.own_keys().add("a", late, BOUNDS, once, &ada()).await;
    assert!(matches!(done.unwrap(), OwnKeyChange::Done(_)));
    while store.sweep().await.unwrap() {}
    assert!(
        store
            .own_keys()
            .get(at("k_1", None))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(names(&store, None).await, ["k_5"]);
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_rotated_key_has_two_values_for_a_while(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    made(&store, 1, "ada").await;
    later(&place, 4 * DAY);
    let rotate = async |hash: u8, subject, once: u8| {
        let once = (&[once; 32], i64::MAX);
        let keys = store.own_keys();
        let at = at("k_1", Some(subject));
        keys.rotate(at, &[hash; 32], &RULES, once, &ada())
            .await
            .unwrap()
    };
    assert!(matches!(rotate(9, "eve", 8).await, OwnKeyChange::Gone));
    let OwnKeyChange::Done(listed) = rotate(9, "ada", 9).await else {
        panic!("it is there");
    };
    assert!(matches!(rotate(10, "ada", 9).await, OwnKeyChange::Again));
    let now_ms = BEGIN + 4 * DAY;
    assert_eq!((listed.version, listed.created_ms), (2, BEGIN));
    assert_eq!(
        listed.key.expires_ms,
        now_ms + 10 * DAY,
        "as long as before"
    );
    assert_eq!(listed.key.previous, Some(([1; 32], now_ms + DAY)));
    let known = replica.read().await.key(9).unwrap();
    assert_eq!(known, replica.key(1).unwrap());
    assert_eq!(*known, listed.key);
    for (hash, at_ms, is_good) in [
        (1, now_ms + DAY - 1, true),
        (1, now_ms + DAY, false),
        (9, now_ms + 10 * DAY - 1, true),
        (9, now_ms + 10 * DAY, false),
        (2, now_ms, false),
    ] {
        assert_eq!(
            known.holds(&[hash; 32], &RULES, at_ms),
            is_good,
            "{hash} {at_ms}"
        );
    }
    let short = OwnKeyRules {
        ttl: Duration::from_hours(24),
        ..RULES
    };
    assert!(!known.holds(&[9; 32], &short, now_ms + DAY));
    // The value before does not outlive its own end, nor the life that the tenant allows now.
    later(&place, 10 * DAY - SECOND);
    let end_ms = listed.key.expires_ms;
    let keys = store.own_keys();
    let once = (&[11; 32], i64::MAX);
    let at = at("k_1", Some("ada"));
    let OwnKeyChange::Done(listed) = keys
        .rotate(at, &[11; 32], &short, once, &ada())
        .await
        .unwrap()
    else {
        panic!("it is there");
    };
    assert_eq!(listed.key.previous, Some(([9; 32], end_ms)));
    assert_eq!(listed.key.expires_ms, end_ms - SECOND + DAY);
    assert_eq!(
        replica.read().await.hashes(),
        [9, 11],
        "the first value is gone"
    );
}

async fn replicas_read_what_changed(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    made(&store, 1, "ada").await;
    replica.read().await;
    made(&store, 2, "eve").await;
    let before = replica.read().await.key(1).unwrap();
    assert_eq!(replica.hashes(), [1, 2]);
    assert_eq!(
        before.servers,
        Servers::Named(BTreeSet::from(["x".to_owned()]))
    );
    assert_eq!(&*before.scopes, ["r", "w"]);
    let keys = store.own_keys();
    assert!(!keys.remove(at("k_2", Some("ada")), &ada()).await.unwrap());
    assert!(keys.remove(at("k_2", None), &ada()).await.unwrap());
    assert!(!keys.remove(at("k_2", None), &ada()).await.unwrap());
    assert_eq!(replica.read().await.hashes(), [1]);
    assert!(
        Arc::ptr_eq(&before, &replica.key(1).unwrap()),
        "it was not read again"
    );
    let mut new = new(3, "eve", 10);
    new.key.servers = Servers::All;
    add(&store, new, 3).await;
    assert_eq!(replica.read().await.key(3).unwrap().servers, Servers::All);
    assert_eq!(Replica::new(&other).read().await.hashes(), [1, 3]);
    // One that missed numbers, because they were swept, reads all.
    let mut late = Replica::new(&other);
    late.read().await;
    assert!(keys.remove(at("k_3", None), &ada()).await.unwrap());
    later(&place, 3 * DAY);
    while store.sweep().await.unwrap() {}
    assert_eq!(late.read().await.hashes(), [1]);
    // Expired ones are dropped with the next change.
    later(&place, 8 * DAY);
    let gone = Revoked::Subject("bob".to_owned());
    store.revocations().revoke("a", &gone).await.unwrap();
    assert!(late.read().await.hashes().is_empty());
}

async fn keys_go_with_their_people_and_tenants(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    made(&store, 1, "ada").await;
    made(&store, 2, "eve").await;
    made(&store, 3, "https://idp.test#ada").await;
    assert_eq!(replica.read().await.hashes(), [1, 2, 3]);
    let gone = Revoked::Subject("ada".to_owned());
    store.revocations().revoke("a", &gone).await.unwrap();
    assert_eq!(replica.read().await.hashes(), [2, 3]);
    assert_eq!(names(&store, None).await, ["k_2", "k_3"]);
    // Nor does a form of a page of before make one.
    let late = add(&store, new(4, "ada", 10), 4).await;
    assert!(matches!(late, OwnKeyChange::Gone), "{late:?}");
    // A copy knows of no provider who could be asked; the keys of others are told.
    store.end_issued().await.unwrap();
    assert_eq!(names(&store, None).await, ["k_2"]);
    // A tenant of the same name inherits none.
    let name = ObjectName::tenant("a");
    store
        .objects()
        .delete(&name, Expected::Any, &ada())
        .await
        .unwrap();
    add_tenant(&store, "a").await;
    assert!(replica.read().await.hashes().is_empty());
    assert!(names(&store, None).await.is_empty());
}

async fn groups_that_a_provider_tells_reach_keys(place: Place) {
    let [store, other] = open(&place).await;
    put(&store, tenant("a")).await;
    let mut replica = Replica::new(&other);
    let subject = "https://idp.test#ada";
    let of = IdentityAt {
        tenant: "a",
        provider: "corp",
        subject,
    };
    let list =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let tokens = Tokens {
        access: Secret::new("at".to_owned()),
        refresh: None,
        given_ms: BEGIN,
        expires_ms: None,
        authority: "corp".to_owned(),
    };
    let kept = store.identities();
    kept.put(of, &tokens, &list(&["eng"])).await.unwrap();
    // The page was opened before the provider told these.
    made(&store, 1, subject).await;
    assert_eq!(&*replica.read().await.key(1).unwrap().groups, ["eng"]);
    assert!(kept.vouch(of, Some(&list(&["ops"]))).await.unwrap());
    assert_eq!(&*replica.read().await.key(1).unwrap().groups, ["ops"]);
    assert!(!kept.vouch(of, Some(&list(&["ops"]))).await.unwrap());
    // Where the provider is not asked again, a log-in tells them.
    let keys = store.own_keys();
    assert!(keys.tell("a", subject, &list(&["new"])).await.unwrap());
    let before = replica.read().await.2;
    assert_eq!(&*replica.key(1).unwrap().groups, ["new"]);
    assert!(!keys.tell("a", subject, &list(&["new"])).await.unwrap());
    assert_eq!(replica.read().await.2, before, "nothing was written");
    // Without a log-in and a grant, the word of the provider is kept for the key.
    later(&place, DAY / 2);
    while store.sweep_orphans().await.unwrap() {}
    assert!(kept.get(of).await.unwrap().is_some());
    keys.remove(at("k_1", None), &ada()).await.unwrap();
    while store.sweep_orphans().await.unwrap() {}
    assert!(kept.get(of).await.unwrap().is_none());
}

async fn the_use_of_a_key_is_noted_forwards(place: Place) {
    let [store, other] = open(&place).await;
    made(&store, 1, "ada").await;
    let mut replica = Replica::new(&other);
    let number = replica.read().await.2;
    for (hour_ms, wanted) in [
        (7_200_000, 7_200_000),
        (3_600_000, 7_200_000),
        (9_000_000, 9_000_000),
    ] {
        let at = at("k_1", Some("ada"));
        store.own_keys().note_use(at, hour_ms).await.unwrap();
        let found = store.own_keys().get(at).await.unwrap().unwrap();
        assert_eq!(found.used_ms, Some(wanted));
    }
    assert_eq!(replica.read().await.2, number, "no replica reads it again");
}

/// A change of one key made all keys of the person anew, so that the word of the provider was forgotten, and each kept the
/// groups of the person again.
async fn keys_that_did_not_change_stay_and_share_their_groups(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    made(&store, 1, "ada").await;
    let before = replica.read().await.key(1).unwrap();
    made(&store, 2, "ada").await;
    replica.read().await;
    let [first, second] = [1, 2].map(|hash| replica.key(hash).unwrap());
    assert!(Arc::ptr_eq(&before, &first));
    assert!(Arc::ptr_eq(&first.groups, &second.groups));
    let keys = store.own_keys();
    assert!(keys.tell("a", "ada", &["ops".to_owned()]).await.unwrap());
    replica.read().await;
    let [first, second] = [1, 2].map(|hash| replica.key(hash).unwrap());
    assert_eq!(&*first.groups, ["ops"]);
    assert!(Arc::ptr_eq(&first.groups, &second.groups));
    // One that missed numbers, because they were swept, reads all.
    assert!(keys.remove(at("k_2", None), &ada()).await.unwrap());
    later(&place, 3 * DAY);
    while store.sweep().await.unwrap() {}
    assert!(Arc::ptr_eq(&first, &replica.read().await.key(1).unwrap()));
    assert_eq!(replica.hashes(), [1]);
}

/// Every replica keeps them for as long as there is a key.
async fn the_groups_of_people_with_keys_have_a_bound(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    let keys = store.own_keys();
    let bounds = OwnKeyBounds {
        person: 2,
        tenant: None,
    };
    let add = async |number: u8, subject: &str| {
        let once = (&[number; 32], BEGIN + DAY);
        let new = new(number, subject, 10);
        keys.add("a", new, bounds, once, &ada()).await.unwrap()
    };
    let is_done = |change: OwnKeyChange| matches!(change, OwnKeyChange::Done(_));
    assert!(is_done(add(1, "eve").await));
    // As much as those of many people: there is room for `["staff"]` twice.
    let (pool, room) = (place.pool().await, 2 * r#"["staff"]"#.len());
    let large = format!("[\"{}\"]", "x".repeat((4 << 20) - room - 4));
    let sql = "UPDATE own_keys SET groups = $1 WHERE subject = 'eve'";
    pool.write(sql, vec![large.as_str().into()]).await.unwrap();
    pool.close().await;
    assert!(is_done(add(2, "ada").await));
    assert!(is_done(add(3, "ada").await), "those of a person count once");
    assert!(is_done(add(4, "bob").await));
    let full = add(5, "cid").await;
    assert!(matches!(full, OwnKeyChange::TenantFull), "{full:?}");
    let tell = async |subject: &str, groups: &[&str]| {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        assert!(keys.tell("a", subject, &groups).await.unwrap());
    };
    tell("ada", &["eng"]).await;
    tell("ada", &["staff"]).await;
    assert_eq!(replica.read().await.hashes(), [1, 2, 3, 4]);
    // Neither the groups of before nor some of them could stay.
    tell("ada", &["staffs"]).await;
    assert_eq!(replica.read().await.hashes(), [1, 4]);
    tell("eve", &[]).await;
    assert!(is_done(add(6, "ada").await));
}

/// Makes a key of this tenant with any number of others.
async fn one_of_many(store: &Database, new: NewOwnKey) -> OwnKeyChange {
    let bounds = OwnKeyBounds {
        person: 1000,
        tenant: None,
    };
    let hash = new.key.hash;
    let (keys, once) = (store.own_keys(), (&hash, BEGIN + DAY));
    keys.add("a", new, bounds, once, &ada()).await.unwrap()
}

async fn set(place: &Place, sql: &'static str, text: &str) {
    let pool = place.pool().await;
    pool.write(sql, vec![text.into()]).await.unwrap();
    pool.close().await;
}

/// Many short names took ten times as much memory as their JSON, which alone was counted.
async fn each_group_of_people_with_keys_counts_beside_its_name(place: Place) {
    let [store, _] = open(&place).await;
    made(&store, 1, "eve").await;
    let short = vec!["\"x\""; 100_000].join(",");
    let sql = "UPDATE own_keys SET groups = $1 WHERE name = 'k_1'";
    set(&place, sql, &format!("[{short}]")).await;
    let full = add(&store, new(2, "ada", 10), 2).await;
    assert!(matches!(full, OwnKeyChange::TenantFull), "{full:?}");
    set(&place, sql, &format!("[{}]", &short[..4 * 50_000 - 1])).await;
    made(&store, 2, "ada").await;
}

/// After an upgrade a tenant may be above the bound: each person lost their keys with one of their groups.
async fn groups_that_shrink_end_no_key(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    for (number, subject) in [(1, "eve"), (2, "ada"), (3, "ada")] {
        let made = one_of_many(&store, new(number, subject, 10)).await;
        assert!(matches!(made, OwnKeyChange::Done(_)), "{made:?}");
    }
    let large = format!("[\"{}\"]", "x".repeat(5 << 20));
    let sql = "UPDATE own_keys SET groups = $1 WHERE subject = 'eve'";
    set(&place, sql, &large).await;
    let keys = store.own_keys();
    let tell = async |group: &str| keys.tell("a", "ada", &[group.to_owned()]).await.unwrap();
    assert!(tell("ops").await);
    assert_eq!(replica.read().await.hashes(), [1, 2, 3]);
    assert_eq!(&*replica.key(2).unwrap().groups, ["ops"]);
    assert!(tell("engineers").await);
    assert_eq!(replica.read().await.hashes(), [1]);
    // The trail says whose they were, and why.
    let filter = Filter {
        kind: Some("api_key.removed".to_owned()),
        ..Filter::default()
    };
    let found = store.audit().page(&filter, None, 9).await.unwrap().entries;
    let targets: BTreeSet<&str> = found.iter().map(|one| one.record.target.as_str()).collect();
    assert_eq!(targets, BTreeSet::from(["api_key a/k_2", "api_key a/k_3"]));
    let detail = &found[0].record.detail;
    assert_eq!(detail["subject"], "ada");
    let why = "replicas keep no more groups of people with API keys";
    assert_eq!(detail["why"], why);
}

/// Each key repeated all groups of its person, which no list shows.
async fn a_page_of_keys_has_a_bound_in_bytes(place: Place) {
    let [store, _] = open(&place).await;
    for (number, subject) in [(1, "ada"), (2, "eve"), (3, "bob")] {
        made(&store, number, subject).await;
    }
    let sql = "UPDATE own_keys SET scopes = $1 WHERE name = 'k_1'";
    set(&place, sql, &"x".repeat(1 << 20)).await;
    let keys = store.own_keys();
    for (after, limit, wanted, is_more) in [
        ("", 9, "k_1", true),
        ("k_1", 9, "k_2 k_3", false),
        ("k_1", 2, "k_2 k_3", false),
        ("k_1", 1, "k_2", true),
        ("k_3", 9, "", false),
    ] {
        let page = keys.page("a", after, limit).await.unwrap();
        let names: Vec<&str> = page.keys.iter().map(|one| one.key.name.as_str()).collect();
        assert_eq!((&*names.join(" "), page.is_more), (wanted, is_more));
        assert_eq!(page.bytes >> 20 > 0, wanted == "k_1", "{after}");
        assert!(page.keys.iter().all(|one| one.key.groups.is_empty()));
    }
}

/// All keys of all tenants were read at once, each with the groups of its person.
async fn many_keys_are_read_in_parts(place: Place) {
    let [store, other] = open(&place).await;
    let mut replica = Replica::new(&other);
    let many: Vec<u8> = (1..=205).collect();
    for number in &many {
        let made = one_of_many(&store, new(*number, "ada", 10)).await;
        assert!(matches!(made, OwnKeyChange::Done(_)), "{made:?}");
        if *number == 1 {
            replica.read().await;
        }
    }
    assert_eq!(replica.read().await.hashes(), many, "of one person");
    assert_eq!(Replica::new(&other).read().await.hashes(), many, "of all");
    let page = store.own_keys().page("a", "", 1000).await.unwrap();
    assert_eq!((page.keys.len(), page.is_more), (205, false));
    let page = store.own_keys().page("a", "", 204).await.unwrap();
    assert_eq!((page.keys.len(), page.is_more), (204, true));
}

/// A key that had the groups already was waited for with the lock on `changes`, for which its rotation waited.
#[tokio::test]
async fn no_key_is_waited_for_that_is_rotated_beside() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    for (number, subject) in [(1, "eve"), (2, "ada"), (3, "ada")] {
        made(&store, number, subject).await;
    }
    let large = format!("[\"{}\"]", "x".repeat(5 << 20));
    let sql = "UPDATE own_keys SET groups = $1 WHERE subject = 'eve'";
    set(&place, sql, &large).await;
    let sql = "UPDATE own_keys SET groups = $1 WHERE name = 'k_3'";
    set(&place, sql, "[\"engineers\"]").await;
    let pool = place.pool().await;
    let mut rotation = pool.begin_unserialized().await.unwrap();
    let sql = "UPDATE own_keys SET used_ms = used_ms WHERE name = 'k_3'";
    rotation.run(sql, Vec::new()).await.unwrap();
    let groups = ["engineers".to_owned()];
    let told = store.own_keys().tell("a", "ada", &groups).await;
    assert!(told.unwrap());
    rotation.commit().await.unwrap();
    pool.close().await;
    assert_eq!(names(&store, Some("ada")).await, ["k_2", "k_3"]);
}

#[tokio::test]
async fn keys_are_told_groups_beside_a_change_of_them() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    made(&store, 1, "ada").await;
    let (sql, groups) = ("UPDATE own_keys SET used_ms = used_ms", ["ops".to_owned()]);
    assert!(beside(&place, sql, store.own_keys().tell("a", "ada", &groups)).await);
}

//! What authorization servers issue: its promises, each kept on both databases, and by two stores
//! over one.

use std::{collections::HashSet, sync::atomic::Ordering};

use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

use super::store::{Place, on_both};
use crate::config::{Config, Sources};
use crate::{
    database::{
        Author, Database, Error, Expected, Filter,
        oauth::{
            Grant, GrantFilter, NewCode, NewRefresh, Person, Refreshed, Registered, Revoked,
            Schedule, Succession, TakenCode,
        },
    },
    declare::{Issued, Kind, Object, ObjectName},
};

on_both! {
    a_code_is_taken_once
    a_code_of_another_tenant_is_unknown
    a_grant_begins_once_and_not_after_a_revocation
    a_refresh_token_has_one_successor
    a_refresh_token_is_of_one_client
    a_used_refresh_token_ends_its_grant_after_the_grace
    codes_and_tokens_are_never_spent_twice
    a_revocation_ends_what_it_means_and_nothing_else
    a_revocation_forgets_the_consents_that_it_means
    no_revocation_is_missed
    a_name_that_comes_again_inherits_nothing
    registered_clients_come_and_go
    log_ins_and_consents_are_remembered
    what_is_for_once_is_taken_once
    forms_are_sealed
    a_tenant_has_one_first_key
    keys_follow_each_other
    a_removed_key_is_replaced_at_once
    keys_survive_a_new_master_key
    what_has_ended_is_forgotten
}

/// What a store does in the end: many at once may wait for a connection for too long, which is no
/// answer and no reason to ask for anything else.
async fn patient<T, F>(ask: impl Fn() -> F) -> T
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
    panic!("the store does not answer")
}

const SECOND: i64 = 1000;
const DAY: i64 = 24 * 3600 * SECOND;
/// Where the tests' clocks begin.
const BEGIN: i64 = 1_000_000;

async fn add_tenant(store: &Database, name: &str) {
    let spec = json!({"auth": {"mode": "none"}});
    let object = Object::new(Kind::Tenant, spec.as_object().unwrap().clone());
    let name = ObjectName::tenant(name);
    let author = Author::named("ada");
    let put = store.objects().put(&name, object, Expected::Any, &author);
    put.await.unwrap();
}

async fn open(place: &Place) -> [Database; 2] {
    place.now_ms.store(BEGIN, Ordering::Relaxed);
    let stores = [place.open().await, place.open().await];
    add_tenant(&stores[0], "a").await;
    add_tenant(&stores[0], "b").await;
    stores
}

fn later(place: &Place, ms: i64) {
    place.now_ms.fetch_add(ms, Ordering::Relaxed);
}

fn code(number: u8) -> NewCode {
    NewCode {
        hash: [number; 32],
        grant: Grant {
            id: Uuid::now_v7(),
            subject: "ada".to_owned(),
            groups: vec!["staff".to_owned()],
            client_id: "c_app".to_owned(),
            resource: "https://gw.test/t/a/x/mcp".to_owned(),
            scope: "r w".to_owned(),
            auth_ms: BEGIN,
            expires_ms: BEGIN + 90 * DAY,
        },
        redirect_uri: "https://app.test/cb".to_owned(),
        challenge: "c".repeat(43),
        expires_ms: BEGIN + 60 * SECOND,
    }
}

fn refresh(text: &[u8; 32]) -> NewRefresh {
    let expires_ms = BEGIN + 30 * DAY;
    let hash = *text;
    NewRefresh { hash, expires_ms }
}

/// What a client makes of a refresh token: its successor hangs on the salt.
fn succession(of: &[u8; 32], salt: u8) -> Succession {
    Succession {
        salt: [salt; 32],
        successor: refresh(&successor(of, salt)),
        grace_ms: 60 * SECOND,
    }
}

fn successor(of: &[u8; 32], salt: u8) -> [u8; 32] {
    let mut hash = *of;
    hash[0] ^= 0x80;
    hash[1] = hash[1].wrapping_add(1);
    hash[2] = salt;
    hash
}

/// A grant with its first refresh token.
async fn granted(store: &Database, code: &NewCode, token: &[u8; 32]) -> Uuid {
    store.grants().add_code("a", code).await.unwrap();
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

async fn revoked(store: &Database) -> HashSet<Uuid> {
    let (issued, _) = store.issued().newer((&Issued::default(), 0)).await.unwrap();
    let of = issued.revoked.get("a");
    of.map(|of| of.grants.keys().copied().collect())
        .unwrap_or_default()
}

async fn a_code_is_taken_once(place: Place) {
    let stores = open(&place).await;
    let code = code(1);
    stores[0].grants().add_code("a", &code).await.unwrap();
    let takes = (0..50).map(|number: usize| {
        let (store, code) = (&stores[number % 2], &code);
        patient(move || store.grants().take_code("a", &code.hash))
    });
    let taken: Vec<TakenCode> = join_all(takes).await;
    let first = TakenCode::First(Box::new(code.clone()));
    let again = TakenCode::Again {
        used_ms: BEGIN,
        grant: Some(code.grant.id),
    };
    assert_eq!(taken.iter().filter(|one| **one == first).count(), 1);
    assert_eq!(taken.iter().filter(|one| **one == again).count(), 49);
    let twice = stores[0].grants().add_code("a", &code).await;
    assert!(matches!(twice, Err(Error::Conflict)), "{twice:?}");
    let nobody = stores[0].grants().add_code("nobody", &self::code(2)).await;
    assert!(matches!(nobody, Err(Error::NotFound)), "{nobody:?}");
}

async fn a_code_of_another_tenant_is_unknown(place: Place) {
    let [store, _] = open(&place).await;
    let code = code(1);
    store.grants().add_code("a", &code).await.unwrap();
    let foreign = store.grants().take_code("b", &code.hash).await.unwrap();
    assert_eq!(foreign, TakenCode::Unknown);
    let unknown = store.grants().take_code("a", &[9; 32]).await.unwrap();
    assert_eq!(unknown, TakenCode::Unknown);
    let taken = store.grants().take_code("a", &code.hash).await.unwrap();
    assert!(matches!(taken, TakenCode::First(_)));
    let foreign = store.grants().start("b", &code, &refresh(&[1; 32])).await;
    assert!(!foreign.unwrap());
}

async fn a_grant_begins_once_and_not_after_a_revocation(place: Place) {
    let [store, other] = open(&place).await;
    let first = code(1);
    store.grants().add_code("a", &first).await.unwrap();
    let untaken = store.grants().start("a", &first, &refresh(&[1; 32])).await;
    assert!(!untaken.unwrap(), "nobody took its code");
    store.grants().take_code("a", &first.hash).await.unwrap();
    let tokens = [[11; 32], [12; 32]].map(|text| refresh(&text));
    let twice = [&tokens[0], &tokens[1]].map(|token| store.grants().start("a", &first, token));
    let begun: Vec<bool> = join_all(twice)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(begun.iter().filter(|begun| **begun).count(), 1);
    for (number, what) in [
        (2, Revoked::Grant(Uuid::nil())),
        (3, Revoked::Client("c_app".to_owned())),
        (4, Revoked::Subject("ada".to_owned())),
    ] {
        let late = code(number);
        let what = match what {
            Revoked::Grant(_) => Revoked::Grant(late.grant.id),
            other => other,
        };
        store.grants().add_code("a", &late).await.unwrap();
        store.grants().take_code("a", &late.hash).await.unwrap();
        other.revocations().revoke("a", &what).await.unwrap();
        let begun = store
            .grants()
            .start("a", &late, &refresh(&[number; 32]))
            .await;
        assert!(!begun.unwrap(), "{what:?}");
    }
    // A code of the log-in that was revoked, written a moment later.
    let straggler = code(5);
    store.grants().add_code("a", &straggler).await.unwrap();
    store
        .grants()
        .take_code("a", &straggler.hash)
        .await
        .unwrap();
    let begun = store
        .grants()
        .start("a", &straggler, &refresh(&[5; 32]))
        .await;
    assert!(!begun.unwrap());
    // Who logs in anew is not meant.
    later(&place, 1);
    let mut fresh = code(6);
    fresh.grant.auth_ms = BEGIN + 1;
    granted(&store, &fresh, &[6; 32]).await;
}

async fn a_refresh_token_has_one_successor(place: Place) {
    let stores = open(&place).await;
    let code = code(1);
    granted(&stores[0], &code, &[1; 32]).await;
    let uses = (0..50_u8).map(|number| {
        let store = &stores[usize::from(number) % 2];
        let next = succession(&[1; 32], number);
        async move { patient(|| store.grants().refresh("a", "c_app", &[1; 32], &next)).await }
    });
    let uses: Vec<Refreshed> = join_all(uses).await;
    let mut salts: Vec<u8> = uses
        .iter()
        .map(|refreshed| match refreshed {
            Refreshed::Good { grant, salt } if **grant == code.grant => salt[0],
            other => panic!("{other:?}"),
        })
        .collect();
    salts.dedup();
    let [salt] = salts[..] else {
        panic!("{salts:?}")
    };
    for number in 0..50 {
        let hash = successor(&[1; 32], number);
        let known = stores[1].grants().of_refresh("a", &hash).await.unwrap();
        let is_winner = number == salt;
        assert_eq!(known, is_winner.then(|| code.grant.clone()), "{number}");
    }
    // Once the successor is used, the token gives nothing, and ends nothing.
    let second = successor(&[1; 32], salt);
    let used = stores[1]
        .grants()
        .refresh("a", "c_app", &second, &succession(&second, 7))
        .await;
    assert!(
        matches!(used, Ok(Refreshed::Good { salt, .. }) if salt == [7; 32]),
        "{used:?}"
    );
    let late = stores[0]
        .grants()
        .refresh("a", "c_app", &[1; 32], &succession(&[1; 32], 99))
        .await;
    assert_eq!(late.unwrap(), Refreshed::Refused);
    assert!(revoked(&stores[0]).await.is_empty());
    let third = successor(&second, 7);
    let used = stores[0]
        .grants()
        .refresh("a", "c_app", &third, &succession(&third, 8))
        .await;
    assert!(matches!(used, Ok(Refreshed::Good { .. })), "{used:?}");
}

async fn a_refresh_token_is_of_one_client(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let next = succession(&[1; 32], 1);
    for (tenant, client, hash) in [
        ("a", "c_other", [1; 32]),
        ("b", "c_app", [1; 32]),
        ("a", "c_app", [2; 32]),
    ] {
        let refused = store
            .grants()
            .refresh(tenant, client, &hash, &next)
            .await
            .unwrap();
        assert_eq!(refused, Refreshed::Refused, "{tenant} {client}");
    }
    assert_eq!(
        store.grants().of_refresh("b", &[1; 32]).await.unwrap(),
        None
    );
    let own = store.grants().of_refresh("a", &[1; 32]).await.unwrap();
    assert_eq!(own.map(|grant| grant.id), Some(id));
    // Expired: the token, and then the grant.
    later(&place, 30 * DAY);
    let expired = store
        .grants()
        .refresh("a", "c_app", &[1; 32], &next)
        .await
        .unwrap();
    assert_eq!(expired, Refreshed::Refused);
    assert!(revoked(&store).await.is_empty());
    let mut short = code(2);
    short.grant.auth_ms = BEGIN + 30 * DAY;
    short.grant.expires_ms = BEGIN + 30 * DAY + SECOND;
    let token = NewRefresh {
        hash: [3; 32],
        expires_ms: BEGIN + 60 * DAY,
    };
    store.grants().add_code("a", &short).await.unwrap();
    store.grants().take_code("a", &short.hash).await.unwrap();
    assert!(store.grants().start("a", &short, &token).await.unwrap());
    later(&place, SECOND);
    let ended = store
        .grants()
        .refresh("a", "c_app", &[3; 32], &next)
        .await
        .unwrap();
    assert_eq!(ended, Refreshed::Refused);
}

async fn a_used_refresh_token_ends_its_grant_after_the_grace(place: Place) {
    let [store, other] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let kept = granted(&store, &code(2), &[2; 32]).await;
    let first = store
        .grants()
        .refresh("a", "c_app", &[1; 32], &succession(&[1; 32], 1))
        .await;
    assert!(matches!(first, Ok(Refreshed::Good { .. })), "{first:?}");
    later(&place, 60 * SECOND);
    let in_time = other
        .grants()
        .refresh("a", "c_app", &[1; 32], &succession(&[1; 32], 2))
        .await;
    assert!(
        matches!(in_time, Ok(Refreshed::Good { salt, .. }) if salt == [1; 32]),
        "{in_time:?}"
    );
    later(&place, 1);
    let reused = other
        .grants()
        .refresh("a", "c_app", &[1; 32], &succession(&[1; 32], 3))
        .await;
    assert_eq!(reused.unwrap(), Refreshed::Reused { grant: id });
    assert_eq!(revoked(&store).await, HashSet::from([id]));
    let next = successor(&[1; 32], 1);
    for token in [[1; 32], next] {
        let dead = store
            .grants()
            .refresh("a", "c_app", &token, &succession(&token, 4))
            .await;
        assert_eq!(dead.unwrap(), Refreshed::Refused);
    }
    let alive = store
        .grants()
        .list("a", GrantFilter::default(), 9)
        .await
        .unwrap();
    let alive: Vec<Uuid> = alive.iter().map(|seen| seen.grant.id).collect();
    assert_eq!(alive, [kept]);
}

/// Codes and refresh tokens are spent once, also by concurrent calls to two handles.
async fn codes_and_tokens_are_never_spent_twice(place: Place) {
    let stores = open(&place).await;
    let text = |number: u32, kind: u8| {
        let mut text = [kind; 32];
        text[4..8].copy_from_slice(&number.to_be_bytes());
        text
    };
    for number in 0..rounds() {
        let mut code = code(0);
        code.hash = text(number, 1);
        stores[0].grants().add_code("a", &code).await.unwrap();
        let uses = (0..10_u8).map(|user| {
            let (store, code, token) = (&stores[usize::from(user) % 2], &code, text(number, user));
            async move {
                match patient(|| store.grants().take_code("a", &code.hash)).await {
                    TakenCode::First(code) => {
                        let token = refresh(&token);
                        let begun = patient(|| store.grants().start("a", &code, &token)).await;
                        begun.then_some(token.hash)
                    }
                    _ => None,
                }
            }
        });
        let spent: Vec<[u8; 32]> = join_all(uses).await.into_iter().flatten().collect();
        let [mut token] = spent[..] else {
            panic!("{} spends of code {number}", spent.len())
        };
        for _ in 0..2 {
            let uses = (0..10_u8).map(|user| {
                let (store, token) = (&stores[usize::from(user) % 2], &token);
                let next = succession(token, user);
                async move { patient(|| store.grants().refresh("a", "c_app", token, &next)).await }
            });
            let salts = join_all(uses)
                .await
                .into_iter()
                .map(|refreshed| match refreshed {
                    Refreshed::Good { salt, .. } => salt[0],
                    other => panic!("{other:?}"),
                });
            let salts: HashSet<u8> = salts.collect();
            assert_eq!(salts.len(), 1, "a fork of token {number}");
            token = successor(&token, *salts.iter().next().unwrap());
        }
    }
    assert!(revoked(&stores[0]).await.is_empty());
}

/// How many codes and tokens are raced for.
#[expect(
    clippy::disallowed_methods,
    reason = "a longer run is asked for by a variable"
)]
fn rounds() -> u32 {
    let scale = std::env::var("SCALE").map_or(1, |scale| scale.parse().unwrap());
    100 * scale
}

fn person(subject: &str) -> Person {
    Person {
        subject: subject.to_owned(),
        title: subject.to_owned(),
        groups: Vec::new(),
        provider: None,
        auth_ms: BEGIN,
        password: Some([7; 32]),
    }
}

#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn a_revocation_ends_what_it_means_and_nothing_else(place: Place) {
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
        store.grants().add_code("a", &waiting).await.unwrap();
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
    store
        .revocations()
        .revoke("b", &Revoked::Subject("ada".to_owned()))
        .await
        .unwrap();
    store
        .revocations()
        .revoke("b", &Revoked::Grant(ids[0]))
        .await
        .unwrap();
    assert_eq!(known().await, [all; 5], "another tenant's");
    store
        .revocations()
        .revoke("a", &Revoked::Subject("ada".to_owned()))
        .await
        .unwrap();
    assert_eq!(known().await, [none, none, all, all, all]);
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
    // Whoever revokes again says nothing new.
    let before = store.issued().reached().await.unwrap();
    store
        .revocations()
        .revoke("a", &Revoked::Grant(ids[3]))
        .await
        .unwrap();
    store
        .revocations()
        .revoke("a", &Revoked::Client("c_app".to_owned()))
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

async fn no_revocation_is_missed(place: Place) {
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
    // Reads only what is new, as a replica does, while others write.
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
    // They are forgotten when nothing can rest on them.
    later(&place, 2 * DAY);
    let (known, _) = reader.issued().newer((&known, 60)).await.unwrap();
    assert!(known.revoked.is_empty());
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn a_name_that_comes_again_inherits_nothing(place: Place) {
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

fn registered(id: &str) -> Registered {
    Registered {
        client_id: id.to_owned(),
        metadata: "{}".to_owned(),
        secret_hash: None,
        access_hash: [1; 32],
        created_ms: BEGIN,
        expires_ms: BEGIN + 3600 * SECOND,
    }
}

#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn registered_clients_come_and_go(place: Place) {
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
    assert!(
        !store
            .clients()
            .add("a", &registered("c_three"), 2)
            .await
            .unwrap()
    );
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
    assert!(store.clients().update("a", &changed).await.unwrap());
    assert_eq!(
        store.clients().get("a", "c_one").await.unwrap(),
        Some(changed)
    );
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
            .update("a", &registered("c_two"))
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
    // The one who was logged in there before is not what the row belongs to.
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
        .log_in("a", &[1; 32], &person("ada"), ends)
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

async fn a_revocation_forgets_the_consents_that_it_means(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let of_code = || ("a", "ada", "c_app");
    for (what, forgotten) in [
        (Revoked::Grant(id), vec![]),
        (Revoked::Consent(id), vec![of_code()]),
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
async fn what_is_for_once_is_taken_once(place: Place) {
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
    // Its content is nowhere in clear.
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
    // The others take the new key when they meet it, and what was sealed before is lost to them.
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

async fn a_tenant_has_one_first_key(place: Place) {
    let stores = open(&place).await;
    let asked = (0..20).map(|number: usize| stores[number % 2].signing_keys().current("a"));
    let kids = join_all(asked)
        .await
        .into_iter()
        .map(|key| key.unwrap().kid);
    let kids: HashSet<String> = kids.collect();
    assert_eq!(kids.len(), 1);
    let (issued, _) = stores[1]
        .issued()
        .newer((&Issued::default(), 0))
        .await
        .unwrap();
    let published: Vec<&String> = issued.keys["a"].iter().map(|key| &key.kid).collect();
    assert_eq!(published, kids.iter().collect::<Vec<_>>());
    assert!(!issued.keys.contains_key("b"));
    assert!(!kids.contains(&stores[0].signing_keys().current("b").await.unwrap().kid));
    let nobody = stores[0].signing_keys().current("nobody").await;
    assert!(matches!(nobody, Err(Error::NotFound)));
    let secrets = place.pool().await;
    let rows = secrets
        .read("SELECT secret, public FROM signing_keys", Vec::new())
        .await;
    for row in rows.unwrap() {
        let (secret, public): (Vec<u8>, Vec<u8>) =
            (row.get("secret").unwrap(), row.get("public").unwrap());
        // PKCS#8 of Ed25519 keys names the algorithm, and may hold the public key.
        assert!(!secret.windows(3).any(|part| part == [0x2b, 0x65, 0x70]));
        assert!(!secret.windows(32).any(|part| part == public));
    }
}

fn schedule() -> Schedule {
    let home = ("HOME".to_owned(), "/nowhere".to_owned());
    let defaults = Sources {
        env: [home].into(),
        ..Sources::default()
    };
    Schedule::of(&Config::load(&defaults).unwrap().oauth)
}

#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn keys_follow_each_other(place: Place) {
    let stores = open(&place).await;
    let author = Author::named("operator:first");
    let old = stores[0].signing_keys().current("a").await.unwrap().kid;
    // Not old enough, and then old enough, for both replicas at once.
    let minute = 60 * SECOND;
    let young = stores[0]
        .signing_keys()
        .rotate_old(schedule(), DAY)
        .await
        .unwrap();
    assert!(young.is_empty());
    later(&place, DAY + 1);
    let both =
        [&stores[0], &stores[1]].map(|store| store.signing_keys().rotate_old(schedule(), DAY));
    let rotated: Vec<String> = join_all(both)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(rotated, ["a"]);
    let published = async || {
        let (issued, _) = stores[1]
            .issued()
            .newer((&Issued::default(), 0))
            .await
            .unwrap();
        let kids = issued.keys["a"].iter().map(|key| key.kid.clone());
        kids.collect::<Vec<_>>()
    };
    let [new, before] = &published().await[..] else {
        panic!("two keys")
    };
    assert_eq!(*before, old);
    for store in &stores {
        assert_eq!(
            store.signing_keys().current("a").await.unwrap().kid,
            old,
            "it only waits"
        );
        let again = store.signing_keys().rotate("a", schedule(), &author).await;
        assert!(matches!(again, Err(Error::Conflict)), "{again:?}");
    }
    later(&place, 10 * minute);
    for store in &stores {
        assert_eq!(store.signing_keys().current("a").await.unwrap().kid, *new);
    }
    // As long as a token holds that the old one signed at the last moment, and no longer.
    later(&place, 17 * minute - 1);
    stores[0].sweep().await.unwrap();
    assert_eq!(published().await.len(), 2);
    later(&place, 1);
    let number = stores[0].issued().reached().await.unwrap().revocation;
    stores[0].sweep().await.unwrap();
    assert_eq!(published().await, std::slice::from_ref(new));
    assert_eq!(
        stores[1].issued().reached().await.unwrap().revocation,
        number + 1
    );
    let next = stores[1]
        .signing_keys()
        .rotate("a", schedule(), &author)
        .await
        .unwrap();
    assert_eq!(published().await, [next.kid, new.clone()]);
    let filter = Filter {
        kind: Some("signing_key.added".to_owned()),
        ..Filter::default()
    };
    let records = stores[0]
        .audit()
        .page(&filter, None, 9)
        .await
        .unwrap()
        .entries;
    let actors: Vec<&str> = records
        .iter()
        .map(|entry| entry.record.actor.as_str())
        .collect();
    assert_eq!(actors, ["operator:first", "rotation"]);
}

async fn a_removed_key_is_replaced_at_once(place: Place) {
    let [store, other] = open(&place).await;
    let author = Author::named("ada");
    let first = store.signing_keys().current("a").await.unwrap().kid;
    assert!(
        !store
            .signing_keys()
            .remove("b", &first, &author)
            .await
            .unwrap()
    );
    let (before, number) = other.issued().newer((&Issued::default(), 0)).await.unwrap();
    assert!(
        store
            .signing_keys()
            .remove("a", &first, &author)
            .await
            .unwrap()
    );
    assert!(
        !store
            .signing_keys()
            .remove("a", &first, &author)
            .await
            .unwrap()
    );
    let second = store.signing_keys().current("a").await.unwrap().kid;
    assert_ne!(second, first);
    let (after, _) = other.issued().newer((&before, number)).await.unwrap();
    let signing_keys = store.signing_keys();
    assert!(after.revoked["a"].keys.contains_key(&first));
    assert_eq!(after.keys["a"].len(), 1);
    assert_eq!(after.keys["a"][0].kid, second);
    // What other replicas had opened is read anew once they know.
    assert_eq!(other.signing_keys().current("a").await.unwrap().kid, second);
    // One that waits takes its place; one that was to retire goes on.
    let third = signing_keys.rotate("a", schedule(), &author).await.unwrap();
    assert!(signing_keys.remove("a", &second, &author).await.unwrap());
    assert_eq!(signing_keys.current("a").await.unwrap().kid, third.kid);
    let fourth = signing_keys.rotate("a", schedule(), &author).await.unwrap();
    assert!(
        signing_keys
            .remove("a", &fourth.kid, &author)
            .await
            .unwrap()
    );
    let left = signing_keys.list("a").await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((&left[0].kid, left[0].retired_ms), (&third.kid, None));
}

async fn keys_survive_a_new_master_key(place: Place) {
    let [store, other] = open(&place).await;
    let key = store.signing_keys().current("a").await.unwrap();
    store.rotate().await.unwrap();
    let same = other.signing_keys().current("a").await.unwrap();
    assert_eq!((same.kid, &same.pkcs8), (key.kid, &key.pkcs8));
    other
        .signing_keys()
        .rotate("a", schedule(), &Author::named("ada"))
        .await
        .unwrap();
    later(&place, DAY);
    assert!(place.open().await.signing_keys().current("a").await.is_ok());
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn what_has_ended_is_forgotten(place: Place) {
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
    assert_eq!(counts().await, [1, 1, 1, 1, 0, 1, 0, 0, 0]);
    later(&place, 2 * DAY);
    assert!(!store.sweep().await.unwrap());
    assert_eq!(counts().await, [0, 1, 1, 0, 0, 1, 0, 0, 0]);
}

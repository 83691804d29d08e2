//! Authorization codes, grants and refresh tokens.

use std::collections::HashSet;

use futures_util::future::join_all;
use uuid::Uuid;

use super::fixture::{
    BEGIN, DAY, Place, SECOND, code, granted, later, on_both, open, patient, refresh, revoked,
    succession, successor,
};
use crate::database::oauth::{
    Grant, GrantFilter, Grants, MachineGrant, NewCode, NewRefresh, Refreshed, Revoked, Room,
    TakenCode, Unused,
    logins::{OF_NO_SESSION, OF_SESSION},
    revocations::{DELETE_CONSENTS_OF_CLIENT, END_OF_CLIENT, LEFT_OF_CLIENT},
    sweep::UNGRANTED,
};
use crate::database::pool::Transaction;
use crate::database::{Database, Error, Value};
use crate::declare::machine_subject;

on_both! {
    a_code_is_taken_once
    a_code_of_another_tenant_is_unknown
    a_grant_begins_once_and_not_after_a_revocation
    a_grant_without_a_code_does_not_begin_beside_a_revocation
    machines_that_begin_together_have_one_grant
    no_grant_without_a_code_is_kept_that_a_revocation_meets
    no_code_is_issued_by_a_consent_that_has_ended
    no_consent_is_left_to_the_next_person_of_a_name
    the_grants_with_the_newest_tokens_come_first
    a_refresh_token_has_one_successor
    a_refresh_token_is_of_one_client
    a_refresh_token_is_of_one_key
    a_token_of_before_its_key_ends_the_grant
    a_used_refresh_token_ends_its_grant_after_the_grace
    codes_and_refresh_tokens_are_never_spent_twice
    a_used_token_goes_early_and_its_family_tells_of_it
    a_token_that_expired_unused_is_no_reuse
    a_family_ends_by_the_key_of_its_grant
    codes_that_nobody_used_go_first
    used_codes_without_a_grant_go_early
    codes_that_end_are_found_by_an_index
    tokens_go_in_parts_before_their_grant
    a_sweep_goes_on_after_a_failure
    a_restored_copy_has_no_token_however_many
    the_longest_unused_grants_give_way
    a_person_has_only_so_many_grants
    grants_that_end_within_a_day_have_a_bound_over_all_clients
    machines_end_only_so_many_grants_within_a_day
}

async fn a_code_is_taken_once(place: Place) {
    let stores = open(&place).await;
    let code = code(1);
    stores[0]
        .grants()
        .add_code("a", &code, BEGIN + 1, None)
        .await
        .unwrap();
    let takes = (0..50).map(|number: usize| {
        let (store, code) = (&stores[number % 2], &code);
        patient(move || store.grants().take_code("a", &code.hash))
    });
    let taken: Vec<TakenCode> = join_all(takes).await;
    let first = TakenCode::First(Box::new(code.clone()));
    let again = TakenCode::Again {
        used_ms: BEGIN,
        code: Box::new(code.clone()),
    };
    assert_eq!(taken.iter().filter(|one| **one == first).count(), 1);
    assert_eq!(taken.iter().filter(|one| **one == again).count(), 49);
    let twice = stores[0]
        .grants()
        .add_code("a", &code, BEGIN + 1, None)
        .await;
    assert!(matches!(twice, Err(Error::Conflict)), "{twice:?}");
    let nobody = stores[0]
        .grants()
        .add_code("nobody", &self::code(2), BEGIN + 1, None)
        .await;
    assert!(matches!(nobody, Err(Error::NotFound)), "{nobody:?}");
}

async fn a_code_of_another_tenant_is_unknown(place: Place) {
    let [store, _] = open(&place).await;
    let code = code(1);
    store
        .grants()
        .add_code("a", &code, BEGIN + 1, None)
        .await
        .unwrap();
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
    let grants = store.grants();
    let first = code(1);
    grants.add_code("a", &first, BEGIN + 1, None).await.unwrap();
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
        grants.add_code("a", &late, BEGIN + 1, None).await.unwrap();
        store.grants().take_code("a", &late.hash).await.unwrap();
        other.revocations().revoke("a", &what).await.unwrap();
        let begun = store
            .grants()
            .start("a", &late, &refresh(&[number; 32]))
            .await;
        assert!(!begun.unwrap(), "{what:?}");
    }
    // A code of the revoked log-in, stored after the revocation.
    let straggler = code(5);
    grants
        .add_code("a", &straggler, BEGIN + 1, None)
        .await
        .unwrap();
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
    // A log-in after the revocation is not affected.
    later(&place, 1);
    let mut fresh = code(6);
    fresh.grant.auth_ms = BEGIN + 1;
    granted(&store, &fresh, &[6; 32]).await;
}

/// A new grant of a client for itself, which was authenticated at `auth_ms`.
fn of_machine(client: &str, auth_ms: i64) -> Grant {
    Grant {
        subject: machine_subject(client),
        client_id: client.to_owned(),
        auth_ms,
        ..code(0).grant
    }
}

async fn a_grant_without_a_code_does_not_begin_beside_a_revocation(place: Place) {
    let [store, other] = open(&place).await;
    let mut now = BEGIN;
    for what in [
        Revoked::Client("ci".to_owned()),
        Revoked::Subject(machine_subject("ci")),
    ] {
        other.revocations().revoke("a", &what).await.unwrap();
        let asked = |tenant, client, auth_ms| {
            let grants = store.grants();
            grants.of_machine(tenant, of_machine(client, auth_ms), BEGIN + DAY)
        };
        let begun = asked("a", "ci", now).await.unwrap();
        assert_eq!(begun, MachineGrant::Refused, "{what:?}");
        for (tenant, client) in [("b", "ci"), ("a", "cd")] {
            let begun = asked(tenant, client, now).await.unwrap();
            let is_there = matches!(begun, MachineGrant::Known(_) | MachineGrant::New(_));
            assert!(is_there, "{what:?}: {tenant} {client}");
        }
        // Asked for after the revocation.
        let begun = asked("a", "ci", now + 1).await.unwrap();
        let MachineGrant::New(grant) = begun else {
            panic!("{begun:?}")
        };
        let known = asked("a", "ci", now + 2).await.unwrap();
        assert_eq!(known, MachineGrant::Known(grant));
        now += SECOND;
        later(&place, SECOND);
    }
    // The access of a client for people.
    let of_person = |client_id: &str| Grant {
        client_id: client_id.to_owned(),
        ..code(0).grant
    };
    assert!(!store.grants().add("a", &of_person("ci")).await.unwrap());
    assert!(store.grants().add("a", &of_person("cd")).await.unwrap());
}

/// The pods of a service: an operator saw as many grants, and ended one.
async fn machines_that_begin_together_have_one_grant(place: Place) {
    let stores = open(&place).await;
    for number in 0..rounds() {
        let client = format!("ci{number}");
        let begins = (0..8_usize).map(|at| {
            let (grants, client) = (stores[at % 2].grants(), &client);
            patient(move || grants.of_machine("a", of_machine(client, BEGIN), BEGIN + DAY))
        });
        let begun = join_all(begins).await;
        let ids = begun.iter().map(|begun| match begun {
            MachineGrant::Known(grant) | MachineGrant::New(grant) => grant.id,
            other => panic!("{client}: {other:?}"),
        });
        let ids: Vec<Uuid> = ids.collect();
        assert_eq!(ids, [ids[0]; 8], "{client}");
        let new = begun
            .iter()
            .filter(|begun| matches!(begun, MachineGrant::New(_)));
        assert_eq!(new.count(), 1, "{client}");
    }
}

/// Begins a grant of a client for itself, or for a person.
async fn begun(grants: Grants<'_>, client: &str, is_machine: bool) -> Result<bool, Error> {
    if is_machine {
        // No known grant lasts until then, so that each is a new one.
        let until_ms = BEGIN + 90 * DAY;
        let begun = grants.of_machine("a", of_machine(client, BEGIN), until_ms);
        return Ok(begun.await? != MachineGrant::Refused);
    }
    let grant = Grant {
        client_id: client.to_owned(),
        ..code(0).grant
    };
    grants.add("a", &grant).await
}

async fn no_grant_without_a_code_is_kept_that_a_revocation_meets(place: Place) {
    let stores = open(&place).await;
    for number in 0..rounds() {
        let client = format!("ci{number}");
        let begins = (0..8).map(|at| {
            let (grants, client) = (stores[0].grants(), &client);
            patient(move || begun(grants, client, at % 2 == 0))
        });
        let what = Revoked::Client(client.clone());
        let ending = patient(|| stores[1].revocations().revoke("a", &what));
        tokio::join!(join_all(begins), ending);
        let kept = stores[0].grants().list("a", GrantFilter::default(), 9);
        assert!(kept.await.unwrap().is_empty(), "{client}");
    }
}

async fn a_refresh_token_has_one_successor(place: Place) {
    let stores = open(&place).await;
    let code = code(1);
    granted(&stores[0], &code, &[1; 32]).await;
    let uses = (0..50_u8).map(|number| {
        let store = &stores[usize::from(number) % 2];
        let next = succession(&[1; 32], number);
        async move {
            patient(|| {
                store
                    .grants()
                    .refresh("a", ("c_app", None), &[1; 32], &next)
            })
            .await
        }
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
    // After its successor is used, the token is refused, and the grant does not end.
    let second = successor(&[1; 32], salt);
    let used = stores[1]
        .grants()
        .refresh("a", ("c_app", None), &second, &succession(&second, 7))
        .await;
    assert!(
        matches!(used, Ok(Refreshed::Good { salt, .. }) if salt == [7; 32]),
        "{used:?}"
    );
    let late = stores[0]
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &succession(&[1; 32], 99))
        .await;
    assert_eq!(late.unwrap(), Refreshed::Refused);
    assert!(revoked(&stores[0]).await.is_empty());
    let third = successor(&second, 7);
    let used = stores[0]
        .grants()
        .refresh("a", ("c_app", None), &third, &succession(&third, 8))
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
            .refresh(tenant, (client, None), &hash, &next)
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
    // First the token has expired, then the grant.
    later(&place, 30 * DAY);
    let expired = store
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &next)
        .await
        .unwrap();
    assert_eq!(expired, Refreshed::Refused);
    assert!(revoked(&store).await.is_empty());
    let mut short = code(2);
    short.grant.auth_ms = BEGIN + 30 * DAY;
    short.grant.expires_ms = BEGIN + 30 * DAY + SECOND;
    let token = NewRefresh {
        hash: [3; 32],
        family: None,
        expires_ms: BEGIN + 60 * DAY,
    };
    store
        .grants()
        .add_code("a", &short, BEGIN + 1, None)
        .await
        .unwrap();
    store.grants().take_code("a", &short.hash).await.unwrap();
    assert!(store.grants().start("a", &short, &token).await.unwrap());
    later(&place, SECOND);
    let ended = store
        .grants()
        .refresh("a", ("c_app", None), &[3; 32], &next)
        .await
        .unwrap();
    assert_eq!(ended, Refreshed::Refused);
}

/// RFC 9449, section 5.
async fn a_refresh_token_is_of_one_key(place: Place) {
    let [store, other] = open(&place).await;
    let mut bound = code(1);
    bound.grant.jkt = Some("k".to_owned());
    granted(&store, &bound, &[1; 32]).await;
    granted(&store, &code(2), &[2; 32]).await;
    let of = store.grants().of_refresh("a", &[1; 32]).await.unwrap();
    assert_eq!(of.unwrap().jkt.as_deref(), Some("k"));
    let refreshed = |token: [u8; 32], jkt, salt| {
        let (grants, next) = (other.grants(), succession(&token, salt));
        async move {
            let used = grants.refresh("a", ("c_app", jkt), &token, &next).await;
            match used.unwrap() {
                Refreshed::Good { grant, .. } => Ok(grant.jkt),
                refused => Err(refused),
            }
        }
    };
    let (own, k) = (Some("k"), Some("k".to_owned()));
    for jkt in [None, Some("l"), Some("")] {
        let stolen = refreshed([1; 32], jkt, 1).await;
        assert_eq!(stolen, Err(Refreshed::Refused), "{jkt:?}");
    }
    assert_eq!(refreshed([1; 32], own, 1).await, Ok(k.clone()));
    // The retry of a request, too.
    assert_eq!(refreshed([1; 32], None, 2).await, Err(Refreshed::Refused));
    assert_eq!(refreshed([1; 32], own, 2).await, Ok(k.clone()));
    // One that is bound to none is bound to the first.
    assert_eq!(refreshed([2; 32], None, 1).await, Ok(None));
    let second = successor(&[2; 32], 1);
    assert_eq!(refreshed(second, own, 1).await, Ok(k.clone()));
    let third = successor(&second, 1);
    let stolen = refreshed(third, Some("l"), 1).await;
    assert_eq!(stolen, Err(Refreshed::Refused));
    assert_eq!(refreshed(third, own, 1).await, Ok(k));
}

/// Who steals an unbound token and binds it is found out by its owner, as without a key.
async fn a_token_of_before_its_key_ends_the_grant(place: Place) {
    let [store, other] = open(&place).await;
    let mut bound = code(2);
    bound.grant.jkt = Some("k".to_owned());
    let stolen = granted(&store, &code(1), &[1; 32]).await;
    granted(&store, &bound, &[2; 32]).await;
    granted(&store, &code(3), &[3; 32]).await;
    let used = async |token: &[u8; 32], jkt: Option<&str>, salt| {
        let (grants, next) = (store.grants(), succession(token, salt));
        let used = grants.refresh("a", ("c_app", jkt), token, &next).await;
        match used.unwrap() {
            Refreshed::Good { grant, .. } => Ok(grant.jkt),
            refused => Err(refused),
        }
    };
    let ended = async |tenant: &str, token: &[u8; 32], jkt: Option<&str>| {
        let revocations = other.revocations();
        let ended = revocations.end_of_other_key(tenant, token, jkt).await;
        ended.unwrap()
    };
    let (own, k) = (Some("k"), Ok(Some("k".to_owned())));
    // A first use binds, a retry does not: the successor is still good for its owner, who has no key.
    assert_eq!(used(&[3; 32], None, 1).await, Ok(None));
    assert_eq!(used(&[3; 32], own, 2).await, Ok(None));
    let next = successor(&[3; 32], 1);
    assert_eq!(used(&next, None, 1).await, Ok(None));
    // Unused, or of a grant that its code bound, or of one that is bound to none, a token ends nothing.
    assert_eq!(used(&[2; 32], own, 1).await, k);
    for token in [[1; 32], [2; 32], [3; 32], [9; 32]] {
        for jkt in [None, Some("l")] {
            assert_eq!(ended("a", &token, jkt).await, None, "{token:?}");
        }
    }
    assert_eq!(used(&[1; 32], own, 1).await, k);
    let after = successor(&[1; 32], 1);
    later(&place, SECOND);
    assert_eq!(used(&after, own, 1).await, k);
    // The key itself, another tenant, and a token that was bound when it was given out.
    assert_eq!(ended("a", &[1; 32], own).await, None);
    assert_eq!(ended("b", &[1; 32], None).await, None);
    assert_eq!(ended("a", &after, None).await, None);
    assert!(revoked(&store).await.is_empty());
    // Within the grace, too.
    assert_eq!(ended("a", &[1; 32], None).await, Some(stolen));
    assert_eq!(ended("a", &[1; 32], Some("l")).await, None, "it has ended");
    assert_eq!(revoked(&store).await, [stolen].into());
    let last = successor(&after, 1);
    assert_eq!(used(&last, own, 1).await, Err(Refreshed::Refused));
}

async fn a_used_refresh_token_ends_its_grant_after_the_grace(place: Place) {
    let [store, other] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    let kept = granted(&store, &code(2), &[2; 32]).await;
    let first = store
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &succession(&[1; 32], 1))
        .await;
    assert!(matches!(first, Ok(Refreshed::Good { .. })), "{first:?}");
    later(&place, 60 * SECOND);
    let in_time = other
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &succession(&[1; 32], 2))
        .await;
    assert!(
        matches!(in_time, Ok(Refreshed::Good { salt, .. }) if salt == [1; 32]),
        "{in_time:?}"
    );
    later(&place, 1);
    let reused = other
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &succession(&[1; 32], 3))
        .await;
    assert_eq!(reused.unwrap(), Refreshed::Reused { grant: id });
    assert_eq!(revoked(&store).await, HashSet::from([id]));
    let next = successor(&[1; 32], 1);
    for token in [[1; 32], next] {
        let dead = store
            .grants()
            .refresh("a", ("c_app", None), &token, &succession(&token, 4))
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

/// Concurrent calls to two handles spend a code or a refresh token only once.
async fn codes_and_refresh_tokens_are_never_spent_twice(place: Place) {
    let stores = open(&place).await;
    let text = |number: u32, kind: u8| {
        let mut text = [kind; 32];
        text[4..8].copy_from_slice(&number.to_be_bytes());
        text
    };
    for number in 0..rounds() {
        let mut code = code(0);
        code.hash = text(number, 1);
        stores[0]
            .grants()
            .add_code("a", &code, BEGIN + 1, None)
            .await
            .unwrap();
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
                async move {
                    patient(|| store.grants().refresh("a", ("c_app", None), token, &next)).await
                }
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

/// The number of codes for which concurrent calls compete.
#[expect(
    clippy::disallowed_methods,
    reason = "a longer run is asked for by a variable"
)]
fn rounds() -> u32 {
    let scale = std::env::var("SCALE").map_or(1, |scale| scale.parse().unwrap());
    100 * scale
}

async fn no_code_is_issued_by_a_consent_that_has_ended(place: Place) {
    let [store, _] = open(&place).await;
    let (grants, revocations) = (store.grants(), store.revocations());
    let code_of = |number: u8, client: &str| {
        let mut code = code(number);
        code.grant.client_id = client.to_owned();
        code
    };
    // The consent was read, and then the client was revoked.
    let all = Revoked::Client("c_app".to_owned());
    revocations.revoke("a", &all).await.unwrap();
    for (number, client, asked_ms, is_issued) in [
        (1, "c_app", BEGIN, false),
        (2, "c_app", BEGIN + 1, true),
        (3, "c_web", BEGIN, true),
    ] {
        let new = code_of(number, client);
        let added = grants.add_code("a", &new, asked_ms, None).await;
        assert_eq!(added.unwrap(), is_issued, "{number}");
    }
    // One that was stored behind the revocation is gone with the refusal; one that was taken back is asked for again.
    let (logins, digest) = (store.logins(), [7; 32]);
    let consented = async || {
        let known = logins.has_consented("a", "ada", "c_app", &digest);
        known.await.unwrap()
    };
    let consent = async || logins.consent("a", "ada", "c_app", &digest).await.unwrap();
    consent().await;
    for (asked_ms, is_issued) in [(BEGIN + 1, true), (BEGIN, false), (BEGIN + 1, false)] {
        let number = u8::try_from(asked_ms - BEGIN).unwrap() + 10 + 2 * u8::from(is_issued);
        let new = code_of(number, "c_app");
        let added = grants.add_code("a", &new, asked_ms, Some(&digest)).await;
        assert_eq!(added.unwrap(), is_issued, "{asked_ms}");
        assert_eq!(consented().await, is_issued);
    }
    // Codes that wait when the consent is taken back; that of another grant has to be known when it comes again.
    let ended = granted(&store, &code_of(4, "c_app"), &[4; 32]).await;
    granted(&store, &code_of(5, "c_app"), &[5; 32]).await;
    let consent = Revoked::Consent(ended);
    assert!(revocations.revoke("a", &consent).await.unwrap());
    let mut known = Vec::new();
    for number in 2..=5 {
        let taken = grants.take_code("a", &[number; 32]).await.unwrap();
        known.push(taken != TakenCode::Unknown);
    }
    assert_eq!(known, [false, true, false, true]);
}

/// A consent that is stored while its user is removed.
async fn no_consent_is_left_to_the_next_person_of_a_name(place: Place) {
    let [store, _] = open(&place).await;
    let (grants, logins, digest) = (store.grants(), store.logins(), [7; 32]);
    let removed = Revoked::Subject("ada".to_owned());
    store.revocations().revoke("a", &removed).await.unwrap();
    for (number, auth_ms, is_issued) in [(1, BEGIN, false), (2, BEGIN + 1, true)] {
        let consent = logins.consent("a", "ada", "c_app", &digest);
        consent.await.unwrap();
        let mut new = code(number);
        new.grant.auth_ms = auth_ms;
        let added = grants.add_code("a", &new, BEGIN + 2, Some(&digest)).await;
        assert_eq!(added.unwrap(), is_issued, "{number}");
        let known = logins.has_consented("a", "ada", "c_app", &digest).await;
        assert_eq!(known.unwrap(), is_issued, "{number}");
    }
}

async fn the_grants_with_the_newest_tokens_come_first(place: Place) {
    let [store, _] = open(&place).await;
    let mut ids = Vec::new();
    for number in 1..=3 {
        ids.push(granted(&store, &code(number), &[number; 32]).await);
        later(&place, SECOND);
    }
    let next = succession(&[1; 32], 1);
    let used = store
        .grants()
        .refresh("a", ("c_app", None), &[1; 32], &next);
    used.await.unwrap();
    let of_ada = GrantFilter {
        subject: Some("ada"),
        ..GrantFilter::default()
    };
    let newest = store.grants().newest("a", of_ada, 2).await.unwrap();
    let newest: Vec<Uuid> = newest.iter().map(|listed| listed.grant.id).collect();
    assert_eq!(newest, [ids[0], ids[2]]);
    // One that is not among them is found, by its own subject.
    for (tenant, subject, is_there) in
        [("a", "ada", true), ("a", "eve", false), ("b", "ada", false)]
    {
        let found = store.grants().of_subject(tenant, subject, ids[1]).await;
        assert_eq!(found.unwrap().is_some(), is_there, "{tenant} {subject}");
    }
}

const FAMILY: [u8; 32] = [77; 32];

/// Begins a grant whose refresh tokens are of [`FAMILY`]; the first one is `[1; 32]`.
async fn granted_family(store: &Database, code: &NewCode) {
    let (grants, mut first) = (store.grants(), refresh(&[1; 32]));
    first.family = Some(FAMILY);
    let added = grants.add_code("a", code, BEGIN + 1, None).await;
    assert!(added.unwrap());
    grants.take_code("a", &code.hash).await.unwrap();
    assert!(grants.start("a", code, &first).await.unwrap());
}

/// Uses a refresh token of [`FAMILY`]; its successor.
async fn next_of_family(store: &Database, token: [u8; 32], jkt: Option<&str>) -> [u8; 32] {
    let mut next = succession(&token, 1);
    next.successor.family = Some(FAMILY);
    let grants = store.grants();
    let used = grants.refresh("a", ("c_app", jkt), &token, &next).await;
    assert!(matches!(used, Ok(Refreshed::Good { .. })), "{used:?}");
    next.successor.hash
}

/// Whether refresh tokens are known after a sweep.
async fn known(store: &Database, tokens: &[[u8; 32]]) -> Vec<bool> {
    while store.sweep().await.unwrap() {}
    let mut known = Vec::new();
    for token in tokens {
        let found = store.grants().of_refresh("a", token).await.unwrap();
        known.push(found.is_some());
    }
    known
}

/// Each used one was kept for 30 days: millions of a grant that is refreshed on purpose.
async fn a_used_token_goes_early_and_its_family_tells_of_it(place: Place) {
    let [store, other] = open(&place).await;
    let first = code(1);
    granted_family(&store, &first).await;
    granted(&store, &code(2), &[2; 32]).await;
    later(&place, SECOND);
    let second = next_of_family(&store, [1; 32], None).await;
    let third = next_of_family(&store, second, None).await;
    // A token without a family is known by its row alone.
    let of_before = succession(&[2; 32], 1);
    let used = store
        .grants()
        .refresh("a", ("c_app", None), &[2; 32], &of_before);
    used.await.unwrap();
    let all = [[1; 32], second, third, [2; 32]];
    later(&place, (900 + 3600) * SECOND);
    assert_eq!(known(&store, &all).await, [true; 4]);
    later(&place, 1);
    let left = known(&store, &all).await;
    assert_eq!(left, [false, false, true, true]);
    let listed = store.grants().list("a", GrantFilter::default(), 9).await;
    let last = listed.unwrap().iter().map(|one| one.used_ms).min();
    assert_eq!(last, Some(BEGIN + SECOND), "the last use is known still");
    // The grant is that of the family, in its own tenant.
    let of = async |tenant: &str, family: [u8; 32]| {
        let found = other.grants().of_family(tenant, &family).await.unwrap();
        found.map(|grant| grant.id)
    };
    assert_eq!(of("a", FAMILY).await, Some(first.grant.id));
    assert_eq!(of("b", FAMILY).await, None);
    assert_eq!(of("a", [78; 32]).await, None);
    let ended = async |tenant: &str| {
        let revocations = other.revocations();
        let ended = revocations.end_of_family(tenant, first.grant.id, None);
        ended.await.unwrap()
    };
    assert!(!ended("b").await);
    assert!(revoked(&store).await.is_empty());
    assert!(ended("a").await);
    assert!(!ended("a").await, "it has ended");
    assert_eq!(revoked(&store).await, [first.grant.id].into());
    let next = succession(&third, 1);
    let refused = store
        .grants()
        .refresh("a", ("c_app", None), &third, &next)
        .await;
    assert_eq!(refused.unwrap(), Refreshed::Refused);
}

/// The end of a grant that nobody uses would be told as a theft.
async fn a_token_that_expired_unused_is_no_reuse(place: Place) {
    let [store, _] = open(&place).await;
    let first = code(1);
    granted_family(&store, &first).await;
    let mut next = succession(&[1; 32], 1);
    next.successor.family = Some(FAMILY);
    next.successor.expires_ms = BEGIN + SECOND;
    let grants = store.grants();
    let used = grants.refresh("a", ("c_app", None), &[1; 32], &next).await;
    assert!(matches!(used, Ok(Refreshed::Good { .. })), "{used:?}");
    let ended = async || {
        let revocations = store.revocations();
        let ended = revocations.end_of_family("a", first.grant.id, None);
        ended.await.unwrap()
    };
    // The used one has not expired yet.
    later(&place, SECOND);
    assert!(!ended().await);
    later(&place, DAY);
    let both = [[1; 32], next.successor.hash];
    assert_eq!(known(&store, &both).await, [false, false]);
    assert!(!ended().await);
    assert!(revoked(&store).await.is_empty());
    let grant = store.grants().of_family("a", &FAMILY).await.unwrap();
    assert!(grant.is_some(), "it has not expired");
}

/// RFC 9449, section 5.
async fn a_family_ends_by_the_key_of_its_grant(place: Place) {
    let [store, _] = open(&place).await;
    let ended = async |code: &NewCode, jkt: Option<&str>| {
        let revocations = store.revocations();
        let ended = revocations.end_of_family("a", code.grant.id, jkt);
        ended.await.unwrap()
    };
    let mut bound = code(1);
    bound.grant.jkt = Some("k".to_owned());
    granted_family(&store, &bound).await;
    next_of_family(&store, [1; 32], Some("k")).await;
    // Who has one of its tokens and not its key can do nothing with it.
    for jkt in [None, Some("l"), Some("")] {
        assert!(!ended(&bound, jkt).await, "{jkt:?}");
    }
    assert!(ended(&bound, Some("k")).await);
    // Bound by a refresh, it may have been bound by a thief.
    let pool = place.pool().await;
    pool.write("DELETE FROM grants", Vec::new()).await.unwrap();
    pool.close().await;
    let by_refresh = code(2);
    granted_family(&store, &by_refresh).await;
    next_of_family(&store, [1; 32], Some("k")).await;
    assert!(ended(&by_refresh, None).await);
}

async fn codes_that_nobody_used_go_first(place: Place) {
    let [store, _] = open(&place).await;
    let grants = store.grants();
    granted(&store, &code(1), &[1; 32]).await;
    let unused = code(2);
    let added = grants.add_code("a", &unused, BEGIN + 1, None).await;
    assert!(added.unwrap());
    let pool = place.pool().await;
    let count = async || {
        store.sweep().await.unwrap();
        let sql = "SELECT COUNT(*) AS count FROM codes";
        let rows = pool.read(sql, Vec::new()).await.unwrap();
        rows[0].get::<i64>("count").unwrap()
    };
    // Its lifetime, and a minute.
    later(&place, 120 * SECOND);
    assert_eq!(count().await, 2);
    later(&place, 1);
    assert_eq!(count().await, 1);
    let again = grants.take_code("a", &[1; 32]).await.unwrap();
    assert!(matches!(again, TakenCode::Again { .. }), "{again:?}");
    later(&place, DAY);
    assert_eq!(count().await, 0);
    pool.close().await;
}

/// They stayed for a day, and whoever used codes wrongly on purpose had as many as there was room for.
async fn used_codes_without_a_grant_go_early(place: Place) {
    let [store, _] = open(&place).await;
    let (grants, late) = (store.grants(), code(3));
    granted(&store, &code(1), &[1; 32]).await;
    for new in [&code(2), &late] {
        let added = grants.add_code("a", new, BEGIN + 1, None).await;
        assert!(added.unwrap());
        grants.take_code("a", &new.hash).await.unwrap();
    }
    // Their lifetime, and a minute.
    later(&place, 120 * SECOND);
    store.sweep().await.unwrap();
    let begun = grants.start("a", &late, &refresh(&[3; 32])).await;
    assert!(begun.unwrap());
    later(&place, 1);
    store.sweep().await.unwrap();
    for (number, is_kept) in [(1, true), (2, false), (3, true)] {
        let again = grants.take_code("a", &[number; 32]).await.unwrap();
        let is_known = matches!(again, TakenCode::Again { .. });
        assert_eq!(is_known, is_kept, "{number}: {again:?}");
    }
}

/// Adds 5,000 codes of a tenant, each of a grant, a person, a client and a session of its own.
async fn add_codes(transaction: &mut Transaction, is_sqlite: bool) {
    let (hash, id) = if is_sqlite {
        ("CAST(n AS BLOB)", "CAST(n AS BLOB)")
    } else {
        let hash = "DECODE(MD5(CAST(n AS TEXT)), 'hex')";
        (hash, "CAST(MD5(CAST(n AS TEXT)) AS UUID)")
    };
    let add = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
         INSERT INTO codes (hash, tenant, grant_id, subject, groups, client_id, resource, scope,
                            session, auth_ms, grant_ms, redirect_uri, challenge, expires_ms)
         SELECT {hash}, 'a', {id}, CAST(n AS TEXT), '[]', CAST(n AS TEXT), '', '',
                CAST(n AS TEXT), 1, 1, '', '', 1
           FROM numbers"
    );
    let add: &'static str = add.leak();
    transaction.run(add, Vec::new()).await.unwrap();
    transaction.run_in_postgres("ANALYZE codes").await.unwrap();
}

/// A statement with its values, the index that it needs, and what is looked for there.
type Indexed = (String, Vec<Value>, (&'static str, &'static str));

fn ends_of_codes() -> Vec<Indexed> {
    let of = |more: &str| format!("DELETE FROM codes WHERE tenant = $1 AND {more}");
    let two = || vec![Value::from("a"), Value::from("7")];
    let by_subject = ("codes_by_subject", "tenant=? AND subject=?");
    let by_client = ("codes_by_client", "tenant=? AND client_id=?");
    let by_session = ("codes_by_session", "tenant=? AND session=?");
    vec![
        (
            of("grant_id = $2"),
            vec![Value::from("a"), Uuid::nil().into()],
            ("codes_by_grant", "grant_id=?"),
        ),
        (of("subject = $2"), two(), by_subject),
        (of("client_id = $2"), two(), by_client),
        (OF_SESSION[1].to_owned(), two(), by_session),
        (OF_NO_SESSION[1].to_owned(), two(), by_subject),
        (
            UNGRANTED.to_owned(),
            vec![BEGIN.into()],
            ("codes_ungranted", "ungranted_ms<?"),
        ),
    ]
}

/// What ends with codes. By another index SQLite looked at all of the tenant.
fn ends_in_sqlite() -> Vec<Indexed> {
    let of = |sql: &str, more: Vec<Value>, found: (&'static str, &'static str)| {
        let mut values = vec![Value::from("a"), Value::from("7")];
        values.extend(more);
        (sql.to_owned(), values, found)
    };
    let times = || vec![Value::from(1_i64), Value::from(1_i64)];
    let [logins, _, grants] = OF_SESSION;
    let [logins_of_none, _, grants_of_none] = OF_NO_SESSION;
    let session = "tenant=? AND session=?";
    let subject = "tenant=? AND subject=?";
    let client = "tenant=? AND client_id=?";
    let live = (
        "grants_by_client",
        "tenant=? AND client_id=? AND revoked_ms=?",
    );
    vec![
        of(logins, Vec::new(), ("logins_by_session", session)),
        of(logins_of_none, Vec::new(), ("logins_by_subject", subject)),
        of(grants, times(), ("grants_by_session", session)),
        of(grants_of_none, times(), ("grants_unrevoked", subject)),
        of(
            DELETE_CONSENTS_OF_CLIENT,
            vec![Value::from(9_i64)],
            ("consents_by_client", client),
        ),
        of(END_OF_CLIENT, vec![Value::from(9_i64); 3], live),
        of(LEFT_OF_CLIENT, Vec::new(), live),
    ]
}

/// Each revocation looked through the codes of all tenants, while no other change was made.
async fn codes_that_end_are_found_by_an_index(place: Place) {
    let _stores = open(&place).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let is_sqlite = place.postgres.is_none();
    add_codes(&mut transaction, is_sqlite).await;
    let (explain, column) = if is_sqlite {
        ("EXPLAIN QUERY PLAN", "detail")
    } else {
        ("EXPLAIN", "QUERY PLAN")
    };
    for (sql, values, (index, terms)) in ends_of_codes().into_iter().chain(ends_in_sqlite()) {
        // PostgreSQL has other plans for tables without rows.
        if !is_sqlite && !index.starts_with("codes") {
            continue;
        }
        let wanted = if is_sqlite {
            format!("{index} ({terms})")
        } else {
            format!("{index} ")
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

/// Writes more refresh tokens of a grant, each of which lasts as long as it could.
async fn add_tokens(place: &Place, grant: Uuid, count: u16) {
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    for number in 0..count {
        let mut hash = [9; 32];
        hash[..2].copy_from_slice(&number.to_be_bytes());
        let values = vec![(&hash).into(), grant.into(), (BEGIN + 90 * DAY).into()];
        let sql = "INSERT INTO refresh_tokens (hash, grant_id, expires_ms) VALUES ($1, $2, $3)";
        transaction.run(sql, values).await.unwrap();
    }
    transaction.commit().await.unwrap();
    pool.close().await;
}

/// The numbers of grants and refresh tokens.
async fn counted(place: &Place) -> [i64; 2] {
    let pool = place.pool().await;
    let mut counts = [0; 2];
    for (count, sql) in counts.iter_mut().zip([
        "SELECT COUNT(*) AS count FROM grants",
        "SELECT COUNT(*) AS count FROM refresh_tokens",
    ]) {
        let rows = pool.read(sql, Vec::new()).await.unwrap();
        *count = rows[0].get("count").unwrap();
    }
    pool.close().await;
    counts
}

/// A grant took along all its tokens in one statement, for which the time of one may be too short.
async fn tokens_go_in_parts_before_their_grant(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    granted(&store, &code(2), &[2; 32]).await;
    add_tokens(&place, id, 1500).await;
    let ended = Revoked::Grant(id);
    store.revocations().revoke("a", &ended).await.unwrap();
    later(&place, 26 * 3600 * SECOND + 1);
    assert!(store.sweep().await.unwrap(), "there are more");
    assert_eq!(counted(&place).await, [2, 502]);
    assert!(!store.sweep().await.unwrap());
    assert_eq!(counted(&place).await, [1, 1]);
}

/// A table whose rows could not be removed in time kept those of all others.
async fn a_sweep_goes_on_after_a_failure(place: Place) {
    let [store, _] = open(&place).await;
    let once = async || {
        let logins = store.logins();
        logins.use_once("a", &[1; 32], BEGIN + 1).await.unwrap()
    };
    assert!(once().await);
    let pool = place.pool().await;
    let spoil = "DROP TABLE refresh_tokens";
    pool.write(spoil, Vec::new()).await.unwrap();
    pool.close().await;
    later(&place, SECOND);
    assert!(!once().await);
    let failed = store.sweep().await;
    assert!(matches!(failed, Err(Error::Bug(_))), "{failed:?}");
    assert!(once().await, "it is not kept");
}

/// One statement for all tokens of a copy had no time for some millions.
async fn a_restored_copy_has_no_token_however_many(place: Place) {
    let [store, _] = open(&place).await;
    let id = granted(&store, &code(1), &[1; 32]).await;
    granted(&store, &code(2), &[2; 32]).await;
    add_tokens(&place, id, 1500).await;
    assert_eq!(store.end_issued().await.unwrap(), 2);
    assert_eq!(counted(&place).await, [0, 0]);
}

/// Writes grants of ada that were used last at a time.
async fn add_grants(
    place: &Place,
    (tenant, client): (&str, &str),
    (used_ms, family): (i64, Option<[u8; 32]>),
    count: usize,
) -> Vec<Uuid> {
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    for id in &ids {
        let sql = "
            INSERT INTO grants (id, tenant, subject, groups, client_id, resource, scope, auth_ms,
                                created_ms, expires_ms, family, used_ms)
            VALUES ($1, $2, 'ada', '[]', $3, 'x', '', $4, $4, $5, $6, $4)";
        let values = vec![
            (*id).into(),
            tenant.into(),
            client.into(),
            used_ms.into(),
            (BEGIN + 90 * DAY).into(),
            family.map(|family| family.to_vec()).into(),
        ];
        transaction.run(sql, values).await.unwrap();
    }
    transaction.commit().await.unwrap();
    pool.close().await;
    ids
}

fn unused(ids: &[Uuid], last_ms: i64) -> Vec<Unused> {
    ids.iter().map(|&id| Unused { id, last_ms }).collect()
}

async fn the_longest_unused_grants_give_way(place: Place) {
    let [store, _] = open(&place).await;
    let access_ms = 900 * SECOND;
    let room = async |subject: &str, client: &str| {
        let room = store.grants().room("a", (subject, client), access_ms);
        room.await.unwrap()
    };
    let (none, app) = (Room::Behind(Vec::new()), ("a", "c_app"));
    // Those without refresh tokens do not count.
    add_grants(&place, app, (BEGIN - DAY, None), 200).await;
    add_grants(&place, app, (BEGIN, Some(FAMILY)), 99).await;
    assert_eq!(room("ada", "c_app").await, none);
    let oldest = add_grants(&place, app, (BEGIN - 1, Some(FAMILY)), 1).await;
    let until_ms = BEGIN - 1 + access_ms;
    assert_eq!(room("ada", "c_app").await, Room::Full { until_ms });
    for (subject, client) in [("ada", "c_web"), ("eve", "c_app")] {
        assert_eq!(room(subject, client).await, none, "{subject} {client}");
    }
    later(&place, access_ms - 1);
    let oldest = unused(&oldest, BEGIN - 1);
    let expected = Room::Behind(oldest.clone());
    assert_eq!(room("ada", "c_app").await, expected);
    // Many began together: as many are too many, and give way some at a time.
    add_grants(&place, app, (BEGIN, Some(FAMILY)), 20).await;
    later(&place, 1);
    let Room::Before(giving_way) = room("ada", "c_app").await else {
        panic!("they are not in use")
    };
    assert_eq!((giving_way.len(), giving_way[0].id), (16, oldest[0].id));
    // One that has had a token since stays, and another ends once.
    let ends = async |unused| store.revocations().end_unused("a", unused).await.unwrap();
    let used_since = Unused {
        last_ms: giving_way[1].last_ms - 1,
        ..giving_way[1]
    };
    assert!(!ends(used_since).await);
    for unused in &giving_way[..5] {
        assert!(ends(*unused).await && !ends(*unused).await);
    }
    let after = Room::Behind(giving_way[5..].to_vec());
    let Room::Behind(more) = room("ada", "c_app").await else {
        panic!("the next one has room")
    };
    assert_eq!(Room::Behind(more[..11].to_vec()), after);
    // Neither do those that have ended.
    let end = async |client: &str| {
        let client = Revoked::Client(client.to_owned());
        store.revocations().revoke("a", &client).await.unwrap();
    };
    end("c_app").await;
    assert_eq!(room("ada", "c_app").await, none);
    // A client that begins grants to end them has only so many for a day, and others theirs.
    for (count, expected) in [(379, &none), (1, &Room::Revoked)] {
        add_grants(&place, app, (BEGIN, Some(FAMILY)), count).await;
        end("c_app").await;
        assert_eq!(room("ada", "c_app").await, *expected, "{count} more");
    }
    assert_eq!(room("ada", "c_web").await, none);
}

async fn a_person_has_only_so_many_grants(place: Place) {
    let [store, _] = open(&place).await;
    let room = async |client: &str| {
        let room = store.grants().room("b", ("ada", client), 900 * SECOND);
        room.await.unwrap()
    };
    for number in 0..9 {
        let client = format!("c_{number}");
        let used = (BEGIN + number, Some(FAMILY));
        add_grants(&place, ("b", &client), used, 98).await;
    }
    let oldest = (BEGIN - 1, Some(FAMILY));
    let oldest = add_grants(&place, ("b", "c_9"), oldest, 118).await;
    let until_ms = BEGIN - 1 + 900 * SECOND;
    assert_eq!(room("c_new").await, Room::Full { until_ms });
    later(&place, 900 * SECOND);
    let oldest = unused(&oldest, BEGIN - 1);
    assert_eq!(room("c_new").await, Room::Behind(vec![oldest[0]]));
    // Those that give way for their client do so for their person.
    let of_both = Room::Before(oldest[..16].to_vec());
    assert_eq!(room("c_9").await, of_both);
    let older = (BEGIN - 2, Some(FAMILY));
    let older = add_grants(&place, ("b", "c_10"), older, 50).await;
    let of_person = Room::Before(unused(&older[..16], BEGIN - 2));
    assert_eq!(room("c_10").await, of_person);
}

/// By many clients a person ended as many as they liked, and all replicas had each in memory.
async fn grants_that_end_within_a_day_have_a_bound_over_all_clients(place: Place) {
    let [store, _] = open(&place).await;
    let room = async |tenant: &str, subject: &str| {
        let room = store
            .grants()
            .room(tenant, (subject, "c_new"), 900 * SECOND);
        room.await.unwrap()
    };
    let none = Room::Behind(Vec::new());
    let mut all = Vec::new();
    for number in 0..11 {
        let client = format!("c_{number}");
        let count = if number < 10 { 499 } else { 10 };
        all.extend(add_grants(&place, ("a", &client), (BEGIN, Some(FAMILY)), count).await);
    }
    // Those without refresh tokens do not count.
    add_grants(&place, ("a", "c_app"), (BEGIN, None), 9).await;
    let pool = place.pool().await;
    let last = all.last().copied().unwrap();
    let end_others = "UPDATE grants SET revoked_ms = 1 WHERE id <> $1";
    pool.write(end_others, vec![last.into()]).await.unwrap();
    assert_eq!(room("a", "ada").await, none);
    let end = "UPDATE grants SET revoked_ms = 1 WHERE id = $1";
    pool.write(end, vec![last.into()]).await.unwrap();
    assert_eq!(room("a", "ada").await, Room::Revoked);
    for (tenant, subject) in [("b", "ada"), ("a", "eve")] {
        assert_eq!(room(tenant, subject).await, none, "{tenant} {subject}");
    }
    pool.close().await;
}

async fn machines_end_only_so_many_grants_within_a_day(place: Place) {
    let [store, _] = open(&place).await;
    let pool = place.pool().await;
    let asked = async |client: &str| {
        let new = of_machine(client, BEGIN);
        let begun = store.grants().of_machine("a", new, BEGIN + DAY);
        begun.await.unwrap()
    };
    for (count, may_begin) in [(4999, true), (1, false)] {
        add_grants(&place, ("a", "ci"), (BEGIN, None), count).await;
        let end = "
            UPDATE grants
               SET revoked_ms = 1, subject = $1
             WHERE client_id = 'ci' AND subject = 'ada'";
        let subject = machine_subject("ci");
        pool.write(end, vec![subject.as_str().into()])
            .await
            .unwrap();
        let begun = asked("ci").await;
        assert_eq!(
            matches!(begun, MachineGrant::New(_)),
            may_begin,
            "{begun:?}"
        );
        // One that has not ended is good for its tokens.
        let end = "UPDATE grants SET expires_ms = 1 WHERE revoked_ms IS NULL";
        if may_begin {
            assert!(matches!(asked("ci").await, MachineGrant::Known(_)));
            pool.write(end, Vec::new()).await.unwrap();
        }
    }
    assert_eq!(asked("ci").await, MachineGrant::Revoked);
    assert!(matches!(asked("cd").await, MachineGrant::New(_)));
    let left = pool.read("SELECT id FROM grants WHERE client_id = 'ci'", Vec::new());
    assert_eq!(left.await.unwrap().len(), 5001);
    pool.close().await;
}

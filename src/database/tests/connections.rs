//! Connections at rest: sealed, each in its own row, refreshed by one replica at a time.

use serde_json::json;

use super::fixture::{BEGIN, CANARY, Place, ada, beside, later, object, on_both, put};
use crate::base::Secret;
use crate::database::{ConnectionAt, Database, Error, Expected, Tokens, Value, oauth::Revoked};
use crate::declare::{Issued, Kind, ObjectName};

on_both! {
    connections_open_in_their_own_row_alone
    one_replica_at_a_time_has_the_lease_of_a_version
    a_lease_that_is_taken_is_not_tried_for
    connections_are_sealed_again_and_go_with_their_upstream
    a_connection_is_not_made_for_a_person_who_is_gone
}

const ADA: ConnectionAt<'static> = ConnectionAt {
    tenant: "acme",
    upstream: "hub",
    holder: "ada",
};
const EVE: ConnectionAt<'static> = ConnectionAt {
    holder: "eve",
    ..ADA
};

async fn declared(place: &Place) -> Database {
    let store = place.open().await;
    let issuing = object(Kind::Tenant, &json!({"auth": {"mode": "builtin"}}));
    put(&store, (ObjectName::tenant("acme"), issuing)).await;
    for name in ["hub", "other"] {
        let upstream = object(
            Kind::Upstream,
            &json!({"issuer": "https://hub.test", "client_id": "c"}),
        );
        put(
            &store,
            (ObjectName::of("acme", Kind::Upstream, name), upstream),
        )
        .await;
    }
    store
}

fn tokens(access: &str) -> Tokens {
    Tokens {
        access: Secret::new(access.to_owned()),
        refresh: Some(Secret::new(format!("{access} refresh"))),
        given_ms: 1_000,
        expires_ms: Some(9_000),
        authority: "hub".to_owned(),
    }
}

async fn connect(store: &Database, of: ConnectionAt<'_>, access: &str) {
    let kept = store.connections();
    let put = kept.put(of, &tokens(access), BEGIN, &ada()).await;
    assert!(put.unwrap());
}

async fn access(store: &Database, of: ConnectionAt<'_>) -> Result<Option<String>, Error> {
    let found = store.connections().get(of).await?;
    Ok(found.map(|found| found.tokens.access.expose().to_owned()))
}

async fn connections_open_in_their_own_row_alone(place: Place) {
    let store = declared(&place).await;
    for (of, text) in [(ADA, "of ada"), (EVE, "of eve")] {
        connect(&store, of, &format!("{CANARY} {text}")).await;
        let found = access(&store, of).await.unwrap();
        assert_eq!(found, Some(format!("{CANARY} {text}")));
    }
    assert!(!place.holds(CANARY));
    let other = ConnectionAt {
        upstream: "other",
        ..ADA
    };
    let pool = place.pool().await;
    for moved in [
        "UPDATE connections SET value = (SELECT value FROM connections WHERE holder = 'eve') WHERE holder = $1",
        "UPDATE connections SET upstream = 'other' WHERE holder = $1",
    ] {
        pool.write(moved, vec![Value::from("ada")]).await.unwrap();
        for of in [ADA, other] {
            let found = access(&store, of).await;
            assert!(matches!(found, Ok(None) | Err(Error::Bug(_))), "{moved}");
        }
    }
    pool.close().await;
    let nowhere = ConnectionAt {
        upstream: "none",
        ..ADA
    };
    let kept = store.connections();
    let refused = kept.put(nowhere, &tokens("x"), BEGIN, &ada()).await;
    assert!(matches!(refused, Err(Error::NotFound)));
}

async fn one_replica_at_a_time_has_the_lease_of_a_version(place: Place) {
    let store = declared(&place).await;
    let issued = store.issued();
    let (start, from) = issued.newer((&Issued::default(), 0)).await.unwrap();
    connect(&store, ADA, "first").await;
    let kept = store.connections();
    let first = kept.get(ADA).await.unwrap().unwrap();
    assert_eq!(
        first.tokens.refresh_ms(),
        Some(7_000),
        "a quarter of its life before the end"
    );
    let until_ms = i64::MAX;
    assert!(kept.lease(ADA, &first, until_ms).await.unwrap());
    assert!(!kept.lease(ADA, &first, until_ms).await.unwrap());
    kept.end_lease(ADA, first.version, 0).await.unwrap();
    assert!(kept.lease(ADA, &first, until_ms).await.unwrap());
    assert!(
        kept.refreshed(ADA, first.version, &tokens("second"))
            .await
            .unwrap()
    );
    // What another replica knows is an old version now.
    assert!(
        !kept
            .refreshed(ADA, first.version, &tokens("late"))
            .await
            .unwrap()
    );
    assert!(!kept.lease(ADA, &first, until_ms).await.unwrap());
    assert!(
        !kept
            .remove(ADA, Some(first.version), "upstream.expired", &ada())
            .await
            .unwrap()
    );
    let second = kept.get(ADA).await.unwrap().unwrap();
    assert_eq!(second.tokens.access.expose(), "second");
    assert!(second.version > first.version);
    assert!(kept.lease(ADA, &second, until_ms).await.unwrap());
    // One of two replicas asks about the token.
    assert!(kept.check(ADA, second.version, i64::MAX).await.unwrap());
    assert!(!kept.check(ADA, second.version, 0).await.unwrap());
    assert!(
        kept.remove(ADA, None, "upstream.disconnected", &ada())
            .await
            .unwrap()
    );
    assert!(
        !kept
            .remove(ADA, None, "upstream.disconnected", &ada())
            .await
            .unwrap()
    );
    let (after, to) = issued.newer((&start, from)).await.unwrap();
    assert_eq!(to, from + 3);
    let numbers: Vec<_> = after.secrets.keys().copied().collect();
    assert_eq!(numbers[..2], [first.version, second.version]);
}

/// Starts that waited for a refresh took a connection for a write ten times a second each.
async fn a_lease_that_is_taken_is_not_tried_for(place: Place) {
    let store = declared(&place).await;
    connect(&store, ADA, "first").await;
    let kept = store.connections();
    let read = async || kept.get(ADA).await.unwrap().unwrap();
    let first = read().await;
    assert!(!first.is_leased(BEGIN));
    assert!(kept.lease(ADA, &first, BEGIN + 10).await.unwrap());
    let held = read().await;
    assert!(held.is_leased(BEGIN) && !held.is_leased(BEGIN + 10));
    kept.end_lease(ADA, held.version, 0).await.unwrap();
    // It would get the lease now, if it tried.
    assert!(!kept.lease(ADA, &held, BEGIN + 20).await.unwrap());
    let free = read().await;
    assert!(kept.lease(ADA, &free, BEGIN + 20).await.unwrap());
    // The time alone ends it as well.
    let held = read().await;
    later(&place, 20);
    assert!(kept.lease(ADA, &held, BEGIN + 40).await.unwrap());
}

async fn connections_are_sealed_again_and_go_with_their_upstream(place: Place) {
    let store = declared(&place).await;
    // More than are read at once.
    for at in 0..110 {
        let holder = format!("person {at}");
        connect(
            &store,
            ConnectionAt {
                holder: &holder,
                ..ADA
            },
            &format!("token {at}"),
        )
        .await;
    }
    store.rotate().await.unwrap();
    store.close().await;
    let store = place.open().await;
    for at in [0, 99, 100, 109] {
        let holder = format!("person {at}");
        let found = access(
            &store,
            ConnectionAt {
                holder: &holder,
                ..ADA
            },
        )
        .await;
        assert_eq!(found.unwrap(), Some(format!("token {at}")));
    }
    let hub = ObjectName::of("acme", Kind::Upstream, "hub");
    let removed = store.objects().delete(&hub, Expected::Any, &ada()).await;
    removed.unwrap();
    let of = ConnectionAt {
        holder: "person 0",
        ..ADA
    };
    assert_eq!(access(&store, of).await.unwrap(), None);
}

/// A user who is removed while the upstream is asked for the tokens, and another one of that name.
async fn a_connection_is_not_made_for_a_person_who_is_gone(place: Place) {
    let store = declared(&place).await;
    later(&place, 10);
    let gone = Revoked::Subject("ada".to_owned());
    store.revocations().revoke("acme", &gone).await.unwrap();
    later(&place, 10);
    let kept = store.connections();
    for (auth_ms, is_kept) in [(BEGIN, false), (BEGIN + 10, false), (BEGIN + 20, true)] {
        let put = kept.put(ADA, &tokens("x"), auth_ms, &ada()).await;
        assert_eq!(put.unwrap(), is_kept, "{auth_ms}");
        assert_eq!(access(&store, ADA).await.unwrap().is_some(), is_kept);
    }
    connect(&store, EVE, "of another person").await;
}

/// A rotated refresh token whose successor is lost ends the connection.
#[tokio::test]
async fn refreshed_tokens_are_kept_beside_a_change_of_the_same_connection() {
    let place = Place::postgres();
    let store = declared(&place).await;
    connect(&store, ADA, "first").await;
    let kept = store.connections();
    let known = kept.get(ADA).await.unwrap().unwrap();
    let (sql, new) = (
        "UPDATE connections SET checked_ms = checked_ms",
        tokens("second"),
    );
    assert!(beside(&place, sql, kept.refreshed(ADA, known.version, &new)).await);
    let found = access(&store, ADA).await.unwrap();
    assert_eq!(found.as_deref(), Some("second"));
    let author = ada();
    let removed = kept.remove(ADA, None, "upstream.disconnected", &author);
    assert!(beside(&place, sql, removed).await);
}

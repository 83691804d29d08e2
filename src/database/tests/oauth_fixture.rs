//! Fixture: authorization servers of two tenants, with codes, tokens, people and clients.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use serde_json::json;
use uuid::Uuid;

use super::fixture::Place;
use crate::database::oauth::{
    Grant, NewCode, NewRefresh, Person, Registered, Succession, TakenCode,
};
use crate::database::{Author, Database, Expected};
use crate::declare::{Issued, Kind, Object, ObjectName};

pub(super) const SECOND: i64 = 1000;
pub(super) const DAY: i64 = 24 * 3600 * SECOND;
/// The start of the tests' clocks.
pub(super) const BEGIN: i64 = 1_000_000;

pub(super) async fn add_tenant(store: &Database, name: &str) {
    let spec = json!({"auth": {"mode": "none"}});
    let object = Object::new(Kind::Tenant, spec.as_object().unwrap().clone());
    let name = ObjectName::tenant(name);
    let author = Author::named("ada");
    let put = store.objects().put(&name, object, Expected::Any, &author);
    put.await.unwrap();
}

pub(super) async fn open(place: &Place) -> [Database; 2] {
    place.now_ms.store(BEGIN, Ordering::Relaxed);
    let stores = [place.open().await, place.open().await];
    add_tenant(&stores[0], "a").await;
    add_tenant(&stores[0], "b").await;
    stores
}

pub(super) fn later(place: &Place, ms: i64) {
    place.now_ms.fetch_add(ms, Ordering::Relaxed);
}

pub(super) fn code(number: u8) -> NewCode {
    NewCode {
        hash: [number; 32],
        grant: Grant {
            id: Uuid::now_v7(),
            subject: "ada".to_owned(),
            groups: vec!["staff".to_owned()],
            client_id: "c_app".to_owned(),
            resource: "https://gw.test/t/a/x/mcp".to_owned(),
            scope: "r w".to_owned(),
            session: None,
            jkt: None,
            auth_ms: BEGIN,
            expires_ms: BEGIN + 90 * DAY,
        },
        redirect_uri: "https://app.test/cb".to_owned(),
        challenge: "c".repeat(43),
        expires_ms: BEGIN + 60 * SECOND,
    }
}

pub(super) fn refresh(text: &[u8; 32]) -> NewRefresh {
    let expires_ms = BEGIN + 30 * DAY;
    let hash = *text;
    NewRefresh { hash, expires_ms }
}

/// The succession of a refresh token, whose successor depends on the salt.
pub(super) fn succession(of: &[u8; 32], salt: u8) -> Succession {
    Succession {
        salt: [salt; 32],
        successor: refresh(&successor(of, salt)),
        grace_ms: 60 * SECOND,
    }
}

pub(super) fn successor(of: &[u8; 32], salt: u8) -> [u8; 32] {
    let mut hash = *of;
    hash[0] ^= 0x80;
    hash[1] = hash[1].wrapping_add(1);
    hash[2] = salt;
    hash
}

/// Begins a grant with its first refresh token; returns its id.
pub(super) async fn granted(store: &Database, code: &NewCode, token: &[u8; 32]) -> Uuid {
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

pub(super) async fn revoked(store: &Database) -> HashSet<Uuid> {
    let (issued, _) = store.issued().newer((&Issued::default(), 0)).await.unwrap();
    let of = issued.revoked.get("a");
    of.map(|of| of.grants.keys().copied().collect())
        .unwrap_or_default()
}

pub(super) fn person(subject: &str) -> Person {
    Person {
        subject: subject.to_owned(),
        title: subject.to_owned(),
        groups: Vec::new(),
        provider: None,
        session: None,
        auth_ms: BEGIN,
        password: Some([7; 32]),
    }
}

pub(super) fn registered(id: &str) -> Registered {
    Registered {
        client_id: id.to_owned(),
        metadata: "{}".to_owned(),
        secret_hash: None,
        access_hash: [1; 32],
        created_ms: BEGIN,
        expires_ms: BEGIN + 3600 * SECOND,
    }
}

//! Secrets in slots at rest: sealed, each in its own row, numbered for replicas.

use std::{num::NonZeroU64, sync::Arc};

use super::fixture::{
    BEGIN, CANARY, Place, ada, beside, later, manifest, on_both, put, server, tenant,
};
use crate::base::Secret;
use crate::config::Wrong;
use crate::database::{
    Database, Error, Expected, Filter, HolderAt, Judge, Record, Value, oauth::Revoked,
};
use crate::declare::{Issued, Prune, SecretChange, When};

on_both! {
    secrets_open_in_their_own_row_alone
    secrets_are_sealed_again_with_a_new_master_key
    changes_of_secrets_are_numbered_and_recorded
    restarts_of_servers_are_numbered_and_recorded
    secrets_count_among_the_objects_of_their_tenant
    changes_of_objects_count_secrets
    a_secret_is_not_set_by_a_person_who_is_gone
}

const ADA: HolderAt<'static> = HolderAt {
    tenant: "acme",
    server: "files",
    holder: Some("ada"),
};
const EVE: HolderAt<'static> = HolderAt {
    holder: Some("eve"),
    ..ADA
};
const ALL: HolderAt<'static> = HolderAt {
    holder: None,
    ..ADA
};

async fn declared(place: &Place) -> Database {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    for name in ["files", "other"] {
        put(&store, server("acme", name, "x")).await;
    }
    store
}

async fn set(store: &Database, of: HolderAt<'_>, value: &str) {
    let value = Secret::new(value.to_owned());
    store
        .secrets()
        .put(of, "TOKEN", (&value, None), None, &ada())
        .await
        .unwrap();
}

async fn value(store: &Database, of: HolderAt<'_>) -> Result<Option<String>, Error> {
    let found = store.secrets().values(of).await?;
    let kept = if of.holder.is_some() {
        found.own
    } else {
        found.of_tenant
    };
    Ok(kept.get("TOKEN").map(|value| value.expose().to_owned()))
}

async fn secrets_open_in_their_own_row_alone(place: Place) {
    let store = declared(&place).await;
    for (of, text) in [(ADA, "of ada"), (EVE, "of eve"), (ALL, "of all")] {
        set(&store, of, &format!("{CANARY} {text}")).await;
    }
    for (of, text) in [(ADA, "of ada"), (EVE, "of eve"), (ALL, "of all")] {
        let found = value(&store, of).await.unwrap();
        assert_eq!(found, Some(format!("{CANARY} {text}")));
    }
    let other = HolderAt {
        server: "other",
        ..ADA
    };
    assert_eq!(value(&store, other).await.unwrap(), None);
    assert!(!place.holds(CANARY));
    let pool = place.pool().await;
    for moved in [
        "UPDATE secrets SET value = (SELECT value FROM secrets WHERE holder = 'eve') WHERE holder = $1",
        "UPDATE secrets SET server = 'other' WHERE holder = $1",
    ] {
        pool.write(moved, vec![Value::from("ada")]).await.unwrap();
        for of in [ADA, other] {
            let found = value(&store, of).await;
            assert!(matches!(found, Ok(None) | Err(Error::Bug(_))), "{moved}");
        }
    }
    pool.close().await;
}

async fn secrets_are_sealed_again_with_a_new_master_key(place: Place) {
    let store = declared(&place).await;
    // More than are read at once.
    for at in 0..210 {
        let holder = format!("person {at}");
        let of = HolderAt {
            holder: Some(&holder),
            ..ADA
        };
        set(&store, of, &format!("value {at}")).await;
    }
    store.rotate().await.unwrap();
    store.close().await;
    let store = place.open().await;
    for at in [0, 99, 100, 101, 209] {
        let holder = format!("person {at}");
        let of = HolderAt {
            holder: Some(&holder),
            ..ADA
        };
        let found = value(&store, of).await.unwrap();
        assert_eq!(found, Some(format!("value {at}")));
    }
}

async fn restarts_of_servers_are_numbered_and_recorded(place: Place) {
    let store = declared(&place).await;
    let issued = store.issued();
    let (start, from) = issued.newer((&Issued::default(), 0)).await.unwrap();
    let record = Record::new(
        Some("acme"),
        "server.restarted",
        "key x",
        "server acme/files",
        serde_json::json!({}),
    );
    for is_now in [false, true] {
        let secrets = store.secrets();
        let restarted = secrets.restart(["acme", "files"], is_now, &record).await;
        restarted.unwrap();
    }
    // As another replica reads them.
    let (after, to) = issued.newer((&start, from)).await.unwrap();
    assert_eq!(to, from + 2);
    let found: Vec<_> = after.secrets.values().cloned().collect();
    let wanted = [false, true].map(|is_now| SecretChange {
        tenant: "acme".to_owned(),
        server: "files".to_owned(),
        is_now,
        ..SecretChange::default()
    });
    assert_eq!(found, wanted);
    let audit = store.audit();
    let page = audit.page(&Filter::default(), None, 100).await.unwrap();
    let records = page.entries.iter().map(|entry| &entry.record);
    let restarts = records.filter(|one| one.kind == "server.restarted");
    assert_eq!(restarts.count(), 2);
}

async fn changes_of_secrets_are_numbered_and_recorded(place: Place) {
    let store = declared(&place).await;
    let issued = store.issued();
    let (start, from) = issued.newer((&Issued::default(), 0)).await.unwrap();
    set(&store, ADA, "1").await;
    set(&store, ADA, "1").await;
    set(&store, ALL, "2").await;
    assert!(store.secrets().remove(ADA, "TOKEN", &ada()).await.unwrap());
    assert!(!store.secrets().remove(ADA, "TOKEN", &ada()).await.unwrap());
    let (after, to) = issued.newer((&start, from)).await.unwrap();
    assert_eq!(to, from + 3, "the same value again is no change");
    let change = |of: HolderAt<'_>| SecretChange {
        tenant: of.tenant.to_owned(),
        server: of.server.to_owned(),
        holder: of.holder.map(str::to_owned),
        upstream: None,
        is_now: false,
    };
    let found: Vec<_> = after.secrets.values().cloned().collect();
    assert_eq!(found, [change(ADA), change(ALL), change(ADA)]);
    let page = store
        .audit()
        .page(&Filter::default(), None, 100)
        .await
        .unwrap();
    let records = page.entries.iter().map(|entry| &entry.record);
    let records = records.filter(|record| record.kind.starts_with("secret."));
    let records: Vec<_> = records
        .map(|record| {
            format!(
                "{} {} {}",
                record.kind, record.target, record.detail["holder"]
            )
        })
        .collect();
    let target = "secret acme/files/TOKEN";
    let wanted = [
        format!("secret.removed {target} \"ada\""),
        format!("secret.set {target} null"),
        format!("secret.set {target} \"ada\""),
    ];
    assert_eq!(records, wanted);
    // Without the server there is no slot.
    let nowhere = HolderAt {
        server: "none",
        ..ADA
    };
    let value = Secret::new("x".to_owned());
    let refused = store
        .secrets()
        .put(nowhere, "TOKEN", (&value, None), None, &ada())
        .await;
    assert!(matches!(refused, Err(Error::NotFound)));
}

/// A tenant had 20,000 of them beside the objects that its quota permits.
async fn secrets_count_among_the_objects_of_their_tenant(place: Place) {
    let store = declared(&place).await;
    let (value, quota) = (Secret::new("x".to_owned()), NonZeroU64::new(4));
    let set = async |of, name| {
        let secrets = store.secrets();
        secrets.put(of, name, (&value, None), quota, &ada()).await
    };
    set(ADA, "TOKEN").await.unwrap();
    set(ALL, "TOKEN").await.unwrap();
    let refused = set(EVE, "TOKEN").await;
    assert!(
        matches!(&refused, Err(Error::Invalid(found)) if found[0].to_string()
            .contains("tenants.acme.quotas.objects: permits 4 objects, and there would be 5")),
        "{refused:?}"
    );
    assert_eq!(store.secrets().count("acme").await.unwrap(), 2);
    set(ADA, "TOKEN").await.unwrap();
    // Those of another tenant are its own.
    put(&store, tenant("other")).await;
    put(&store, server("other", "files", "x")).await;
    let other = HolderAt {
        tenant: "other",
        ..ADA
    };
    set(other, "TOKEN").await.unwrap();
    let author = ada();
    assert!(store.secrets().remove(ADA, "TOKEN", &author).await.unwrap());
    set(EVE, "TOKEN").await.unwrap();
}

/// A user who is removed while the form is on its way, and another one of that name.
async fn a_secret_is_not_set_by_a_person_who_is_gone(place: Place) {
    let store = declared(&place).await;
    later(&place, 10);
    let gone = Revoked::Subject("ada".to_owned());
    store.revocations().revoke("acme", &gone).await.unwrap();
    later(&place, 10);
    let (secret, author) = (Secret::new("x".to_owned()), ada());
    for (auth_ms, is_set) in [(BEGIN, false), (BEGIN + 10, false), (BEGIN + 20, true)] {
        let given = (&secret, Some(auth_ms));
        let put = store
            .secrets()
            .put(ADA, "TOKEN", given, None, &author)
            .await;
        assert_eq!(put.is_ok(), is_set, "{auth_ms}");
        assert!(is_set || matches!(put, Err(Error::NotFound)));
        assert_eq!(value(&store, ADA).await.unwrap().is_some(), is_set);
    }
    let another = (&secret, Some(BEGIN));
    store
        .secrets()
        .put(EVE, "TOKEN", another, None, &author)
        .await
        .unwrap();
}

/// A change is judged with the secrets that count beside its objects.
async fn changes_of_objects_count_secrets(place: Place) {
    let mut opening = place.opening();
    let judge: Judge = Arc::new(|manifest, when| {
        let secrets = manifest.others.secrets.get("acme").copied();
        let wrong = Wrong::new(format!("{secrets:?} secrets"), "none");
        let is_counted = secrets.is_some() && when != When::Serving;
        is_counted
            .then(|| wrong.at("judge", "x"))
            .into_iter()
            .collect()
    });
    opening.judge = judge;
    let store = Database::open(opening).await.unwrap();
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "files", "x")).await;
    set(&store, ADA, "x").await;
    set(&store, EVE, "x").await;
    let (name, object) = server("acme", "files", "y");
    let objects = store.objects();
    let put = objects.put(&name, object, Expected::Any, &ada()).await;
    let wanted = manifest("tenants: {acme: {servers: {files: {command: cat}}}}");
    let planned = objects.plan(&wanted, Prune::Keep).await;
    let applied = objects.apply(&wanted, Prune::Keep, &ada()).await;
    for refused in [put.map(drop), planned.map(drop), applied.map(drop)] {
        let is_told = matches!(&refused, Err(Error::Invalid(found)) if found[0].to_string().contains("Some(2)"));
        assert!(is_told, "{refused:?}");
    }
}

#[tokio::test]
async fn a_secret_is_removed_beside_a_change_of_it() {
    let place = Place::postgres();
    let store = declared(&place).await;
    set(&store, ADA, "x").await;
    let (sql, author) = ("UPDATE secrets SET updated_ms = updated_ms", ada());
    let removed = store.secrets().remove(ADA, "TOKEN", &author);
    assert!(beside(&place, sql, removed).await);
    assert_eq!(value(&store, ADA).await.unwrap(), None);
}

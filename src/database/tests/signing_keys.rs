//! Signing keys of authorization servers.

use std::collections::HashSet;

use futures_util::future::join_all;

use super::fixture::{DAY, Place, SECOND, beside, later, on_both, open};
use crate::config::{Config, Sources};
use crate::database::oauth::Schedule;
use crate::database::{Author, Error, Filter};
use crate::declare::Issued;

on_both! {
    a_tenant_has_one_first_key
    signing_keys_are_rotated
    a_removed_signing_key_is_replaced_at_once
    signing_keys_survive_a_new_master_key
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
        // The PKCS#8 form of an Ed25519 key has the algorithm's OID, and may have the public key.
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
async fn signing_keys_are_rotated(place: Place) {
    let stores = open(&place).await;
    let author = Author::named("operator:first");
    let old = stores[0].signing_keys().current("a").await.unwrap().kid;
    // A young key is not rotated. An old key is rotated once, even by two replicas at once.
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
    // The old key stays published until the last token that it may have signed has expired.
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

async fn a_removed_signing_key_is_replaced_at_once(place: Place) {
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
    // Other replicas drop their cached keys once they have read the change.
    assert_eq!(other.signing_keys().current("a").await.unwrap().kid, second);
    // A waiting key replaces a removed key. If the waiting key is removed, the current one does not
    // retire.
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

async fn signing_keys_survive_a_new_master_key(place: Place) {
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

#[tokio::test]
async fn retired_keys_are_removed_beside_a_change_of_them() {
    let place = Place::postgres();
    let [store, _] = open(&place).await;
    let keys = store.signing_keys();
    keys.current("a").await.unwrap();
    let author = Author::named("ada");
    keys.rotate("a", schedule(), &author).await.unwrap();
    later(&place, 10 * DAY);
    beside(&place, "UPDATE signing_keys SET kid = kid", store.sweep()).await;
    assert_eq!(keys.list("a").await.unwrap().len(), 1);
}

//! Secrets at rest: sealed values, password hashes and the master key.

use serde_json::json;

use super::fixture::{
    CANARY, Place, ada, lines, manifest, object, on_both, put, server, tenant, token,
};
use crate::base::Secret;
use crate::database::vault::{KeySource, Keyring, MasterKey};
use crate::database::{Database, Error, Expected, Filter, Opening, Value};
use crate::declare::{AuthMode, Declared, Kind, ObjectName, Prune, When, password};

on_both! {
    no_secret_is_stored_in_the_clear
    a_password_is_stored_as_its_hash_and_only_once
    an_unacceptable_password_is_not_stored
    a_sealed_value_in_another_row_does_not_open
    another_master_key_is_refused
    a_master_key_file_is_rotated_under_an_open_database
    objects_are_sealed_again_with_a_new_master_key
    configured_master_keys_are_rotated_to_the_first
}

async fn no_secret_is_stored_in_the_clear(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "files", "plain-5b1f0c9d")).await;
    put(&store, server("acme", "files", "plain-again")).await;
    let is_there = |text: &str| place.holds(text);
    assert_eq!(
        token(&store, "acme", "files").await,
        Some(json!(format!("{CANARY}-files")))
    );
    // PostgreSQL writes its WAL at each commit, so the plain argument shows that `holds` searches
    // the right files.
    assert!(is_there("plain-5b1f0c9d"));
    assert!(!is_there(CANARY));
    store.close().await;
    assert!(!is_there(CANARY));
}

fn with_password(password: &str) -> Declared {
    manifest(&format!(
        "tenants: {{acme: {{users: {{ada: {{password: \"{password}\"}}, bob: {{groups: [g]}}}}}}}}"
    ))
}

/// The hash of ada's password, which is the only stored form of it.
async fn password_hash(store: &Database) -> String {
    let name = ObjectName::of("acme", Kind::User, "ada");
    let secret = store
        .objects()
        .get(&name)
        .await
        .unwrap()
        .unwrap()
        .object
        .secret
        .0;
    let members: Vec<&String> = secret.keys().collect();
    assert_eq!(members, ["password_hash"]);
    let hash = secret["password_hash"].as_str().unwrap();
    hash.replace("$$", "$")
}

#[expect(clippy::too_many_lines, reason = "one promise, told in order")]
async fn a_password_is_stored_as_its_hash_and_only_once(place: Place) {
    let store = place.open().await;
    let objects = store.objects();
    let (first, second) = (format!("{CANARY}$$1"), format!("{CANARY}-2"));
    let wanted = with_password(&first);
    let planned = objects.plan(&wanted, Prune::Keep).await.unwrap();
    let applied = objects.apply(&wanted, Prune::Keep, &ada()).await.unwrap();
    assert_eq!(planned, applied);
    assert_eq!(
        lines(&applied),
        ["+ tenant acme", "+ user acme/ada", "+ user acme/bob"]
    );
    let (hash, version) = (
        password_hash(&store).await,
        objects.version().await.unwrap(),
    );
    assert_eq!(
        password::verify("a", Some(&hash), &format!("{CANARY}$1")).await,
        Some(true)
    );
    assert_eq!(
        password::verify("a", Some(&hash), &first).await,
        Some(false)
    );
    // The same password again, in a manifest or in a single object, is no change. A new hash would
    // have a new salt, and would invalidate tokens for no reason.
    assert!(
        objects
            .plan(&wanted, Prune::Remove)
            .await
            .unwrap()
            .is_empty()
    );
    let again = objects.apply(&wanted, Prune::Remove, &ada()).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
    let name = ObjectName::of("acme", Kind::User, "ada");
    let alone = object(Kind::User, &json!({"password": first}));
    put(&store, (name.clone(), alone)).await;
    assert_eq!(objects.version().await.unwrap(), version);
    assert_eq!(password_hash(&store).await, hash);
    // Another password is a change. A plan reports it, and does not make it.
    let wanted = with_password(&second);
    let changed = ["~ user acme/ada: password_hash"];
    let planned = objects.plan(&wanted, Prune::Keep).await.unwrap();
    assert_eq!(lines(&planned), changed);
    assert_eq!(password_hash(&store).await, hash);
    let applied = objects.apply(&wanted, Prune::Keep, &ada()).await.unwrap();
    assert_eq!(lines(&applied), changed);
    let new = password_hash(&store).await;
    assert_eq!(password::verify("a", Some(&new), &second).await, Some(true));
    assert_eq!(
        password::verify("a", Some(&new), &format!("{CANARY}$1")).await,
        Some(false)
    );
    // The hash is served as stored, and shown as null.
    let loaded = objects.load().await.unwrap();
    let served = objects.judged(&loaded, When::Serving).await.unwrap();
    let AuthMode::Builtin(builtin) = &served.catalog.tenants["acme"].auth else {
        panic!()
    };
    assert_eq!(
        builtin.users["ada"].password.as_ref().unwrap().expose(),
        new
    );
    assert!(builtin.users["bob"].password.is_none());
    let stored = objects.get(&name).await.unwrap().unwrap();
    assert_eq!(stored.object.shown(), json!({"password_hash": null}));
    let all = store
        .audit()
        .page(&Filter::default(), None, 100)
        .await
        .unwrap();
    assert!(!format!("{all:?} {loaded:?} {served:?}").contains(CANARY));
    store.close().await;
    assert!(place.holds("acme"), "it looks in the right place");
    assert!(!place.holds(CANARY) && !place.holds("argon2id"));
    assert!(!format!("{loaded:?} {served:?}").contains("argon2id"));
}

async fn an_unacceptable_password_is_not_stored(place: Place) {
    let store = place.open().await;
    put(
        &store,
        (ObjectName::tenant("acme"), object(Kind::Tenant, &json!({}))),
    )
    .await;
    let name = ObjectName::of("acme", Kind::User, "ada");
    let hash = "$$argon2id$$v=19$$m=19456,t=2,p=1$$c2FsdHNhbHRzYWx0$$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (wrong, key) in [
        (json!({"password": "short"}), "password"),
        (json!({"password": "a $ alone is none"}), "password"),
        (json!({"password": "${env:HOME} and more"}), "password"),
        (json!({"password": 12_345_678}), "password"),
        (json!({"password": null}), "password_hash"),
        (json!({"password_hash": null}), "password_hash"),
        (json!({"password_hash": "$$1$$x"}), "password_hash"),
        (
            json!({"password": "long enough", "password_hash": hash}),
            "password_hash",
        ),
    ] {
        let put = store
            .objects()
            .put(&name, object(Kind::User, &wrong), Expected::Any, &ada())
            .await;
        let Err(Error::Invalid(mistakes)) = put else {
            panic!("{wrong}: {put:?}")
        };
        let wanted = format!("tenants.acme.users.ada.{key}");
        assert_eq!((mistakes.len(), &mistakes[0].key), (1, &wanted), "{wrong}");
    }
    assert!(store.objects().get(&name).await.unwrap().is_none());
    let given = object(Kind::User, &json!({"password_hash": hash}));
    put(&store, (name, given)).await;
    assert_eq!(password_hash(&store).await, hash.replace("$$", "$"));
}

async fn a_sealed_value_in_another_row_does_not_open(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "a", "")).await;
    put(&store, server("acme", "b", "")).await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let swap = "
        UPDATE servers
           SET secret = (SELECT secret FROM servers WHERE name = $1)
         WHERE name = $2";
    let values: Vec<Value> = vec!["a".into(), "b".into()];
    transaction.run(swap, values).await.unwrap();
    transaction.commit().await.unwrap();
    let refused = store.objects().load().await;
    let Err(Error::Bug(what)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(what, "the seal of server acme/b");
}

async fn another_master_key_is_refused(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    store.close().await;
    let key = place.dir.path().join("master.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let refused = Database::open(place.opening()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(
        !key.exists(),
        "another key would hide that the right one is lost"
    );
    let other = MasterKey::new(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
    std::fs::write(&key, other.text().as_bytes()).unwrap();
    let Err(Error::Invalid(mistakes)) = Database::open(place.opening()).await else {
        panic!("opened")
    };
    assert_eq!(mistakes[0].key, "master_key");
    std::fs::write(&key, kept).unwrap();
    place.open().await;
}

async fn a_master_key_file_is_rotated_under_an_open_database(place: Place) {
    let running = place.open().await;
    put(&running, tenant("acme")).await;
    // No object is sealed yet, so no failure to open one reveals the rotation to `running`.
    place.open().await.rotate().await.unwrap();
    put(&running, server("acme", "a", "")).await;
    assert!(token(&place.open().await, "acme", "a").await.is_some());
    let file = place.dir.path().join("master.key");
    let old = std::fs::read_to_string(&file).unwrap();
    let id = place.open().await.rotate().await.unwrap();
    let new = std::fs::read_to_string(&file).unwrap();
    assert_ne!(old, new);
    assert_eq!(Keyring::parse(&new).unwrap().keys().len(), 1);
    assert_eq!(Keyring::parse(&new).unwrap().first().id(), id);
    // A value that `running` writes now must open with the new key alone.
    put(&running, server("acme", "b", "")).await;
    assert!(token(&running, "acme", "a").await.is_some());
    let later = place.open().await;
    assert!(token(&later, "acme", "a").await.is_some());
    assert!(token(&later, "acme", "b").await.is_some());
    std::fs::write(&file, old).unwrap();
    let refused = Database::open(place.opening()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn objects_are_sealed_again_with_a_new_master_key(place: Place) {
    let store = place.open().await;
    // More than are sealed at once.
    let servers = (0..110).map(|at| format!("s{at}: {{command: cat, env: {{TOKEN: t{at}}}}}"));
    let servers = servers.collect::<Vec<_>>().join(", ");
    let wanted = manifest(&format!(
        "tenants: {{acme: {{auth: {{mode: none}}, servers: {{{servers}}}}}}}"
    ));
    let applied = store.objects().apply(&wanted, Prune::Keep, &ada()).await;
    assert_eq!(applied.unwrap().len(), 111);
    store.rotate().await.unwrap();
    // This one has the new key alone.
    let later = place.open().await;
    assert_eq!(later.objects().load().await.unwrap().objects.len(), 111);
    for at in [0, 99, 100, 109] {
        let found = token(&later, "acme", &format!("s{at}")).await;
        assert_eq!(found, Some(json!(format!("t{at}"))));
    }
}

async fn configured_master_keys_are_rotated_to_the_first(place: Place) {
    let random = aws_lc_rs::rand::SystemRandom::new();
    let [old, new] = [(); 2].map(|()| MasterKey::new(&random).unwrap());
    let with = async |text: String| {
        let keys = KeySource::Given(Secret::of(text).unwrap());
        Database::open(Opening {
            keys,
            ..place.opening()
        })
        .await
    };
    let store = with(old.text().to_string()).await.unwrap();
    put(&store, tenant("acme")).await;
    put(&store, server("acme", "a", "")).await;
    assert!(with(new.text().to_string()).await.is_err());
    let both = with(format!("{},{}", *new.text(), *old.text()))
        .await
        .unwrap();
    assert_eq!(both.rotate().await.unwrap(), new.id());
    let after = with(new.text().to_string()).await.unwrap();
    assert!(token(&after, "acme", "a").await.is_some());
    assert!(with(old.text().to_string()).await.is_err());
    // `store` has only the old key, so other handles could not open what it seals.
    let (name, object) = server("acme", "b", "");
    let refused = store
        .objects()
        .put(&name, object, Expected::Any, &ada())
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

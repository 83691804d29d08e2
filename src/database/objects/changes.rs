//! How what is declared changes: read as a whole, edited, judged, written with its records.
//!
//! One path for every change. Not here: what may be asked for (`store`), the statements (`rows`).

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::rand::SystemRandom;
use serde_json::{Value as Json, json};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::rows::{self, RowError, Sealer, Stored};
use crate::config::Wrong;
use crate::{
    database::{
        Author, Expected, Failure, Loaded, Opening, Pool, Record, Row, Sql, Transaction, Value,
        audit,
        oauth::{Revoked, Signing, revocations},
        vault::{Keyring, Make, NotOpened, Place, rotation},
    },
    declare::{Change, Declared, Kind, Object, ObjectName, What, When},
    manifest::Manifest,
};

/// An open store.
pub(crate) struct Core {
    /// The database.
    pub(crate) pool: Pool,
    /// How it was opened.
    pub(crate) opening: Opening,
    /// The master keys; replaced when the key file was changed meanwhile.
    pub(crate) keys: ArcSwap<Keyring>,
    /// Keys and nonces.
    pub(crate) random: SystemRandom,
    /// The keys that sign tokens, once they were needed.
    pub(crate) signing: Signing,
}

impl Core {
    /// What time it is.
    pub(crate) fn now_ms(&self) -> i64 {
        self.opening.clock.now_ms()
    }

    /// Runs one statement that writes and depends on no other.
    pub(crate) async fn write(
        &self,
        sql: impl Into<Sql>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, Failure> {
        let mut transaction = self.pool.begin_beside().await?;
        let rows = transaction.run(sql, values).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// What was sealed for `place`; none if it was not, or under a key that is gone.
    pub(crate) fn open(&self, place: Place<'_>, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self.keys.load().open(place, sealed) {
            Err(NotOpened::UnknownKey) => {
                // `lockgate key rotate` was here: its key stands in the file by now.
                let keys = self.opening.keys.keyring(&self.random, Make::Never).ok()?;
                let opened = keys.open(place, sealed).ok()?;
                self.keys.store(Arc::new(keys));
                Some(opened)
            }
            opened => opened.ok(),
        }
    }

    /// Seals for `place`; none when the system has no randomness.
    pub(crate) fn seal(&self, place: Place<'_>, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.load().seal(&self.random, place, plain)
    }

    /// Everything that is declared, as the transaction sees it.
    pub(crate) async fn loaded(&self, transaction: &mut Transaction) -> Result<Loaded, Failure> {
        let version = version_in(&transaction.run(VERSION, Vec::new()).await?)?;
        let keys = self.keys.load_full();
        let objects = match rows::all(transaction, &keys).await {
            Err(RowError::UnknownKey) => {
                // `lockgate key rotate` was here: its key stands in the file by now.
                let keys = self.opening.keys.keyring(&self.random, Make::Never);
                self.keys
                    .store(Arc::new(keys.map_err(Failure::from_mistake)?));
                rows::all(transaction, &self.keys.load_full()).await
            }
            other => other,
        };
        let objects = objects.map_err(Failure::from_row)?;
        Ok(Loaded { version, objects })
    }

    /// It as a manifest, if nothing is wrong with it.
    pub(crate) fn judged(&self, declared: &Declared, when: When) -> Result<Manifest, Failure> {
        let manifest = declared.manifest().map_err(Failure::Invalid)?;
        let mistakes = (self.opening.judge)(&manifest, when);
        if mistakes.is_empty() {
            Ok(manifest)
        } else {
            Err(Failure::Invalid(mistakes))
        }
    }

    /// The one way in which what is declared changes: `edit` says what is wanted and what that
    /// changes; the result is judged as a whole and written with its records, or not at all.
    pub(crate) async fn change(
        &self,
        when: When,
        author: &Author,
        edit: impl FnOnce(&Loaded) -> Result<(Declared, Vec<Change>), Failure>,
    ) -> Result<(Loaded, Vec<Change>), Failure> {
        let mut transaction = self.pool.begin().await?;
        let mut state = self.loaded(&mut transaction).await?;
        let (wanted, changes) = edit(&state)?;
        if changes.is_empty() {
            return Ok((state, changes));
        }
        let after = edited(state.declared(), &wanted, &changes)?;
        self.judged(&after, when)?;
        let keys = self.current_keys(&mut transaction).await?;
        let sealer = Sealer {
            keys: &keys,
            random: &self.random,
        };
        let next = transaction.run(NEXT_VERSION, Vec::new()).await?;
        state.version = version_in(&next)?;
        let now_ms = self.opening.clock.now_ms();
        for change in &changes {
            write(
                &mut transaction,
                &sealer,
                &mut state,
                change,
                &wanted,
                now_ms,
            )
            .await?;
        }
        let records: Vec<Record> = changes
            .iter()
            .map(|change| record(change, author))
            .collect();
        audit::append(&mut transaction, now_ms, &records).await?;
        transaction.commit().await?;
        Ok((state, changes))
    }

    /// The keys to seal with: a key that was rotated away would seal what nobody can open.
    pub(crate) async fn current_keys(
        &self,
        transaction: &mut Transaction,
    ) -> Result<Arc<Keyring>, Failure> {
        if !rotation::is_known(transaction, &self.keys.load()).await? {
            let keys = self.opening.keys.keyring(&self.random, Make::Never);
            let keys = keys.map_err(Failure::from_mistake)?;
            if !rotation::is_known(transaction, &keys).await? {
                let what = "was replaced by another one";
                let wrong = Wrong::new(what, "start again with the key that is in use");
                return Err(Failure::from_mistake(
                    wrong.at("configuration", "master_key"),
                ));
            }
            self.keys.store(Arc::new(keys));
        }
        Ok(self.keys.load_full())
    }
}

pub(crate) fn check_expected(
    state: &Loaded,
    name: &ObjectName,
    expected: Expected,
) -> Result<(), Failure> {
    let stored = state.objects.iter().find(|stored| stored.name == *name);
    let is_met = match expected {
        Expected::Any => true,
        Expected::Absent => stored.is_none(),
        Expected::Present => stored.is_some(),
        Expected::Version(version) => stored.is_some_and(|stored| stored.version == version),
    };
    if is_met {
        Ok(())
    } else {
        Err(Failure::Conflict)
    }
}

/// Whether an operator can still get in without `gone`: one key has to be left that holds.
pub(crate) fn check_last_key(
    state: &Loaded,
    gone: &ObjectName,
    now_ms: i64,
) -> Result<(), Failure> {
    if *gone != ObjectName::operator_key(gone.name()) {
        return Ok(());
    }
    let now = u64::try_from(now_ms / 1000).unwrap_or(0);
    let is_other = |stored: &&Stored| {
        let name = &stored.name;
        name != gone && *name == ObjectName::operator_key(name.name())
    };
    let holds = |stored: &Stored| stored.operator_key().is_ok_and(|(_, key)| key.holds(now));
    let mut others = state.objects.iter().filter(is_other);
    others.any(holds).then_some(()).ok_or(Failure::LastKey)
}

/// What `before` becomes by `changes`, which put in what is `wanted`.
///
/// # Errors
///
/// `NotFound` if something would belong to a tenant that is not there.
pub(crate) fn edited(
    before: Declared,
    wanted: &Declared,
    changes: &[Change],
) -> Result<Declared, Failure> {
    let mut after = before;
    for change in changes {
        match wanted.0.get(&change.name) {
            Some(object) => after.0.insert(change.name.clone(), object.clone()),
            None => after.0.remove(&change.name),
        };
        let owner = change.name.owner().map(ObjectName::tenant);
        let is_orphan = owner.is_some_and(|owner| !after.0.contains_key(&owner));
        if change.what != What::Removed && is_orphan {
            return Err(Failure::NotFound);
        }
    }
    Ok(after)
}

/// Writes one change and brings `state` up to date with it.
async fn write(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    state: &mut Loaded,
    change: &Change,
    wanted: &Declared,
    now_ms: i64,
) -> Result<(), Failure> {
    let at = state
        .objects
        .iter()
        .position(|stored| stored.name == change.name);
    let written = match (wanted.0.get(&change.name), at) {
        (None, None) => Ok(()),
        (None, Some(at)) => {
            let old = state.objects.remove(at);
            end_issued(transaction, &old.name, now_ms).await?;
            rows::delete(transaction, &old).await
        }
        (Some(object), Some(at)) => {
            let stored = &mut state.objects[at];
            // Whoever is enabled again later begins anew.
            if is_disabled(object) && !is_disabled(&stored.object) {
                end_issued(transaction, &stored.name, now_ms).await?;
            }
            stored.object = object.clone();
            stored.version = state.version;
            stored.updated_ms = now_ms;
            rows::update(transaction, sealer, stored).await
        }
        (Some(object), None) => {
            let stored = Stored {
                id: Uuid::now_v7(),
                name: change.name.clone(),
                version: state.version,
                object: object.clone(),
                created_ms: now_ms,
                updated_ms: now_ms,
            };
            let written = rows::insert(transaction, sealer, &stored).await;
            state.objects.push(stored);
            written
        }
    };
    written.map_err(Failure::from_row)
}

/// Whether it is a user who may do nothing.
fn is_disabled(object: &Object) -> bool {
    object.spec.get("disabled") == Some(&Json::Bool(true))
}

/// Ends what was issued in the name of an object that goes: another one that gets its name must not
/// inherit it. Tokens are refused without it, since what they name is not there.
async fn end_issued(
    transaction: &mut Transaction,
    name: &ObjectName,
    now_ms: i64,
) -> Result<(), Failure> {
    match (name.kind(), name.owner()) {
        // Its rows go with it, its keys in the memory of replicas by this number.
        (Kind::Tenant, _) => revocations::number_keys(transaction, name.name(), None, now_ms).await,
        (Kind::User, Some(tenant)) => {
            let person = Revoked::Subject(name.name().to_owned());
            revocations::end(transaction, tenant, &person, now_ms).await
        }
        (Kind::Client, Some(tenant)) => {
            let all = Revoked::Client(name.name().to_owned());
            revocations::end(transaction, tenant, &all, now_ms).await
        }
        _ => Ok(()),
    }
}

fn record(change: &Change, author: &Author) -> Record {
    let mut detail = author.detail.clone();
    let what = match &change.what {
        What::Added => "added",
        What::Removed => "removed",
        What::Changed(members) => {
            detail.insert("members".to_owned(), json!(members));
            "changed"
        }
    };
    Record {
        tenant: change.name.owner().map(str::to_owned),
        kind: format!("{}.{what}", change.name.kind().as_str()),
        actor: author.actor.clone(),
        target: change.name.to_string(),
        detail: Json::Object(detail),
    }
}

/// The number of changes in the answer to [`VERSION`].
pub(crate) fn version_in(rows: &[Row]) -> Result<i64, Failure> {
    let row = rows.first();
    let row = row.ok_or_else(|| Failure::Bug("no number of changes".to_owned()))?;
    Ok(row.get("version")?)
}

/// The number of the last change.
pub(crate) const VERSION: &str = "
    SELECT version
      FROM changes";

const NEXT_VERSION: &str = "
    UPDATE changes
       SET version = version + 1
    RETURNING version";

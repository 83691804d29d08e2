//! Changes of declared objects: edited, written, and recorded in the audit trail.
//!
//! Not here: the path of a change (`repository`), and the statements (`rows`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{
    connections,
    rows::{self, Loaded, Stored},
    slots,
};
use crate::{
    database::{
        oauth::{Revoked, identities, own_keys, revocations},
        pool::{Author, Error, Record, Transaction},
        vault::Sealer,
    },
    declare::{Change, ChangeKind, Declared, Kind, Object, ObjectName},
    manifest::Others,
};

/// Applies `changes` to `before`, with the objects in `wanted`.
///
/// # Errors
///
/// `NotFound` if an object would belong to a missing tenant.
pub(super) fn edited(
    before: Declared,
    wanted: &Declared,
    changes: &[Change],
) -> Result<Declared, Error> {
    let mut after = before;
    for change in changes {
        match wanted.0.get(&change.name) {
            Some(object) => after.0.insert(change.name.clone(), object.clone()),
            None => after.0.remove(&change.name),
        };
        let owner = change.name.owner().map(ObjectName::tenant);
        let is_orphan = owner.is_some_and(|owner| !after.0.contains_key(&owner));
        if change.what != ChangeKind::Removed && is_orphan {
            return Err(Error::NotFound);
        }
    }
    Ok(after)
}

/// A state while changes are written: its objects by name, because a manifest can change thousands.
pub(super) struct Written {
    version: i64,
    others: usize,
    objects: BTreeMap<ObjectName, Stored>,
}

impl Written {
    /// A state before its changes, with their number.
    pub(super) fn of(state: Loaded) -> Self {
        let objects = state.objects.into_iter();
        let named = objects.map(|stored| (stored.name.clone(), stored));
        Self {
            version: state.version,
            others: state.others,
            objects: named.collect(),
        }
    }

    /// The state after its changes.
    pub(super) fn loaded(self) -> Loaded {
        Loaded {
            version: self.version,
            others: self.others,
            objects: self.objects.into_values().collect(),
        }
    }
}

/// Makes the hashes free that API keys are about to give up, since each may be another key's from now on: a hash is unique
/// after every statement.
pub(super) async fn give_up_hashes(
    transaction: &mut Transaction,
    state: &Written,
    changes: &[Change],
) -> Result<(), Error> {
    if changes.len() < 2 {
        return Ok(());
    }
    let is_hash = |member: &String| member == "hash";
    for change in changes {
        let has_other =
            matches!(&change.what, ChangeKind::Changed(members) if members.iter().any(is_hash));
        if change.name.kind() == Kind::ApiKey
            && has_other
            && let Some(stored) = state.objects.get(&change.name)
        {
            rows::give_up_hash(transaction, stored).await?;
        }
    }
    Ok(())
}

/// Writes one change, and applies it to `state`.
pub(super) async fn write(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    state: &mut Written,
    change: &Change,
    wanted: &Declared,
    now_ms: i64,
) -> Result<(), Error> {
    let known = state.objects.get_mut(&change.name);
    let written = match (wanted.0.get(&change.name), known) {
        (None, None) => Ok(()),
        (None, Some(_)) => {
            let Some(old) = state.objects.remove(&change.name) else {
                return Ok(());
            };
            end_issued(transaction, &old.name, now_ms).await?;
            slots::forget(transaction, &old.name).await?;
            connections::forget(transaction, &old.name).await?;
            identities::forget(transaction, &old.name).await?;
            rows::delete(transaction, &old).await
        }
        (Some(object), Some(stored)) => {
            // A user who is enabled again later starts without grants.
            if is_disabled(object) && !is_disabled(&stored.object) {
                end_issued(transaction, &stored.name, now_ms).await?;
            }
            stored.object = object.clone();
            stored.version = state.version;
            // Two changes within a millisecond, or beside a clock that was set back, are told apart.
            stored.updated_ms = now_ms.max(stored.updated_ms.saturating_add(1));
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
            state.objects.insert(change.name.clone(), stored);
            written
        }
    };
    Ok(written?)
}

/// Reports whether a user is disabled.
fn is_disabled(object: &Object) -> bool {
    object.spec.get("disabled") == Some(&Json::Bool(true))
}

/// Ends everything issued in the name of a removed object, so that a later object of that name does
/// not inherit it. Tokens are refused already, because the object that they name is gone.
async fn end_issued(
    transaction: &mut Transaction,
    name: &ObjectName,
    now_ms: i64,
) -> Result<(), Error> {
    match (name.kind(), name.owner()) {
        // Its rows are removed with it; this number makes replicas drop its keys from memory.
        (Kind::Tenant, _) => {
            own_keys::forget(transaction, name.name(), now_ms).await?;
            revocations::number_keys(transaction, name.name(), None, now_ms).await
        }
        (Kind::User, Some(tenant)) => {
            let person = Revoked::Subject(name.name().to_owned());
            revocations::end(transaction, tenant, &person, now_ms).await?;
            Ok(())
        }
        (Kind::Client, Some(tenant)) => {
            let all = Revoked::Client(name.name().to_owned());
            revocations::end(transaction, tenant, &all, now_ms).await?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The audit record of a change.
pub(super) fn record(change: &Change, author: &Author) -> Record {
    let mut detail = author.detail.clone();
    let what = match &change.what {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed(members) => {
            detail.insert("members".to_owned(), json!(members));
            "changed"
        }
    };
    let kind = format!("{}.{what}", change.name.kind().as_str());
    let (tenant, target) = (change.name.owner(), change.name.to_string());
    Record::new(tenant, &kind, &author.actor, &target, Json::Object(detail))
}

/// The tenants that changes concern, and the others: a mistake in one of those stops no change.
pub(super) fn apart(after: Declared, changes: &[Change]) -> (Declared, Others) {
    let owners: BTreeSet<&str> = changes.iter().filter_map(|one| one.name.owner()).collect();
    let (mut changed, mut others) = (Declared::default(), Others::default());
    for (name, object) in after.0 {
        match (name.owner(), name.kind()) {
            (Some(owner), Kind::Tenant) if !owners.contains(owner) => {
                others.tenants += 1;
                others.add_hosts(owner, &object.spec);
            }
            (Some(owner), kind) if !owners.contains(owner) => {
                if kind == Kind::Server {
                    let server = (owner.to_owned(), name.name().to_owned());
                    others.servers.insert(server);
                }
            }
            _ => _ = changed.0.insert(name, object),
        }
    }
    (changed, others)
}

/// Whether a change writes a tenant with hosts.
pub(super) fn takes_hosts(after: &Declared) -> impl Fn(&Change) -> bool {
    move |change| {
        let object = after.0.get(&change.name);
        let object = object.filter(|_| change.name.kind() == Kind::Tenant);
        object.is_some_and(|object| object.spec.contains_key("hosts"))
    }
}

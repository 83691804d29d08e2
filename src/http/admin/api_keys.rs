//! API keys of tenants and of operators: creation and rotation.
//!
//! The text of a key appears only in the response that creates or rotates it; the gateway stores its
//! hash. Not here: verification of keys (`auth`), and other operations on them (`declared`).

use http::{HeaderValue, StatusCode, header::LOCATION};
use serde_json::{Value as Json, json};

use super::{
    caller::{Caller, Numbered, Permission},
    declared::{CHANGE, Collection, failed, members, object_name, refresh, shown, tagged},
    operation::{Call, Operation, OperationResult, post},
    request::{check_size, milliseconds, spec},
    schema::{Schema, Shape, moment, object, text, texts},
};
use crate::{
    auth::api_key,
    config::Wrong,
    database::{self, Expected, ForAdministrator, objects::Stored},
    declare::{Document, Kind, OWN_KEY, Object, ObjectName, OperatorKey},
    http::{Front, reply::Problem},
};

/// Operations on API keys.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        KEYS.list(
            "listKeys",
            "API keys of a tenant, also those that people made",
        ),
        post(
            KEYS.path,
            "makeKey",
            "Create an API key; only this response contains its text",
        )
        .takes(&NEW_KEY)
        .gives(201, &CREATED_KEY)
        .fails(CHANGE)
        .serve(KEYS.changed_by, create),
        KEYS.read("getKey", "An API key"),
        KEYS.put("putKey", "Create or replace an API key by its hash"),
        KEYS.delete(
            "deleteKey",
            "Remove an API key, also one that a person made",
        ),
        post(
            "/tenants/{tenant}/api-keys/{name}/rotate",
            "rotateKey",
            "Replace the text of an API key; sessions that the former one began end",
        )
        .gives(201, &CREATED_KEY)
        .fails(&[404, 409])
        .serve(KEYS.changed_by, rotate),
        OPERATOR_KEYS.list("listOperatorKeys", "API keys of operators"),
        post(
            OPERATOR_KEYS.path,
            "makeOperatorKey",
            "Create an operator's API key",
        )
        .takes(&NEW_OPERATOR_KEY)
        .gives(201, &CREATED_KEY)
        .fails(CHANGE)
        .serve(OPERATOR_KEYS.changed_by, create),
        OPERATOR_KEYS.read("getOperatorKey", "An operator's API key"),
        OPERATOR_KEYS.delete(
            "deleteOperatorKey",
            "Remove an operator's API key; the last valid one cannot be removed",
        ),
    ]
}

static KEYS: Collection = Collection {
    kind: Kind::ApiKey,
    path: "/tenants/{tenant}/api-keys",
    item: "/tenants/{tenant}/api-keys/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::Tenant,
};

static OPERATOR_KEYS: Collection = Collection {
    kind: Kind::ApiKey,
    path: "/operator-keys",
    item: "/operator-keys/{name}",
    read_by: Permission::Operator,
    changed_by: Permission::Operator,
};

/// Creates a key of the tenant in the path, or of an operator if the path has no tenant.
async fn create(call: Call) -> OperationResult {
    let (front, caller, tenant) = (&call.front, &call.caller, call.path.get("tenant"));
    let body = spec(front, &caller.administrator, &call.headers, call.body).await?;
    let store = caller.store_to_change(front, tenant).await?;
    let (name, document) = named(caller.parsed(body).await?)?;
    check_size(&caller.administrator, &document)?;
    let now = front.snapshot.clock().now_ms();
    if let Some(expires) = document.get("expires").and_then(Json::as_str)
        && milliseconds(expires).is_some_and(|at| at <= now)
    {
        let wrong = Wrong::new(format!("{expires} is in the past"), "write a later time");
        return Err(Problem::invalid(vec![wrong.at("body", "expires")]));
    }
    let name = match tenant {
        Some(tenant) => ObjectName::of(tenant, Kind::ApiKey, &name),
        None => ObjectName::operator_key(&name),
    };
    let change = |_: Option<&Stored>| Ok(document.clone());
    write_key((front, caller), store, (&name, Expected::Absent), change).await
}

/// Replaces the text of a key; the old text is invalid from the response on.
async fn rotate(call: Call) -> OperationResult {
    let name = object_name(&call.path, Kind::ApiKey);
    if name.name().starts_with(OWN_KEY) {
        let text = "a person made this key for themselves, and can rotate it on the account page";
        return Err(Problem::new(StatusCode::CONFLICT, text));
    }
    let (front, caller) = (&call.front, &call.caller);
    let store = caller.store_to_change(front, name.owner()).await?;
    let change = |old: Option<&Stored>| {
        let old = old.map(|old| old.object.spec.clone());
        old.ok_or(database::Error::NotFound)
    };
    write_key((front, caller), store, (&name, Expected::Any), change).await
}

/// Writes a key with a new text, at the turn that `store` has; `change` makes its document of the stored one.
async fn write_key(
    (front, caller): (&Front, &Caller),
    store: ForAdministrator<'_>,
    (name, expected): (&ObjectName, Expected),
    mut change: impl FnMut(Option<&Stored>) -> Result<Document, database::Error>,
) -> OperationResult {
    if let Some(tenant) = name.owner() {
        // A rotation ends the access of those who have the former text.
        let budget = if expected == Expected::Absent {
            Numbered::Change
        } else {
            Numbered::Other
        };
        caller.count(budget, tenant)?;
    }
    let key = api_key::generate(&aws_lc_rs::rand::SystemRandom::new())
        .map_err(|_| Problem::of(database::Error::Bug("no randomness".to_owned()), false))?;
    let change = |old: Option<&Stored>| {
        let mut document = change(old)?;
        document.insert("hash".to_owned(), api_key::fingerprint(&key).into());
        let object = Object::new(Kind::ApiKey, document);
        if name.owner().is_none() {
            // Manifests contain no operator keys, so the check of manifests does not cover them.
            let read = OperatorKey::read(name.name(), &object.tree());
            read.map_err(database::Error::Invalid)?;
        }
        Ok(object)
    };
    let author = caller.author();
    let put = store.objects().edit(name, expected, &author, change).await;
    let put = put.map_err(|failure| match failure {
        database::Error::Conflict => {
            let text = "there is a key of this name already: rotate it, or remove it first";
            Problem::new(StatusCode::CONFLICT, text)
        }
        failure => failed(failure, name),
    });
    let stored = put?.stored;
    drop(store);
    refresh(front, stored.version).await;
    let mut body = shown(&stored);
    body["key"] = key.into();
    let mut response = tagged(StatusCode::CREATED, &stored, &body);
    let path = match name.owner() {
        Some(tenant) => format!("/api/v1/tenants/{tenant}/api-keys/{}", name.name()),
        None => format!("/api/v1/operator-keys/{}", name.name()),
    };
    if let Ok(location) = HeaderValue::try_from(path) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Takes the name of its object out of a document.
fn named(mut document: Document) -> Result<(String, Document), Problem> {
    if let Some(Json::String(name)) = document.remove("name") {
        return Ok((name, document));
    }
    let wrong = Wrong::new("is missing, or no text", "name the key");
    Err(Problem::invalid(vec![wrong.at("body", "name")]))
}

static NEW_KEY: Schema = Schema {
    name: "NewKey",
    shape: Shape::Json(|| {
        json!({
            "type": "object", "required": ["name", "subject", "servers"],
            "properties": {
                "name": text(), "subject": text(), "scopes": texts(), "servers": texts(),
                "expires": moment(),
            },
        })
    }),
};

static NEW_OPERATOR_KEY: Schema = Schema {
    name: "NewOperatorKey",
    shape: Shape::Json(|| {
        json!({
            "type": "object", "required": ["name"],
            "properties": {"name": text(), "expires": moment()},
        })
    }),
};

static CREATED_KEY: Schema = Schema {
    name: "MadeKey",
    shape: Shape::Versioned(|| {
        let mut members = members();
        members.push(("key", text()));
        object(&members)
    }),
};

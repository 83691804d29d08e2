//! Secrets in the slots of servers: of a tenant, and of its people. A value goes in and never comes out.
//!
//! Not here: the slots themselves, which the declaration of a server has (`declared`).

use axum::response::IntoResponse;
use http::StatusCode;
use serde_json::{Value as Json, json};

use super::{
    caller::{Caller, Numbered, Permission},
    operation::{Call, Operation, OperationResult, delete, get, put},
    request::{Parameter, Path, Query, json_body},
    response::page,
    schema::{Schema, Shape, moment as moment_schema, nullable_text, object, text},
};
use crate::{
    base::{Secret, moment},
    config::Wrong,
    database::{HolderAt, StoredSecret},
    declare::{Document, Holder, SECRET_MAX, TokenFrom, is_secret},
    http::{Front, reply::Problem},
};

/// Operations on secrets.
pub(super) fn operations() -> Vec<Operation> {
    let item = "/tenants/{tenant}/servers/{name}/secrets/{secret}";
    vec![
        get(
            "/tenants/{tenant}/servers/{name}/secrets",
            "listSecrets",
            "Secrets that are set for a server, without their values",
        )
        .query(&[
            Parameter::Text("subject"),
            Parameter::Limit,
            Parameter::Text("after"),
        ])
        .gives(200, &SECRETS)
        .fails(&[400, 404])
        .serve(Permission::Server, list),
        put(
            item,
            "putSecret",
            "Set a secret of the tenant, or of one person; children with the old value end after their calls",
        )
        .query(OF)
        .takes(&VALUE)
        .fails(&[400, 404, 408, 413, 422])
        .serve(Permission::Server, set),
        delete(
            item,
            "deleteSecret",
            "Remove a secret; children that have it end after their calls",
        )
        .query(OF)
        .fails(&[400, 404])
        .serve(Permission::Server, remove),
    ]
}

/// The person whose secret it is; none for the tenant's.
const OF: &[Parameter] = &[Parameter::Text("subject")];

async fn list(call: Call) -> OperationResult {
    let limit = call.query.limit()?;
    // A slot has no slash in its name.
    let after = call.query.get("after").unwrap_or_default();
    let (slot, holder) = after.split_once('/').unwrap_or_default();
    let store = call.caller.store(&call.front).await?;
    // One more than the limit shows that there is another page.
    let found = store.secrets();
    let mut found = found
        .of_server(
            holder_at(&call.path, &call.query),
            (holder, slot),
            limit + 1,
        )
        .await?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let cursor = |last: &StoredSecret| {
        format!(
            "{}/{}",
            last.name,
            last.holder.as_deref().unwrap_or_default()
        )
    };
    let next = found.last().filter(|_| is_more).map(cursor);
    Ok(page(found.iter().map(shown).collect(), next))
}

fn shown(secret: &StoredSecret) -> Json {
    json!({
        "name": secret.name, "subject": secret.holder, "updated": moment(secret.updated_ms),
    })
}

async fn set(mut call: Call) -> OperationResult {
    let mut checked = check_slot(&call.caller, &call.path, &call.query);
    // Behind a load balancer, a server and its first secret arrive at two replicas.
    if checked.is_err() && call.caller.catch_up(&call.front).await? {
        checked = check_slot(&call.caller, &call.path, &call.query);
    }
    checked?;
    let body = json_body(&call.headers, call.body, BODY).await?;
    let value = value(&call.caller.parsed(body).await?)?;
    call.caller.count(Numbered::Change, call.path.tenant())?;
    let (store, author) = (call.caller.store(&call.front).await?, call.caller.author());
    let (of, secrets) = (holder_at(&call.path, &call.query), store.secrets());
    let tenant = call.caller.snapshot.catalog.tenants.get(call.path.tenant());
    let quota = tenant.and_then(|tenant| tenant.quotas.tenant.objects);
    secrets
        .put(of, slot(&call.path), (&value, None), quota, &author)
        .await?;
    refreshed(&call.front).await
}

async fn remove(call: Call) -> OperationResult {
    call.caller.count(Numbered::Other, call.path.tenant())?;
    let (store, author) = (call.caller.store(&call.front).await?, call.caller.author());
    let (of, secrets) = (holder_at(&call.path, &call.query), store.secrets());
    if !secrets.remove(of, slot(&call.path), &author).await? {
        let (tenant, server, name) = (call.path.tenant(), call.path.name(), slot(&call.path));
        return Err(Problem::no_such(
            "secret",
            &format!("{tenant}/{server}/{name}"),
        ));
    }
    refreshed(&call.front).await
}

/// Makes this replica follow the change before the response; the others follow on their own.
async fn refreshed(front: &Front) -> OperationResult {
    front.snapshot.refresh_issued().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn slot(path: &Path) -> &str {
    path.get("secret").unwrap_or_default()
}

fn holder_at<'c>(path: &'c Path, query: &'c Query) -> HolderAt<'c> {
    HolderAt {
        tenant: path.tenant(),
        server: path.name(),
        holder: query.get("subject"),
    }
}

/// The server declares the slot, and it is one of a person if, and only if, a person is named.
fn check_slot(caller: &Caller, path: &Path, query: &Query) -> Result<(), Problem> {
    let (tenant, server) = (path.tenant(), path.name());
    let found = caller.snapshot.catalog.find(tenant, server);
    let found = found.and_then(|(_, server)| server.slots.get(slot(path)).cloned());
    let missing = || Problem::no_such("secret", &format!("{tenant}/{server}/{}", slot(path)));
    let found = found.ok_or_else(missing)?;
    let wrong = found.token.as_ref().map(|from| match from {
        TokenFrom::Upstream(_) => Wrong::new(
            "takes the access token of an upstream, and no value",
            "let the person connect it on the account page",
        ),
        TokenFrom::Exchange(_) => Wrong::new(
            "takes an access token of the person's identity provider, and no value",
            "let the person log in with the provider",
        ),
    });
    if let Some(wrong) = wrong {
        return Err(Problem::invalid(vec![wrong.at("path", "secret")]));
    }
    let wrong = match (found.holder, query.get("subject")) {
        (Holder::Principal, None) => Wrong::new(
            "is missing: each principal has a secret of their own",
            "name the person whose secret it is",
        ),
        (Holder::Tenant, Some(_)) => Wrong::new(
            "is named, and the tenant has one secret for all",
            "leave it out",
        ),
        _ => return Ok(()),
    };
    Err(Problem::invalid(vec![wrong.at("query", "subject")]))
}

/// Reads a value. No problem repeats it.
fn value(document: &Document) -> Result<Secret, Problem> {
    let invalid = |what: String| {
        let remedy = format!("write {{\"value\": \"…\"}} with 1 to {SECRET_MAX} bytes");
        Err(Problem::invalid(vec![
            Wrong::new(what, remedy).at("body", "value"),
        ]))
    };
    match document.get("value").and_then(Json::as_str) {
        Some(text) if is_secret(text) && document.len() == 1 => Ok(Secret::new(text.to_owned())),
        Some(_) if document.len() > 1 => invalid("is not alone".to_owned()),
        Some(_) => invalid("is empty, too long, or has a NUL in it".to_owned()),
        None => invalid("is missing, or no text".to_owned()),
    }
}

/// The largest body in bytes: JSON may write each of a value by six.
const BODY: usize = 6 * SECRET_MAX + 100;

static VALUE: Schema = Schema {
    name: "SecretValue",
    shape: Shape::Json(|| {
        json!({
            "type": "object", "required": ["value"], "additionalProperties": false,
            "properties": {"value": {"type": "string", "minLength": 1, "writeOnly": true}},
        })
    }),
};

static SECRET: Schema = Schema {
    name: "Secret",
    shape: Shape::Json(|| {
        object(&[
            ("name", text()),
            ("subject", nullable_text()),
            ("updated", moment_schema()),
        ])
    }),
};

static SECRETS: Schema = Schema {
    name: "Secrets",
    shape: Shape::Page(&SECRET),
};

#[cfg(test)]
mod tests {
    use super::super::{request::read_document, secrets::*};

    #[test]
    fn values_are_single_texts_of_some_length() {
        let of = |body: &str| value(&read_document(body.as_bytes()).ok()?).ok();
        let long = |length: usize| format!("{{\"value\": \"{}\"}}", "x".repeat(length));
        assert_eq!(
            of("{\"value\": \"a\\nb\"}"),
            Some(Secret::new("a\nb".to_owned()))
        );
        assert!(of(&long(SECRET_MAX)).is_some());
        for wrong in [
            "{}",
            "{\"value\": \"\"}",
            "{\"value\": null}",
            "{\"value\": 1}",
            "{\"value\": \"a\\u0000b\"}",
            "{\"value\": \"a\", \"x\": 1}",
            &long(SECRET_MAX + 1),
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}

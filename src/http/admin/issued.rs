//! What a tenant's authorization server has issued, through the administration API: its signing
//! keys, the grants that people gave, and the clients that registered, which can be ended here.

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{
    objects::{author, expected, unread},
    query::{Query, read_document},
    routes::{Admin, Named, Shared, moment},
};
use crate::http::{
    admission::{Front, body},
    reply::{Problem, answer},
};
use crate::{
    config::Wrong,
    database::{
        Expected, Failure, Record, Store,
        oauth::{GrantFilter, Revoked, Schedule, SeenGrant, SeenKey},
    },
    declare::AuthMode,
};

type Outcome = Result<Response, Problem>;

/// The keys of a tenant, the newest first: next, current and previous.
pub(crate) async fn keys(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
) -> Outcome {
    admin.tenant(&tenant)?;
    let keys = store(&front)?.signing_keys(&tenant).await.map_err(failed)?;
    let items: Vec<Json> = keys.iter().map(key).collect();
    Ok(answer(StatusCode::OK, &json!({"items": items})))
}

fn key(key: &SeenKey) -> Json {
    json!({
        "kid": key.kid, "created": moment(key.created_ms), "active": moment(key.active_ms),
        "retired": key.retired_ms.map(moment),
    })
}

/// Makes the next key.
pub(super) async fn rotate(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
) -> Outcome {
    own(&admin, &tenant)?;
    let schedule = Schedule::of(&front.config.oauth);
    let (store, author) = (store(&front)?, author(&admin));
    let made = store.rotate_signing_key(&tenant, schedule, &author).await;
    let made = made.map_err(|failure| match failure {
        Failure::Conflict => {
            let text = "there is a key that waits to take its turn";
            Problem::new(StatusCode::CONFLICT, text)
        }
        other => failed(other),
    })?;
    known(&front).await;
    Ok(answer(StatusCode::CREATED, &key(&made)))
}

/// Takes a key away, with every token that it signed.
pub(crate) async fn remove(
    State(front): Shared,
    admin: Admin,
    Named((tenant, kid)): Named<(String, String)>,
) -> Outcome {
    own(&admin, &tenant)?;
    let (store, author) = (store(&front)?, author(&admin));
    let removed = store.remove_signing_key(&tenant, &kid, &author).await;
    if !removed.map_err(failed)? {
        return Err(Problem::not_found());
    }
    known(&front).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The grants of a tenant that have not ended.
pub(super) async fn grants(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    RawQuery(query): RawQuery,
) -> Outcome {
    admin.tenant(&tenant)?;
    let query = Query::parse(query.as_deref(), &["subject", "client", "limit", "after"])?;
    let bad = |_| {
        let text = "the parameter after: no such cursor";
        Problem::new(StatusCode::BAD_REQUEST, text)
    };
    let filter = GrantFilter {
        subject: query.get("subject"),
        client: query.get("client"),
        after: query
            .get("after")
            .map(Uuid::try_parse)
            .transpose()
            .map_err(bad)?,
    };
    let limit = query.limit()?;
    // One more tells whether there is another page.
    let found = store(&front)?.grants(&tenant, filter, limit + 1).await;
    let mut found = found.map_err(failed)?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more).map(|last| last.grant.id);
    let items: Vec<Json> = found.iter().map(grant).collect();
    let next = next.map(|id| id.to_string());
    Ok(answer(
        StatusCode::OK,
        &json!({"items": items, "next": next}),
    ))
}

fn grant(seen: &SeenGrant) -> Json {
    let grant = &seen.grant;
    json!({
        "id": grant.id.to_string(), "subject": grant.subject, "client": grant.client_id,
        "resource": grant.resource, "scope": grant.scope, "created": moment(seen.created_ms),
        "authenticated": moment(grant.auth_ms), "expires": moment(grant.expires_ms),
    })
}

/// Removes a client that registered itself, with all that it was granted.
pub(super) async fn remove_client(
    front: &Front,
    admin: &Admin,
    (tenant, client): (&str, &str),
    headers: &HeaderMap,
) -> Outcome {
    // It has no version: what was expected of one does not hold.
    if !matches!(expected(headers)?, None | Some(Expected::Present)) {
        return Err(Problem::of(Failure::Conflict, true));
    }
    let store = store(front)?;
    let registered = store.registered(tenant, client).await.map_err(failed)?;
    registered.ok_or_else(Problem::not_found)?;
    let target = format!("client {tenant}/{client}");
    let record = record(admin, tenant, "client.removed", target);
    store.append(&[record]).await.map_err(failed)?;
    let removed = store.remove_registered(tenant, client).await;
    removed.map_err(failed)?;
    known(front).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends a grant, or all of a client or a person.
pub(super) async fn revoke(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Outcome {
    own(&admin, &tenant)?;
    let body = body::read(&headers, body, MAX).await;
    let body = body.map_err(|failure| unread(&failure))?;
    let what = meant(&body)?;
    let (kind, name) = match &what {
        Revoked::Grant(id) | Revoked::Consent(id) => ("grant", id.to_string()),
        Revoked::Client(client) => ("client", client.clone()),
        Revoked::Subject(subject) => ("subject", subject.clone()),
    };
    let target = format!("{kind} {tenant}/{name}");
    let record = record(&admin, &tenant, "grants.revoked", target);
    let store = store(&front)?;
    // What ends something is on record before it is done.
    store.append(&[record]).await.map_err(failed)?;
    store.revoke(&tenant, &what).await.map_err(failed)?;
    known(&front).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn record(admin: &Admin, tenant: &str, kind: &str, target: String) -> Record {
    Record {
        tenant: Some(tenant.to_owned()),
        kind: kind.to_owned(),
        actor: admin.who.actor.clone(),
        target,
        detail: json!({}),
    }
}

/// What a body says: one of three members.
fn meant(body: &[u8]) -> Result<Revoked, Problem> {
    let document = read_document(body)?;
    let wrong = |key: &str, what: &str, remedy: &str| {
        Problem::invalid(vec![Wrong::new(what, remedy).at("body", key)])
    };
    let remedy = "write one of grant, client and subject";
    let mut members = document.iter();
    let (Some((name, value)), None) = (members.next(), members.next()) else {
        return Err(wrong("", "does not name one thing", remedy));
    };
    let text = value.as_str().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| wrong(name, "is no text", "write a text"))?;
    if text.contains('\0') {
        // PostgreSQL has no such texts.
        return Err(wrong(name, "has a NUL in it", "write it without"));
    }
    match name.as_str() {
        "grant" => Uuid::try_parse(text)
            .map(Revoked::Consent)
            .map_err(|_| wrong(name, "is no id", "write an id of GET …/grants")),
        "client" => Ok(Revoked::Client(text.to_owned())),
        "subject" => Ok(Revoked::Subject(text.to_owned())),
        _ => Err(wrong(name, "is not known", remedy)),
    }
}

/// Says no where there is no such tenant for the caller, or it has no authorization server.
fn own(admin: &Admin, tenant: &str) -> Result<(), Problem> {
    admin.tenant(tenant)?;
    let found = admin.snapshot.catalog.tenants.get(tenant);
    if found.is_some_and(|tenant| matches!(tenant.auth, AuthMode::Builtin(_))) {
        return Ok(());
    }
    let text = "the tenant has no authorization server of its own";
    Err(Problem::new(StatusCode::CONFLICT, text))
}

/// Sees to it that this replica knows before it answers; the others are about to.
async fn known(front: &Front) {
    if let Err(failure) = front.live.refresh_issued().await {
        tracing::warn!(%failure, "what was revoked is known a little later");
    }
}

fn store(front: &Front) -> Result<&Store, Problem> {
    front.live.store().map_err(failed)
}

fn failed(failure: Failure) -> Problem {
    Problem::of(failure, false)
}

/// A name and a little.
const MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::super::issued::*;

    #[test]
    fn one_thing_is_meant() {
        let id = "0190163d-8694-739b-aea5-966c26f8ad91";
        let of = |body: &str| meant(body.as_bytes()).ok();
        let grant = Revoked::Consent(Uuid::try_parse(id).unwrap());
        assert_eq!(of(&format!("{{\"grant\": \"{id}\"}}")), Some(grant));
        let client = Revoked::Client("c_x".to_owned());
        assert_eq!(of("{\"client\": \"c_x\"}"), Some(client));
        let subject = Revoked::Subject("ada".to_owned());
        assert_eq!(of("{\"subject\": \"ada\"}"), Some(subject));
        for wrong in [
            "",
            "{}",
            "[]",
            "{\"grant\": \"x\"}",
            "{\"subject\": \"\"}",
            "{\"subject\": \"a\\u0000b\"}",
            "{\"subject\": null}",
            "{\"subjects\": \"ada\"}",
            "{\"subject\": \"ada\", \"client\": \"c\"}",
            "{\"subject\": \"ada\", \"subject\": \"eve\"}",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}

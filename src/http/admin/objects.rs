//! Declared objects through the administration API: read, put, removed, applied as a whole.
//!
//! An object's `ETag` is the number of the change that wrote it; `If-Match` and `If-None-Match`
//! make a change conditional (RFC 9110, section 13.1). A secret is never shown: it reads as null,
//! and null keeps it.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ETAG, IF_MATCH, IF_NONE_MATCH, LOCATION},
};
use serde_json::{Value as Json, json};

use super::{
    issued,
    query::{Query, read_document},
    routes::{Admin, Named, Shared, moment},
};
use crate::http::{
    admission::{Front, body},
    reply::{self, Problem, answer},
};
use crate::{
    auth::{REGISTERED, api_key},
    config::Wrong,
    database::{Author, Expected, Failure, objects::Stored},
    declare::{Document, Kind, Object, ObjectName, OperatorKey},
};

type Outcome = Result<Response, Problem>;
type Two = Named<(String, String)>;

pub(crate) async fn tenants(
    State(front): Shared,
    admin: Admin,
    RawQuery(query): RawQuery,
) -> Outcome {
    let page = Query::parse(query.as_deref(), PAGE)?;
    if let Some(own) = admin.who.tenant() {
        let found = front.live.store()?.get(&ObjectName::tenant(own)).await;
        let items: Vec<Json> = found?.iter().map(shown).collect();
        return Ok(answer(
            StatusCode::OK,
            &json!({"items": items, "next": null}),
        ));
    }
    list(&front, Kind::Tenant, None, &page).await
}

/// What a tenant has of a kind.
pub(super) fn all_of(kind: Kind) -> MethodRouter<Arc<Front>> {
    get(
        move |State(front): Shared,
              admin: Admin,
              Named(tenant): Named<String>,
              RawQuery(query): RawQuery| async move {
            admin.tenant(&tenant)?;
            let page = Query::parse(query.as_deref(), PAGE)?;
            list(&front, kind, Some(&tenant), &page).await
        },
    )
}

/// One of them: read, put and removed.
pub(super) fn one_of(kind: Kind) -> MethodRouter<Arc<Front>> {
    let read = move |State(front): Shared, admin: Admin, Named((tenant, name)): Two| async move {
        admin.tenant(&tenant)?;
        one(&front, &ObjectName::of(&tenant, kind, &name)).await
    };
    let write = move |State(front): Shared,
                      admin: Admin,
                      Named((tenant, name)): Two,
                      headers: HeaderMap,
                      body: Body| async move {
        admin.tenant(&tenant)?;
        admin.may_change(kind)?;
        let name = ObjectName::of(&tenant, kind, &name);
        put(&front, &admin, name, &headers, body).await
    };
    let remove = move |State(front): Shared,
                       admin: Admin,
                       Named((tenant, name)): Two,
                       headers: HeaderMap| async move {
        admin.tenant(&tenant)?;
        admin.may_change(kind)?;
        if kind == Kind::Client && name.starts_with(REGISTERED) {
            let of = (tenant.as_str(), name.as_str());
            return issued::remove_client(&front, &admin, of, &headers).await;
        }
        let name = ObjectName::of(&tenant, kind, &name);
        delete(&front, &admin, &name, &headers).await
    };
    get(read).put(write).delete(remove)
}

pub(super) async fn operator_keys(
    State(front): Shared,
    admin: Admin,
    RawQuery(query): RawQuery,
) -> Outcome {
    admin.operator()?;
    let page = Query::parse(query.as_deref(), PAGE)?;
    list(&front, Kind::ApiKey, None, &page).await
}

pub(crate) async fn tenant(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
) -> Outcome {
    admin.tenant(&tenant)?;
    one(&front, &ObjectName::tenant(&tenant)).await
}

pub(super) async fn operator_key(
    State(front): Shared,
    admin: Admin,
    Named(name): Named<String>,
) -> Outcome {
    admin.operator()?;
    one(&front, &ObjectName::operator_key(&name)).await
}

/// Who calls a tenant, and what it may use, is the operators' to say.
pub(super) async fn put_tenant(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Outcome {
    admin.operator()?;
    put(&front, &admin, ObjectName::tenant(&tenant), &headers, body).await
}

pub(super) async fn delete_tenant(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    headers: HeaderMap,
) -> Outcome {
    admin.operator()?;
    delete(&front, &admin, &ObjectName::tenant(&tenant), &headers).await
}

pub(super) async fn delete_operator_key(
    State(front): Shared,
    admin: Admin,
    Named(name): Named<String>,
    headers: HeaderMap,
) -> Outcome {
    admin.operator()?;
    delete(&front, &admin, &ObjectName::operator_key(&name), &headers).await
}

/// Makes a key; the answer is the only place where its text ever stands.
pub(super) async fn make_key(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Outcome {
    admin.tenant(&tenant)?;
    let (name, document) = named_document(&front, &headers, body).await?;
    let name = ObjectName::of(&tenant, Kind::ApiKey, &name);
    make(&front, &admin, name, document, Expected::Absent).await
}

pub(super) async fn make_operator_key(
    State(front): Shared,
    admin: Admin,
    headers: HeaderMap,
    body: Body,
) -> Outcome {
    admin.operator()?;
    let (name, document) = named_document(&front, &headers, body).await?;
    let name = ObjectName::operator_key(&name);
    make(&front, &admin, name, document, Expected::Absent).await
}

/// Puts another text in the place of a key's; the old one is worth nothing from the answer on.
pub(super) async fn rotate_key(
    State(front): Shared,
    admin: Admin,
    Named((tenant, name)): Two,
) -> Outcome {
    admin.tenant(&tenant)?;
    let name = ObjectName::of(&tenant, Kind::ApiKey, &name);
    let store = front.live.store()?;
    let found = store.get(&name).await?;
    let old = found.ok_or_else(Problem::not_found)?;
    let expected = Expected::Version(old.version);
    make(&front, &admin, name, old.object.spec, expected).await
}

async fn make(
    front: &Front,
    admin: &Admin,
    name: ObjectName,
    mut document: Document,
    expected: Expected,
) -> Outcome {
    let key = api_key::generate(&aws_lc_rs::rand::SystemRandom::new())
        .map_err(|_| Problem::of(Failure::Bug("no randomness".to_owned()), false))?;
    document.insert("hash".to_owned(), api_key::fingerprint(&key).into());
    let object = Object::new(Kind::ApiKey, document);
    let stored = write(front, admin, &name, object, expected, false).await?;
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

async fn list(front: &Front, kind: Kind, tenant: Option<&str>, page: &Query) -> Outcome {
    let limit = page.limit()?;
    let store = front.live.store()?;
    // One more tells whether there is another page.
    let found = store.list(kind, tenant, page.get("after"), limit + 1).await;
    let mut found = found?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| is_more);
    let next = last.map(|stored| stored.name.name().to_owned());
    let items: Vec<Json> = found.iter().map(shown).collect();
    Ok(answer(
        StatusCode::OK,
        &json!({"items": items, "next": next}),
    ))
}

async fn one(front: &Front, name: &ObjectName) -> Outcome {
    let store = front.live.store()?;
    let found = store.get(name).await?;
    let stored = found.ok_or_else(Problem::not_found)?;
    Ok(tagged(StatusCode::OK, &stored, &shown(&stored)))
}

async fn put(
    front: &Front,
    admin: &Admin,
    name: ObjectName,
    headers: &HeaderMap,
    body: Body,
) -> Outcome {
    let expected = expected(headers)?;
    let document = document(front, headers, body).await?;
    let mut object = Object::new(name.kind(), document);
    let store = front.live.store()?;
    let before = store.get(&name).await?;
    let kept = before.as_ref().map(|stored| &stored.object);
    object.keep_secrets(&name, kept).map_err(Problem::invalid)?;
    // What was kept is that of this very version.
    let (expected, is_conditional) = match (expected, &before) {
        (Some(expected), _) => (expected, true),
        (None, Some(stored)) => (Expected::Version(stored.version), false),
        (None, None) => (Expected::Absent, false),
    };
    let stored = write(front, admin, &name, object, expected, is_conditional).await?;
    let status = if before.is_none() {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(tagged(status, &stored, &shown(&stored)))
}

async fn write(
    front: &Front,
    admin: &Admin,
    name: &ObjectName,
    object: Object,
    expected: Expected,
    is_conditional: bool,
) -> Result<Stored, Problem> {
    if name.owner().is_none() {
        // No manifest has them, so no manifest's check finds what is wrong with one.
        OperatorKey::read(name.name(), &object.tree()).map_err(Problem::invalid)?;
    }
    let store = front.live.store()?;
    let stored = store.put(name, object, expected, &author(admin)).await;
    let stored = stored.map_err(|failure| Problem::of(failure, is_conditional))?;
    refresh(front).await;
    Ok(stored)
}

async fn delete(front: &Front, admin: &Admin, name: &ObjectName, headers: &HeaderMap) -> Outcome {
    let expected = expected(headers)?;
    let is_conditional = expected.is_some();
    let store = front.live.store()?;
    let expected = expected.unwrap_or(Expected::Present);
    let deleted = store.delete(name, expected, &author(admin)).await;
    deleted.map_err(|failure| Problem::of(failure, is_conditional))?;
    refresh(front).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// An object as the API shows it: no secret, only that there is one.
fn shown(stored: &Stored) -> Json {
    let name = &stored.name;
    json!({
        "kind": name.kind().as_str(),
        "tenant": name.owner(),
        "name": name.name(),
        "version": stored.version,
        "created": moment(stored.created_ms),
        "updated": moment(stored.updated_ms),
        "spec": stored.object.shown(),
    })
}

fn tagged(status: StatusCode, stored: &Stored, body: &Json) -> Response {
    let mut response = answer(status, body);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", stored.version)) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// What a request expects of the object that it changes.
pub(crate) fn expected(headers: &HeaderMap) -> Result<Option<Expected>, Problem> {
    let bad = |text| Problem::new(StatusCode::BAD_REQUEST, text);
    let text = |name| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().map(HeaderValue::to_str).transpose();
        let is_one = values.next().is_none();
        value
            .ok()
            .filter(|_| is_one)
            .ok_or_else(|| bad("a condition is repeated or no text"))
    };
    match (text(IF_MATCH)?, text(IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (Some("*"), None) => Ok(Some(Expected::Present)),
        (Some(tag), None) => {
            let number = tag
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'));
            let version = number.and_then(|number| number.parse().ok());
            // A tag that was never given out fits nothing.
            Ok(Some(Expected::Version(version.unwrap_or(-1))))
        }
        (None, Some("*")) => Ok(Some(Expected::Absent)),
        _ => Err(bad("write If-Match with one ETag, or If-None-Match: *")),
    }
}

async fn document(front: &Front, headers: &HeaderMap, body: Body) -> Result<Document, Problem> {
    let read = body::read(headers, body, front.config.http.max_body).await;
    read_document(&read.map_err(|failure| unread(&failure))?)
}

pub(super) fn unread(failure: &reply::Failure) -> Problem {
    let (status, text) = failure.parts();
    Problem::new(status, text)
}

/// A document with the name of what it describes among its members.
async fn named_document(
    front: &Front,
    headers: &HeaderMap,
    body: Body,
) -> Result<(String, Document), Problem> {
    let mut document = document(front, headers, body).await?;
    if let Some(Json::String(name)) = document.remove("name") {
        return Ok((name, document));
    }
    let wrong = Wrong::new("is missing, or no text", "name the key");
    Err(Problem::invalid(vec![wrong.at("body", "name")]))
}

pub(super) fn author(admin: &Admin) -> Author {
    Author::named(&admin.who.actor)
}

/// The snapshot that requests read follows before the answer; if it cannot, it does so later.
pub(super) async fn refresh(front: &Front) {
    if let Err(failure) = front.live.refresh().await {
        tracing::warn!(%failure, "a change is stored and not served yet");
    }
}

/// The parameters of every list.
const PAGE: &[&str] = &["limit", "after"];

//! What runs, through the administration API: sessions, children, their stderr, and the audit
//! trail of it all.
//!
//! What ends something comes as `drain` (when the calls have ended) and as `now`.

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Value as Json, json};

use super::{
    query::Query,
    routes::{Admin, Named, Shared, moment},
};
use crate::http::{
    admission::Front,
    reply::{Problem, answer},
};
use crate::{
    backend::child::{Restart as HowToEnd, Seen as SeenChild},
    database::{Cursor, Entry, Failure, Filter, Record, Store},
    hub::{Hub, SeenSession},
};

type Outcome = Result<Response, Problem>;

pub(super) async fn sessions(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
    RawQuery(query): RawQuery,
) -> Outcome {
    admin.tenant(&tenant)?;
    let query = Query::parse(query.as_deref(), &["server", "limit", "after"])?;
    let (limit, after) = (query.limit()?, query.get("after"));
    let mut found = front.hub.sessions(&tenant);
    found.retain(|one| {
        query
            .get("server")
            .is_none_or(|server| one.server == server)
    });
    found.retain(|one| after.is_none_or(|after| one.id.as_str() > after));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more).map(|one| one.id.clone());
    let items: Vec<Json> = found.iter().map(session).collect();
    Ok(answer(
        StatusCode::OK,
        &json!({"items": items, "next": next}),
    ))
}

fn session(one: &SeenSession) -> Json {
    json!({
        "id": one.id, "server": one.server, "transport": one.transport,
        "issuer": one.issuer, "subject": one.subject, "client": one.client,
        "age_seconds": one.age.as_secs_f64(),
    })
}

pub(super) async fn end_session(
    State(front): Shared,
    admin: Admin,
    Named((tenant, id)): Named<(String, String)>,
    RawQuery(query): RawQuery,
) -> Outcome {
    admin.tenant(&tenant)?;
    let how = mode(&Query::parse(query.as_deref(), &["mode"])?)?;
    let store = front.live.store()?;
    let record = record(
        &admin,
        &tenant,
        "session.ended",
        &format!("session {tenant}/{id}"),
        how,
    );
    if !front.hub.sessions(&tenant).iter().any(|one| one.id == id) {
        return Err(Problem::not_found());
    }
    // What ends something is on record before it is done.
    store.append(&[record]).await?;
    if front.hub.end_seen(&tenant, &id, how).await {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(Problem::not_found())
    }
}

pub(crate) async fn children(
    State(front): Shared,
    admin: Admin,
    Named((tenant, name)): Named<(String, String)>,
) -> Outcome {
    let found = children_of(&front, &admin, &tenant, &name).await?;
    let items: Vec<Json> = found.iter().map(child).collect();
    Ok(answer(StatusCode::OK, &json!({"items": items})))
}

fn child(one: &SeenChild) -> Json {
    json!({
        "number": one.number, "pid": one.pid, "state": one.state.as_str(),
        "age_seconds": one.age.as_secs_f64(), "restarts": one.restarts, "calls": one.calls,
        "memory_bytes": one.memory, "cpu_seconds": one.cpu.as_secs_f64(),
    })
}

/// The last of what the children of a server wrote to stderr, one object a line.
pub(super) async fn logs(
    State(front): Shared,
    admin: Admin,
    Named((tenant, name)): Named<(String, String)>,
) -> Outcome {
    let found = children_of(&front, &admin, &tenant, &name).await?;
    let mut out = String::new();
    for one in &found {
        for line in String::from_utf8_lossy(&one.stderr).lines() {
            let line = json!({"child": one.number, "line": line});
            out.push_str(&line.to_string());
            out.push('\n');
        }
    }
    Ok(lines(Body::from(out)))
}

async fn children_of(
    front: &Front,
    admin: &Admin,
    tenant: &str,
    server: &str,
) -> Result<Vec<SeenChild>, Problem> {
    known(admin, tenant, server)?;
    let hub = front.hub.clone();
    // It reads files of the kernel, one for each process.
    let listed = tokio::task::spawn_blocking(move || hub.children()).await;
    let mut found = listed.unwrap_or_default();
    found.retain(|one| one.tenant == tenant && one.server == server);
    Ok(found)
}

/// Whether there is such a server for the caller.
fn known(admin: &Admin, tenant: &str, server: &str) -> Result<(), Problem> {
    admin.tenant(tenant)?;
    let found = admin.snapshot.catalog.find(tenant, server);
    found.map(drop).ok_or_else(Problem::not_found)
}

pub(super) async fn restart(
    State(front): Shared,
    admin: Admin,
    Named((tenant, name)): Named<(String, String)>,
    RawQuery(query): RawQuery,
) -> Outcome {
    known(&admin, &tenant, &name)?;
    let how = mode(&Query::parse(query.as_deref(), &["mode"])?)?;
    let store = front.live.store()?;
    let record = record(
        &admin,
        &tenant,
        "server.restarted",
        &format!("server {tenant}/{name}"),
        how,
    );
    store.append(&[record]).await?;
    let count = front.hub.restart(&tenant, &name, how);
    Ok(answer(StatusCode::ACCEPTED, &json!({"children": count})))
}

/// What a tenant may use, and what it uses on this replica.
pub(crate) async fn quotas(
    State(front): Shared,
    admin: Admin,
    Named(tenant): Named<String>,
) -> Outcome {
    admin.tenant(&tenant)?;
    let found = admin.snapshot.catalog.tenants.get(&tenant);
    let quotas = found.ok_or_else(Problem::not_found)?.quotas;
    let hub: Hub = front.hub.clone();
    let name = tenant.clone();
    let used = tokio::task::spawn_blocking(move || {
        let own = |one: &SeenChild| one.tenant == name;
        let children: Vec<SeenChild> = hub.children().into_iter().filter(own).collect();
        let calls: u32 = children.iter().map(|one| one.calls).sum();
        let memory: u64 = children.iter().map(|one| one.memory).sum();
        (children.len(), calls, memory, hub.sessions(&name).len())
    });
    let (children, calls, memory, sessions) = used.await.unwrap_or_default();
    let body = json!({
        "tenant": quotas.tenant.shown(),
        "principal": quotas.principal.shown(),
        "used": {
            "children": children, "calls": calls, "sessions": sessions, "memory_bytes": memory,
        },
    });
    Ok(answer(StatusCode::OK, &body))
}

/// The audit trail, newest first: a page as JSON, or all of it as lines of JSON.
pub(super) async fn audit(
    State(front): Shared,
    admin: Admin,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Outcome {
    let known = ["tenant", "kind", "actor", "from", "until", "limit", "after"];
    let query = Query::parse(query.as_deref(), &known)?;
    let own = |name| query.get(name).map(str::to_owned);
    let tenant = match (admin.who.tenant(), own("tenant")) {
        (None, tenant) => tenant,
        (Some(own), None) => Some(own.to_owned()),
        (Some(own), Some(asked)) if own == asked => Some(asked),
        (Some(_), Some(_)) => return Err(Problem::not_found()),
    };
    let filter = Filter {
        tenant,
        kind: own("kind"),
        actor: own("actor"),
        from_ms: query.moment("from")?,
        until_ms: query.moment("until")?,
    };
    let bad = |()| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "the parameter after: no such cursor",
        )
    };
    let after = query.get("after").map(str::parse::<Cursor>).transpose();
    let after = after.map_err(bad)?;
    let store = front.live.store()?.clone();
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains(LINES)) {
        return Ok(lines(export(store, filter, after)));
    }
    let limit = u32::try_from(query.limit()?).unwrap_or(u32::MAX);
    let page = store.audit(&filter, after, limit).await?;
    let items: Vec<Json> = page.entries.iter().map(entry).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(answer(
        StatusCode::OK,
        &json!({"items": items, "next": next}),
    ))
}

/// Every record page by page, as the client reads. A store that goes away meanwhile breaks the
/// answer off: one that ended as if it were whole would be a lie.
fn export(store: Store, filter: Filter, after: Option<Cursor>) -> Body {
    let first = Some((store, filter, after));
    let pages = stream::try_unfold(first, async |state| {
        let Some((store, filter, after)) = state else {
            return Ok::<_, Failure>(None);
        };
        let page = store.audit(&filter, after, EXPORTED).await?;
        let mut text = String::new();
        for one in &page.entries {
            text.push_str(&entry(one).to_string());
            text.push('\n');
        }
        let rest = page.next.map(|next| (store, filter, Some(next)));
        Ok(Some((Bytes::from(text), rest)))
    });
    Body::from_stream(pages)
}

fn entry(entry: &Entry) -> Json {
    let Record {
        tenant,
        kind,
        actor,
        target,
        detail,
    } = &entry.record;
    json!({
        "id": entry.id.to_string(), "at": moment(entry.at_ms), "tenant": tenant, "kind": kind,
        "actor": actor, "target": target, "detail": detail,
    })
}

fn record(admin: &Admin, tenant: &str, kind: &str, target: &str, how: HowToEnd) -> Record {
    Record {
        tenant: Some(tenant.to_owned()),
        kind: kind.to_owned(),
        actor: admin.who.actor.clone(),
        target: target.to_owned(),
        detail: json!({"mode": if how == HowToEnd::Now { "now" } else { "drain" }}),
    }
}

fn mode(query: &Query) -> Result<HowToEnd, Problem> {
    match query.get("mode") {
        None | Some("drain") => Ok(HowToEnd::Drain),
        Some("now") => Ok(HowToEnd::Now),
        Some(_) => {
            let text = "the parameter mode: write drain or now";
            Err(Problem::new(StatusCode::BAD_REQUEST, text))
        }
    }
}

fn lines(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(LINES));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Lines of JSON.
const LINES: &str = "application/x-ndjson";
/// Records that are read at once for an export.
const EXPORTED: u32 = 500;

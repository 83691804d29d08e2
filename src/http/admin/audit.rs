//! Audit trail: a page of records as JSON, or all records as JSON lines; and the attempts of clients to be let in.

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header::ACCEPT};
use serde_json::{Value as Json, json};

use super::{
    caller::{Permission, turn_of},
    operation::{Call, Operation, OperationResult, get},
    request::Parameter,
    response::{lines, ok, page},
    schema::{self, LINES, Schema, Shape, any_object, nullable_text, object, text},
};
use crate::{
    base::moment,
    config::reader::nearest,
    database::{self, Cursor, Database, Entry, Filter, KINDS, Record, oauth::Step},
    http::reply::Problem,
};

/// Operations that read the audit trail and attempts.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        get(
            "/audit",
            "listAudit",
            "The audit trail, newest first; with Accept: application/x-ndjson all records",
        )
        .query(&[
            Parameter::Text("tenant"),
            Parameter::Text("kind"),
            Parameter::Text("actor"),
            Parameter::Moment("from"),
            Parameter::Moment("until"),
            Parameter::Limit,
            Parameter::Text("after"),
        ])
        .gives(200, &RECORDS)
        .fails(&[400, 404])
        .serve(Permission::Administrator, audit),
        get(
            "/tenants/{tenant}/logins",
            "listLogins",
            "Attempts of clients to be let in during the last day, the newest first, each with its last step",
        )
        .query(&[Parameter::Limit])
        .gives(200, &LOGINS)
        .fails(&[400, 404])
        .serve(Permission::Issuer, logins),
        get(
            "/tenants/{tenant}/logins/{id}",
            "showLogin",
            "The steps of an attempt, the oldest first",
        )
        .gives(200, &STEPS)
        .fails(&[404])
        .serve(Permission::Issuer, login),
    ]
}

/// Lists attempts: the newest steps of the tenant, by attempt.
async fn logins(call: Call) -> OperationResult {
    let limit = call.query.limit()?;
    let store = call.caller.store(&call.front).await?;
    let steps = store.login_steps().newest(call.path.tenant()).await?;
    let mut attempts: Vec<Vec<&Step>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for step in &steps {
        let place = *places.entry(&step.attempt).or_insert(attempts.len());
        match attempts.get_mut(place) {
            Some(attempt) => attempt.push(step),
            None => attempts.push(vec![step]),
        }
    }
    let items: Vec<Json> = attempts
        .iter()
        .take(limit)
        .filter_map(|one| summary(one))
        .collect();
    Ok(ok(&json!({"items": items})))
}

/// An attempt whose steps are these, the newest first.
fn summary(steps: &[&Step]) -> Option<Json> {
    let (last, first) = (steps.first()?, steps.last()?);
    let known = |of: fn(&Step) -> &String| {
        let found = steps.iter().find(|step| !of(step).is_empty());
        found.map(|step| of(step).as_str())
    };
    Some(json!({
        "id": last.attempt, "began": moment(first.at_ms), "latest": moment(last.at_ms),
        "client": known(|step| &step.client_id), "title": known(|step| &step.client),
        "server": known(|step| &step.server), "subject": known(|step| &step.subject),
        "address": known(|step| &step.address), "step": last.step, "reason": some(&last.reason),
    }))
}

/// Shows the steps of an attempt.
async fn login(call: Call) -> OperationResult {
    let id = call.path.get("id").unwrap_or_default();
    let store = call.caller.store(&call.front).await?;
    let steps = store.login_steps().of(call.path.tenant(), id).await?;
    if steps.is_empty() {
        return Err(Problem::no_such("attempt", id));
    }
    let items: Vec<Json> = steps.iter().map(shown).collect();
    Ok(ok(&json!({"items": items})))
}

fn shown(step: &Step) -> Json {
    json!({
        "at": moment(step.at_ms), "step": step.step, "client": some(&step.client_id),
        "title": some(&step.client), "server": some(&step.server), "subject": some(&step.subject),
        "address": some(&step.address), "reason": some(&step.reason),
    })
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

async fn audit(call: Call) -> OperationResult {
    let query = &call.query;
    let own = |name| query.get(name).map(str::to_owned);
    let tenant = match (call.caller.administrator.tenants(), own("tenant")) {
        (None, tenant) => tenant,
        (Some([own]), None) => Some(own.clone()),
        (Some(own), Some(asked)) if own.contains(&asked) => Some(asked),
        (Some(_), Some(_)) => return Err(Problem::not_found()),
        (Some(_), None) => {
            let text = "the parameter tenant: write one, because several have this API key";
            return Err(Problem::new(StatusCode::BAD_REQUEST, text));
        }
    };
    if let Some(kind) = query.get("kind")
        && !KINDS.contains(&kind)
    {
        let near = nearest(kind, KINDS.into_iter());
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let text = format!("the parameter kind: there is no such kind of record{near}");
        return Err(Problem::new(StatusCode::BAD_REQUEST, text));
    }
    let filter = Filter {
        tenant,
        kind: own("kind"),
        actor: own("actor"),
        from_ms: query.moment("from")?,
        until_ms: query.moment("until")?,
        of_present: !call.caller.administrator.is_operator(),
    };
    let after = query.get("after").map(str::parse::<Cursor>).transpose();
    let after = after.map_err(|()| {
        let text = "the parameter after: no such cursor";
        Problem::new(StatusCode::BAD_REQUEST, text)
    })?;
    let accept = call.headers.get(ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains(LINES)) {
        let store = call.front.snapshot.database()?.clone();
        let caller = &call.caller;
        let owner = (!caller.administrator.is_operator()).then(|| caller.owner().to_owned());
        return Ok(lines(export((store, owner), filter, after)));
    }
    let limit = u32::try_from(query.limit()?).unwrap_or(u32::MAX);
    let store = call.caller.store(&call.front).await?;
    let found = store.audit().page(&filter, after, limit).await?;
    let next = found.next.map(|next| next.to_string());
    Ok(page(found.entries.iter().map(entry).collect(), next))
}

/// Streams all records, page by page at the speed of the client, each page at a turn of its owner; operators wait for
/// none. An error of the database aborts the response, so that an incomplete one does not look complete.
fn export(
    (store, owner): (Database, Option<String>),
    filter: Filter,
    after: Option<Cursor>,
) -> Body {
    let first = Some((store, owner, filter, after));
    let pages = stream::try_unfold(first, async |state| {
        let Some((store, owner, filter, after)) = state else {
            return Ok::<_, database::Error>(None);
        };
        let _turn = match &owner {
            Some(owner) => Some(turn_of(owner).await.map_err(|_| late())?),
            None => None,
        };
        let page = store.audit().page(&filter, after, EXPORT_PAGE).await?;
        let mut text = String::new();
        for one in &page.entries {
            text.push_str(&entry(one).to_string());
            text.push('\n');
        }
        let rest = page.next.map(|next| (store, owner, filter, Some(next)));
        Ok(Some((Bytes::from(text), rest)))
    });
    Body::from_stream(pages)
}

fn late() -> database::Error {
    database::Error::Unavailable("other requests of administrators take long".to_owned())
}

fn entry(entry: &Entry) -> Json {
    let Record {
        tenant,
        kind,
        actor,
        target,
        detail,
        ..
    } = &entry.record;
    json!({
        "id": entry.id.to_string(), "at": moment(entry.at_ms), "tenant": tenant, "kind": kind,
        "actor": actor, "target": target, "detail": detail,
    })
}

/// Records per read of an export.
const EXPORT_PAGE: u32 = 500;

static RECORD: Schema = Schema {
    name: "Record",
    shape: Shape::Json(|| {
        object(&[
            ("id", text()),
            ("at", text()),
            ("tenant", nullable_text()),
            ("kind", text()),
            ("actor", text()),
            ("target", text()),
            ("detail", any_object()),
        ])
    }),
};

static LOGIN: Schema = Schema {
    name: "LoginAttempt",
    shape: Shape::Json(|| {
        object(&[
            ("id", text()),
            ("began", schema::moment()),
            ("latest", schema::moment()),
            ("client", nullable_text()),
            ("title", nullable_text()),
            ("server", nullable_text()),
            ("subject", nullable_text()),
            ("address", nullable_text()),
            ("step", text()),
            ("reason", nullable_text()),
        ])
    }),
};

static LOGINS: Schema = Schema {
    name: "LoginAttempts",
    shape: Shape::List(&LOGIN),
};

static STEP: Schema = Schema {
    name: "LoginStep",
    shape: Shape::Json(|| {
        object(&[
            ("at", schema::moment()),
            ("step", text()),
            ("client", nullable_text()),
            ("title", nullable_text()),
            ("server", nullable_text()),
            ("subject", nullable_text()),
            ("address", nullable_text()),
            ("reason", nullable_text()),
        ])
    }),
};

static STEPS: Schema = Schema {
    name: "LoginSteps",
    shape: Shape::List(&STEP),
};

static RECORDS: Schema = Schema {
    name: "Records",
    shape: Shape::Page(&RECORD),
};

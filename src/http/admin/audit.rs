//! Audit trail: a page of records as JSON, or all records as JSON lines.

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header::ACCEPT};
use serde_json::{Value as Json, json};

use super::{
    caller::Permission,
    operation::{Call, Operation, OperationResult, get},
    request::Parameter,
    response::{lines, page},
    schema::{LINES, Schema, Shape, any_object, nullable_text, object, text},
};
use crate::{
    base::moment,
    config::reader::nearest,
    database::{self, Cursor, Database, Entry, Filter, KINDS, Record},
    http::reply::Problem,
};

/// Operation that reads the audit trail.
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
    ]
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
    };
    let after = query.get("after").map(str::parse::<Cursor>).transpose();
    let after = after.map_err(|()| {
        let text = "the parameter after: no such cursor";
        Problem::new(StatusCode::BAD_REQUEST, text)
    })?;
    let store = call.front.snapshot.database()?.clone();
    let accept = call.headers.get(ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains(LINES)) {
        return Ok(lines(export(store, filter, after)));
    }
    let limit = u32::try_from(query.limit()?).unwrap_or(u32::MAX);
    let found = store.audit().page(&filter, after, limit).await?;
    let next = found.next.map(|next| next.to_string());
    Ok(page(found.entries.iter().map(entry).collect(), next))
}

/// Streams all records, page by page at the speed of the client. An error of the database aborts the
/// response, so that an incomplete one does not look complete.
fn export(store: Database, filter: Filter, after: Option<Cursor>) -> Body {
    let first = Some((store, filter, after));
    let pages = stream::try_unfold(first, async |state| {
        let Some((store, filter, after)) = state else {
            return Ok::<_, database::Error>(None);
        };
        let page = store.audit().page(&filter, after, EXPORT_PAGE).await?;
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

static RECORDS: Schema = Schema {
    name: "Records",
    shape: Shape::Page(&RECORD),
};

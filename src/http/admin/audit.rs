//! Audit trail: a page of records as JSON, or all records as JSON lines; and the attempts of clients to be let in.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::ready,
    stream::{once, try_unfold},
};
use http::{StatusCode, header::ACCEPT};
use serde_json::{Value as Json, json};

use super::{
    caller::{Permission, WAIT, within},
    operation::{Call, Operation, OperationResult, get},
    request::Parameter,
    response::{lines, ok, page},
    schema::{self, LINES, Schema, Shape, any_object, nullable_text, object, text},
};
use crate::{
    base::{
        budget::{Budget, Turns},
        moment,
    },
    config::reader::nearest,
    database::{Cursor, Database, Entry, Filter, KINDS, Page, Record, oauth::Step},
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
    let (turns, owner) = call.caller.scans();
    let trail = Trail {
        store: call.front.snapshot.database()?.clone(),
        filter,
        turns,
        owner: owner.to_owned(),
        memory: call.caller.memory(&call.front),
    };
    if accept.is_some_and(|accept| accept.contains(LINES)) {
        // Before the response, which can tell of nothing once it has begun.
        let first = trail.part(after, WAIT).await?;
        return Ok(lines(export(trail, first)));
    }
    let limit = u32::try_from(query.limit()?).unwrap_or(u32::MAX);
    let found = trail.page(after, limit, WAIT).await?;
    let next = found.next.map(|next| next.to_string());
    Ok(page(found.entries.iter().map(entry).collect(), next))
}

/// The audit trail as one caller reads it.
struct Trail {
    store: Database,
    filter: Filter,
    /// Turns at a page, of which each scans as much as a statement can.
    turns: &'static Turns,
    /// The name that the turns are taken by.
    owner: String,
    /// The share of its address, which parts of an export are drawn from.
    memory: Arc<Budget>,
}

/// A part of an export, and the cursor of the next one.
type Part = (Bytes, Option<Cursor>);

impl Trail {
    /// Reads a page at its turn, which is waited for as long as `patience`.
    async fn page(
        &self,
        after: Option<Cursor>,
        limit: u32,
        patience: Duration,
    ) -> Result<Page, Problem> {
        let turn = within(patience, self.turns.take(&self.owner)).await?;
        let audit = self.store.audit();
        let page = audit.page_at(vec![turn], &self.filter, after, limit);
        Ok(page.await?)
    }

    /// Reads a page of an export. It counts for its address until the client has taken it: a place among few exports would be
    /// kept from everybody by a client that takes nothing.
    async fn part(&self, after: Option<Cursor>, patience: Duration) -> Result<Part, Problem> {
        let Page { entries, next } = self.page(after, EXPORT_PAGE, patience).await?;
        let text = text_of(&entries);
        let drawn = self.memory.draw(STREAM + text.len() as u64);
        let drawn = drawn.ok_or_else(Problem::no_room)?;
        Ok((drawn.until_dropped(text), next))
    }
}

/// Streams all records from a first part on, page by page at the speed of the client. Between two pages nothing is
/// held, so that the next one may wait for long. An error aborts the response, so that an incomplete one does not look
/// complete.
fn export(trail: Trail, (first, next): Part) -> Body {
    let begin = once(ready(Ok(first)));
    let rest = try_unfold((trail, next), async |(trail, after)| {
        let Some(after) = after else {
            return Ok::<_, String>(None);
        };
        let part = trail.part(Some(after), PATIENCE).await;
        let part = part.map_err(|problem| format!("an export ends with {}", problem.status()));
        let (text, next) = part?;
        Ok(Some((text, (trail, next))))
    });
    Body::from_stream(begin.chain(rest))
}

/// Records, one a line.
fn text_of(entries: &[Entry]) -> Bytes {
    let mut text = String::new();
    for one in entries {
        text.push_str(&entry(one).to_string());
        text.push('\n');
    }
    Bytes::from(text)
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
/// What an export takes beside the text that waits for its client: its stream, and where it is in the trail.
const STREAM: u64 = 4 << 10;
/// Time limit for the turn of a page of an export under way, which begins anew if it is broken off.
const PATIENCE: Duration = Duration::from_secs(60);

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::response::IntoResponse;
    use tokio::time::timeout;

    use super::super::audit::*;
    use crate::{
        base::Clock,
        config::{Config, Sources},
        database::Opening,
    };

    /// A trail of so many records, read at one turn, in a directory of its own.
    async fn trail(records: usize) -> (tempfile::TempDir, Trail) {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::load(&Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
            ..Sources::default()
        });
        let (config, clock) = (config.unwrap(), Clock::of(|| 1_000));
        let opening = Opening::of(&config, Arc::new(|_: &_, _| Vec::new()), clock);
        let store = Database::open(opening).await.unwrap();
        let record = Record::new(None, "server.restarted", "ada", "x", json!({}));
        store.audit().append(&vec![record; records]).await.unwrap();
        let trail = Trail {
            store,
            filter: Filter::default(),
            turns: Box::leak(Box::new(Turns::new(2))),
            owner: "a".to_owned(),
            memory: Budget::new(1 << 20),
        };
        (dir, trail)
    }

    /// It was cut off after five seconds behind others, and began anew each time.
    #[tokio::test]
    async fn an_export_under_way_waits_long_for_its_turn() {
        let records = usize::try_from(EXPORT_PAGE).unwrap() + 1;
        let (_dir, trail) = trail(records).await;
        let turns = trail.turns;
        let first = trail.part(None, WAIT).await.unwrap();
        let mut body = export(trail, first).into_data_stream();
        let held = turns.take("a").await;
        let mut read = body.next().await.unwrap().unwrap().to_vec();
        let mut next = body.next();
        let early = timeout(Duration::from_millis(50), &mut next).await;
        assert!(early.is_err(), "it did not wait: {early:?}");
        drop(held);
        read.extend_from_slice(&next.await.unwrap().unwrap());
        assert!(body.next().await.is_none());
        assert_eq!(read.split_inclusive(|byte| *byte == b'\n').count(), records);
    }

    /// What a client did not take counted nowhere, and there was no bound.
    #[tokio::test]
    async fn parts_of_exports_count_until_they_are_taken() {
        let (_dir, mut trail) = trail(1).await;
        let part = trail.part(None, WAIT).await.unwrap();
        let size = trail.memory.used();
        assert_eq!(size, STREAM + part.0.len() as u64);
        drop(part);
        assert_eq!(trail.memory.used(), 0);
        let memory = Budget::new(2 * size - 1);
        trail.memory = Arc::clone(&memory);
        let first = trail.part(None, WAIT).await.unwrap();
        let refused = trail.part(None, WAIT).await.map(drop);
        let refused = refused.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key("retry-after"));
        let mut body = export(trail, first).into_data_stream();
        let text = body.next().await.unwrap().unwrap();
        assert_eq!(memory.used(), size);
        drop(text);
        assert!(body.next().await.is_none());
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn a_page_that_finds_no_turn_is_503() {
        let (_dir, trail) = trail(1).await;
        let held = trail.turns.take("a").await;
        let late = trail.page(None, 9, Duration::from_millis(1)).await;
        let late = late.map(drop).unwrap_err().into_response();
        assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(late.headers().contains_key("retry-after"));
        drop(held);
        assert_eq!(trail.page(None, 9, WAIT).await.unwrap().entries.len(), 1);
    }
}

//! Status, sessions, children, their logs, and quotas, on the replica that responds.
//!
//! Sessions and children end in one of two modes: `drain` waits for the end of their calls, `now`
//! does not.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::{Value as Json, json};
use tokio::task::spawn_blocking;

use super::{
    caller::{Caller, Numbered, Permission, taken},
    operation::{Call, Operation, OperationResult, delete, get, post},
    request::{Parameter, Path, Query},
    response::{lines, ok, page},
    schema::{Schema, Shape, any_object, integer, nullable_text, number, object, text, texts},
};
use crate::{
    backend::child::{ChildStatus, Restart as EndMode},
    base::budget::Turns,
    database::{self, Mark, Record},
    endpoint::{Endpoint, Kind},
    error::Error,
    http::{
        Front,
        reply::{McpRefusal, Problem, answer},
    },
    hub::{Hub, SessionSummary},
    snapshot::Snapshot,
};

/// Operations on sessions, children, logs and quotas.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        get(
            "/status",
            "getStatus",
            "This replica at a glance; a tenant's administrator sees its own tenant",
        )
        .gives(200, &STATUS)
        .fails(&[])
        .serve(Permission::Administrator, status),
        get(
            "/tenants/{tenant}/sessions",
            "listSessions",
            "Sessions of a tenant on this replica",
        )
        .query(OF_SESSIONS)
        .gives(200, &SESSIONS)
        .fails(&[400, 404])
        .serve(Permission::Tenant, sessions),
        delete(
            "/tenants/{tenant}/sessions/{id}",
            "endSession",
            "End a session: now, or when its calls have ended",
        )
        .query(&[Parameter::Mode])
        .fails(&[400, 404])
        .serve(Permission::Tenant, end_session),
        get(
            "/tenants/{tenant}/quotas",
            "getQuotas",
            "Quotas of a tenant, and its use of them on this replica",
        )
        .gives(200, &QUOTAS)
        .serve(Permission::Tenant, quotas),
        get(
            "/tenants/{tenant}/servers/{name}/children",
            "listChildren",
            "Children of a server on this replica",
        )
        .gives(200, &CHILDREN)
        .serve(Permission::Server, children),
        get(
            "/tenants/{tenant}/servers/{name}/logs",
            "getLogs",
            "Recent stderr output of its children",
        )
        .gives(200, &LOG_LINES)
        .serve(Permission::Server, logs),
        post(
            "/tenants/{tenant}/servers/{name}/restart",
            "restartServer",
            "Replace the children of a server at every replica, now or when their calls have ended; counted are those of this one",
        )
        .query(&[Parameter::Mode])
        .gives(202, &RESTARTED)
        .fails(&[400, 404])
        .serve(Permission::Server, restart),
    ]
}

/// Returns the readiness of this replica, and the use of every server that the caller sees.
async fn status(call: Call) -> OperationResult {
    let (front, caller) = (&call.front, &call.caller);
    let (readiness, unavailable) = front.health.readiness();
    // What the gateway consists of, and when it started, concerns its operators.
    let is_operator = caller.administrator.is_operator();
    let degraded = if is_operator { unavailable } else { Vec::new() };
    let uptime = is_operator.then(|| front.began.elapsed().as_secs_f64());
    let names = caller.snapshot.catalog.tenants.keys();
    let mut tenants: Vec<String> = names
        .filter(|name| caller.administrator.sees(name))
        .cloned()
        .collect();
    tenants.sort();
    let (hub, snapshot, config) = (
        front.hub.clone(),
        Arc::clone(&caller.snapshot),
        Arc::clone(&front.config),
    );
    let shown = move || {
        let servers = in_use(&hub, &snapshot, &tenants, &config.public_url);
        ok(&json!({
            "status": readiness.as_str(), "degraded": degraded,
            "version": env!("CARGO_PKG_VERSION"), "uptime_seconds": uptime, "tenants": tenants,
            "servers": servers,
        }))
    };
    listed(caller.owner(), shown).await
}

/// The use of every server of these tenants.
fn in_use(hub: &Hub, snapshot: &Snapshot, tenants: &[String], public_url: &str) -> Vec<Json> {
    let is_seen = |[tenant, _]: [&str; 2]| tenants.iter().any(|seen| seen == tenant);
    let (children, sessions) = (hub.children_of(is_seen), hub.session_counts());
    let mut packages = HashMap::new();
    for one in hub.prepared() {
        packages.extend(one.servers.into_iter().map(|name| (name, one.state)));
    }
    let mut of: HashMap<(&str, &str), Vec<&ChildStatus>> = HashMap::new();
    for child in &children {
        of.entry((&child.tenant, &child.server))
            .or_default()
            .push(child);
    }
    let found = tenants
        .iter()
        .filter_map(|name| snapshot.catalog.tenants.get(name));
    let servers = found.flat_map(|tenant| tenant.servers.values());
    let shown = servers.map(|server| {
        let name = (server.tenant.clone(), server.name.clone());
        let own = of
            .get(&(&*server.tenant, &*server.name))
            .map_or(&[][..], |own| own);
        let calls: u32 = own.iter().map(|one| one.calls).sum();
        let restarts: u32 = own.iter().map(|one| one.restarts).sum();
        let memory: u64 = own.iter().map(|one| one.memory).sum();
        let failure = hub.failure(server);
        let state = match (&failure, packages.get(&name)) {
            (Some(_), _) | (_, Some(&"failed")) => "failed",
            (None, Some(&"preparing")) => "preparing",
            (None, _) if own.is_empty() => "stopped",
            (None, _) => "running",
        };
        json!({
            "tenant": server.tenant, "name": server.name, "state": state,
            "failure": failure.map(|failure| failure.summary()),
            "url": Endpoint::new(&server.tenant, &server.name, Kind::Mcp).url(public_url),
            "children": own.len(), "calls": calls,
            "restarts": restarts, "memory_bytes": memory, "packages": packages.get(&name),
            "sessions": sessions.get(&[name.0, name.1]).copied().unwrap_or_default(),
        })
    });
    shown.collect()
}

async fn sessions(call: Call) -> OperationResult {
    let (hub, tenant) = (call.front.hub.clone(), call.path.tenant().to_owned());
    let list = move || hub.sessions(&tenant);
    sessions_of(call.caller.owner(), list, call.query).await
}

/// A page of the sessions that `list` finds among those of all tenants.
async fn sessions_of(
    owner: &str,
    list: impl FnOnce() -> Vec<SessionSummary> + Send + 'static,
    query: Query,
) -> OperationResult {
    let limit = query.limit()?;
    let paged = move || {
        let (server, after) = (query.get("server"), query.get("after"));
        let mut found = list();
        found.retain(|one| server.is_none_or(|server| one.server == server));
        found.retain(|one| after.is_none_or(|after| one.id.as_str() > after));
        found.sort_by(|one, other| one.id.cmp(&other.id));
        let is_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| is_more).map(|one| one.id.clone());
        page(found.iter().map(session).collect(), next)
    };
    listed(owner, paged).await
}

fn session(one: &SessionSummary) -> Json {
    json!({
        "id": one.id, "server": one.server, "transport": one.transport,
        "issuer": one.issuer, "subject": one.subject, "client": one.client,
        "age_seconds": one.age.as_secs_f64(),
    })
}

async fn end_session(call: Call) -> OperationResult {
    let how = mode(&call.query)?;
    let (tenant, id) = (call.path.tenant(), call.path.get("id").unwrap_or_default());
    let (front, caller) = (&call.front, &call.caller);
    let store = caller.store(front).await?;
    let target = format!("session {tenant}/{id}");
    let record = record(caller, tenant, "session.ended", &target, how);
    let (hub, names) = (front.hub.clone(), [tenant, id].map(str::to_owned));
    let check = move || hub.check_end(&names[0], &names[1]);
    let checked = listed(caller.owner(), check).await?;
    checked.map_err(|why| not_ended(why, id, ", and nothing has changed"))?;
    // The record is written before the session ends.
    store.audit().append(&[record]).await?;
    let ended = front.hub.end_session(tenant, id, how).await;
    ended.map_err(|why| not_ended(why, id, ""))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The problem of a session that cannot be ended; `so_far` is what its text says of the change.
fn not_ended(why: Error, id: &str, so_far: &str) -> Problem {
    match McpRefusal::from(why).parts() {
        (StatusCode::NOT_FOUND, _) => Problem::no_such("session", id),
        (status, text) => {
            Problem::new(status, format!("{text}{so_far}")).with_retry(Duration::from_secs(1))
        }
    }
}

async fn children(call: Call) -> OperationResult {
    let shown = |found: Vec<ChildStatus>| {
        let items: Vec<Json> = found.iter().map(child).collect();
        ok(&json!({"items": items}))
    };
    of_children((&call.front, call.caller.owner()), &call.path, shown).await
}

fn child(one: &ChildStatus) -> Json {
    json!({
        "number": one.number, "pid": one.pid, "state": one.state.into_str(),
        "age_seconds": one.age.as_secs_f64(), "restarts": one.restarts, "calls": one.calls,
        "memory_bytes": one.memory, "cpu_seconds": one.cpu.as_secs_f64(),
    })
}

/// Returns the latest stderr output of a server's children, one object per line. The output of a
/// start that failed has no child.
async fn logs(call: Call) -> OperationResult {
    let server = call
        .caller
        .snapshot
        .catalog
        .find(call.path.tenant(), call.path.name());
    let failure = server.and_then(|(_, server)| call.front.hub.failure(&server));
    let shown = move |found: Vec<ChildStatus>| {
        let failed = failure.map(|failure| {
            let head = format!("{} failed: {}", failure.stage, failure.why);
            let output = failure.output.iter().cloned();
            std::iter::once(head).chain(output).collect::<Vec<_>>()
        });
        lines(Body::from(logged(&failed.unwrap_or_default(), &found)))
    };
    of_children((&call.front, call.caller.owner()), &call.path, shown).await
}

/// The lines of a start that failed, and those of children: the newest of each within its part of [`LOGGED`]. What one
/// does not use of its part is the others'.
fn logged(failed: &[String], children: &[ChildStatus]) -> String {
    let failed = failed.iter().rev().map(String::as_str);
    let failed = newest(None, failed, LOGGED / (children.len() + 1));
    let mut left = LOGGED - failed.len();
    let mut parts = vec![String::new(); children.len()];
    // Those with the least first: their number is read once, because they go on writing.
    let mut waiting: Vec<usize> = (0..children.len()).collect();
    waiting.sort_by_cached_key(|at| children[*at].stderr.length());
    for (done, at) in waiting.into_iter().enumerate() {
        let (child, room) = (&children[at], left / (children.len() - done));
        // A byte takes one of the text at least.
        let stderr = child.stderr.last(room);
        let text = String::from_utf8_lossy(&stderr);
        parts[at] = newest(Some(child.number), text.lines().rev(), room);
        left -= parts[at].len();
    }
    failed + &parts.concat()
}

/// The newest of some lines, which come newest first, as objects within `room` bytes, oldest first. Of the newest one its
/// end, if there is no room for more.
fn newest<'l>(child: Option<u64>, lines: impl Iterator<Item = &'l str>, room: usize) -> String {
    let object = |line: &str| json!({"child": child, "line": line}).to_string() + "\n";
    let (mut objects, mut left) = (Vec::new(), room);
    for line in lines {
        let mut shown = object(line);
        if shown.len() > left && objects.is_empty() {
            let around = object("").len();
            shown = object(end_of(line, room.saturating_sub(around)));
        }
        let Some(rest) = left.checked_sub(shown.len()) else {
            break;
        };
        left = rest;
        objects.push(shown);
    }
    objects.reverse();
    objects.concat()
}

/// The end of a line that takes at most `most` bytes within a text of JSON.
fn end_of(line: &str, most: usize) -> &str {
    let mut length = 0;
    let kept = line.char_indices().rev().take_while(|&(_, letter)| {
        length += match letter {
            '"' | '\\' => 2,
            '\0'..='\x1f' => 6,
            _ => letter.len_utf8(),
        };
        length <= most
    });
    let begin = kept.last().map_or(line.len(), |(at, _)| at);
    &line[begin..]
}

/// Shows the children of the server in the path, at the turn of their list.
async fn of_children(
    (front, owner): (&Front, &str),
    path: &Path,
    shown: impl FnOnce(Vec<ChildStatus>) -> Response + Send + 'static,
) -> OperationResult {
    let hub = front.hub.clone();
    let names = [path.tenant(), path.name()].map(str::to_owned);
    let list = move || shown(hub.children_of(|found| found == [&*names[0], &*names[1]]));
    listed(owner, list).await
}

/// Lists children or sessions beside few others who do, tenants and operators in turn: that reads files of the kernel for
/// each process, and copies their stderr; or it goes through the sessions of all tenants, none of which begins or ends
/// meanwhile. A response is made of the list here too: it may be long, and no worker waits for that.
async fn listed<T: Send + 'static>(
    owner: &str,
    list: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let turn = taken(&LISTINGS, owner).await?;
    let listed = spawn_blocking(move || {
        let listed = list();
        drop(turn);
        listed
    });
    let bug = |error| database::Error::Bug(format!("a list is not made: {error}"));
    Ok(listed.await.map_err(bug)?)
}

/// The lists of children and sessions that are made at once.
static LISTINGS: LazyLock<Turns> = LazyLock::new(|| Turns::new(4));
/// The most bytes of a response with lines of stderr: a thousand children may have 64 MiB, of which empty lines make
/// twenty times as many.
const LOGGED: usize = 1 << 20;

async fn restart(call: Call) -> OperationResult {
    let how = mode(&call.query)?;
    let (tenant, name) = (call.path.tenant(), call.path.name());
    call.caller.count(Numbered::Restart, tenant)?;
    let store = call.caller.store(&call.front).await?;
    let target = format!("server {tenant}/{name}");
    let record = record(&call.caller, tenant, "server.restarted", &target, how);
    let count = call.front.hub.child_count(tenant, name);
    let (secrets, is_now) = (store.secrets(), how == EndMode::Now);
    secrets.restart([tenant, name], is_now, &record).await?;
    // This replica follows before the response, the others within seconds.
    if let Err(failure) = call.front.snapshot.refresh_issued().await {
        // It holds: who is told to come again would end calls twice.
        tracing::warn!(%failure, "a restart is followed by the next poll");
    }
    let restarted = json!({"children": count, "replicas": "all"});
    Ok(answer(StatusCode::ACCEPTED, &restarted))
}

/// Returns the quotas of a tenant and its use of them on this replica.
async fn quotas(call: Call) -> OperationResult {
    let tenant = call.path.tenant();
    let found = call.caller.snapshot.catalog.tenants.get(tenant);
    let quotas = found.ok_or_else(Problem::not_found)?.quotas;
    let objects = call.caller.snapshot.marks.get(tenant).map(Mark::members);
    let secrets = match (objects, call.caller.store(&call.front).await) {
        (Some(_), Ok(store)) => store.secrets().count(tenant).await.ok(),
        _ => None,
    };
    // Unknown while the database is away; the other numbers are not.
    let objects = objects.and_then(|objects| objects.checked_add_unsigned(secrets?));
    let (hub, name) = (call.front.hub.clone(), tenant.to_owned());
    let used = listed(call.caller.owner(), move || {
        let children = hub.children_of(|[tenant, _]| tenant == name);
        let calls: u32 = children.iter().map(|one| one.calls).sum();
        let memory: u64 = children.iter().map(|one| one.memory).sum();
        (children.len(), calls, memory, hub.sessions(&name).len())
    });
    let (children, calls, memory, sessions) = used.await?;
    Ok(ok(&json!({
        "tenant": quotas.tenant.shown(),
        "principal": quotas.principal.shown(),
        "used": {
            "children": children, "calls": calls, "sessions": sessions, "memory_bytes": memory,
            "objects": objects,
        },
    })))
}

fn record(caller: &Caller, tenant: &str, kind: &str, target: &str, how: EndMode) -> Record {
    let detail = json!({"mode": if how == EndMode::Now { "now" } else { "drain" }});
    let actor = &caller.administrator.actor;
    Record::new(Some(tenant), kind, actor, target, detail)
}

fn mode(query: &Query) -> Result<EndMode, Problem> {
    match query.get("mode") {
        None | Some("drain") => Ok(EndMode::Drain),
        Some("now") => Ok(EndMode::Now),
        Some(_) => {
            let text = "the parameter mode: write drain or now";
            Err(Problem::new(StatusCode::BAD_REQUEST, text))
        }
    }
}

/// The parameters of the list of sessions.
const OF_SESSIONS: &[Parameter] = &[
    Parameter::Text("server"),
    Parameter::Limit,
    Parameter::Text("after"),
];

static STATUS: Schema = Schema {
    name: "Status",
    shape: Shape::Json(|| {
        let server = object(&[
            ("tenant", text()),
            ("name", text()),
            (
                "state",
                json!({"enum": ["stopped", "preparing", "running", "failed"]}),
            ),
            ("failure", nullable_text()),
            ("url", text()),
            ("sessions", integer()),
            ("children", integer()),
            ("calls", integer()),
            ("restarts", integer()),
            ("memory_bytes", integer()),
            ("packages", nullable_text()),
        ]);
        object(&[
            (
                "status",
                json!({"enum": ["ready", "degraded", "unready", "draining"]}),
            ),
            ("degraded", texts()),
            ("version", text()),
            ("uptime_seconds", json!({"type": ["number", "null"]})),
            ("tenants", texts()),
            ("servers", json!({"type": "array", "items": server})),
        ])
    }),
};

static SESSION: Schema = Schema {
    name: "Session",
    shape: Shape::Json(|| {
        object(&[
            ("id", text()),
            ("server", text()),
            ("transport", text()),
            ("issuer", nullable_text()),
            ("subject", nullable_text()),
            ("client", nullable_text()),
            ("age_seconds", number()),
        ])
    }),
};

static SESSIONS: Schema = Schema {
    name: "Sessions",
    shape: Shape::Page(&SESSION),
};

static CHILD: Schema = Schema {
    name: "Child",
    shape: Shape::Json(|| {
        object(&[
            ("number", integer()),
            ("pid", json!({"type": ["integer", "null"]})),
            ("state", text()),
            ("age_seconds", number()),
            ("restarts", integer()),
            ("calls", integer()),
            ("memory_bytes", integer()),
            ("cpu_seconds", number()),
        ])
    }),
};

static CHILDREN: Schema = Schema {
    name: "Children",
    shape: Shape::List(&CHILD),
};

static LOG_LINES: Schema = Schema {
    name: "LogLines",
    shape: Shape::Lines(
        "One object with child and line for each line: the newest within 1 MiB in all, of each child at least its part",
    ),
};

static RESTARTED: Schema = Schema {
    name: "Restarted",
    shape: Shape::Json(|| {
        object(&[
            ("children", integer()),
            ("replicas", json!({"enum": ["all"]})),
        ])
    }),
};

static QUOTAS: Schema = Schema {
    name: "Quotas",
    shape: Shape::Json(|| {
        object(&[
            ("tenant", any_object()),
            ("principal", any_object()),
            ("used", any_object()),
        ])
    }),
};

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Barrier};

    use futures_util::future::join_all;

    use super::super::running::*;
    use crate::{backend::child::stderr::Stderr, telemetry::ChildState};

    /// A session of this beginning of an id.
    fn session_of(id: &str) -> SessionSummary {
        SessionSummary {
            id: id.to_owned(),
            server: "x".to_owned(),
            transport: "streamable-http",
            issuer: None,
            subject: None,
            client: None,
            age: Duration::ZERO,
        }
    }

    /// A tenant's administrators were in front of the operators, without an end. Their lists of sessions took the workers of
    /// everybody.
    #[tokio::test]
    async fn lists_of_children_take_turns_by_tenant() {
        let barrier = Arc::new(Barrier::new(4));
        let slow = (0..3).map(|_| {
            let barrier = Arc::clone(&barrier);
            listed("a", move || barrier.wait())
        });
        let mut slow = pin!(join_all(slow));
        let mut next = pin!(listed("a", || 1));
        let found = || Vec::from(["2", "1"].map(session_of));
        let mut sessions = pin!(sessions_of("a", found, Query::default()));
        let others = async {
            for owner in ["b", "", "b", ""] {
                assert_eq!(listed(owner, || 2).await.unwrap(), 2);
            }
        };
        tokio::select! {
            biased;
            _ = &mut slow => panic!("they did not meet"),
            done = &mut next => panic!("it did not wait: {}", done.is_ok()),
            done = &mut sessions => panic!("sessions did not wait: {}", done.is_ok()),
            () = others => {}
        }
        spawn_blocking(move || barrier.wait());
        assert!(slow.await.iter().all(Result::is_ok));
        assert_eq!(next.await.unwrap(), 1);
        assert_eq!(sessions.await.unwrap().status(), StatusCode::OK);
    }

    /// A child that has written this.
    fn child_with(number: u64, stderr: &[u8]) -> ChildStatus {
        let mut written = Stderr::new("x".to_owned(), 64 << 10);
        written.take(stderr);
        ChildStatus {
            number,
            tenant: "a".to_owned(),
            server: "x".to_owned(),
            guard: 0,
            pid: None,
            state: ChildState::Idle,
            age: Duration::ZERO,
            restarts: 0,
            calls: 0,
            memory: 0,
            cpu: Duration::ZERO,
            stderr: written.tail().clone(),
        }
    }

    /// The lines of a child in a text.
    fn lines_of(text: &str, child: Option<u64>) -> Vec<String> {
        let objects = text.lines().map(|line| {
            let object: Json = serde_json::from_str(line).unwrap();
            (
                object["child"].as_u64(),
                object["line"].as_str().unwrap().to_owned(),
            )
        });
        let own = objects.filter(|(of, _)| *of == child);
        own.map(|(_, line)| line).collect()
    }

    /// Children that wrote line ends alone made twenty times as many bytes of them: a thousand of them more than a GB, on
    /// a worker.
    #[test]
    fn lines_of_stderr_are_the_newest_within_a_bound() {
        let flood = [&b"\n".repeat(64 << 10)[..], b"last"].concat();
        let mut children: Vec<_> = (1..100).map(|number| child_with(number, &flood)).collect();
        children.push(child_with(100, b"one\ntwo"));
        let failed = ["start failed: it", "why"].map(str::to_owned);
        let text = logged(&failed, &children);
        assert!(
            (LOGGED / 10 * 9..=LOGGED).contains(&text.len()),
            "{}",
            text.len()
        );
        assert_eq!(lines_of(&text, None), failed);
        assert_eq!(lines_of(&text, Some(100)), ["one", "two"]);
        for number in 1..100 {
            let own = lines_of(&text, Some(number));
            // A hundredth of all, by 23 bytes a line.
            assert!(own.len() > 350, "{}", own.len());
            assert_eq!(own.last().unwrap(), "last");
        }
        // In the order of the children.
        let numbers = text.lines().map(|line| {
            let object: Json = serde_json::from_str(line).unwrap();
            object["child"].as_u64()
        });
        assert!(numbers.is_sorted());
    }

    /// What the others do not use is the loud one's.
    #[test]
    fn a_part_that_is_not_used_is_others() {
        let long = b"0123456789\n".repeat(5000);
        let mut children = vec![child_with(1, &long)];
        children.extend((2..200).map(|number| child_with(number, b"up\n")));
        let text = logged(&[], &children);
        assert_eq!(lines_of(&text, Some(1)).len(), 5000);
        assert_eq!(lines_of(&text, Some(199)), ["up"]);
    }

    #[test]
    fn of_a_line_that_is_longer_than_its_part_the_end_is_shown() {
        let long = "\u{1}\"é".repeat(99);
        let lines = [long.as_str(), "before"];
        for room in 30..300 {
            let text = newest(Some(7), lines.into_iter(), room);
            assert!(
                text.len() <= room && text.len() + 6 >= room,
                "{room}: {text}"
            );
            let shown = lines_of(&text, Some(7));
            assert!(shown.len() == 1 && lines[0].ends_with(&shown[0]), "{text}");
        }
        assert_eq!(newest(Some(7), lines.into_iter(), 9), "");
        // Of an older one nothing.
        let text = newest(None, ["new", "older"].into_iter(), 40);
        assert_eq!(lines_of(&text, None), ["new"]);
    }

    /// It left open whether the session had ended.
    #[test]
    fn a_session_that_cannot_be_ended_yet_is_told_as_unchanged() {
        let away = |so_far: &str| {
            let why = Error::Busy {
                what: "it is away",
                retry: Duration::from_secs(1),
            };
            not_ended(why, "s", so_far)
        };
        let said = |problem: Problem| {
            assert_eq!(problem.status(), StatusCode::SERVICE_UNAVAILABLE);
            format!("{problem:?}")
        };
        assert!(said(away(", and nothing has changed")).contains("away, and nothing has changed"));
        assert!(!said(away("")).contains("nothing"));
        let none = not_ended(Error::NoSession, "s", ", and nothing has changed");
        assert_eq!(none.status(), StatusCode::NOT_FOUND);
        assert!(!format!("{none:?}").contains("nothing"));
    }

    #[tokio::test]
    async fn a_list_that_fails_is_not_empty() {
        let failed = listed::<()>("a", || panic!("no list")).await;
        let status = failed.unwrap_err().status();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
}

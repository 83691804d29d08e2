//! Requests about tasks: `tasks/get`, `tasks/update` and `tasks/cancel` (ext-tasks).
//!
//! Not here: calls that become tasks (`modern_stream`), and the tasks themselves (`hub::tasks`).

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::{StatusCode, request::Parts};

use super::{
    modern_answer::{answered, answered_in},
    modern_request::{ModernRequest, refused},
};
use crate::http::{
    admission::{Admitted, Front},
    replicas::parked,
    reply::McpRefusal,
};
use crate::{
    auth::policy,
    base::budget::{Drawn, LargeWork},
    error::Error,
    hub::tasks::{Task, TaskPlace, WatchedTasks},
    protocol::{
        Accepts, Body as Messages, Message, json as raw,
        modern::{Filter, TASKS_REQUIRED, task_acknowledged, task_found},
    },
};

/// Answers a request about a task.
pub(super) async fn answer(
    front: &Arc<Front>,
    admitted: &Admitted,
    parts: &Parts,
    request: &ModernRequest<'_>,
    accepts: Accepts,
) -> Result<Response, McpRefusal> {
    check_declared(request)?;
    if request.method == "tasks/update" && !request.has_answers() {
        let text = "inputResponses is no object";
        return Err(refused(StatusCode::BAD_REQUEST, -32602, text));
    }
    let id = request.message.task_id().and_then(raw::decoded);
    let id = id.ok_or_else(no_task)?;
    let access = &admitted.access;
    let (call, task) = match front.tasks.find(access, &id) {
        TaskPlace::Here(task) => {
            let call = task.call.clone();
            (call, Ok(task))
        }
        TaskPlace::There(ticket) => {
            let (owner, body) = (ticket.replica(), request.message.bytes().clone());
            let there = parked::to_owner(front, admitted, (parts, body), &owner).await;
            if let Some(Ok(response)) = there {
                return Ok(response);
            }
            // A task that went on there has ended with that: it needs no cancellation any more, and no answers.
            let copy = front.tasks.copy(access, &ticket).await?;
            let copy = copy.ok_or_else(no_task)?;
            (copy.call, Err(copy.state))
        }
        TaskPlace::Unknown => return Err(no_task()),
    };
    check_scopes(front, admitted, &call)?;
    if let Some(line) = request.denied(&call) {
        return Ok(answered(front, request, line, accepts));
    }
    let line = match &task {
        Ok(task) => {
            front.tasks.settle(task).await;
            act(front, task, request).await?
        }
        Err(state) => {
            let room = room(front, request, state.len())?;
            (response(request, state), room)
        }
    };
    Ok(answered_in(front, request, line, accepts))
}

/// Does what a request wants of a task, and makes the response, with what is drawn for it.
async fn act(
    front: &Front,
    task: &Task,
    request: &ModernRequest<'_>,
) -> Result<(Bytes, Option<Drawn>), McpRefusal> {
    match &*request.method {
        "tasks/update" => task.update(request.message.clone()).await,
        "tasks/cancel" => task.cancel().await,
        _ => {}
    }
    let tenant = &request.caller.access.tenant().name;
    let turn = LargeWork::turn(tenant, task.size()).await;
    // Behind the wait: many may come out of it, each with the same room before it.
    let shown = task.present();
    let room = room(front, request, shown.size())?;
    let line = turn.run(|| response(request, &shown.rendered()));
    Ok((line, room))
}

/// Draws for a response with a state of so many bytes; the others are short.
fn room(
    front: &Front,
    request: &ModernRequest<'_>,
    bytes: usize,
) -> Result<Option<Drawn>, McpRefusal> {
    if request.method != "tasks/get" {
        return Ok(None);
    }
    Ok(front.room(request.caller.access, bytes)?)
}

fn response(request: &ModernRequest<'_>, state: &[u8]) -> Bytes {
    if request.method == "tasks/get" {
        return task_found(request.id(), state);
    }
    task_acknowledged(request.id(), state)
}

/// The tasks of this replica that a subscription asks for; the filter keeps only these.
pub(super) fn watched(
    front: &Front,
    admitted: &Admitted,
    request: &ModernRequest<'_>,
    filter: &mut Filter,
) -> Result<WatchedTasks, McpRefusal> {
    let mut watched = WatchedTasks::default();
    if filter.tasks.is_empty() {
        return Ok(watched);
    }
    if !request.offers_tasks() {
        filter.tasks.clear();
        return Ok(watched);
    }
    check_declared(request)?;
    filter.tasks.retain(|id| {
        let TaskPlace::Here(task) = front.tasks.find(&admitted.access, id) else {
            return false;
        };
        let call = &task.call;
        let may = check_scopes(front, admitted, call).is_ok() && request.denied(call).is_none();
        if may {
            watched.add(&task);
        }
        may
    });
    Ok(watched)
}

/// "Servers MUST return this error for non-declaring clients" (ext-tasks, "Protocol Errors").
fn check_declared(request: &ModernRequest<'_>) -> Result<(), McpRefusal> {
    if request.declares_tasks() {
        return Ok(());
    }
    let text = "Missing required client capability";
    let refusal = refused(StatusCode::BAD_REQUEST, -32021, text);
    Err(refusal.with_data(TASKS_REQUIRED.to_owned()))
}

/// Policy may have changed since the call.
fn check_scopes(front: &Front, admitted: &Admitted, call: &Message) -> Result<(), McpRefusal> {
    let needed = policy::missing_scopes(&admitted.access, &Messages::One(call.clone()));
    let refusal = |needed| admitted.refusal(front, Error::Scopes(needed));
    needed.map_or(Ok(()), |needed| Err(refusal(needed)))
}

/// "Invalid or nonexistent `taskId`: `-32602`" (ext-tasks, "Protocol Errors").
fn no_task() -> McpRefusal {
    refused(
        StatusCode::BAD_REQUEST,
        -32602,
        "no such task, or it is no longer kept",
    )
}

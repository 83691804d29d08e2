//! Tasks of 2025-11-25: calls of tools that have to be tasks, whose answers wait for `tasks/result`.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use serde_json::{Value, json};

use crate::{answer, env, fail, lock, send};

static JOBS: Mutex<BTreeMap<String, Job>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Job {
    /// The answer that nobody has asked for yet.
    answer: Option<Value>,
    /// The id of the request that waits for it.
    waiting: Option<Value>,
}

/// Whether a tool has to be called as a task.
pub(crate) fn is_required(tool: &str) -> bool {
    let is_it = env("CHILD_TASKS").is_some_and(|tasks| tasks == "required");
    is_it && ["sleep", "hang", "ask", "slow"].contains(&tool)
}

/// Answers a call with its task; returns the id that its result will have.
pub(crate) fn begin(id: &Value) -> Value {
    let name = format!("job-{}", LAST.fetch_add(1, SeqCst));
    lock(&JOBS).insert(name.clone(), Job::default());
    answer(id, json!({"task": task(&name, "working")}));
    json!(name)
}

fn task(name: &str, status: &str) -> Value {
    let at = "2025-11-25T10:30:00Z";
    json!({"taskId": name, "status": status, "createdAt": at, "lastUpdatedAt": at, "ttl": 60_000})
}

/// Whether a message is the answer of a task, which is kept until it is asked for.
pub(crate) fn keep(message: &Value) -> bool {
    let name = message["id"].as_str().unwrap_or_default().to_owned();
    let mut jobs = lock(&JOBS);
    let Some(job) = jobs.get_mut(&name).filter(|_| message["method"].is_null()) else {
        return false;
    };
    let mut message = message.clone();
    if !message["result"].is_null() {
        message["result"]["_meta"] = related(&name);
    }
    match job.waiting.take() {
        Some(waiting) => {
            message["id"] = waiting;
            drop(jobs);
            send(&message);
        }
        None => job.answer = Some(message),
    }
    true
}

fn related(name: &str) -> Value {
    json!({"io.modelcontextprotocol/related-task": {"taskId": name}})
}

/// The parameters of a question that a call with this id asks.
pub(crate) fn asked(id: &Value, mut params: Value) -> Value {
    if let Some(name) = id.as_str().filter(|name| lock(&JOBS).contains_key(*name)) {
        params["_meta"] = related(name);
    }
    params
}

/// Whether a request about a task is of one of these; it is answered then.
pub(crate) fn request(id: &Value, method: &str, params: &Value) -> bool {
    let name = params["taskId"].as_str().unwrap_or_default();
    let mut jobs = lock(&JOBS);
    let Some(job) = jobs.get_mut(name) else {
        return false;
    };
    if method == "tasks/result" {
        match job.answer.take() {
            Some(mut message) => {
                message["id"] = id.clone();
                drop(jobs);
                send(&message);
            }
            None => job.waiting = Some(id.clone()),
        }
        return true;
    }
    let waiting = job.waiting.take();
    jobs.remove(name);
    drop(jobs);
    if let Some(waiting) = waiting {
        fail(&waiting, -32603, "the task was cancelled");
    }
    answer(id, task(name, "cancelled"));
    true
}

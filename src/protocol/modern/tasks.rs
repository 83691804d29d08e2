//! Tasks of the extension `io.modelcontextprotocol/tasks` (ext-tasks): their states, and the messages that
//! carry them.

use bytes::{BufMut, Bytes, BytesMut};

use super::input::{InputRequest, push_input_requests};
use crate::protocol::{
    Span, json, jsonrpc,
    meta::{SERVER_INFO, TASKS},
};

/// The `data` of the error to a client that does not declare the extension (`-32021`).
pub(crate) const TASKS_REQUIRED: &str =
    r#"{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;

/// Whether raw capabilities of a client declare the extension.
pub(crate) fn declares_tasks(capabilities: &[u8]) -> bool {
    let extensions = json::get(capabilities, "extensions");
    let declared = extensions.and_then(|extensions| json::get(extensions, TASKS));
    declared.is_some_and(|settings| settings.starts_with(b"{"))
}

/// Whether a request with this method is about a task: `Mcp-Name` mirrors its `taskId` ("Streamable HTTP:
/// Routing Headers").
pub(crate) fn is_about_task(method: &str) -> bool {
    matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel")
}

/// The state of a task.
pub(crate) struct TaskState<'t> {
    pub(crate) id: &'t str,
    pub(crate) status: TaskStatus<'t>,
    /// A text for people.
    pub(crate) message: Option<&'t str>,
    /// When it was created, and when it changed (RFC 3339).
    pub(crate) times: [&'t str; 2],
    /// The time from its creation for which it is kept; none without an end.
    pub(crate) ttl_ms: Option<u128>,
    /// The raw `serverInfo` of the server.
    pub(crate) server_info: Option<&'t [u8]>,
}

/// The status of a task, with what belongs to it.
#[derive(Clone, Copy)]
pub(crate) enum TaskStatus<'t> {
    /// The server works.
    Working,
    /// The server waits for these answers of the client.
    InputRequired(&'t [InputRequest]),
    /// The raw result.
    Completed(&'t [u8]),
    /// The raw JSON-RPC error.
    Failed(&'t [u8]),
    /// The client has cancelled it.
    Cancelled,
}

impl TaskStatus<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired(_) => "input_required",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The interval that clients are told to poll in: an answer costs the gateway next to nothing.
const POLL_INTERVAL_MS: u32 = 1000;

impl TaskState<'_> {
    /// The task as an object (`DetailedTask`).
    pub(crate) fn render(&self) -> Bytes {
        let mut out = BytesMut::from(&br#"{"taskId":"#[..]);
        json::push_string(&mut out, self.id);
        let [created, updated] = self.times;
        let message = self.message.map(|message| ("statusMessage", message));
        let texts = [
            Some(("status", self.status.name())),
            message,
            Some(("createdAt", created)),
            Some(("lastUpdatedAt", updated)),
        ];
        for (name, text) in texts.into_iter().flatten() {
            push_text(&mut out, name, text);
        }
        let ttl = self.ttl_ms.map(|ms| ms.to_string());
        let ttl = ttl.as_deref().unwrap_or("null");
        let numbers = format!(r#","ttlMs":{ttl},"pollIntervalMs":{POLL_INTERVAL_MS}"#);
        out.extend_from_slice(numbers.as_bytes());
        match self.status {
            TaskStatus::InputRequired(asks) => {
                out.put_u8(b',');
                push_input_requests(&mut out, asks);
            }
            TaskStatus::Completed(result) => push_raw(&mut out, "result", result),
            TaskStatus::Failed(error) => push_raw(&mut out, "error", error),
            TaskStatus::Working | TaskStatus::Cancelled => {}
        }
        if let Some(info) = self.server_info {
            let meta = [b"{\"", SERVER_INFO.as_bytes(), b"\":", info, b"}"].concat();
            push_raw(&mut out, "_meta", &meta);
        }
        out.put_u8(b'}');
        out.freeze()
    }
}

fn push_text(out: &mut BytesMut, name: &str, text: &str) {
    let mut value = BytesMut::new();
    json::push_string(&mut value, text);
    push_raw(out, name, &value);
}

/// Appends a member that is not the first one.
fn push_raw(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.put_u8(b',');
    json::push_string(out, name);
    out.put_u8(b':');
    out.extend_from_slice(value);
}

/// Whether a rendered task has ended.
pub(crate) fn is_over(task: &[u8]) -> bool {
    let status = json::get(task, "status");
    !matches!(status, Some(br#""working""# | br#""input_required""#))
}

/// A rendered task as one that failed with this raw error.
pub(crate) fn failed(task: &[u8], error: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    let old = [
        "status",
        "statusMessage",
        "inputRequests",
        "result",
        "error",
    ];
    json::push_without(&mut out, task, Span::whole(task), |name| {
        old.contains(&name)
    });
    out.truncate(out.len() - 1);
    push_text(&mut out, "status", "failed");
    if let Some(message) = json::get(error, "message") {
        push_raw(&mut out, "statusMessage", message);
    }
    push_raw(&mut out, "error", error);
    out.put_u8(b'}');
    out.freeze()
}

/// The response to a call that became a task (`CreateTaskResult`).
pub(crate) fn task_created(id: &[u8], task: &[u8]) -> Bytes {
    with_type(id, "task", task)
}

/// The response to `tasks/get` (`GetTaskResult`).
pub(crate) fn task_found(id: &[u8], task: &[u8]) -> Bytes {
    with_type(id, "complete", task)
}

fn with_type(id: &[u8], kind: &str, task: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(task.len() + 128);
    let result = [br#"{"resultType":""#, kind.as_bytes(), b"\",", &task[1..]].concat();
    jsonrpc::push_result(id, &result, &mut line);
    line.freeze()
}

/// The response to `tasks/update` and `tasks/cancel`.
pub(crate) fn task_acknowledged(id: &[u8], task: &[u8]) -> Bytes {
    let mut result = BytesMut::from(&br#"{"resultType":"complete""#[..]);
    if let Some(meta) = json::get(task, "_meta") {
        push_raw(&mut result, "_meta", meta);
    }
    result.put_u8(b'}');
    let mut line = BytesMut::new();
    jsonrpc::push_result(id, &result, &mut line);
    line.freeze()
}

/// The notification of a task.
pub(crate) fn task_notification(task: &[u8]) -> Bytes {
    let mut line = BytesMut::new();
    jsonrpc::push_notification("notifications/tasks", Some(task), &mut line);
    line.freeze()
}

/// Raw capabilities of a session-based server for clients of this era: the extension is the gateway's, and
/// none that such a server may have ("Backward Compatibility").
pub(super) fn push_capabilities(out: &mut BytesMut, capabilities: &[u8], offers_tasks: bool) {
    let declared = json::get(capabilities, "extensions");
    let declared = declared.filter(|declared| declared.starts_with(b"{"));
    let declared = declared.unwrap_or(b"{}");
    let mut extensions = BytesMut::new();
    json::push_without(&mut extensions, declared, Span::whole(declared), |name| {
        name == TASKS
    });
    if offers_tasks {
        push_member(&mut extensions, TASKS, b"{}");
    }
    json::push_without(out, capabilities, Span::whole(capabilities), |name| {
        name == "extensions"
    });
    if extensions != b"{}"[..] {
        push_member(out, "extensions", &extensions);
    }
}

/// Adds a member to the object that ends here.
fn push_member(out: &mut BytesMut, name: &str, value: &[u8]) {
    let is_first = out.ends_with(b"{}");
    out.truncate(out.len() - 1);
    if !is_first {
        out.put_u8(b',');
    }
    json::push_string(out, name);
    out.put_u8(b':');
    out.extend_from_slice(value);
    out.put_u8(b'}');
}

#[cfg(test)]
mod tests {
    use super::super::tasks::*;

    fn state(status: TaskStatus<'_>) -> Bytes {
        TaskState {
            id: "t",
            status,
            message: Some("so"),
            times: ["2026-07-28T00:00:00Z", "2026-07-28T00:00:01Z"],
            ttl_ms: Some(5),
            server_info: Some(br#"{"name":"s"}"#),
        }
        .render()
    }

    #[test]
    fn each_status_has_what_belongs_to_it() {
        let own = r#""createdAt":"2026-07-28T00:00:00Z","lastUpdatedAt":"2026-07-28T00:00:01Z","ttlMs":5,"pollIntervalMs":1000"#;
        let meta = r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}"#;
        let ask = InputRequest {
            key: None,
            id: Bytes::from_static(b"7"),
            request: Bytes::from_static(br#"{"method":"roots/list"}"#),
        };
        let asks = [ask];
        for (status, name, member) in [
            (TaskStatus::Working, "working", ""),
            (TaskStatus::Cancelled, "cancelled", ""),
            (
                TaskStatus::InputRequired(&asks),
                "input_required",
                r#""inputRequests":{"7":{"method":"roots/list"}},"#,
            ),
            (
                TaskStatus::Completed(br#"{"a":1}"#),
                "completed",
                r#""result":{"a":1},"#,
            ),
            (
                TaskStatus::Failed(br#"{"code":1}"#),
                "failed",
                r#""error":{"code":1},"#,
            ),
        ] {
            let expected = format!(
                r#"{{"taskId":"t","status":"{name}","statusMessage":"so",{own},{member}{meta}}}"#
            );
            let task = state(status);
            assert_eq!(task, expected);
            assert_eq!(
                is_over(&task),
                !["working", "input_required"].contains(&name)
            );
        }
    }

    #[test]
    fn a_task_that_is_lost_has_failed() {
        let error = br#"{"code":1,"message":"gone"}"#;
        let lost = failed(&state(TaskStatus::Working), error);
        assert!(is_over(&lost));
        // One whose end nobody is to see is no different.
        for status in [
            TaskStatus::Completed(br#"{"content":[]}"#),
            TaskStatus::Failed(br#"{"code":2,"message":"so"}"#),
            TaskStatus::Cancelled,
        ] {
            assert_eq!(failed(&state(status), error), lost);
        }
        assert_eq!(json::get(&lost, "statusMessage"), Some(&br#""gone""#[..]));
        let line = task_found(b"1", &lost);
        let result = json::get(&line, "result").unwrap();
        assert_eq!(json::get(result, "resultType"), Some(&br#""complete""#[..]));
        assert_eq!(json::get(result, "taskId"), Some(&br#""t""#[..]));
        assert_eq!(
            task_acknowledged(b"1", &lost),
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#
        );
    }

    #[test]
    fn the_extension_is_the_gateways() {
        for (capabilities, offers, expected) in [
            ("{}", false, "{}"),
            (
                "{}",
                true,
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            ),
            (
                r#"{"tools":{},"extensions":{"a":{}}}"#,
                true,
                r#"{"tools":{},"extensions":{"a":{},"io.modelcontextprotocol/tasks":{}}}"#,
            ),
            (
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}},"tools":{}}"#,
                false,
                r#"{"tools":{}}"#,
            ),
        ] {
            let mut out = BytesMut::new();
            push_capabilities(&mut out, capabilities.as_bytes(), offers);
            assert_eq!(out, expected);
        }
    }
}

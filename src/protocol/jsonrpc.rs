//! Writers of JSON-RPC requests, notifications, results and errors.
//!
//! Each appends one message without a line end. Ids, parameters, results and error objects are
//! raw JSON.

use bytes::{BufMut, BytesMut};

use super::{json, meta::RELATED_TASK};

/// Appends a request.
pub(crate) fn push_request(id: &[u8], method: &str, params: Option<&[u8]>, out: &mut BytesMut) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(br#","method":"#);
    push_method(method, params, out);
}

/// Appends a notification.
pub(crate) fn push_notification(method: &str, params: Option<&[u8]>, out: &mut BytesMut) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
    push_method(method, params, out);
}

fn push_method(method: &str, params: Option<&[u8]>, out: &mut BytesMut) {
    json::push_string(out, method);
    if let Some(params) = params {
        out.extend_from_slice(br#","params":"#);
        out.extend_from_slice(params);
    }
    out.put_u8(b'}');
}

/// Appends the cancellation of a request.
pub(crate) fn push_cancelled(id: u64, reason: &str, out: &mut BytesMut) {
    push_ask_cancelled(id, None, reason, out);
}

/// Appends the cancellation of a request that may belong to a task, by its raw id: "All requests,
/// notifications, and responses related to a task MUST include" it (2025-11-25 tasks, "Associating
/// Task-Related Messages" 1).
pub(crate) fn push_ask_cancelled(id: u64, task: Option<&[u8]>, reason: &str, out: &mut BytesMut) {
    let mut params = BytesMut::from(&br#"{"requestId":"#[..]);
    params.extend_from_slice(id.to_string().as_bytes());
    params.extend_from_slice(br#","reason":"#);
    json::push_string(&mut params, reason);
    if let Some(task) = task {
        params.extend_from_slice(format!(r#","_meta":{{"{RELATED_TASK}":{{"taskId":"#).as_bytes());
        params.extend_from_slice(task);
        params.extend_from_slice(b"}}");
    }
    params.put_u8(b'}');
    push_notification("notifications/cancelled", Some(&params), out);
}

/// Appends an error response.
pub(crate) fn push_error(
    id: &[u8],
    code: i32,
    message: &str,
    data: Option<&str>,
    out: &mut BytesMut,
) {
    let mut error = BytesMut::from(format!(r#"{{"code":{code},"message":"#).as_bytes());
    json::push_string(&mut error, message);
    if let Some(data) = data {
        error.extend_from_slice(br#","data":"#);
        error.extend_from_slice(data.as_bytes());
    }
    error.put_u8(b'}');
    push_raw_error(id, &error, out);
}

/// Appends an error response with a raw error object.
pub(crate) fn push_raw_error(id: &[u8], error: &[u8], out: &mut BytesMut) {
    push_response(id, br#","error":"#, error, out);
}

/// Appends a result response.
pub(crate) fn push_result(id: &[u8], result: &[u8], out: &mut BytesMut) {
    push_response(id, br#","result":"#, result, out);
}

fn push_response(id: &[u8], member: &[u8], value: &[u8], out: &mut BytesMut) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(member);
    out.extend_from_slice(value);
    out.put_u8(b'}');
}

#[cfg(test)]
mod tests {
    use super::super::jsonrpc::*;

    fn written(push: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        push(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn writes_each_kind_of_message() {
        let cases = [
            (
                written(|out| push_request(b"0", "ping", None, out)),
                r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#,
            ),
            (
                written(|out| push_notification("x", Some(b"{}"), out)),
                r#"{"jsonrpc":"2.0","method":"x","params":{}}"#,
            ),
            (
                written(|out| push_cancelled(7, "a \"b\"", out)),
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"a \"b\""}}"#,
            ),
            (
                written(|out| push_ask_cancelled(7, Some(b"\"t\""), "r", out)),
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"r","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
            ),
            (
                written(|out| push_error(b"\"i\"", -1, "m", Some("[1]"), out)),
                r#"{"jsonrpc":"2.0","id":"i","error":{"code":-1,"message":"m","data":[1]}}"#,
            ),
            (
                written(|out| push_result(b"1", b"{}", out)),
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(text, expected);
        }
    }
}

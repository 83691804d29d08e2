//! Requests of the gateway itself to a child: their errors, which no client is told.

use crate::protocol::json;

/// Logs the error of a child to a request of the gateway itself. One to a ping is a sign of life, as
/// good as a result.
pub(crate) fn log_own_error((tenant, server): (&str, &str), method: &'static str, error: &[u8]) {
    if method == "ping" {
        return;
    }
    let code = json::get(error, "code").and_then(|code| str::from_utf8(code).ok()?.parse().ok());
    let why = json::get(error, "message").and_then(json::decoded);
    tracing::warn!(
        tenant.id = tenant,
        server.name = server,
        mcp.method.name = method,
        code = code.unwrap_or(0_i64),
        why = why.as_deref().unwrap_or_default(),
        "the child refused a request of the gateway"
    );
}

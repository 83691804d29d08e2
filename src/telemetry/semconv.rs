//! Names of the semantic conventions for MCP (open-telemetry/semantic-conventions-genai), in one
//! place, because the conventions are in development; and those for HTTP that the gateway uses.

use http::Method;

use crate::protocol::json;

/// Names of attributes of spans.
pub(super) mod attribute {
    /// The tenant of the server; of the gateway itself.
    pub(in crate::telemetry) const TENANT: &str = "lockgate.tenant";
    /// The server of the tenant; of the gateway itself.
    pub(in crate::telemetry) const SERVER: &str = "lockgate.server";
    /// The method of a message.
    pub(in crate::telemetry) const MCP_METHOD: &str = "mcp.method.name";
    /// What a call of a tool is for generative AI: `execute_tool`.
    pub(in crate::telemetry) const GEN_AI_OPERATION: &str = "gen_ai.operation.name";
    /// `tcp` towards a client, `pipe` towards a child.
    pub(in crate::telemetry) const NETWORK_TRANSPORT: &str = "network.transport";
    /// The type of an error.
    pub(in crate::telemetry) const ERROR_TYPE: &str = "error.type";
    /// The method of an HTTP request.
    pub(in crate::telemetry) const HTTP_METHOD: &str = "http.request.method";
    /// The pattern of the path of an HTTP request.
    pub(in crate::telemetry) const HTTP_ROUTE: &str = "http.route";
    /// The status of an HTTP response.
    pub(in crate::telemetry) const HTTP_STATUS: &str = "http.response.status_code";
}

/// The name of the tool of a call, as a label and as an attribute.
pub(super) const TOOL: &str = "gen_ai.tool.name";

/// The value of a label with a fixed set for what is not in the set.
pub(crate) const OTHER: &str = "_OTHER";

/// The type of the error of a tool that answered with `isError`.
pub(crate) const TOOL_ERROR: &str = "tool_error";

/// The buckets of all durations, in seconds.
pub(super) const BUCKETS: [f64; 14] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

/// The buckets of operations of stores, in seconds.
pub(super) const STORE_BUCKETS: [f64; 11] = [
    0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0,
];

/// The value of `mcp.method.name` for the method of a request: methods of the specification have
/// their own names, all others share one.
pub(crate) fn method(name: &str) -> &'static str {
    let known = METHODS.iter().find(|known| **known == name);
    known.copied().unwrap_or(OTHER)
}

/// The value of `http.request.method`: known methods have their own names.
pub(super) fn http_method(method: &Method) -> &'static str {
    let known = HTTP_METHODS.iter().find(|known| **known == method.as_str());
    known.copied().unwrap_or(OTHER)
}

/// The value of `error.type` for the `error` of a response, as JSON: its code, if the specification
/// or this gateway defines it.
pub(crate) fn error_type(error: &[u8]) -> &'static str {
    let code = json::get(error, "code").unwrap_or_default();
    let known = CODES.iter().find(|known| known.as_bytes() == code);
    known.copied().unwrap_or(OTHER)
}

const HTTP_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Requests of clients, by all revisions.
const METHODS: [&str; 20] = [
    "tools/call",
    "tools/list",
    "resources/read",
    "resources/list",
    "resources/templates/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/get",
    "prompts/list",
    "completion/complete",
    "logging/setLevel",
    "initialize",
    "ping",
    "tasks/get",
    "tasks/result",
    "tasks/list",
    "tasks/cancel",
    "tasks/update",
    "server/discover",
    "subscriptions/listen",
];

/// Codes of JSON-RPC 2.0, of MCP, and of this gateway.
const CODES: [&str; 10] = [
    "-32700", "-32600", "-32601", "-32602", "-32603", "-32000", "-32001", "-32002", "-32042",
    "-31001",
];

#[cfg(test)]
mod tests {
    use super::super::semconv::*;

    #[test]
    fn values_are_of_fixed_sets() {
        assert_eq!(method("tools/call"), "tools/call");
        assert_eq!(method("tools/call2"), OTHER);
        assert_eq!(error_type(br#"{"code":-32602,"message":"x"}"#), "-32602");
        for invented in ["-32602.0", "1", r#""-32602""#, "null"] {
            let error = format!(r#"{{"code":{invented}}}"#);
            assert_eq!(error_type(error.as_bytes()), OTHER, "{error}");
        }
        assert_eq!(error_type(b"{}"), OTHER);
        assert_eq!(error_type(b"null"), OTHER);
    }
}

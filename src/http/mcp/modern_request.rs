//! Check of a modern request: its fields in `_meta`, and the header fields that mirror its body
//! (2026-07-28 streamable-http, "Request Metadata").

use std::{borrow::Cow, sync::OnceLock, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::http::{admission::Admitted, reply::McpRefusal};
use crate::{
    auth::{Access, policy},
    hub::stateless::{Caller, Stateless},
    protocol::{
        Body as Messages, Message, Method,
        headers::{METHOD, NAME, PROTOCOL_VERSION},
        json, jsonrpc, log_level,
        modern::{
            Caching, Completion, Mirrored, RequestMeta, ToolHeaders, declares_tasks,
            input_responses, is_about_task, is_mirrored, request_state, without_invalid_tools,
        },
        revision::FIRST_MODERN,
    },
};

/// A request of the modern era that may be answered.
pub(super) struct ModernRequest<'a> {
    pub(super) message: &'a Message,
    pub(super) method: Cow<'a, str>,
    pub(super) caller: Caller<'a>,
    /// The least level of log messages that the client wants.
    pub(super) level: Option<Cow<'a, str>>,
    /// Its raw progress token.
    pub(super) progress_token: Option<&'a [u8]>,
}

/// The answer to a request: a list of tools without those that clients have to leave out (2026-07-28
/// streamable-http, "Schema Extension").
pub(super) fn listed(request: &Message, access: &Access, answer: Bytes) -> Bytes {
    if request.method() != Method::ToolsList {
        return answer;
    }
    let (answer, dropped) = without_invalid_tools(answer);
    if !dropped.is_empty() {
        let server = access.server();
        tracing::warn!(
            tenant.id = server.tenant,
            server.name = server.name,
            count = dropped.len(),
            tools = dropped[..dropped.len().min(NAMED)].join(", "),
            "tools are left out: an x-mcp-header of their inputSchema is invalid, or it is too long"
        );
    }
    answer
}

/// The most tools that a line of the log names.
const NAMED: usize = 10;

/// Makes a refusal with the code of this era.
pub(super) fn refused(status: StatusCode, code: i32, why: &'static str) -> McpRefusal {
    McpRefusal::coded(status, code, why)
}

/// The headers and the body disagree (`HeaderMismatch`).
fn mismatch(why: &'static str) -> McpRefusal {
    refused(StatusCode::BAD_REQUEST, -32020, why)
}

/// A field of `_meta` is missing or wrong: "the server MUST reject it with JSON-RPC error code -32602
/// (Invalid params). On HTTP, the response status MUST be 400" (2026-07-28 basic, "Per-request protocol
/// fields").
fn invalid(why: &'static str) -> McpRefusal {
    refused(StatusCode::BAD_REQUEST, -32602, why)
}

impl<'a> ModernRequest<'a> {
    /// Checks a request.
    ///
    /// # Errors
    ///
    /// 400 with −32602 for `_meta`, −32020 for header fields, −32022 for the revision.
    pub(super) fn check(
        headers: &HeaderMap,
        message: &'a Message,
        admitted: &'a Admitted,
    ) -> Result<Self, McpRefusal> {
        let meta = RequestMeta::of(message);
        check_version(headers, &meta, admitted)?;
        let capabilities = meta.capabilities.ok_or(invalid(
            "_meta has no io.modelcontextprotocol/clientCapabilities",
        ))?;
        if message.has_own_key() {
            return Err(invalid("_meta has a key that begins with lockgate/"));
        }
        let method = message.method_name();
        check_mirrored(headers, message, &method)?;
        let level = match meta.log_level.map(json::decoded) {
            None => None,
            Some(Some(level)) if log_level(&level).is_some() => Some(level),
            Some(_) => return Err(invalid("no such io.modelcontextprotocol/logLevel")),
        };
        Ok(Self {
            message,
            method,
            caller: Caller {
                access: &admitted.access,
                may_become_task: message.method() == Method::ToolsCall
                    && declares_tasks(capabilities)
                    && !admitted.access.server().reply.task_after.is_zero(),
                capabilities,
                client_info: meta.client_info,
                trace: admitted.trace.clone(),
                group: OnceLock::new(),
            },
            level,
            progress_token: meta.progress_token,
        })
    }

    /// The raw id.
    pub(super) fn id(&self) -> &'a [u8] {
        self.message.id().unwrap_or_default()
    }

    /// The scopes that it needs besides those of its caller, if any are missing, with those.
    pub(super) fn missing_scopes(&self) -> Option<Vec<String>> {
        if !self.caller.access.policy().has_scopes() {
            return None;
        }
        policy::missing_scopes(self.caller.access, &Messages::One(self.message.clone()))
    }

    /// The error response to it if policy refuses this call.
    pub(super) fn denied(&self, call: &Message) -> Option<Bytes> {
        let denied = policy::denied(self.caller.access.policy(), call)?;
        let mut line = BytesMut::new();
        let (code, data) = (denied.code, denied.data.as_deref());
        jsonrpc::push_error(self.id(), code, &denied.message, data, &mut line);
        Some(line.freeze())
    }

    /// Whether the server has the extension for tasks.
    pub(super) fn offers_tasks(&self) -> bool {
        !self.caller.access.server().reply.task_after.is_zero()
    }

    /// Whether its client declares the extension for tasks.
    pub(super) fn declares_tasks(&self) -> bool {
        declares_tasks(self.caller.capabilities)
    }

    /// The time after which it becomes a task; none if it may not. "A server MUST NOT return
    /// `CreateTaskResult` to a client that did not include the extension capability on its request"
    /// (ext-tasks, "Capability Negotiation").
    pub(super) fn task_after(&self) -> Option<Duration> {
        // "Supported Methods".
        let may = self.caller.may_become_task;
        may.then(|| self.caller.access.server().reply.task_after)
    }

    /// Whether it has answers to what a server has asked.
    pub(super) fn has_answers(&self) -> bool {
        input_responses(self.message).is_some_and(|responses| responses.starts_with(b"{"))
    }

    /// The `requestState` of a retry. "Servers SHOULD validate inputResponses" (2026-07-28 mrtr, "Error
    /// Handling"): each answer is the server's to read.
    pub(super) fn state(&self) -> Result<Option<Cow<'a, str>>, McpRefusal> {
        let Some(state) = request_state(self.message) else {
            return Ok(None);
        };
        let responses = input_responses(self.message);
        if responses.is_some_and(|responses| !responses.starts_with(b"{")) {
            return Err(invalid("inputResponses is no object"));
        }
        let state = json::decoded(state).ok_or(invalid("requestState is no string"))?;
        Ok(Some(state))
    }

    /// Whether the header fields mirror the arguments.
    pub(super) fn mirrors(&self, headers: &HeaderMap, tools: &ToolHeaders) -> bool {
        let name = self.message.name().unwrap_or_default();
        let arguments = || json::get(self.message.params()?, "arguments");
        tools.agree(&name, arguments, |field| {
            let values = headers.get_all(field).iter();
            values.map(HeaderValue::as_bytes).collect()
        })
    }

    /// What an answer to it lacks.
    pub(super) fn completion(&self, server_info: Option<Bytes>) -> Completion {
        Completion {
            id: Bytes::copy_from_slice(self.id()),
            server_info,
            caching: Completion::is_cacheable(&self.method).then(|| self.caching()),
        }
    }

    /// What the client is told of how long it may keep what can be kept. What policy cuts or a log-in guards is
    /// its own alone: "MUST NOT rely on `cacheScope` alone to prevent unauthorized access" (2026-07-28 caching,
    /// "Security Considerations").
    pub(super) fn caching(&self) -> Caching {
        let access = self.caller.access;
        let server = access.server();
        let time = server.reply.cache_for;
        Caching {
            set: time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            may_be_public: access.is_of_anybody() && access.policy().is_open(),
        }
    }
}

/// Checks the revision: the header and `_meta` name the same one, which the tenant serves.
fn check_version(
    headers: &HeaderMap,
    meta: &RequestMeta<'_>,
    admitted: &Admitted,
) -> Result<(), McpRefusal> {
    let header = single(headers, PROTOCOL_VERSION)?;
    let Some(version) = &meta.version else {
        header.ok_or(mismatch("MCP-Protocol-Version is missing"))?;
        return Err(invalid(
            "_meta has no io.modelcontextprotocol/protocolVersion",
        ));
    };
    let header = header.ok_or(mismatch("MCP-Protocol-Version is missing"))?;
    if header != version.as_bytes() {
        return Err(mismatch(
            "MCP-Protocol-Version differs from io.modelcontextprotocol/protocolVersion",
        ));
    }
    if version != FIRST_MODERN || !admitted.access.tenant().is_modern {
        return Err(unsupported(&admitted.access, version));
    }
    Ok(())
}

/// Refuses an `initialize`, which this era has not: "A server that supports only modern versions SHOULD name the protocol
/// versions it supports in any error it returns to an initialize request" (2026-07-28 versioning, "Backward
/// Compatibility").
pub(super) fn no_initialize(access: &Access, requested: &str) -> McpRefusal {
    let supported = Stateless::revisions(access);
    if !supported.contains(&requested) {
        return unsupported(access, requested);
    }
    // Told that what it requests is not supported, and that it is, its client would send the same again.
    let data = serde_json::json!({"supported": supported});
    let why = "Method not found";
    refused(StatusCode::NOT_FOUND, -32601, why).with_data(data.to_string())
}

/// The revision is not served (`UnsupportedProtocolVersionError`). No more of it is repeated than a revision has: that of
/// an `initialize` may be as long as a body, and so would the answer be that its client need not read.
fn unsupported(access: &Access, requested: &str) -> McpRefusal {
    let supported = Stateless::revisions(access);
    let requested: String = requested.chars().take(REPEATED).collect();
    let data = serde_json::json!({"supported": supported, "requested": requested});
    let why = "Unsupported protocol version";
    refused(StatusCode::BAD_REQUEST, -32022, why).with_data(data.to_string())
}

/// Checks the header fields that mirror the body.
fn check_mirrored(headers: &HeaderMap, message: &Message, method: &str) -> Result<(), McpRefusal> {
    let named = single(headers, METHOD)?.ok_or(mismatch("Mcp-Method is missing"))?;
    if named != method.as_bytes() {
        return Err(mismatch("Mcp-Method differs from method"));
    }
    let in_body = match method {
        "resources/read" => message.uri().and_then(json::decoded),
        _ if is_mirrored(method) => message.name(),
        _ if is_about_task(method) => message.task_id().and_then(json::decoded),
        _ => return Ok(()),
    };
    let Some(in_body) = in_body else {
        return match single(headers, NAME)? {
            Some(_) => Err(mismatch("Mcp-Name names nothing of the body")),
            // The server refuses the parameters.
            None => Ok(()),
        };
    };
    let named = single(headers, NAME)?.ok_or(mismatch("Mcp-Name is missing"))?;
    let named = Mirrored::decode(named).ok_or(mismatch("Mcp-Name is malformed"))?;
    if named.as_str() != in_body {
        return Err(mismatch("Mcp-Name differs from what the parameters name"));
    }
    Ok(())
}

/// The only value of a header field. Two are refused, also if they are the same: an intermediary may read
/// the other one.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h [u8]>, McpRefusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(mismatch("a header field of MCP is repeated"));
    }
    Ok(first.map(HeaderValue::as_bytes))
}

/// Maximum characters of a revision that its refusal repeats.
const REPEATED: usize = 64;

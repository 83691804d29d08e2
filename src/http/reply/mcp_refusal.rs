//! Refusals of MCP endpoints: the only place that turns an [`Error`] into a status and a JSON-RPC
//! code.
//!
//! `docs/contract.md` lists the promised codes.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::{header_name::HOP, json, rate_limit};
use crate::{
    error::{Error, Quota},
    protocol::{Refusal, Rejected, jsonrpc::push_error},
};

/// A refusal. All texts are constants, so that no internal detail leaks into them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct McpRefusal {
    status: StatusCode,
    code: i32,
    message: &'static str,
    /// Raw `data` of the error.
    data: Option<String>,
    retry: Option<Duration>,
    fields: Vec<(HeaderName, HeaderValue)>,
    /// Raw id of the refused request, if it was read.
    id: Option<Box<[u8]>>,
}

impl McpRefusal {
    /// Makes a refusal by the HTTP rules of the endpoint.
    pub(crate) const fn http(status: StatusCode, message: &'static str) -> Self {
        Self {
            status,
            code: -32600,
            message,
            data: None,
            retry: None,
            fields: Vec::new(),
            id: None,
        }
    }

    /// Makes a refusal with an error code of its own.
    pub(crate) fn coded(status: StatusCode, code: i32, message: &'static str) -> Self {
        Self {
            code,
            ..Self::http(status, message)
        }
    }

    /// Adds the raw `data` of the error.
    pub(crate) fn with_data(self, data: String) -> Self {
        let data = Some(data);
        Self { data, ..self }
    }

    /// The JSON-RPC error response.
    pub(crate) fn line(&self) -> Bytes {
        let mut line = BytesMut::new();
        let id = self.id.as_deref().unwrap_or(b"null");
        push_error(id, self.code, self.message, self.data.as_deref(), &mut line);
        line.freeze()
    }

    /// Adds the raw id of the refused request (JSON-RPC 2.0 section 5: null only "if there was an error
    /// in detecting the id").
    pub(crate) fn answering(self, id: Option<&[u8]>) -> Self {
        let id = id.map(Into::into).or(self.id);
        Self { id, ..self }
    }

    /// Makes the refusal of a session that is about to change its owner. A replica that forwarded
    /// the request may forward it to another one; a client retries.
    fn moved() -> Self {
        let what = "the session is about to be another replica's";
        let retry = Duration::from_secs(1);
        let busy = Self::from(Error::Busy { what, retry });
        busy.with(HOP, HeaderValue::from_static("refused"))
    }

    /// Makes the refusal of a message that may have been executed. It has no `Retry-After`, which clients and proxies
    /// follow by themselves.
    fn lost() -> Self {
        let what = "the session has ended here, and the message may have been executed";
        let lost = Self::coded(StatusCode::SERVICE_UNAVAILABLE, -31001, what);
        lost.with_data(r#"{"reason":"owner_lost","retryable":false}"#.to_owned())
    }

    /// Returns the status and the text, for a response in another form.
    pub(crate) fn parts(&self) -> (StatusCode, &'static str) {
        (self.status, self.message)
    }

    /// Adds a header field.
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }
}

impl From<Error> for McpRefusal {
    /// Table of statuses. When you add an error, decide here whose fault it is.
    fn from(error: Error) -> Self {
        let (status, code, message, retry) = match error {
            Error::NoSession => (StatusCode::NOT_FOUND, -32600, "no such session", None),
            Error::NoServer => (StatusCode::NOT_FOUND, -32600, "no such server", None),
            Error::Invalid(why) => (StatusCode::BAD_REQUEST, -32600, why, None),
            Error::NotJson(why) => (StatusCode::BAD_REQUEST, -32700, why, None),
            Error::NoCursor => (StatusCode::BAD_REQUEST, -32602, "no such event id", None),
            Error::Gone => (
                StatusCode::GONE,
                -32602,
                "the events behind that id are gone",
                None,
            ),
            // Admission adds the challenge, which names the resource.
            Error::Scopes(_) => (
                StatusCode::FORBIDDEN,
                -32600,
                "the credentials lack a scope",
                None,
            ),
            Error::Quota(quota) => return quota.into(),
            Error::Limit { what, retry } => {
                (StatusCode::TOO_MANY_REQUESTS, -31004, what, Some(retry))
            }
            Error::Busy { what, retry } => {
                (StatusCode::SERVICE_UNAVAILABLE, -31004, what, Some(retry))
            }
            Error::Moved => return Self::moved(),
            Error::Lost => return Self::lost(),
            Error::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                -31004,
                "the gateway is about to end",
                Some(Duration::from_secs(1)),
            ),
            Error::Bug(what) => {
                tracing::error!(what, "a bug of the gateway");
                let retry = Some(Duration::from_secs(5));
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    -32603,
                    "internal error",
                    retry,
                )
            }
        };
        Self {
            status,
            code,
            message,
            data: None,
            retry,
            fields: Vec::new(),
            id: None,
        }
    }
}

impl From<Quota> for McpRefusal {
    /// Adds the header fields of draft-ietf-httpapi-ratelimit-headers-10.
    fn from(quota: Quota) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: -31004,
            message: quota.limit.as_str(),
            data: None,
            retry: Some(quota.retry),
            fields: rate_limit::used_up(&quota).to_vec(),
            id: None,
        }
    }
}

impl From<Refusal> for McpRefusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotJson(why) => Error::NotJson(why).into(),
            Refusal::Invalid(why) => Error::Invalid(why).into(),
        }
    }
}

impl From<Rejected> for McpRefusal {
    fn from(rejected: Rejected) -> Self {
        Self::from(rejected.refusal).answering(rejected.id.as_deref())
    }
}

impl IntoResponse for McpRefusal {
    fn into_response(self) -> Response {
        let line = self.line();
        let Self {
            status,
            retry,
            fields,
            ..
        } = self;
        let mut response = json::text(status, line);
        let headers = response.headers_mut();
        if let Some(retry) = retry {
            // Rounded up, so that a client that retries at that time is not early.
            let seconds = retry.as_millis().div_ceil(1000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        headers.extend(fields);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::super::mcp_refusal::*;
    use crate::error::Limit;

    #[test]
    fn the_status_table() {
        let second = Duration::from_secs(1);
        let table: Vec<String> = [
            Error::NoSession,
            Error::NoServer,
            Error::Invalid("why"),
            Error::NotJson("why"),
            Error::NoCursor,
            Error::Gone,
            Error::Scopes(vec!["secret".to_owned()]),
            Error::Quota(Quota {
                limit: Limit::Requests,
                bound: NonZeroU64::MIN,
                retry: second,
            }),
            Error::Limit {
                what: "limit",
                retry: second,
            },
            Error::Busy {
                what: "busy",
                retry: second,
            },
            Error::Moved,
            Error::Lost,
            Error::Draining,
            Error::Bug("secret"),
        ]
        .into_iter()
        .map(|error| {
            let name = format!("{error:?}");
            let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
            let McpRefusal {
                status,
                code,
                message,
                retry,
                ..
            } = error.into();
            let retry = retry.map_or(String::new(), |retry| format!(" retry {}", retry.as_secs()));
            format!("{name}: {} {code} {message}{retry}", status.as_u16())
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        NoSession: 404 -32600 no such session
        NoServer: 404 -32600 no such server
        Invalid: 400 -32600 why
        NotJson: 400 -32700 why
        NoCursor: 400 -32602 no such event id
        Gone: 410 -32602 the events behind that id are gone
        Scopes: 403 -32600 the credentials lack a scope
        Quota: 429 -31004 requests of the tenant retry 1
        Limit: 429 -31004 limit retry 1
        Busy: 503 -31004 busy retry 1
        Moved: 503 -31004 the session is about to be another replica's retry 1
        Lost: 503 -31001 the session has ended here, and the message may have been executed
        Draining: 503 -31004 the gateway is about to end retry 1
        Bug: 503 -32603 internal error retry 5
        ");
    }
}

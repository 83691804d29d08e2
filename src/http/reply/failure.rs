//! What the client reads when something went wrong: the one place where an [`Error`]
//! becomes a status and a JSON-RPC code (CONTRACT section 3).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::{header_name::HOP, json, rate_limit};
use crate::{
    error::{Error, Quota},
    protocol::Refusal,
};

/// An answer that is not a success; the texts are fixed, so that nothing leaks into them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    status: StatusCode,
    code: i32,
    message: &'static str,
    retry: Option<Duration>,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl Failure {
    /// A refusal by the HTTP rules of the endpoint (CONTRACT C11).
    pub(crate) const fn http(status: StatusCode, message: &'static str) -> Self {
        Self {
            status,
            code: -32600,
            message,
            retry: None,
            fields: Vec::new(),
        }
    }

    /// A replica that forwarded the request may send it to another one; a client has to come again.
    fn moved() -> Self {
        let what = "the session is about to be another replica's";
        let retry = Duration::from_secs(1);
        let busy = Self::from(Error::Busy { what, retry });
        busy.with(HOP, HeaderValue::from_static("refused"))
    }

    /// Its status and text, for an answer of another form.
    pub(crate) fn parts(&self) -> (StatusCode, &'static str) {
        (self.status, self.message)
    }

    /// The same with a further header field.
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }
}

impl From<Error> for Failure {
    /// The status table. When you add an error, decide here whose fault it is.
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
            // Its front adds the challenge, which names the resource.
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
            retry,
            fields: Vec::new(),
        }
    }
}

impl From<Quota> for Failure {
    /// CONTRACT C13, with the fields of draft-ietf-httpapi-ratelimit-headers-10.
    fn from(quota: Quota) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: -31004,
            message: quota.limit.as_str(),
            retry: Some(quota.retry),
            fields: rate_limit::used_up(&quota).to_vec(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotJson(why) => Error::NotJson(why).into(),
            Refusal::Invalid(why) => Error::Invalid(why).into(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self {
            status,
            code,
            message,
            retry,
            fields,
        } = self;
        let error = serde_json::json!({
            "jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message},
        });
        let mut response = json::answer(status, &error);
        let headers = response.headers_mut();
        if let Some(retry) = retry {
            // Rounded up: whoever comes back at that time must not be early.
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

    use super::super::failure::*;
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
            Error::Draining,
            Error::Bug("secret"),
        ]
        .into_iter()
        .map(|error| {
            let name = format!("{error:?}");
            let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
            let Failure {
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
        Draining: 503 -31004 the gateway is about to end retry 1
        Bug: 503 -32603 internal error retry 5
        ");
    }
}

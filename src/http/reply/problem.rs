//! Problem details (RFC 9457), the form of refusals of the administration API.
//!
//! Not here: refusals of MCP endpoints (`mcp_refusal`), and the choice of a problem for an error
//! (`http::admin`).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;

use super::json::answer;
use crate::config::Mistake;

/// A refusal of the administration API.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    errors: Vec<Mistake>,
    retry: Option<Duration>,
}

impl Problem {
    /// Makes a problem with one sentence.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
            retry: None,
        }
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Adds the mistakes of a document.
    pub(crate) fn with_errors(self, errors: Vec<Mistake>) -> Self {
        Self { errors, ..self }
    }

    /// Adds a `Retry-After` of `delay`.
    pub(crate) fn with_retry(self, delay: Duration) -> Self {
        let retry = Some(delay);
        Self { retry, ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if !self.errors.is_empty() {
            let error = |mistake: &Mistake| json!({"key": mistake.key, "what": mistake.what, "remedy": mistake.remedy});
            body["errors"] = self.errors.iter().take(ERRORS).map(error).collect();
            let more = self.errors.len().saturating_sub(ERRORS);
            if more > 0 {
                body["detail"] = format!("{}, and {more} more mistakes", self.detail).into();
            }
        }
        let mut response = answer(self.status, &body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if let Some(retry) = self.retry {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry.as_secs().max(1)));
        }
        response
    }
}

/// Maximum mistakes in a problem: nobody reads more at once, and a document can have very many.
const ERRORS: usize = 100;
/// Media type of problem details.
pub(crate) const PROBLEM: &str = "application/problem+json";

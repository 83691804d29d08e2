//! Responses: pages, lines, times, and problems from failures of the database.

use std::time::Duration;

use axum::{body::Body, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::Value as Json;

use super::schema::LINES;
use crate::{
    base::terminal::shortened,
    config::{Mistake, Wrong},
    database,
    http::reply::{Problem, answer, json},
};

/// Makes a successful response with JSON.
pub(super) fn ok(body: &Json) -> Response {
    answer(StatusCode::OK, body)
}

/// Makes a response with a page of a list and the cursor of the next page.
pub(super) fn page(items: Vec<Json>, next: Option<String>) -> Response {
    page_of(items.into_iter().map(|item| item.to_string()), next)
}

/// The same, of items that are JSON already: each as a tree, and all as one, take many times as much.
pub(super) fn page_of(items: impl IntoIterator<Item = String>, next: Option<String>) -> Response {
    let mut text = "{\"items\":[".to_owned();
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&item);
    }
    text.push_str("],\"next\":");
    text.push_str(&Json::from(next).to_string());
    text.push('}');
    json::text(StatusCode::OK, text)
}

/// Makes a response with JSON lines.
pub(super) fn lines(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(LINES));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Problem {
    /// Makes the problem of an object that does not exist, or not for this caller.
    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such thing")
    }

    /// Makes the problem of an object that does not exist, or not for this caller, with its name.
    pub(super) fn no_such(kind: &str, name: &str) -> Self {
        let text = format!("there is no {kind} {}", shortened(name, NAME_MAX));
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// Makes the problem of a document with these mistakes.
    pub(super) fn invalid(errors: Vec<Mistake>) -> Self {
        let detail = "what was sent cannot be taken; errors says why";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with_errors(errors)
    }

    /// Makes the problem of a database that is unavailable before anything was changed.
    pub(super) fn unavailable() -> Self {
        let text = "the database does not answer, and nothing has changed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
    }

    /// Makes the problem of a request that waited too long behind others of its tenant.
    pub(super) fn busy() -> Self {
        let text = "too many requests of administrators wait, and nothing has changed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
    }

    /// Makes the problem of a stream for whose next part the address of the client has no room.
    pub(super) fn no_room() -> Self {
        let text = "too much of this address is under way, and nothing has changed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
    }

    /// A failure of the database; `is_conditional` if the request named the version it expects.
    pub(super) fn of(failure: database::Error, is_conditional: bool) -> Self {
        match failure {
            database::Error::Unavailable(what) => {
                tracing::warn!(%what, "the database does not answer");
                // The answer to a commit may be lost, and the commit not.
                let text = "the database does not answer; if this was a change, it may have been made: read it again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
            }
            database::Error::Conflict if is_conditional => Self::new(
                StatusCode::PRECONDITION_FAILED,
                "it is not as If-Match or If-None-Match says: read it again",
            ),
            database::Error::Conflict => Self::new(
                StatusCode::CONFLICT,
                "there is one of this name, or with this hash, already",
            ),
            // Not 409: the change is a right one, and is made once the others pause.
            database::Error::Overtaken => {
                let text = "others change the same tenant at the moment, and no object has changed: try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
            }
            database::Error::LastKey => Self::new(
                StatusCode::CONFLICT,
                "no other operator key holds; make another one first",
            ),
            database::Error::NotFound => Self::not_found(),
            database::Error::Invalid(mistakes) => Self::invalid(mistakes),
            database::Error::File(Wrong { what, .. }) => {
                tracing::error!(%what, "the file of the database cannot be used");
                let text = "the database cannot be used; the log of the gateway says why";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).with_retry(RETRY)
            }
            database::Error::Bug(what) => {
                tracing::error!(%what, "a bug in the database layer");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "internal error").with_retry(RETRY)
            }
        }
    }
}

impl From<database::Error> for Problem {
    /// The failure of a request without a condition.
    fn from(failure: database::Error) -> Self {
        Self::of(failure, false)
    }
}

/// The most characters of a name in a problem.
const NAME_MAX: usize = 200;
/// Delay before a retry while the database is unavailable.
const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use http::header::RETRY_AFTER;

    use super::*;

    /// No 409 or 412: the object is as the request expects it.
    #[test]
    fn an_overtaken_change_is_to_come_again() {
        for is_conditional in [false, true] {
            let problem = Problem::of(database::Error::Overtaken, is_conditional);
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[RETRY_AFTER], "1");
        }
    }
}

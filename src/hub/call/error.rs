//! Errors of the gateway itself as responses to calls, listed in `docs/contract.md`.

use std::{borrow::Cow, num::NonZeroU64, time::Duration};

use bytes::{Bytes, BytesMut};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::{
    backend::{Refused, StartFailure},
    base::terminal::shortened,
    declare::{Full, Slots, TokenFrom},
    error::{Error, Limit, Quota},
    protocol::{json as raw, jsonrpc},
};

/// An error of the gateway in place of the response of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallError {
    code: i32,
    /// The text for people.
    pub(crate) message: &'static str,
    /// The reason as `data.reason`, for programs.
    pub(crate) reason: &'static str,
    is_retryable: bool,
    /// No server has seen the call: none could be started.
    pub(crate) is_of_start: bool,
    /// The HTTP status in place of the error, if no headers were sent.
    pub(crate) status: Option<Status>,
}

/// An HTTP status that refuses a whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// 503 with Retry-After.
    Busy,
    /// The same while the packages of the server are installed.
    Preparing,
    /// The same while a secret of the server cannot be read.
    Unreadable,
    /// 429 with Retry-After, for a quota of the tenant.
    Limit(Full),
}

/// Where a caller fills the slots of a server, and how its client is told.
pub(crate) struct Fill {
    /// The account page.
    pub(crate) url: String,
    /// How the client is told.
    pub(crate) way: FillWay,
}

/// How a client is told to visit a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillWay {
    /// By the text of the error alone.
    Text,
    /// By an error that becomes `input_required` (2026-07-28 mrtr).
    Input,
    /// By the code of its revision (2025-11-25 elicitation, "URL Elicitation Required Error").
    Required,
}

impl Status {
    /// The error that becomes this status.
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Busy => Error::Busy {
                what: "no room for another backend",
                retry: Duration::from_secs(2),
            },
            Self::Preparing => Error::Busy {
                what: PREPARING,
                retry: Duration::from_secs(5),
            },
            Self::Unreadable => Error::Busy {
                what: UNREADABLE,
                retry: Duration::from_secs(2),
            },
            Self::Limit(full) => {
                let (limit, bound) = quota(full);
                let retry = Duration::from_secs(10);
                Error::Quota(Quota {
                    limit,
                    bound,
                    retry,
                })
            }
        }
    }
}

/// The limit with its name for clients and metrics, and its bound.
pub(crate) const fn quota(full: Full) -> (Limit, NonZeroU64) {
    match full {
        Full::Children(most) => (Limit::Children, most),
        Full::Memory(most) => (Limit::Memory, most),
    }
}

impl CallError {
    const fn new(code: i32, message: &'static str, reason: &'static str) -> Self {
        Self {
            code,
            message,
            reason,
            is_retryable: false,
            is_of_start: false,
            status: None,
        }
    }

    /// The child ended during the call, which may have had its effect.
    pub(crate) const EXITED: Self = Self::new(
        -31001,
        "the backend ended before it answered",
        "backend_exited",
    );
    /// The replica of the session ended during the call, which may have had its effect.
    pub(crate) const OWNER_LOST: Self = Self::new(
        -31001,
        "the replica that served the session was lost",
        "owner_lost",
    );
    /// The clock of the call ran out.
    pub(crate) const TIMEOUT: Self =
        Self::new(-31002, "the backend did not answer in time", "timeout");
    /// A line above `limits.line`.
    pub(crate) const TOO_LONG: Self = Self::new(
        -31003,
        "the backend sent a line that is too long",
        "oversized_line",
    );
    /// The answer is no JSON-RPC response.
    pub(crate) const INVALID: Self = Self::new(
        -31003,
        "the backend's answer is no valid JSON-RPC response",
        "invalid_answer",
    );
    /// The child that replaced another one answered `initialize` with an error.
    pub(crate) const REFUSED: Self = Self::new(
        -31001,
        "the backend refused to be initialized again",
        "backend_refused",
    );
    /// The first child of a session did.
    const REFUSED_AT_FIRST: Self = Self {
        message: "the backend refused to be initialized",
        ..Self::REFUSED
    };
    /// The server speaks no revision that the tenant allows.
    pub(crate) const REVISION: Self = Self::new(
        -31003,
        "the backend speaks no protocol revision that is allowed here",
        "unsupported_revision",
    );

    /// The share of the caller has no room for what the session would keep; no server has seen the call.
    pub(crate) const NO_ROOM: Self = Self {
        is_retryable: true,
        ..Self::new(-31004, "too much of this caller is under way", "overloaded")
    };

    /// The share of the caller has no room for the response of the server: the call may have had its effect.
    pub(crate) const NO_ROOM_FOR_RESPONSE: Self = Self::new(
        -31004,
        "too much of this caller is under way for the response",
        "overloaded",
    );

    /// The error of a refused start; no server has seen the call.
    pub(crate) fn of(refused: &Refused) -> Self {
        let error = match refused {
            Refused::Busy => Self {
                status: Some(Status::Busy),
                ..Self::new(-31004, "no room for another backend", "overloaded")
            },
            Refused::Limit(full) => Self {
                status: Some(Status::Limit(*full)),
                ..Self::new(-31004, quota(*full).0.as_str(), "limit")
            },
            Refused::Circuit(_) => Self::new(
                -31001,
                "the backend keeps failing and is not started for a while",
                "circuit_open",
            ),
            Refused::Missing => Self::new(
                -31005,
                "a secret that the server needs is not set",
                SECRET_MISSING,
            ),
            Refused::Unreadable => Self {
                status: Some(Status::Unreadable),
                ..Self::new(-31004, UNREADABLE, "overloaded")
            },
            Refused::Prepare => Self::new(
                -31001,
                "what the backend needs could not be prepared",
                "prepare_failed",
            ),
            Refused::Preparing => Self {
                status: Some(Status::Preparing),
                ..Self::new(-31004, PREPARING, "preparing")
            },
            Refused::Failed("timeout") => Self::TIMEOUT,
            Refused::Failed("oversized_line") => Self::TOO_LONG,
            Refused::Failed("unsupported_revision") => Self::REVISION,
            Refused::Failed("invalid_answer") => Self::INVALID,
            Refused::Failed(_) | Refused::Spawn => Self::EXITED.of_start(),
            // A retry would get the same answer.
            Refused::Answered(_) => return Self::REFUSED,
        };
        let is_retryable = !matches!(refused, Refused::Missing);
        Self {
            is_retryable,
            is_of_start: true,
            ..error
        }
    }

    /// The same error for a server that never started.
    pub(crate) fn of_start(self) -> Self {
        let message = match self.reason {
            "backend_exited" => "the backend could not be started",
            _ => self.message,
        };
        Self {
            message,
            // A retry would get the same refusal.
            is_retryable: self.reason != Self::REFUSED.reason,
            is_of_start: true,
            ..self
        }
    }

    /// Whether a raw error is one of these: the codes are no server's.
    pub(crate) fn is_own(error: &[u8]) -> bool {
        let code = raw::get(error, "code");
        code.is_some_and(|code| {
            matches!(
                code,
                b"-31001" | b"-31002" | b"-31003" | b"-31004" | b"-31005"
            )
        })
    }

    /// Whether a raw error is that of a call whose clock ran out.
    pub(crate) fn is_timeout(error: &[u8]) -> bool {
        raw::get(error, "code") == Some(b"-31002")
    }

    /// The message of a raw error.
    pub(crate) fn said(error: &[u8]) -> Option<String> {
        let text = raw::get(error, "message")?;
        raw::decoded(text).map(Cow::into_owned)
    }

    /// The error response to a request whose server has answered `initialize` with this raw error, which it tells in
    /// words: the code would be taken for that of an answer to this request.
    pub(crate) fn line_of_refusal(id: &[u8], error: &[u8]) -> Bytes {
        let refused = Self::REFUSED_AT_FIRST;
        let code = raw::get(error, "code").and_then(|code| str::from_utf8(code).ok());
        let message = match (code, Self::said(error)) {
            (Some(code), Some(said)) => {
                let said = shortened(&said, SAID_MAX);
                format!(
                    "{} ({}: {said})",
                    refused.message,
                    shortened(code, CODE_MAX)
                )
            }
            _ => refused.message.to_owned(),
        };
        let data = json!({"reason": refused.reason, "retryable": refused.is_retryable});
        refused.line_of(id, &message, &data)
    }

    /// The error response to a request with this raw id.
    pub(crate) fn line(self, id: &[u8]) -> Bytes {
        let data = json!({"reason": self.reason, "retryable": self.is_retryable});
        self.line_of(id, self.message, &data)
    }

    /// The same for a start that failed. Only the owner of the server is told more than whether
    /// to try again: the output of a server may contain secrets.
    pub(crate) fn line_of_start(self, id: &[u8], failure: &StartFailure, owner: bool) -> Bytes {
        let retryable = self.is_retryable && !failure.is_lasting();
        let mut data = json!({"reason": self.reason, "retryable": retryable});
        if !owner {
            return self.line_of(id, self.message, &data);
        }
        data["stage"] = <&str>::from(failure.stage).into();
        data["status"] = failure.why.as_str().into();
        data["stderr"] = failure.output.clone().into();
        let message = format!("{} ({})", self.message, failure.summary());
        self.line_of(id, &message, &data)
    }

    /// The same for a start without a secret: names the slots of the server, not all of which are filled, and
    /// where the caller fills them.
    pub(crate) fn line_of_slots(self, id: &[u8], slots: &Slots, fill: Option<&Fill>) -> Bytes {
        let names: Vec<String> = slots
            .iter()
            .map(|(name, slot)| match (&slot.token, &slot.title) {
                (Some(TokenFrom::Upstream(upstream)), _) => {
                    format!("{name} (your account at {upstream})")
                }
                (Some(TokenFrom::Exchange(_)), _) => {
                    format!("{name} (a token of your identity provider)")
                }
                (None, Some(title)) => format!("{name} ({title})"),
                (None, None) => name.clone(),
            })
            .collect();
        let mut message = format!("{}: it needs {}", self.message, names.join(", "));
        let secrets: Vec<&String> = slots.keys().collect();
        let mut data = json!({
            "reason": self.reason, "retryable": self.is_retryable, "secrets": secrets,
        });
        let mut code = self.code;
        if let Some(Fill { url, way }) = fill {
            message.push_str("; ");
            message.push_str(how_to_fill(slots));
            message.push(' ');
            message.push_str(url);
            data["url"] = url.as_str().into();
            if *way != FillWay::Text {
                data["elicitations"] = json!([{
                    "mode": "url", "url": url, "message": message,
                    "elicitationId": Uuid::new_v4().to_string(),
                }]);
            }
            if *way == FillWay::Required {
                code = URL_ELICITATION_REQUIRED;
            }
        }
        Self { code, ..self }.line_of(id, &message, &data)
    }

    fn line_of(self, id: &[u8], message: &str, data: &Json) -> Bytes {
        let mut line = BytesMut::new();
        let data = data.to_string();
        jsonrpc::push_error(id, self.code, message, Some(&data), &mut line);
        line.freeze()
    }
}

/// How a person fills the slots of a server at the account page.
fn how_to_fill(slots: &Slots) -> &'static str {
    let is_any = |is: fn(&Option<TokenFrom>) -> bool| slots.values().any(|slot| is(&slot.token));
    let connects = is_any(|token| matches!(token, Some(TokenFrom::Upstream(_))));
    let sets = is_any(Option::is_none);
    if is_any(|token| matches!(token, Some(TokenFrom::Exchange(_)))) {
        return match (connects, sets) {
            (false, false) => "sign in again with your identity provider at",
            _ => "sign in again with your identity provider, and connect or set what is yours, at",
        };
    }
    if connects {
        return "connect or set what is yours at";
    }
    "set what is yours at"
}

/// The code of `URLElicitationRequiredError` (2025-11-25 elicitation).
const URL_ELICITATION_REQUIRED: i32 = -32042;

/// The most characters of the message of a server's own error in that of the gateway.
const SAID_MAX: usize = 600;
/// The most characters of its code.
const CODE_MAX: usize = 20;

/// The reason of a start without a secret.
pub(crate) const SECRET_MISSING: &str = "secret_missing";

/// The text for a client whose server needs a secret while the database, or the service that gives it, is away.
const UNREADABLE: &str = "a secret that the server needs cannot be read at this moment";

/// The text for a client that came while the packages of its server are installed.
const PREPARING: &str = "the packages of the server are still being installed";

#[cfg(test)]
mod tests {
    use super::super::error::*;

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_server() {
        let told = |error: &str| {
            let line = CallError::line_of_refusal(b"7", error.as_bytes());
            let line: Json = serde_json::from_slice(&line).unwrap();
            assert_eq!(
                (&line["id"], &line["error"]["code"]),
                (&json!(7), &json!(-31001))
            );
            let data = json!({"reason": "backend_refused", "retryable": false});
            assert_eq!(line["error"]["data"], data);
            line["error"]["message"].as_str().unwrap().to_owned()
        };
        let refused = "the backend refused to be initialized";
        let said = told(r#"{"code":-5,"message":"no \"token\""}"#);
        assert_eq!(said, format!("{refused} (-5: no \"token\")"));
        assert_eq!(told("{}"), refused);
        assert_eq!(told(""), refused);
        let long = format!(r#"{{"code":-5,"message":"{}"}}"#, "x".repeat(1 << 20));
        assert!(told(&long).len() < 1 << 10);
    }
}

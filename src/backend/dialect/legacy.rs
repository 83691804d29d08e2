//! Legacy dialect: sessions that begin with `initialize`, up to revision 2025-11-25.
//!
//! Every id and progress token is rewritten, in both directions. A state machine without IO,
//! streams, clocks or HTTP.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
};

use bytes::{BufMut, Bytes, BytesMut};

use super::translated::{AskId, CallId, Forwarded, ServerMessage, SessionState};
use crate::protocol::{
    Kind, Message, Method, Span, initialize,
    jsonrpc::{push_cancelled, push_error, push_request, push_result},
};

/// Translation state of one child.
#[derive(Default)]
pub(crate) struct Legacy {
    last: u64,
    /// The range of ids, if other sessions share the child.
    range: Option<RangeInclusive<u64>>,
    calls: HashMap<CallId, Original>,
    asks: HashMap<AskId, Original>,
    /// Tokens of calls and asks that became tasks: valid for the task's lifetime
    /// (2025-11-25 progress, "Task-augmented requests").
    tasks: VecDeque<(u64, Original)>,
}

/// The original id and progress token of a request: raw, echoed byte for byte.
struct Original {
    id: Box<[u8]>,
    token: Option<Box<[u8]>>,
    wants_task: bool,
}

/// The raw id of the gateway's pings.
const PING: &[u8] = b"\"lockgate-ping\"";

/// The most progress tokens of tasks; the oldest are dropped first.
const MAX_TASK_TOKENS: usize = 256;

/// The most open requests of the child; further ones are refused at once.
const MAX_ASKS: usize = 256;

/// The most bytes that wait for the child when the gateway adds a line of its own: twice the bound
/// for lines of clients.
const MAX_OWED: usize = 16 << 20;

impl Legacy {
    /// The raw id of the requests that restore the state of a session in a new child.
    const RESTORE: &'static str = "\"lockgate-restore\"";

    /// Starts ids behind `base`.
    pub(crate) fn rebase(&mut self, base: u64) {
        self.last = base;
    }

    /// Keeps ids within `range`, starting behind `base`: a shared child knows a session by its ids.
    /// They wrap around at the end of the range and skip ids in use.
    pub(crate) fn confine(&mut self, range: RangeInclusive<u64>, base: u64) {
        (self.range, self.last) = (Some(range), base);
    }

    /// Forgets all open requests, which mean nothing to another child. Ids continue to grow, so that
    /// a late answer matches no other request.
    pub(crate) fn forget(&mut self) {
        (self.calls, self.asks, self.tasks) = Default::default();
    }

    /// Appends a client's request as a line; returns its new id.
    pub(crate) fn request(&mut self, message: &Message, out: &mut BytesMut) -> CallId {
        self.request_as(message, None, out)
    }

    /// Appends a client's `initialize`, with another revision if one is given.
    pub(crate) fn request_as(
        &mut self,
        message: &Message,
        revision: Option<&str>,
        out: &mut BytesMut,
    ) -> CallId {
        let call = self.next();
        let number = call.to_string();
        let token = message.meta_progress_token();
        let quoted = revision.map(|revision| format!("\"{revision}\""));
        let mut cuts: Vec<(Span, &[u8])> = Vec::with_capacity(3);
        cuts.extend(message.id_span().map(|span| (span, number.as_bytes())));
        cuts.extend(token.map(|span| (span, number.as_bytes())));
        cuts.extend(
            message
                .protocol_version()
                .zip(quoted.as_ref().map(String::as_bytes)),
        );
        push_line(message, cuts, out);
        let token = token.map(|span| span.of(message.bytes()).into());
        let id = message.id().unwrap_or_default().into();
        self.calls.insert(
            call,
            Original {
                id,
                token,
                wants_task: message.wants_task(),
            },
        );
        call
    }

    /// Appends a client's notification as a line, unless it names a request that is not open.
    pub(crate) fn notification(&mut self, message: &Message, out: &mut BytesMut) -> Forwarded {
        let (span, number, forwarded) = match message.method() {
            Method::Cancelled => {
                let named = message
                    .request_id()
                    .map(|span| (span, span.of(message.bytes())));
                let Some((span, id)) = named else {
                    return Forwarded::Dropped;
                };
                let newest = self
                    .calls
                    .iter()
                    .filter(|(_, call)| *call.id == *id)
                    .map(|(id, _)| *id)
                    .max();
                let Some(call) = newest else {
                    return Forwarded::Dropped;
                };
                self.calls.remove(&call);
                (span, call, Forwarded::Cancelled(call))
            }
            Method::Progress => {
                let Some(span) = message.progress_token() else {
                    return Forwarded::Dropped;
                };
                let ask = number(span.of(message.bytes()));
                let token = ask.and_then(|ask| {
                    let original = self.asks.get(&ask).or_else(|| self.task(ask))?;
                    original.token.as_ref()
                });
                let Some(token) = token else {
                    return Forwarded::Dropped;
                };
                push_line(message, vec![(span, token)], out);
                return Forwarded::Passed;
            }
            _ => {
                push_line(message, Vec::new(), out);
                return Forwarded::Passed;
            }
        };
        push_line(message, vec![(span, number.to_string().as_bytes())], out);
        forwarded
    }

    /// Appends a client's response as a line, if it answers an open request of the child.
    pub(crate) fn answer(&mut self, message: &Message, out: &mut BytesMut) -> Option<AskId> {
        let ask = number(message.id()?)?;
        let original = self.asks.remove(&ask)?;
        push_line(message, vec![(message.id_span()?, &original.id)], out);
        self.keep_task(ask, original, message);
        Some(ask)
    }

    /// Ends an ask with an error of the gateway.
    pub(crate) fn refuse(&mut self, ask: AskId, message: &str, out: &mut BytesMut) {
        if let Some(original) = self.asks.remove(&ask) {
            owe(out, |out| {
                push_error(&original.id, -32603, message, None, out);
            });
        }
    }

    /// Ends a call by the gateway; returns the client's raw id. A late answer is dropped.
    pub(crate) fn abandon(&mut self, call: CallId) -> Option<Box<[u8]>> {
        self.calls.remove(&call).map(|original| original.id)
    }

    /// Appends a cancellation of a call.
    pub(crate) fn cancel(call: CallId, reason: &str, out: &mut BytesMut) {
        push_cancelled(call, reason, out);
        out.put_u8(b'\n');
    }

    /// Appends the state of a session for a restored child.
    pub(crate) fn restore(state: &SessionState<'_>, out: &mut BytesMut) {
        if state.is_initialized {
            out.extend_from_slice(initialize::INITIALIZED);
        }
        if let Some(level) = state.level {
            out.extend_from_slice(&initialize::set_level(Self::RESTORE, level));
        }
        for uri in state.subscriptions {
            out.extend_from_slice(&initialize::subscribe(Self::RESTORE, uri));
        }
    }

    /// A subscription to a raw URI that the gateway makes for a session.
    pub(crate) fn subscribe(&mut self, uri: &[u8]) -> (CallId, Bytes) {
        let call = self.next();
        (call, initialize::subscribe(&call.to_string(), uri))
    }

    /// Appends a ping of the gateway; its response is `Pong`.
    pub(crate) fn ping(out: &mut BytesMut) {
        push_request(PING, "ping", None, out);
        out.put_u8(b'\n');
    }

    /// Translates a message of the child; answers of the gateway itself go to `out`.
    pub(crate) fn line(&mut self, message: &Message, out: &mut BytesMut) -> ServerMessage {
        match (message.kind(), message.method()) {
            (Kind::Result | Kind::Error, _) => self.response(message),
            (Kind::Request, Method::Ping) => {
                let id = message.id().unwrap_or_default();
                owe(out, |out| push_result(id, b"{}", out));
                ServerMessage::Pinged
            }
            (Kind::Request, _) if self.asks.len() >= MAX_ASKS => {
                let id = message.id().unwrap_or_default();
                let why = "too many requests are open";
                owe(out, |out| push_error(id, -32603, why, None, out));
                ServerMessage::Dropped("too_many_asks")
            }
            (Kind::Request, _) => self.ask(message),
            (Kind::Notification, Method::Progress) => self.progress(message),
            (Kind::Notification, Method::Cancelled) => self.ask_cancelled(message),
            (Kind::Notification, Method::Log) => ServerMessage::Log {
                task: message.related_task().map(Into::into),
                line: message.bytes().clone(),
            },
            (Kind::Notification, _) => ServerMessage::Notification(message.bytes().clone()),
        }
    }

    fn response(&mut self, message: &Message) -> ServerMessage {
        let Some((span, id)) = message.id_span().zip(message.id()) else {
            return ServerMessage::Dropped("no_id");
        };
        if id == PING || id == Self::RESTORE.as_bytes() {
            return ServerMessage::Pong;
        }
        let found = number(id).and_then(|call| Some((call, self.calls.remove(&call)?)));
        let Some((call, original)) = found else {
            return ServerMessage::Dropped("unknown_id");
        };
        let line = spliced(message, span, &original.id);
        self.keep_task(call, original, message);
        ServerMessage::Response { call, line }
    }

    /// Keeps the token of a request that became a task: its progress continues under that token
    /// (2025-11-25 progress, "Progress Flow"), on either side.
    fn keep_task(&mut self, id: u64, original: Original, answer: &Message) {
        if original.wants_task && original.token.is_some() && answer.kind() == Kind::Result {
            if self.tasks.len() == MAX_TASK_TOKENS {
                self.tasks.pop_front();
            }
            self.tasks.push_back((id, original));
        }
    }

    fn ask(&mut self, message: &Message) -> ServerMessage {
        let ask = self.next();
        let number = ask.to_string();
        let token = message.meta_progress_token();
        let mut cuts: Vec<(Span, &[u8])> = Vec::with_capacity(2);
        cuts.extend(message.id_span().map(|span| (span, number.as_bytes())));
        cuts.extend(token.map(|span| (span, number.as_bytes())));
        cuts.sort_by_key(|(span, _)| span.start());
        let mut line = BytesMut::with_capacity(message.bytes().len() + 16);
        message.splice(&mut line, &cuts);
        let token = token.map(|span| span.of(message.bytes()).into());
        let id = message.id().unwrap_or_default().into();
        self.asks.insert(
            ask,
            Original {
                id,
                token,
                wants_task: message.wants_task(),
            },
        );
        ServerMessage::Ask {
            ask,
            task: message.related_task().map(Into::into),
            line: line.freeze(),
        }
    }

    fn progress(&mut self, message: &Message) -> ServerMessage {
        let Some(span) = message.progress_token() else {
            return ServerMessage::Dropped("no_token");
        };
        let call = number(span.of(message.bytes()));
        let original = call.and_then(|call| {
            let original = self.calls.get(&call).or_else(|| self.task(call))?;
            Some((call, original.token.as_ref()?))
        });
        let Some((call, token)) = original else {
            return ServerMessage::Dropped("unknown_token");
        };
        ServerMessage::Progress {
            call,
            line: spliced(message, span, token),
        }
    }

    fn ask_cancelled(&mut self, message: &Message) -> ServerMessage {
        let Some(span) = message.request_id() else {
            return ServerMessage::Dropped("no_id");
        };
        let id = span.of(message.bytes());
        let found = self
            .asks
            .iter()
            .find(|(_, ask)| *ask.id == *id)
            .map(|(ask, _)| *ask);
        let Some(ask) = found else {
            return ServerMessage::Dropped("unknown_id");
        };
        self.asks.remove(&ask);
        ServerMessage::AskCancelled {
            ask,
            line: spliced(message, span, ask.to_string().as_bytes()),
        }
    }

    fn task(&self, id: u64) -> Option<&Original> {
        let mut tasks = self.tasks.iter();
        tasks
            .find(|(own, _)| *own == id)
            .map(|(_, original)| original)
    }

    /// A new id.
    fn next(&mut self) -> u64 {
        loop {
            self.last = match &self.range {
                Some(range) if self.last >= *range.end() => *range.start(),
                _ => self.last + 1,
            };
            if self.range.is_none() || !self.calls.contains_key(&self.last) {
                return self.last;
            }
        }
    }
}

/// Appends an answer of the gateway to the child, or drops it if the child does not read: repeated
/// requests of the child must not fill the memory of the gateway.
pub(crate) fn owe(out: &mut BytesMut, push: impl FnOnce(&mut BytesMut)) {
    if out.len() < MAX_OWED {
        push(out);
        out.put_u8(b'\n');
    }
}

fn push_line(message: &Message, mut cuts: Vec<(Span, &[u8])>, out: &mut BytesMut) {
    cuts.sort_by_key(|(span, _)| span.start());
    out.reserve(message.bytes().len() + 32);
    message.splice(out, &cuts);
    out.put_u8(b'\n');
}

fn spliced(message: &Message, span: Span, replacement: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(message.bytes().len() + replacement.len());
    message.splice(&mut line, &[(span, replacement)]);
    line.freeze()
}

/// Parses an id or token of the gateway.
fn number(token: &[u8]) -> Option<u64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::legacy::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn call(dialect: &mut Legacy, id: &str, params: &str) -> (CallId, String) {
        let mut out = BytesMut::new();
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let call = dialect.request(&message(&text), &mut out);
        (call, text_of(&out))
    }

    fn text_of(out: &[u8]) -> String {
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn note(dialect: &mut Legacy, text: &str) -> (Forwarded, String) {
        let mut out = BytesMut::new();
        let forwarded = dialect.notification(&message(text), &mut out);
        (forwarded, text_of(&out))
    }

    fn line(dialect: &mut Legacy, text: &str) -> ServerMessage {
        dialect.line(&message(text), &mut BytesMut::new())
    }

    fn result(id: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
    }

    fn progress(token: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    }

    fn cancelled(id: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    }

    #[test]
    fn a_request_and_its_end_are_translated() {
        let mut dialect = Legacy::default();
        let (first, sent) = call(&mut dialect, "\"a\"", r#"{"_meta":{"progressToken":"p"}}"#);
        assert_eq!(
            sent,
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{first},\"method\":\"tools/call\",\"params\":{{\"_meta\":{{\"progressToken\":{first}}}}}}}\n"
            )
        );
        let (second, _) = call(&mut dialect, "\"a\"", "{}");
        assert_ne!(first, second);
        let said = line(&mut dialect, &progress(&first.to_string()));
        assert!(
            matches!(&said, ServerMessage::Progress { call, line } if *call == first && line == progress("\"p\"").as_bytes()),
            "{said:?}"
        );
        // A call without a token has no progress.
        let said = line(&mut dialect, &progress(&second.to_string()));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_token")),
            "{said:?}"
        );
        let said = line(&mut dialect, &result(&first.to_string()));
        assert!(
            matches!(&said, ServerMessage::Response { call, line } if *call == first && line == result("\"a\"").as_bytes()),
            "{said:?}"
        );
        // Late, foreign, and in another spelling.
        for id in [first.to_string(), "99".to_owned(), format!("\"{second}\"")] {
            let said = line(&mut dialect, &result(&id));
            assert!(
                matches!(said, ServerMessage::Dropped("unknown_id")),
                "{said:?}"
            );
        }
        let said = line(&mut dialect, &progress(&first.to_string()));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_token")),
            "{said:?}"
        );
    }

    #[test]
    fn ids_beside_those_of_others_stay_where_they_belong() {
        let mut dialect = Legacy::default();
        dialect.confine(40..=43, 41);
        let begun = |dialect: &mut Legacy| call(dialect, "1", "{}").0;
        assert_eq!(begun(&mut dialect), 42);
        assert_eq!(begun(&mut dialect), 43);
        dialect.abandon(43);
        assert_eq!(begun(&mut dialect), 40);
        assert_eq!(begun(&mut dialect), 41);
        assert_eq!(begun(&mut dialect), 43, "42 is in use");
    }

    #[test]
    fn a_cancellation_ends_the_newest_call_of_its_id() {
        let mut dialect = Legacy::default();
        let (first, _) = call(&mut dialect, "5", "{}");
        let (second, _) = call(&mut dialect, "5", "{}");
        let (forwarded, sent) = note(&mut dialect, &cancelled("5"));
        assert_eq!(forwarded, Forwarded::Cancelled(second));
        assert_eq!(sent, cancelled(&second.to_string()) + "\n");
        assert!(matches!(
            line(&mut dialect, &result(&second.to_string())),
            ServerMessage::Dropped("unknown_id")
        ));
        assert_eq!(
            note(&mut dialect, &cancelled("5")).0,
            Forwarded::Cancelled(first)
        );
        for id in ["5", "6", "\"5\"", &first.to_string()] {
            assert_eq!(
                note(&mut dialect, &cancelled(id)),
                (Forwarded::Dropped, String::new())
            );
        }
        let (third, _) = call(&mut dialect, "7", "{}");
        assert_eq!(dialect.abandon(third).as_deref(), Some(&b"7"[..]));
        assert_eq!(dialect.abandon(third), None);
    }

    #[test]
    fn what_the_child_asks_is_translated() {
        let mut dialect = Legacy::default();
        let asked = r#"{"jsonrpc":"2.0","id":"x","method":"roots/list","params":{"_meta":{"progressToken":"q","io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#;
        let ServerMessage::Ask {
            ask,
            task,
            line: shown,
        } = line(&mut dialect, asked)
        else {
            panic!("no ask");
        };
        assert_eq!(task.as_deref(), Some(&b"\"t\""[..]));
        let expected = asked
            .replace("\"x\"", &ask.to_string())
            .replace("\"q\"", &ask.to_string());
        assert_eq!(text_of(&shown), expected);
        let number = ask.to_string();
        assert_eq!(
            note(&mut dialect, &progress(&number)),
            (Forwarded::Passed, progress("\"q\"") + "\n")
        );
        assert_eq!(note(&mut dialect, &progress("77")).0, Forwarded::Dropped);
        let mut out = BytesMut::new();
        assert_eq!(dialect.answer(&message(&result("\"x\"")), &mut out), None);
        assert!(out.is_empty());
        assert_eq!(
            dialect.answer(&message(&result(&number)), &mut out),
            Some(ask)
        );
        assert_eq!(text_of(&out), result("\"x\"") + "\n");
        out.clear();
        assert_eq!(dialect.answer(&message(&result(&number)), &mut out), None);
        assert!(out.is_empty(), "an ask is answered once");
    }

    #[test]
    fn what_the_child_takes_back_is_over() {
        let mut dialect = Legacy::default();
        let asked = r#"{"jsonrpc":"2.0","id":"x","method":"roots/list"}"#;
        let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
            panic!("no ask");
        };
        let said = line(&mut dialect, &cancelled("\"y\""));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_id")),
            "{said:?}"
        );
        let said = line(&mut dialect, &cancelled("\"x\""));
        let expected = cancelled(&ask.to_string());
        assert!(
            matches!(&said, ServerMessage::AskCancelled { ask: named, line } if *named == ask && line == expected.as_bytes()),
            "{said:?}"
        );
        let mut out = BytesMut::new();
        dialect.refuse(ask, "late", &mut out);
        assert!(out.is_empty());
        let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
            panic!("no ask");
        };
        dialect.refuse(ask, "nobody \"here\"", &mut out);
        assert_eq!(
            text_of(&out),
            "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"error\":{\"code\":-32603,\"message\":\"nobody \\\"here\\\"\"}}\n"
        );
    }

    #[test]
    fn pings_are_answered_here() {
        let mut dialect = Legacy::default();
        let mut out = BytesMut::new();
        let ping = message(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        assert!(matches!(
            dialect.line(&ping, &mut out),
            ServerMessage::Pinged
        ));
        assert_eq!(text_of(&out), result("\"p\"") + "\n");
        let said = line(&mut dialect, &result("\"lockgate-ping\""));
        assert!(matches!(said, ServerMessage::Pong), "{said:?}");
        out.clear();
        Legacy::ping(&mut out);
        assert_eq!(
            message(text_of(&out).trim_end()).id(),
            Some(&b"\"lockgate-ping\""[..])
        );
    }

    #[test]
    fn the_token_of_a_task_outlives_its_call() {
        let mut dialect = Legacy::default();
        let asks = r#"{"task":{},"_meta":{"progressToken":"p"}}"#;
        let (task, _) = call(&mut dialect, "1", asks);
        let (failed, _) = call(&mut dialect, "2", asks);
        line(&mut dialect, &result(&task.to_string()));
        let error = format!(r#"{{"jsonrpc":"2.0","id":{failed},"error":{{}}}}"#);
        line(&mut dialect, &error);
        let said = line(&mut dialect, &progress(&task.to_string()));
        assert!(
            matches!(said, ServerMessage::Progress { call, .. } if call == task),
            "{said:?}"
        );
        let said = line(&mut dialect, &progress(&failed.to_string()));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_token")),
            "{said:?}"
        );
        for _ in 0..MAX_TASK_TOKENS {
            let (next, _) = call(&mut dialect, "3", asks);
            line(&mut dialect, &result(&next.to_string()));
        }
        let said = line(&mut dialect, &progress(&task.to_string()));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_token")),
            "the oldest goes: {said:?}"
        );
    }

    #[test]
    fn the_token_of_a_task_outlives_its_ask() {
        let mut dialect = Legacy::default();
        let mut asked = |params: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":"x","method":"sampling/createMessage","params":{params}}}"#
            );
            let ServerMessage::Ask { ask, .. } = line(&mut dialect, &text) else {
                panic!("no ask");
            };
            let answer = message(&result(&ask.to_string()));
            dialect.answer(&answer, &mut BytesMut::new());
            note(&mut dialect, &progress(&ask.to_string()))
        };
        let (forwarded, sent) = asked(r#"{"task":{},"_meta":{"progressToken":"q"}}"#);
        assert_eq!(
            (forwarded, sent),
            (Forwarded::Passed, progress("\"q\"") + "\n")
        );
        let (forwarded, _) = asked(r#"{"_meta":{"progressToken":"q"}}"#);
        assert_eq!(forwarded, Forwarded::Dropped);
    }

    #[test]
    fn a_child_that_asks_and_does_not_read_costs_a_bounded_sum() {
        let mut dialect = Legacy::default();
        let mut out = BytesMut::new();
        let ask = message(r#"{"jsonrpc":"2.0","id":"x","method":"roots/list"}"#);
        for _ in 0..MAX_ASKS {
            assert!(matches!(
                dialect.line(&ask, &mut out),
                ServerMessage::Ask { .. }
            ));
        }
        let said = dialect.line(&ask, &mut out);
        assert!(
            matches!(said, ServerMessage::Dropped("too_many_asks")),
            "{said:?}"
        );
        assert!(text_of(&out).contains("-32603"));
        let ping = format!(
            r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
            "p".repeat(1000)
        );
        let ping = message(&ping);
        for _ in 0..2 * MAX_OWED / 1000 {
            assert!(matches!(
                dialect.line(&ping, &mut out),
                ServerMessage::Pinged
            ));
        }
        assert!(
            (MAX_OWED..MAX_OWED + 2000).contains(&out.len()),
            "{}",
            out.len()
        );
    }

    #[test]
    fn another_revision_is_put_into_initialize() {
        let text = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2099-01-01","capabilities":{}}}"#;
        let mut out = BytesMut::new();
        let id = Legacy::default().request_as(&message(text), Some("2025-11-25"), &mut out);
        let expected = text
            .replace("2099-01-01", "2025-11-25")
            .replace("\"id\":0", &format!("\"id\":{id}"));
        assert_eq!(text_of(&out), expected + "\n");
    }

    fn token() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<u32>().prop_map(|number| format!("{number}.00")),
            "\\PC{0,20}".prop_map(|text| serde_json::Value::from(text).to_string()),
            Just(r#""\u0061\/""#.to_owned()),
            Just("\"lockgate-ping\"".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn ids_and_tokens_come_back_byte_for_byte(calls in prop::collection::vec((token(), token()), 1..8)) {
            let mut dialect = Legacy::default();
            let begun: Vec<_> = calls
                .iter()
                .map(|(id, token)| call(&mut dialect, id, &format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#)).0)
                .collect();
            for (call, (id, token)) in begun.iter().zip(&calls).rev() {
                let ServerMessage::Progress { line: shown, .. } = line(&mut dialect, &progress(&call.to_string())) else {
                    panic!("no progress");
                };
                prop_assert_eq!(text_of(&shown), progress(token));
                let ServerMessage::Response { line: shown, .. } = line(&mut dialect, &result(&call.to_string())) else {
                    panic!("no end");
                };
                prop_assert_eq!(text_of(&shown), result(id));
            }
        }

        #[test]
        fn a_childs_id_comes_back_byte_for_byte(id in token()) {
            let mut dialect = Legacy::default();
            let asked = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
            let ServerMessage::Ask { ask, .. } = line(&mut dialect, &asked) else {
                panic!("no ask");
            };
            let mut out = BytesMut::new();
            dialect.answer(&message(&result(&ask.to_string())), &mut out);
            prop_assert_eq!(text_of(&out), result(&id) + "\n");
        }
    }
}

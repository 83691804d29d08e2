//! Requests of a server to its client as `input_required`, and the client's answers (2026-07-28 mrtr).

use std::{borrow::Cow, collections::HashMap};

use bytes::{BufMut, Bytes, BytesMut};

use super::answer::with_task;
use super::request::{input_responses, request_state};
use crate::protocol::{
    Message, Span, json,
    meta::{INPUT_KEY, RELATED_TASK, SERVER_INFO},
};

/// A request of a server that waits for its client.
#[derive(Clone, Debug)]
pub(crate) struct InputRequest {
    /// The raw id that the answer needs.
    pub(crate) id: Bytes,
    /// The key that the server gave it; none for a session-based server.
    pub(super) key: Option<String>,
    /// The request without its envelope: method and parameters.
    pub(crate) request: Bytes,
}

impl InputRequest {
    /// Whether a request of this method can be one.
    pub(crate) fn is_one(method: &str) -> bool {
        matches!(
            method,
            "elicitation/create" | "sampling/createMessage" | "roots/list"
        )
    }

    /// The input request that a request of a server is.
    pub(crate) fn of(ask: &Message) -> Self {
        let mut request = BytesMut::with_capacity(ask.bytes().len());
        request.extend_from_slice(br#"{"method":"#);
        json::push_string(&mut request, &ask.method_name());
        let mut key = None;
        if let Some(params) = ask.params() {
            request.extend_from_slice(br#","params":"#);
            key = json::get(params, "_meta").and_then(|meta| json::get(meta, INPUT_KEY));
            if key.is_some() {
                push_without_key(params, &mut request);
            } else {
                request.extend_from_slice(params);
            }
        }
        request.put_u8(b'}');
        Self {
            id: Bytes::copy_from_slice(ask.id().unwrap_or_default()),
            key: key.and_then(json::decoded).map(Into::into),
            request: request.freeze(),
        }
    }

    /// Whether the server gave it a key, which its client may know before it asks.
    pub(crate) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// The request as a message of the server.
    pub(crate) fn message(&self) -> Option<Message> {
        let request = self.request.strip_prefix(b"{")?;
        let line = [&br#"{"jsonrpc":"2.0","id":0,"#[..], request].concat();
        Message::parse(line.into()).ok()
    }

    /// The same under its id, which no other request of its session has: keys of servers are unique in one result
    /// alone.
    pub(crate) fn under_id(self) -> Self {
        Self { key: None, ..self }
    }

    /// A raw answer as the server gets it: with the task of 2025-11-25 that the request names.
    fn answered_by(&self, answer: &[u8]) -> Bytes {
        let path = ["params", "_meta", RELATED_TASK, "taskId"];
        let mut names = path.iter();
        let task = names.try_fold(&*self.request, |value, name| json::get(value, name));
        match task {
            Some(task) => with_task(answer, task),
            None => Bytes::copy_from_slice(answer),
        }
    }
}

/// The key of one of several requests: "keys are server assigned identifiers and MUST be unique within the
/// scope of the request" (2026-07-28 mrtr, "Server Requirements"). Without one of the server's own it is the
/// id.
fn key(requests: &[InputRequest], at: usize) -> &str {
    let InputRequest { id, key, .. } = &requests[at];
    let is_new = |key: &&str| {
        let mut before = requests[..at].iter();
        !before.any(|other| other.key.as_deref() == Some(*key))
    };
    let own = key.as_deref().filter(is_new);
    own.unwrap_or_else(|| std::str::from_utf8(id).unwrap_or_default())
}

/// Raw parameters with the key of an input request.
pub(super) fn with_key(params: Option<&[u8]>, key: &[u8]) -> Bytes {
    let params = params.unwrap_or(b"{}");
    let member = [b"\"", INPUT_KEY.as_bytes(), b"\":", key].concat();
    let whole = Span::whole(params);
    let cut = match json::member(params, whole, "_meta") {
        Some(meta) => json::with_member(params, meta, INPUT_KEY, member),
        None => json::with_member(
            params,
            whole,
            "_meta",
            [b"\"_meta\":{", &*member, b"}"].concat(),
        ),
    };
    let mut keyed = BytesMut::with_capacity(params.len() + key.len() + 32);
    match cut {
        Some((span, added)) => json::splice(&mut keyed, params, &[(span, &added)]),
        None => keyed.extend_from_slice(params),
    }
    keyed.freeze()
}

/// Appends raw parameters without the key, and without `_meta` if there is nothing else in it.
fn push_without_key(params: &[u8], out: &mut BytesMut) {
    let whole = Span::whole(params);
    let Some(meta) = json::member(params, whole, "_meta") else {
        return out.extend_from_slice(params);
    };
    let mut kept = BytesMut::new();
    json::push_without(&mut kept, params, meta, |name| name == INPUT_KEY);
    if *kept == b"{}"[..] {
        return json::push_without(out, params, whole, |name| name == "_meta");
    }
    json::splice(out, params, &[(meta, &kept)]);
}

/// The response that asks the client for these, under the raw id of its request, with the raw
/// `serverInfo` of the server.
pub(crate) fn input_required(
    id: &[u8],
    requests: &[InputRequest],
    state: &str,
    server_info: Option<&[u8]>,
) -> Bytes {
    let mut line = BytesMut::new();
    line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    line.extend_from_slice(id);
    line.extend_from_slice(br#","result":{"resultType":"input_required","#);
    if !requests.is_empty() {
        push_input_requests(&mut line, requests);
        line.put_u8(b',');
    }
    line.extend_from_slice(br#""requestState":"#);
    json::push_string(&mut line, state);
    if let Some(info) = server_info {
        line.extend_from_slice(br#","_meta":{""#);
        line.extend_from_slice(SERVER_INFO.as_bytes());
        line.extend_from_slice(br#"":"#);
        line.extend_from_slice(info);
        line.put_u8(b'}');
    }
    line.extend_from_slice(b"}}");
    line.freeze()
}

/// Appends the member `inputRequests`.
pub(super) fn push_input_requests(out: &mut BytesMut, requests: &[InputRequest]) {
    out.extend_from_slice(br#""inputRequests":{"#);
    for (at, request) in requests.iter().enumerate() {
        if at > 0 {
            out.put_u8(b',');
        }
        json::push_string(out, key(requests, at));
        out.put_u8(b':');
        out.extend_from_slice(&request.request);
    }
    out.put_u8(b'}');
}

/// The requests that stand for the URLs which a session-based server wants its client to visit before it
/// calls again (2025-11-25 elicitation, "URL Elicitation Required Error"): this era has no such error.
/// None for any other answer.
pub(crate) fn url_elicitations(answer: &Message) -> Option<Vec<InputRequest>> {
    let error = answer.error()?;
    let code = json::get(error, "code")?;
    if ![URL_REQUIRED, SECRET_MISSING].contains(&code) {
        return None;
    }
    let mut items = json::Items::of(json::get(json::get(error, "data")?, "elicitations")?);
    let mut requests = Vec::new();
    while let Ok(Some(params)) = items.next() {
        if requests.len() >= MAX_URLS || !params.starts_with(b"{") {
            return None;
        }
        let mut request = BytesMut::from(&br#"{"method":"elicitation/create","params":"#[..]);
        request.extend_from_slice(params);
        request.put_u8(b'}');
        requests.push(InputRequest {
            id: format!("url-{}", requests.len()).into(),
            key: None,
            request: request.freeze(),
        });
    }
    (!requests.is_empty()).then_some(requests)
}

/// The code of `URLElicitationRequiredError`.
const URL_REQUIRED: &[u8] = b"-32042";
/// The code of the gateway's own error that asks for a visit of the account page.
const SECRET_MISSING: &[u8] = b"-31005";
/// The most URLs of one answer.
const MAX_URLS: usize = 16;

/// The raw answers that a request which is no retry gives to what its server may ask, by their keys: a client that
/// knows the keys of a server need not wait for its questions. All are parts of the request.
pub(crate) struct AnswersAhead(HashMap<Bytes, Option<Bytes>>);

impl AnswersAhead {
    /// The answers in a request.
    pub(crate) fn of(request: &Message) -> Self {
        let mut answers = HashMap::new();
        let given = input_responses(request).filter(|_| request_state(request).is_none());
        let given = given.unwrap_or_default();
        json::each_member(given, Span::whole(given), |key, value| {
            let key = match json::decoded(key.of(given)) {
                Some(Cow::Borrowed(key)) => request.bytes().slice_ref(key.as_bytes()),
                Some(Cow::Owned(key)) => key.into(),
                None => return,
            };
            // An answer is a result, which is an object; as for `json::get`, a repeated key has none.
            let answer = Some(value.of(given)).filter(|answer| answer.starts_with(b"{"));
            let answer = answer.map(|answer| request.bytes().slice_ref(answer));
            if let Some(known) = answers.get_mut(&key) {
                *known = None;
            } else if answers.len() < MAX_AHEAD {
                answers.insert(key, answer);
            }
        });
        Self(answers)
    }

    /// Takes the answer to a request of the server. A second request under its key is asked of the client.
    pub(crate) fn take(&mut self, ask: &InputRequest) -> Option<Bytes> {
        self.0.remove(ask.key.as_ref()?.as_bytes()).flatten()
    }
}

/// The most answers that are given ahead: a session has no more open requests of its server.
const MAX_AHEAD: usize = 256;

/// The raw answers of a client to these requests, each with the id that it needs; answers to others are
/// ignored (2026-07-28 mrtr, "Error Handling"; ext-tasks, "Task Update Requests").
pub(crate) fn responses(retry: &Message, requests: &[InputRequest]) -> Vec<(Bytes, Bytes)> {
    let given = input_responses(retry).unwrap_or_default();
    let keys: Vec<&str> = (0..requests.len()).map(|at| key(requests, at)).collect();
    let mut found: HashMap<&str, Option<&[u8]>> = keys.iter().map(|key| (*key, None)).collect();
    json::each_member(given, Span::whole(given), |key, value| {
        if let Some(key) = json::decoded(key.of(given))
            && let Some(answer) = found.get_mut(&*key)
        {
            // As for `json::get`, a repeated key has no value.
            let is_first = answer.is_none();
            *answer = Some(if is_first { value.of(given) } else { b"" });
        }
    });
    let answer = |(request, key): (&InputRequest, &str)| {
        let answer = found.get(key).copied().flatten()?;
        // An answer is a result, which is an object.
        let is_result = answer.starts_with(b"{");
        is_result.then(|| (request.id.clone(), request.answered_by(answer)))
    };
    requests.iter().zip(keys).filter_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::super::input::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn asks_become_input_requests_and_are_answered_by_key() {
        let asks: Vec<InputRequest> = [
            r#"{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"a \u00e9"}}"#,
            r#"{"jsonrpc":"2.0","id":8,"method":"roots/list"}"#,
            r#"{"jsonrpc":"2.0","id":10,"method":"roots/list","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
        ]
        .map(|ask| InputRequest::of(&message(ask)))
        .into();
        assert_eq!(
            input_required(b"\"x\"", &asks, "state", None),
            r#"{"jsonrpc":"2.0","id":"x","result":{"resultType":"input_required","inputRequests":{"7":{"method":"elicitation/create","params":{"message":"a \u00e9"}},"8":{"method":"roots/list"},"10":{"method":"roots/list","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}},"requestState":"state"}}"#
        );
        let retry = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","inputResponses":{"8":{"roots":[]},"7":"no object","9":{},"10":{}}}}"#,
        );
        let answer = Bytes::from_static(br#"{"roots":[]}"#);
        let answers = responses(&retry, &asks);
        let of_task = r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#;
        let expected = [("8".into(), answer), ("10".into(), of_task.into())];
        assert_eq!(answers, expected);
    }

    #[test]
    fn an_answer_that_is_given_ahead_is_given_once() {
        let ask = |key: &str| {
            let ask = format!(
                r#"{{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{{"_meta":{{"lockgate/inputKey":"{key}"}}}}}}"#
            );
            InputRequest::of(&message(&ask))
        };
        let given = r#""k":{"a":1},"\u0071":{"b":2},"text":"x","twice":{},"twice":{}"#;
        let call = |rest: &str| {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","inputResponses":{{{given}}}{rest}}}}}"#
            );
            message(&line)
        };
        let request = call("");
        let mut ahead = AnswersAhead::of(&request);
        let answer = ahead.take(&ask("k")).unwrap();
        assert_eq!(answer, r#"{"a":1}"#);
        let text = request.bytes().as_ptr_range();
        assert!(text.contains(&answer.as_ptr()), "a part of the request");
        assert_eq!(ahead.take(&ask("k")), None, "a second time");
        assert_eq!(ahead.take(&ask("q")).unwrap(), r#"{"b":2}"#);
        for key in ["text", "twice", "unknown"] {
            assert_eq!(ahead.take(&ask(key)), None, "{key}");
        }
        let mut of_retry = AnswersAhead::of(&call(r#","requestState":"s""#));
        assert_eq!(of_retry.take(&ask("k")), None);
        let many: Vec<String> = (0..=MAX_AHEAD).map(|n| format!(r#""{n}":{{}}"#)).collect();
        let many = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"inputResponses":{{{}}}}}}}"#,
            many.join(",")
        );
        let mut many = AnswersAhead::of(&message(&many));
        assert!(many.take(&ask("255")).is_some() && many.take(&ask("256")).is_none());
    }

    /// Each of 256 questions was sought in all of 4 MiB.
    #[test]
    fn answers_are_found_in_one_pass() {
        let ask = |id: usize| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
        let asks: Vec<InputRequest> = (0..256)
            .map(|id| InputRequest::of(&message(&ask(id))))
            .collect();
        let others: Vec<String> = (1000..100_000).map(|n| format!(r#""{n}":0"#)).collect();
        let given = format!(
            r#""3":{{"a":1}},{},"5":{{}},"\u0035":{{}},"7":0"#,
            others.join(",")
        );
        let retry = message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"inputResponses":{{{given}}}}}}}"#
        ));
        let began = tokio::time::Instant::now();
        let answer = Bytes::from_static(br#"{"a":1}"#);
        assert_eq!(responses(&retry, &asks), [("3".into(), answer)]);
        assert!(began.elapsed() < std::time::Duration::from_secs(3));
    }

    #[test]
    fn keys_are_those_of_the_server_as_long_as_they_tell_requests_apart() {
        for (params, keyed) in [
            (None, r#"{"_meta":{"lockgate/inputKey":"k\""}}"#),
            (
                Some(r#"{"a":1}"#),
                r#"{"_meta":{"lockgate/inputKey":"k\""},"a":1}"#,
            ),
            (
                Some(r#"{"_meta":{"b":2}}"#),
                r#"{"_meta":{"lockgate/inputKey":"k\"","b":2}}"#,
            ),
        ] {
            let with = with_key(params.map(str::as_bytes), br#""k\"""#);
            assert_eq!(with, keyed);
            let ask =
                format!(r#"{{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{keyed}}}"#);
            let ask = InputRequest::of(&message(&ask));
            let params = params.unwrap_or("{}");
            assert_eq!(
                ask.request,
                format!(r#"{{"method":"roots/list","params":{params}}}"#)
            );
            assert_eq!(key(std::slice::from_ref(&ask), 0), "k\"");
            let other = InputRequest {
                id: Bytes::from_static(b"8"),
                ..ask.clone()
            };
            assert_eq!(key(&[ask.clone(), other], 1), "8");
            assert_eq!(key(&[ask.under_id()], 0), "7");
        }
    }
}

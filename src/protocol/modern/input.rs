//! Requests of a server to its client as `input_required`, and the client's answers (2026-07-28 mrtr).

use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::{Message, json, meta::SERVER_INFO};

/// A request of a server that waits for its client.
#[derive(Clone, Debug)]
pub(crate) struct InputRequest {
    /// The raw id that the answer needs, which is also the key of the request.
    pub(crate) id: Bytes,
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
        if let Some(params) = ask.params() {
            request.extend_from_slice(br#","params":"#);
            request.extend_from_slice(params);
        }
        request.put_u8(b'}');
        Self {
            id: Bytes::copy_from_slice(ask.id().unwrap_or_default()),
            request: request.freeze(),
        }
    }

    fn key(&self) -> &str {
        std::str::from_utf8(&self.id).unwrap_or_default()
    }
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
    line.extend_from_slice(br#","result":{"resultType":"input_required","inputRequests":{"#);
    for (at, request) in requests.iter().enumerate() {
        if at > 0 {
            line.put_u8(b',');
        }
        json::push_string(&mut line, request.key());
        line.put_u8(b':');
        line.extend_from_slice(&request.request);
    }
    line.extend_from_slice(br#"},"requestState":"#);
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

/// The requests that stand for the URLs which a session-based server wants its client to visit before it
/// calls again (2025-11-25 elicitation, "URL Elicitation Required Error"): this era has no such error.
/// None for any other answer.
pub(crate) fn url_elicitations(answer: &Message) -> Option<Vec<InputRequest>> {
    let error = answer.error()?;
    if json::get(error, "code") != Some(URL_REQUIRED) {
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
            request: request.freeze(),
        });
    }
    (!requests.is_empty()).then_some(requests)
}

/// The code of `URLElicitationRequiredError`.
const URL_REQUIRED: &[u8] = b"-32042";
/// The most URLs of one answer.
const MAX_URLS: usize = 16;

/// The raw answers of a retry to these requests, each with its request; answers to others are ignored
/// (2026-07-28 mrtr, "Error Handling").
pub(crate) fn responses<'r>(
    retry: &Message,
    requests: &'r [InputRequest],
) -> Vec<(&'r InputRequest, Bytes)> {
    let given = retry
        .params()
        .and_then(|params| json::get(params, "inputResponses"));
    let answer = |request: &'r InputRequest| {
        let answer = json::get(given?, request.key())?;
        // An answer is a result, which is an object.
        let is_result = answer.starts_with(b"{");
        is_result.then(|| (request, Bytes::copy_from_slice(answer)))
    };
    requests.iter().filter_map(answer).collect()
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
        ]
        .map(|ask| InputRequest::of(&message(ask)))
        .into();
        assert_eq!(
            input_required(b"\"x\"", &asks, "state", None),
            r#"{"jsonrpc":"2.0","id":"x","result":{"resultType":"input_required","inputRequests":{"7":{"method":"elicitation/create","params":{"message":"a \u00e9"}},"8":{"method":"roots/list"}},"requestState":"state"}}"#
        );
        let retry = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","inputResponses":{"8":{"roots":[]},"7":"no object","9":{}}}}"#,
        );
        let answers: Vec<_> = responses(&retry, &asks)
            .into_iter()
            .map(|(ask, answer)| (ask.key().to_owned(), answer))
            .collect();
        assert_eq!(
            answers,
            [("8".to_owned(), Bytes::from_static(br#"{"roots":[]}"#))]
        );
    }
}

//! Trace context in `params._meta`: `traceparent` and `tracestate` (SEP-414), as texts.

use super::{
    json::{self, Span},
    message::Message,
};

/// A trace context as it stands in `_meta`, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The value of `traceparent`.
    pub(crate) parent: String,
    /// The value of `tracestate`; empty without one.
    pub(crate) state: String,
}

/// A span of a message and its replacement.
pub(crate) type Cut = (Span, Vec<u8>);

impl Trace {
    /// The context in the `_meta` of a message. Of duplicates the last one counts, as for most parsers.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let text = message.bytes();
        let (mut parent, mut state) = (None, None);
        for (key, value) in json::members(text, message.meta()?) {
            let slot = match json::decoded(key.of(text)).as_deref() {
                Some(PARENT) => &mut parent,
                Some(STATE) => &mut state,
                _ => continue,
            };
            *slot = json::decoded(value.of(text)).map(std::borrow::Cow::into_owned);
        }
        Some(Self {
            parent: parent?,
            state: state.unwrap_or_default(),
        })
    }

    /// The cuts that put this context into the `_meta` of a message, in any order: its `traceparent`
    /// replaces what is there, its `tracestate` does not. None where `_meta` is no object.
    pub(crate) fn cuts(&self, message: &Message) -> Vec<Cut> {
        let text = message.bytes();
        let mut cuts = Vec::new();
        let (mut has_state, mut is_empty) = (false, true);
        let meta = message.meta();
        for (key, value) in meta
            .map(|meta| json::members(text, meta))
            .unwrap_or_default()
        {
            is_empty = false;
            match json::decoded(key.of(text)).as_deref() {
                Some(PARENT) => cuts.push((value, quoted(&self.parent))),
                Some(STATE) => has_state = true,
                _ => {}
            }
        }
        let mut added = Vec::new();
        if cuts.is_empty() {
            push_member(&mut added, PARENT, &self.parent);
        }
        if !has_state && !self.state.is_empty() {
            push_member(&mut added, STATE, &self.state);
        }
        if added.is_empty() {
            return cuts;
        }
        let object = match (meta, message.params_span()) {
            (Some(meta), _) if !meta.of(text).starts_with(b"{") => return Vec::new(),
            (Some(meta), _) => meta,
            (None, Some(params)) => {
                added = [b"\"_meta\":{", &*added, b"}"].concat();
                is_empty = json::members(text, params).is_empty();
                params
            }
            (None, None) => {
                added = [b"\"params\":{\"_meta\":{", &*added, b"}}"].concat();
                is_empty = false;
                Span::whole(text)
            }
        };
        if !is_empty {
            added.push(b',');
        }
        cuts.push((object.behind_brace(text), added));
        cuts
    }
}

fn push_member(out: &mut Vec<u8>, key: &str, value: &str) {
    if !out.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(&quoted(key));
    out.push(b':');
    out.extend_from_slice(&quoted(value));
}

fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}

/// The keys of `_meta` that a context is in.
pub(crate) const TRACE_KEYS: [&str; 2] = [PARENT, STATE];
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

#[cfg(test)]
mod tests {
    use super::super::trace::*;
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    fn trace(state: &str) -> Trace {
        Trace {
            parent: "P".to_owned(),
            state: state.to_owned(),
        }
    }

    fn with(trace: &Trace, text: &str) -> String {
        let message = Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap();
        let mut cuts = trace.cuts(&message);
        cuts.sort_by_key(|(span, _)| span.start());
        let cuts: Vec<_> = cuts.iter().map(|(span, text)| (*span, &**text)).collect();
        let mut out = BytesMut::new();
        message.splice(&mut out, &cuts);
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// A request with these members behind its method.
    fn request(members: &str) -> String {
        format!(r#" {{"jsonrpc":"2.0","id":1,"method":"m"{members}}}"#)
    }

    #[test]
    fn a_context_is_put_wherever_there_is_room() {
        for (before, after) in [
            (
                r#","params":{}"#,
                r#","params":{"_meta":{"traceparent":"P"}}"#,
            ),
            (
                r#","params":{ "a":1}"#,
                r#","params":{"_meta":{"traceparent":"P"}, "a":1}"#,
            ),
            (
                r#","params":{"_meta": { } }"#,
                r#","params":{"_meta": {"traceparent":"P" } }"#,
            ),
            (
                r#","params":{"_meta":{"a":{"traceparent":"Q"}}}"#,
                r#","params":{"_meta":{"traceparent":"P","a":{"traceparent":"Q"}}}"#,
            ),
            (
                r#","params":{"_meta":{"trace\u0070arent":"Q","traceparent":7}}"#,
                r#","params":{"_meta":{"trace\u0070arent":"P","traceparent":"P"}}"#,
            ),
            (r#","params":{"_meta":null}"#, r#","params":{"_meta":null}"#),
        ] {
            assert_eq!(
                with(&trace(""), &request(before)),
                request(after),
                "{before}"
            );
        }
        assert_eq!(
            with(&trace(""), &request("")),
            r#" {"params":{"_meta":{"traceparent":"P"}},"jsonrpc":"2.0","id":1,"method":"m"}"#
        );
    }

    #[test]
    fn a_state_is_added_but_never_replaced() {
        let none = request(r#","params":{}"#);
        let both = r#","params":{"_meta":{"traceparent":"P","tracestate":"a=\"1"}}"#;
        assert_eq!(with(&trace("a=\"1"), &none), request(both));
        let other = request(r#","params":{"_meta":{"tracestate":"b=2"}}"#);
        let kept = r#","params":{"_meta":{"traceparent":"P","tracestate":"b=2"}}"#;
        assert_eq!(with(&trace("a=1"), &other), request(kept));
    }

    proptest! {
        /// Whatever a message holds, what is put into it is what is read, and all else stays.
        #[test]
        fn what_is_put_is_read(
            state in "[ -~]{0,20}",
            meta in proptest::option::of(proptest::collection::btree_map("[a-z]{1,4}|tracestate", "[ -~]{0,5}", 0..3)),
            extra in proptest::collection::btree_map("[b-e]{1,3}", any::<i32>(), 0..3),
        ) {
            let mut params = serde_json::to_value(&extra).unwrap();
            if let Some(meta) = &meta {
                params["_meta"] = serde_json::to_value(meta).unwrap();
            }
            let before = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params});
            let put = with(&trace(&state), &before.to_string());
            let message = Message::parse(Bytes::from(put.clone())).unwrap();
            let found = Trace::of(&message).unwrap();
            prop_assert_eq!(&found.parent, "P");
            let own = meta.as_ref().and_then(|meta| meta.get("tracestate"));
            prop_assert_eq!(&found.state, own.unwrap_or(&state));
            let mut after: serde_json::Value = serde_json::from_str(&put).unwrap();
            let left = after["params"]["_meta"].as_object_mut().unwrap();
            left.remove("traceparent");
            if own.is_none() {
                left.remove("tracestate");
            }
            if meta.is_none() {
                after["params"].as_object_mut().unwrap().remove("_meta");
            }
            prop_assert_eq!(after, before);
        }
    }
}

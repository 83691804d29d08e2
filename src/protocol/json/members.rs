//! Members of objects, texts of strings, and changes of JSON text by splicing.
//!
//! Only the keys and short strings that the gateway compares are decoded.

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

use super::scanner::{Scanner, Span, SyntaxError};

/// The value of `key` in the object `text`, which was scanned before; none for a duplicate key.
pub(crate) fn get<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut found = None;
    let mut scanner = Scanner::new(text);
    scanner
        .object::<SyntaxError>(0, |scanner, name| {
            let value = scanner.value(1)?;
            if is_named(name.of(text), key) {
                if found.is_some() {
                    return Err(SyntaxError("a duplicate key"));
                }
                found = Some(value);
            }
            Ok(())
        })
        .ok()?;
    found.map(|span| span.of(text))
}

/// The members of the object at `object` in a text that was scanned before: keys and values, in
/// order. None for any other value.
pub(crate) fn members(text: &[u8], object: Span) -> Vec<(Span, Span)> {
    let mut found = Vec::new();
    each_member(text, object, |key, value| found.push((key, value)));
    found
}

/// Calls `take` with the key and the value of each member of the object at `object` in a text that was
/// scanned before, in order; never for any other value.
pub(crate) fn each_member(text: &[u8], object: Span, mut take: impl FnMut(Span, Span)) {
    // What was scanned is an object or none from its first byte on.
    let _ = Scanner::new(object.of(text)).object::<SyntaxError>(0, |scanner, key| {
        let value = scanner.value(1)?;
        take(key.behind(object), value.behind(object));
        Ok(())
    });
}

/// The value of a member of the object at `object` in a text that was scanned before.
pub(crate) fn member(text: &[u8], object: Span, name: &str) -> Option<Span> {
    let mut found = None;
    each_member(text, object, |key, value| {
        if found.is_none() && is_named(key.of(text), name) {
            found = Some(value);
        }
    });
    found
}

/// Whether a key (with its quotes) is this name.
pub(crate) fn is_named(key: &[u8], name: &str) -> bool {
    // Most keys are spelled without escapes, and most have another length.
    if key.len() == name.len() + 2 && &key[1..key.len() - 1] == name.as_bytes() {
        return true;
    }
    memchr::memchr(b'\\', key).is_some() && decoded(key).as_deref() == Some(name)
}

/// The characters of a string token (with its quotes) that was scanned before; none for other
/// tokens and for lone surrogates.
pub(crate) fn decoded(token: &[u8]) -> Option<Cow<'_, str>> {
    let inside = token.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inside).is_none() {
        return std::str::from_utf8(inside).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(token).ok().map(Cow::Owned)
}

/// A string token in the spelling of this gateway: all spellings of a string become the same. A
/// token that cannot be decoded is unchanged.
pub(crate) fn canonical(token: &[u8]) -> Box<[u8]> {
    let Some(text) = decoded(token) else {
        return token.into();
    };
    let mut out = BytesMut::with_capacity(token.len());
    push_string(&mut out, &text);
    out[..].into()
}

/// Appends `text` to `out` with each span of `cuts` (ascending, not overlapping) replaced.
pub(crate) fn splice(out: &mut BytesMut, text: &[u8], cuts: &[(Span, &[u8])]) {
    let mut at = 0;
    for (span, replacement) in cuts {
        out.extend_from_slice(text.get(at..span.start()).unwrap_or_default());
        out.extend_from_slice(replacement);
        at = span.end();
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
}

/// Appends the object at `object` in a text that was scanned before, without the members whose names
/// are dropped. Any other value is appended as it is.
pub(crate) fn push_without(
    out: &mut BytesMut,
    text: &[u8],
    object: Span,
    is_dropped: impl Fn(&str) -> bool,
) {
    if !object.of(text).starts_with(b"{") {
        out.extend_from_slice(object.of(text));
        return;
    }
    out.put_u8(b'{');
    push_members(out, text, object, is_dropped);
    out.put_u8(b'}');
}

/// Appends the members of the object at `object` in a text that was scanned before, without those whose names
/// are dropped: behind the brace of an object, or behind a member with a comma.
pub(crate) fn push_members(
    out: &mut BytesMut,
    text: &[u8],
    object: Span,
    is_dropped: impl Fn(&str) -> bool,
) {
    each_member(text, object, |key, value| {
        if decoded(key.of(text)).is_some_and(|name| is_dropped(&name)) {
            return;
        }
        if !matches!(out.last(), None | Some(b'{')) {
            out.put_u8(b',');
        }
        out.extend_from_slice(key.of(text));
        out.put_u8(b':');
        out.extend_from_slice(value.of(text));
    });
}

/// The cut that adds a member to an object that does not have it.
pub(crate) fn with_member(
    text: &[u8],
    object: Span,
    name: &str,
    mut member: Vec<u8>,
) -> Option<(Span, Vec<u8>)> {
    if !object.of(text).starts_with(b"{") {
        return None;
    }
    let (mut is_there, mut is_empty) = (false, true);
    each_member(text, object, |key, _| {
        is_there |= is_named(key.of(text), name);
        is_empty = false;
    });
    if is_there {
        return None;
    }
    if !is_empty {
        member.push(b',');
    }
    Some((object.behind_brace(text), member))
}

/// Appends `text` as a JSON string.
pub(crate) fn push_string(out: &mut BytesMut, text: &str) {
    serde_json::to_writer(out.writer(), text)
        .expect("a string has a JSON form, and the buffer grows");
}

#[cfg(test)]
mod tests {
    use super::super::scanner::{MAX_DEPTH, plain_length};
    use super::*;

    #[test]
    fn a_member_is_taken_out_with_one_comma() {
        for (text, left) in [
            (r#"{"a":1,"task":{"x":[2,3]},"b":4}"#, r#"{"a":1,"b":4}"#),
            (r#"{ "task" : {"x":[2,3]} , "b":4}"#, r#"{  "b":4}"#),
            (r#"{"a":"\"" , "task" : {"x":[2,3]} }"#, r#"{"a":"\""  }"#),
            (r#"{"ta\u0073k":{"x":[2,3]}}"#, "{}"),
            (r#"{"a":"c,","task":{"x":[2,3]}}"#, r#"{"a":"c,"}"#),
        ] {
            let start = text.find(r#"{"x""#).unwrap();
            let value = Span::new(start, start + r#"{"x":[2,3]}"#.len());
            let mut out = BytesMut::new();
            splice(
                &mut out,
                text.as_bytes(),
                &[(value.of_member(text.as_bytes()), b"")],
            );
            assert_eq!(out, left, "{text}");
        }
    }
    use proptest::prelude::*;

    fn check(text: &[u8]) -> Result<(), SyntaxError> {
        std::str::from_utf8(text).map_err(|_| SyntaxError("UTF-8"))?;
        let mut scanner = Scanner::new(text);
        scanner.value(0)?;
        scanner.finish()
    }

    #[test]
    fn accepts_exactly_json() {
        let good = [
            "null",
            " [ ] ",
            "{}",
            "{\"a\":[1,-0,2.5e+3,{\"b\":\"\\u00e9\\n\"}],\"c\":true}",
            "\"\"",
            "[[],[[]],{}]",
            "0",
            "-1.0E-2",
            "{\"a\":0,\"b\":1234567,\"c\":12345678,\"d\":123456789,\"e\":12.5,\"f\":1e5}",
            "{\"seven_b\":1234567,\"eight_by\":\"1234567\",\"nine_byte\":\"12345678\"}",
        ];
        for text in good {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
        let bad = [
            "",
            " ",
            "nul",
            "[1,]",
            "{\"a\":}",
            "{\"a\" 1}",
            "{a:1}",
            "[1 2]",
            "{\"a\":1,}",
            "01",
            "{\"a\":01,\"b\":2222222}",
            "{\"a\":0123456,\"b\":2}",
            "{\"a\":1234567 1,\"b\":2}",
            "{\"a\":1234567:\"b\":2}",
            "{\"a\":12345678.,\"b\":2}",
            "1.",
            ".5",
            "+1",
            "1e",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"open",
            "{} {}",
            "]",
            "[}",
            "{]",
            "\u{feff}{}",
            "[1]x",
            "'a'",
            "NaN",
        ];
        for text in bad {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_the_depth() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(check(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(
            check(&nested(MAX_DEPTH + 1)),
            Err(SyntaxError("nested too deeply"))
        );
        let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert_eq!(check(objects(MAX_DEPTH).as_bytes()), Ok(()));
        assert!(check(objects(MAX_DEPTH + 1).as_bytes()).is_err());
    }

    #[test]
    fn finds_members_by_their_decoded_key() {
        let text = br#"{"x":{"name":1},"n\u0061me":"a\"b","y":2}"#;
        assert_eq!(get(text, "name"), Some(&br#""a\"b""#[..]));
        assert_eq!(get(text, "z"), None);
        assert_eq!(get(br#"{"a":1,"a":2}"#, "a"), None);
        assert_eq!(decoded(br#""a\"b""#).as_deref(), Some("a\"b"));
    }

    #[test]
    fn spellings_of_one_string_are_one() {
        for (token, expected) in [
            (r#""db:\/\/x?a=1\u0026b=2""#, r#""db://x?a=1&b=2""#),
            (r#""db://x?a=1&b=2""#, r#""db://x?a=1&b=2""#),
            (r#""file:///\u00e9\ud83d\ude00""#, "\"file:///é😀\""),
            (r#""\u000a\"\\""#, r#""\n\"\\""#),
            (r#""\ud800""#, r#""\ud800""#),
            ("5", "5"),
        ] {
            assert_eq!(
                *canonical(token.as_bytes()),
                *expected.as_bytes(),
                "{token}"
            );
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn accepts_whatever_serde_json_writes(value in any_json()) {
            prop_assert_eq!(check(value.to_string().as_bytes()), Ok(()));
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(check(pretty.as_bytes()), Ok(()));
        }

        #[test]
        fn agrees_with_serde_json_on_damaged_text(
            value in any_json(),
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(&b"{}[],:\"\\0123eE+-. tfn\x01u"[..]),
        ) {
            let mut text = value.to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            if let Ok(text) = std::str::from_utf8(&text) {
                let serde = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
                prop_assert_eq!(check(text.as_bytes()).is_ok(), serde, "{}", text);
            }
        }

        #[test]
        fn plain_length_is_the_naive_one(text in prop::collection::vec(any::<u8>(), 0..64)) {
            let naive = text.iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count();
            prop_assert_eq!(plain_length(&text), naive);
        }

        #[test]
        fn short_cuts_agree_with_serde_json(
            tokens in prop::collection::vec(
                prop::sample::select(&["1", "0", "234", "0", "5678901234", "-1", ".5", " ", ",", ",", ",",
                    "[", "]", "[[[[[[[[[", "]]]]]]]]]", "[[[[[[[[", "]]]]]]]]", "{\"a\":", "}", "[1,2,3,4,5]"][..]),
                0..40,
            ),
        ) {
            let open = tokens.concat();
            let closed = open.matches('[').count().saturating_sub(open.matches(']').count());
            let text = format!("[{open}{}]", "]".repeat(closed));
            let serde = serde_json::from_str::<serde_json::Value>(&text);
            let too_deep = serde.as_ref().is_err_and(|error| error.to_string().contains("recursion"));
            if !too_deep {
                prop_assert_eq!(check(text.as_bytes()).is_ok(), serde.is_ok(), "{}", text);
            }
        }

        #[test]
        fn arrays_of_integers_agree_with_serde_json(
            items in prop::collection::vec(
                prop::sample::select(&["1,", "23,", "0,", "4567,", "890123456,", "1,", "2,", "3, ", "0", ","][..]),
                0..20,
            ),
        ) {
            let text = format!("[1,{}1]", items.concat());
            let serde = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(check(text.as_bytes()).is_ok(), serde, "{}", text);
        }

        #[test]
        fn the_depth_is_exact(arrays in 0_usize..140, objects in 0_usize..140, inner in 0_usize..140) {
            let text = format!("{}{}{}0{}{}{}", "[".repeat(arrays), "{\"a\":".repeat(objects),
                "[".repeat(inner), "]".repeat(inner), "}".repeat(objects), "]".repeat(arrays));
            let expected = arrays + objects + inner <= MAX_DEPTH;
            prop_assert_eq!(check(text.as_bytes()).is_ok(), expected);
        }

        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&text);
            let _ = get(&text, "a");
        }
    }
}

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
    // With escapes it is longer.
    if key.len() <= name.len() + 2 {
        return false;
    }
    if name.bytes().all(is_plain) {
        return spells(&key[1..key.len() - 1], name);
    }
    memchr::memchr(b'\\', key).is_some() && decoded(key).as_deref() == Some(name)
}

/// Whether the inside of a string token spells a plain name with escapes. Nothing is decoded: a message of 4 MiB has
/// room for hundreds of thousands of such keys.
fn spells(inside: &[u8], name: &str) -> bool {
    let behind = name.bytes().try_fold(inside, |rest, wanted| match rest {
        [b'\\', b'u', digits @ ..] => {
            let (digits, behind) = digits.split_at_checked(4)?;
            let digits = std::str::from_utf8(digits).ok()?;
            let unit = u16::from_str_radix(digits, 16).ok()?;
            (unit == u16::from(wanted)).then_some(behind)
        }
        [b'\\', behind @ ..] => behind.strip_prefix(b"/").filter(|_| wanted == b'/'),
        [found, behind @ ..] => (*found == wanted).then_some(behind),
        [] => None,
    });
    behind.is_some_and(<[u8]>::is_empty)
}

/// Whether a character has no escape but that of its number, and that of `/`.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
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

/// Appends the value at `value` in a text that was scanned before, with the members of each object in the order of
/// their raw keys and without white space between tokens. Of the value itself, if it is an object, the members
/// whose raw keys are dropped are left out.
pub(crate) fn push_sorted(
    out: &mut BytesMut,
    text: &[u8],
    value: Span,
    is_dropped: impl Fn(&[u8]) -> bool,
) {
    let text = value.of(text);
    let (mut scanner, mut sorted) = (Scanner::new(text), Sorted { text, out });
    // What was scanned before is read to its end.
    let _ = if scanner.peek() == Some(b'{') {
        sorted.object(&mut scanner, 0, is_dropped)
    } else {
        sorted.value(&mut scanner, 0)
    };
}

/// Writes a text in the order of its raw keys. It is read once, however deep it is: members that are out of order
/// are moved where they were written.
struct Sorted<'t> {
    text: &'t [u8],
    out: &'t mut BytesMut,
}

impl Sorted<'_> {
    fn value(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), SyntaxError> {
        match scanner.peek() {
            Some(b'{') => self.object(scanner, depth, |_| false),
            Some(b'[') => self.array(scanner, depth),
            _ => {
                let leaf = scanner.value(depth)?;
                self.out.extend_from_slice(leaf.of(self.text));
                Ok(())
            }
        }
    }

    fn array(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), SyntaxError> {
        self.out.put_u8(b'[');
        let begin = self.out.len();
        scanner.array::<SyntaxError>(depth, |scanner| {
            self.separate(begin);
            self.value(scanner, depth + 1)
        })?;
        self.out.put_u8(b']');
        Ok(())
    }

    fn object(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        is_dropped: impl Fn(&[u8]) -> bool,
    ) -> Result<(), SyntaxError> {
        self.out.put_u8(b'{');
        let (begin, mut members) = (self.out.len(), Vec::new());
        scanner.object::<SyntaxError>(depth, |scanner, key| {
            let key = key.of(self.text);
            if is_dropped(key) {
                return scanner.value(depth + 1).map(drop);
            }
            self.separate(begin);
            let start = self.out.len() - begin;
            self.out.extend_from_slice(key);
            self.out.put_u8(b':');
            self.value(scanner, depth + 1)?;
            let whole = Span::new(start, self.out.len() - begin);
            members.push((Span::new(start, start + key.len()), whole));
            Ok(())
        })?;
        self.sort(begin, members);
        self.out.put_u8(b'}');
        Ok(())
    }

    /// Brings the members that were written from `begin` on into the order of their keys; those with the same key
    /// stay in their order. The spans are of the keys and of the members, from there.
    fn sort(&mut self, begin: usize, mut members: Vec<(Span, Span)>) {
        let written = &self.out[begin..];
        if members.is_sorted_by_key(|(key, _)| key.of(written)) {
            return;
        }
        let written = written.to_vec();
        members.sort_by_key(|(key, _)| key.of(&written));
        self.out.truncate(begin);
        for (_, member) in members {
            self.separate(begin);
            self.out.extend_from_slice(member.of(&written));
        }
    }

    /// Appends the comma before what follows others behind `begin`.
    fn separate(&mut self, begin: usize) {
        if self.out.len() > begin {
            self.out.put_u8(b',');
        }
    }
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
    use proptest::prelude::*;

    use super::super::members::*;

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

    #[test]
    fn finds_members_by_their_decoded_key() {
        let text = br#"{"x":{"name":1},"n\u0061me":"a\"b","y":2}"#;
        assert_eq!(get(text, "name"), Some(&br#""a\"b""#[..]));
        assert_eq!(get(text, "z"), None);
        assert_eq!(get(br#"{"a":1,"a":2}"#, "a"), None);
        assert_eq!(decoded(br#""a\"b""#).as_deref(), Some("a\"b"));
    }

    #[test]
    fn members_are_sorted_and_all_else_is_as_it_was() {
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(120), "]".repeat(120));
        for (text, sorted) in [
            (
                r#" { "b" : [ 2.0 , { "d":[ ] , "c" : "x y" } ] , "drop":{"z":1}, "a" : { } } "#,
                r#"{"a":{},"b":[2.0,{"c":"x y","d":[]}]}"#,
            ),
            (
                r#"{"a":{"drop":1,"a":[[],{}]},"a":2,"\u0061":3}"#,
                r#"{"\u0061":3,"a":{"a":[[],{}],"drop":1},"a":2}"#,
            ),
            (r#"{"a":2,"a":1}"#, r#"{"a":2,"a":1}"#),
            (&deep(r#"{"b":1, "a":2}"#), &deep(r#"{"a":2,"b":1}"#)),
            ("[1, {\"b\":0,\"a\":0}]", "[1,{\"a\":0,\"b\":0}]"),
            (" 7 ", "7"),
        ] {
            let mut out = BytesMut::new();
            let is_dropped = |key: &[u8]| is_named(key, "drop");
            push_sorted(
                &mut out,
                text.as_bytes(),
                Span::whole(text.as_bytes()),
                is_dropped,
            );
            assert_eq!(out, sorted, "{text}");
        }
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

    proptest! {
        #[test]
        fn a_name_is_known_in_every_spelling(
            name in "[a-c/ é\\n😀\"]{0,6}",
            other in "[a-c/ é\\n😀\"]{0,6}",
            how in prop::collection::vec(0..3, 6),
        ) {
            let spell = |text: &str| {
                let mut spelled = String::from('"');
                for (character, how) in text.chars().zip(&how) {
                    let mut units = [0; 2];
                    let usual = serde_json::to_string(&character).unwrap();
                    match (how, character) {
                        (0, '/') => spelled.push_str(r"\/"),
                        (0 | 1, _) => {
                            let units = character.encode_utf16(&mut units).iter();
                            spelled.extend(units.map(|unit| format!("\\u{unit:04X}")));
                        }
                        _ => spelled.push_str(&usual[1..usual.len() - 1]),
                    }
                }
                spelled + "\""
            };
            let key = spell(&name);
            prop_assert_eq!(decoded(key.as_bytes()).unwrap(), &*name);
            prop_assert!(is_named(key.as_bytes(), &name));
            prop_assert_eq!(is_named(spell(&other).as_bytes(), &name), other == name);
        }

        #[test]
        fn the_order_of_members_does_not_count(
            members in prop::collection::btree_map("[a-d\"é]{0,3}", "[a-d]{0,3}", 0..8),
            nested in any::<bool>(),
        ) {
            let write = |members: &mut dyn Iterator<Item = (&String, &String)>| {
                let write = |(key, value)| format!("{}:{}", serde_json::json!(key), serde_json::json!(value));
                let text = format!("{{{}}}", members.map(write).collect::<Vec<_>>().join(" , "));
                let text = if nested { format!(r#"{{"x":[0, {text}]}}"#) } else { text };
                let mut out = BytesMut::new();
                push_sorted(&mut out, text.as_bytes(), Span::whole(text.as_bytes()), |_| false);
                (serde_json::from_str::<serde_json::Value>(&text).unwrap(), out)
            };
            let (value, one) = write(&mut members.iter());
            let (_, other) = write(&mut members.iter().rev());
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&one).unwrap(), value);
        }

        #[test]
        fn a_member_of_any_text_is_sought_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = get(&text, "a");
        }
    }
}

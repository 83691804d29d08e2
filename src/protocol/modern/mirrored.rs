//! Values of header fields that mirror the body (2026-07-28 streamable-http, "Value Encoding").

use base64::{Engine, engine::general_purpose::STANDARD};

/// The decoded value of a mirrored header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirrored(String);

impl Mirrored {
    /// Decodes a value; none for one with characters that it may not have.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let encoded = value
            .strip_prefix("=?base64?")
            .and_then(|rest| rest.strip_suffix("?="));
        let Some(encoded) = encoded else {
            let is_visible = |byte: u8| matches!(byte, b'\t' | b' '..=b'~');
            return value
                .bytes()
                .all(is_visible)
                .then(|| Self(value.to_owned()));
        };
        let decoded = STANDARD.decode(encoded).ok()?;
        String::from_utf8(decoded).ok().map(Self)
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `Mcp-Name` mirrors the name or the URI of a request with this method. These are also the
/// requests during which a server may ask its client (2026-07-28 mrtr, "Supported Requests").
pub(crate) fn is_mirrored(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

#[cfg(test)]
mod tests {
    use super::super::mirrored::*;

    #[test]
    fn decodes_the_examples_of_the_specification() {
        for (value, decoded) in [
            ("us-west1", Some("us-west1")),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", Some("Hello, 世界")),
            ("=?base64?IHBhZGRlZCA=?=", Some(" padded ")),
            ("=?base64?bGluZTEKbGluZTI=?=", Some("line1\nline2")),
            (
                "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
                Some("=?base64?literal?="),
            ),
            ("=?BASE64?SGVsbG8=?=", Some("=?BASE64?SGVsbG8=?=")),
            ("=?base64?###?=", None),
            ("=?base64?/w==?=", None),
            ("ü", None),
        ] {
            let found = Mirrored::decode(value.as_bytes());
            assert_eq!(found.as_ref().map(Mirrored::as_str), decoded, "{value}");
        }
    }
}

//! Heads of requests at the gate: what they take, and what is left of those that are refused for them.
//!
//! Not here: whether a request has room, and the answers (`gate`).

use http::{
    HeaderMap,
    header::{CONTENT_LENGTH, COOKIE, ORIGIN},
    request::Parts,
};

use super::body_limit::STREAM_WINDOW;
use crate::http::reply::header_name::{HOP, TRACEPARENT, TRACESTATE};

/// Returns the bytes of header fields, and whether they are too many or too long. Over HTTP/2 hyper limits only the
/// total size.
pub(super) fn measure(headers: &HeaderMap) -> (usize, bool) {
    let mut longest = 0;
    let size = headers.iter().fold(0, |size, (name, value)| {
        longest = longest.max(value.len());
        size + name.as_str().len() + value.len()
    });
    // Over HTTP/2 browsers send each cookie as a field of its own: together they are one (RFC 9113, section 8.2.3).
    let cookies = headers.get_all(COOKIE).iter().count();
    let fields = headers.len() - cookies.saturating_sub(1);
    (size, fields > FIELDS_MAX || longest > FIELD_MAX)
}

/// Returns the bytes of the request line, or of what stands for it over HTTP/2.
pub(super) fn text_of_target(head: &Parts) -> usize {
    let target = head.uri.path_and_query();
    let authority = head.uri.authority();
    let target = target.map_or(0, |target| target.as_str().len());
    let authority = authority.map_or(0, |authority| authority.as_str().len());
    head.method.as_str().len() + target + authority
}

/// Returns the bytes of a body over HTTP/2 that may be here before anybody reads it, whatever the method: of HTTP/1 hyper
/// reads none.
pub(super) fn unread(headers: &HeaderMap) -> usize {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(usize::MAX).min(STREAM_WINDOW as usize)
}

/// Lets go of the header fields of a request that is refused, but for the few that its refusal and its line in the log
/// depend on.
pub(super) fn let_go(head: &mut Parts) {
    let all = std::mem::take(&mut head.headers);
    for name in [HOP, ORIGIN, TRACEPARENT, TRACESTATE] {
        // A second one tells as much as any further one, and a long one is none that counts.
        for value in all.get_all(&name).iter().take(2) {
            if value.len() <= LEFT_MAX {
                head.headers.append(name.clone(), value.clone());
            }
        }
    }
}

/// What a header field takes beside its text: its place in the map of them.
pub(super) const FIELD: usize = 104;
/// Longest header field that is left of a request that is refused for its head.
const LEFT_MAX: usize = 1 << 10;
/// Most header fields.
const FIELDS_MAX: usize = 100;
/// Longest header field; the longest useful one is a token.
const FIELD_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::head::*;

    /// A browser with many cookies was refused over HTTP/2, where it sends each of them apart, and not over HTTP/1.1.
    #[test]
    fn cookies_are_one_field_however_many_they_are() {
        let mut headers = HeaderMap::new();
        for _ in 0..FIELDS_MAX + 50 {
            headers.append(COOKIE, HeaderValue::from_static("a=b"));
        }
        for _ in 1..FIELDS_MAX {
            headers.append("x", HeaderValue::from_static(""));
        }
        let cookies = (FIELDS_MAX + 50) * "cookiea=b".len();
        assert_eq!(measure(&headers), (cookies + FIELDS_MAX - 1, false));
        headers.append("x", HeaderValue::from_static(""));
        assert!(measure(&headers).1, "101 fields");
    }
}

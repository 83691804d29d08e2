//! The header field of a proof.

use http::{HeaderMap, HeaderName};

/// The proof that a request carries (RFC 9449, section 4.3, item 1).
///
/// # Errors
///
/// The reason why it is none, for the client's developer.
pub(crate) fn offered(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut values = headers.get_all(DPOP).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("there is more than one proof");
    }
    let text = first.to_str().map_err(|_| "the proof is no JWT")?;
    Ok(Some(text))
}

const DPOP: HeaderName = HeaderName::from_static("dpop");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::header::*;

    #[test]
    fn a_request_has_one_proof() {
        let mut headers = HeaderMap::new();
        assert_eq!(offered(&headers), Ok(None));
        headers.append("DPoP", HeaderValue::from_static("a.b.c"));
        assert_eq!(offered(&headers), Ok(Some("a.b.c")));
        headers.append("DPoP", HeaderValue::from_static("a.b.c"));
        assert_eq!(offered(&headers), Err("there is more than one proof"));
        headers.insert("DPoP", HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(offered(&headers).is_err());
    }
}

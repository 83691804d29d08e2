//! Credentials of a request: bearer tokens (RFC 6750), and tokens that are bound to a key (RFC 9449, section 7.1).
//!
//! Not here: their verification (`auth`), and challenges (`challenge`).

use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};

use crate::{
    auth::{Credential, dpop::offered},
    http::reply::McpRefusal,
};

/// Reads the credential of a request from its header, never from query or body (2025-11-25
/// authorization, "Token Requirements").
pub(crate) fn credential(headers: &HeaderMap) -> Result<Credential<'_>, McpRefusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (first, more) = (values.next(), values.next());
    if more.is_some() {
        let text = "Authorization is repeated";
        return Err(McpRefusal::http(StatusCode::BAD_REQUEST, text));
    }
    let Some(value) = first else {
        return Ok(Credential::None);
    };
    let Some((scheme, token)) = split(value) else {
        return Ok(Credential::None);
    };
    let is_bound = scheme.eq_ignore_ascii_case("dpop");
    if !is_bound && !scheme.eq_ignore_ascii_case("bearer") {
        // Other schemes are not supported.
        return Ok(Credential::None);
    }
    // b64token (RFC 6750, section 2.1)
    let is_token = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
    };
    if token.is_empty() || !token.bytes().all(is_token) {
        return Ok(Credential::Malformed);
    }
    if is_bound {
        let proof = match offered(headers) {
            Ok(proof) => proof.ok_or("there is no proof"),
            Err(why) => Err(why),
        };
        return Ok(Credential::Bound { token, proof });
    }
    Ok(Credential::Bearer(token))
}

/// Splits a value into its scheme and the text behind the spaces.
fn split(value: &HeaderValue) -> Option<(&str, &str)> {
    let text = value.to_str().ok()?;
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some((scheme, rest.trim_matches(' ')))
}

#[cfg(test)]
mod tests {
    use super::super::bearer::*;

    fn read(values: &[&'static [u8]]) -> Result<String, ()> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        let credential = credential(&headers).map_err(drop)?;
        Ok(format!("{credential:?}"))
    }

    #[test]
    fn only_two_schemes_count() {
        let bearer = "Bearer(\"abc\")";
        for (value, wanted) in [
            (&b"Bearer abc"[..], bearer),
            (b"bearer abc", bearer),
            (b"BEARER  abc ", bearer),
            (b"Bearer a.b-c_d~e+f/g==", "Bearer(\"a.b-c_d~e+f/g==\")"),
            (b"Bearer", "Malformed"),
            (b"Bearer ", "Malformed"),
            (b"Bearer a b", "Malformed"),
            (b"Bearer a,b", "Malformed"),
            (b"Bearer \"abc\"", "Malformed"),
            (b"Basic abc", "None"),
            (b"abc", "None"),
            (b"", "None"),
            (b"Bearer\xff abc", "None"),
            (b"DPoP", "Malformed"),
            (b"DPoP a b", "Malformed"),
            (
                b"dpop abc",
                "Bound { token: \"abc\", proof: Err(\"there is no proof\") }",
            ),
        ] {
            assert_eq!(read(&[value]).unwrap(), wanted, "{value:?}");
        }
        assert_eq!(read(&[]).unwrap(), "None");
        assert!(read(&[b"Bearer abc", b"Bearer abc"]).is_err());
        assert!(read(&[b"Bearer abc", b"Basic abc"]).is_err());
        assert!(read(&[b"Bearer abc", b"DPoP abc"]).is_err());
    }
}

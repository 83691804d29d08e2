//! Bearer credentials in a request, and what somebody without good ones is told (RFC 6750).
//!
//! Not here: what credentials are worth (`auth`).

use axum::response::{IntoResponse, Response};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};

use super::{
    reply::Failure,
    wellknown::{self, Endpoint},
};
use crate::{auth::Credential, declare::Tenant};

/// What a request carries to show who calls: the header, and nothing of query or body (2025-11-25
/// authorization, "Token Requirements").
pub(crate) fn credential(headers: &HeaderMap) -> Result<Credential<'_>, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (first, more) = (values.next(), values.next());
    if more.is_some() {
        let text = "Authorization is repeated";
        return Err(Failure::http(StatusCode::BAD_REQUEST, text));
    }
    let Some(value) = first else {
        return Ok(Credential::None);
    };
    let Some((scheme, token)) = split(value) else {
        // Another scheme proves nothing here.
        return Ok(Credential::None);
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Credential::None);
    }
    // b64token (RFC 6750, section 2.1)
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if token.is_empty() || !token.bytes().all(is_token) {
        return Ok(Credential::Malformed);
    }
    Ok(Credential::Bearer(token))
}

/// The scheme of a value, and what follows the blanks behind it.
fn split(value: &HeaderValue) -> Option<(&str, &str)> {
    let text = value.to_str().ok()?;
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some((scheme, rest.trim_matches(' ')))
}

/// C1: how to get credentials, and whether those that came are good for nothing.
pub(crate) fn unauthorized(
    public_url: &str,
    endpoint: &Endpoint<'_>,
    tenant: &Tenant,
    had_token: bool,
) -> Response {
    let mut members = Vec::new();
    if had_token {
        members.push("error=\"invalid_token\"".to_owned());
    }
    if tenant.auth.has_issuer() {
        let url = wellknown::metadata_url(public_url, endpoint);
        members.push(format!("resource_metadata=\"{url}\""));
        let scopes = wellknown::scopes(tenant, endpoint.server).join(" ");
        if !scopes.is_empty() {
            members.push(format!("scope=\"{scopes}\""));
        }
    }
    let mut challenge = "Bearer".to_owned();
    for (at, member) in members.iter().enumerate() {
        challenge.push_str(if at == 0 { " " } else { ", " });
        challenge.push_str(member);
    }
    let text = "credentials are needed, or are not good here";
    let mut response = Failure::http(StatusCode::UNAUTHORIZED, text).into_response();
    // Paths are plain here, and scopes are tokens: the value is always well-formed.
    if let Ok(challenge) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
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
    fn only_bearer_credentials_count() {
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
        ] {
            assert_eq!(read(&[value]).unwrap(), wanted, "{value:?}");
        }
        assert_eq!(read(&[]).unwrap(), "None");
        assert!(read(&[b"Bearer abc", b"Bearer abc"]).is_err());
        assert!(read(&[b"Bearer abc", b"Basic abc"]).is_err());
    }
}

//! The `WWW-Authenticate` field: what a client lacks and where it gets it (CONTRACT C1, C2).

use http::HeaderValue;

/// Challenges a caller whose token lacks scopes (RFC 6750, section 3.1; 2025-11-25 authorization,
/// "Runtime Insufficient Scope Errors"); `scopes` are all that it should have. Without metadata
/// there is no authorization server that could give out more.
pub(crate) fn insufficient_scope(
    resource_metadata: Option<&str>,
    scopes: &[String],
) -> HeaderValue {
    // A token's scopes are its issuer's text: what is no `scope-token` would end the quotes.
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    let fitting = scopes
        .iter()
        .filter(|scope| scope.bytes().all(fits))
        .map(String::as_str);
    let scopes = fitting.collect::<Vec<_>>().join(" ");
    let mut text = format!(r#"Bearer error="insufficient_scope", scope="{scopes}""#);
    if let Some(url) = resource_metadata {
        text.push_str(&format!(r#", resource_metadata="{url}""#));
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(BARE))
}

/// For a URL that is none.
const BARE: &str = r#"Bearer error="insufficient_scope""#;

#[cfg(test)]
mod tests {
    use super::super::challenge::*;

    #[test]
    fn names_all_scopes_and_only_scopes() {
        let scopes = ["files:read", "a\", realm=\"x", "a\\b", "ü", "files:write"];
        let scopes = scopes.map(str::to_owned);
        let challenge = insufficient_scope(
            Some("https://g/.well-known/oauth-protected-resource"),
            &scopes,
        );
        assert_eq!(
            challenge,
            r#"Bearer error="insufficient_scope", scope="files:read files:write", resource_metadata="https://g/.well-known/oauth-protected-resource""#
        );
        assert_eq!(insufficient_scope(Some("a\nb"), &scopes), BARE);
    }
}

//! `WWW-Authenticate` challenges (RFC 6750; RFC 9449, section 7.1), with metadata and scopes.

use http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE};

use crate::{
    auth::{Rejected, dpop::PROOF_ALGORITHMS},
    declare::Tenant,
    endpoint::Endpoint,
    http::reply::McpRefusal,
};

/// Makes a 401. It tells where to get credentials, and whether the credential of the request was refused.
pub(crate) fn unauthorized(
    public_url: &str,
    endpoint: &Endpoint<'_>,
    tenant: &Tenant,
    rejected: Rejected,
) -> McpRefusal {
    let text = "credentials are needed, or are not good here";
    let refused = McpRefusal::http(StatusCode::UNAUTHORIZED, text);
    let bearer_error = (rejected == Rejected::Bearer).then_some("invalid_token");
    if !tenant.auth.has_issuer() {
        // The scheme is never alone (RFC 6750, section 3), and there is no metadata to name.
        let error = match rejected {
            Rejected::Nothing => "",
            _ => ", error=\"invalid_token\"",
        };
        return with(refused, format!("Bearer realm=\"{REALM}\"{error}"));
    }
    let url = endpoint.metadata_url(public_url);
    let challenge = |scheme: &str, error: Option<&str>, more: [Option<String>; 2]| {
        let [before, behind] = more;
        let mut members = Vec::new();
        members.extend(error.map(|error| format!("error=\"{error}\"")));
        members.extend(before);
        members.push(format!("resource_metadata=\"{url}\""));
        members.extend(behind);
        format!("{scheme} {}", members.join(", "))
    };
    // First, since there are clients that read one challenge alone, and with the scopes alone, since the head of an answer
    // has little room. The metadata names them, too.
    let scopes = named(&baseline_scopes(tenant, endpoint.server));
    let refused = with(refused, challenge("Bearer", bearer_error, [None, scopes]));
    let algorithms = format!("algs=\"{}\"", PROOF_ALGORITHMS.join(" "));
    let (error, more) = match rejected {
        Rejected::Nothing | Rejected::Bearer => (None, algorithms),
        Rejected::Bound => (Some("invalid_token"), algorithms),
        Rejected::Proof(why) => (
            Some("invalid_dpop_proof"),
            format!("error_description=\"{why}\", {algorithms}"),
        ),
    };
    with(refused, challenge("DPoP", error, [Some(more), None]))
}

/// Adds a challenge. Paths are canonical, scopes are tokens and reasons plain, so the value is always well-formed.
fn with(refused: McpRefusal, challenge: String) -> McpRefusal {
    match HeaderValue::try_from(challenge) {
        Ok(challenge) => refused.with(WWW_AUTHENTICATE, challenge),
        Err(_) => refused,
    }
}

/// Returns the scopes that metadata and the first challenge name for a server.
pub(crate) fn baseline_scopes<'t>(tenant: &'t Tenant, server: &str) -> Vec<&'t str> {
    let mut scopes = tenant.baseline_scopes(tenant.servers.get(server));
    scopes.retain(|scope| *scope != OFFLINE_ACCESS);
    scopes
}

/// Makes the parameter that names scopes; none if there are none, or more than fit into the head of an answer.
fn named(scopes: &[&str]) -> Option<String> {
    let scopes = scopes.join(" ");
    let fits = (1..=SCOPES_MAX).contains(&scopes.len());
    fits.then(|| format!("scope=\"{scopes}\""))
}

/// Makes the challenge for a token that lacks scopes (RFC 6750, section 3.1; 2025-11-25
/// authorization, "Runtime Insufficient Scope Errors"). `scopes` are all scopes that the token needs.
/// Metadata is absent if no authorization server could grant more.
pub(crate) fn insufficient_scope(
    resource_metadata: Option<&str>,
    scopes: &[String],
    is_bound: bool,
) -> HeaderValue {
    // Scopes of a token are the issuer's text, and one that is no `scope-token` would end the quotes.
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    let valid = scopes
        .iter()
        .filter(|scope| scope.bytes().all(is_allowed) && *scope != OFFLINE_ACCESS)
        .map(String::as_str);
    let scopes = named(&valid.collect::<Vec<_>>());
    // That of the request (RFC 9449, section 7.1).
    let scheme = if is_bound { "DPoP" } else { "Bearer" };
    let mut text = format!(r#"{scheme} error="insufficient_scope""#);
    if let Some(scopes) = scopes {
        text.push_str(", ");
        text.push_str(&scopes);
    }
    if let Some(url) = resource_metadata {
        text.push_str(&format!(r#", resource_metadata="{url}""#));
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(BARE))
}

/// The protection space of API keys (RFC 9110, section 11.5): the gateway, since one key may be for many servers.
pub(crate) const REALM: &str = "lockgate";

/// A scope that concerns only the client and its issuer, which no challenge names (2025-11-25 authorization,
/// "Refresh Tokens").
const OFFLINE_ACCESS: &str = "offline_access";

/// Longest list of scopes in the challenges of an answer, which need none (RFC 6750, section 3). Load balancers take 4 KiB
/// for the whole head, and give the client a 502 in place of a longer one.
const SCOPES_MAX: usize = 2 << 10;

/// Fallback if the text is no header value.
const BARE: &str = r#"Bearer error="insufficient_scope""#;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::response::IntoResponse;
    use serde_json::json;

    use super::*;
    use crate::{config::Format, endpoint::Kind, manifest::reader::parse};

    #[test]
    fn names_all_scopes_and_only_scopes() {
        let scopes = [
            "files:read",
            "a\", realm=\"x",
            "a\\b",
            "ü",
            "offline_access",
            "files:write",
        ];
        let scopes = scopes.map(str::to_owned);
        let challenge = insufficient_scope(
            Some("https://g/.well-known/oauth-protected-resource"),
            &scopes,
            false,
        );
        assert_eq!(
            challenge,
            r#"Bearer error="insufficient_scope", scope="files:read files:write", resource_metadata="https://g/.well-known/oauth-protected-resource""#
        );
        assert_eq!(insufficient_scope(Some("a\nb"), &scopes, false), BARE);
    }

    /// It was longer than another replica takes, and ended the connection between the two.
    #[test]
    fn scopes_beyond_a_header_field_are_not_named() {
        let of = |length: usize| {
            let scopes = ["a".repeat(length - 2), "b".to_owned()];
            insufficient_scope(None, &scopes, true)
        };
        let most = of(SCOPES_MAX);
        assert!(most.to_str().unwrap().ends_with(" b\""));
        assert_eq!(of(SCOPES_MAX + 1), r#"DPoP error="insufficient_scope""#);
        assert_eq!(named(&[]), None);
        assert_eq!(named(&["a", "b"]).as_deref(), Some("scope=\"a b\""));
        assert_eq!(named(&vec!["a"; SCOPES_MAX]), None);
    }

    /// Scopes of 8 KiB were in both challenges: a head that Node and nginx do not take, so that its client saw no 401.
    #[test]
    fn the_head_of_a_401_with_two_challenges_stays_short() {
        let at = Endpoint::new("a", "x", Kind::Mcp);
        let of = |length: usize| {
            let scopes = ["a".repeat(length - 2), "b".to_owned()];
            let auth = json!({"mode": "external", "issuer": "https://i.test", "scopes": scopes});
            let tenant = json!({"auth": auth, "servers": {"x": {"command": "cat"}}});
            let text = json!({"tenants": {"a": tenant}}).to_string();
            let read = parse("F", &text, Format::Json, &BTreeMap::new()).unwrap();
            let tenant = &read.catalog.tenants["a"];
            let refused = unauthorized("https://g.test", &at, tenant, Rejected::Nothing);
            let refused = refused.into_response();
            let all = refused.headers().get_all(WWW_AUTHENTICATE).iter();
            let all = all.map(|one| one.to_str().unwrap().to_owned());
            <[String; 2]>::try_from(all.collect::<Vec<_>>()).unwrap()
        };
        let [bearer, dpop] = of(SCOPES_MAX);
        assert!(bearer.starts_with("Bearer ") && bearer.ends_with(" b\""));
        assert!(dpop.starts_with("DPoP ") && !dpop.contains("scope="));
        assert!(bearer.len() + dpop.len() < 3 << 10);
        let [bearer, _] = of(SCOPES_MAX + 1);
        assert!(!bearer.contains("scope="));
    }

    #[test]
    fn clients_begin_with_the_scopes_of_the_tenant_and_of_every_tool() {
        let text = "
tenants:
  a:
    auth: {mode: external, issuer: 'https://i.test', scopes: [base, offline_access, w]}
    servers:
      x: {command: cat, policy: {scopes: {'*': [w, r, offline_access], 'b_*': [admin]}}}
      y: {command: cat, policy: {scopes: {'b_*': [admin], '?*': [r]}}}
  b: {auth: {mode: keys}, servers: {x: {command: cat, policy: {scopes: {'*': [w]}}}}}
";
        let read = parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap();
        let of =
            |tenant: &str, server| baseline_scopes(&read.catalog.tenants[tenant], server).join(" ");
        assert_eq!(of("a", "x"), "base w r");
        assert_eq!(of("a", "y"), "base w");
        assert_eq!(of("a", "z"), "base w");
        assert_eq!(of("b", "x"), "");
    }
}

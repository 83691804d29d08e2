//! Protected resource metadata (RFC 9728): one document for each URL by which a server is reached.
//!
//! Whether a server of a tenant exists is nobody's business before they have proved who they are:
//! each name has its document. One whose calls need scopes shows itself by them: clients must know
//! what to ask for.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, Uri,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use url::Url;

use super::reply::Failure;
use crate::http::Front;
use crate::{
    config::Config,
    declare::{AuthMode, Tenant, issuer},
    error::Error,
};

/// Where documents about a resource are (RFC 9728, section 3).
pub(crate) const PROTECTED_RESOURCE: &str = "/.well-known/oauth-protected-resource";

/// An MCP endpoint by its path below the public URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint<'p> {
    /// The path before `/mcp`, `/sse` or `/messages`: empty, or `/t/{tenant}/{server}`.
    pub(crate) base: &'p str,
    /// The tenant that it means.
    pub(crate) tenant: &'p str,
    /// The server that it means.
    pub(crate) server: &'p str,
    /// `mcp`, `sse` or `messages`.
    pub(crate) kind: &'static str,
}

impl<'p> Endpoint<'p> {
    /// The endpoint at `path`; without names it is that of `default`.
    pub(crate) fn at(path: &'p str, default: Option<&'p (String, String)>) -> Option<Self> {
        let (base, kind) = path.rsplit_once('/')?;
        let kind = KINDS.into_iter().find(|known| *known == kind)?;
        let (tenant, server) = if base.is_empty() {
            let (tenant, server) = default?;
            (tenant.as_str(), server.as_str())
        } else {
            base.strip_prefix("/t/")?.split_once('/')?
        };
        // Longer ones, and those with more parts, are nobody's name.
        let is_name = |text: &str| (1..=63).contains(&text.len()) && !text.contains('/');
        (is_name(tenant) && is_name(server)).then_some(Self {
            base,
            tenant,
            server,
            kind,
        })
    }

    /// The path of the resource that it belongs to: `/messages` is a part of `/sse`.
    fn resource_path(&self) -> String {
        let kind = if self.kind == "messages" {
            "sse"
        } else {
            self.kind
        };
        format!("{}/{kind}", self.base)
    }
}

/// The URL of the metadata of an endpoint: its path goes behind the well-known one (RFC 9728,
/// section 3.1), so that the path of a public URL moves too.
pub(crate) fn metadata_url(public_url: &str, endpoint: &Endpoint<'_>) -> String {
    let (origin, path) = split(public_url);
    format!(
        "{origin}{PROTECTED_RESOURCE}{path}{}",
        endpoint.resource_path()
    )
}

/// A public URL as its origin and its path, both without a slash at the end.
fn split(public_url: &str) -> (&str, &str) {
    let path = Url::parse(public_url).map_or(0, |url| url.path().trim_end_matches('/').len());
    public_url.split_at(public_url.len() - path)
}

/// The issuer of a tenant's access tokens, which metadata names; none where there is none.
pub(crate) fn issuer(config: &Config, tenant: &Tenant) -> Option<String> {
    match &tenant.auth {
        AuthMode::None | AuthMode::Keys => None,
        AuthMode::External(external) => Some(external.issuer.clone()),
        AuthMode::Builtin(_) => {
            let default = config.default.as_ref();
            Some(issuer::issuer(&config.public_url, default, &tenant.name))
        }
    }
}

/// The scopes that a client of a server is told to ask for, in metadata and challenges alike: those
/// of `auth`, then those that calls of the server's tools need. `offline_access` is between a client
/// and its issuer (2025-11-25 authorization, "Refresh Tokens").
pub(crate) fn scopes<'t>(tenant: &'t Tenant, server: &str) -> Vec<&'t str> {
    let told: &[String] = match &tenant.auth {
        AuthMode::None | AuthMode::Keys => return Vec::new(),
        AuthMode::External(external) => &external.scopes,
        AuthMode::Builtin(builtin) => &builtin.scopes,
    };
    let server = tenant.servers.get(server);
    let needed = server.map(|server| server.policy.all_scopes());
    let needed = needed.unwrap_or_default();
    let mut all: Vec<&str> = Vec::new();
    for scope in told.iter().chain(needed) {
        if scope != "offline_access" && !all.contains(&scope.as_str()) {
            all.push(scope);
        }
    }
    all
}

/// GET: the document about the resource whose path follows.
pub(crate) async fn protected_resource(State(front): State<Arc<Front>>, uri: Uri) -> Response {
    document(&front, uri.path()).unwrap_or_else(|| Failure::from(Error::NoServer).into_response())
}

fn document(front: &Front, path: &str) -> Option<Response> {
    let public_url = front.config.public_url.as_str();
    let (_, prefix) = split(public_url);
    let path = path
        .strip_prefix(PROTECTED_RESOURCE)?
        .strip_prefix(prefix)?;
    let endpoint = Endpoint::at(path, front.config.default.as_ref())?;
    if endpoint.kind == "messages" {
        return None;
    }
    let tenant = front.live.current().tenants.get(endpoint.tenant).cloned()?;
    let issuer = issuer(&front.config, &tenant)?;
    let mut document = serde_json::json!({
        "resource": format!("{public_url}{path}"),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    });
    let scopes = scopes(&tenant, endpoint.server);
    if !scopes.is_empty() {
        document["scopes_supported"] = scopes.into();
    }
    let mut response = Response::new(Body::from(document.to_string()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    Some(response)
}

const KINDS: [&str; 3] = ["mcp", "sse", "messages"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::wellknown::*;
    use crate::{config::Format, manifest::reader::parse};

    #[test]
    fn endpoints_are_named_by_their_paths() {
        let default = ("t".to_owned(), "s".to_owned());
        let at = |path| {
            let found = Endpoint::at(path, Some(&default))?;
            Some((found.tenant.to_owned(), found.server.to_owned(), found.kind))
        };
        let of =
            |tenant: &str, server: &str, kind| Some((tenant.to_owned(), server.to_owned(), kind));
        assert_eq!(at("/t/a/x/mcp"), of("a", "x", "mcp"));
        assert_eq!(at("/t/a/x/messages"), of("a", "x", "messages"));
        assert_eq!(at("/sse"), of("t", "s", "sse"));
        let long = format!("/t/a/{}/mcp", "x".repeat(64));
        for path in [
            "",
            "/",
            "mcp",
            "/t/a/mcp",
            "/t/a/x/y/mcp",
            "/t//x/mcp",
            "/u/a/x/mcp",
            "/t/a/x/mcp/",
            "/t/a/x/MCP",
            &long,
        ] {
            assert_eq!(at(path), None, "{path}");
        }
        assert_eq!(Endpoint::at("/mcp", None), None);
    }

    #[test]
    fn scopes_are_those_of_the_tenant_and_of_the_server_that_is_called() {
        let text = "
tenants:
  a:
    auth: {mode: external, issuer: 'https://i.test', scopes: [base, offline_access, w]}
    servers:
      x: {command: cat, policy: {scopes: {'b_*': [w, r], 'a_*': [offline_access, r]}}}
      y: {command: cat}
  b: {auth: {mode: keys}, servers: {x: {command: cat, policy: {scopes: {'*': [w]}}}}}
";
        let read = parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap();
        let of = |tenant: &str, server| scopes(&read.catalog.tenants[tenant], server).join(" ");
        assert_eq!(of("a", "x"), "base w r");
        assert_eq!(of("a", "y"), "base w");
        assert_eq!(of("a", "z"), "base w");
        assert_eq!(of("b", "x"), "");
    }

    #[test]
    fn metadata_lies_below_the_origin() {
        let url = |public_url, path| metadata_url(public_url, &Endpoint::at(path, None).unwrap());
        assert_eq!(
            url("https://gw.test", "/t/a/x/mcp"),
            "https://gw.test/.well-known/oauth-protected-resource/t/a/x/mcp"
        );
        assert_eq!(
            url("https://gw.test:8443/mcp/v1", "/t/a/x/messages"),
            "https://gw.test:8443/.well-known/oauth-protected-resource/mcp/v1/t/a/x/sse"
        );
    }
}

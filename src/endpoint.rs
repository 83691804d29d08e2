//! Endpoints and their URLs: the only place that builds or parses the paths of MCP endpoints, of
//! authorization servers and of their well-known documents.
//!
//! All paths lie below the path of the public URL, which a proxy removes. Pure; not here: the lookup
//! of tenants and servers.

use std::{borrow::Cow, iter};

use url::Url;

/// Tenant and server of the alias paths (`[default]`).
pub(crate) type Default<'p> = Option<&'p (String, String)>;

/// What the URLs of a request begin with: the public URL, or the URL of a tenant's own host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'s> {
    /// The common prefix of all URLs.
    pub(crate) url: &'s str,
    /// Tenant and server that also have short URLs.
    pub(crate) default: Default<'s>,
    /// The only tenant that it has.
    only: Option<&'s str>,
}

/// The URL of a host of a tenant: its only tenant has the short URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantHost {
    url: String,
    /// The tenant, and the server behind `/mcp`; empty if none is.
    default: (String, String),
}

impl TenantHost {
    /// The URL of this host and port, with the scheme of the public URL.
    pub(crate) fn new(
        public_url: &str,
        (host, port): (&str, u16),
        (tenant, server): (&str, &str),
    ) -> Self {
        let scheme = public_url.split("://").next().unwrap_or("https");
        let port = if port == Self::default_port(public_url) {
            String::new()
        } else {
            format!(":{port}")
        };
        Self {
            url: format!("{scheme}://{host}{port}"),
            default: (tenant.to_owned(), server.to_owned()),
        }
    }

    /// The port of URLs with the scheme of the public URL that name none.
    pub(crate) fn default_port(public_url: &str) -> u16 {
        if public_url.starts_with("http:") {
            80
        } else {
            443
        }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Its host, with the port where the URL has one.
    pub(crate) fn authority(&self) -> &str {
        self.url.split_once("://").map_or("", |(_, host)| host)
    }
}

impl<'s> Site<'s> {
    /// The site of a request to the gateway's public URL, or to the host of a tenant.
    pub(crate) fn of(
        public_url: &'s str,
        default: Default<'s>,
        host: Option<&'s TenantHost>,
    ) -> Self {
        match host {
            Some(host) => Self {
                url: &host.url,
                default: Some(&host.default),
                only: Some(&host.default.0),
            },
            None => Self {
                url: public_url,
                default,
                only: None,
            },
        }
    }

    /// Whether there is a server with short URLs.
    pub(crate) fn has_short_urls(&self) -> bool {
        self.default.is_some_and(|(_, server)| !server.is_empty())
    }

    /// Whether this tenant is reached here.
    pub(crate) fn has(&self, tenant: &str) -> bool {
        self.only.is_none_or(|only| only == tenant)
    }

    /// The endpoint with this path, of a tenant that is reached here.
    pub(crate) fn endpoint<'p>(&self, path: &'p str) -> Option<Endpoint<'p>>
    where
        's: 'p,
    {
        let endpoint = Endpoint::parse(path, self.default)?;
        self.has(endpoint.tenant).then_some(endpoint)
    }

    /// The endpoint with this URL.
    pub(crate) fn endpoint_at<'p>(&self, url: &'p str) -> Option<Endpoint<'p>>
    where
        's: 'p,
    {
        let endpoint = Endpoint::parse_url(self.url, url, self.default)?;
        self.has(endpoint.tenant).then_some(endpoint)
    }

    /// The resource whose metadata have this path.
    pub(crate) fn of_metadata<'p>(&self, path: &'p str) -> Option<Endpoint<'p>>
    where
        's: 'p,
    {
        let endpoint = Endpoint::of_metadata(path, self.url, self.default)?;
        self.has(endpoint.tenant).then_some(endpoint)
    }

    /// The issuer of a tenant's tokens.
    pub(crate) fn issuer(&self, tenant: &str) -> String {
        issuer(self.url, self.default, tenant)
    }

    /// The tenant whose issuer has metadata at this path.
    pub(crate) fn issuer_tenant<'p>(&self, path: &'p str) -> Option<&'p str>
    where
        's: 'p,
    {
        issuer_tenant(path, self.url, self.default).filter(|tenant| self.has(tenant))
    }

    /// The tenant of the path of an authorization server.
    pub(crate) fn oauth_tenant<'p>(&self, path: &'p str) -> Option<&'p str>
    where
        's: 'p,
    {
        oauth_tenant(path, self.default).filter(|tenant| self.has(tenant))
    }
}

/// Kind of an MCP endpoint, by the last segment of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Streamable HTTP.
    Mcp,
    /// Event stream of HTTP+SSE.
    Sse,
    /// Messages of a client of HTTP+SSE.
    Messages,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Mcp, Self::Sse, Self::Messages];

    /// Returns the last segment of the path.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Sse => "sse",
            Self::Messages => "messages",
        }
    }

    /// Returns the methods, in the form of `Allow`.
    pub(crate) const fn methods(self) -> &'static str {
        match self {
            Self::Mcp => "GET, POST, DELETE",
            Self::Sse => "GET",
            Self::Messages => "POST",
        }
    }

    /// Returns the path of the default server's endpoint.
    pub(crate) fn alias(self) -> String {
        format!("/{}", self.name())
    }

    /// Returns the kind of a path that is an alias or lies below `/t/`. Only the last segment is
    /// parsed.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let (parent, name) = path.rsplit_once('/')?;
        let is_endpoint = parent.is_empty() || parent.starts_with(TENANTS);
        Self::named(name).filter(|_| is_endpoint)
    }

    /// Returns the kind of the endpoint with this path. Its names are not checked.
    pub(crate) fn served(path: &str) -> Option<Self> {
        match parts(path) {
            Some((_, _, kind)) => Some(kind),
            None => Self::named(path.strip_prefix('/')?),
        }
    }

    /// Returns the pattern of such a path, for the names of spans.
    pub(crate) fn route(path: &str) -> Option<&'static str> {
        let is_alias = !path.starts_with(TENANTS);
        Some(match (Self::of(path)?, is_alias) {
            (Self::Mcp, true) => "/mcp",
            (Self::Mcp, false) => "/t/{tenant}/{server}/mcp",
            (Self::Sse, true) => "/sse",
            (Self::Sse, false) => "/t/{tenant}/{server}/sse",
            (Self::Messages, true) => "/messages",
            (Self::Messages, false) => "/t/{tenant}/{server}/messages",
        })
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An MCP endpoint of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint<'p> {
    /// Name of the tenant.
    pub(crate) tenant: &'p str,
    /// Name of the server.
    pub(crate) server: &'p str,
    /// Kind of the endpoint.
    pub(crate) kind: Kind,
    /// Form of the path.
    pub(crate) form: Form,
}

/// Form of the path of an MCP endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `/t/{tenant}/{server}/{kind}`
    Named,
    /// `/{kind}`, of the default server.
    Alias,
}

impl<'p> Endpoint<'p> {
    /// Makes the endpoint with the path `/t/{tenant}/{server}/{kind}`.
    pub(crate) const fn new(tenant: &'p str, server: &'p str, kind: Kind) -> Self {
        let form = Form::Named;
        Self {
            tenant,
            server,
            kind,
            form,
        }
    }

    /// Parses a path; an alias names `default`.
    pub(crate) fn parse(path: &'p str, default: Default<'p>) -> Option<Self> {
        let endpoint = if path.starts_with(TENANTS) {
            let (tenant, server, kind) = parts(path)?;
            Self::new(tenant, server, kind)
        } else {
            let kind = Kind::named(path.strip_prefix('/')?)?;
            let (tenant, server) = default?;
            let form = Form::Alias;
            Self {
                tenant,
                server,
                kind,
                form,
            }
        };
        // No name is longer.
        let is_name = |text: &str| (1..=63).contains(&text.len());
        (is_name(endpoint.tenant) && is_name(endpoint.server)).then_some(endpoint)
    }

    /// Parses a URL below the public URL, in any of its spellings.
    pub(crate) fn parse_url(public_url: &str, url: &'p str, default: Default<'p>) -> Option<Self> {
        let path = spellings(public_url).find_map(|own| url.strip_prefix(&*own));
        Self::parse(path?, default)
    }

    /// Returns the endpoint of another kind of the same server, in the same form.
    pub(crate) const fn with(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the resource of access tokens: messages belong to the event stream.
    pub(crate) const fn resource(self) -> Self {
        match self.kind {
            Kind::Mcp | Kind::Sse => self,
            Kind::Messages => self.with(Kind::Sse),
        }
    }

    /// Returns whether this endpoint is a resource of access tokens.
    pub(crate) const fn is_resource(self) -> bool {
        matches!(self.kind, Kind::Mcp | Kind::Sse)
    }

    /// Builds the path.
    pub(crate) fn path(&self) -> String {
        let (tenant, server, kind) = (self.tenant, self.server, self.kind.name());
        match self.form {
            Form::Named => format!("{TENANTS}{tenant}/{server}/{kind}"),
            Form::Alias => self.kind.alias(),
        }
    }

    /// Builds the URL.
    pub(crate) fn url(&self, public_url: &str) -> String {
        format!("{public_url}{}", self.path())
    }

    /// Builds the URL of the protected resource metadata. The path of the resource follows the
    /// well-known path (RFC 9728, section 3.1) and includes the path of the public URL.
    pub(crate) fn metadata_url(&self, public_url: &str) -> String {
        let (origin, base) = split(public_url);
        let path = self.resource().path();
        format!("{origin}{PROTECTED_RESOURCE}{base}{path}")
    }

    /// Parses a path of protected resource metadata into the resource.
    pub(crate) fn of_metadata(
        path: &'p str,
        public_url: &str,
        default: Default<'p>,
    ) -> Option<Self> {
        let path = path.strip_prefix(PROTECTED_RESOURCE)?;
        let endpoint = Self::parse(path.strip_prefix(base_path(public_url))?, default)?;
        endpoint.is_resource().then_some(endpoint)
    }
}

/// Splits `/t/{tenant}/{server}/{kind}`; the names are not checked.
fn parts(path: &str) -> Option<(&str, &str, Kind)> {
    let (tenant, rest) = of_tenant(path)?;
    let (server, kind) = rest.split_once('/')?;
    Some((tenant, server, Kind::named(kind)?))
}

/// Returns the tenant and the server that a path names, for logs. They are the client's text and
/// unchecked.
pub(crate) fn names(path: &str) -> (Option<&str>, Option<&str>) {
    if let Some((tenant, server, _)) = parts(path) {
        return (Some(tenant), Some(server));
    }
    match of_tenant(path) {
        Some((tenant, rest)) if rest.starts_with(OAUTH) => (Some(tenant), None),
        _ => (None, None),
    }
}

/// An endpoint of a tenant's authorization server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OauthEndpoint<'p> {
    /// Authorization endpoint.
    Authorize,
    /// Page on which people see and change what they have here.
    Account,
    /// Target of the log-in form.
    Login,
    /// Target of the consent form.
    Consent,
    /// Redirect URI at an identity provider, by the provider's name.
    Callback(&'p str),
    /// Redirect URI at an upstream, by the upstream's name.
    Connected(&'p str),
    /// Target of logout tokens of an identity provider, by the provider's name.
    Logout(&'p str),
    /// JWK set.
    Jwks,
    /// Dynamic client registration.
    Register,
    /// One registration, by its client id.
    Registration(&'p str),
    /// Token endpoint.
    Token,
    /// Revocation endpoint.
    Revoke,
}

impl<'p> OauthEndpoint<'p> {
    /// Parses a path of any tenant.
    pub(crate) fn parse(path: &'p str) -> Option<Self> {
        let aliases = [Self::Authorize, Self::Register, Self::Token];
        if let Some(found) = aliases
            .into_iter()
            .find(|endpoint| endpoint.alias() == Some(path))
        {
            return Some(found);
        }
        let (_, rest) = of_tenant(path)?;
        if rest == ACCOUNT {
            return Some(Self::Account);
        }
        Some(match rest.strip_prefix(OAUTH)? {
            "authorize" => Self::Authorize,
            "login" => Self::Login,
            "consent" => Self::Consent,
            "jwks" => Self::Jwks,
            "register" => Self::Register,
            "token" => Self::Token,
            "revoke" => Self::Revoke,
            other => match other.split_once('/')? {
                ("callback", provider) => Self::Callback(provider),
                ("connected", upstream) => Self::Connected(upstream),
                ("logout", provider) => Self::Logout(provider),
                ("register", client) => Self::Registration(client),
                _ => return None,
            },
        })
    }

    /// Builds the path for `tenant`.
    pub(crate) fn path(self, tenant: &str) -> String {
        let path = format!("{TENANTS}{tenant}/{OAUTH}");
        match self {
            Self::Authorize => path + "authorize",
            Self::Account => format!("{TENANTS}{tenant}/{ACCOUNT}"),
            Self::Login => path + "login",
            Self::Consent => path + "consent",
            Self::Callback(provider) => path + "callback/" + provider,
            Self::Connected(upstream) => path + "connected/" + upstream,
            Self::Logout(provider) => path + "logout/" + provider,
            Self::Jwks => path + "jwks",
            Self::Register => path + "register",
            Self::Registration(client) => path + "register/" + client,
            Self::Token => path + "token",
            Self::Revoke => path + "revoke",
        }
    }

    /// Builds the URL for `tenant`.
    pub(crate) fn url(self, public_url: &str, tenant: &str) -> String {
        format!("{public_url}{}", self.path(tenant))
    }

    /// Returns the path for the default tenant, which clients without metadata assume (2025-03-26
    /// authorization, "Fallbacks for Servers without Metadata Discovery").
    pub(crate) const fn alias(self) -> Option<&'static str> {
        match self {
            Self::Authorize => Some("/authorize"),
            Self::Register => Some("/register"),
            Self::Token => Some("/token"),
            Self::Account
            | Self::Login
            | Self::Consent
            | Self::Callback(_)
            | Self::Connected(_)
            | Self::Logout(_)
            | Self::Jwks
            | Self::Registration(_)
            | Self::Revoke => None,
        }
    }
}

/// Returns the tenant of an authorization server's path; an alias names `default`.
pub(crate) fn oauth_tenant<'p>(path: &'p str, default: Default<'p>) -> Option<&'p str> {
    if path.starts_with(TENANTS) {
        return Some(of_tenant(path)?.0);
    }
    Some(&default?.0)
}

/// Builds the issuer of a tenant: the public URL itself for the default tenant, otherwise
/// `{public_url}/t/{tenant}`. Clients compare it byte for byte.
pub(crate) fn issuer(public_url: &str, default: Default<'_>, tenant: &str) -> String {
    match default {
        Some((default, _)) if default == tenant => public_url.to_owned(),
        _ => format!("{public_url}{TENANTS}{tenant}"),
    }
}

/// Returns the tenant whose issuer has metadata at this path. The well-known path is inserted (RFC
/// 8414, section 3.1) or, for `OpenID` Connect, appended. The proxy has removed the base path in
/// front of an appended one.
pub(crate) fn issuer_tenant<'p>(
    path: &'p str,
    public_url: &str,
    default: Default<'p>,
) -> Option<&'p str> {
    let base = base_path(public_url);
    let inserted = |prefix| path.strip_prefix(prefix)?.strip_prefix(base);
    let issuer_path = inserted(AUTHORIZATION_SERVER)
        .or_else(|| inserted(OPENID_CONFIGURATION))
        .or_else(|| path.strip_suffix(OPENID_CONFIGURATION))?;
    let default = default.map(|(tenant, _)| tenant.as_str());
    match issuer_path.strip_prefix(TENANTS) {
        Some(tenant) => Some(tenant).filter(|tenant| Some(*tenant) != default),
        None if issuer_path.is_empty() => default,
        None => None,
    }
}

/// Builds the URLs where an issuer may have metadata: RFC 8414, section 3.1, then `OpenID` Connect
/// with the path inserted and appended (2025-11-25 authorization, "Authorization Server Metadata
/// Discovery").
pub(crate) fn issuer_metadata_urls(issuer: &str) -> Vec<String> {
    let Ok(mut url) = Url::parse(issuer) else {
        return Vec::new();
    };
    let path = url.path().trim_end_matches('/').to_owned();
    let mut at = |path: &str| {
        url.set_path(path);
        url.to_string()
    };
    let mut urls = vec![
        at(&format!("{AUTHORIZATION_SERVER}{path}")),
        at(&format!("{OPENID_CONFIGURATION}{path}")),
    ];
    if !path.is_empty() {
        urls.push(at(&format!("{path}{OPENID_CONFIGURATION}")));
    }
    urls
}

/// Builds the path of the `OpenID` configuration appended to the issuer of `tenant`.
pub(crate) fn appended_configuration(tenant: &str) -> String {
    format!("{TENANTS}{tenant}{OPENID_CONFIGURATION}")
}

/// Returns whether a path is that of a well-known document, of the origin or of a tenant.
pub(crate) fn is_well_known(path: &str) -> bool {
    let appended = || Some(OPENID_CONFIGURATION.strip_prefix('/')? == of_tenant(path)?.1);
    path.starts_with("/.well-known/") || appended().unwrap_or_default()
}

/// Returns the path of a public URL, without a slash at the end.
pub(crate) fn base_path(public_url: &str) -> &str {
    split(public_url).1
}

/// Splits a public URL into origin and path, both without a slash at the end.
fn split(public_url: &str) -> (&str, &str) {
    let path = Url::parse(public_url).map_or(0, |url| url.path().trim_end_matches('/').len());
    public_url.split_at(public_url.len() - path)
}

/// Splits a path into the tenant and the path below it.
fn of_tenant(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(TENANTS)?.split_once('/')
}

/// Protected resource metadata (RFC 9728, section 3).
pub(crate) const PROTECTED_RESOURCE: &str = "/.well-known/oauth-protected-resource";
/// Authorization server metadata (RFC 8414, section 3).
pub(crate) const AUTHORIZATION_SERVER: &str = "/.well-known/oauth-authorization-server";
/// `OpenID` Connect Discovery; RFC 8414, section 5, inserts it too.
pub(crate) const OPENID_CONFIGURATION: &str = "/.well-known/openid-configuration";

/// Returns whether a path without a route looks like the URL of a server that was not written to its end: it
/// has a tenant, and at most two segments more.
pub(crate) fn is_unfinished(path: &str) -> bool {
    let rest = path.strip_prefix(TENANTS).unwrap_or_default();
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    !rest.is_empty() && rest.split('/').count() <= 3 && !rest.contains("/oauth")
}

/// What such a path lacks.
pub(crate) const UNFINISHED: &str =
    "no such endpoint: the URL of a server ends with its name and /mcp";

/// Names that a machine has for itself: all of them name one host.
pub(crate) const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Path prefix of all tenants.
const TENANTS: &str = "/t/";
/// Path of a tenant's authorization server, below the tenant.
const OAUTH: &str = "oauth/";
/// Path of the account page below a tenant. No endpoint of a server has this form.
const ACCOUNT: &str = "account";

/// Returns the public URL as written, then with the other names of this machine if it has one of them.
fn spellings(public_url: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let start = public_url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = public_url.split_at(start);
    let end = match rest.find(']') {
        Some(at) => at + 1,
        None => rest.find([':', '/']).unwrap_or(rest.len()),
    };
    let (host, rest) = rest.split_at(end);
    let is_named = |name: &str| host.eq_ignore_ascii_case(name);
    let others = LOOPBACK.into_iter().filter(move |name| !is_named(name));
    let others = others.filter(move |_| LOOPBACK.into_iter().any(is_named));
    let others = others.map(move |name| Cow::Owned(format!("{scheme}{name}{rest}")));
    iter::once(Cow::Borrowed(public_url)).chain(others)
}

/// Returns the public URL in the spelling of a client whose request has this host and port. A client
/// compares the resource of the metadata with the URL that it was given (RFC 9728, section 3.3).
pub(crate) fn spelled<'u>(public_url: &'u str, authority: &str) -> Cow<'u, str> {
    let has_authority = |url: &Cow<'_, str>| {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let own = rest.split('/').next().unwrap_or_default();
        own.eq_ignore_ascii_case(authority)
    };
    let found = spellings(public_url).find(has_authority);
    found.unwrap_or(Cow::Borrowed(public_url))
}

/// Splits a URL of a client into the public URL, in its spelling, and the path below it. Scheme and host
/// may be in any case (RFC 3986, section 6.2.2.1): "implementations SHOULD accept uppercase scheme and host
/// components for robustness" (2025-11-25 authorization, "Canonical Server URI").
pub(crate) fn split_url<'u, 'p>(
    public_url: &'u str,
    url: &'p str,
) -> Option<(Cow<'u, str>, &'p str)> {
    spellings(public_url).find_map(|own| {
        let (theirs, path) = url.split_at_checked(own.len())?;
        is_same_url(&own, theirs).then_some((own, path))
    })
}

/// Whether two URLs of clients name one resource.
pub(crate) fn is_same_resource(public_url: &str, one: &str, other: &str) -> bool {
    let path = |url| split_url(public_url, url).map(|(_, path)| path);
    is_same_url(one, other) || path(one).is_some_and(|one| path(other) == Some(one))
}

/// The resource of a URL to which messages of HTTP+SSE are posted, with or without the session in its query. There are
/// clients (the C# SDK) that name it where they refresh a token, since it is the URL of all their requests.
pub(crate) fn stream_of_messages(site: Site<'_>, url: &str) -> Option<String> {
    let (url, _) = url.split_once('?').unwrap_or((url, ""));
    let (spelled, path) = split_url(site.url, url)?;
    let endpoint = site.endpoint(path)?;
    (endpoint.kind == Kind::Messages).then(|| endpoint.resource().url(&spelled))
}

/// Whether two absolute URLs are the same but for the case of scheme and host.
fn is_same_url(one: &str, other: &str) -> bool {
    let host = one.find("://").map_or(0, |at| at + "://".len());
    let path = one[host..].find('/').map_or(one.len(), |at| host + at);
    match (one.split_at_checked(path), other.split_at_checked(path)) {
        (Some((one, path)), Some((other, same))) => one.eq_ignore_ascii_case(other) && path == same,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GATEWAY: &str = "https://gw.test";

    fn default() -> (String, String) {
        ("t".to_owned(), "s".to_owned())
    }

    #[test]
    fn mcp_endpoints_take_methods_of_their_kind() {
        let all = Kind::ALL.map(|kind| (kind.name(), kind.methods()));
        let (mcp, sse) = (("mcp", "GET, POST, DELETE"), ("sse", "GET"));
        assert_eq!(all, [mcp, sse, ("messages", "POST")]);
    }

    #[test]
    fn mcp_endpoints_are_parsed_from_their_paths() {
        let default = default();
        let at = |path| {
            let found = Endpoint::parse(path, Some(&default))?;
            assert_eq!(found.path(), path);
            Some((
                found.tenant.to_owned(),
                found.server.to_owned(),
                found.kind.name(),
            ))
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
        assert_eq!(Endpoint::parse("/mcp", None), None);
    }

    #[test]
    fn a_host_of_a_tenant_has_no_other() {
        let host = TenantHost::new("http://gw.test:8080", ("a.test", 8080), ("a", "x"));
        assert_eq!(
            (host.url(), host.authority()),
            ("http://a.test:8080", "a.test:8080")
        );
        let host = TenantHost::new("https://gw.test:8443/base", ("a.test", 443), ("a", "x"));
        assert_eq!((host.url(), host.authority()), ("https://a.test", "a.test"));
        let default = ("t".to_owned(), "s".to_owned());
        let site = Site::of("https://gw.test/base", Some(&default), Some(&host));
        let of = |path| {
            site.endpoint(path)
                .map(|found| (found.tenant, found.server))
        };
        assert_eq!(of("/mcp"), Some(("a", "x")));
        assert_eq!(of("/t/a/y/mcp"), Some(("a", "y")));
        assert_eq!(of("/t/t/s/mcp"), None);
        assert_eq!(site.issuer("a"), "https://a.test");
        assert_eq!(site.issuer_tenant(AUTHORIZATION_SERVER), Some("a"));
        assert_eq!(
            site.issuer_tenant("/.well-known/oauth-authorization-server/t/t"),
            None
        );
        assert_eq!(site.oauth_tenant("/token"), Some("a"));
        assert_eq!(site.oauth_tenant("/t/t/oauth/token"), None);
        let at = |url| site.endpoint_at(url).map(|found| found.server);
        assert_eq!(at("https://a.test/sse"), Some("x"));
        assert_eq!(at("https://a.test/t/t/s/mcp"), None);
        assert_eq!(at("https://gw.test/base/t/a/y/mcp"), None);
        let none = TenantHost::new("https://gw.test", ("a.test", 443), ("a", ""));
        let site = Site::of("https://gw.test", Some(&default), Some(&none));
        assert!(site.endpoint("/mcp").is_none() && !site.has_short_urls());
    }

    #[test]
    fn messages_are_of_their_stream() {
        let default = default();
        let site = Site::of(GATEWAY, Some(&default), None);
        let local = Site::of("http://127.0.0.1:8080", None, None);
        for (site, url, stream) in [
            (
                site,
                "https://gw.test/t/a/x/messages?session_id=s",
                Some("https://gw.test/t/a/x/sse"),
            ),
            (
                site,
                "HTTPS://GW.test/t/a/x/messages",
                Some("https://gw.test/t/a/x/sse"),
            ),
            (
                site,
                "https://gw.test/messages?session_id=s",
                Some("https://gw.test/sse"),
            ),
            (
                local,
                "http://localhost:8080/t/a/x/messages?a",
                Some("http://localhost:8080/t/a/x/sse"),
            ),
            (site, "https://gw.test/t/a/x/sse?session_id=s", None),
            (site, "https://gw.test/t/a/x/mcp", None),
            (site, "https://evil.test/t/a/x/messages", None),
        ] {
            assert_eq!(stream_of_messages(site, url).as_deref(), stream, "{url}");
        }
    }

    #[test]
    fn kinds_end_the_path() {
        for (path, kind) in [
            ("/mcp", Some(Kind::Mcp)),
            ("/t/a/b/sse", Some(Kind::Sse)),
            ("/t/a/b/messages", Some(Kind::Messages)),
            ("/t/a/b/c/mcp", Some(Kind::Mcp)),
            ("/x/mcp", None),
            ("/t/a/b/mcp/", None),
            ("mcp", None),
        ] {
            assert_eq!(Kind::of(path), kind, "{path}");
        }
    }

    #[test]
    fn logs_name_the_tenant_and_the_server_of_a_path() {
        for (path, named) in [
            ("/t/a/b/mcp", (Some("a"), Some("b"))),
            ("/t/a/b/sse", (Some("a"), Some("b"))),
            ("/t/a/b/messages", (Some("a"), Some("b"))),
            ("/t/a/oauth/mcp", (Some("a"), Some("oauth"))),
            ("/t/a/oauth/token", (Some("a"), None)),
            ("/t/a/oauth/callback/login", (Some("a"), None)),
            ("/t/a/b/c", (None, None)),
            ("/t/a/b/c/mcp", (None, None)),
            ("/t/a", (None, None)),
            ("/mcp", (None, None)),
        ] {
            assert_eq!(names(path), named, "{path}");
        }
    }

    #[test]
    fn the_names_of_this_machine_are_one_host() {
        let own = "http://127.0.0.1:8080/base";
        for (authority, url) in [
            ("127.0.0.1:8080", own),
            ("localhost:8080", "http://localhost:8080/base"),
            ("LOCALHOST:8080", "http://localhost:8080/base"),
            ("[::1]:8080", "http://[::1]:8080/base"),
            // Another host is not repeated, nor another port: it may be that of a forwarder.
            ("localhost:8081", own),
            ("localhost", own),
            ("gw.test:8080", own),
            ("127.0.0.2:8080", own),
            ("", own),
        ] {
            assert_eq!(spelled(own, authority), url, "{authority}");
        }
        assert_eq!(spelled("http://[::1]", "localhost"), "http://localhost");
        for own in [GATEWAY, "https://localhost.gw.test", "https://10.0.0.1"] {
            assert_eq!(spelled(own, "localhost"), own);
            assert_eq!(spellings(own).count(), 1, "{own}");
        }
        let path = "/t/a/x/mcp";
        for base in ["http://LOCALHOST:8080/base", "http://[::1]:8080/base", own] {
            let url = format!("{base}{path}");
            let (spelled, rest) = split_url(own, &url).unwrap();
            assert_eq!((&*spelled, rest), (&*base.to_lowercase(), path));
            assert!(is_same_resource(own, &format!("{own}{path}"), &url));
            assert!(!is_same_resource(own, &format!("{own}/t/a/y/mcp"), &url));
            let url = url.to_lowercase();
            let found = Endpoint::parse_url(own, &url, None);
            assert_eq!(found, Endpoint::parse(path, None));
        }
        for url in [
            "http://localhost:80801/base/mcp",
            "https://localhost:8080/base/mcp",
        ] {
            assert_eq!(
                Endpoint::parse_url(own, url, Some(&default())),
                None,
                "{url}"
            );
        }
        assert!(!is_same_resource(
            GATEWAY,
            "https://gw.test/mcp",
            "https://localhost/mcp"
        ));
        // A grant of an earlier public URL.
        assert!(is_same_resource(
            GATEWAY,
            "https://old.test/mcp",
            "https://OLD.test/mcp"
        ));
    }

    #[test]
    fn resource_metadata_lies_below_the_origin() {
        for (public_url, path, url) in [
            (
                GATEWAY,
                "/t/a/x/mcp",
                "https://gw.test/.well-known/oauth-protected-resource/t/a/x/mcp",
            ),
            (
                "https://gw.test:8443/mcp/v1",
                "/t/a/x/messages",
                "https://gw.test:8443/.well-known/oauth-protected-resource/mcp/v1/t/a/x/sse",
            ),
        ] {
            let endpoint = Endpoint::parse(path, None).unwrap();
            assert_eq!(endpoint.metadata_url(public_url), url);
            let (_, path) = url.split_at(split(public_url).0.len());
            let found = Endpoint::of_metadata(path, public_url, None);
            assert_eq!(found, Some(endpoint.resource()));
        }
        let path = "/.well-known/oauth-protected-resource/t/a/x/messages";
        assert_eq!(Endpoint::of_metadata(path, GATEWAY, None), None);
    }

    #[test]
    fn only_the_default_tenant_has_the_public_url_as_its_issuer() {
        let default = ("a".to_owned(), "x".to_owned());
        let of = |tenant| issuer(GATEWAY, Some(&default), tenant);
        assert_eq!(of("a"), "https://gw.test");
        assert_eq!(of("b"), "https://gw.test/t/b");
        assert_eq!(
            issuer("https://gw.test/x", None, "a"),
            "https://gw.test/x/t/a"
        );
    }

    #[test]
    fn issuers_are_found_by_their_metadata() {
        let default = ("a".to_owned(), "x".to_owned());
        for (path, tenant) in [
            ("/.well-known/oauth-authorization-server/base", Some("a")),
            (
                "/.well-known/oauth-authorization-server/base/t/b",
                Some("b"),
            ),
            ("/.well-known/openid-configuration/base/t/b", Some("b")),
            ("/t/b/.well-known/openid-configuration", Some("b")),
            ("/.well-known/openid-configuration", Some("a")),
            // Each issuer has its metadata only at its own URLs.
            ("/.well-known/oauth-authorization-server/base/t/a", None),
            ("/t/a/.well-known/openid-configuration", None),
            ("/.well-known/oauth-authorization-server", None),
            ("/.well-known/oauth-authorization-server/t/b", None),
            ("/.well-known/oauth-authorization-server/base/x", None),
        ] {
            let found = issuer_tenant(path, "https://gw.test/base", Some(&default));
            assert_eq!(found, tenant, "{path}");
        }
    }

    #[test]
    fn every_alias_is_parsed() {
        for endpoint in [
            OauthEndpoint::Authorize,
            OauthEndpoint::Register,
            OauthEndpoint::Token,
        ] {
            let alias = endpoint.alias().unwrap();
            assert_eq!(OauthEndpoint::parse(alias), Some(endpoint));
            let default = default();
            assert_eq!(oauth_tenant(alias, Some(&default)), Some("t"));
            assert_eq!(oauth_tenant(alias, None), None);
        }
        for path in ["/login", "/t/a/oauth/mcp", "/t/a/b/oauth/token", "/t/a"] {
            assert_eq!(OauthEndpoint::parse(path), None, "{path}");
        }
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-z0-9][a-z0-9-]{0,62}"
    }

    proptest! {
        #[test]
        fn mcp_paths_are_built_and_parsed_alike(
            tenant in name(), server in name(), kind in 0..3_usize, is_alias: bool,
        ) {
            let default = (tenant.clone(), server.clone());
            let form = if is_alias { Form::Alias } else { Form::Named };
            let kind = Kind::ALL[kind];
            let endpoint = Endpoint { form, ..Endpoint::new(&tenant, &server, kind) };
            let path = endpoint.path();
            prop_assert_eq!(Endpoint::parse(&path, Some(&default)), Some(endpoint));
            let url = endpoint.url(GATEWAY);
            prop_assert_eq!(Endpoint::parse_url(GATEWAY, &url, Some(&default)), Some(endpoint));
            prop_assert_eq!(Kind::of(&path), Some(kind));
        }

        #[test]
        fn any_path_that_parses_is_built_again(path in "/?(t/)?[a-z/]{0,9}/(mcp|sse|messages|x)") {
            let default = default();
            if let Some(endpoint) = Endpoint::parse(&path, Some(&default)) {
                prop_assert_eq!(endpoint.path(), path.clone());
            }
            if let Some(endpoint) = OauthEndpoint::parse(&path) {
                let tenant = oauth_tenant(&path, Some(&default)).unwrap();
                prop_assert!(endpoint.path(tenant) == path || endpoint.alias() == Some(&*path));
            }
        }

        #[test]
        fn oauth_paths_are_built_and_parsed_alike(
            tenant in name(), text in name(), at in 0..9_usize,
        ) {
            let endpoint = [
                OauthEndpoint::Authorize, OauthEndpoint::Login, OauthEndpoint::Consent,
                OauthEndpoint::Callback(&text), OauthEndpoint::Connected(&text),
                OauthEndpoint::Logout(&text), OauthEndpoint::Jwks,
                OauthEndpoint::Register,
                OauthEndpoint::Registration(&text), OauthEndpoint::Token, OauthEndpoint::Revoke,
            ][at];
            let path = endpoint.path(&tenant);
            prop_assert_eq!(OauthEndpoint::parse(&path), Some(endpoint));
            prop_assert_eq!(oauth_tenant(&path, None), Some(&*tenant));
        }

        #[test]
        fn issuers_are_found_by_all_their_metadata(tenant in name(), base in "(/[a-z]{1,5})?") {
            let public_url = format!("{GATEWAY}{base}");
            let issuer = issuer(&public_url, None, &tenant);
            for url in issuer_metadata_urls(&issuer) {
                let path = url.strip_prefix(GATEWAY).unwrap();
                // A proxy strips the base from a path that begins with it.
                let path = path.strip_prefix(&base).filter(|_| !path.starts_with("/.")).unwrap_or(path);
                prop_assert_eq!(issuer_tenant(path, &public_url, None), Some(&*tenant));
            }
        }
    }
}

//! Admission to an MCP endpoint: finds the server, verifies the caller and counts the request.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, StatusCode, header, request::Parts};

use super::{bearer, body, challenge, front::Front, headers, rates};
use crate::http::{
    peers::Hop,
    reply::{McpRefusal, header_name::TENANT_HOST, page, rate_limit},
};
use crate::{
    auth::{Access, AccessRefusal, AccessRequest, Credential},
    base::memory::pinned,
    config::{ClientAddress, address::authority},
    declare::AuthMode,
    endpoint::{Endpoint, Form, Kind, TenantHost},
    error::Error,
    hub::limits::Remaining,
    telemetry::TraceContext,
};

/// Refusal of what may be declared in a database that cannot be read: a 404 would end clients' sessions.
const NOT_READ: Error = Error::Busy {
    what: "the database cannot be read at this moment",
    retry: Duration::from_secs(1),
};

/// Refusal of a caller who has lost the access since the head of the request was admitted: the next head is told why.
const LOST: Error = Error::Busy {
    what: "the access of the caller has ended since the request began",
    retry: Duration::from_secs(1),
};

/// Admission of a request to a server that its caller may use.
pub(crate) struct Admitted {
    /// Proof of access.
    pub(crate) access: Access,
    /// Public URL that the client called, if that is a tenant's host or another spelling than the gateway's.
    public_url: Option<String>,
    /// Form of the path that the client called.
    form: Form,
    /// Kind of the endpoint.
    kind: Kind,
    /// Trace of the request.
    pub(crate) trace: Option<TraceContext>,
    /// Remainder of the caller's rate, if it is low.
    left: Option<Remaining>,
}

/// Response to a request that is not admitted.
enum Instead {
    /// The page for browsers.
    Page(Box<Response>),
    /// There is no such server for the caller.
    Missing,
    Refusal(McpRefusal),
}

impl From<McpRefusal> for Instead {
    fn from(refused: McpRefusal) -> Self {
        Self::Refusal(refused)
    }
}

impl From<Error> for Instead {
    fn from(error: Error) -> Self {
        Self::Refusal(error.into())
    }
}

/// Admits a request to an MCP endpoint and calls `handler`.
///
/// The head of the request decides alone: the body is not read before, and of a refused request only for
/// its id. A response to a caller whose rate is almost used up carries a warning.
pub(crate) async fn enter<F: Future<Output = Response>>(
    front: Arc<Front>,
    request: Request,
    handler: impl FnOnce(Arc<Front>, Admitted, Request) -> F,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let admitted = match host_of_hop(&mut parts, &front) {
        // Boxed: a request that waits for its answer has no use for this room.
        Ok(()) => pinned(|| Admitted::of(&parts, &front)).await,
        Err(refused) => Err(refused),
    };
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(Instead::Page(page)) => return *page,
        Err(Instead::Missing) if page::is_browser(&parts.method, &parts.headers) => {
            let site = headers::site_of(&front.config, &parts.extensions);
            return page::missing(site.has_short_urls(), site.url);
        }
        Err(Instead::Missing) => {
            return body::refuse(Error::NoServer.into(), &parts.headers, body).await;
        }
        Err(Instead::Refusal(refused)) => return body::refuse(refused, &parts.headers, body).await,
    };
    let left = admitted.left;
    let mut response = handler(front, admitted, Request::from_parts(parts, body)).await;
    if let Some(left) = left {
        rate_limit::add_warning(response.headers_mut(), left);
    }
    response
}

impl Admitted {
    /// Turns an error of the hub into a refusal. For missing scopes it adds the challenge.
    pub(crate) fn refusal(&self, front: &Front, error: Error) -> McpRefusal {
        let challenge = match &error {
            Error::Scopes(scopes) => {
                let metadata = self.resource_metadata(front);
                let metadata = metadata.as_deref();
                Some(challenge::insufficient_scope(
                    metadata,
                    scopes,
                    self.access.is_bound(),
                ))
            }
            _ => None,
        };
        let refusal = McpRefusal::from(error);
        match challenge {
            Some(challenge) => refusal.with(header::WWW_AUTHENTICATE, challenge),
            None => refusal,
        }
    }

    /// Judges the access anew, once the body is here: it may come long after the head, which decided until then.
    ///
    /// # Errors
    ///
    /// `Busy` for a caller who may not use the server any more.
    pub(crate) fn renew(&mut self, front: &Front) -> Result<(), McpRefusal> {
        if let Some(newer) = front.hub.newer(&self.access).map_err(|_| LOST)? {
            self.access = *newer;
        }
        Ok(())
    }

    /// Returns the endpoint that was called.
    pub(crate) fn endpoint(&self) -> Endpoint<'_> {
        let (tenant, server) = (&self.access.tenant().name, &self.access.server().name);
        Endpoint {
            form: self.form,
            ..Endpoint::new(tenant, server, self.kind)
        }
    }

    /// Whether the tenant serves no revision with sessions.
    pub(crate) fn is_modern_alone(&self) -> bool {
        self.access.tenant().revisions.is_empty()
    }

    /// Returns the URL of the endpoint, as the client spells it.
    pub(crate) fn page(&self, front: &Front) -> Response {
        page::page(self.endpoint(), self.public_url(front), false)
    }

    /// Returns the public URL, or that of the tenant's host, as the client spells it.
    pub(crate) fn public_url<'f>(&'f self, front: &'f Front) -> &'f str {
        self.public_url
            .as_deref()
            .unwrap_or(&front.config.public_url)
    }

    /// Returns the URL of the endpoint's metadata; `None` if no authorization server could grant
    /// more scopes.
    fn resource_metadata(&self, front: &Front) -> Option<String> {
        let has_issuer = self.access.has_issuer();
        has_issuer.then(|| self.endpoint().metadata_url(self.public_url(front)))
    }

    async fn of(parts: &Parts, front: &Front) -> Result<Self, Instead> {
        let (path, config) = (parts.uri.path(), &front.config);
        let (headers, extensions) = (&parts.headers, &parts.extensions);
        // A hop was counted by the replica that forwarded it.
        let hop = extensions.get::<Hop>();
        let is_hop = hop.is_some();
        if !is_hop {
            rates::count(front, extensions)?;
        }
        let no_server = || no_server(front);
        let (site, public_url) = headers::site(config, extensions, (&parts.uri, headers));
        let endpoint = site.endpoint(path).ok_or_else(no_server)?;
        let catalog = &front.snapshot.catalog();
        let tenant = catalog.tenants.get(endpoint.tenant).ok_or_else(no_server)?;
        let credential = match hop {
            // The replica that forwarded it has verified the credentials, and kept them.
            Some(hop) => Credential::Asserted(&hop.caller),
            None => bearer::credential(headers)?,
        };
        let is_open = tenant.auth == AuthMode::None;
        if !is_open && page::is_browser(&parts.method, headers) {
            // The page repeats the URL only and does not tell whether the server exists.
            let has_keys = tenant.auth == AuthMode::Keys;
            let page = page::page(endpoint, &public_url, has_keys);
            return Err(Instead::Page(Box::new(page)));
        }
        let access_request = AccessRequest {
            endpoint,
            site,
            public_url: &public_url,
            method: parts.method.as_str(),
            credential,
            from: extensions.get::<ClientAddress>().map(|from| from.0),
            host: extensions.get(),
        };
        let access = front.auth.admit(catalog, &access_request).await;
        let access = access.map_err(|refused| match refused {
            AccessRefusal::NoServer => no_server(),
            AccessRefusal::Unknown { tenant, rejected } => {
                challenge::unauthorized(&public_url, &endpoint, &tenant, rejected).into()
            }
            AccessRefusal::Later(error) => error.into(),
        })?;
        let left = if is_hop {
            None
        } else {
            front.hub.limits().request(&access)?
        };
        Ok(Self {
            access,
            public_url: (public_url != config.public_url).then(|| public_url.into_owned()),
            form: endpoint.form,
            kind: endpoint.kind,
            trace: extensions.get().cloned(),
            left,
        })
    }
}

/// Gives a hop the host of a tenant that its client named, as the gate does for other requests.
fn host_of_hop(parts: &mut Parts, front: &Front) -> Result<(), Instead> {
    let named = parts.headers.get(TENANT_HOST);
    let Some(named) = named.filter(|_| parts.extensions.get::<Hop>().is_some()) else {
        return Ok(());
    };
    let public_url = &front.config.public_url;
    let found = named
        .to_str()
        .ok()
        .and_then(authority)
        .and_then(|(host, port)| {
            let port = port.unwrap_or_else(|| TenantHost::default_port(public_url));
            front.snapshot.catalog().host(public_url, &host, port)
        });
    let found = found.ok_or_else(|| no_server(front))?;
    parts.extensions.insert(Arc::new(found));
    Ok(())
}

/// Refuses a request for a server that does not exist here, or is not known yet.
fn no_server(front: &Front) -> Instead {
    if front.snapshot.is_complete() {
        Instead::Missing
    } else {
        NOT_READ.into()
    }
}

/// The error of metadata of a resource of `tenant` that do not exist here, or are not known yet. Clients take 404 for a
/// server without tokens, which is known here as it was read.
pub(crate) fn no_metadata(front: &Front, tenant: Option<&str>) -> Error {
    if front.snapshot.may_declare(tenant) {
        NOT_READ
    } else {
        Error::NoServer
    }
}

/// Refuses a method that an endpoint does not have. Admission comes first here too.
pub(crate) async fn other_method(front: Arc<Front>, request: Request) -> Response {
    if request.method() != Method::OPTIONS {
        return enter(front, request, async |_, admitted, request| {
            if admitted.kind == Kind::Mcp && admitted.is_modern_alone() {
                return post_alone(&request);
            }
            not_allowed(&request)
        })
        .await;
    }
    // Browsers ask with it, without credentials. A CORS preflight the gate answers.
    match rates::count(&front, request.extensions()) {
        Ok(()) => not_allowed(&request),
        Err(error) => McpRefusal::from(error).into_response(),
    }
}

/// Makes the 405 of a method that the modern era does not have (2026-07-28 streamable-http, "Earlier Streamable
/// HTTP Revisions").
pub(crate) fn post_alone(request: &Request) -> Response {
    let mut response = not_allowed(request);
    let allowed = HeaderValue::from_static("POST");
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

/// Makes a 405 with the allowed methods (RFC 9110, section 15.5.6).
pub(crate) fn not_allowed(request: &Request) -> Response {
    let allowed = Kind::of(request.uri().path()).unwrap_or(Kind::Mcp);
    let refused = McpRefusal::http(StatusCode::METHOD_NOT_ALLOWED, "no such method here");
    let mut response = refused.into_response();
    let allowed = HeaderValue::from_static(allowed.methods());
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

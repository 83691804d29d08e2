//! Admission to an MCP endpoint: finds the server, verifies the caller and counts the request.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, StatusCode, header, request::Parts};

use super::{bearer, challenge, front::Front, rates};
use crate::http::{
    peers::Hop,
    reply::{Failure, page, rate_limit},
};
use crate::{
    auth::{Access, AccessRefusal, access},
    config::ClientAddress,
    declare::AuthMode,
    endpoint::{Endpoint, Form, Kind},
    error::Error,
    hub::limits::Left,
};

/// When to come back while the store was never read.
const STORE: Duration = Duration::from_secs(1);

/// A request for a server that its caller may use.
pub(crate) struct Admitted {
    /// The proof.
    pub(crate) access: Access,
    /// Form of the path that the client called.
    form: Form,
    /// Kind of the endpoint.
    kind: Kind,
    /// What is left of its caller's rate, if that is little.
    left: Option<Left>,
}

/// What every request for an MCP endpoint passes: who calls is decided, and counted, by its head
/// alone; nothing of the body is read before. Whoever is about to be refused is told by the answer.
pub(crate) async fn enter<A: Future<Output = Response>>(
    front: Arc<Front>,
    request: Request,
    answer: impl FnOnce(Arc<Front>, Admitted, Request) -> A,
) -> Response {
    let (parts, body) = request.into_parts();
    let admitted = match Admitted::of(&parts, &front).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    let left = admitted.left;
    let mut response = answer(front, admitted, Request::from_parts(parts, body)).await;
    if let Some(left) = left {
        rate_limit::tell(response.headers_mut(), left);
    }
    response
}

impl Admitted {
    /// A refusal by the hub; one for lack of scopes says how to get them (CONTRACT C2).
    pub(crate) fn refused(&self, front: &Front, error: Error) -> Failure {
        let challenge = match &error {
            Error::Scopes(scopes) => {
                let metadata = self.resource_metadata(front);
                Some(challenge::insufficient_scope(metadata.as_deref(), scopes))
            }
            _ => None,
        };
        let failure = Failure::from(error);
        match challenge {
            Some(challenge) => failure.with(header::WWW_AUTHENTICATE, challenge),
            None => failure,
        }
    }

    /// The endpoint that was called.
    pub(crate) fn endpoint(&self) -> Endpoint<'_> {
        let (tenant, server) = (&self.access.tenant().name, &self.access.server().name);
        Endpoint {
            form: self.form,
            ..Endpoint::new(tenant, server, self.kind)
        }
    }

    /// Where the metadata of what was called is; none where no authorization server could give
    /// out more.
    fn resource_metadata(&self, front: &Front) -> Option<String> {
        let has_issuer = self.access.tenant().auth.has_issuer();
        has_issuer.then(|| self.endpoint().metadata_url(&front.config.public_url))
    }

    async fn of(parts: &Parts, front: &Front) -> Result<Self, Response> {
        let (path, config) = (parts.uri.path(), &front.config);
        let (headers, extensions) = (&parts.headers, &parts.extensions);
        // A hop was counted by the replica that the client asked.
        let is_hop = extensions.get::<Hop>().is_some();
        if !is_hop && let Err(error) = rates::address(front, extensions) {
            return Err(Failure::from(error).into_response());
        }
        let no_server = || {
            if front.snapshot.is_loaded() {
                return Failure::from(Error::NoServer).into_response();
            }
            // Nobody can say yet that there is no such server: 404 would end clients' sessions.
            let busy = Error::Busy {
                what: "nothing was read from the store yet",
                retry: STORE,
            };
            Failure::from(busy).into_response()
        };
        let endpoint = Endpoint::parse(path, config.default.as_ref()).ok_or_else(no_server)?;
        let catalog = &front.snapshot.catalog();
        let tenant = catalog.tenants.get(endpoint.tenant).ok_or_else(no_server)?;
        let credential = bearer::credential(headers).map_err(Failure::into_response)?;
        let is_open = tenant.auth == AuthMode::None;
        if !is_open && page::is_browser(&parts.method, headers) {
            // It says nothing but what the URL says, whether there is such a server or not.
            return Err(page::page(endpoint, &config.public_url));
        }
        let asked = access::AccessRequest {
            tenant: endpoint.tenant,
            server: endpoint.server,
            credential,
            from: extensions.get::<ClientAddress>().map(|from| from.0),
            route: endpoint.kind.name(),
        };
        let access = front.auth.admit(catalog, &asked).await;
        let access = access.map_err(|refused| match refused {
            AccessRefusal::NoServer => no_server(),
            AccessRefusal::Unknown { tenant, had_token } => {
                challenge::unauthorized(&config.public_url, &endpoint, &tenant, had_token)
            }
            AccessRefusal::Later(error) => Failure::from(error).into_response(),
        })?;
        let left = if is_hop {
            None
        } else {
            let left = front.hub.limits().request(&access);
            left.map_err(|error| Failure::from(error).into_response())?
        };
        Ok(Self {
            access,
            form: endpoint.form,
            kind: endpoint.kind,
            left,
        })
    }
}

/// A method that an endpoint does not have: who calls comes first here too (CONTRACT C1, C11).
pub(crate) async fn other_method(front: Arc<Front>, request: Request) -> Response {
    if request.method() != Method::OPTIONS {
        return enter(front, request, async |_, _, request| not_allowed(&request)).await;
    }
    // A browser's question, which carries no credentials.
    match rates::address(&front, request.extensions()) {
        Ok(()) => not_allowed(&request),
        Err(error) => Failure::from(error).into_response(),
    }
}

/// 405, with what may be asked there (RFC 9110, section 15.5.6).
pub(crate) fn not_allowed(request: &Request) -> Response {
    let allowed = match Kind::of(request.uri().path()) {
        Some(Kind::Sse) => "GET",
        Some(Kind::Messages) => "POST",
        Some(Kind::Mcp) | None => "GET, POST, DELETE",
    };
    let refused = Failure::http(StatusCode::METHOD_NOT_ALLOWED, "no such method here");
    let mut response = refused.into_response();
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

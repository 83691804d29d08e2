//! Protected resource metadata (RFC 9728): one document for each URL of a server.
//!
//! Every server name has a document, so that clients without credentials cannot find out which
//! servers exist. Servers whose every tool needs scopes are the exception: clients must know which scopes
//! to begin with.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};

use crate::http::{
    admission::{Front, challenge, headers, no_metadata},
    reply::{McpRefusal, json::JSON},
};
use crate::{
    auth::dpop::PROOF_ALGORITHMS,
    declare::{AuthMode, Dpop, Tenant},
    endpoint::{Endpoint, Site},
};

/// Returns the issuer of a tenant's access tokens, if it has one.
fn issuer(site: &Site<'_>, tenant: &Tenant) -> Option<String> {
    match &tenant.auth {
        AuthMode::None | AuthMode::Keys => None,
        AuthMode::External(external) => Some(external.issuer.clone()),
        AuthMode::Builtin(_) => Some(site.issuer(&tenant.name)),
    }
}

/// GET: returns the metadata of the resource whose path follows.
pub(crate) async fn protected_resource(
    State(front): State<Arc<Front>>,
    request: Request,
) -> Response {
    let place = (request.uri(), request.headers());
    let (site, url) = headers::site(&front.config, request.extensions(), place);
    let endpoint = site.of_metadata(request.uri().path());
    let found = endpoint.and_then(|endpoint| document(&front, endpoint, (site, &url)));
    found.unwrap_or_else(|| {
        let tenant = endpoint.map(|endpoint| endpoint.tenant);
        McpRefusal::from(no_metadata(&front, tenant)).into_response()
    })
}

fn document(
    front: &Front,
    endpoint: Endpoint<'_>,
    (site, url): (Site<'_>, &str),
) -> Option<Response> {
    let tenant = front
        .snapshot
        .catalog()
        .tenants
        .get(endpoint.tenant)
        .cloned()?;
    let issuer = issuer(&site, &tenant)?;
    let mut document = serde_json::json!({
        "resource": endpoint.url(url),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
    });
    if tenant.dpop == Dpop::Required {
        document["dpop_bound_access_tokens_required"] = true.into();
    }
    let scopes = challenge::baseline_scopes(&tenant, endpoint.server);
    if !scopes.is_empty() {
        document["scopes_supported"] = scopes.into();
    }
    let mut response = Response::new(Body::from(document.to_string()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    Some(response)
}

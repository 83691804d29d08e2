//! Protected resource metadata (RFC 9728): one document for each URL of a server.
//!
//! Every server name has a document, so that clients without credentials cannot find out which
//! servers exist. Servers whose every tool needs scopes are the exception: clients must know which scopes
//! to begin with.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, Uri,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};

use crate::http::{
    admission::{Front, challenge, headers},
    reply::{McpRefusal, json::JSON},
};
use crate::{
    config::Config,
    declare::{AuthMode, Tenant},
    endpoint::{self, Endpoint},
    error::Error,
};

/// Returns the issuer of a tenant's access tokens, if it has one.
pub(crate) fn issuer(config: &Config, tenant: &Tenant) -> Option<String> {
    match &tenant.auth {
        AuthMode::None | AuthMode::Keys => None,
        AuthMode::External(external) => Some(external.issuer.clone()),
        AuthMode::Builtin(_) => {
            let default = config.default.as_ref();
            Some(endpoint::issuer(&config.public_url, default, &tenant.name))
        }
    }
}

/// GET: returns the metadata of the resource whose path follows.
pub(crate) async fn protected_resource(
    State(front): State<Arc<Front>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let public_url = headers::public_url(&front.config, &uri, &headers);
    document(&front, uri.path(), &public_url)
        .unwrap_or_else(|| McpRefusal::from(Error::NoServer).into_response())
}

fn document(front: &Front, path: &str, public_url: &str) -> Option<Response> {
    let config = &front.config;
    let endpoint = Endpoint::of_metadata(path, public_url, config.default.as_ref())?;
    let tenant = front
        .snapshot
        .catalog()
        .tenants
        .get(endpoint.tenant)
        .cloned()?;
    let issuer = issuer(config, &tenant)?;
    let mut document = serde_json::json!({
        "resource": endpoint.url(public_url),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    });
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

//! Authorization server metadata (RFC 8414, OpenID Connect Discovery) and the JWK set.
//!
//! A document is served only at the well-known URLs of its own issuer. At other URLs its `issuer`
//! would not match (RFC 8414, section 3.3).

use axum::{
    body::Body,
    extract,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH},
};
use serde_json::{Value, json};

use super::{
    base::secret,
    clients::ClientAuthMethod,
    server::{AuthorizationServer, Oauth, OauthState},
    tokens::ASSERTIONS,
};
use crate::{auth::dpop::PROOF_ALGORITHMS, declare::PublicKey, endpoint::OauthEndpoint};

/// GET: the metadata of the issuer with this well-known URL.
pub(super) async fn document(
    extract::State(oauth): extract::State<Oauth>,
    request: extract::Request,
) -> Response {
    let state = &*oauth.0;
    let path = request.uri().path();
    match AuthorizationServer::described_at(state, path, request.extensions()) {
        Ok(server) => cacheable(
            request.headers(),
            &metadata(state, &server).to_string(),
            "max-age=60",
        ),
        Err(refused) => refused.into_response(),
    }
}

/// GET: the JWK set (RFC 7517), with the previous, the current and the next signing keys.
pub(super) async fn keys(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    headers: HeaderMap,
) -> Response {
    let catalog = oauth.0.snapshot.catalog();
    let keys = catalog.issued.keys.get(&server.tenant.name);
    let keys: Vec<Value> = keys.iter().flat_map(|keys| keys.iter()).map(jwk).collect();
    key_set(&headers, &keys)
}

/// The response with these JWKs.
fn key_set(request: &HeaderMap, keys: &[Value]) -> Response {
    let cache_control = if keys.is_empty() {
        // The first key of a tenant is about to be made: a resource that kept this would refuse its first tokens.
        "no-store"
    } else {
        // Shorter than the time for which a key is published before it signs.
        "max-age=300"
    };
    cacheable(request, &json!({ "keys": keys }).to_string(), cache_control)
}

/// A public key as a JWK (RFC 8037, section 2).
fn jwk(key: &PublicKey) -> Value {
    json!({
        "kty": "OKP", "crv": "Ed25519", "x": secret::encoded(&key.x),
        "kid": key.kid, "use": "sig", "alg": "EdDSA",
    })
}

fn metadata(state: &OauthState, server: &AuthorizationServer) -> Value {
    let endpoint = |name| server.endpoint(state, name);
    let methods: Vec<&str> = ClientAuthMethod::ALL
        .iter()
        .map(|method| method.name())
        .collect();
    let mut scopes = server.advertised_scopes();
    // Every client gets a refresh token; this scope requests it by name (OpenID Connect Core,
    // section 11).
    if !scopes.contains(&"offline_access") {
        scopes.push("offline_access");
    }
    let mut all = json!({
        "issuer": server.issuer,
        "authorization_endpoint": endpoint(OauthEndpoint::Authorize),
        "token_endpoint": endpoint(OauthEndpoint::Token),
        "revocation_endpoint": endpoint(OauthEndpoint::Revoke),
        "jwks_uri": endpoint(OauthEndpoint::Jwks),
        "scopes_supported": scopes,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": server.grant_types(),
        "token_endpoint_auth_methods_supported": methods,
        "token_endpoint_auth_signing_alg_values_supported": ASSERTIONS,
        "revocation_endpoint_auth_methods_supported": methods,
        "revocation_endpoint_auth_signing_alg_values_supported": ASSERTIONS,
        "code_challenge_methods_supported": ["S256"],
        "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
        "authorization_response_iss_parameter_supported": true,
        "client_id_metadata_document_supported": offers_documents(state, server),
        // Required by OpenID Connect Discovery, section 3, although there are no ID tokens.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["EdDSA"],
    });
    if server.is_vouched_to() {
        // Identity assertion authorization grant, "Authorization Server Metadata".
        all["authorization_grant_profiles_supported"] = json!([ID_JAG_PROFILE]);
    }
    if server.builtin.registration {
        all["registration_endpoint"] = endpoint(OauthEndpoint::Register).into();
    }
    all
}

/// Reports whether clients are told that their id may be the URL of a document. Those that can do either prefer
/// that to registration, so where documents cannot be fetched it is not offered to clients that may register.
fn offers_documents(state: &OauthState, server: &AuthorizationServer) -> bool {
    let builtin = &server.builtin;
    builtin.documents && (state.documents.are_reachable() || !builtin.registration)
}

/// The profile of the grant type of assertions whose assertions are ID-JAGs.
const ID_JAG_PROFILE: &str = "urn:ietf:params:oauth:grant-profile:id-jag";

/// Makes a cacheable JSON response with an entity tag.
fn cacheable(request: &HeaderMap, text: &str, cache_control: &'static str) -> Response {
    let tag = format!("\"{}\"", secret::encoded(&secret::hash(text)[..16]));
    let has_tag = |line: &str| {
        let mut tags = line.split(',').map(str::trim);
        tags.any(|known| known == "*" || known.trim_start_matches("W/") == tag)
    };
    let mut lines = request.get_all(IF_NONE_MATCH).iter();
    let is_unchanged = lines.any(|line| line.to_str().is_ok_and(has_tag));
    let mut response = if is_unchanged {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(Body::from(text.to_owned()));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first tokens of a tenant were refused for as long as the empty set of before was kept.
    #[test]
    fn a_key_set_without_a_key_is_not_kept() {
        let kept = |keys: &[Value]| {
            let response = key_set(&HeaderMap::new(), keys);
            response.headers()[CACHE_CONTROL].clone()
        };
        assert_eq!(kept(&[]), "no-store");
        let (kid, x) = ("k".to_owned(), [7; 32]);
        assert_eq!(kept(&[jwk(&PublicKey { kid, x })]), "max-age=300");
    }
}

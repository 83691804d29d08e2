//! The log-in of a client, up to the page where a person would have to log in: client ID and authorization request.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::{Method, header::LOCATION};
use serde_json::{Value as Json, json};
use url::Url;

use super::{
    causes::{self, Finding, failed},
    clients::{Client, Offline},
    discovery::{Discovered, discover},
    front::Challenge,
    visitor::{Answer, Ask, Visitor},
};
use crate::base::{Secret, random_name, sha256};

/// The client ID of an authorization request, and its origin.
struct Identity {
    id: String,
    by: &'static str,
    /// The registration, which is deleted afterwards.
    registration: Option<Registration>,
}

/// A registration that can be deleted (RFC 7592, section 2.3).
struct Registration {
    url: Url,
    token: Secret,
}

/// Follows the log-in of a client; the result is how far it came, or the first thing that is wrong.
pub(super) async fn log_in(
    visitor: &mut Visitor,
    client: &Client,
    challenge: &Challenge,
    client_id: Option<&str>,
) -> Result<String, Finding> {
    let found = discover(visitor, client, challenge).await?;
    let reached = attempt(visitor, client, challenge, &found, client_id).await;
    // Without metadata a log-in at the default endpoints fails later; the first wrong thing is the metadata.
    reached.map_err(|wrong| found.missing.clone().unwrap_or(wrong))
}

async fn attempt(
    visitor: &mut Visitor,
    client: &Client,
    challenge: &Challenge,
    found: &Discovered,
    client_id: Option<&str>,
) -> Result<String, Finding> {
    let server = &found.server;
    let shown = "the authorization server metadata";
    let endpoint = |name: &str| Url::parse(server[name].as_str()?).ok();
    let (Some(authorize), Some(_)) = (
        endpoint("authorization_endpoint"),
        endpoint("token_endpoint"),
    ) else {
        let came = "no authorization_endpoint or token_endpoint that is a URL";
        return Err(Finding::new(&causes::ENDPOINT_MISSING, shown, came));
    };
    let methods = &server["code_challenge_methods_supported"];
    let mut offered = methods.as_array().into_iter().flatten();
    if !offered.any(|method| method == "S256") {
        let came = format!("code_challenge_methods_supported: {methods}");
        return Err(Finding::new(&causes::PKCE_MISSING, shown, &came));
    }
    let scope = scopes(client, challenge, found);
    let identity = identify(visitor, client, server, client_id, scope.as_deref()).await?;
    // A registration takes all redirect URIs or none. Those of a declared client are an operator's, and which of them
    // a client uses is its own affair.
    let tried = client_id.map_or(1, |_| client.redirect_uris.len());
    let mut reached = Ok(String::new());
    for redirect in client.redirect_uris.iter().take(tried) {
        let url = authorize.clone();
        let request = authorization(url, redirect, &identity.id, scope.as_deref(), found);
        reached = visit(visitor, request, client).await;
        if client_id.is_some() {
            let more = format!("its redirect URI is {redirect}");
            reached = reached.map_err(|wrong| wrong.mending(&more));
        }
        if reached.is_err() {
            break;
        }
    }
    if let Some(registration) = identity.registration {
        let ask = Ask::of(Method::DELETE, &registration.url).header(
            "Authorization",
            &format!("Bearer {}", registration.token.expose()),
        );
        // What a server keeps is its own affair.
        let _ = visitor.fetch(ask).await;
    }
    reached.map(|page| format!("{page}; {}", identity.by))
}

/// The scopes of a request (2025-11-25 authorization, "Scope Selection Strategy").
fn scopes(client: &Client, challenge: &Challenge, found: &Discovered) -> Option<String> {
    let mut scope = challenge.scope.clone().or(found.scopes.clone())?;
    let offered = found.server["scopes_supported"].as_array();
    let has_offline = offered.is_some_and(|offered| offered.iter().any(|one| one == OFFLINE));
    let is_asked = scope.split(' ').any(|one| one == OFFLINE);
    if client.offline == Offline::Asked && has_offline && !is_asked {
        scope = format!("{scope} {OFFLINE}");
    }
    (!scope.trim().is_empty()).then(|| scope.trim().to_owned())
}

/// Gets a client ID (2025-11-25 authorization, "Client Registration Approaches").
async fn identify(
    visitor: &mut Visitor,
    client: &Client,
    server: &Json,
    client_id: Option<&str>,
    scope: Option<&str>,
) -> Result<Identity, Finding> {
    let known = |id: &str, by| Identity {
        id: id.to_owned(),
        by,
        registration: None,
    };
    if let Some(id) = client_id {
        return Ok(known(id, "the client ID that was given"));
    }
    let has_documents = server["client_id_metadata_document_supported"] == true;
    if let Some(document) = client.document.filter(|_| has_documents) {
        return Ok(known(document, "client ID metadata document"));
    }
    let endpoint = server["registration_endpoint"].as_str();
    let Some(endpoint) = endpoint.and_then(|endpoint| Url::parse(endpoint).ok()) else {
        let came = format!(
            "registration_endpoint: {}, client_id_metadata_document_supported: {}",
            server["registration_endpoint"], server["client_id_metadata_document_supported"]
        );
        let shown = "the authorization server metadata";
        let uris = client.redirect_uris.join(" and ");
        let finding = Finding::new(&causes::NO_REGISTRATION, shown, &came);
        return Err(finding.mending(&format!("its redirect URI is {uris}")));
    };
    register(visitor, client, &endpoint, scope).await
}

/// Registers a client (RFC 7591, section 3.1).
async fn register(
    visitor: &mut Visitor,
    client: &Client,
    endpoint: &Url,
    scope: Option<&str>,
) -> Result<Identity, Finding> {
    let mut metadata = json!({
        "client_name": format!("{} (lockgate doctor)", client.title),
        "redirect_uris": client.redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    });
    if let Some(scope) = scope {
        metadata["scope"] = scope.into();
    }
    let ask = Ask::post(endpoint, &metadata).header("Accept", "application/json");
    let shown = ask.shown();
    let answer = visitor.fetch(ask).await;
    let answer = answer.map_err(|failure| failed(&failure, &shown))?;
    let registered = answer.object().filter(|_| answer.status.is_success());
    let registered = registered.filter(|registered| registered["client_id"].is_string());
    let Some(registered) = registered else {
        let finding = Finding::new(&causes::REGISTRATION_REFUSED, &shown, &answer.shown());
        let uris = client.redirect_uris.join(" and ");
        return Err(finding.mending(&format!("its redirect URI is {uris}")));
    };
    let text = |name: &str| registered[name].as_str().map(str::to_owned);
    let url = text("registration_client_uri").and_then(|url| Url::parse(&url).ok());
    // Its token is for the server that gave it alone.
    let url = url.filter(|url| url.origin() == endpoint.origin());
    let token = text("registration_access_token").and_then(Secret::of);
    Ok(Identity {
        id: text("client_id").unwrap_or_default(),
        by: "registered",
        registration: url
            .zip(token)
            .map(|(url, token)| Registration { url, token }),
    })
}

/// The authorization request, with PKCE and the resource (RFC 7636, section 4.3; RFC 8707, section 2).
fn authorization(
    mut url: Url,
    redirect: &str,
    id: &str,
    scope: Option<&str>,
    found: &Discovered,
) -> Url {
    // Nobody redeems a code: the verifier is forgotten.
    let challenge = URL_SAFE_NO_PAD.encode(sha256(random_name().as_bytes()));
    let mut query = url.query_pairs_mut();
    query
        .append_pair("response_type", "code")
        .append_pair("client_id", id)
        .append_pair("redirect_uri", redirect)
        .append_pair("state", &random_name())
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256");
    if let Some(scope) = scope {
        query.append_pair("scope", scope);
    }
    if let Some(resource) = &found.resource {
        query.append_pair("resource", resource);
    }
    drop(query);
    url
}

/// Opens an authorization request as a browser does, up to the first page.
async fn visit(visitor: &mut Visitor, request: Url, client: &Client) -> Result<String, Finding> {
    let mut url = request.clone();
    let shown = Ask::get(&request).shown();
    for _ in 0..HOPS {
        let ask = Ask::get(&url).header("Accept", "text/html");
        let answer = visitor.fetch(ask).await;
        let answer = answer.map_err(|failure| failed(&failure, &shown))?;
        let location = answer.header(LOCATION.as_str());
        let next = location.and_then(|to| url.join(to).ok());
        let next = match (answer.status.as_u16(), next) {
            (200, _) => return Ok("log-in page".to_owned()),
            (300..=399, Some(next)) => next,
            _ => return Err(refused(&shown, &answer.shown())),
        };
        if is_back(&next, client) {
            return back(&next, &shown, &answer);
        }
        if next.origin() != url.origin() {
            let host = next.host_str().unwrap_or_default();
            return Ok(format!("log-in at {host}"));
        }
        url = next;
    }
    Err(refused(&shown, &format!("more than {HOPS} redirects")))
}

/// Whether a redirect answers the client.
fn is_back(to: &Url, client: &Client) -> bool {
    client
        .redirect_uris
        .iter()
        .any(|uri| to.as_str().starts_with(uri))
}

/// An answer to the client before a person was asked.
fn back(to: &Url, shown: &str, answer: &Answer) -> Result<String, Finding> {
    let value = |name: &str| {
        let found = to.query_pairs().find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned())
    };
    match value("error") {
        None => Ok("code without a log-in".to_owned()),
        Some(error) => {
            let why = value("error_description").unwrap_or_default();
            let came = format!("{}, error={error}: {why}", answer.status);
            Err(refused(shown, &came))
        }
    }
}

fn refused(asked: &str, came: &str) -> Finding {
    Finding::new(&causes::AUTHORIZATION_REFUSED, asked, came)
}

/// The scope of refresh tokens.
const OFFLINE: &str = "offline_access";
/// The most redirects between an authorization request and its page.
const HOPS: u32 = 5;

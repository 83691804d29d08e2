//! Discovery: protected resource metadata, and the metadata of the authorization server, in the order of a client
//! (2025-11-25 authorization, "Protected Resource Metadata Discovery Requirements" and "Authorization Server
//! Metadata Discovery").

use serde_json::{Value as Json, json};
use url::Url;

use super::{
    causes::{self, Finding},
    clients::{Client, Compare, Issuer, Search},
    front::Challenge,
    visitor::{Answer, Ask, Failure, Visitor},
};

/// The result of a client's discovery.
pub(super) struct Discovered {
    /// The resource that the client asks for (RFC 8707).
    pub(super) resource: Option<String>,
    /// The scopes of the resource.
    pub(super) scopes: Option<String>,
    /// The metadata of the authorization server.
    pub(super) server: Json,
    /// The first thing that was missing, if the client falls back to what 2025-03-26 has for a server without
    /// metadata.
    pub(super) missing: Option<Finding>,
}

/// A metadata document, or what came at the first place where it could be.
type Found = Result<Json, Finding>;

/// Follows the discovery of a client to its end.
pub(super) async fn discover(
    visitor: &mut Visitor,
    client: &Client,
    challenge: &Challenge,
) -> Result<Discovered, Finding> {
    let missing = match resource_metadata(visitor, client, challenge).await {
        Ok(metadata) => return described(visitor, client, &metadata).await,
        // The challenge names a document, and there is none: the server is not one of 2025-03-26.
        Err(missing) if challenge.resource_metadata.is_some() => return Err(missing),
        Err(missing) if missing.code != causes::RESOURCE_METADATA_MISSING.code => {
            return Err(missing);
        }
        Err(missing) => missing
            .mending("a server that takes API keys alone has none: give one with --token-env"),
    };
    let base = visitor.target.join("/").unwrap_or(visitor.target.clone());
    let places = server_places(&base);
    let (server, missing) = match first(visitor, &places, is_server, &missing).await {
        Ok(server) => (server, None),
        // 2025-03-26 authorization, "Fallbacks for Servers without Metadata Discovery".
        Err(_) => (defaults(&base), Some(missing)),
    };
    Ok(Discovered {
        resource: None,
        scopes: challenge.scope.clone(),
        server,
        missing,
    })
}

/// Finds the protected resource metadata.
async fn resource_metadata(visitor: &mut Visitor, client: &Client, challenge: &Challenge) -> Found {
    let url = visitor.target.clone();
    let named = challenge.resource_metadata.as_deref();
    let mut places: Vec<Url> = named
        .and_then(|named| url.join(named).ok())
        .into_iter()
        .collect();
    if places.is_empty() || client.search == Search::After {
        // RFC 9728, section 3.1: the path follows the well-known part; SEP-985: then the root.
        let path = url.path().trim_end_matches('/');
        places.extend(at(&url, &format!("{RESOURCE}{path}")));
        places.extend(at(&url, RESOURCE));
        places.dedup();
    }
    let asked = places
        .first()
        .map_or_else(String::new, |place| Ask::get(place).shown());
    let missing = Finding::new(&causes::RESOURCE_METADATA_MISSING, &asked, "nothing");
    let is_resource = |json: &Json| json["resource"].is_string();
    let metadata = first(visitor, &places, is_resource, &missing).await?;
    let resource = metadata["resource"].as_str().unwrap_or_default();
    if !is_resource_of(client.compares, resource, &url) {
        let came = format!("resource: {resource}");
        let finding = Finding::new(&causes::RESOURCE_MISMATCH, &asked, &came);
        return Err(finding.mending(&format!("it has to be {url}")));
    }
    Ok(metadata)
}

/// Finds the authorization server of a resource.
async fn described(
    visitor: &mut Visitor,
    client: &Client,
    metadata: &Json,
) -> Result<Discovered, Finding> {
    let shown = "the protected resource metadata";
    let named = metadata["authorization_servers"][0].as_str();
    let parsed = named.and_then(|named| Url::parse(named).ok());
    let (Some(named), Some(issuer)) = (named, parsed) else {
        let came = format!(
            "authorization_servers: {}",
            metadata["authorization_servers"]
        );
        return Err(Finding::new(&causes::NO_AUTHORIZATION_SERVER, shown, &came));
    };
    let places = server_places(&issuer);
    let asked = places
        .first()
        .map_or_else(String::new, |place| Ask::get(place).shown());
    let missing = Finding::new(&causes::SERVER_METADATA_MISSING, &asked, "nothing");
    let server = first(visitor, &places, is_server, &missing).await?;
    let own = server["issuer"].as_str().unwrap_or_default();
    // A slash at the end comes and goes with the URL parsers of clients.
    let is_same = own.trim_end_matches('/') == named.trim_end_matches('/');
    if client.issuer == Issuer::Checked && !is_same {
        let came = format!("issuer: {own}, and authorization_servers names {named}");
        return Err(Finding::new(&causes::ISSUER_MISMATCH, &asked, &came));
    }
    let scopes = metadata["scopes_supported"].as_array().map(|scopes| {
        let scopes: Vec<&str> = scopes.iter().filter_map(Json::as_str).collect();
        scopes.join(" ")
    });
    Ok(Discovered {
        resource: metadata["resource"].as_str().map(str::to_owned),
        scopes,
        server,
        missing: None,
    })
}

/// The first document of `places` that is one; else what came at the first place.
async fn first(
    visitor: &mut Visitor,
    places: &[Url],
    is_one: impl Fn(&Json) -> bool,
    missing: &Finding,
) -> Found {
    let mut came = None;
    for place in places {
        let answer = visitor.document(place).await;
        if let Ok(answer) = &answer
            && answer.status == 200
            && let Some(json) = answer.object().filter(&is_one)
        {
            return Ok(json);
        }
        came.get_or_insert_with(|| shown(&answer));
    }
    let mut missing = missing.clone();
    if let Some(came) = came {
        missing = missing.with_answer(&came);
    }
    Err(missing)
}

fn shown(answer: &Result<Answer, Failure>) -> String {
    answer.as_ref().map_or_else(Failure::shown, Answer::shown)
}

/// The places of an authorization server's metadata, in the order of the specification.
fn server_places(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let paths = if path.is_empty() {
        vec![SERVER.to_owned(), OPENID.to_owned()]
    } else {
        vec![
            format!("{SERVER}{path}"),
            format!("{OPENID}{path}"),
            format!("{path}{OPENID}"),
        ]
    };
    paths.iter().filter_map(|path| at(issuer, path)).collect()
}

/// The URL with another path and nothing behind it.
fn at(url: &Url, path: &str) -> Option<Url> {
    let mut place = url.join(path).ok()?;
    place.set_query(None);
    Some(place)
}

fn is_server(json: &Json) -> bool {
    json["issuer"].is_string() || json["authorization_endpoint"].is_string()
}

/// Whether a resource is that of a URL, in the eyes of a client.
fn is_resource_of(compares: Compare, resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    match compares {
        Compare::Same => resource == *url,
        Compare::Below => {
            let with_slash = |path: &str| format!("{}/", path.trim_end_matches('/'));
            resource.origin() == url.origin()
                && with_slash(url.path()).starts_with(&with_slash(resource.path()))
        }
    }
}

/// The endpoints of a server without metadata.
fn defaults(base: &Url) -> Json {
    let endpoint = |path: &str| at(base, path).map(String::from);
    json!({
        "authorization_endpoint": endpoint("/authorize"),
        "token_endpoint": endpoint("/token"),
        "registration_endpoint": endpoint("/register"),
        "code_challenge_methods_supported": ["S256"],
    })
}

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const SERVER: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

#[cfg(test)]
mod tests {
    use super::super::discovery::*;

    #[test]
    fn places_are_those_of_the_specification() {
        for (issuer, wanted) in [
            (
                "https://a.test",
                &[
                    "/.well-known/oauth-authorization-server",
                    "/.well-known/openid-configuration",
                ][..],
            ),
            (
                "https://a.test/t/x/?y",
                &[
                    "/.well-known/oauth-authorization-server/t/x",
                    "/.well-known/openid-configuration/t/x",
                    "/t/x/.well-known/openid-configuration",
                ],
            ),
        ] {
            let places = server_places(&Url::parse(issuer).unwrap());
            let places: Vec<&str> = places.iter().map(|place| &place.as_str()[14..]).collect();
            assert_eq!(places, wanted, "{issuer}");
        }
    }

    #[test]
    fn resources_are_compared_as_clients_do() {
        for (resource, same, below) in [
            ("https://a.test/x/mcp", true, true),
            ("https://A.test:443/x/mcp", true, true),
            ("https://a.test", false, true),
            ("https://a.test/x/", false, true),
            ("https://a.test/x/mc", false, false),
            ("http://a.test/x/mcp", false, false),
            ("https://b.test/x/mcp", false, false),
            ("no URL", false, false),
        ] {
            let url = Url::parse("https://a.test/x/mcp").unwrap();
            assert_eq!(
                is_resource_of(Compare::Same, resource, &url),
                same,
                "{resource}"
            );
            assert_eq!(
                is_resource_of(Compare::Below, resource, &url),
                below,
                "{resource}"
            );
        }
    }
}

//! Strict parser of an authorization request, without I/O, used at every step.
//!
//! Client and redirect URI come first, because an error in them must never be sent to a redirect URI.
//! The other parameters come second. Not here: the decision on the request.

use std::{borrow::Cow, collections::BTreeSet};

use url::Url;

use crate::{
    auth::Thumbprint,
    declare::{OFFLINE_ACCESS, Tenant},
    endpoint::Site,
    oauth::{
        base::{Form, Resource, secret},
        clients::{Client, ClientProof, redirect},
    },
};

/// An authorization request whose client and redirect URI belong together, so that the response may
/// go to the client.
pub(super) struct AuthorizationRequest {
    /// The client that sent it.
    pub(super) client: Client,
    /// Destination of the response.
    pub(super) redirect: ClientRedirect,
    /// The other parameters.
    pub(super) parameters: RequestParameters,
    /// Digest of everything that a consent covers.
    pub(super) digest: [u8; 32],
}

impl AuthorizationRequest {
    /// Reports whether a consent answers the same request again: only if no other program can imitate the client,
    /// since it has a credential or its answer goes to a site (OAuth 2.1, section 7.3.1).
    pub(super) fn is_remembered(&self) -> bool {
        let has_credential = !matches!(self.client.proof, ClientProof::None);
        has_credential || redirect::is_site(&self.redirect.uri)
    }
}

/// Removes the parameters that demand a log-in from a query, after the log-in.
pub(super) fn without_log_in_prompt(query: &str) -> String {
    let kept = query.split('&').filter_map(|pair| {
        // Undecodable pairs were refused before.
        let (name, words) = url::form_urlencoded::parse(pair.as_bytes()).next()?;
        match &*name {
            "max_age" => None,
            "prompt" => {
                let rest: Vec<&str> = words.split(' ').filter(|word| !is_log_in(word)).collect();
                let mut text = url::form_urlencoded::Serializer::new(String::new());
                text.append_pair("prompt", &rest.join(" "));
                (!rest.is_empty()).then(|| Cow::Owned(text.finish()))
            }
            _ => Some(Cow::Borrowed(pair)),
        }
    });
    kept.collect::<Vec<_>>().join("&")
}

/// Adds `prompt=select_account` to a query: a client's own `prompt=login` stays.
pub(super) fn with_account_prompt(query: &str) -> String {
    with_prompt(query, "select_account", |word| word == "select_account")
}

/// Adds `prompt=consent` to a query.
pub(super) fn with_consent_prompt(query: &str) -> String {
    with_prompt(query, "consent", |word| word == "consent")
}

/// Adds a word to the `prompt` of a query, in the place of those that are like it.
fn with_prompt(query: &str, added: &str, is_like: fn(&str) -> bool) -> String {
    let mut has_prompt = false;
    let pairs =
        query.split('&').map(
            |pair| match url::form_urlencoded::parse(pair.as_bytes()).next() {
                Some((name, words)) if name == "prompt" => {
                    has_prompt = true;
                    let others = words
                        .split(' ')
                        .filter(|word| !word.is_empty() && !is_like(word));
                    let words: Vec<&str> = others.chain([added]).collect();
                    let mut text = url::form_urlencoded::Serializer::new(String::new());
                    text.append_pair("prompt", &words.join(" "));
                    Cow::Owned(text.finish())
                }
                _ => Cow::Borrowed(pair),
            },
        );
    let mut pairs: Vec<_> = pairs.collect();
    if !has_prompt {
        pairs.push(Cow::Owned(format!("prompt={added}")));
    }
    pairs.join("&")
}

fn is_log_in(word: &str) -> bool {
    matches!(word, "login" | "select_account")
}

/// The destination of a response, known to belong to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientRedirect {
    /// The redirect URI.
    pub(crate) uri: String,
    /// The redirect URI if the request named it, otherwise empty. The code is bound to it.
    pub(super) sent: String,
    /// The client's `state`.
    pub(crate) state: Option<String>,
    /// The issuer (RFC 9207).
    pub(crate) issuer: String,
}

impl ClientRedirect {
    /// Builds the URL of a response with these parameters, `state` and `iss`. The query of the
    /// redirect URI is kept.
    pub(crate) fn with(&self, parameters: &[(&str, &str)]) -> String {
        let mut text = url::form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(parameters);
        if let Some(state) = &self.state {
            text.append_pair("state", state);
        }
        text.append_pair("iss", &self.issuer);
        let separator = match self.uri.split_once('?') {
            None => "?",
            Some((_, "")) => "",
            Some((_, query)) if query.ends_with('&') => "",
            Some(_) => "&",
        };
        // Some clients do not decode `+` as a space.
        format!(
            "{}{separator}{}",
            self.uri,
            text.finish().replace('+', "%20")
        )
    }

    /// Builds the URL of a refusal.
    pub(super) fn refusal_url(&self, refusal: &AuthorizationRefusal) -> String {
        self.with(&[
            ("error", refusal.error),
            ("error_description", refusal.description),
        ])
    }

    /// Returns the host to show to people, or the scheme of an app.
    pub(super) fn shown_host(&self) -> String {
        let Ok(url) = Url::parse(&self.uri) else {
            return self.uri.clone();
        };
        match (url.scheme(), url.host_str(), url.port()) {
            ("http" | "https", Some(host), Some(port)) => format!("{host}:{port}"),
            ("http" | "https", Some(host), None) => host.to_owned(),
            (scheme, _, _) => format!("{scheme}:"),
        }
    }
}

/// An error response to the client (RFC 6749, section 4.1.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizationRefusal {
    /// The error code.
    pub(crate) error: &'static str,
    /// A description for the client's developer, in the characters that RFC 6749 allows.
    pub(super) description: &'static str,
}

const fn refusal(error: &'static str, description: &'static str) -> AuthorizationRefusal {
    AuthorizationRefusal { error, description }
}

/// The parameters of a request other than client, redirect URI and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestParameters {
    /// The resource.
    pub(crate) resource: Resource,
    /// The requested scopes that exist, sorted.
    pub(crate) scopes: BTreeSet<String>,
    /// The S256 challenge.
    pub(crate) challenge: String,
    /// The thumbprint of the key that has to redeem the code (RFC 9449, section 10).
    pub(super) jkt: Option<String>,
    /// The requested prompts.
    pub(super) prompt: Prompt,
    /// Maximum age of the log-in in seconds.
    pub(super) max_age: Option<u64>,
}

/// The values of `prompt` (OpenID Connect Core, section 3.1.2.1).
#[expect(
    clippy::struct_excessive_bools,
    reason = "words, of which each may be there"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    /// No page may be shown.
    pub(crate) none: bool,
    /// The person must log in again, or choose an account.
    pub(crate) login: bool,
    /// The person must log in again; it is not enough to choose an account.
    pub(crate) credentials: bool,
    /// The person must consent again.
    pub(crate) consent: bool,
}

impl RequestParameters {
    /// Parses all parameters other than client and redirect URI.
    pub(crate) fn read(
        parameters: &Form,
        place: Site<'_>,
        tenant: &Tenant,
    ) -> Result<Self, AuthorizationRefusal> {
        let invalid = |description| refusal("invalid_request", description);
        if parameters.repeated(&["resource"]).is_some() {
            return Err(invalid("a parameter is there more than once"));
        }
        // RFC 8707, section 2, allows several, but a token of this server has one audience.
        if parameters.count("resource") > 1 {
            return Err(refusal("invalid_target", "more than one resource"));
        }
        let text = |name| parameters.get(name);
        if text("request").is_some() {
            return Err(refusal("request_not_supported", "request is not supported"));
        }
        if text("request_uri").is_some() {
            let what = "request_uri is not supported";
            return Err(refusal("request_uri_not_supported", what));
        }
        match text("response_type") {
            Some("code") => {}
            None => return Err(invalid("response_type is missing")),
            Some(_) => {
                let what = "response_type must be code";
                return Err(refusal("unsupported_response_type", what));
            }
        }
        if text("response_mode").is_some_and(|mode| mode != "query") {
            return Err(invalid("response_mode must be query"));
        }
        let challenge = challenge(text("code_challenge"), text("code_challenge_method"))?;
        let jkt = text("dpop_jkt").map(str::to_owned);
        if jkt
            .as_ref()
            .is_some_and(|jkt| Thumbprint::parse(jkt).is_none())
        {
            return Err(invalid("dpop_jkt is no thumbprint"));
        }
        let max_age = match text("max_age").map(str::parse) {
            None => None,
            Some(Ok(seconds)) => Some(seconds),
            Some(Err(_)) => return Err(invalid("max_age is no number")),
        };
        let resource = match text("resource") {
            Some(text) => Resource::named(place, &tenant.name, text),
            None => Resource::unnamed(place, tenant),
        };
        let what = "resource must be the URL of an MCP server here, byte for byte";
        let resource = resource.ok_or(refusal("invalid_target", what))?;
        let scopes = scopes(text("scope"), tenant, &resource)?;
        Ok(Self {
            resource,
            scopes,
            challenge,
            jkt,
            prompt: prompt(text("prompt"))?,
            max_age,
        })
    }

    /// Returns the scopes, separated by spaces.
    pub(crate) fn scope(&self) -> String {
        let scopes: Vec<&str> = self.scopes.iter().map(String::as_str).collect();
        scopes.join(" ")
    }

    /// Computes the digest of everything that a consent covers. Any change requires a new consent.
    pub(crate) fn digest(&self, back: &ClientRedirect, client: &[u8; 32]) -> [u8; 32] {
        let scope = self.scope();
        let parts = [&back.uri, &scope, &self.resource.url, &back.issuer];
        // JSON keeps the parts apart.
        secret::hash(&serde_json::json!([parts, client]).to_string())
    }
}

/// Checks the PKCE challenge: required for every client, with S256 only (OAuth 2.1, section 4.1.1).
fn challenge(
    challenge: Option<&str>,
    method: Option<&str>,
) -> Result<String, AuthorizationRefusal> {
    let invalid = |description| Err(refusal("invalid_request", description));
    let Some(challenge) = challenge else {
        return invalid("code_challenge is missing");
    };
    // The default method is `plain` (RFC 7636, section 4.3).
    if method != Some("S256") {
        return invalid("code_challenge_method must be S256");
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if challenge.len() != 43 || !challenge.bytes().all(fits) {
        return invalid("code_challenge is no S256 challenge");
    }
    Ok(challenge.to_owned())
}

/// Parses `prompt`; unknown values are ignored.
fn prompt(text: Option<&str>) -> Result<Prompt, AuthorizationRefusal> {
    let mut prompt = Prompt::default();
    let words: Vec<&str> = text.unwrap_or_default().split(' ').collect();
    for word in &words {
        match *word {
            "none" => prompt.none = true,
            "consent" => prompt.consent = true,
            word if is_log_in(word) => {
                prompt.login = true;
                prompt.credentials |= word == "login";
            }
            _ => {}
        }
    }
    if prompt.none && words.len() > 1 {
        let what = "prompt=none goes with nothing else";
        return Err(refusal("invalid_request", what));
    }
    Ok(prompt)
}

/// The requested scopes that exist; if none is named, those that a client begins with (RFC 6749,
/// section 3.3: "a pre-defined default value").
fn scopes(
    text: Option<&str>,
    tenant: &Tenant,
    resource: &Resource,
) -> Result<BTreeSet<String>, AuthorizationRefusal> {
    let server = tenant.servers.get(&resource.server);
    let Some(text) = text else {
        let baseline = tenant.baseline_scopes(server).into_iter();
        let baseline = baseline.filter(|scope| *scope != OFFLINE_ACCESS);
        return Ok(baseline.map(str::to_owned).collect());
    };
    let asked = resource.existing_scopes(tenant, text);
    let mut asked = asked.map_err(|wrong| refusal("invalid_scope", wrong))?;
    // The token response has to name a scope that differs from the requested one, and cannot name an empty one
    // (RFC 6749, section 5.1); a refresh token is what every client gets. Not `invalid_scope`: there are clients
    // that request `openid email profile` of every server.
    if asked.is_empty() {
        asked.insert(OFFLINE_ACCESS.to_owned());
    }
    Ok(asked)
}

#[cfg(test)]
#[path = "../tests/authorization_request.rs"]
mod tests;

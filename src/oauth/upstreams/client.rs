//! Requests to upstreams: metadata, tokens, introspection and revocation.
//!
//! Not here: the turns of replicas and the stored tokens (`source`).

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::{
    base::{Outbound, OutboundError, Secret},
    database::Tokens,
    declare::{Upstream, UpstreamEndpoints, is_secret},
    endpoint::issuer_metadata_urls,
    oauth::base::{ClientAt, secret},
};

/// The client of all upstreams; clones share the cached metadata.
#[derive(Clone)]
pub(crate) struct UpstreamClient {
    outbound: Outbound,
    known: Cache<String, Arc<Endpoints>>,
    /// The last ones, which serve while others cannot be had.
    last: Cache<String, Arc<Endpoints>>,
}

/// The parameters of one redirect to an upstream; each value but the callback is random and used once.
pub(crate) struct Departure<'d> {
    /// The redirect URI at the gateway.
    pub(crate) callback: &'d str,
    /// Binds the response to the browser (RFC 6749, section 10.12).
    pub(crate) state: &'d str,
    /// Binds the code to the gateway (RFC 7636).
    pub(crate) verifier: &'d str,
}

/// How often a request can be made.
#[derive(Clone, Copy)]
enum Times {
    /// As often as there is somebody who wants it.
    Any,
    /// Once: it may use up a code or a refresh token.
    Once,
}

/// Reason why an upstream gave nothing; the texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamError {
    /// It is unreachable or too slow.
    Unavailable(String),
    /// It says that code or refresh token are not valid (RFC 6749, section 5.2).
    Ended,
    /// Its response is invalid.
    Invalid(String),
}

impl From<OutboundError> for UpstreamError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Unconnected(what) | OutboundError::Unreachable(what) => {
                Self::Unavailable(what)
            }
            OutboundError::Response(unexpected) => Self::Unavailable(unexpected.to_string()),
            OutboundError::Url(what) => Self::Invalid(what.to_owned()),
        }
    }
}

/// The endpoints of an upstream, as metadata have them (RFC 8414, section 2).
#[derive(Deserialize)]
struct Endpoints {
    issuer: Option<String>,
    authorization_endpoint: String,
    token_endpoint: String,
    revocation_endpoint: Option<String>,
    introspection_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

impl Endpoints {
    /// Basic, unless the upstream excludes it (RFC 6749, section 2.3.1). Without metadata in the body, as
    /// documented by services of this kind.
    fn takes_basic(&self) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.as_ref();
        let is_basic = |all: &Vec<String>| all.iter().any(|one| one == "client_secret_basic");
        self.issuer.is_some() && methods.is_none_or(is_basic)
    }
}

impl UpstreamClient {
    /// A client without metadata, which reaches upstreams through `outbound`.
    pub(crate) fn new(outbound: Outbound) -> Self {
        let cache = |life| Cache::builder().max_capacity(ISSUERS).time_to_live(life);
        Self {
            outbound,
            known: cache(FRESH).build(),
            last: cache(LAST).build(),
        }
    }

    /// The URL at the upstream where the person allows the connection.
    pub(crate) async fn authorization_url(
        &self,
        upstream: &Upstream,
        departure: &Departure<'_>,
    ) -> Result<Url, UpstreamError> {
        let endpoints = self.endpoints(upstream).await?;
        let invalid = || UpstreamError::Invalid("its authorization endpoint is no page".to_owned());
        let mut url = Url::parse(&endpoints.authorization_endpoint).map_err(|_| invalid())?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(invalid());
        }
        let challenge = secret::challenge(departure.verifier);
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &upstream.client_id)
            .append_pair("redirect_uri", departure.callback)
            .append_pair("state", departure.state)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        if !upstream.scopes.is_empty() {
            query.append_pair("scope", &upstream.scopes.join(" "));
        }
        let more = &upstream.authorization_parameters;
        let is_offline = upstream.scopes.iter().any(|scope| scope == OFFLINE);
        if is_offline && !more.contains_key("prompt") {
            // OpenID Connect Core, section 11: without it there is no refresh token.
            query.append_pair("prompt", "consent");
        }
        query.extend_pairs(more);
        if let Some(resource) = &upstream.resource {
            query.append_pair("resource", resource);
        }
        drop(query);
        Ok(url)
    }

    /// Reports whether a response may come from this upstream by its `iss` (RFC 9207, section 2.4). Each
    /// upstream has a callback of its own besides (RFC 9700, section 4.4).
    pub(crate) async fn is_from(
        &self,
        upstream: &Upstream,
        iss: Option<&str>,
    ) -> Result<bool, UpstreamError> {
        let endpoints = self.endpoints(upstream).await?;
        Ok(match (iss, &endpoints.issuer) {
            (Some(iss), Some(issuer)) => iss == issuer,
            (None, Some(_)) => !endpoints.authorization_response_iss_parameter_supported,
            (_, None) => true,
        })
    }

    /// Redeems the code of a person who returned, which is good once (RFC 6749, section 4.1.2).
    pub(crate) async fn redeem(
        &self,
        upstream: &Upstream,
        departure: &Departure<'_>,
        code: &str,
        now_ms: i64,
    ) -> Result<Tokens, UpstreamError> {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", departure.callback),
            ("code_verifier", departure.verifier),
        ];
        self.tokens(upstream, &form, now_ms, Times::Once).await
    }

    /// Gets new tokens for a refresh token, which the upstream may not take again.
    pub(crate) async fn refresh(
        &self,
        upstream: &Upstream,
        refresh: &Secret,
        now_ms: i64,
    ) -> Result<Tokens, UpstreamError> {
        let form = [
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh.expose()),
        ];
        let tokens = self.tokens(upstream, &form, now_ms, Times::Once);
        let mut tokens = tokens.await?;
        // RFC 6749, section 6: without a new one the old one stays valid.
        tokens.refresh.get_or_insert_with(|| refresh.clone());
        Ok(tokens)
    }

    async fn tokens(
        &self,
        upstream: &Upstream,
        form: &[(&str, &str)],
        now_ms: i64,
        times: Times,
    ) -> Result<Tokens, UpstreamError> {
        let endpoints = self.endpoints(upstream).await?;
        let mut form = form.to_vec();
        form.extend(upstream.resource.as_deref().map(|url| ("resource", url)));
        let url = &endpoints.token_endpoint;
        let answer = self
            .ask(upstream, &endpoints, (url.as_str(), form.as_slice()), times)
            .await?;
        read_tokens(upstream, &answer, now_ms)
    }

    /// Reports whether the upstream can be asked about tokens.
    pub(crate) async fn introspects(&self, upstream: &Upstream) -> Result<bool, UpstreamError> {
        let endpoints = self.endpoints(upstream).await?;
        Ok(endpoints.introspection_endpoint.is_some())
    }

    /// Reports whether the upstream says that a token is active; none if it cannot be asked.
    pub(crate) async fn is_active(
        &self,
        upstream: &Upstream,
        token: &Secret,
    ) -> Result<Option<bool>, UpstreamError> {
        let endpoints = self.endpoints(upstream).await?;
        let Some(url) = &endpoints.introspection_endpoint else {
            return Ok(None);
        };
        let form = [
            ("token", token.expose()),
            ("token_type_hint", "access_token"),
        ];
        let asked = self.ask(
            upstream,
            &endpoints,
            (url.as_str(), form.as_slice()),
            Times::Any,
        );
        let answer = asked.await?;
        let active = answer.get("active").and_then(Value::as_bool);
        let silent =
            || UpstreamError::Invalid("it does not say whether a token is active".to_owned());
        Ok(Some(active.ok_or_else(silent)?))
    }

    /// Revokes the tokens at the upstream, where it has an endpoint for it (RFC 7009).
    pub(crate) async fn revoke(&self, upstream: &Upstream, tokens: &Tokens) {
        let Ok(endpoints) = self.endpoints(upstream).await else {
            return;
        };
        let Some(url) = &endpoints.revocation_endpoint else {
            return;
        };
        // The access tokens of the grant end with it.
        let (token, hint) = match &tokens.refresh {
            Some(refresh) => (refresh, "refresh_token"),
            None => (&tokens.access, "access_token"),
        };
        let form = [("token", token.expose()), ("token_type_hint", hint)];
        // A success has no content.
        let asked = self.ask(
            upstream,
            &endpoints,
            (url.as_str(), form.as_slice()),
            Times::Any,
        );
        _ = asked.await;
    }

    /// Sends a form with the credentials of the gateway; the answer is an object, also an error.
    async fn ask(
        &self,
        upstream: &Upstream,
        endpoints: &Endpoints,
        (url, form): (&str, &[(&str, &str)]),
        times: Times,
    ) -> Result<Map<String, Value>, UpstreamError> {
        let invalid = |what: &str| UpstreamError::Invalid(format!("{url}: {what}"));
        let client = ClientAt {
            id: &upstream.client_id,
            secret: upstream.client_secret.as_ref(),
            is_basic: endpoints.takes_basic(),
        };
        let request = client.form(url, form);
        let request = request.ok_or_else(|| invalid("it cannot be asked"))?;
        let answer = match times {
            Times::Any => self.outbound.exchange(request, ANSWER).await?,
            Times::Once => self.outbound.exchange_once(request, ANSWER).await?,
        };
        serde_json::from_slice(answer.body()).map_err(|_| invalid("no JSON object"))
    }

    /// The endpoints; concurrent callers share one fetch of metadata.
    async fn endpoints(&self, upstream: &Upstream) -> Result<Arc<Endpoints>, UpstreamError> {
        match &upstream.endpoints {
            UpstreamEndpoints::Discovered { issuer } => {
                let fetched = self.known.try_get_with(issuer.clone(), self.latest(issuer));
                fetched.await.map_err(|error| (*error).clone())
            }
            UpstreamEndpoints::Declared {
                authorization,
                token,
                revocation,
                introspection,
            } => Ok(Arc::new(Endpoints {
                issuer: None,
                authorization_endpoint: authorization.clone(),
                token_endpoint: token.clone(),
                revocation_endpoint: revocation.clone(),
                introspection_endpoint: introspection.clone(),
                token_endpoint_auth_methods_supported: None,
                authorization_response_iss_parameter_supported: false,
            })),
        }
    }

    /// The metadata of an issuer, or the last ones while it does not have them: what needs no new ones must not fail, or
    /// wait each time, because of that.
    async fn latest(&self, issuer: &str) -> Result<Arc<Endpoints>, UpstreamError> {
        match self.discover(issuer).await {
            Ok(found) => {
                let known = Arc::clone(&found);
                self.last.insert(issuer.to_owned(), known).await;
                Ok(found)
            }
            Err(UpstreamError::Unavailable(why)) => {
                tracing::warn!(issuer, why, "the metadata of an upstream cannot be had");
                let last = self.last.get(issuer).await;
                last.ok_or(UpstreamError::Unavailable(why))
            }
            Err(error) => Err(error),
        }
    }

    async fn discover(&self, issuer: &str) -> Result<Arc<Endpoints>, UpstreamError> {
        let mut last = UpstreamError::Invalid("its issuer is no URL".to_owned());
        for url in issuer_metadata_urls(issuer) {
            let document = match self.outbound.json(&url, ANSWER).await {
                Ok(document) => document,
                // The next place may have them.
                Err(error @ OutboundError::Response(_)) => {
                    last = error.into();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let lacking = |_| UpstreamError::Invalid("its metadata lack an endpoint".to_owned());
            let found: Endpoints = serde_json::from_slice(&document).map_err(lacking)?;
            // RFC 8414, section 3.3.
            if found.issuer.as_deref() != Some(issuer) {
                let what = "its metadata are of another issuer".to_owned();
                return Err(UpstreamError::Invalid(what));
            }
            return Ok(Arc::new(found));
        }
        Err(last)
    }
}

/// Reads a token response (RFC 6749, sections 5.1 and 5.2), whatever its status: some services refuse with
/// 200.
fn read_tokens(
    upstream: &Upstream,
    answer: &Map<String, Value>,
    now_ms: i64,
) -> Result<Tokens, UpstreamError> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let invalid = |what: &str| UpstreamError::Invalid(format!("its tokens: {what}"));
    match text("error") {
        Some("invalid_grant" | "bad_refresh_token") => return Err(UpstreamError::Ended),
        Some(error) if REFUSALS.contains(&error) => return Err(invalid(error)),
        Some(_) => return Err(invalid("refused")),
        None => {}
    }
    let is_token = |text: &&str| is_secret(text);
    let access = text("access_token").filter(is_token);
    let access = access.ok_or_else(|| invalid("no access token"))?;
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err(invalid("no bearer token"));
    }
    let lasts_s = answer.get("expires_in").and_then(seconds);
    let expires = |s: i64| now_ms.saturating_add(s.max(0).saturating_mul(1000));
    Ok(Tokens {
        access: Secret::new(access.to_owned()),
        refresh: text("refresh_token")
            .filter(is_token)
            .map(|text| Secret::new(text.to_owned())),
        given_ms: now_ms,
        expires_ms: lasts_s.map(expires),
        authority: upstream.authority(),
    })
}

/// Seconds in an answer. There are servers that write them as a text or with a fraction, and a token of which none is
/// known is used for ever.
fn seconds(value: &Value) -> Option<i64> {
    let number = value.as_f64();
    let number = number.or_else(|| value.as_str()?.trim().parse().ok());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is beyond is the bound"
    )]
    number
        .filter(|number| number.is_finite())
        .map(|number| number as i64)
}

/// The scope by which an OpenID provider gives a refresh token.
const OFFLINE: &str = "offline_access";
/// Errors that are logged by their name; others may be anything.
const REFUSALS: [&str; 5] = [
    "invalid_client",
    "invalid_request",
    "invalid_scope",
    "unauthorized_client",
    "unsupported_grant_type",
];
/// Maximum upstreams with cached metadata.
const ISSUERS: u64 = 256;
/// Lifetime of cached metadata.
const FRESH: Duration = Duration::from_secs(300);
/// Lifetime of the last metadata.
const LAST: Duration = Duration::from_hours(1);
/// Maximum size of a response in bytes.
const ANSWER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;

    /// A start with a token that was good for hours waited for the metadata, and each refresh failed.
    #[tokio::test]
    async fn the_last_metadata_serve_while_others_cannot_be_had() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let metadata =
            json!({"issuer": issuer, "authorization_endpoint": "a", "token_endpoint": "t"});
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                assert_ne!(socket.read(&mut request).await.unwrap(), 0);
                let (body, head) = (metadata.to_string(), "HTTP/1.1 200 OK\r\nConnection: close");
                let kind = format!(
                    "Content-Type: application/json\r\nContent-Length: {}",
                    body.len()
                );
                let answer = format!("{head}\r\n{kind}\r\n\r\n{body}");
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let upstream = Upstream {
            name: "hub".to_owned(),
            title: String::new(),
            endpoints: UpstreamEndpoints::Discovered {
                issuer: issuer.clone(),
            },
            client_id: "gateway".to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            authorization_parameters: BTreeMap::new(),
            resource: None,
        };
        let client = UpstreamClient::new(Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]));
        let first = client.endpoints(&upstream).await.unwrap();
        tasks.shutdown().await;
        client.known.invalidate(&issuer).await;
        let then = client.endpoints(&upstream).await.unwrap();
        assert!(Arc::ptr_eq(&first, &then));
        client.known.invalidate(&issuer).await;
        client.last.invalidate(&issuer).await;
        let away = client.endpoints(&upstream).await;
        assert!(matches!(away, Err(UpstreamError::Unavailable(_))));
    }

    /// A service that took longer had used the code up and given tokens that were lost: no person could connect.
    #[tokio::test]
    async fn a_code_is_waited_for_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let client = UpstreamClient::new(outbound.clone());
        let upstream = Upstream {
            name: "hub".to_owned(),
            title: String::new(),
            endpoints: UpstreamEndpoints::Declared {
                authorization: url.clone(),
                token: url.clone(),
                revocation: None,
                introspection: None,
            },
            client_id: "gateway".to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            authorization_parameters: BTreeMap::new(),
            resource: None,
        };
        let departure = Departure {
            callback: "https://gw.test/callback",
            state: "s",
            verifier: "v",
        };
        let slow = async {
            let (mut once, _) = listener.accept().await.unwrap();
            _ = once.read(&mut [0; 4096]).await.unwrap();
            // It ends later than the time that any other one has.
            let other = outbound.json(&url, ANSWER).await;
            let body = json!({"access_token": "at", "token_type": "bearer"}).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            _ = once.write_all(answer.as_bytes()).await;
            (other, once)
        };
        let (got, (other, _once)) =
            tokio::join!(client.redeem(&upstream, &departure, "c", 0), slow);
        assert!(other.is_err());
        assert_eq!(got.unwrap().access.expose(), "at");
    }

    #[test]
    fn seconds_are_numbers_or_texts() {
        for (value, wanted) in [
            (json!(3600), Some(3600)),
            (json!("3599"), Some(3599)),
            (json!(" 3599.7 "), Some(3599)),
            (json!(3600.5), Some(3600)),
            (json!(-1), Some(-1)),
            (json!(1e300), Some(i64::MAX)),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!("soon"), None),
            (json!(null), None),
            (json!([1]), None),
        ] {
            assert_eq!(seconds(&value), wanted, "{value}");
        }
    }
}

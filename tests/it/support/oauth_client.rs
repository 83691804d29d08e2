//! A headless client of an authorization server: registration, log-in and consent as ada, tokens.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::{Method, Response, StatusCode, header::HeaderMap};
use serde_json::{Value, json};

use crate::support::{
    browser::Browser,
    dpop::Prover,
    harness::{child, client, client_with, within},
    served::Served,
};

/// The redirect URI.
pub(crate) const BACK: &str = "http://127.0.0.1:9/cb";
/// The code verifier of RFC 7636, appendix B.
pub(crate) const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// A gateway of [`tenants`].
pub(crate) async fn gateway(config: Value) -> Served {
    Served::start(config, tenants()).await
}

/// Tenants `a` and `b`, which are alike: users ada and eve, servers x (which names scopes) and y; x
/// is the default server. Tenant `k` uses API keys.
pub(crate) fn tenants() -> Value {
    let tenant = || {
        let policy = json!({"scopes": {"delete_*": ["files:write"]}});
        json!({
            "auth": {"mode": "builtin", "scopes": ["files:read"]},
            "default_server": "x",
            "users": {"ada": {"password": "correct horse", "groups": ["eng"]},
                "eve": {"password": "correct horse"}},
            "clients": {"app": {"title": "App", "redirect_uris": [BACK], "secret": SECRET}},
            "servers": {"x": {"command": child(), "policy": policy}, "y": {"command": child()}},
        })
    };
    let keys = json!({"auth": {"mode": "keys"}, "servers": {"oauth": {"command": child()}}});
    json!({"a": tenant(), "b": tenant(), "k": keys})
}

/// The secret of the client `app`.
pub(crate) const SECRET: &str = "a secret of 32 bytes and a few more";

/// An answer of the authorization server.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) async fn of(response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = within("an answer", response.text()).await.unwrap();
        Self {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
        }
    }

    /// A header, or an empty text.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// A text member of the body.
    pub(crate) fn text(&self, name: &str) -> String {
        let text = self.body[name].as_str();
        text.unwrap_or_else(|| panic!("no {name}: {} {}", self.status, self.body))
            .to_owned()
    }

    /// Asserts a refusal (RFC 6749, section 5.2) that no cache keeps.
    pub(crate) fn assert_refused(&self, status: u16, error: &str) {
        let got = (self.status.as_u16(), self.body["error"].as_str());
        assert_eq!(got, (status, Some(error)), "{}", self.body);
        assert!(self.body["error_description"].is_string());
        self.assert_not_kept();
        assert_eq!(status == 401, self.headers.contains_key("www-authenticate"));
        assert_eq!(self.header("content-type"), "application/json");
    }

    pub(crate) fn assert_not_kept(&self) {
        let fields = (self.header("cache-control"), self.header("pragma"));
        assert_eq!(fields, ("no-store", "no-cache"));
    }
}

/// Posts a form.
pub(crate) async fn post(url: &str, fields: &[(&str, &str)]) -> Answer {
    post_with(url, fields, None).await
}

/// Posts a form, with `Authorization`.
pub(crate) async fn post_with(url: &str, fields: &[(&str, &str)], by: Option<&str>) -> Answer {
    post_by(&client(), url, fields, by).await
}

/// The same with a proof of the key that a token is bound to, for the URL.
pub(crate) async fn post_proved(
    url: &str,
    fields: &[(&str, &str)],
    by: Option<&str>,
    proof: Option<&Prover>,
) -> Answer {
    let mut headers = HeaderMap::new();
    if let Some(prover) = proof {
        headers.insert("DPoP", prover.for_token(url).parse().unwrap());
    }
    post_by(&client_with(headers), url, fields, by).await
}

async fn post_by(
    http: &reqwest::Client,
    url: &str,
    fields: &[(&str, &str)],
    by: Option<&str>,
) -> Answer {
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    let mut request = http
        .post(url)
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(body);
    if let Some(by) = by {
        request = request.header("Authorization", by);
    }
    Answer::of(within("an answer", request.send()).await.unwrap()).await
}

/// Sends JSON, or nothing, with a bearer token.
pub(crate) async fn send(method: Method, url: &str, token: &str, body: Option<&Value>) -> Answer {
    let mut request = client().request(method, url);
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request
            .header("Content-Type", "application/json")
            .body(body.to_string());
    }
    Answer::of(within("an answer", request.send()).await.unwrap()).await
}

/// Registers a client with a tenant.
pub(crate) async fn register(gateway: &Served, tenant: &str, metadata: &Value) -> Answer {
    let url = format!("{}/t/{tenant}/oauth/register", gateway.origin());
    send(Method::POST, &url, "", Some(metadata)).await
}

/// A client at a tenant's authorization server.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) origin: String,
    pub(crate) tenant: String,
    pub(crate) id: String,
    pub(crate) back: String,
    /// The secret of `client_secret_post`.
    pub(crate) secret: Option<String>,
    /// One HTTP client for all requests, since it is slow to create.
    pub(crate) http: reqwest::Client,
}

impl App {
    /// A public client that has just registered.
    pub(crate) async fn public(gateway: &Served, tenant: &str) -> Self {
        Self::registered(gateway, tenant, BACK).await
    }

    /// A public client that has just registered and is a site, so that its consent is remembered.
    pub(crate) async fn site(gateway: &Served, tenant: &str) -> Self {
        Self::registered(gateway, tenant, "https://app.test/cb").await
    }

    async fn registered(gateway: &Served, tenant: &str, back: &str) -> Self {
        let metadata = json!({"redirect_uris": [back], "client_name": "Public",
            "token_endpoint_auth_method": "none"});
        let answer = register(gateway, tenant, &metadata).await;
        let app = Self::of(gateway, tenant, &answer.text("client_id"));
        let back = back.to_owned();
        Self { back, ..app }
    }

    /// A client with this id.
    pub(crate) fn of(gateway: &Served, tenant: &str, id: &str) -> Self {
        Self {
            origin: gateway.origin().to_owned(),
            tenant: tenant.to_owned(),
            id: id.to_owned(),
            back: BACK.to_owned(),
            secret: None,
            http: client(),
        }
    }

    /// An endpoint of its tenant.
    pub(crate) fn endpoint(&self, name: &str) -> String {
        format!("{}/t/{}/oauth/{name}", self.origin, self.tenant)
    }

    /// The authorization URL for ada.
    pub(crate) fn request(&self, more: &[(&str, &str)]) -> String {
        let own = [
            ("response_type", "code"),
            ("client_id", &self.id),
            ("redirect_uri", &self.back),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("state", "st"),
        ];
        let own = own
            .iter()
            .filter(|(name, _)| more.iter().all(|(new, _)| new != name));
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(own.chain(more))
            .finish();
        format!("{}?{query}", self.endpoint("authorize"))
    }

    /// The parameters of the redirect after ada logs in and allows.
    pub(crate) async fn answer(&self, more: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut browser = Browser::new();
        let login = browser.open(&self.request(more)).await;
        assert_eq!(login.status, StatusCode::OK, "{}", login.text);
        let ada = [("username", "ada"), ("password", "correct horse")];
        let sent = browser.submit(&login, &ada).await;
        let consent = browser.follow(sent, &self.origin).await;
        if consent.location().is_some() {
            // The consent is remembered.
            return consent.answer();
        }
        let done = browser.submit(&consent, &[("decision", "allow")]).await;
        done.answer()
    }

    /// An authorization code for ada.
    pub(crate) async fn code(&self, more: &[(&str, &str)]) -> String {
        let answer = self.answer(more).await;
        assert_eq!(answer["state"], "st");
        answer["code"].clone()
    }

    /// Sends a token request; `changed` replaces its own parameters.
    pub(crate) async fn ask(&self, changed: &[(&str, &str)]) -> Answer {
        let mut fields = vec![("client_id", self.id.as_str())];
        fields.extend(
            self.secret
                .as_deref()
                .map(|secret| ("client_secret", secret)),
        );
        fields.retain(|(name, _)| changed.iter().all(|(new, _)| new != name));
        fields.extend_from_slice(changed);
        fields.retain(|(_, value)| !value.is_empty());
        post_by(&self.http, &self.endpoint("token"), &fields, None).await
    }

    /// Redeems a code; `changed` replaces the code's own parameters.
    pub(crate) async fn redeem(&self, code: &str, changed: &[(&str, &str)]) -> Answer {
        let own = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.back),
            ("code_verifier", VERIFIER),
        ];
        let mut fields: Vec<(&str, &str)> = own.to_vec();
        fields.retain(|(name, _)| changed.iter().all(|(new, _)| new != name));
        fields.extend_from_slice(changed);
        self.ask(&fields).await
    }

    /// Tokens from a new log-in.
    pub(crate) async fn tokens(&self) -> Answer {
        let answer = self.redeem(&self.code(&[]).await, &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer
    }

    /// Uses a refresh token.
    pub(crate) async fn refresh(&self, token: &str, more: &[(&str, &str)]) -> Answer {
        let own = [("grant_type", "refresh_token"), ("refresh_token", token)];
        self.ask(&[&own, more].concat()).await
    }

    /// Revokes a token; the status.
    pub(crate) async fn revoke(&self, token: &str) -> StatusCode {
        let mut fields = vec![("client_id", self.id.as_str()), ("token", token)];
        fields.extend(
            self.secret
                .as_deref()
                .map(|secret| ("client_secret", secret)),
        );
        post(&self.endpoint("revoke"), &fields).await.status
    }

    /// True if an access token is valid at a server of its tenant. The request has no session id,
    /// so a valid token gets 400 and starts no child.
    pub(crate) async fn reaches(&self, server: &str, token: &str) -> bool {
        let url = format!("{}/t/{}/{server}/mcp", self.origin, self.tenant);
        let asked = client().get(url).bearer_auth(token);
        let asked = asked.header("Accept", "text/event-stream").send();
        let status = within("a status", asked).await.unwrap().status();
        assert!(matches!(status.as_u16(), 400 | 401), "{status}");
        status == StatusCode::BAD_REQUEST
    }
}

/// The header and the claims of an access token.
pub(crate) fn said(token: &str) -> (Value, Value) {
    let mut parts = token.split('.');
    let mut part = || {
        let bytes = URL_SAFE_NO_PAD.decode(parts.next().unwrap()).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    (part(), part())
}

/// The `Authorization` header of `client_secret_basic`.
pub(crate) fn basic(id: &str, secret: &str) -> String {
    use base64::engine::general_purpose::STANDARD;
    let encode =
        |text: &str| -> String { url::form_urlencoded::byte_serialize(text.as_bytes()).collect() };
    format!(
        "Basic {}",
        STANDARD.encode(format!("{}:{}", encode(id), encode(secret)))
    )
}

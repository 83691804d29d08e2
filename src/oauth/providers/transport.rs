//! Requests to identity providers, through the guarded outbound client.

use std::time::Duration;

use http::{
    StatusCode,
    header::{ACCEPT, AUTHORIZATION},
};
use oauth2::{
    AsyncHttpClient, ExtraTokenFields, HttpRequest, HttpResponse, RequestTokenError,
    StandardTokenResponse, TokenResponse,
    basic::{BasicErrorResponse, BasicTokenType},
};
use serde_json::{Map, Value};
use url::Url;

use super::provider::{ANSWER, ExchangeError, ProviderError, ProviderFuture, ProviderTokens};
use crate::{
    auth::jose::members,
    base::{Outbound, OutboundError, Secret},
    declare::{Provider, is_secret},
    oauth::base::ClientAt,
};

/// The HTTP client of the `oauth2` crate: the guarded outbound client. It sends codes and refresh tokens alone, which may be
/// good for one request (RFC 6749, sections 4.1.2 and 10.4).
pub(super) struct OutboundClient<'o>(pub(super) &'o Outbound);

impl<'c> AsyncHttpClient<'c> for OutboundClient<'_> {
    type Error = OutboundError;
    type Future = ProviderFuture<'c, Result<HttpResponse, OutboundError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.0.exchange_once(request, ANSWER))
    }
}

/// Parses a URL.
pub(super) fn url(text: &str) -> Result<Url, ProviderError> {
    Url::parse(text).map_err(|_| ProviderError::Invalid(format!("{text:?} is no URL")))
}

/// An error of a request to the token endpoint.
type TokenError = RequestTokenError<OutboundError, BasicErrorResponse>;

/// Reports whether a request went out: the provider may have used up what is good once, whatever came back.
pub(super) fn was_sent<T>(answer: &Result<T, TokenError>) -> bool {
    let unsent = |error: &OutboundError| {
        matches!(error, OutboundError::Url(_) | OutboundError::Unconnected(_))
    };
    !matches!(answer, Err(RequestTokenError::Request(error)) if unsent(error))
}

/// Maps a failed code exchange.
pub(super) fn exchange_error(error: TokenError) -> ProviderError {
    let code = code(&error);
    match error {
        RequestTokenError::Request(refused) => refused.into(),
        RequestTokenError::ServerResponse(_)
        | RequestTokenError::Parse(..)
        | RequestTokenError::Other(_) => {
            if code.is_empty() {
                let what = "the token endpoint answered no tokens";
                return ProviderError::Invalid(what.to_owned());
            }
            ProviderError::Refused(known(&code))
        }
    }
}

/// Maps a failed refresh.
pub(super) fn refresh_error(error: TokenError) -> ProviderError {
    if ENDED.contains(&code(&error).as_str()) {
        return ProviderError::Ended;
    }
    // It may have given tokens that cannot be read.
    let is_answered = !matches!(error, RequestTokenError::Request(_));
    match exchange_error(error) {
        ProviderError::Invalid(what) if is_answered => ProviderError::Unusable(what),
        other => other,
    }
}

/// The error of an answer; empty if it has none.
fn code(error: &TokenError) -> String {
    match error {
        RequestTokenError::ServerResponse(refused) => refused.error().as_ref().to_owned(),
        // Some services refuse with 200.
        RequestTokenError::Parse(_, body) => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            body["error"].as_str().unwrap_or_default().to_owned()
        }
        RequestTokenError::Request(_) | RequestTokenError::Other(_) => String::new(),
    }
}

/// The name of an error that the standards have; another text may be anything.
fn known(error: &str) -> &'static str {
    let mut all = REFUSALS.into_iter();
    all.find(|known| *known == error).unwrap_or("another error")
}

/// The tokens of a response.
pub(super) fn given<F: ExtraTokenFields>(
    answer: &StandardTokenResponse<F, BasicTokenType>,
) -> ProviderTokens {
    let secret = |text: &str| Secret::new(text.to_owned());
    ProviderTokens {
        access: secret(answer.access_token().secret()),
        refresh: answer.refresh_token().map(|token| secret(token.secret())),
        lasts: answer.expires_in(),
    }
}

/// Exchanges an access token of a person for one of another audience (RFC 8693, section 2.1), at the token endpoint of
/// `provider`, which takes Basic or not.
pub(super) async fn exchange(
    outbound: &Outbound,
    (provider, url, is_basic): (&Provider, &str, bool),
    subject: &Secret,
    audience: &str,
) -> Result<ProviderTokens, ExchangeError> {
    let form = [
        ("grant_type", TOKEN_EXCHANGE),
        ("subject_token", subject.expose()),
        ("subject_token_type", ACCESS_TOKEN),
        ("audience", audience),
        ("requested_token_type", ACCESS_TOKEN),
    ];
    let client = ClientAt {
        id: &provider.client_id,
        secret: provider.client_secret.as_ref(),
        is_basic,
    };
    let unasked = || ProviderError::Invalid(format!("{url}: it cannot be asked"));
    let request = client.form(url, &form).ok_or_else(unasked)?;
    let answer = outbound.exchange(request, ANSWER).await?;
    let is_success = answer.status() == StatusCode::OK;
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    exchanged(is_success, &body)
}

/// Reads the answer to an exchange (RFC 8693, section 2.2).
fn exchanged(is_success: bool, body: &Value) -> Result<ProviderTokens, ExchangeError> {
    let text = |name: &str| body[name].as_str();
    let invalid = |what: &str| ProviderError::Invalid(format!("its answer to an exchange: {what}"));
    if let Some(error) = text("error") {
        return Err(ExchangeError::Refused(known(error)));
    }
    if !is_success {
        return Err(invalid("neither a token nor an error").into());
    }
    if text("issued_token_type") != Some(ACCESS_TOKEN) {
        return Err(invalid("another type of token than was requested").into());
    }
    // Section 2.2.1: N_A is for tokens that no resource takes as access tokens.
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err(invalid("no bearer token").into());
    }
    let access = text("access_token").filter(|text| is_secret(text));
    let access = access.ok_or_else(|| invalid("no access token"))?;
    Ok(ProviderTokens {
        access: Secret::new(access.to_owned()),
        // One exchange is as good as another: what could be kept is not.
        refresh: None,
        lasts: body["expires_in"].as_u64().map(Duration::from_secs),
    })
}

/// The JSON object that a provider returns to the holder of `token`, which it gave just now.
pub(super) async fn get_with_token(
    outbound: &Outbound,
    url: &str,
    token: &str,
) -> Result<Map<String, Value>, ProviderError> {
    let answer = get_with_old_token(outbound, url, token).await;
    answer.map_err(|error| match error {
        ProviderError::Ended => ProviderError::Invalid(format!("{url}: it refused its own token")),
        other => other,
    })
}

/// The same to the holder of a token that may have ended.
pub(super) async fn get_with_old_token(
    outbound: &Outbound,
    url: &str,
    token: &str,
) -> Result<Map<String, Value>, ProviderError> {
    let wrong = |what: &str| ProviderError::Invalid(format!("{url}: {what}"));
    let request = http::Request::get(url)
        .header(ACCEPT, "application/json")
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Vec::new())
        .map_err(|_| wrong("it cannot be asked with such a token"))?;
    let answer = outbound.exchange(request, ANSWER).await?;
    match answer.status() {
        StatusCode::OK => {}
        // RFC 6750, section 3.1.
        StatusCode::UNAUTHORIZED => return Err(ProviderError::Ended),
        _ => return Err(wrong("it does not describe the owner of a token")),
    }
    // Strict, as the claims of tokens are read: the answer says who the person is.
    members(answer.body()).ok_or_else(|| wrong("no JSON object, or a name twice"))
}

/// The grant type of an exchange (RFC 8693, section 2.1).
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// The type of access tokens (RFC 8693, section 3).
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
/// Errors that are told by their names (RFC 6749, section 5.2; RFC 8693, section 2.2.2).
const REFUSALS: [&str; 10] = [
    "access_denied",
    "interaction_required",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "invalid_target",
    "invalid_token",
    "unauthorized_client",
    "unsupported_grant_type",
];
/// Errors by which a provider says that a person has to log in again (RFC 6749, section 5.2; OpenID Connect Core, section
/// 3.1.2.6, which Entra ID's token endpoint has, too). GitHub has a name of its own.
const ENDED: [&str; 5] = [
    "invalid_grant",
    "bad_refresh_token",
    "interaction_required",
    "login_required",
    "consent_required",
];

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::base::Unexpected;

    fn refused(error: &str) -> TokenError {
        let body = json!({"error": error, "error_description": "a secret of the provider"});
        TokenError::ServerResponse(serde_json::from_value(body).unwrap())
    }

    /// A wrong client secret was told to nobody: the code was said to be refused.
    #[test]
    fn refusals_have_the_names_that_the_standards_give_them() {
        for (error, wanted) in [
            ("invalid_client", "invalid_client"),
            ("a secret of the provider", "another error"),
        ] {
            let told = exchange_error(refused(error));
            assert_eq!(told, ProviderError::Refused(wanted));
            assert!(told.to_string().contains(wanted), "{told}");
            assert!(!told.may_pass());
            assert_eq!(
                refresh_error(refused(error)),
                ProviderError::Refused(wanted)
            );
        }
        let code = exchange_error(refused("invalid_grant"));
        assert_eq!(code, ProviderError::Refused("invalid_grant"));
        assert_eq!(
            refresh_error(refused("invalid_grant")),
            ProviderError::Ended
        );
        let unread = || TokenError::Other("x".to_owned());
        assert!(matches!(
            exchange_error(unread()),
            ProviderError::Invalid(_)
        ));
        assert!(matches!(
            refresh_error(unread()),
            ProviderError::Unusable(_)
        ));
    }

    /// What was not sent counted as a request without an answer.
    #[test]
    fn a_refresh_token_that_did_not_go_out_is_not_used_up() {
        let what = || "x".to_owned();
        for (error, is_sent) in [
            (OutboundError::Url("x"), false),
            (OutboundError::Unconnected(what()), false),
            (OutboundError::Unreachable(what()), true),
            (OutboundError::Response(Unexpected::Foreign(500)), true),
        ] {
            let answer: Result<(), TokenError> = Err(TokenError::Request(error));
            assert_eq!(was_sent(&answer), is_sent, "{answer:?}");
        }
        assert!(was_sent(&Ok(())));
        assert!(was_sent::<()>(&Err(refused("invalid_client"))));
    }

    /// A provider that took longer had used the code up: no person could log in there, although all refreshes succeeded.
    #[tokio::test]
    async fn a_code_at_a_provider_is_waited_for_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let http = OutboundClient(&outbound);
        let request = http::Request::post(&url).body(Vec::new()).unwrap();
        let slow = async {
            let (mut once, _) = listener.accept().await.unwrap();
            _ = once.read(&mut [0; 4096]).await.unwrap();
            // It ends later than the time that any other one has.
            let other = outbound.json(&url, ANSWER).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json";
            let answer = format!("{head}\r\nContent-Length: 2\r\n\r\n{{}}");
            _ = once.write_all(answer.as_bytes()).await;
            (other, once)
        };
        let (got, (other, _once)) = tokio::join!(http.call(request), slow);
        assert!(other.is_err());
        assert_eq!(got.unwrap().body(), b"{}");
    }

    #[test]
    fn an_exchange_gives_an_access_token_or_a_reason() {
        let good = json!({"access_token": "t", "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer",
            "expires_in": 60, "refresh_token": "r"});
        let given = exchanged(true, &good).unwrap();
        assert_eq!(given.access, Secret::new("t".to_owned()));
        assert_eq!(
            (given.refresh, given.lasts),
            (None, Some(Duration::from_secs(60)))
        );
        let jwt = "urn:ietf:params:oauth:token-type:jwt";
        let refresh = "urn:ietf:params:oauth:token-type:refresh_token";
        for (name, value) in [
            ("access_token", json!("")),
            ("access_token", json!("a\u{0}b")),
            ("access_token", json!("x".repeat(17 << 10))),
            ("access_token", json!(1)),
            ("issued_token_type", Value::Null),
            ("issued_token_type", json!(jwt)),
            ("issued_token_type", json!(refresh)),
            ("token_type", json!("N_A")),
            ("token_type", json!("DPoP")),
            ("token_type", Value::Null),
        ] {
            let mut wrong = good.clone();
            wrong[name] = value.clone();
            let found = exchanged(true, &wrong).err();
            assert!(
                matches!(
                    found,
                    Some(ExchangeError::Failed(ProviderError::Invalid(_)))
                ),
                "{name}: {value}"
            );
        }
        assert!(exchanged(false, &good).is_err());
        for (error, wanted) in [
            ("invalid_target", "invalid_target"),
            ("a secret of the provider", "another error"),
        ] {
            // Some refuse with 200.
            for is_success in [false, true] {
                let found = exchanged(is_success, &json!({"error": error, "access_token": "t"}));
                assert_eq!(found.err(), Some(ExchangeError::Refused(wanted)));
            }
        }
    }
}

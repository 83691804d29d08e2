//! Client authentication at the token and revocation endpoints (RFC 6749, section 2.3; RFC 7523).
//!
//! A client must use exactly one method, the registered one. An unknown client takes as long as a
//! wrong secret and gets the same refusal.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION, request::Parts};

use super::jose::Assertion;
use crate::endpoint::{OauthEndpoint, Site};
use crate::{
    auth::{KeySet, Signature},
    base::{Sha256, budget::others_first},
    oauth::{
        base::{
            Form, OauthRefusal, RefusalCode, Throttle, refusal::BASIC_CHALLENGE, secret, throttle,
        },
        clients::{
            Client, ClientAuthMethod, ClientError, ClientProof, ClientSource, Clients,
            DocumentError, Keys,
        },
        server::{Attempt, AuthorizationServer, OauthState, attempt::address},
    },
};

/// The credential that a request carries.
#[derive(Debug, PartialEq, Eq)]
enum OfferedProof<'f> {
    /// A client id alone.
    Id(String),
    /// A client secret.
    Secret {
        id: String,
        secret: String,
        method: ClientAuthMethod,
    },
    /// A signed assertion, and the client id beside it, if any.
    Assertion { id: Option<&'f str>, text: &'f str },
}

/// Authenticates the client of a request.
///
/// # Errors
///
/// `invalid_client`, the same for every failed authentication, with the failed check of an assertion for operators alone;
/// `invalid_request` for a request with two credentials.
pub(super) async fn authenticate(
    state: &OauthState,
    server: &AuthorizationServer,
    (head, form): (&Parts, &Form),
    attempt: &Attempt,
) -> Result<Client, OauthRefusal> {
    let offer = OfferedProof::of(&head.headers, form)?;
    let clients = server.clients(state, address(&head.extensions));
    let id = match &offer {
        OfferedProof::Id(id) | OfferedProof::Secret { id, .. } => id.clone(),
        OfferedProof::Assertion { id, text } => {
            let by = by_assertion(state, server, clients, (*id, text)).await;
            return by.map_err(|fault| match fault {
                Fault::Refused(refusal) => refusal,
                Fault::Assertion(why) => {
                    let tenant = &server.tenant.name;
                    tracing::info!(tenant.id = tenant, why, "a client assertion is refused");
                    attempt.detail(format!("the assertion: {why}"));
                    REFUSED
                }
            });
        }
    };
    let client = find(clients, &id).await?;
    let (hash, is_method) = match (&offer, client.as_ref().map(|client| &client.proof)) {
        (OfferedProof::Id(_), Some(ClientProof::None)) => return client.ok_or(REFUSED),
        (OfferedProof::Secret { method, .. }, Some(ClientProof::Secret { hash, methods })) => {
            (*hash, methods.contains(method))
        }
        // A comparison follows in any case, so that timing does not reveal which clients exist.
        _ => (NO_DIGEST, false),
    };
    let offered = match &offer {
        OfferedProof::Secret { secret, .. } => secret::hash(secret),
        OfferedProof::Id(_) | OfferedProof::Assertion { .. } => secret::hash(""),
    };
    let is_right = secret::is_same(&hash, &offered);
    client.filter(|_| is_right && is_method).ok_or(REFUSED)
}

/// Finds the client with this id.
async fn find(clients: Clients<'_>, id: &str) -> Result<Option<Client>, OauthRefusal> {
    match clients.find(id).await {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Unknown | ClientError::Document(_)) => Ok(None),
        Err(ClientError::Away(why)) => Err(OauthRefusal::later(why)),
        Err(ClientError::Unavailable(failure)) => Err(failure.into()),
    }
}

impl<'f> OfferedProof<'f> {
    fn of(headers: &HeaderMap, form: &'f Form) -> Result<Self, OauthRefusal> {
        let two = OauthRefusal::new(
            RefusalCode::InvalidRequest,
            "more than one proof of the client",
        );
        let id = form.get("client_id");
        let (basic, post) = (basic(headers)?, form.get("client_secret"));
        let assertion = form.get("client_assertion");
        match (basic, post, assertion) {
            (Some((named, secret)), None, None) => {
                if id.is_some_and(|id| id != named) {
                    let what = "client_id differs from the one in Authorization";
                    return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
                }
                // An empty secret counts as none (RFC 6749, section 2.3.1).
                if secret.is_empty() {
                    return Ok(Self::Id(named));
                }
                let method = ClientAuthMethod::Basic;
                Ok(Self::Secret {
                    id: named,
                    secret,
                    method,
                })
            }
            (None, Some(secret), None) => Ok(Self::Secret {
                id: id.ok_or(MISSING)?.to_owned(),
                secret: secret.to_owned(),
                method: ClientAuthMethod::Post,
            }),
            (None, None, Some(text)) => {
                if form.get("client_assertion_type") != Some(ASSERTION_TYPE) {
                    let what = "client_assertion_type is not supported";
                    return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
                }
                Ok(Self::Assertion { id, text })
            }
            (None, None, None) => Ok(Self::Id(id.ok_or(MISSING)?.to_owned())),
            _ => Err(two),
        }
    }
}

/// Reads client id and secret from the header, each form-encoded (RFC 6749, section 2.3.1).
fn basic(headers: &HeaderMap) -> Result<Option<(String, String)>, OauthRefusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next(), values.next());
    if more.is_some() {
        let what = "Authorization is repeated";
        return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
    }
    let Some(value) = value else { return Ok(None) };
    let read = || {
        let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
        let rest = rest.trim_matches(' ');
        let decoded = scheme
            .eq_ignore_ascii_case("basic")
            .then(|| STANDARD.decode(rest).ok())??;
        let decoded = String::from_utf8(decoded).ok()?;
        let (id, secret) = decoded.split_once(':')?;
        let part = |text: &str| {
            // Reserved characters are encoded, so that the text parses as a single form value.
            let form = Form::parse(&format!("v={}", text.replace('&', "%26"))).ok()?;
            Some(form.get("v").unwrap_or_default().to_owned())
        };
        Some((part(id)?, part(secret)?))
    };
    read().map(Some).ok_or(REFUSED)
}

/// Reason why an assertion authenticates no client.
enum Fault {
    /// A check of the assertion failed, or there is no such client: strangers are not told which.
    Assertion(&'static str),
    /// The request is refused otherwise.
    Refused(OauthRefusal),
}

impl From<OauthRefusal> for Fault {
    fn from(refusal: OauthRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Verifies a signed assertion: by a key of its client, for this server, used for the first time.
async fn by_assertion(
    state: &OauthState,
    server: &AuthorizationServer,
    clients: Clients<'_>,
    (id, text): (Option<&str>, &str),
) -> Result<Client, Fault> {
    let endpoints = [OauthEndpoint::Token, OauthEndpoint::Revoke];
    let endpoints = endpoints.map(|endpoint| server.endpoint(state, endpoint));
    let names = server.own_audiences();
    let mut ours: Vec<&str> = names.iter().chain(&endpoints).map(String::as_str).collect();
    let short = short_url(server.site(state), &server.tenant.name);
    ours.extend(short.as_deref());
    let now = state.clock.now_ms() / 1000;
    let assertion = Assertion::parse(text, &ours, now).map_err(Fault::Assertion)?;
    if id.is_some_and(|id| id != assertion.client) {
        return Err(Fault::Assertion("client_id differs from its iss"));
    }
    let client = find(clients, &assertion.client).await?;
    let client = client.ok_or(Fault::Assertion("no such client"))?;
    let ClientProof::Keys(keys) = &client.proof else {
        return Err(Fault::Assertion("the client has no keys"));
    };
    let of = (
        &*server.tenant.name,
        &*client.id,
        throttle::account(clients.from),
    );
    let drawn = draw_signature(&state.writes, of);
    drawn.map_err(|retry| OauthRefusal::too_many("too many assertions", retry))?;
    // A set is parsed, and its keys are tried, without a pause.
    others_first().await;
    if !is_signed(clients, (&client, keys), &assertion).await? {
        return Err(Fault::Assertion("the signature is of no key of the client"));
    }
    let used = replay_key("client_assertion", &assertion.client, &assertion.id);
    let once = (&used, assertion.expires);
    let is_first = use_once(state, server, (&client.id, ASSERTIONS), once);
    let used = Fault::Assertion("it was used before");
    is_first.await?.then_some(client).ok_or(used)
}

/// The short URL of the token endpoint, of the default tenant alone: an assertion for it identifies no other server
/// (RFC 7523, section 3).
fn short_url(site: Site<'_>, tenant: &str) -> Option<String> {
    let alias = OauthEndpoint::Token.alias()?;
    let is_of_tenant = site.oauth_tenant(alias) == Some(tenant);
    is_of_tenant.then(|| format!("{}{alias}", site.url))
}

/// Records the use of an assertion of a client, which has `bound` of them in a minute, and reports whether it is the
/// first. Called after the signature check, so that unsigned assertions cannot fill the record.
pub(super) async fn use_once(
    state: &OauthState,
    server: &AuthorizationServer,
    (client, bound): (&str, u32),
    (used, expires): (&[u8; 32], i64),
) -> Result<bool, OauthRefusal> {
    let by = ("assertion", &server.tenant.name, client);
    let budget = state.writes.spend(&by, bound);
    budget.map_err(|retry| OauthRefusal::too_many("too many assertions", retry))?;
    let until_ms = expires.saturating_add(REPLAY_MARGIN).saturating_mul(1000);
    let logins = state.snapshot.database()?.logins();
    Ok(logins.use_once(&server.tenant.name, used, until_ms).await?)
}

/// Draws a signature that is to be verified from the budget of its client and address: whoever names a client, which is no
/// secret, must not use up what others have for it. Of a client without any left no signature is verified.
fn draw_signature(
    writes: &Throttle,
    (tenant, client, account): (&str, &str, u128),
) -> Result<(), Duration> {
    writes.check(&("assertion", tenant, client), ASSERTIONS)?;
    writes.spend(&("signature", tenant, client, account), ASSERTIONS)
}

async fn is_signed(
    clients: Clients<'_>,
    (client, keys): (&Client, &Keys),
    by: &Assertion<'_>,
) -> Result<bool, Fault> {
    let url = match keys {
        Keys::Inline(text) => {
            let set = if client.kind == ClientSource::Declared {
                KeySet::parse(text.as_bytes())
            } else {
                KeySet::parse_of_anybody(text.as_bytes())
            };
            return Ok(set.is_ok_and(|set| is_signed_by(&set, by)));
        }
        Keys::Url(url) => url,
    };
    let refused = |error| match error {
        // Its own site, and not our database.
        DocumentError::Unavailable(what) => Fault::Refused(OauthRefusal::later(what)),
        DocumentError::Invalid(what) => Fault::Assertion(what),
    };
    let (documents, asker, of) = (clients.documents, clients.asker(), (&*by.client, &**url));
    let known = documents.keys(asker, of).await.map_err(refused)?;
    match known.check(&by.jws) {
        Signature::By(_) => Ok(true),
        Signature::Bad => Ok(false),
        // The key may be newer than the cached set.
        Signature::NoKey => {
            let anew = documents.keys_anew(asker, of).await.map_err(refused)?;
            Ok(is_signed_by(&anew, by))
        }
    }
}

fn is_signed_by(set: &KeySet, by: &Assertion<'_>) -> bool {
    matches!(set.check(&by.jws), Signature::By(_))
}

/// Returns the key under which a used assertion is recorded, distinct for each purpose and each of those whose ids
/// are unique.
pub(super) fn replay_key(purpose: &str, owner: &str, id: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [purpose, owner, id] {
        digest.add_part(part.as_bytes());
    }
    digest.finish()
}

/// The refusal of a failed authentication. RFC 6749, section 5.2 wants the challenge where
/// `Authorization` was tried, RFC 9110 with every 401.
const REFUSED: OauthRefusal =
    OauthRefusal::new(RefusalCode::InvalidClient, "the client is not known")
        .challenged(BASIC_CHALLENGE);

const MISSING: OauthRefusal =
    OauthRefusal::new(RefusalCode::InvalidRequest, "client_id is missing");

/// RFC 7523, section 2.2.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Maximum assertions of one client per minute, each of which is recorded, and of those that one address sends in its name,
/// right or wrong. A client may act for thousands of people.
pub(super) const ASSERTIONS: u32 = 6000;

/// A digest that no secret has.
const NO_DIGEST: [u8; 32] = [0; 32];

/// Seconds for which a used assertion is recorded beyond its expiry, since clocks differ.
const REPLAY_MARGIN: i64 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(authorization: &[&str], form: &str) -> Result<String, RefusalCode> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        let form = Form::parse(form).unwrap();
        match OfferedProof::of(&headers, &form) {
            Ok(offer) => Ok(match offer {
                OfferedProof::Id(id) => format!("id {id}"),
                OfferedProof::Secret { id, secret, method } => {
                    format!("{} {id} {secret}", method.name())
                }
                OfferedProof::Assertion { id, text } => format!("jwt {id:?} {text}"),
            }),
            Err(refusal) => Err(refusal.code()),
        }
    }

    fn basic_of(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn the_short_url_is_that_of_the_default_tenant() {
        let default = ("a".to_owned(), "x".to_owned());
        let site = Site::of("https://gw.test", Some(&default), None);
        let short = "https://gw.test/token".to_owned();
        assert_eq!(short_url(site, "a"), Some(short));
        assert_eq!(short_url(site, "b"), None);
        let site = Site::of("https://gw.test", None, None);
        assert_eq!(short_url(site, "a"), None);
    }

    #[test]
    fn two_client_credentials_are_refused() {
        let (ada, jwt) = (
            basic_of("ada:s"),
            "urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer",
        );
        let assertion = format!("client_assertion=x&client_assertion_type={jwt}");
        let invalid = Err(RefusalCode::InvalidRequest);
        for (header, form, wanted) in [
            (None, "client_id=ada", Ok("id ada")),
            (None, "client_id=ada&client_secret=", Ok("id ada")),
            (
                None,
                "client_id=ada&client_secret=s",
                Ok("client_secret_post ada s"),
            ),
            (Some(&ada), "", Ok("client_secret_basic ada s")),
            (Some(&ada), "client_id=ada", Ok("client_secret_basic ada s")),
            (Some(&basic_of("ada:")), "", Ok("id ada")),
            (
                Some(&basic_of("a%3Ab:s%20t+u%25")),
                "",
                Ok("client_secret_basic a:b s t u%"),
            ),
            (None, &assertion, Ok("jwt None x")),
            (
                None,
                &format!("{assertion}&client_id=a"),
                Ok("jwt Some(\"a\") x"),
            ),
            (None, "", invalid),
            (None, "client_secret=s", invalid),
            (None, "client_assertion=x", invalid),
            (Some(&ada), "client_id=eve", invalid),
            (Some(&ada), "client_secret=s", invalid),
            (Some(&ada), &assertion, invalid),
            (
                None,
                &format!("{assertion}&client_id=a&client_secret=s"),
                invalid,
            ),
        ] {
            let headers: Vec<&str> = header.map(String::as_str).into_iter().collect();
            let got = offer(&headers, form);
            assert_eq!(got, wanted.map(str::to_owned), "{header:?} {form}");
        }
        assert_eq!(offer(&[&ada, &ada], ""), invalid.map(str::to_owned));
    }

    /// Signatures were verified before anything was drawn, and wrong ones drew nothing.
    #[tokio::test]
    async fn signatures_have_a_budget_before_they_are_verified() {
        let writes = Throttle::new();
        let draw = |account| draw_signature(&writes, ("a", "app", account)).is_ok();
        assert!((0..ASSERTIONS).all(|_| draw(1)));
        assert!(!draw(1));
        assert!(draw(2), "made up at one address");
        for _ in 0..ASSERTIONS {
            writes.note(&("assertion", "a", "app"));
        }
        assert!(!draw(2), "used up by the client");
        assert!(draw_signature(&writes, ("a", "other", 2)).is_ok());
    }

    #[test]
    fn malformed_authorization_is_no_credential() {
        let (nothing, odd) = (basic_of("ada"), basic_of("ada:%zz"));
        for header in ["Bearer x", "Basic", "Basic !", &nothing, &odd] {
            let refused = offer(&[header], "client_id=ada");
            assert_eq!(refused, Err(RefusalCode::InvalidClient), "{header}");
        }
    }
}

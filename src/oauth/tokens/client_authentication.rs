//! How clients prove who they are, at the token endpoint and where tokens are revoked (RFC 6749,
//! section 2.3; RFC 7523).
//!
//! By exactly one method, the one that they registered. An unknown client costs as much as a wrong
//! secret, and is told the same.

use aws_lc_rs::digest::{Context, SHA256};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION, request::Parts};

use super::jose::Assertion;
use crate::endpoint::OauthEndpoint;
use crate::{
    auth::{KeySet, Signature},
    database::Failure,
    oauth::{
        base::{Form, OauthRefusal, RefusalCode, secret},
        clients::{Client, ClientAuthMethod, ClientError, ClientProof, DocumentError, Keys},
        server::{AuthorizationServer, OauthState},
    },
};

/// What a request offers as proof.
#[derive(Debug, PartialEq, Eq)]
enum OfferedProof<'f> {
    /// Nothing but its id.
    Id(String),
    /// A secret.
    Secret {
        id: String,
        secret: String,
        method: ClientAuthMethod,
    },
    /// A signed assertion, with the id beside it if there is one.
    Assertion { id: Option<&'f str>, text: &'f str },
}

/// The client that a request comes from.
///
/// # Errors
///
/// `invalid_client`, the same for all that is wrong with who it is; `invalid_request` for a request
/// that offers two proofs.
pub(super) async fn authenticate(
    state: &OauthState,
    server: &AuthorizationServer,
    head: &Parts,
    form: &Form,
) -> Result<Client, OauthRefusal> {
    let offer = OfferedProof::of(&head.headers, form)?;
    let id = match &offer {
        OfferedProof::Id(id) | OfferedProof::Secret { id, .. } => id.clone(),
        OfferedProof::Assertion { id, text } => {
            return by_assertion(state, server, *id, text).await;
        }
    };
    let client = find(state, server, &id).await?;
    let (hash, is_method) = match (&offer, client.as_ref().map(|client| &client.proof)) {
        (OfferedProof::Id(_), Some(ClientProof::None)) => return client.ok_or(REFUSED),
        (OfferedProof::Secret { method, .. }, Some(ClientProof::Secret { hash, methods })) => {
            (*hash, methods.contains(method))
        }
        // Compared all the same: how long it takes says nothing about who is known.
        _ => (NOBODY, false),
    };
    let offered = match &offer {
        OfferedProof::Secret { secret, .. } => secret::hash(secret),
        OfferedProof::Id(_) | OfferedProof::Assertion { .. } => secret::hash(""),
    };
    let is_right = secret::is_same(&hash, &offered);
    client.filter(|_| is_right && is_method).ok_or(REFUSED)
}

/// The client, if there is one.
async fn find(
    state: &OauthState,
    server: &AuthorizationServer,
    id: &str,
) -> Result<Option<Client>, OauthRefusal> {
    match server.clients(state).find(id).await {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Unknown | ClientError::Document(_)) => Ok(None),
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
                // An empty secret is none (RFC 6749, section 2.3.1).
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

/// Id and secret in the header, each encoded like a form (RFC 6749, section 2.3.1).
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
            // Reserved letters are encoded, so that the text is a value of a form by itself.
            let form = Form::parse(&format!("v={}", text.replace('&', "%26"))).ok()?;
            Some(form.get("v").unwrap_or_default().to_owned())
        };
        Some((part(id)?, part(secret)?))
    };
    read().map(Some).ok_or(REFUSED)
}

/// A signed assertion: by a key of its client, for this server, for the first time.
async fn by_assertion(
    state: &OauthState,
    server: &AuthorizationServer,
    id: Option<&str>,
    text: &str,
) -> Result<Client, OauthRefusal> {
    let endpoints = [OauthEndpoint::Token, OauthEndpoint::Revoke];
    let endpoints = endpoints.map(|endpoint| server.endpoint(state, endpoint));
    let short = format!("{}/token", state.config.public_url);
    let ours = [&server.issuer, &endpoints[0], &endpoints[1], &short].map(String::as_str);
    let now = state.clock.now_ms() / 1000;
    let assertion = Assertion::parse(text, &ours, now).map_err(|why| {
        tracing::debug!(why, "a client assertion is refused");
        REFUSED
    })?;
    if id.is_some_and(|id| id != assertion.client) {
        return Err(REFUSED);
    }
    let client = find(state, server, &assertion.client).await?;
    let client = client.ok_or(REFUSED)?;
    let ClientProof::Keys(keys) = &client.proof else {
        return Err(REFUSED);
    };
    if !is_signed(state, keys, &assertion).await? {
        return Err(REFUSED);
    }
    // Only then: what nobody signed must not fill the memory of what was used.
    let store = state.live.store()?;
    let used = used_name(&assertion);
    let until_ms = assertion.expires.saturating_add(KEPT).saturating_mul(1000);
    if !store.use_once(&server.tenant.name, &used, until_ms).await? {
        return Err(REFUSED);
    }
    Ok(client)
}

async fn is_signed(
    state: &OauthState,
    keys: &Keys,
    by: &Assertion<'_>,
) -> Result<bool, OauthRefusal> {
    let url = match keys {
        Keys::Here(text) => {
            let set = KeySet::parse(text.as_bytes());
            return Ok(set.is_ok_and(|set| is_by(&set, by)));
        }
        Keys::At(url) => url,
    };
    let get = async |is_anew| match state.documents.keys(url, is_anew).await {
        Ok(set) => Ok(set),
        Err(DocumentError::Unavailable(what)) => Err(Failure::Unavailable(what.to_owned()).into()),
        Err(DocumentError::Invalid(_)) => Err(REFUSED),
    };
    let known = get(false).await?;
    match known.check(&by.jws) {
        Signature::By(_) => Ok(true),
        Signature::Bad => Ok(false),
        // It may be newer than what is known.
        Signature::NoKey => Ok(is_by(&*get(true).await?, by)),
    }
}

fn is_by(set: &KeySet, by: &Assertion<'_>) -> bool {
    matches!(set.check(&by.jws), Signature::By(_))
}

/// The name under which an assertion is remembered; no client can take another's.
fn used_name(assertion: &Assertion<'_>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in ["client_assertion", &assertion.client, &assertion.id] {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part.as_bytes());
    }
    let mut name = [0; 32];
    name.copy_from_slice(context.finish().as_ref());
    name
}

/// For whoever does not prove who they are. RFC 6749, section 5.2 wants the challenge where
/// `Authorization` was tried, RFC 9110 wants one with every 401.
const REFUSED: OauthRefusal =
    OauthRefusal::new(RefusalCode::InvalidClient, "the client is not known")
        .challenged("Basic realm=\"lockgate\", charset=\"UTF-8\"");

const MISSING: OauthRefusal =
    OauthRefusal::new(RefusalCode::InvalidRequest, "client_id is missing");

/// RFC 7523, section 2.2.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The hash of no secret.
const NOBODY: [u8; 32] = [0; 32];

/// How long a used assertion is remembered beyond its end, in seconds: clocks differ.
const KEPT: i64 = 120;

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
    fn one_proof_and_no_more() {
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

    #[test]
    fn a_field_that_proves_nothing_is_no_proof() {
        let (nothing, odd) = (basic_of("ada"), basic_of("ada:%zz"));
        for header in ["Bearer x", "Basic", "Basic !", &nothing, &odd] {
            let refused = offer(&[header], "client_id=ada");
            assert_eq!(refused, Err(RefusalCode::InvalidClient), "{header}");
        }
    }
}

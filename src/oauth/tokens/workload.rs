//! Workloads: clients that prove themselves by tokens of their platform (RFC 7523, sections 2.1 and 3).
//!
//! Not here: the tokens that they get (`client_credentials`).

use std::collections::BTreeMap;

use http::{header::AUTHORIZATION, request::Parts};
use serde_json::{Map, Value};

use super::{
    binding::RequestProof,
    client_authentication::{replay_key, use_once},
    jose::{check_audience, check_times, is_id_jag},
};
use crate::{
    auth::{
        Jws, KeySet, Signature, Thumbprint, TokenError, holder,
        jose::{declared, parse_unverified, string},
    },
    base::budget::others_first,
    declare::{ALGORITHMS, DeclaredClient, Workload},
    oauth::{
        base::{Form, OauthRefusal, RefusalCode},
        clients::{Client, ClientError},
        server::{
            Attempt, AuthorizationServer, OauthState,
            attempt::{address, not_guessed},
        },
    },
};

/// A token of a platform, with its signature not yet verified. Its other claims are parsed again behind that: anybody can
/// send tokens, and whoever waits for the keys of an issuer keeps no tree of them.
struct PlatformToken<'t> {
    issuer: String,
    /// Expiry, in seconds since 1970.
    expires: i64,
    /// What is good once: its `jti`, else all that is signed.
    id: String,
    /// The key that the workload has to prove.
    holder: Option<Thumbprint>,
    jws: Jws<'t>,
}

/// A token of a platform that is good once, and not used yet.
pub(super) struct Unused {
    key: [u8; 32],
    /// Its expiry, in seconds since 1970.
    expires: i64,
}

/// A declared client that is a workload.
#[derive(Clone, Copy)]
struct Candidate<'c>(&'c DeclaredClient, &'c Workload);

/// Candidates by the key set that their platform signs with; none for the keys that its metadata name.
type ByKeys<'c> = BTreeMap<Option<&'c str>, Vec<Candidate<'c>>>;

/// Candidates whose platform has signed a token, and the refusal if others may have, whose keys cannot be fetched.
type Signed<'c> = (Vec<Candidate<'c>>, Option<OauthRefusal>);

/// Reports whether the assertion of a request has to be that of a workload: it is no identity assertion.
pub(super) fn is_presented(form: &Form) -> bool {
    let text = form.get("assertion").unwrap_or_default();
    let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm);
    !parse_unverified(text, &algorithms).is_ok_and(|(header, ..)| is_id_jag(&header))
}

/// Authenticates the workload that presents a token of its platform, which is to be used once everything else about the
/// request is right: a workload may get no other one.
///
/// # Errors
///
/// `invalid_grant` with the failed check, or `invalid_dpop_proof` without the proof that the token needs. Nothing that an
/// operator declared decides before the signature is verified, so that strangers cannot find out what is declared.
pub(super) async fn authenticate(
    state: &OauthState,
    server: &AuthorizationServer,
    (head, form): (&Parts, &Form),
    proof: &RequestProof,
    attempt: &Attempt,
) -> Result<(Client, Option<Unused>), OauthRefusal> {
    let credentials = ["client_secret", "client_assertion"];
    let is_in_form = credentials.iter().any(|name| form.get(name).is_some());
    if is_in_form || head.headers.contains_key(AUTHORIZATION) {
        let what = "a workload proves itself by its assertion alone";
        return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
    }
    let text = form.need("assertion", "assertion is missing")?;
    let now = state.clock.now_ms() / 1000;
    let token = PlatformToken::parse(text, now).map_err(refused)?;
    let trusted = server.builtin.clients.values().filter_map(|client| {
        let workload = client.workload.as_ref()?;
        let is_named = form.get("client_id").is_none_or(|id| id == client.id);
        (is_named && workload.issuer == token.issuer).then_some(Candidate(client, workload))
    });
    let trusted = by_keys(trusted)?;
    if trusted.is_empty() {
        attempt.detail(format!("the issuer is {}", token.issuer));
        return Err(refused("no such workload has tokens of this issuer"));
    }
    let signed = token.signed(state, trusted).await?;
    let claims = token.jws.claims().map_err(refused)?;
    let meant = meant(&claims, server, signed, attempt);
    let Candidate(declared, workload) = meant.map_err(|refusal| {
        let of = ("issuer", &server.tenant.name, &token.issuer);
        not_guessed(state, &of, refusal)
    })?;
    proof.check_holder(token.holder)?;
    let unused = (!workload.is_reusable).then(|| Unused {
        key: replay_key("workload", &token.issuer, &token.id),
        expires: token.expires,
    });
    let clients = server.clients(state, address(&head.extensions));
    match clients.find(&declared.id).await {
        Ok(client) => Ok((client, unused)),
        Err(ClientError::Unavailable(failure)) => Err(failure.into()),
        Err(_) => Err(refused("no such workload")),
    }
}

/// Returns candidates by their key sets.
///
/// # Errors
///
/// There are more sets than one request, which has proved nothing, may have tried.
fn by_keys<'c>(trusted: impl Iterator<Item = Candidate<'c>>) -> Result<ByKeys<'c>, OauthRefusal> {
    let mut sets = ByKeys::new();
    for one in trusted {
        sets.entry(one.1.jwks.as_deref()).or_default().push(one);
        if sets.len() > SETS {
            let what = "many issuers have this name: name the workload by client_id";
            return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
        }
    }
    Ok(sets)
}

impl Unused {
    /// Uses the token of this workload.
    pub(super) async fn redeem(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        workload: &str,
    ) -> Result<(), OauthRefusal> {
        let once = (&self.key, self.expires);
        if use_once(state, server, (workload, TOKENS), once).await? {
            return Ok(());
        }
        Err(refused("the assertion was used before"))
    }
}

impl<'t> PlatformToken<'t> {
    /// Parses a token that is valid at `now` (RFC 7523, section 3).
    fn parse(text: &'t str, now: i64) -> Result<Self, &'static str> {
        let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm);
        let (header, claims, jws) = parse_unverified(text, &algorithms)?;
        let kind = string(&header, "typ")?.unwrap_or("JWT");
        // Any other type is another kind of token (RFC 8725, section 3.11).
        if !kind.eq_ignore_ascii_case("JWT") {
            return Err("another type of token");
        }
        let issuer = string(&claims, "iss")?.ok_or("no iss")?.to_owned();
        string(&claims, "sub")?.ok_or("no sub")?;
        let expires = check_times(&claims, now, AHEAD)?;
        let id = string(&claims, "jti")?.map(|id| format!("jti {id}"));
        let signed = text.rsplit_once('.').map_or(text, |(signed, _)| signed);
        let id = id.unwrap_or_else(|| signed.to_owned());
        let holder = holder(&claims)?;
        Ok(Self {
            issuer,
            expires,
            id,
            holder,
            jws,
        })
    }

    /// Returns those of the workloads whose platform has signed it, and a refusal if others may be among them whose keys
    /// cannot be fetched.
    async fn signed<'c>(
        &self,
        state: &OauthState,
        trusted: ByKeys<'c>,
    ) -> Result<Signed<'c>, OauthRefusal> {
        let (mut signed, mut away) = (Vec::new(), None);
        for (jwks, of) in trusted {
            // A set that is declared is parsed and tried without a pause.
            others_first().await;
            match self.is_signed(state, jwks).await {
                Ok(true) => signed.extend(of),
                Ok(false) => {}
                // Another set may have signed: a declared one needs no issuer.
                Err(refusal) => away = Some(refusal),
            }
        }
        if signed.is_empty() {
            let none = || refused("the signature is of no key of the issuer");
            return Err(away.unwrap_or_else(none));
        }
        Ok((signed, away))
    }

    async fn is_signed(
        &self,
        state: &OauthState,
        jwks: Option<&str>,
    ) -> Result<bool, OauthRefusal> {
        if let Some(jwks) = jwks {
            let set = KeySet::parse(jwks.as_bytes());
            return Ok(set.is_ok_and(|set| matches!(set.check(&self.jws), Signature::By(_))));
        }
        match state.issuers.verify(&self.issuer, &self.jws).await {
            Ok(()) => Ok(true),
            Err(TokenError::Invalid(_)) => Ok(false),
            Err(TokenError::Unavailable(retry)) => Err(OauthRefusal::away(
                "the keys of the issuer cannot be fetched",
                retry,
            )),
        }
    }
}

/// Returns the one of the workloads that a verified token with these claims is for, and of. If none is, it may be of one
/// whose keys are away: no platform sends a token again after `invalid_grant`.
fn meant<'c>(
    claims: &Map<String, Value>,
    server: &AuthorizationServer,
    (mut signed, away): Signed<'c>,
    attempt: &Attempt,
) -> Result<Candidate<'c>, OauthRefusal> {
    let names = server.own_audiences();
    signed.retain(|Candidate(_, workload)| {
        let outcome = match &workload.audience {
            Some(audience) => check_audience(claims, &[audience]),
            None => check_audience(claims, &names.each_ref().map(String::as_str)),
        };
        outcome.is_ok()
    });
    if signed.is_empty() {
        let other = || refused("the assertion is for another audience");
        return Err(away.unwrap_or_else(other));
    }
    let fits = |one: &&Candidate<'_>| wrong_claim(claims, one.1).is_none();
    let mut fitting = signed.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(*one),
        (Some(_), Some(_)) => Err(refused("several workloads fit: name one by client_id")),
        (None, _) => {
            if let Some(away) = away {
                return Err(away);
            }
            let wrong = signed.iter().filter_map(|Candidate(client, workload)| {
                Some(format!("{}: {}", client.id, wrong_claim(claims, workload)?))
            });
            attempt.detail(wrong.collect::<Vec<_>>().join(", "));
            Err(refused("a claim is not as declared"))
        }
    }
}

/// Returns the first claim of a workload that a token does not have with a declared value.
fn wrong_claim<'w>(claims: &Map<String, Value>, workload: &'w Workload) -> Option<&'w str> {
    let is_wrong = |(name, values): &(&String, &Vec<String>)| {
        let text = match declared(claims, name) {
            Some(Value::String(text)) => text.clone(),
            Some(plain @ (Value::Bool(_) | Value::Number(_))) => plain.to_string(),
            _ => return true,
        };
        !Workload::admits(values, &text)
    };
    let wrong = workload.claims.iter().find(is_wrong);
    wrong.map(|(name, _)| name.as_str())
}

fn refused(what: &'static str) -> OauthRefusal {
    OauthRefusal::new(RefusalCode::InvalidGrant, what)
}

/// Maximum key sets that are tried for one request.
const SETS: usize = 16;
/// Maximum tokens of one workload per minute, each of which is recorded for as long as it lives.
const TOKENS: u32 = 300;
/// Maximum lifetime of a platform's token in seconds: some hold as long as a job, or a day.
const AHEAD: i64 = 24 * 3600;

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;

    fn token(header: &Value, claims: &Value) -> Result<String, &'static str> {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}.c2ln", part(header), part(claims));
        PlatformToken::parse(&text, 10_000).map(|token| token.id)
    }

    /// The reason against a token that is bound otherwise.
    const BOUND: &str = "a token that is bound to what cannot be proved here";

    #[test]
    fn tokens_of_platforms_are_told_from_others() {
        let header = json!({"alg": "RS256", "typ": "JWT"});
        let claims =
            json!({"iss": "https://ci.test", "sub": "a", "aud": "b", "exp": 10_300, "jti": "1"});
        assert_eq!(token(&header, &claims).as_deref(), Ok("jti 1"));
        for (name, value, wanted) in [
            ("iss", Value::Null, "a member that is no text"),
            ("sub", Value::Null, "a member that is no text"),
            ("exp", json!(9_940), "expired"),
            ("exp", json!(10_061 + AHEAD), "it would hold for too long"),
            ("nbf", json!(10_061), "not valid yet"),
            ("iat", json!(10_061), "not valid yet"),
            ("jti", json!(1), "a member that is no text"),
            ("cnf", json!({"x5t#S256": "x"}), BOUND),
            ("cnf", json!({"jkt": "x"}), BOUND),
        ] {
            let mut claims = claims.clone();
            claims[name] = value;
            assert_eq!(token(&header, &claims), Err(wanted), "{name}");
        }
        for name in ["iss", "sub", "exp"] {
            let mut claims = claims.clone();
            claims.as_object_mut().unwrap().remove(name);
            assert!(token(&header, &claims).is_err(), "{name}");
        }
        for (header, wanted) in [
            (
                json!({"alg": "RS256", "typ": "at+jwt"}),
                "another type of token",
            ),
            (
                json!({"alg": "RS256", "typ": "oauth-id-jag+jwt"}),
                "another type of token",
            ),
            (json!({"alg": "HS256"}), "an algorithm that is not allowed"),
            (json!({"alg": "none"}), "an algorithm that is not allowed"),
        ] {
            assert_eq!(token(&header, &claims), Err(wanted), "{header}");
        }
    }

    /// A request without credentials had each of any number parsed and tried.
    #[test]
    fn few_key_sets_are_tried_for_one_request() {
        let client = |jwks: usize| DeclaredClient {
            id: String::new(),
            title: String::new(),
            redirect_uris: Vec::new(),
            is_machine: true,
            secret: None,
            jwks: None,
            workload: Some(Workload {
                issuer: "https://k8s.test".to_owned(),
                audience: None,
                jwks: Some(jwks.to_string()),
                claims: BTreeMap::new(),
                is_reusable: false,
            }),
        };
        let tried = |sets: Vec<usize>| {
            let clients: Vec<DeclaredClient> = sets.into_iter().map(client).collect();
            let all = clients
                .iter()
                .filter_map(|client| Some(Candidate(client, client.workload.as_ref()?)));
            let sets = by_keys(all).map(|sets| sets.len());
            sets.map_err(|refusal| refusal.code())
        };
        assert_eq!(tried((0..SETS).collect()), Ok(SETS));
        assert_eq!(
            tried((0..=SETS).collect()),
            Err(RefusalCode::InvalidRequest)
        );
        assert_eq!(tried(vec![1; SETS * 2]), Ok(1), "workloads of one platform");
    }

    #[test]
    fn a_token_without_jti_is_known_by_what_is_signed() {
        let claims = json!({"iss": "https://ci.test", "sub": "a", "aud": "b", "exp": 10_300});
        let header = json!({"alg": "RS256"});
        let one = token(&header, &claims).unwrap();
        assert!(
            !one.contains("c2ln"),
            "another signature of the same is the same: {one}"
        );
        assert_ne!(
            one,
            token(
                &header,
                &json!({"iss": "https://ci.test", "sub": "b", "exp": 10_300})
            )
            .unwrap()
        );
    }
}

//! Identity assertions (ID-JAG), by which the identity provider of a person lets a client act for that person
//! without a log-in here (draft-ietf-oauth-identity-assertion-authz-grant; MCP's extension
//! `io.modelcontextprotocol/enterprise-managed-authorization`).
//!
//! Not here: other assertions of the same grant type (`workload`).

use std::{collections::BTreeSet, time::Duration};

use axum::response::Response;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    binding::ProofAccount,
    client_authentication::{ASSERTIONS, replay_key, use_once},
    jose::{check_audience, check_times, is_id_jag, whole},
    refreshes::REFRESHES,
    surplus::too_many_revoked,
    token::{Exchange, millis},
};
use crate::{
    auth::{
        Jws, Thumbprint, TokenError, holder,
        jose::{parse_unverified, string, strings},
    },
    database::oauth::Grant,
    declare::{ALGORITHMS, AllowedScopes, OFFLINE_ACCESS, Provider, ProviderKind},
    oauth::{
        base::{OauthRefusal, RefusalCode, Resource, Throttle},
        clients::ClientProof,
        providers::identity,
        server::{
            Attempt,
            attempt::{not_guessed, note},
        },
    },
    telemetry::Login,
};

/// An identity assertion, with its signature not yet verified.
struct IdJag<'t> {
    issuer: String,
    claims: Map<String, Value>,
    /// Issue time and expiry, in seconds since 1970.
    issued: i64,
    expires: i64,
    /// Its `jti`.
    id: String,
    /// The client that it lets act.
    client: String,
    /// The resources at which the client may act; at least one.
    resources: Vec<String>,
    /// The key that the client has to prove.
    holder: Option<Thumbprint>,
    jws: Jws<'t>,
}

/// A person for whom a provider vouches.
struct Vouched {
    subject: String,
    groups: Vec<String>,
    provider: String,
}

impl Exchange<'_> {
    /// Issues an access token for the person of an identity assertion, without a refresh token: the provider decides
    /// anew each time.
    pub(super) async fn id_jag(&self, attempt: &Attempt) -> Result<Response, OauthRefusal> {
        // "Client Authentication": a public client sends the person to the authorization endpoint.
        if matches!(self.client.proof, ClientProof::None) {
            let what = "a public client gets no tokens by assertions";
            return Err(OauthRefusal::new(RefusalCode::UnauthorizedClient, what));
        }
        let text = self.form.need("assertion", "assertion is missing")?;
        let parsed = || IdJag::parse(text, self.now_ms / 1000).map_err(refused);
        // Parsed again behind the wait for keys: until then the tree of its claims is not kept.
        let (issuer, jws) = {
            let IdJag {
                issuer, id, jws, ..
            } = parsed()?;
            attempt.named_by(&id);
            (issuer, jws)
        };
        let provider = self.provider_of(&issuer, &jws, attempt).await?;
        let jag = parsed()?;
        self.check_meant(&jag, attempt)?;
        let sub = string(&jag.claims, "sub").ok().flatten();
        let of = ("client", &self.server.tenant.name, &self.client.id, sub);
        let issued = self.for_person(provider, &jag, attempt).await;
        issued.map_err(|refusal| not_guessed(self.state, &of, refusal))
    }

    /// Issues it by a verified assertion.
    async fn for_person(
        &self,
        provider: &Provider,
        jag: &IdJag<'_>,
        attempt: &Attempt,
    ) -> Result<Response, OauthRefusal> {
        self.proof.check_holder(jag.holder)?;
        let person = self.vouched(provider, jag, attempt).await?;
        let resource = self.asserted_resource(jag)?;
        attempt.server(&resource.server);
        let scope = self.asserted_scope(jag, &resource, &person)?;
        let (tenant, client) = (&self.server.tenant.name, &self.client.id);
        let budget = spend(
            &self.state.writes,
            tenant,
            (client.as_str(), person.subject.as_str()),
        );
        budget.map_err(|retry| OauthRefusal::too_many("too many tokens", retry))?;
        let used = replay_key("id-jag", &jag.issuer, &jag.id);
        let once = (&used, jag.expires);
        let grant = Grant {
            id: Uuid::new_v4(),
            subject: person.subject,
            groups: person.groups,
            client_id: client.clone(),
            resource: resource.url,
            scope,
            session: None,
            jkt: None,
            auth_ms: self.now_ms.min(jag.issued.saturating_mul(1000)),
            // It ends with its only token.
            expires_ms: self.now_ms + millis(self.state.config.oauth.access),
        };
        let length = self.check_length(&grant, &grant.groups, &grant.scope);
        length.map_err(OauthRefusal::no_guess)?;
        let of = (grant.subject.as_str(), client.as_str());
        if self.store.grants().has_too_many_revoked(tenant, of).await? {
            return Err(too_many_revoked());
        }
        let binding = self.bind(ProofAccount::Client).await?;
        let is_first = use_once(self.state, self.server, (client, ASSERTIONS), once);
        if !is_first.await? {
            return Err(refused("the assertion was used before"));
        }
        if !self.store.grants().add(tenant, &grant).await? {
            return Err(refused(
                "the access of the person or the client was revoked since",
            ));
        }
        self.renew_client().await;
        let answer = self.issue(&grant, &grant.groups, &grant.scope, (None, binding))?;
        let target = format!("tenant {tenant}");
        let by = json!({"by": person.provider, "client": client});
        let of = (self.state, self.server);
        note(of.0, of.1, "login", &grant.subject, &target, by);
        self.state.metrics.logins.add(Login::Success);
        self.note_started(&grant).await;
        Ok(answer)
    }

    /// Returns the provider that has signed an assertion.
    async fn provider_of(
        &self,
        issuer: &str,
        jws: &Jws<'_>,
        attempt: &Attempt,
    ) -> Result<&Provider, OauthRefusal> {
        let mut providers = self.server.builtin.providers.values();
        let provider = providers.find(|one| one.vouches() && one.issuer() == issuer);
        let Some(provider) = provider else {
            attempt.detail(format!("the issuer is {issuer}"));
            return Err(refused(
                "no identity provider of this issuer vouches for people here",
            ));
        };
        match self.state.issuers.verify(issuer, jws).await {
            Ok(()) => Ok(provider),
            Err(TokenError::Invalid(_)) => Err(refused("the signature is of no key of the issuer")),
            Err(TokenError::Unavailable(retry)) => {
                let what = "the keys of the issuer cannot be fetched";
                Err(OauthRefusal::away(what, retry))
            }
        }
    }

    /// Checks that a verified assertion is for this client and this server.
    fn check_meant(&self, jag: &IdJag<'_>, attempt: &Attempt) -> Result<(), OauthRefusal> {
        let names = self.server.own_audiences();
        let ours = names.each_ref().map(String::as_str);
        check_audience(&jag.claims, &ours)
            .map_err(|_| refused("the assertion is for another audience"))?;
        if jag.client != self.client.id {
            attempt.detail(format!("client_id is {}", jag.client));
            return Err(refused("the assertion is for another client"));
        }
        Ok(())
    }

    /// Returns the person of a verified assertion, if the provider's people may come in.
    async fn vouched(
        &self,
        provider: &Provider,
        jag: &IdJag<'_>,
        attempt: &Attempt,
    ) -> Result<Vouched, OauthRefusal> {
        let groups = match &provider.kind {
            ProviderKind::OpenId { groups, .. } => Some(groups),
            ProviderKind::OAuth { .. } => None,
        };
        let found = identity(&jag.claims, groups).map_err(refused)?;
        let subject = format!("{}#{}", provider.issuer(), found.subject);
        attempt.subject(&subject);
        let email = found.email.as_deref();
        let groups = found.groups.unwrap_or_default();
        if !provider.allow.admits(&found.subject, &groups, email) {
            let (target, detail) = (
                format!("tenant {}", self.server.tenant.name),
                json!({"by": provider.name}),
            );
            note(
                self.state,
                self.server,
                "login.refused",
                &subject,
                &target,
                detail,
            );
            self.state.audit.flush().await;
            self.state.metrics.logins.add(Login::Refused);
            return Err(refused("the tenant does not let this person in"));
        }
        Ok(Vouched {
            subject,
            groups,
            provider: provider.name.clone(),
        })
    }

    /// Returns the requested one of the resources of an assertion, or its only one.
    fn asserted_resource(&self, jag: &IdJag<'_>) -> Result<Resource, OauthRefusal> {
        let (place, tenant) = (self.server.site(self.state), &self.server.tenant.name);
        let named = |text: &String| Resource::named(place, tenant, text);
        let mut asserted: Vec<Resource> = jag.resources.iter().filter_map(named).collect();
        if let Some(asked) = self.form.get("resource") {
            let asked = Resource::named(place, tenant, asked);
            asserted.retain(|one| asked.as_ref() == Some(one));
        }
        let what = "the assertion is not for this resource, or for several";
        match <[Resource; 1]>::try_from(asserted) {
            Ok([one]) => Ok(one),
            Err(_) => Err(OauthRefusal::new(RefusalCode::InvalidTarget, what)),
        }
    }

    /// The scopes that the provider grants, the client requests and the person may have (RFC 6749, section 3.3).
    fn asserted_scope(
        &self,
        jag: &IdJag<'_>,
        resource: &Resource,
        person: &Vouched,
    ) -> Result<String, OauthRefusal> {
        let invalid = |what| OauthRefusal::new(RefusalCode::InvalidScope, what);
        let (server, tenant, name) = (self.server, &self.server.tenant, resource.server.as_str());
        let who = (person.subject.as_str(), person.groups.as_slice());
        let allowed = server.allowed_scopes(name, who, &self.client.id);
        let what = "there is no such server for this person";
        let allowed = allowed.ok_or(OauthRefusal::new(RefusalCode::InvalidTarget, what))?;
        let existing = |text: Option<&str>| -> Result<Option<BTreeSet<String>>, OauthRefusal> {
            let scopes = text.map(|text| resource.existing_scopes(tenant, text));
            scopes.transpose().map_err(invalid)
        };
        let claimed = string(&jag.claims, "scope").map_err(refused)?;
        let (claimed, asked) = (existing(claimed)?, existing(self.form.get("scope"))?);
        let declared = tenant.servers.get(name);
        let baseline = || {
            let scopes = tenant.baseline_scopes(declared).into_iter();
            scopes.map(str::to_owned).collect()
        };
        let is_named = claimed.is_some() || asked.is_some();
        let wanted = asked.or_else(|| claimed.clone()).unwrap_or_else(baseline);
        let provided = claimed
            .as_ref()
            .map(|claimed| AllowedScopes::Named(vec![claimed]));
        let is_provided = |scope: &&str| match (&provided, declared) {
            (Some(provided), Some(server)) => provided.include(&server.policy, scope),
            _ => true,
        };
        let wanted = wanted.iter().map(String::as_str).filter(is_provided);
        let granted = server.granted(name, &allowed, wanted);
        // `offline_access` is for a refresh token, which there is not.
        let granted = granted.into_iter().filter(|scope| *scope != OFFLINE_ACCESS);
        let granted: Vec<&str> = granted.collect();
        if granted.is_empty() && is_named {
            return Err(invalid("the person may have none of these scopes"));
        }
        Ok(granted.join(" "))
    }
}

impl<'t> IdJag<'t> {
    /// Parses an assertion that is valid at `now`.
    fn parse(text: &'t str, now: i64) -> Result<Self, &'static str> {
        let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm);
        let (header, claims, jws) = parse_unverified(text, &algorithms)?;
        if !is_id_jag(&header) {
            return Err("another type of token");
        }
        let need = |name: &str, what: &'static str| -> Result<String, &'static str> {
            let found = string(&claims, name)?.filter(|text| !text.is_empty());
            Ok(found.ok_or(what)?.to_owned())
        };
        let issuer = need("iss", "no iss")?;
        let (id, client) = (need("jti", "no jti")?, need("client_id", "no client_id")?);
        let resources = claims.get("resource").ok_or("no resource")?;
        let resources = strings(resources)?;
        let expires = check_times(&claims, now, AHEAD)?;
        let issued = whole(&claims, "iat")?.ok_or("no iat")?;
        // From its issue on: a stolen one must not become good in its last hour. So it is not older either.
        if expires.saturating_sub(issued) > AHEAD {
            return Err("it would hold for too long");
        }
        let holder = holder(&claims)?;
        Ok(Self {
            issuer,
            claims,
            issued,
            expires,
            id,
            client,
            resources,
            holder,
            jws,
        })
    }
}

fn refused(what: &'static str) -> OauthRefusal {
    OauthRefusal::new(RefusalCode::InvalidGrant, what)
}

/// Takes a token from the budgets of a person at a client and at all clients: each writes a grant, and lines to the audit
/// trail.
fn spend(writes: &Throttle, tenant: &str, (client, subject): (&str, &str)) -> Result<(), Duration> {
    let at_client = ("id-jag", tenant, client, subject);
    writes.spend(&at_client, REFRESHES)?;
    let in_all = writes.spend(&("id-jag", tenant, subject), PERSON_TOKENS);
    in_all.inspect_err(|_| writes.refund(&at_client))
}

/// Maximum tokens of a person by assertions per minute: a provider names as many clients as it likes, of which anybody
/// registers some.
const PERSON_TOKENS: u32 = 600;

/// Maximum lifetime of an assertion in seconds. Providers give minutes.
const AHEAD: i64 = 3600;

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;

    fn parse(header: &Value, claims: &Value) -> Result<(), &'static str> {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}.c2ln", part(header), part(claims));
        IdJag::parse(&text, 10_000).map(drop)
    }

    #[tokio::test]
    async fn a_person_has_a_budget_over_all_clients() {
        let writes = Throttle::new();
        let spend = |client: &str, subject: &str| spend(&writes, "a", (client, subject)).is_ok();
        for client in ["app", "other"] {
            assert!((0..REFRESHES).all(|_| spend(client, "ada")), "{client}");
        }
        assert!(!spend("third", "ada"));
        let of_third = ("id-jag", "a", "third", "ada");
        assert_eq!(writes.check(&of_third, 1), Ok(()), "nothing is taken");
        assert!(spend("third", "eve"), "another person");
    }

    /// The reason against an assertion that is bound otherwise.
    const BOUND: &str = "a token that is bound to what cannot be proved here";

    #[test]
    fn assertions_have_every_claim_and_their_type() {
        let header = json!({"alg": "RS256", "typ": "oauth-id-jag+jwt"});
        let claims = json!({"iss": "https://idp.test", "sub": "1", "aud": "https://gw.test/t/a",
            "client_id": "app", "resource": "https://gw.test/t/a/x/mcp", "jti": "j",
            "iat": 9_990, "exp": 10_300});
        assert_eq!(parse(&header, &claims), Ok(()));
        for (name, wanted) in [
            ("iss", "no iss"),
            ("client_id", "no client_id"),
            ("resource", "no resource"),
            ("jti", "no jti"),
            ("iat", "no iat"),
            ("exp", "no exp"),
        ] {
            let mut claims = claims.clone();
            claims.as_object_mut().unwrap().remove(name);
            assert_eq!(parse(&header, &claims), Err(wanted));
        }
        for (name, value, wanted) in [
            ("jti", json!(""), "no jti"),
            ("resource", json!(1), "a member that is no text"),
            ("exp", json!(9_940), "expired"),
            ("exp", json!(10_061 + AHEAD), "it would hold for too long"),
            ("iat", json!(10_299 - AHEAD), "it would hold for too long"),
            ("iat", json!(0), "it would hold for too long"),
            ("iat", json!(10_061), "not valid yet"),
            ("nbf", json!(10_061), "not valid yet"),
            ("cnf", json!({"x5t#S256": "x"}), BOUND),
            ("cnf", json!({"jkt": "x"}), BOUND),
        ] {
            let mut claims = claims.clone();
            claims[name] = value;
            assert_eq!(parse(&header, &claims), Err(wanted), "{name}");
        }
        let mut longest = claims.clone();
        longest["iat"] = json!(10_300 - AHEAD);
        assert_eq!(parse(&header, &longest), Ok(()));
        for kind in [json!("JWT"), json!("at+jwt"), Value::Null] {
            let mut header = header.clone();
            header["typ"] = kind;
            assert_eq!(parse(&header, &claims), Err("another type of token"));
        }
    }
}

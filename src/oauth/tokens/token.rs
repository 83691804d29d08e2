//! Token endpoint: exchanges codes and refresh tokens for access tokens (RFC 6749, sections 4.1.3 and
//! 6; RFC 7636; RFC 8707).
//!
//! One statement of the database decides whether a code or refresh token is used for the first time.
//! Not here: client authentication (`client_authentication`), and clients that act for themselves
//! (`client_credentials`).

use std::time::Duration;

use axum::{
    extract::{self, Request},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    binding::{Binding, ProofAccount, RequestProof},
    client_authentication::authenticate,
    jose::AccessToken,
    refreshes::Budgets,
    workload,
};
use crate::{
    auth::jose::TOKEN_MAX,
    database::{
        Database,
        oauth::{
            Grant, NewCode, NewRefresh, Refreshed, Revoked, SigningKey, Succession, TakenCode,
        },
    },
    declare::{AllowedScopes, OFFLINE_ACCESS},
    endpoint::{is_same_resource, stream_of_messages},
    oauth::{
        base::{
            Form, OauthRefusal, RefusalCode, SecretKind,
            posted::posted,
            refusal::{NO_RANDOM, answer},
            resource::without_query,
            secret, throttle,
        },
        clients::{CLIENT_CREDENTIALS, Client, JWT_BEARER},
        providers::Standing,
        server::{
            Attempt, AuthorizationServer, Oauth, OauthState, StepKind,
            attempt::{address, attempt, not_guessed, note},
        },
    },
};

/// POST: exchanges a code or a refresh token.
pub(crate) async fn token(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let state = &*oauth.0;
    let address = address(request.extensions());
    let attempted = async {
        let of = Attempt::default();
        let result = exchange(state, &server, request, &of).await;
        match &result {
            Err(refusal) => of.refused(state, &server, address, refusal),
            // A refresh token is no attempt to be let in.
            Ok(_) if of.is_named() => of.tell(state, &server, address, StepKind::TokenIssued, ""),
            Ok(_) => {}
        }
        result
    };
    attempt(state, &server, address, "token", Box::pin(attempted)).await
}

async fn exchange(
    state: &OauthState,
    server: &AuthorizationServer,
    request: Request,
    attempt: &Attempt,
) -> Result<Response, OauthRefusal> {
    let (head, form) = posted(request).await?;
    attempt.redeemed(&form);
    let grant_type = form.need("grant_type", "grant_type is missing")?;
    if !server.grant_types().contains(&grant_type) {
        let what = "the grant type is not supported";
        return Err(OauthRefusal::new(RefusalCode::UnsupportedGrantType, what));
    }
    // Before anything is used up, so that a client may come again with another proof.
    let proof = RequestProof::of(state, server, &head)?;
    let is_workload = grant_type == JWT_BEARER && workload::is_presented(&form);
    let (client, unused) = if is_workload {
        workload::authenticate(state, server, (&head, &form), &proof, attempt).await?
    } else {
        let client = authenticate(state, server, (&head, &form), attempt).await?;
        (client, None)
    };
    attempt.client_id(&client.id);
    attempt.client(&client.title);
    proof.check_client(&client)?;
    if form.count("resource") > 1 {
        let what = "a token is for one resource";
        return Err(OauthRefusal::new(RefusalCode::InvalidTarget, what));
    }
    let store = state.snapshot.database()?;
    let exchange = Exchange {
        state,
        server,
        client: &client,
        form: &form,
        proof,
        store,
        // Read first, so that no code is consumed for which no token can be signed.
        key: signing_key(state, store, &server.tenant.name).await?,
        now_ms: state.clock.now_ms(),
        account: throttle::account(address(&head.extensions)),
    };
    match grant_type {
        JWT_BEARER if !is_workload => exchange.id_jag(attempt).await,
        CLIENT_CREDENTIALS | JWT_BEARER => exchange.client_credentials(unused).await,
        "refresh_token" => exchange.refresh().await,
        _ => exchange.redeem(attempt).await,
    }
}

/// The key that signs for a tenant, which this replica knows by the time that a token has its signature: the first one of a
/// tenant may have been made for this request.
async fn signing_key(
    state: &OauthState,
    store: &Database,
    tenant: &str,
) -> Result<SigningKey, OauthRefusal> {
    let key = store.signing_keys().current(tenant).await?;
    let catalog = state.snapshot.catalog();
    let published = catalog.issued.keys.get(tenant);
    let is_known = published.is_some_and(|keys| keys.iter().any(|known| known.kid == key.kid));
    if !is_known {
        state.snapshot.refresh_issued().await?;
    }
    Ok(key)
}

/// One token request of an authenticated client.
pub(super) struct Exchange<'r> {
    pub(super) state: &'r OauthState,
    pub(super) server: &'r AuthorizationServer,
    pub(super) client: &'r Client,
    pub(super) form: &'r Form,
    /// Its proof, not used yet.
    pub(super) proof: RequestProof,
    pub(super) store: &'r Database,
    key: SigningKey,
    pub(super) now_ms: i64,
    /// The account of its address.
    account: u128,
}

impl Exchange<'_> {
    /// Exchanges a code (RFC 6749, section 4.1.3). The code is consumed even if the request is
    /// refused. Wrong codes have a bound of their own: anybody can send them by way of a service, which refreshes the
    /// tokens of many people.
    async fn redeem(&self, attempt: &Attempt) -> Result<Response, OauthRefusal> {
        let text = self.form.need("code", "code is missing")?;
        let verifier = self
            .form
            .need("code_verifier", "code_verifier is missing")?;
        let tenant = &self.server.tenant.name;
        let (failures, of_codes) = (&self.state.failures, ("code", tenant, self.account));
        let left = failures.check(&of_codes, self.state.config.oauth.failures);
        left.map_err(|retry| OauthRefusal::too_many("too many wrong codes", retry))?;
        let hash = secret::hash(text);
        let giving_way = self.giving_way(&hash, verifier).await?;
        // A proof that cannot be used takes no code.
        let binding = self.bind(ProofAccount::Address(self.account)).await?;
        let mut code = match self.store.grants().take_code(tenant, &hash).await? {
            TakenCode::First(code) => *code,
            TakenCode::Again { used_ms, code } => {
                attempt.named_by(&code.challenge);
                // OAuth 2.1, section 7.5.3: a stranger who found the code must not end the grant.
                if self.is_for_this(&code, verifier) && self.proof.has_key_of(&code.grant) {
                    self.handle_replay(used_ms, code.grant.id).await?;
                }
                return Err(BAD_CODE);
            }
            TakenCode::Unknown => {
                attempt.named_by(&secret::challenge(verifier));
                failures.note(&of_codes);
                return Err(BAD_CODE.no_guess());
            }
        };
        attempt.named_by(&code.challenge);
        attempt.subject(&code.grant.subject);
        self.check_code(&code, verifier)?;
        // Of a client that is not public the code alone was bound.
        let jkt = self.proof.refresh_key(self.client, &code.grant)?;
        code.grant.jkt = jkt.filter(|_| self.client.is_public());
        let groups = groups(self.server, &code.grant).ok_or(BAD_CODE)?;
        let scope = self.permitted(&code.grant, &code.grant.scope);
        let refresh = secret::generate(&self.state.random, SecretKind::Refresh).ok_or(NO_RANDOM)?;
        let first = self.new_refresh(&refresh);
        let length = self.check_length(&code.grant, &groups, &scope);
        length.map_err(OauthRefusal::no_guess)?;
        if !self.store.grants().start(tenant, &code, &first).await? {
            return Err(BAD_CODE);
        }
        self.end_surplus(&giving_way).await;
        self.renew_client().await;
        let answer = self.issue(&code.grant, &groups, &scope, (Some(&refresh), binding))?;
        self.note_started(&code.grant).await;
        Ok(answer)
    }

    /// Checks that a code belongs to this request.
    pub(super) fn check_code(&self, code: &NewCode, verifier: &str) -> Result<(), OauthRefusal> {
        if code.expires_ms <= self.now_ms || !self.is_for_this(code, verifier) {
            return Err(BAD_CODE);
        }
        if !self.proof.has_key_of(&code.grant) {
            return Err(OTHER_KEY);
        }
        self.check_resource(&code.grant)
    }

    /// Reports whether a code was issued to this client, for this verifier and redirect URI.
    fn is_for_this(&self, code: &NewCode, verifier: &str) -> bool {
        // OAuth 2.1, section 10.1: optional, but if present it must match; PKCE already protects
        // the code.
        let redirect_uri = self.form.get("redirect_uri");
        let computed = secret::hash(&secret::challenge(verifier));
        code.grant.client_id == self.client.id
            && redirect_uri.is_none_or(|uri| uri == code.redirect_uri)
            && is_verifier(verifier)
            && secret::is_same(&computed, &secret::hash(&code.challenge))
    }

    /// Handles a repeated code: stolen, or retried because its response was lost (RFC 6749, section
    /// 4.1.2).
    async fn handle_replay(&self, used_ms: i64, grant: uuid::Uuid) -> Result<(), OauthRefusal> {
        let replay = millis(self.state.config.oauth.replay);
        if self.now_ms.saturating_sub(used_ms) <= replay {
            return Ok(());
        }
        let tenant = &self.server.tenant.name;
        let revoked = Revoked::Grant(grant);
        if self.store.revocations().revoke(tenant, &revoked).await? {
            self.note_revoked(grant, "a code came again");
        }
        Ok(self.state.snapshot.refresh_issued().await?)
    }

    /// Exchanges a refresh token (RFC 6749, section 6).
    async fn refresh(&self) -> Result<Response, OauthRefusal> {
        let text = self
            .form
            .need("refresh_token", "refresh_token is missing")?;
        let (tenant, hash) = (&self.server.tenant.name, secret::hash(text));
        // Checked first, because a request for too many scopes must not consume the token.
        let Some(known) = self.store.grants().of_refresh(tenant, &hash).await? else {
            return Err(self.of_family(text).await?);
        };
        if known.client_id != self.client.id {
            return Err(BAD_REFRESH);
        }
        let id = known.id;
        let refreshed = self.refresh_known(known, (text, &hash)).await;
        refreshed.map_err(|refusal| not_guessed(self.state, &("grant", id), refusal))
    }

    async fn refresh_known(
        &self,
        known: Grant,
        (text, hash): (&str, &[u8; 32]),
    ) -> Result<Response, OauthRefusal> {
        self.check_resource(&known)?;
        let scope = narrowed(&known.scope, self.form.get("scope"))?;
        let jkt = match self.proof.refresh_key(self.client, &known) {
            Ok(jkt) => jkt,
            Err(refusal) => return Err(self.of_other_key(hash, refusal).await?),
        };
        // First, so that a refresh that is one too many asks nobody and uses no proof.
        self.budgets(&known).check().map_err(too_many)?;
        let known = self.in_good_standing(known).await?;
        let groups = groups(self.server, &known).ok_or(BAD_REFRESH)?;
        let salt = secret::salt(&self.state.random).ok_or(NO_RANDOM)?;
        let next = secret::successor(text, &salt).ok_or(NO_RANDOM)?;
        let settings = &self.state.config.oauth;
        let succession = Succession {
            salt,
            successor: self.new_refresh(&next),
            grace_ms: millis(settings.grace),
            kept_ms: millis(settings.grace.max(settings.access) + KEPT),
        };
        self.check_length(&known, &groups, &self.permitted(&known, &scope))?;
        let binding = self.bind(ProofAccount::Grant(known.id)).await?;
        let used = self.succeed(&known, jkt.as_deref(), hash, &succession);
        let (grant, salt) = match used.await? {
            Refreshed::Good { grant, salt } => (grant, salt),
            // It may have been bound just now.
            Refreshed::Refused => return Err(self.of_other_key(hash, BAD_REFRESH).await?),
            Refreshed::Reused { grant } => {
                self.note_revoked(grant, "a refresh token came again");
                self.state.snapshot.refresh_issued().await?;
                return Err(BAD_REFRESH);
            }
        };
        let next = secret::successor(text, &salt).ok_or(NO_RANDOM)?;
        self.renew_client().await;
        let scope = self.permitted(&grant, &scope);
        self.issue(&grant, &groups, &scope, (Some(&next), binding))
    }

    /// The refusal of a refresh token that comes without the key of its grant. If it was used by the time the grant was
    /// bound, one of its two holders is a thief, and the grant ends.
    async fn of_other_key(
        &self,
        hash: &[u8; 32],
        refusal: OauthRefusal,
    ) -> Result<OauthRefusal, OauthRefusal> {
        let (tenant, key) = (&self.server.tenant.name, self.proof.key());
        let revocations = self.store.revocations();
        let ended = revocations.end_of_other_key(tenant, hash, key.as_deref());
        let Some(grant) = ended.await? else {
            return Ok(refusal);
        };
        self.note_revoked(grant, "a refresh token from before its key came again");
        self.state.snapshot.refresh_issued().await?;
        Ok(BAD_REFRESH)
    }

    /// The refusal of a refresh token that is not known. If its family is, it was used long ago and has come again, and
    /// the grant ends as by one that is known.
    async fn of_family(&self, text: &str) -> Result<OauthRefusal, OauthRefusal> {
        let Some(family) = secret::family(text) else {
            return Ok(BAD_REFRESH);
        };
        let tenant = &self.server.tenant.name;
        let grant = self.store.grants().of_family(tenant, &family).await?;
        let Some(grant) = grant.filter(|grant| grant.client_id == self.client.id) else {
            return Ok(BAD_REFRESH);
        };
        self.check_resource(&grant)?;
        let (key, revocations) = (self.proof.key(), self.store.revocations());
        let ended = revocations.end_of_family(tenant, grant.id, key.as_deref());
        if ended.await? {
            self.note_revoked(grant.id, "a refresh token came again");
            self.state.snapshot.refresh_issued().await?;
        }
        Ok(not_guessed(self.state, &("grant", grant.id), BAD_REFRESH))
    }

    /// Returns a grant with the groups that its person has at the identity provider now. The provider is asked before the
    /// token is used, so that a client may come again while the provider is away.
    async fn in_good_standing(&self, mut grant: Grant) -> Result<Grant, OauthRefusal> {
        let Some(of) = self.server.standing_of(&grant.subject) else {
            return Ok(grant);
        };
        match self.state.standings.ask(of).await? {
            Standing::Good(groups) => grant.groups = groups.unwrap_or(grant.groups),
            Standing::Ended => return Err(BAD_REFRESH),
            Standing::Unknown => {
                return Err(OauthRefusal::later("the identity provider does not answer"));
            }
        }
        Ok(grant)
    }

    /// The budgets of the refreshes of a grant.
    fn budgets<'g>(&'g self, grant: &'g Grant) -> Budgets<'g> {
        Budgets::of(&self.state.writes, &self.server.tenant.name, grant)
    }

    /// Uses a refresh token, within the budgets of its grant and its person. A retry gets the successor that is
    /// stored already, so it takes nothing from that of the person.
    async fn succeed(
        &self,
        grant: &Grant,
        jkt: Option<&str>,
        hash: &[u8; 32],
        succession: &Succession,
    ) -> Result<Refreshed, OauthRefusal> {
        let budgets = self.budgets(grant);
        budgets.spend().map_err(too_many)?;
        let (tenant, client) = (&self.server.tenant.name, self.client.id.as_str());
        let grants = self.store.grants();
        let used = grants.refresh(tenant, (client, jkt), hash, succession);
        let used = used.await;
        match &used {
            Ok(Refreshed::Good { salt, .. }) if *salt == succession.salt => {}
            Ok(Refreshed::Good { .. }) => budgets.refund_retry(),
            Ok(Refreshed::Refused | Refreshed::Reused { .. }) | Err(_) => budgets.refund(),
        }
        Ok(used?)
    }

    /// The resource is optional, but if present it must be that of the grant (RFC 8707, section
    /// 2.2).
    fn check_resource(&self, grant: &Grant) -> Result<(), OauthRefusal> {
        let site = self.server.site(self.state);
        // The issuer of each host of a tenant is another one.
        if site.endpoint_at(&grant.resource).is_none() {
            let what = "the grant is for another host";
            return Err(OauthRefusal::new(RefusalCode::InvalidGrant, what));
        }
        let own = |resource: &str| {
            let stream = stream_of_messages(site, resource);
            let named = stream.as_deref().unwrap_or(without_query(resource));
            is_same_resource(site.url, &grant.resource, named)
        };
        if self
            .form
            .get("resource")
            .is_some_and(|resource| !own(resource))
        {
            let what = "the grant is for another resource";
            return Err(OauthRefusal::new(RefusalCode::InvalidTarget, what));
        }
        Ok(())
    }

    /// Those of the scopes that the subject of a grant may have now. A subject that may no longer use the server gets
    /// a token that the server refuses, and keeps its grant: groups come back.
    fn permitted(&self, grant: &Grant, scope: &str) -> String {
        let server = self.server;
        let site = server.site(self.state);
        let at = site.endpoint_at(&grant.resource);
        let Some(name) = at.map(|endpoint| endpoint.server) else {
            return scope.to_owned();
        };
        let person = (grant.subject.as_str(), grant.groups.as_slice());
        let allowed = server.allowed_scopes(name, person, &grant.client_id);
        let allowed = allowed.unwrap_or(AllowedScopes::Named(Vec::new()));
        let scopes = scope.split(' ').filter(|scope| !scope.is_empty());
        server.granted(name, &allowed, scopes).join(" ")
    }

    /// The token response (RFC 6749, section 5.1). No token outlives its grant.
    pub(super) fn issue(
        &self,
        grant: &Grant,
        groups: &[String],
        scope: &str,
        (refresh, binding): (Option<&str>, Binding),
    ) -> Result<Response, OauthRefusal> {
        let until_ms = self.now_ms + millis(self.state.config.oauth.access);
        let (issued, expires) = (self.now_ms / 1000, until_ms.min(grant.expires_ms) / 1000);
        let token = AccessToken {
            issuer: &self.server.issuer,
            grant,
            groups,
            scope,
            issued,
            expires,
            holder: binding.key(),
        };
        let token = self.readable(&token)?;
        let mut body = json!({
            "access_token": token, "token_type": binding.token_type(), "expires_in": expires - issued,
        });
        if let Some(refresh) = refresh {
            body["refresh_token"] = refresh.into();
        }
        // A scope has at least one token (RFC 6749, appendix A.4).
        if !scope.is_empty() {
            body["scope"] = scope.into();
        }
        Ok(answer(StatusCode::OK, &body))
    }

    /// Refuses a token that would be too long before anything is used up for it.
    pub(super) fn check_length(
        &self,
        grant: &Grant,
        groups: &[String],
        scope: &str,
    ) -> Result<(), OauthRefusal> {
        // Each has quotation marks and a comma.
        let length: usize = groups.iter().map(|group| group.len() + 3).sum();
        if length + scope.len() < TOKEN_MAX / 4 {
            return Ok(());
        }
        let token = AccessToken {
            issuer: &self.server.issuer,
            grant,
            groups,
            scope,
            issued: self.now_ms / 1000,
            expires: grant.expires_ms / 1000,
            holder: self.proof.thumbprint(),
        };
        self.readable(&token).map(drop)
    }

    /// Signs an access token that this gateway reads. If its groups make it too long, it has only those that decide
    /// something at its server; a group that comes to do so later is in the next token.
    fn readable(&self, token: &AccessToken<'_>) -> Result<String, OauthRefusal> {
        let whole = self.signed(token)?;
        if whole.len() <= TOKEN_MAX {
            return Ok(whole);
        }
        let (server, grant) = (self.server, token.grant);
        let site = server.site(self.state);
        let at = site.endpoint_at(&grant.resource);
        let name = at.map(|endpoint| endpoint.server);
        let groups = server.needed_groups(name, (grant.subject.as_str(), token.groups));
        let short = self.signed(&AccessToken {
            groups: &groups,
            ..*token
        })?;
        if short.len() <= TOKEN_MAX {
            return Ok(short);
        }
        let (tenant, subject) = (server.tenant.name.as_str(), grant.subject.as_str());
        let groups = groups.len();
        tracing::warn!(
            tenant.id = tenant,
            subject,
            groups,
            "an access token would be too long"
        );
        Err(TOO_LONG)
    }

    fn signed(&self, token: &AccessToken<'_>) -> Result<String, OauthRefusal> {
        token.sign(&self.key).ok_or_else(|| {
            tracing::error!("a signing key cannot sign");
            OauthRefusal::later("nothing can be signed now")
        })
    }

    /// A new refresh token as it is stored. Its grant may expire sooner.
    fn new_refresh(&self, text: &str) -> NewRefresh {
        NewRefresh {
            hash: secret::hash(text),
            family: secret::family(text),
            expires_ms: self.now_ms + millis(self.state.config.oauth.refresh_idle),
        }
    }

    /// Uses the proof of the request, once everything else about it is right; of one with a code, before that is taken.
    pub(super) async fn bind(&self, account: ProofAccount) -> Result<Binding, OauthRefusal> {
        let (tenant, of) = (&self.server.tenant.name, (self.client, account));
        self.proof.bind(self.state, tenant, of).await
    }

    /// Extends the expiry of a registered client after its use. Code and grant are used up by then, so a failure is
    /// not the request's.
    pub(super) async fn renew_client(&self) {
        let (tenant, used) = (
            &self.server.tenant.name,
            self.state.config.oauth.client_used,
        );
        let renewed = self.client.renew(self.store, tenant, self.now_ms, used);
        if let Err(failure) = renewed.await {
            let (tenant, client) = (tenant.as_str(), self.client.id.as_str());
            tracing::warn!(tenant.id = tenant, client, %failure, "a client is not kept for longer");
        }
    }

    /// Records the begin of a grant, before the answer is sent.
    pub(super) async fn note_started(&self, grant: &Grant) {
        let (target, detail) = audit_detail(grant);
        let (state, actor) = (self.state, &grant.subject);
        note(state, self.server, "grant.started", actor, &target, detail);
        state.audit.flush().await;
    }

    /// Records the end of a grant.
    pub(super) fn note_revoked(&self, grant: uuid::Uuid, why: &str) {
        let (target, detail) = (format!("grant {grant}"), json!({ "why": why }));
        let actor = format!("client:{}", self.client.id);
        note(
            self.state,
            self.server,
            "grant.revoked",
            &actor,
            &target,
            detail,
        );
    }
}

fn too_many(retry: Duration) -> OauthRefusal {
    OauthRefusal::too_many("too many refreshes", retry)
}

/// Returns the current groups of a grant's subject; `None` if the subject has lost its access.
fn groups(server: &AuthorizationServer, grant: &Grant) -> Option<Vec<String>> {
    let subject = server.builtin.subject(&grant.subject, &grant.groups).ok()?;
    Some(subject.groups(&grant.groups).to_vec())
}

/// Returns target and detail of audit records about a grant.
fn audit_detail(grant: &Grant) -> (String, serde_json::Value) {
    let detail = json!({
        "client": grant.client_id, "resource": grant.resource, "scope": grant.scope,
    });
    (format!("grant {}", grant.id), detail)
}

/// The scopes of a grant, or the requested subset of them, which has at least one: else the answer could not name
/// it (RFC 6749, section 5.1).
///
/// `offline_access` is everybody's: a client that repeats what it was told while its person had no other scope gets
/// what it was granted.
fn narrowed(granted: &str, asked: Option<&str>) -> Result<String, OauthRefusal> {
    let Some(asked) = asked else {
        return Ok(granted.to_owned());
    };
    let has = |scope: &str| granted.split(' ').any(|own| own == scope);
    let asked: Vec<&str> = asked.split(' ').filter(|scope| !scope.is_empty()).collect();
    if asked == [OFFLINE_ACCESS] && !granted.is_empty() && !has(OFFLINE_ACCESS) {
        return Ok(granted.to_owned());
    }
    let asked: Vec<&str> = asked
        .into_iter()
        .filter(|scope| *scope != OFFLINE_ACCESS || has(scope))
        .collect();
    if asked.is_empty() || !asked.iter().all(|scope| has(scope)) {
        let what = "more scopes than were granted, or none";
        return Err(OauthRefusal::new(RefusalCode::InvalidScope, what));
    }
    Ok(asked.join(" "))
}

/// Checks the syntax of a code verifier (RFC 7636, section 4.1).
fn is_verifier(text: &str) -> bool {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    (43..=128).contains(&text.len()) && text.bytes().all(is_unreserved)
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// The time for which a used refresh token is kept beyond the access token that came with it, and beyond retries: longer
/// than the clocks of replicas differ.
const KEPT: Duration = Duration::from_mins(1);

/// Refusal of an invalid code, the same for every reason.
const BAD_CODE: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidGrant,
    "the code is not known, has ended, or is not for this request",
);
/// Refusal of a code that an authorization request has bound to a key (RFC 9449, section 10).
const OTHER_KEY: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidGrant,
    "the code is bound to a key that the request does not prove",
);
/// Refusal of a token that every server here would refuse.
const TOO_LONG: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidGrant,
    "the access token would be too long: the person is in too many groups that the server names, or has too many scopes",
);
/// Refusal of an invalid refresh token, the same for every reason.
const BAD_REFRESH: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidGrant,
    "the refresh token is not known, has ended, or was used",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refreshed_scopes_are_a_subset() {
        let of = |asked: Option<&str>| narrowed("a b c", asked).map_err(|refusal| refusal.code());
        for (asked, wanted) in [
            (None, Ok("a b c")),
            (Some("a"), Ok("a")),
            (Some("c  a"), Ok("c a")),
            (Some("a b c"), Ok("a b c")),
            (Some("d"), Err(RefusalCode::InvalidScope)),
            (Some("a d"), Err(RefusalCode::InvalidScope)),
            (Some("ab"), Err(RefusalCode::InvalidScope)),
            (Some("a\tb"), Err(RefusalCode::InvalidScope)),
            (Some(" "), Err(RefusalCode::InvalidScope)),
            (Some("offline_access"), Ok("a b c")),
            (Some("a offline_access"), Ok("a")),
            (Some("offline_access d"), Err(RefusalCode::InvalidScope)),
        ] {
            assert_eq!(of(asked), wanted.map(str::to_owned), "{asked:?}");
        }
        assert!(narrowed("", Some("a")).is_err());
        assert!(narrowed("", Some("offline_access")).is_err());
        let kept = narrowed("a offline_access", Some("offline_access"));
        assert_eq!(kept.ok().as_deref(), Some("offline_access"));
    }

    #[test]
    fn verifiers_are_long_and_plain() {
        let long = "a".repeat(43);
        for (text, wanted) in [
            (long.as_str(), true),
            (&long[1..], false),
            (&"a".repeat(128), true),
            (&"a".repeat(129), false),
            (&format!("{long}-._~"), true),
            (&format!("{long}="), false),
            (&format!("{long} "), false),
            (&format!("{long}ü"), false),
        ] {
            assert_eq!(is_verifier(text), wanted, "{text}");
        }
    }
}

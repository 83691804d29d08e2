//! Verifier of requests: it decides who may use which server.
//!
//! `api_key`, `builtin` and `external` identify the principal behind a credential.

use std::{sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    access::{Access, Authenticated},
    api_key::{self, OwnKeyCallers, People},
    builtin::{Tokens, UNKNOWN_KEY},
    denials::{self, Denials},
    dpop::{ProvenRequest, UsedProofs},
    external::{Issuers, KeyFetch, TrustedIssuers},
    jose::Thumbprint,
    jwt::TokenError,
    principals::Principals,
    request::{AccessRefusal, AccessRequest, Credential, Rejected},
};
use crate::{
    base::{Clock, Outbound},
    config::Config,
    declare::{AuthMode, Catalog, Dpop, Tenant},
    endpoint,
    error::Error,
    snapshot::{AuditQueue, CurrentSnapshot, LastPollAttempt},
    state::Limiter,
    telemetry::{Denied, Metrics},
};

/// Verifier of requests; a handle.
#[derive(Clone)]
pub(crate) struct Verifier(pub(crate) Arc<VerifierState>);

pub(crate) struct VerifierState {
    public_url: String,
    default: Option<(String, String)>,
    issuers: Issuers,
    tokens: Tokens,
    principals: Principals,
    proofs: UsedProofs,
    own_keys: OwnKeyCallers,
    pub(crate) denials: Denials,
    clock: Clock,
    pub(crate) asked: LastPollAttempt,
}

impl VerifierState {
    /// Returns the wall-clock time in seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.clock.now_ms() / 1000).unwrap_or(0)
    }
}

impl Verifier {
    /// Makes a verifier that fetches keys through `outbound`, and remembers proofs in `limiter`. Its tasks
    /// belong to `tracker` and end at `stop`.
    pub(crate) fn new(
        config: &Config,
        (outbound, limiter): (Outbound, Arc<dyn Limiter>),
        (snapshot, audit): (&Arc<CurrentSnapshot>, AuditQueue),
        metrics: &Arc<Metrics>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let denials = Denials::new(Arc::clone(metrics), audit);
        tracker.spawn(denials.clone().watch(stop.clone()));
        let fetch = KeyFetch {
            outbound,
            tracker: tracker.clone(),
            stop: stop.clone(),
            clock: snapshot.clock().clone(),
        };
        Self(Arc::new(VerifierState {
            public_url: config.public_url.clone(),
            default: config.default.clone(),
            issuers: Issuers::new(fetch),
            tokens: Tokens::new(),
            principals: Principals::default(),
            proofs: UsedProofs::new(limiter, snapshot.clock().clone(), config.redis.is_some()),
            own_keys: OwnKeyCallers::new(snapshot, tracker, stop),
            denials,
            clock: snapshot.clock().clone(),
            asked: snapshot.last_poll().clone(),
        }))
    }

    /// The keys of the issuers that tenants trust.
    pub(crate) fn issuers(&self) -> &TrustedIssuers {
        self.0.issuers.trusted()
    }

    /// The proofs of possession that were used.
    pub(crate) fn proofs(&self) -> &UsedProofs {
        &self.0.proofs
    }

    /// Sets who is asked about people whose API keys are used.
    pub(crate) fn ask_about_people(&self, people: Arc<dyn People>) {
        self.0.own_keys.ask(people);
    }

    /// Reports of denied requests.
    pub(crate) fn denials(&self) -> &Denials {
        &self.0.denials
    }

    /// Decides whether a request may use the server that it names.
    ///
    /// # Errors
    ///
    /// The refusal, which has been reported.
    pub(crate) async fn admit(
        &self,
        catalog: &Catalog,
        request: &AccessRequest<'_>,
    ) -> Result<Access, AccessRefusal> {
        let tenant = catalog
            .tenants
            .get(request.endpoint.tenant)
            .ok_or(AccessRefusal::NoServer)?;
        let decision = self.decide(catalog, tenant, request).await;
        if decision.is_err() {
            // The denial is in the audit trail before the response is sent.
            self.0.denials.settle().await;
        }
        decision
    }

    async fn decide(
        &self,
        catalog: &Catalog,
        tenant: &Arc<Tenant>,
        request: &AccessRequest<'_>,
    ) -> Result<Access, AccessRefusal> {
        let server = tenant.servers.get(request.endpoint.server);
        let known = self.identify(catalog, tenant, request).await?;
        let access = server.and_then(|server| known.access(tenant, server));
        let placed =
            |access: Access| access.placed(&catalog.issued, request.from, request.host.cloned());
        access.map(placed).ok_or_else(|| {
            // Without authentication there are no denials.
            if known.has_credential() {
                let who = denials::Caller::Known(known.principal);
                self.deny(request, who, Denied::NoGrant, "no grant for this server");
            }
            AccessRefusal::NoServer
        })
    }

    /// Authenticates the principal behind the request.
    async fn identify(
        &self,
        catalog: &Catalog,
        tenant: &Arc<Tenant>,
        request: &AccessRequest<'_>,
    ) -> Result<Authenticated, AccessRefusal> {
        if tenant.auth == AuthMode::None {
            return Ok(Authenticated::anonymous(
                self.0.principals.anonymous(tenant),
            ));
        }
        let rejected = match request.credential {
            Credential::None => Rejected::Nothing,
            Credential::Bound { .. } => Rejected::Bound,
            Credential::Bearer(_) | Credential::Malformed | Credential::Asserted(_) => {
                Rejected::Bearer
            }
        };
        let bad = |detail| self.unknown((tenant, request), rejected, detail);
        let (text, offered) = match request.credential {
            Credential::None => return Err(bad("no token")),
            Credential::Malformed => return Err(bad("malformed")),
            Credential::Bearer(text) => (text, None),
            Credential::Bound { token, proof } => (token, Some(proof)),
            Credential::Asserted(text) => {
                self.check_revocations(&tenant.auth)?;
                let known = Authenticated::asserted(&tenant.name, text);
                let now_ms = self.0.clock.now_ms();
                let renewed = known.and_then(|known| known.renewed(catalog, tenant, now_ms));
                let bad = || bad("no longer valid at this replica");
                return renewed.ok_or_else(|| self.unknown_here(bad));
            }
        };
        if api_key::has_prefix(text) {
            if offered.is_some() {
                return Err(bad("an API key, as a token that is bound to a key"));
            }
            // No replica knows such a text.
            let hash = api_key::digest(text).ok_or_else(|| bad("not as long as an API key"))?;
            let known = self.identify_key(catalog, tenant, hash).await?;
            let bad = || bad("an API key that is not known here");
            return known.ok_or_else(|| self.unknown_here(bad));
        }
        self.check_revocations(&tenant.auth)?;
        let known = self.by_token(catalog, tenant, (request, text)).await;
        let (known, holder) = known.map_err(|wrong| match wrong {
            TokenError::Invalid(why) => bad(why),
            TokenError::Unavailable(retry) => AccessRefusal::Later(Error::Busy {
                what: "the authorization server cannot be asked for its keys, or about the token",
                retry,
            }),
        })?;
        // In whatever cache the token was found: each request proves its key anew.
        match (offered, holder) {
            (None, None) if tenant.dpop == Dpop::Required => Err(bad("a token without a key")),
            (None, None) => Ok(known),
            // RFC 9449, section 7.1: it must not be taken for a bearer token.
            (None, Some(_)) => Err(bad("a token that is bound to a key, as a bearer token")),
            (Some(_), None) => Err(bad("a token without a key, as one that is bound to one")),
            (Some(offered), Some(holder)) => {
                let of = (known.principal.account(), text, holder);
                // Boxed, as most requests have no use for this room.
                Box::pin(self.prove((tenant, request), offered, of)).await?;
                Ok(known)
            }
        }
    }

    /// Verifies an access token; returns its principal, and the key that its holder has to prove.
    async fn by_token(
        &self,
        catalog: &Catalog,
        tenant: &Arc<Tenant>,
        (request, text): (&AccessRequest<'_>, &str),
    ) -> Result<(Authenticated, Option<Thumbprint>), TokenError> {
        let now = self.0.now();
        let is_audience = |text: &str| request.is_for(text);
        match &tenant.auth {
            AuthMode::None | AuthMode::Keys => Err(TokenError::Invalid("no API key")),
            AuthMode::Builtin(builtin) => {
                let (tokens, at) = (&self.0.tokens, (&**tenant, &*catalog.issued));
                let issuers = || (request.site.issuer(&tenant.name), self.issuer(&tenant.name));
                let verified = tokens.verify(at, issuers, text, now, is_audience).await;
                let verified = verified.map_err(|why| match why {
                    UNKNOWN_KEY if self.0.asked.is_cut_off() => TokenError::Unavailable(AGAIN),
                    why => TokenError::Invalid(why),
                })?;
                let of = (&**tenant, &**builtin);
                let known = Authenticated::by_own_token(of, &catalog.issued, &verified);
                Ok((known.map_err(TokenError::Invalid)?, verified.claims.holder))
            }
            AuthMode::External(issuer) => {
                let issuers = &self.0.issuers;
                let is_audience = |text: &str| is_audience(text) || issuer.is_audience(text);
                let verified = issuers
                    .verify(issuer, (text, request.from), now, is_audience)
                    .await?;
                let known = Authenticated::by_token(tenant, issuer, &verified);
                Ok((known, verified.claims.holder))
            }
        }
    }

    /// Uses the proof of a caller for the access token `text`, which is bound to `holder`.
    async fn prove(
        &self,
        at: (&Arc<Tenant>, &AccessRequest<'_>),
        offered: Result<&str, &'static str>,
        (caller, text, holder): (&Arc<str>, &str, Thumbprint),
    ) -> Result<(), AccessRefusal> {
        let (tenant, request) = at;
        let wrong = |why| self.unknown(at, Rejected::Proof(why), why);
        let url = request.endpoint.url(request.public_url);
        let of = ProvenRequest {
            method: request.method,
            url: &url,
        };
        let proof = self.0.proofs.verify(offered.map_err(wrong)?, of);
        let proof = proof.map_err(wrong)?;
        proof.check_token(text, holder).map_err(wrong)?;
        let used = self.0.proofs.take(&tenant.name, Arc::clone(caller), &proof);
        let used = used.await;
        if used.map_err(AccessRefusal::Later)? {
            return Ok(());
        }
        Err(wrong("the proof was used before"))
    }

    /// Refuses credentials that are not known here. While the database cannot be read they may be known to another
    /// replica, and the caller is not reported.
    fn unknown_here(&self, bad: impl FnOnce() -> AccessRefusal) -> AccessRefusal {
        if !self.0.asked.is_cut_off() {
            return bad();
        }
        AccessRefusal::Later(Error::Busy {
            what: "the database cannot be read at this moment",
            retry: AGAIN,
        })
    }

    /// Reports a caller whose credentials are refused.
    fn unknown(
        &self,
        (tenant, request): (&Arc<Tenant>, &AccessRequest<'_>),
        rejected: Rejected,
        detail: &'static str,
    ) -> AccessRefusal {
        let reason = match rejected {
            Rejected::Nothing => Denied::NoToken,
            Rejected::Bearer | Rejected::Bound | Rejected::Proof(_) => Denied::BadToken,
        };
        self.deny(request, denials::Caller::At(request.from), reason, detail);
        AccessRefusal::Unknown {
            tenant: Arc::clone(tenant),
            rejected,
        }
    }

    /// The principal behind an API key; none for a key that is not known, or not good any more.
    async fn identify_key(
        &self,
        catalog: &Catalog,
        tenant: &Arc<Tenant>,
        hash: [u8; 32],
    ) -> Result<Option<Authenticated>, AccessRefusal> {
        if let Some((hash, key)) = api_key::find(tenant, hash, self.0.now()) {
            let principal = self.0.principals.by_key(tenant, hash, &key);
            return Ok(Some(Authenticated::by_key(principal, hash, &key)));
        }
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            return Ok(None);
        };
        if builtin.own_keys.is_none() {
            return Ok(None);
        }
        self.check_revocations(&tenant.auth)?;
        let (own_keys, issuer) = (&self.0.own_keys, || self.issuer(&tenant.name));
        // Boxed: other requests have no use for this room.
        let known = Box::pin(own_keys.find(&catalog.issued, (tenant, builtin), hash, issuer)).await;
        let known = known.map_err(AccessRefusal::Later)?;
        Ok(known.map(|(principal, key, groups)| {
            Authenticated::by_own_key(principal, (hash, key), groups)
        }))
    }

    /// Checks that this replica knows what was revoked of a tenant's own tokens: after a pause, some
    /// may be missing.
    fn check_revocations(&self, auth: &AuthMode) -> Result<(), AccessRefusal> {
        if !matches!(auth, AuthMode::Builtin(_)) || self.0.asked.is_recent() {
            return Ok(());
        }
        Err(AccessRefusal::Later(Error::Busy {
            what: "what was revoked is being read",
            retry: AGAIN,
        }))
    }

    /// The issuer of a tenant's own tokens at the public URL, which names its principals at every host.
    fn issuer(&self, tenant: &str) -> String {
        endpoint::issuer(&self.0.public_url, self.0.default.as_ref(), tenant)
    }

    fn deny(
        &self,
        request: &AccessRequest<'_>,
        who: denials::Caller,
        reason: Denied,
        detail: &'static str,
    ) {
        self.0.denials.report(denials::Denial {
            who,
            tenant: request.endpoint.tenant.into(),
            server: request.endpoint.server.into(),
            route: request.endpoint.kind.name(),
            reason,
            user: None,
            detail,
        });
    }
}

/// Delay before a retry while revocations are being read.
const AGAIN: Duration = Duration::from_secs(1);

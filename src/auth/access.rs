//! Access decisions: the verifier of requests and the proof that it makes.
//!
//! Methods of the hub take an [`Access`], which only this module can make: an unchecked call does
//! not compile. `api_key`, `builtin` and `external` identify the principal behind a bearer
//! credential; this file decides which servers the principal may use.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    api_key::{self, OwnKeyCallers, People, PresentedKey},
    assertion::{AssertedBasis, Assertion},
    builtin::{self, Groups, Tokens},
    denials::{self, Denials},
    dpop::{Proof, ProvenRequest, UsedProofs},
    external::{self, Issuers, KeyFetch, TrustedIssuers},
    jose::Thumbprint,
    jwt::TokenError,
    principals::{self, Principal, Principals},
    request::{AccessRefusal, AccessRequest, Credential, Rejected},
};
use crate::{
    base::{Clock, Outbound},
    config::Config,
    declare::{
        AllowedScopes, ApiKey, AuthMode, Builtin, Catalog, Dpop, External, Issued, OwnKey, Policy,
        Server, Tenant,
    },
    endpoint::{self, TenantHost},
    error::Error,
    snapshot::{AuditQueue, CurrentSnapshot, LastPollAttempt},
    state::Limiter,
    telemetry::{Denied, Metrics},
};

/// Proof that a principal may use a server.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    principal: Principal,
    tenant: Arc<Tenant>,
    server: Arc<Server>,
    /// The scopes of the credentials, if the principal may not have all of them.
    claimed: Option<Arc<Vec<String>>>,
    /// Those that it may have.
    scopes: Arc<[String]>,
    policy: Arc<Policy>,
    groups: Groups,
    basis: AccessBasis,
    /// Whether a key was proved, to which the token is bound.
    is_bound: bool,
    from: Option<IpAddr>,
    host: Option<Arc<TenantHost>>,
}

/// The credential that an access rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AccessBasis {
    /// No credential: the tenant has no authentication.
    Open,
    /// The API key with this hash.
    ApiKey([u8; 32]),
    /// The API key with this hash, which its person made.
    OwnKey([u8; 32]),
    /// A token of another authorization server, the principal's issuer.
    Token,
    /// A token of the tenant's own authorization server.
    Own(builtin::GrantBasis),
}

impl Access {
    /// The principal behind the request.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The address of a caller whom nothing else tells apart from others: the tenant has no
    /// authentication.
    pub(crate) fn anonymous_from(&self) -> Option<IpAddr> {
        self.from.filter(|_| self.basis == AccessBasis::Open)
    }

    /// The host of the tenant that the request named; none at the public URL.
    pub(crate) fn host(&self) -> Option<&Arc<TenantHost>> {
        self.host.as_ref()
    }

    /// The name under which the caller's secrets are kept: the subject, with the issuer if that is not of this
    /// gateway. It is the same by any client, and for an API key with the subject of a person. None without
    /// authentication.
    pub(crate) fn holder(&self) -> Option<String> {
        let subject = self
            .principal
            .subject()
            .filter(|subject| !subject.is_empty())?;
        match self.basis {
            AccessBasis::Open => None,
            AccessBasis::ApiKey(_) | AccessBasis::OwnKey(_) | AccessBasis::Own(_) => {
                Some(subject.to_owned())
            }
            AccessBasis::Token => Some(format!("{}#{subject}", self.principal.issuer()?)),
        }
    }

    /// Whether anybody has the same: the tenant has no authentication.
    pub(crate) fn is_of_anybody(&self) -> bool {
        self.basis == AccessBasis::Open
    }

    /// Whether the credential is a token that is bound to a key, which was proved.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// The tenant whose server it is.
    pub(crate) fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// The OAuth scopes of the credentials that the principal may have.
    pub(crate) fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// The scopes of the credentials.
    fn claimed(&self) -> &[String] {
        let claimed = self.claimed.as_ref();
        claimed.map_or(&self.scopes, |claimed| claimed.as_slice())
    }

    /// The policy of the server for the principal.
    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The server that the principal may use.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The caller as another replica is told of it, in place of the credentials.
    pub(crate) fn caller(&self) -> String {
        let principal = &self.principal;
        let own = |text: Option<&str>| text.map(str::to_owned);
        let assertion = Assertion {
            issuer: own(principal.issuer()),
            subject: own(principal.subject()),
            client: own(principal.client()),
            scopes: self.claimed().to_vec(),
            groups: self.groups.to_vec(),
            basis: match &self.basis {
                AccessBasis::Open => AssertedBasis::Open,
                AccessBasis::ApiKey(hash) => AssertedBasis::ApiKey(*hash),
                AccessBasis::OwnKey(hash) => AssertedBasis::OwnKey(*hash),
                AccessBasis::Token => AssertedBasis::Token,
                AccessBasis::Own(basis) => AssertedBasis::Own(basis.numbers()),
            },
            is_bound: self.is_bound,
        };
        assertion.encode()
    }

    /// Extends this access by the basis of `other`, which has the same principal. Returns `None` if
    /// that adds nothing.
    pub(crate) fn joined(&self, other: &Self) -> Option<Self> {
        let basis = match (&self.basis, &other.basis) {
            (AccessBasis::Own(own), AccessBasis::Own(theirs)) => {
                AccessBasis::Own(own.joined(theirs)?)
            }
            // Another value of the key: the one before may end.
            (AccessBasis::OwnKey(own), AccessBasis::OwnKey(theirs)) if own != theirs => {
                AccessBasis::OwnKey(*theirs)
            }
            _ => return None,
        };
        Some(Self {
            basis,
            is_bound: self.is_bound && other.is_bound,
            ..self.clone()
        })
    }
}

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
    pub(super) own_keys: OwnKeyCallers,
    pub(crate) denials: Denials,
    clock: Clock,
    asked: LastPollAttempt,
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
        };
        Self(Arc::new(VerifierState {
            public_url: config.public_url.clone(),
            default: config.default.clone(),
            issuers: Issuers::new(fetch),
            tokens: Tokens::new(),
            principals: Principals::default(),
            proofs: UsedProofs::new(limiter),
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
        let at_address = |access| Access {
            from: request.from,
            host: request.host.cloned(),
            ..access
        };
        access.map(at_address).ok_or_else(|| {
            // Without authentication there are no denials.
            if known.basis != AccessBasis::Open {
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
                let renewed = known.and_then(|known| known.renewed(catalog, tenant));
                return renewed.ok_or_else(|| bad("no longer valid at this replica"));
            }
        };
        if api_key::has_prefix(text) {
            if offered.is_some() {
                return Err(bad("an API key, as a token that is bound to a key"));
            }
            let known = self.identify_key(catalog, tenant, text).await?;
            return known.ok_or_else(|| bad("an API key that is not known here"));
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
                let verified = verified.map_err(TokenError::Invalid)?;
                let of = (&**tenant, &**builtin);
                let known = Authenticated::by_own_token(of, &catalog.issued, &verified);
                Ok((known.map_err(TokenError::Invalid)?, verified.claims.holder))
            }
            AuthMode::External(issuer) => {
                let issuers = &self.0.issuers;
                let is_audience = |text: &str| is_audience(text) || issuer.is_audience(text);
                let verified = issuers.verify(issuer, text, now, is_audience).await?;
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
        let (_, request) = at;
        let wrong = |why| self.unknown(at, Rejected::Proof(why), why);
        let url = request.endpoint.url(request.public_url);
        let of = ProvenRequest {
            method: request.method,
            url: &url,
        };
        let proof = Proof::verify(offered.map_err(wrong)?, of, self.0.now()).map_err(wrong)?;
        proof.check_token(text, holder).map_err(wrong)?;
        let used = self.0.proofs.take(Arc::clone(caller), &proof).await;
        if used.map_err(AccessRefusal::Later)? {
            return Ok(());
        }
        Err(wrong("the proof was used before"))
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
        text: &str,
    ) -> Result<Option<Authenticated>, AccessRefusal> {
        let Some(hash) = api_key::digest(text) else {
            return Ok(None);
        };
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

/// A principal with valid credentials.
struct Authenticated {
    principal: Principal,
    scopes: Arc<[String]>,
    groups: Groups,
    basis: AccessBasis,
    /// Whether a key was proved, to which the token is bound.
    is_bound: bool,
    /// The API key, which lists its servers.
    key: Option<PresentedKey>,
}

impl Authenticated {
    fn anonymous(principal: Principal) -> Self {
        Self {
            principal,
            scopes: Arc::default(),
            groups: Groups::default(),
            basis: AccessBasis::Open,
            is_bound: false,
            key: None,
        }
    }

    fn by_key(principal: Principal, hash: [u8; 32], key: &Arc<ApiKey>) -> Self {
        Self {
            principal,
            scopes: Arc::clone(&key.scopes),
            groups: Groups::default(),
            basis: AccessBasis::ApiKey(hash),
            is_bound: false,
            key: Some(PresentedKey::Declared(Arc::clone(key))),
        }
    }

    fn by_own_key(
        principal: Principal,
        (hash, key): ([u8; 32], Arc<OwnKey>),
        groups: Groups,
    ) -> Self {
        Self {
            principal,
            scopes: Arc::clone(&key.scopes),
            groups,
            basis: AccessBasis::OwnKey(hash),
            is_bound: false,
            key: Some(PresentedKey::Own(key)),
        }
    }

    fn by_token(tenant: &Tenant, issuer: &External, verified: &external::ExternalToken) -> Self {
        let claims = &verified.claims;
        Self {
            principal: verified.principal(&tenant.name, &issuer.issuer),
            scopes: Arc::clone(&claims.scopes),
            groups: Groups::Claimed(match &issuer.groups.map {
                None => Arc::clone(&claims.groups),
                Some(_) => issuer.groups.groups(&claims.groups).cloned().collect(),
            }),
            basis: AccessBasis::Token,
            is_bound: verified.claims.holder.is_some(),
            key: None,
        }
    }

    fn by_own_token(
        (tenant, builtin): (&Tenant, &Builtin),
        issued: &Issued,
        verified: &builtin::OwnToken,
    ) -> Result<Self, &'static str> {
        let (principal, basis) = (&verified.principal, &verified.basis);
        let claimed = Groups::Claimed(Arc::clone(&verified.claims.groups));
        let at = (tenant.name.as_str(), builtin);
        Ok(Self {
            principal: principal.clone(),
            scopes: Arc::clone(&verified.claims.scopes),
            groups: builtin::groups(at, issued, principal, basis, &claimed)?,
            basis: AccessBasis::Own(basis.clone()),
            is_bound: verified.claims.holder.is_some(),
            key: None,
        })
    }

    /// The caller of a tenant, as another replica says; `None` for a text that none has written.
    fn asserted(tenant: &str, text: &str) -> Option<Self> {
        let said = Assertion::decode(text)?;
        let [issuer, subject, client] =
            [&said.issuer, &said.subject, &said.client].map(|text| text.as_deref());
        Some(Self {
            principal: Principal::new(tenant, issuer, subject, client),
            scopes: said.scopes.into(),
            groups: Groups::Claimed(said.groups.into()),
            basis: match said.basis {
                AssertedBasis::Open => AccessBasis::Open,
                AssertedBasis::ApiKey(hash) => AccessBasis::ApiKey(hash),
                AssertedBasis::OwnKey(hash) => AccessBasis::OwnKey(hash),
                AssertedBasis::Token => AccessBasis::Token,
                AssertedBasis::Own(all) => AccessBasis::Own(builtin::GrantBasis::of_numbers(all)),
            },
            is_bound: said.is_bound,
            key: None,
        })
    }

    /// The same principal as of this catalog; `None` if its credentials are no longer valid. Expiry is
    /// not checked.
    fn renewed(self, catalog: &Catalog, tenant: &Tenant) -> Option<Self> {
        let is_token = matches!(self.basis, AccessBasis::Token | AccessBasis::Own(_));
        if is_token && !self.is_bound && tenant.dpop == Dpop::Required {
            return None;
        }
        let renewed = match (&self.basis, &tenant.auth) {
            (AccessBasis::Open, AuthMode::None) => Self::anonymous(principals::anonymous(tenant)),
            (
                AccessBasis::ApiKey(hash),
                AuthMode::Keys | AuthMode::Builtin(_) | AuthMode::External(_),
            ) => {
                let key = tenant.api_keys.get(hash)?;
                Self::by_key(principals::by_key(tenant, key), *hash, key)
            }
            (AccessBasis::OwnKey(hash), AuthMode::Builtin(builtin)) => {
                let (key, groups) = api_key::own(&catalog.issued, (tenant, builtin), hash)?;
                let of = (Some(key.subject.as_str()), Some(key.name.as_str()));
                if of != (self.principal.subject(), self.principal.client()) {
                    return None;
                }
                return Some(Self::by_own_key(self.principal, (*hash, key), groups));
            }
            (AccessBasis::Own(basis), AuthMode::Builtin(builtin)) => {
                let at = (tenant.name.as_str(), &**builtin);
                let (principal, claimed) = (&self.principal, &self.groups);
                let groups =
                    builtin::groups(at, &catalog.issued, principal, basis, claimed).ok()?;
                return Some(Self { groups, ..self });
            }
            (AccessBasis::Token, AuthMode::External(issuer))
                if Some(issuer.issuer.as_str()) == self.principal.issuer() =>
            {
                return Some(self);
            }
            _ => return None,
        };
        (renewed.principal == self.principal).then_some(renewed)
    }

    /// The access, if the principal may use `server`.
    fn access(&self, tenant: &Arc<Tenant>, server: &Arc<Server>) -> Option<Access> {
        let reaches = |key: &PresentedKey| key.servers().contains(&server.name);
        if !self.key.as_ref().is_none_or(reaches) {
            return None;
        }
        let is_own = self.key.as_ref().is_some_and(PresentedKey::is_own);
        let subject = self.principal.subject();
        let client = self.principal.client().filter(|_| !is_own);
        let allowed = match subject {
            Some(subject) => server.scopes_of(subject, &self.groups, client)?,
            // Without authentication there is no subject, and grants cannot tell principals apart.
            None => AllowedScopes::All,
        };
        let policy = &server.policy;
        let may = |scope: &&String| allowed.include(policy, scope);
        let has_all = self.scopes.iter().all(|scope| may(&scope));
        Some(Access {
            principal: self.principal.clone(),
            tenant: Arc::clone(tenant),
            server: Arc::clone(server),
            claimed: (!has_all).then(|| Arc::new(self.scopes.to_vec())),
            scopes: if has_all {
                Arc::clone(&self.scopes)
            } else {
                self.scopes.iter().filter(may).cloned().collect()
            },
            policy: policy.of_caller(&self.groups, &allowed),
            groups: self.groups.clone(),
            basis: self.basis.clone(),
            is_bound: self.is_bound,
            from: None,
            host: None,
        })
    }
}

/// Renews an access after a change of the catalog.
///
/// Returns `None` if the tenant or the server is gone, the API key was removed or has another
/// subject, the issuer is no longer trusted, the grant was revoked, or the server is no longer
/// granted. Expiry is not checked.
pub(crate) fn renew(catalog: &Catalog, access: &Access) -> Option<Access> {
    let (tenant, server) = catalog.find(&access.tenant.name, &access.server.name)?;
    let known = Authenticated {
        principal: access.principal.clone(),
        scopes: match &access.claimed {
            None => Arc::clone(&access.scopes),
            Some(claimed) => claimed.as_slice().into(),
        },
        groups: access.groups.clone(),
        basis: access.basis.clone(),
        is_bound: access.is_bound,
        key: None,
    };
    let renewed = known.renewed(catalog, &tenant)?.access(&tenant, &server)?;
    let (from, host) = (access.from, access.host.clone());
    Some(Access {
        from,
        host,
        ..renewed
    })
}

/// Delay before a retry while revocations are being read.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
impl Access {
    /// Makes the access of a person of the tenant, without a check.
    pub(crate) fn of(tenant: &Arc<Tenant>, server: &Arc<Server>, subject: &str) -> Self {
        Self {
            principal: Principal::new(&tenant.name, Some("test"), Some(subject), None),
            tenant: Arc::clone(tenant),
            server: Arc::clone(server),
            claimed: None,
            scopes: Arc::default(),
            policy: Arc::clone(&server.policy),
            groups: Groups::default(),
            basis: AccessBasis::Token,
            is_bound: false,
            from: None,
            host: None,
        }
    }

    /// Replaces the scopes.
    pub(crate) fn with_scopes(mut self, scopes: &[&str]) -> Self {
        self.scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{config::Format, manifest::reader::parse};

    use super::*;

    const HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn catalog(auth: &str, rest: &str, grants: &str) -> Catalog {
        let text = format!(
            "tenants:\n  a:\n    auth: {{{auth}}}\n    {rest}\n    servers:\n      x: {{command: cat{grants}}}\n      y: {{command: cat}}\n"
        );
        parse("F", &text, Format::Yaml, &BTreeMap::new())
            .unwrap()
            .catalog
    }

    fn keyed(key: &str, grants: &str) -> Catalog {
        let hash = format!("hash: \"sha256:{HASH}\"");
        catalog(
            "mode: keys",
            &format!("api_keys: {{ci: {{{hash}, {key}}}}}"),
            grants,
        )
    }

    fn by_key(catalog: &Catalog, server: &str) -> Option<Access> {
        let (tenant, server) = catalog.find("a", server).unwrap();
        let key = tenant.api_keys.get(&[0; 32])?;
        let principal = principals::by_key(&tenant, key);
        Authenticated::by_key(principal, [0; 32], key).access(&tenant, &server)
    }

    fn by_token(catalog: &Catalog, groups: &[&str]) -> Option<Access> {
        let (tenant, server) = catalog.find("a", "x").unwrap();
        let principal = Principal::new("a", Some("https://i.test"), Some("ada"), Some("app"));
        let known = Authenticated {
            principal,
            scopes: Arc::default(),
            groups: Groups::Claimed(groups.iter().map(|group| (*group).to_owned()).collect()),
            basis: AccessBasis::Token,
            is_bound: false,
            key: None,
        };
        known.access(&tenant, &server)
    }

    #[test]
    fn principals_differ_by_tenant_issuer_subject_and_client() {
        let all = [
            Principal::new("a", None, None, None),
            Principal::new("b", None, None, None),
            Principal::new("a", Some("i"), Some("s"), Some("c")),
            Principal::new("b", Some("i"), Some("s"), Some("c")),
            Principal::new("a", Some("j"), Some("s"), Some("c")),
            Principal::new("a", Some("i"), Some("t"), Some("c")),
            Principal::new("a", Some("i"), Some("s"), Some("d")),
            Principal::new("a", Some("i"), Some("s"), None),
            Principal::new("a", Some("i"), Some("s"), Some("")),
            Principal::new("a", Some("i\",\"s"), Some("c"), None),
            Principal::new("a", Some("i"), Some("s\",\"c"), None),
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one == other, at == other_at);
                assert_eq!(one.key() == other.key(), at == other_at);
            }
        }
    }

    #[test]
    fn grants_match_users_groups_or_clients() {
        let external =
            |grants: &str| catalog("mode: external, issuer: \"https://i.test\"", "", grants);
        for (grants, groups, may) in [
            ("", &[][..], true),
            (", grants: {}", &["g"], false),
            (", grants: {users: [eve]}", &["g"], false),
            (", grants: {users: [eve, ada]}", &[], true),
            (", grants: {groups: [g]}", &["g"], true),
            (", grants: {groups: [g]}", &["G", "gg"], false),
            (", grants: {clients: [app]}", &[], true),
            (", grants: {clients: [ada], groups: [ada]}", &[], false),
        ] {
            assert_eq!(
                by_token(&external(grants), groups).is_some(),
                may,
                "{grants}"
            );
        }
        for (key, server, grants, may) in [
            ("servers: [x]", "x", "", true),
            ("servers: [x]", "y", "", false),
            ("servers: [\"*\"]", "y", "", true),
            ("servers: [x]", "x", ", grants: {users: [ada]}", true),
            ("servers: [x]", "x", ", grants: {clients: [ci]}", true),
            ("servers: [x]", "x", ", grants: {users: [eve]}", false),
            ("servers: [y]", "x", ", grants: {users: [ada]}", false),
        ] {
            let catalog = keyed(&format!("subject: ada, {key}"), grants);
            assert_eq!(
                by_key(&catalog, server).is_some(),
                may,
                "{key} {server} {grants}"
            );
        }
    }

    #[test]
    fn access_is_renewed_while_its_basis_exists() {
        let key = "subject: ada, servers: [x], scopes: [s]";
        let access = by_key(&keyed(key, ""), "x").unwrap();
        assert_eq!(access.scopes(), ["s"]);
        let wider = keyed("subject: ada, servers: [\"*\"], scopes: [s, t]", "");
        assert_eq!(renew(&wider, &access).unwrap().scopes(), ["s", "t"]);
        for gone in [
            keyed("subject: eve, servers: [x]", ""),
            keyed("subject: ada, servers: [y]", ""),
            keyed(key, ", grants: {users: [eve]}"),
            catalog("mode: keys", "", ""),
            catalog("mode: none", "", ""),
            Catalog::default(),
        ] {
            assert!(renew(&gone, &access).is_none());
        }
        let external = |issuer: &str, grants: &str| {
            catalog(&format!("mode: external, issuer: \"{issuer}\""), "", grants)
        };
        let own = external("https://i.test", ", grants: {groups: [g]}");
        let access = by_token(&own, &["g"]).unwrap();
        assert!(renew(&own, &access).is_some());
        for gone in [
            external("https://j.test", ""),
            external("https://i.test", ", grants: {groups: [h]}"),
            catalog("mode: keys", "", ""),
            catalog("mode: none", "", ""),
        ] {
            assert!(renew(&gone, &access).is_none());
        }
    }
}

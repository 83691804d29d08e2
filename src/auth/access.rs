//! Callers with valid credentials, and what they may use.
//!
//! Methods of the hub take an [`Access`], which only this module can make: an unchecked call does not
//! compile. A hop to another replica carries an assertion of the caller under its signature
//! (`http::peers::hop`), so that credentials stay here and its content is trusted there. What was declared,
//! granted or revoked meanwhile counts all the same: that replica decides with its own catalog. Not here:
//! the check of the credentials (`verifier`).

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::{
    api_key::{self, PresentedKey},
    builtin::{self, Groups},
    external,
    principals::{self, Principal},
};
use crate::{
    declare::{
        AllowedScopes, ApiKey, AuthMode, Builtin, Catalog, Dpop, External, Issued, OwnKey, Policy,
        Server, Subset, Tenant, TenantProfile,
    },
    endpoint::TenantHost,
};

/// Proof that a principal may use a server.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    principal: Principal,
    tenant: Arc<TenantProfile>,
    /// The tenant by which it was judged, whose address is no other's as long as there is this reference. It is weak:
    /// streams, calls and tasks keep their access through changes, each of which makes another tenant.
    declared: Weak<Tenant>,
    /// Whether an authorization server issues tokens for the tenant.
    has_issuer: bool,
    /// Whether that is the tenant's own, at which people have an account page.
    has_account_page: bool,
    server: Arc<Server>,
    /// The scopes of the credentials that the principal may have.
    scopes: Subset<String>,
    policy: Arc<Policy>,
    groups: Groups,
    basis: AccessBasis,
    /// Whether a key was proved, to which the token is bound.
    is_bound: bool,
    from: Option<IpAddr>,
    host: Option<Arc<TenantHost>>,
    /// The keys and revocations by which it was judged, whose address is no other's as long as there is this reference. None
    /// if it may end without a change of them: an API key may have an end.
    issued: Option<Weak<Issued>>,
}

/// The credential that an access rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AccessBasis {
    /// No credential: the tenant has no authentication.
    Open,
    /// The API key with this hash.
    ApiKey([u8; 32]),
    /// The API key with this hash, which its person made.
    OwnKey {
        hash: [u8; 32],
        /// When the value was made, in milliseconds since 1970; the least number for one that another has replaced.
        since_ms: i64,
    },
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
            AccessBasis::ApiKey(_) | AccessBasis::OwnKey { .. } | AccessBasis::Own(_) => {
                Some(subject.to_owned())
            }
            AccessBasis::Token => Some(format!("{}#{subject}", self.principal.issuer()?)),
        }
    }

    /// Whether anybody has the same: the tenant has no authentication.
    pub(crate) fn is_of_anybody(&self) -> bool {
        self.basis == AccessBasis::Open
    }

    /// The same for a request from this address that names this host of the tenant, judged by these keys and revocations.
    pub(super) fn placed(
        self,
        issued: &Arc<Issued>,
        from: Option<IpAddr>,
        host: Option<Arc<TenantHost>>,
    ) -> Self {
        Self {
            issued: self.issued.map(|_| Arc::downgrade(issued)),
            from,
            host,
            ..self
        }
    }

    /// Whether it was judged by all that `catalog` says about it, so that it need not be renewed: each body asks, so
    /// pointers are compared.
    pub(crate) fn is_of(&self, catalog: &Catalog) -> bool {
        let tenant = catalog.tenants.get(&self.tenant.name);
        let judged = self.issued.as_ref();
        judged.is_some_and(|issued| std::ptr::eq(issued.as_ptr(), Arc::as_ptr(&catalog.issued)))
            && tenant
                .is_some_and(|tenant| std::ptr::eq(Arc::as_ptr(tenant), self.declared.as_ptr()))
    }

    /// Whether it permits what `other` does, which is the same access at another time. Groups may change without the
    /// tenant: by the word of an identity provider.
    pub(crate) fn permits_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server)
            && Weak::ptr_eq(&self.declared, &other.declared)
            && *self.groups == *other.groups
            && self.scopes == other.scopes
    }

    /// Whether the credential is a token that is bound to a key, which was proved.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// The tenant whose server it is.
    pub(crate) fn tenant(&self) -> &Arc<TenantProfile> {
        &self.tenant
    }

    /// Whether an authorization server issues tokens for the tenant.
    pub(crate) fn has_issuer(&self) -> bool {
        self.has_issuer
    }

    /// Whether people have an account page at the tenant.
    pub(crate) fn has_account_page(&self) -> bool {
        self.has_account_page
    }

    /// The OAuth scopes of the credentials that the principal may have.
    pub(crate) fn scopes(&self) -> &Subset<String> {
        &self.scopes
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
            scopes: self.scopes.all().to_vec(),
            groups: self.groups.to_vec(),
            basis: match &self.basis {
                AccessBasis::Open => AssertedBasis::Open,
                AccessBasis::ApiKey(hash) => AssertedBasis::ApiKey(*hash),
                AccessBasis::OwnKey { hash, .. } => AssertedBasis::OwnKey(*hash),
                AccessBasis::Token => AssertedBasis::Token,
                AccessBasis::Own(basis) => AssertedBasis::Own(basis.numbers()),
            },
            groups_since_s: match &self.basis {
                AccessBasis::Own(basis) => basis.since_s(),
                _ => 0,
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
            // A later value of the key: the one before ends, and must not end those who use the later one.
            (
                AccessBasis::OwnKey { since_ms, .. },
                AccessBasis::OwnKey {
                    since_ms: later, ..
                },
            ) if since_ms < later => other.basis.clone(),
            _ => return None,
        };
        Some(Self {
            basis,
            is_bound: self.is_bound && other.is_bound,
            ..self.clone()
        })
    }
}

/// A principal with valid credentials.
pub(super) struct Authenticated {
    pub(super) principal: Principal,
    scopes: Arc<[String]>,
    groups: Groups,
    basis: AccessBasis,
    /// Whether a key was proved, to which the token is bound.
    is_bound: bool,
    /// The API key, which lists its servers.
    key: Option<PresentedKey>,
}

impl Authenticated {
    pub(super) fn anonymous(principal: Principal) -> Self {
        Self {
            principal,
            scopes: Arc::default(),
            groups: Groups::default(),
            basis: AccessBasis::Open,
            is_bound: false,
            key: None,
        }
    }

    pub(super) fn by_key(principal: Principal, hash: [u8; 32], key: &Arc<ApiKey>) -> Self {
        Self {
            principal,
            scopes: Arc::clone(&key.scopes),
            groups: Groups::default(),
            basis: AccessBasis::ApiKey(hash),
            is_bound: false,
            key: Some(PresentedKey::Declared(Arc::clone(key))),
        }
    }

    pub(super) fn by_own_key(
        principal: Principal,
        (hash, key): ([u8; 32], Arc<OwnKey>),
        groups: Groups,
    ) -> Self {
        let is_newest = key.hash == hash;
        let since_ms = if is_newest { key.since_ms } else { i64::MIN };
        Self {
            principal,
            scopes: Arc::clone(&key.scopes),
            groups,
            basis: AccessBasis::OwnKey { hash, since_ms },
            is_bound: false,
            key: Some(PresentedKey::Own(key)),
        }
    }

    pub(super) fn by_token(
        tenant: &Tenant,
        issuer: &External,
        verified: &external::ExternalToken,
    ) -> Self {
        let claims = &verified.claims;
        Self {
            principal: verified.principal(&tenant.name, &issuer.issuer),
            scopes: Arc::clone(&claims.scopes),
            groups: Groups::Claimed(Arc::clone(&claims.groups)),
            basis: AccessBasis::Token,
            is_bound: verified.claims.holder.is_some(),
            key: None,
        }
    }

    pub(super) fn by_own_token(
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
    pub(super) fn asserted(tenant: &str, text: &str) -> Option<Self> {
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
                AssertedBasis::OwnKey(hash) => AccessBasis::OwnKey {
                    hash,
                    since_ms: i64::MIN,
                },
                AssertedBasis::Token => AccessBasis::Token,
                AssertedBasis::Own(all) => {
                    let basis = builtin::GrantBasis::of_numbers(all, said.groups_since_s);
                    AccessBasis::Own(basis)
                }
            },
            is_bound: said.is_bound,
            key: None,
        })
    }

    /// The same principal as of this catalog; `None` if its credentials are no longer valid, as an API key that has ended
    /// by now. The expiry of a token is not checked: its client gets another.
    pub(super) fn renewed(self, catalog: &Catalog, tenant: &Tenant, now_ms: i64) -> Option<Self> {
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
                let now = u64::try_from(now_ms / 1000).unwrap_or(0);
                let (hash, key) = api_key::find(tenant, *hash, now)?;
                Self::by_key(principals::by_key(tenant, &key), hash, &key)
            }
            (AccessBasis::OwnKey { hash, .. }, AuthMode::Builtin(builtin)) => {
                let (key, groups) = api_key::own(&catalog.issued, (tenant, builtin), hash)?;
                let of = (Some(key.subject.as_str()), Some(key.name.as_str()));
                let is_good = key.holds(hash, builtin.own_keys.as_ref()?, now_ms);
                if !is_good || of != (self.principal.subject(), self.principal.client()) {
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

    /// Whether there was a credential.
    pub(super) fn has_credential(&self) -> bool {
        self.basis != AccessBasis::Open
    }

    /// The access, if the principal may use `server`.
    pub(super) fn access(&self, tenant: &Arc<Tenant>, server: &Arc<Server>) -> Option<Access> {
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
        let may = |scope: &String| allowed.include(policy, scope);
        Some(Access {
            principal: self.principal.clone(),
            tenant: Arc::clone(&tenant.profile),
            declared: Arc::downgrade(tenant),
            has_issuer: tenant.auth.has_issuer(),
            has_account_page: matches!(tenant.auth, AuthMode::Builtin(_)),
            server: Arc::clone(server),
            scopes: Subset::new(&self.scopes, self.scopes.iter().map(may)),
            policy: policy.of_caller(&self.groups, &allowed),
            groups: self.groups.clone(),
            basis: self.basis.clone(),
            is_bound: self.is_bound,
            from: None,
            host: None,
            issued: (!self.key.as_ref().is_some_and(PresentedKey::has_end)).then(Weak::new),
        })
    }
}

/// Renews an access after a change of the catalog, or at the end of an API key.
///
/// Returns `None` if the tenant or the server is gone, the tenant is another one of that name, the API
/// key has ended by now, was removed or has another subject, the issuer is no longer trusted, the grant
/// was revoked, or the server is no longer granted. The expiry of a token is not checked.
pub(crate) fn renew(catalog: &Catalog, access: &Access, now_ms: i64) -> Option<Access> {
    let (tenant, server) = catalog.find(&access.tenant.name, &access.server.name)?;
    if tenant.id != access.tenant.id {
        return None;
    }
    let known = Authenticated {
        principal: access.principal.clone(),
        scopes: Arc::clone(access.scopes.all()),
        groups: access.groups.clone(),
        basis: access.basis.clone(),
        is_bound: access.is_bound,
        key: None,
    };
    let renewed = known.renewed(catalog, &tenant, now_ms)?;
    let renewed = renewed.access(&tenant, &server)?;
    Some(renewed.placed(&catalog.issued, access.from, access.host.clone()))
}

/// What identifies a caller without credentials.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Assertion {
    issuer: Option<String>,
    subject: Option<String>,
    client: Option<String>,
    scopes: Vec<String>,
    groups: Vec<String>,
    basis: AssertedBasis,
    /// The time since which a token of the tenant's own authorization server claims the groups, in seconds since 1970.
    /// Replicas of an older release do not say so.
    #[serde(default)]
    groups_since_s: u64,
    /// Whether a key was proved with the token. Replicas of an older release do not say so.
    #[serde(default)]
    is_bound: bool,
}

/// The credential that was verified, by what can be revoked of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum AssertedBasis {
    /// There was none: the tenant has no authentication.
    Open,
    /// The SHA-256 digest of an API key.
    ApiKey([u8; 32]),
    /// The SHA-256 digest of an API key that a person made.
    OwnKey([u8; 32]),
    /// A token of another authorization server.
    Token,
    /// Grant and signing key of a token of the tenant's own authorization server.
    Own(Vec<(u128, String)>),
}

impl Assertion {
    /// Writes it as base64url.
    fn encode(&self) -> String {
        // Texts and numbers: serialization cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads it; `None` for anything else.
    fn decode(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

#[cfg(test)]
impl Access {
    /// Makes the access of a caller from this address, whom nothing else tells apart from others.
    pub(crate) fn anonymous_from_address(self, from: IpAddr) -> Self {
        Self {
            basis: AccessBasis::Open,
            from: Some(from),
            ..self
        }
    }

    /// Makes the access of a person of the tenant, without a check.
    pub(crate) fn of(tenant: &Arc<Tenant>, server: &Arc<Server>, subject: &str) -> Self {
        Self {
            principal: Principal::new(&tenant.name, Some("test"), Some(subject), None),
            tenant: Arc::clone(&tenant.profile),
            declared: Arc::downgrade(tenant),
            has_issuer: tenant.auth.has_issuer(),
            has_account_page: matches!(tenant.auth, AuthMode::Builtin(_)),
            server: Arc::clone(server),
            scopes: Subset::from(Arc::default()),
            policy: Arc::clone(&server.policy),
            groups: Groups::default(),
            basis: AccessBasis::Token,
            is_bound: false,
            from: None,
            host: None,
            issued: Some(Weak::new()),
        }
    }

    /// Makes the access that everybody has at a tenant without authentication.
    pub(crate) fn of_anybody(tenant: &Arc<Tenant>, server: &Arc<Server>) -> Self {
        Self {
            principal: principals::anonymous(tenant),
            basis: AccessBasis::Open,
            ..Self::of(tenant, server, "")
        }
    }

    /// Replaces the scopes.
    pub(crate) fn with_scopes(mut self, scopes: &[&str]) -> Self {
        let scopes: Arc<[String]> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        self.scopes = scopes.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{base::Table, config::Format, declare::Servers, manifest::reader::parse};

    use super::*;

    const NOW_MS: i64 = 1_800_000_000_000;
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
    fn another_replica_is_told_since_when_groups_are_claimed() {
        let catalog = catalog("mode: builtin", "", "");
        let (tenant, server) = catalog.find("a", "x").unwrap();
        let basis = builtin::GrantBasis::of_numbers(vec![(1, "k".to_owned())], 100);
        let known = Authenticated {
            principal: Principal::new("a", Some("i"), Some("ada"), Some("c_app")),
            scopes: Arc::default(),
            groups: Groups::default(),
            basis: AccessBasis::Own(basis.clone()),
            is_bound: false,
            key: None,
        };
        let caller = known.access(&tenant, &server).unwrap().caller();
        let asserted = Authenticated::asserted("a", &caller).unwrap();
        assert_eq!(asserted.basis, AccessBasis::Own(basis));
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
        assert!(access.scopes().items().eq(["s"]));
        let wider = keyed("subject: ada, servers: [\"*\"], scopes: [s, t]", "");
        let renewed = renew(&wider, &access, NOW_MS).unwrap();
        assert!(renewed.scopes().items().eq(["s", "t"]));
        let mut another = keyed(key, "");
        let name = access.tenant.name.clone();
        another.identify(&name, uuid::Uuid::from_u128(1));
        assert!(
            renew(&another, &access, NOW_MS).is_none(),
            "a tenant of that name"
        );
        for gone in [
            keyed("subject: eve, servers: [x]", ""),
            keyed("subject: ada, servers: [y]", ""),
            keyed(key, ", grants: {users: [eve]}"),
            catalog("mode: keys", "", ""),
            catalog("mode: none", "", ""),
            Catalog::default(),
        ] {
            assert!(renew(&gone, &access, NOW_MS).is_none());
        }
        let external = |issuer: &str, grants: &str| {
            catalog(&format!("mode: external, issuer: \"{issuer}\""), "", grants)
        };
        let own = external("https://i.test", ", grants: {groups: [g]}");
        let access = by_token(&own, &["g"]).unwrap();
        assert!(renew(&own, &access, NOW_MS).is_some());
        for gone in [
            external("https://j.test", ""),
            external("https://i.test", ", grants: {groups: [h]}"),
            catalog("mode: keys", "", ""),
            catalog("mode: none", "", ""),
        ] {
            assert!(renew(&gone, &access, NOW_MS).is_none());
        }
    }

    #[test]
    fn an_access_is_judged_anew_when_something_has_changed() {
        let read = || catalog("mode: external, issuer: \"https://i.test\"", "", "");
        let mut now = read();
        let access = by_token(&now, &["g"]).unwrap();
        assert!(!access.is_of(&now), "it was not judged by a catalogue");
        let access = access.placed(&now.issued, None, None);
        assert!(access.is_of(&now));
        assert!(renew(&now, &access, NOW_MS).unwrap().is_of(&now));
        let declared_anew = Catalog::new(read().tenants, Arc::clone(&now.issued));
        assert!(!access.is_of(&declared_anew));
        assert!(!access.is_of(&Catalog::new(Table::default(), Arc::clone(&now.issued))));
        now.issued = Arc::default();
        assert!(!access.is_of(&now), "a revocation");
        for (expires, is_of) in [("", true), (", expires: \"2027-01-15T08:00:00Z\"", false)] {
            let catalog = keyed(&format!("subject: ada, servers: [x]{expires}"), "");
            let access = by_key(&catalog, "x").unwrap();
            let access = access.placed(&catalog.issued, None, None);
            assert_eq!(access.is_of(&catalog), is_of, "{expires}");
        }
    }

    /// Each stream, call and task kept all keys and users that the tenant had when it began.
    #[test]
    fn an_access_keeps_no_tenant_of_before_a_change() {
        let before = keyed("subject: ada, servers: [x]", "");
        let access = by_key(&before, "x").unwrap();
        let access = access.placed(&before.issued, None, None);
        let (former, key) = (
            &before.tenants["a"],
            &before.tenants["a"].api_keys[&[0; 32]],
        );
        let (former, key) = (Arc::downgrade(former), Arc::downgrade(key));
        let now = keyed("subject: ada, servers: [x, y]", "").reusing(&before);
        drop(before);
        assert!(former.upgrade().is_none() && key.upgrade().is_none());
        assert_eq!(access.tenant().name, "a");
        assert!(!access.is_of(&now));
        let renewed = renew(&now, &access, NOW_MS).unwrap();
        assert!(renewed.is_of(&now) && !renewed.permits_the_same(&access));
        let again = renew(&now, &access, NOW_MS).unwrap();
        assert!(renewed.permits_the_same(&again));
    }

    /// Each access had copies of its scopes and of patterns, which streams, calls and sessions kept.
    #[test]
    fn an_access_has_no_copies_of_scopes() {
        let key = "subject: ada, servers: [x], scopes: [s, t, u]";
        let policy = ", policy: {scopes: {a: [s], b: [t], c: [u]}}";
        let some = format!("{policy}, grants: {{users: {{ada: [s, u]}}}}");
        let (all, some) = (keyed(key, policy), keyed(key, &some));
        let access = by_key(&some, "x").unwrap();
        assert!(access.scopes().items().eq(["s", "u"]));
        assert!(access.policy().tools.allows("a") && !access.policy().tools.allows("b"));
        let declared = &some.tenants["a"].api_keys[&[0; 32]];
        assert!(Arc::ptr_eq(access.scopes().all(), &declared.scopes));
        let asserted = Authenticated::asserted("a", &access.caller()).unwrap();
        assert_eq!(
            *asserted.scopes,
            ["s", "t", "u"],
            "those it may not have, too"
        );
        let renewed = renew(&all, &access, NOW_MS).unwrap();
        assert!(renewed.scopes().items().eq(["s", "t", "u"]));
        let external = "mode: external, issuer: \"https://i.test\"";
        let all = catalog(external, "", policy);
        let claimed: Arc<[String]> = ["s", "t"].map(str::to_owned).into();
        let access = Access {
            scopes: Subset::new(&claimed, [false, true].into_iter()),
            ..by_token(&all, &[]).unwrap()
        };
        let renewed = renew(&all, &access, NOW_MS).unwrap();
        assert!(renewed.scopes().items().eq(["s", "t"]));
        assert!(Arc::ptr_eq(renewed.scopes().all(), &claimed));
    }

    /// Sessions and streams went on with the groups of before, until a declaration changed.
    #[test]
    fn groups_make_another_access_of_the_same_declaration() {
        let catalog = catalog("mode: external, issuer: \"https://i.test\"", "", "");
        let of = |groups: &[&str]| by_token(&catalog, groups).unwrap();
        assert!(of(&["g"]).permits_the_same(&of(&["g"])));
        assert!(!of(&["g"]).permits_the_same(&of(&[])));
        assert!(!of(&["g"]).permits_the_same(&of(&["g"]).with_scopes(&["s"])));
    }

    /// New requests were refused, and sessions and streams of before went on.
    #[test]
    fn an_access_ends_with_its_key() {
        let until = |expires: &str| keyed(&format!("subject: ada, servers: [x]{expires}"), "");
        let access = by_key(&until(""), "x").unwrap();
        let at_end = until(", expires: \"2027-01-15T08:00:00Z\"");
        assert!(renew(&at_end, &access, NOW_MS - 1).is_some());
        assert!(renew(&at_end, &access, NOW_MS).is_none());
        let own = |rules: &str, expires_ms: i64| {
            let mut catalog = catalog(rules, "users: {ada: {}}", "");
            let key = OwnKey {
                name: "k_1".to_owned(),
                subject: "ada".to_owned(),
                groups: Arc::default(),
                scopes: Arc::default(),
                servers: Servers::All,
                hash: [1; 32],
                previous: Some(([2; 32], NOW_MS + 1)),
                since_ms: NOW_MS - 90_000,
                expires_ms,
            };
            let mut issued = Issued::default();
            let key = Arc::new(key);
            let keys = [([1; 32], Arc::clone(&key)), ([2; 32], Arc::clone(&key))];
            let keys = keys.into_iter().collect();
            issued.own_keys.insert("a".to_owned(), Arc::new(keys));
            catalog.issued = Arc::new(issued);
            (catalog, key)
        };
        let of = |(catalog, key): &(Catalog, Arc<OwnKey>), hash: [u8; 32]| {
            let (tenant, server) = catalog.find("a", "x").unwrap();
            let principal = Principal::new("a", Some("i"), Some("ada"), Some("k_1"));
            let value = (hash, Arc::clone(key));
            let known = Authenticated::by_own_key(principal, value, Groups::default());
            known.access(&tenant, &server).unwrap()
        };
        let lasting = own("own_keys: {}", NOW_MS + 2);
        let (newest, previous) = (of(&lasting, [1; 32]), of(&lasting, [2; 32]));
        assert!(previous.joined(&newest).is_some() && newest.joined(&previous).is_none());
        for (access, left_ms) in [(&newest, 2), (&previous, 1)] {
            let renewed = |now_ms| renew(&lasting.0, access, now_ms).is_some();
            assert!(renewed(NOW_MS + left_ms - 1) && !renewed(NOW_MS + left_ms));
        }
        let (shortened, _) = own("own_keys: {ttl: 1m}", i64::MAX);
        assert!(renew(&shortened, &newest, NOW_MS).is_none());
    }
}

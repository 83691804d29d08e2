//! Identity of callers: authentication mode, API keys and grants of a tenant.
//!
//! Not here: authentication of a request (`auth`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{
    authorization_server::{
        Builtin, GroupsClaim, OwnKeyRules, PublicKey, SecretChange, TenantRevocations,
    },
    policy::AllowedScopes,
};
use crate::base::{Secret, Table};

/// The authentication mode of a tenant. API keys work in every mode but `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    /// No authentication: on loopback only, or with `auth.insecure`.
    None,
    /// API keys only.
    Keys,
    /// Access tokens of the tenant's own authorization server.
    Builtin(Arc<Builtin>),
    /// Access tokens of an external authorization server.
    External(Arc<External>),
}

impl AuthMode {
    /// Reports whether an authorization server issues tokens for the tenant.
    pub(crate) fn has_issuer(&self) -> bool {
        match self {
            Self::None | Self::Keys => false,
            Self::Builtin(_) | Self::External(_) => true,
        }
    }

    /// Returns the scopes that clients request in addition to those of policies; `None` without an
    /// authorization server.
    pub(crate) fn scopes(&self) -> Option<&[String]> {
        match self {
            Self::None | Self::Keys => None,
            Self::Builtin(builtin) => Some(&builtin.scopes),
            Self::External(external) => Some(&external.scopes),
        }
    }
}

/// Whether access tokens have to be bound to a key of the client (DPoP, RFC 9449). API keys never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dpop {
    /// The client chooses; a bound token is good with a proof alone.
    #[default]
    Optional,
    /// Other tokens are neither issued nor accepted.
    Required,
}

/// An external authorization server, and the form of its access tokens.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct External {
    /// Its issuer identifier, compared byte for byte.
    pub(crate) issuer: String,
    /// The accepted signature algorithms; never empty.
    pub(crate) algorithms: Vec<Algorithm>,
    /// Audiences besides the URL of the called server, for issuers that cannot name it.
    pub(crate) audiences: Vec<String>,
    /// The groups of the subject.
    pub(crate) groups: GroupsClaim,
    /// The claim with the scopes; none for `scope`, else `scp`.
    pub(crate) scopes_claim: Option<String>,
    /// Scopes that clients begin with; calls do not require them.
    pub(crate) scopes: Vec<String>,
    /// How it is asked about opaque tokens; none if those are refused.
    pub(crate) introspection: Option<Introspection>,
}

/// How an authorization server is asked about opaque tokens (RFC 7662).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Introspection {
    /// The endpoint; none for that of its metadata.
    pub(crate) url: Option<String>,
    /// The client ID of the gateway there.
    pub(crate) client_id: String,
    /// The secret of the gateway there.
    pub(crate) client_secret: Secret,
}

impl Hash for Introspection {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.url, &self.client_id).hash(state);
    }
}

impl External {
    /// Reports whether tokens for this audience are for every server of the tenant.
    pub(crate) fn is_audience(&self, audience: &str) -> bool {
        self.audiences.iter().any(|own| own == audience)
    }
}

/// A signature algorithm. All are asymmetric, so that no public key can be used as a secret (RFC
/// 8725, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

/// The algorithms by their names in `alg` (RFC 7518, section 3.1; RFC 8037).
pub(crate) const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
    ("EdDSA", Algorithm::EdDsa),
];

/// The API keys of a tenant, by the SHA-256 of their text, which is not stored.
pub(crate) type ApiKeys = Table<[u8; 32], Arc<ApiKey>>;

/// An API key of a tenant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiKey {
    /// Its name, which is the client id of its callers.
    pub(crate) name: String,
    /// Its subject.
    pub(crate) subject: String,
    /// Its OAuth scopes.
    pub(crate) scopes: Arc<[String]>,
    /// The servers that it may use.
    pub(crate) servers: Servers,
    /// The expiry, in seconds since the epoch.
    pub(crate) expires: Option<u64>,
}

impl ApiKey {
    /// Its end, in milliseconds since 1970.
    pub(crate) fn ends_ms(&self) -> Option<i64> {
        let ms = |expires: u64| i64::try_from(expires.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.expires.map(ms)
    }
}

/// Public keys and revocations, which decide whether a token of this gateway is valid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Issued {
    /// The public keys of each tenant: next, current and previous.
    pub(crate) keys: HashMap<String, Arc<[PublicKey]>>,
    /// Revocations by tenant.
    pub(crate) revoked: HashMap<String, Arc<TenantRevocations>>,
    /// The last changes of secrets, by their numbers.
    pub(crate) secrets: Arc<BTreeMap<i64, SecretChange>>,
    /// The API keys that people made for themselves, by tenant.
    pub(crate) own_keys: HashMap<String, Arc<OwnKeys>>,
}

/// The keys that people of a tenant made for themselves, by the SHA-256 of their values.
pub(crate) type OwnKeys = Table<[u8; 32], Arc<OwnKey>>;

/// An API key that a person made: it acts as that person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnKey {
    /// Its name, which is the client id of its callers; begins with [`OWN_KEY`].
    pub(crate) name: String,
    /// The person.
    pub(crate) subject: String,
    /// The groups that the identity provider told last; those of a local user are declared.
    pub(crate) groups: Arc<[String]>,
    /// The scopes that the person chose, of which it has those that the person may have at the time of a call.
    pub(crate) scopes: Arc<[String]>,
    /// The servers that the person chose.
    pub(crate) servers: Servers,
    /// The SHA-256 of its value.
    pub(crate) hash: [u8; 32],
    /// The value before the last rotation, and the end of its overlap.
    pub(crate) previous: Option<([u8; 32], i64)>,
    /// The time of its value, in milliseconds since 1970.
    pub(crate) since_ms: i64,
    /// The end that the person chose.
    pub(crate) expires_ms: i64,
}

impl OwnKey {
    /// Its end: a tenant may have shortened the life of keys since it was made.
    pub(crate) fn ends_ms(&self, rules: &OwnKeyRules) -> i64 {
        let ttl_ms = i64::try_from(rules.ttl.as_millis()).unwrap_or(i64::MAX);
        self.expires_ms.min(self.since_ms.saturating_add(ttl_ms))
    }

    /// Reports whether the value with this hash is good at a time.
    pub(crate) fn holds(&self, hash: &[u8; 32], rules: &OwnKeyRules, now_ms: i64) -> bool {
        match &self.previous {
            Some((previous, until_ms)) if previous == hash => now_ms < *until_ms,
            _ => self.hash == *hash && now_ms < self.ends_ms(rules),
        }
    }
}

/// The prefix of their names, which names of declared keys cannot have.
pub(crate) const OWN_KEY: &str = "k_";

/// The API keys of operators, by the SHA-256 of their text.
pub(crate) type OperatorKeys = HashMap<[u8; 32], OperatorKey>;

/// An API key of an operator, who belongs to no tenant and may administrate all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperatorKey {
    /// Its name.
    pub(crate) name: String,
    /// The expiry, in seconds since the epoch.
    pub(crate) expires: Option<u64>,
}

impl OperatorKey {
    /// Reports whether it is valid at `now`, in seconds since the epoch.
    pub(crate) fn holds(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// The servers that an API key may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    /// All servers of the tenant, now and later.
    All,
    /// These servers.
    Named(BTreeSet<String>),
}

impl Servers {
    /// Their names; none for all.
    pub(crate) fn names(&self) -> Option<&BTreeSet<String>> {
        match self {
            Self::All => None,
            Self::Named(names) => Some(names),
        }
    }

    /// Reports whether `server` is among them.
    pub(crate) fn contains(&self, server: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(server),
        }
    }
}

/// The grants of a server: the callers of its tenant that may use it, by any of three names, and the scopes that each
/// may have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// Subjects.
    pub(crate) users: Grantees,
    /// Groups of subjects.
    pub(crate) groups: Grantees,
    /// Client ids; that of an API key is its name.
    pub(crate) clients: Grantees,
}

/// The scopes that the bearer of each name may have; none for all.
pub(crate) type Grantees = BTreeMap<String, Option<BTreeSet<String>>>;

impl Grants {
    /// The scopes that a caller may have by all its grants together; `None` if no grant matches.
    pub(crate) fn scopes_of(
        &self,
        subject: &str,
        groups: &[String],
        client: Option<&str>,
    ) -> Option<AllowedScopes<'_>> {
        let groups = groups.iter();
        let groups = groups.filter_map(|group| self.groups.get_key_value(group));
        // Each counts once: the scopes of a token are looked up in each set, and another replica may repeat a group.
        let groups: BTreeMap<_, _> = groups.collect();
        let client = client.and_then(|client| self.clients.get(client));
        let all = self.users.get(subject).into_iter().chain(client);
        let mut matching = all.chain(groups.into_values()).peekable();
        matching.peek()?;
        let named = matching.map(Option::as_ref).collect::<Option<Vec<_>>>();
        Some(named.map_or(AllowedScopes::All, AllowedScopes::Named))
    }

    /// The scopes that they name.
    pub(crate) fn scopes(&self) -> impl Iterator<Item = &String> {
        let all = [&self.users, &self.groups, &self.clients];
        all.into_iter()
            .flat_map(Grantees::values)
            .flatten()
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::*;

    /// Each scope of a token was looked up once for each time that the token had the group: a second for one request.
    #[test]
    fn a_repeated_group_grants_its_scopes_once() {
        let read = BTreeSet::from(["read".to_owned()]);
        let grants = Grants {
            groups: Grantees::from([("eng".to_owned(), Some(read.clone()))]),
            ..Grants::default()
        };
        let groups = ["ops", "eng", "eng", "ops", "eng"].map(str::to_owned);
        let allowed = grants.scopes_of("ada", &groups, None);
        assert_eq!(allowed, Some(AllowedScopes::Named(vec![&read])));
    }
}

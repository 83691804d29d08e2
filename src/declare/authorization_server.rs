//! The declared parts of a tenant's authorization server: users, clients, identity providers and upstreams.
//!
//! Not here: registered clients and log-ins (`database/oauth`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use url::Url;
use uuid::Uuid;

use crate::base::Secret;

/// The declaration of a tenant's own authorization server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Builtin {
    /// Local users by name, which is the subject.
    pub(crate) users: BTreeMap<String, Arc<User>>,
    /// Clients that need no registration, by client id.
    pub(crate) clients: BTreeMap<String, Arc<DeclaredClient>>,
    /// Identity providers, by name.
    pub(crate) providers: BTreeMap<String, Arc<Provider>>,
    /// Services whose access tokens people connect, by name.
    pub(crate) upstreams: BTreeMap<String, Arc<Upstream>>,
    /// Scopes that clients begin with, besides those that every tool of a server requires.
    pub(crate) scopes: Vec<String>,
    /// Clients may register themselves (RFC 7591).
    pub(crate) registration: bool,
    /// A client id may be the URL of a metadata document.
    pub(crate) documents: bool,
    /// The age at which the word of an identity provider about a person is asked for again; zero is never.
    pub(crate) recheck: Duration,
    /// The rules for API keys that people make for themselves; none if they may not.
    pub(crate) own_keys: Option<OwnKeyRules>,
}

/// The rules for API keys that people make for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnKeyRules {
    /// The most keys of a person at a time.
    pub(crate) max: u32,
    /// The longest life of a value.
    pub(crate) ttl: Duration,
    /// The time for which the value before a rotation stays good.
    pub(crate) overlap: Duration,
}

/// A user who logs in with a password.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// The name, which is the subject of tokens.
    pub(crate) name: String,
    /// The Argon2id hash of the password, as a PHC string; none to disable log-in by password.
    pub(crate) password: Option<Secret>,
    /// Groups, for grants.
    pub(crate) groups: Vec<String>,
    /// The user administrates the tenant.
    pub(crate) admin: bool,
    /// The user is rejected everywhere.
    pub(crate) disabled: bool,
}

/// A client that an operator declared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeclaredClient {
    /// The client id.
    pub(crate) id: String,
    /// The title shown to users.
    pub(crate) title: String,
    /// The redirect URIs, compared exactly; none if it gets no codes.
    pub(crate) redirect_uris: Vec<String>,
    /// It gets tokens for itself: by its credentials (RFC 6749, section 4.4), or as a workload.
    pub(crate) is_machine: bool,
    /// The secret of a confidential client; none for a public client or one with keys.
    pub(crate) secret: Option<Secret>,
    /// The public keys of a client that authenticates by signed assertions, as a JWK Set.
    pub(crate) jwks: Option<String>,
    /// The tokens of its platform by which it proves itself, instead of credentials of its own.
    pub(crate) workload: Option<Workload>,
}

/// A job or a service whose platform signs tokens for it, which are assertions here (RFC 7523, section 2.1).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The issuer of the tokens, byte for byte.
    pub(crate) issuer: String,
    /// Their audience; none for the issuer of the tenant.
    pub(crate) audience: Option<String>,
    /// The keys of the issuer as a JWK Set; none for those that its metadata name.
    pub(crate) jwks: Option<String>,
    /// The values that claims may have, at least one claim; a `*` at the end stands for any rest.
    pub(crate) claims: BTreeMap<String, Vec<String>>,
    /// A token may be presented again until it expires.
    pub(crate) is_reusable: bool,
}

impl Workload {
    /// Reports whether one of the values of a claim is `text`.
    pub(crate) fn admits(values: &[String], text: &str) -> bool {
        values.iter().any(|value| match value.strip_suffix('*') {
            Some(start) => text.starts_with(start),
            None => text == value,
        })
    }

    /// The claims of which one must tell whose workloads these are, where the issuer signs for the public and none
    /// of them does.
    pub(crate) fn lacks_owner(&self) -> Option<&'static [&'static str]> {
        let known = PUBLIC_PLATFORMS.iter();
        let (_, owners) = known
            .into_iter()
            .find(|(issuer, _)| *issuer == self.issuer)?;
        let is_telling = |value: &String| !value.ends_with('*') || value.ends_with("/*");
        let tells = |owner: &&str| {
            let values = self.claims.get(*owner);
            values.is_some_and(|values| values.iter().all(is_telling))
        };
        (!owners.iter().any(tells)).then_some(owners)
    }
}

/// An identity provider where users of the tenant log in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Provider {
    /// The name in URLs.
    pub(crate) name: String,
    /// The title shown to users.
    pub(crate) title: String,
    /// Its protocol.
    pub(crate) kind: ProviderKind,
    /// The gateway's client id.
    pub(crate) client_id: String,
    /// The gateway's client secret.
    pub(crate) client_secret: Option<Secret>,
    /// The scopes that the gateway requests.
    pub(crate) scopes: Vec<String>,
    /// More parameters of its authorization requests, by name.
    pub(crate) authorization_parameters: BTreeMap<String, String>,
    /// The audiences for which it is asked for access tokens of its people (RFC 8693).
    pub(crate) exchange: Vec<String>,
    /// The users that may log in.
    pub(crate) allow: Allow,
}

/// An OAuth service at which people have accounts of their own: servers get their access tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// The name in URLs and slots.
    pub(crate) name: String,
    /// The title shown to users.
    pub(crate) title: String,
    /// Where it is.
    pub(crate) endpoints: UpstreamEndpoints,
    /// The gateway's client id.
    pub(crate) client_id: String,
    /// The gateway's client secret.
    pub(crate) client_secret: Option<Secret>,
    /// The scopes that the gateway requests.
    pub(crate) scopes: Vec<String>,
    /// More parameters of its authorization requests, by name.
    pub(crate) authorization_parameters: BTreeMap<String, String>,
    /// The audience of the access tokens (RFC 8707).
    pub(crate) resource: Option<String>,
}

/// The endpoints of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamEndpoints {
    /// Those that the metadata of the issuer name.
    Discovered {
        /// The issuer, byte for byte.
        issuer: String,
    },
    /// Those of the declaration.
    Declared {
        /// The authorization endpoint.
        authorization: String,
        /// The token endpoint.
        token: String,
        /// The revocation endpoint (RFC 7009).
        revocation: Option<String>,
        /// The introspection endpoint (RFC 7662).
        introspection: Option<String>,
    },
}

impl Upstream {
    /// The URLs that the gateway requests, by their keys.
    pub(crate) fn urls(&self) -> Vec<(&'static str, &str)> {
        match &self.endpoints {
            UpstreamEndpoints::Discovered { issuer } => vec![("issuer", issuer)],
            UpstreamEndpoints::Declared {
                authorization,
                token,
                revocation,
                introspection,
            } => {
                let others = [
                    ("revocation_endpoint", revocation),
                    ("introspection_endpoint", introspection),
                ];
                let others = others
                    .into_iter()
                    .filter_map(|(key, url)| Some((key, url.as_deref()?)));
                [
                    ("authorization_endpoint", authorization.as_str()),
                    ("token_endpoint", token.as_str()),
                ]
                .into_iter()
                .chain(others)
                .collect()
            }
        }
    }

    /// Names all that its tokens go to and the client they are for. A connection of before another one was
    /// declared by this name is worth nothing: its tokens must not go there.
    pub(crate) fn authority(&self) -> String {
        serde_json::json!([self.urls(), self.client_id, self.resource]).to_string()
    }
}

/// The claim of a token with the groups of its subject, and what they are called here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupsClaim {
    /// The name of the claim.
    pub(crate) name: String,
    /// The groups by their names in the claim; no other counts. None: those of the claim itself.
    pub(crate) map: Option<BTreeMap<String, String>>,
}

impl GroupsClaim {
    /// The groups of a subject whose claim has these, each once and in the order of their names: an issuer may repeat one
    /// any number of times, several names may be of one group, and their order says nothing.
    pub(crate) fn groups(&self, claimed: &[String]) -> Vec<String> {
        let named = claimed.iter().filter_map(|name| match &self.map {
            None => Some(name),
            Some(map) => map.get(name),
        });
        let each: BTreeSet<&String> = named.collect();
        each.into_iter().cloned().collect()
    }
}

/// Reports whether an issuer names more groups or scopes of one person than are compared at each request, and kept by each
/// stream, call and session. They are refused rather than cut, since any of them may decide on access.
pub(crate) fn are_too_many(names: &[String]) -> bool {
    let bytes: usize = names.iter().map(String::len).sum();
    names.len() > NAMES || bytes > NAMES_BYTES
}

/// The protocol of a provider.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProviderKind {
    /// OpenID Connect: metadata and keys are found at the issuer.
    OpenId {
        /// The issuer, byte for byte as in ID tokens.
        issuer: String,
        /// The groups of its users.
        groups: GroupsClaim,
        /// Its identity assertions (ID-JAG) let clients act for its users, without a log-in here.
        vouches: bool,
    },
    /// OAuth 2.0 without OpenID, like GitHub: a request with the access token identifies the user.
    OAuth {
        /// The issuer in subjects: `https://github.com/login/oauth`.
        issuer: String,
        /// The authorization endpoint.
        authorization_url: String,
        /// The token endpoint.
        token_url: String,
        /// The endpoint that identifies the owner of a token.
        user_url: String,
        /// The member of its response that identifies the user, never changes and is never
        /// reassigned.
        subject_member: String,
    },
}

/// The users of a provider that may log in; empty lists admit all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Allow {
    /// Subjects at the provider.
    pub(crate) subjects: Vec<String>,
    /// Domains of verified e-mail addresses.
    pub(crate) domains: Vec<String>,
    /// Groups.
    pub(crate) groups: Vec<String>,
}

impl Allow {
    /// Reports whether all users may log in.
    pub(crate) fn is_empty(&self) -> bool {
        self.subjects.is_empty() && self.domains.is_empty() && self.groups.is_empty()
    }

    /// Reports whether one of the rules admits a user. `email` is verified.
    pub(crate) fn admits(&self, subject: &str, groups: &[String], email: Option<&str>) -> bool {
        let domain = email.and_then(|email| email.rsplit_once('@'));
        self.is_empty()
            || self.subjects.iter().any(|known| known == subject)
            || self.groups.iter().any(|group| groups.contains(group))
            || domain.is_some_and(|(_, domain)| {
                let mut domains = self.domains.iter();
                domains.any(|known| known.eq_ignore_ascii_case(domain))
            })
    }
}

impl Provider {
    /// Reports whether the rules still admit a user who logged in before. E-mail addresses are not
    /// stored, so rules on them are checked at the next log-in.
    pub(crate) fn still_admits(&self, subject: &str, groups: &[String]) -> bool {
        self.own_subject(subject).is_some_and(|own| {
            !self.allow.domains.is_empty() || self.allow.admits(own, groups, None)
        })
    }

    /// The subject at the provider; none for that of another one.
    pub(crate) fn own_subject<'s>(&self, subject: &'s str) -> Option<&'s str> {
        subject.strip_prefix(self.issuer())?.strip_prefix('#')
    }

    /// Names what gives its tokens and the client they are for. Those of before another one was declared by this
    /// name must not go there.
    pub(crate) fn authority(&self) -> String {
        serde_json::json!([self.urls(), self.client_id]).to_string()
    }
}

impl Builtin {
    /// The provider of a subject, by its issuer.
    pub(crate) fn provider_of(&self, subject: &str) -> Option<&Arc<Provider>> {
        let is_of = |provider: &&Arc<Provider>| provider.own_subject(subject).is_some();
        self.providers.values().find(is_of)
    }

    /// Finds a subject of tokens, by its name and by the groups that a token or grant claims.
    ///
    /// # Errors
    ///
    /// The reason why the subject may not log in any more, for the log.
    pub(crate) fn subject(&self, name: &str, claimed: &[String]) -> Result<Subject, &'static str> {
        if let Some(id) = name.strip_prefix(MACHINE) {
            let client = self.clients.get(id).filter(|client| client.is_machine);
            let subject = client.map(|_| Subject::Machine);
            return subject.ok_or("a machine that is gone");
        }
        // Names of local users cannot contain this character.
        if name.contains('#') {
            let mut providers = self.providers.values();
            let is_allowed = providers.any(|provider| provider.still_admits(name, claimed));
            let subject = is_allowed.then_some(Subject::OfProvider);
            return subject.ok_or("of nobody whom a provider lets in");
        }
        let user = self.users.get(name).filter(|user| !user.disabled);
        let user = user.ok_or("a user that is gone or disabled")?;
        Ok(Subject::User(Arc::clone(user)))
    }
}

/// A subject of tokens.
pub(crate) enum Subject {
    /// A local user.
    User(Arc<User>),
    /// A user of an identity provider.
    OfProvider,
    /// A client that acts for itself, which is in no group.
    Machine,
}

/// What precedes the id of a client in its own subject; that of a person begins with no issuer of this kind (RFC 9068,
/// section 5: subjects of clients and people must not be confused).
const MACHINE: &str = "client#";

/// The subject of a client that acts for itself.
pub(crate) fn machine_subject(client: &str) -> String {
    format!("{MACHINE}{client}")
}

impl Subject {
    /// Returns the current groups: those of a local user as declared, otherwise `claimed`.
    pub(crate) fn groups<'g>(&'g self, claimed: &'g [String]) -> &'g [String] {
        match self {
            Self::User(user) => &user.groups,
            Self::OfProvider => claimed,
            Self::Machine => &[],
        }
    }
}

/// A change of the secrets of one holder for a server, or of a connection to an upstream. A restart of a server by an
/// administrator is one of all that its children were started with: those of the tenant's secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SecretChange {
    /// The tenant.
    pub(crate) tenant: String,
    /// The server; empty for a connection, which is for all servers of the tenant.
    pub(crate) server: String,
    /// The upstream of a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstream: Option<String>,
    /// The holder; none for the tenant itself.
    pub(crate) holder: Option<String>,
    /// Children do not end their calls first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_now: bool,
}

/// A public key of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    /// Its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// The 32 bytes of an Ed25519 public key.
    pub(crate) x: [u8; 32],
}

/// Revocations of one tenant within the last day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantRevocations {
    /// Grants, with the time.
    pub(crate) grants: HashMap<Uuid, i64>,
    /// Removed signing keys by their `kid`, with the time.
    pub(crate) keys: HashMap<String, i64>,
    /// The groups that an identity provider told last of a subject, with the time; those of older tokens do not count.
    pub(crate) groups: HashMap<String, (Arc<[String]>, i64)>,
}

impl TenantRevocations {
    /// Reports whether there is room for the groups of a subject, beside those of others.
    pub(crate) fn has_room(&self, subject: &str, groups: &[String]) -> bool {
        let others = self.groups.iter().filter(|(known, _)| *known != subject);
        let kept: usize = others.map(|(known, (groups, _))| size(known, groups)).sum();
        kept + size(subject, groups) <= GROUPS_KEPT
    }
}

/// What the groups of a subject take in memory, in bytes.
fn size(subject: &str, groups: &[String]) -> usize {
    let texts: usize = groups.iter().map(|group| group.len() + TEXT).sum();
    subject.len() + texts + ENTRY
}

impl Provider {
    /// The issuer in subjects.
    pub(crate) fn issuer(&self) -> &str {
        match &self.kind {
            ProviderKind::OpenId { issuer, .. } | ProviderKind::OAuth { issuer, .. } => issuer,
        }
    }

    /// Reports whether its identity assertions (ID-JAG) let clients act for its users.
    pub(crate) fn vouches(&self) -> bool {
        matches!(self.kind, ProviderKind::OpenId { vouches: true, .. })
    }

    /// Reports whether a response of the provider may name `iss` (RFC 9207). Where `issuer` is only
    /// the name in subjects, the provider may name any URL below the host of its pages. Each
    /// provider has a separate callback, so responses cannot be confused (RFC 9700, section 4.4).
    pub(crate) fn may_name(&self, iss: &str) -> bool {
        iss == self.issuer()
            || match &self.kind {
                ProviderKind::OpenId { .. } => false,
                ProviderKind::OAuth {
                    authorization_url, ..
                } => {
                    let below = authorization_url.strip_prefix(iss);
                    iss.contains("://") && below.is_some_and(|rest| rest.starts_with('/'))
                }
            }
    }

    /// The URLs that the gateway requests, by their keys.
    pub(crate) fn urls(&self) -> Vec<(&'static str, &str)> {
        match &self.kind {
            ProviderKind::OpenId { issuer, .. } => vec![("issuer", issuer)],
            ProviderKind::OAuth {
                authorization_url,
                token_url,
                user_url,
                ..
            } => vec![
                ("authorization_url", authorization_url),
                ("token_url", token_url),
                ("user_url", user_url),
            ],
        }
    }

    /// Reports whether the public can create accounts there.
    pub(crate) fn is_public(&self) -> bool {
        let urls = self.urls().into_iter().map(|(_, url)| url);
        let mut all = urls
            .chain([self.issuer()])
            .filter_map(|url| Url::parse(url).ok());
        all.any(|url| {
            let host = url.host_str().unwrap_or_default();
            let first = url.path_segments().and_then(|mut parts| parts.next());
            let first = first.unwrap_or_default();
            PUBLIC_HOSTS.contains(&host)
                || (ENTRA_HOSTS.contains(&host) && PUBLIC_SEGMENTS.contains(&first))
        })
    }
}

/// Hosts of providers where the public can create accounts.
const PUBLIC_HOSTS: [&str; 11] = [
    "accounts.google.com",
    "appleid.apple.com",
    "bitbucket.org",
    "discord.com",
    "github.com",
    "gitlab.com",
    "id.twitch.tv",
    "login.live.com",
    "slack.com",
    "www.facebook.com",
    "www.linkedin.com",
];
/// Hosts of Microsoft, where the first path segment selects the accounts.
const ENTRA_HOSTS: [&str; 2] = ["login.microsoftonline.com", "login.microsoftonline.us"];
/// Segments for accounts of every organisation and for personal accounts; the last is the id of
/// `consumers`.
const PUBLIC_SEGMENTS: [&str; 4] = [
    "common",
    "organizations",
    "consumers",
    "9188040d-6c67-4c5b-b112-36a304b66dad",
];

/// Platforms that sign tokens for workloads of everybody, with the claims that tell whose they are.
const PUBLIC_PLATFORMS: [(&str, &[&str]); 4] = [
    (
        "https://token.actions.githubusercontent.com",
        &[
            "sub",
            "repository",
            "repository_id",
            "repository_owner",
            "repository_owner_id",
        ],
    ),
    (
        "https://gitlab.com",
        &[
            "sub",
            "project_path",
            "project_id",
            "namespace_path",
            "namespace_id",
        ],
    ),
    ("https://accounts.google.com", &["sub", "email"]),
    (
        "https://agent.buildkite.com",
        &["sub", "organization_slug", "organization_id"],
    ),
];

/// Private members of keys (RFC 7518, sections 6.2.2, 6.3.2 and 6.4.1), which no public key has.
pub(crate) const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// Maximum groups of a person, and scopes of a token.
const NAMES: usize = 1000;
/// Maximum size of the names of a person's groups, and of the scopes of a token, in bytes.
const NAMES_BYTES: usize = 32 << 10;
/// The most that every replica keeps of the groups of a tenant's people for a day, in bytes: a few thousand people with a
/// few groups each, or a few hundred with two hundred.
const GROUPS_KEPT: usize = 4 << 20;
/// What a text takes beside its bytes.
const TEXT: usize = 48;
/// What an entry takes beside its texts.
const ENTRY: usize = 128;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::authorization_server::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn allow(subjects: &[&str], domains: &[&str], groups: &[&str]) -> Allow {
        Allow {
            subjects: list(subjects),
            domains: list(domains),
            groups: list(groups),
        }
    }

    #[test]
    fn who_may_come_in() {
        for (rule, wanted) in [
            (allow(&[], &[], &[]), true),
            (allow(&["1"], &[], &[]), true),
            (allow(&["11"], &[], &[]), false),
            (allow(&[], &["acme.test"], &[]), true),
            (allow(&[], &["b.test"], &[]), false),
            (allow(&[], &["me.test"], &[]), false),
            (allow(&[], &[], &["eng"]), true),
            (allow(&[], &[], &["ops"]), false),
            (allow(&["2"], &["x.test"], &["eng"]), true),
        ] {
            let email = Some("a@b.test@Acme.test");
            assert_eq!(rule.admits("1", &list(&["eng"]), email), wanted, "{rule:?}");
        }
        assert!(!allow(&[], &[""], &[]).admits("1", &[], None));
    }

    #[test]
    fn who_came_in_before() {
        for (rule, subject, wanted) in [
            (allow(&[], &[], &[]), "https://idp.test#1", true),
            (allow(&["1"], &[], &[]), "https://idp.test#1", true),
            (allow(&["1"], &[], &[]), "https://idp.test#11", false),
            (allow(&["1#2"], &[], &[]), "https://idp.test#1#2", true),
            (allow(&[], &[], &["eng"]), "https://idp.test#1", true),
            (allow(&[], &[], &["ops"]), "https://idp.test#1", false),
            // The email address is not stored, so a rule on domains admits every subject.
            (
                allow(&["2"], &["acme.test"], &[]),
                "https://idp.test#1",
                true,
            ),
            (allow(&[], &[], &[]), "https://idp.test/#1", false),
            (allow(&[], &["acme.test"], &[]), "https://idp.test", false),
            (allow(&[], &[], &[]), "1", false),
        ] {
            let provider = Provider {
                name: "corp".to_owned(),
                title: "Corp".to_owned(),
                kind: ProviderKind::OpenId {
                    issuer: "https://idp.test".to_owned(),
                    groups: GroupsClaim {
                        name: "groups".to_owned(),
                        map: None,
                    },
                    vouches: false,
                },
                client_id: "gw".to_owned(),
                client_secret: None,
                scopes: Vec::new(),
                authorization_parameters: BTreeMap::new(),
                exchange: Vec::new(),
                allow: rule,
            };
            let found = provider.still_admits(subject, &list(&["eng"]));
            assert_eq!(found, wanted, "{subject}: {:?}", provider.allow);
        }
    }

    /// Tokens of before went to another introspection or revocation endpoint, with the gateway's secret.
    #[test]
    fn no_token_goes_to_an_endpoint_that_is_declared_later() {
        let text = |text: &str| text.to_owned();
        let upstream = |endpoints| Upstream {
            name: text("hub"),
            title: text("Hub"),
            endpoints,
            client_id: text("gw"),
            client_secret: None,
            scopes: Vec::new(),
            authorization_parameters: BTreeMap::new(),
            resource: None,
        };
        let declared = |token: &str, revocation: Option<&str>, introspection: Option<&str>| {
            upstream(UpstreamEndpoints::Declared {
                authorization: text("https://hub.test/authorize"),
                token: text(token),
                revocation: revocation.map(text),
                introspection: introspection.map(text),
            })
        };
        let issuer = text("https://hub.test/token");
        let (token, other) = (&*issuer, Some("https://hub.test/other"));
        let all = [
            declared(token, None, None),
            declared(token, other, None),
            declared(token, None, other),
            declared(token, other, other),
            declared("https://hub.test/other", None, None),
            upstream(UpstreamEndpoints::Discovered {
                issuer: issuer.clone(),
            }),
        ];
        let authorities: HashSet<String> = all.iter().map(Upstream::authority).collect();
        assert_eq!(authorities.len(), all.len(), "{authorities:?}");
        let titled = Upstream {
            title: text("The hub"),
            ..declared(token, None, None)
        };
        assert!(authorities.contains(&titled.authority()));
    }

    #[test]
    fn the_groups_that_replicas_keep_of_a_tenant_have_a_bound() {
        let mut kept = TenantRevocations::default();
        let most = vec!["x".repeat(1 << 10); 1 << 10];
        let mut people = 0;
        while kept.has_room(&format!("p{people}"), &most) {
            let of = (most.clone().into(), 0);
            kept.groups.insert(format!("p{people}"), of);
            people += 1;
        }
        assert_eq!(people, 3);
        // They replace their own.
        assert!(kept.has_room("p0", &most));
        assert!(kept.has_room("new", &list(&["eng"])));
        // Short names, and people without groups, take room as well.
        assert!(!kept.has_room("new", &vec!["x".to_owned(); 1 << 16]));
        let mut kept = TenantRevocations::default();
        for person in 0..(1 << 15) {
            let of = (Arc::default(), 0);
            kept.groups.insert(format!("p{person}"), of);
        }
        assert!(!kept.has_room("new", &[]));
    }
}

//! Access tokens of the tenant's own authorization server, verified without requests.
//!
//! The snapshot decides on the validity of a token: its signing key belongs to the tenant, its grant
//! is not revoked, and its subject and client are still declared. Not here: the issue of tokens
//! (`oauth`), and updates of revocations (`snapshot`).

use std::{ops::Deref, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    jwt::{Claims, ExpectedToken, IssuedBy, Token},
    principals::Principal,
    verified_tokens::VerifiedTokens,
};
use crate::base::sha256;
use crate::declare::{Algorithm, Builtin, GroupsClaim, Issued, Subject, Tenant, User};

/// Verified tokens, so that a repeated token costs a hash.
pub(super) struct Tokens {
    verified: VerifiedTokens<OwnToken>,
}

/// A token with a valid signature.
pub(super) struct OwnToken {
    /// Its principal.
    pub(super) principal: Principal,
    /// Its claims.
    pub(super) claims: Claims,
    /// Its grant and key.
    pub(super) basis: GrantBasis,
    /// The public key that signed it.
    public: [u8; 32],
}

/// The grant and signing key of a token, or of all tokens that were used with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantBasis {
    tokens: Arc<[(Uuid, Arc<str>)]>,
    /// The time since which the claimed groups are those of the subject, in seconds since 1970: that of the log-in, or
    /// of the assertion of the identity provider.
    since_s: u64,
}

impl GrantBasis {
    fn of(grant: Uuid, kid: &str, since_s: u64) -> Self {
        let tokens = Arc::new([(grant, kid.into())]);
        Self { tokens, since_s }
    }

    /// Grants and keys, to be told to another replica.
    pub(super) fn numbers(&self) -> Vec<(u128, String)> {
        let all = self.tokens.iter();
        all.map(|(grant, kid)| (grant.as_u128(), kid.to_string()))
            .collect()
    }

    /// The time since which the claimed groups are those of the subject, to be told to another replica.
    pub(super) fn since_s(&self) -> u64 {
        self.since_s
    }

    /// As another replica told them.
    pub(super) fn of_numbers(all: Vec<(u128, String)>, since_s: u64) -> Self {
        let all = all.into_iter();
        Self {
            tokens: all
                .map(|(grant, kid)| (Uuid::from_u128(grant), kid.into()))
                .collect(),
            since_s,
        }
    }

    /// Returns the union with `other`, or `None` if that adds nothing. The time stays that of the groups here.
    pub(super) fn joined(&self, other: &Self) -> Option<Self> {
        let is_new = |one: &&(Uuid, Arc<str>)| !self.tokens.contains(one);
        let new: Vec<_> = other.tokens.iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return None;
        }
        // The oldest are dropped first, so that a flood of tokens cannot grow the list.
        let all = self.tokens.iter().cloned().chain(new);
        let excess = all.clone().count().saturating_sub(JOINED);
        Some(Self {
            tokens: all.skip(excess).collect(),
            since_s: self.since_s,
        })
    }

    /// Reports whether a word about the groups of the subject, given at a time, is older than the claimed groups.
    fn is_after(&self, at_ms: i64) -> bool {
        let since_ms = i64::try_from(self.since_s.saturating_mul(1000));
        since_ms.unwrap_or(i64::MAX) > at_ms
    }
}

/// The groups of a principal.
#[derive(Clone, Debug)]
pub(super) enum Groups {
    /// As claimed by a token.
    Claimed(Arc<[String]>),
    /// As currently declared.
    Declared(Arc<User>),
}

impl Default for Groups {
    fn default() -> Self {
        Self::Claimed(Arc::default())
    }
}

impl Deref for Groups {
    type Target = [String];

    fn deref(&self) -> &[String] {
        match self {
            Self::Claimed(groups) => groups,
            Self::Declared(user) => &user.groups,
        }
    }
}

/// The reason of a token whose signing key is not known here.
pub(super) const UNKNOWN_KEY: &str = "an unknown key";

impl Tokens {
    pub(super) fn new() -> Self {
        Self {
            verified: VerifiedTokens::new(VERIFIED, VERIFIED_LIFE),
        }
    }

    /// Verifies an access token of `tenant` for a resource that `is_audience` accepts; `issuers` are the one of
    /// the token, and the one that names its principal. Revocation is checked by [`groups`].
    ///
    /// # Errors
    ///
    /// The reason for the log.
    pub(super) async fn verify(
        &self,
        (tenant, issued): (&Tenant, &Issued),
        issuers: impl FnOnce() -> (String, String),
        text: &str,
        now: u64,
        is_audience: impl Fn(&str) -> bool,
    ) -> Result<Arc<OwnToken>, &'static str> {
        let is_meant = |claims: &Claims| {
            claims.check_validity(now, IssuedBy::Us)?;
            // RFC 9068, section 4: a single audience, so that the token is of no use elsewhere.
            match claims.audiences.as_slice() {
                [audience] if is_audience(audience) => Ok(()),
                _ => Err("another audience"),
            }
        };
        let keys = issued.keys.get(&tenant.name).ok_or(UNKNOWN_KEY)?;
        let hash = sha256(text.as_bytes());
        if let Some(known) = self.verified.get(&hash).await
            && known.principal.tenant() == tenant.name
        {
            let is_there = keys.iter().any(|key| key.x == known.public);
            is_meant(&known.claims)?;
            return is_there.then_some(known).ok_or(UNKNOWN_KEY);
        }
        let (issuer, of_principal) = issuers();
        let groups = GroupsClaim {
            name: "groups".to_owned(),
            map: None,
        };
        let expected = ExpectedToken {
            issuer: &issuer,
            algorithms: &[Algorithm::EdDsa],
            groups: &groups,
            scopes_claim: None,
        };
        let token = Token::parse(text, expected)?;
        if token.kind.as_deref() != Some("at+jwt") {
            return Err("another type of token");
        }
        is_meant(&token.claims)?;
        let kid = token.kid().ok_or("no kid")?;
        let key = keys.iter().find(|key| key.kid == kid);
        let key = key.ok_or(UNKNOWN_KEY)?;
        // The most expensive step comes last.
        let grant = token.text("grant")?.and_then(|id| Uuid::try_parse(id).ok());
        let grant = grant.ok_or("no grant")?;
        token.numeric_date("iat")?.ok_or("no iat")?;
        let since_s = token.numeric_date("auth_time")?.unwrap_or(0);
        if !token.jws.is_signed_by(&key.x) {
            return Err("a bad signature");
        }
        let claims = token.claims;
        let (subject, client) = (claims.subject.as_str(), claims.client.as_deref());
        let verified = Arc::new(OwnToken {
            principal: Principal::new(&tenant.name, Some(&of_principal), Some(subject), client),
            basis: GrantBasis::of(grant, &key.kid, since_s),
            public: key.x,
            claims,
        });
        let life = verified.claims.life(now, IssuedBy::Us);
        let token = Arc::clone(&verified);
        let size = verified.claims.size();
        self.verified.insert(hash, token, (size, life)).await;
        Ok(verified)
    }
}

/// Returns the current groups of a principal with a token of `tenant`; `claimed` are those that the
/// token claims.
///
/// # Errors
///
/// The reason why the token is no longer valid, for the log.
pub(super) fn groups(
    (tenant, builtin): (&str, &Builtin),
    issued: &Issued,
    principal: &Principal,
    basis: &GrantBasis,
    claimed: &Groups,
) -> Result<Groups, &'static str> {
    if let Some(revoked) = issued.revoked.get(tenant) {
        let mut all = basis.tokens.iter();
        if all.any(|(grant, kid)| {
            revoked.grants.contains_key(grant) || revoked.keys.contains_key(&**kid)
        }) {
            return Err("revoked");
        }
    }
    let client = principal.client().ok_or("no client_id")?;
    if !is_client(builtin, client) {
        return Err("a client that is gone");
    }
    let subject = principal.subject().ok_or("no sub")?;
    let told = issued.revoked.get(tenant);
    let told = told.and_then(|known| known.groups.get(subject));
    let claimed = match told {
        // An identity assertion may bring groups that are newer.
        Some((groups, at_ms)) if !basis.is_after(*at_ms) => &Groups::Claimed(Arc::clone(groups)),
        _ => claimed,
    };
    Ok(match builtin.subject(subject, claimed)? {
        Subject::User(user) => Groups::Declared(user),
        Subject::OfProvider => claimed.clone(),
        Subject::Machine => Groups::default(),
    })
}

/// Reports whether a client may still exist. Registered clients are removed by revocation, the others
/// by a change of the declaration.
fn is_client(builtin: &Builtin, client: &str) -> bool {
    // Documents may be fetched without TLS where `outbound.allow` permits it.
    if client.starts_with("https://") || client.starts_with("http://") {
        builtin.documents
    } else {
        client.starts_with(REGISTERED) || builtin.clients.contains_key(client)
    }
}

/// The prefix of registered client ids; declared ids cannot have it.
pub(crate) const REGISTERED: &str = "c_";

/// Maximum grants and keys of a session.
const JOINED: usize = 32;
/// Maximum size of the cached tokens, in bytes: 25,000 of the usual ones.
const VERIFIED: u64 = 32 << 20;
/// The maximum lifetime of a token, and a little more.
const VERIFIED_LIFE: Duration = Duration::from_mins(17);

#[cfg(test)]
#[path = "tests/builtin.rs"]
mod tests;

//! Access tokens of a tenant's own authorization server, read without asking anybody.
//!
//! A token is worth something as long as the snapshot says so: its key is one of the tenant's, its
//! grant was not revoked, and whom and what it names is still declared. Not here: how tokens are
//! made (`oauth`), and how a snapshot learns what was revoked (`control/live`).

use std::{ops::Deref, sync::Arc, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use moka::future::Cache;
use uuid::Uuid;

use super::{
    Principal,
    jwt::{Claims, Expected, Token},
};
use crate::control::{
    Tenant,
    builtin::{Builtin, ProviderKind, User},
    identity::Algorithm,
    signing::Issued,
};

/// Tokens that were good, so that one that comes again costs a hash.
pub(super) struct Tokens {
    verified: Cache<[u8; 32], Arc<Verified>>,
}

/// A token whose signature was good.
pub(super) struct Verified {
    /// Whom it shows.
    pub(super) principal: Principal,
    /// What it says.
    pub(super) claims: Claims,
    /// What it rests on.
    pub(super) basis: Basis,
    /// The public key that signed it.
    public: [u8; 32],
}

/// What a token rests on beside whom and what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    grant: Uuid,
    kid: Arc<str>,
}

/// The groups of somebody.
#[derive(Clone, Debug)]
pub(super) enum Groups {
    /// As a token said.
    Said(Arc<[String]>),
    /// As they are declared now.
    Of(Arc<User>),
}

impl Default for Groups {
    fn default() -> Self {
        Self::Said(Arc::default())
    }
}

impl Deref for Groups {
    type Target = [String];

    fn deref(&self) -> &[String] {
        match self {
            Self::Said(groups) => groups,
            Self::Of(user) => &user.groups,
        }
    }
}

impl Tokens {
    pub(super) fn new() -> Self {
        Self {
            verified: Cache::builder()
                .max_capacity(VERIFIED)
                .time_to_live(VERIFIED_LIFE)
                .build(),
        }
    }

    /// What an access token of `tenant` says, if it is one, holds at `now`, and is meant for a
    /// resource that `is_audience` knows. What has become of its grant is [`groups`]' to say.
    ///
    /// # Errors
    ///
    /// Why not, for the log.
    pub(super) async fn verify(
        &self,
        (tenant, issued): (&Tenant, &Issued),
        issuer: impl FnOnce() -> String,
        text: &str,
        now: u64,
        is_audience: impl Fn(&str) -> bool,
    ) -> Result<Arc<Verified>, &'static str> {
        let is_meant = |claims: &Claims| {
            claims.hold(now)?;
            // RFC 9068, section 4: never one that is good elsewhere too.
            match claims.audiences.as_slice() {
                [audience] if is_audience(audience) => Ok(()),
                _ => Err("another audience"),
            }
        };
        let keys = issued.keys.get(&tenant.name).ok_or("an unknown key")?;
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        if let Some(known) = self.verified.get(&hash).await
            && known.principal.tenant() == tenant.name
        {
            let is_there = keys.iter().any(|key| key.x == known.public);
            is_meant(&known.claims)?;
            return is_there.then_some(known).ok_or("an unknown key");
        }
        let issuer = issuer();
        let expected = Expected {
            issuer: &issuer,
            algorithms: &[Algorithm::EdDsa],
            groups_claim: "groups",
        };
        let token = Token::parse(text, expected)?;
        if token.kind.as_deref() != Some("at+jwt") {
            return Err("another type of token");
        }
        is_meant(&token.claims)?;
        let kid = token.kid().ok_or("no kid")?;
        let key = keys.iter().find(|key| key.kid == kid);
        let key = key.ok_or("an unknown key")?;
        // The dearest step comes last.
        let grant = token.text("grant")?.and_then(|id| Uuid::try_parse(id).ok());
        let grant = grant.ok_or("no grant")?;
        token.moment("iat")?.ok_or("no iat")?;
        if !token.jws.is_signed_by(&key.x) {
            return Err("a bad signature");
        }
        let claims = token.claims;
        let (subject, client) = (claims.subject.as_str(), claims.client.as_deref());
        let verified = Arc::new(Verified {
            principal: Principal::new(&tenant.name, Some(&issuer), Some(subject), client),
            basis: Basis {
                grant,
                kid: key.kid.as_str().into(),
            },
            public: key.x,
            claims,
        });
        self.verified.insert(hash, Arc::clone(&verified)).await;
        Ok(verified)
    }
}

/// The groups of somebody with a token of `tenant`, as long as it is worth something: `said` are
/// those that it names.
///
/// # Errors
///
/// Why it is not, for the log.
pub(super) fn groups(
    (tenant, builtin): (&str, &Builtin),
    issued: &Issued,
    principal: &Principal,
    basis: &Basis,
    said: &Groups,
) -> Result<Groups, &'static str> {
    if let Some(revoked) = issued.revoked.get(tenant)
        && (revoked.grants.contains_key(&basis.grant) || revoked.keys.contains_key(&*basis.kid))
    {
        return Err("revoked");
    }
    let client = principal.client().ok_or("no client_id")?;
    if !is_client(builtin, client) {
        return Err("a client that is gone");
    }
    let subject = principal.subject().ok_or("no sub")?;
    if let Some((issuer, _)) = subject.split_once('#') {
        let is_declared = builtin.providers.values().any(|provider| {
            let (ProviderKind::OpenId { issuer: own, .. }
            | ProviderKind::OAuth { issuer: own, .. }) = &provider.kind;
            own == issuer
        });
        let groups = is_declared.then(|| said.clone());
        return groups.ok_or("of a provider that is gone");
    }
    let user = builtin.users.get(subject).filter(|user| !user.disabled);
    let user = user.ok_or("a user that is gone or disabled")?;
    Ok(Groups::Of(Arc::clone(user)))
}

/// Whether there still may be such a client: those that registered are ended by a revocation, the
/// others by the operator's word.
fn is_client(builtin: &Builtin, client: &str) -> bool {
    if client.starts_with("https://") {
        builtin.documents
    } else {
        client.starts_with(REGISTERED) || builtin.clients.contains_key(client)
    }
}

/// What the ids of clients begin with that registered themselves; no name that an operator gives
/// can.
pub(crate) const REGISTERED: &str = "c_";

/// Tokens that are remembered; about 1 KiB each.
const VERIFIED: u64 = 32_768;
/// The longest that one lives, and a little.
const VERIFIED_LIFE: Duration = Duration::from_mins(17);

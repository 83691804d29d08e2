//! Authorization codes, grants, refresh tokens and revocations, as rows.
//!
//! One-time use is decided here, each by one statement (DESIGN section 6): whoever updates the row
//! that was not used yet has it.

use uuid::Uuid;

use super::store::{Failure, Store};

/// What a person allowed a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Its name in tokens and revocations.
    pub(crate) id: Uuid,
    /// Who allowed it.
    pub(crate) subject: String,
    /// Its groups, as they were at the log-in; a local user's are looked up instead.
    pub(crate) groups: Vec<String>,
    /// Whom.
    pub(crate) client_id: String,
    /// For which resource: the audience of its tokens.
    pub(crate) resource: String,
    /// Scopes with blanks between them.
    pub(crate) scope: String,
    /// When the person logged in, in milliseconds since 1970.
    pub(crate) auth_ms: i64,
    /// When it ends, however often it is refreshed.
    pub(crate) expires_ms: i64,
}

/// A new authorization code, by the hash of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewCode {
    /// The SHA-256 of its text.
    pub(crate) hash: [u8; 32],
    /// What it is exchanged for; `expires_ms` is that of the grant to be.
    pub(crate) grant: Grant,
    /// The redirect URI of the request, exactly; empty if the request had none.
    pub(crate) redirect_uri: String,
    /// The S256 challenge of the request, as it was sent.
    pub(crate) challenge: String,
    /// When the code ends.
    pub(crate) expires_ms: i64,
}

/// A code that was taken: it is worth nothing from now on, whatever is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TakenCode {
    /// Nobody had used it. Its grant exists only when [`Store::start_grant`] wrote it.
    First(Box<NewCode>),
    /// It had been used at `used_ms`; `grant` is what that led to, if it did.
    Again {
        /// When.
        used_ms: i64,
        /// The grant.
        grant: Option<Uuid>,
    },
    /// There is none, in this tenant.
    Unknown,
}

/// A refresh token, by the hash of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRefresh {
    /// The SHA-256 of its text.
    pub(crate) hash: [u8; 32],
    /// When it ends unless it is used; the end of its grant comes first.
    pub(crate) expires_ms: i64,
}

/// How a refresh token gives its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Succession {
    /// From which, with the token's own text, the successor's text is derived. It is kept, so that
    /// who comes again with the token gets the same successor; without the token it is worth
    /// nothing.
    pub(crate) salt: [u8; 32],
    /// The successor.
    pub(crate) successor: NewRefresh,
    /// How long the same successor is given again.
    pub(crate) grace_ms: i64,
}

/// What became of a refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// It was used now, or within the grace before by somebody who had it too: the successor is
    /// derived from this salt.
    Good {
        /// The grant.
        grant: Box<Grant>,
        /// Of the successor.
        salt: [u8; 32],
    },
    /// It is worth nothing: unknown, expired, revoked, of another client, or its successor was used.
    Refused,
    /// It was used after the grace: the whole grant has just been revoked.
    Reused {
        /// The grant.
        grant: Uuid,
    },
}

/// One revocation: tokens that it means are worth nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revocation {
    /// Which tenant's.
    pub(crate) tenant: String,
    /// What is revoked.
    pub(crate) what: Revoked,
    /// When, in milliseconds since 1970: what was issued later is not meant.
    pub(crate) at_ms: i64,
}

/// What is revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Revoked {
    /// One grant.
    Grant(Uuid),
    /// All that a client has.
    Client(String),
    /// All that a person granted.
    Subject(String),
}

impl Store {
    /// Writes a code.
    pub(crate) async fn add_code(&self, tenant: &str, code: &NewCode) -> Result<(), Failure> {
        todo!()
    }

    /// Takes a code. Only one of all who come with it gets [`TakenCode::First`], in one statement.
    /// The caller judges expiry, client, redirect URI and challenge afterwards.
    pub(crate) async fn take_code(
        &self,
        tenant: &str,
        hash: &[u8; 32],
    ) -> Result<TakenCode, Failure> {
        todo!()
    }

    /// Writes the grant of a code that was taken and judged good, with its first refresh token.
    /// False if the code's replay revoked it meanwhile, or its client or person is gone.
    pub(crate) async fn start_grant(
        &self,
        tenant: &str,
        code: &NewCode,
        refresh: &NewRefresh,
    ) -> Result<bool, Failure> {
        todo!()
    }

    /// Uses a refresh token of `client_id`.
    pub(crate) async fn refresh(
        &self,
        tenant: &str,
        client_id: &str,
        hash: &[u8; 32],
        succession: &Succession,
    ) -> Result<Refreshed, Failure> {
        todo!()
    }

    /// The grant that a refresh token belongs to, and whose client it is, if it is known.
    pub(crate) async fn grant_of_refresh(
        &self,
        tenant: &str,
        hash: &[u8; 32],
    ) -> Result<Option<(Uuid, String)>, Failure> {
        todo!()
    }

    /// Revokes: tokens are refused from the next read of the revocations on, and refresh tokens
    /// and codes at once.
    pub(crate) async fn revoke(&self, tenant: &str, what: &Revoked) -> Result<(), Failure> {
        todo!()
    }
}

//! Clients of a tenant: declared by its operator, registered by themselves, or described by a
//! document at their own URL.
//!
//! Not here: how they prove who they are (`authenticate`).

use std::{sync::Arc, time::Duration};

use url::Url;

use super::{
    metadata::{ClientAuthMethod, ClientMetadata, Keys},
    metadata_document::{Document, DocumentError, Documents},
    redirect,
};
use crate::{
    database::{Failure, Store, oauth::Registered},
    declare::{Builtin, DeclaredClient},
    oauth::base::secret,
    snapshot::Live,
};

/// A client, as it is right now.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its id.
    pub(crate) id: String,
    /// What people are shown; somebody's text.
    pub(crate) title: String,
    /// How it became known.
    pub(crate) kind: ClientSource,
    /// Where answers may go; at least one.
    pub(crate) redirect_uris: Vec<String>,
    /// The SHA-256 of all that it says about itself: when that changes, consent is asked again.
    pub(crate) digest: [u8; 32],
    /// How it proves who it is.
    pub(crate) proof: ClientProof,
}

/// How a client became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientSource {
    /// An operator wrote it down.
    Declared,
    /// It registered itself (RFC 7591).
    Registered {
        /// When it is forgotten, in milliseconds since 1970.
        expires_ms: i64,
    },
    /// A document at its id, which is a URL; the host stands for it.
    Document {
        /// The host of the document.
        host: String,
    },
}

/// How a client proves who it is.
#[derive(Clone, Debug)]
pub(crate) enum ClientProof {
    /// It does not.
    None,
    /// By its secret, of which this is the SHA-256, in one of these ways.
    Secret {
        /// What is kept of it.
        hash: [u8; 32],
        /// One for who registered; an operator's client may choose.
        methods: &'static [ClientAuthMethod],
    },
    /// By a JWT signed with one of these keys.
    Keys(Keys),
}

/// Why there is no client.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// Nobody has this id here.
    Unknown,
    /// The document at the id is not to be had, or is none; what is wrong with it, for people.
    Document(&'static str),
    /// It cannot be said now.
    Unavailable(Failure),
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(failure)
    }
}

/// The clients of one tenant, and the places in which they are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Clients<'c> {
    /// The tenant's name.
    pub(crate) tenant: &'c str,
    /// The declaration of its authorization server.
    pub(crate) builtin: &'c Builtin,
    /// Client ID metadata documents.
    pub(crate) documents: &'c Documents,
    /// The way to the store, which has the registered clients.
    pub(crate) live: &'c Live,
}

impl Clients<'_> {
    /// The client with this id.
    pub(crate) async fn find(&self, id: &str) -> Result<Client, ClientError> {
        if let Some(declared) = self.builtin.clients.get(id) {
            return Ok(Client::declared(declared));
        }
        if self.builtin.documents && id.starts_with("http") {
            return match self.documents.find(id).await {
                Ok(document) => Ok(Client::documented(id, &document)),
                Err(DocumentError::Invalid(why)) => Err(ClientError::Document(why)),
                Err(DocumentError::Unavailable(why)) => Err(ClientError::Unavailable(
                    Failure::Unavailable(why.to_owned()),
                )),
            };
        }
        // Only these are in the database: what else somebody invents costs no look-up.
        if !is_registered_id(id) {
            return Err(ClientError::Unknown);
        }
        let store = self.live.store()?;
        let registered = store.registered(self.tenant, id).await?;
        let registered = registered.ok_or(ClientError::Unknown)?;
        Client::registered(registered).ok_or(ClientError::Unknown)
    }
}

impl Client {
    /// Whether answers may go to `redirect_uri`.
    pub(crate) fn matches(&self, redirect_uri: &str) -> bool {
        let mut own = self.redirect_uris.iter();
        own.any(|own| redirect::is_same(own, redirect_uri))
    }

    /// Whether every answer stays on the machine of its browser, where any program may wait for it
    /// (2025-11-25 authorization, "Localhost Redirect URI Risks").
    pub(crate) fn is_loopback_only(&self) -> bool {
        self.redirect_uris
            .iter()
            .all(|uri| redirect::is_loopback(uri))
    }

    /// Puts off that a registered client is forgotten; at most once an hour.
    pub(crate) async fn renew(
        &self,
        store: &Store,
        tenant: &str,
        now_ms: i64,
        used: Duration,
    ) -> Result<(), Failure> {
        let ClientSource::Registered { expires_ms } = self.kind else {
            return Ok(());
        };
        let used = i64::try_from(used.as_millis()).unwrap_or(i64::MAX);
        let until = now_ms.saturating_add(used);
        if until.saturating_sub(expires_ms) < RENEW.min(used / 2) {
            return Ok(());
        }
        store.renew_registered(tenant, &self.id, until).await
    }

    fn declared(client: &Arc<DeclaredClient>) -> Self {
        let proof = match (&client.secret, &client.jwks) {
            (Some(text), _) => ClientProof::Secret {
                hash: secret::hash(text.expose()),
                methods: &[ClientAuthMethod::Basic, ClientAuthMethod::Post],
            },
            (None, Some(set)) => ClientProof::Keys(Keys::Here(set.clone())),
            (None, None) => ClientProof::None,
        };
        Self {
            id: client.id.clone(),
            title: client.title.clone(),
            kind: ClientSource::Declared,
            redirect_uris: client.redirect_uris.clone(),
            digest: digest(&client.title, &client.redirect_uris),
            proof,
        }
    }

    /// None if the row is not as it was written.
    fn registered(row: Registered) -> Option<Self> {
        let digest = secret::hash(&row.metadata);
        let metadata = ClientMetadata::parse(&row.metadata)?;
        let proof = match (metadata.method, row.secret_hash, metadata.keys) {
            (ClientAuthMethod::None, None, _) => ClientProof::None,
            (ClientAuthMethod::Basic, Some(hash), _) => ClientProof::Secret {
                hash,
                methods: &[ClientAuthMethod::Basic],
            },
            (ClientAuthMethod::Post, Some(hash), _) => ClientProof::Secret {
                hash,
                methods: &[ClientAuthMethod::Post],
            },
            (ClientAuthMethod::Jwt, _, Some(keys)) => ClientProof::Keys(keys),
            _ => return None,
        };
        let host = metadata.redirect_uris.first();
        let host = host.map_or("", |uri| redirect::host(uri));
        Some(Self {
            title: metadata.name.unwrap_or_else(|| host.to_owned()),
            id: row.client_id,
            kind: ClientSource::Registered {
                expires_ms: row.expires_ms,
            },
            redirect_uris: metadata.redirect_uris,
            digest,
            proof,
        })
    }

    fn documented(id: &str, document: &Document) -> Self {
        let metadata = &document.metadata;
        let url = Url::parse(id).ok();
        let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
        let proof = metadata
            .keys
            .clone()
            .map_or(ClientProof::None, ClientProof::Keys);
        Self {
            id: id.to_owned(),
            title: metadata.name.clone().unwrap_or_else(|| host.to_owned()),
            kind: ClientSource::Document {
                host: host.to_owned(),
            },
            redirect_uris: metadata.redirect_uris.clone(),
            digest: document.digest,
            proof,
        }
    }
}

/// Whether an id is like those that are given to who registers.
fn is_registered_id(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    id.len() <= ID_MAX
        && id
            .strip_prefix(secret::CLIENT_ID)
            .is_some_and(|rest| rest.bytes().all(fits))
}

fn digest(title: &str, redirect_uris: &[String]) -> [u8; 32] {
    // As JSON: no part can end early and lend its end to the next.
    secret::hash(&serde_json::json!([title, redirect_uris]).to_string())
}

/// How seldom the end of a client is put off, in milliseconds.
const RENEW: i64 = 60 * 60 * 1000;
/// Ids of registered clients are shorter.
const ID_MAX: usize = 64;

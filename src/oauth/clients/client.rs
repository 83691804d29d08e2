//! Clients of a tenant: declared by an operator, registered dynamically, or described by a document
//! at their own URL.
//!
//! Not here: client authentication (`oauth::tokens`).

use std::{net::IpAddr, sync::Arc, time::Duration};

use url::Url;

use super::{
    metadata::{ClientAuthMethod, ClientMetadata, Keys},
    metadata_document::{Asker, Document, DocumentError, Documents},
    redirect,
};
use crate::{
    auth::REGISTERED,
    database::{self, Database, oauth::Registered},
    declare::{Builtin, DeclaredClient},
    oauth::base::secret,
    snapshot::CurrentSnapshot,
};

/// A client in its current state.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its id.
    pub(crate) id: String,
    /// The name shown to people, chosen by a third party.
    pub(crate) title: String,
    /// Its source.
    pub(crate) kind: ClientSource,
    /// Its redirect URIs; at least one.
    pub(crate) redirect_uris: Vec<String>,
    /// The SHA-256 of its metadata: when that changes, consent is requested again.
    pub(crate) digest: [u8; 32],
    /// Its credential.
    pub(crate) proof: ClientProof,
    /// Whether its access tokens are always bound to a key.
    pub(crate) is_bound: bool,
}

impl Client {
    /// Whether it has no credential, so that anybody can name its id.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self.proof, ClientProof::None)
    }
}

/// The source of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientSource {
    /// Declared by an operator.
    Declared,
    /// Registered dynamically (RFC 7591).
    Registered {
        /// Its expiry, in milliseconds since 1970.
        expires_ms: i64,
    },
    /// Described by the document at its id, which is a URL whose host represents it.
    Document {
        /// The host of the document.
        host: String,
        /// The day on which the site had it, if it does not answer now.
        date: Option<Arc<str>>,
    },
}

/// The credential of a client.
#[derive(Clone, Debug)]
pub(crate) enum ClientProof {
    /// No credential: a public client.
    None,
    /// A secret, sent by one of these methods.
    Secret {
        /// The SHA-256 of the secret.
        hash: [u8; 32],
        /// A single method for registered clients; declared clients may choose.
        methods: &'static [ClientAuthMethod],
    },
    /// A JWT signed with one of these keys.
    Keys(Keys),
    /// Tokens of its platform, which are no credentials of a client but assertions (RFC 7523, section 2.1).
    Workload,
}

/// The reason why no client was found.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// No client has this id.
    Unknown,
    /// The document at the id is missing or invalid; the text is for people.
    Document(&'static str),
    /// The document at the id cannot be fetched; the text is for people.
    Away(&'static str),
    /// The lookup failed temporarily.
    Unavailable(database::Error),
}

impl From<database::Error> for ClientError {
    fn from(failure: database::Error) -> Self {
        Self::Unavailable(failure)
    }
}

/// Clients of one tenant, and the sources in which they are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Clients<'c> {
    /// The tenant's name.
    pub(crate) tenant: &'c str,
    /// The client address of the request.
    pub(crate) from: Option<IpAddr>,
    /// The declaration of its authorization server.
    pub(crate) builtin: &'c Builtin,
    /// Client ID metadata documents.
    pub(crate) documents: &'c Documents,
    /// The way to the store, which has the registered clients.
    pub(crate) snapshot: &'c CurrentSnapshot,
}

impl<'c> Clients<'c> {
    /// Returns the request for which documents and keys of clients are fetched.
    pub(crate) fn asker(&self) -> Asker<'c> {
        Asker {
            tenant: self.tenant,
            from: self.from,
            snapshot: self.snapshot,
        }
    }

    /// Finds the client with this id.
    pub(crate) async fn find(&self, id: &str) -> Result<Client, ClientError> {
        if let Some(declared) = self.builtin.clients.get(id) {
            return Ok(Client::declared(declared));
        }
        if self.builtin.documents && id.starts_with("http") {
            return match self.documents.find(self.asker(), id).await {
                Ok(document) => Ok(Client::documented(id, &document)),
                Err(DocumentError::Invalid(why)) => Err(ClientError::Document(why)),
                Err(DocumentError::Unavailable(why)) => Err(ClientError::Away(why)),
            };
        }
        // Only ids of this form are in the database, so others need no lookup.
        if !is_registered_id(id) {
            return Err(ClientError::Unknown);
        }
        let store = self.snapshot.database()?;
        let registered = store.clients().get(self.tenant, id).await?;
        let registered = registered.ok_or(ClientError::Unknown)?;
        Client::registered(registered).ok_or(ClientError::Unknown)
    }
}

impl Client {
    /// Reports whether `redirect_uri` is one of the client's.
    pub(crate) fn matches(&self, redirect_uri: &str) -> bool {
        let mut own = self.redirect_uris.iter();
        own.any(|own| redirect::matches_registered(own, redirect_uri))
    }

    /// Extends the expiry of a registered client; at most once an hour.
    pub(crate) async fn renew(
        &self,
        store: &Database,
        tenant: &str,
        now_ms: i64,
        used: Duration,
    ) -> Result<(), database::Error> {
        let ClientSource::Registered { expires_ms } = self.kind else {
            return Ok(());
        };
        let used = i64::try_from(used.as_millis()).unwrap_or(i64::MAX);
        let until = now_ms.saturating_add(used);
        if until.saturating_sub(expires_ms) < RENEW.min(used / 2) {
            return Ok(());
        }
        store.clients().renew(tenant, &self.id, until).await
    }

    fn declared(client: &Arc<DeclaredClient>) -> Self {
        let proof = match (&client.secret, &client.jwks) {
            _ if client.workload.is_some() => ClientProof::Workload,
            (Some(text), _) => ClientProof::Secret {
                hash: secret::hash(text.expose()),
                methods: &[ClientAuthMethod::Basic, ClientAuthMethod::Post],
            },
            (None, Some(set)) => ClientProof::Keys(Keys::Inline(set.clone())),
            (None, None) => ClientProof::None,
        };
        Self {
            id: client.id.clone(),
            title: client.title.clone(),
            kind: ClientSource::Declared,
            redirect_uris: client.redirect_uris.clone(),
            digest: digest(&client.title, &client.redirect_uris),
            proof,
            is_bound: false,
        }
    }

    /// Returns `None` if the row is corrupt.
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
            is_bound: metadata.is_bound,
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
                date: document.date.clone(),
            },
            redirect_uris: metadata.redirect_uris.clone(),
            digest: document.digest,
            proof,
            is_bound: metadata.is_bound,
        }
    }
}

/// Reports whether an id has the form of registered ids.
fn is_registered_id(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    id.len() <= ID_MAX
        && id
            .strip_prefix(REGISTERED)
            .is_some_and(|rest| rest.bytes().all(fits))
}

fn digest(title: &str, redirect_uris: &[String]) -> [u8; 32] {
    // JSON keeps the parts apart.
    secret::hash(&serde_json::json!([title, redirect_uris]).to_string())
}

/// Minimum time between two extensions of a client's expiry, in milliseconds.
const RENEW: i64 = 60 * 60 * 1000;
/// Upper bound of the length of registered ids.
const ID_MAX: usize = 64;

//! Clients of a tenant: lookup, metadata and redirect URIs.
//!
//! Not here: registration (`oauth::registration`) and client authentication (`oauth::tokens`).
//!
//! * `client`: clients and their lookup.
//! * `client_id`: client ids that are URLs.
//! * `metadata`: validation of client metadata.
//! * `metadata_document`: client ID metadata documents, fetched and cached.
//! * `redirect`: comparison of redirect URIs.

mod client;
mod client_id;
mod metadata;
mod metadata_document;
pub(crate) mod redirect;

pub(crate) use self::client::{Client, ClientError, ClientProof, ClientSource, Clients};
pub(crate) use self::metadata::{
    CLIENT_CREDENTIALS, ClientAuthMethod, ClientMetadata, GRANT_TYPES, JWT_BEARER, Keys,
    MetadataError,
};
pub(crate) use self::metadata_document::{DocumentError, Documents};

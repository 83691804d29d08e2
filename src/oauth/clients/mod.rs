//! Clients of a tenant: look-up, metadata and redirect URIs.
//!
//! Not here: registration (`oauth::registration`) and client authentication (`oauth::tokens`).
//!
//! * `client`: a client and the places in which it is looked up.
//! * `metadata`: client metadata, checked.
//! * `metadata_document`: client ID metadata documents, fetched and cached.
//! * `redirect`: comparison of redirect URIs.

mod client;
mod metadata;
mod metadata_document;
pub(crate) mod redirect;

pub(crate) use self::client::{Client, Clients, Kind, NoClient, Proof};
pub(crate) use self::metadata::{ClientMetadata, GRANT_TYPES, Keys, Method, Wrong};
pub(crate) use self::metadata_document::{Documents, NoDocument};

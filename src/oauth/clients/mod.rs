//! Clients: registration, metadata documents, authentication and redirect URIs.

pub(crate) mod authenticate;
mod client;
mod metadata;
mod metadata_document;
mod redirect;
pub(crate) mod register;

pub(crate) use self::client::{Client, Kind, NoClient};
pub(crate) use self::metadata::{GRANT_TYPES, Method};
pub(crate) use self::metadata_document::Documents;

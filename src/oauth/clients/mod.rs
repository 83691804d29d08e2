//! Clients: registration, metadata documents, authentication and redirect URIs.

pub(crate) mod authenticate;
pub(crate) mod client;
pub(crate) mod metadata;
pub(crate) mod metadata_document;
pub(crate) mod redirect;
pub(crate) mod register;

//! Tests of the authorization server over the wire.

pub(crate) mod account;
pub(crate) mod client_metadata_documents;
mod connections;
mod exchange;
pub(crate) mod floods;
pub(crate) mod hosts;
mod id_jag;
pub(crate) mod logins;
pub(crate) mod machines;
pub(crate) mod metadata;
pub(crate) mod own_keys;
pub(crate) mod pages;
pub(crate) mod providers;
pub(crate) mod registration;
pub(crate) mod rmcp;
mod standing;
pub(crate) mod tokens;
pub(crate) mod upstreams;
mod workloads;

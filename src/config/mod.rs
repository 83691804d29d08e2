//! The gateway's configuration: sources, reader, and one file per section.
//!
//! Not here: what an operator declares about tenants and servers (`declare`).

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod document;
pub(crate) mod gateway;
pub(crate) mod listeners;
pub(crate) mod oauth;
pub(crate) mod reader;
pub(crate) mod separation;
pub(crate) mod sources;
pub(crate) mod storage;

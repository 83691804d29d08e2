//! The gateway's configuration: sources, reader, and one file per section.
//!
//! Not here: what an operator declares about tenants and servers (`declare`).

pub(crate) mod address;
mod cluster;
mod document;
pub(crate) mod gateway;
mod listeners;
mod oauth;
pub(crate) mod reader;
mod separation;
mod sources;
mod storage;

pub(crate) use self::address::ClientAddress;
pub(crate) use self::cluster::Drain;
pub(crate) use self::document::{Format, Node, Value};
pub(crate) use self::gateway::{Config, LogFormat, RUN_SERVER, RUN_TENANT, Sources};
pub(crate) use self::oauth::Issuing;
pub(crate) use self::reader::{Fields, Mistake, Mistakes, Wrong};
pub(crate) use self::separation::{Separation, Uids};
pub(crate) use self::sources::Override;

//! The gateway's configuration: sources, reader, and one file per section.
//!
//! Not here: keys of tenants and servers, such as `limits` and `clocks` (`manifest`).
//!
//! * `config.default.toml`: every key with its default and what it is for; look here first for a
//!   time or a size
//! * `gateway`: the settings of one gateway, read from all sources; `http`, `session`, `stream`,
//!   `spawn` itself
//! * `sources`: defaults, file, environment and flags, merged
//! * `document`: TOML, YAML and JSON documents as one tree
//! * `reader`: types and units of values, and mistakes with their remedies, such as the nearest known
//!   key; for manifests too
//! * `address`: addresses, hosts, origins and URLs
//! * `listeners`: `ops` and `admin`
//! * `cluster`: `redis`, `cluster`, `log` and `drain`
//! * `storage`: `sql`, `master_key` and `audit`
//! * `oauth`: `oauth`: lifetimes of codes, tokens and log-ins
//! * `rotation`: secrets whose files have changed while the gateway runs
//! * `volume`: `data_dir` and `work_dir` on mounted volumes of root's
//! * `separation`: `sandbox.separation`, `sandbox.uids` and `children`
//! * `export`: the variables of OpenTelemetry

pub(crate) mod address;
mod cluster;
mod document;
mod export;
pub(crate) mod gateway;
mod listeners;
mod oauth;
pub(crate) mod reader;
mod rotation;
mod separation;
mod sources;
mod storage;
mod volume;

pub(crate) use self::address::ClientAddress;
pub(crate) use self::cluster::Drain;
pub(crate) use self::document::{Format, Node, Value, key_path};
pub(crate) use self::export::{Export, Protocol, Sampling, Signal};
pub(crate) use self::gateway::{
    Config, LogFormat, LoggedRequests, RUN_SERVER, RUN_TENANT, Sources,
};
pub(crate) use self::oauth::{KnownClients, OauthSettings};
pub(crate) use self::reader::{Mistake, Wrong};
pub(crate) use self::rotation::{Rotated, RotatingSettings};
pub(crate) use self::separation::{CA_VARIABLES, Separation, Uids, most_children};
pub(crate) use self::sources::Override;
pub(crate) use self::volume::{OWN_DIRECTORY, WORK_LETTERS, WORK_PREFIX, is_work_name};

//! Manifests: text read into the declared model, or into every mistake in it.
//!
//! Not here: settings of the gateway (`config`), the model (`declare`), and the syntax of YAML, TOML and JSON (`config/document`).
//!
//! * `authorization_server`: reader of users, clients and `auth` in mode `builtin`
//! * `checks`: checks of a manifest against the configuration and the machine
//! * `command_line`: the manifest of `lockgate run`
//! * `identity`: reader of `auth`, `api_keys` and `grants`
//! * `interpolation`: `${env:NAME}`, `${file:PATH}` and `${prepared}`
//! * `objects`: conversion between manifests and declared objects
//! * `policy`: reader of `policy`
//! * `provider`: reader of identity providers and upstreams
//! * `reader`: a manifest, its mistakes and their places
//! * `sandbox`: reader of `sandbox`, and of the limits of a group of processes
//! * `schema`: JSON schema of manifests, put together from the lines that read each key
//! * `server`: reader of `servers`: `clocks`, `limits` and `supervision` with their defaults and bounds
//! * `table`: tables of a manifest: how keys are read and described
//! * `tenant`: reader of `tenants` and `quotas`

mod authorization_server;
pub(crate) mod checks;
pub(crate) mod command_line;
mod identity;
pub(crate) mod interpolation;
pub(crate) mod objects;
mod policy;
mod provider;
pub(crate) mod reader;
mod sandbox;
mod schema;
mod server;
mod table;
mod tenant;

pub(crate) use self::objects::Declaration;
pub(crate) use self::reader::{Manifest, Others};
pub(crate) use self::schema::schema;

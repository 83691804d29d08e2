//! Manifests: text read into the declared model, or into every mistake in it.

pub(crate) mod authorization_server;
pub(crate) mod command_line;
pub(crate) mod interpolation;
pub(crate) mod provider;
pub(crate) mod reader;
pub(crate) mod schema;
pub(crate) mod single_object;

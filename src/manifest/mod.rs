//! Manifests: text read into the declared model, or into every mistake in it.

pub(crate) mod authorization_server;
pub(crate) mod command_line;
pub(crate) mod interpolation;
mod provider;
pub(crate) mod reader;
mod schema;
pub(crate) mod single_object;

pub(crate) use self::reader::{Manifest, Reader};
pub(crate) use self::schema::TEXT;

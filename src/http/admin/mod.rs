//! The administration API and its OpenAPI document.

pub(crate) mod apply;
pub(crate) mod bodies;
pub(crate) mod issued;
pub(crate) mod issued_bodies;
pub(crate) mod objects;
pub(crate) mod openapi;
pub(crate) mod query;
pub(crate) mod routes;
pub(crate) mod running;

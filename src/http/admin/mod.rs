//! The administration API and its `OpenAPI` document.

mod apply;
mod bodies;
mod failure;
mod issued;
mod issued_bodies;
mod objects;
pub(crate) mod openapi;
mod query;
pub(crate) mod routes;
mod running;

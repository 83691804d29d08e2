//! The administration API, `/api/v1`, and its `OpenAPI` document.
//!
//! Each operation is declared once, as an [`operation::Operation`]: path, parameters, bodies,
//! access and handler. The router and the document are made from these declarations. Not here:
//! authentication of API keys (`auth`), and the storage of objects (`database`).
//!
//! * `api_keys`: API keys of tenants and of operators
//! * `audit`: the audit trail
//! * `caller`: authentication of callers, and access to operations
//! * `declared`: tenants, servers, users, clients and identity providers
//! * `issued`: signing keys, grants, revocations and registered clients
//! * `manifest`: manifests applied as a whole
//! * `openapi`: the `OpenAPI` document of a list of operations
//! * `operation`: the declaration of an operation, and its way from a request to its handler
//! * `request`: query parameters, path parameters, conditions and documents of requests
//! * `response`: pages, times, and problems from failures of the database
//! * `routes`: the list of all operations, the router and the document
//! * `running`: sessions, children, their logs, and quotas
//! * `schema`: schemas of request and response bodies

mod api_keys;
mod audit;
mod caller;
mod declared;
mod issued;
mod manifest;
mod openapi;
mod operation;
mod request;
mod response;
mod routes;
mod running;
mod schema;

pub(crate) use self::routes::{document, routes};

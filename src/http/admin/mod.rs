//! Administration API, `/api/v1`, and its `OpenAPI` document.
//!
//! Each operation is declared once, as an [`operation::Operation`]: path, parameters, bodies,
//! permission and handler. The router and the document are made from these declarations. Not here:
//! authentication of API keys (`auth`), and the storage of objects (`database`).
//!
//! * `api_keys`: API keys of tenants and of operators
//! * `audit`: audit trail
//! * `caller`: authentication of callers, and permissions
//! * `declared`: tenants, servers, users, clients, identity providers and upstreams
//! * `issued`: signing keys, grants, revocations, registered clients and connections to upstreams
//! * `openapi`: `OpenAPI` document of a list of operations
//! * `operation`: declaration of an operation, and its call by a request
//! * `request`: parameters, conditions and documents of requests
//! * `response`: pages, times, and problems from errors of the database
//! * `routes`: list of all operations, the router and the document
//! * `running`: status, sessions, children, their logs, and quotas
//! * `schema`: schemas of request and response bodies
//! * `secrets`: secrets in the slots of servers

mod api_keys;
mod audit;
mod caller;
mod declared;
mod issued;
mod openapi;
mod operation;
mod request;
mod response;
mod routes;
mod running;
mod schema;
mod secrets;

pub(crate) use self::routes::{document, routes};

//! The browser side: authorization requests, log-in, consent and their pages.
//!
//! Not here: the routes (`oauth::routes`) and identity providers (`oauth::providers`).
//!
//! * `account`: account page: secrets, applications with access, log-ins
//! * `authorization_request`: strict parser of an authorization request.
//! * `authorize`: authorization endpoint.
//! * `callback`: redirect to an identity provider and the return from it.
//! * `code`: issue of an authorization code at the end of a log-in.
//! * `connection`: redirect to an upstream, the return from it, and the end of a connection.
//! * `consent`: consent page and the decision that it records.
//! * `cookie`: cookie that identifies a browser.
//! * `flow`: sealed state of a log-in, carried in a hidden form field.
//! * `login`: password form and choice of an identity provider.
//! * `own_keys`: API keys that people make for themselves, on the account page.
//! * `pages`: HTML pages and their header fields.
//! * `request`: browser request at a tenant, shared by all steps of a log-in.

pub(crate) mod account;
mod authorization_request;
pub(crate) mod authorize;
pub(crate) mod callback;
mod code;
pub(crate) mod connection;
pub(crate) mod consent;
mod cookie;
mod flow;
pub(crate) mod login;
mod own_keys;
mod pages;
mod request;

//! The browser side: authorization requests, log-in, consent and their pages.
//!
//! Not here: the routes (`oauth::routes`) and identity providers (`oauth::providers`).
//!
//! * `authorization_request`: the parameters of an authorization request, parsed strictly.
//! * `authorize`: the authorization endpoint.
//! * `callback`: the redirect to an identity provider and the return from it.
//! * `consent`: the page that lists what a client requests, and the decision it records.
//! * `cookie`: the cookie that identifies a browser.
//! * `flow`: the sealed state of a log-in, carried in a hidden form field.
//! * `login`: the password form and the redirect to an identity provider.
//! * `pages`: HTML pages and their header fields.
//! * `request`: one browser's request at one tenant, shared by all steps of a log-in.
//! * `resource`: the MCP server that a token is requested for (RFC 8707).

mod authorization_request;
pub(crate) mod authorize;
pub(crate) mod callback;
pub(crate) mod consent;
mod cookie;
mod flow;
pub(crate) mod login;
mod pages;
mod request;
mod resource;

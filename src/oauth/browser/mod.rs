//! The browser side: authorization requests, log-in, consent and their pages.

mod authorization_request;
pub(crate) mod authorize;
mod callback;
mod consent;
mod cookie;
mod flow;
mod login;
mod pages;
mod request;

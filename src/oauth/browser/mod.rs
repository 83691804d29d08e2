//! The browser side: authorization requests, log-in, consent and their pages.

pub(crate) mod authorization_request;
pub(crate) mod authorize;
pub(crate) mod callback;
pub(crate) mod consent;
pub(crate) mod cookie;
pub(crate) mod flow;
pub(crate) mod login;
pub(crate) mod pages;
pub(crate) mod request;

//! Authorization server of a tenant, and the state that the endpoints of all tenants share.
//!
//! Not here: the endpoints themselves.
//!
//! * `attempt`: failure limit and audit records of the endpoints for clients.
//! * `authorization_server`: authorization server of one tenant, extracted from the path.
//! * `state`: state that all endpoints share.

pub(crate) mod attempt;
mod authorization_server;
mod state;

pub(crate) use self::authorization_server::AuthorizationServer;
pub(crate) use self::state::{Oauth, OauthState};

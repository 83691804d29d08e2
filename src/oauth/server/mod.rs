//! Authorization server of a tenant, and the state that the endpoints of all tenants share.
//!
//! Not here: the endpoints themselves.
//!
//! * `attempt`: failure limit and audit records of the endpoints for clients.
//! * `login_attempt`: steps of attempts to be let in, which operators read.
//! * `authorization_server`: authorization server of one tenant, extracted from the path.
//! * `state`: state that all endpoints share.

pub(crate) mod attempt;
mod authorization_server;
mod login_attempt;
mod state;

pub(crate) use self::authorization_server::AuthorizationServer;
pub(crate) use self::login_attempt::{Attempt, StepKind};
pub(crate) use self::state::{Oauth, OauthState};

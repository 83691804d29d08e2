//! Common parts of the authorization server, independent of endpoints and tenants.
//!
//! * `client_form`: requests of the gateway to token endpoints of others.
//! * `form`: strict parser of `application/x-www-form-urlencoded` parameters.
//! * `posted`: parameters in the body of a POST.
//! * `refusal`: error responses of the token, revocation, registration and discovery endpoints.
//! * `resource`: MCP server for which a token is requested (RFC 8707), and the scopes that exist there.
//! * `secret`: random secrets, their digests, and successors of refresh tokens.
//! * `throttle`: events per minute and key, counted in a table of fixed size.

mod client_form;
pub(crate) mod form;
pub(crate) mod posted;
pub(crate) mod refusal;
pub(crate) mod resource;
pub(crate) mod secret;
pub(crate) mod throttle;

pub(crate) use self::client_form::ClientAt;
pub(crate) use self::form::Form;
pub(crate) use self::refusal::{OauthRefusal, RefusalCode};
pub(crate) use self::resource::Resource;
pub(crate) use self::secret::SecretKind;
pub(crate) use self::throttle::Throttle;

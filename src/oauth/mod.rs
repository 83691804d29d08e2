//! The authorization server of each tenant (OAuth 2.1): endpoints for clients and pages for people.
//!
//! Not here: verification of access tokens (`auth`) and the rows behind grants, clients and log-ins
//! (`database`).
//!
//! * `base`: forms, refusals, secrets and throttles, which every file below uses.
//! * `clients`: registered, declared and documented clients, and their metadata.
//! * `providers`: log-in at external identity providers.
//! * `server`: the state that all endpoints share, and the authorization server of one tenant.
//! * `upstreams`: tokens of people at other services, and for other audiences of their identity providers.
//! * `tokens`: the token and revocation endpoints, client authentication, and JWTs.
//! * `browser`: the authorization endpoint, log-in and consent pages.
//! * `discovery`: authorization server metadata and the JWK set.
//! * `logout`: logouts at identity providers.
//! * `registration`: dynamic client registration and its management.
//! * `routes`: every endpoint, on one page.

mod base;
pub(crate) mod browser;
mod clients;
mod discovery;
mod logout;
mod providers;
mod registration;
mod routes;
mod server;
pub(crate) mod tokens;
mod upstreams;

pub(crate) use self::base::Throttle;
pub(crate) use self::server::Oauth;
pub(crate) use self::upstreams::Upstreams;

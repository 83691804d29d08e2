//! The state that the endpoints of all tenants share.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;

use crate::{
    auth::Denials,
    base::{Clock, Outbound},
    config::Config,
    oauth::{
        base::{OauthRefusal, RefusalCode, Throttle},
        clients::Documents,
        providers::Providers,
    },
    snapshot::{Live, Trail},
};

/// What every endpoint shares; clones are the same.
#[derive(Clone)]
pub(crate) struct Oauth(pub(crate) Arc<OauthState>);

/// The parts.
pub(crate) struct OauthState {
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Tenants, and the store.
    pub(crate) live: Arc<Live>,
    /// Wall time.
    pub(crate) clock: Clock,
    /// The audit trail.
    pub(crate) trail: Trail,
    /// Randomness.
    pub(crate) random: SystemRandom,
    /// Wrong codes, secrets, tokens and passwords, by address.
    pub(crate) failures: Throttle,
    /// Registrations, by address, by redirect host and in all.
    pub(crate) registrations: Throttle,
    /// What client ids that are URLs lead to.
    pub(crate) documents: Documents,
    /// Identity providers.
    pub(crate) providers: Providers,
    /// Where wrong passwords are reported.
    pub(crate) denials: Denials,
}

impl Oauth {
    /// From what it is given.
    pub(crate) fn new(
        config: Arc<Config>,
        live: Arc<Live>,
        outbound: Outbound,
        clock: Clock,
        trail: Trail,
        denials: Denials,
    ) -> Self {
        Self(Arc::new(OauthState {
            config,
            live,
            documents: Documents::new(outbound.clone()),
            providers: Providers::new(outbound, clock.clone()),
            clock,
            trail,
            random: SystemRandom::new(),
            failures: Throttle::new(),
            registrations: Throttle::new(),
            denials,
        }))
    }
}

impl OauthState {
    /// The refusal of a request that names no authorization server, or none that is loaded.
    pub(crate) fn no_server(&self) -> OauthRefusal {
        if self.live.is_loaded() {
            return OauthRefusal::new(
                RefusalCode::NotFound,
                "there is no authorization server here",
            );
        }
        OauthRefusal::later("nothing was read from the store yet")
    }
}

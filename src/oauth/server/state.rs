//! State that the endpoints of all tenants share.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;

use crate::{
    auth::{Denials, TrustedIssuers, UsedProofs, Verifier},
    base::{Clock, Outbound},
    config::Config,
    declare::AuthMode,
    oauth::{
        base::{OauthRefusal, Throttle},
        clients::Documents,
        providers::{Providers, Standings},
        upstreams::Upstreams,
    },
    snapshot::{AuditQueue, CurrentSnapshot},
    telemetry::Metrics,
};

/// State that all endpoints share; a handle.
#[derive(Clone)]
pub(crate) struct Oauth(pub(crate) Arc<OauthState>);

/// The parts of that state.
pub(crate) struct OauthState {
    /// Configuration.
    pub(crate) config: Arc<Config>,
    /// The tenants as declared now, and the store.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// Wall time.
    pub(crate) clock: Clock,
    /// The audit trail.
    pub(crate) audit: AuditQueue,
    /// Randomness.
    pub(crate) random: SystemRandom,
    /// Failed codes, secrets and tokens by tenant and address, failed passwords by address and by name.
    pub(crate) failures: Throttle,
    /// Registrations and their changes, by address, by client, by redirect host and in total.
    pub(crate) registrations: Throttle,
    /// Steps of authorization attempts that are kept, by address and in total.
    pub(crate) steps: Throttle,
    /// Log-ins, decisions and codes by address, codes by person, refreshes by grant, by person and client, and by person,
    /// refused ones by grant, assertions by client, and their signatures by client and address, tokens for them by person
    /// and client, and by person, and refused ones by client and person, or by issuer.
    pub(crate) writes: Throttle,
    /// Client ID metadata documents, cached.
    pub(crate) documents: Documents,
    /// Identity providers.
    pub(crate) providers: Providers,
    /// Issuers of assertions, by their keys.
    pub(crate) issuers: TrustedIssuers,
    /// Proofs of possession that were used.
    pub(crate) proofs: UsedProofs,
    /// Standing of people at them.
    pub(crate) standings: Standings,
    /// Connections of people to upstreams.
    pub(crate) upstreams: Upstreams,
    /// Reports of denied attempts.
    pub(crate) denials: Denials,
    /// The metrics of the gateway.
    pub(crate) metrics: Arc<Metrics>,
}

impl Oauth {
    /// Makes the state with empty caches.
    pub(crate) fn new(
        config: Arc<Config>,
        snapshot: Arc<CurrentSnapshot>,
        (outbound, upstreams): (Outbound, Upstreams),
        auth: &Verifier,
        clock: Clock,
        audit: AuditQueue,
        metrics: Arc<Metrics>,
    ) -> Self {
        let is_probed = !config.outbound.probe.is_empty();
        let known = config.oauth.known_clients.clone();
        let exchanges = &upstreams.exchanges;
        let (providers, standings) = (exchanges.providers.clone(), exchanges.standings.clone());
        Self(Arc::new(OauthState {
            config,
            standings,
            snapshot,
            documents: Documents::new(&outbound, known, is_probed),
            providers,
            clock,
            audit,
            random: SystemRandom::new(),
            failures: Throttle::new(),
            registrations: Throttle::new(),
            steps: Throttle::new(),
            writes: Throttle::new(),
            upstreams,
            issuers: auth.issuers().clone(),
            proofs: auth.proofs().clone(),
            denials: auth.denials().clone(),
            metrics,
        }))
    }
}

impl Oauth {
    /// Finds out now and then whether documents of clients can be fetched, while a tenant admits them.
    pub(crate) async fn probe(self) {
        let Self(state) = self;
        if state.config.outbound.probe.is_empty() {
            return;
        }
        let (mut changes, mut told) = (state.snapshot.subscribe(), None);
        loop {
            let catalog = state.snapshot.catalog();
            let mut tenants = catalog.tenants.values();
            let admits = tenants.any(|tenant| match &tenant.auth {
                AuthMode::Builtin(builtin) => builtin.documents,
                _ => false,
            });
            if admits {
                let away = state.documents.probe(&state.config.outbound.probe).await;
                let is_new = told.replace(away.is_some()) != Some(away.is_some());
                match away {
                    Some(why) if is_new => tracing::warn!(
                        %why,
                        "documents of clients cannot be fetched: clients register instead, unless \
                         outbound.proxy names a way out"
                    ),
                    None if is_new => {
                        tracing::info!(
                            "documents of clients can be fetched: clients may name theirs"
                        );
                    }
                    _ => {}
                }
                state.documents.next_probe().await;
            } else if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl OauthState {
    /// Makes the refusal of a request for the authorization server of `tenant`, which does not exist, or may be declared
    /// in a database that cannot be read: clients take 404 for the end of their grants.
    pub(crate) fn no_server(&self, tenant: Option<&str>) -> OauthRefusal {
        if self.snapshot.may_declare(tenant) {
            return OauthRefusal::later("the database cannot be read at this moment");
        }
        OauthRefusal::gone()
    }
}

//! Choice of the implementation for a declared identity provider.

use std::sync::Arc;

use super::{
    oauth::OauthProvider,
    openid::{MetadataCache, OpenIdProvider},
    provider::IdentityProvider,
};
use crate::{
    base::{Clock, Outbound},
    declare::{Provider, ProviderKind},
};

/// Dependencies and caches that the implementations share; a handle.
#[derive(Clone)]
pub(crate) struct Providers {
    outbound: Outbound,
    clock: Clock,
    known: MetadataCache,
}

impl Providers {
    /// Makes providers that are reached through `outbound`.
    pub(crate) fn new(outbound: Outbound, clock: Clock) -> Self {
        Self {
            outbound,
            clock,
            known: MetadataCache::new(),
        }
    }

    /// Returns the implementation for a declared provider.
    pub(crate) fn of(&self, provider: &Arc<Provider>) -> Box<dyn IdentityProvider> {
        let (outbound, provider) = (self.outbound.clone(), Arc::clone(provider));
        match &provider.kind {
            ProviderKind::OpenId { .. } => {
                let (clock, known) = (self.clock.clone(), self.known.clone());
                Box::new(OpenIdProvider::new(provider, outbound, clock, known))
            }
            ProviderKind::OAuth { .. } => Box::new(OauthProvider::new(provider, outbound)),
        }
    }
}

//! Requests of authorization servers at once, shared out to tenants and the addresses that ask.
//!
//! They wait for the database and for each other's passwords, so that a flood to one tenant would keep
//! people and clients of all others out.

use std::{hash::RandomState, net::IpAddr, sync::Arc};

use super::memory::Source;
use crate::base::budget::{Budget, Drawn, Shares};

/// The requests that are answered at the same time.
#[derive(Debug)]
pub(crate) struct Turns {
    tenants: Shares<Arc<str>, RandomState>,
    callers: Shares<(Arc<str>, Source), RandomState>,
}

impl Turns {
    /// All are free.
    pub(crate) fn new(count: u64) -> Self {
        let all = Budget::new(count);
        Self {
            tenants: Shares::new(Arc::clone(&all)),
            callers: Shares::new(all),
        }
    }

    /// Takes a turn; none if this address has too many at the tenant.
    pub(crate) fn take(&self, tenant: &str, address: IpAddr) -> Option<Drawn> {
        let tenant: Arc<str> = tenant.into();
        let of_tenant = || self.tenants.of(&tenant);
        let caller = (Arc::clone(&tenant), Source::of(address));
        self.callers.below(of_tenant, &caller).draw(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::*;

    #[test]
    fn a_flood_leaves_turns_to_other_addresses_and_tenants() {
        let turns = Turns::new(90);
        let all = |tenant: &str, address: &str| -> Vec<_> {
            let address = address.parse().unwrap();
            std::iter::from_fn(|| turns.take(tenant, address)).collect()
        };
        let flood = all("a", "192.0.2.1");
        assert_eq!(flood.len(), 30);
        let same_tenant = all("a", "192.0.2.2");
        assert_eq!(same_tenant.len(), 10);
        let other = all("b", "192.0.2.1");
        assert_eq!(other.len(), 17);
        drop((flood, same_tenant));
        assert_eq!(all("b", "192.0.2.3").len(), 19);
    }
}

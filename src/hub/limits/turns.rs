//! Requests of authorization servers at once, shared out to addresses, tenants, and the addresses that ask
//! at a tenant.
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
    /// All tenants together: an address with a few requests at each would have all turns.
    addresses: Shares<Source, RandomState>,
}

/// The turn of one request.
#[derive(Debug)]
pub(crate) struct Turn {
    _at_tenant: Drawn,
    _of_address: Drawn,
}

impl Turns {
    /// All are free.
    pub(crate) fn new(count: u64) -> Self {
        let at_tenants = Budget::new(count);
        Self {
            tenants: Shares::new(Arc::clone(&at_tenants)),
            callers: Shares::new(at_tenants),
            addresses: Shares::new(Budget::new(count)),
        }
    }

    /// Takes a turn; none if this address has too many, at the tenant or at all of them.
    pub(crate) fn take(&self, tenant: &str, address: IpAddr) -> Option<Turn> {
        let (tenant, source) = (Arc::<str>::from(tenant), Source::of(address));
        let of_tenant = || self.tenants.of(&tenant);
        let caller = (Arc::clone(&tenant), source);
        Some(Turn {
            _at_tenant: self.callers.below(of_tenant, &caller).draw(1)?,
            _of_address: self.addresses.of(&source).draw(1)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::*;

    fn all(turns: &Turns, tenant: &str, address: &str) -> Vec<Turn> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| turns.take(tenant, address)).collect()
    }

    #[test]
    fn a_flood_leaves_turns_to_other_addresses_and_tenants() {
        let turns = Turns::new(90);
        let flood = all(&turns, "a", "192.0.2.1");
        assert_eq!(flood.len(), 30);
        let same_tenant = all(&turns, "a", "192.0.2.2");
        assert_eq!(same_tenant.len(), 10);
        let other = all(&turns, "b", "192.0.2.3");
        assert_eq!(other.len(), 16);
        drop((flood, same_tenant));
        assert_eq!(all(&turns, "b", "192.0.2.4").len(), 19);
    }

    #[test]
    fn an_address_has_no_more_by_asking_at_many_tenants() {
        let turns = Turns::new(90);
        let tenants: Vec<String> = (0..100).map(|at| format!("t{at}")).collect();
        let flood: Vec<_> = tenants
            .iter()
            .flat_map(|tenant| all(&turns, tenant, "192.0.2.1"))
            .collect();
        assert_eq!(flood.len(), 45);
        // The tenant that it has asked most often has fewer left than the others.
        let held = all(&turns, "t0", "192.0.2.2");
        assert_eq!(held.len(), 5);
        assert_eq!(all(&turns, "t50", "192.0.2.3").len(), 13);
    }
}

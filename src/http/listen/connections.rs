//! Connections at once, shared out to the addresses that they come from.

use std::{
    hash::RandomState,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{
    base::budget::{Budget, Descriptors, Drawn, Shares},
    hub::limits::Source,
};

/// The connections of one listener.
pub(crate) struct Connections {
    all: Arc<Budget>,
    /// None for a listener that is not for everybody.
    addresses: Option<Addresses>,
}

/// The rule for addresses.
struct Addresses {
    shares: Shares<Source, RandomState>,
    /// Proxies, whose connections are those of all their clients.
    proxies: Vec<IpNet>,
    /// The most of one address; none for as many as are free.
    most: Option<u64>,
    /// None for probes, whose connections come from the reserve.
    descriptors: Option<Descriptors>,
}

/// What a connection holds while it is open.
pub(crate) struct Admission {
    connection: Drawn,
    _descriptor: Option<Drawn>,
    is_of_proxy: bool,
}

impl Admission {
    /// Returns whether the peer is a proxy, whose connection is that of many clients.
    pub(super) fn is_of_proxy(&self) -> bool {
        self.is_of_proxy
    }

    /// Lets others go first: of the connections of an address few begin at a time. Those of a proxy are of many clients.
    pub(crate) async fn others_first(&self) {
        self.connection.budget().others_first().await;
    }
}

impl Connections {
    /// At most `max`, from any addresses.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            all: Budget::new(max as u64),
            addresses: None,
        }
    }

    /// At most `max` for probes and scrapers, of which an address has at most a quarter: a child of a server or a
    /// neighbour that takes all it can keeps the probes of the machine from no place. Loopback is one address.
    pub(crate) fn for_probes(max: usize) -> Self {
        Self::of_addresses(max, Some(max as u64 / 4), Vec::new(), None)
    }

    /// At most `max`, of which an address that is no proxy has at most as many as are free, or `most`.
    pub(crate) fn shared(
        max: usize,
        most: Option<u64>,
        proxies: Vec<IpNet>,
        descriptors: Descriptors,
    ) -> Self {
        Self::of_addresses(max, most, proxies, Some(descriptors))
    }

    fn of_addresses(
        max: usize,
        most: Option<u64>,
        proxies: Vec<IpNet>,
        descriptors: Option<Descriptors>,
    ) -> Self {
        let all = Budget::new(max as u64);
        let shares = Shares::new(Arc::clone(&all));
        Self {
            all,
            addresses: Some(Addresses {
                shares,
                proxies,
                most,
                descriptors,
            }),
        }
    }

    /// Admits a connection; none if there are too many, in all or from this address.
    pub(crate) fn enter(&self, peer: IpAddr) -> Option<Admission> {
        let Some(addresses) = &self.addresses else {
            return Some(Admission {
                connection: self.all.draw(1)?,
                _descriptor: None,
                is_of_proxy: false,
            });
        };
        let mut peer = peer.to_canonical();
        let descriptors = addresses.descriptors.as_ref();
        // A child can take any address of loopback.
        if descriptors.is_none() && peer.is_loopback() {
            peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        }
        let is_of_proxy = addresses.proxies.iter().any(|proxy| proxy.contains(&peer));
        let connection = if is_of_proxy {
            self.all.draw(1)
        } else {
            addresses.draw(peer, &self.all)
        };
        let connection = connection?;
        let descriptor = descriptors.map(|descriptors| descriptors.connection().ok_or(()));
        Some(Admission {
            connection,
            _descriptor: descriptor.transpose().ok()?,
            is_of_proxy,
        })
    }

    /// The most connections at once.
    pub(super) fn max(&self) -> u64 {
        self.all.total()
    }
}

impl Addresses {
    fn draw(&self, peer: IpAddr, all: &Arc<Budget>) -> Option<Drawn> {
        let share = self.shares.of(&Source::of(peer));
        match self.most {
            None => share.draw(1),
            Some(most) => {
                let drawn = share.hold(1);
                (share.used() <= most && all.left() >= 0).then_some(drawn)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::*;

    /// The number of connections that this address gets now.
    fn all(connections: &Connections, peer: &str) -> Vec<Admission> {
        let peer = peer.parse().unwrap();
        std::iter::from_fn(|| connections.enter(peer)).collect()
    }

    fn of(max: usize, most: Option<u64>) -> Connections {
        let proxies = vec!["10.0.0.0/8".parse().unwrap()];
        Connections::shared(max, most, proxies, Descriptors::new(10_000))
    }

    /// A child of a server took all, the probes of the machine were refused, and the gateway was restarted.
    #[test]
    fn one_address_leaves_room_for_probes() {
        let connections = Connections::for_probes(64);
        let own = all(&connections, "10.1.2.3");
        let local = ["127.0.0.1", "127.0.0.2", "::1"].map(|peer| all(&connections, peer));
        let held = local.iter().map(Vec::len).sum::<usize>();
        assert_eq!((own.len(), held), (16, 16));
        assert!(connections.enter("10.9.9.9".parse().unwrap()).is_some());
    }

    #[test]
    fn one_address_leaves_room_for_others_and_a_proxy_has_all() {
        let connections = of(100, None);
        let held = all(&connections, "192.0.2.1");
        assert_eq!(held.len(), 50);
        let half = all(&connections, "2001:db8::1");
        assert_eq!(
            (half.len(), all(&connections, "2001:db8::2").len()),
            (25, 0)
        );
        assert_eq!(all(&connections, "10.1.2.3").len(), 25);
        assert_eq!(all(&connections, "::ffff:10.1.2.3").len(), 25);
        drop((held, half));
        assert_eq!(all(&connections, "10.1.2.3").len(), 100);
    }

    #[test]
    fn a_number_for_each_address_is_exact() {
        let connections = of(100, Some(60));
        let held = all(&connections, "192.0.2.1");
        assert_eq!(held.len(), 60);
        assert_eq!(all(&connections, "192.0.2.2").len(), 40);
    }

    #[test]
    fn descriptors_bound_connections_too() {
        let proxies = vec!["10.0.0.0/8".parse().unwrap()];
        let connections = Connections::shared(1000, None, proxies, Descriptors::new(100));
        assert_eq!(all(&connections, "10.0.0.1").len(), 44);
    }

    #[test]
    fn a_listener_of_operators_has_one_bound() {
        let connections = Connections::new(3);
        assert_eq!(all(&connections, "192.0.2.1").len(), 3);
    }
}

//! Addresses of PostgreSQL and Redis, which children may not reach, also when they change.
//!
//! Not here: their refusal (`backend::sandbox`).

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use url::Url;

use super::sockets;
use crate::{backend::sandbox::Filter, config::Config};

/// The hosts and ports of PostgreSQL and Redis, which children may not reach.
pub(super) fn hosts(config: &Config) -> Vec<(String, u16)> {
    let redis = config.redis.as_ref().map(|redis| &redis.url);
    let urls = [
        (config.storage.sql_url.as_ref(), POSTGRES),
        (redis, sockets::REDIS),
    ];
    let stores = urls.into_iter().filter_map(|(url, default)| {
        let url = Url::parse(url?.expose()).ok()?;
        // PostgreSQL's parameters override the host and the port.
        let query = |names: &[&str]| {
            let mut pairs = url.query_pairs();
            pairs.find_map(|(name, value)| names.contains(&&*name).then(|| value.into_owned()))
        };
        let port = query(&["port"]).and_then(|port| port.parse().ok());
        let port = port.or_else(|| url.port()).unwrap_or(default);
        let host = url.host_str().map(str::to_owned);
        let hosts = [host, query(&["host", "hostaddr"])].into_iter().flatten();
        // An IPv6 address has brackets in a URL.
        let hosts = hosts.map(move |host| (host.trim_matches(['[', ']']).to_owned(), port));
        Some(hosts.collect::<Vec<_>>())
    });
    stores.flatten().collect()
}

/// The addresses that the stores have, or had lately.
pub(super) struct StoreAddresses(Vec<Store>);

struct Store {
    host: String,
    port: u16,
    /// The newest first.
    addresses: Vec<SocketAddr>,
    /// The last look-up found it.
    is_known: bool,
}

impl StoreAddresses {
    /// Looks all of them up.
    pub(super) async fn of(hosts: Vec<(String, u16)>) -> Self {
        let store = |(host, port)| Store {
            host,
            port,
            addresses: Vec::new(),
            is_known: true,
        };
        let mut stores = Self(hosts.into_iter().map(store).collect());
        stores.look_up().await;
        stores
    }

    /// All addresses.
    pub(super) fn all(&self) -> Vec<SocketAddr> {
        let stores = self.0.iter();
        stores.flat_map(|store| store.addresses.clone()).collect()
    }

    /// Looks them up again; true if one has an address that is new.
    async fn look_up(&mut self) -> bool {
        let mut is_new = false;
        for store in &mut self.0 {
            let looked_up = tokio::net::lookup_host((store.host.as_str(), store.port));
            let found = match tokio::time::timeout(LOOKUP, looked_up).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(_)) | Err(_) => Vec::new(),
            };
            let was_known = std::mem::replace(&mut store.is_known, !found.is_empty());
            if found.is_empty() && was_known {
                let host = &store.host;
                tracing::warn!(host, "cannot be resolved, so that children may reach it");
            }
            is_new |= store.add(found);
        }
        is_new
    }

    /// Looks them up for ever, and has new ones refused.
    pub(super) async fn keep_refused(mut self, filter: Option<Filter>) -> Infallible {
        let Some(mut filter) = filter.filter(|_| !self.0.is_empty()) else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.look_up().await {
                match filter.set_stores(self.all()) {
                    Ok(()) => tracing::info!("children are refused new addresses of the stores"),
                    Err(error) => {
                        tracing::error!(%error, "children may reach new addresses of the stores");
                    }
                }
            }
        }
    }
}

impl Store {
    /// Adds what was found; true if something is new. An address that is not found again may only be
    /// one of many that take turns.
    fn add(&mut self, mut addresses: Vec<SocketAddr>) -> bool {
        addresses.truncate(MOST_ADDRESSES);
        let is_new = addresses.iter().any(|one| !self.addresses.contains(one));
        let before = std::mem::take(&mut self.addresses).into_iter();
        let older: Vec<_> = before.filter(|one| !addresses.contains(one)).collect();
        addresses.extend(older);
        addresses.truncate(MOST_ADDRESSES);
        self.addresses = addresses;
        is_new
    }
}

/// The default port of PostgreSQL.
const POSTGRES: u16 = 5432;
/// The time between two look-ups.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bound of the look-up of a store's address.
const LOOKUP: Duration = Duration::from_secs(5);
/// Bound of the addresses of one store.
const MOST_ADDRESSES: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::stores::*;

    #[test]
    fn addresses_that_take_turns_are_all_refused() {
        let address = |at: u8| SocketAddr::from(([10, 0, 0, at], 5432));
        let mut store = Store {
            host: "db.test".to_owned(),
            port: 5432,
            addresses: Vec::new(),
            is_known: true,
        };
        assert!(store.add([address(1), address(2)].into()));
        assert!(!store.add(vec![address(2)]), "known");
        assert!(store.add([address(3)].into()));
        assert_eq!(store.addresses, [address(3), address(2), address(1)]);
        for at in 4..40 {
            assert!(store.add([address(at)].into()));
        }
        assert_eq!(store.addresses.len(), MOST_ADDRESSES);
        assert_eq!(store.addresses[0], address(39));
    }
}

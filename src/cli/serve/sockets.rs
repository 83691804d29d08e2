//! Listener sockets of a gateway, and the addresses that it announces.

use std::{
    io::{self, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    sync::Arc,
};

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket, UdpSocket, lookup_host};
use url::Url;

use crate::endpoint::Kind;
use crate::{
    backend::linux::syscalls::limit_unsent,
    config::{Config, Wrong},
    gateway::{ClusterListener, Listeners},
    http::reply::page::snippets,
};

/// Binds all configured listeners.
pub(super) async fn listeners(config: &Config, is_run: bool) -> anyhow::Result<Listeners> {
    let bind = |key, address| bind(config, key, address);
    let bind_optional = |key, address: Option<SocketAddr>| {
        let bound = address.map(|address| bind(key, address));
        bound.transpose()
    };
    let http = bind("http.listen", config.http.listen)?;
    let ops = bind_optional("ops.listen", config.ops.listen)?;
    let admin = bind_optional("admin.listen", config.admin.listen.filter(|_| !is_run))?;
    let cluster = match &config.redis {
        Some(_) => {
            let listener = bind("cluster.listen", config.cluster.listen)?;
            let address = advertised(config, listener.local_addr()?).await?;
            Some(ClusterListener { listener, address })
        }
        None => None,
    };
    Ok(Listeners {
        http,
        ops,
        admin,
        cluster,
    })
}

/// Binds the address of a key. There is no fallback to another port.
fn bind(config: &Config, key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = listen(address).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse if key == "http.listen" => {
                "end what has it, or write another port: --listen ADDR"
            }
            ErrorKind::AddrInUse => "end what has it, or write another port",
            ErrorKind::PermissionDenied => {
                "write a port above 1023, or give it CAP_NET_BIND_SERVICE"
            }
            _ => "write an address of this machine",
        };
        let what = format!("cannot listen on {address}: {error}");
        anyhow::Error::msg(Wrong::new(what, remedy).at(config.place(key), key))
    })?;
    if let Err(error) = limit_unsent(listener.as_fd(), UNSENT) {
        tracing::debug!(%error, "cannot limit what the kernel takes for a connection");
    }
    Ok(listener)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A port that was in use just before is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections that wait to be accepted, of which the system may permit fewer (`net.core.somaxconn`). The client of one
/// more tries again after a second: a thousand that come back at once, whoever they are, would cost others that.
const BACKLOG: u32 = 4096;

/// What the kernel takes of a connection's output beyond what it has sent: enough to send without a pause. Without
/// a limit it takes megabytes for a client that does not read, beside all budgets.
const UNSENT: u32 = 64 << 10;

/// The ports of the listeners, which children may not reach.
pub(super) fn ports(listeners: &Listeners) -> anyhow::Result<Vec<u16>> {
    let Listeners {
        http,
        ops,
        admin,
        cluster,
    } = listeners;
    let cluster = cluster.as_ref().map(|cluster| &cluster.listener);
    let others = [ops.as_ref(), admin.as_ref(), cluster];
    let all = std::iter::once(http).chain(others.into_iter().flatten());
    let port = |listener: &TcpListener| Ok(listener.local_addr()?.port());
    all.map(port).collect()
}

/// Announces the listeners, in the log or on stdout.
pub(super) fn announce(config: &Config, listeners: &Listeners, is_run: bool) -> anyhow::Result<()> {
    let of = |listener: Option<&TcpListener>| {
        let address = listener.map(TcpListener::local_addr).transpose()?;
        anyhow::Ok(address.map(|address| address.to_string()))
    };
    if !is_run {
        let cluster = listeners.cluster.as_ref();
        tracing::info!(
            event = "listening",
            http = %listeners.http.local_addr()?,
            ops = of(listeners.ops.as_ref())?,
            admin = of(listeners.admin.as_ref())?,
            cluster = of(cluster.map(|cluster| &cluster.listener))?,
            advertised = cluster.map(|cluster| &*cluster.address),
            url = config.public_url,
            "listening"
        );
        return Ok(());
    }
    let url = Url::parse(&config.public_url)?;
    let base = url.as_str().trim_end_matches('/');
    let url = format!("{base}{}", Kind::Mcp.alias());
    let mut out = io::stdout().lock();
    writeln!(out, "{url}")?;
    for (client, snippet) in snippets("lockgate", &url, None) {
        writeln!(out, "\n{client}:\n{snippet}")?;
    }
    out.flush()?;
    Ok(())
}

/// The address at which other replicas reach the cluster listener.
async fn advertised(config: &Config, bound: SocketAddr) -> anyhow::Result<Arc<str>> {
    if let Some(written) = &config.cluster.advertise {
        return Ok(written.as_str().into());
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound.to_string().into());
    }
    let own = own_address(config).await;
    let own = own.context("cannot find this machine's own address; set cluster.advertise")?;
    Ok(SocketAddr::new(own, bound.port()).to_string().into())
}

/// The address of this machine on the network of Redis. If Redis is local or its name does not
/// resolve, the address of the host name or of the default route.
async fn own_address(config: &Config) -> Option<IpAddr> {
    let url = config.redis.as_ref().map(|redis| redis.url.expose());
    let url = url.and_then(|url| Url::parse(url).ok());
    let redis = url.and_then(|url| {
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        Some((host, url.port().unwrap_or(REDIS)))
    });
    let towards_redis = match redis {
        Some(redis) => from(redis).await,
        None => None,
    };
    if let Some(own) = towards_redis.filter(|own| !own.is_loopback()) {
        return Some(own);
    }
    let name = rustix::system::uname();
    let named = match name.nodename().to_str() {
        Ok(name) => lookup_host((name, 0)).await.ok(),
        Err(_) => None,
    };
    let mut named = named.into_iter().flatten().map(|address| address.ip());
    if let Some(own) = named.find(|own| !own.is_loopback() && !own.is_unspecified()) {
        return Some(own);
    }
    for elsewhere in ELSEWHERE {
        if let Some(own) = from((elsewhere.to_string(), 9)).await {
            return Some(own);
        }
    }
    // Loopback only: other replicas run on this machine.
    towards_redis
}

/// The local address of the route to another machine; no packet is sent.
async fn from(there: (String, u16)) -> Option<IpAddr> {
    let there = lookup_host(there).await.ok()?.next()?;
    let any: IpAddr = if there.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(there).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The default port of Redis.
pub(super) const REDIS: u16 = 6379;
/// Documentation addresses (RFC 5737, RFC 3849), reached by the default route.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sockets::*;
    use crate::config::Sources;

    async fn of(set: &[&str], bound: &str) -> String {
        let mut sources = Sources::default();
        let home = ("HOME".to_owned(), "/home/ada".to_owned());
        sources.env.extend([home]);
        sources.set = set.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(&sources).unwrap();
        let address = advertised(&config, bound.parse().unwrap()).await;
        address.unwrap().to_string()
    }

    /// Clients that came back at once waited a second each, and clients of other tenants with them.
    #[tokio::test]
    async fn many_connections_wait_to_be_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(800));
        let waiting: Result<Vec<_>, _> = (0..400).map(|_| connect()).collect();
        assert!(waiting.is_ok());
    }

    #[tokio::test]
    async fn what_is_advertised_can_be_connected_to() {
        let redis = "redis.url=redis://127.0.0.1:1";
        let written = ["cluster.advertise=replica-1:7081", redis];
        assert_eq!(of(&written, "0.0.0.0:7080").await, "replica-1:7081");
        assert_eq!(of(&[redis], "127.0.0.1:17").await, "127.0.0.1:17");
        assert_eq!(of(&[redis], "[::1]:17").await, "[::1]:17");
        let found: SocketAddr = of(&[redis], "0.0.0.0:17").await.parse().unwrap();
        assert!(!found.ip().is_unspecified() && found.port() == 17);
    }
}

//! HTTP client for addresses named by others: metadata, keys and tokens of issuers and clients.
//!
//! To prevent server-side request forgery it connects to public addresses only and follows no
//! redirects. A proxy that looks names up itself must refuse private addresses too: only names and addresses
//! that are known here to be private are not asked of it. Not here: the meaning of documents.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use ipnet::IpNet;
use reqwest::{
    Client, ClientBuilder, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{ACCEPT, AGE, CACHE_CONTROL, CONTENT_TYPE, HeaderMap},
    redirect,
};
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::{Instant, timeout},
};
use url::{Host, Url};

use super::reach::{Proxy, Reach, is_private_name};

/// HTTP client for addresses named by others; a handle.
#[derive(Clone, Debug)]
pub(crate) struct Outbound(Arc<State>);

#[derive(Debug)]
pub(crate) struct State {
    /// Special-purpose networks that are allowed, over http too.
    allow: Arc<[IpNet]>,
    lookups: Lookups,
    /// Client for http, created at its first use.
    plain: OnceLock<Client>,
    /// Client for https.
    secure: SecureClient,
    /// The proxy of https, and the client that goes through it, made likewise.
    proxy: Option<Proxy>,
    proxied: SecureClient,
}

/// A client that a thread creates from the first use on, and anew after a failure: for a moment there may be no thread, or no
/// certificates while they are replaced.
#[derive(Debug, Default)]
struct SecureClient(RwLock<Option<Creation>>);

/// The creation of a client.
#[derive(Debug)]
struct Creation {
    /// The client, once it is there; closed without one if it cannot be created.
    client: watch::Receiver<Option<Client>>,
    begun: Instant,
}

impl Creation {
    /// Whether there is, or may be, a client of it, or it is too early for another.
    fn counts(&self) -> bool {
        // In this order: behind the end, nothing is sent any more.
        let has_failed = self.client.has_changed().is_err() && self.client.borrow().is_none();
        !has_failed || self.begun.elapsed() < AGAIN
    }
}

impl SecureClient {
    /// The last creation, or another one. All who ask after a failure get that, until it is time for another.
    fn get(
        &self,
        create: impl FnOnce() -> watch::Receiver<Option<Client>>,
    ) -> watch::Receiver<Option<Client>> {
        let last = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.counts()) {
            return last.client.clone();
        }
        drop(last);
        let mut last = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another request may have been faster.
        if let Some(last) = last.as_ref().filter(|last| last.counts()) {
            return last.client.clone();
        }
        let (client, begun) = (create(), Instant::now());
        *last = Some(Creation {
            client: client.clone(),
            begun,
        });
        client
    }
}

tokio::task_local! {
    /// The turn of the request that this task makes. Its lookups hold it, too, and may take longer than the request.
    static TURN: Arc<dyn Send + Sync>;
}

/// The way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To the host itself, at one of these addresses.
    Direct(Reach),
    /// Through the proxy.
    Proxied,
}

/// Reason why a request failed; the text is for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutboundError {
    /// The URL is not allowed because of its scheme, its address, or a user name in it.
    Url(&'static str),
    /// There is no connection: nothing was sent.
    Unconnected(String),
    /// There is no response in time, or none that says anything.
    Unreachable(String),
    /// The response is not the expected document.
    Response(Unexpected),
}

/// How a response differs from the expected document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unexpected {
    /// A redirect with this status, which is not followed.
    Redirect(u16),
    /// Another status than 200.
    Status(u16),
    /// A document of another media type than JSON.
    MediaType,
    /// A document of more bytes than these.
    Size(usize),
    /// No JSON, a redirect or a failure, as of a proxy in front of the server, with this status.
    Foreign(u16),
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redirect(status) | Self::Status(status) => write!(f, "answered {status}"),
            Self::MediaType => f.write_str("answered no JSON"),
            Self::Size(max) => write!(f, "answered more than {max} bytes"),
            Self::Foreign(status) => write!(f, "answered {status} without JSON of its own"),
        }
    }
}

/// A document and its freshness.
#[derive(Debug)]
pub(crate) struct Document {
    /// Content of the document.
    pub(crate) body: Bytes,
    /// Freshness lifetime that the server stated (RFC 9111, section 4.2.1).
    pub(crate) fresh: Option<Duration>,
}

impl std::error::Error for OutboundError {}

impl fmt::Display for OutboundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(what) => f.write_str(what),
            Self::Unconnected(what) | Self::Unreachable(what) => f.write_str(what),
            Self::Response(unexpected) => write!(f, "{unexpected}"),
        }
    }
}

impl Outbound {
    /// Makes a client without a proxy.
    #[cfg(test)]
    pub(crate) fn new(allow: Vec<IpNet>) -> Self {
        Self::through(allow, None)
    }

    /// Makes a client that may also connect to the networks `allow`; requests to public addresses go through
    /// the proxy, if there is one.
    pub(crate) fn through(allow: Vec<IpNet>, proxy: Option<Proxy>) -> Self {
        Self::with_lookups(allow.into(), proxy, LOOKUPS)
    }

    /// Returns a client of the same settings for hosts that anybody may name: with lookups of its own, because
    /// silent name servers of strangers must not hold up those of issuers.
    pub(crate) fn of_strangers(&self) -> Self {
        let (allow, proxy) = (Arc::clone(&self.0.allow), self.0.proxy.clone());
        Self::with_lookups(allow, proxy, LOOKUPS_OF_STRANGERS)
    }

    fn with_lookups(allow: Arc<[IpNet]>, proxy: Option<Proxy>, lookups: usize) -> Self {
        Self(Arc::new(State {
            allow,
            lookups: Lookups(Arc::new(Semaphore::new(lookups))),
            plain: OnceLock::new(),
            secure: SecureClient::default(),
            proxy,
            proxied: SecureClient::default(),
        }))
    }

    /// Takes all lookups, as silent name servers do.
    #[cfg(test)]
    pub(crate) fn take_lookups(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let lookups = Arc::clone(&self.0.lookups.0);
        let all = u32::try_from(lookups.available_permits()).ok()?;
        lookups.try_acquire_many_owned(all).ok()
    }

    /// Reports whether lookups through one client hold up those through the other.
    #[cfg(test)]
    pub(crate) fn shares_lookups(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.lookups.0, &other.0.lookups.0)
    }

    /// Fetches the JSON document at `url`, of at most `max` bytes.
    ///
    /// # Errors
    ///
    /// Any response but a 200 with JSON in time; redirects are not followed.
    pub(crate) async fn json(&self, url: &str, max: usize) -> Result<Bytes, OutboundError> {
        Ok(in_time(TOTAL, self.fetch(url, max)).await?.body)
    }

    /// Fetches the JSON document at `url` with its freshness. `turn` is held until the request is over, and its lookup,
    /// which may take longer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::json`].
    pub(crate) async fn document(
        &self,
        url: &str,
        max: usize,
        turn: impl Send + Sync + 'static,
    ) -> Result<Document, OutboundError> {
        let fetched = in_time(TOTAL, self.fetch(url, max));
        TURN.scope(Arc::new(turn), fetched).await
    }

    async fn fetch(&self, url: &str, max: usize) -> Result<Document, OutboundError> {
        let response = self.send(url).await?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            // A temporary failure: the document may exist.
            return Err(OutboundError::Unreachable(format!(
                "answered {}",
                status.as_u16()
            )));
        }
        if status.is_redirection() {
            let moved = Unexpected::Redirect(status.as_u16());
            return Err(OutboundError::Response(moved));
        }
        if status != StatusCode::OK {
            let other = Unexpected::Status(status.as_u16());
            return Err(OutboundError::Response(other));
        }
        if !is_json(response.headers()) {
            return Err(OutboundError::Response(Unexpected::MediaType));
        }
        let fresh = freshness(response.headers());
        let body = body(response, max).await?;
        Ok(Document { body, fresh })
    }

    /// The response of `url`, with any status.
    ///
    /// # Errors
    ///
    /// `Url`, `Unconnected`, `Unreachable`.
    pub(crate) async fn ask(&self, url: &str) -> Result<reqwest::Response, OutboundError> {
        in_time(TOTAL, self.send(url)).await
    }

    async fn send(&self, url: &str) -> Result<reqwest::Response, OutboundError> {
        let url = Url::parse(url).map_err(|_| OutboundError::Url("no URL"))?;
        let client = self.client(self.way(&url).await?).await?;
        let sent = client.get(url).header(ACCEPT, "application/json").send();
        sent.await.map_err(unreachable)
    }

    /// Checks whether a URL is allowed, without resolving its host.
    ///
    /// # Errors
    ///
    /// The reason why the URL is not allowed.
    pub(crate) fn check(&self, url: &Url) -> Result<(), OutboundError> {
        self.reach(url).map(drop)
    }

    /// Sends an OAuth request to another authorization server and returns its JSON response of at
    /// most `max` bytes, also an error (RFC 6749, section 5.2).
    ///
    /// # Errors
    ///
    /// A response that is no JSON, or none in time; redirects are not followed.
    pub(crate) async fn exchange(
        &self,
        request: http::Request<Vec<u8>>,
        max: usize,
    ) -> Result<http::Response<Vec<u8>>, OutboundError> {
        in_time(TOTAL, self.post(request, max, TOTAL)).await
    }

    /// The same for what the other side may do once alone, such as taking a code or a refresh token: its answer is waited for longer,
    /// because nothing can be asked in its place.
    ///
    /// # Errors
    ///
    /// Those of [`Self::exchange`].
    pub(crate) async fn exchange_once(
        &self,
        request: http::Request<Vec<u8>>,
        max: usize,
    ) -> Result<http::Response<Vec<u8>>, OutboundError> {
        in_time(ONCE, self.post(request, max, ONCE)).await
    }

    async fn post(
        &self,
        request: http::Request<Vec<u8>>,
        max: usize,
        limit: Duration,
    ) -> Result<http::Response<Vec<u8>>, OutboundError> {
        let (head, content) = request.into_parts();
        let url = Url::parse(&head.uri.to_string()).map_err(|_| OutboundError::Url("no URL"))?;
        let client = self.client(self.way(&url).await?).await?;
        let request = client.request(head.method, url);
        let request = request.headers(head.headers).timeout(limit);
        let sent = request.body(content).send();
        let answer = sent.await.map_err(unreachable)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        if status.is_redirection() || status.is_server_error() || !is_json(&headers) {
            let foreign = Unexpected::Foreign(status.as_u16());
            return Err(OutboundError::Response(foreign));
        }
        let mut response = http::Response::new(body(answer, max).await?.to_vec());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Returns the addresses that a URL may lead to, if it is allowed.
    fn reach(&self, url: &Url) -> Result<Reach, OutboundError> {
        Reach::of(url, &self.0.allow).map_err(OutboundError::Url)
    }

    /// Returns the way of a request to a URL, if it is allowed.
    async fn way(&self, url: &Url) -> Result<Way, OutboundError> {
        let reach = self.reach(url)?;
        let (Some(proxy), Reach::Public, Some(host)) = (&self.0.proxy, reach, url.host()) else {
            return Ok(Way::Direct(reach));
        };
        let is_allowed = |ip: IpAddr| Reach::Allowed.contains(ip, &self.0.allow);
        let is_direct = match host {
            Host::Domain(name) if !proxy.exempts(&host) => self.is_own_name(name).await?,
            Host::Ipv4(v4) => proxy.exempts(&host) || is_allowed(v4.into()),
            Host::Ipv6(v6) => proxy.exempts(&host) || is_allowed(v6.into()),
            Host::Domain(_) => true,
        };
        Ok(if is_direct {
            Way::Direct(reach)
        } else {
            Way::Proxied
        })
    }

    /// Reports whether a name leads to an allowed network, so that it is reached without the proxy.
    ///
    /// # Errors
    ///
    /// For a name that leads to another private address, as far as that is known here: behind a proxy there
    /// may be no name server for public names.
    async fn is_own_name(&self, name: &str) -> Result<bool, OutboundError> {
        let found = timeout(LOOKUP, self.0.lookups.find(name)).await;
        let Ok(Ok(found)) = found else {
            if is_private_name(name) {
                return Err(OutboundError::Url("the name of a private network"));
            }
            return Ok(false);
        };
        let allow = &self.0.allow;
        let is_within = |reach: Reach, at: &SocketAddr| reach.contains(at.ip(), allow);
        if found.iter().any(|at| is_within(Reach::Allowed, at)) {
            return Ok(true);
        }
        let is_public = |at: &SocketAddr| is_within(Reach::Public, at);
        if !found.iter().all(is_public) {
            let what = "the name has a private address".to_owned();
            return Err(OutboundError::Unconnected(what));
        }
        Ok(false)
    }

    /// Returns the client for `way`, when it is there.
    async fn client(&self, way: Way) -> Result<Client, OutboundError> {
        let failed = || OutboundError::Unconnected("no client: see the log".to_owned());
        if way == Way::Direct(Reach::Allowed) {
            // Without certificates: nothing is read from the disk.
            if let Some(client) = self.0.plain.get() {
                return Ok(client.clone());
            }
            let client = self.build(way, |builder| builder.tls_certs_only([]));
            let client = client.ok_or_else(failed)?;
            return Ok(self.0.plain.get_or_init(|| client).clone());
        }
        let client = match way {
            Way::Direct(_) => &self.0.secure,
            Way::Proxied => &self.0.proxied,
        };
        let mut client = client.get(|| self.build_secure(way));
        let built = timeout(CONNECT, client.wait_for(Option::is_some)).await;
        let slow = |_| OutboundError::Unconnected("certificates are still being read".to_owned());
        let built = built.map_err(slow)?.map_err(|_| failed())?;
        built.clone().ok_or_else(failed)
    }

    /// Creates the client for https in a thread of its own, because that reads the system's
    /// certificates: hundreds of files, of which none has a time limit.
    fn build_secure(&self, way: Way) -> watch::Receiver<Option<Client>> {
        let (built, client) = watch::channel(None);
        let outbound = self.clone();
        let build = move || {
            if let Some(client) = outbound.build(way, |builder| builder) {
                // All receivers may be gone.
                let _ = built.send(Some(client));
            }
        };
        let thread = std::thread::Builder::new().name("certificates".into());
        if let Err(error) = thread.spawn(build) {
            tracing::error!(%error, "no thread for the system's certificates");
        }
        client
    }

    fn build(&self, way: Way, set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Option<Client> {
        let client = match (way, &self.0.proxy) {
            (Way::Direct(reach), _) => {
                let resolver = Resolver {
                    reach,
                    allow: Arc::clone(&self.0.allow),
                    lookups: self.0.lookups.clone(),
                };
                let direct = builder(reach).dns_resolver(Arc::new(resolver)).no_proxy();
                set(direct).build()
            }
            // Its own address may be any: an operator named it.
            (Way::Proxied, Some(proxy)) => reqwest::Proxy::https(proxy.url.expose())
                .and_then(|proxy| set(builder(Reach::Public).proxy(proxy)).build()),
            (Way::Proxied, None) => return None,
        };
        client
            .inspect_err(|error| tracing::error!(%error, "no client for outbound requests"))
            .ok()
    }
}

fn builder(reach: Reach) -> ClientBuilder {
    Client::builder()
        .https_only(reach == Reach::Public)
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(concat!("lockgate/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .timeout(TOTAL)
        // No time limit reaches the task of a connection, which has to end by itself once its request is given up. Over HTTP/2 the
        // end of a stream waits behind the answers to pings, as long as a site likes; over HTTP/1 nothing is waited for: a
        // request and the end of TLS fit into the buffer of a socket, of which a site fills nothing.
        .http1_only()
        // Documents are fetched every few minutes at most, so idle connections are useless.
        .pool_max_idle_per_host(0)
}

/// Resolver that returns only addresses that may be connected to. There is no second lookup that
/// could return others (DNS rebinding).
#[derive(Debug)]
struct Resolver {
    reach: Reach,
    allow: Arc<[IpNet]>,
    lookups: Lookups,
}

/// Lookups of names; a handle.
#[derive(Clone, Debug)]
struct Lookups(Arc<Semaphore>);

impl Lookups {
    /// Finds the addresses of a name.
    async fn find(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        // The client resolves names in the task of the request.
        let of_request = TURN.try_get().ok();
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let (turn, name) = (turn.map_err(io::Error::other)?, name.to_owned());
        let found = spawn_blocking(move || {
            // Held to the end, also if nobody waits for it any more: the thread is not free before.
            let _turns = (turn, of_request);
            Ok((name.as_str(), 0).to_socket_addrs()?.collect())
        });
        found.await.map_err(io::Error::other)?
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, allow) = (self.reach, Arc::clone(&self.allow));
        let lookups = self.lookups.clone();
        Box::pin(async move {
            let found = lookups.find(name.as_str()).await?.into_iter();
            let is_allowed = |address: &SocketAddr| reach.contains(address.ip(), &allow);
            let allowed: Vec<SocketAddr> = found.filter(is_allowed).take(ADDRESSES).collect();
            if allowed.is_empty() {
                return Err("the name has no public address".into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Runs a request within its time: that of the client begins after the lookup of a name for the proxy, and
/// after the client is made.
async fn in_time<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, OutboundError>>,
) -> Result<T, OutboundError> {
    let late = || OutboundError::Unreachable("no answer in time".to_owned());
    timeout(limit, request)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// Reads a body of at most `max` bytes.
async fn body(mut response: reqwest::Response, max: usize) -> Result<Bytes, OutboundError> {
    let mut all = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if all.len() + chunk.len() > max {
            return Err(OutboundError::Response(Unexpected::Size(max)));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}

/// Returns whether the type is `application/json` or has the suffix `+json` (RFC 6839, section 3.1).
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or("");
    let kind = kind.trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Returns the freshness lifetime by `Cache-Control` and `Age`. The cache is private, so `private`
/// and `s-maxage` do not matter.
fn freshness(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(CACHE_CONTROL).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let mut words = lines.iter().flat_map(|line| line.split(',')).map(str::trim);
    let is_word = |word: &str, known: &str| {
        let name = word.split('=').next().unwrap_or_default();
        name.eq_ignore_ascii_case(known)
    };
    let forbidden = |word: &str| is_word(word, "no-store") || is_word(word, "no-cache");
    if words.clone().any(forbidden) {
        return Some(Duration::ZERO);
    }
    let word = words.find(|word| is_word(word, "max-age"))?;
    let seconds = |text: &str| text.trim_matches('"').parse::<u64>().ok();
    // A malformed value means stale (RFC 9111, section 4.2.1).
    let max = word
        .split_once('=')
        .and_then(|(_, max)| seconds(max))
        .unwrap_or(0);
    let age = headers.get(AGE).and_then(|age| seconds(age.to_str().ok()?));
    Some(Duration::from_secs(max.saturating_sub(age.unwrap_or(0))))
}

/// Converts an error, by its innermost cause: the outer ones repeat the URL.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreachable(error: reqwest::Error) -> OutboundError {
    let mut reason: &dyn std::error::Error = &error;
    while let Some(inner) = reason.source() {
        reason = inner;
    }
    if error.is_connect() {
        return OutboundError::Unconnected(reason.to_string());
    }
    OutboundError::Unreachable(reason.to_string())
}

/// Time limit for a connection, and for the client before it.
const CONNECT: Duration = Duration::from_secs(2);
/// Time between two attempts to create a client for https.
const AGAIN: Duration = Duration::from_secs(5);
/// Time limit for the lookup of a name that the proxy may know, which leaves time for the proxy.
const LOOKUP: Duration = Duration::from_secs(1);
/// Names that are looked up at a time: a quarter of the runtime's threads for what blocks, because a name
/// server that is silent holds one for longer than anybody waits.
const LOOKUPS: usize = 128;
/// Those among hosts that anybody may name: as many as there are turns for fetches from them, so that no lookup waits for
/// those of another tenant.
const LOOKUPS_OF_STRANGERS: usize = 64;
/// Time limit from the lookup to the last byte; a caller waits for it.
const TOTAL: Duration = Duration::from_secs(3);
/// The same for what can be asked once: with the metadata before it, shorter than the leases of those who ask.
const ONCE: Duration = Duration::from_secs(8);
/// Most addresses that are tried for one name.
const ADDRESSES: usize = 8;

#[cfg(test)]
#[path = "tests/outbound.rs"]
mod tests;

//! The HTTP client of the doctor: requests with a bound on their number, their time and their bytes.
//!
//! It follows no redirect, and sends the token to the origin of the examined URL alone. Not here: what is
//! asked, and what the answers mean.

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use reqwest::{
    Client, Method, Response, StatusCode, Version,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_TYPE, HeaderMap},
    redirect,
};
use serde_json::Value as Json;
use tokio::{
    net::lookup_host,
    time::{Instant, timeout},
};
use url::{Host, Url};

use super::sse::{Blocks, is_stream};
use crate::base::{Reach, Secret};

/// The HTTP client of one examination.
pub(super) struct Visitor {
    http: Client,
    /// The URL that is examined.
    pub(super) target: Url,
    token: Option<Secret>,
    /// The time limit of an answer.
    pub(super) limit: Duration,
    /// The end of the examination, however far it is.
    end: Instant,
    /// Requests so far.
    pub(super) requests: u32,
    /// Whether the target has a public address. What it names may then not be a private one.
    is_public: bool,
    /// Documents that were fetched, since every client asks for the same ones.
    documents: BTreeMap<String, Result<Answer, Failure>>,
}

/// The limits of an examination.
pub(super) struct Limits {
    /// The time limit of an answer.
    pub(super) answer: Duration,
    /// The time for which a stream is watched.
    pub(super) idle: Duration,
}

/// A request.
#[derive(Clone)]
pub(super) struct Ask {
    method: Method,
    pub(super) url: Url,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
    has_token: bool,
}

/// An answer with its body.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) version: Version,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    /// The TLS handshake failed.
    Tls(rustls::Error),
    /// There is no connection, or it broke.
    Broken(String),
    /// The answer, or its end, did not come in time.
    Late(Duration),
    /// The body is too long.
    TooLong,
    /// The server names a private address, and has a public one itself.
    Private,
    /// The examination has sent all its requests, or has used up its time.
    Spent,
}

impl Ask {
    /// A GET.
    pub(super) fn get(url: &Url) -> Self {
        Self::of(Method::GET, url)
    }

    /// A request without a body.
    pub(super) fn of(method: Method, url: &Url) -> Self {
        Self {
            method,
            url: url.clone(),
            headers: Vec::new(),
            body: None,
            has_token: false,
        }
    }

    /// A POST of JSON.
    pub(super) fn post(url: &Url, body: &Json) -> Self {
        let mut ask = Self::of(Method::POST, url).header("Content-Type", "application/json");
        ask.body = Some(body.to_string());
        ask
    }

    /// The request with another header field.
    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The request with the token, if there is one and the request goes to the examined origin.
    pub(super) fn with_token(mut self) -> Self {
        self.has_token = true;
        self
    }

    /// The request in a report: method and URL.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.method, self.url)
    }
}

impl Answer {
    /// A header field, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as a JSON object.
    pub(super) fn object(&self) -> Option<Json> {
        let json: Json = serde_json::from_slice(&self.body).ok()?;
        json.is_object().then_some(json)
    }

    /// The JSON-RPC message of the body: JSON, or the last message of a stream.
    pub(super) fn message(&self) -> Option<Json> {
        if !is_stream(&self.headers) {
            return self.object();
        }
        let mut blocks = Blocks::default();
        blocks.push(&self.body);
        let messages = std::iter::from_fn(|| blocks.next());
        messages.filter_map(|block| block.json()).last()
    }

    /// The answer in a report: its status, the kind and the begin of its body.
    pub(super) fn shown(&self) -> String {
        let kind = self.header(CONTENT_TYPE.as_str()).unwrap_or("no type");
        let head = &self.body[..self.body.len().min(SHOWN)];
        let text = String::from_utf8_lossy(head);
        match text.trim() {
            "" => self.status.to_string(),
            text => format!("{} ({kind}) {text}", self.status),
        }
    }
}

impl Failure {
    /// The failure in a report.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Tls(error) => format!("the TLS handshake failed: {error}"),
            Self::Broken(why) => format!("no whole answer: {why}"),
            Self::Late(limit) => format!("no whole answer within {limit:?}"),
            Self::TooLong => format!("an answer of more than {MOST_BYTES} bytes"),
            Self::Private => "nothing was asked: the address is private".to_owned(),
            Self::Spent => "nothing was asked: the examination has taken too long".to_owned(),
        }
    }

    fn of(error: &reqwest::Error) -> Self {
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        let mut inner = String::new();
        while let Some(error) = next {
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return Self::Tls(tls.clone());
            }
            inner = error.to_string();
            // The source of an I/O error leaves out the error that it wraps.
            next = match error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref)
            {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        Self::Broken(inner)
    }
}

impl Visitor {
    /// Makes the client for `target`, which trusts `authorities` (PEM) too.
    ///
    /// # Errors
    ///
    /// The mistake in `authorities`.
    pub(super) async fn new(
        target: Url,
        token: Option<Secret>,
        authorities: Option<&[u8]>,
        limits: &Limits,
    ) -> Result<Self, reqwest::Error> {
        let authorities = authorities.map(reqwest::Certificate::from_pem_bundle);
        let authorities = authorities.transpose()?.unwrap_or_default();
        let is_public = is_public(&target, limits.answer).await;
        let resolver = Resolver {
            target: target.host_str().unwrap_or_default().to_owned(),
            is_public,
        };
        let builder = || {
            let builder = Client::builder()
                // Most clients speak HTTP/1.1, and only there the version of a proxy is seen.
                .http1_only()
                .redirect(redirect::Policy::none())
                .retry(reqwest::retry::never())
                .referer(false)
                .user_agent(concat!("lockgate-doctor/", env!("CARGO_PKG_VERSION")))
                .tls_info(true)
                .connect_timeout(limits.answer)
                .pool_max_idle_per_host(1)
                .dns_resolver(resolver.clone());
            // A proxy would connect to its own network.
            if is_public {
                builder
            } else {
                builder.no_proxy()
            }
        };
        let http = builder().tls_certs_merge(authorities.clone()).build();
        // A machine without certificates can still examine a server without them.
        let http = http.or_else(|_| builder().tls_certs_only(authorities).build())?;
        Ok(Self {
            http,
            target,
            token,
            limit: limits.answer,
            end: Instant::now() + limits.answer * ANSWERS + limits.idle * 2,
            requests: 0,
            is_public,
            documents: BTreeMap::new(),
        })
    }

    /// Whether there is a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Begins a request; the future is the head of its answer.
    pub(super) fn begin(
        &mut self,
        ask: Ask,
    ) -> Result<impl Future<Output = Result<Response, Failure>> + use<>, Failure> {
        if self.requests >= MOST_REQUESTS || Instant::now() >= self.end {
            return Err(Failure::Spent);
        }
        if self.is_public && !may_lead_to(&ask.url) {
            return Err(Failure::Private);
        }
        self.requests += 1;
        let mut request = self.http.request(ask.method, ask.url.clone());
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        let is_own = ask.url.origin() == self.target.origin();
        if let Some(token) = self.token.as_ref().filter(|_| ask.has_token && is_own) {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = ask.body {
            request = request.body(body);
        }
        let sent = request.send();
        Ok(async move { sent.await.map_err(|error| Failure::of(&error)) })
    }

    /// Sends a request, and returns the head of its answer.
    pub(super) async fn open(&mut self, ask: Ask) -> Result<Response, Failure> {
        let begun = self.begin(ask)?;
        within(self.limit, begun).await
    }

    /// Sends a request, and returns the head of its answer without the body.
    pub(super) async fn head(&mut self, ask: Ask) -> Result<Answer, Failure> {
        let response = self.open(ask).await?;
        Ok(Answer {
            version: response.version(),
            status: response.status(),
            headers: response.headers().clone(),
            body: Bytes::new(),
        })
    }

    /// Sends a request, and returns its answer; of a stream, up to the first response in it.
    pub(super) async fn fetch(&mut self, ask: Ask) -> Result<Answer, Failure> {
        let begun = self.begin(ask)?;
        within(self.limit, async { whole(begun.await?).await }).await
    }

    /// The document at a URL, which is asked once.
    pub(super) async fn document(&mut self, url: &Url) -> Result<Answer, Failure> {
        if let Some(known) = self.documents.get(url.as_str()) {
            return known.clone();
        }
        let ask = Ask::get(url)
            .header("Accept", "application/json")
            .header("MCP-Protocol-Version", "2025-11-25");
        let answer = self.fetch(ask).await;
        self.documents.insert(url.to_string(), answer.clone());
        answer
    }
}

/// Runs a request within its time.
async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| Err(Failure::Late(limit));
    timeout(limit, request).await.unwrap_or_else(late)
}

/// Reads an answer; of a stream, up to the first response in it, since the server may leave it open.
async fn whole(mut response: Response) -> Result<Answer, Failure> {
    let (version, status) = (response.version(), response.status());
    let headers = response.headers().clone();
    let (mut body, mut blocks) = (BytesMut::new(), Blocks::default());
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| Failure::of(&error))?
    {
        if body.len() + chunk.len() > MOST_BYTES {
            return Err(Failure::TooLong);
        }
        body.extend_from_slice(&chunk);
        if is_stream(&headers) {
            blocks.push(&chunk);
            let mut arrived = std::iter::from_fn(|| blocks.next());
            if arrived.any(|block| block.is_response()) {
                break;
            }
        }
    }
    Ok(Answer {
        version,
        status,
        headers,
        body: body.freeze(),
    })
}

/// Whether all addresses of a URL are public.
async fn is_public(url: &Url, limit: Duration) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            let found = timeout(limit, lookup_host((name, 0))).await;
            let Ok(Ok(mut found)) = found else {
                // Nothing is known; a proxy may know the name.
                return true;
            };
            found.all(|address| is_public_ip(address.ip()))
        }
        _ => may_lead_to(url),
    }
}

/// Whether the host of a URL is a name, or a public address.
fn may_lead_to(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => is_public_ip(ip.into()),
        Some(Host::Ipv6(ip)) => is_public_ip(ip.into()),
        Some(Host::Domain(_)) => true,
        None => false,
    }
}

fn is_public_ip(ip: IpAddr) -> bool {
    Reach::Public.contains(ip, &[])
}

/// Resolver that keeps the names of others from leading to private addresses (2025-11-25 security best
/// practices, "Server-Side Request Forgery"), if the target is a public server.
#[derive(Clone)]
struct Resolver {
    target: String,
    is_public: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_free = !self.is_public || name.as_str() == self.target;
        Box::pin(async move {
            let found = lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| is_free || is_public_ip(address.ip()))
                .collect();
            if allowed.is_empty() {
                return Err("the name has no public address".into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// The most requests of an examination; nine clients need about 80.
const MOST_REQUESTS: u32 = 250;
/// The most bytes of an answer. Metadata has a few thousand.
const MOST_BYTES: usize = 256 * 1024;
/// The bytes of a body in a report.
const SHOWN: usize = 400;
/// The longest examination, in time limits of an answer.
const ANSWERS: u32 = 30;

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::super::visitor::*;

    fn visitor(target: &str, is_public: bool) -> Visitor {
        Visitor {
            http: Client::builder().tls_certs_only([]).build().unwrap(),
            target: Url::parse(target).unwrap(),
            token: None,
            limit: Duration::from_secs(1),
            end: Instant::now() + Duration::from_secs(60),
            requests: 0,
            is_public,
            documents: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn a_public_server_sends_nobody_to_private_addresses() {
        let mut visitor = visitor("https://mcp.example.com/mcp", true);
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "https://10.0.0.1/",
            "http://[::1]/",
            "http://2130706433/",
        ] {
            let begun = visitor.begin(Ask::get(&Url::parse(url).unwrap()));
            assert_eq!(begun.err(), Some(Failure::Private), "{url}");
        }
        assert_eq!(visitor.requests, 0);
    }

    #[tokio::test]
    async fn the_token_goes_to_one_origin() {
        for (is_own, wanted) in [(true, true), (false, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/x", listener.local_addr().unwrap());
            let target = if is_own {
                &url
            } else {
                "http://127.0.0.1:9/mcp"
            };
            let mut visitor = visitor(target, false);
            visitor.token = Secret::of("the-secret".to_owned());
            let ask = Ask::get(&Url::parse(&url).unwrap()).with_token();
            let heard = async {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    socket.read_buf(&mut request).await.unwrap();
                }
                String::from_utf8(request).unwrap()
            };
            let (_, heard) = tokio::join!(visitor.open(ask), heard);
            assert_eq!(heard.contains("Bearer the-secret"), wanted, "{heard}");
        }
    }

    #[tokio::test]
    async fn an_examination_has_an_end() {
        let mut visitor = visitor("http://127.0.0.1:9/mcp", false);
        let ask = Ask::get(&visitor.target.clone());
        for _ in 0..MOST_REQUESTS {
            assert!(visitor.begin(ask.clone()).is_ok());
        }
        assert_eq!(visitor.begin(ask.clone()).err(), Some(Failure::Spent));
        visitor.requests = 0;
        visitor.end = Instant::now();
        assert_eq!(visitor.begin(ask).err(), Some(Failure::Spent));
    }
}

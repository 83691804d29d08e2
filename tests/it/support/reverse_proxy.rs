//! A reverse proxy in front of a gateway, with a fault of those that operators configure.

use std::{
    net::SocketAddr,
    sync::{Arc, RwLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{
        HeaderMap, HeaderValue, Method, Request, StatusCode, Version,
        header::{HOST, LOCATION, TRANSFER_ENCODING, VIA, WWW_AUTHENTICATE},
    },
    response::Response,
};
use futures_util::{StreamExt, stream};
use tokio::{net::TcpListener, task::JoinSet};

use crate::support::harness::{client, is_stream};

/// The fault of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Answers lose this header field.
    Strips(&'static str),
    /// Requests lose this header field.
    Drops(&'static str),
    /// The gateway hears the name of its own address.
    RewritesHost,
    /// Only paths of servers are passed on.
    ForgetsWellKnown,
    /// The answers to GET are passed on when they are whole.
    Buffers,
    /// Likewise, but their heads at once.
    HoldsBodies,
    /// It answers with HTTP/1.0.
    IsOld,
    /// It tells that it speaks HTTP/1.0 to the gateway.
    WasOld,
    /// The answers to GET break when they are silent for this time.
    CutsAfter(Duration),
    /// POST is sent to another place.
    Moves(StatusCode),
    /// Documents name another issuer.
    RenamesIssuer,
    /// Requests with larger bodies are refused.
    Limits(usize),
    /// Streams of sessions are refused.
    RefusesGet,
    /// The end of sessions is refused.
    RefusesDelete,
    /// Requests with this header field are refused.
    RefusesWith(&'static str),
    /// The gateway is away.
    IsAlone,
}

/// A running proxy.
pub(crate) struct ReverseProxy {
    address: SocketAddr,
    /// Requests so far: method, path, header fields.
    pub(crate) seen: Arc<RwLock<Vec<(Method, String, HeaderMap)>>>,
    target: Arc<RwLock<(String, Fault)>>,
    _serving: JoinSet<()>,
}

impl ReverseProxy {
    /// A proxy with a fault; its gateway is not known yet, because that has to know its address.
    pub(crate) async fn with(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(RwLock::new((String::new(), fault)));
        let seen = Arc::default();
        let (to, told, http): (_, Arc<RwLock<Vec<_>>>, _) =
            (Arc::clone(&target), Arc::clone(&seen), client());
        let app = Router::new().fallback(move |request: Request<Body>| {
            let ((to, fault), http) = (to.read().unwrap().clone(), http.clone());
            let head = (
                request.method().clone(),
                request.uri().to_string(),
                request.headers().clone(),
            );
            told.write().unwrap().push(head);
            async move { pass(fault, &to, &http, request).await }
        });
        let mut serving = JoinSet::new();
        serving.spawn(async move { serve(listener, app).await });
        Self {
            address,
            seen,
            target,
            _serving: serving,
        }
    }

    /// The beginning of its URLs.
    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends requests to `origin` from now on.
    pub(crate) fn lead_to(&self, origin: &str) {
        origin.clone_into(&mut self.target.write().unwrap().0);
    }

    /// Changes the fault.
    pub(crate) fn set(&self, fault: Fault) {
        self.target.write().unwrap().1 = fault;
    }

    /// True if a request with this method, to a path with this part, has come.
    pub(crate) fn saw(&self, method: &Method, part: &str) -> bool {
        let seen = self.seen.read().unwrap();
        seen.iter()
            .any(|(by, path, _)| by == method && path.contains(part))
    }

    /// True if a request has had this header field.
    pub(crate) fn saw_header(&self, name: &str) -> bool {
        let seen = self.seen.read().unwrap();
        seen.iter().any(|(.., headers)| headers.contains_key(name))
    }
}

/// Serves HTTP/1.1; `axum::serve` needs a feature that the gateway does without.
pub(crate) async fn serve(listener: TcpListener, app: Router) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let service = hyper_util::service::TowerToHyperService::new(app.clone());
        connections.spawn(async move {
            let io = hyper_util::rt::TokioIo::new(socket);
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(io, service).await;
        });
    }
}

fn plain(status: StatusCode) -> Response {
    let mut response = Response::new(Body::from("<html>a page of the proxy</html>"));
    *response.status_mut() = status;
    response
}

/// Passes a request on, with the fault.
async fn pass(fault: Fault, to: &str, http: &reqwest::Client, request: Request<Body>) -> Response {
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, 16 << 20).await.unwrap();
    let path = head.uri.to_string();
    let refused = match fault {
        Fault::IsAlone => Some(StatusCode::BAD_GATEWAY),
        Fault::ForgetsWellKnown if path.contains("/.well-known/") => Some(StatusCode::NOT_FOUND),
        Fault::Limits(most) if body.len() > most => Some(StatusCode::PAYLOAD_TOO_LARGE),
        Fault::RefusesGet if head.method == Method::GET && path == "/t/a/x/mcp" => {
            Some(StatusCode::FORBIDDEN)
        }
        Fault::RefusesDelete if head.method == Method::DELETE => Some(StatusCode::FORBIDDEN),
        Fault::RefusesWith(name) if head.headers.contains_key(name) => {
            Some(StatusCode::BAD_REQUEST)
        }
        _ => None,
    };
    if let Some(status) = refused {
        return plain(status);
    }
    match fault {
        Fault::Moves(status) if !path.starts_with("/moved") => {
            let mut response = plain(status);
            let to = HeaderValue::try_from(format!("/moved{path}")).unwrap();
            response.headers_mut().insert(LOCATION, to);
            return response;
        }
        Fault::Drops(name) => drop(head.headers.remove(name)),
        Fault::RewritesHost => drop(head.headers.remove(HOST)),
        _ => {}
    }
    head.headers.remove(TRANSFER_ENCODING);
    let is_get = head.method == Method::GET;
    let sent = http
        .request(head.method, format!("{to}{path}"))
        .headers(head.headers)
        .body(body);
    match sent.send().await {
        Ok(answer) => passed(fault, is_get, answer).await,
        Err(_) => plain(StatusCode::BAD_GATEWAY),
    }
}

/// Passes an answer on, with the fault.
async fn passed(fault: Fault, is_get: bool, answer: reqwest::Response) -> Response {
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(TRANSFER_ENCODING);
    match fault {
        Fault::Strips("www-authenticate") => drop(headers.remove(WWW_AUTHENTICATE)),
        Fault::Strips(name) => drop(headers.remove(name)),
        Fault::WasOld => drop(headers.insert(VIA, HeaderValue::from_static("1.0 proxy"))),
        _ => {}
    }
    let body = match fault {
        Fault::Buffers if is_get => Body::from(answer.bytes().await.unwrap_or_default()),
        Fault::HoldsBodies if is_get => Body::from_stream(stream::once(answer.bytes())),
        Fault::CutsAfter(silence) if is_get => Body::from_stream(cut(answer, silence)),
        Fault::RenamesIssuer if is_get && !is_stream(&answer) => {
            headers.remove("content-length");
            let text = answer.text().await.unwrap();
            Body::from(text.replace("\"issuer\":\"http", "\"issuer\":\"https"))
        }
        _ => Body::from_stream(answer.bytes_stream()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if fault == Fault::IsOld {
        *response.version_mut() = Version::HTTP_10;
    }
    response
}

/// The bytes of an answer, up to a silence, at which it breaks.
fn cut(
    answer: reqwest::Response,
    silence: Duration,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> {
    let bytes = answer.bytes_stream().boxed();
    stream::unfold(Some(bytes), move |bytes| async move {
        let mut bytes = bytes?;
        match tokio::time::timeout(silence, bytes.next()).await {
            Ok(next) => next.map(|next| (next.map_err(std::io::Error::other), Some(bytes))),
            Err(_) => Some((Err(std::io::Error::other("silence")), None)),
        }
    })
}

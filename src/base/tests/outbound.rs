//! Tests of `base::outbound`.

use rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::super::{outbound::*, reach::is_public};

const PUBLIC: [&str; 12] = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
];

const SPECIAL: [&str; 46] = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.1.2.3",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fe80::1",
    "ff02::1",
];

#[test]
fn special_purpose_addresses_are_not_public() {
    for text in PUBLIC {
        assert!(is_public(text.parse().unwrap()), "{text}");
    }
    for text in SPECIAL {
        assert!(!is_public(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn forbidden_urls() {
    let strict = Outbound::new(Vec::new());
    let mut bad: Vec<String> = [
        "http://8.8.8.8/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://①②⑦.0.0.1/",
        "https://0/",
        "https://user@8.8.8.8/",
        "https://:pw@8.8.8.8/",
        "ftp://8.8.8.8/",
        "file:///etc/passwd",
        "data:application/json,{}",
    ]
    .map(str::to_owned)
    .to_vec();
    for text in SPECIAL {
        let is_v6 = text.contains(':');
        bad.push(if is_v6 {
            format!("https://[{text}]/")
        } else {
            format!("https://{text}/")
        });
    }
    for text in bad {
        let url = Url::parse(&text).unwrap();
        let refused = strict.reach(&url).err();
        assert!(matches!(refused, Some(OutboundError::Url(_))), "{text}");
    }
    let opened = Outbound::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let asks = |text: &str| opened.reach(&Url::parse(text).unwrap()).is_ok();
    assert!(asks("http://10.1.2.3/") && asks("https://[::ffff:10.1.2.3]/"));
    assert!(!asks("http://8.8.8.8/") && !asks("http://127.0.0.1/"));
    assert!(!asks("https://192.168.0.1/"));
}

/// A server that answers every connection with `answer` and then keeps it open.
async fn server(answer: &'static [u8]) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(answer).await;
            open.push(socket);
        }
    });
    (url, tasks)
}

fn local() -> Outbound {
    Outbound::new(vec!["127.0.0.0/8".parse().unwrap()])
}

#[tokio::test]
async fn only_json_documents_are_accepted() {
    let good = b"HTTP/1.1 200 OK\r\nContent-Type: application/jwk-set+json; a=b\r\nContent-Length: 2\r\n\r\n{}";
    let (url, _server) = server(good).await;
    assert_eq!(local().json(&url, 2).await.unwrap(), "{}");
    assert!(matches!(
        local().json(&url, 1).await,
        Err(OutboundError::Response(_))
    ));
    let bad: [(&[u8], Unexpected); 6] = [
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            Unexpected::Redirect(302),
        ),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            Unexpected::Status(404),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n{}",
            Unexpected::MediaType,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            Unexpected::MediaType,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\naaaaa\r\n",
            Unexpected::Size(4),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\naaa\r\n3\r\naaa\r\n",
            Unexpected::Size(4),
        ),
    ];
    for (answer, how) in bad {
        let (url, _server) = server(answer).await;
        let got = local().json(&url, 4).await;
        assert_eq!(got, Err(OutboundError::Response(how)));
    }
}

/// A certificate for a TLS server at a local address.
fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap()
}

/// Requests that trust the certificate of this TLS server.
fn trusting(site: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Outbound {
    let outbound = local();
    let trusted = reqwest::Certificate::from_der(site.cert.der()).unwrap();
    let client = outbound.build(Way::Direct(Reach::Public), |builder| {
        builder.tls_certs_only([trusted])
    });
    outbound.0.secure.get(|| watch::channel(client).1);
    outbound
}

/// TLS of a server that knows `protocols` (RFC 7301).
fn acceptor(site: &rcgen::CertifiedKey<rcgen::KeyPair>, protocols: &[&str]) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(site.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = config
        .with_no_client_auth()
        .with_single_cert(vec![site.cert.der().clone()], key)
        .unwrap();
    let names = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = names.collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Fetches a document from a TLS server that knows `protocols`. Returns with it the protocol they agreed on, after the end of
/// the connection.
async fn fetched_over(
    outbound: &Outbound,
    site: &rcgen::CertifiedKey<rcgen::KeyPair>,
    protocols: &[&str],
) -> (Result<Bytes, OutboundError>, Option<String>) {
    let acceptor = acceptor(site, protocols);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let answer = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut socket = acceptor.accept(socket).await.ok()?;
        let mut request = [0; 4096];
        let _ = socket.read(&mut request).await;
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        let _ = socket.write_all(answer).await;
        let _ = socket.flush().await;
        let mut rest = Vec::new();
        let _ = timeout(TOTAL, socket.read_to_end(&mut rest)).await.ok()?;
        let agreed = socket.get_ref().1.alpn_protocol()?;
        Some(String::from_utf8_lossy(agreed).into_owned())
    };
    tokio::join!(outbound.json(&url, 9), answer)
}

/// A site that spoke HTTP/2 kept the connection of each fetch for weeks, with less than 100 bytes a second.
#[tokio::test]
async fn sites_are_asked_over_http1_alone() {
    let site = certificate();
    let outbound = trusting(&site);
    let (document, agreed) = fetched_over(&outbound, &site, &["h2", "http/1.1"]).await;
    assert_eq!(agreed.as_deref(), Some("http/1.1"));
    assert_eq!(document.unwrap(), "{}");
    // A site without this extension.
    let (document, agreed) = fetched_over(&outbound, &site, &[]).await;
    assert_eq!(document.unwrap(), "{}");
    assert_eq!(agreed, None);
    let (refused, _) = fetched_over(&outbound, &site, &["h2"]).await;
    let why = "received fatal alert: NoApplicationProtocol".to_owned();
    assert_eq!(refused, Err(OutboundError::Unconnected(why)));
}

/// No time limit reaches the task of a connection: it ends by itself, whatever its site has sent by then.
#[tokio::test]
async fn a_connection_ends_with_its_fetch() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let certificate = certificate();
    let outbound = trusting(&certificate);
    let acceptor = acceptor(&certificate, &["h2", "http/1.1"]);
    for answer in [
        &b""[..],
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    ] {
        let site = async {
            let (socket, _) = listener.accept().await.unwrap();
            let mut socket = acceptor.accept(socket).await.unwrap();
            let mut request = [0; 4096];
            let count = socket.read(&mut request).await.unwrap();
            // Over HTTP/2 the end would wait for the site.
            assert!(request[..count].starts_with(b"GET / HTTP/1.1\r\n"));
            socket.write_all(answer).await.unwrap();
            socket.flush().await.unwrap();
            socket
        };
        // The fetch is given up here, long before its time.
        let mut socket = tokio::select! {
            got = outbound.json(&url, 99) => panic!("{got:?}"),
            socket = site => socket,
        };
        let end = timeout(TOTAL * 3, socket.read(&mut [0; 64])).await;
        assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    }
}

#[test]
fn documents_are_as_fresh_as_their_servers_say() {
    let of = |lines: &[&'static str], age: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CACHE_CONTROL, line.parse().unwrap());
        }
        if let Some(age) = age {
            headers.insert(AGE, age.parse().unwrap());
        }
        freshness(&headers).map(|fresh| fresh.as_secs())
    };
    for (lines, age, wanted) in [
        (&[][..], None, None),
        (&["public"], None, None),
        (&["max-age=60"], None, Some(60)),
        (&["private, Max-Age=60"], Some("50"), Some(10)),
        (&["max-age=60"], Some("70"), Some(0)),
        (&["public", "max-age=5"], None, Some(5)),
        (&["no-store"], None, Some(0)),
        (&["max-age=60, no-cache"], None, Some(0)),
        (&["no-cache=\"x\""], None, Some(0)),
        (&["max-age=x"], None, Some(0)),
        (&["max-age"], None, Some(0)),
        (&["s-maxage=9"], None, None),
    ] {
        assert_eq!(of(lines, age), wanted, "{lines:?}");
    }
}

#[tokio::test]
async fn slow_servers_time_out() {
    let began = Instant::now();
    for answer in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let (url, _server) = server(answer).await;
        let got = local().json(&url, 99).await;
        assert!(matches!(got, Err(OutboundError::Unreachable(_))), "{got:?}");
    }
    assert!(began.elapsed() < TOTAL * 2 + Duration::from_secs(2));
}

/// A silent name server, certificates that take long and a silent proxy added up to more than the limit.
#[tokio::test]
async fn nothing_before_a_request_adds_to_its_time() {
    let (proxy, _server) = server(b"").await;
    let proxy = super::super::secret::Secret::new(proxy);
    let outbound = Outbound::through(Vec::new(), Some(Proxy::new(proxy, "")));
    let lookups = u32::try_from(LOOKUPS).unwrap();
    let _stuck = outbound.0.lookups.0.acquire_many(lookups).await.unwrap();
    let (built, client) = watch::channel(None);
    outbound.0.proxied.get(|| client);
    let slowly = async {
        tokio::time::sleep(LOOKUP * 2).await;
        let client = outbound.build(Way::Proxied, |builder| builder.tls_certs_only([]));
        built.send_replace(client);
    };
    let request = http::Request::post("https://site.example/").body(Vec::new());
    let began = Instant::now();
    let (document, exchange, ()) = tokio::join!(
        outbound.json("https://site.example/", 9),
        outbound.exchange(request.unwrap(), 9),
        slowly,
    );
    assert!(began.elapsed() < TOTAL + Duration::from_millis(800));
    let why = || OutboundError::Unreachable("no answer in time".to_owned());
    assert_eq!(document.unwrap_err(), why());
    assert_eq!(exchange.unwrap_err(), why());
}

/// A client that could not be created, for lack of a thread or of certificates at that moment, was never created again: no keys
/// of any issuer were fetched until a restart.
#[tokio::test]
async fn a_client_that_could_not_be_created_is_created_later() {
    // Without a proxy there is no client for it.
    let outbound = Outbound::new(Vec::new());
    let failure = async || outbound.client(Way::Proxied).await.map(drop).unwrap_err();
    let wanted = OutboundError::Unconnected("no client: see the log".to_owned());
    let begun = |client: &SecureClient| client.0.read().unwrap().as_ref().unwrap().begun;
    assert_eq!(failure().await, wanted);
    let first = begun(&outbound.0.proxied);
    assert_eq!(failure().await, wanted);
    assert_eq!(begun(&outbound.0.proxied), first, "it is too early");
    let long_ago = first.checked_sub(AGAIN).unwrap();
    let set = |client: &SecureClient, begun: Instant, made: watch::Receiver<Option<Client>>| {
        *client.0.write().unwrap() = Some(Creation {
            client: made,
            begun,
        });
    };
    let closed = watch::channel(None).1;
    set(&outbound.0.proxied, long_ago, closed);
    assert_eq!(failure().await, wanted);
    assert!(begun(&outbound.0.proxied) > first);
    // One that is there stays, and so does one that takes long.
    let way = Way::Direct(Reach::Public);
    let client = outbound.build(way, |builder| builder.tls_certs_only([]));
    set(&outbound.0.secure, long_ago, watch::channel(client).1);
    assert!(outbound.client(way).await.is_ok());
    assert_eq!(begun(&outbound.0.secure), long_ago);
    let (_building, slow) = watch::channel(None);
    set(&outbound.0.secure, long_ago, slow);
    drop(
        outbound
            .0
            .secure
            .get(|| unreachable!("one is being created")),
    );
}

#[tokio::test]
async fn names_of_private_addresses_are_not_connected_to() {
    let good = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let (url, _server) = server(good).await;
    let named = url.replace("127.0.0.1", "localhost");
    assert_eq!(local().json(&named, 9).await.unwrap(), "{}");
    let elsewhere = Outbound::new(vec!["10.0.0.0/8".parse().unwrap()]);
    for url in [named.clone(), named.replace("http:", "https:")] {
        let got = elsewhere.json(&url, 9).await;
        let why = "the name has no public address".to_owned();
        assert_eq!(got, Err(OutboundError::Unconnected(why)), "{url}");
    }
}

/// A refresh token was taken for used up, where nobody had got it.
#[tokio::test]
async fn a_request_that_was_not_sent_is_told_from_one_without_an_answer() {
    let post = |url: &str| http::Request::post(url).body(Vec::new()).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let got = local().exchange(post(&url), 9).await;
    assert!(matches!(got, Err(OutboundError::Unconnected(_))), "{got:?}");
    let (url, _server) = server(b"HTTP/1.1 200 OK\r\n").await;
    let got = local().exchange(post(&url), 9).await;
    assert!(matches!(got, Err(OutboundError::Unreachable(_))), "{got:?}");
}

/// A service that took longer had used the refresh token up, and its answer was lost.
#[tokio::test]
async fn what_can_be_asked_once_is_waited_for_longer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let post = || http::Request::post(&url).body(Vec::new()).unwrap();
    let outbound = local();
    let slow = async {
        let (mut once, _) = listener.accept().await.unwrap();
        _ = once.read(&mut [0; 1024]).await.unwrap();
        // It ends later than the time that any other one has.
        let lost = outbound.exchange(post(), 9).await;
        let head =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        once.write_all(head).await.unwrap();
        (lost, once)
    };
    let (got, (lost, _once)) = tokio::join!(outbound.exchange_once(post(), 9), slow);
    assert!(lost.is_err());
    assert_eq!(got.unwrap().body(), b"{}");
}

#[test]
fn hosts_of_no_proxy_are_reached_without_it() {
    let secret = || super::super::secret::Secret::new("http://proxy.test:3128".to_owned());
    let exempts = |no_proxy: &str, url: &str| {
        let url = Url::parse(url).unwrap();
        Proxy::new(secret(), no_proxy).exempts(&url.host().unwrap())
    };
    let list = "corp.test, .below.test,10.0.0.0/8, 192.0.2.7,[x,::1,";
    for (url, is_exempt) in [
        ("https://corp.test/", true),
        ("https://CORP.test/", true),
        ("https://a.b.corp.test/", true),
        ("https://below.test/", true),
        ("https://xcorp.test/", false),
        ("https://corp.test.evil/", false),
        ("https://10.1.2.3/", true),
        ("https://192.0.2.7/", true),
        ("https://192.0.2.8/", false),
        ("https://[::1]/", true),
        ("https://[::2]/", false),
        ("https://10.evil/", false),
    ] {
        assert_eq!(exempts(list, url), is_exempt, "{url}");
        assert!(exempts("*", url));
        assert!(!exempts("", url));
    }
}

#[tokio::test]
async fn only_what_may_be_public_goes_through_the_proxy() {
    let proxy = super::super::secret::Secret::new("http://proxy.test:3128".to_owned());
    let proxy = Proxy::new(proxy, "exempt.example");
    let outbound = Outbound::through(vec!["10.0.0.0/8".parse().unwrap()], Some(proxy));
    let way = async |url: &str| outbound.way(&Url::parse(url).unwrap()).await;
    let direct = Ok(Way::Direct(Reach::Public));
    // No name server has this name; the proxy may know more.
    assert_eq!(way("https://site.example/").await, Ok(Way::Proxied));
    assert_eq!(way("https://8.8.8.8/").await, Ok(Way::Proxied));
    assert_eq!(way("https://exempt.example/").await, direct);
    assert_eq!(way("https://10.1.2.3/").await, direct);
    assert_eq!(
        way("http://10.1.2.3/").await,
        Ok(Way::Direct(Reach::Allowed))
    );
    for url in [
        "https://localhost/",
        "https://printer/",
        "https://db.internal/",
        "https://host.local/",
        "https://127.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://192.168.0.1/",
    ] {
        assert!(way(url).await.is_err(), "{url}");
    }
    let without = Outbound::new(Vec::new());
    let url = Url::parse("https://site.example/").unwrap();
    assert_eq!(without.way(&url).await, direct);
}

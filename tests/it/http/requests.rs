//! Requests over raw sockets: hosts, origins, header blocks, methods, paths, forwarded headers.

use std::{collections::BTreeSet, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    harness::{BOTH, Gateway, within},
    wire::{ask, connect, host, raw, status, statuses},
};

const ROUTES: [&str; 6] = [
    "/mcp",
    "/t/local/main/mcp",
    "/sse",
    "/messages",
    "/livez",
    "/nowhere",
];

/// Required and forbidden contents of every answer.
fn is_plain(answer: &str) {
    let lower = answer.to_lowercase();
    assert!(
        lower.contains("x-content-type-options: nosniff"),
        "{answer}"
    );
    for word in [
        "panicked",
        "src/",
        "/rustc",
        "rust_backtrace",
        "\nserver:",
        "x-powered-by",
    ] {
        assert!(!lower.contains(word), "{word}: {answer}");
    }
    assert!(!statuses(answer).contains(&500), "{answer}");
}

#[tokio::test]
async fn hosts() {
    let gateway = Gateway::start(&[]).await;
    let port = host(&gateway).rsplit_once(':').unwrap().1;
    for route in ROUTES {
        let foreign = [
            "evil.test".to_owned(),
            format!("127.0.0.1.evil.test:{port}"),
        ];
        for host in foreign {
            let request =
                format!("GET {route} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let answer = raw(&gateway, request).await;
            assert_eq!(status(&answer), 403, "{route} {host}");
            is_plain(&answer);
        }
        let own = host(&gateway);
        let broken = [
            String::new(),
            format!("Host: {own}\r\nHost: {own}\r\n"),
            format!("Host: {own}\r\nHost: evil.test\r\n"),
            "Host: a b\r\n".to_owned(),
            "Host: \r\n".to_owned(),
        ];
        for headers in broken {
            let request = format!("GET {route} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
            let code = status(&raw(&gateway, request).await);
            assert!(matches!(code, 400 | 403), "{route} {headers:?} {code}");
        }
        let absolute = format!(
            "GET http://evil.test{route} HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"
        );
        let code = status(&raw(&gateway, absolute).await);
        assert!(matches!(code, 400 | 403), "{route} {code}");
    }
    let local =
        format!("GET /livez HTTP/1.1\r\nHost: LocalHost:{port}\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&raw(&gateway, local).await), 200);
}

#[tokio::test]
async fn origins() {
    let gateway = Gateway::start(&["http.allowed_origins=[\"https://app.test\"]"]).await;
    let own = host(&gateway);
    let foreign = [
        "http://evil.test".to_owned(),
        "null".to_owned(),
        format!("http://evil-{own}"),
        format!("http://{own}.evil.test"),
        format!("https://{own}"),
        "http://127.0.0.1:1".to_owned(),
        "http://app.test".to_owned(),
        "https://app.test:8443".to_owned(),
        "https://app.test.evil.test".to_owned(),
        "https://evil.test/mcp".to_owned(),
        format!("http://evil.test/http://{own}/mcp"),
        format!("https://{own}/mcp"),
        format!("http://{own}/mcp http://evil.test"),
    ];
    for route in ROUTES {
        for origin in &foreign {
            let (line, header) = (format!("GET {route}"), format!("Origin: {origin}\r\n"));
            let answer = ask(&gateway, &line, &header).await;
            assert_eq!(status(&answer), 403, "{route} {origin}");
            assert!(
                !answer
                    .to_lowercase()
                    .contains("access-control-allow-origin"),
                "{answer}"
            );
        }
    }
    for origin in ["https://app.test".to_owned(), format!("http://{own}")] {
        let answer = ask(&gateway, "GET /livez", &format!("Origin: {origin}\r\n")).await;
        assert_eq!(status(&answer), 200, "{origin}");
        assert!(
            answer.contains(&format!("access-control-allow-origin: {origin}\r\n")),
            "{answer}"
        );
    }
    // What a browser never sends is no page, and gets nothing that one could read.
    for url in ["https://app.test/".to_owned(), format!("http://{own}/mcp")] {
        let answer = ask(&gateway, "GET /livez", &format!("Origin: {url}\r\n")).await;
        assert_eq!(status(&answer), 200, "{url}");
        let lower = answer.to_lowercase();
        assert!(!lower.contains("access-control-allow-origin"), "{answer}");
    }
}

#[tokio::test]
async fn header_blocks() {
    let gateway = Gateway::start(&[]).await;
    let fields = |count: usize, size: usize| {
        (0..count).fold(String::new(), |all, at| {
            all + &format!("X-{at}: {}\r\n", "a".repeat(size))
        })
    };
    for headers in [fields(66, 1024), fields(101, 1), fields(1, 60 << 10)] {
        let answer = ask(&gateway, "GET /mcp", &headers).await;
        assert_eq!(status(&answer), 431, "{} bytes", headers.len());
    }
    let target = format!("GET /livez?{}", "a".repeat(9 << 10));
    assert_eq!(status(&ask(&gateway, &target, "").await), 414);
    assert_eq!(
        status(&ask(&gateway, "GET /livez", &fields(80, 1)).await),
        200
    );
}

#[tokio::test]
async fn no_continue_for_what_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let headers =
        "Content-Type: application/json\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n";
    let answer = ask(&gateway, "POST /mcp", headers).await;
    assert_eq!(status(&answer), 413, "{answer}");
}

#[tokio::test]
async fn coded_bodies() {
    let gateway = Gateway::start(&[]).await;
    for coding in ["gzip", "br", "zstd", "deflate", "identity, gzip", "x"] {
        let headers = format!(
            "Content-Type: application/json\r\nContent-Encoding: {coding}\r\nContent-Length: 2\r\n"
        );
        let answer = ask(&gateway, "POST /mcp", &(headers + "\r\n{}")).await;
        assert_eq!(status(&answer), 415, "{coding}");
    }
}

#[tokio::test]
async fn methods() {
    let gateway = Gateway::start(&[]).await;
    for route in ROUTES {
        for method in ["TRACE", "CONNECT", "BREW", "get"] {
            let answer = ask(&gateway, &format!("{method} {route}"), "").await;
            let codes = statuses(&answer);
            assert!(
                matches!(codes[..], [400 | 405]),
                "{method} {route} {answer}"
            );
        }
    }
    for (route, methods) in [
        ("/t/local/main/mcp", "GET, POST, DELETE"),
        ("/sse", "GET"),
        ("/messages", "POST"),
        ("/livez", "GET,HEAD"),
    ] {
        let answer = ask(&gateway, &format!("TRACE {route}"), "").await;
        let allow = format!("\r\nallow: {methods}\r\n");
        assert!(answer.contains(&allow), "{route} {answer}");
    }
    // A method override would end the session.
    let session = gateway.session().await;
    for name in [
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
    ] {
        let request = session.request(Method::POST).header(name, "DELETE");
        let request = request
            .header("Content-Type", "application/json")
            .header("Accept", BOTH);
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
        let response = within("a response", request.body(ping).send())
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{name}");
    }
    assert_eq!(session.text("echo", json!({"text": "here"})).await, "here");
}

#[tokio::test]
async fn paths() {
    let gateway = Gateway::start(&[]).await;
    let tricks = [
        "/mcp;a=b",
        "/mcp%00",
        "/mcp/",
        "//mcp",
        "/./mcp",
        "/x/../mcp",
        "/%6dcp",
        "/%256dcp",
        "/t/local/main%2fmcp",
        "/t/local/../local/main/mcp",
        "/t/LOCAL/main/mcp",
        "/t/local;x/main/mcp",
        "/t/local/main/mcp%20",
        "/t//main/mcp",
        "/MCP",
        "/mcp%2f..%2fmcp",
        "/t/local%00/main/mcp",
        "/t/%6cocal/main/mcp",
        "/livez/",
        "/livez%00",
        "/mcp\\",
    ];
    for path in tricks {
        let answer = ask(
            &gateway,
            &format!("GET {path}"),
            "Accept: text/event-stream\r\n",
        )
        .await;
        let code = status(&answer);
        assert!(matches!(code, 400 | 404), "{path} {code}");
        is_plain(&answer);
    }
    let mut unknown = BTreeSet::new();
    for path in ["/t/x/main/mcp", "/t/local/x/mcp", "/t/x/x/mcp"] {
        let answer = ask(&gateway, &format!("GET {path}"), "").await;
        assert_eq!(status(&answer), 404);
        let lines = answer.split("\r\n");
        let stays = |line: &&str| !line.to_lowercase().starts_with("date:");
        unknown.insert(lines.filter(stays).collect::<Vec<_>>().join("\n"));
    }
    assert_eq!(unknown.len(), 1, "a tenant that exists shows: {unknown:?}");
}

/// What a URL of a server lacks is said, whether the server exists or not.
#[tokio::test]
async fn almost_right_urls_are_told_what_is_wrong() {
    let gateway = Gateway::start(&[]).await;
    let slash = "leave out the slash at the end";
    let end = "ends with its name and /mcp";
    for (path, hint) in [
        ("/mcp/", slash),
        ("/t/local/main/mcp/", slash),
        ("/t/x/x/sse/", slash),
        ("/t/local", end),
        ("/t/local/main", end),
        ("/t/x/x/", end),
        ("/t/local/mcp", end),
        ("/t/x/x/mpc", end),
    ] {
        let answer = ask(&gateway, &format!("POST {path}"), "").await;
        assert_eq!(status(&answer), 404);
        assert!(answer.contains(hint), "{path}: {answer}");
    }
}

#[tokio::test]
async fn forwarded_headers_are_not_believed() {
    let gateway = Gateway::start(&[]).await;
    for headers in [
        "X-Forwarded-Host: evil.test\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Prefix: /evil\r\n",
        "Forwarded: for=6.6.6.6;host=evil.test;proto=https\r\n",
        "X-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n",
    ] {
        let answer = ask(
            &gateway,
            "GET /mcp",
            &format!("Accept: text/html\r\n{headers}"),
        )
        .await;
        assert!(
            !answer.contains("evil") && !answer.contains("6.6.6.6"),
            "{answer}"
        );
        assert_eq!(status(&ask(&gateway, "GET /livez", headers).await), 200);
    }
    // Only `Host` names the host.
    let request = format!(
        "GET /livez HTTP/1.1\r\nHost: evil.test\r\nX-Forwarded-Host: {}\r\nConnection: close\r\n\r\n",
        host(&gateway)
    );
    assert_eq!(status(&raw(&gateway, request).await), 403);
    let proxied = format!(
        "PROXY TCP4 6.6.6.6 1.2.3.4 1 2\r\nGET /livez HTTP/1.1\r\nHost: {}\r\n\r\n",
        host(&gateway)
    );
    let answer = raw(&gateway, proxied).await;
    assert!(matches!(statuses(&answer)[..], [] | [400]), "{answer}");
    assert!(!gateway.stderr().contains("6.6.6.6"), "believed");
}

#[tokio::test]
async fn metrics_are_not_on_the_public_listener() {
    let gateway = Gateway::start(&[]).await;
    for path in [
        "/metrics",
        "/debug",
        "/debug/pprof/",
        "/admin",
        "/api/v1",
        "/.env",
        "/",
    ] {
        let answer = ask(&gateway, &format!("GET {path}"), "").await;
        assert_eq!(status(&answer), 404, "{path}");
    }
    let live = ask(&gateway, "GET /livez", "").await;
    assert!(live.ends_with("\r\n\r\n{\"status\":\"ok\"}"), "{live}");
    let ready = ask(&gateway, "GET /readyz", "").await;
    assert!(ready.ends_with("\r\n\r\n{\"status\":\"ready\"}"), "{ready}");
}

#[tokio::test]
async fn refusals_are_plain() {
    let gateway = Gateway::start(&[]).await;
    let json = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    for (line, headers) in [
        ("GET /nowhere", String::new()),
        ("PUT /mcp", String::new()),
        ("GET /mcp", "Accept: text/event-stream\r\n".to_owned()),
        (
            "GET /mcp",
            "Accept: text/event-stream\r\nMcp-Session-Id: nobody\r\n".to_owned(),
        ),
        ("DELETE /mcp", "Mcp-Session-Id: nobody\r\n".to_owned()),
        ("POST /mcp", format!("{json}Content-Length: 1\r\n\r\n{{")),
        (
            "POST /mcp",
            "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        ),
        (
            "POST /messages?session_id=nobody",
            format!("{json}Content-Length: 2\r\n\r\n{{}}"),
        ),
    ] {
        let answer = ask(&gateway, line, &headers).await;
        let code = status(&answer);
        assert!((400..500).contains(&code), "{line} {answer}");
        is_plain(&answer);
    }
}

#[tokio::test]
async fn leftovers_are_no_requests() {
    let gateway = Gateway::start(&[]).await;
    let host = host(&gateway);
    let live = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let ready = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    // Pipelined requests are answered in order.
    let answer = raw(&gateway, format!("{live}{live}{ready}")).await;
    assert_eq!(statuses(&answer), [200, 200, 200]);
    assert!(answer.ends_with("{\"status\":\"ready\"}"), "{answer}");
    // An early refusal: the unread body looks like a request.
    for head in [
        "Content-Encoding: gzip\r\n",
        "Origin: http://evil.test\r\n",
        "Content-Type: text/plain\r\n",
    ] {
        let body = ready.repeat(50);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = raw(&gateway, request + &ready).await;
        let codes = statuses(&answer);
        let good = matches!(codes[..], [first, ..] if (400..500).contains(&first));
        assert!(good && codes.len() <= 2, "{head} {answer}");
    }
    // Conflicting or invalid lengths: one answer, and the end of the connection.
    for head in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +5\r\n",
    ] {
        let request = format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\n{head}\r\n0\r\n\r\n{ready}");
        let answer = raw(&gateway, request).await;
        let codes = statuses(&answer);
        assert!(matches!(codes[..], [400 | 415]), "{head} {answer}");
    }
}

#[tokio::test]
async fn old_and_foreign_protocols() {
    let gateway = Gateway::start(&[]).await;
    let host = host(&gateway);
    let chunked = format!(
        "POST /mcp HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    let answer = raw(&gateway, chunked).await;
    assert!(matches!(statuses(&answer)[..], [400 | 505]), "{answer}");
    let answer = raw(&gateway, "GET /livez\r\n\r\n").await;
    assert!(
        matches!(statuses(&answer)[..], [] | [400 | 505]),
        "{answer}"
    );
    for upgrade in ["websocket", "h2c"] {
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade, close\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        let answer = raw(&gateway, request).await;
        let code = status(&answer);
        assert!((400..=505).contains(&code), "{upgrade} {answer}");
    }
}

#[tokio::test]
async fn nothing_splits_a_response() {
    let gateway = Gateway::start(&[]).await;
    let ids = [
        "a%0d%0aX-Evil: 1",
        "a\\r\\nX-Evil: 1",
        "a\rX-Evil: 1",
        "a\n X-Evil: 1",
        "a\0b",
    ];
    for id in ids {
        for name in ["Mcp-Session-Id", "Last-Event-ID", "MCP-Protocol-Version"] {
            let headers = format!("Accept: text/event-stream\r\n{name}: {id}\r\n");
            let answer = ask(&gateway, "GET /mcp", &headers).await;
            assert!(!answer.to_lowercase().contains("\nx-evil"), "{answer}");
            assert!(
                (400..500).contains(&status(&answer)),
                "{name} {id:?} {answer}"
            );
        }
    }
    let target = "POST /messages?session_id=a%0d%0aX-Evil:%201";
    let answer = ask(&gateway, target, "Content-Length: 0\r\n").await;
    assert!(!answer.to_lowercase().contains("\nx-evil"), "{answer}");
    // Text of the child does not split an event either.
    let session = gateway.session().await;
    let text = "x\r\n\r\ndata: evil\r\nid: 9\n\nevent: y\u{2028}";
    assert_eq!(session.text("echo", json!({"text": text})).await, text);
}

/// A load balancer keeps idle connections for a minute: a connection that ends earlier causes a
/// 502.
#[tokio::test]
async fn a_connection_may_be_idle_for_longer_than_a_head_may_take() {
    let gateway = Gateway::start(&[]).await;
    let mut socket = connect(&gateway).await;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", host(&gateway));
    for pause in [Duration::from_secs(11), Duration::ZERO] {
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = within("an answer", socket.read(&mut answer)).await.unwrap();
        assert_eq!(statuses(&String::from_utf8_lossy(&answer[..count])), [200]);
        // The connection must outlive this pause.
        tokio::time::sleep(pause).await;
    }
}

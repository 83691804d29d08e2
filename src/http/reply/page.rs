//! Connect page: shown to a browser that opens an MCP URL, with the settings for each client.
//!
//! The page contains nothing that the URL does not contain.

use askama::Template;
use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method};

use super::event_stream::EVENT_STREAM;
use crate::endpoint::{Endpoint, Kind};

/// Returns whether a browser sent the request: a GET that accepts HTML and no event stream.
pub(crate) fn is_browser(method: &Method, headers: &HeaderMap) -> bool {
    let accepts = |kind: &str| {
        headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .any(|range| {
                range
                    .split(';')
                    .next()
                    .unwrap_or("")
                    .trim()
                    .eq_ignore_ascii_case(kind)
            })
    };
    method == Method::GET && accepts("text/html") && !accepts(EVENT_STREAM)
}

/// Returns the settings of a server for each client: a command, or a file name with its content in
/// the following lines.
///
/// `name` is the name of the server in the client; `url` is used verbatim.
pub(crate) fn snippets(name: &str, url: &str) -> Vec<(&'static str, String)> {
    let entry = serde_json::json!({"type": "http", "url": url});
    let code = serde_json::json!({"servers": {name: entry}});
    let cursor = serde_json::json!({"mcpServers": {name: {"url": url}}});
    // For the characters of a URL, a JSON string is also a TOML basic string.
    let quoted = serde_json::json!(url);
    vec![
        (
            "Claude Code",
            format!("claude mcp add --transport http {name} {url}"),
        ),
        ("VS Code", format!(".vscode/mcp.json\n{code}")),
        ("Cursor", format!("~/.cursor/mcp.json\n{cursor}")),
        (
            "Codex",
            format!("~/.codex/config.toml\n[mcp_servers.{name}]\nurl = {quoted}"),
        ),
        (
            "MCP Inspector",
            format!(
                "npx @modelcontextprotocol/inspector --cli {url} --transport http --method tools/list"
            ),
        ),
    ]
}

/// The connect page.
#[derive(Template)]
#[template(path = "connect.html")]
struct ConnectPage<'p> {
    tenant: &'p str,
    server: &'p str,
    url: &'p str,
    cards: Vec<Card>,
}

/// Settings for one client.
struct Card {
    client: &'static str,
    /// The file to edit; `None` for a command.
    file: Option<String>,
    text: String,
}

/// Makes the connect page of a server.
pub(crate) fn page(endpoint: Endpoint<'_>, public_url: &str) -> Response {
    show(
        endpoint.tenant,
        endpoint.server,
        &endpoint.with(Kind::Mcp).url(public_url),
    )
}

fn show(tenant: &str, server: &str, url: &str) -> Response {
    let card = |(client, text): (&'static str, String)| {
        let (file, text) = match text.split_once('\n') {
            Some((file, content)) => (Some(file.to_owned()), content.to_owned()),
            None => (None, text),
        };
        Card { client, file, text }
    };
    let page = ConnectPage {
        tenant,
        server,
        url,
        cards: snippets(server, url).into_iter().map(card).collect(),
    };
    // Rendering into a string cannot fail. askama drops the last newline of a template.
    let html = page.render().unwrap_or_default() + "\n";
    let mut response = Response::new(Body::from(html));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Policy of the page: no scripts, no external resources, no frames.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn the_url_cannot_inject_markup() {
        let shown = show("a<b>", "x\"'{url}", "http://h/<script>alert(1)</script>&");
        assert_eq!(shown.headers()["content-security-policy"], POLICY);
        let html = shown.into_body().collect().await.expect("body").to_bytes();
        let html = std::str::from_utf8(&html).expect("UTF-8");
        assert!(!html.contains("<script") && !html.contains("a<b>"));
        assert!(html.contains("&#60;script&#62;") && html.contains("prefers-color-scheme"));
        assert!(html.starts_with("<!doctype html>\n") && html.ends_with("</body>\n</html>\n"));
        let command = "<section><h2>Claude Code</h2><p>in a terminal</p><pre>claude mcp add ";
        assert!(html.contains(&format!("</header>\n{command}")));
        let file = "</section>\n<section><h2>VS Code</h2><p>in <code>.vscode/mcp.json</code></p>";
        assert!(html.contains(file) && html.contains("</section>\n<footer>"));
    }

    #[test]
    fn only_browsers_get_the_page() {
        let with = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).expect("value"));
            headers
        };
        let browser = with("text/html,application/xhtml+xml,*/*;q=0.8");
        assert!(is_browser(&Method::GET, &browser));
        assert!(!is_browser(&Method::POST, &browser));
        for accept in ["*/*", "text/event-stream", "text/html, text/event-stream"] {
            assert!(!is_browser(&Method::GET, &with(accept)), "{accept}");
        }
    }

    #[test]
    fn snippets_are_what_the_clients_read() {
        for (client, text) in snippets("files", "https://gw.test/t/acme/files/mcp") {
            assert!(
                text.contains("https://gw.test/t/acme/files/mcp"),
                "{client}"
            );
            if let Some((_, json)) = text
                .split_once('\n')
                .filter(|(_, rest)| rest.starts_with('{'))
            {
                serde_json::from_str::<serde_json::Value>(json).expect("JSON");
            }
        }
    }
}

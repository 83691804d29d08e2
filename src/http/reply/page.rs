//! The page for a person whose browser opened an MCP URL, and how each client is connected.
//!
//! Says nothing that the URL itself does not say.

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method};

use crate::endpoint::{Endpoint, Kind};

/// Whether a browser asks: a GET that takes HTML, and no event stream.
pub(crate) fn is_browser(method: &Method, headers: &HeaderMap) -> bool {
    let takes = |kind: &str| {
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
    method == Method::GET && takes("text/html") && !takes("text/event-stream")
}

/// How each client is told of a server: the client, and what to run or to write where.
///
/// `name` is the name that the client will use; `url` is taken as it is.
pub(crate) fn snippets(name: &str, url: &str) -> Vec<(&'static str, String)> {
    let entry = serde_json::json!({"type": "http", "url": url});
    let code = serde_json::json!({"servers": {name: entry}});
    let cursor = serde_json::json!({"mcpServers": {name: {"url": url}}});
    // A JSON string is a TOML basic string too, for what a URL may hold.
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

/// The page about one server.
pub(crate) fn page(endpoint: Endpoint<'_>, public_url: &str) -> Response {
    show(
        endpoint.tenant,
        endpoint.server,
        &endpoint.with(Kind::Mcp).url(public_url),
    )
}

fn show(tenant: &str, server: &str, url: &str) -> Response {
    let mut cards = String::new();
    for (client, text) in snippets(server, url) {
        // A first line of its own names the file.
        let (place, text) = text.split_once('\n').unwrap_or(("", &text));
        let place = match place {
            "" => "in a terminal".to_owned(),
            place => format!("in <code>{}</code>", escape(place)),
        };
        cards.push_str(&format!(
            "<section><h2>{client}</h2><p>{place}</p><pre>{}</pre></section>\n",
            escape(text)
        ));
    }
    let html = TEMPLATE
        .replace("{cards}", &cards)
        .replace("{tenant}", &escape(tenant))
        .replace("{server}", &escape(server))
        .replace("{url}", &escape(url));
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

/// Text as text, in an element or in an attribute; braces too, for the template's sake.
fn escape(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut safe, letter| {
            match letter {
                '<' | '>' | '&' | '"' | '\'' | '{' | '}' => {
                    safe.push_str(&format!("&#{};", u32::from(letter)));
                }
                _ => safe.push(letter),
            }
            safe
        })
}

/// No script, nothing from elsewhere, in nobody's frame.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
/// The page with places for what differs; see `page.html`.
const TEMPLATE: &str = include_str!("page.html");

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn nothing_of_the_url_becomes_markup() {
        let shown = show("a<b>", "x\"'{url}", "http://h/<script>alert(1)</script>&");
        assert_eq!(shown.headers()["content-security-policy"], POLICY);
        let html = shown.into_body().collect().await.expect("body").to_bytes();
        let html = std::str::from_utf8(&html).expect("UTF-8");
        assert!(!html.contains("<script") && !html.contains("a<b>"));
        assert!(html.contains("&#60;script&#62;") && html.contains("prefers-color-scheme"));
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

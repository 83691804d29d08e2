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
use http::{HeaderMap, HeaderValue, Method, StatusCode};

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
/// `name` is the name of the server in the client; `url` is used verbatim, and so is the API key of
/// a client without a log-in.
pub(crate) fn snippets(name: &str, url: &str, key: Option<&str>) -> Vec<(&'static str, String)> {
    let mut entry = serde_json::json!({"url": url});
    let bearer = key.map(|key| format!("Bearer {key}"));
    if let Some(bearer) = &bearer {
        entry["headers"] = serde_json::json!({"Authorization": bearer});
    }
    let cursor = serde_json::json!({"mcpServers": {name: &entry}});
    entry["type"] = "http".into();
    let code = serde_json::json!({"servers": {name: entry}});
    // For the characters of a URL, a JSON string is also a TOML basic string.
    let quoted = serde_json::json!(url);
    let header = bearer.as_ref().map_or_else(String::new, |bearer| {
        format!(" --header \"Authorization: {bearer}\"")
    });
    let table = bearer.map_or_else(String::new, |bearer| {
        format!(
            "\nhttp_headers = {{ Authorization = {} }}",
            serde_json::json!(bearer)
        )
    });
    vec![
        (
            "Claude Code",
            format!("claude mcp add --transport http {name} {url}{header}"),
        ),
        ("VS Code", format!(".vscode/mcp.json\n{code}")),
        ("Cursor", format!("~/.cursor/mcp.json\n{cursor}")),
        (
            "Codex",
            format!("~/.codex/config.toml\n[mcp_servers.{name}]\nurl = {quoted}{table}"),
        ),
        (
            "MCP Inspector",
            format!(
                "npx -y @modelcontextprotocol/inspector --cli {url} --transport http{header} --method tools/list"
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
    /// Its clients have API keys.
    has_keys: bool,
    cards: Vec<Card>,
}

/// Settings for one client.
struct Card {
    client: &'static str,
    /// The file to edit; `None` for a command.
    file: Option<String>,
    text: String,
}

/// Makes the connect page of a server; `has_keys` if its clients have API keys.
pub(crate) fn page(endpoint: Endpoint<'_>, public_url: &str, has_keys: bool) -> Response {
    let url = endpoint.with(Kind::Mcp).url(public_url);
    show(endpoint.tenant, endpoint.server, &url, has_keys)
}

/// The page of the root.
#[derive(Template)]
#[template(path = "home.html")]
struct HomePage<'p> {
    /// The page stands for a server that is not there.
    is_missing: bool,
    /// The URL of the server behind `/mcp`.
    default_url: Option<&'p str>,
    example: &'p str,
}

/// Makes the page of the root, which names the server behind `/mcp` and no other.
pub(crate) fn home(has_default: bool, public_url: &str) -> Response {
    home_page(false, has_default, public_url)
}

/// Makes the page in place of a server that is not there.
pub(crate) fn missing(has_default: bool, public_url: &str) -> Response {
    let mut response = home_page(true, has_default, public_url);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

fn home_page(is_missing: bool, has_default: bool, public_url: &str) -> Response {
    let default_url = has_default.then(|| format!("{public_url}{}", Kind::Mcp.alias()));
    let page = HomePage {
        is_missing,
        default_url: default_url.as_deref(),
        example: &Endpoint::new("TENANT", "SERVER", Kind::Mcp).url(public_url),
    };
    html(&page)
}

fn show(tenant: &str, server: &str, url: &str, has_keys: bool) -> Response {
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
        has_keys,
        cards: snippets(server, url, has_keys.then_some(YOUR_KEY))
            .into_iter()
            .map(card)
            .collect(),
    };
    html(&page)
}

fn html(page: &impl Template) -> Response {
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

/// What stands for an API key on the page.
const YOUR_KEY: &str = "YOUR_API_KEY";
/// Policy of the page: no scripts, no external resources, no frames.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn the_url_cannot_inject_markup() {
        let shown = show(
            "a<b>",
            "x\"'{url}",
            "http://h/<script>alert(1)</script>&",
            false,
        );
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

    #[tokio::test]
    async fn the_root_names_the_default_server_only() {
        for has_default in [true, false] {
            let shown = home(has_default, "http://h");
            let html = shown.into_body().collect().await.expect("body").to_bytes();
            let html = std::str::from_utf8(&html).expect("UTF-8");
            assert!(html.contains("Model Context Protocol"));
            assert_eq!(html.contains("<a href=\"http://h/mcp\">"), has_default);
            assert_eq!(html.contains("http://h/t/TENANT/SERVER/mcp"), !has_default);
            assert!(!html.contains("No such server"));
        }
    }

    #[tokio::test]
    async fn the_page_of_a_tenant_with_keys_says_so() {
        for has_keys in [true, false] {
            let shown = show("a", "x", "http://h/t/a/x/mcp", has_keys);
            let html = shown.into_body().collect().await.expect("body").to_bytes();
            let html = std::str::from_utf8(&html).expect("UTF-8");
            let header = "--header &#34;Authorization: Bearer YOUR_API_KEY&#34;";
            assert_eq!(html.contains(header), has_keys, "{html}");
            assert_eq!(html.contains("needs an API key"), has_keys);
            assert_eq!(html.contains("opens the log-in"), !has_keys);
        }
    }

    #[test]
    fn snippets_are_what_the_clients_read() {
        let url = "https://gw.test/t/acme/files/mcp";
        let (plain, keyed) = (
            snippets("files", url, None),
            snippets("files", url, Some("lgk_x")),
        );
        for (client, text) in &keyed {
            assert!(text.contains("Bearer lgk_x"), "{client}: {text}");
        }
        for (client, text) in plain.into_iter().chain(keyed) {
            assert!(text.contains(url), "{client}");
            if let Some((_, json)) = text
                .split_once('\n')
                .filter(|(_, rest)| rest.starts_with('{'))
            {
                serde_json::from_str::<serde_json::Value>(json).expect("JSON");
            }
        }
    }
}

//! The clients that the doctor knows: how each finds the authorization server, and who it is there.
//!
//! The order of discovery is that of their sources or of their makers' documents; where a client is closed and
//! its documents are silent, it is that of the SDK that its requests show. `docs/clients.md` is for people. Not here:
//! whole metadata documents (`config/known_clients.json`).

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// Its name for people.
    pub(super) title: &'static str,
    /// The redirect URIs that it registers; the first is that of its authorization request there.
    pub(super) redirect_uris: &'static [&'static str],
    /// The URL of its client ID metadata document (2025-11-25 authorization, "Client ID Metadata Documents").
    pub(super) document: Option<&'static str>,
    /// What it does if the URL of the challenge has no metadata.
    pub(super) search: Search,
    /// How it compares the resource of the metadata with the URL that it was given.
    pub(super) compares: Compare,
    /// What it does with the issuer of the authorization server's metadata.
    pub(super) issuer: Issuer,
    /// Whether it asks for `offline_access` where that is offered.
    pub(super) offline: Offline,
}

/// The search for protected resource metadata, after the URL of the challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Only without such a URL.
    Instead,
    /// Also if that URL has none.
    After,
}

/// The comparison of a resource with the URL of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    /// They are the same URL (RFC 9728, section 3.3).
    Same,
    /// The URL is the resource, or below it.
    Below,
}

/// The check of the issuer (RFC 8414, section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Issuer {
    /// Another issuer ends the log-in.
    Checked,
    /// Any will do.
    Ignored,
}

/// Refresh tokens by scope (OpenID Connect Core, section 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offline {
    /// It asks for them.
    Asked,
    /// It takes what it gets.
    Left,
}

/// The clients, in the order of a report.
pub(super) const CLIENTS: &[Client] = &[
    // claude.com/docs/connectors/building/authentication: metadata documents, else registration; one callback;
    // `offline_access` if it is offered.
    Client {
        name: "claude",
        title: "Claude",
        redirect_uris: &["https://claude.ai/api/mcp/auth_callback"],
        document: Some("https://claude.ai/oauth/mcp-oauth-client-metadata"),
        search: Search::After,
        compares: Compare::Below,
        issuer: Issuer::Ignored,
        offline: Offline::Asked,
    },
    // developers.openai.com/apps-sdk/build/auth: a metadata document of each connector, whose URL is not
    // published; else registration. S256 has to be offered, `resource` is in every request.
    Client {
        name: "chatgpt",
        title: "ChatGPT",
        redirect_uris: &["https://chatgpt.com/connector_platform_oauth_redirect"],
        document: None,
        search: Search::After,
        compares: Compare::Below,
        issuer: Issuer::Ignored,
        offline: Offline::Left,
    },
    // microsoft/vscode: src/vs/base/common/oauth.ts (`fetchResourceMetadata` compares whole URLs),
    // src/vs/workbench/api/common/extHostMcp.ts (`createAuthMetadata`).
    Client {
        name: "vscode",
        title: "VS Code",
        redirect_uris: &["http://127.0.0.1:33418/", "https://vscode.dev/redirect"],
        document: Some("https://vscode.dev/oauth/client-metadata.json"),
        search: Search::Instead,
        compares: Compare::Same,
        issuer: Issuer::Ignored,
        offline: Offline::Left,
    },
    // Closed; it uses the TypeScript SDK, and registers three redirect URIs at once, of which its versions and its
    // parts (editor, agents, command line) use different ones.
    Client {
        name: "cursor",
        title: "Cursor",
        redirect_uris: &[
            "https://www.cursor.com/agents/mcp/oauth/callback",
            "cursor://anysphere.cursor-mcp/oauth/callback",
            "http://localhost:8787/callback",
        ],
        document: None,
        search: Search::Instead,
        compares: Compare::Below,
        issuer: Issuer::Ignored,
        offline: Offline::Left,
    },
    // openai/codex: codex-rs/rmcp-client/src/perform_oauth_login.rs, and rmcp (src/transport/auth.rs), whose
    // `validate_authorization_metadata_issuer` compares byte for byte.
    Client {
        name: "codex",
        title: "Codex",
        redirect_uris: &["http://127.0.0.1:1455/callback"],
        document: Some("https://chatgpt.com/oauth/codex/client.json"),
        search: Search::After,
        compares: Compare::Below,
        issuer: Issuer::Checked,
        offline: Offline::Left,
    },
    // modelcontextprotocol/inspector, with the TypeScript SDK 2.x.
    Client {
        name: "inspector",
        title: "Inspector",
        redirect_uris: &["http://127.0.0.1:6276/oauth/callback"],
        document: None,
        search: Search::Instead,
        compares: Compare::Below,
        issuer: Issuer::Checked,
        offline: Offline::Left,
    },
    // geelen/mcp-remote: src/lib/protected-resource-metadata.ts, then the TypeScript SDK 1.x.
    Client {
        name: "mcp-remote",
        title: "mcp-remote",
        redirect_uris: &["http://localhost:3334/oauth/callback"],
        document: None,
        search: Search::Instead,
        compares: Compare::Below,
        issuer: Issuer::Ignored,
        offline: Offline::Left,
    },
    // modelcontextprotocol/typescript-sdk 2.x: client/auth (`discoverOAuthServerInfo`, `IssuerMismatchError`).
    Client {
        name: "typescript-sdk",
        title: "TypeScript SDK",
        redirect_uris: &["http://127.0.0.1:33418/callback"],
        document: None,
        search: Search::Instead,
        compares: Compare::Below,
        issuer: Issuer::Checked,
        offline: Offline::Left,
    },
    // modelcontextprotocol/python-sdk: mcp/client/auth/utils.py
    // (`build_protected_resource_metadata_discovery_urls`, `validate_metadata_issuer`), oauth2.py.
    Client {
        name: "python-sdk",
        title: "Python SDK",
        redirect_uris: &["http://127.0.0.1:33418/callback"],
        document: None,
        search: Search::After,
        compares: Compare::Below,
        issuer: Issuer::Checked,
        offline: Offline::Asked,
    },
];

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::super::clients::*;

    fn read(path: &str) -> String {
        std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    /// A URI with `port` in the place of a number (RFC 8252, section 7.3: any port of a loopback address).
    fn with_port(uri: &str, port: &str) -> String {
        match url::Url::parse(uri).unwrap().port() {
            Some(number) => uri.replacen(&format!(":{number}"), port, 1),
            None => uri.to_owned(),
        }
    }

    #[test]
    fn clients_are_those_of_the_documents() {
        let known: Json = serde_json::from_str(&read("src/config/known_clients.json")).unwrap();
        let page = read("docs/clients.md");
        for client in CLIENTS {
            let is_sdk = client.name.ends_with("-sdk");
            for uri in client.redirect_uris {
                let is_on_page = page.contains(uri) || page.contains(&with_port(uri, ":PORT"));
                assert!(is_sdk || is_on_page, "docs/clients.md lacks {uri}");
            }
            let uri = client.redirect_uris[0];
            let Some(document) = client.document else {
                continue;
            };
            let mut documents = known["clients"].as_array().unwrap().iter();
            let document = documents
                .find(|known| known["client_id"] == document)
                .unwrap();
            let uris = document["redirect_uris"].as_array().unwrap();
            let is_listed = |uri: &str| uris.iter().any(|listed| listed == uri);
            assert!(is_listed(uri) || is_listed(&with_port(uri, "")), "{uri}");
        }
    }
}

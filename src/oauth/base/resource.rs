//! MCP server for which a token is requested (RFC 8707), identified by its URL: byte for byte, but for the
//! case of scheme and host, the names of this machine, and a query.
//!
//! Without I/O. Not here: the check that the server exists and that the person may use it.

use std::collections::BTreeSet;

use crate::{
    declare::{OFFLINE_ACCESS, Tenant},
    endpoint::{self, Endpoint, Form, Kind, Site},
};

/// A resource of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Name of the server in its URL; the server may not exist.
    pub(crate) server: String,
    /// URL of the server, which is the audience of tokens.
    pub(crate) url: String,
}

impl Resource {
    /// Returns the resource of `tenant` at the URL `text`; only URLs of a server match. The audience of
    /// tokens is the URL as the gateway writes it, with the name of this machine that the client uses.
    pub(crate) fn named(place: Site<'_>, tenant: &str, text: &str) -> Option<Self> {
        let (public_url, path) = endpoint::split_url(place.url, without_query(text))?;
        let endpoint = place.endpoint(path)?;
        if !endpoint.is_resource() || endpoint.tenant != tenant {
            return None;
        }
        let server = endpoint.server;
        crate::config::reader::name(server).ok()?;
        Some(Self {
            server: server.to_owned(),
            url: endpoint.url(&public_url),
        })
    }

    /// Returns the resource of a request that names none, as requests of 2025-03-26 clients do.
    pub(crate) fn unnamed(place: Site<'_>, tenant: &Tenant) -> Option<Self> {
        let server = tenant.unnamed_server()?;
        let is_short = place
            .default
            .is_some_and(|(owner, short)| *owner == tenant.name && short == server);
        let form = if is_short { Form::Alias } else { Form::Named };
        let endpoint = Endpoint {
            form,
            ..Endpoint::new(&tenant.name, server, Kind::Mcp)
        };
        let url = endpoint.url(place.url);
        Some(Self {
            server: server.to_owned(),
            url,
        })
    }

    /// The scopes of `text`, separated by spaces, that exist at the resource.
    ///
    /// # Errors
    ///
    /// For the client's developer: a character that no scope has.
    pub(crate) fn existing_scopes(
        &self,
        tenant: &Tenant,
        text: &str,
    ) -> Result<BTreeSet<String>, &'static str> {
        let fits = |byte: u8| matches!(byte, 0x20 | 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        if !text.bytes().all(fits) {
            return Err("scope has letters that no scope has");
        }
        let known = tenant.scopes(tenant.servers.get(&self.server));
        let exists = |scope: &&str| *scope == OFFLINE_ACCESS || known.contains(scope);
        Ok(text.split(' ').filter(exists).map(str::to_owned).collect())
    }
}

/// A URL that names a resource, without its query. It "SHOULD NOT include a query component" (RFC 8707, section 2), but
/// there are clients (Claude Code) that name the URL which a person has typed, and no query here is another resource.
pub(crate) fn without_query(url: &str) -> &str {
    match url.split_once('?') {
        // "The URI MUST NOT include a fragment component."
        Some((bare, query)) if !query.contains('#') => bare,
        _ => url,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_compared_byte_for_byte_but_for_scheme_and_host() {
        let default = ("a".to_owned(), "x".to_owned());
        let place = Site::of("https://gw.test/base", Some(&default), None);
        let of = |tenant, text| Resource::named(place, tenant, text).map(|found| found.server);
        for text in [
            "HTTPS://GW.test/base/t/a/y/mcp",
            "https://gw.test/base/t/a/y/mcp?x",
        ] {
            let found = Resource::named(place, "a", text).unwrap();
            assert_eq!(found.url, "https://gw.test/base/t/a/y/mcp", "{text}");
        }
        let root = Site::of("https://gw.test:8443", None, None);
        let upper = Resource::named(root, "a", "https://GW.TEST:8443/t/a/y/sse").unwrap();
        assert_eq!(upper.url, "https://gw.test:8443/t/a/y/sse");
        for (text, server) in [
            ("https://gw.test/base/t/a/y/mcp", "y"),
            ("https://gw.test/base/t/a/y/sse", "y"),
            ("https://gw.test/base/t/a/y/mcp?utm_source=x&y=/z?", "y"),
            ("https://gw.test/base/t/a/y/mcp?", "y"),
            ("https://gw.test/base/mcp", "x"),
            ("https://gw.test/base/sse", "x"),
        ] {
            assert_eq!(of("a", text).as_deref(), Some(server), "{text}");
            assert_eq!(of("b", text), None, "{text}");
        }
        for text in [
            "",
            "mcp",
            "https://gw.test/base",
            "https://gw.test/base/",
            "https://gw.test/base/mcp/",
            "https://gw.test/base/MCP",
            "https://gw.test/base/messages",
            "https://gw.test/mcp",
            "https://gw.test/base/t/a/mcp",
            "https://gw.test/base/t/a//mcp",
            "https://gw.test/base/t/a/y/z/mcp",
            "https://gw.test/base/t/ab/y/mcp",
            "https://gw.test/base/t/a/Y/mcp",
            "https://gw.test/base/t/a/y%2f/mcp",
            "https://gw.test/base/t/a/../mcp",
            "https://gw.test/base/t/a/y?x/mcp",
            "https://gw.test/base/t/a/y/mcp?x#y",
            "https://gw.test/base/t/a/y/mcp/?x",
            "https://gw.test?/base/t/a/y/mcp",
            "https://gw.test/base/t/a/y/mcp#x",
            "https://gw.test/BASE/t/a/y/mcp",
            "https://gw.test/base/T/a/y/mcp",
            "https://gw.test:443/base/t/a/y/mcp",
            "https://gw.test.evil/base/t/a/y/mcp",
        ] {
            assert_eq!(of("a", text), None, "{text}");
        }
    }

    #[test]
    fn a_resource_of_this_machine_has_the_name_that_the_client_uses() {
        let local = Site::of("http://127.0.0.1:8080", None, None);
        for own in [
            "http://localhost:8080",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
        ] {
            let text = format!("{own}/t/a/y/mcp");
            let found = Resource::named(local, "a", &text).unwrap();
            assert_eq!((found.server.as_str(), found.url), ("y", text));
        }
        assert!(Resource::named(local, "a", "http://127.0.0.2:8080/t/a/y/mcp").is_none());
    }
}

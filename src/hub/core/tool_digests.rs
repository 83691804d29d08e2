//! Digests of listed tools, to detect changed descriptions.
//!
//! An operator trusts a server for the tools that it listed at that time.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use crate::{
    base::sha256,
    declare::Server,
    protocol::{Scanner, SyntaxError, json},
};

/// The digests of all listed tools. Never held across an await.
#[derive(Default)]
pub(crate) struct ToolDigests {
    servers: RwLock<HashMap<(String, String), Known>>,
}

/// Digests by the name of the tool.
type Known = HashMap<String, [u8; 32]>;

/// The most tools that are recorded for one server.
const MAX_TOOLS: usize = 4096;

impl ToolDigests {
    /// Compares a raw array of tools with earlier lists and logs each tool that changed.
    pub(crate) fn compare(&self, server: &Server, tools: &[u8]) {
        let changed = self.changed(server, tools);
        for tool in changed {
            tracing::warn!(
                tenant.id = server.tenant,
                server.name = server.name,
                tool,
                "a tool is described otherwise than before"
            );
        }
    }

    fn changed(&self, server: &Server, tools: &[u8]) -> Vec<String> {
        let listed = listed(tools);
        let key = (server.tenant.clone(), server.name.clone());
        {
            let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
            let known = servers.get(&key);
            let is_known = |(name, digest): &(String, [u8; 32])| {
                known.is_some_and(|known| known.get(name) == Some(digest))
            };
            // The common case: the list has not changed.
            if listed.iter().all(is_known) {
                return Vec::new();
            }
        }
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        let known = servers.entry(key).or_default();
        let mut changed = Vec::new();
        for (name, digest) in listed {
            if known.len() >= MAX_TOOLS && !known.contains_key(&name) {
                continue;
            }
            let before = known.insert(name.clone(), digest);
            if before.is_some_and(|before| before != digest) {
                changed.push(name);
            }
        }
        changed
    }
}

fn listed(tools: &[u8]) -> Vec<(String, [u8; 32])> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(tools);
    let read = scanner.array::<SyntaxError>(0, |scanner| {
        let tool = scanner.value(1)?.of(tools);
        let name = json::get(tool, "name").and_then(json::decoded);
        if let Some(name) = name {
            found.push((name.into_owned(), sha256(tool)));
        }
        Ok(())
    });
    read.map_or_else(|_| Vec::new(), |()| found)
}

#[cfg(test)]
mod tests {
    use super::super::tool_digests::*;
    use crate::{config::Format, manifest::reader};

    #[test]
    fn only_a_tool_that_says_something_else_is_changed() {
        let text = r#"{"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"s": {"command": "x"}, "t": {"command": "x"}}}}}"#;
        let manifest = reader::parse("F", text, Format::Json, &std::collections::BTreeMap::new());
        let catalog = manifest.unwrap().catalog;
        let (_, server) = catalog.find("a", "s").unwrap();
        let (_, other) = catalog.find("a", "t").unwrap();
        let tools = ToolDigests::default();
        let list = br#"[{"name": "one", "description": "x"}, {"name": "two"}]"#;
        assert!(tools.changed(&server, list).is_empty(), "new ones");
        assert!(tools.changed(&server, list).is_empty());
        let list = br#"[{"name": "one", "description": "y"}, {"name": "two"}, {"name": "3"}, 5]"#;
        assert_eq!(tools.changed(&server, list), ["one"]);
        assert!(tools.changed(&server, list).is_empty(), "known now");
        assert!(tools.changed(&other, list).is_empty(), "another server");
        assert!(tools.changed(&server, b"nonsense").is_empty());
    }
}

//! Digests of listed tools, to detect changed descriptions.
//!
//! An operator trusts a server for the tools that it listed at that time.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockWriteGuard},
};

use crate::{
    base::sha256,
    database::cut,
    declare::Server,
    protocol::{Scanner, SyntaxError, json},
};

/// The digests of all listed tools. Never held across an await.
#[derive(Default)]
pub(crate) struct ToolDigests {
    servers: RwLock<HashMap<(String, String), Known>>,
}

/// Digests by that of the name of the tool: a server may give names of any length.
type Known = HashMap<Digest, Digest>;

type Digest = [u8; 32];

/// The most tools that are recorded for one server.
const MAX_TOOLS: usize = 4096;
/// The most tools that a line of the log names.
const NAMED: usize = 16;
/// The most bytes of each name there.
const NAME: usize = 128;

/// The tools that changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changed {
    count: usize,
    /// The names of the first of them.
    names: Vec<String>,
}

impl ToolDigests {
    /// Compares a raw array of tools with earlier lists and logs the tools that changed.
    pub(crate) fn compare(&self, server: &Server, tools: &[u8]) {
        let changed = self.changed(server, tools);
        if changed.count > 0 {
            tracing::warn!(
                tenant.id = server.tenant,
                server.name = server.name,
                count = changed.count,
                tools = changed.names.join(", "),
                "tools are described otherwise than before"
            );
        }
    }

    /// Forgets the tools of a server that is gone.
    pub(crate) fn forget(&self, server: &Server) {
        self.write().remove(&key(server));
    }

    /// Whether tools of this server are known.
    #[cfg(test)]
    pub(crate) fn has(&self, server: &Server) -> bool {
        self.write().contains_key(&key(server))
    }

    fn changed(&self, server: &Server, tools: &[u8]) -> Changed {
        let (listed, key) = (listed(tools), key(server));
        {
            let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
            let known = servers.get(&key);
            let is_known = |tool: &Listed<'_>| {
                known.is_some_and(|known| known.get(&tool.key) == Some(&tool.digest))
            };
            // The common case: the list has not changed.
            if listed.iter().all(is_known) {
                return Changed::default();
            }
        }
        let mut servers = self.write();
        let known = servers.entry(key).or_default();
        let mut changed = Changed::default();
        for Listed { name, key, digest } in listed {
            if known.len() >= MAX_TOOLS && !known.contains_key(&key) {
                continue;
            }
            let before = known.insert(key, digest);
            if before.is_some_and(|before| before != digest) {
                changed.count += 1;
                if changed.names.len() < NAMED {
                    changed.names.push(cut(&name, NAME).into_owned());
                }
            }
        }
        changed
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<(String, String), Known>> {
        self.servers.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(server: &Server) -> (String, String) {
    (server.tenant.clone(), server.name.clone())
}

/// A tool of a list.
struct Listed<'l> {
    name: Cow<'l, str>,
    /// The digest of its name.
    key: Digest,
    /// The digest of all of it.
    digest: Digest,
}

fn listed(tools: &[u8]) -> Vec<Listed<'_>> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(tools);
    let read = scanner.array::<SyntaxError>(0, |scanner| {
        let tool = scanner.value(1)?.of(tools);
        let name = json::get(tool, "name").and_then(json::decoded);
        if let Some(name) = name {
            found.push(Listed {
                key: sha256(name.as_bytes()),
                name,
                digest: sha256(tool),
            });
        }
        Ok(())
    });
    read.map_or_else(|_| Vec::new(), |()| found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tool_digests::*;
    use crate::{config::Format, manifest::reader};

    #[test]
    fn only_a_tool_that_says_something_else_is_changed() {
        let (server, other) = servers();
        let tools = ToolDigests::default();
        let list = br#"[{"name": "one", "description": "x"}, {"name": "two"}]"#;
        let names = |server: &Server, list: &[u8]| tools.changed(server, list).names;
        assert!(names(&server, list).is_empty(), "new ones");
        assert!(names(&server, list).is_empty());
        let list = br#"[{"name": "one", "description": "y"}, {"name": "two"}, {"name": "3"}, 5]"#;
        assert_eq!(names(&server, list), ["one"]);
        assert!(names(&server, list).is_empty(), "known now");
        assert!(names(&other, list).is_empty(), "another server");
        assert!(names(&server, b"nonsense").is_empty());
        let list = br#"[{"name": "one", "description": "z"}]"#;
        tools.forget(&server);
        assert!(names(&server, list).is_empty(), "another one of that name");
        assert_eq!(names(&other, list), ["one"]);
    }

    #[test]
    fn long_names_of_many_tools_are_neither_kept_nor_logged() {
        let (server, _) = servers();
        let tools = ToolDigests::default();
        let list = |text: &str| {
            let tool = |n: usize| {
                let name = format!("{n}{}", "x".repeat(500));
                format!(r#"{{"name":"{name}","description":"{text}"}}"#)
            };
            let all: Vec<String> = (0..5000).map(tool).collect();
            format!("[{}]", all.join(","))
        };
        assert_eq!(tools.changed(&server, list("a").as_bytes()).count, 0);
        let changed = tools.changed(&server, list("b").as_bytes());
        assert_eq!((changed.count, changed.names.len()), (MAX_TOOLS, NAMED));
        assert!(changed.names.iter().all(|name| name.len() <= NAME));
    }

    fn servers() -> (Arc<Server>, Arc<Server>) {
        let text = r#"{"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"s": {"command": "x"}, "t": {"command": "x"}}}}}"#;
        let manifest = reader::parse("F", text, Format::Json, &std::collections::BTreeMap::new());
        let catalog = manifest.unwrap().catalog;
        let server = |name| catalog.find("a", name).unwrap().1;
        (server("s"), server("t"))
    }
}

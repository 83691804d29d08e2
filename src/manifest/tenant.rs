//! Reader of `tenants` and `quotas`.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU64,
    sync::Arc,
};

use super::{
    identity::{known_server, useless_grants},
    reader::Reader,
};
use crate::{
    config::{Fields, Mistake, Node, Value, Wrong},
    declare::{AuthMode, Bounds, Catalog, Quotas, Room, Server, Tenant},
    protocol::{Revision, revision},
};

impl Reader<'_> {
    /// The whole manifest.
    pub(super) fn root(&mut self, tree: &Node) -> Catalog {
        let fields = Fields::of(tree, "", &["version", "tenants"], &mut self.mistakes);
        self.places.insert(String::new(), fields.place.clone());
        fields.read("version", (), only_version, &mut self.mistakes);
        let mut tenants = HashMap::new();
        if let Some(node) = fields.member("tenants") {
            self.places.insert("tenants".to_owned(), node.place.clone());
            let members = Fields::any(node, "tenants", &mut self.mistakes);
            for (tenant_name, node) in members.members() {
                let key = members.key(tenant_name);
                self.name(tenant_name, node, &key);
                let tenant = self.tenant(node, &key, tenant_name);
                tenants.insert(tenant_name.to_owned(), Arc::new(tenant));
            }
        }
        Catalog {
            tenants,
            ..Catalog::default()
        }
    }

    fn tenant(&mut self, node: &Node, key: &str, tenant: &str) -> Tenant {
        let known = [
            "api_keys",
            "auth",
            "clients",
            "default_server",
            "providers",
            "quotas",
            "revisions",
            "servers",
            "users",
        ];
        let fields = Fields::of(node, key, &known, &mut self.mistakes);
        let auth = if matches!(node.value, Value::Map(_)) {
            self.auth(&fields)
        } else {
            AuthMode::None
        };
        let quotas = quotas(&fields, &mut self.mistakes);
        let room = quotas.tenant.room();
        let servers = self.servers(&fields, tenant, room, &auth);
        let names: Vec<&str> = servers.keys().map(String::as_str).collect();
        let existing = |node: &Node| {
            let text = node.text()?;
            if text.is_empty() {
                return Ok(None);
            }
            known_server(&text, &names, "name one of its servers").map(|()| Some(text))
        };
        let default_server = fields.read("default_server", None, existing, &mut self.mistakes);
        let all = revision::ALL.to_vec();
        let api_keys = self.api_keys(&fields, &auth, &names);
        Tenant {
            name: tenant.to_owned(),
            auth,
            api_keys,
            default_server,
            revisions: fields.read("revisions", all, revisions, &mut self.mistakes),
            quotas,
            servers,
        }
    }

    /// The servers of a tenant whose children may take `room`.
    fn servers(
        &mut self,
        of: &Fields<'_>,
        tenant: &str,
        room: Room,
        auth: &AuthMode,
    ) -> BTreeMap<String, Arc<Server>> {
        let mut servers = BTreeMap::new();
        if let Some(node) = of.member("servers") {
            let members = Fields::any(node, &of.key("servers"), &mut self.mistakes);
            for (server, node) in members.members() {
                let key = members.key(server);
                self.name(server, node, &key);
                let mut read = self.server(node, &key, tenant, server);
                read.room = room;
                if read.grants.is_some() && *auth == AuthMode::None {
                    self.wrong(useless_grants(), &node.place, &format!("{key}.grants"));
                }
                servers.insert(server.to_owned(), Arc::new(read));
            }
        }
        servers
    }
}

fn only_version(node: &Node) -> Result<(), Wrong> {
    match node.value {
        Value::Whole(1) => Ok(()),
        _ => Err(Wrong::new(
            "is a version that this build does not know",
            "write version: 1",
        )),
    }
}

fn revisions(node: &Node) -> Result<Vec<Revision>, Wrong> {
    let mut chosen = Vec::new();
    for item in node.items()? {
        let text = item.text()?;
        chosen.push(Revision::parse(&text).ok_or_else(|| {
            let known = revision::ALL.map(Revision::as_str);
            let what = format!("{text:?} is no revision that this build serves");
            Wrong::new(what, format!("choose among {}", known.join(", ")))
        })?);
    }
    let is_chosen = |revision: &Revision| chosen.is_empty() || chosen.contains(revision);
    Ok(revision::ALL.into_iter().filter(is_chosen).collect())
}

/// Reads the key `quotas` of a tenant.
pub(super) fn quotas(tenant: &Fields<'_>, mistakes: &mut Vec<Mistake>) -> Quotas {
    let default = Quotas::default();
    let Some(node) = tenant.member("quotas") else {
        return default;
    };
    let known = [&["children", "memory", "principal"][..], &BOTH].concat();
    let fields = Fields::of(node, &tenant.key("quotas"), &known, mistakes);
    let mut read = Quotas {
        tenant: bounds(&fields, default.tenant, mistakes),
        ..default
    };
    let children = default.tenant.children;
    read.tenant.children = fields.read("children", children, count, mistakes);
    read.tenant.memory = fields.read("memory", default.tenant.memory, size, mistakes);
    if let Some(node) = fields.member("principal") {
        let fields = Fields::of(node, &fields.key("principal"), &BOTH, mistakes);
        read.principal = bounds(&fields, default.principal, mistakes);
    }
    read
}

fn bounds(fields: &Fields<'_>, default: Bounds, mistakes: &mut Vec<Mistake>) -> Bounds {
    let mut bound = |key, default| fields.read(key, default, count, mistakes);
    Bounds {
        sessions: bound("sessions", default.sessions),
        streams: bound("streams", default.streams),
        calls: bound("calls", default.calls),
        requests_per_second: bound("requests_per_second", default.requests_per_second),
        bytes_out: fields.read("bytes_out", default.bytes_out, size, mistakes),
        ..Bounds::NONE
    }
}

/// A number of things; 0 is without bound.
pub(crate) fn count(node: &Node) -> Result<Option<NonZeroU64>, Wrong> {
    Ok(NonZeroU64::new(node.count(0)?.into()))
}

/// A size; `""` is without bound.
fn size(node: &Node) -> Result<Option<NonZeroU64>, Wrong> {
    // Sums of it stay far inside of what can be counted.
    let bytes = node.size()?.min(1 << 50);
    Ok(NonZeroU64::new(bytes))
}

/// What both a tenant and a principal may be bound in.
const BOTH: [&str; 5] = [
    "sessions",
    "streams",
    "calls",
    "requests_per_second",
    "bytes_out",
];

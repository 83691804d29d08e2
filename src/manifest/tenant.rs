//! Reader of `tenants` and `quotas`.

use std::{collections::BTreeMap, num::NonZeroU64, sync::Arc};

use super::{
    identity::{known_server, useless_grants},
    reader::Reader,
};
use crate::{
    config::{Fields, Node, Value, Wrong},
    declare::{AuthMode, Bounds, Catalog, Quotas, Room, Server, Tenant},
    protocol::{Revision, revision},
};

impl Reader<'_> {
    /// Reads the whole manifest.
    pub(super) fn root(&mut self, tree: &Node) -> Catalog {
        let fields = Fields::of(tree, "", self.mistakes);
        self.places.insert(String::new(), fields.place.clone());
        fields.read("version", (), only_version);
        let mut catalog = Catalog::default();
        if let Some(node) = fields.member("tenants") {
            self.places.insert("tenants".to_owned(), node.place.clone());
            let members = Fields::of(node, "tenants", self.mistakes);
            catalog = self.catalog(members.members());
        }
        fields.end();
        catalog
    }

    /// Reads the tenants of a manifest, or of stored objects.
    pub(super) fn catalog<'n>(
        &mut self,
        tenants: impl IntoIterator<Item = (&'n str, &'n Node)>,
    ) -> Catalog {
        let mut catalog = Catalog::default();
        for (name, node) in tenants {
            let key = format!("tenants.{name}");
            self.name(name, node, &key);
            let tenant = self.tenant(node, &key, name);
            catalog.tenants.insert(name.to_owned(), Arc::new(tenant));
        }
        catalog
    }

    fn tenant(&mut self, node: &Node, key: &str, tenant: &str) -> Tenant {
        let fields = Fields::of(node, key, self.mistakes);
        fields.order(&[
            "api_keys",
            "auth",
            "clients",
            "default_server",
            "providers",
            "quotas",
        ]);
        fields.order(&["revisions", "servers", "users"]);
        let auth = if matches!(node.value, Value::Map(_)) {
            self.auth(&fields)
        } else {
            AuthMode::None
        };
        let quotas = quotas(&fields);
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
        let default_server = fields.read("default_server", None, existing);
        let all = revision::ALL.to_vec();
        let api_keys = self.api_keys(&fields, &auth, &names);
        let revisions = fields.read("revisions", all, revisions);
        fields.end();
        Tenant {
            name: tenant.to_owned(),
            auth,
            api_keys,
            default_server,
            revisions,
            quotas,
            servers,
        }
    }

    /// Reads the servers of a tenant, whose children share `room`.
    fn servers(
        &mut self,
        of: &Fields<'_>,
        tenant: &str,
        room: Room,
        auth: &AuthMode,
    ) -> BTreeMap<String, Arc<Server>> {
        let mut servers = BTreeMap::new();
        if let Some(members) = of.inner("servers") {
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
fn quotas(tenant: &Fields<'_>) -> Quotas {
    let default = Quotas::default();
    let Some(fields) = tenant.inner("quotas") else {
        return default;
    };
    fields.order(&["children", "memory", "principal"]);
    let mut read = Quotas {
        tenant: bounds(&fields, default.tenant),
        ..default
    };
    read.tenant.children = fields.read("children", default.tenant.children, count);
    read.tenant.memory = fields.read("memory", default.tenant.memory, size);
    if let Some(fields) = fields.inner("principal") {
        read.principal = bounds(&fields, default.principal);
        fields.end();
    }
    fields.end();
    read
}

/// Reads the bounds of a tenant or a principal.
fn bounds(fields: &Fields<'_>, default: Bounds) -> Bounds {
    let bound = |key, default| fields.read(key, default, count);
    Bounds {
        sessions: bound("sessions", default.sessions),
        streams: bound("streams", default.streams),
        calls: bound("calls", default.calls),
        requests_per_second: bound("requests_per_second", default.requests_per_second),
        bytes_out: fields.read("bytes_out", default.bytes_out, size),
        ..Bounds::NONE
    }
}

/// Parses a number; 0 is unlimited.
fn count(node: &Node) -> Result<Option<NonZeroU64>, Wrong> {
    Ok(NonZeroU64::new(node.count(0)?.into()))
}

/// Parses a size; `""` is unlimited.
fn size(node: &Node) -> Result<Option<NonZeroU64>, Wrong> {
    // So that sums of it cannot overflow.
    let bytes = node.size()?.min(1 << 50);
    Ok(NonZeroU64::new(bytes))
}

//! Reader of `tenants` and `quotas`.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU64, sync::Arc};

use super::{
    identity::{known_server, useless_access},
    provider::useless_tokens,
    reader::Reader,
    table::{Entries, Fields, JsonSchema, Parser, parse},
};
use crate::{
    config::{Node, Value, Wrong, address::authority},
    declare::{
        AuthMode, Bounds, Catalog, Dpop, Holder, Isolation, Quotas, Room, Server, Supervision,
        Tenant, TenantProfile,
    },
    protocol::{Revision, revision},
};

impl Reader<'_> {
    /// Reads the whole manifest.
    pub(super) fn root(&mut self, tree: &Node) -> Catalog {
        let fields = Fields::of(tree, "", self.findings).described(
            "Declared objects: tenants with their servers, callers and quotas. Texts may contain \
             ${env:NAME} and ${file:PATH}; \"$$\" is \"$\".",
        );
        self.places.insert(String::new(), fields.place.clone());
        fields
            .key(
                "version",
                "The version of this syntax; 1 if it is left out.",
            )
            .optional(version());
        let tenants = fields
            .key("tenants", "Tenants by name.")
            .entries(parse::name());
        let mut catalog = Catalog::default();
        if let Some(tenants) = tenants {
            self.places
                .insert("tenants".to_owned(), tenants.place().to_owned());
            catalog = self.catalog(&tenants);
        }
        fields.end();
        catalog
    }

    /// Reads the tenants of a manifest, or of stored objects.
    pub(super) fn catalog(&mut self, tenants: &Entries<'_>) -> Catalog {
        let mut catalog = Catalog::default();
        for (name, node) in tenants.members() {
            let tenant = self.tenant(node, &tenants.path_of(name), name);
            catalog.tenants.insert(name.to_owned(), Arc::new(tenant));
        }
        catalog
    }

    fn tenant(&mut self, node: &Node, key: &str, tenant: &str) -> Tenant {
        let fields = Fields::of(node, key, self.findings)
            .described("A tenant with its own servers, callers and quotas.")
            .defined("tenant");
        fields.order(&[
            "api_keys",
            "auth",
            "clients",
            "default_server",
            "dpop",
            "hosts",
            "introspection",
            "providers",
            "quotas",
        ]);
        let hosts = fields.member("hosts");
        let places = hosts.map(|node| (fields.path_of("hosts"), node.place.clone()));
        self.places.extend(places);
        self.places.insert(key.to_owned(), fields.place.clone());
        fields.order(&["revisions", "servers", "upstreams", "users"]);
        let auth = if fields.is_table {
            self.auth(&fields)
        } else {
            AuthMode::None
        };
        let dpop = self.dpop(&fields, &auth);
        let quotas = quotas(&fields);
        let room = quotas.tenant.room();
        let servers = self.servers(&fields, tenant, room, &auth);
        let names: Vec<&str> = servers.keys().map(String::as_str).collect();
        let default_server = fields
            .key(
                "default_server",
                "The audience of token requests without a resource; \"\" is none.",
            )
            .optional(default_server(&names));
        let hosts = fields
            .key(
                "hosts",
                "Hosts of its own, each with a port if it is not that of public_url: there it has the short \
                 paths, and no other tenant is reached.",
            )
            .optional(parse::set(host()));
        let api_keys = self.api_keys(&fields, &auth, &names);
        let offered = fields.key("revisions", "Offered revisions of MCP; empty means all.");
        let offered = offered.optional(revisions());
        let offered = offered.unwrap_or_else(|| (revision::ALL.to_vec(), true));
        fields.end();
        Tenant {
            profile: Arc::new(TenantProfile::new(tenant, offered, quotas)),
            auth,
            dpop,
            api_keys,
            default_server: default_server.flatten(),
            hosts: hosts.unwrap_or_default(),
            servers,
        }
    }

    /// Reads whether access tokens are bound to keys.
    fn dpop(&self, tenant: &Fields<'_>, auth: &AuthMode) -> Dpop {
        let read = tenant
            .key(
                "dpop",
                "Whether access tokens have to be bound to a key of the client (RFC 9449): required, or as the client \
                 chooses. API keys are not.",
            )
            .read(Dpop::default(), parse::choice(&DPOP));
        if let Some(place) = tenant.place_of("dpop")
            && read == Dpop::Required
            && !auth.has_issuer()
        {
            let what = "is for access tokens, which there are none of in this auth.mode";
            let remedy = "write auth: {mode: builtin} or {mode: external}, or leave it out";
            let wrong = Wrong::new(what, remedy);
            self.wrong(wrong, place, &tenant.path_of("dpop"));
        }
        read
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
        let entries = of.key("servers", "Servers by name.").entries(parse::name());
        let Some(entries) = entries else {
            return servers;
        };
        for (server, node) in entries.members() {
            let key = entries.path_of(server);
            let mut read = self.server(node, &key, tenant, server);
            read.room = room;
            let found = useless_access(&read, auth).into_iter();
            let found = found.chain(unsafe_slots(&read, auth));
            let found = found.map(|(path, wrong)| (path.to_owned(), wrong));
            for (path, wrong) in found.chain(useless_tokens(&read, auth)) {
                self.wrong(wrong, &node.place, &format!("{key}.{path}"));
            }
            servers.insert(server.to_owned(), Arc::new(read));
        }
        servers
    }
}

/// Slots that would be filled with the secret of another person, or with none.
fn unsafe_slots(server: &Server, auth: &AuthMode) -> Option<(&'static str, Wrong)> {
    let is_personal = server.has_slots(Holder::Principal);
    let wrong = match (&server.supervision, auth) {
        _ if server.slots.is_empty() => return None,
        (Supervision { warm: 1.., .. }, _) => Wrong::new(
            "has secrets, which a child gets at its start, and warm children start for nobody",
            "write warm: 0, or leave secrets out",
        ),
        (
            Supervision {
                isolation: Isolation::Tenant,
                ..
            },
            _,
        ) if is_personal => Wrong::new(
            "has a secret for: principal, and isolation: tenant, by which several people share a child",
            "write isolation: principal or session, or for: tenant",
        ),
        (_, AuthMode::None) if is_personal => Wrong::new(
            "has a secret for: principal, and auth.mode is none, by which nobody is told apart",
            "write another auth.mode, or for: tenant",
        ),
        _ => return None,
    };
    Some(("secrets", wrong))
}

fn version<'p>() -> Parser<'p, ()> {
    let known = || JsonSchema::default().with("const", 1);
    Parser::new(known, |node| match node.value {
        Value::Whole(1) => Ok(()),
        _ => Err(Wrong::new(
            "is a version that this build does not know",
            "write version: 1",
        )),
    })
}

/// One of the servers `names`; `""` is none.
fn default_server<'p>(names: &'p [&str]) -> Parser<'p, Option<String>> {
    parse::text().and(|text| {
        if text.is_empty() {
            return Ok(None);
        }
        known_server(&text, names, "name one of its servers").map(|()| Some(text))
    })
}

/// A host, in lower case, with its port.
fn host<'p>() -> Parser<'p, (String, Option<u16>)> {
    parse::text().and(|text| {
        let wrong = || {
            let remedy = "write the name of a host, as acme.example.org or acme.example.org:8443";
            Wrong::new(format!("{text:?} is no host"), remedy)
        };
        let (host, port) = authority(&text).ok_or_else(wrong)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_name = host.len() <= MAX_HOST && host.bytes().all(fits);
        if !is_name || host.parse::<IpAddr>().is_ok() {
            return Err(wrong());
        }
        Ok((host, port))
    })
}

/// The words of `dpop`.
const DPOP: [(&str, Dpop); 2] = [("optional", Dpop::Optional), ("required", Dpop::Required)];

/// The longest name of a host (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;

/// The session-based revisions, newest first, and whether the modern one is among them.
fn revisions<'p>() -> Parser<'p, (Vec<Revision>, bool)> {
    let words = || {
        let legacy = revision::ALL.map(Revision::as_str);
        [&[revision::FIRST_MODERN], &legacy[..]].concat()
    };
    let known = move || JsonSchema::default().with("enum", words().as_slice());
    let one = move |node: &Node| {
        let text = node.text()?;
        if words().contains(&&*text) {
            return Ok(text);
        }
        let what = format!("{text:?} is no revision that this build serves");
        Err(Wrong::new(
            what,
            format!("choose among {}", words().join(", ")),
        ))
    };
    parse::list(Parser::new(known, one)).and(|chosen| {
        let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|one| *one == name);
        let legacy = revision::ALL.into_iter();
        let legacy = legacy.filter(|revision| is_chosen(revision.as_str()));
        Ok((legacy.collect(), is_chosen(revision::FIRST_MODERN)))
    })
}

/// Reads the key `quotas` of a tenant.
fn quotas(tenant: &Fields<'_>) -> Quotas {
    let default = Quotas::default();
    let Some(fields) = tenant.key("quotas", "Quotas of the tenant.").table() else {
        return default;
    };
    fields.order(&["children", "memory", "object_bytes", "objects", "principal"]);
    let mut read = Quotas {
        tenant: bounds(&fields, default.tenant),
        ..default
    };
    read.tenant.children = fields
        .key("children", "Concurrent children; 0 means no bound.")
        .read(default.tenant.children, count());
    read.tenant.memory = fields
        .key(
            "memory",
            "Resident memory of its children with all their descendants; \"\" means no bound.",
        )
        .read(default.tenant.memory, size());
    read.tenant.objects = fields
        .key(
            "objects",
            "Declared objects: servers, users, clients, providers and API keys, and secrets of servers; 0 means no bound.",
        )
        .read(default.tenant.objects, count());
    read.tenant.object_bytes = fields
        .key(
            "object_bytes",
            "Bytes of declared objects together, as JSON, and 32 for each value in them; \"\" means no bound.",
        )
        .read(default.tenant.object_bytes, size());
    let principal = fields.key("principal", "Quotas of each principal of the tenant.");
    if let Some(fields) = principal.table() {
        read.principal = bounds(&fields, default.principal);
        fields.end();
    }
    fields.end();
    read
}

/// Reads the bounds of a tenant or a principal.
fn bounds(fields: &Fields<'_>, default: Bounds) -> Bounds {
    Bounds {
        sessions: fields
            .key("sessions", "Concurrent sessions; 0 means no bound.")
            .read(default.sessions, count()),
        streams: fields
            .key("streams", "Concurrent open streams; 0 means no bound.")
            .read(default.streams, count()),
        calls: fields
            .key("calls", "Calls in flight; 0 means no bound.")
            .read(default.calls, count()),
        requests_per_second: fields
            .key(
                "requests_per_second",
                "HTTP requests per second; 0 means no bound.",
            )
            .read(default.requests_per_second, count()),
        bytes_out: fields
            .key(
                "bytes_out",
                "Bytes to clients per second; \"\" means no bound.",
            )
            .read(default.bytes_out, size()),
        ..Bounds::NONE
    }
}

/// A number; 0 is unlimited.
fn count<'p>() -> Parser<'p, Option<NonZeroU64>> {
    let number = |bound: &Option<NonZeroU64>| bound.map_or(0, NonZeroU64::get);
    parse::count(0).convert(NonZeroU64::new, number)
}

/// A size; `""` is unlimited.
fn size<'p>() -> Parser<'p, Option<NonZeroU64>> {
    let bytes = |bound: &Option<NonZeroU64>| bound.map_or(0, NonZeroU64::get);
    // So that sums of it cannot overflow.
    parse::size().convert(|bytes| NonZeroU64::new(bytes.min(1 << 50)), bytes)
}

//! The manifest of `lockgate run`, made from a command line and flags.
//!
//! Not here: the meaning of its keys, which the reader of files reads (`server`).

use std::{collections::BTreeMap, sync::Arc};

use super::{
    interpolation::escape,
    reader::{Manifest, Reader, server_key},
    table::Findings,
};
use crate::declare::{ApiKeys, AuthMode, Catalog, Dpop, Launch, Quotas, Tenant, TenantProfile};
use crate::{
    base::Table,
    config::{Mistake, Node, Override, RUN_SERVER, RUN_TENANT, Value, Wrong},
    protocol::revision,
};

/// The manifest of `lockgate run`: one tenant with one server.
pub(crate) fn single(
    launch: Launch,
    overrides: &[Override],
    env: &BTreeMap<String, String>,
) -> Result<Manifest, Vec<Mistake>> {
    let findings = Findings::default();
    let mut reader = Reader::new(env, &findings);
    let mut tree = launch_node(&launch);
    for Override { path, value } in overrides {
        if let Err(wrong) = set(&mut tree, path, value) {
            reader.wrong(wrong, &value.place, &format!("server.{}", path.join(".")));
        }
    }
    let mut server = reader.server(&tree, "server", RUN_TENANT, RUN_SERVER);
    if !server.slots.is_empty() {
        let wrong = Wrong::new(
            "is for servers of a database, and run has none",
            "give variables by --env",
        );
        reader.wrong(wrong, COMMAND_LINE, "server.secrets");
    }
    // Its start would fail as if there were no such program.
    if let Some(cwd) = server.launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let what = format!("{} is no directory", cwd.display());
        let wrong = Wrong::new(what, "name one that exists");
        reader.wrong(wrong, "--set", "server.cwd");
    }
    server.launch.home = launch.home;
    // Not by way of the tree: the name of a directory need not be UTF-8.
    server.launch.cwd = server.launch.cwd.or(launch.cwd);
    let offered = (revision::ALL.to_vec(), true);
    let tenant = Tenant {
        profile: Arc::new(TenantProfile::new(RUN_TENANT, offered, Quotas::NONE)),
        auth: AuthMode::None,
        dpop: Dpop::default(),
        api_keys: ApiKeys::default(),
        default_server: Some(RUN_SERVER.to_owned()),
        hosts: Vec::new(),
        servers: BTreeMap::from([(RUN_SERVER.to_owned(), Arc::new(server))]),
    };
    for key in ["command", "prepare"] {
        let place = reader.places.remove(&format!("server.{key}"));
        let place = place.unwrap_or_else(|| COMMAND_LINE.to_owned());
        let key = server_key(RUN_TENANT, RUN_SERVER, key);
        reader.places.insert(key, place);
    }
    let tenants = Table::from_iter([(RUN_TENANT.to_owned(), Arc::new(tenant))]);
    let catalog = Catalog::new(tenants, Arc::default());
    let places = reader.places;
    findings.result(Manifest::new(catalog, places))
}

/// The tree of a launch specification, as a manifest would have it.
fn launch_node(launch: &Launch) -> Node {
    let text = |text: &str| Node::new(COMMAND_LINE, Value::Text(escape(text)));
    let node = |value: Value| Node::new(COMMAND_LINE, value);
    let variables = launch
        .env
        .iter()
        .map(|(name, value)| (name.clone(), text(value)));
    node(Value::Map(vec![
        ("command".to_owned(), text(&launch.command)),
        (
            "args".to_owned(),
            node(Value::List(
                launch.args.iter().map(|arg| text(arg)).collect(),
            )),
        ),
        ("env".to_owned(), node(Value::Map(variables.collect()))),
        // A local server of the caller has the caller's permissions.
        (
            "sandbox".to_owned(),
            node(Value::Map(vec![
                ("profile".to_owned(), text("open")),
                ("required".to_owned(), node(Value::Flag(false))),
            ])),
        ),
        // A local server uses the caller's caches, unless flags say otherwise.
        ("prepare".to_owned(), text("off")),
    ]))
}

/// Sets or replaces a value in a tree.
fn set(tree: &mut Node, path: &[String], value: &Node) -> Result<(), Wrong> {
    let Some((first, rest)) = path.split_first() else {
        tree.clone_from(value);
        return Err(Wrong::new(
            "names no key of the server",
            "write server.KEY=VALUE",
        ));
    };
    let kind = tree.kind();
    let Value::Map(entries) = &mut tree.value else {
        return Err(Wrong::new(
            format!("lies within {kind}"),
            "write the outer key as a table",
        ));
    };
    let at = entries
        .iter()
        .position(|(name, _)| name == first)
        .unwrap_or_else(|| {
            entries.push((
                first.clone(),
                Node::new(&value.place, Value::Map(Vec::new())),
            ));
            entries.len() - 1
        });
    let member = &mut entries[at].1;
    if rest.is_empty() {
        member.clone_from(value);
        return Ok(());
    }
    set(member, rest, value)
}

/// The place of the words behind `--` on the command line.
const COMMAND_LINE: &str = "--";

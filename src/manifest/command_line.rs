//! Manifest of `lockgate run`, made of a command line and flags.
//!
//! Not here: the meaning of its keys; the reader of files reads them too (`server`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    interpolation::escape,
    reader::{Manifest, Reader, server_key},
};
use crate::declare::{AuthMode, Catalog, Launch, Quotas, Tenant};
use crate::{
    config::{Mistake, Mistakes, Node, Override, RUN_SERVER, RUN_TENANT, Value, Wrong},
    protocol::revision,
};

/// The manifest of `lockgate run`: one tenant with one server, which the flags describe.
pub(crate) fn single(
    launch: Launch,
    overrides: &[Override],
    env: &BTreeMap<String, String>,
) -> Result<Manifest, Vec<Mistake>> {
    let mistakes = Mistakes::default();
    let mut reader = Reader::new(env, &mistakes);
    let mut tree = launch_node(&launch);
    for Override { path, value } in overrides {
        if let Err(wrong) = put(&mut tree, path, value) {
            reader.wrong(wrong, &value.place, &format!("server.{}", path.join(".")));
        }
    }
    let mut server = reader.server(&tree, "server", RUN_TENANT, RUN_SERVER);
    server.launch.home = launch.home;
    // Not by way of the tree: a directory's name need not be UTF-8.
    server.launch.cwd = server.launch.cwd.or(launch.cwd);
    let tenant = Tenant {
        name: RUN_TENANT.to_owned(),
        auth: AuthMode::None,
        api_keys: HashMap::new(),
        default_server: Some(RUN_SERVER.to_owned()),
        revisions: revision::ALL.to_vec(),
        quotas: Quotas::NONE,
        servers: BTreeMap::from([(RUN_SERVER.to_owned(), Arc::new(server))]),
    };
    for key in ["command", "prepare"] {
        let place = reader.places.remove(&format!("server.{key}"));
        let place = place.unwrap_or_else(|| COMMAND_LINE.to_owned());
        let key = server_key(RUN_TENANT, RUN_SERVER, key);
        reader.places.insert(key, place);
    }
    let tenants = HashMap::from([(RUN_TENANT.to_owned(), Arc::new(tenant))]);
    let catalog = Catalog {
        tenants,
        ..Catalog::default()
    };
    let places = reader.places;
    mistakes.result(Manifest { catalog, places })
}

/// A launch specification as if it had been written in a manifest.
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
        // One's own server on one's own machine: it may do what its caller may.
        (
            "sandbox".to_owned(),
            node(Value::Map(vec![
                ("profile".to_owned(), text("open")),
                ("required".to_owned(), node(Value::Flag(false))),
            ])),
        ),
        // One's own server has one's own caches, unless the flags say otherwise.
        ("prepare".to_owned(), text("off")),
    ]))
}

/// Puts a value into a tree, in place of what is there.
fn put(tree: &mut Node, path: &[String], value: &Node) -> Result<(), Wrong> {
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
    put(member, rest, value)
}

/// The place of what stands behind `--` on the command line.
const COMMAND_LINE: &str = "--";

//! The reader of a manifest: its [`Catalog`], or every mistake in it.
//!
//! Not here: the keys of each table (the other readers), and checks that need the configuration
//! (`checks`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value as Json;

use super::{
    interpolation::interpolate,
    table::{Entries, Fields, Findings, Parser, parse},
};
use crate::{
    config::{Mistake, Node, Value, Wrong, address::authority},
    declare::{Catalog, Document, PLACE, Tenant, Usage},
};

/// A manifest without mistakes.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The declared tenants.
    pub(crate) catalog: Catalog,
    /// What is served beside it.
    pub(crate) others: Others,
    /// What each tenant takes of the quotas of objects.
    pub(super) usage: BTreeMap<String, Usage>,
    /// The places of keys, for mistakes that are found later.
    pub(super) places: BTreeMap<String, String>,
}

/// What there is beside the objects of a manifest: tenants that do not change, which are not checked and may not be
/// read, and secrets.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Their number. A judgement is the same of two and of more (`database/objects/steps`).
    pub(crate) tenants: usize,
    /// The tenants and names of their servers, where a whole manifest is applied.
    pub(crate) servers: BTreeSet<(String, String)>,
    /// How many secrets each tenant has in the slots of its servers: they count as objects.
    pub(crate) secrets: BTreeMap<String, u64>,
    /// The hosts of the tenants, each with its tenant, where one of the manifest may take them.
    pub(crate) hosts: BTreeMap<String, String>,
}

impl Others {
    /// Adds the hosts of a tenant, as its document declares them.
    pub(crate) fn add_hosts(&mut self, tenant: &str, document: &Document) {
        let hosts = document.get("hosts").and_then(Json::as_array);
        let hosts = hosts.into_iter().flatten().filter_map(Json::as_str);
        let named = hosts.filter_map(authority);
        let owned = named.map(|(host, _)| (host, tenant.to_owned()));
        self.hosts.extend(owned);
    }
}

impl Manifest {
    /// A manifest with all tenants.
    pub(super) fn new(catalog: Catalog, places: BTreeMap<String, String>) -> Self {
        Self {
            catalog,
            others: Others::default(),
            usage: BTreeMap::new(),
            places,
        }
    }

    /// A mistake in a key, with its place, or that of the nearest table around it that is known.
    pub(crate) fn mistake(&self, key: &str, what: impl Into<String>, remedy: &str) -> Mistake {
        let mut known = key;
        let place = loop {
            match self.places.get(known) {
                Some(place) => break place.as_str(),
                None if known.is_empty() => break "manifest",
                None => known = known.rsplit_once('.').map_or("", |(outer, _)| outer),
            }
        };
        Wrong::new(what, remedy).at(place, key)
    }

    /// The most secrets that each tenant may have beside its objects; without one that has no quota.
    pub(crate) fn most_secrets(&self) -> BTreeMap<String, u64> {
        let most = |(tenant, usage): (&String, &Usage)| {
            let quotas = &self.catalog.tenants.get(tenant)?.quotas.tenant;
            let left = quotas.objects?.get().saturating_sub(usage.objects);
            Some((tenant.clone(), left))
        };
        self.usage.iter().filter_map(most).collect()
    }

    /// The tenants, sorted by name.
    pub(crate) fn tenants(&self) -> Vec<&Arc<Tenant>> {
        let mut tenants: Vec<_> = self.catalog.tenants.values().collect();
        tenants.sort_by_key(|tenant| tenant.name.as_str());
        tenants
    }
}

/// Reads the manifest in `tree`. `mistakes` are those of the parser; without a tree there is at
/// least one.
pub(crate) fn read(
    tree: Option<&Node>,
    mistakes: Vec<Mistake>,
    env: &BTreeMap<String, String>,
) -> Result<Manifest, Vec<Mistake>> {
    let findings = Findings::from(mistakes);
    let mut reader = Reader::new(env, &findings);
    let catalog = tree.map(|tree| reader.root(tree)).unwrap_or_default();
    let places = reader.places;
    findings.result(Manifest::new(catalog, places))
}

/// Reads the tenants of stored objects, in which all references are resolved.
pub(super) fn stored(tenants: Vec<(String, Node)>) -> Result<Manifest, Vec<Mistake>> {
    let (env, findings) = (BTreeMap::new(), Findings::default());
    let mut reader = Reader::new(&env, &findings);
    reader.places.insert(String::new(), PLACE.to_owned());
    let tenants = Node::new(PLACE, Value::Map(tenants));
    let tenants = Fields::of(&tenants, "tenants", &findings);
    let catalog = reader.catalog(&Entries::of(tenants, parse::name()));
    let places = reader.places;
    findings.result(Manifest::new(catalog, places))
}

/// Parses the manifest `text`, the content of `file`.
#[cfg(test)]
pub(crate) fn parse(
    file: &str,
    text: &str,
    format: crate::config::Format,
    env: &BTreeMap<String, String>,
) -> Result<Manifest, Vec<Mistake>> {
    let (tree, errors) = format.parse(file, text);
    let mistakes = crate::config::reader::syntax_mistakes(file, errors);
    read(tree.as_ref(), mistakes, env)
}

/// The reader of one manifest, which collects its mistakes.
pub(crate) struct Reader<'e> {
    /// The variables for `${env:…}`.
    pub(crate) env: &'e BTreeMap<String, String>,
    /// The mistakes so far, or the outline of the keys.
    pub(crate) findings: &'e Findings,
    /// The places of keys, for later checks.
    pub(crate) places: BTreeMap<String, String>,
}

impl<'e> Reader<'e> {
    /// A reader with the variables `env`.
    pub(super) fn new(env: &'e BTreeMap<String, String>, findings: &'e Findings) -> Self {
        Self {
            env,
            findings,
            places: BTreeMap::new(),
        }
    }

    pub(crate) fn wrong(&self, wrong: Wrong, place: &str, key: &str) {
        self.findings.add(wrong.at(place, key));
    }

    /// A text in which variables and files are inserted.
    pub(crate) fn text(&self) -> Parser<'e, String> {
        let env = self.env;
        parse::written().and(move |text| interpolate(&text, env))
    }
}

/// The dotted key of the member `key` of a server.
pub(crate) fn server_key(tenant: &str, server: &str, key: &str) -> String {
    format!("tenants.{tenant}.servers.{server}.{key}")
}

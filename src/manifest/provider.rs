//! Reader of the identity providers of a tenant.
//!
//! Not here: checks of their URLs against the configuration (`checks`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use url::Url;

use super::{
    authorization_server::{is_address, names, needed, title},
    identity::{issuer, not_empty, scopes},
    interpolation::interpolate,
    reader::Reader,
};
use crate::base::Secret;
use crate::config::{Fields, Mistakes, Node, Wrong, reader::choice};
use crate::declare::{Allow, Kind, Provider, ProviderKind};

impl Reader<'_> {
    /// Reads one provider.
    pub(crate) fn provider(&mut self, node: &Node, key: &str, name: &str) -> Provider {
        let ignored = Mistakes::default();
        let any = Fields::of(node, key, &ignored);
        let kinds = [("openid", true), ("oauth", false)];
        let kind = |node: &Node| choice(&node.text()?, &kinds);
        let is_openid = match any.member("kind").map(|node| (node, kind(node))) {
            Some((node, Err(wrong))) => {
                self.wrong(wrong, &node.place, &any.key("kind"));
                true
            }
            Some((_, Ok(is_openid))) => is_openid,
            None => true,
        };
        let fields = Fields::of(node, key, self.mistakes);
        fields.order(&["kind", "title", "issuer", "client_id", "client_secret"]);
        fields.order(&["scopes", "allow"]);
        needed(&fields, node, "client_id", "write our client id there");
        let (kind, default) = if is_openid {
            (openid(&fields, node), &OPENID_SCOPES[..])
        } else {
            (oauth(&fields, node), &[][..])
        };
        let default: Vec<String> = default.iter().map(|scope| (*scope).to_owned()).collect();
        let asked = |node: &Node| {
            let asked = scopes(node)?;
            if is_openid && !asked.iter().any(|scope| scope == "openid") {
                // OpenID Connect Core, section 3.1.2.1.
                let remedy = "add openid, without which there is no ID token";
                return Err(Wrong::new("asks for no openid", remedy));
            }
            Ok(asked)
        };
        let env = self.env;
        let text = |node: &Node| interpolate(&node.text()?, env).and_then(not_empty);
        let hidden = |node: &Node| text(node).map(|text| Some(Secret::new(text)));
        let provider = Provider {
            name: name.to_owned(),
            title: fields.read("title", name.to_owned(), title),
            kind,
            client_id: fields.read("client_id", String::new(), text),
            client_secret: fields.read("client_secret", None, hidden),
            scopes: fields.read("scopes", default, asked),
            allow: allow(&fields, is_openid),
        };
        if provider.allow.is_empty() && provider.is_public() {
            let what = "is missing or empty, and this provider knows everybody of the world";
            let remedy = "say who may come in: allow: {domains: [example.com]} or subjects";
            fields.wrong("allow", &fields.place, Wrong::new(what, remedy));
        }
        fields.end();
        provider
    }

    /// Reports providers with the same issuer: they would merge subjects of different users.
    pub(super) fn distinct(&mut self, tenant: &Fields<'_>, all: &BTreeMap<String, Arc<Provider>>) {
        let mut seen = HashMap::new();
        for (name, provider) in all {
            let issuer = provider.issuer();
            if issuer.is_empty() {
                continue;
            }
            if let Some(other) = seen.insert(issuer, name) {
                let key = format!("{}.{name}", tenant.key(Kind::Provider.plural()));
                let what = format!("has the issuer of {other}: their subjects would be the same");
                let place = self.places.get(&key).unwrap_or(&tenant.place).clone();
                let wrong = Wrong::new(what, "keep one of the two");
                self.wrong(wrong, &place, &format!("{key}.issuer"));
            }
        }
    }
}

fn openid(fields: &Fields<'_>, node: &Node) -> ProviderKind {
    needed(fields, node, "issuer", "write its issuer, https://…");
    let claim = |node: &Node| node.text().and_then(not_empty);
    ProviderKind::OpenId {
        issuer: fields.read("issuer", String::new(), issuer),
        groups_claim: fields.read("groups_claim", "groups".to_owned(), claim),
    }
}

fn oauth(fields: &Fields<'_>, node: &Node) -> ProviderKind {
    let called = "write what it is called in subjects, like https://github.com/login/oauth";
    needed(fields, node, "issuer", called);
    for key in ["authorization_url", "token_url", "user_url"] {
        needed(fields, node, key, "write its URL, https://…");
    }
    let member = |node: &Node| node.text().and_then(not_empty);
    let url = |key| fields.read(key, String::new(), web);
    ProviderKind::OAuth {
        authorization_url: url("authorization_url"),
        token_url: url("token_url"),
        user_url: url("user_url"),
        issuer: fields.read("issuer", String::new(), issuer),
        subject_member: fields.read("subject_member", "id".to_owned(), member),
    }
}

fn allow(provider: &Fields<'_>, is_openid: bool) -> Allow {
    let Some(fields) = provider.inner("allow") else {
        return Allow::default();
    };
    for key in ["domains", "groups"] {
        if let Some(place) = fields.place_of(key).filter(|_| !is_openid) {
            let what = "cannot be known where kind is oauth";
            fields.wrong(key, place, Wrong::new(what, "list subjects"));
        }
    }
    let read = Allow {
        subjects: fields.read("subjects", Vec::new(), names),
        domains: fields.read("domains", Vec::new(), domains),
        groups: fields.read("groups", Vec::new(), names),
    };
    fields.end();
    read
}

fn domains(node: &Node) -> Result<Vec<String>, Wrong> {
    let domains = names(node)?;
    let is_domain = |text: &String| is_address(&format!("x@{text}"));
    match domains.iter().find(|text| !is_domain(text)) {
        None => Ok(domains),
        Some(text) => {
            let what = format!("{text:?} is no domain");
            Err(Wrong::new(
                what,
                "write it like example.com, in small letters",
            ))
        }
    }
}

/// Parses an http or https URL with a host, without fragment or user name.
fn web(node: &Node) -> Result<String, Wrong> {
    let text = node.text()?;
    let wrong = |what: &str| Wrong::new(format!("{text:?} {what}"), "write its URL, https://…");
    let url = Url::parse(&text).map_err(|_| wrong("is no URL"))?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        return Err(wrong("is no https URL"));
    }
    if url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a fragment or a user name"));
    }
    Ok(text)
}

const OPENID_SCOPES: [&str; 3] = ["openid", "profile", "email"];

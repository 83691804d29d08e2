//! The reader of users, clients and `auth` in mode `builtin`.
//!
//! Every mistake names its key and a remedy, and no secret. Not here: identity providers
//! (`provider`).

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value as Json;

use super::{
    identity::{not_empty, scopes},
    interpolation::interpolate,
    reader::Reader,
};
use crate::base::Secret;
use crate::config::{Fields, Mistakes, Node, Value, Wrong, reader::name};
use crate::declare::{
    Builtin, DeclaredClient, Kind, PASSWORD, PASSWORD_HASH, User,
    password::{check_hash, check_password},
    redirect::check_redirect_uri,
};

impl Reader<'_> {
    /// Reads a tenant's own authorization server; `auth` is optional.
    pub(crate) fn builtin(&mut self, tenant: &Fields<'_>, auth: Option<&Fields<'_>>) -> Builtin {
        let users = self.each(tenant, Kind::User, user_name, Self::user);
        let clients = self.each(tenant, Kind::Client, client_id, Self::client);
        let providers = self.each(tenant, Kind::Provider, name, Self::provider);
        self.distinct(tenant, &providers);
        if let Some(auth) = auth {
            auth.order(&["scopes"]);
        }
        let flag = |key| auth.is_none_or(|auth| auth.read(key, true, Node::flag));
        let (registration, documents) = (flag("registration"), flag("documents"));
        let asked = |auth: &Fields<'_>| auth.read("scopes", Vec::new(), scopes);
        Builtin {
            users,
            clients,
            providers,
            scopes: auth.map(asked).unwrap_or_default(),
            registration,
            documents,
        }
    }

    /// Reports users, clients and providers without mode `builtin`.
    pub(crate) fn useless_identities(&mut self, tenant: &Fields<'_>) {
        for kind in [Kind::User, Kind::Client, Kind::Provider] {
            let Some(node) = tenant.member(kind.plural()) else {
                continue;
            };
            // Mistakes within were reported before.
            let ignored = Mistakes::default();
            let members = Fields::of(node, &tenant.key(kind.plural()), &ignored);
            for (name, node) in members.members() {
                let what = "means nothing where auth.mode is not builtin";
                let wrong = Wrong::new(what, "write auth: {mode: builtin}, or leave it out");
                self.wrong(wrong, &node.place, &members.key(name));
            }
        }
    }

    /// Reads the objects of a kind, by name.
    fn each<T>(
        &mut self,
        tenant: &Fields<'_>,
        kind: Kind,
        check: fn(&str) -> Result<String, Wrong>,
        read: fn(&mut Self, &Node, &str, &str) -> T,
    ) -> BTreeMap<String, Arc<T>> {
        let mut all = BTreeMap::new();
        let Some(members) = tenant.inner(kind.plural()) else {
            return all;
        };
        for (name, node) in members.members() {
            let key = members.key(name);
            if let Err(wrong) = check(name) {
                self.wrong(wrong, &node.place, &key);
            }
            self.places.insert(key.clone(), node.place.clone());
            all.insert(name.to_owned(), Arc::new(read(self, node, &key, name)));
        }
        all
    }

    fn user(&mut self, node: &Node, key: &str, name: &str) -> User {
        let fields = Fields::of(node, key, self.mistakes);
        let env = self.env;
        let text = |node: &Node| interpolate(&node.text()?, env);
        let plain = |node: &Node| {
            let wrong = |what| Wrong::new(what, "choose a longer one, of at most 1024 bytes");
            check_password(&text(node)?).map_err(wrong)
        };
        fields.read(PASSWORD, (), plain);
        let hash = |node: &Node| {
            let text = text(node)?;
            let remedy =
                "write an Argon2id hash like $$argon2id$$v=19$$m=19456,t=2,p=1$$…, or password";
            check_hash(&text).map_err(|what| Wrong::new(what, remedy))?;
            Ok(Some(Secret::new(text)))
        };
        let user = User {
            name: name.to_owned(),
            password: fields.read(PASSWORD_HASH, None, hash),
            groups: fields.read("groups", Vec::new(), names),
            admin: fields.read("admin", false, no_admin),
            disabled: fields.read("disabled", false, Node::flag),
        };
        if fields.member(PASSWORD).is_some() && fields.member(PASSWORD_HASH).is_some() {
            let wrong = Wrong::new("stands beside password", "keep one of the two");
            fields.wrong(PASSWORD_HASH, &fields.place, wrong);
        }
        fields.end();
        user
    }

    fn client(&mut self, node: &Node, key: &str, id: &str) -> DeclaredClient {
        let fields = Fields::of(node, key, self.mistakes);
        needed(&fields, node, "redirect_uris", "list where its answers go");
        let env = self.env;
        let secret = |node: &Node| {
            let text = interpolate(&node.text()?, env)?;
            let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
            if text.len() < MIN_SECRET || !is_plain {
                let what = "is shorter than 16 letters, or not of ASCII";
                let remedy = "make a random one, for example by openssl rand -hex 32";
                return Err(Wrong::new(what, remedy));
            }
            Ok(Some(Secret::new(text)))
        };
        let client = DeclaredClient {
            id: id.to_owned(),
            title: fields.read("title", id.to_owned(), title),
            redirect_uris: fields.read("redirect_uris", Vec::new(), redirect_uris),
            secret: fields.read("secret", None, secret),
            jwks: None,
        };
        let jwks = jwks(&fields);
        if client.secret.is_some() && jwks.is_some() {
            let what = "stands beside secret: a client proves itself in one way";
            let wrong = Wrong::new(what, "keep one of the two");
            fields.wrong("jwks", &fields.place, wrong);
        }
        fields.end();
        DeclaredClient { jwks, ..client }
    }
}

/// The public keys of a client (RFC 7517), as JSON.
fn jwks(client: &Fields<'_>) -> Option<String> {
    let fields = client.inner("jwks")?;
    let keys = |node: &Node| {
        let keys = node.items()?;
        let keys = keys.iter().map(public_key);
        let keys = keys.collect::<Result<Vec<Json>, Wrong>>()?;
        if keys.is_empty() {
            return Err(Wrong::new("holds no key", "write one, or leave jwks out"));
        }
        Ok(keys)
    };
    needed_in(&fields, "keys", "list the client's public keys");
    let keys = fields.read("keys", Vec::new(), keys);
    fields.end();
    (!keys.is_empty()).then(|| serde_json::json!({"keys": keys}).to_string())
}

/// Reports a missing key of a table.
pub(super) fn needed(fields: &Fields<'_>, node: &Node, key: &str, remedy: &str) {
    // A value of another type was reported already.
    if matches!(node.value, Value::Map(_)) {
        needed_in(fields, key, remedy);
    }
}

fn needed_in(fields: &Fields<'_>, key: &str, remedy: &str) {
    if fields.place_of(key).is_none() {
        fields.wrong(key, &fields.place, Wrong::new("is missing", remedy));
    }
}

/// Parses a user name. It is the subject of tokens, so it must not look like a provider's subject,
/// nor differ from another name by case alone.
fn user_name(text: &str) -> Result<String, Wrong> {
    if name(text).is_ok() || is_address(text) {
        return Ok(text.to_owned());
    }
    let remedy = "use a-z, 0-9 and -, or an e-mail address in small letters";
    Err(Wrong::new(format!("{text:?} is no name of a user"), remedy))
}

pub(super) fn is_address(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_local = |byte: u8| is_plain(byte) || b"._-".contains(&byte);
    let is_label = |label: &str| {
        let is_letter = |byte| is_plain(byte) || byte == b'-';
        label.bytes().next().is_some_and(is_plain) && label.bytes().all(is_letter)
    };
    let Some((local, domain)) = text.split_once('@') else {
        return false;
    };
    let begins = local.bytes().next().is_some_and(is_plain);
    begins && local.bytes().all(is_local) && text.len() <= 254 && domain.split('.').all(is_label)
}

/// Parses a client id that no registered client and no metadata document can have.
fn client_id(text: &str) -> Result<String, Wrong> {
    let wrong = |what: &str, remedy: &str| Err(Wrong::new(format!("{text:?} {what}"), remedy));
    if text.starts_with("http://") || text.starts_with("https://") {
        return wrong(
            "is that of a metadata document",
            "choose a name, or leave it out",
        );
    }
    if text.starts_with("c_") {
        return wrong(
            "looks like one that registered itself",
            "do not begin it with c_",
        );
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && text.len() <= 128 && text.bytes().all(is_letter) {
        return Ok(text.to_owned());
    }
    let remedy = "use letters, digits, -, _ and ., at most 128, the first a letter or digit";
    wrong("is no client id", remedy)
}

pub(crate) fn title(node: &Node) -> Result<String, Wrong> {
    let text = node.text().and_then(not_empty)?;
    if text.chars().count() > 100 || text.chars().any(char::is_control) {
        return Err(Wrong::new(
            "is no title",
            "write at most 100 letters on one line",
        ));
    }
    Ok(text)
}

pub(crate) fn names(node: &Node) -> Result<Vec<String>, Wrong> {
    let mut names = Vec::new();
    for item in node.items()? {
        let name = item.text().and_then(not_empty)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn redirect_uris(node: &Node) -> Result<Vec<String>, Wrong> {
    let uris = names(node)?;
    if uris.is_empty() {
        return Err(Wrong::new("names no URI", "list where its answers go"));
    }
    for uri in &uris {
        if let Err(what) = check_redirect_uri(uri) {
            let remedy = "write https://…, http:// on loopback, or an app's own scheme";
            return Err(Wrong::new(format!("{uri:?}: {what}"), remedy));
        }
    }
    Ok(uris)
}

/// Reads a public key as JSON; a private key must not be in a manifest.
fn public_key(node: &Node) -> Result<Json, Wrong> {
    let Value::Map(members) = &node.value else {
        let what = format!("holds {} where a key is expected", node.kind());
        return Err(Wrong::new(what, "write a JWK: {kty: …}"));
    };
    let has = |name: &str| members.iter().any(|(member, _)| member == name);
    let kind = members.iter().find(|(member, _)| member == "kty");
    let kind = kind.and_then(|(_, node)| node.text().ok());
    if !matches!(kind.as_deref(), Some("RSA" | "EC" | "OKP")) {
        let what = "holds a key whose kty is none of RSA, EC, OKP";
        return Err(Wrong::new(what, "write the public half of a key pair"));
    }
    if ["d", "p", "q", "k"].into_iter().any(has) {
        let what = "holds a private key";
        return Err(Wrong::new(
            what,
            "write its public members alone, and make a new pair",
        ));
    }
    plain_json(node)
}

fn plain_json(node: &Node) -> Result<Json, Wrong> {
    match &node.value {
        Value::Nothing => Ok(Json::Null),
        Value::Flag(flag) => Ok((*flag).into()),
        Value::Whole(whole) => Ok((*whole).into()),
        Value::Text(text) => Ok(text.clone().into()),
        Value::List(items) => items.iter().map(plain_json).collect(),
        Value::Map(members) => {
            let member = |(name, node): &(String, Node)| Ok((name.clone(), plain_json(node)?));
            members.iter().map(member).collect()
        }
        Value::Other(what) => {
            let what = format!("holds {what}, which no key has");
            Err(Wrong::new(what, "write the key as it was made"))
        }
    }
}

fn no_admin(node: &Node) -> Result<bool, Wrong> {
    if node.flag()? {
        let what = "is not available yet: users administrate nothing";
        let remedy = "make an API key with the scope admin (lockgate key add)";
        return Err(Wrong::new(what, remedy));
    }
    Ok(false)
}

/// Minimum letters of a client secret.
const MIN_SECRET: usize = 16;

#[cfg(test)]
#[path = "tests/authorization_server.rs"]
mod tests;

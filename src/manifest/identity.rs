//! Reader of `auth`, `api_keys` and `grants`, and of operators' API keys.

use std::{collections::BTreeSet, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use url::Url;

use super::reader::Reader;
use crate::config::{
    Fields, Mistake, Mistakes, Node, Value, Wrong,
    reader::{choice, nearest},
};
use crate::declare::{
    ALGORITHMS, Algorithm, ApiKey, ApiKeys, AuthMode, External, Grants, OperatorKey, Servers,
};

impl OperatorKey {
    /// Reads the key `name` and its hash from `spec`.
    ///
    /// # Errors
    ///
    /// Every mistake.
    pub(crate) fn read(name: &str, spec: &Node) -> Result<([u8; 32], Self), Vec<Mistake>> {
        let (found, key) = (Mistakes::default(), format!("api_keys.{name}"));
        let fields = Fields::of(spec, &key, &found);
        if fields.member("hash").is_none() {
            let wrong = Wrong::new("is missing", HASH_REMEDY);
            fields.wrong("hash", &fields.place, wrong);
        }
        if let Err(wrong) = crate::config::reader::name(name) {
            found.add(wrong.at(&fields.place, &key));
        }
        let expires = |node: &Node| moment(node).map(Some);
        let expires = fields.read("expires", None, expires);
        let sha256 = fields.read("hash", None, |node| hash(&node.text()?).map(Some));
        fields.end();
        let name = name.to_owned();
        let key = Self { name, expires };
        // Without a hash a mistake was reported.
        found.result((sha256.unwrap_or_default(), key))
    }
}

impl Reader<'_> {
    /// Reads the mode of a tenant, with the declarations of its own authorization server. The
    /// default is `builtin`, which authenticates every caller.
    pub(crate) fn auth(&mut self, tenant: &Fields<'_>) -> AuthMode {
        let key = tenant.key("auth");
        let Some(node) = tenant.member("auth") else {
            return AuthMode::Builtin(Arc::new(self.builtin(tenant, None)));
        };
        self.places.insert(key.clone(), node.place.clone());
        if !matches!(node.value, Value::Map(_)) {
            Fields::of(node, &key, self.mistakes);
            return AuthMode::None;
        }
        // The known keys depend on the mode.
        let fields = Fields::of(node, &key, self.mistakes);
        let mode = fields.member("mode").map(Node::text);
        let mode = mode.transpose().ok().map(Option::unwrap_or_default);
        let named = |node: &Node| match node.text()?.as_str() {
            "none" | "keys" | "external" | "builtin" => Ok(true),
            other => Err(Wrong::new(format!("{other:?} is no mode"), MODE_REMEDY)),
        };
        let is_known = fields.member("mode").is_none() || fields.read("mode", false, named);
        let is_builtin = matches!(mode.as_deref(), Some("builtin" | ""));
        let builtin = self.builtin(tenant, is_builtin.then_some(&fields));
        let found = match mode.as_deref() {
            Some("external") => AuthMode::External(Arc::new(self.external(&fields))),
            Some("keys") => AuthMode::Keys,
            _ if is_builtin => AuthMode::Builtin(Arc::new(builtin)),
            _ => AuthMode::None,
        };
        fields.end();
        if is_known && !is_builtin {
            self.useless_identities(tenant);
        }
        found
    }

    fn external(&mut self, fields: &Fields<'_>) -> External {
        if fields.member("issuer").is_none() {
            let remedy = "write the issuer as its tokens have it in iss, https://…";
            let wrong = Wrong::new("is missing", remedy);
            self.wrong(wrong, &fields.place, &fields.key("issuer"));
        }
        let place = fields.member("issuer").map(|node| node.place.clone());
        self.places
            .extend(place.map(|place| (fields.key("issuer"), place)));
        let groups = |node: &Node| not_empty(node.text()?);
        External {
            issuer: fields.read("issuer", String::new(), issuer),
            algorithms: fields.read("algorithms", all_algorithms(), algorithms),
            groups_claim: fields.read("groups_claim", "groups".to_owned(), groups),
            scopes: fields.read("scopes", Vec::new(), scopes),
        }
    }

    /// Reads the API keys of a tenant with the servers `known`.
    pub(crate) fn api_keys(
        &mut self,
        tenant: &Fields<'_>,
        auth: &AuthMode,
        known: &[&str],
    ) -> ApiKeys {
        let mut keys = ApiKeys::new();
        let Some(members) = tenant.inner("api_keys") else {
            return keys;
        };
        for (name, node) in members.members() {
            let key = members.key(name);
            self.name(name, node, &key);
            if *auth == AuthMode::None {
                let what = "means nothing where auth.mode is none: everybody may call";
                let remedy = "write auth: {mode: keys}, or leave the keys out";
                self.wrong(Wrong::new(what, remedy), &node.place, &key);
            }
            let Some((hash, read)) = self.api_key(node, &key, name, known) else {
                continue;
            };
            if let Some(other) = keys.insert(hash, Arc::new(read)) {
                let what = format!("is the hash of {} too", other.name);
                let wrong = Wrong::new(what, "make a key of its own: lockgate key new");
                self.wrong(wrong, &node.place, &format!("{key}.hash"));
            }
        }
        keys
    }

    /// Reads one API key; none without a hash.
    fn api_key(
        &mut self,
        node: &Node,
        key: &str,
        name: &str,
        known: &[&str],
    ) -> Option<([u8; 32], ApiKey)> {
        let fields = Fields::of(node, key, self.mistakes);
        fields.order(&["hash", "subject", "scopes"]);
        for (needed, remedy) in NEEDED {
            if fields.place_of(needed).is_none() && matches!(node.value, Value::Map(_)) {
                let wrong = Wrong::new("is missing", remedy);
                fields.wrong(needed, &fields.place, wrong);
            }
        }
        let none = Servers::Named(BTreeSet::new());
        let read = ApiKey {
            name: name.to_owned(),
            subject: fields.read("subject", String::new(), |node| not_empty(node.text()?)),
            scopes: fields.read("scopes", Vec::new(), scopes).into(),
            servers: fields.read("servers", none, |node| servers(node, known)),
            expires: fields.read("expires", None, |node| moment(node).map(Some)),
        };
        let hash = fields.read("hash", None, |node| hash(&node.text()?).map(Some));
        fields.end();
        hash.map(|hash| (hash, read))
    }
}

/// Reads the grants of a server; none for all callers of its tenant.
pub(super) fn grants(server: &Fields<'_>) -> Option<Grants> {
    let fields = server.inner("grants")?;
    let names = |node: &Node| {
        let texts = node
            .items()?
            .into_iter()
            .map(|item| not_empty(item.text()?));
        texts.collect::<Result<BTreeSet<String>, Wrong>>()
    };
    let read = Grants {
        users: fields.read("users", BTreeSet::new(), names),
        groups: fields.read("groups", BTreeSet::new(), names),
        clients: fields.read("clients", BTreeSet::new(), names),
    };
    fields.end();
    Some(read)
}

/// The mistake of grants in a tenant without authentication.
pub(crate) fn useless_grants() -> Wrong {
    let what = "means nothing where auth.mode is none: everybody may call";
    Wrong::new(what, "write another auth.mode, or leave the grants out")
}

/// Parses an issuer identifier, kept as written: a URL without query or fragment (RFC 8414, section
/// 2).
pub(crate) fn issuer(node: &Node) -> Result<String, Wrong> {
    let text = node.text()?;
    let wrong = |what: &str| {
        let remedy = "write the issuer as its tokens have it in iss, https://…";
        Wrong::new(format!("{text:?} {what}"), remedy)
    };
    let url = Url::parse(&text).map_err(|_| wrong("is no URL"))?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        return Err(wrong("is no https URL"));
    }
    if text.contains(['?', '#']) {
        return Err(wrong("has a query or a fragment"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a user name"));
    }
    Ok(text)
}

fn algorithms(node: &Node) -> Result<Vec<Algorithm>, Wrong> {
    let items = node.items()?;
    if items.is_empty() {
        let remedy = "leave the key out, or write [RS256]";
        return Err(Wrong::new("names no algorithm", remedy));
    }
    let one = |item: &Node| choice(&item.text()?, &ALGORITHMS);
    items.iter().map(one).collect()
}

fn all_algorithms() -> Vec<Algorithm> {
    ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec()
}

/// Parses scope tokens (RFC 6749, section 3.3), without duplicates.
pub(crate) fn scopes(node: &Node) -> Result<Vec<String>, Wrong> {
    let is_token = |text: &str| {
        let fits = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        !text.is_empty() && text.bytes().all(fits)
    };
    let mut scopes = Vec::new();
    for item in node.items()? {
        let text = item.text()?;
        if !is_token(&text) {
            let remedy = "write one scope an item, without blanks, quotes and backslashes";
            return Err(Wrong::new(format!("{text:?} is no scope"), remedy));
        }
        if !scopes.contains(&text) {
            scopes.push(text);
        }
    }
    Ok(scopes)
}

fn servers(node: &Node, known: &[&str]) -> Result<Servers, Wrong> {
    let mut names = BTreeSet::new();
    for item in node.items()? {
        let text = item.text()?;
        if text == "*" {
            return Ok(Servers::All);
        }
        known_server(&text, known, "name one of its servers, or \"*\"")?;
        names.insert(text);
    }
    if names.is_empty() {
        return Err(Wrong::new("names no server", "name one, or \"*\" for all"));
    }
    Ok(Servers::Named(names))
}

/// Checks that `text` is one of the servers `known`.
pub(crate) fn known_server(text: &str, known: &[&str], remedy: &str) -> Result<(), Wrong> {
    if known.contains(&text) {
        return Ok(());
    }
    let near = nearest(text, known.iter().copied());
    let near = near.map(|near| format!("did you mean {near}?"));
    let what = format!("{text:?} is no server of this tenant");
    Err(Wrong::new(what, near.unwrap_or_else(|| remedy.to_owned())))
}

/// Parses a point in time, to seconds since the epoch.
fn moment(node: &Node) -> Result<u64, Wrong> {
    let text = node.text()?;
    let parsed = OffsetDateTime::parse(&text, &Rfc3339).ok();
    let seconds = parsed.and_then(|moment| u64::try_from(moment.unix_timestamp()).ok());
    seconds.ok_or_else(|| {
        let what = format!("{text:?} is no point in time");
        Wrong::new(what, "write it like 2027-01-31T12:00:00Z (RFC 3339)")
    })
}

/// Parses the SHA-256 of a key's text.
fn hash(text: &str) -> Result<[u8; 32], Wrong> {
    // Without the value, which may be the key itself by mistake.
    let wrong = || Wrong::new("is no hash", HASH_REMEDY);
    let hex = text.strip_prefix("sha256:").ok_or_else(wrong)?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if hex.len() != 64 || !hex.bytes().all(is_hex) {
        return Err(wrong());
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}

pub(crate) fn not_empty(text: String) -> Result<String, Wrong> {
    if text.is_empty() {
        Err(Wrong::new("is empty", "write a name"))
    } else {
        Ok(text)
    }
}

const MODE_REMEDY: &str =
    "write auth: {mode: builtin}, {mode: external, issuer: URL}, {mode: keys} or {mode: none}";
const HASH_REMEDY: &str = "write sha256:… as lockgate key new prints it";
/// The required members of an API key.
const NEEDED: [(&str, &str); 3] = [
    ("hash", HASH_REMEDY),
    ("subject", "name whom it acts for"),
    ("servers", "name the servers that it may use, or \"*\""),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::Format;
    use crate::manifest::reader::parse;

    use super::super::identity::*;

    fn read(text: &str) -> Result<Arc<crate::declare::Tenant>, String> {
        let manifest = parse("F", text, Format::Yaml, &BTreeMap::new()).map_err(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
        Ok(Arc::clone(&manifest.catalog.tenants["a"]))
    }

    #[test]
    fn reads_every_key() {
        let hash = "0f".repeat(32);
        let tenant = read(&format!(
            "tenants:
  a:
    auth: {{mode: external, issuer: \"https://i.test/\", algorithms: [ES256, EdDSA],
      groups_claim: roles, scopes: [b, a, b]}}
    api_keys:
      ci: {{hash: \"sha256:{hash}\", subject: ada, scopes: [s], servers: [x],
        expires: \"2026-01-31T13:00:00.5+01:00\"}}
    servers: {{x: {{command: cat, grants: {{users: [ada], groups: [g], clients: [ci]}}}}}}
"
        ))
        .unwrap();
        let AuthMode::External(external) = &tenant.auth else {
            panic!("{:?}", tenant.auth)
        };
        assert_eq!(external.issuer, "https://i.test/");
        assert_eq!(external.algorithms, [Algorithm::Es256, Algorithm::EdDsa]);
        assert_eq!(external.groups_claim, "roles");
        assert_eq!(external.scopes, ["b", "a"]);
        let key = &tenant.api_keys[&[15; 32]];
        assert_eq!((key.name.as_str(), key.subject.as_str()), ("ci", "ada"));
        assert_eq!(
            (key.scopes[0].as_str(), key.expires),
            ("s", Some(1_769_860_800))
        );
        assert!(key.servers.contains("x") && !key.servers.contains("y"));
        let grants = tenant.servers["x"].grants.as_ref().unwrap();
        assert!(grants.include("ada", &[], None) && grants.include("-", &[], Some("ci")));
        assert!(grants.include("-", &["g".to_owned()], None) && !grants.include("-", &[], None));
        let keys = read("tenants: {a: {auth: {mode: keys}, servers: {}}}").unwrap();
        assert_eq!((&keys.auth, keys.api_keys.len()), (&AuthMode::Keys, 0));
    }

    #[test]
    fn all_mistakes_at_once() {
        let hash = "0f".repeat(32);
        let found = read(&format!(
            "tenants:
  a:
    auth: {{mode: external, issuer: \"https://i.test/?x\", algorithms: [HS256], scopes: [\"a b\"],
      audience: x}}
    api_keys:
      CI: {{hash: \"lgk_secret\", subject: \"\", servers: [y]}}
      one: {{hash: \"sha256:{hash}\", subject: ada, servers: []}}
      two: {{hash: \"sha256:{hash}\", subject: ada, servers: [\"*\"], expires: soon}}
      bare: {{}}
    servers: {{x: {{command: cat, grants: {{users: [\"\"], roles: []}}}}}}
  b:
    auth: {{mode: none, issuer: \"https://i.test\"}}
    api_keys: {{k: {{hash: \"sha256:{hash}\", subject: ada, servers: [x]}}}}
    servers: {{x: {{command: cat, grants: {{}}}}}}
  c: {{auth: {{mode: external}}}}
  d: {{auth: {{mode: external, issuer: i.test}}}}
"
        ))
        .unwrap_err();
        assert!(!found.contains("lgk_secret"), "{found}");
        insta::assert_snapshot!(found, @r###"
        F:4: tenants.a.auth.audience: unknown key; known here: mode, issuer, algorithms, groups_claim, scopes
        F:3: tenants.a.auth.issuer: "https://i.test/?x" has a query or a fragment; write the issuer as its tokens have it in iss, https://…
        F:3: tenants.a.auth.algorithms: "HS256" is none of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA; did you mean ES256?
        F:3: tenants.a.auth.scopes: "a b" is no scope; write one scope an item, without blanks, quotes and backslashes
        F:10: tenants.a.servers.x.grants.roles: unknown key; known here: users, groups, clients
        F:10: tenants.a.servers.x.grants.users: is empty; write a name
        F:6: tenants.a.api_keys.CI: "CI" is not a name; use a-z, 0-9 and -, at most 63, the first not -
        F:6: tenants.a.api_keys.CI.subject: is empty; write a name
        F:6: tenants.a.api_keys.CI.servers: "y" is no server of this tenant; did you mean x?
        F:6: tenants.a.api_keys.CI.hash: is no hash; write sha256:… as lockgate key new prints it
        F:9: tenants.a.api_keys.bare.hash: is missing; write sha256:… as lockgate key new prints it
        F:9: tenants.a.api_keys.bare.subject: is missing; name whom it acts for
        F:9: tenants.a.api_keys.bare.servers: is missing; name the servers that it may use, or "*"
        F:7: tenants.a.api_keys.one.servers: names no server; name one, or "*" for all
        F:8: tenants.a.api_keys.two.expires: "soon" is no point in time; write it like 2027-01-31T12:00:00Z (RFC 3339)
        F:8: tenants.a.api_keys.two.hash: is the hash of one too; make a key of its own: lockgate key new
        F:12: tenants.b.auth.issuer: unknown key; known here: mode
        F:14: tenants.b.servers.x.grants: means nothing where auth.mode is none: everybody may call; write another auth.mode, or leave the grants out
        F:13: tenants.b.api_keys.k: means nothing where auth.mode is none: everybody may call; write auth: {mode: keys}, or leave the keys out
        F:15: tenants.c.auth.issuer: is missing; write the issuer as its tokens have it in iss, https://…
        F:16: tenants.d.auth.issuer: "i.test" is no URL; write the issuer as its tokens have it in iss, https://…
        "###);
    }
}

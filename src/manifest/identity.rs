//! Reader of `auth`, `api_keys` and `grants`, and of operators' API keys.

use std::{collections::BTreeSet, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use url::Url;

use super::{
    reader::Reader,
    table::{Fields, Findings, Form, JsonSchema, Parser, parse},
};
use crate::base::{Secret, is_unseen, without_user};
use crate::config::{Mistake, Node, Value, Wrong, reader::nearest};
use crate::declare::{
    ALGORITHMS, Algorithm, ApiKey, ApiKeys, AuthMode, External, Grantees, Grants, GroupsClaim,
    Introspection, OperatorKey, Server, Servers,
};

impl OperatorKey {
    /// Reads the key `name` and its hash from `spec`.
    ///
    /// # Errors
    ///
    /// Every mistake.
    pub(crate) fn read(name: &str, spec: &Node) -> Result<([u8; 32], Self), Vec<Mistake>> {
        let (found, key) = (Findings::default(), format!("api_keys.{name}"));
        let fields = Fields::of(spec, &key, &found);
        fields.order(&["hash"]);
        fields.require("hash", HASH_REMEDY);
        if let Err(wrong) = crate::config::reader::name(name) {
            found.add(wrong.at(&fields.place, &key));
        }
        let expires = expires(&fields);
        let sha256 = hash(&fields);
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
        let introspection = self.introspection(tenant);
        let found = self.auth_mode(tenant, introspection);
        if let Some(node) = tenant.member("introspection")
            && !matches!(found, AuthMode::External(_))
        {
            let what = "means nothing where auth.mode is not external";
            let wrong = Wrong::new(what, "write auth: {mode: external}, or leave it out");
            self.wrong(wrong, &node.place, &tenant.path_of("introspection"));
        }
        found
    }

    fn auth_mode(&mut self, tenant: &Fields<'_>, introspection: Option<Introspection>) -> AuthMode {
        let auth = tenant.key(
            "auth",
            "Authentication of callers; by default tokens of the tenant's own authorization \
             server (builtin).",
        );
        let Some(fields) = auth.table() else {
            return AuthMode::Builtin(Arc::new(self.builtin(tenant, None)));
        };
        let fields = fields.defined("auth");
        self.places
            .insert(fields.path.clone(), fields.place.clone());
        if !fields.is_table {
            return AuthMode::None;
        }
        // The known keys depend on the mode.
        let (mode, is_known) = mode(&fields);
        let mode = fields.form("mode", &MODES, &mode);
        let is_builtin = mode == "builtin";
        let builtin = self.builtin(tenant, is_builtin.then_some(&fields));
        let found = match mode {
            "external" => AuthMode::External(Arc::new(self.external(&fields, introspection))),
            "keys" => AuthMode::Keys,
            "builtin" => AuthMode::Builtin(Arc::new(builtin)),
            _ => AuthMode::None,
        };
        fields.end();
        if is_known && !is_builtin {
            self.useless_identities(tenant);
        }
        found
    }

    fn external(&mut self, fields: &Fields<'_>, introspection: Option<Introspection>) -> External {
        let remedy = "write the issuer as its tokens have it in iss, https://…";
        fields.require("issuer", remedy);
        let place = fields.member("issuer").map(|node| node.place.clone());
        self.places
            .extend(place.map(|place| (fields.path_of("issuer"), place)));
        External {
            issuer: fields
                .key("issuer", "Its issuer identifier, compared byte for byte.")
                .optional(issuer())
                .unwrap_or_default(),
            algorithms: fields
                .key("algorithms", "Accepted signature algorithms.")
                .read(all_algorithms(), algorithms()),
            audiences: fields
                .key(
                    "audiences",
                    "Audiences of tokens besides the URL of the called server, for an issuer that cannot name it. A \
                     token for one of them is good at every server of the tenant.",
                )
                .optional(parse::set(word()))
                .unwrap_or_default(),
            groups: groups_claim(fields),
            scopes_claim: fields
                .key(
                    "scopes_claim",
                    "The claim with the scopes, a text or a list; by default scope, else scp. Dots lead into objects.",
                )
                .optional(word()),
            scopes: fields
                .key(
                    "scopes",
                    "Scopes that clients request at their first log-in.",
                )
                .optional(scopes())
                .unwrap_or_default(),
            introspection,
        }
    }

    /// Reads how an external authorization server is asked about opaque tokens.
    fn introspection(&self, tenant: &Fields<'_>) -> Option<Introspection> {
        let fields = tenant
            .key(
                "introspection",
                "How the external authorization server is asked about opaque tokens (RFC 7662); stored sealed, never \
                 shown. Without it they are refused.",
            )
            .table()?;
        fields.order(&["client_id", "client_secret"]);
        for (key, remedy) in [
            ("client_id", "write the client id of the gateway there"),
            (
                "client_secret",
                "write the secret of the gateway there: ${env:NAME}",
            ),
        ] {
            fields.require(key, remedy);
        }
        let client_id = fields
            .key("client_id", "The client ID of the gateway at that server.")
            .optional(word());
        let secret = self.text().check(|text| not_empty(text));
        let client_secret = fields
            .key("client_secret", "The secret of the gateway at that server.")
            .optional(secret.and(|text| Ok(Secret::new(text))));
        let url = fields
            .key(
                "url",
                "Its introspection endpoint; by default the one that its metadata name.",
            )
            .optional(issuer());
        fields.end();
        Some(Introspection {
            url,
            client_id: client_id?,
            client_secret: client_secret?,
        })
    }

    /// Reads the API keys of a tenant with the servers `known`.
    pub(crate) fn api_keys(
        &mut self,
        tenant: &Fields<'_>,
        auth: &AuthMode,
        known: &[&str],
    ) -> ApiKeys {
        let mut keys = ApiKeys::default();
        let entries = tenant
            .key("api_keys", "API keys by name.")
            .entries(parse::name());
        let Some(entries) = entries else {
            return keys;
        };
        for (name, node) in entries.members() {
            let key = entries.path_of(name);
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
        let fields = Fields::of(node, key, self.findings)
            .described("An API key, for machines.")
            .defined("api_key");
        fields.order(&["hash", "subject", "scopes"]);
        if fields.is_table {
            fields.require("hash", HASH_REMEDY);
            fields.require("subject", "name whom it acts for");
            fields.require("servers", "name the servers that it may use, or \"*\"");
        }
        let subject = fields
            .key("subject", "The subject that it acts for.")
            .optional(word().check(|text| check_actor(text)));
        let scopes = fields
            .key(
                "scopes",
                "OAuth scopes of the key; admin permits the administration of the tenant.",
            )
            .optional(scopes());
        let servers = fields
            .key("servers", "Servers that the key may use, or \"*\" for all.")
            .optional(servers(known));
        let read = ApiKey {
            name: name.to_owned(),
            subject: subject.unwrap_or_default(),
            scopes: scopes.unwrap_or_default().into(),
            servers: servers.unwrap_or_else(|| Servers::Named(BTreeSet::new())),
            expires: expires(&fields),
        };
        let hash = hash(&fields);
        fields.end();
        hash.map(|hash| (hash, read))
    }
}

/// Reads the mode of a tenant, and whether it is one; without the key it is builtin.
fn mode(auth: &Fields<'_>) -> (String, bool) {
    let named = |node: &Node| match node.text()?.as_str() {
        "none" | "keys" | "external" | "builtin" => Ok(()),
        other => Err(Wrong::new(format!("{other:?} is no mode"), MODE_REMEDY)),
    };
    let Some(node) = auth.member("mode") else {
        return ("builtin".to_owned(), true);
    };
    let mode = match node.text() {
        Ok(text) if text.is_empty() => "builtin".to_owned(),
        Ok(text) => text,
        Err(_) => String::new(),
    };
    let wrong = |wrong| auth.wrong("mode", &node.place, wrong);
    (mode, named(node).map_err(wrong).is_ok())
}

/// Reads the time of expiry of an API key.
fn expires(key: &Fields<'_>) -> Option<u64> {
    key.key("expires", "The time of expiry.").optional(moment())
}

/// Reads the claim of tokens with groups, and the names of these.
pub(super) fn groups_claim(fields: &Fields<'_>) -> GroupsClaim {
    let name = fields
        .key(
            "groups_claim",
            "The claim of tokens with the subject's groups. Dots lead into objects.",
        )
        .read("groups".to_owned(), word());
    let map = fields
        .key(
            "groups_map",
            "Groups by their names in the claim; others do not count. Absent: the names of the claim.",
        )
        .entries(word());
    let map = map.map(|entries| {
        let read = |(name, node)| {
            let group = entries.read(name, node, word().having("description", "A group."))?;
            Some((name.to_owned(), group))
        };
        entries.members().filter_map(read).collect()
    });
    GroupsClaim { name, map }
}

/// Reads the hash of an API key.
fn hash(key: &Fields<'_>) -> Option<[u8; 32]> {
    let hash = parse::text().having("pattern", "^sha256:");
    key.key(
        "hash",
        "SHA-256 of the key, as printed by lockgate key new.",
    )
    .optional(hash.and(|text| parse_hash(&text)))
}

/// Reads the grants of a server; none for all callers of its tenant.
pub(super) fn grants(server: &Fields<'_>) -> Option<Grants> {
    let fields = server
        .key(
            "grants",
            "Callers of the tenant that may use the server; absent means all.",
        )
        .table()?;
    let users = fields
        .key("users", "Subjects, or the scopes of each by its name.")
        .optional(grantees());
    let groups = fields
        .key(
            "groups",
            "Groups of people and access tokens, or the scopes of each by its name.",
        )
        .optional(grantees());
    let clients = fields
        .key(
            "clients",
            "Client IDs and names of API keys, or the scopes of each by its name.",
        )
        .optional(grantees());
    fields.end();
    Some(Grants {
        users: users.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
        clients: clients.unwrap_or_default(),
    })
}

/// A list of names, which may have every scope, or a table with the scopes of each; `["*"]` is every scope.
fn grantees<'p>() -> Parser<'p, Grantees> {
    let schema = || {
        let table = JsonSchema::of("object").with_schema("additionalProperties", scopes().schema());
        JsonSchema::default().with_any("anyOf", vec![parse::list(word()).schema(), table])
    };
    Parser::new(schema, |node| {
        let Value::Map(members) = &node.value else {
            let names = parse::list(word()).parse(node)?;
            return Ok(names.into_iter().map(|name| (name, None)).collect());
        };
        let mut grantees = Grantees::new();
        for (name, node) in members {
            not_empty(name)?;
            let scopes = scopes().parse(node).map_err(|wrong| wrong.of(name))?;
            let is_every = scopes.iter().any(|scope| scope == EVERY_SCOPE);
            let scopes = (!is_every).then(|| BTreeSet::from_iter(scopes));
            if grantees.insert(name.clone(), scopes).is_some() {
                return Err(Wrong::new(
                    format!("has {name} twice"),
                    "leave one of the two out",
                ));
            }
        }
        Ok(grantees)
    })
}

/// The mistakes of grants and policy that the authentication of the tenant makes useless, with their keys: who calls is
/// not known, or no token has the scope.
pub(crate) fn useless_access(server: &Server, auth: &AuthMode) -> Vec<(&'static str, Wrong)> {
    let (policy, grants) = (&server.policy, server.grants.as_ref());
    if *auth == AuthMode::None {
        let wrong = |what: &str| {
            let remedy = format!("write another auth.mode, or leave the {what} out");
            Wrong::new(
                "means nothing where auth.mode is none: everybody may call",
                remedy,
            )
        };
        let grants = grants.map(|_| ("grants", wrong("grants")));
        let groups = policy
            .has_groups()
            .then(|| ("policy.groups", wrong("groups")));
        return grants.into_iter().chain(groups).collect();
    }
    let own = auth.scopes().unwrap_or_default().iter();
    let known = own.chain(policy.all_scopes()).chain(policy.implying());
    let known: BTreeSet<&str> = known.map(String::as_str).collect();
    let granted = grants.into_iter().flat_map(Grants::scopes);
    let useless = granted.filter(|scope| !known.contains(scope.as_str()));
    let useless: BTreeSet<&String> = useless.collect();
    let wrong = |scope: &String| ("grants", useless_scope(scope, &known));
    useless.into_iter().map(wrong).collect()
}

fn useless_scope(scope: &str, known: &BTreeSet<&str>) -> Wrong {
    let what = format!("{scope:?} is a scope that no tool of the server requires");
    let remedy = nearest(scope, known.iter().copied()).map_or_else(
        || "add it to policy.scopes, or leave it out".to_owned(),
        |near| format!("did you mean {near}?"),
    );
    Wrong::new(what, remedy)
}

/// Refuses subjects by whose names the audit trail knows administrators and the gateway itself, and those that look
/// like another one.
pub(super) fn check_actor(subject: &str) -> Result<(), Wrong> {
    let is_gateway = matches!(subject, "manifest" | "start");
    let prefixes = ["operator:", "key:", "client:", "client#"];
    if subject.chars().any(is_unseen) {
        let what = format!(
            "{subject:?} holds a character that is not seen, or turns the direction of a text"
        );
        return Err(Wrong::new(what, "leave it out"));
    }
    if is_gateway || prefixes.iter().any(|prefix| subject.starts_with(prefix)) {
        let what = format!("{subject:?} may be another in the audit trail");
        let remedy = "choose one other than manifest and start, without operator:, key: and client: before it";
        return Err(Wrong::new(what, remedy));
    }
    Ok(())
}

/// An issuer identifier, kept as written: a URL without query or fragment (RFC 8414, section 2).
pub(crate) fn issuer<'p>() -> Parser<'p, String> {
    parse::text()
        .having("format", "uri")
        .check(|text| check_issuer(text))
}

fn check_issuer(text: &str) -> Result<(), Wrong> {
    let wrong = |what: &str| {
        let remedy = "write the issuer as its tokens have it in iss, https://…";
        Wrong::new(format!("{:?} {what}", without_user(text)), remedy)
    };
    let url = Url::parse(text).map_err(|_| wrong("is no URL"))?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        return Err(wrong("is no https URL"));
    }
    if text.contains(['?', '#']) {
        return Err(wrong("has a query or a fragment"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a user name"));
    }
    Ok(())
}

fn algorithms<'p>() -> Parser<'p, Vec<Algorithm>> {
    let algorithms = parse::list(parse::choice(&ALGORITHMS)).having("minItems", 1);
    algorithms.check(|algorithms| {
        if algorithms.is_empty() {
            let remedy = "leave the key out, or write [RS256]";
            return Err(Wrong::new("names no algorithm", remedy));
        }
        Ok(())
    })
}

fn all_algorithms() -> Vec<Algorithm> {
    ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec()
}

/// Scope tokens (RFC 6749, section 3.3), without duplicates.
pub(crate) fn scopes<'p>() -> Parser<'p, Vec<String>> {
    let scope = parse::text().having("pattern", SCOPE).check(|text| {
        let fits = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        if text.is_empty() || !text.bytes().all(fits) {
            let remedy = "write one scope an item, without blanks, quotes and backslashes";
            return Err(Wrong::new(format!("{text:?} is no scope"), remedy));
        }
        Ok(())
    });
    parse::set(scope)
}

/// Names of servers, or `*`.
fn servers<'p>(known: &'p [&str]) -> Parser<'p, Servers> {
    let schema = || {
        let all = JsonSchema::default().with("const", "*");
        let item = JsonSchema::default().with_any("anyOf", vec![all, parse::name().schema()]);
        JsonSchema::of("array")
            .with("minItems", 1)
            .with_schema("items", item)
    };
    Parser::new(schema, |node| {
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
    })
}

/// Checks that `text` is one of the servers `known`, which are sorted.
pub(crate) fn known_server(text: &str, known: &[&str], remedy: &str) -> Result<(), Wrong> {
    if known.binary_search(&text).is_ok() {
        return Ok(());
    }
    let near = nearest(text, known.iter().copied());
    let near = near.map(|near| format!("did you mean {near}?"));
    let what = format!("{text:?} is no server of this tenant");
    Err(Wrong::new(what, near.unwrap_or_else(|| remedy.to_owned())))
}

/// A point in time, in seconds since the epoch.
fn moment<'p>() -> Parser<'p, u64> {
    parse::text().having("format", "date-time").and(|text| {
        let parsed = OffsetDateTime::parse(&text, &Rfc3339).ok();
        let seconds = parsed.and_then(|moment| u64::try_from(moment.unix_timestamp()).ok());
        seconds.ok_or_else(|| {
            let what = format!("{text:?} is no point in time");
            Wrong::new(what, "write it like 2027-01-31T12:00:00Z (RFC 3339)")
        })
    })
}

/// Parses the SHA-256 of a key's text.
fn parse_hash(text: &str) -> Result<[u8; 32], Wrong> {
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

/// A text that is not empty, and can be shown and stored anywhere.
pub(crate) fn word<'p>() -> Parser<'p, String> {
    parse::text()
        .having("minLength", 1)
        .check(|text| not_empty(text).and_then(|()| printable(text)))
}

/// A database keeps no NUL, and what shows the name no control characters.
fn printable(name: &str) -> Result<(), Wrong> {
    if name.chars().any(char::is_control) {
        Err(Wrong::new("holds a control character", "leave it out"))
    } else {
        Ok(())
    }
}

pub(crate) fn not_empty(text: &str) -> Result<(), Wrong> {
    if text.is_empty() {
        Err(Wrong::new("is empty", "write a name"))
    } else {
        Ok(())
    }
}

/// The forms of `auth`.
static MODES: [Form; 3] = [
    Form {
        words: &["none", "keys"],
        table: "API keys only (keys), or no authentication (none, on loopback).",
        key: "The mode of authentication.",
        is_default: false,
    },
    Form {
        words: &["external"],
        table: "Access tokens of another authorization server; API keys work too.",
        key: "Another authorization server.",
        is_default: false,
    },
    Form {
        words: &["builtin"],
        table: "Access tokens of the tenant's own authorization server; API keys work too.",
        key: "Its own authorization server; the default.",
        is_default: true,
    },
];
/// What stands for every scope in grants.
const EVERY_SCOPE: &str = "*";
/// The pattern of a scope token.
pub(super) const SCOPE: &str = r"^[!#-\[\]-~]+$";
const MODE_REMEDY: &str =
    "write auth: {mode: builtin}, {mode: external, issuer: URL}, {mode: keys} or {mode: none}";
const HASH_REMEDY: &str = "write sha256:… as lockgate key new prints it";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::Format;
    use crate::declare::AllowedScopes;
    use crate::manifest::reader::parse;

    use super::super::identity::*;

    fn read(text: &str) -> Result<Arc<crate::declare::Tenant>, String> {
        let manifest = parse("F", text, Format::Yaml, &BTreeMap::new()).map_err(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
        Ok(Arc::clone(&manifest.catalog.tenants["a"]))
    }

    /// Names of no server took as long as keys times servers: a minute for twenty thousand.
    #[test]
    fn many_keys_of_unknown_servers_take_no_time() {
        let mut text = "tenants:\n  a:\n    auth: {mode: keys}\n    servers:\n".to_owned();
        for at in 0..2000 {
            text.push_str(&format!("      s{at:06}: {{command: cat}}\n"));
        }
        text.push_str("    api_keys:\n");
        for at in 0..2000 {
            let key = format!("hash: \"sha256:{at:064x}\", subject: ada, servers: [x{at:06}]");
            text.push_str(&format!("      k{at}: {{{key}}}\n"));
        }
        let began = crate::base::processor_time();
        let mistakes = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap_err();
        let took = crate::base::processor_time().checked_sub(began).unwrap();
        assert_eq!(mistakes.len(), 2000);
        let first = mistakes[0].to_string();
        assert!(
            first.contains("\"x000000\" is no server of this tenant; did you mean s000000?"),
            "{first}"
        );
        assert!(took < std::time::Duration::from_secs(4), "{took:?}");
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
        assert_eq!(external.groups.name, "roles");
        assert_eq!(external.scopes, ["b", "a"]);
        let key = &tenant.api_keys[&[15; 32]];
        assert_eq!((key.name.as_str(), key.subject.as_str()), ("ci", "ada"));
        assert_eq!(
            (key.scopes[0].as_str(), key.expires),
            ("s", Some(1_769_860_800))
        );
        assert!(key.servers.contains("x") && !key.servers.contains("y"));
        let grants = tenant.servers["x"].grants.as_ref().unwrap();
        let group = ["g".to_owned()];
        for (subject, groups, client, is_in) in [
            ("ada", &[][..], None, true),
            ("-", &[], Some("ci"), true),
            ("-", &group, None, true),
            ("-", &[], None, false),
        ] {
            let scopes = grants.scopes_of(subject, groups, client);
            assert_eq!(
                scopes,
                is_in.then_some(AllowedScopes::All),
                "{subject} {client:?}"
            );
        }
        let keys = read("tenants: {a: {auth: {mode: keys}, servers: {}}}").unwrap();
        assert_eq!((&keys.auth, keys.api_keys.len()), (&AuthMode::Keys, 0));
    }

    #[test]
    fn grants_with_scopes_add_up() {
        let tenant = read(
            "tenants: {a: {auth: {mode: keys}, servers: {x: {command: cat,
    policy: {scopes: {r: [read], w: [write], d: [drop]}, implies: {write: [read]}},
    grants: {users: {ada: [read]}, groups: {g: [write], all: [read, \"*\"], none: []}, clients: [ci]}}}}}",
        )
        .unwrap();
        let server = &tenant.servers["x"];
        for (subject, groups, client, wanted) in [
            ("ada", &[][..], None, Some("read")),
            ("ada", &["g"], None, Some("read write")),
            ("eve", &["g"], None, Some("read write")),
            ("eve", &["none"], None, Some("")),
            ("eve", &["none", "all"], None, Some("read write drop")),
            ("ada", &[], Some("ci"), Some("read write drop")),
            ("eve", &["h"], Some("app"), None),
        ] {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            let allowed = server.scopes_of(subject, &groups, client);
            let has = allowed.map(|allowed| {
                assert!(allowed.include(&server.policy, "offline_access"));
                let all = ["read", "write", "drop"].into_iter();
                let has: Vec<&str> = all
                    .filter(|scope| allowed.include(&server.policy, scope))
                    .collect();
                has.join(" ")
            });
            assert_eq!(has.as_deref(), wanted, "{subject} {groups:?} {client:?}");
        }
    }

    #[test]
    fn mistakes_in_what_groups_may_do() {
        let found = read(
            "tenants:
  a:
    auth: {mode: external, issuer: \"https://i.test\", scopes: [base], groups_map: {x: 1, \"\": b}}
    servers:
      x:
        command: cat
        policy: {scopes: {w: [write]}, implies: {admin: [write]}, groups: {\"\": {tool: {}}}}
        grants: {users: {ada: [writ, base, admin]}, groups: {g: read}, clients: {\"\": []}}
  b:
    auth: {mode: none}
    servers: {x: {command: cat, policy: {groups: {}}}}
",
        );
        insta::assert_snapshot!(found.unwrap_err(), @r#"
        F:3: tenants.a.auth.groups_map.: is empty; write a name
        F:3: tenants.a.auth.groups_map.x: a number where a text is expected; put it in quotes
        F:7: tenants.a.servers.x.policy.groups.: is empty; write a name
        F:7: tenants.a.servers.x.policy.groups..tool: unknown key; did you mean tools?
        F:8: tenants.a.servers.x.grants.groups: g: a text where a list is expected; write a list
        F:8: tenants.a.servers.x.grants.clients: is empty; write a name
        F:5: tenants.a.servers.x.grants: "writ" is a scope that no tool of the server requires; did you mean write?
        F:11: tenants.b.servers.x.policy.groups: means nothing where auth.mode is none: everybody may call; write another auth.mode, or leave the groups out
        "#);
    }

    #[test]
    fn no_mistake_repeats_the_password_of_a_url() {
        for url in [
            "https://u:SECRET@h",
            "https://u:SEC/RET@h",
            "ftp://u:SECRET@h",
        ] {
            let found = check_issuer(url).unwrap_err().what;
            assert!(found.contains("…@h\" "), "{found}");
            let found = crate::config::address::public_url(url).unwrap_err().what;
            assert!(found.contains("…@h\" "), "{found}");
            let provider = format!(
                "tenants: {{a: {{providers: {{p: {{kind: oauth, issuer: \"https://h\", client_id: c, \
                 token_url: \"{url}\"}}}}}}}}"
            );
            let found = read(&provider).unwrap_err();
            assert!(
                found.contains("token_url: \"") && found.contains("…@h\" "),
                "{found}"
            );
            assert!(!found.contains("RET"), "{found}");
        }
    }

    /// What a key with such a subject did would look like what another one did.
    #[test]
    fn subjects_that_look_alike_are_refused() {
        let with = |subject: &str| {
            let hash = "0f".repeat(32);
            read(&format!(
                "tenants:
  a:
    api_keys: {{k: {{hash: \"sha256:{hash}\", subject: \"{subject}\", servers: [x]}}}}
    servers: {{x: {{command: cat}}}}
"
            ))
        };
        for good in ["ada", "ädä", "エイダ", "ada lovelace"] {
            assert!(with(good).is_ok(), "{good}");
        }
        for unseen in [
            "\\u202eada",
            "a\\u200bda",
            "ada\\u200d",
            "\\u2066ada",
            "ada\\ufeff",
            "ada\\u00ad",
            "a\\u2028da",
        ] {
            let found = with(unseen).unwrap_err();
            assert!(
                found.contains("holds a character that is not seen"),
                "{found}"
            );
        }
        assert!(
            with("a\\u0007")
                .unwrap_err()
                .contains("holds a control character")
        );
    }

    /// What a key with such a subject did was recorded as an operator's.
    #[test]
    fn nobody_is_known_by_the_name_of_another_actor() {
        for (subject, is_good) in [
            ("ada", true),
            ("keys", true),
            ("started", true),
            ("https://i.test#key:1", true),
            ("manifest", false),
            ("start", false),
            ("operator:first", false),
            ("key:globex/adm", false),
            ("client:ci", false),
            ("client#ci", false),
        ] {
            assert_eq!(check_actor(subject).is_ok(), is_good, "{subject}");
            let hash = "0f".repeat(32);
            let found = read(&format!(
                "tenants:
  a:
    auth: {{mode: builtin}}
    api_keys: {{k: {{hash: \"sha256:{hash}\", subject: \"{subject}\", servers: [x]}}}}
    servers: {{x: {{command: cat}}}}
"
            ));
            assert_eq!(found.is_ok(), is_good, "{subject}");
        }
    }

    /// RFC 3339 has years of four digits, and a key ends after 1970.
    #[test]
    fn expiry_is_a_time_that_can_be_written() {
        let hash = "0f".repeat(32);
        for (expires, is_good) in [
            ("1970-01-01T00:00:00Z", true),
            ("9999-12-31T23:59:59Z", true),
            ("9999-12-31T23:59:59-01:00", true),
            ("10000-01-01T00:00:00Z", false),
            ("+10000-01-01T00:00:00Z", false),
            ("1969-12-31T23:59:59Z", false),
            ("1970-01-01T00:00:00+01:00", false),
            ("0000-01-01T00:00:00Z", false),
            ("-0001-01-01T00:00:00Z", false),
            ("-1", false),
        ] {
            let found = read(&format!(
                "tenants:
  a:
    auth: {{mode: keys}}
    api_keys: {{k: {{hash: \"sha256:{hash}\", subject: ada, servers: [\"*\"], expires: \"{expires}\"}}}}
    servers: {{x: {{command: cat}}}}
"
            ));
            let named = format!("api_keys.k.expires: {expires:?} is no point in time");
            match found {
                Ok(_) => assert!(is_good, "{expires}"),
                Err(found) => assert!(!is_good && found.contains(&named), "{expires} {found}"),
            }
        }
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
        F:4: tenants.a.auth.audience: unknown key; did you mean audiences?
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

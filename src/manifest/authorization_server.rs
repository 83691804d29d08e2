//! The reader of users, clients and `auth` in mode `builtin`.
//!
//! Every mistake names its key and a remedy, and no secret. Not here: identity providers
//! (`provider`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value as Json;

use super::{
    identity::{check_actor, issuer, not_empty, scopes, word},
    reader::Reader,
    table::{Entries, Fields, Findings, JsonSchema, Parser, parse},
};
use crate::base::Secret;
use crate::config::{Node, Value, Wrong, reader::name};
use crate::declare::{
    Builtin, DeclaredClient, Kind, OwnKeyRules, PASSWORD, PASSWORD_HASH, PRIVATE_MEMBERS, User,
    Workload,
    password::{check_hash, check_password},
    redirect::check_redirect_uri,
};

impl Reader<'_> {
    /// Reads a tenant's own authorization server; `auth` is optional.
    pub(crate) fn builtin(&mut self, tenant: &Fields<'_>, auth: Option<&Fields<'_>>) -> Builtin {
        let users = tenant
            .key(
                Kind::User.plural(),
                "People who log in with a password, by user name, which is the subject of their \
                 tokens.",
            )
            .entries(user_name());
        let users = self.each(users, Self::user);
        let clients = tenant
            .key(Kind::Client.plural(), "Declared clients, by client ID.")
            .entries(client_id());
        let clients = self.each(clients, Self::client);
        let providers = tenant
            .key(
                Kind::Provider.plural(),
                "Identity providers at which people log in, by name.",
            )
            .entries(parse::name());
        let providers = self.each(providers, Self::provider);
        self.distinct(tenant, &providers);
        let upstreams = tenant
            .key(
                Kind::Upstream.plural(),
                "Services whose access tokens servers get and people connect, by name.",
            )
            .entries(parse::name());
        let upstreams = self.each(upstreams, Self::upstream);
        let builtin = Builtin {
            users,
            clients,
            providers,
            upstreams,
            scopes: Vec::new(),
            registration: true,
            documents: true,
            recheck: RECHECK,
            own_keys: None,
        };
        match auth {
            Some(auth) => with_settings(builtin, auth),
            None => builtin,
        }
    }

    /// Reports users, clients, providers and upstreams without mode `builtin`.
    pub(crate) fn useless_identities(&mut self, tenant: &Fields<'_>) {
        for kind in [Kind::User, Kind::Client, Kind::Provider, Kind::Upstream] {
            let Some(node) = tenant.member(kind.plural()) else {
                continue;
            };
            // Mistakes within were reported before.
            let ignored = Findings::default();
            let members = Fields::of(node, &tenant.path_of(kind.plural()), &ignored);
            for (name, node) in members.members() {
                let what = "means nothing where auth.mode is not builtin";
                let wrong = Wrong::new(what, "write auth: {mode: builtin}, or leave it out");
                self.wrong(wrong, &node.place, &members.path_of(name));
            }
        }
    }

    /// Reads the objects of a kind, by name.
    fn each<T>(
        &mut self,
        entries: Option<Entries<'_>>,
        read: fn(&mut Self, &Node, &str, &str) -> T,
    ) -> BTreeMap<String, Arc<T>> {
        let mut all = BTreeMap::new();
        let Some(entries) = entries else {
            return all;
        };
        for (name, node) in entries.members() {
            let key = entries.path_of(name);
            self.places.insert(key.clone(), node.place.clone());
            all.insert(name.to_owned(), Arc::new(read(self, node, &key, name)));
        }
        all
    }

    fn user(&mut self, node: &Node, key: &str, name: &str) -> User {
        let fields = Fields::of(node, key, self.findings)
            .described("A person who logs in with a password.")
            .defined("user");
        fields
            .key(
                PASSWORD,
                "The password, of at least 8 characters; stored as an Argon2id hash, never shown.",
            )
            .optional(password(self.text()));
        let hash = fields
            .key(
                PASSWORD_HASH,
                "The Argon2id hash of the password as a PHC string, instead of the password; each \
                 \"$\" is written twice.",
            )
            .optional(password_hash(self.text()));
        let groups = fields
            .key("groups", "Groups, for grants of servers.")
            .optional(names());
        let admin = fields
            .key("admin", "Administration of the tenant; not available yet.")
            .optional(no_admin());
        let user = User {
            name: name.to_owned(),
            password: hash,
            groups: groups.unwrap_or_default(),
            admin: admin.unwrap_or_default(),
            disabled: fields
                .key(
                    "disabled",
                    "Disables the user: no log-in, and all tokens end.",
                )
                .read(false, parse::flag()),
        };
        if fields.member(PASSWORD).is_some() && fields.member(PASSWORD_HASH).is_some() {
            let wrong = Wrong::new("stands beside password", "keep one of the two");
            fields.wrong(PASSWORD_HASH, &fields.place, wrong);
        }
        fields.end();
        user
    }

    fn client(&mut self, node: &Node, key: &str, id: &str) -> DeclaredClient {
        let fields = Fields::of(node, key, self.findings)
            .described("A declared client, which does not register.")
            .defined("client");
        fields.order(&["title", "grant_types", "redirect_uris"]);
        let title = fields
            .key("title", "The name on the consent page; by default the ID.")
            .optional(title());
        let grants = fields.key(
            "grant_types",
            "How it gets tokens (RFC 7591, section 2): for people by authorization_code, with refresh_token, and for itself \
             by client_credentials.",
        );
        let grants = grants.optional(grant_types());
        let workload = workload(&fields);
        let people = vec![GrantType::Code, GrantType::Refresh];
        let none = workload.as_ref().map(|_| Vec::new());
        let grants = grants.or(none).unwrap_or(people);
        let redirect_uris = fields
            .key(
                "redirect_uris",
                "Redirect URIs: https, http on loopback, or an application's own scheme.",
            )
            .optional(redirect_uris());
        let secret = fields
            .key(
                "secret",
                "The secret of a confidential client, of at least 16 characters; stored sealed, \
                 never shown.",
            )
            .optional(client_secret(self.text()));
        let jwks = jwks(
            &fields,
            "The public keys of a client that signs assertions (private_key_jwt), instead of a secret.",
        );
        if secret.is_some() && jwks.is_some() {
            let what = "stands beside secret: a client proves itself in one way";
            let wrong = Wrong::new(what, "keep one of the two");
            fields.wrong("jwks", &fields.place, wrong);
        }
        let is_machine = grants.contains(&GrantType::Client);
        if is_machine && secret.is_none() && jwks.is_none() {
            let what = "has client_credentials, and no credentials";
            let wrong = Wrong::new(what, "write a secret, or the jwks of its private key");
            fields.wrong("grant_types", &fields.place, wrong);
        }
        let has_code = grants.contains(&GrantType::Code);
        if has_code && fields.is_table && fields.member("redirect_uris").is_none() {
            let wrong = Wrong::new("is missing", "list where its answers go");
            fields.wrong("redirect_uris", &fields.place, wrong);
        }
        fields.end();
        DeclaredClient {
            id: id.to_owned(),
            title: title.unwrap_or_else(|| id.to_owned()),
            redirect_uris: redirect_uris.filter(|_| has_code).unwrap_or_default(),
            is_machine: is_machine || workload.is_some(),
            secret,
            jwks,
            workload,
        }
    }
}

/// Reads the settings in `auth` of mode `builtin`, whose defaults are those of `builtin`.
fn with_settings(builtin: Builtin, auth: &Fields<'_>) -> Builtin {
    auth.order(&["scopes"]);
    Builtin {
        registration: auth
            .key(
                "registration",
                "Clients may register themselves (RFC 7591).",
            )
            .read(builtin.registration, parse::flag()),
        documents: auth
            .key(
                "documents",
                "A client ID may be the URL of a metadata document.",
            )
            .read(builtin.documents, parse::flag()),
        recheck: auth
            .key(
                "recheck",
                "The age at which an identity provider is asked about a person again, when a client refreshes.",
            )
            .read(builtin.recheck, parse::duration()),
        scopes: auth
            .key(
                "scopes",
                "Scopes that clients request at their first log-in.",
            )
            .optional(scopes())
            .unwrap_or_default(),
        own_keys: own_keys(auth),
        ..builtin
    }
}

/// Reads the rules for API keys that people make for themselves.
fn own_keys(auth: &Fields<'_>) -> Option<OwnKeyRules> {
    let fields = auth
        .key(
            "own_keys",
            "API keys that people make for themselves on their account page; absent means that they may not.",
        )
        .table()?;
    let max = parse::count(1).having("maximum", OWN_KEYS_MAX);
    let max = max.check(|max: &u32| match *max {
        ..=OWN_KEYS_MAX => Ok(()),
        _ => Err(Wrong::new(
            "is too many",
            format!("write {OWN_KEYS_MAX} at most"),
        )),
    });
    let ttl = parse::duration().check(|ttl| {
        if ttl.is_zero() {
            return Err(Wrong::new("is off", "write a duration, as 90d"));
        }
        Ok(())
    });
    let rules = OwnKeyRules {
        max: fields
            .key("max", "The most keys of a person at a time.")
            .read(5, max),
        ttl: fields
            .key(
                "ttl",
                "The longest life of a key, which begins again when its value is rotated.",
            )
            .read(Duration::from_hours(90 * 24), ttl),
        overlap: fields
            .key(
                "overlap",
                "The time for which the value before a rotation stays good.",
            )
            .read(Duration::from_hours(24), parse::duration()),
    };
    fields.end();
    Some(rules)
}

/// The most keys that a tenant may let a person have: they are on one page.
const OWN_KEYS_MAX: u32 = 100;

/// The default of `recheck`.
const RECHECK: Duration = Duration::from_hours(1);

/// How a declared client gets tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GrantType {
    Code,
    Refresh,
    Client,
}

fn grant_types<'p>() -> Parser<'p, Vec<GrantType>> {
    parse::set(parse::choice(&[
        ("authorization_code", GrantType::Code),
        ("refresh_token", GrantType::Refresh),
        ("client_credentials", GrantType::Client),
    ]))
}

/// Reads how the platform of a client that is a workload signs for it.
fn workload(client: &Fields<'_>) -> Option<Workload> {
    let fields = client
        .key(
            "workload",
            "A job or a service that proves itself by tokens of its platform (RFC 7523), instead of a secret: Kubernetes, \
             GitHub Actions, GitLab CI.",
        )
        .table()?
        .defined("workload");
    fields.order(&["issuer", "audience", "claims"]);
    for key in ["secret", "jwks", "grant_types", "redirect_uris"] {
        if let Some(place) = client.place_of(key) {
            let what = "stands beside workload: the tokens of its platform are all that it has";
            client.wrong(key, place, Wrong::new(what, "keep one of the two"));
        }
    }
    needed(&fields, "issuer", "write the iss of the tokens, https://…");
    let remedy = "tell by a claim whose workload it is: claims: {repository: acme/app}";
    needed(&fields, "claims", remedy);
    let issuer = fields
        .key("issuer", "The issuer of the tokens, byte for byte.")
        .optional(issuer());
    let audience = fields
        .key(
            "audience",
            "Their audience; by default the issuer URL of the tenant.",
        )
        .optional(word());
    let claims = claims(&fields);
    let is_reusable = fields
        .key(
            "reusable",
            "A token may be presented again until it expires, as Kubernetes writes them; otherwise each is good once.",
        )
        .read(false, parse::flag());
    let jwks = jwks(
        &fields,
        "The public keys of the issuer, where the gateway cannot ask it; by default those that its metadata name.",
    );
    let workload = Workload {
        issuer: issuer.unwrap_or_default(),
        audience,
        jwks,
        claims,
        is_reusable,
    };
    if let Some(owners) = workload
        .lacks_owner()
        .filter(|_| !workload.claims.is_empty())
    {
        let what = "let everybody in: this issuer signs for the public";
        let remedy = format!("name the owner in one of {}", owners.join(", "));
        fields.wrong("claims", &fields.place, Wrong::new(what, remedy));
    }
    fields.end();
    Some(workload)
}

/// The values that claims of a token may have.
fn claims(workload: &Fields<'_>) -> BTreeMap<String, Vec<String>> {
    let claim = parse::text().having("minLength", 1).check(|name| {
        not_empty(name)?;
        if ["iss", "aud", "exp", "nbf", "iat", "jti"].contains(&name.as_str()) {
            return Err(Wrong::new(
                "is checked in any case",
                "name a claim that tells workloads apart",
            ));
        }
        Ok(())
    });
    let entries = workload
        .key(
            "claims",
            "Claims that the tokens must have, at least one: a text, or a list of which one must be the claim. A * at the \
             end stands for any rest.",
        )
        .entries(claim);
    let mut all = BTreeMap::new();
    let Some(entries) = entries else {
        return all;
    };
    for (name, node) in entries.members() {
        if let Some(values) = entries.read(name, node, claim_values()) {
            all.insert(name.to_owned(), values);
        }
    }
    if workload.member("claims").is_some() && entries.members().next().is_none() {
        let remedy = "tell by a claim whose workload it is: {repository: acme/app}";
        workload.wrong(
            "claims",
            entries.place(),
            Wrong::new("names no claim", remedy),
        );
    }
    all
}

/// A text, or a list of texts, which match something but not everything.
fn claim_values<'p>() -> Parser<'p, Vec<String>> {
    let value = || {
        word().check(|text| match text.as_str() {
            "*" => Err(Wrong::new(
                "is true of every token",
                "write what it begins with, or leave it out",
            )),
            _ => Ok(()),
        })
    };
    let many = move || {
        let many = parse::set(value()).having("minItems", 1);
        many.check(|values| match values.as_slice() {
            [] => Err(Wrong::new(
                "names no value",
                "write one, or leave the claim out",
            )),
            _ => Ok(()),
        })
    };
    let schema =
        move || JsonSchema::default().with_any("anyOf", vec![value().schema(), many().schema()]);
    Parser::new(schema, move |node| match &node.value {
        Value::List(_) => many().parse(node),
        _ => Ok(vec![value().parse(node)?]),
    })
}

/// Public keys (RFC 7517), as JSON.
fn jwks(client: &Fields<'_>, about: &'static str) -> Option<String> {
    let jwks = client.key("jwks", about);
    let fields = jwks.table()?;
    fields.require("keys", "list the public keys");
    let keys = parse::list(public_key()).having("minItems", 1);
    let keys = keys.check(|keys| match keys.as_slice() {
        [] => Err(Wrong::new("holds no key", "write one, or leave jwks out")),
        _ => Ok(()),
    });
    let keys = fields
        .key("keys", "JSON Web Keys (RFC 7517).")
        .optional(keys);
    fields.end();
    keys.map(|keys| serde_json::json!({"keys": keys}).to_string())
}

/// Reports a missing key of a table.
pub(super) fn needed(fields: &Fields<'_>, key: &'static str, remedy: &str) {
    // A value of another type was reported already.
    if fields.is_table {
        fields.require(key, remedy);
    }
}

fn password(text: Parser<'_, String>) -> Parser<'_, ()> {
    let text = text.having("minLength", 8).having("maxLength", 1024);
    text.and(|text| {
        let wrong = |what| Wrong::new(what, "choose one of 8 letters to 1024 bytes");
        check_password(&text).map_err(wrong)
    })
}

fn password_hash(text: Parser<'_, String>) -> Parser<'_, Secret> {
    let text = text.having("pattern", r"^\$\$argon2id\$\$|^\$\{");
    text.and(|text| {
        let remedy =
            "write an Argon2id hash like $$argon2id$$v=19$$m=19456,t=2,p=1$$…, or password";
        check_hash(&text).map_err(|what| Wrong::new(what, remedy))?;
        Ok(Secret::new(text))
    })
}

fn client_secret(text: Parser<'_, String>) -> Parser<'_, Secret> {
    // A reference may be shorter than the secret.
    let text = text.having("pattern", format!(r"^.{{{MIN_SECRET}}}|\$\{{"));
    text.and(|text| {
        let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        if text.len() < MIN_SECRET || !is_plain {
            let what = "is shorter than 16 letters, or not of ASCII";
            let remedy = "make a random one, for example by openssl rand -hex 32";
            return Err(Wrong::new(what, remedy));
        }
        Ok(Secret::new(text))
    })
}

/// The name of a user. It is the subject of tokens, so it must not look like a provider's subject,
/// nor differ from another name by case alone.
fn user_name<'p>() -> Parser<'p, String> {
    let pattern = r"^([a-z0-9][a-z0-9-]{0,62}|[a-z0-9][a-z0-9._-]*@[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)*)$";
    let text = parse::text()
        .having("pattern", pattern)
        .having("maxLength", 254);
    text.check(|text| check_user_name(text))
}

fn check_user_name(text: &str) -> Result<(), Wrong> {
    if name(text).is_ok() || is_address(text) {
        return check_actor(text);
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

/// A client ID that no registered client and no metadata document can have.
fn client_id<'p>() -> Parser<'p, String> {
    let pattern = "^(?!c_|https?://)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";
    let text = parse::text().having("pattern", pattern);
    text.check(|text| check_client_id(text))
}

fn check_client_id(text: &str) -> Result<(), Wrong> {
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
        return Ok(());
    }
    let remedy = "use letters, digits, -, _ and ., at most 128, the first a letter or digit";
    wrong("is no client id", remedy)
}

/// A name that people read.
pub(crate) fn title<'p>() -> Parser<'p, String> {
    word().having("maxLength", 100).check(|text| {
        if text.chars().count() > 100 || text.chars().any(char::is_control) {
            return Err(Wrong::new(
                "is no title",
                "write at most 100 letters on one line",
            ));
        }
        Ok(())
    })
}

/// Names without duplicates.
pub(crate) fn names<'p>() -> Parser<'p, Vec<String>> {
    parse::set(word())
}

fn redirect_uris<'p>() -> Parser<'p, Vec<String>> {
    let uri = word().having("format", "uri").having("maxLength", 2048);
    parse::set(uri).having("minItems", 1).check(|uris| {
        if uris.is_empty() {
            return Err(Wrong::new("names no URI", "list where its answers go"));
        }
        for uri in uris {
            if let Err(what) = check_redirect_uri(uri) {
                let remedy = "write https://…, http:// on loopback, or an app's own scheme";
                return Err(Wrong::new(format!("{uri:?}: {what}"), remedy));
            }
        }
        Ok(())
    })
}

/// A public key as JSON; a private key must not be in a manifest.
fn public_key<'p>() -> Parser<'p, Json> {
    let schema = || JsonSchema::of("object").with("required", ["kty"].as_slice());
    Parser::new(schema, parse_public_key)
}

fn parse_public_key(node: &Node) -> Result<Json, Wrong> {
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
    if PRIVATE_MEMBERS.into_iter().any(has) {
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

fn no_admin<'p>() -> Parser<'p, bool> {
    let schema = || JsonSchema::default().with("const", false);
    Parser::new(schema, |node| {
        if node.flag()? {
            let what = "is not available yet: users administrate nothing";
            let remedy = "make an API key with the scope admin (lockgate key add)";
            return Err(Wrong::new(what, remedy));
        }
        Ok(false)
    })
}

/// Minimum letters of a client secret.
const MIN_SECRET: usize = 16;

#[cfg(test)]
#[path = "tests/authorization_server.rs"]
mod tests;

//! Reader of the identity providers and the upstreams of a tenant.
//!
//! Not here: checks of their URLs against the configuration (`checks`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use url::Url;

use super::{
    authorization_server::{is_address, names, needed, title},
    identity::{groups_claim, issuer, not_empty, scopes, word},
    reader::Reader,
    table::{Fields, Findings, Form, Parser, parse},
};
use crate::base::{Secret, without_user};
use crate::config::{Node, Wrong, reader::choice};
use crate::declare::{
    Allow, AuthMode, Holder, Kind, Provider, ProviderKind, Server, Slot, TokenFrom, Upstream,
    UpstreamEndpoints,
};

impl Reader<'_> {
    /// Reads one provider.
    pub(crate) fn provider(&mut self, node: &Node, key: &str, name: &str) -> Provider {
        let word = self.kind(node, key);
        let fields = Fields::of(node, key, self.findings)
            .described("An identity provider at which people log in.")
            .defined("provider");
        let is_openid = fields.form("kind", &KINDS, word) == OPENID;
        fields.order(&["kind", "title", "issuer", "client_id", "client_secret"]);
        fields.order(&["scopes", AUTHORIZATION_PARAMETERS, EXCHANGE, "allow"]);
        needed(&fields, "client_id", "write our client id there");
        let kind = if is_openid {
            openid(&fields)
        } else {
            oauth(&fields)
        };
        let title = fields
            .key(
                "title",
                "The name on the log-in page; by default the provider's name.",
            )
            .optional(title());
        let (client_id, client_secret) = self.credentials(&fields);
        let provider = Provider {
            name: name.to_owned(),
            title: title.unwrap_or_else(|| name.to_owned()),
            kind,
            client_id,
            client_secret,
            scopes: requested_scopes(&fields, is_openid),
            authorization_parameters: authorization_parameters(&fields),
            exchange: exchange(&fields),
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

    /// Reads the kind of a provider, on which its other keys depend.
    fn kind(&self, node: &Node, key: &str) -> &'static str {
        let ignored = Findings::default();
        let any = Fields::of(node, key, &ignored);
        let Some(node) = any.member("kind") else {
            return OPENID;
        };
        let kind = node.text();
        let kinds = [(OPENID, OPENID), (OAUTH, OAUTH)];
        kind.and_then(|kind| choice(&kind, &kinds))
            .unwrap_or_else(|wrong| {
                self.wrong(wrong, &node.place, &any.path_of("kind"));
                OPENID
            })
    }

    /// Reads the client ID and the secret of the gateway at a provider.
    fn credentials(&self, fields: &Fields<'_>) -> (String, Option<Secret>) {
        let text = || {
            let text = self.text().having("minLength", 1);
            text.check(|text| not_empty(text))
        };
        let client_id = fields
            .key("client_id", "The client ID of the gateway there.")
            .optional(text());
        let client_secret = fields
            .key(
                "client_secret",
                "The client secret of the gateway there; stored sealed, never shown.",
            )
            .optional(text().and(|text| Ok(Secret::new(text))));
        (client_id.unwrap_or_default(), client_secret)
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
                let key = format!("{}.{name}", tenant.path_of(Kind::Provider.plural()));
                let what = format!("has the issuer of {other}: their subjects would be the same");
                let place = self.places.get(&key).unwrap_or(&tenant.place).clone();
                let wrong = Wrong::new(what, "keep one of the two");
                self.wrong(wrong, &place, &format!("{key}.issuer"));
            }
        }
    }
}

fn openid(fields: &Fields<'_>) -> ProviderKind {
    needed(fields, "issuer", "write its issuer, https://…");
    ProviderKind::OpenId {
        issuer: fields
            .key(
                "issuer",
                "Its issuer identifier, byte for byte; part of every subject.",
            )
            .optional(issuer())
            .unwrap_or_default(),
        groups: groups_claim(fields),
        vouches: fields
            .key(
                "id_jag",
                "Its identity assertions (ID-JAG) let clients act for its people without a log-in here: MCP's extension \
                 io.modelcontextprotocol/enterprise-managed-authorization.",
            )
            .read(false, parse::flag()),
    }
}

fn oauth(fields: &Fields<'_>) -> ProviderKind {
    let called = "write what it is called in subjects, like https://github.com/login/oauth";
    needed(fields, "issuer", called);
    for key in ["authorization_url", "token_url", "user_url"] {
        needed(fields, key, "write its URL, https://…");
    }
    let authorization_url = fields
        .key("authorization_url", "The authorization endpoint.")
        .optional(web());
    let token_url = fields
        .key("token_url", "The token endpoint.")
        .optional(web());
    let user_url = fields
        .key(
            "user_url",
            "The endpoint that describes the owner of an access token.",
        )
        .optional(web());
    let issuer = fields
        .key(
            "issuer",
            "The name of the provider in subjects, for example https://github.com/login/oauth.",
        )
        .optional(issuer());
    ProviderKind::OAuth {
        authorization_url: authorization_url.unwrap_or_default(),
        token_url: token_url.unwrap_or_default(),
        user_url: user_url.unwrap_or_default(),
        issuer: issuer.unwrap_or_default(),
        subject_member: fields
            .key(
                "subject_member",
                "A member of that answer that never changes and is never reassigned.",
            )
            .read("id".to_owned(), word()),
    }
}

fn requested_scopes(fields: &Fields<'_>, is_openid: bool) -> Vec<String> {
    let default = if is_openid { &OPENID_SCOPES[..] } else { &[] };
    let default = default.iter().map(|scope| (*scope).to_owned()).collect();
    let scopes = scopes().check(move |scopes| {
        if is_openid && !scopes.iter().any(|scope| scope == "openid") {
            // OpenID Connect Core, section 3.1.2.1.
            let remedy = "add openid, without which there is no ID token";
            return Err(Wrong::new("asks for no openid", remedy));
        }
        Ok(())
    });
    fields
        .key("scopes", "Requested scopes.")
        .read(default, scopes)
}

/// Reads the parameters that an operator adds to authorization requests, such as Google's `access_type`.
fn authorization_parameters(fields: &Fields<'_>) -> BTreeMap<String, String> {
    let entries = fields
        .key(
            AUTHORIZATION_PARAMETERS,
            "More parameters of authorization requests, for example access_type: offline for a refresh token of Google.",
        )
        .entries(parameter_name());
    let Some(entries) = entries else {
        return BTreeMap::new();
    };
    let read = |(name, node)| Some((String::from(name), entries.read(name, node, parameter())?));
    let parameters: BTreeMap<_, _> = entries.members().filter_map(read).collect();
    if parameters.len() > MOST_PARAMETERS {
        let wrong = Wrong::new(
            format!("has more than {MOST_PARAMETERS} parameters"),
            "leave some out",
        );
        fields.wrong(AUTHORIZATION_PARAMETERS, entries.place(), wrong);
    }
    parameters
}

fn parameter_name<'p>() -> Parser<'p, String> {
    let name = parse::text().having("pattern", "^[A-Za-z0-9_.~-]{1,64}$");
    name.check(|text| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.~-".contains(&byte);
        if !(1..=64).contains(&text.len()) || !text.bytes().all(is_plain) {
            let remedy = "use letters, digits, _, ., ~ and -, at most 64";
            return Err(Wrong::new(
                format!("{text:?} is no name of a parameter"),
                remedy,
            ));
        }
        if OWN_PARAMETERS.contains(&text.as_str()) {
            let what = "is a parameter that the gateway itself sends, or that it could not follow";
            return Err(Wrong::new(what, "leave it out"));
        }
        Ok(())
    })
}

fn parameter<'p>() -> Parser<'p, String> {
    let text = parse::text()
        .having("minLength", 1)
        .having("maxLength", 1024);
    let text = text.having("description", "Its value.");
    text.check(|text| match text.len() {
        1..=1024 => Ok(()),
        _ => Err(Wrong::new(
            "is empty, or longer than 1024 bytes",
            "write its value",
        )),
    })
}

/// Reads the audiences for which the provider gives access tokens of its people.
fn exchange(provider: &Fields<'_>) -> Vec<String> {
    let exchange = provider.key(
        EXCHANGE,
        "The provider is asked for access tokens of its people for other audiences (RFC 8693), which slots name.",
    );
    let Some(fields) = exchange.table() else {
        return Vec::new();
    };
    let fields = fields.defined("exchange");
    needed(
        &fields,
        "audiences",
        "list the audiences that slots may name",
    );
    let several = parse::set(audience())
        .having("minItems", 1)
        .having("maxItems", MOST_AUDIENCES);
    let several = several.check(|audiences| match audiences.len() {
        1..=MOST_AUDIENCES => Ok(()),
        _ => Err(Wrong::new(
            format!("has none, or more than {MOST_AUDIENCES}"),
            "list those that slots name",
        )),
    });
    let audiences = fields
        .key("audiences", "The audiences for which it may be asked.")
        .optional(several);
    fields.end();
    audiences.unwrap_or_default()
}

/// The name of a service at which a token is used (RFC 8693, section 2.1): a URL, or a client ID.
fn audience<'p>() -> Parser<'p, String> {
    let text = word().having("maxLength", AUDIENCE_MAX);
    text.check(|text| {
        if text.len() > AUDIENCE_MAX {
            let what = format!("is longer than {AUDIENCE_MAX} bytes");
            return Err(Wrong::new(what, "write it as the provider knows it"));
        }
        Ok(())
    })
}

fn allow(provider: &Fields<'_>, is_openid: bool) -> Allow {
    let allow = provider.key(
        "allow",
        "Admitted people: those in any of the lists. Required for providers that are open to the \
         world.",
    );
    let Some(fields) = allow.table() else {
        return Allow::default();
    };
    let fields = fields.defined("allow");
    for key in ["domains", "groups"] {
        if let Some(place) = fields.place_of(key).filter(|_| !is_openid) {
            let what = "cannot be known where kind is oauth";
            fields.wrong(key, place, Wrong::new(what, "list subjects"));
        }
    }
    let subjects = fields
        .key("subjects", "Subjects of the provider.")
        .optional(names());
    let domains = fields
        .key(
            "domains",
            "Domains of verified e-mail addresses (openid only).",
        )
        .optional(domains());
    let groups = fields
        .key("groups", "Groups (openid only).")
        .optional(names());
    fields.end();
    Allow {
        subjects: subjects.unwrap_or_default(),
        domains: domains.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
    }
}

fn domains<'p>() -> Parser<'p, Vec<String>> {
    names().check(|domains| {
        let is_domain = |text: &String| is_address(&format!("x@{text}"));
        match domains.iter().find(|text| !is_domain(text)) {
            None => Ok(()),
            Some(text) => {
                let what = format!("{text:?} is no domain");
                Err(Wrong::new(
                    what,
                    "write it like example.com, in small letters",
                ))
            }
        }
    })
}

/// An http or https URL with a host, without fragment or user name.
fn web<'p>() -> Parser<'p, String> {
    parse::text().having("format", "uri").check(|text| {
        let told = without_user(text);
        let wrong = |what: &str| Wrong::new(format!("{told:?} {what}"), "write its URL, https://…");
        let url = Url::parse(text).map_err(|_| wrong("is no URL"))?;
        if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
            return Err(wrong("is no https URL"));
        }
        if url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("has a fragment or a user name"));
        }
        Ok(())
    })
}

impl Reader<'_> {
    /// Reads one upstream.
    pub(crate) fn upstream(&mut self, node: &Node, key: &str, name: &str) -> Upstream {
        let fields = Fields::of(node, key, self.findings)
            .described(
                "An OAuth service that people connect; servers get their access tokens of it.",
            )
            .defined("upstream");
        fields.order(&[
            "title",
            "issuer",
            "authorization_endpoint",
            "token_endpoint",
        ]);
        fields.order(&["revocation_endpoint", "introspection_endpoint"]);
        fields.order(&["client_id", "client_secret", "scopes", "resource"]);
        fields.order(&[AUTHORIZATION_PARAMETERS]);
        needed(&fields, "client_id", "write our client id there");
        let name_for_people = fields
            .key(
                "title",
                "The name on the account page; by default the upstream's name.",
            )
            .optional(title());
        let endpoints = endpoints(&fields);
        let (client_id, client_secret) = self.credentials(&fields);
        let scopes = fields.key("scopes", "Requested scopes.").optional(scopes());
        let resource = fields
            .key(
                "resource",
                "The audience of the access tokens (RFC 8707), if the upstream takes it.",
            )
            .optional(web());
        let authorization_parameters = authorization_parameters(&fields);
        fields.end();
        Upstream {
            name: name.to_owned(),
            title: name_for_people.unwrap_or_else(|| name.to_owned()),
            endpoints,
            client_id,
            client_secret,
            scopes: scopes.unwrap_or_default(),
            authorization_parameters,
            resource,
        }
    }
}

fn endpoints(fields: &Fields<'_>) -> UpstreamEndpoints {
    let issuer = fields
        .key(
            "issuer",
            "The issuer, whose metadata name the endpoints (RFC 8414, OpenID Connect Discovery).",
        )
        .optional(issuer());
    let endpoint = |key, what| fields.key(key, what).optional(web());
    let authorization = endpoint(
        "authorization_endpoint",
        "The authorization endpoint, of an upstream without metadata.",
    );
    let token = endpoint(
        "token_endpoint",
        "The token endpoint, of an upstream without metadata.",
    );
    let revocation = endpoint(
        "revocation_endpoint",
        "The revocation endpoint (RFC 7009), of an upstream without metadata.",
    );
    let introspection = endpoint(
        "introspection_endpoint",
        "The introspection endpoint (RFC 7662), of an upstream without metadata.",
    );
    let names = [
        "authorization_endpoint",
        "token_endpoint",
        "revocation_endpoint",
        "introspection_endpoint",
    ];
    if fields.member("issuer").is_some() {
        for (name, place) in names
            .iter()
            .filter_map(|name| Some((name, fields.place_of(name)?)))
        {
            let what = "stands beside issuer, whose metadata name it";
            fields.wrong(name, place, Wrong::new(what, "keep one of the two"));
        }
        return UpstreamEndpoints::Discovered {
            issuer: issuer.unwrap_or_default(),
        };
    }
    for name in &names[..2] {
        let remedy = "write its URL, https://…, or issuer of an upstream that has metadata";
        needed(fields, name, remedy);
    }
    UpstreamEndpoints::Declared {
        authorization: authorization.unwrap_or_default(),
        token: token.unwrap_or_default(),
        revocation,
        introspection,
    }
}

/// Slots of a server whose access tokens nobody gives.
pub(super) fn useless_tokens(server: &Server, auth: &AuthMode) -> Vec<(String, Wrong)> {
    let slots = server.slots.iter();
    let named = slots.filter_map(|(name, slot)| Some((name, slot, slot.token.as_ref()?)));
    let wrong = named.filter_map(|(name, slot, token)| match token {
        TokenFrom::Upstream(upstream) => {
            let wrong = unknown_upstream(slot, upstream, auth)?;
            Some((format!("secrets.{name}.upstream"), wrong))
        }
        TokenFrom::Exchange(audience) => {
            let wrong = unknown_audience(slot, audience, auth)?;
            Some((format!("secrets.{name}.{EXCHANGE}"), wrong))
        }
    });
    wrong.collect()
}

fn unknown_upstream(slot: &Slot, upstream: &str, auth: &AuthMode) -> Option<Wrong> {
    Some(match auth {
        AuthMode::Builtin(_) if slot.holder == Holder::Tenant => Wrong::new(
            "stands beside for: tenant, and each person connects their own account",
            "write for: principal, or leave upstream out",
        ),
        AuthMode::Builtin(builtin) if builtin.upstreams.contains_key(upstream) => return None,
        AuthMode::Builtin(_) => {
            let what = format!("names {upstream:?}, which is no upstream of the tenant");
            Wrong::new(what, "declare it below upstreams, or name another one")
        }
        _ => Wrong::new(
            "means nothing where auth.mode is not builtin: there is no page to connect it",
            "write auth: {mode: builtin}, or leave upstream out",
        ),
    })
}

fn unknown_audience(slot: &Slot, audience: &str, auth: &AuthMode) -> Option<Wrong> {
    let AuthMode::Builtin(builtin) = auth else {
        return Some(Wrong::new(
            "means nothing where auth.mode is not builtin: nobody logs in here at a provider",
            "write auth: {mode: builtin}, or leave exchange out",
        ));
    };
    let mut all = builtin.providers.values();
    if slot.holder == Holder::Tenant {
        return Some(Wrong::new(
            "stands beside for: tenant, and each person has a token of their own",
            "write for: principal, or leave exchange out",
        ));
    }
    if builtin.recheck.is_zero() {
        return Some(Wrong::new(
            "needs the access tokens of people, which are not kept where auth.recheck is 0s",
            "write another auth.recheck, or leave exchange out",
        ));
    }
    if all.any(|provider| provider.exchange.iter().any(|one| one == audience)) {
        return None;
    }
    let what = format!("names {audience:?}, for which no provider of the tenant is asked");
    let remedy = "add it to exchange.audiences of a provider, or name another one";
    Some(Wrong::new(what, remedy))
}

/// The origin of the access token that fills a slot.
pub(super) fn token_of_slot(slot: &Fields<'_>) -> Option<TokenFrom> {
    let upstream = slot
        .key(
            "upstream",
            "The upstream of the tenant whose access token it is: people connect it, and set no value.",
        )
        .optional(parse::name());
    let exchanged = slot
        .key(
            EXCHANGE,
            "The audience of the access token that it is: the person's identity provider gives it for the one of the \
             log-in (RFC 8693), and nobody sets a value.",
        )
        .optional(audience());
    if let Some(place) = slot.place_of(EXCHANGE).filter(|_| upstream.is_some()) {
        let wrong = Wrong::new("stands beside upstream", "keep one of the two");
        slot.wrong(EXCHANGE, place, wrong);
    }
    let upstream = upstream.map(TokenFrom::Upstream);
    upstream.or(exchanged.map(TokenFrom::Exchange))
}

const OPENID: &str = "openid";
const OAUTH: &str = "oauth";
/// The forms of a provider.
static KINDS: [Form; 2] = [
    Form {
        words: &[OPENID],
        table: "An OpenID Connect provider.",
        key: "OpenID Connect; the default.",
        is_default: true,
    },
    Form {
        words: &[OAUTH],
        table: "An OAuth 2.0 provider without OpenID Connect, such as GitHub.",
        key: "OAuth 2.0 without ID tokens.",
        is_default: false,
    },
];
const AUTHORIZATION_PARAMETERS: &str = "authorization_parameters";
const EXCHANGE: &str = "exchange";
const MOST_AUDIENCES: usize = 16;
/// Maximum size of an audience in bytes.
const AUDIENCE_MAX: usize = 1024;
const MOST_PARAMETERS: usize = 16;
/// Parameters that are the gateway's own, or that would change what its response is (RFC 6749, section 4.1.1; OpenID
/// Connect Core, section 3.1.2.1; RFC 7636; RFC 8707; RFC 9101; RFC 9449).
const OWN_PARAMETERS: [&str; 15] = [
    "client_id",
    "client_secret",
    "redirect_uri",
    "response_type",
    "response_mode",
    "scope",
    "state",
    "nonce",
    "code_challenge",
    "code_challenge_method",
    "resource",
    "request",
    "request_uri",
    "registration",
    "dpop_jkt",
];
const OPENID_SCOPES: [&str; 3] = ["openid", "profile", "email"];

#[cfg(test)]
mod tests {
    use super::super::reader::parse;
    use crate::config::Format;

    fn read(auth: &str, upstreams: &str, slot: &str) -> Result<(), String> {
        let text = format!(
            "tenants:\n  a:\n    auth: {{mode: {auth}}}\n    upstreams: {upstreams}\n    servers:\n      x: \
             {{command: cat, secrets: {{T: {slot}}}}}\n"
        );
        let manifest = parse("F", &text, Format::Yaml, &std::collections::BTreeMap::new());
        manifest.map(drop).map_err(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })
    }

    const HUB: &str = "{hub: {issuer: \"https://hub.test\", client_id: c}}";
    const SLOT: &str = "{for: principal, upstream: hub}";

    #[test]
    fn mistakes_of_exchanged_tokens_are_named() {
        let tenant = |auth: &str, exchange: &str, slot: &str| {
            let text = format!(
                "tenants:\n  a:\n    auth: {auth}\n    providers: {{corp: {{issuer: \"https://idp.test\", client_id: \
                 c{exchange}}}}}\n    servers:\n      x: {{command: cat, {slot}}}\n"
            );
            let manifest = parse("F", &text, Format::Yaml, &std::collections::BTreeMap::new());
            manifest.map(drop).map_err(|mistakes| {
                let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                lines.join("\n")
            })
        };
        let builtin = "{mode: builtin}";
        let audiences = ", exchange: {audiences: [\"https://api.test\"]}";
        let of = |more: &str| format!("secrets: {{T: {{exchange: \"https://api.test\", {more}}}}}");
        let own = of("for: principal");
        tenant(builtin, audiences, &own).unwrap();
        tenant(builtin, audiences, &of("for: principal, as: file")).unwrap();
        let shared = format!("{own}, isolation: tenant");
        let found = [
            tenant(builtin, "", &own),
            tenant(builtin, ", exchange: {}", "args: []"),
            tenant(builtin, ", exchange: {audiences: []}", "args: []"),
            tenant(
                builtin,
                ", exchange: {audiences: [\"a\\nb\", \"\"]}",
                "args: []",
            ),
            tenant(builtin, audiences, &of("for: tenant")),
            tenant(builtin, audiences, &of("for: principal, upstream: hub")),
            tenant("{mode: builtin, recheck: 0s}", audiences, &own),
            tenant(builtin, audiences, &shared),
        ];
        let found = found.map(|read| read.unwrap_err()).join("\n");
        insta::assert_snapshot!(found, @r#"
        F:6: tenants.a.servers.x.secrets.T.exchange: names "https://api.test", for which no provider of the tenant is asked; add it to exchange.audiences of a provider, or name another one
        F:4: tenants.a.providers.corp.exchange.audiences: is missing; list the audiences that slots may name
        F:4: tenants.a.providers.corp.exchange.audiences: has none, or more than 16; list those that slots name
        F:4: tenants.a.providers.corp.exchange.audiences: holds a control character; leave it out
        F:6: tenants.a.servers.x.secrets.T.exchange: stands beside for: tenant, and each person has a token of their own; write for: principal, or leave exchange out
        F:6: tenants.a.servers.x.secrets.T.exchange: stands beside upstream; keep one of the two
        F:6: tenants.a.servers.x.secrets.T.upstream: names "hub", which is no upstream of the tenant; declare it below upstreams, or name another one
        F:6: tenants.a.servers.x.secrets.T.exchange: needs the access tokens of people, which are not kept where auth.recheck is 0s; write another auth.recheck, or leave exchange out
        F:6: tenants.a.servers.x.secrets: has a secret for: principal, and isolation: tenant, by which several people share a child; write isolation: principal or session, or for: tenant
        "#);
    }

    #[test]
    fn mistakes_of_upstreams_and_their_slots_are_named() {
        read("builtin", HUB, SLOT).unwrap();
        let plain = "{hub: {authorization_endpoint: \"https://hub.test/a\", token_endpoint: \"https://hub.test/t\", \
                     client_id: c, client_secret: s, scopes: [repo], resource: \"https://api.test\", title: Hub, \
                     introspection_endpoint: \"https://hub.test/i\"}}";
        read("builtin", plain, SLOT).unwrap();
        let hub =
            |more: &str| format!("{{hub: {{issuer: \"https://hub.test\", client_id: c, {more}}}}}");
        read(
            "builtin",
            &hub("authorization_parameters: {access_type: offline, prompt: consent}"),
            SLOT,
        )
        .unwrap();
        let many: Vec<_> = (0..17).map(|at| format!("p{at}: x")).collect();
        let many = hub(&format!(
            "authorization_parameters: {{{}}}",
            many.join(", ")
        ));
        let own = "authorization_parameters: {state: x, \"a b\": x, login_hint: \"\", max_age: 1}";
        let both = "{hub: {issuer: \"https://hub.test\", token_endpoint: \"https://hub.test/t\", client_id: c}}";
        let found = [
            read("builtin", HUB, "{for: principal, upstream: other}"),
            read("builtin", HUB, "{for: tenant, upstream: hub}"),
            read("keys", "{}", SLOT),
            read("keys", HUB, "{for: principal}"),
            read("builtin", "{hub: {}}", SLOT),
            read("builtin", both, SLOT),
            read("builtin", &hub(own), SLOT),
            read("builtin", &many, SLOT),
        ];
        let found = found.map(|read| read.unwrap_err()).join("\n");
        insta::assert_snapshot!(found, @r#"
        F:6: tenants.a.servers.x.secrets.T.upstream: names "other", which is no upstream of the tenant; declare it below upstreams, or name another one
        F:6: tenants.a.servers.x.secrets.T.upstream: stands beside for: tenant, and each person connects their own account; write for: principal, or leave upstream out
        F:6: tenants.a.servers.x.secrets.T.upstream: means nothing where auth.mode is not builtin: there is no page to connect it; write auth: {mode: builtin}, or leave upstream out
        F:4: tenants.a.upstreams.hub: means nothing where auth.mode is not builtin; write auth: {mode: builtin}, or leave it out
        F:4: tenants.a.upstreams.hub.client_id: is missing; write our client id there
        F:4: tenants.a.upstreams.hub.authorization_endpoint: is missing; write its URL, https://…, or issuer of an upstream that has metadata
        F:4: tenants.a.upstreams.hub.token_endpoint: is missing; write its URL, https://…, or issuer of an upstream that has metadata
        F:4: tenants.a.upstreams.hub.token_endpoint: stands beside issuer, whose metadata name it; keep one of the two
        F:4: tenants.a.upstreams.hub.authorization_parameters.a b: "a b" is no name of a parameter; use letters, digits, _, ., ~ and -, at most 64
        F:4: tenants.a.upstreams.hub.authorization_parameters.login_hint: is empty, or longer than 1024 bytes; write its value
        F:4: tenants.a.upstreams.hub.authorization_parameters.max_age: a number where a text is expected; put it in quotes
        F:4: tenants.a.upstreams.hub.authorization_parameters.state: is a parameter that the gateway itself sends, or that it could not follow; leave it out
        F:4: tenants.a.upstreams.hub.authorization_parameters: has more than 16 parameters; leave some out
        "#);
    }
}

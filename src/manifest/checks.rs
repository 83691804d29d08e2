//! Checks of a manifest against the configuration and the machine.
//!
//! Not here: mistakes in the manifest itself (`reader`).

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value as Json;
use url::Url;

use super::reader::{Manifest, server_key};
use crate::{
    base::terminal::shortened,
    config::{
        Config, Mistake, Separation,
        address::{authority, is_trustworthy},
        gateway::is_loopback,
    },
    declare::{AuthMode, Offer, STORE, Server, Tenant, When},
    endpoint::LOOPBACK,
};

/// Checks a manifest that is applied as a whole.
pub(crate) fn check(
    manifest: &Manifest,
    config: &Config,
    search: &str,
    offer: &Offer,
) -> Vec<Mistake> {
    judge(manifest, When::Applying, config, search, offer)
}

/// Checks a declared state on the occasion `when`.
///
/// While single objects change, the server of `[default]` may not exist yet, or not any more. A
/// stored state was checked when it was stored: a program that is missing here only fails to start.
pub(crate) fn judge(
    manifest: &Manifest,
    when: When,
    config: &Config,
    search: &str,
    offer: &Offer,
) -> Vec<Mistake> {
    let mut mistakes = check_separation(manifest, config.sandbox.shared_uid, offer.separation);
    mistakes.extend(check_confinement(manifest, offer));
    mistakes.extend(check_auth(manifest, config));
    mistakes.extend(check_issuers(manifest, config));
    mistakes.extend(check_own_issuers(manifest, config));
    if when == When::Applying {
        mistakes.extend(check_default(manifest, config));
    }
    if when != When::Serving {
        mistakes.extend(check_hosts(manifest, config));
        mistakes.extend(check_quotas(manifest));
        mistakes.extend(check_public_keys(manifest));
        mistakes.extend(check_commands(manifest, search));
    }
    mistakes
}

/// The objects and secrets of a tenant are within its quotas, which bound what each change and each snapshot takes.
pub(crate) fn check_quotas(manifest: &Manifest) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for tenant in manifest.tenants() {
        let Some(usage) = manifest.usage.get(&tenant.name) else {
            continue;
        };
        let bounds = &tenant.quotas.tenant;
        let secrets = manifest.others.secrets.get(&tenant.name);
        let objects = usage.objects + secrets.copied().unwrap_or(0);
        for (key, used, bound, unit) in [
            ("objects", objects, bounds.objects, "objects"),
            (
                "object_bytes",
                usage.bytes,
                bounds.object_bytes,
                "bytes of objects",
            ),
        ] {
            let Some(bound) = bound.filter(|bound| used > bound.get()) else {
                continue;
            };
            let key = format!("tenants.{}.quotas.{key}", tenant.name);
            let what = format!("permits {bound} {unit}, and there would be {used}");
            let remedy = "remove objects of the tenant, or let an operator raise the quota";
            mistakes.push(manifest.mistake(&key, what, remedy));
        }
    }
    mistakes
}

/// Members of public keys are texts or lists of texts, as those of RFC 7517 are, or a flag or a number, as `ext` of Web
/// Cryptography. A member that nobody knows is ignored (section 4), and would be in memory with all that is in it.
fn check_public_keys(manifest: &Manifest) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for tenant in manifest.tenants() {
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            continue;
        };
        for (name, client) in &builtin.clients {
            let of_workload = client.workload.as_ref().and_then(|of| of.jwks.as_deref());
            let sets = [
                ("jwks", client.jwks.as_deref()),
                ("workload.jwks", of_workload),
            ];
            for (set, keys) in sets {
                let Some(member) = keys.and_then(nested_member) else {
                    continue;
                };
                let key = format!("tenants.{}.clients.{name}.{set}.keys", tenant.name);
                let what = format!("holds a key whose {member:?} is no text and no list of texts");
                let remedy = "leave the member out: RFC 7517 has none like it";
                mistakes.push(manifest.mistake(&key, what, remedy));
            }
        }
    }
    mistakes
}

/// The name of a member of a key set's keys that has more in it than a list of texts.
fn nested_member(keys: &str) -> Option<String> {
    let keys: Json = serde_json::from_str(keys).ok()?;
    let keys = keys.get("keys")?.as_array()?;
    let is_nested = |value: &Json| match value {
        Json::Array(items) => !items.iter().all(Json::is_string),
        value => value.is_object(),
    };
    let mut members = keys.iter().filter_map(Json::as_object).flatten();
    let nested = members.find(|(_, value)| is_nested(value));
    nested.map(|(name, _)| shortened(name, MEMBER_MAX).into_owned())
}

/// The most characters of a member's name in a mistake.
const MEMBER_MAX: usize = 100;

/// More than one tenant requires separation of their processes.
pub(crate) fn check_separation(
    manifest: &Manifest,
    is_shared_uid: bool,
    separation: Separation,
) -> Vec<Mistake> {
    let is_separated = separation != Separation::None;
    let tenants = manifest.catalog.tenants.len() + manifest.others.tenants;
    if is_separated || is_shared_uid || tenants < 2 {
        return Vec::new();
    }
    let what = "more than one tenant, and nothing here separates their processes";
    let remedy = "set sandbox.uids, serve one tenant, or set sandbox.shared_uid = true";
    vec![manifest.mistake("tenants", what, remedy)]
}

/// Required sandbox settings must be enforceable.
pub(crate) fn check_confinement(manifest: &Manifest, offer: &Offer) -> Vec<Mistake> {
    let tenants = manifest.tenants();
    let servers = tenants.iter().flat_map(|tenant| tenant.servers.values());
    let mistakes = |server: &Arc<Server>| -> Vec<Mistake> {
        if !server.launch.confinement.required {
            return Vec::new();
        }
        let missing = offer.unenforced(server).into_iter();
        let mistake = missing.map(|missing| {
            let key = server_key(&server.tenant, &server.name, missing.key);
            let remedy = "leave it out, or go without by sandbox.required: false";
            manifest.mistake(&key, missing.what, remedy)
        });
        mistake.collect()
    };
    servers.flat_map(mistakes).collect()
}

/// Tenants without authentication are served on loopback only.
pub(crate) fn check_auth(manifest: &Manifest, config: &Config) -> Vec<Mistake> {
    if config.auth.insecure || is_loopback(config.http.listen) {
        return Vec::new();
    }
    let open = manifest
        .tenants()
        .into_iter()
        .filter(|tenant| tenant.auth == AuthMode::None);
    let mistake = |tenant: &Arc<Tenant>| {
        let what = format!("mode none while http.listen is {}", config.http.listen);
        let remedy = "listen on 127.0.0.1, or set auth.insecure = true";
        manifest.mistake(&format!("tenants.{}.auth", tenant.name), what, remedy)
    };
    open.map(mistake).collect()
}

/// Issuers, providers, workloads and upstreams with http URLs require `outbound.allow`.
pub(crate) fn check_issuers(manifest: &Manifest, config: &Config) -> Vec<Mistake> {
    if !config.outbound.allow.is_empty() {
        return Vec::new();
    }
    let mut mistakes = Vec::new();
    let mut check = |key: &str, url: &str| {
        if url.starts_with("http:") {
            let remedy = "write https://…, or list its network in outbound.allow";
            let what = "is asked by http, which anybody can answer";
            mistakes.push(manifest.mistake(key, what, remedy));
        }
    };
    for tenant in manifest.tenants() {
        let key = format!("tenants.{}", tenant.name);
        match &tenant.auth {
            AuthMode::External(external) => {
                check(&format!("{key}.auth.issuer"), &external.issuer);
                let introspection = external.introspection.as_ref();
                if let Some(url) = introspection.and_then(|by| by.url.as_ref()) {
                    check(&format!("{key}.introspection.url"), url);
                }
            }
            AuthMode::Builtin(builtin) => {
                for (name, provider) in &builtin.providers {
                    for (member, url) in provider.urls() {
                        check(&format!("{key}.providers.{name}.{member}"), url);
                    }
                }
                for (name, client) in &builtin.clients {
                    let asked = client.workload.iter().filter(|of| of.jwks.is_none());
                    for workload in asked {
                        check(
                            &format!("{key}.clients.{name}.workload.issuer"),
                            &workload.issuer,
                        );
                    }
                }
                for (name, upstream) in &builtin.upstreams {
                    for (member, url) in upstream.urls() {
                        check(&format!("{key}.upstreams.{name}.{member}"), url);
                    }
                }
            }
            AuthMode::None | AuthMode::Keys => {}
        }
    }
    mistakes
}

/// An issuer is an https URL (RFC 8414, section 2), except on loopback.
pub(crate) fn check_own_issuers(manifest: &Manifest, config: &Config) -> Vec<Mistake> {
    let is_fine = Url::parse(&config.public_url).is_ok_and(|url| is_trustworthy(&url));
    if is_fine || config.auth.insecure {
        return Vec::new();
    }
    let all = manifest.tenants().into_iter();
    let issuing = all.filter(|tenant| matches!(tenant.auth, AuthMode::Builtin(_)));
    let mistake = |tenant: &Arc<Tenant>| {
        let what = format!("mode builtin while public_url is {}", config.public_url);
        let remedy = "set public_url to the https URL that clients use";
        manifest.mistake(&format!("tenants.{}.auth", tenant.name), what, remedy)
    };
    issuing.map(mistake).collect()
}

/// `[default]` must name a declared server.
pub(crate) fn check_default(manifest: &Manifest, config: &Config) -> Vec<Mistake> {
    let is_there = |named: &(String, String)| {
        let (tenant, server) = named;
        manifest.catalog.find(tenant, server).is_some() || manifest.others.servers.contains(named)
    };
    let missing = config.default.as_ref().filter(|named| !is_there(named));
    let mistake = |(tenant, server): &(String, String)| {
        let what = format!("default.tenant and default.server name {tenant}/{server}");
        manifest.mistake(
            &format!("tenants.{tenant}.servers.{server}"),
            what,
            "declare that server",
        )
    };
    missing.map(mistake).into_iter().collect()
}

fn taken(manifest: &Manifest, tenant: &Tenant, host: &str, owner: &str) -> Mistake {
    let key = format!("tenants.{}.hosts", tenant.name);
    let what = format!("{host} is a host of tenant {owner}");
    manifest.mistake(&key, what, "name a host of this tenant alone")
}

/// A host of a tenant is neither that of the public URL, nor a name of this machine, nor another tenant's:
/// cookies do not tell ports apart. An issuer there is an https URL, as everywhere.
fn check_hosts(manifest: &Manifest, config: &Config) -> Vec<Mistake> {
    let public = Url::parse(&config.public_url).ok();
    let public = public.as_ref().and_then(Url::host_str);
    let allowed = |own: &str| {
        let hosts = config.http.allowed_hosts.iter();
        let mut hosts = hosts.filter_map(|host| authority(host));
        hosts.any(|(host, _)| host == own)
    };
    let is_open = config.public_url.starts_with("http:") && !config.auth.insecure;
    let (mut mistakes, mut known) = (Vec::new(), BTreeMap::new());
    for tenant in manifest.tenants() {
        for (host, _) in &tenant.hosts {
            let is_own = |name: &str| name.eq_ignore_ascii_case(host);
            let owner = *known.entry(host).or_insert(&tenant.name);
            if *owner != tenant.name {
                mistakes.push(taken(manifest, tenant, host, owner));
            }
            let other = manifest.others.hosts.get(host);
            mistakes.extend(other.map(|owner| taken(manifest, tenant, host, owner)));
            let (what, remedy) = if public.is_some_and(is_own) {
                ("is the host of public_url", "name another host")
            } else if LOOPBACK.into_iter().any(is_own) || allowed(host) {
                ("is a host of the gateway", "name another host")
            } else if is_open && tenant.auth.has_issuer() && !host.ends_with(".localhost") {
                let remedy = "set public_url to an https URL, or name a host below localhost";
                ("would be reached by http", remedy)
            } else {
                continue;
            };
            let key = format!("tenants.{}.hosts", tenant.name);
            mistakes.push(manifest.mistake(&key, format!("{host} {what}"), remedy));
        }
    }
    mistakes
}

/// Every command must be an executable file, found in `search` (the value of PATH).
pub(crate) fn check_commands(manifest: &Manifest, search: &str) -> Vec<Mistake> {
    let tenants = manifest.tenants();
    let servers = tenants.iter().flat_map(|tenant| tenant.servers.values());
    let programs = servers.flat_map(|server| {
        let place = (&server.tenant, &server.name);
        let words = server
            .recipe
            .as_ref()
            .and_then(|recipe| recipe.words.first());
        let first = ("command", &server.launch.command);
        let second = words.map(|program| ("prepare", program));
        let all = std::iter::once(first).chain(second);
        all.map(move |(key, program)| (place, key, program))
    });
    // Programs in the prepared store appear later.
    let missing = programs.filter(|(_, _, program)| {
        !program.contains(STORE) && find_command(program, search).is_none()
    });
    let mistake = |((tenant, server), key, command): ((&String, &String), &str, &String)| {
        let remedy = if command.contains('/') {
            "name an executable file"
        } else {
            "install it, add its directory to PATH, or write its whole path"
        };
        let is_there = command.contains('/') && Path::new(command).exists();
        let what = if is_there {
            "is no executable file"
        } else {
            "not found"
        };
        let key = server_key(tenant, server, key);
        manifest.mistake(&key, format!("{command} {what}"), remedy)
    };
    missing.map(mistake).collect()
}

/// The executable file of `command`.
pub(crate) fn find_command(command: &str, search: &str) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return Some(PathBuf::from(command)).filter(is_executable);
    }
    // A shell takes an empty member of PATH as the working directory; it is ignored here.
    let directories = search.split(':').filter(|directory| !directory.is_empty());
    directories
        .map(|directory| Path::new(directory).join(command))
        .find(is_executable)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{Format, Sources};
    use crate::manifest::reader::parse;

    use super::super::checks::*;

    const FULL: &str = "tenants:
  acme:
    auth: {mode: none}
    servers:
      files:
        command: npx
      other: {command: /bin/cat}
";

    fn yaml(text: &str) -> Result<Manifest, Vec<Mistake>> {
        parse("F", text, Format::Yaml, &BTreeMap::new())
    }

    /// A machine that enforces next to nothing.
    fn bare() -> Offer {
        Offer {
            separation: Separation::None,
            has_mounts: false,
            landlock: 0,
            has_seccomp: true,
            bounds_memory: false,
            bounds_pids: false,
            bounds_cpu: false,
            refuses_addresses: false,
        }
    }

    fn config(set: &[&str]) -> Config {
        let set = set.iter().map(|set| (*set).to_owned()).collect();
        let env = BTreeMap::from([("HOME".to_owned(), "/".to_owned())]);
        Config::load(&Sources {
            set,
            env,
            ..Sources::default()
        })
        .unwrap()
    }

    /// Tenants with these hosts.
    fn with_hosts(a: &str, b: &str) -> Manifest {
        let text = format!(
            "tenants:\n  a: {{auth: {{mode: builtin}}, hosts: [{a}]}}\n  \
             b: {{auth: {{mode: keys}}, hosts: [{b}]}}\n"
        );
        yaml(&text).unwrap()
    }

    #[test]
    fn a_host_is_of_one_tenant_and_not_of_the_gateway() {
        let https = [
            "public_url=https://gw.test:8443",
            "http.allowed_hosts=[\"also.test:1\"]",
        ];
        let says = |a: &str, b: &str, set: &[&str]| {
            let found = check_hosts(&with_hosts(a, b), &config(set)).into_iter();
            found
                .map(|mistake| format!("{}: {}", mistake.key, mistake.what))
                .collect::<Vec<_>>()
        };
        assert!(says("a.test, A.test", "b.test", &https).is_empty());
        for (a, b, what) in [
            (
                "a.test",
                "A.TEST:1",
                "tenants.b.hosts: a.test is a host of tenant a",
            ),
            (
                "GW.test:9",
                "b.test",
                "tenants.a.hosts: gw.test is the host of public_url",
            ),
            (
                "also.test",
                "b.test",
                "tenants.a.hosts: also.test is a host of the gateway",
            ),
            (
                "localhost",
                "b.test",
                "tenants.a.hosts: localhost is a host of the gateway",
            ),
        ] {
            assert_eq!(says(a, b, &https), [what]);
        }
        let what = "tenants.a.hosts: a.test would be reached by http";
        assert_eq!(says("a.test", "b.test", &[]), [what]);
        assert!(says("a.localhost", "b.test", &[]).is_empty());
        assert!(says("a.test", "b.test", &["auth.insecure=true"]).is_empty());
    }

    #[test]
    fn a_host_is_a_name_with_or_without_a_port() {
        for host in [
            "",
            "127.0.0.1",
            "[::1]",
            "a.test:0",
            "a/b",
            "https://a.test",
            "*.a.test",
        ] {
            let text = format!("tenants: {{a: {{auth: {{mode: keys}}, hosts: ['{host}']}}}}");
            assert_eq!(yaml(&text).unwrap_err()[0].key, "tenants.a.hosts", "{host}");
        }
    }

    #[test]
    fn a_mistake_has_the_line_of_its_key_or_of_the_table_around_it() {
        let text = "tenants:\n  a: {auth: {mode: none}}\n  b:\n    auth: {mode: none}\n    hosts: [x.test]\n";
        let manifest = yaml(text).unwrap();
        for (key, line) in [
            ("tenants.b.hosts", 5),
            ("tenants.b.quotas.objects", 3),
            ("tenants.a.servers.x.command", 2),
            ("tenants", 1),
            ("others", 1),
            ("", 1),
        ] {
            assert_eq!(
                manifest.mistake(key, "w", "r").place,
                format!("F:{line}"),
                "{key}"
            );
        }
    }

    #[test]
    fn checks_against_the_configuration() {
        let two = yaml("tenants:\n  a: {auth: {mode: none}}\n  b: {auth: {mode: none}}\n").unwrap();
        let one = yaml(FULL).unwrap();
        let mut part = yaml(FULL).unwrap();
        part.others.tenants = 1;
        assert_eq!(check_separation(&part, false, Separation::None).len(), 1);
        assert_eq!(check_separation(&two, false, Separation::None).len(), 1);
        assert!(check_separation(&two, true, Separation::None).is_empty());
        assert!(check_separation(&two, false, Separation::Landlock).is_empty());
        assert!(check_separation(&one, false, Separation::None).is_empty());
        let public = ["http.listen=0.0.0.0:80", "public_url=https://x"];
        let open = check_auth(&two, &config(&public));
        assert_eq!(open[1].place, "F:3");
        assert!(check_auth(&two, &config(&[])).is_empty());
        assert!(
            check_auth(&two, &config(&[public[0], public[1], "auth.insecure=true"])).is_empty()
        );
        let named = ["default.tenant=acme", "default.server=files"];
        assert!(check_default(&one, &config(&named)).is_empty());
        assert_eq!(check_default(&two, &config(&named)).len(), 1);
        let default = ("acme".to_owned(), "files".to_owned());
        let mut beside = yaml("tenants: {}\n").unwrap();
        beside.others.servers.insert(default);
        assert!(check_default(&beside, &config(&named)).is_empty());
        assert!(check_default(&two, &config(&[])).is_empty());
    }

    #[test]
    fn who_is_asked_and_who_issues_has_https() {
        let config = |set: &[&str]| {
            let set = set.iter().map(|set| (*set).to_owned()).collect();
            let env = BTreeMap::from([("HOME".to_owned(), "/".to_owned())]);
            let sources = Sources {
                set,
                env,
                ..Sources::default()
            };
            Config::load(&sources).unwrap()
        };
        let manifest = yaml(
            "tenants:
  a:
    providers:
      plain: {issuer: \"http://i.test\", client_id: x}
      sealed: {issuer: \"https://i.test\", client_id: x}
      odd:
        kind: oauth
        issuer: http://called.test
        authorization_url: https://o.test
        token_url: http://o.test
        user_url: https://o.test
        client_id: x
  b: {auth: {mode: keys}}
",
        )
        .unwrap();
        let found = check_issuers(&manifest, &config(&[]));
        let keys: Vec<&str> = found.iter().map(|mistake| mistake.key.as_str()).collect();
        let (odd, plain) = ("tenants.a.providers.odd", "tenants.a.providers.plain");
        assert_eq!(
            keys,
            [format!("{odd}.token_url"), format!("{plain}.issuer")]
        );
        let allowed = config(&["outbound.allow=[\"127.0.0.0/8\"]"]);
        assert!(check_issuers(&manifest, &allowed).is_empty());
        for (url, count) in [
            ("https://gw.test", 0),
            ("http://127.0.0.1:8080", 0),
            ("http://[::1]:8080", 0),
            ("http://localhost:8080", 0),
            ("http://gw.test", 1),
            ("http://10.0.0.1", 1),
        ] {
            let url = format!("public_url={url}");
            let found = check_own_issuers(&manifest, &config(&[&url]));
            assert_eq!(found.len(), count, "{url}");
            let insecure = config(&[&url, "auth.insecure=true"]);
            assert!(check_own_issuers(&manifest, &insecure).is_empty(), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        let bare = bare();
        let text = |required: bool| {
            format!(
                "tenants:\n  a:\n    auth: {{mode: none}}\n    servers:\n      x:\n        command: cat\n        limits:\n          files: 9\n          memory: 1GiB\n        sandbox: {{required: {required}}}\n"
            )
        };
        let found = check_confinement(&yaml(&text(true)).unwrap(), &bare);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(found.join("\n"), @r###"
        F:10: tenants.a.servers.x.sandbox.profile: standard confines files by Landlock, which this kernel does not offer; leave it out, or go without by sandbox.required: false
        F:9: tenants.a.servers.x.limits.memory: no cgroup v2 with the memory controller is delegated to this gateway; leave it out, or go without by sandbox.required: false
        "###);
        assert!(check_confinement(&yaml(&text(false)).unwrap(), &bare).is_empty());
    }

    #[test]
    fn objects_are_within_the_quotas_of_their_tenant() {
        let declared = |quotas: &str| {
            let text = format!(
                "tenants:\n  a:\n    quotas: {quotas}\n    users: {{ada: {{}}, eve: {{}}}}\n    servers: {{x: {{command: cat}}}}\n  b: {{}}\n"
            );
            let read = crate::manifest::objects::parse("F", &text, Format::Yaml, &BTreeMap::new());
            read.unwrap()
        };
        let found = |quotas: &str| {
            let read = declared(quotas);
            let stored = read.declared.manifest().unwrap();
            assert_eq!(
                check_quotas(&stored).len(),
                check_quotas(&read.manifest).len()
            );
            let found = check_quotas(&read.manifest);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for enough in ["{}", "{objects: 3}", "{objects: 0}", "{object_bytes: 59B}"] {
            assert!(found(enough).is_empty(), "{enough}: {:?}", found(enough));
        }
        insta::assert_snapshot!(found("{objects: 2, object_bytes: 58B}").join("\n"), @r###"
        F:2: tenants.a.quotas.objects: permits 2 objects, and there would be 3; remove objects of the tenant, or let an operator raise the quota
        F:2: tenants.a.quotas.object_bytes: permits 58 bytes of objects, and there would be 59; remove objects of the tenant, or let an operator raise the quota
        "###);
        // Secrets of its servers count as objects.
        for (secrets, is_right) in [(1, true), (2, false)] {
            let mut manifest = declared("{objects: 4}").manifest;
            manifest.others.secrets.insert("a".to_owned(), secrets);
            assert_eq!(check_quotas(&manifest).is_empty(), is_right);
            assert_eq!(secrets <= manifest.most_secrets()["a"], is_right);
        }
    }

    /// Members of a key were anything: 64 KiB of numbers were millions of bytes in each replica.
    #[test]
    fn members_of_public_keys_are_texts() {
        let found = |at: &str, members: &str| {
            let text = format!(
                "tenants:\n  a:\n    clients:\n      c: {{{at}: {{keys: [{{kty: EC}}, {{kty: EC, {members}}}]}}"
            );
            let closed = |rest: &str| yaml(&format!("{text}{rest}}}\n"));
            let manifest = match at {
                "jwks" => closed(", redirect_uris: ['https://a.test']"),
                _ => closed(", issuer: 'https://i.test', claims: {sub: x}}"),
            };
            check_public_keys(&manifest.unwrap())
        };
        let workload = "workload: {jwks";
        for plain in [
            "x: abc",
            "key_ops: [verify], ext: true",
            "x5c: [MII, MIJ], nbf: 1, use: null",
            "x5c: []",
        ] {
            assert!(found("jwks", plain).is_empty(), "{plain}");
            assert!(found(workload, plain).is_empty(), "{plain}");
        }
        for nested in ["x: [0, 0]", "x: {a: b}", "x: [[a]]", "x: [a, null]"] {
            for (at, set) in [("jwks", "jwks"), (workload, "workload.jwks")] {
                let found = found(at, nested).into_iter().map(|one| one.to_string());
                let wanted = format!(
                    "F:4: tenants.a.clients.c.{set}.keys: holds a key whose \"x\" is no text and no list of texts; leave the member out: RFC 7517 has none like it"
                );
                assert_eq!(found.collect::<Vec<_>>(), [wanted], "{nested}");
            }
        }
        // What was stored before is served.
        let text = "tenants: {a: {clients: {c: {redirect_uris: ['https://a.test'], jwks: {keys: [{kty: EC, x: [0]}]}}}}}";
        let manifest = yaml(text).unwrap();
        let judged = |when| {
            let all = judge(&manifest, when, &config(&[]), "", &bare());
            all.iter().any(|one| one.key.contains(".jwks."))
        };
        let all = [When::Serving, When::Changing, When::Applying].map(judged);
        assert_eq!(all, [false, true, true]);
    }

    #[test]
    fn commands_must_be_there() {
        assert!(find_command("sh", "/nonexistent::/bin").is_some());
        assert!(find_command("/bin/sh", "").is_some());
        for missing in [
            "no-such-program",
            "/etc/passwd",
            "/bin",
            "/nonexistent/x",
            ".",
        ] {
            assert_eq!(find_command(missing, "/bin:/usr/bin"), None, "{missing}");
        }
        for (command, what) in [
            ("/etc/passwd", "is no executable file"),
            ("/nonexistent/x", "not found"),
        ] {
            let text = FULL.replace("/bin/cat", command).replace("npx", "/bin/sh");
            let found = check_commands(&yaml(&text).unwrap(), "");
            assert_eq!(found[0].what, format!("{command} {what}"));
        }
        let found = check_commands(&yaml(FULL).unwrap(), "/nonexistent");
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "F:6: tenants.acme.servers.files.command: npx not found; install it, add its directory to PATH, or write its whole path"
        );
    }
}

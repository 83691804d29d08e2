//! Tests of `manifest::server`.

use std::path::Path;

use super::super::{
    command_line::single,
    reader::{Manifest, parse},
    server::*,
};
use crate::{
    config::{Config, Format, Mistake, Sources},
    declare::{AuthMode, Confinement, Dpop},
    protocol::{Revision, revision},
};

fn env() -> BTreeMap<String, String> {
    BTreeMap::from([("TOKEN".to_owned(), "s3cret".to_owned())])
}

fn yaml(text: &str) -> Result<Manifest, Vec<Mistake>> {
    parse("F", text, Format::Yaml, &env())
}

fn found(result: Result<Manifest, Vec<Mistake>>) -> Vec<String> {
    let Err(mistakes) = result else {
        panic!("no mistake")
    };
    mistakes.iter().map(ToString::to_string).collect()
}

const FULL: &str = r#"
version: 1
tenants:
  acme:
    auth: {mode: none}
    default_server: files
    revisions: ["2025-03-26", "2025-11-25"]
    servers:
      files:
        command: npx
        args: ["-y", "pkg@1", "$${HOME}"]
        env: {TOKEN: "a ${env:TOKEN}", EMPTY: ""}
        cwd: /tmp
        reply: {mode: json, sse_after: 1s, close_after: 300ms}
        clocks: {call: 10s, stop: [1s, 0s]}
        tools: {export: {call: 10m}}
        limits: {line: 1MiB, stderr: 1KiB, files: 64, file_size: ""}
      other: {command: /bin/cat}
"#;

#[test]
fn reads_every_key() {
    let manifest = yaml(FULL).unwrap();
    let (tenant, server) = manifest.catalog.find("acme", "files").unwrap();
    assert_eq!(tenant.default_server.as_deref(), Some("files"));
    assert_eq!(
        tenant.revisions,
        [Revision::V2025_11_25, Revision::V2025_03_26]
    );
    assert_eq!(server.launch.args[2], "${HOME}");
    assert_eq!(server.launch.env["TOKEN"], "a s3cret");
    assert_eq!(server.launch.cwd.as_deref(), Some(Path::new("/tmp")));
    assert_eq!(server.reply.mode, ReplyMode::Json);
    assert_eq!(server.clocks.stop, [Duration::from_secs(1), Duration::ZERO]);
    let tool = server.clocks_of(Some("export"));
    assert_eq!((tool.call.as_secs(), tool.ask), (600, server.clocks.ask));
    assert_eq!(tool.stop, server.clocks.stop);
    let (_, other) = manifest.catalog.find("acme", "other").unwrap();
    let [s, m] = [1, 60].map(|unit| move |time: Duration| time.as_secs() / unit);
    let clocks = other.clocks;
    let named = format!(
        "call {}m, call_max {}m, ask {}m, ask_unclaimed {}s, stop {}s and {}s",
        m(clocks.call),
        m(clocks.call_max),
        m(clocks.ask),
        s(clocks.ask_unclaimed),
        s(clocks.stop[0]),
        s(clocks.stop[1])
    );
    let schema = include_str!("../../../docs/manifest.schema.json");
    assert!(schema.contains(&named), "{named}");
    assert_eq!(
        (server.limits.files, server.limits.file_size),
        (64, u64::MAX)
    );
    let (tenant, other) = manifest.catalog.find("acme", "other").unwrap();
    assert_eq!(tenant.servers.len(), 2);
    assert_eq!(other.clocks, DEFAULT_CLOCKS);
    assert_eq!((other.reply, other.limits), (DEFAULT_REPLY, DEFAULT_LIMITS));
    assert_eq!(other.launch.cwd, None);
}

#[test]
fn toml_and_json_say_the_same() {
    let toml = "version = 1\n[tenants.a]\nauth.mode = \"none\"\nservers.x.command = \"cat\"\nservers.x.limits.line = \"1MiB\"\n";
    let json = r#"{"version":1,"tenants":{"a":{"auth":{"mode":"none"},
            "servers":{"x":{"command":"cat","limits":{"line":1048576}}}}}}"#;
    for (format, text) in [(Format::Toml, toml), (Format::Json, json)] {
        let manifest = parse("F", text, format, &env()).unwrap();
        let (tenant, server) = manifest.catalog.find("a", "x").unwrap();
        assert_eq!(server.limits.line, 1 << 20);
        assert_eq!(tenant.revisions, revision::ALL);
    }
}

#[test]
fn all_mistakes_at_once() {
    let text = r#"
version: 2
tenants:
  Acme:
    auth: {mode: bultin}
    default_server: fils
    revisions: ["2027-07-28"]
    people: {}
    servers:
      files:
        command: ""
        args: [1, "$x", "${env:NOPE}"]
        env: {PORT: 8080, A: "${file:/nonexistent}"}
        cwd: x
        policy: 1
        reply: {mode: jsno, sse_after: 5}
        clocks: {cal: 1s, stop: [1s]}
        tools: {t: {start: 1s}}
        limits: {line: 0, files: 0, disk: 1GiB}
      files: {}
  b: 5
"#;
    insta::assert_snapshot!(found(yaml(text)).join("\n"), @r###"
        F:2: version: is a version that this build does not know; write version: 1
        F:4: tenants.Acme: "Acme" is not a name; use a-z, 0-9 and -, at most 63, the first not -
        F:8: tenants.Acme.people: unknown key; known here: api_keys, auth, clients, default_server, dpop, hosts, introspection, providers, quotas, revisions, servers, upstreams, users
        F:5: tenants.Acme.auth.mode: "bultin" is no mode; write auth: {mode: builtin}, {mode: external, issuer: URL}, {mode: keys} or {mode: none}
        F:20: tenants.Acme.servers.files: also at F:10; keep one of the two
        F:11: tenants.Acme.servers.files.command: is empty; write the program to start
        F:12: tenants.Acme.servers.files.args[0]: a number where a text is expected; put it in quotes
        F:12: tenants.Acme.servers.files.args[1]: a $ alone; write $$ for a $
        F:12: tenants.Acme.servers.files.args[2]: the variable NOPE is not set; set it in the environment of lockgate
        F:13: tenants.Acme.servers.files.env.A: the file /nonexistent cannot be read: No such file or directory (os error 2); name a readable UTF-8 file
        F:13: tenants.Acme.servers.files.env.PORT: a number where a text is expected; put it in quotes
        F:14: tenants.Acme.servers.files.cwd: is not absolute; write the whole path
        F:17: tenants.Acme.servers.files.clocks.cal: unknown key; did you mean call?
        F:17: tenants.Acme.servers.files.clocks.stop: does not hold two durations; write how long until SIGTERM and until SIGKILL, like [2s, 5s]
        F:18: tenants.Acme.servers.files.tools.t.start: unknown key; known here: call, call_max, ask, ask_unclaimed
        F:16: tenants.Acme.servers.files.reply.mode: "jsno" is none of auto, sse, json; write one of them
        F:16: tenants.Acme.servers.files.reply.sse_after: a number where a text like "250ms", "30s" or "1m30s" is expected; put it in quotes
        F:19: tenants.Acme.servers.files.limits.disk: unknown key; known here: line, stderr, files, file_size, memory, pids, cpu
        F:19: tenants.Acme.servers.files.limits.line: must hold at least one byte; write a size like "16MiB"
        F:19: tenants.Acme.servers.files.limits.files: 0 is out of range; write a number from 1 to 4294967295
        F:15: tenants.Acme.servers.files.policy: a number where a table is expected; write a table
        F:6: tenants.Acme.default_server: "fils" is no server of this tenant; did you mean files?
        F:7: tenants.Acme.revisions: "2027-07-28" is no revision that this build serves; choose among 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05
        F:21: tenants.b: a number where a table is expected; write a table
        "###);
}

#[test]
fn keys_are_required_where_there_are_tokens() {
    let of = |auth: &str, dpop: &str| {
        yaml(&format!(
            "tenants: {{a: {{auth: {{{auth}}}, servers: {{}}{dpop}}}}}"
        ))
    };
    let external = "mode: external, issuer: \"https://i.test\"";
    for auth in ["mode: builtin", external] {
        for (dpop, wanted) in [
            ("", Dpop::Optional),
            (", dpop: optional", Dpop::Optional),
            (", dpop: required", Dpop::Required),
        ] {
            let read = of(auth, dpop).unwrap();
            assert_eq!(read.catalog.tenants["a"].dpop, wanted, "{auth} {dpop}");
        }
    }
    for auth in ["mode: keys", "mode: none"] {
        assert!(of(auth, ", dpop: optional").is_ok());
        let wanted = "F:1: tenants.a.dpop: is for access tokens, which there are none of in this auth.mode; \
            write auth: {mode: builtin} or {mode: external}, or leave it out";
        assert_eq!(found(of(auth, ", dpop: required")), [wanted]);
    }
    let wrong = found(of("mode: builtin", ", dpop: always"));
    let wanted = "F:1: tenants.a.dpop: \"always\" is none of optional, required; write one of them";
    assert_eq!(wrong, [wanted]);
}

#[test]
fn authentication_is_never_left_out_by_silence() {
    for silence in ["", "auth: {}", "auth: {registration: false}"] {
        let text = format!("tenants:\n  a:\n    servers: {{}}\n    {silence}\n");
        let read = yaml(&text).unwrap();
        let auth = &read.catalog.tenants["a"].auth;
        assert!(matches!(auth, AuthMode::Builtin(_)), "{silence}: {auth:?}");
    }
    for auth in ["auth: {mode: external}", "auth: none", "auth: {mode: nne}"] {
        let text = format!("tenants:\n  a:\n    servers: {{}}\n    {auth}\n");
        let found = found(yaml(&text));
        assert_eq!(found.len(), 1, "{auth}: {found:?}");
    }
}

#[test]
fn secrets_are_not_in_messages() {
    let text =
        "tenants: {a: {auth: {mode: none}, servers: {x: {command: cat, cwd: \"${env:TOKEN}\"}}}}";
    let found = found(yaml(text));
    assert!(!found[0].contains("s3cret"), "{found:?}");
    assert!(!format!("{:?}", yaml(FULL).unwrap()).contains("s3cret"));
}

#[test]
fn run_reads_flags_by_the_same_path() {
    let launch = Launch {
        command: "cat".to_owned(),
        args: vec!["$HOME".to_owned()],
        env: BTreeMap::from([("A".to_owned(), "$".to_owned())]),
        cwd: Some(PathBuf::from("relative")),
        home: Home::Caller,
        confinement: Confinement::default(),
        prepared: None,
        files: BTreeMap::new(),
        is_preparing: false,
    };
    let overrides = |set: &[&str]| {
        let set = set.iter().map(|set| format!("server.{set}")).collect();
        Config::load(&Sources {
            run: true,
            set,
            ..Sources::default()
        })
        .unwrap()
        .server
    };
    let set = overrides(&[
        "reply.close_after=300ms",
        "clocks.stop=[\"1s\",\"2s\"]",
        "tools.t.call=1s",
        "limits.files=9",
        "env.B=5",
        "reply.mode=sse",
        "reply.mode=json",
        "clocks={ask=\"1s\"}",
    ]);
    let manifest = single(launch.clone(), &set, &env()).unwrap();
    let (_, server) = manifest.catalog.find("local", "main").unwrap();
    assert_eq!(server.launch.args, ["$HOME"]);
    assert_eq!(
        (
            server.launch.env["A"].as_str(),
            server.launch.env["B"].as_str()
        ),
        ("$", "5")
    );
    assert_eq!(server.launch.cwd.as_deref(), Some(Path::new("relative")));
    assert_eq!(server.launch.home, Home::Caller);
    assert_eq!(server.reply.close_after, Duration::from_millis(300));
    assert_eq!(server.reply.mode, ReplyMode::Json);
    assert_eq!(server.clocks.ask.as_secs(), 1);
    assert_eq!(server.clocks_of(Some("t")).call.as_secs(), 1);
    assert_eq!(server.limits.files, 9);
    let wrong = overrides(&["reply.mod=json", "command.x=1", "policy=1", "clocks.call=x"]);
    assert_eq!(found(single(launch.clone(), &wrong, &env())).len(), 4);
    let slots = overrides(&["secrets.TOKEN.for=tenant"]);
    let wrong = found(single(launch, &slots, &env()));
    assert!(
        wrong[0].contains("server.secrets") && wrong.len() == 1,
        "{wrong:?}"
    );
}

/// It was said that there is no such program.
#[test]
fn run_starts_its_server_in_a_directory_that_is_there() {
    let at = |cwd: &str| {
        let sources = Sources {
            run: true,
            set: vec![format!("server.cwd={cwd}")],
            ..Sources::default()
        };
        let launch = Launch {
            command: "cat".to_owned(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            home: Home::Caller,
            confinement: Confinement::default(),
            prepared: None,
            files: BTreeMap::new(),
            is_preparing: false,
        };
        single(launch, &Config::load(&sources).unwrap().server, &env())
    };
    assert!(at("/").is_ok());
    let said = "--set: server.cwd: /nonexistent/x is no directory; name one that exists";
    assert_eq!(found(at("/nonexistent/x")), [said]);
}

fn prepared(keys: &str) -> Result<(Launch, Option<Recipe>), Vec<String>> {
    let text = format!("tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{{keys}}}}}}}}}");
    let read = parse("F", &text, Format::Yaml, &BTreeMap::new());
    match read {
        Ok(manifest) => {
            let (_, server) = manifest.catalog.find("a", "x").unwrap();
            Ok((server.launch.clone(), server.recipe.clone()))
        }
        Err(mistakes) => Err(mistakes.iter().map(ToString::to_string).collect()),
    }
}

fn prepare(keys: &str) -> Option<Recipe> {
    prepared(keys).unwrap().1
}

#[test]
fn prepare_is_auto_off_or_words() {
    let npx = "command: npx, args: [x@1]";
    for (key, words) in [
        ("", Some(8)),
        ("prepare: auto", Some(8)),
        ("prepare: off", None),
        ("prepare: \"off\"", None),
        ("prepare: [npm, ci]", Some(2)),
    ] {
        let found = prepare(&format!("{npx}, {key}"));
        assert_eq!(found.map(|recipe| recipe.words.len()), words, "{key}");
    }
    assert_eq!(prepare("command: cat"), None);
    for key in ["on", "true", "[]", "[\"\"]", "[1]", "{a: b}", "1"] {
        assert!(
            prepared(&format!("{npx}, prepare: {key}")).is_err(),
            "{key}"
        );
    }
}

#[test]
fn the_store_is_named_only_where_there_is_one() {
    for uses in [
        "command: \"${prepared}/x\"",
        "command: x, args: [\"${prepared}\"]",
        "command: x, env: {A: \"${prepared}\"}",
        "command: x, cwd: \"${prepared}/y\"",
    ] {
        assert!(prepared(&format!("{uses}, prepare: [y]")).is_ok(), "{uses}");
        for key in ["auto", "off"] {
            let found = prepared(&format!("{uses}, prepare: {key}")).unwrap_err();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("servers.x.prepare"), "{found:?}");
        }
    }
    assert!(prepared("command: x, args: [\"$${prepared}\"]").is_ok());
}

fn tenant_of(auth: &str, keys: &str) -> Result<Manifest, Vec<Mistake>> {
    yaml(&format!(
        "tenants:\n  a:\n    auth: {{mode: {auth}}}\n    servers:\n      x: {{command: cat, {keys}}}\n"
    ))
}

#[test]
fn slots_are_read() {
    let read = tenant_of(
        "keys",
        "secrets: {TOKEN: {for: principal, title: Token, help: \"https://x.test/\"}, \
         KEY: {for: tenant, as: file}}",
    );
    let read = read.unwrap();
    let (_, server) = read.catalog.find("a", "x").unwrap();
    let token = &server.slots["TOKEN"];
    assert_eq!(
        (token.holder, token.form),
        (Holder::Principal, SlotForm::Variable)
    );
    assert_eq!(token.title.as_deref(), Some("Token"));
    assert_eq!(token.help.as_deref(), Some("https://x.test/"));
    let key = &server.slots["KEY"];
    assert_eq!((key.holder, key.form), (Holder::Tenant, SlotForm::File));
}

#[test]
fn slots_are_refused_where_people_share_a_child() {
    let own = "secrets: {TOKEN: {for: principal}}";
    let all = "secrets: {TOKEN: {for: tenant}}";
    for (auth, keys) in [
        ("keys", format!("{own}, isolation: session")),
        ("keys", format!("{own}, isolation: principal")),
        ("keys", format!("{all}, isolation: tenant")),
        ("none", all.to_owned()),
    ] {
        assert!(tenant_of(auth, &keys).is_ok(), "{auth} {keys}");
    }
    let mistakes = [
        ("keys", format!("{own}, isolation: tenant")),
        ("none", own.to_owned()),
        ("keys", format!("{all}, warm: 1")),
        ("keys", "secrets: {LD_PRELOAD: {for: principal}}".to_owned()),
        ("keys", "secrets: {../x: {for: tenant}}".to_owned()),
        ("keys", format!("{all}, env: {{TOKEN: x}}")),
        ("keys", "secrets: {A: {}}".to_owned()),
        (
            "keys",
            "secrets: {A: {for: tenant, title: \"\", help: \"http://x\"}}".to_owned(),
        ),
    ];
    let mistakes = mistakes.map(|(auth, keys)| found(tenant_of(auth, &keys)).join("\n"));
    insta::assert_snapshot!(mistakes.join("\n"), @r"
    F:5: tenants.a.servers.x.secrets: has a secret for: principal, and isolation: tenant, by which several people share a child; write isolation: principal or session, or for: tenant
    F:5: tenants.a.servers.x.secrets: has a secret for: principal, and auth.mode is none, by which nobody is told apart; write another auth.mode, or for: tenant
    F:5: tenants.a.servers.x.secrets: has secrets, which a child gets at its start, and warm children start for nobody; write warm: 0, or leave secrets out
    F:5: tenants.a.servers.x.secrets.LD_PRELOAD: is no name of a variable for a secret, or chooses what a program loads; write a name like GITHUB_TOKEN
    F:5: tenants.a.servers.x.secrets.../x: is no name of a variable for a secret, or chooses what a program loads; write a name like GITHUB_TOKEN
    F:5: tenants.a.servers.x.secrets.TOKEN: is in env, too; leave it out of one of the two
    F:5: tenants.a.servers.x.secrets.A.for: is missing; write for: principal, or for: tenant
    F:5: tenants.a.servers.x.secrets.A.title: is not of 1 to 80 characters; write what people call it
    F:5: tenants.a.servers.x.secrets.A.help: is no https URL; write https://…
    ");
    let unknown = found(tenant_of("keys", "secrets: {A: {for: tenant, whose: x}}"));
    assert!(unknown[0].contains("secrets.A.whose"), "{unknown:?}");
    let many: Vec<String> = (0..17)
        .map(|at| format!("A{at}: {{for: tenant}}"))
        .collect();
    let many = found(tenant_of(
        "keys",
        &format!("secrets: {{{}}}", many.join(", ")),
    ));
    assert!(many[0].contains("has more than 16 secrets"), "{many:?}");
}

//! The reader of `servers`: launch specification, preparation, limits and supervision.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use super::{
    identity::grants, interpolation::interpolate, policy::policy, reader::Reader,
    sandbox::group_limits,
};
use crate::{
    config::{Fields, Node, Value, Wrong, reader::choice},
    declare::{
        Clocks, Home, Isolation, Launch, Limits, OnLoss, Recipe, Reply, ReplyMode, Room, STORE,
        Server, Start, Supervision, derive,
    },
};

impl Reader<'_> {
    /// Reads one server of a tenant.
    pub(crate) fn server(&mut self, node: &Node, key: &str, tenant: &str, server: &str) -> Server {
        let fields = Fields::of(node, key, self.mistakes);
        fields.order(&[
            "command", "args", "env", "cwd", "reply", "clocks", "tools", "limits",
        ]);
        fields.order(&["sandbox", "prepare", "grants", "policy", "audit_calls"]);
        let launch = self.launch(&fields);
        for name in ["command", "prepare"] {
            let place = fields.member(name).map(|node| node.place.clone());
            self.places
                .extend(place.map(|place| (fields.key(name), place)));
        }
        let resolved = |node: &Node| interpolate(&node.text()?, self.env);
        let recipe = recipe(&fields, &launch, resolved);
        let clocks = clocks(&fields);
        let read = Server {
            tenant: tenant.to_owned(),
            name: server.to_owned(),
            launch,
            recipe,
            clocks,
            tools: tools(&fields, clocks),
            reply: reply(&fields),
            limits: limits(&fields),
            supervision: supervision(&fields),
            policy: Arc::new(policy(&fields)),
            audit_calls: fields.read("audit_calls", false, Node::flag),
            room: Room::default(),
            grants: grants(&fields),
        };
        fields.end();
        read
    }

    fn launch(&mut self, fields: &Fields<'_>) -> Launch {
        let env = self.env;
        let resolved = |node: &Node| interpolate(&node.text()?, env);
        let command = if fields.member("command").is_none() {
            let wrong = Wrong::new("is missing", "write the program to start");
            self.wrong(wrong, &fields.place, &fields.key("command"));
            String::new()
        } else {
            let program = |node: &Node| resolved(node).and_then(not_empty);
            fields.read("command", String::new(), program)
        };
        let args = self.args(fields, &resolved);
        let mut variables = BTreeMap::new();
        if let Some(members) = fields.inner("env") {
            for (variable, node) in members.members() {
                if variable.is_empty() || variable.contains(['=', '\0']) {
                    let wrong = Wrong::new("is no name of a variable", "leave out = and NUL");
                    self.wrong(wrong, &node.place, &members.key(variable));
                }
                let value = members.value(variable, node, String::new(), resolved);
                variables.insert(variable.to_owned(), value);
            }
        }
        let directory = |node: &Node| resolved(node).and_then(|text| absolute(&text));
        Launch {
            command,
            args,
            env: variables,
            cwd: fields.read("cwd", None, directory),
            home: Home::Private,
            confinement: self.confinement(fields),
            prepared: None,
            is_preparing: false,
        }
    }

    fn args(
        &mut self,
        fields: &Fields<'_>,
        resolved: &dyn Fn(&Node) -> Result<String, Wrong>,
    ) -> Vec<String> {
        let items = fields.read("args", Vec::new(), Node::items);
        let mut args = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            match resolved(item) {
                Ok(arg) => args.push(arg),
                Err(wrong) => {
                    self.wrong(wrong, &item.place, &format!("{}[{at}]", fields.key("args")));
                }
            }
        }
        args
    }
}

fn reply(server: &Fields<'_>) -> Reply {
    let default = DEFAULT_REPLY;
    let Some(fields) = server.inner("reply") else {
        return default;
    };
    let mode = |node: &Node| choice(&node.text()?, &REPLY_MODES);
    let read = Reply {
        mode: fields.read("mode", default.mode, mode),
        sse_after: fields.read("sse_after", default.sse_after, Node::duration),
        close_after: fields.read("close_after", default.close_after, Node::duration),
    };
    fields.end();
    read
}

/// Reads the time limits of a server.
fn clocks(server: &Fields<'_>) -> Clocks {
    let default = DEFAULT_CLOCKS;
    let Some(fields) = server.inner("clocks") else {
        return default;
    };
    let start = fields.read("start", default.start, Node::duration);
    let of_calls = call_clocks(&fields, default);
    let stop = fields.read("stop", default.stop, duration_pair);
    fields.end();
    Clocks {
        start,
        stop,
        ..of_calls
    }
}

/// Reads the time limits of single tools; `start` and `stop` apply to the child, not to calls.
fn tools(server: &Fields<'_>, default: Clocks) -> HashMap<String, Clocks> {
    let mut tools = HashMap::new();
    if let Some(members) = server.inner("tools") {
        for (tool, node) in members.members() {
            let fields = members.table(tool, node);
            tools.insert(tool.to_owned(), call_clocks(&fields, default));
            fields.end();
        }
    }
    tools
}

fn call_clocks(fields: &Fields<'_>, default: Clocks) -> Clocks {
    let clock = |key, default| fields.read(key, default, Node::duration);
    Clocks {
        call: clock("call", default.call),
        call_max: clock("call_max", default.call_max),
        ask: clock("ask", default.ask),
        ask_unclaimed: clock("ask_unclaimed", default.ask_unclaimed),
        ..default
    }
}

fn limits(server: &Fields<'_>) -> Limits {
    let default = DEFAULT_LIMITS;
    let Some(fields) = server.inner("limits") else {
        return default;
    };
    fields.order(&["line", "stderr", "files", "file_size"]);
    let (memory, pids, cpu) = group_limits(&fields);
    let line = |node: &Node| match node.size()? {
        0 => Err(Wrong::new(
            "must hold at least one byte",
            "write a size like \"16MiB\"",
        )),
        bytes => Ok(bytes),
    };
    // The kernel's value for no limit (`RLIM_INFINITY`).
    let unlimited = |node: &Node| {
        node.size()
            .map(|bytes| if bytes == 0 { u64::MAX } else { bytes })
    };
    let files = |node: &Node| node.count(1).map(u64::from);
    let read = Limits {
        line: fields.read("line", default.line, line),
        stderr: fields.read("stderr", default.stderr, Node::size),
        files: fields.read("files", default.files, files),
        file_size: fields.read("file_size", default.file_size, unlimited),
        memory,
        pids,
        cpu,
    };
    fields.end();
    read
}

fn duration_pair(node: &Node) -> Result<[Duration; 2], Wrong> {
    let clocks: Vec<Duration> = node
        .items()?
        .iter()
        .map(Node::duration)
        .collect::<Result<_, _>>()?;
    let remedy = "write how long until SIGTERM and until SIGKILL, like [2s, 5s]";
    clocks
        .try_into()
        .map_err(|_| Wrong::new("does not hold two durations", remedy))
}

fn not_empty(text: String) -> Result<String, Wrong> {
    if text.is_empty() {
        Err(Wrong::new("is empty", "write the program to start"))
    } else {
        Ok(text)
    }
}

fn absolute(text: &str) -> Result<Option<PathBuf>, Wrong> {
    let path = PathBuf::from(text);
    if text.is_empty() {
        Ok(None)
    } else if path.is_absolute() || text.starts_with(STORE) {
        Ok(Some(path))
    } else {
        // Without the value, which may contain a resolved secret.
        Err(Wrong::new("is not absolute", "write the whole path"))
    }
}

const REPLY_MODES: [(&str, ReplyMode); 3] = [
    ("auto", ReplyMode::Auto),
    ("sse", ReplyMode::Sse),
    ("json", ReplyMode::Json),
];
const DEFAULT_REPLY: Reply = Reply {
    mode: ReplyMode::Auto,
    sse_after: Duration::from_millis(100),
    close_after: Duration::ZERO,
};
const DEFAULT_CLOCKS: Clocks = Clocks {
    start: Duration::from_mins(1),
    call: Duration::from_mins(1),
    call_max: Duration::from_mins(30),
    ask: Duration::from_mins(10),
    ask_unclaimed: Duration::from_secs(30),
    stop: [Duration::from_secs(2), Duration::from_secs(5)],
};
const DEFAULT_LIMITS: Limits = Limits {
    line: 16 << 20,
    stderr: 64 << 10,
    files: 1024,
    file_size: 1 << 30,
    memory: None,
    pids: None,
    cpu: None,
};
/// The key `prepare` of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Prepare {
    Auto,
    Off,
    Words(Vec<String>),
}

/// Reads `prepare` of a server with the specification `launch`.
fn recipe(
    fields: &Fields<'_>,
    launch: &Launch,
    text: impl Fn(&Node) -> Result<String, Wrong>,
) -> Option<Recipe> {
    let prepare = |node: &Node| prepare(node, &text);
    let recipe = match fields.read("prepare", Prepare::Auto, prepare) {
        Prepare::Auto => derive(launch),
        Prepare::Off => None,
        Prepare::Words(words) => Some(Recipe::new(words, [], launch, Start::AsWritten)),
    };
    if recipe.is_none() && launch.has_store() {
        let node = fields.member("prepare");
        let place = node.map_or(&fields.place, |node| &node.place);
        let what = "prepares nothing, and ${prepared} is used";
        let remedy = "write prepare: [COMMAND, ARG…], or leave ${prepared} out";
        fields.wrong("prepare", place, Wrong::new(what, remedy));
    }
    recipe
}

fn prepare(node: &Node, text: impl Fn(&Node) -> Result<String, Wrong>) -> Result<Prepare, Wrong> {
    let remedy = "write auto, off, or a list of words like [npm, ci]";
    if let Value::List(items) = &node.value {
        let words: Vec<String> = items.iter().map(text).collect::<Result<_, _>>()?;
        return match words.first() {
            Some(program) if !program.is_empty() => Ok(Prepare::Words(words)),
            _ => Err(Wrong::new("names no program", remedy)),
        };
    }
    match &node.value {
        Value::Text(text) if text == "auto" => Ok(Prepare::Auto),
        Value::Text(text) if text == "off" => Ok(Prepare::Off),
        // YAML 1.1 reads `off` as false.
        Value::Flag(false) => Ok(Prepare::Off),
        _ => Err(Wrong::new("is neither auto, off nor a list", remedy)),
    }
}

/// Reads the supervision of a server's children.
fn supervision(fields: &Fields<'_>) -> Supervision {
    let default = Supervision::default();
    let read = Supervision {
        isolation: fields.read("isolation", default.isolation, |node| {
            choice(&node.text()?, &ISOLATIONS)
        }),
        max_children: fields.read("max_children", default.max_children, |node| node.count(1)),
        warm: fields.read("warm", default.warm, |node| node.count(0)),
        idle: fields.read("idle", default.idle, Node::duration),
        on_loss: fields.read("on_loss", default.on_loss, |node| {
            choice(&node.text()?, &ON_LOSS)
        }),
    };
    let of_shared = fields
        .member("max_children")
        .filter(|_| read.max_children > 1);
    if let Some(node) = of_shared.filter(|_| read.isolation == Isolation::Session) {
        let remedy = "set isolation to principal or tenant, or leave it out";
        let wrong = Wrong::new(
            "has no meaning where each session has its own child",
            remedy,
        );
        fields.wrong("max_children", &node.place, wrong);
    }
    read
}

const ISOLATIONS: [(&str, Isolation); 3] = [
    ("session", Isolation::Session),
    ("principal", Isolation::Principal),
    ("tenant", Isolation::Tenant),
];
const ON_LOSS: [(&str, OnLoss); 2] = [("restore", OnLoss::Restore), ("end", OnLoss::End)];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{
        command_line::single,
        reader::{Manifest, parse},
        server::*,
    };
    use crate::{
        config::{Config, Format, Mistake, Sources},
        declare::{AuthMode, Confinement},
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
    revisions: ["2026-07-28"]
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
        F:8: tenants.Acme.people: unknown key; known here: api_keys, auth, clients, default_server, providers, quotas, revisions, servers, users
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
        F:7: tenants.Acme.revisions: "2026-07-28" is no revision that this build serves; choose among 2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05
        F:21: tenants.b: a number where a table is expected; write a table
        "###);
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
        let text = "tenants: {a: {auth: {mode: none}, servers: {x: {command: cat, cwd: \"${env:TOKEN}\"}}}}";
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
        assert_eq!(found(single(launch, &wrong, &env())).len(), 4);
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
}

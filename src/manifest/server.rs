//! The reader of `servers`: launch, preparation, `clocks`, `limits` and supervision, with defaults.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use url::Url;

use super::{
    identity::grants,
    policy::policy,
    provider::token_of_slot,
    reader::Reader,
    sandbox::group_limits,
    table::{Fields, JsonSchema, Parser, parse},
};
use crate::{
    config::{Node, Value, Wrong},
    declare::{
        Clocks, Holder, Home, Isolation, Launch, Limits, OnLoss, Recipe, Reply, ReplyMode, Room,
        SLOTS_MAX, STORE, Server, ServerEra, Slot, SlotForm, Slots, Start, Supervision, derive,
        is_slot_name,
    },
};

impl Reader<'_> {
    /// Reads one server of a tenant.
    pub(crate) fn server(&mut self, node: &Node, key: &str, tenant: &str, server: &str) -> Server {
        let fields = Fields::of(node, key, self.findings)
            .described("A server: its program, and the treatment of its children.")
            .defined("server");
        fields.order(&[
            "command", "args", "env", "cwd", "reply", "clocks", "tools", "limits",
        ]);
        fields.order(&[
            "secrets",
            "sandbox",
            "prepare",
            "grants",
            "policy",
            "audit_calls",
        ]);
        let launch = self.launch(&fields);
        for name in ["command", "prepare"] {
            let place = fields.member(name).map(|node| node.place.clone());
            self.places
                .extend(place.map(|place| (fields.path_of(name), place)));
        }
        let recipe = recipe(&fields, &launch, self.text());
        let clocks = clocks(&fields);
        let read = Server {
            tenant: tenant.to_owned(),
            name: server.to_owned(),
            slots: slots(&fields, &launch),
            launch,
            recipe,
            clocks,
            tools: tools(&fields, clocks),
            reply: reply(&fields),
            limits: limits(&fields),
            era: fields
                .key(
                    "era",
                    "The revisions that its children are spoken to in: legacy are those with sessions (until \
                     2025-11-25), modern those without (2026-07-28); auto finds out.",
                )
                .read(ServerEra::default(), parse::choice(&ERAS)),
            supervision: supervision(&fields),
            policy: Arc::new(policy(&fields)),
            audit_calls: fields
                .key(
                    "audit_calls",
                    "Records calls in the audit trail, without arguments and results.",
                )
                .read(false, parse::flag()),
            room: Room::default(),
            grants: grants(&fields),
        };
        fields.end();
        read
    }

    fn launch(&mut self, fields: &Fields<'_>) -> Launch {
        fields.require("command", "write the program to start");
        let command = fields
            .key(
                "command",
                "The program; without a slash it is looked up in PATH. No shell is involved.",
            )
            .optional(
                self.text()
                    .having("minLength", 1)
                    .check(|text| not_empty(text)),
            );
        Launch {
            command: command.unwrap_or_default(),
            args: self.args(fields),
            env: self.variables(fields),
            cwd: fields
                .key("cwd", "The working directory; \"\" means a private one.")
                .optional(self.text().and(|text| absolute(&text)))
                .flatten(),
            home: Home::Private,
            confinement: self.confinement(fields),
            prepared: None,
            files: BTreeMap::new(),
            is_preparing: false,
        }
    }

    fn args(&mut self, fields: &Fields<'_>) -> Vec<String> {
        let text = self.text();
        let items = Parser::new(|| parse::list(parse::text()).schema(), Node::items);
        let items = fields.key("args", "Its arguments.").optional(items);
        let items = items.unwrap_or_default();
        let mut args = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            match text.parse(item) {
                Ok(arg) => args.push(arg),
                Err(wrong) => {
                    let key = format!("{}[{at}]", fields.path_of("args"));
                    self.wrong(wrong, &item.place, &key);
                }
            }
        }
        args
    }

    fn variables(&mut self, fields: &Fields<'_>) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let entries = fields
            .key("env", "Environment variables; stored sealed, never shown.")
            .entries(variable());
        let Some(entries) = entries else {
            return variables;
        };
        for (variable, node) in entries.members() {
            let value = entries.read(variable, node, self.text());
            variables.insert(variable.to_owned(), value.unwrap_or_default());
        }
        variables
    }
}

/// The name of an environment variable.
fn variable<'p>() -> Parser<'p, String> {
    let name = parse::text().having("pattern", "^[^=]+$");
    name.check(|variable| {
        if variable.is_empty() || variable.contains(['=', '\0']) {
            return Err(Wrong::new(
                "is no name of a variable",
                "leave out = and NUL",
            ));
        }
        Ok(())
    })
}

/// Reads the slots of a server whose children get the variables of `launch` besides.
fn slots(server: &Fields<'_>, launch: &Launch) -> Slots {
    let mut slots = Slots::new();
    let entries = server
        .key(
            "secrets",
            "Secrets that its children get, by the variables that have them. Their values are not here: people \
             fill them in, and administrators.",
        )
        .entries(slot_name());
    let Some(entries) = entries else {
        return slots;
    };
    for (name, node) in entries.members() {
        let fields = entries.table(name, node, "A secret.");
        slots.insert(name.to_owned(), slot(&fields));
        fields.end();
        if launch.env.contains_key(name) {
            let remedy = "leave it out of one of the two";
            entries.wrong(name, &node.place, Wrong::new("is in env, too", remedy));
        }
    }
    if slots.len() > SLOTS_MAX {
        let what = format!("has more than {SLOTS_MAX} secrets");
        let remedy = "leave out what no child needs";
        server.wrong("secrets", entries.place(), Wrong::new(what, remedy));
    }
    slots
}

fn slot(fields: &Fields<'_>) -> Slot {
    fields.require("for", "write for: principal, or for: tenant");
    Slot {
        holder: fields
            .key(
                "for",
                "Whose it is: each principal has one of their own, which only their children get, or the tenant \
                 has one for all.",
            )
            .optional(parse::choice(&HOLDERS))
            .unwrap_or(Holder::Principal),
        form: fields
            .key(
                "as",
                "What the variable holds: the value (env), or the path of a private file with it (file).",
            )
            .read(SlotForm::Variable, parse::choice(&SLOT_FORMS)),
        title: fields
            .key("title", "Its name for people.")
            .optional(parse::text().having("maxLength", TITLE_MAX).check(|text| title(text))),
        token: token_of_slot(fields),
        help: fields
            .key("help", "The https URL of a page that says how to get one.")
            .optional(parse::text().having("format", "uri").check(|text| page(text))),
    }
}

/// A name that a slot may have.
fn slot_name<'p>() -> Parser<'p, String> {
    let name = parse::text().having("pattern", "^[A-Za-z_][A-Za-z0-9_]{0,63}$");
    name.check(|name| {
        if is_slot_name(name) {
            return Ok(());
        }
        let what = "is no name of a variable for a secret, or chooses what a program loads";
        Err(Wrong::new(what, "write a name like GITHUB_TOKEN"))
    })
}

fn title(text: &str) -> Result<(), Wrong> {
    if text.is_empty() || text.chars().count() > TITLE_MAX {
        let what = format!("is not of 1 to {TITLE_MAX} characters");
        return Err(Wrong::new(what, "write what people call it"));
    }
    Ok(())
}

fn page(text: &str) -> Result<(), Wrong> {
    let url = Url::parse(text).ok();
    if url.is_some_and(|url| url.scheme() == "https" && url.username().is_empty()) {
        return Ok(());
    }
    Err(Wrong::new("is no https URL", "write https://…"))
}

fn reply(server: &Fields<'_>) -> Reply {
    let default = DEFAULT_REPLY;
    let Some(fields) = server.key("reply", "The form of responses.").table() else {
        return default;
    };
    let read = Reply {
        mode: fields
            .key(
                "mode",
                "JSON for quick responses and SSE for others, or always one of the two.",
            )
            .read(default.mode, parse::choice(&REPLY_MODES)),
        sse_after: fields
            .key("sse_after", "The time that auto waits before it opens SSE.")
            .read(default.sse_after, parse::duration()),
        task_after: fields
            .key(
                "task_after",
                "The time after which a call of a client with the tasks extension becomes a task; 0s: \
                 the extension is not offered.",
            )
            .read(default.task_after, parse::duration()),
        cache_for: fields
            .key(
                "cache_for",
                "The time for which a client of 2026-07-28 may keep a list, a resource, or what it has \
                 discovered; without it, as long as a server of 2026-07-28 says, and otherwise not at all.",
            )
            .optional(parse::duration()),
        close_after: fields
            .key(
                "close_after",
                "The time after which a POST stream is closed and polled; 0s is off. Not for clients that do not \
                 resume such a stream, like VS Code and the Java SDK: they would miss the response.",
            )
            .read(default.close_after, parse::duration()),
    };
    fields.end();
    read
}

/// Reads the time limits of a server.
fn clocks(server: &Fields<'_>) -> Clocks {
    let default = DEFAULT_CLOCKS;
    let clocks = server.key(
        "clocks",
        "Time limits of a child and its calls. Unless they are named: call 1m, call_max 30m, ask 10m, \
         ask_unclaimed 30s, stop 2s and 5s.",
    );
    let Some(fields) = clocks.table() else {
        return default;
    };
    let start = fields
        .key("start", "Time for the answer to initialize.")
        .read(default.start, parse::duration());
    let of_calls = call_clocks(&fields, default);
    let ping = fields
        .key(
            "ping",
            "Time between two pings of a child without a call; one that does not answer within 5 s is \
             ended. 0s: never.",
        )
        .read(default.ping, parse::duration());
    let stop = fields
        .key(
            "stop",
            "After stdin is closed: the time until SIGTERM, and from there until SIGKILL, like [2s, 5s].",
        )
        .optional(duration_pair());
    fields.end();
    Clocks {
        start,
        ping,
        stop: stop.unwrap_or(default.stop),
        ..of_calls
    }
}

/// Reads the time limits of single tools; `start` and `stop` apply to the child, not to calls.
fn tools(server: &Fields<'_>, default: Clocks) -> HashMap<String, Clocks> {
    let mut tools = HashMap::new();
    let entries = server
        .key(
            "tools",
            "Time limits of single tools, by name. Unless they are named: those of the server.",
        )
        .entries(parse::text());
    if let Some(entries) = entries {
        for (tool, node) in entries.members() {
            let fields = entries.table(tool, node, "Time limits of one tool.");
            tools.insert(tool.to_owned(), call_clocks(&fields, default));
            fields.end();
        }
    }
    tools
}

/// Reads the time limits of calls. The schema shows no defaults, because those of a tool are the
/// server's; the text of `clocks` does.
fn call_clocks(fields: &Fields<'_>, default: Clocks) -> Clocks {
    let call = fields
        .key(
            "call",
            "The child's own time for a call; it stands still while the child waits for the \
             client, and progress restarts it.",
        )
        .optional(parse::duration());
    let call_max = fields
        .key("call_max", "Time for a call in all, with any progress.")
        .optional(parse::duration());
    let ask = fields
        .key(
            "ask",
            "Time for the client's answer to a request of the child.",
        )
        .optional(parse::duration());
    let ask_unclaimed = fields
        .key(
            "ask_unclaimed",
            "Time that a request of the child waits for a stream to the client.",
        )
        .optional(parse::duration());
    Clocks {
        call: call.unwrap_or(default.call),
        call_max: call_max.unwrap_or(default.call_max),
        ask: ask.unwrap_or(default.ask),
        ask_unclaimed: ask_unclaimed.unwrap_or(default.ask_unclaimed),
        ..default
    }
}

fn limits(server: &Fields<'_>) -> Limits {
    let default = DEFAULT_LIMITS;
    let Some(fields) = server.key("limits", "Bounds of one child.").table() else {
        return default;
    };
    fields.order(&["line", "stderr", "files", "file_size"]);
    let (memory, pids, cpu) = group_limits(&fields, &default);
    let read = Limits {
        line: fields.key("line", "The longest line on stdout.").read(
            default.line,
            parse::size().check(|bytes| some_bytes(*bytes)),
        ),
        stderr: fields
            .key("stderr", "The amount of recent stderr that is kept.")
            .read(default.stderr, parse::size()),
        files: fields
            .key("files", "Open files of one process.")
            .read(default.files, parse::count(1)),
        file_size: fields
            .key(
                "file_size",
                "The largest file that it may write; \"\" means no bound.",
            )
            .read(
                default.file_size,
                parse::size().convert(unlimited, |bytes| *bytes),
            ),
        memory,
        pids,
        cpu,
    };
    fields.end();
    read
}

fn some_bytes(bytes: u64) -> Result<(), Wrong> {
    match bytes {
        0 => Err(Wrong::new(
            "must hold at least one byte",
            "write a size like \"16MiB\"",
        )),
        _ => Ok(()),
    }
}

/// The kernel's value for no limit (`RLIM_INFINITY`), where zero bytes are written.
fn unlimited(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes }
}

fn duration_pair<'p>() -> Parser<'p, [Duration; 2]> {
    let clocks = parse::list(parse::duration()).having("minItems", 2);
    clocks.having("maxItems", 2).and(|clocks| {
        let remedy = "write how long until SIGTERM and until SIGKILL, like [2s, 5s]";
        clocks
            .try_into()
            .map_err(|_| Wrong::new("does not hold two durations", remedy))
    })
}

fn not_empty(program: &str) -> Result<(), Wrong> {
    if program.is_empty() {
        Err(Wrong::new("is empty", "write the program to start"))
    } else {
        Ok(())
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

const HOLDERS: [(&str, Holder); 2] = [("principal", Holder::Principal), ("tenant", Holder::Tenant)];
const SLOT_FORMS: [(&str, SlotForm); 2] = [("env", SlotForm::Variable), ("file", SlotForm::File)];
/// The most characters of a slot's title.
const TITLE_MAX: usize = 80;
const REPLY_MODES: [(&str, ReplyMode); 3] = [
    ("auto", ReplyMode::Auto),
    ("sse", ReplyMode::Sse),
    ("json", ReplyMode::Json),
];
const DEFAULT_REPLY: Reply = Reply {
    mode: ReplyMode::Auto,
    sse_after: Duration::from_millis(100),
    task_after: Duration::from_secs(5),
    cache_for: None,
    close_after: Duration::ZERO,
};
const DEFAULT_CLOCKS: Clocks = Clocks {
    start: Duration::from_secs(45),
    call: Duration::from_mins(1),
    call_max: Duration::from_mins(30),
    ask: Duration::from_mins(10),
    ask_unclaimed: Duration::from_secs(30),
    ping: Duration::ZERO,
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
fn recipe(fields: &Fields<'_>, launch: &Launch, text: Parser<'_, String>) -> Option<Recipe> {
    let read = fields
        .key(
            "prepare",
            "The preparation before the first child: derived from the command, none, or a command.",
        )
        .read(Prepare::Auto, prepare(text));
    let recipe = match read {
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

/// `auto`, `off`, or a command, whose words are parsed by `text`.
fn prepare(text: Parser<'_, String>) -> Parser<'_, Prepare> {
    let schema = || {
        let words = JsonSchema::default().with("enum", ["auto", "off"].as_slice());
        let command = parse::list(parse::text()).having("minItems", 1);
        let off = JsonSchema::default().with("const", false);
        JsonSchema::default().with_any("anyOf", vec![words, off, command.schema()])
    };
    let remedy = "write auto, off, or a list of words like [npm, ci]";
    let prepare = Parser::new(schema, move |node| match &node.value {
        Value::List(items) => {
            let words = items.iter().map(|item| text.parse(item));
            let words: Vec<String> = words.collect::<Result<_, _>>()?;
            match words.first() {
                Some(program) if !program.is_empty() => Ok(Prepare::Words(words)),
                _ => Err(Wrong::new("names no program", remedy)),
            }
        }
        Value::Text(text) if text == "auto" => Ok(Prepare::Auto),
        Value::Text(text) if text == "off" => Ok(Prepare::Off),
        // YAML 1.1 reads `off` as false.
        Value::Flag(false) => Ok(Prepare::Off),
        _ => Err(Wrong::new("is neither auto, off nor a list", remedy)),
    });
    prepare.shown(|prepare| match prepare {
        Prepare::Auto => "auto".into(),
        Prepare::Off => "off".into(),
        Prepare::Words(words) => words.as_slice().into(),
    })
}

/// Reads the supervision of a server's children.
fn supervision(fields: &Fields<'_>) -> Supervision {
    let default = Supervision::default();
    let read = Supervision {
        isolation: fields
            .key(
                "isolation",
                "Sharing of a child: one session, the sessions of one principal, or the whole \
                 tenant.",
            )
            .read(default.isolation, parse::choice(&ISOLATIONS)),
        max_children: fields
            .key(
                "max_children",
                "The most children of one principal or tenant.",
            )
            .read(default.max_children, parse::count(1)),
        warm: fields
            .key("warm", "Children that are started in advance.")
            .read(default.warm, parse::count(0)),
        idle: fields
            .key("idle", "The idle time after which a child is stopped.")
            .read(default.idle, parse::duration()),
        on_loss: fields
            .key("on_loss", "The fate of a session whose child is lost.")
            .read(default.on_loss, parse::choice(&ON_LOSS)),
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

const ERAS: [(&str, ServerEra); 3] = [
    ("auto", ServerEra::Auto),
    ("legacy", ServerEra::Legacy),
    ("modern", ServerEra::Modern),
];
const ISOLATIONS: [(&str, Isolation); 3] = [
    ("session", Isolation::Session),
    ("principal", Isolation::Principal),
    ("tenant", Isolation::Tenant),
];
const ON_LOSS: [(&str, OnLoss); 2] = [("restore", OnLoss::Restore), ("end", OnLoss::End)];

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;

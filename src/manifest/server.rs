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
#[path = "tests/server.rs"]
mod tests;

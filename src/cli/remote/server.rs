//! `lockgate server`: servers of a tenant, their children and logs.

use std::{
    cell::RefCell,
    collections::HashMap,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    document::document,
    object::{
        Help, InTenant, Kind, ObjectCommand, Place, Replacement, change, declare, format_list, word,
    },
    table::{Column, plain, pretty, table},
};
use crate::{
    base::terminal::escaped_json,
    cli::local::{
        prompt,
        reach::{notes, quoted},
    },
    config::{Format, Node, Value, gateway::environment, key_path},
};

/// The command line of `lockgate server`.
#[derive(Args)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    command: ServerCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum ServerCommand {
    #[command(flatten)]
    Object(ObjectCommand<Servers>),
    /// Change single keys of a server
    Set {
        #[command(flatten)]
        server: Server,
        /// Key and value, like limits.memory=1GiB or env.TOKEN=x; KEY= without a value removes it
        #[arg(value_name = "KEY=VALUE", required = true)]
        pairs: Vec<String>,
    },
    /// Replace the children of a server after their calls, at every replica
    Restart {
        #[command(flatten)]
        server: Server,
        /// Do not wait for calls
        #[arg(long)]
        now: bool,
    },
    /// Print the last lines that the children of a server wrote to stderr, and why its last start
    /// failed
    Logs(Server),
    /// List the children of a server on the replica that answers
    Children(Server),
    /// List the secrets that are set for a server, without their values
    Secrets {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        of: SecretOf,
    },
    /// Set a secret that a server needs; its value is asked for, or read from stdin
    SetSecret {
        #[command(flatten)]
        secret: ServerSecret,
    },
    /// Remove a secret
    RemoveSecret {
        #[command(flatten)]
        secret: ServerSecret,
    },
}

/// Servers as a kind of object.
struct Servers;

/// The name of a server.
#[derive(Args)]
struct Server {
    /// The tenant
    tenant: String,
    /// The server
    name: String,
}

/// The one whose secret it is.
#[derive(Args)]
struct SecretOf {
    /// Subject of the person whose secret it is; without it, the secret is the tenant's
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
}

/// A secret of a server.
#[derive(Args)]
struct ServerSecret {
    #[command(flatten)]
    server: Server,
    /// The secret, by its name in the declaration of the server
    #[arg(value_name = "SECRET")]
    secret: String,
    #[command(flatten)]
    of: SecretOf,
}

#[derive(Args)]
struct AddServer {
    #[command(flatten)]
    server: Server,
    /// Document; - for stdin
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// Environment variable of the server: NAME=VALUE, or NAME to pass it on
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with = "file")]
    env: Vec<String>,
    #[command(flatten)]
    how: Replacement,
    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Place for Server {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(vec!["tenants", &self.tenant, segment, &self.name])
    }
}

impl Server {
    /// The path of a part of the server.
    fn part<'a>(&'a self, part: &'a str) -> [&'a str; 5] {
        ["tenants", &self.tenant, Servers::SEGMENT, &self.name, part]
    }

    /// Reads the document of the server; a word that names none begins a command.
    fn document(&self, file: &Path) -> Result<Json, Error> {
        if file != "-" && Format::of(file).is_none() {
            let word = file.display().to_string();
            let line = behind_dashes(&self.tenant, &self.name, &[&word]);
            return Err(Error::Mistakes(vec![line]));
        }
        document(file)
    }

    /// Tells which files of its command the server will not find on this machine.
    fn note(&self, client: &Client, spec: &Json) {
        let told = client
            .is_here()
            .then(|| notes((&self.tenant, &self.name), spec));
        for note in told.into_iter().flatten() {
            eprintln!("note: {}", plain(&note));
        }
    }
}

impl Kind for Servers {
    type Collection = InTenant;
    type Name = Server;
    type Add = AddServer;

    const SEGMENT: &'static str = "servers";
    const HELP: Help = Help {
        list: "List the servers of a tenant",
        show: "Show a server, without the values of its environment",
        add: "Declare a server: by a document, or by its command behind --",
        remove: "Remove a server",
        name: "The server",
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &COLUMNS
    }

    async fn add(client: &Client, add: &AddServer) -> Result<String, Error> {
        let spec = match &add.file {
            Some(file) => add.server.document(file)?,
            None => launch(&add.command, &add.env)?,
        };
        let path = add.server.path(Self::SEGMENT)?;
        let output = declare(client, &path, spec.clone(), &add.how).await?;
        add.server.note(client, &spec);
        if client.json {
            return Ok(output);
        }
        let Server { tenant, name } = &add.server;
        // The server is declared: without its URL, that is still what the command was to do.
        let servers = running(client, tenant).await.unwrap_or_else(|_| {
            eprintln!("lockgate: {tenant}/{name} is declared; its URL cannot be asked for now");
            Vec::new()
        });
        let url = servers.iter().find(|one| one["name"] == name.as_str());
        let url = url.and_then(|one| one["url"].as_str()).map(plain);
        Ok(output + &url.map_or_else(String::new, |url| format!("URL: {url}\n")))
    }
}

impl ServerArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            ServerCommand::Object(ObjectCommand::List(of)) => list(client, of).await,
            ServerCommand::Object(command) => command.execute(client).await,
            ServerCommand::Set { server, pairs } => {
                let path = server.path(Servers::SEGMENT)?;
                let changed = RefCell::default();
                let output = change(client, &path, |spec| {
                    pairs.iter().try_for_each(|pair| set(spec, pair))?;
                    changed.replace(Json::Object(spec.clone()));
                    Ok(())
                });
                let output = output.await?;
                server.note(client, &changed.into_inner());
                Ok(output)
            }
            ServerCommand::Restart { server, now } => restart(client, server, *now).await,
            ServerCommand::Logs(server) => logs(client, server).await,
            ServerCommand::Children(server) => children(client, server).await,
            ServerCommand::Secrets { server, of } => secrets(client, server, of).await,
            ServerCommand::SetSecret { secret } => {
                let body = json!({"value": secret.value().await?});
                secret.change(client, Method::PUT, Some(body)).await
            }
            ServerCommand::RemoveSecret { secret } => {
                secret.change(client, Method::DELETE, None).await
            }
        })
    }
}

/// What to write in place of a command line that has the command of a server without `--`, or no command;
/// none for other command lines.
pub(crate) fn forgotten_dashes(words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ["server", "add", tenant, name, command @ ..] = &words[..] else {
        return None;
    };
    let is_command = command
        .first()
        .is_none_or(|first| !first.starts_with('-') && Format::of(Path::new(first)).is_none());
    let are_names = ![tenant, name].iter().any(|name| name.starts_with('-'));
    let is_forgotten = are_names && is_command && !command.contains(&"--");
    is_forgotten.then(|| behind_dashes(tenant, name, command))
}

fn behind_dashes(tenant: &str, name: &str, command: &[&str]) -> String {
    let words = match command {
        [] => &["COMMAND"],
        words => words,
    };
    let words: Vec<String> = words.iter().map(|word| plain(&quoted(word))).collect();
    let [tenant, name] = [tenant, name].map(|name| plain(&quoted(name)));
    format!(
        "write the command of the server behind --: lockgate server add {tenant} {name} -- {}",
        words.join(" ")
    )
}

/// Sets a key of a server, or removes it.
fn set(spec: &mut Map<String, Json>, pair: &str) -> Result<(), Error> {
    let wrong = |what: &str| Error::usage(pair, what, "write KEY=VALUE, like limits.memory=1GiB");
    let (key, value) = pair.split_once('=').ok_or_else(|| wrong("has no ="))?;
    let path = key_path(key).ok_or_else(|| wrong("names no key"))?;
    let (last, tables) = path.split_last().ok_or_else(|| wrong("names no key"))?;
    let mut table = spec;
    for name in tables {
        let inner = table.entry(name.clone()).or_insert_with(|| json!({}));
        table = inner
            .as_object_mut()
            .ok_or_else(|| wrong(&format!("{name} is no table")))?;
    }
    if value.is_empty() {
        let removed = table.remove(last);
        return removed.map(drop).ok_or_else(|| wrong("is not set"));
    }
    // A variable of the environment is always a text.
    let is_env = matches!(&path[..], [table, _] if table == "env");
    let value = match Node::from_word(pair, value).value {
        _ if is_env => word(value),
        parsed => json_of(&parsed).ok_or_else(|| wrong("is no value of a key"))?,
    };
    table.insert(last.clone(), value);
    Ok(())
}

/// A value of a flag as JSON; none for what no key takes.
fn json_of(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Flag(flag) => (*flag).into(),
        Value::Whole(whole) => (*whole).into(),
        Value::Text(text) => word(text),
        Value::List(items) => {
            let items = items.iter().map(|item| json_of(&item.value));
            Json::Array(items.collect::<Option<_>>()?)
        }
        Value::Map(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(name, node)| Some((name.clone(), json_of(&node.value)?)));
            Json::Object(entries.collect::<Option<_>>()?)
        }
        Value::Nothing | Value::Other(_) => return None,
    })
}

/// Lists the servers of a tenant with their URLs and states, and the failed starts below.
async fn list(client: &Client, of: &InTenant) -> Result<String, Error> {
    let path = of.path(Servers::SEGMENT)?;
    let mut items = client.items(&path, &[], usize::MAX).await?;
    if client.json {
        return Ok(format_list(client, &items, &COLUMNS));
    }
    let running = running(client, &of.tenant).await?;
    let running: HashMap<&str, &Json> = running
        .iter()
        .filter_map(|one| Some((one["name"].as_str()?, one)))
        .collect();
    let mut failures = String::new();
    for item in &mut items {
        let Some(now) = item["name"].as_str().and_then(|name| running.get(name)) else {
            continue;
        };
        if let (Some(name), Some(why)) = (item["name"].as_str(), now["failure"].as_str()) {
            failures += &format!("{} failed: {}\n", plain(name), plain(why));
        }
        item["now"] = (*now).clone();
    }
    Ok(table(&COLUMNS, &items) + &failures)
}

/// The servers of a tenant as they run on the replica that answers.
pub(super) async fn running(client: &Client, tenant: &str) -> Result<Vec<Json>, Error> {
    let options = RequestOptions::default();
    let mut status = client.json(Method::GET, &["status"], options).await?;
    let Json::Array(mut servers) = status["servers"].take() else {
        return Ok(Vec::new());
    };
    servers.retain(|one| one["tenant"] == tenant);
    Ok(servers)
}

async fn restart(client: &Client, server: &Server, now: bool) -> Result<String, Error> {
    let path = server.part("restart");
    let reply = client
        .json(Method::POST, &path, RequestOptions::ending(now))
        .await?;
    Ok(if client.json {
        pretty(&reply)
    } else {
        // An older gateway restarts its own children only.
        let others = match reply["replicas"].as_str() {
            Some("all") => "those of other replicas follow within seconds",
            _ => "those of other replicas stay",
        };
        let count = &reply["children"];
        format!("children to be replaced at the replica that answered: {count}; {others}\n")
    })
}

async fn logs(client: &Client, server: &Server) -> Result<String, Error> {
    let output = |line: &str| {
        if client.json {
            return escaped_json(line);
        }
        let line: Json = serde_json::from_str(line).unwrap_or_default();
        let text = line["line"].as_str().unwrap_or_default();
        match &line["child"] {
            Json::Null => format!("start: {}", plain(text)),
            child => format!("{child}: {}", plain(text)),
        }
    };
    let path = server.part("logs");
    let is_empty = client.lines(&path, Vec::new(), output).await? == 0;
    if is_empty && !client.json {
        eprintln!("no lines yet");
    }
    Ok(String::new())
}

async fn children(client: &Client, server: &Server) -> Result<String, Error> {
    let path = server.part("children");
    let reply = client
        .json(Method::GET, &path, RequestOptions::default())
        .await?;
    if client.json {
        return Ok(pretty(&reply));
    }
    let items = reply["items"].as_array();
    Ok(table(&CHILDREN, items.map_or(&[], Vec::as_slice)))
}

async fn secrets(client: &Client, server: &Server, of: &SecretOf) -> Result<String, Error> {
    let (path, query) = (server.part("secrets"), of.query());
    let items = client.items(&path, &query, usize::MAX).await?;
    Ok(format_list(client, &items, &SECRETS))
}

impl SecretOf {
    fn query(&self) -> Vec<(&'static str, String)> {
        let subject = self.subject.iter().cloned();
        subject.map(|subject| ("subject", subject)).collect()
    }
}

impl ServerSecret {
    /// Its new value: asked for on a terminal, or all of stdin but the end of its last line.
    async fn value(&self) -> Result<String, Error> {
        let wrong = |error: io::Error| Error::usage("SECRET", &error.to_string(), "write it again");
        if prompt::is_possible() {
            return prompt::new_secret(&self.secret).await.map_err(wrong);
        }
        let mut value = String::new();
        let read = io::stdin().lock().take(MOST).read_to_string(&mut value);
        read.map_err(wrong)?;
        if value.ends_with('\n') {
            value.pop();
        }
        Ok(value)
    }

    async fn change(
        &self,
        client: &Client,
        method: Method,
        body: Option<Json>,
    ) -> Result<String, Error> {
        let path = self.server.part("secrets");
        let path: Vec<&str> = path.into_iter().chain([&*self.secret]).collect();
        let options = RequestOptions {
            query: self.of.query(),
            body,
            ..RequestOptions::default()
        };
        client.send(method, &path, options).await?;
        Ok(String::new())
    }
}

/// The document of a server with this command, whose words are literal.
fn launch(command: &[String], variables: &[String]) -> Result<Json, Error> {
    let own = environment();
    let mut env = Map::new();
    for variable in variables {
        let (name, value) = if let Some((name, value)) = variable.split_once('=') {
            (name, value.to_owned())
        } else {
            let value = own.get(variable).cloned().ok_or_else(|| {
                let what = format!("{variable} is not set here");
                Error::usage("--env", &what, "write NAME=VALUE")
            })?;
            (variable.as_str(), value)
        };
        env.insert(name.to_owned(), word(&value));
    }
    let mut words = command.iter().map(word);
    let mut spec = json!({"command": words.next(), "args": words.collect::<Vec<_>>()});
    if !env.is_empty() {
        spec["env"] = Json::Object(env);
    }
    Ok(spec)
}

const COLUMNS: [Column; 6] = [
    ("NAME", "/name"),
    ("STATE", "/now/state"),
    ("URL", "/now/url"),
    ("COMMAND", "/spec/command"),
    ("ARGS", "/spec/args"),
    ("UPDATED", "/updated"),
];
/// The most bytes that are read of a secret: more than a gateway takes.
const MOST: u64 = 1 << 20;
const SECRETS: [Column; 3] = [
    ("NAME", "/name"),
    ("SUBJECT", "/subject"),
    ("UPDATED", "/updated"),
];
const CHILDREN: [Column; 8] = [
    ("NUMBER", "/number"),
    ("PID", "/pid"),
    ("STATE", "/state"),
    ("AGE", "/age_seconds"),
    ("RESTARTS", "/restarts"),
    ("CALLS", "/calls"),
    ("MEMORY", "/memory_bytes"),
    ("CPU", "/cpu_seconds"),
];

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
    };

    use super::super::server::*;

    #[test]
    fn a_command_is_taken_as_it_stands() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let spec = launch(
            &words(&["x", "${env:HOME}", "-v"]),
            &words(&["A=b$c", "D="]),
        );
        let wanted = json!({
            "command": "x", "args": ["$${env:HOME}", "-v"], "env": {"A": "b$$c", "D": ""},
        });
        assert_eq!(spec.unwrap(), wanted);
        let mut spec = json!({"command": "x", "env": {"A": null}, "limits": {"memory": "1GiB"}});
        let map = spec.as_object_mut().unwrap();
        for pair in [
            "env.A=",
            "env.PORT=5$",
            "limits.pids=7",
            "clocks.stop=[\"1s\", \"2s\"]",
            "audit_calls=true",
            "isolation=tenant",
        ] {
            set(map, pair).unwrap();
        }
        let wanted = json!({
            "command": "x", "env": {"PORT": "5$$"}, "limits": {"memory": "1GiB", "pids": 7},
            "clocks": {"stop": ["1s", "2s"]}, "audit_calls": true, "isolation": "tenant",
        });
        assert_eq!(spec, wanted);
        for wrong in ["a", "=1", "command.x=1", "nosuch=", "a=1979-05-27"] {
            assert!(
                set(spec.as_object_mut().unwrap(), wrong).is_err(),
                "{wrong}"
            );
        }
        let line = |given: &[&str]| forgotten_dashes(&words(given));
        let wanted = "write the command of the server behind --: \
                      lockgate server add a x -- npx -y 'b c'";
        let given = ["server", "add", "a", "x", "npx", "-y", "b c"];
        assert_eq!(line(&given).as_deref(), Some(wanted));
        assert!(line(&given[..4]).unwrap().ends_with(" a x -- COMMAND"));
        for other in [
            &["server", "add", "a"][..],
            &["server", "add", "a", "x", "f.yaml", "--replce"],
            &["server", "add", "a", "x", "--replce"],
            &["server", "add", "a", "x", "npx", "--", "y"],
            &["server", "set", "a", "x"],
        ] {
            assert_eq!(line(other), None, "{other:?}");
        }
        let unset = launch(&words(&["x"]), &words(&["LOCKGATE_TEST_OF_NOTHING"]));
        assert!(matches!(unset, Err(Error::Mistakes(_))));
    }

    /// A second try of a command that had said that it failed was refused, because the server existed.
    #[test]
    fn a_server_is_declared_also_if_its_url_cannot_be_asked_for() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            server: ServerArgs,
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = std::thread::spawn(move || {
            ["201 Created", "503 Service Unavailable"].map(|status| {
                let mut socket = BufReader::new(listener.accept().unwrap().0);
                let (mut asked, mut length) = (String::new(), 0);
                while !asked.ends_with("\r\n\r\n") {
                    let begin = asked.len();
                    socket.read_line(&mut asked).unwrap();
                    let line = asked[begin..].to_ascii_lowercase();
                    if let Some(bytes) = line.strip_prefix("content-length:") {
                        length = bytes.trim().parse().unwrap();
                    }
                }
                socket.read_exact(&mut vec![0; length]).unwrap();
                let head = "Content-Type: application/json\r\nConnection: close";
                write!(
                    socket.get_mut(),
                    "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: 2\r\n\r\n{{}}"
                )
                .unwrap();
                asked
            })
        });
        let line = [
            "server", "--url", &url, "--key", "k", "add", "a", "x", "--", "true",
        ];
        let line: Line = clap::Parser::parse_from(line);
        assert_eq!(line.server.run(), ExitCode::SUCCESS);
        let [put, get] = gateway.join().unwrap();
        assert!(put.starts_with("PUT /api/v1/tenants/a/servers/x "), "{put}");
        assert!(get.starts_with("GET /api/v1/status "), "{get}");
    }
}

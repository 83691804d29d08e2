//! `lockgate server`: servers of a tenant, their children and logs.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    document::document,
    object::{Help, InTenant, Kind, ObjectCommand, Place, declare},
    table::{Column, plain, pretty, table},
};
use crate::config::gateway::environment;

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
    /// Replace the children of a server after their calls
    Restart {
        #[command(flatten)]
        server: Server,
        /// Do not wait for calls
        #[arg(long)]
        now: bool,
    },
    /// Print the last lines that the children of a server wrote to stderr
    Logs(Server),
    /// List the children of a server on the replica that answers
    Children(Server),
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
    /// Replace an existing server
    #[arg(long)]
    replace: bool,
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
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &COLUMNS
    }

    async fn add(client: &Client, add: &AddServer) -> Result<String, Error> {
        let spec = match &add.file {
            Some(file) => document(file)?,
            None => launch(&add.command, &add.env)?,
        };
        let path = add.server.path(Self::SEGMENT)?;
        declare(client, &path, spec, add.replace).await
    }
}

impl ServerArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            ServerCommand::Object(command) => command.execute(client).await,
            ServerCommand::Restart { server, now } => restart(client, server, *now).await,
            ServerCommand::Logs(server) => logs(client, server).await,
            ServerCommand::Children(server) => children(client, server).await,
        })
    }
}

async fn restart(client: &Client, server: &Server, now: bool) -> Result<String, Error> {
    let path = server.part("restart");
    let reply = client
        .json(Method::POST, &path, RequestOptions::ending(now))
        .await?;
    Ok(if client.json {
        pretty(&reply)
    } else {
        format!("children to be replaced: {}\n", reply["children"])
    })
}

async fn logs(client: &Client, server: &Server) -> Result<String, Error> {
    let output = |line: &str| {
        if client.json {
            return line.to_owned();
        }
        let line: Json = serde_json::from_str(line).unwrap_or_default();
        let text = line["line"].as_str().unwrap_or_default();
        format!("{}: {}", line["child"], plain(text))
    };
    let path = server.part("logs");
    let logs = client.lines(&path, Vec::new(), output);
    logs.await.map(|()| String::new())
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

/// The document of a server with this command, whose words are literal.
fn launch(command: &[String], variables: &[String]) -> Result<Json, Error> {
    // In the manifest's syntax "$$" is "$".
    let word = |text: &String| Json::String(text.replace('$', "$$"));
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
    let args: Vec<Json> = command.iter().skip(1).map(word).collect();
    let mut spec = json!({"command": command.first().map(word), "args": args});
    if !env.is_empty() {
        spec["env"] = Json::Object(env);
    }
    Ok(spec)
}

const COLUMNS: [Column; 4] = [
    ("NAME", "/name"),
    ("COMMAND", "/spec/command"),
    ("ARGS", "/spec/args"),
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
        let unset = launch(&words(&["x"]), &words(&["LOCKGATE_TEST_OF_NOTHING"]));
        assert!(matches!(unset, Err(Error::Mistakes(_))));
    }
}

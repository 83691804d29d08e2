//! The commands on tenants, servers, API keys, sessions and the audit trail of a gateway.
//!
//! Each is one request to the administration API (`client`), whose rules hold here too. Not here:
//! whole manifests (`apply`).

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use super::{
    apply::text_of,
    client::{Ask, Client, Connection, Failure, page, run},
    table::{Column, object, plain, pretty, table},
};
use crate::{config::gateway::environment, manifest::objects};

/// `lockgate tenant`
#[derive(Args)]
pub(crate) struct TenantArgs {
    #[command(subcommand)]
    what: TenantCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum TenantCommand {
    /// Tenants, one a line
    List,
    /// What is declared of a tenant, less its servers and API keys
    Show {
        /// The tenant
        tenant: String,
    },
    /// Declare a tenant
    Add {
        /// The tenant
        tenant: String,
        /// Its document, less servers and API keys; - for stdin
        file: Option<PathBuf>,
        /// How its callers prove who they are, where no document says so
        #[arg(
            long,
            value_name = "MODE",
            default_value = "builtin",
            conflicts_with = "file"
        )]
        auth: String,
        /// Take the place of the one that is there
        #[arg(long)]
        replace: bool,
    },
    /// Remove a tenant with all that belongs to it
    Remove {
        /// The tenant
        tenant: String,
    },
    /// What a tenant may use, and uses on the replica that answers
    Quotas {
        /// The tenant
        tenant: String,
    },
}

/// `lockgate server`
#[derive(Args)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    what: ServerCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum ServerCommand {
    /// Servers of a tenant, one a line
    List {
        /// The tenant
        tenant: String,
    },
    /// What is declared of a server; the values of its environment are never shown
    Show(Server),
    /// Declare a server: by a document, or by its command behind --
    Add(AddServer),
    /// Remove a server
    Remove(Server),
    /// Replace the children of a server when their calls have ended
    Restart {
        #[command(flatten)]
        server: Server,
        /// Do not wait for calls
        #[arg(long)]
        now: bool,
    },
    /// The last that the children of a server wrote to stderr
    Logs(Server),
    /// Children of a server on the replica that answers
    Children(Server),
}

/// Which server.
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
    /// Its document; - for stdin
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// Environment of the server: NAME=VALUE, or NAME to pass one's own
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with = "file")]
    env: Vec<String>,
    /// Take the place of the one that is there
    #[arg(long)]
    replace: bool,
    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// `lockgate session`
#[derive(Args)]
pub(crate) struct SessionArgs {
    #[command(subcommand)]
    what: SessionCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum SessionCommand {
    /// Sessions of a tenant on the replica that answers
    List {
        /// The tenant
        tenant: String,
        /// Only those of this server
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
    },
    /// End a session when its calls have ended
    End {
        /// The tenant
        tenant: String,
        /// The session, as list names it
        id: String,
        /// Do not wait for calls
        #[arg(long)]
        now: bool,
    },
}

/// `lockgate audit`
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// Only what concerns this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only records of this kind
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only what this administrator did
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Only from this point in time on, like 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only until this point in time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Records at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        conflicts_with = "export"
    )]
    limit: u16,
    /// Every record, as lines of JSON
    #[arg(long)]
    export: bool,
    #[command(flatten)]
    to: Connection,
}

/// `lockgate tenant`
pub(crate) fn tenant(args: &TenantArgs) -> ExitCode {
    run(&args.to, async |client: &Client| match &args.what {
        TenantCommand::List => list(client, &["tenants"], &[], &TENANTS).await,
        TenantCommand::Show { tenant } => show(client, &["tenants", tenant]).await,
        TenantCommand::Add {
            tenant,
            file,
            auth,
            replace,
        } => {
            let spec = match file {
                Some(file) => document(file)?,
                None => json!({"auth": {"mode": auth}}),
            };
            add(client, &["tenants", tenant], spec, *replace).await
        }
        TenantCommand::Remove { tenant } => remove(client, &["tenants", tenant]).await,
        TenantCommand::Quotas { tenant } => {
            let path = ["tenants", tenant, "quotas"];
            let answer = client.json(Method::GET, &path, Ask::default()).await?;
            Ok(pretty(&answer))
        }
    })
}

/// `lockgate server`
pub(crate) fn server(args: &ServerArgs) -> ExitCode {
    run(&args.to, async |client: &Client| match &args.what {
        ServerCommand::List { tenant } => {
            list(client, &["tenants", tenant, "servers"], &[], &SERVERS).await
        }
        ServerCommand::Show(server) => show(client, &server.path()).await,
        ServerCommand::Add(adding) => {
            let spec = match &adding.file {
                Some(file) => document(file)?,
                None => launch(&adding.command, &adding.env)?,
            };
            add(client, &adding.server.path(), spec, adding.replace).await
        }
        ServerCommand::Remove(server) => remove(client, &server.path()).await,
        ServerCommand::Restart { server, now } => {
            let path = server.inner("restart");
            let answer = client.json(Method::POST, &path, ending(*now)).await?;
            Ok(if client.json {
                pretty(&answer)
            } else {
                format!("children to be replaced: {}\n", answer["children"])
            })
        }
        ServerCommand::Logs(server) => {
            let shown = |line: &str| {
                if client.json {
                    return line.to_owned();
                }
                let line: Json = serde_json::from_str(line).unwrap_or_default();
                let text = line["line"].as_str().unwrap_or_default();
                format!("{}: {}", line["child"], plain(text))
            };
            let path = server.inner("logs");
            let logs = client.lines(&path, Vec::new(), shown);
            logs.await.map(|()| String::new())
        }
        ServerCommand::Children(server) => {
            let path = server.inner("children");
            let answer = client.json(Method::GET, &path, Ask::default()).await?;
            if client.json {
                return Ok(pretty(&answer));
            }
            let items = answer["items"].as_array();
            Ok(table(&CHILDREN, items.map_or(&[], Vec::as_slice)))
        }
    })
}

/// `lockgate session`
pub(crate) fn session(args: &SessionArgs) -> ExitCode {
    run(&args.to, async |client: &Client| match &args.what {
        SessionCommand::List { tenant, server } => {
            let server = server.iter().map(|name| ("server", name.clone()));
            let query: Vec<_> = server.collect();
            let path = ["tenants", tenant, "sessions"];
            list(client, &path, &query, &SESSIONS).await
        }
        SessionCommand::End { tenant, id, now } => {
            let path = ["tenants", tenant, "sessions", id];
            client.send(Method::DELETE, &path, ending(*now)).await?;
            Ok(String::new())
        }
    })
}

/// `lockgate audit`
pub(crate) fn audit(args: &AuditArgs) -> ExitCode {
    run(&args.to, async |client: &Client| {
        let given = [
            ("tenant", &args.tenant),
            ("kind", &args.kind),
            ("actor", &args.actor),
            ("from", &args.from),
            ("until", &args.until),
        ];
        let given = given.into_iter();
        let query = given.filter_map(|(name, value)| Some((name, value.clone()?)));
        let query: Vec<_> = query.collect();
        if args.export {
            let lines = client.lines(&["audit"], query, str::to_owned);
            return lines.await.map(|()| String::new());
        }
        let most = usize::from(args.limit.max(1));
        let items = client.items(&["audit"], &query, most).await?;
        Ok(listed(client, &items, &AUDIT))
    })
}

impl Server {
    fn path(&self) -> [&str; 4] {
        ["tenants", &self.tenant, "servers", &self.name]
    }

    fn inner<'a>(&'a self, what: &'a str) -> [&'a str; 5] {
        ["tenants", &self.tenant, "servers", &self.name, what]
    }
}

pub(crate) async fn list(
    client: &Client,
    path: &[&str],
    query: &[(&str, String)],
    columns: &[Column],
) -> Result<String, Failure> {
    let items = client.items(path, query, usize::MAX).await?;
    Ok(listed(client, &items, columns))
}

fn listed(client: &Client, items: &[Json], columns: &[Column]) -> String {
    if client.json {
        pretty(&page(items))
    } else {
        table(columns, items)
    }
}

pub(super) async fn show(client: &Client, path: &[&str]) -> Result<String, Failure> {
    let found = client.json(Method::GET, path, Ask::default()).await?;
    Ok(shown(client, &found))
}

fn shown(client: &Client, found: &Json) -> String {
    if client.json {
        pretty(found)
    } else {
        object(found)
    }
}

pub(super) async fn add(
    client: &Client,
    path: &[&str],
    spec: Json,
    replace: bool,
) -> Result<String, Failure> {
    let ask = Ask {
        body: Some(spec),
        only_new: !replace,
        ..Ask::default()
    };
    let made = client.json(Method::PUT, path, ask).await?;
    Ok(shown(client, &made))
}

pub(crate) async fn remove(client: &Client, path: &[&str]) -> Result<String, Failure> {
    let removed = client.send(Method::DELETE, path, Ask::default()).await;
    removed.map(|_| String::new())
}

/// The document of an object in a file, nothing of the caller's environment left open.
pub(crate) fn document(file: &std::path::Path) -> Result<Json, Failure> {
    let (file, text, format) = text_of(file)?;
    let document = objects::document(&file, &text, format, &environment())?;
    Ok(Json::Object(document))
}

/// The document of a server that is started by `command`, each word as it stands.
fn launch(command: &[String], variables: &[String]) -> Result<Json, Failure> {
    // The manifest's syntax: "$$" is "$".
    let word = |text: &String| Json::String(text.replace('$', "$$"));
    let own = environment();
    let mut env = Map::new();
    for variable in variables {
        let (name, value) = if let Some((name, value)) = variable.split_once('=') {
            (name, value.to_owned())
        } else {
            let value = own.get(variable).cloned().ok_or_else(|| {
                let what = format!("{variable} is not set here");
                Failure::usage("--env", &what, "write NAME=VALUE")
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

fn ending(now: bool) -> Ask<'static> {
    let mode = if now { "now" } else { "drain" };
    Ask {
        query: vec![("mode", mode.to_owned())],
        ..Ask::default()
    }
}

const TENANTS: [Column; 3] = [
    ("NAME", "/name"),
    ("AUTH", "/spec/auth/mode"),
    ("UPDATED", "/updated"),
];
const SERVERS: [Column; 4] = [
    ("NAME", "/name"),
    ("COMMAND", "/spec/command"),
    ("ARGS", "/spec/args"),
    ("UPDATED", "/updated"),
];
const SESSIONS: [Column; 6] = [
    ("ID", "/id"),
    ("SERVER", "/server"),
    ("SUBJECT", "/subject"),
    ("CLIENT", "/client"),
    ("TRANSPORT", "/transport"),
    ("AGE", "/age_seconds"),
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
const AUDIT: [Column; 6] = [
    ("AT", "/at"),
    ("TENANT", "/tenant"),
    ("KIND", "/kind"),
    ("ACTOR", "/actor"),
    ("TARGET", "/target"),
    ("DETAIL", "/detail"),
];

#[cfg(test)]
mod tests {
    use super::super::objects::*;

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
        assert!(matches!(unset, Err(Failure::Mistaken(_))));
    }
}

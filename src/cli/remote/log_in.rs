//! The commands on who may log in at a tenant of a gateway, with what, and where: users, clients,
//! identity providers.
//!
//! Passwords and secrets come from stdin, the environment or a document, never from arguments,
//! which every user of a machine can read. Not here: API keys (`remote_keys`).

use std::{io::Read, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use serde_json::{Map, Value as Json, json};

use super::{
    client::{Client, Connection, Failure, run},
    objects::{add, document, list, remove, show},
    table::Column,
};
use crate::config::gateway::environment;

/// `lockgate user`
#[derive(Args)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    what: Command<AddUser>,
    #[command(flatten)]
    to: Connection,
}

/// `lockgate client`
#[derive(Args)]
pub(crate) struct ClientArgs {
    #[command(subcommand)]
    what: Command<AddClient>,
    #[command(flatten)]
    to: Connection,
}

/// `lockgate provider`
#[derive(Args)]
pub(crate) struct ProviderArgs {
    #[command(subcommand)]
    what: Command<AddProvider>,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum Command<A: Args> {
    /// Those of a tenant, one a line
    List {
        /// The tenant
        tenant: String,
    },
    /// What is declared of one; passwords and secrets are never shown
    Show(Which),
    /// Declare one
    Add(A),
    /// Remove one; what it was given is worth nothing from then on
    Remove(Which),
}

/// Which one.
#[derive(Args)]
struct Which {
    /// The tenant
    tenant: String,
    /// Its name
    name: String,
}

#[derive(Args)]
struct AddUser {
    #[command(flatten)]
    which: Which,
    /// Its document, in place of all flags; - for stdin
    file: Option<PathBuf>,
    /// A group that it is in
    #[arg(long, value_name = "GROUP", conflicts_with = "file")]
    group: Vec<String>,
    /// Read its password from the first line of stdin, else from the environment
    /// (`LOCKGATE_USER_PASSWORD`, or the file that `LOCKGATE_USER_PASSWORD_FILE` names)
    #[arg(long, conflicts_with = "file")]
    password_stdin: bool,
    /// It may do nothing yet
    #[arg(long, conflicts_with = "file")]
    disabled: bool,
    /// Take the place of the one that is there; without a password that stays as it is
    #[arg(long)]
    replace: bool,
}

#[derive(Args)]
struct AddClient {
    #[command(flatten)]
    which: Which,
    /// Its document, in place of all flags; - for stdin
    #[arg(required_unless_present = "redirect_uri")]
    file: Option<PathBuf>,
    /// Where its answers may go
    #[arg(long, value_name = "URI", conflicts_with = "file")]
    redirect_uri: Vec<String>,
    /// What people are shown
    #[arg(long, value_name = "TITLE", conflicts_with = "file")]
    title: Option<String>,
    /// Read its secret from the first line of stdin; without one it is a public client
    #[arg(long, conflicts_with = "file")]
    secret_stdin: bool,
    /// Take the place of the one that is there
    #[arg(long)]
    replace: bool,
}

#[derive(Args)]
struct AddProvider {
    #[command(flatten)]
    which: Which,
    /// Its document; - for stdin
    file: PathBuf,
    /// Take the place of the one that is there
    #[arg(long)]
    replace: bool,
}

/// What an `add` declares.
trait Adding {
    fn which(&self) -> &Which;
    fn replaces(&self) -> bool;
    fn document(&self) -> Result<Json, Failure>;
}

/// `lockgate user`
pub(crate) fn user(args: &UserArgs) -> ExitCode {
    act(&args.to, "users", &args.what, &USERS)
}

/// `lockgate client`
pub(crate) fn client(args: &ClientArgs) -> ExitCode {
    act(&args.to, "clients", &args.what, &CLIENTS)
}

/// `lockgate provider`
pub(crate) fn provider(args: &ProviderArgs) -> ExitCode {
    act(&args.to, "providers", &args.what, &PROVIDERS)
}

fn act<A: Args + Adding>(
    to: &Connection,
    kind: &str,
    command: &Command<A>,
    columns: &[Column],
) -> ExitCode {
    run(to, async |client: &Client| match command {
        Command::List { tenant } => list(client, &["tenants", tenant, kind], &[], columns).await,
        Command::Show(which) => show(client, &which.path(kind)).await,
        Command::Add(adding) => {
            let path = adding.which().path(kind);
            add(client, &path, adding.document()?, adding.replaces()).await
        }
        Command::Remove(which) => remove(client, &which.path(kind)).await,
    })
}

impl Which {
    fn path<'a>(&'a self, kind: &'a str) -> [&'a str; 4] {
        ["tenants", &self.tenant, kind, &self.name]
    }
}

impl Adding for AddUser {
    fn which(&self) -> &Which {
        &self.which
    }

    fn replaces(&self) -> bool {
        self.replace
    }

    fn document(&self) -> Result<Json, Failure> {
        if let Some(file) = &self.file {
            return document(file);
        }
        let mut env = environment();
        let password = if self.password_stdin {
            Some(first_line("--password-stdin", std::io::stdin().lock())?)
        } else if let Some(file) = env.get(PASSWORD_FILE) {
            let unreadable = |error: std::io::Error| {
                let what = format!("{file} cannot be read: {error}");
                Failure::usage(PASSWORD_FILE, &what, "name a readable file")
            };
            let file = std::fs::File::open(file).map_err(unreadable)?;
            Some(first_line(PASSWORD_FILE, file)?)
        } else {
            env.remove(PASSWORD)
        };
        self.declared(password)
    }
}

impl AddUser {
    fn declared(&self, password: Option<String>) -> Result<Json, Failure> {
        let mut document = Map::new();
        match password {
            Some(password) => document.insert("password".to_owned(), word(&password)),
            // Null is what is stored.
            None if self.replace => document.insert("password".to_owned(), Json::Null),
            None => {
                let remedy = format!("write it to stdin, or set {PASSWORD}");
                return Err(Failure::usage("--password-stdin", "no password", &remedy));
            }
        };
        if !self.group.is_empty() {
            document.insert("groups".to_owned(), self.group.iter().map(word).collect());
        }
        if self.disabled {
            document.insert("disabled".to_owned(), true.into());
        }
        Ok(Json::Object(document))
    }
}

impl Adding for AddClient {
    fn which(&self) -> &Which {
        &self.which
    }

    fn replaces(&self) -> bool {
        self.replace
    }

    fn document(&self) -> Result<Json, Failure> {
        if let Some(file) = &self.file {
            return document(file);
        }
        let uris: Vec<Json> = self.redirect_uri.iter().map(word).collect();
        let mut document = json!({"redirect_uris": uris});
        if let Some(title) = &self.title {
            document["title"] = word(title);
        }
        if self.secret_stdin {
            document["secret"] = word(&first_line("--secret-stdin", std::io::stdin().lock())?);
        }
        Ok(document)
    }
}

impl Adding for AddProvider {
    fn which(&self) -> &Which {
        &self.which
    }

    fn replaces(&self) -> bool {
        self.replace
    }

    fn document(&self) -> Result<Json, Failure> {
        document(&self.file)
    }
}

/// A text as the manifest's syntax has it: "$$" is "$".
fn word(text: impl AsRef<str>) -> Json {
    text.as_ref().replace('$', "$$").into()
}

fn first_line(key: &str, source: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    if let Err(error) = source.take(MOST).read_to_string(&mut text) {
        let what = format!("cannot be read: {error}");
        return Err(Failure::usage(key, &what, "write UTF-8 to it"));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(Failure::usage(
            key,
            "nothing is there",
            "write it there, on one line",
        )),
    }
}

/// The variable that holds the password of a new user.
const PASSWORD: &str = "LOCKGATE_USER_PASSWORD";
/// The variable that names the file with it.
const PASSWORD_FILE: &str = "LOCKGATE_USER_PASSWORD_FILE";
/// Bytes that are looked at.
const MOST: u64 = 64 << 10;

const USERS: [Column; 4] = [
    ("NAME", "/name"),
    ("GROUPS", "/spec/groups"),
    ("DISABLED", "/spec/disabled"),
    ("UPDATED", "/updated"),
];
const CLIENTS: [Column; 4] = [
    ("ID", "/name"),
    ("TITLE", "/spec/title"),
    ("REDIRECT_URIS", "/spec/redirect_uris"),
    ("UPDATED", "/updated"),
];
const PROVIDERS: [Column; 4] = [
    ("NAME", "/name"),
    ("ISSUER", "/spec/issuer"),
    ("CLIENT_ID", "/spec/client_id"),
    ("UPDATED", "/updated"),
];

#[cfg(test)]
mod tests {
    use super::super::log_in::*;

    #[test]
    fn a_user_is_declared_by_flags() {
        let adding = |replace| AddUser {
            which: Which {
                tenant: "a".to_owned(),
                name: "ada".to_owned(),
            },
            file: None,
            group: vec!["g$".to_owned()],
            password_stdin: false,
            disabled: replace,
            replace,
        };
        let made = adding(false).declared(Some("a$b".to_owned())).unwrap();
        assert_eq!(made, json!({"password": "a$$b", "groups": ["g$$"]}));
        let kept = adding(true).declared(None).unwrap();
        let wanted = json!({"password": null, "groups": ["g$$"], "disabled": true});
        assert_eq!(kept, wanted);
        assert!(matches!(
            adding(false).declared(None),
            Err(Failure::Mistaken(_))
        ));
    }
}

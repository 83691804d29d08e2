//! `lockgate user`, `client`, `provider`, `upstream`, `connection` and `grant`: users, clients, identity providers and
//! upstreams of a tenant, the connections of people to these, and what people granted to clients.
//!
//! Passwords and secrets come from a prompt, stdin, the environment or a document, because other users of a
//! machine can read arguments. Not here: API keys (`keys`).

use std::{collections::HashMap, io::Read, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    document::document,
    object::{
        Help, InTenant, Kind, NameInTenant, ObjectCommand, Place, Replacement, change, declare,
        format_list, list, word,
    },
    table::Column,
};
use crate::{
    cli::local::prompt,
    config::{Format, gateway::environment},
};

/// Users as a kind of object.
pub(crate) struct Users;

/// Clients as a kind of object.
pub(crate) struct Clients;

/// Identity providers as a kind of object.
pub(crate) struct Providers;

/// Upstreams as a kind of object.
pub(crate) struct Upstreams;

/// The command line of `lockgate grant`.
#[derive(Args)]
pub(crate) struct GrantArgs {
    #[command(subcommand)]
    command: GrantCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum GrantCommand {
    /// List the active grants of people to clients
    List {
        /// The tenant
        tenant: String,
        /// Only grants of this person
        #[arg(long, visible_alias = "user", value_name = "NAME")]
        subject: Option<String>,
        /// Only grants to this client
        #[arg(long, value_name = "ID")]
        client: Option<String>,
    },
    /// Revoke a grant, or all grants of a person or to a client, with their tokens; exit code 1 if there is none
    Revoke {
        /// The tenant
        tenant: String,
        /// Id of the grant, as printed by list
        #[arg(required_unless_present_any = ["subject", "client"])]
        grant: Option<String>,
        /// All grants of this person, by the subject that list prints
        #[arg(long, visible_alias = "user", value_name = "NAME", conflicts_with_all = ["grant", "client"])]
        subject: Option<String>,
        /// All grants to this client
        #[arg(long, value_name = "ID", conflicts_with = "grant")]
        client: Option<String>,
    },
}

impl GrantArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |to: &Client| match &self.command {
            GrantCommand::List {
                tenant,
                subject,
                client,
            } => {
                let query = [("subject", subject), ("client", client)];
                let query = query.into_iter();
                let query = query.filter_map(|(name, value)| Some((name, value.clone()?)));
                let query: Vec<_> = query.collect();
                let path = ["tenants", tenant, "grants"];
                list_with_clients(to, tenant, &path, &query, &GRANTS).await
            }
            GrantCommand::Revoke {
                tenant,
                grant,
                subject,
                client,
            } => {
                if grant
                    .as_ref()
                    .is_some_and(|id| Uuid::try_parse(id).is_err())
                {
                    let remedy = "write an id of `lockgate grant list`";
                    return Err(Error::usage("GRANT", "is no id", remedy));
                }
                let which = [("grant", grant), ("subject", subject), ("client", client)];
                let which = which.into_iter();
                let which = which.filter_map(|(name, value)| {
                    Some((name.to_owned(), Json::from(value.as_deref()?)))
                });
                let options = RequestOptions {
                    body: Some(Json::Object(which.collect())),
                    ..RequestOptions::default()
                };
                let path = ["tenants", tenant, "revocations"];
                to.send(Method::POST, &path, options).await?;
                Ok(String::new())
            }
        })
    }
}

/// The command line of `lockgate connection`.
#[derive(Args)]
pub(crate) struct ConnectionArgs {
    #[command(subcommand)]
    command: ConnectionCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum ConnectionCommand {
    /// List the connections of people to upstreams, without their tokens
    List {
        /// The tenant
        tenant: String,
        /// Only connections of this person
        #[arg(long, visible_alias = "user", value_name = "NAME")]
        subject: Option<String>,
        /// Only connections to this upstream
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
    },
    /// End the connection of a person to an upstream, here and there
    Remove {
        /// The tenant
        tenant: String,
        /// The upstream
        upstream: String,
        /// The person, as printed by list
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
}

impl ConnectionArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |to: &Client| match &self.command {
            ConnectionCommand::List {
                tenant,
                subject,
                upstream,
            } => {
                let query = [("subject", subject), ("upstream", upstream)];
                let query = query.into_iter();
                let query = query.filter_map(|(name, value)| Some((name, value.clone()?)));
                let query: Vec<_> = query.collect();
                let path = ["tenants", tenant, "connections"];
                list(to, &path, &query, &CONNECTIONS).await
            }
            ConnectionCommand::Remove {
                tenant,
                upstream,
                subject,
            } => {
                let options = RequestOptions {
                    query: vec![("subject", subject.clone())],
                    ..RequestOptions::default()
                };
                let path = ["tenants", tenant, "connections", upstream];
                to.send(Method::DELETE, &path, options).await?;
                Ok(String::new())
            }
        })
    }
}

/// The command line of `lockgate user`.
#[derive(Args)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum UserCommand {
    #[command(flatten)]
    Object(ObjectCommand<Users>),
    /// Set a new password, which ends the log-ins of the user
    Passwd {
        #[command(flatten)]
        which: NameInTenant,
        /// Read it from the first line of stdin
        #[arg(long)]
        password_stdin: bool,
    },
    /// Let a disabled user log in again
    Enable(NameInTenant),
    /// Reject every log-in of a user, and end its grants
    Disable(NameInTenant),
}

impl UserArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            UserCommand::Object(command) => command.execute(client).await,
            UserCommand::Passwd {
                which,
                password_stdin,
            } => {
                let new = password(*password_stdin, true).await?;
                let new = new.ok_or_else(no_password)?;
                change(client, &which.path(Users::SEGMENT)?, |user| {
                    user.remove("password_hash");
                    user.insert("password".to_owned(), word(&new));
                    Ok(())
                })
                .await
            }
            UserCommand::Enable(which) => disable(client, which, false).await,
            UserCommand::Disable(which) => disable(client, which, true).await,
        })
    }
}

async fn disable(client: &Client, which: &NameInTenant, is: bool) -> Result<String, Error> {
    change(client, &which.path(Users::SEGMENT)?, |user| {
        user.insert("disabled".to_owned(), is.into());
        Ok(())
    })
    .await
}

#[derive(Args)]
pub(crate) struct AddUser {
    #[command(flatten)]
    which: NameInTenant,
    /// Document, instead of all flags; - for stdin
    file: Option<PathBuf>,
    /// Group of the user
    #[arg(long, value_name = "GROUP", conflicts_with = "file")]
    group: Vec<String>,
    /// Read the password from the first line of stdin, else from the environment
    /// (`LOCKGATE_USER_PASSWORD`, or the file that `LOCKGATE_USER_PASSWORD_FILE` names); on a
    /// terminal it is asked for
    #[arg(long, conflicts_with = "file")]
    password_stdin: bool,
    /// Reject every log-in of the user
    #[arg(long, conflicts_with = "file")]
    disabled: bool,
    #[command(flatten)]
    how: Replacement,
}

#[derive(Args)]
pub(crate) struct AddClient {
    #[command(flatten)]
    which: NameInTenant,
    /// Document, instead of all flags; - for stdin
    #[arg(required_unless_present = "redirect_uri")]
    file: Option<PathBuf>,
    /// Redirect URI
    #[arg(long, value_name = "URI", conflicts_with = "file")]
    redirect_uri: Vec<String>,
    /// Title shown to users
    #[arg(long, value_name = "TITLE", conflicts_with = "file")]
    title: Option<String>,
    /// Read the secret from the first line of stdin, or ask for it on a terminal; without a
    /// secret the client is public
    #[arg(long, conflicts_with = "file")]
    secret_stdin: bool,
    #[command(flatten)]
    how: Replacement,
}

#[derive(Args)]
pub(crate) struct AddProvider {
    #[command(flatten)]
    which: NameInTenant,
    /// Document; - for stdin
    file: PathBuf,
    #[command(flatten)]
    how: Replacement,
}

impl Kind for Users {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddUser;

    const SEGMENT: &'static str = "users";
    const HELP: Help = Help {
        list: "List the users of a tenant",
        show: "Show a user, without the password",
        add: "Declare a user, who logs in with a password that is asked for",
        remove: "Remove a user, and invalidate everything issued to it",
        name: "The user",
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &USERS
    }

    async fn add(client: &Client, add: &AddUser) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, add.document().await?, &add.how).await
    }
}

impl Kind for Clients {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddClient;

    const SEGMENT: &'static str = "clients";
    const HELP: Help = Help {
        list: "List the clients of a tenant, also those that registered themselves",
        show: "Show a client, without its secret",
        add: "Declare a client",
        remove: "Remove a client, and invalidate everything issued to it",
        name: "The client",
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &CLIENTS
    }

    /// Declared clients, and behind them those that registered themselves, which expire.
    async fn list(client: &Client, which: &InTenant) -> Result<String, Error> {
        let path = |segment| ["tenants", &which.tenant, segment];
        let mut items = client.items(&path(Self::SEGMENT), &[], usize::MAX).await?;
        let registered = path("registrations");
        let registered = client.items(&registered, &[], usize::MAX).await?;
        items.extend(registered.into_iter().map(|mut one| {
            let spec = json!({
                "title": one["title"].take(), "redirect_uris": one["redirect_uris"].take(),
            });
            json!({
                "kind": "registration", "name": one["id"].take(), "created": one["created"],
                "updated": one["created"].take(), "used": one["used"].take(),
                "expires": one["expires"].take(), "spec": spec,
            })
        }));
        Ok(format_list(client, &items, &CLIENTS))
    }

    async fn add(client: &Client, add: &AddClient) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, add.document().await?, &add.how).await
    }
}

impl Kind for Providers {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddProvider;

    const SEGMENT: &'static str = "providers";
    const HELP: Help = Help {
        list: "List the identity providers of a tenant",
        show: "Show an identity provider, without its secret",
        add: "Declare an identity provider",
        remove: "Remove an identity provider, and invalidate everything issued through it",
        name: "The identity provider",
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &PROVIDERS
    }

    async fn add(client: &Client, add: &AddProvider) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, document(&add.file)?, &add.how).await
    }
}

impl Kind for Upstreams {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddProvider;

    const SEGMENT: &'static str = "upstreams";
    const HELP: Help = Help {
        list: "List the upstreams of a tenant",
        show: "Show an upstream, without its secret",
        add: "Declare an upstream",
        remove: "Remove an upstream, and the connections of people to it",
        name: "The upstream",
    };

    fn columns(_: &InTenant) -> &'static [Column] {
        &PROVIDERS
    }

    async fn add(client: &Client, add: &AddProvider) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, document(&add.file)?, &add.how).await
    }
}

impl AddUser {
    async fn document(&self) -> Result<Json, Error> {
        if let Some(file) = &self.file {
            // It may be a password, which is not repeated.
            if file != "-" && Format::of(file).is_none() {
                return Err(Error::usage("FILE", NO_FILE, HOW_TO_SAY_IT));
            }
            return document(file);
        }
        let may_ask = !self.how.replace;
        self.declared(password(self.password_stdin, may_ask).await?)
    }

    fn declared(&self, password: Option<String>) -> Result<Json, Error> {
        let mut document = Map::new();
        match password {
            Some(password) => document.insert("password".to_owned(), word(&password)),
            // Null keeps the stored password.
            None if self.how.replace => document.insert("password".to_owned(), Json::Null),
            None => return Err(no_password()),
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

impl AddClient {
    async fn document(&self) -> Result<Json, Error> {
        if let Some(file) = &self.file {
            return document(file);
        }
        let uris: Vec<Json> = self.redirect_uri.iter().map(word).collect();
        let mut document = json!({"redirect_uris": uris});
        if let Some(title) = &self.title {
            document["title"] = word(title);
        }
        if self.secret_stdin {
            document["secret"] = word(&typed("--secret-stdin", "Secret").await?);
        }
        Ok(document)
    }
}

/// Lists items that name a client by its id, with the title of each client for people.
pub(super) async fn list_with_clients(
    client: &Client,
    tenant: &str,
    path: &[&str],
    query: &[(&str, String)],
    columns: &[Column],
) -> Result<String, Error> {
    let mut items = client.items(path, query, usize::MAX).await?;
    if client.json || items.is_empty() {
        return Ok(format_list(client, &items, columns));
    }
    let mut titles = HashMap::new();
    for (segment, id, title) in [
        ("clients", "/name", "/spec/title"),
        ("registrations", "/id", "/title"),
    ] {
        let path = ["tenants", tenant, segment];
        // A list without titles is better than none.
        for one in client
            .items(&path, &[], usize::MAX)
            .await
            .unwrap_or_default()
        {
            let text = |at| one.pointer(at).and_then(Json::as_str).map(str::to_owned);
            titles.extend(text(id).zip(text(title)));
        }
    }
    for item in &mut items {
        let title = item["client"].as_str().and_then(|id| titles.get(id));
        item["client_title"] = title.cloned().into();
    }
    Ok(format_list(client, &items, columns))
}

/// A new password: from stdin, the environment, or a person if one may be asked.
async fn password(is_on_stdin: bool, may_ask: bool) -> Result<Option<String>, Error> {
    let mut env = environment();
    if is_on_stdin {
        return typed("--password-stdin", "Password").await.map(Some);
    }
    if let Some(file) = env.get(PASSWORD_FILE) {
        let unreadable = |error: std::io::Error| {
            let what = format!("{file} cannot be read: {error}");
            Error::usage(PASSWORD_FILE, &what, "name a readable file")
        };
        let file = std::fs::File::open(file).map_err(unreadable)?;
        return first_line(PASSWORD_FILE, file).map(Some);
    }
    if let Some(password) = env.remove(PASSWORD) {
        return Ok(Some(password));
    }
    if may_ask && prompt::is_possible() {
        return typed("--password-stdin", "Password").await.map(Some);
    }
    Ok(None)
}

fn no_password() -> Error {
    let remedy = format!("write it to stdin, or set {PASSWORD}");
    Error::usage("--password-stdin", "no password", &remedy)
}

/// A password or secret from stdin: asked for without echo if that is a terminal.
async fn typed(key: &str, what: &str) -> Result<String, Error> {
    if !prompt::is_possible() {
        return first_line(key, std::io::stdin().lock());
    }
    prompt::new_secret(what)
        .await
        .map_err(|error| Error::usage(key, &error.to_string(), "type it again"))
}

fn first_line(key: &str, source: impl Read) -> Result<String, Error> {
    let mut text = String::new();
    if let Err(error) = source.take(MOST).read_to_string(&mut text) {
        let what = format!("cannot be read: {error}");
        return Err(Error::usage(key, &what, "write UTF-8 to it"));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(Error::usage(
            key,
            "nothing is there",
            "write it there, on one line",
        )),
    }
}

/// What is wrong with an argument that cannot be a file with a specification.
const NO_FILE: &str = "is no file with the specification of a user (.yaml, .yml, .toml or .json)";
/// How a password is given.
const HOW_TO_SAY_IT: &str = "leave it out if it is a password: that is asked for on a terminal, or read by \
                             --password-stdin";
/// The variable that holds the password of a new user.
const PASSWORD: &str = "LOCKGATE_USER_PASSWORD";
/// The variable that names the file with the password.
const PASSWORD_FILE: &str = "LOCKGATE_USER_PASSWORD_FILE";
/// Maximum bytes of a password or secret.
const MOST: u64 = 64 << 10;

const USERS: [Column; 4] = [
    ("NAME", "/name"),
    ("GROUPS", "/spec/groups"),
    ("DISABLED", "/spec/disabled"),
    ("UPDATED", "/updated"),
];
const CLIENTS: [Column; 6] = [
    ("ID", "/name"),
    ("TITLE", "/spec/title"),
    ("REDIRECT_URIS", "/spec/redirect_uris"),
    ("UPDATED", "/updated"),
    ("USED", "/used"),
    ("EXPIRES", "/expires"),
];
/// The title that [`list_with_clients`] adds.
pub(super) const CLIENT_TITLE: &str = "/client_title";
const GRANTS: [Column; 8] = [
    ("ID", "/id"),
    ("SUBJECT", "/subject"),
    ("CLIENT", "/client"),
    ("NAME", CLIENT_TITLE),
    ("RESOURCE", "/resource"),
    ("SCOPE", "/scope"),
    ("USED", "/used"),
    ("EXPIRES", "/expires"),
];
const CONNECTIONS: [Column; 6] = [
    ("UPSTREAM", "/upstream"),
    ("SUBJECT", "/subject"),
    ("STATE", "/state"),
    ("CONNECTED", "/connected"),
    ("REFRESHED", "/refreshed"),
    ("EXPIRES", "/expires"),
];
const PROVIDERS: [Column; 4] = [
    ("NAME", "/name"),
    ("ISSUER", "/spec/issuer"),
    ("CLIENT_ID", "/spec/client_id"),
    ("UPDATED", "/updated"),
];

#[cfg(test)]
mod tests {
    use super::super::{
        identity::*,
        object::{NameInTenant, Replacement},
    };

    #[test]
    fn a_user_is_declared_by_flags() {
        let adding = |replace| AddUser {
            which: NameInTenant {
                tenant: "a".to_owned(),
                name: "ada".to_owned(),
            },
            file: None,
            group: vec!["g$".to_owned()],
            password_stdin: false,
            disabled: replace,
            how: Replacement {
                replace,
                yes: false,
            },
        };
        let created = adding(false).declared(Some("a$b".to_owned())).unwrap();
        assert_eq!(created, json!({"password": "a$$b", "groups": ["g$$"]}));
        let kept = adding(true).declared(None).unwrap();
        let wanted = json!({"password": null, "groups": ["g$$"], "disabled": true});
        assert_eq!(kept, wanted);
        assert!(matches!(
            adding(false).declared(None),
            Err(Error::Mistakes(_))
        ));
    }
}

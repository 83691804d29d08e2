//! `lockgate user`, `client` and `provider`: users, clients and identity providers of a tenant.
//!
//! Passwords and secrets come from a prompt, stdin, the environment or a document, because other users of a
//! machine can read arguments. Not here: API keys (`keys`).

use std::{io::Read, path::PathBuf};

use clap::Args;
use serde_json::{Map, Value as Json, json};

use super::{
    client::{Client, Error},
    document::document,
    object::{Help, InTenant, Kind, NameInTenant, Place, declare},
    table::Column,
};
use crate::{cli::local::prompt, config::gateway::environment};

/// Users as a kind of object.
pub(crate) struct Users;

/// Clients as a kind of object.
pub(crate) struct Clients;

/// Identity providers as a kind of object.
pub(crate) struct Providers;

const HELP: Help = Help {
    list: "List those of a tenant",
    show: "Show one, without passwords and secrets",
    add: "Declare one",
    remove: "Remove one, and invalidate everything issued to it",
};

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
    /// Replace an existing user; without a new password, keep the old one
    #[arg(long)]
    replace: bool,
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
    /// Replace an existing client
    #[arg(long)]
    replace: bool,
}

#[derive(Args)]
pub(crate) struct AddProvider {
    #[command(flatten)]
    which: NameInTenant,
    /// Document; - for stdin
    file: PathBuf,
    /// Replace an existing provider
    #[arg(long)]
    replace: bool,
}

impl Kind for Users {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddUser;

    const SEGMENT: &'static str = "users";
    const HELP: Help = HELP;

    fn columns(_: &InTenant) -> &'static [Column] {
        &USERS
    }

    async fn add(client: &Client, add: &AddUser) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, add.document().await?, add.replace).await
    }
}

impl Kind for Clients {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddClient;

    const SEGMENT: &'static str = "clients";
    const HELP: Help = HELP;

    fn columns(_: &InTenant) -> &'static [Column] {
        &CLIENTS
    }

    async fn add(client: &Client, add: &AddClient) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, add.document().await?, add.replace).await
    }
}

impl Kind for Providers {
    type Collection = InTenant;
    type Name = NameInTenant;
    type Add = AddProvider;

    const SEGMENT: &'static str = "providers";
    const HELP: Help = HELP;

    fn columns(_: &InTenant) -> &'static [Column] {
        &PROVIDERS
    }

    async fn add(client: &Client, add: &AddProvider) -> Result<String, Error> {
        let path = add.which.path(Self::SEGMENT)?;
        declare(client, &path, document(&add.file)?, add.replace).await
    }
}

impl AddUser {
    async fn document(&self) -> Result<Json, Error> {
        if let Some(file) = &self.file {
            return document(file);
        }
        let mut env = environment();
        let password = if self.password_stdin {
            Some(typed("--password-stdin", "Password").await?)
        } else if let Some(file) = env.get(PASSWORD_FILE) {
            let unreadable = |error: std::io::Error| {
                let what = format!("{file} cannot be read: {error}");
                Error::usage(PASSWORD_FILE, &what, "name a readable file")
            };
            let file = std::fs::File::open(file).map_err(unreadable)?;
            Some(first_line(PASSWORD_FILE, file)?)
        } else if let Some(password) = env.remove(PASSWORD) {
            Some(password)
        } else if !self.replace && prompt::is_possible() {
            Some(typed("--password-stdin", "Password").await?)
        } else {
            None
        };
        self.declared(password)
    }

    fn declared(&self, password: Option<String>) -> Result<Json, Error> {
        let mut document = Map::new();
        match password {
            Some(password) => document.insert("password".to_owned(), word(&password)),
            // Null keeps the stored password.
            None if self.replace => document.insert("password".to_owned(), Json::Null),
            None => {
                let remedy = format!("write it to stdin, or set {PASSWORD}");
                return Err(Error::usage("--password-stdin", "no password", &remedy));
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

/// A literal text in the syntax of manifests, where "$$" is "$".
fn word(text: impl AsRef<str>) -> Json {
    text.as_ref().replace('$', "$$").into()
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
    use super::super::{identity::*, object::NameInTenant};

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
            replace,
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

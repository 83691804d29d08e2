//! The commands of every kind of declared object: list, show, add and remove.
//!
//! A kind of object implements [`Kind`]; the commands follow from it. Not here: flags and commands
//! of a single kind.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json};

use super::{
    client::{Client, Condition, Connection, Error, RequestOptions, page, run},
    table::{Column, object, plain, pretty, table},
};
use crate::{cli::local::prompt, manifest::interpolation::escape};

/// A literal text in the syntax of manifests, where "$$" is "$".
pub(super) fn word(text: impl AsRef<str>) -> Json {
    escape(text.as_ref()).into()
}

/// A kind of declared object.
pub(crate) trait Kind {
    /// The arguments that name a collection.
    type Collection: Args + Place;
    /// The arguments that name an object.
    type Name: Args + Place;
    /// The arguments that declare an object.
    type Add: Args;

    /// The path segment of this kind's collections in a tenant.
    const SEGMENT: &'static str;
    const HELP: Help;

    /// The columns of a list.
    fn columns(collection: &Self::Collection) -> &'static [Column];

    /// Lists the objects of a collection.
    async fn list(client: &Client, collection: &Self::Collection) -> Result<String, Error> {
        let path = collection.path(Self::SEGMENT)?;
        list(client, &path, &[], Self::columns(collection)).await
    }

    /// Declares an object.
    async fn add(client: &Client, add: &Self::Add) -> Result<String, Error>;

    /// What a person should confirm before an object is removed.
    async fn warning(_client: &Client, _path: &[&str]) -> Result<Option<String>, Error> {
        Ok(None)
    }
}

/// The help of the commands of a kind.
pub(crate) struct Help {
    pub(super) list: &'static str,
    pub(super) show: &'static str,
    pub(super) add: &'static str,
    pub(super) remove: &'static str,
    /// The argument `name`.
    pub(super) name: &'static str,
}

/// Tells what an argument `name` is the name of.
fn naming<K: Kind>(arg: clap::Arg) -> clap::Arg {
    if arg.get_id() == "name" {
        arg.help(K::HELP.name)
    } else {
        arg
    }
}

/// The path of a collection or an object in the API.
pub(crate) trait Place {
    /// The path behind `/api/v1`.
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error>;
}

/// A collection of a tenant.
#[derive(Args)]
pub(crate) struct InTenant {
    /// The tenant
    pub(super) tenant: String,
}

/// An object of a tenant.
#[derive(Args)]
pub(crate) struct NameInTenant {
    /// The tenant
    pub(super) tenant: String,
    /// The user
    pub(super) name: String,
}

impl Place for InTenant {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(vec!["tenants", &self.tenant, segment])
    }
}

impl Place for NameInTenant {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(vec!["tenants", &self.tenant, segment, &self.name])
    }
}

/// The commands of every kind.
#[derive(Subcommand)]
pub(crate) enum ObjectCommand<K: Kind> {
    #[command(about = K::HELP.list)]
    List(K::Collection),
    #[command(about = K::HELP.show, mut_args = naming::<K>)]
    Show(K::Name),
    #[command(about = K::HELP.add, mut_args = naming::<K>)]
    Add(K::Add),
    #[command(about = K::HELP.remove, mut_args = naming::<K>)]
    Remove(Removal<K::Name>),
}

/// An object to remove.
#[derive(Args)]
pub(crate) struct Removal<N: Args> {
    #[command(flatten)]
    pub(super) name: N,
    /// Remove it without the question that is asked for a tenant and for the key in use
    #[arg(long)]
    yes: bool,
}

/// Whether a new declaration may take the place of a stored one.
#[derive(Args)]
pub(crate) struct Replacement {
    /// Replace an existing one; a user keeps the password unless there is a new one
    #[arg(long)]
    pub(super) replace: bool,
    /// Replace it without a question, even if settings are lost by it
    #[arg(long, requires = "replace")]
    pub(super) yes: bool,
}

impl<K: Kind> ObjectCommand<K> {
    /// Executes the command, and returns its output.
    pub(super) async fn execute(&self, client: &Client) -> Result<String, Error> {
        match self {
            Self::List(collection) => K::list(client, collection).await,
            Self::Show(name) => {
                let path = name.path(K::SEGMENT)?;
                let found = client
                    .json(Method::GET, &path, RequestOptions::default())
                    .await?;
                Ok(output(client, &found))
            }
            Self::Add(add) => K::add(client, add).await,
            Self::Remove(Removal { name, yes }) => {
                let path = name.path(K::SEGMENT)?;
                if !yes && let Some(what) = K::warning(client, &path).await? {
                    confirm("--yes", &what).await?;
                }
                client
                    .send(Method::DELETE, &path, RequestOptions::default())
                    .await?;
                Ok(String::new())
            }
        }
    }
}

/// The command line of a kind without other commands.
#[derive(Args)]
pub(crate) struct ObjectArgs<K: Kind> {
    #[command(subcommand)]
    command: ObjectCommand<K>,
    #[command(flatten)]
    to: Connection,
}

impl<K: Kind> ObjectArgs<K> {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| {
            self.command.execute(client).await
        })
    }
}

/// Lists all items.
pub(super) async fn list(
    client: &Client,
    path: &[&str],
    query: &[(&str, String)],
    columns: &[Column],
) -> Result<String, Error> {
    let items = client.items(path, query, usize::MAX).await?;
    Ok(format_list(client, &items, columns))
}

/// Formats items as a table, or as JSON if requested.
pub(super) fn format_list(client: &Client, items: &[Json], columns: &[Column]) -> String {
    if client.json {
        pretty(&page(items))
    } else {
        table(columns, items)
    }
}

/// Asks a person whether to do what `what` says.
///
/// # Errors
///
/// The answer is no, or stdin is no terminal.
async fn confirm(key: &str, what: &str) -> Result<(), Error> {
    if !prompt::is_possible() {
        return Err(Error::usage(key, what, "write --yes if that is meant"));
    }
    match prompt::confirm(what).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Failed("nothing was changed".to_owned())),
        Err(error) => Err(Error::Failed(format!("no answer: {error}"))),
    }
}

/// Declares an object, and returns its output.
pub(super) async fn declare(
    client: &Client,
    path: &[&str],
    spec: Json,
    how: &Replacement,
) -> Result<String, Error> {
    let stored = if how.replace {
        client.find(path).await?
    } else {
        None
    };
    if let Some(stored) = &stored {
        let lost = lost(&stored["spec"], &spec);
        if !lost.is_empty() && !how.yes {
            confirm("--replace", &format!("drops {}", lost.join(", "))).await?;
        }
    }
    let version = stored.and_then(|stored| stored["version"].as_i64());
    let options = RequestOptions {
        body: Some(spec),
        condition: version.map_or(Condition::Absent, Condition::Version),
        ..RequestOptions::default()
    };
    let created = client.json(Method::PUT, path, options).await?;
    Ok(output(client, &created))
}

/// Changes single members of a stored object; tries again if another client changes it meanwhile.
pub(super) async fn change(
    client: &Client,
    path: &[&str],
    edit: impl Fn(&mut Map<String, Json>) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut tries = TRIES;
    loop {
        let mut stored = client
            .json(Method::GET, path, RequestOptions::default())
            .await?;
        let Json::Object(mut spec) = stored["spec"].take() else {
            return Err(Error::Failed("the answer has no declaration".to_owned()));
        };
        edit(&mut spec)?;
        let version = stored["version"].as_i64();
        let options = RequestOptions {
            body: Some(Json::Object(spec)),
            condition: version.map_or(Condition::None, Condition::Version),
            ..RequestOptions::default()
        };
        tries -= 1;
        match client.json(Method::PUT, path, options).await {
            Err(Error::Changed(_)) if tries > 0 => {}
            changed => return Ok(output(client, &changed?)),
        }
    }
}

/// The settings of `old` that `new` does not have: the path of each.
fn lost(old: &Json, new: &Json) -> Vec<String> {
    let (Json::Object(old), Json::Object(new)) = (old, new) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for (member, value) in old {
        match new.get(member) {
            // A password is stored as its hash.
            None if member == "password_hash" && new.contains_key("password") => {}
            None => paths.push(plain(member)),
            Some(other) => {
                let inner = lost(value, other).into_iter();
                paths.extend(inner.map(|path| format!("{}.{path}", plain(member))));
            }
        }
    }
    paths
}

fn output(client: &Client, found: &Json) -> String {
    if client.json {
        pretty(found)
    } else {
        object(found)
    }
}

/// How often a change is tried that others keep from happening.
const TRIES: u32 = 10;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::object::*;

    #[test]
    fn what_a_replacement_drops_is_named() {
        let old = json!({
            "command": "x", "env": {"A": null, "B": null}, "limits": {"memory": "1GiB"},
            "password_hash": null,
        });
        let new = json!({"command": "y", "env": {"B": "2", "C": "3"}, "password": null});
        assert_eq!(lost(&old, &new), ["env.A", "limits"]);
        assert!(lost(&old, &old).is_empty());
    }
}

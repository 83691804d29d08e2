//! The commands of every kind of declared object: list, show, add and remove.
//!
//! A kind of object implements [`Kind`]; the commands follow from it. Not here: flags and commands
//! of a single kind.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value as Json;

use super::{
    client::{Client, Connection, Error, RequestOptions, page, run},
    table::{Column, object, pretty, table},
};

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

    /// Declares an object.
    async fn add(client: &Client, add: &Self::Add) -> Result<String, Error>;
}

/// The help of the commands of a kind.
pub(crate) struct Help {
    pub(super) list: &'static str,
    pub(super) show: &'static str,
    pub(super) add: &'static str,
    pub(super) remove: &'static str,
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
    /// Its name
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
    #[command(about = K::HELP.show)]
    Show(K::Name),
    #[command(about = K::HELP.add)]
    Add(K::Add),
    #[command(about = K::HELP.remove)]
    Remove(K::Name),
}

impl<K: Kind> ObjectCommand<K> {
    /// Executes the command, and returns its output.
    pub(super) async fn execute(&self, client: &Client) -> Result<String, Error> {
        match self {
            Self::List(collection) => {
                let path = collection.path(K::SEGMENT)?;
                list(client, &path, &[], K::columns(collection)).await
            }
            Self::Show(name) => {
                let path = name.path(K::SEGMENT)?;
                let found = client
                    .json(Method::GET, &path, RequestOptions::default())
                    .await?;
                Ok(output(client, &found))
            }
            Self::Add(add) => K::add(client, add).await,
            Self::Remove(name) => {
                let path = name.path(K::SEGMENT)?;
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

/// Declares an object, and returns its output.
pub(super) async fn declare(
    client: &Client,
    path: &[&str],
    spec: Json,
    replace: bool,
) -> Result<String, Error> {
    let options = RequestOptions {
        body: Some(spec),
        only_new: !replace,
        ..RequestOptions::default()
    };
    let created = client.json(Method::PUT, path, options).await?;
    Ok(output(client, &created))
}

fn output(client: &Client, found: &Json) -> String {
    if client.json {
        pretty(found)
    } else {
        object(found)
    }
}

//! The commands on API keys of a gateway: those of tenants, and with `--operators` those of its
//! operators.
//!
//! Not here: keys without a gateway (`key`), and the master key (`stored`).

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value as Json, json};

use super::{
    client::{Ask, Client, Connection, Failure, run},
    objects::{list, remove, show},
    table::{Column, pretty},
};

/// Commands on the API keys that a gateway has.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// API keys of a tenant, one a line
    List {
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        to: Connection,
    },
    /// What an API key stands for
    Show(Key),
    /// Make an API key, and print it: nothing can show it again
    Add(AddKey),
    /// Remove an API key; it is worth nothing from then on
    Remove(Key),
    /// Put another text in the place of a tenant's API key, and print it
    Renew(Key),
}

/// Whose API keys.
#[derive(Args)]
pub(crate) struct Whose {
    /// The tenant
    #[arg(required_unless_present = "operators", conflicts_with = "operators")]
    tenant: Option<String>,
    /// Those of operators, who belong to no tenant
    #[arg(long)]
    operators: bool,
}

/// Which API key.
#[derive(Args)]
pub(crate) struct Key {
    /// The tenant, unless the key is an operator's; and the name of the key
    #[arg(value_names = ["TENANT", "NAME"], num_args = 1..=2, required = true)]
    names: Vec<String>,
    /// It is an operator's
    #[arg(long)]
    operators: bool,
    #[command(flatten)]
    to: Connection,
}

/// An API key to be.
#[derive(Args)]
pub(crate) struct AddKey {
    #[command(flatten)]
    key: Key,
    /// Whom it acts for; else the key's own name
    #[arg(long, value_name = "SUBJECT", conflicts_with = "operators")]
    subject: Option<String>,
    /// A server that it may use; * for all of them
    #[arg(long, value_name = "NAME", conflicts_with = "operators")]
    server: Vec<String>,
    /// An OAuth scope that it carries; admin administrates the tenant
    #[arg(long, value_name = "SCOPE", conflicts_with = "operators")]
    scope: Vec<String>,
    /// From when on it is worth nothing, like 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
}

impl Key {
    /// The path of the keys that it is among, and its name.
    fn path(&self) -> Result<(Vec<&str>, &str), Failure> {
        match (self.operators, self.names.as_slice()) {
            (false, [tenant, name]) => Ok((vec!["tenants", tenant, "api-keys"], name)),
            (true, [name]) => Ok((vec!["operator-keys"], name)),
            (false, _) => {
                let remedy = "write TENANT NAME, or --operators NAME";
                Err(Failure::usage("TENANT", "is missing", remedy))
            }
            (true, _) => {
                let remedy = "write --operators NAME";
                Err(Failure::usage("TENANT", "operators belong to none", remedy))
            }
        }
    }
}

/// `lockgate key`, on a gateway.
pub(crate) fn key(command: &KeyCommand) -> ExitCode {
    match command {
        KeyCommand::List { whose, to } => run(to, async |client: &Client| {
            let Some(tenant) = &whose.tenant else {
                return list(client, &["operator-keys"], &[], &OPERATORS).await;
            };
            list(client, &["tenants", tenant, "api-keys"], &[], &KEYS).await
        }),
        KeyCommand::Show(key) => run(&key.to, async |client: &Client| {
            let (mut path, name) = key.path()?;
            path.push(name);
            show(client, &path).await
        }),
        KeyCommand::Add(adding) => run(&adding.key.to, async |client: &Client| {
            let (path, name) = adding.key.path()?;
            make(client, &path, Some(adding.document(name))).await
        }),
        KeyCommand::Remove(key) => run(&key.to, async |client: &Client| {
            let (mut path, name) = key.path()?;
            path.push(name);
            remove(client, &path).await
        }),
        KeyCommand::Renew(key) => run(&key.to, async |client: &Client| {
            let (mut path, name) = key.path()?;
            if key.operators {
                let remedy = "add another one, then remove this";
                return Err(Failure::usage(
                    "--operators",
                    "such keys are not renewed",
                    remedy,
                ));
            }
            path.extend([name, "rotate"]);
            make(client, &path, None).await
        }),
    }
}

impl AddKey {
    fn document(&self, name: &str) -> Json {
        let mut document = json!({"name": name});
        if !self.key.operators {
            document["subject"] = self.subject.as_deref().unwrap_or(name).into();
            document["servers"] = self.server.clone().into();
            document["scopes"] = self.scope.clone().into();
        }
        if let Some(expires) = &self.expires {
            document["expires"] = expires.as_str().into();
        }
        document
    }
}

/// Only the key goes to stdout, so that a shell can take it from there.
async fn make(client: &Client, path: &[&str], body: Option<Json>) -> Result<String, Failure> {
    let ask = Ask {
        body,
        ..Ask::default()
    };
    let made = client.json(Method::POST, path, ask).await?;
    if client.json {
        return Ok(pretty(&made));
    }
    let key = made["key"].as_str().unwrap_or_default();
    eprintln!("nothing can show this key again:");
    Ok(format!("{key}\n"))
}

const KEYS: [Column; 5] = [
    ("NAME", "/name"),
    ("SUBJECT", "/spec/subject"),
    ("SERVERS", "/spec/servers"),
    ("SCOPES", "/spec/scopes"),
    ("EXPIRES", "/spec/expires"),
];
const OPERATORS: [Column; 3] = [
    ("NAME", "/name"),
    ("EXPIRES", "/spec/expires"),
    ("UPDATED", "/updated"),
];

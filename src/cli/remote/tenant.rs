//! `lockgate tenant`: tenants and their quotas.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::json;

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    document::document,
    object::{Help, Kind, ObjectCommand, Place, Replacement, declare},
    table::{Column, pretty},
};

/// The command line of `lockgate tenant`.
#[derive(Args)]
pub(crate) struct TenantArgs {
    #[command(subcommand)]
    command: TenantCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum TenantCommand {
    #[command(flatten)]
    Object(ObjectCommand<Tenants>),
    /// Show the quotas of a tenant, and their use on the replica that answers
    Quotas(Tenant),
}

/// Tenants as a kind of object.
struct Tenants;

/// The collection of all tenants.
#[derive(Args)]
struct AllTenants {}

/// The name of a tenant.
#[derive(Args)]
struct Tenant {
    /// The tenant
    tenant: String,
}

#[derive(Args)]
struct AddTenant {
    #[command(flatten)]
    tenant: Tenant,
    /// Document without servers and API keys; - for stdin
    file: Option<PathBuf>,
    /// Authentication mode, without a document: builtin (people log in), keys (API keys), external,
    /// or none; builtin for a new tenant
    #[arg(long, value_name = "MODE", conflicts_with = "file")]
    auth: Option<String>,
    #[command(flatten)]
    how: Replacement,
}

impl Place for AllTenants {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(vec![segment])
    }
}

impl Place for Tenant {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(vec![segment, &self.tenant])
    }
}

impl Kind for Tenants {
    type Collection = AllTenants;
    type Name = Tenant;
    type Add = AddTenant;

    const SEGMENT: &'static str = "tenants";
    const HELP: Help = Help {
        list: "List the tenants",
        show: "Show a tenant, without its servers and API keys",
        add: "Declare a tenant",
        remove: "Remove a tenant with all its objects",
    };

    fn columns(_: &AllTenants) -> &'static [Column] {
        &COLUMNS
    }

    async fn add(client: &Client, add: &AddTenant) -> Result<String, Error> {
        let spec = match (&add.file, &add.auth) {
            (Some(file), _) => document(file)?,
            (None, Some(mode)) => json!({"auth": {"mode": mode}}),
            (None, None) if add.how.replace => {
                let remedy = "write --auth MODE, or a document";
                return Err(Error::usage("--replace", "has nothing to write", remedy));
            }
            (None, None) => json!({"auth": {"mode": "builtin"}}),
        };
        let path = add.tenant.path(Self::SEGMENT)?;
        declare(client, &path, spec, &add.how).await
    }
}

impl TenantArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            TenantCommand::Object(command) => command.execute(client).await,
            TenantCommand::Quotas(tenant) => {
                let path = ["tenants", &tenant.tenant, "quotas"];
                let reply = client
                    .json(Method::GET, &path, RequestOptions::default())
                    .await?;
                Ok(pretty(&reply))
            }
        })
    }
}

const COLUMNS: [Column; 3] = [
    ("NAME", "/name"),
    ("AUTH", "/spec/auth/mode"),
    ("UPDATED", "/updated"),
];

//! `lockgate tenant`: tenants and their quotas.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    document::document,
    object::{Help, Kind, ObjectCommand, Place, Replacement, declare},
    table::{Column, plain, pretty},
};
use crate::declare::OWN_KEY;

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
    /// Print a tenant and its objects as a manifest in JSON, with references in place of secrets
    Export(Tenant),
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
        name: "The tenant",
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

    /// A tenant goes with all that it has.
    async fn warning(client: &Client, path: &[&str]) -> Result<Option<String>, Error> {
        let mut parts = Vec::new();
        for kind in ["servers", "users", "clients", "api-keys"] {
            let list = [path, &[kind]].concat();
            match client.items(&list, &[], usize::MAX).await?.len() {
                0 => {}
                count => parts.push(format!("{kind}: {count}")),
            }
        }
        let parts = if parts.is_empty() {
            "it is empty".to_owned()
        } else {
            parts.join(", ")
        };
        let tenant = path.last().copied().unwrap_or_default();
        Ok(Some(format!(
            "removes tenant {tenant} and all that it has ({parts})"
        )))
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
            TenantCommand::Export(tenant) => export(client, &tenant.tenant).await,
        })
    }
}

/// Makes a manifest of a tenant. Secrets, which the gateway never shows, are references to variables of
/// its recipient; stderr names them.
async fn export(client: &Client, tenant: &str) -> Result<String, Error> {
    let path = ["tenants", tenant];
    let found = client.json(Method::GET, &path, RequestOptions::default());
    let mut whole = found.await?["spec"].take();
    let mut variables = BTreeMap::new();
    for (segment, key) in LISTS {
        let mut list = Map::new();
        for mut one in client
            .items(&["tenants", tenant, segment], &[], usize::MAX)
            .await?
        {
            let (name, mut spec) = (one["name"].take(), one["spec"].take());
            let name = name.as_str().unwrap_or_default();
            // A key that a person made is issued, as a token is: a manifest has none.
            if key == "api_keys" && name.starts_with(OWN_KEY) {
                continue;
            }
            refer(&mut spec, &format!("{key}.{name}"), &mut variables);
            list.insert(name.to_owned(), spec);
        }
        if !list.is_empty() {
            whole[key] = Json::Object(list);
        }
    }
    if !variables.is_empty() {
        eprintln!("the manifest has no secrets; set these variables where you apply it:");
    }
    for (variable, key) in &variables {
        eprintln!("  {variable}  {}", plain(key));
    }
    Ok(pretty(&json!({"version": 1, "tenants": {tenant: whole}})))
}

/// Puts a reference in place of each null, which stands for a secret at `key`.
fn refer(value: &mut Json, key: &str, variables: &mut BTreeMap<String, String>) {
    match value {
        Json::Null => {
            let is_plain = |letter: char| letter.is_ascii_alphanumeric();
            let name = key.split_once('.').map_or(key, |(_, name)| name);
            let name = name.replace(|letter| !is_plain(letter), "_");
            let mut variable = name.to_ascii_uppercase();
            // Names that differ in other characters alone.
            while variables.contains_key(&variable) {
                variable.push('_');
            }
            *value = format!("${{env:{variable}}}").into();
            variables.insert(variable, key.to_owned());
        }
        Json::Object(members) => {
            for (member, value) in members {
                refer(value, &format!("{key}.{member}"), variables);
            }
        }
        _ => {}
    }
}

/// The lists of a tenant in the API, and in a manifest.
const LISTS: [(&str, &str); 6] = [
    ("servers", "servers"),
    ("users", "users"),
    ("clients", "clients"),
    ("providers", "providers"),
    ("upstreams", "upstreams"),
    ("api-keys", "api_keys"),
];

const COLUMNS: [Column; 3] = [
    ("NAME", "/name"),
    ("AUTH", "/spec/auth/mode"),
    ("UPDATED", "/updated"),
];

#[cfg(test)]
mod tests {
    use super::super::tenant::*;

    #[test]
    fn secrets_become_variables_of_their_own() {
        let mut variables = BTreeMap::new();
        let mut one = json!({"command": "x", "env": {"TOKEN": null, "A-B": null, "A.B": null}});
        refer(&mut one, "servers.files", &mut variables);
        let wanted = json!({"command": "x", "env": {"TOKEN": "${env:FILES_ENV_TOKEN}",
            "A-B": "${env:FILES_ENV_A_B}", "A.B": "${env:FILES_ENV_A_B_}"}});
        assert_eq!(one, wanted);
        let mut user = json!({"password_hash": null});
        refer(&mut user, "users.ada", &mut variables);
        assert_eq!(user, json!({"password_hash": "${env:ADA_PASSWORD_HASH}"}));
        assert_eq!(variables["FILES_ENV_A_B"], "servers.files.env.A-B");
        assert_eq!(variables.len(), 4);
    }
}

//! `lockgate key` on a gateway: API keys of tenants, and with `--operators` those of operators.
//!
//! Not here: keys without a gateway, and the master key (`local`).

use std::{io::IsTerminal, process::ExitCode};

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value as Json, json};

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    object::{Help, Kind, ObjectCommand, Place, word},
    server::running,
    table::{Column, plain, pretty},
};
use crate::http::reply::page::snippets;

/// The commands on API keys of a gateway.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    #[command(flatten)]
    Object(ObjectCommand<ApiKeys>),
    /// Replace the secret of a tenant's API key, and print the new key
    Renew(Renewal),
}

/// API keys as a kind of object.
pub(crate) struct ApiKeys;

/// The API keys of a tenant, or those of operators.
#[derive(Args)]
pub(crate) struct Keys {
    /// The tenant
    #[arg(required_unless_present = "operators", conflicts_with = "operators")]
    tenant: Option<String>,
    /// List the keys of operators, who belong to no tenant
    #[arg(long)]
    operators: bool,
    #[command(flatten)]
    to: Connection,
}

/// The name of an API key.
#[derive(Args)]
pub(crate) struct Key {
    /// The tenant, unless the key is an operator's, and the name of the key
    #[arg(value_names = ["TENANT", "NAME"], num_args = 1..=2, required = true)]
    names: Vec<String>,
    /// The key is an operator's
    #[arg(long)]
    operators: bool,
    #[command(flatten)]
    to: Connection,
}

/// The API key of a tenant that gets another secret.
#[derive(Args)]
pub(crate) struct Renewal {
    /// The tenant
    tenant: String,
    /// The name of the key
    #[arg(required_unless_present = "operators")]
    name: Option<String>,
    // Known, so that its refusal says what to do instead.
    #[arg(long, hide = true)]
    operators: bool,
    #[command(flatten)]
    to: Connection,
}

#[derive(Args)]
pub(crate) struct AddKey {
    #[command(flatten)]
    key: Key,
    /// Subject of the key; default: its name
    #[arg(long, value_name = "SUBJECT", conflicts_with = "operators")]
    subject: Option<String>,
    /// Server that the key may use; * for all
    #[arg(long, value_name = "NAME", conflicts_with = "operators")]
    server: Vec<String>,
    /// OAuth scope of the key; admin administrates the tenant
    #[arg(long, value_name = "SCOPE", conflicts_with = "operators")]
    scope: Vec<String>,
    /// Expiry, like 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
}

impl Place for Keys {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        Ok(match &self.tenant {
            Some(tenant) => vec!["tenants", tenant, segment],
            None => vec!["operator-keys"],
        })
    }
}

impl Place for Key {
    fn path<'a>(&'a self, segment: &'a str) -> Result<Vec<&'a str>, Error> {
        let (mut path, name) = self.parts(segment)?;
        path.push(name);
        Ok(path)
    }
}

impl Key {
    /// The path of its collection, and its name.
    fn parts<'a>(&'a self, segment: &'a str) -> Result<(Vec<&'a str>, &'a str), Error> {
        match (self.operators, self.names.as_slice()) {
            (false, [tenant, name]) => Ok((vec!["tenants", tenant, segment], name)),
            (true, [name]) => Ok((vec!["operator-keys"], name)),
            (false, _) => {
                let remedy = "write TENANT NAME, or --operators NAME";
                Err(Error::usage("TENANT", "is missing", remedy))
            }
            (true, _) => {
                let remedy = "write --operators NAME";
                Err(Error::usage("TENANT", "operators belong to none", remedy))
            }
        }
    }
}

impl Kind for ApiKeys {
    type Collection = Keys;
    type Name = Key;
    type Add = AddKey;

    const SEGMENT: &'static str = "api-keys";
    const HELP: Help = Help {
        list: "List the API keys of a tenant",
        show: "Show an API key, without its secret",
        add: "Create an API key, and print it; it cannot be shown again",
        remove: "Remove an API key, which ends its validity",
        name: "The API key",
    };

    fn columns(keys: &Keys) -> &'static [Column] {
        if keys.tenant.is_some() {
            &KEYS
        } else {
            &OPERATORS
        }
    }

    async fn add(client: &Client, add: &AddKey) -> Result<String, Error> {
        let (path, name) = add.key.parts(Self::SEGMENT)?;
        let printed = create(client, &path, Some(add.document(name))).await?;
        if let ["tenants", tenant, _] = path[..]
            && !client.json
        {
            // The key exists and is shown but once: a failure here may not lose it.
            if add
                .show_settings(client, tenant, printed.trim())
                .await
                .is_err()
            {
                eprintln!(
                    "lockgate: the servers of {tenant} cannot be listed for the settings of clients"
                );
            }
        }
        Ok(printed)
    }

    /// The key of the command itself may be the only one that its user has.
    async fn warning(client: &Client, path: &[&str]) -> Result<Option<String>, Error> {
        let found = client.find(path).await?;
        let is_own = found.is_some_and(|key| key["spec"]["hash"] == client.fingerprint());
        Ok(is_own.then(|| "removes the key that this command itself uses".to_owned()))
    }
}

impl KeyCommand {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(self.to(), async |client: &Client| match self {
            Self::Object(command) => command.execute(client).await,
            Self::Renew(renewal) => renew(client, renewal).await,
        })
    }

    fn to(&self) -> &Connection {
        match self {
            Self::Object(ObjectCommand::List(keys)) => &keys.to,
            Self::Object(ObjectCommand::Add(add)) => &add.key.to,
            Self::Object(ObjectCommand::Remove(removal)) => &removal.name.to,
            Self::Object(ObjectCommand::Show(key)) => &key.to,
            Self::Renew(renewal) => &renewal.to,
        }
    }
}

async fn renew(client: &Client, renewal: &Renewal) -> Result<String, Error> {
    let name = renewal.name.as_deref().filter(|_| !renewal.operators);
    let Some(name) = name else {
        let remedy = "add another one, then remove this";
        return Err(Error::usage(
            "--operators",
            "such keys are not renewed",
            remedy,
        ));
    };
    let tenant = &renewal.tenant;
    let path = ["tenants", tenant, ApiKeys::SEGMENT, name, "rotate"];
    create(client, &path, None).await
}

impl AddKey {
    /// Shows the settings of each client for the first server of a new key, on stderr: stdout has
    /// the key alone. Where stderr is no terminal, `$KEY` stands for the key, which no log should have.
    async fn show_settings(&self, client: &Client, tenant: &str, key: &str) -> Result<(), Error> {
        let is_named = |server: &str| self.server.iter().any(|one| one == "*" || one == server);
        let servers = running(client, tenant).await?;
        let names = servers.iter().filter_map(|one| {
            let name = one["name"].as_str().filter(|name| is_named(name))?;
            Some((plain(name), plain(one["url"].as_str()?)))
        });
        let key = if std::io::stderr().is_terminal() {
            key
        } else {
            "$KEY"
        };
        if let Some((name, url)) = names.into_iter().next() {
            for (client, snippet) in snippets(&name, &url, Some(key)) {
                eprintln!("\n{client}:\n{snippet}");
            }
        }
        Ok(())
    }

    fn document(&self, name: &str) -> Json {
        let mut document = json!({"name": name});
        if !self.key.operators {
            let words = |texts: &[String]| texts.iter().map(word).collect();
            document["subject"] = word(self.subject.as_deref().unwrap_or(name));
            document["servers"] = Json::Array(words(&self.server));
            document["scopes"] = Json::Array(words(&self.scope));
        }
        if let Some(expires) = &self.expires {
            document["expires"] = expires.as_str().into();
        }
        document
    }
}

/// Makes a key. Only the key goes to stdout, where a shell can read it.
async fn create(client: &Client, path: &[&str], body: Option<Json>) -> Result<String, Error> {
    let options = RequestOptions {
        body,
        ..RequestOptions::default()
    };
    let created = client.json(Method::POST, path, options).await?;
    if client.json {
        return Ok(pretty(&created));
    }
    let key = created["key"].as_str().unwrap_or_default();
    eprintln!("nothing can show this key again:");
    Ok(format!("{key}\n"))
}

const KEYS: [Column; 6] = [
    ("NAME", "/name"),
    ("SUBJECT", "/spec/subject"),
    ("SERVERS", "/spec/servers"),
    ("SCOPES", "/spec/scopes"),
    ("EXPIRES", "/spec/expires"),
    ("LABEL", "/spec/label"),
];
const OPERATORS: [Column; 3] = [
    ("NAME", "/name"),
    ("EXPIRES", "/spec/expires"),
    ("UPDATED", "/updated"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The help showed an option whose use was a mistake.
    #[test]
    fn a_key_is_renewed_by_tenant_and_name() {
        let command = KeyCommand::augment_subcommands(clap::Command::new("key"));
        let mut shown = command.clone();
        let help = shown
            .find_subcommand_mut("renew")
            .unwrap()
            .render_long_help();
        let help = help.to_string();
        assert!(
            help.contains("<TENANT>") && help.contains("The name of the key"),
            "{help}"
        );
        assert!(!help.contains("operator"), "{help}");
        for (line, is_good) in [
            (&["key", "renew", "a", "ci"][..], true),
            (&["key", "renew", "a"][..], false),
            // Refused later, with what to do instead.
            (&["key", "renew", "--operators", "eve"][..], true),
        ] {
            let parsed = command.clone().try_get_matches_from(line);
            assert_eq!(parsed.is_ok(), is_good, "{line:?}");
        }
    }
}

//! `lockgate audit`: the audit trail. `lockgate logins`: attempts of clients to be let in.

use std::process::ExitCode;

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use reqwest::Method;

use super::{
    client::{Client, Connection, Error, RequestOptions, run},
    object::format_list,
    table::{Column, plain},
};
use crate::{base::terminal::escaped_json, database::KINDS};

/// The command line of `lockgate audit`.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// Only records of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only records of this kind
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    kind: Option<String>,
    /// Only actions of this administrator
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Only records since this time, like 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only records until this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Maximum number of records
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        conflicts_with = "export"
    )]
    limit: u16,
    /// Print every record, as lines of JSON
    #[arg(long)]
    export: bool,
    #[command(flatten)]
    to: Connection,
}

impl AuditArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| {
            let given = [
                ("tenant", &self.tenant),
                ("kind", &self.kind),
                ("actor", &self.actor),
                ("from", &self.from),
                ("until", &self.until),
            ];
            let given = given.into_iter();
            let query = given.filter_map(|(name, value)| Some((name, value.clone()?)));
            let query: Vec<_> = query.collect();
            if self.export {
                let lines = client.lines(&["audit"], query, escaped_json);
                return lines.await.map(|_| String::new());
            }
            let most = usize::from(self.limit.max(1));
            let items = client.items(&["audit"], &query, most).await?;
            // Records outlive their tenant.
            if let Some(tenant) = self.tenant.as_ref().filter(|_| items.is_empty())
                && client.find(&["tenants", tenant]).await?.is_none()
            {
                let what = format!("there is no tenant {}, and no such record", plain(tenant));
                return Err(Error::Missing(what));
            }
            Ok(format_list(client, &items, &COLUMNS))
        })
    }
}

/// The command line of `lockgate logins`.
#[derive(Args)]
pub(crate) struct LoginsArgs {
    #[command(subcommand)]
    command: LoginsCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum LoginsCommand {
    /// List the attempts of the last day, the newest first, each with its last step
    List {
        /// The tenant
        tenant: String,
        /// Maximum number of attempts
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u16,
    },
    /// Show the steps of an attempt
    Show {
        /// The tenant
        tenant: String,
        /// Attempt id, as printed by list
        id: String,
    },
}

impl LoginsArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            LoginsCommand::List { tenant, limit } => {
                let path = ["tenants", tenant, "logins"];
                let most = usize::from((*limit).max(1));
                let items = client.items(&path, &[], most).await?;
                Ok(format_list(client, &items, &LOGIN_COLUMNS))
            }
            LoginsCommand::Show { tenant, id } => {
                let path = ["tenants", tenant, "logins", id];
                let mut found = client
                    .json(Method::GET, &path, RequestOptions::default())
                    .await?;
                let items = found["items"].take();
                let items = items.as_array().map(Vec::as_slice).unwrap_or_default();
                Ok(format_list(client, items, &STEP_COLUMNS))
            }
        })
    }
}

const LOGIN_COLUMNS: [Column; 8] = [
    ("ID", "/id"),
    ("LATEST", "/latest"),
    ("CLIENT", "/client"),
    ("NAME", "/title"),
    ("SERVER", "/server"),
    ("SUBJECT", "/subject"),
    ("STEP", "/step"),
    ("REASON", "/reason"),
];

const STEP_COLUMNS: [Column; 5] = [
    ("AT", "/at"),
    ("STEP", "/step"),
    ("SUBJECT", "/subject"),
    ("ADDRESS", "/address"),
    ("REASON", "/reason"),
];

const COLUMNS: [Column; 6] = [
    ("AT", "/at"),
    ("TENANT", "/tenant"),
    ("KIND", "/kind"),
    ("ACTOR", "/actor"),
    ("TARGET", "/target"),
    ("DETAIL", "/detail"),
];

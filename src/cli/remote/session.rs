//! `lockgate session`: sessions of a tenant.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;

use super::{
    client::{Client, Connection, RequestOptions, run},
    identity::{CLIENT_TITLE, list_with_clients},
    table::Column,
};

/// The command line of `lockgate session`.
#[derive(Args)]
pub(crate) struct SessionArgs {
    #[command(subcommand)]
    command: SessionCommand,
    #[command(flatten)]
    to: Connection,
}

#[derive(Subcommand)]
enum SessionCommand {
    /// List the sessions of a tenant on the replica that answers
    List {
        /// The tenant
        tenant: String,
        /// Only sessions of this server
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
    },
    /// End a session after its calls
    End {
        /// The tenant
        tenant: String,
        /// Session id, as printed by list
        id: String,
        /// Do not wait for calls
        #[arg(long)]
        now: bool,
    },
}

impl SessionArgs {
    /// Runs the command line.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| match &self.command {
            SessionCommand::List { tenant, server } => {
                let server = server.iter().map(|name| ("server", name.clone()));
                let query: Vec<_> = server.collect();
                let path = ["tenants", tenant, "sessions"];
                list_with_clients(client, tenant, &path, &query, &COLUMNS).await
            }
            SessionCommand::End { tenant, id, now } => {
                let path = ["tenants", tenant, "sessions", id];
                client
                    .send(Method::DELETE, &path, RequestOptions::ending(*now))
                    .await?;
                Ok(String::new())
            }
        })
    }
}

const COLUMNS: [Column; 7] = [
    ("ID", "/id"),
    ("SERVER", "/server"),
    ("SUBJECT", "/subject"),
    ("CLIENT", "/client"),
    ("NAME", CLIENT_TITLE),
    ("TRANSPORT", "/transport"),
    ("AGE", "/age_seconds"),
];

//! Commands of the program, and the dispatch of a command line to its command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::{
    local::{check, database, demo, import, key},
    remote::{
        self, ApplyArgs, AuditArgs, Clients, ObjectArgs, Providers, ServerArgs, SessionArgs,
        TenantArgs, Users,
    },
    serve::{RunArgs, ServeArgs, process},
};

/// Puts stdio MCP servers on the network.
#[derive(Parser)]
#[command(name = "lockgate", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one stdio server on loopback, without configuration; the demo without COMMAND
    Run(RunArgs),
    /// Serve what configuration and manifest say
    Serve(ServeArgs),
    /// Report every mistake in configuration and manifest, and what this kernel offers
    Check(check::CheckArgs),
    /// Bring the schema of the store up to date
    Migrate(database::StoreArgs),
    /// Copy the SQLite store into a new file
    Backup(database::CopyArgs),
    /// Put a copy of the SQLite store in its place
    Restore(database::CopyArgs),
    /// Make what a gateway has declared what a manifest says, and show the difference
    Apply(ApplyArgs),
    /// Tenants of a gateway
    Tenant(TenantArgs),
    /// Servers of a tenant, and their children
    Server(ServerArgs),
    /// People who log in at a tenant with a password
    User(ObjectArgs<Users>),
    /// Clients of a tenant that need not register
    Client(ObjectArgs<Clients>),
    /// Identity providers at which people of a tenant log in
    Provider(ObjectArgs<Providers>),
    /// Sessions of a tenant
    Session(SessionArgs),
    /// Who changed what
    Audit(AuditArgs),
    /// Print the description of the administration API (openapi.json)
    Openapi {
        /// As a page for people
        #[arg(long)]
        markdown: bool,
    },
    /// Print the JSON schema of manifests
    Schema,
    /// Turn an mcp.json into a manifest on stdout
    Import(import::ImportArgs),
    /// API keys, and the master key
    #[command(subcommand)]
    Key(KeyCommand),
    /// The demo server on stdio (internal)
    #[command(name = "__demo", hide = true)]
    Demo,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Print a new API key, and its hash for a manifest; asks nobody
    New,
    /// Replace the master key, and seal every secret of the store anew
    Rotate(database::StoreArgs),
    #[command(flatten)]
    Remote(remote::KeyCommand),
}

/// Runs the command line of this process.
///
/// Exit codes: 0 for success, also after a signal; 1 for a failure; 2 for a mistake in usage,
/// configuration or manifest.
#[must_use]
pub fn main() -> ExitCode {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match Cli::parse().command {
        Command::Run(args) => process::run(args),
        Command::Serve(args) => process::serve(args),
        Command::Check(args) => check::check(args),
        Command::Migrate(args) => database::migrate(args),
        Command::Backup(args) => database::backup(args),
        Command::Restore(args) => database::restore(args),
        Command::Key(KeyCommand::Rotate(args)) => database::rotate(args),
        Command::Apply(args) => args.run(),
        Command::Tenant(args) => args.run(),
        Command::Server(args) => args.run(),
        Command::User(args) => args.run(),
        Command::Client(args) => args.run(),
        Command::Provider(args) => args.run(),
        Command::Session(args) => args.run(),
        Command::Audit(args) => args.run(),
        Command::Key(KeyCommand::Remote(command)) => command.run(),
        Command::Openapi { markdown: false } => {
            print!("{}", crate::http::admin::document());
            ExitCode::SUCCESS
        }
        Command::Openapi { markdown: true } => {
            print!("{}", remote::reference());
            ExitCode::SUCCESS
        }
        Command::Schema => {
            print!("{}", crate::manifest::TEXT);
            ExitCode::SUCCESS
        }
        Command::Import(args) => import::import(&args),
        Command::Key(KeyCommand::New) => key::new(&mut std::io::stdout()),
        Command::Demo => demo::run(),
    }
}

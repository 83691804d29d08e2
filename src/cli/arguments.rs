//! The command line: parses it, loads settings, and runs what was asked for.

use super::check;
use super::database;
use super::demo;
use super::import;
use super::key;
use super::remote::apply;
use super::remote::keys;
use super::remote::log_in;
use super::remote::objects;
use super::remote::reference;
use super::serve;
use std::{future::Future, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

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
    Check(CheckArgs),
    /// Bring the schema of the store up to date
    Migrate(StoreArgs),
    /// Copy the SQLite store into a new file
    Backup(CopyArgs),
    /// Put a copy of the SQLite store in its place
    Restore(CopyArgs),
    /// Make what a gateway has declared what a manifest says, and show the difference
    Apply(apply::ApplyArgs),
    /// Tenants of a gateway
    Tenant(objects::TenantArgs),
    /// Servers of a tenant, and their children
    Server(objects::ServerArgs),
    /// People who log in at a tenant with a password
    User(log_in::UserArgs),
    /// Clients of a tenant that need not register
    Client(log_in::ClientArgs),
    /// Identity providers at which people of a tenant log in
    Provider(log_in::ProviderArgs),
    /// Sessions of a tenant
    Session(objects::SessionArgs),
    /// Who changed what
    Audit(objects::AuditArgs),
    /// Print the description of the administration API (openapi.json)
    Openapi {
        /// As a page for people
        #[arg(long)]
        markdown: bool,
    },
    /// Print the JSON schema of manifests
    Schema,
    /// Turn an mcp.json into a manifest on stdout
    Import(ImportArgs),
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
    Rotate(StoreArgs),
    #[command(flatten)]
    Remote(keys::KeyCommand),
}

/// `lockgate run`
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Address to listen on; loopback only
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Environment of the server: NAME=VALUE, or NAME to pass one's own
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// An Origin that browsers may call from
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Any key of the configuration, or server.KEY of the server
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `lockgate serve`
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    pub(crate) config: Option<PathBuf>,
    /// Manifest of tenants and servers
    #[arg(long, value_name = "F")]
    pub(crate) apply: Option<PathBuf>,
    /// Remove what is stored and not in the manifest
    #[arg(long, requires = "apply")]
    pub(crate) prune: bool,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Args)]
struct CheckArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    config: Option<PathBuf>,
    /// Manifest of tenants and servers
    #[arg(long, value_name = "F")]
    apply: Option<PathBuf>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Where the store is.
#[derive(Args)]
pub(crate) struct StoreArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    pub(crate) config: Option<PathBuf>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// `lockgate backup` and `restore`
#[derive(Args)]
pub(crate) struct CopyArgs {
    /// The copy
    #[arg(value_name = "F")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Args)]
#[expect(clippy::doc_markdown, reason = "shown to people as it stands")]
struct ImportArgs {
    /// mcp.json, claude_desktop_config.json or VS Code's mcp.json
    file: PathBuf,
    /// The tenant that gets the servers
    #[arg(long, value_name = "T")]
    tenant: String,
}

/// Runs the command line of this process. Exit codes: 0 after a signal, drained; 1 cannot
/// run; 2 usage, configuration or manifest.
#[must_use]
pub fn main() -> ExitCode {
    // Fails only where it was installed before, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match Cli::parse().command {
        Command::Run(args) => serve::run(args),
        Command::Serve(args) => serve::serve(args),
        Command::Check(args) => check::check(args.config, args.apply.as_deref(), args.set),
        Command::Migrate(args) => database::migrate(args),
        Command::Backup(args) => database::backup(args),
        Command::Restore(args) => database::restore(args),
        Command::Key(KeyCommand::Rotate(args)) => database::rotate(args),
        Command::Apply(args) => apply::apply(&args),
        Command::Tenant(args) => objects::tenant(&args),
        Command::Server(args) => objects::server(&args),
        Command::User(args) => log_in::user(&args),
        Command::Client(args) => log_in::client(&args),
        Command::Provider(args) => log_in::provider(&args),
        Command::Session(args) => objects::session(&args),
        Command::Audit(args) => objects::audit(&args),
        Command::Key(KeyCommand::Remote(command)) => keys::key(&command),
        Command::Openapi { markdown: false } => {
            print!("{}", crate::http::admin::openapi::text());
            ExitCode::SUCCESS
        }
        Command::Openapi { markdown: true } => {
            print!("{}", reference::reference());
            ExitCode::SUCCESS
        }
        Command::Schema => {
            print!("{}", crate::manifest::TEXT);
            ExitCode::SUCCESS
        }
        Command::Import(ImportArgs { file, tenant }) => import::import(
            &file,
            &tenant,
            &mut std::io::stdout(),
            &mut std::io::stderr(),
        ),
        Command::Key(KeyCommand::New) => key::new(&mut std::io::stdout()),
        Command::Demo => demo::run(),
    }
}

/// Waits for `work` on a runtime of its own.
///
/// # Errors
///
/// The exit code of a machine that has no thread or file for one, which is said on stderr.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> Result<T, ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => Ok(runtime.block_on(work)),
        Err(error) => {
            eprintln!("lockgate: cannot start the runtime: {error}");
            Err(ExitCode::FAILURE)
        }
    }
}

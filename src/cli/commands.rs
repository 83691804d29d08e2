//! Commands of the program, and their dispatch.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;

use super::{
    doctor::DoctorArgs,
    local::{check, database, demo, healthcheck, import, key, said},
    remote::{
        self, ApplyArgs, AuditArgs, Clients, ConnectionArgs, GrantArgs, LoginsArgs, ObjectArgs,
        Providers, ServerArgs, SessionArgs, StatusArgs, TenantArgs, Upstreams, UserArgs,
    },
    serve::{RunArgs, ServeArgs, process},
};
use crate::base::terminal::escaped;

/// A gateway that puts stdio MCP servers on the network
#[derive(Parser)]
#[command(name = NAME, version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one stdio server on loopback, without configuration; without COMMAND, a demo server
    Run(RunArgs),
    /// Serve the tenants and servers of a manifest or a database
    Serve(ServeArgs),
    /// Report every mistake in configuration and manifest, and the sandboxing features of this
    /// machine
    Check(check::CheckArgs),
    /// Report whether the gateway with this configuration serves, for containers without a shell
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Examine a server from outside, as each known client does, and name what keeps clients out
    Doctor(DoctorArgs),
    /// Update the database schema
    Migrate(database::DatabaseArgs),
    /// Copy the SQLite database into a new file
    Backup(database::CopyArgs),
    /// Replace the SQLite database by a copy
    Restore(database::RestoreArgs),
    /// Change a gateway's tenants and servers to those of a manifest, and show the changes
    Apply(ApplyArgs),
    /// Show a running gateway at a glance: readiness, tenants, servers, sessions and children
    Status(StatusArgs),
    /// Tenants of a gateway
    Tenant(TenantArgs),
    /// Servers of a tenant, and their children
    Server(ServerArgs),
    /// Users who log in at a tenant with a password
    User(UserArgs),
    /// OAuth clients of a tenant that need no registration
    Client(ObjectArgs<Clients>),
    /// Identity providers where users of a tenant log in
    Provider(ObjectArgs<Providers>),
    /// Services whose access tokens people of a tenant connect
    Upstream(ObjectArgs<Upstreams>),
    /// Connections of people of a tenant to upstreams
    Connection(ConnectionArgs),
    /// What people of a tenant granted to clients
    Grant(GrantArgs),
    /// Sessions of a tenant
    Session(SessionArgs),
    /// Attempts of clients to log in at a tenant, step by step
    Logins(LoginsArgs),
    /// The audit trail
    Audit(AuditArgs),
    /// Print the description of the administration API (openapi.json)
    Openapi {
        /// Print it as Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Print the JSON schema of manifests
    Schema,
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages of all commands into a directory
    Man {
        /// The directory, which exists
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Convert an mcp.json into a manifest on stdout
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
    /// Print a new API key and its hash for a manifest, without a gateway
    New,
    /// Replace the master key, and seal every stored secret again
    Rotate(database::DatabaseArgs),
    #[command(flatten)]
    Remote(remote::KeyCommand),
}

/// Runs the command line of this process.
///
/// Exit codes: 0 after success or a signal; 1 after an error; 2 after a mistake in usage,
/// configuration or manifest.
#[must_use]
pub fn main() -> ExitCode {
    // Fails only if a provider is installed already, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return mistaken(&error),
    };
    match cli.command {
        Command::Run(args) => process::run(args),
        Command::Serve(args) => process::serve(args),
        Command::Check(args) => check::check(args),
        Command::Healthcheck(args) => healthcheck::healthcheck(args),
        Command::Doctor(args) => args.run(),
        Command::Migrate(args) => database::migrate(args),
        Command::Backup(args) => database::backup(args),
        Command::Restore(args) => database::restore(args),
        Command::Key(KeyCommand::Rotate(args)) => database::rotate(args),
        Command::Apply(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Tenant(args) => args.run(),
        Command::Server(args) => args.run(),
        Command::User(args) => args.run(),
        Command::Client(args) => args.run(),
        Command::Provider(args) => args.run(),
        Command::Upstream(args) => args.run(),
        Command::Connection(args) => args.run(),
        Command::Grant(args) => args.run(),
        Command::Session(args) => args.run(),
        Command::Logins(args) => args.run(),
        Command::Audit(args) => args.run(),
        Command::Key(KeyCommand::Remote(command)) => command.run(),
        Command::Openapi { markdown: false } => said(crate::http::admin::document()),
        Command::Openapi { markdown: true } => said(remote::reference()),
        Command::Schema => said(crate::manifest::schema()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut documented(), NAME, &mut script);
            said(script)
        }
        Command::Man { directory } => man(&directory),
        Command::Import(args) => import::import(&args),
        Command::Key(KeyCommand::New) => key::new(&mut std::io::stdout()),
        Command::Demo => demo::run(),
    }
}

/// Prints a mistake in the command line, or the help that it asks for.
fn mistaken(error: &clap::Error) -> ExitCode {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let is_surplus = error.kind() == ErrorKind::UnknownArgument;
    let may_lack_dashes = is_surplus || error.kind() == ErrorKind::MissingRequiredArgument;
    match remote::forgotten_dashes(&words).filter(|_| may_lack_dashes) {
        Some(line) => eprintln!("{line}"),
        // A reader that has seen enough is no error.
        None => _ = error.print(),
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The command line without internal commands.
fn documented() -> clap::Command {
    let all = Cli::command();
    let about = all.get_about().cloned().unwrap_or_default();
    let shown = all.get_subcommands().filter(|one| !one.is_hide_set());
    clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .subcommands(shown.cloned())
}

/// Writes the man pages of all commands: `lockgate.1`, `lockgate-serve.1` and so on.
fn man(directory: &Path) -> ExitCode {
    match clap_mangen::generate_to(documented(), directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let what = format!("{}: {error}", directory.display());
            let what = escaped(&what);
            eprintln!("lockgate: {what}; name a directory that can be written");
            ExitCode::FAILURE
        }
    }
}

/// The name of the program.
const NAME: &str = "lockgate";

//! Runtime and configuration of a single command.

use std::{future::Future, path::PathBuf, process::ExitCode};

use crate::config::{Config, Sources, gateway::environment};

/// Loads the configuration from a file, the environment and flags.
///
/// # Errors
///
/// The exit code if it has mistakes, which are printed on stderr.
pub(super) fn configuration(file: Option<PathBuf>, set: Vec<String>) -> Result<Config, ExitCode> {
    let sources = Sources {
        file,
        env: environment(),
        set,
        ..Sources::default()
    };
    Config::load(&sources).map_err(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

/// Runs `work` on its own runtime.
///
/// # Errors
///
/// The exit code if the runtime cannot start; the reason is printed on stderr.
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

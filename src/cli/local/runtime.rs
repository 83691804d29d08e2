//! Runtime of a single command.

use std::{future::Future, process::ExitCode};

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

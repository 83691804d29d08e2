//! Runtime of a single command.

use std::{future::Future, process::ExitCode};

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

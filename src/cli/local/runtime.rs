//! Runtime, configuration and output of a single command.

use std::{
    future::Future,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

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

/// Prints the result of a command, and returns its exit code.
pub(crate) fn said(text: impl AsRef<[u8]>) -> ExitCode {
    match print(&mut io::stdout().lock(), text.as_ref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockgate: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to the reader of a command; returns whether there still is one. A reader that has seen enough is no error.
///
/// # Errors
///
/// Every other failure to write: without it a full disk would be told as success.
pub(crate) fn print(out: &mut impl Write, text: &[u8]) -> io::Result<bool> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
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

#[cfg(test)]
mod tests {
    use super::super::runtime::*;

    /// A standard output whose writes fail.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error() {
        let mut out = Vec::new();
        assert!(print(&mut out, b"x").unwrap());
        assert_eq!(out, b"x");
        assert!(!print(&mut Failing(io::ErrorKind::BrokenPipe), b"x").unwrap());
        let full = print(&mut Failing(io::ErrorKind::StorageFull), b"x");
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

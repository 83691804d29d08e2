//! `lockgate key new`: an API key for a manifest.

use std::{io::Write, process::ExitCode};

use aws_lc_rs::rand::SystemRandom;

use crate::auth::api_key;

/// Prints a new key and its hash for a manifest. The key cannot be shown again.
pub(crate) fn new(out: &mut impl Write) -> ExitCode {
    let Ok(key) = api_key::generate(&SystemRandom::new()) else {
        eprintln!("lockgate: no randomness");
        return ExitCode::FAILURE;
    };
    let hash = api_key::fingerprint(&key);
    match writeln!(out, "key:  {key}\nhash: {hash}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockgate: {error}");
            ExitCode::FAILURE
        }
    }
}

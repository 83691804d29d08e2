//! `lockgate key new`: an API key for whoever writes a manifest.

use std::{io::Write, process::ExitCode};

use aws_lc_rs::rand::SystemRandom;

use crate::auth::api_key;

/// Prints a key, which nobody can show again, and the hash that a manifest has of it.
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

//! `lockgate apply`: replaces the declared objects of a gateway by those of a manifest.
//!
//! The command reads the manifest, so `${env:…}` and `${file:…}` refer to the caller's machine.
//! Not here: the text of a change (`declare::difference`).

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use reqwest::Method;
use serde_json::Value as Json;

use super::{
    client::{Client, Connection, RequestOptions, run},
    document::text_of,
    table::{plain, pretty},
};
use crate::{cli::local::progress, config::gateway::environment, manifest::objects};

/// The command line of `lockgate apply`.
#[derive(Args)]
pub(crate) struct ApplyArgs {
    /// Manifest; - reads YAML or JSON from stdin
    #[arg(value_name = "F")]
    manifest: Option<PathBuf>,
    /// The same, as an option
    #[arg(
        short = 'f',
        long,
        value_name = "F",
        required_unless_present = "manifest",
        conflicts_with = "manifest"
    )]
    file: Option<PathBuf>,
    /// Only show the changes
    #[arg(long)]
    dry_run: bool,
    /// Remove stored objects that are not in the manifest
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    to: Connection,
}

impl ApplyArgs {
    /// Sends the manifest and prints the changes.
    pub(crate) fn run(&self) -> ExitCode {
        run(&self.to, async |client: &Client| {
            let given = self.manifest.iter().chain(&self.file);
            let given: PathBuf = given.collect();
            let (file, text, format) = text_of(&given)?;
            let read = objects::parse(&file, &text, format, &environment())?;
            let flags = [("dry_run", self.dry_run), ("prune", self.prune)];
            let options = RequestOptions {
                query: flags.map(|(name, is)| (name, is.to_string())).to_vec(),
                body: Some(read.declared.json()),
                manifest: Some(&read.manifest),
                ..RequestOptions::default()
            };
            let name = given.display();
            let (doing, done) = if self.dry_run {
                ("comparing", "compared")
            } else {
                ("applying", "applied")
            };
            let reply = progress::shown(
                &format!("{doing} {name}"),
                &format!("{done} {name}"),
                client.json(Method::POST, &["apply"], options),
            )
            .await?;
            if client.json {
                return Ok(pretty(&reply));
            }
            let changes = reply["changes"].as_array();
            let line = |change: &Json| plain(change["change"].as_str().unwrap_or_default()) + "\n";
            let lines: String = changes.into_iter().flatten().map(line).collect();
            if lines.is_empty() {
                return Ok("nothing to change\n".to_owned());
            }
            if self.dry_run {
                eprintln!("would change, without --dry-run:");
            }
            Ok(lines)
        })
    }
}

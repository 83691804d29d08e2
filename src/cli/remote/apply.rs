//! `lockgate apply`: makes what a gateway has declared what a manifest here says.
//!
//! The manifest is read on the caller's side: its `${env:…}` and `${file:…}` are the caller's.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use reqwest::Method;
use serde_json::Value as Json;

use super::{
    client::{Ask, Client, Connection, Failure, run},
    table::{plain, pretty},
};
use crate::{
    config::{Format, gateway::environment},
    manifest::objects,
};

/// `lockgate apply`
#[derive(Args)]
pub(crate) struct ApplyArgs {
    /// The manifest; - reads YAML or JSON from stdin
    #[arg(short = 'f', long = "file", value_name = "F")]
    file: PathBuf,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Remove what is stored and not in the manifest
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    to: Connection,
}

/// Sends the manifest and shows the difference.
pub(crate) fn apply(args: &ApplyArgs) -> ExitCode {
    run(&args.to, async |client: &Client| {
        let (file, text, format) = text_of(&args.file)?;
        let read = objects::parse(&file, &text, format, &environment())?;
        let flags = [("dry_run", args.dry_run), ("prune", args.prune)];
        let ask = Ask {
            query: flags.map(|(name, is)| (name, is.to_string())).to_vec(),
            body: Some(read.declared.json()),
            ..Ask::default()
        };
        let answer = client.json(Method::POST, &["apply"], ask).await?;
        if client.json {
            return Ok(pretty(&answer));
        }
        let changes = answer["changes"].as_array();
        let line = |change: &Json| plain(change["change"].as_str().unwrap_or_default()) + "\n";
        let lines: String = changes.into_iter().flatten().map(line).collect();
        if lines.is_empty() {
            return Ok("nothing to change\n".to_owned());
        }
        Ok(lines)
    })
}

/// How mistakes name a file, what is in it, and how that is written.
pub(super) fn text_of(path: &Path) -> Result<(String, String, Format), Failure> {
    let file = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        Failure::usage(
            &file,
            &format!("cannot be read: {error}"),
            "name a readable file",
        )
    };
    if file == "-" {
        let mut text = String::new();
        let read = std::io::stdin().lock().read_to_string(&mut text);
        read.map_err(unreadable)?;
        return Ok(("stdin".to_owned(), text, Format::Yaml));
    }
    let remedy = "name it .yaml, .yml, .toml or .json";
    let format = Format::of(path)
        .ok_or_else(|| Failure::usage(&file, "its ending names no format", remedy))?;
    let text = fs::read_to_string(path).map_err(unreadable)?;
    Ok((file, text, format))
}

//! Documents in files and on stdin.

use std::{io::Read, path::Path};

use serde_json::Value as Json;

use super::client::Error;
use crate::{
    base,
    config::{Format, gateway::environment},
    manifest::objects,
};

/// The document of an object, with the values of the caller's environment.
pub(super) fn document(file: &Path) -> Result<Json, Error> {
    let (file, text, format) = text_of(file)?;
    let document = objects::document(&file, &text, format, &environment())?;
    Ok(Json::Object(document))
}

/// The name of a file in mistakes, its text and its format.
pub(super) fn text_of(path: &Path) -> Result<(String, String, Format), Error> {
    let file = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        Error::usage(
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
        .ok_or_else(|| Error::usage(&file, "its ending names no format", remedy))?;
    let text = base::text(path, base::MANIFEST_MAX).map_err(unreadable)?;
    Ok((file, text, format))
}

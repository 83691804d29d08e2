//! Application of whole manifests: shows or stores the difference to the declared objects.

use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value as Json, json};
use tokio::task::{JoinError, spawn_blocking};

use super::{
    caller::Permission,
    declared::refresh,
    operation::{Call, Operation, OperationResult, post},
    request::{Parameter, body},
    response::ok,
    schema::{self, Schema, Shape, any_object},
};
use crate::{
    config::Format,
    database,
    declare::{Change, Declared, Prune},
    http::reply::Problem,
    manifest::objects,
};

/// Operation that applies a manifest.
pub(super) fn operations() -> Vec<Operation> {
    let summary = "Apply a manifest (operators)";
    vec![
        post("/apply", "apply", summary)
            .query(&[Parameter::Flag("prune"), Parameter::Flag("dry_run")])
            .takes(&MANIFEST)
            .gives(200, &APPLIED)
            .fails(&[400, 404, 408, 409, 413, 415, 422])
            .serve(Permission::Operator, apply),
    ]
}

async fn apply(call: Call) -> OperationResult {
    let (is_dry, prune) = (call.query.flag("dry_run")?, call.query.flag("prune")?);
    let prune = if prune { Prune::Remove } else { Prune::Keep };
    let format = format_of(&call.headers)?;
    let front = call.front;
    let body = body(call.body, front.config.http.max_body).await?;
    let parsed = spawn_blocking(move || parsed(&body, format)).await;
    let bug = |error: JoinError| database::Error::Bug(format!("a body is not parsed: {error}"));
    let wanted = parsed.map_err(bug)??;
    let store = front.snapshot.database()?;
    let changes = if is_dry {
        store.objects().plan(&wanted, prune).await
    } else {
        store
            .objects()
            .apply(&wanted, prune, &call.caller.author())
            .await
    };
    let changes = changes?;
    if !is_dry {
        refresh(&front).await;
    }
    let changes: Vec<Json> = changes.iter().map(change).collect();
    Ok(ok(&json!({"changes": changes, "dry_run": is_dry})))
}

/// Parses a manifest, which takes long if it is large.
fn parsed(body: &[u8], format: Format) -> Result<Declared, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body is not UTF-8"))?;
    let received = objects::parse_request("manifest", text, format);
    Ok(received.map_err(Problem::invalid)?.declared)
}

fn change(change: &Change) -> Json {
    json!({
        "kind": change.name.kind().as_str(), "tenant": change.name.owner(),
        "name": change.name.name(), "change": change.to_string(),
    })
}

/// Returns the format of a manifest by its content type.
fn format_of(headers: &HeaderMap) -> Result<Format, Problem> {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value.unwrap_or("").split(';').next().unwrap_or("").trim();
    match essence {
        "application/json" => Ok(Format::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Format::Yaml),
        "application/toml" => Ok(Format::Toml),
        _ => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json, application/yaml or application/toml",
        )),
    }
}

static MANIFEST: Schema = Schema {
    name: "Manifest",
    shape: Shape::Manifest,
};

static APPLIED: Schema = Schema {
    name: "Applied",
    shape: Shape::Json(|| {
        schema::object(&[
            ("changes", json!({"type": "array", "items": any_object()})),
            ("dry_run", json!({"type": "boolean"})),
        ])
    }),
};

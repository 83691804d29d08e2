//! Manifests through the administration API: shown what they would change, and applied.

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value as Json, json};

use super::{
    objects::{author, refresh, unread},
    query::Query,
    routes::{Admin, Shared},
};
use crate::http::{
    admission::body,
    reply::{Problem, answer},
};
use crate::{
    config::Format,
    declare::{Change, Prune},
    manifest::objects,
};

/// Applies a whole manifest: YAML, TOML or JSON by its content type.
pub(super) async fn apply(
    State(front): Shared,
    admin: Admin,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    admin.operator()?;
    let query = Query::parse(query.as_deref(), &["prune", "dry_run"])?;
    let (is_dry, prune) = (query.flag("dry_run")?, query.flag("prune")?);
    let prune = if prune { Prune::Remove } else { Prune::Keep };
    let format = format_of(&headers)?;
    let body = body::whole(body, front.config.http.max_body).await;
    let body = body.map_err(|failure| unread(&failure))?;
    let text = std::str::from_utf8(&body)
        .map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body is not UTF-8"))?;
    let received = objects::received("manifest", text, format);
    let wanted = received.map_err(Problem::invalid)?.declared;
    let store = front.live.store()?;
    let changes = if is_dry {
        store.plan(&wanted, prune).await
    } else {
        store.apply(&wanted, prune, &author(&admin)).await
    };
    let changes = changes?;
    if !is_dry {
        refresh(&front).await;
    }
    let changes: Vec<Json> = changes.iter().map(change).collect();
    Ok(answer(
        StatusCode::OK,
        &json!({"changes": changes, "dry_run": is_dry}),
    ))
}

fn change(change: &Change) -> Json {
    let what = change.to_string();
    json!({
        "kind": change.name.kind().as_str(), "tenant": change.name.owner(),
        "name": change.name.name(), "change": what,
    })
}

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

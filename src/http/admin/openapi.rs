//! `OpenAPI` 3.1 document of a list of operations.
//!
//! `docs/openapi.json` is a copy of it. Not here: the members of an object's `spec`, which the
//! schema of manifests describes.

use std::collections::BTreeMap;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};

use super::{
    operation::{Description, Operation},
    request::Parameter,
    schema::{Schema, Shape, integer, object, text},
};
use crate::http::reply;

/// Makes the document as text.
pub(super) fn document(operations: &[Operation]) -> String {
    let text = serde_json::to_string_pretty(&whole(operations)).unwrap_or_default();
    text + "\n"
}

fn whole(operations: &[Operation]) -> Json {
    let mut paths = Map::new();
    let mut schemas = Schemas::default();
    schemas.add(&PROBLEM);
    for operation in operations {
        let description = &operation.description;
        let path = paths
            .entry(format!("/api/v1{}", description.path))
            .or_insert_with(|| json!({}));
        path[description.method] = described(description);
        let bodies = [description.takes, description.gives.1];
        bodies
            .into_iter()
            .flatten()
            .for_each(|body| schemas.add(body));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lockgate administration",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"apiKey": {
                "type": "http", "scheme": "bearer",
                "description": "An API key with the scope admin: an operator's, or a tenant's.",
            }},
            "schemas": schemas.0,
        },
    })
}

/// Schemas by name, with those that they refer to.
#[derive(Default)]
struct Schemas(BTreeMap<&'static str, Json>);

impl Schemas {
    fn add(&mut self, schema: &'static Schema) {
        self.0.insert(schema.name, schema.json());
        if let Some(item) = schema.item() {
            self.add(item);
        }
    }
}

fn described(operation: &Description) -> Json {
    let mut responses = Map::new();
    let (status, body) = operation.gives;
    let success = success(body);
    if operation.method == "put" {
        responses.insert("201".to_owned(), success.clone());
    }
    responses.insert(status.to_string(), success);
    for status in operation.fails.iter().chain(ALWAYS) {
        let content = json!({reply::PROBLEM: {"schema": PROBLEM.reference()}});
        let text = StatusCode::from_u16(*status).ok();
        let text = text.and_then(|status| status.canonical_reason());
        let may_be_made = *status == 503 && operation.method != "get";
        let text = if may_be_made { Some(UNSURE) } else { text };
        let problem = json!({"description": text, "content": content});
        responses.insert(status.to_string(), problem);
    }
    let mut described = json!({
        "operationId": operation.id, "summary": operation.summary,
        "parameters": parameters(operation), "responses": responses,
    });
    if let Some(takes) = operation.takes {
        described["requestBody"] = json!({"required": true, "content": takes.content()});
    }
    described
}

/// Parameters of path, query and header.
fn parameters(operation: &Description) -> Vec<Json> {
    let in_path = operation.path.split(['{', '}']).skip(1).step_by(2);
    let in_path = in_path.map(|part| {
        let schema = path_part(operation.path, part);
        json!({"name": part, "in": "path", "required": true, "schema": schema})
    });
    let in_query = operation.query.iter();
    let in_query = in_query.map(
        |parameter| json!({"name": parameter.name(), "in": "query", "schema": query(parameter)}),
    );
    let mut parameters: Vec<Json> = in_path.chain(in_query).collect();
    if operation.is_conditional {
        let conditions = [("If-Match", "ETags, or *"), ("If-None-Match", "Only *")];
        parameters.extend(conditions.map(|(name, description)| {
            json!({"name": name, "in": "header", "description": description, "schema": text()})
        }));
    }
    parameters
}

/// Schema of a path segment; the schema of manifests has further rules for users and clients.
fn path_part(path: &str, part: &str) -> Json {
    let pattern = match part {
        "id" | "kid" => return text(),
        "name" if path.contains("/users/") => "^[a-z0-9][a-z0-9._@-]{0,253}$",
        "name" if path.contains("/clients/") => "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        _ => "^[a-z0-9][a-z0-9-]{0,62}$",
    };
    json!({"type": "string", "pattern": pattern})
}

fn query(parameter: &Parameter) -> Json {
    match parameter {
        Parameter::Text(_) => text(),
        Parameter::Flag(_) => json!({"type": "boolean", "default": false}),
        Parameter::Moment(_) => json!({"type": "string", "format": "date-time"}),
        Parameter::Mode => json!({"enum": ["drain", "now"], "default": "drain"}),
        Parameter::Limit => {
            json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 100})
        }
    }
}

fn success(body: Option<&Schema>) -> Json {
    let Some(body) = body else {
        return json!({"description": "Done"});
    };
    let mut success = json!({"description": "Done", "content": body.content()});
    if matches!(body.shape, Shape::Versioned(_)) {
        success["headers"] = json!({"ETag": {"schema": text()}});
    }
    success
}

/// What 503 of a change means.
const UNSURE: &str = "Service Unavailable; the change may have been made, unless detail says that nothing has changed";
/// Statuses of problems of every operation. 415 is of those without a body too: a request may name a content coding.
const ALWAYS: &[u16] = &[401, 403, 405, 406, 415, 429, 503];

static PROBLEM: Schema = Schema {
    name: "Problem",
    shape: Shape::Json(|| {
        let error = object(&[("key", text()), ("what", text()), ("remedy", text())]);
        json!({
            "type": "object", "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": text(), "title": text(), "status": integer(), "detail": text(),
                "errors": {"type": "array", "items": error},
            },
        })
    }),
};

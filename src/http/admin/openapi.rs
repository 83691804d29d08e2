//! The administration API as a document that tools read: `OpenAPI` 3.1.
//!
//! One table says what each operation takes and gives; `docs/openapi.json` is what it prints. Not
//! here: what an object's `spec` may hold, which the manifest's own schema says.

use axum::{body::Body, response::Response};
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Map, Value as Json, json};

use super::{bodies, issued_bodies};
use crate::http::reply::PROBLEM;

/// GET: the document.
pub(crate) async fn document() -> Response {
    let mut response = Response::new(Body::from(text()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    response
}

/// It as text, the same for one build.
pub(crate) fn text() -> String {
    let text = serde_json::to_string_pretty(&whole()).unwrap_or_default();
    text + "\n"
}

/// One operation.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// Its name for generated clients.
    pub(crate) id: &'static str,
    pub(super) summary: &'static str,
    /// Parameters of the query.
    pub(crate) query: &'static [&'static str],
    /// The schema of the body, by name.
    pub(crate) takes: Option<&'static str>,
    /// The status of success, and the schema of its body, by name.
    pub(super) gives: (&'static str, Option<&'static str>),
    /// Statuses of problems that only some operations have.
    pub(super) fails: &'static [&'static str],
}

/// One that reads.
pub(crate) const fn get(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation {
        method: "get",
        path,
        id,
        summary,
        query: &[],
        takes: None,
        gives: ("200", None),
        fails: &["404"],
    }
}

const PAGE: &[&str] = &["limit", "after"];

/// Every operation, in the order of the document.
#[expect(clippy::too_many_lines, reason = "one table")]
fn operations() -> Vec<Operation> {
    let of = |method, path, id, summary| Operation {
        method,
        ..get(path, id, summary)
    };
    let list = |path, id, summary, gives| Operation {
        query: PAGE,
        gives: ("200", Some(gives)),
        fails: &["400", "404"],
        ..get(path, id, summary)
    };
    let one = |path, id, summary| Operation {
        gives: ("200", Some("Object")),
        ..get(path, id, summary)
    };
    let put = |path, id, summary| Operation {
        takes: Some("Spec"),
        gives: ("200", Some("Object")),
        fails: CHANGE,
        ..of("put", path, id, summary)
    };
    let delete = |path, id, summary| Operation {
        gives: ("204", None),
        fails: CHANGE,
        ..of("delete", path, id, summary)
    };
    let make = |path, id, summary, takes| Operation {
        takes: Some(takes),
        gives: ("201", Some("MadeKey")),
        fails: CHANGE,
        ..of("post", path, id, summary)
    };
    let (tenant, server) = ("/tenants/{tenant}", "/tenants/{tenant}/servers/{name}");
    let (keys, key) = (
        "/tenants/{tenant}/api-keys",
        "/tenants/{tenant}/api-keys/{name}",
    );
    let (users, user) = ("/tenants/{tenant}/users", "/tenants/{tenant}/users/{name}");
    let (clients, client) = (
        "/tenants/{tenant}/clients",
        "/tenants/{tenant}/clients/{name}",
    );
    let (providers, provider) = (
        "/tenants/{tenant}/providers",
        "/tenants/{tenant}/providers/{name}",
    );
    let (operators, operator) = ("/operator-keys", "/operator-keys/{name}");
    let ending: &[&str] = &["mode"];
    vec![
        list(
            "/tenants",
            "listTenants",
            "Tenants that the caller sees",
            "Objects",
        ),
        one(tenant, "getTenant", "A tenant, less all that belongs to it"),
        put(tenant, "putTenant", "Make or replace a tenant (operators)"),
        delete(
            tenant,
            "deleteTenant",
            "Remove a tenant with all that belongs to it (operators)",
        ),
        list(
            "/tenants/{tenant}/servers",
            "listServers",
            "Servers of a tenant",
            "Objects",
        ),
        one(server, "getServer", "A server"),
        put(server, "putServer", "Make or replace a server (operators)"),
        delete(server, "deleteServer", "Remove a server (operators)"),
        list(users, "listUsers", "Users of a tenant", "Objects"),
        one(user, "getUser", "A user"),
        put(user, "putUser", "Make or replace a user"),
        delete(user, "deleteUser", "Remove a user with its tokens"),
        list(clients, "listClients", "Clients of a tenant", "Objects"),
        one(client, "getClient", "A client"),
        put(client, "putClient", "Make or replace a client"),
        delete(
            client,
            "deleteClient",
            "Remove a client with its tokens, also one that registered itself",
        ),
        list(
            providers,
            "listProviders",
            "Identity providers of a tenant",
            "Objects",
        ),
        one(provider, "getProvider", "An identity provider"),
        put(
            provider,
            "putProvider",
            "Make or replace an identity provider (operators)",
        ),
        delete(
            provider,
            "deleteProvider",
            "Remove an identity provider (operators)",
        ),
        list(keys, "listKeys", "API keys of a tenant", "Objects"),
        make(
            keys,
            "makeKey",
            "Make an API key; its text is in the answer only",
            "NewKey",
        ),
        one(key, "getKey", "An API key"),
        put(key, "putKey", "Make or replace an API key by its hash"),
        delete(key, "deleteKey", "Remove an API key"),
        Operation {
            gives: ("201", Some("MadeKey")),
            fails: &["404", "409"],
            ..of(
                "post",
                "/tenants/{tenant}/api-keys/{name}/rotate",
                "rotateKey",
                "Replace the text of an API key",
            )
        },
        list(
            operators,
            "listOperatorKeys",
            "API keys of operators",
            "Objects",
        ),
        make(
            operators,
            "makeOperatorKey",
            "Make an operator's API key",
            "NewOperatorKey",
        ),
        one(operator, "getOperatorKey", "An operator's API key"),
        delete(
            operator,
            "deleteOperatorKey",
            "Remove an operator's API key, not the last one that holds",
        ),
        Operation {
            query: &["prune", "dry_run"],
            takes: Some("Manifest"),
            gives: ("200", Some("Applied")),
            fails: &["400", "404", "408", "409", "413", "415", "422"],
            ..of(
                "post",
                "/apply",
                "apply",
                "Make what is declared what a manifest says (operators)",
            )
        },
        Operation {
            query: &["server", "limit", "after"],
            ..list(
                "/tenants/{tenant}/sessions",
                "listSessions",
                "Sessions of a tenant on this replica",
                "Sessions",
            )
        },
        Operation {
            query: ending,
            fails: &["400", "404"],
            ..delete(
                "/tenants/{tenant}/sessions/{id}",
                "endSession",
                "End a session: now, or when its calls have ended",
            )
        },
        Operation {
            gives: ("200", Some("Quotas")),
            ..get(
                "/tenants/{tenant}/quotas",
                "getQuotas",
                "What a tenant may use, and uses on this replica",
            )
        },
        Operation {
            gives: ("200", Some("Children")),
            ..get(
                "/tenants/{tenant}/servers/{name}/children",
                "listChildren",
                "Children of a server on this replica",
            )
        },
        Operation {
            gives: ("200", Some("LogLines")),
            ..get(
                "/tenants/{tenant}/servers/{name}/logs",
                "getLogs",
                "The last that its children wrote to stderr",
            )
        },
        Operation {
            query: ending,
            gives: ("202", Some("Restarted")),
            fails: &["400", "404"],
            ..of(
                "post",
                "/tenants/{tenant}/servers/{name}/restart",
                "restartServer",
                "Replace the children of a server: now, or when their calls have ended",
            )
        },
        Operation {
            query: &["tenant", "kind", "actor", "from", "until", "limit", "after"],
            ..list(
                "/audit",
                "listAudit",
                "The audit trail, newest first; application/x-ndjson gives all of it",
                "Records",
            )
        },
    ]
}

/// What can go wrong with a change.
const CHANGE: &[&str] = &["400", "404", "408", "409", "412", "413", "415", "422"];

fn whole() -> Json {
    let mut paths = Map::new();
    for operation in operations().into_iter().chain(issued_bodies::operations()) {
        let path = paths
            .entry(format!("/api/v1{}", operation.path))
            .or_insert_with(|| json!({}));
        path[operation.method] = described(&operation);
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
            "schemas": all_schemas(),
        },
    })
}

fn described(operation: &Operation) -> Json {
    let in_path = operation.path.split(['{', '}']).skip(1).step_by(2);
    let mut parameters: Vec<Json> = in_path
        .map(|part| {
            let schema = path_part(operation.path, part);
            json!({"name": part, "in": "path", "required": true, "schema": schema})
        })
        .collect();
    parameters.extend(
        operation
            .query
            .iter()
            .map(|name| json!({"name": name, "in": "query", "schema": parameter(name)})),
    );
    if operation.fails.contains(&"412") && operation.method != "post" {
        let conditions = [("If-Match", "An ETag, or *"), ("If-None-Match", "Only *")];
        parameters.extend(conditions.map(|(name, text)| {
            let schema = json!({"type": "string"});
            json!({"name": name, "in": "header", "description": text, "schema": schema})
        }));
    }
    let mut responses = Map::new();
    let success = success(operation);
    if operation.method == "put" {
        responses.insert("201".to_owned(), success.clone());
    }
    responses.insert(operation.gives.0.to_owned(), success);
    for status in operation
        .fails
        .iter()
        .chain(&["401", "403", "405", "406", "429", "503"])
    {
        let content = json!({PROBLEM: {"schema": reference("Problem")}});
        let text = http::StatusCode::from_bytes(status.as_bytes());
        let text = text.ok().and_then(|status| status.canonical_reason());
        responses.insert(
            (*status).to_owned(),
            json!({"description": text, "content": content}),
        );
    }
    let mut described = json!({
        "operationId": operation.id, "summary": operation.summary,
        "parameters": parameters, "responses": responses,
    });
    if let Some(takes) = operation.takes {
        let schema = json!({"schema": reference(takes)});
        let mut content = json!({"application/json": schema});
        if takes == "Manifest" {
            content["application/yaml"] = json!({"schema": {"type": "string"}});
            content["application/toml"] = json!({"schema": {"type": "string"}});
        }
        described["requestBody"] = json!({"required": true, "content": content});
    }
    described
}

/// What may stand in a path; of users and clients the manifest's schema says more.
fn path_part(path: &str, part: &str) -> Json {
    let pattern = match part {
        "id" | "kid" => return json!({"type": "string"}),
        "name" if path.contains("/users/") => "^[a-z0-9][a-z0-9._@-]{0,253}$",
        "name" if path.contains("/clients/") => "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        _ => "^[a-z0-9][a-z0-9-]{0,62}$",
    };
    json!({"type": "string", "pattern": pattern})
}

fn success(operation: &Operation) -> Json {
    let Some(name) = operation.gives.1 else {
        return json!({"description": "Done"});
    };
    let kind = if name == "LogLines" {
        "application/x-ndjson"
    } else {
        "application/json"
    };
    let mut success = json!({
        "description": "Done", "content": {kind: {"schema": reference(name)}},
    });
    if matches!(name, "Object" | "MadeKey") {
        let schema = json!({"type": "string"});
        success["headers"] = json!({"ETag": {"schema": schema}});
    }
    success
}

fn parameter(name: &str) -> Json {
    match name {
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
        "prune" | "dry_run" => json!({"type": "boolean", "default": false}),
        "mode" => json!({"enum": ["drain", "now"], "default": "drain"}),
        "from" | "until" => json!({"type": "string", "format": "date-time"}),
        _ => json!({"type": "string"}),
    }
}

pub(super) fn reference(name: &str) -> Json {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn all_schemas() -> Json {
    let mut all = bodies::schemas();
    for (name, schema) in issued_bodies::schemas() {
        all[name] = schema;
    }
    all
}

/// A part of a list, and where the next one begins.
pub(crate) fn page(item: &str) -> Json {
    let items = json!({"type": "array", "items": reference(item)});
    object(&[
        ("items", items),
        ("next", json!({"type": ["string", "null"]})),
    ])
}

/// An object that has all of these, and may come to have more.
pub(super) fn object(members: &[(&str, Json)]) -> Json {
    let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Json> = members
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({"type": "object", "required": names, "properties": properties})
}

#[cfg(test)]
mod tests {
    use super::super::openapi::*;

    #[test]
    fn the_checked_in_document_is_this_one() {
        let checked_in = include_str!("../../../docs/openapi.json");
        assert!(
            checked_in == text(),
            "run: lockgate openapi > docs/openapi.json"
        );
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let all = operations().into_iter();
        let all = all.chain(issued_bodies::operations());
        let mut ids: Vec<&str> = all.map(|one| one.id).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}

//! `lockgate openapi --markdown`: the reference of the administration API.
//!
//! The page is made from the `OpenAPI` document, so the two never differ.

use serde_json::{Map, Value as Json};

use crate::http::admin;

/// The page, the last part of `docs/administration.md`.
pub(crate) fn reference() -> String {
    let document: Json = serde_json::from_str(&admin::document()).unwrap_or_default();
    let mut page = String::new();
    for (path, methods) in members(&document["paths"]) {
        for (method, operation) in members(methods) {
            page += &described(path, method, operation);
        }
    }
    page += "### Bodies\n\n";
    for (name, schema) in members(&document["components"]["schemas"]) {
        page += &body(name, schema);
    }
    page.trim_end().to_owned() + "\n"
}

fn described(path: &str, method: &str, operation: &Json) -> String {
    let mut text = format!(
        "### `{} {path}`\n\n{}.\n\n",
        method.to_uppercase(),
        words(&operation["summary"])
    );
    let parameters = operation["parameters"].as_array();
    for parameter in parameters.into_iter().flatten() {
        if parameter["in"] == "path" {
            continue;
        }
        let (place, name) = (words(&parameter["in"]), words(&parameter["name"]));
        let described = words(&parameter["description"]);
        let described = if described.is_empty() {
            String::new()
        } else {
            format!(". {described}")
        };
        text += &format!(
            "- {place} `{name}`: {}{described}\n",
            kind(&parameter["schema"])
        );
    }
    for (media, content) in members(&operation["requestBody"]["content"]) {
        text += &format!("- takes `{media}`: {}\n", kind(&content["schema"]));
    }
    let mut refusals = Vec::new();
    for (status, response) in members(&operation["responses"]) {
        if !status.starts_with('2') {
            refusals.push(status.as_str());
            continue;
        }
        let contents = members(&response["content"]);
        let contents = contents.map(|(media, content)| {
            let kind = kind(&content["schema"]);
            format!("{kind} as `{media}`")
        });
        let contents: Vec<String> = contents.collect();
        let contents = if contents.is_empty() {
            "no body".to_owned()
        } else {
            contents.join(", or ")
        };
        text += &format!("- {status}: {contents}\n");
    }
    text + &format!("- {}: a problem\n\n", refusals.join(", "))
}

fn body(name: &str, schema: &Json) -> String {
    let mut text = format!("#### {name}\n\n");
    let described = words(&schema["description"]);
    if !described.is_empty() {
        text += &format!("{described}.\n\n");
    }
    if schema["properties"].is_null() {
        return text + &format!("{}\n\n", kind(schema));
    }
    let required: Vec<&Json> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (name, member) in members(&schema["properties"]) {
        let is_required = required.iter().any(|one| *one == name);
        let may = if is_required { "" } else { ", may be absent" };
        text += &format!("- `{name}`: {}{may}\n", kind(member));
    }
    text + "\n"
}

/// The values of a schema in a few words.
fn kind(schema: &Json) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<String> = choices
            .iter()
            .map(|one| format!("`{}`", words(one)))
            .collect();
        return choices.join(" or ");
    }
    let one = |kind: &Json| match (kind.as_str(), &schema["format"], &schema["items"]) {
        (Some("string"), Json::String(format), _) => format.replace('-', " "),
        (Some("array"), _, items) if !items.is_null() => format!("list of {}", self::kind(items)),
        (Some(kind), ..) => kind.to_owned(),
        _ => "anything".to_owned(),
    };
    match &schema["type"] {
        Json::Array(kinds) => kinds.iter().map(one).collect::<Vec<_>>().join(" or "),
        kind => one(kind),
    }
}

fn words(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

fn members(json: &Json) -> serde_json::map::Iter<'_> {
    static NONE: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
    json.as_object().unwrap_or(&NONE).iter()
}

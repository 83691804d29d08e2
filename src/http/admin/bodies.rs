//! What the bodies about declared and running things look like, for `openapi`.
//!
//! Not here: which operation takes and gives which.

use serde_json::{Value as Json, json};

use super::openapi::{object, page, reference};
use crate::declare::Kind;

/// Every such body by its name.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn schemas() -> Json {
    let text = || json!({"type": "string"});
    let whole = || json!({"type": "integer"});
    let number = || json!({"type": "number"});
    let maybe = || json!({"type": ["string", "null"]});
    let texts = || json!({"type": "array", "items": {"type": "string"}});
    let free = || json!({"type": "object", "additionalProperties": true});
    let own = [
        ("kind", json!({"enum": Kind::ALL.map(Kind::as_str)})),
        ("tenant", maybe()),
        ("name", text()),
        ("version", whole()),
        ("created", text()),
        ("updated", text()),
        ("spec", free()),
    ];
    let mut made = own.to_vec();
    made.push(("key", text()));
    let new_key = json!({
        "type": "object", "required": ["name", "subject", "servers"],
        "properties": {
            "name": text(), "subject": text(), "scopes": texts(), "servers": texts(),
            "expires": {"type": "string", "format": "date-time"},
        },
    });
    let new_operator = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": text(), "expires": {"type": "string", "format": "date-time"}},
    });
    let error = object(&[("key", text()), ("what", text()), ("remedy", text())]);
    json!({
        "Spec": free(),
        "Manifest": free(),
        "NewKey": new_key,
        "NewOperatorKey": new_operator,
        "Object": object(&own),
        "MadeKey": object(&made),
        "Objects": page("Object"),
        "Applied": object(&[
            ("changes", json!({"type": "array", "items": free()})),
            ("dry_run", json!({"type": "boolean"})),
        ]),
        "Session": object(&[
            ("id", text()), ("server", text()), ("transport", text()), ("issuer", maybe()),
            ("subject", maybe()), ("client", maybe()), ("age_seconds", number()),
        ]),
        "Sessions": page("Session"),
        "Child": object(&[
            ("number", whole()), ("pid", json!({"type": ["integer", "null"]})), ("state", text()),
            ("age_seconds", number()), ("restarts", whole()), ("calls", whole()),
            ("memory_bytes", whole()), ("cpu_seconds", number()),
        ]),
        "Children": object(&[("items", json!({"type": "array", "items": reference("Child")}))]),
        "LogLines": {"type": "string", "description": "One object with child and line for each line"},
        "Restarted": object(&[("children", whole())]),
        "Quotas": object(&[("tenant", free()), ("principal", free()), ("used", free())]),
        "Record": object(&[
            ("id", text()), ("at", text()), ("tenant", maybe()), ("kind", text()),
            ("actor", text()), ("target", text()), ("detail", free()),
        ]),
        "Records": page("Record"),
        "Problem": {
            "type": "object", "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": text(), "title": text(), "status": whole(), "detail": text(),
                "errors": {"type": "array", "items": error},
            },
        },
    })
}

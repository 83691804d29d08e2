//! The part of the administration API's document that is about what was issued.

use serde_json::{Value as Json, json};

use super::openapi::{Operation, get, object, page, reference};

/// What `admin_issued` answers.
pub(crate) fn operations() -> Vec<Operation> {
    let keys = "/tenants/{tenant}/signing-keys";
    vec![
        Operation {
            gives: ("200", Some("SigningKeys")),
            ..get(
                keys,
                "listSigningKeys",
                "Signing keys of a tenant, the newest first",
            )
        },
        Operation {
            method: "post",
            gives: ("201", Some("SigningKey")),
            fails: &["404", "409"],
            ..get(
                keys,
                "rotateSigningKey",
                "Publish the key that signs next, which then takes the place of the present one",
            )
        },
        Operation {
            method: "delete",
            gives: ("204", None),
            fails: &["404", "409"],
            ..get(
                "/tenants/{tenant}/signing-keys/{kid}",
                "removeSigningKey",
                "Remove a signing key: its tokens are worth nothing from now on",
            )
        },
        Operation {
            query: &["subject", "client", "limit", "after"],
            gives: ("200", Some("Grants")),
            fails: &["400", "404"],
            ..get(
                "/tenants/{tenant}/grants",
                "listGrants",
                "What people of a tenant allow clients, as long as it holds",
            )
        },
        Operation {
            method: "post",
            takes: Some("Revocation"),
            gives: ("204", None),
            fails: &["400", "404", "408", "409", "413", "415", "422"],
            ..get(
                "/tenants/{tenant}/revocations",
                "revoke",
                "End a grant, or all of a client or a person, with its tokens; consent is asked again",
            )
        },
    ]
}

/// The schemas that they name.
pub(super) fn schemas() -> Vec<(&'static str, Json)> {
    let text = || json!({"type": "string"});
    let moment = || json!({"type": "string", "format": "date-time"});
    let maybe = json!({"type": ["string", "null"], "format": "date-time"});
    let key = object(&[
        ("kid", text()),
        ("created", moment()),
        ("active", moment()),
        ("retired", maybe),
    ]);
    let keys = json!({"type": "array", "items": reference("SigningKey")});
    let grant = object(&[
        ("id", text()),
        ("subject", text()),
        ("client", text()),
        ("resource", text()),
        ("scope", text()),
        ("created", moment()),
        ("authenticated", moment()),
        ("expires", moment()),
    ]);
    let revocation = json!({
        "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false,
        "properties": {
            "grant": {"type": "string", "format": "uuid"}, "client": text(), "subject": text(),
        },
    });
    vec![
        ("SigningKey", key),
        ("SigningKeys", object(&[("items", keys)])),
        ("Grant", grant),
        ("Grants", page("Grant")),
        ("Revocation", revocation),
    ]
}

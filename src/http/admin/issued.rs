//! Signing keys, grants, revocations, registered clients and connections to upstreams of a tenant's authorization
//! server, and API keys that people made.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{
    caller::{Caller, Numbered, Permission},
    operation::{Call, Operation, OperationResult, delete, get, post},
    request::{Parameter, expected, json_body},
    response::{ok, page, page_of},
    schema::{self, Schema, Shape, nullable_moment, nullable_text, object, text, texts},
};
use crate::{
    base::{budget::LargeWork, hex, moment},
    config::Wrong,
    database::{
        self, ConnectionAt, ConnectionFilter, Expected, Record, StoredConnection,
        oauth::{
            ClientPage, GrantFilter, ListedClient, ListedGrant, ListedKey, ListedOwnKey, OwnKeyAt,
            OwnKeyPage, Revoked, Schedule,
        },
    },
    declare::{AuthMode, Document},
    http::{
        Front,
        reply::{Problem, answer},
    },
};

/// Operations on signing keys, grants, revocations and connections.
pub(super) fn operations() -> Vec<Operation> {
    let mut all = of_grants();
    all.extend(of_connections());
    all
}

fn of_grants() -> Vec<Operation> {
    let keys = "/tenants/{tenant}/signing-keys";
    vec![
        get(
            keys,
            "listSigningKeys",
            "Signing keys of a tenant, the newest first",
        )
        .gives(200, &SIGNING_KEYS)
        .serve(Permission::Tenant, signing_keys),
        post(
            keys,
            "rotateSigningKey",
            "Publish the next signing key, which later replaces the current one",
        )
        .gives(201, &SIGNING_KEY)
        .fails(&[404, 409])
        .serve(Permission::Issuer, rotate_signing_key),
        delete(
            "/tenants/{tenant}/signing-keys/{kid}",
            "removeSigningKey",
            "Remove a signing key; the tokens that it signed become invalid",
        )
        .fails(&[404, 409])
        .serve(Permission::Issuer, remove_signing_key),
        get(
            "/tenants/{tenant}/grants",
            "listGrants",
            "Active grants of a tenant's people to clients",
        )
        .query(&[
            Parameter::Text("subject"),
            Parameter::Text("client"),
            Parameter::Limit,
            Parameter::Text("after"),
        ])
        .gives(200, &GRANTS)
        .fails(&[400, 404])
        .serve(Permission::Tenant, grants),
        get(
            "/tenants/{tenant}/registrations",
            "listRegistrations",
            "Clients of a tenant that registered themselves",
        )
        .query(&[Parameter::Limit, Parameter::Text("after")])
        .gives(200, &REGISTRATIONS)
        .fails(&[400, 404])
        .serve(Permission::Tenant, registrations),
        post(
            "/tenants/{tenant}/revocations",
            "revoke",
            "Revoke a grant, or all grants of a client or a person, with their tokens; consent is requested again; 404 if \
             there is and was nothing to revoke",
        )
        .takes(&REVOCATION)
        .fails(&[400, 404, 408, 409, 413, 422])
        .serve(Permission::Issuer, revoke),
    ]
}

fn of_connections() -> Vec<Operation> {
    vec![
        get(
            "/tenants/{tenant}/connections",
            "listConnections",
            "Connections of a tenant's people to upstreams, without their tokens",
        )
        .query(&[
            Parameter::Text("subject"),
            Parameter::Text("upstream"),
            Parameter::Limit,
            Parameter::Text("after"),
        ])
        .gives(200, &CONNECTIONS)
        .fails(&[400, 404])
        .serve(Permission::Tenant, connections),
        delete(
            "/tenants/{tenant}/connections/{upstream}",
            "deleteConnection",
            "End the connection of a person to an upstream, here and there; children with its token end after their \
             calls",
        )
        .query(&[Parameter::Text("subject")])
        .fails(&[400, 404, 422])
        .serve(Permission::Tenant, disconnect),
    ]
}

/// Lists the signing keys of a tenant, newest first: next, current and previous.
async fn signing_keys(call: Call) -> OperationResult {
    let store = call.caller.store(&call.front).await?;
    let keys = store.signing_keys().list(call.path.tenant()).await?;
    let items: Vec<Json> = keys.iter().map(signing_key).collect();
    Ok(ok(&json!({"items": items})))
}

fn signing_key(key: &ListedKey) -> Json {
    json!({
        "kid": key.kid, "created": moment(key.created_ms), "active": moment(key.active_ms),
        "retired": key.retired_ms.map(moment),
    })
}

/// Creates the next signing key.
async fn rotate_signing_key(call: Call) -> OperationResult {
    let front = &call.front;
    let schedule = Schedule::of(&front.config.oauth);
    let tenant = call.path.tenant();
    call.caller.count(Numbered::SigningKey, tenant)?;
    let (store, author) = (call.caller.store(front).await?, call.caller.author());
    let made = store.signing_keys().rotate(tenant, schedule, &author).await;
    let made = made.map_err(|failure| match failure {
        database::Error::Conflict => {
            let text = "there is a key that waits to take its turn";
            Problem::new(StatusCode::CONFLICT, text)
        }
        other => other.into(),
    })?;
    refresh_issued(front).await?;
    Ok(answer(StatusCode::CREATED, &signing_key(&made)))
}

/// Removes a signing key; the tokens that it signed become invalid.
async fn remove_signing_key(call: Call) -> OperationResult {
    let (tenant, kid) = (call.path.tenant(), call.path.get("kid").unwrap_or_default());
    call.caller.count(Numbered::SigningKey, tenant)?;
    let (store, author) = (call.caller.store(&call.front).await?, call.caller.author());
    if !store.signing_keys().remove(tenant, kid, &author).await? {
        return Err(Problem::not_found());
    }
    refresh_issued(&call.front).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lists the grants of a tenant that have not ended.
async fn grants(call: Call) -> OperationResult {
    let query = &call.query;
    let after = query.get("after").map(Uuid::try_parse).transpose();
    let filter = GrantFilter {
        subject: query.get("subject"),
        client: query.get("client"),
        after: after.map_err(|_| {
            let text = "the parameter after: no such cursor";
            Problem::new(StatusCode::BAD_REQUEST, text)
        })?,
    };
    let limit = query.limit()?;
    let store = call.caller.store(&call.front).await?;
    // One grant more than the limit shows that there is another page.
    let mut found = store
        .grants()
        .list(call.path.tenant(), filter, limit + 1)
        .await?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more);
    let next = next.map(|last| last.grant.id.to_string());
    Ok(page(found.iter().map(grant).collect(), next))
}

fn grant(seen: &ListedGrant) -> Json {
    let grant = &seen.grant;
    json!({
        "id": grant.id.to_string(), "subject": grant.subject, "client": grant.client_id,
        "resource": grant.resource, "scope": grant.scope, "created": moment(seen.created_ms),
        "authenticated": moment(grant.auth_ms), "used": moment(seen.used_ms),
        "expires": moment(grant.expires_ms),
    })
}

/// Lists the clients of a tenant that registered themselves and have not expired.
async fn registrations(call: Call) -> OperationResult {
    let (limit, after) = (call.query.limit()?, call.query.get("after"));
    let store = call.caller.store(&call.front).await?;
    let clients = store.clients();
    let found = clients.page(call.path.tenant(), after.unwrap_or_default(), limit);
    let found = found.await?;
    let turn = LargeWork::turn(call.caller.owner(), found.bytes).await;
    Ok(turn.run(|| registered(&found)))
}

/// A response with a page of registered clients. The metadata of one at a time is a tree.
fn registered(found: &ClientPage) -> Response {
    let next = found.clients.last().filter(|_| found.is_more);
    let next = next.map(|last| last.client.client_id.clone());
    let items = found.clients.iter();
    page_of(items.map(|one| registration(one).to_string()), next)
}

fn registration(listed: &ListedClient) -> Json {
    let client = &listed.client;
    let metadata: Json = serde_json::from_str(&client.metadata).unwrap_or_default();
    json!({
        "id": client.client_id, "title": metadata["client_name"],
        "redirect_uris": metadata["redirect_uris"], "created": moment(client.created_ms),
        "used": listed.used_ms.map(moment), "expires": moment(client.expires_ms),
    })
}

/// Removes a registered client with its grants.
pub(super) async fn remove_client(call: Call) -> OperationResult {
    // A registered client has no version, so no expected version matches.
    if !matches!(expected(&call.headers)?, None | Some(Expected::Present)) {
        return Err(Problem::of(database::Error::Conflict, true));
    }
    let (tenant, client) = (call.path.tenant(), call.path.name());
    call.caller.count(Numbered::Other, tenant)?;
    let store = call.caller.store(&call.front).await?;
    let registered = store.clients().get(tenant, client).await?;
    registered.ok_or_else(Problem::not_found)?;
    let target = format!("client {tenant}/{client}");
    let record = record(&call.caller, tenant, "client.removed", &target);
    store.audit().append(&[record]).await?;
    store.clients().remove(tenant, client).await?;
    refresh_issued(&call.front).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A page of API keys of a tenant that people made, each as its name and JSON. One at a time is a tree.
pub(super) fn own_keys(tenant: &str, found: &OwnKeyPage) -> Vec<(String, String)> {
    let keys = found.keys.iter();
    keys.map(|listed| (listed.key.name.clone(), own_key(tenant, listed).to_string()))
        .collect()
}

/// Shows an API key that a person made, in the form of a declared one.
fn own_key(tenant: &str, listed: &ListedOwnKey) -> Json {
    let key = &listed.key;
    let servers = key.servers.names();
    let servers = servers.map_or(json!(["*"]), |names| json!(names));
    let mut spec = json!({
        "label": listed.label, "subject": key.subject, "servers": servers, "scopes": &*key.scopes,
        "expires": moment(key.expires_ms), "hash": format!("sha256:{}", hex(&key.hash)),
    });
    if let Some(used_ms) = listed.used_ms {
        spec["used"] = moment(used_ms).into();
    }
    json!({
        "kind": "api_key", "tenant": tenant, "name": key.name, "version": listed.version,
        "created": moment(listed.created_ms), "updated": moment(key.since_ms), "spec": spec,
    })
}

/// Shows the API key in the path, which a person made.
pub(super) async fn show_own_key(call: Call) -> OperationResult {
    let (tenant, name) = (call.path.tenant(), call.path.name());
    let store = call.caller.store(&call.front).await?;
    let keys = store.own_keys();
    let found = keys.get(at(tenant, name)).await?;
    let listed = found.ok_or_else(|| no_own_key(tenant, name))?;
    Ok(ok(&own_key(tenant, &listed)))
}

/// Removes the API key in the path, which a person made.
pub(super) async fn remove_own_key(call: Call) -> OperationResult {
    // Its version counts values: no expected version matches.
    if !matches!(expected(&call.headers)?, None | Some(Expected::Present)) {
        return Err(Problem::of(database::Error::Conflict, true));
    }
    let (tenant, name) = (call.path.tenant(), call.path.name());
    call.caller.count(Numbered::Other, tenant)?;
    let store = call.caller.store(&call.front).await?;
    let keys = store.own_keys();
    if !keys.remove(at(tenant, name), &call.caller.author()).await? {
        return Err(no_own_key(tenant, name));
    }
    refresh_issued(&call.front).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn at<'k>(tenant: &'k str, name: &'k str) -> OwnKeyAt<'k> {
    OwnKeyAt {
        tenant,
        name,
        subject: None,
    }
}

fn no_own_key(tenant: &str, name: &str) -> Problem {
    Problem::no_such("api key", &format!("{tenant}/{name}"))
}

/// Ends a grant, or all grants of a client or a subject.
async fn revoke(call: Call) -> OperationResult {
    let body = json_body(&call.headers, call.body, MAX).await?;
    let what = revoked(&call.caller.parsed(body).await?)?;
    let (kind, name) = match &what {
        Revoked::Grant(id) | Revoked::Consent(id) | Revoked::Access(id) => {
            ("grant", id.to_string())
        }
        Revoked::Client(client) => ("client", client.clone()),
        Revoked::Subject(subject) => ("subject", subject.clone()),
    };
    let tenant = call.path.tenant();
    call.caller.count(Numbered::Other, tenant)?;
    let target = format!("{kind} {tenant}/{name}");
    let record = record(&call.caller, tenant, "grants.revoked", &target);
    let store = call.caller.store(&call.front).await?;
    // The record is written before the grants end.
    store.audit().append(&[record]).await?;
    let is_ended = store.revocations().revoke(tenant, &what).await?;
    refresh_issued(&call.front).await?;
    // One that was answered 503 may hold, and is asked for again.
    if !is_ended && !store.revocations().was_made(tenant, &what).await? {
        // A name may be misspelt, and the person or the client that was meant goes on.
        let kind = match kind {
            "client" => "grant to client",
            "subject" => "grant, log-in or key of subject",
            grant => grant,
        };
        return Err(Problem::no_such(kind, &format!("{tenant}/{name}")));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lists the connections of a tenant's people.
async fn connections(call: Call) -> OperationResult {
    let (limit, query, tenant) = (call.query.limit()?, &call.query, call.path.tenant());
    // An upstream has no slash in its name.
    let after = query.get("after").unwrap_or_default();
    let filter = ConnectionFilter {
        upstream: query.get("upstream"),
        holder: query.get("subject"),
        after: after.split_once('/').unwrap_or_default(),
    };
    let store = call.caller.store(&call.front).await?;
    let now_ms = call.front.snapshot.clock().now_ms();
    // One connection more than the limit shows that there is another page.
    let mut found = store.connections().list(tenant, filter, limit + 1).await?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more);
    let next = next.map(|last| format!("{}/{}", last.upstream, last.holder));
    let found_tenant = call.caller.snapshot.catalog.tenants.get(tenant);
    let upstreams = found_tenant.and_then(|tenant| match &tenant.auth {
        AuthMode::Builtin(builtin) => Some(&builtin.upstreams),
        _ => None,
    });
    let shown = |stored: &StoredConnection| {
        let upstream = upstreams.and_then(|all| all.get(&stored.upstream));
        let authority = upstream.map(|upstream| upstream.authority());
        json!({
            "upstream": stored.upstream, "subject": stored.holder,
            "state": state(stored, authority.as_ref(), now_ms), "connected": moment(stored.connected_ms),
            "refreshed": moment(stored.updated_ms), "expires": stored.expires_ms.map(moment),
        })
    };
    Ok(page(found.iter().map(shown).collect(), next))
}

/// What a connection is worth to an upstream of this authority.
fn state(stored: &StoredConnection, authority: Option<&String>, now_ms: i64) -> &'static str {
    let [connected, expired, obsolete] = CONNECTION_STATES;
    if authority.is_none() || stored.authority.as_ref() != authority {
        return obsolete;
    }
    let is_over = stored.expires_ms.is_some_and(|at_ms| at_ms <= now_ms);
    if is_over && !stored.is_refreshable {
        return expired;
    }
    connected
}

/// Ends the connection of a person.
async fn disconnect(call: Call) -> OperationResult {
    let Some(holder) = call.query.get("subject") else {
        let wrong = Wrong::new("is missing", "name the person whose connection it is");
        return Err(Problem::invalid(vec![wrong.at("query", "subject")]));
    };
    let of = ConnectionAt {
        tenant: call.path.tenant(),
        upstream: call.path.get("upstream").unwrap_or_default(),
        holder,
    };
    call.caller.count(Numbered::Other, of.tenant)?;
    let author = call.caller.author();
    let name = format!("{}/{} of {holder}", of.tenant, of.upstream);
    let store = call.caller.store(&call.front).await?;
    let upstreams = &call.front.upstreams;
    let ended = upstreams.disconnect(store.connections(), of, &author);
    let left = ended.await?;
    // Others have its turn while the upstream is asked.
    drop(store);
    let left = left.ok_or_else(|| Problem::no_such("connection", &name))?;
    upstreams.revoke_left(left).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn record(caller: &Caller, tenant: &str, kind: &str, target: &str) -> Record {
    let actor = &caller.administrator.actor;
    Record::new(Some(tenant), kind, actor, target, json!({}))
}

/// Reads a revocation: exactly one of `grant`, `client` and `subject`.
fn revoked(document: &Document) -> Result<Revoked, Problem> {
    let wrong = |key: &str, what: &str, remedy: &str| {
        Problem::invalid(vec![Wrong::new(what, remedy).at("body", key)])
    };
    let remedy = "write one of grant, client and subject";
    let mut members = document.iter();
    let (Some((name, value)), None) = (members.next(), members.next()) else {
        return Err(wrong("", "does not name one thing", remedy));
    };
    let text = value.as_str().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| wrong(name, "is no text", "write a text"))?;
    if text.contains('\0') {
        // PostgreSQL cannot store such texts.
        return Err(wrong(name, "has a NUL in it", "write it without"));
    }
    match name.as_str() {
        "grant" => Uuid::try_parse(text)
            .map(Revoked::Consent)
            .map_err(|_| wrong(name, "is no id", "write an id of GET …/grants")),
        "client" => Ok(Revoked::Client(text.to_owned())),
        "subject" => Ok(Revoked::Subject(text.to_owned())),
        _ => Err(wrong(name, "is not known", remedy)),
    }
}

/// Refreshes this replica before the response; the other replicas follow on their own.
///
/// # Errors
///
/// Those of the database: what was ended is ended in it, and holds here once it is read again.
async fn refresh_issued(front: &Front) -> Result<(), Problem> {
    Ok(front.snapshot.refresh_issued().await?)
}

/// Largest body of a revocation in bytes: it holds one name.
const MAX: usize = 16 << 10;

static SIGNING_KEY: Schema = Schema {
    name: "SigningKey",
    shape: Shape::Json(|| {
        object(&[
            ("kid", text()),
            ("created", schema::moment()),
            ("active", schema::moment()),
            ("retired", nullable_moment()),
        ])
    }),
};

static SIGNING_KEYS: Schema = Schema {
    name: "SigningKeys",
    shape: Shape::List(&SIGNING_KEY),
};

static GRANT: Schema = Schema {
    name: "Grant",
    shape: Shape::Json(|| {
        object(&[
            ("id", text()),
            ("subject", text()),
            ("client", text()),
            ("resource", text()),
            ("scope", text()),
            ("created", schema::moment()),
            ("authenticated", schema::moment()),
            ("used", schema::moment()),
            ("expires", schema::moment()),
        ])
    }),
};

static GRANTS: Schema = Schema {
    name: "Grants",
    shape: Shape::Page(&GRANT),
};

static REGISTRATION: Schema = Schema {
    name: "Registration",
    shape: Shape::Json(|| {
        object(&[
            ("id", text()),
            ("title", nullable_text()),
            ("redirect_uris", texts()),
            ("created", schema::moment()),
            ("used", nullable_moment()),
            ("expires", schema::moment()),
        ])
    }),
};

static REGISTRATIONS: Schema = Schema {
    name: "Registrations",
    shape: Shape::Page(&REGISTRATION),
};

/// A usable connection, one whose access token has expired for good, and one to an upstream that has been declared
/// otherwise since.
const CONNECTION_STATES: [&str; 3] = ["connected", "expired", "obsolete"];

static CONNECTION: Schema = Schema {
    name: "Connection",
    shape: Shape::Json(|| {
        object(&[
            ("upstream", text()),
            ("subject", text()),
            (
                "state",
                json!({"type": "string", "enum": CONNECTION_STATES}),
            ),
            ("connected", schema::moment()),
            ("refreshed", schema::moment()),
            ("expires", nullable_moment()),
        ])
    }),
};

static CONNECTIONS: Schema = Schema {
    name: "Connections",
    shape: Shape::Page(&CONNECTION),
};

static REVOCATION: Schema = Schema {
    name: "Revocation",
    shape: Shape::Json(|| {
        json!({
            "type": "object", "minProperties": 1, "maxProperties": 1,
            "additionalProperties": false,
            "properties": {
                "grant": {"type": "string", "format": "uuid"}, "client": text(), "subject": text(),
            },
        })
    }),
};

#[cfg(test)]
mod tests {
    use super::super::{issued::*, request::read_document};

    #[test]
    fn revocations_name_exactly_one_object() {
        let id = "0190163d-8694-739b-aea5-966c26f8ad91";
        let of = |body: &str| revoked(&read_document(body.as_bytes()).ok()?).ok();
        let grant = Revoked::Consent(Uuid::try_parse(id).unwrap());
        assert_eq!(of(&format!("{{\"grant\": \"{id}\"}}")), Some(grant));
        let client = Revoked::Client("c_x".to_owned());
        assert_eq!(of("{\"client\": \"c_x\"}"), Some(client));
        let subject = Revoked::Subject("ada".to_owned());
        assert_eq!(of("{\"subject\": \"ada\"}"), Some(subject));
        for wrong in [
            "",
            "{}",
            "[]",
            "{\"grant\": \"x\"}",
            "{\"subject\": \"\"}",
            "{\"subject\": \"a\\u0000b\"}",
            "{\"subject\": null}",
            "{\"subjects\": \"ada\"}",
            "{\"subject\": \"ada\", \"client\": \"c\"}",
            "{\"subject\": \"ada\", \"subject\": \"eve\"}",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}

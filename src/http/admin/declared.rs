//! Declared objects: tenants, servers, users, clients, identity providers and upstreams, and whole manifests.
//!
//! An object's `ETag` is the number of the change that wrote it; `If-Match` and `If-None-Match`
//! make a change conditional (RFC 9110, section 13.1). Secrets are never shown: a secret reads as
//! null, and a null that is written keeps it. Not here: API keys.

use axum::response::{IntoResponse, Response};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_TYPE, ETAG},
};
use serde_json::{Value as Json, json};
use tokio::task::{JoinError, spawn_blocking};

use super::{
    caller::{Numbered, Permission},
    issued,
    operation::{self, Call, Operation, OperationResult},
    request::{PAGE, Parameter, Path, body, check_size, expected, spec},
    response::{ok, page, page_of},
    schema::{Schema, Shape, any_object, integer, nullable_text, object, text},
};
use crate::{
    auth::REGISTERED,
    base::{budget::LargeWork, moment},
    config::Format,
    database::{
        self, Expected,
        oauth::OwnKeyPage,
        objects::{Listed, Stored},
    },
    declare::{Change, ChangeKind, Declared, Document, Kind, OWN_KEY, Object, ObjectName, Prune},
    http::{
        Front,
        reply::{Problem, answer},
    },
    manifest::objects,
};

/// Operations on tenants, servers, users, clients, identity providers, upstreams and manifests.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation::get("/tenants", "listTenants", "Tenants that the caller sees")
            .query(PAGE)
            .gives(200, &OBJECTS)
            .fails(&[400, 404])
            .serve(Permission::Administrator, list_tenants),
        TENANTS.read(
            "getTenant",
            "A tenant, without the objects that belong to it",
        ),
        TENANTS.put("putTenant", "Create or replace a tenant (operators)"),
        TENANTS.delete(
            "deleteTenant",
            "Remove a tenant with all its objects (operators)",
        ),
        SERVERS.list("listServers", "Servers of a tenant"),
        SERVERS.read("getServer", "A server"),
        SERVERS.put("putServer", "Create or replace a server (operators)"),
        SERVERS.delete("deleteServer", "Remove a server (operators)"),
        USERS.list("listUsers", "Users of a tenant"),
        USERS.read("getUser", "A user"),
        USERS.put("putUser", "Create or replace a user"),
        USERS.delete("deleteUser", "Remove a user with its tokens"),
        CLIENTS.list("listClients", "Clients of a tenant"),
        CLIENTS.read("getClient", "A client"),
        CLIENTS.put("putClient", "Create or replace a client"),
        CLIENTS.delete(
            "deleteClient",
            "Remove a client with its tokens, also one that registered itself",
        ),
        PROVIDERS.list("listProviders", "Identity providers of a tenant"),
        PROVIDERS.read("getProvider", "An identity provider"),
        PROVIDERS.put(
            "putProvider",
            "Create or replace an identity provider (operators)",
        ),
        PROVIDERS.delete("deleteProvider", "Remove an identity provider (operators)"),
        UPSTREAMS.list("listUpstreams", "Upstreams of a tenant"),
        UPSTREAMS.read("getUpstream", "An upstream"),
        UPSTREAMS.put("putUpstream", "Create or replace an upstream (operators)"),
        UPSTREAMS.delete(
            "deleteUpstream",
            "Remove an upstream with the connections to it (operators)",
        ),
        operation::post("/apply", "apply", "Apply a manifest (operators)")
            .query(&[Parameter::Flag("prune"), Parameter::Flag("dry_run")])
            .takes(&MANIFEST)
            .gives(200, &APPLIED)
            .fails(&[400, 404, 408, 409, 413, 422])
            .serve(Permission::Operator, apply),
    ]
}

/// Objects of one kind at one path, and the permissions for reading and changing them.
pub(super) struct Collection {
    pub(super) kind: Kind,
    pub(super) path: &'static str,
    /// Path of a single object.
    pub(super) item: &'static str,
    pub(super) read_by: Permission,
    pub(super) changed_by: Permission,
}

/// Only operators declare a tenant: its authentication and its quotas.
static TENANTS: Collection = Collection {
    kind: Kind::Tenant,
    path: "/tenants",
    item: "/tenants/{tenant}",
    read_by: Permission::Tenant,
    changed_by: Permission::Operator,
};

/// Only operators declare a server: the gateway starts its command.
static SERVERS: Collection = Collection {
    kind: Kind::Server,
    path: "/tenants/{tenant}/servers",
    item: "/tenants/{tenant}/servers/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::OperatorOfTenant,
};

static USERS: Collection = Collection {
    kind: Kind::User,
    path: "/tenants/{tenant}/users",
    item: "/tenants/{tenant}/users/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::Tenant,
};

/// Only operators declare a client whose issuer the gateway asks for its keys ([`is_asked`]).
static CLIENTS: Collection = Collection {
    kind: Kind::Client,
    path: "/tenants/{tenant}/clients",
    item: "/tenants/{tenant}/clients/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::Tenant,
};

/// Only operators declare an identity provider: the gateway connects to its addresses.
static PROVIDERS: Collection = Collection {
    kind: Kind::Provider,
    path: "/tenants/{tenant}/providers",
    item: "/tenants/{tenant}/providers/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::OperatorOfTenant,
};

/// Only operators declare an upstream: the gateway connects to its addresses.
static UPSTREAMS: Collection = Collection {
    kind: Kind::Upstream,
    path: "/tenants/{tenant}/upstreams",
    item: "/tenants/{tenant}/upstreams/{name}",
    read_by: Permission::Tenant,
    changed_by: Permission::OperatorOfTenant,
};

impl Collection {
    /// Declares the operation that lists the objects.
    pub(super) fn list(&self, id: &'static str, summary: &'static str) -> Operation {
        let kind = self.kind;
        operation::get(self.path, id, summary)
            .query(PAGE)
            .gives(200, &OBJECTS)
            .fails(&[400, 404])
            .serve(self.read_by, move |call| list(call, kind))
    }

    /// Declares the operation that reads an object.
    pub(super) fn read(&self, id: &'static str, summary: &'static str) -> Operation {
        let kind = self.kind;
        operation::get(self.item, id, summary)
            .gives(200, &OBJECT)
            .serve(self.read_by, move |call| read(call, kind))
    }

    /// Declares the operation that creates or replaces an object.
    pub(super) fn put(&self, id: &'static str, summary: &'static str) -> Operation {
        let kind = self.kind;
        operation::put(self.item, id, summary)
            .conditional()
            .takes(&SPEC)
            .gives(200, &OBJECT)
            .fails(CHANGE)
            .serve(self.changed_by, move |call| put(call, kind))
    }

    /// Declares the operation that removes an object.
    pub(super) fn delete(&self, id: &'static str, summary: &'static str) -> Operation {
        let kind = self.kind;
        operation::delete(self.item, id, summary)
            .conditional()
            .fails(CHANGE)
            .serve(self.changed_by, move |call| delete(call, kind))
    }
}

/// Lists the tenants that the caller sees.
async fn list_tenants(call: Call) -> OperationResult {
    let Some(own) = call.caller.administrator.tenants() else {
        return list(call, Kind::Tenant).await;
    };
    let store = call.caller.store(&call.front).await?;
    let mut found = Vec::new();
    for own in own {
        found.extend(store.objects().get(&ObjectName::tenant(own)).await?);
    }
    Ok(page(found.iter().map(shown).collect(), None))
}

/// Lists the objects of a kind; those of the tenant in the path, if there is one.
async fn list(call: Call, kind: Kind) -> OperationResult {
    let (tenant, after, limit) = (
        call.path.get("tenant"),
        call.query.get("after"),
        call.query.limit()?,
    );
    let store = call.caller.store(&call.front).await?;
    let found = store.objects().page(kind, tenant, after, limit).await?;
    let own = match (kind, tenant) {
        (Kind::ApiKey, Some(tenant)) => {
            let keys = store.own_keys();
            keys.page(tenant, after.unwrap_or_default(), limit).await?
        }
        _ => OwnKeyPage::default(),
    };
    let bytes = usize::try_from(found.bytes).unwrap_or(usize::MAX);
    let bytes = bytes.saturating_add(own.bytes);
    let turn = LargeWork::turn(call.caller.owner(), bytes).await;
    Ok(turn.run(|| {
        let keys = issued::own_keys(tenant.unwrap_or_default(), &own);
        let (items, next) = listed(found, (keys, own.is_more), limit);
        page_of(items.into_iter().map(|(_, item)| item), next)
    }))
}

/// The items of a page of declared objects, each as its name and JSON, and the cursor of the next page. API keys that people
/// made are among them, as far as both reach; with them comes whether there are others behind them.
fn listed(
    found: Listed,
    (own, is_more_own): (Vec<(String, String)>, bool),
    limit: usize,
) -> (Vec<(String, String)>, Option<String>) {
    let named = found.objects.into_iter();
    let named = named.map(|stored| (stored.name.name().to_owned(), shown(&stored).to_string()));
    let mut items: Vec<(String, String)> = named.collect();
    let ends = [
        items.last().filter(|_| found.is_more),
        own.last().filter(|_| is_more_own),
    ];
    let ends = ends.into_iter().flatten();
    let end = ends.map(|(name, _)| name.clone()).min();
    let mut is_more = end.is_some();
    items.extend(own);
    items.retain(|(name, _)| end.as_ref().is_none_or(|end| name <= end));
    items.sort_by(|(one, _), (other, _)| one.cmp(other));
    is_more |= items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| is_more);
    let next = last.map(|(name, _)| name.clone());
    (items, next)
}

async fn read(call: Call, kind: Kind) -> OperationResult {
    if is_own_key(&call.path, kind) {
        return issued::show_own_key(call).await;
    }
    let store = call.caller.store(&call.front).await?;
    let name = object_name(&call.path, kind);
    let found = store.objects().get(&name).await?;
    let stored = found.ok_or_else(|| missing(&name))?;
    Ok(tagged(StatusCode::OK, &stored, &shown(&stored)))
}

async fn put(call: Call, kind: Kind) -> OperationResult {
    let (front, caller) = (&call.front, &call.caller);
    let name = object_name(&call.path, kind);
    let expected = expected(&call.headers)?;
    let body = spec(front, &caller.administrator, &call.headers, call.body).await?;
    let store = caller.store_to_change(front, name.owner()).await?;
    let document = caller.parsed(body).await?;
    check_size(&caller.administrator, &document)?;
    if kind == Kind::Client && is_asked(&document) && !caller.administrator.is_operator() {
        let text = "this is for operators: the gateway asks the issuer of a workload for its keys, unless jwks has them";
        return Err(Problem::new(StatusCode::FORBIDDEN, text));
    }
    let (budget, tenant) = (budget(kind, &document), call.path.tenant());
    // It is compared with a hash, which costs as much as a log-in.
    let has_password = document.contains_key("password");
    caller.count(budget, tenant)?;
    let (object, author) = (Object::new(kind, document), caller.author());
    let is_conditional = expected.is_some();
    let expected = expected.unwrap_or(Expected::Any);
    let put = store.objects().put(&name, object, expected, &author).await;
    let put = put.map_err(|failure| Problem::of(failure, is_conditional))?;
    // Others have its turn while this replica reads the change.
    drop(store);
    if put.change.is_some() || front.snapshot.load().version < Some(put.stored.version) {
        refresh(front, put.stored.version).await;
    }
    if put.change.is_none() && !has_password {
        caller.give_back(budget, tenant);
    }
    let status = if put.change == Some(ChangeKind::Added) {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(tagged(status, &put.stored, &shown(&put.stored)))
}

/// What a put counts as: a disabled user loses its access.
fn budget(kind: Kind, document: &Document) -> Numbered {
    if kind == Kind::User && document.get("disabled") == Some(&Json::Bool(true)) {
        Numbered::Other
    } else {
        Numbered::Change
    }
}

/// Reports whether a client is a workload of an issuer whose keys the gateway fetches: from addresses of whoever
/// declares it.
fn is_asked(client: &Document) -> bool {
    let workload = client.get("workload");
    workload.is_some_and(|workload| !workload.get("jwks").is_some_and(Json::is_object))
}

async fn delete(call: Call, kind: Kind) -> OperationResult {
    if kind == Kind::Client && call.path.name().starts_with(REGISTERED) {
        return issued::remove_client(call).await;
    }
    if is_own_key(&call.path, kind) {
        return issued::remove_own_key(call).await;
    }
    let expected = expected(&call.headers)?;
    let is_conditional = expected.is_some();
    call.caller.count(Numbered::Other, call.path.tenant())?;
    let (name, author) = (object_name(&call.path, kind), call.caller.author());
    let tenant = name.owner();
    let store = call.caller.store_to_change(&call.front, tenant).await?;
    let expected = expected.unwrap_or(Expected::Present);
    let deleted = store.objects().delete(&name, expected, &author).await;
    let deleted = deleted.map_err(|failure| match failure {
        database::Error::Conflict => Problem::of(failure, is_conditional),
        failure => failed(failure, &name),
    });
    let version = deleted?;
    drop(store);
    refresh(&call.front, version).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Reports whether a path names an API key that a person made.
fn is_own_key(path: &Path, kind: Kind) -> bool {
    kind == Kind::ApiKey && path.get("tenant").is_some() && path.name().starts_with(OWN_KEY)
}

/// The problem of a change of one object without a condition.
pub(super) fn failed(failure: database::Error, name: &ObjectName) -> Problem {
    match failure {
        database::Error::NotFound => missing(name),
        failure => failure.into(),
    }
}

/// The problem of an object that does not exist.
fn missing(name: &ObjectName) -> Problem {
    let text = name.to_string();
    let (kind, rest) = text.split_once(' ').unwrap_or(("object", &text));
    Problem::no_such(&kind.replace('_', " "), rest)
}

/// Refreshes the snapshot up to a change before the response. After a failure the change takes effect later.
pub(super) async fn refresh(front: &Front, version: i64) {
    if let Err(failure) = front.snapshot.refresh_to(version).await {
        tracing::warn!(%failure, "a change is stored and not served yet");
    }
}

/// Returns the name of the object that a path names.
pub(super) fn object_name(path: &Path, kind: Kind) -> ObjectName {
    match (path.get("tenant"), kind) {
        (Some(tenant), Kind::Tenant) => ObjectName::tenant(tenant),
        (Some(tenant), kind) => ObjectName::of(tenant, kind, path.name()),
        (None, _) => ObjectName::operator_key(path.name()),
    }
}

/// Shows an object without its secrets.
pub(super) fn shown(stored: &Stored) -> Json {
    let name = &stored.name;
    let mut shown = json!({
        "kind": name.kind().as_str(),
        "tenant": name.owner(),
        "name": name.name(),
        "version": stored.shown_version(),
        "created": moment(stored.created_ms),
        "updated": moment(stored.updated_ms),
    });
    // The macro would copy it.
    shown["spec"] = stored.object.shown();
    shown
}

/// Makes a response about an object, with its version as `ETag`.
pub(super) fn tagged(status: StatusCode, stored: &Stored, body: &Json) -> Response {
    let mut response = answer(status, body);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", stored.shown_version())) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Applies a manifest: shows or stores its difference to the declared objects.
async fn apply(call: Call) -> OperationResult {
    let (is_dry, prune) = (call.query.flag("dry_run")?, call.query.flag("prune")?);
    let prune = if prune { Prune::Remove } else { Prune::Keep };
    let format = format_of(&call.headers)?;
    let front = call.front;
    let body = body(call.body, front.config.http.max_body).await?;
    let parsed = spawn_blocking(move || parsed(&body, format)).await;
    let bug = |error: JoinError| database::Error::Bug(format!("a body is not parsed: {error}"));
    let wanted = parsed.map_err(bug)??;
    let store = call.caller.store(&front).await?;
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
        refresh(&front, i64::MAX).await;
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

/// Returns the members of the schema `Object`.
pub(super) fn members() -> Vec<(&'static str, Json)> {
    vec![
        ("kind", json!({"enum": Kind::ALL.map(Kind::as_str)})),
        ("tenant", nullable_text()),
        ("name", text()),
        ("version", integer()),
        ("created", text()),
        ("updated", text()),
        ("spec", any_object()),
    ]
}

/// Statuses of problems of a change.
pub(super) const CHANGE: &[u16] = &[400, 404, 408, 409, 412, 413, 422];

static SPEC: Schema = Schema {
    name: "Spec",
    shape: Shape::Json(any_object),
};

static OBJECT: Schema = Schema {
    name: "Object",
    shape: Shape::Versioned(|| object(&members())),
};

static OBJECTS: Schema = Schema {
    name: "Objects",
    shape: Shape::Page(&OBJECT),
};

static MANIFEST: Schema = Schema {
    name: "Manifest",
    shape: Shape::Manifest,
};

static APPLIED: Schema = Schema {
    name: "Applied",
    shape: Shape::Json(|| {
        object(&[
            ("changes", json!({"type": "array", "items": any_object()})),
            ("dry_run", json!({"type": "boolean"})),
        ])
    }),
};

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::declared::*;

    /// The declared ones, whether there are more of them and of the others, the limit, the names that are listed, and the
    /// next cursor.
    type Case = (
        &'static [&'static str],
        [bool; 2],
        usize,
        &'static str,
        Option<&'static str>,
    );

    /// The cursor of a page that ended by its bytes was behind keys of people, so that declared ones before them were in no
    /// page.
    #[test]
    fn a_page_of_keys_reaches_as_far_as_the_declared_ones() {
        let stored = |name: &&str| Stored {
            id: Uuid::nil(),
            name: ObjectName::of("a", Kind::ApiKey, name),
            version: 1,
            object: Object::default(),
            created_ms: 0,
            updated_ms: 0,
        };
        let own = || ["b", "d", "e"].map(|name| (name.to_owned(), format!("own {name}")));
        let all: [Case; 9] = [
            (&["a", "c"], [true, false], 9, "abc", Some("c")),
            (&["a", "c"], [false, false], 9, "abcde", None),
            (&["a", "c"], [false, false], 5, "abcde", None),
            (&["a", "c"], [false, false], 4, "abcd", Some("d")),
            (&["a", "c"], [true, false], 2, "ab", Some("b")),
            (&[], [false, false], 3, "bde", None),
            (&["f"], [true, false], 9, "bdef", Some("f")),
            (&["a", "f"], [false, true], 9, "abde", Some("e")),
            (&["a", "c"], [true, true], 9, "abc", Some("c")),
        ];
        for (declared, [is_more, is_more_own], limit, wanted, next) in all {
            let found = Listed {
                objects: declared.iter().map(stored).collect(),
                bytes: 0,
                is_more,
            };
            let (items, cursor) = listed(found, (own().into(), is_more_own), limit);
            let names: String = items.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(
                (names.as_str(), cursor.as_deref()),
                (wanted, next),
                "{limit}"
            );
        }
        let found = Listed {
            objects: vec![stored(&"a")],
            bytes: 0,
            is_more: false,
        };
        let (items, _) = listed(found, (own().into(), false), 2);
        let shown: Json = serde_json::from_str(&items[0].1).unwrap();
        assert_eq!(shown["spec"], json!({}));
        assert_eq!(items[1].1, "own b");
    }

    #[test]
    fn paths_name_their_kinds() {
        for collection in [&TENANTS, &SERVERS, &USERS, &CLIENTS, &PROVIDERS] {
            let plural = collection.kind.plural();
            assert!(collection.path.ends_with(&format!("/{plural}")), "{plural}");
            assert!(collection.item.starts_with(collection.path), "{plural}");
        }
    }
}

//! Dynamic client registration (RFC 7591) and its management (RFC 7592).
//!
//! Registration needs no credentials. It is limited per address, per redirect host, per tenant and in total, and
//! unused clients expire, or give way to new ones. A client may register any number of times. A change draws from the
//! same budgets, and one that changes nothing writes nothing.

use std::net::IpAddr;

use axum::{
    body::Body,
    extract::{self, Request},
    response::Response,
};
use http::{HeaderMap, StatusCode, header::AUTHORIZATION, request::Parts};
use serde_json::{Map, Value, json};

use super::{
    base::{
        OauthRefusal, RefusalCode, SecretKind,
        posted::{check_query, collected},
        refusal::{NO_RANDOM, answer, forbid_storing},
        secret, throttle,
    },
    clients::{ClientAuthMethod, ClientMetadata, MetadataError, redirect},
    server::{
        Attempt, AuthorizationServer, Oauth, OauthState, StepKind,
        attempt::{address, attempt, note},
    },
};
use crate::endpoint::OauthEndpoint;
use crate::{
    auth::jose::members_of_anybody,
    database::oauth::{Registered, millis},
};

/// POST: registers a client.
pub(crate) async fn register(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let state = &*oauth.0;
    let address = address(request.extensions());
    let attempted = async {
        let of = Attempt::default();
        let result = add(state, &server, address, request, &of).await;
        match &result {
            Err(refusal) => of.refused(state, &server, address, refusal),
            Ok(_) => of.tell(state, &server, address, StepKind::Registered, ""),
        }
        result
    };
    attempt(state, &server, address, "register", Box::pin(attempted)).await
}

/// GET: reads a registration.
pub(crate) async fn read(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let (state, address) = (&*oauth.0, address(request.extensions()));
    let attempted = async {
        let (head, _) = request.into_parts();
        let managed = ManagedClient::find(state, &server, address, &head).await?;
        Ok(managed.answer(state, &server, &managed.metadata, None))
    };
    attempt(state, &server, address, "register", Box::pin(attempted)).await
}

/// PUT: replaces all metadata of a client.
pub(crate) async fn replace(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let (state, address) = (&*oauth.0, address(request.extensions()));
    let attempted = async {
        let (head, body) = request.into_parts();
        let managed = ManagedClient::find(state, &server, address, &head).await?;
        let all = object(&head, body).await?;
        managed.replace(state, &server, address, &all).await
    };
    attempt(state, &server, address, "register", Box::pin(attempted)).await
}

/// DELETE: removes a client and all its grants.
pub(crate) async fn remove(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let (state, address) = (&*oauth.0, address(request.extensions()));
    let attempted = async {
        let (head, _) = request.into_parts();
        let managed = ManagedClient::find(state, &server, address, &head).await?;
        let (tenant, id) = (&server.tenant.name, &managed.row.client_id);
        if !state
            .snapshot
            .database()?
            .clients()
            .remove(tenant, id)
            .await?
        {
            return Err(BAD_TOKEN);
        }
        if managed.row.is_unused(state.config.oauth.client_unused) {
            // Its record may be on its way. It came and went, and nobody knew it.
            state.audit.flush().await;
            let clients = state.snapshot.database()?.clients();
            clients.forget(tenant, &managed.row).await?;
        } else {
            let (actor, target) = (format!("client:{id}"), format!("client {id}"));
            note(state, &server, "client.removed", &actor, &target, json!({}));
        }
        // Its tokens are of no use here once this is answered.
        state.snapshot.refresh_issued().await?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        forbid_storing(response.headers_mut());
        Ok(response)
    };
    attempt(state, &server, address, "register", Box::pin(attempted)).await
}

async fn add(
    state: &OauthState,
    server: &AuthorizationServer,
    address: Option<IpAddr>,
    request: Request,
    attempt: &Attempt,
) -> Result<Response, OauthRefusal> {
    if !server.builtin.registration {
        let what = "clients do not register themselves here";
        return Err(OauthRefusal::new(RefusalCode::NotFound, what));
    }
    let settings = &state.config.oauth;
    spend_of_address(state, address)?;
    let (head, body) = request.into_parts();
    let all = object(&head, body).await?;
    let metadata = ClientMetadata::read_registration(&all)?;
    attempt.client(metadata.name.as_deref().unwrap_or_default());
    let uris = metadata.redirect_uris.iter();
    let hosts: std::collections::BTreeSet<&str> = uris.map(|uri| redirect::host(uri)).collect();
    for host in hosts {
        spend(
            state,
            ("host", &server.tenant.name, host, 0),
            settings.registrations_host,
        )?;
    }
    // Of what will be stored alone: anybody can send what is no registration.
    spend_in_all(state, &server.tenant.name)?;
    let random = &state.random;
    let access = secret::generate(random, SecretKind::Registration).ok_or(NO_RANDOM)?;
    let now_ms = state.clock.now_ms();
    let (client_secret, secret_hash) = new_secret(state, metadata.method)?;
    let row = Registered {
        client_id: secret::client_id(random).ok_or(NO_RANDOM)?,
        metadata: Value::Object(metadata.write()).to_string(),
        secret_hash,
        access_hash: secret::hash(&access),
        created_ms: now_ms,
        expires_ms: now_ms.saturating_add(millis(settings.client_unused)),
    };
    let store = state.snapshot.database()?;
    let tenant = &server.tenant.name;
    if !store.clients().add(tenant, &row, settings.clients).await? {
        let what = "the tenant has too many registered clients";
        return Err(OauthRefusal::too_many(what, settings.client_unused));
    }
    attempt.client_id(&row.client_id);
    let detail = json!({
        "client_name": metadata.name, "redirect_uris": metadata.redirect_uris,
        "address": address.map(|address| address.to_string()),
    });
    state.audit.add(row.record(tenant, detail));
    let secrets = ClientSecrets {
        access: &access,
        client_secret: client_secret.as_deref().map(String::as_str),
    };
    Ok(answer(
        StatusCode::CREATED,
        &secrets.response(state, server, &row, &metadata),
    ))
}

/// Draws a registration, or the change of one, from the budget of its address.
fn spend_of_address(state: &OauthState, address: Option<IpAddr>) -> Result<(), OauthRefusal> {
    let of_address = ("address", "", "", throttle::account(address));
    spend(state, of_address, state.config.oauth.registrations_address)
}

/// Draws a registration, or the change of one, from the budget of all, of which a tenant surely has a part, and beyond it
/// what leaves as much to others: a flood at one keeps no client of another out.
fn spend_in_all(state: &OauthState, tenant: &str) -> Result<(), OauthRefusal> {
    let settings = &state.config.oauth;
    let part = settings.registrations.div_ceil(TENANTS);
    let all = ("all", "", "", 0);
    if let Err(too_many) = spend(state, ("tenant", tenant, "", 0), part) {
        let left = state
            .registrations
            .check(&all, settings.registrations - part);
        left.map_err(|_| too_many)?;
    }
    spend(state, all, settings.registrations)
}

fn spend(
    state: &OauthState,
    key: (&str, &str, &str, u128),
    bound: u32,
) -> Result<(), OauthRefusal> {
    let spent = state.registrations.spend(&key, bound);
    spent.map_err(|retry| OauthRefusal::too_many("too many registrations", retry))
}

/// A registered client that presented its registration access token.
struct ManagedClient {
    row: Registered,
    metadata: ClientMetadata,
    access: String,
}

impl ManagedClient {
    /// Finds the client in the path, as often as its address may ask. A wrong token gets the same refusal whether
    /// the client exists or not.
    async fn find(
        state: &OauthState,
        server: &AuthorizationServer,
        address: Option<IpAddr>,
        head: &Parts,
    ) -> Result<Self, OauthRefusal> {
        check_query(head)?;
        // Before the database is asked, which one address could keep busy.
        let of_address = ("managed", "", "", throttle::account(address));
        let spent = state.registrations.spend(&of_address, MANAGED);
        let what = "too many requests about registrations";
        spent.map_err(|retry| OauthRefusal::too_many(what, retry))?;
        let id = head.uri.path().rsplit('/').next().unwrap_or_default();
        let access = bearer(&head.headers).ok_or(BAD_TOKEN)?;
        let offered = secret::hash(access);
        let store = state.snapshot.database()?;
        let row = store.clients().get(&server.tenant.name, id).await?;
        let known = row.as_ref().map_or([0; 32], |row| row.access_hash);
        let is_right = secret::is_same(&known, &offered);
        let row = row.filter(|_| is_right).ok_or(BAD_TOKEN)?;
        let metadata = ClientMetadata::parse(&row.metadata).ok_or(BAD_TOKEN)?;
        Ok(Self {
            row,
            metadata,
            access: access.to_owned(),
        })
    }

    async fn replace(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        address: Option<IpAddr>,
        all: &Map<String, Value>,
    ) -> Result<Response, OauthRefusal> {
        // RFC 7592, section 2.2.
        if all.get("client_id").and_then(Value::as_str) != Some(&self.row.client_id) {
            let what = "client_id is not that of the client";
            return Err(OauthRefusal::new(RefusalCode::InvalidClientMetadata, what));
        }
        if let Some(offered) = all.get("client_secret").and_then(Value::as_str) {
            let known = self.row.secret_hash.unwrap_or_default();
            if !secret::is_same(&known, &secret::hash(offered)) {
                let what = "client_secret is not that of the client";
                return Err(OauthRefusal::new(RefusalCode::InvalidClientMetadata, what));
            }
        }
        let metadata = ClientMetadata::read_registration(all)?;
        // A change of method creates a secret where one is needed, and drops one that is not.
        let (client_secret, secret_hash) = match self.row.secret_hash {
            Some(hash) if metadata.method.has_secret() => (None, Some(hash)),
            _ => new_secret(state, metadata.method)?,
        };
        let row = Registered {
            metadata: Value::Object(metadata.write()).to_string(),
            secret_hash,
            ..self.row.clone()
        };
        if row == self.row {
            return Ok(self.answer(state, server, &metadata, None));
        }
        let (tenant, store) = (&server.tenant.name, state.snapshot.database()?);
        spend(state, ("client", tenant, &row.client_id, 0), CHANGES)?;
        spend_of_address(state, address)?;
        spend_in_all(state, tenant)?;
        if self.row.is_unused(state.config.oauth.client_unused) {
            spend(state, ("changed", tenant, "", 0), FIRST_CHANGES)?;
            spend(state, ("changed", "", "", 0), FIRST_CHANGES * TENANTS)?;
        }
        if !store.clients().update(tenant, &self.row, &row).await? {
            // Of two changes at once one counts as a whole, with its secret.
            let is_there = store.clients().get(tenant, &row.client_id).await?.is_some();
            let again = OauthRefusal::later("the registration was changed at this moment");
            return Err(if is_there { again } else { BAD_TOKEN });
        }
        let (id, redirect_uris) = (&row.client_id, &metadata.redirect_uris);
        let (actor, target) = (format!("client:{id}"), format!("client {id}"));
        let detail = json!({"client_name": metadata.name, "redirect_uris": redirect_uris});
        note(state, server, "client.changed", &actor, &target, detail);
        let client_secret = client_secret.as_deref().map(String::as_str);
        Ok(self.answer(state, server, &metadata, client_secret))
    }

    fn answer(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        metadata: &ClientMetadata,
        client_secret: Option<&str>,
    ) -> Response {
        let secrets = ClientSecrets {
            access: &self.access,
            client_secret,
        };
        let body = secrets.response(state, server, &self.row, metadata);
        answer(StatusCode::OK, &body)
    }
}

/// The secrets that only the client receives.
struct ClientSecrets<'t> {
    access: &'t str,
    /// Present only in the response that creates it.
    client_secret: Option<&'t str>,
}

impl ClientSecrets<'_> {
    /// Makes the client information response (RFC 7591, section 3.2.1; RFC 7592, section 3).
    fn response(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        row: &Registered,
        metadata: &ClientMetadata,
    ) -> Value {
        let mut all = metadata.write();
        let url = server.endpoint(state, OauthEndpoint::Registration(&row.client_id));
        let own = [
            ("client_id", json!(row.client_id)),
            ("client_id_issued_at", json!(row.created_ms / 1000)),
            ("registration_access_token", json!(self.access)),
            ("registration_client_uri", json!(url)),
        ];
        all.extend(own.map(|(name, value)| (name.to_owned(), value)));
        if let Some(text) = self.client_secret {
            all.insert("client_secret".to_owned(), text.into());
            // The secret expires with the client, whose expiry moves with its use.
            all.insert("client_secret_expires_at".to_owned(), 0.into());
        }
        Value::Object(all)
    }
}

impl From<MetadataError> for OauthRefusal {
    fn from(wrong: MetadataError) -> Self {
        match wrong {
            MetadataError::RedirectUri(what) => Self::new(RefusalCode::InvalidRedirectUri, what),
            MetadataError::Metadata(what) => Self::new(RefusalCode::InvalidClientMetadata, what),
        }
    }
}

type NewSecret = (Option<zeroize::Zeroizing<String>>, Option<[u8; 32]>);

fn new_secret(state: &OauthState, method: ClientAuthMethod) -> Result<NewSecret, OauthRefusal> {
    if !method.has_secret() {
        return Ok((None, None));
    }
    let text = secret::generate(&state.random, SecretKind::Client).ok_or(NO_RANDOM)?;
    let hash = secret::hash(&text);
    Ok((Some(text), Some(hash)))
}

/// Reads the body as a JSON object.
async fn object(head: &Parts, body: Body) -> Result<Map<String, Value>, OauthRefusal> {
    check_query(head)?;
    let wrong = |what| OauthRefusal::new(RefusalCode::InvalidClientMetadata, what);
    let kind = head.headers.get(http::header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(wrong("the body is not application/json"));
    }
    let body = collected(body, BODY_MAX).await?;
    // Of a name that is there twice one reader might take the first value, and another the last.
    let what = "the body is no JSON object, has a name twice, or too many objects and lists";
    members_of_anybody(&body).ok_or_else(|| wrong(what))
}

/// The only bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let is_one = values.next().is_none() && scheme.eq_ignore_ascii_case("bearer");
    is_one.then(|| token.trim_matches(' '))
}

/// RFC 7592, section 2: one refusal, whether the client exists or not.
const BAD_TOKEN: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidToken,
    "the registration access token is not that of a client",
)
.challenged("Bearer error=\"invalid_token\"");

/// Tenants that together use up what all may have in a minute.
const TENANTS: u32 = 4;
/// Maximum first changes of registrations that nobody used, of all clients of a tenant per minute: their records stay.
const FIRST_CHANGES: u32 = 60;
/// Maximum changes of one registration per minute.
const CHANGES: u32 = 10;
/// Maximum requests of an address per minute that read, change or remove registrations.
const MANAGED: u32 = 300;
/// Maximum size of client metadata in bytes.
const BODY_MAX: usize = 64 << 10;

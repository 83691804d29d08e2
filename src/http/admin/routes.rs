//! The administration API, `/api/v1`: its routes, who may call it, and how it says no.
//!
//! An operator sees every tenant; a tenant's administrator its own, and may not say what is
//! started for it. Errors are RFC 9457 problem details. Not here: declared objects
//! (`admin_objects`), what runs (`admin_running`), what was issued (`admin_issued`).

use std::sync::Arc;

use super::{issued, objects, openapi, running};
use crate::http::{
    admission::{Front, bearer, rates},
    reply::{
        Failure, Problem,
        header_name::{RATE_LIMIT, RATE_LIMIT_POLICY},
    },
};
use crate::{
    auth::{ADMIN_SCOPE, Administrator, AdministratorRefusal},
    config::ClientAddress,
    declare::Kind,
    snapshot::Snapshot,
};
use axum::{
    Router,
    extract::{FromRequestParts, Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{
    HeaderValue, StatusCode,
    header::{RETRY_AFTER, WWW_AUTHENTICATE},
    request::Parts,
};

/// Every route of the administration API.
pub(crate) fn routes(front: Arc<Front>) -> Router {
    let api = object_routes()
        .merge(running_routes())
        .merge(issued_routes())
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
        })
        .fallback(async || Problem::not_found());
    Router::new()
        .nest("/api/v1", api)
        .route("/api/openapi.json", get(openapi::document))
        .layer(from_fn_with_state(Arc::clone(&front), pass))
        .with_state(front)
}

/// Refuses addresses that ask too often, before anybody looks at their keys.
async fn pass(State(front): Shared, request: Request, next: Next) -> Response {
    match rates::address(&front, request.extensions()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let refused = Failure::from(error);
            let (status, text) = refused.parts();
            let mut response = Problem::new(status, text).into_response();
            let fields = refused.into_response();
            for name in [RETRY_AFTER, RATE_LIMIT_POLICY, RATE_LIMIT] {
                if let Some(value) = fields.headers().get(&name) {
                    response.headers_mut().insert(name, value.clone());
                }
            }
            response
        }
    }
}

fn object_routes() -> Router<Arc<Front>> {
    let own = |routes: Router<Arc<Front>>, kind: Kind| {
        let mut all = objects::all_of(kind);
        if kind == Kind::ApiKey {
            all = all.post(objects::make_key);
        }
        let path = format!("/tenants/{{tenant}}/{}", kind.plural().replace('_', "-"));
        let one = format!("{path}/{{name}}");
        routes.route(&path, all).route(&one, objects::one_of(kind))
    };
    // Tenants come first, and have routes of their own.
    let of_tenants = Kind::ALL[1..].iter().copied().fold(Router::new(), own);
    of_tenants
        .route("/tenants", get(objects::tenants))
        .route(
            "/tenants/{tenant}",
            get(objects::tenant)
                .put(objects::put_tenant)
                .delete(objects::delete_tenant),
        )
        .route(
            "/tenants/{tenant}/api-keys/{name}/rotate",
            post(objects::rotate_key),
        )
        .route(
            "/operator-keys",
            get(objects::operator_keys).post(objects::make_operator_key),
        )
        .route(
            "/operator-keys/{name}",
            get(objects::operator_key).delete(objects::delete_operator_key),
        )
        .route("/apply", post(super::apply::apply))
}

fn running_routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/tenants/{tenant}/sessions", get(running::sessions))
        .route(
            "/tenants/{tenant}/sessions/{id}",
            axum::routing::delete(running::end_session),
        )
        .route("/tenants/{tenant}/quotas", get(running::quotas))
        .route(
            "/tenants/{tenant}/servers/{name}/children",
            get(running::children),
        )
        .route("/tenants/{tenant}/servers/{name}/logs", get(running::logs))
        .route(
            "/tenants/{tenant}/servers/{name}/restart",
            post(running::restart),
        )
        .route("/audit", get(running::audit))
}

fn issued_routes() -> Router<Arc<Front>> {
    Router::new()
        .route(
            "/tenants/{tenant}/signing-keys",
            get(issued::keys).post(issued::rotate),
        )
        .route(
            "/tenants/{tenant}/signing-keys/{kid}",
            axum::routing::delete(issued::remove),
        )
        .route("/tenants/{tenant}/grants", get(issued::grants))
        .route("/tenants/{tenant}/revocations", post(issued::revoke))
}

/// A request of somebody who may administrate.
pub(crate) struct Admin {
    /// Who it is.
    pub(super) who: Administrator,
    /// What was declared when it came.
    pub(crate) snapshot: Arc<Snapshot>,
}

impl FromRequestParts<Arc<Front>> for Admin {
    type Rejection = Response;

    /// Decided by the head of a request alone: nothing of the body is read before.
    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, Response> {
        let credential = bearer::credential(&parts.headers)
            .map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "Authorization is repeated"))
            .map_err(IntoResponse::into_response)?;
        let snapshot = front.live.snapshot();
        if snapshot.version.is_none() {
            return Err(Problem::unavailable().into_response());
        }
        let from = parts.extensions.get::<ClientAddress>();
        let (catalog, keys) = (&snapshot.catalog, &snapshot.operator_keys);
        let from = from.map(|from| from.0);
        let who = front.auth.administrator(catalog, keys, credential, from);
        match who {
            Ok(who) => Ok(Self { who, snapshot }),
            Err(why) => {
                front.auth.settle().await;
                Err(challenge(why))
            }
        }
    }
}

impl Admin {
    /// Says no to everybody but operators.
    pub(super) fn operator(&self) -> Result<(), Problem> {
        if self.who.is_operator() {
            return Ok(());
        }
        let text = "this is for operators";
        Err(Problem::new(StatusCode::FORBIDDEN, text))
    }

    /// Says no to those who may not say what a kind of object of their tenant is: what is started
    /// (CONTRACT P139), and what the gateway asks on the network, is for operators.
    pub(super) fn may_change(&self, kind: Kind) -> Result<(), Problem> {
        match kind {
            Kind::User | Kind::Client | Kind::ApiKey => Ok(()),
            Kind::Tenant | Kind::Server | Kind::Provider => self.operator(),
        }
    }

    /// Says no where `tenant` does not exist for the caller, in the same words as where it does
    /// not exist at all.
    pub(crate) fn tenant(&self, tenant: &str) -> Result<(), Problem> {
        let is_there = self.snapshot.catalog.tenants.contains_key(tenant);
        if is_there && self.who.sees(tenant) {
            Ok(())
        } else {
            Err(Problem::not_found())
        }
    }
}

fn challenge(why: AdministratorRefusal) -> Response {
    let (status, text, challenge) = match why {
        AdministratorRefusal::NoToken => (
            StatusCode::UNAUTHORIZED,
            "an API key is needed",
            "Bearer".to_owned(),
        ),
        AdministratorRefusal::BadToken => (
            StatusCode::UNAUTHORIZED,
            "no such API key",
            "Bearer error=\"invalid_token\"".to_owned(),
        ),
        AdministratorRefusal::NoScope => (
            StatusCode::FORBIDDEN,
            "the API key lacks the scope admin",
            format!("Bearer error=\"insufficient_scope\", scope=\"{ADMIN_SCOPE}\""),
        ),
    };
    let mut response = Problem::new(status, text).into_response();
    if let Ok(value) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// The parameters of a path; what is not UTF-8 names nothing.
pub(crate) struct Named<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned + Send> FromRequestParts<Arc<Front>> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, Problem> {
        let named = Path::<T>::from_request_parts(parts, front).await;
        named
            .map(|Path(names)| Self(names))
            .map_err(|_| Problem::not_found())
    }
}

/// A point in time as RFC 3339 has it.
pub(super) fn moment(ms: i64) -> String {
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    let text = at.ok().and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_default()
}

/// The state of the routes.
pub(crate) type Shared = State<Arc<Front>>;

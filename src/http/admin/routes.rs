//! List of all operations, with the router and the document made from it.

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use super::{
    api_keys, audit, declared, issued, openapi,
    operation::{Operation, Shared},
    running, secrets,
};
use crate::http::{
    Front,
    admission::rates,
    reply::{
        McpRefusal, Problem,
        header_name::{RATE_LIMIT, RATE_LIMIT_POLICY},
        json::JSON,
    },
};

/// Operations of the administration API.
fn operations() -> Vec<Operation> {
    [
        declared::operations(),
        api_keys::operations(),
        secrets::operations(),
        running::operations(),
        audit::operations(),
        issued::operations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Routes of the administration API.
pub(crate) fn routes(front: Arc<Front>) -> Router {
    let api = operations()
        .into_iter()
        .map(Operation::route)
        .fold(Router::new(), |api, (path, route)| api.route(path, route))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
        })
        .fallback(async || Problem::not_found());
    Router::new()
        .nest("/api/v1", api)
        .route("/api/openapi.json", get(served_document))
        .layer(from_fn_with_state(Arc::clone(&front), limit))
        .with_state(front)
}

/// Makes the `OpenAPI` document, which is the same for one build.
pub(crate) fn document() -> String {
    openapi::document(&operations())
}

async fn served_document() -> Response {
    // Anybody may ask for it, as often as they want.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().into());
    let mut response = Response::new(Body::from(DOCUMENT.clone()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    response
}

/// Middleware that refuses an address beyond its rate, before the API key is checked.
async fn limit(State(front): Shared, request: Request, next: Next) -> Response {
    match rates::count(&front, request.extensions()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let refused = McpRefusal::from(error);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http_body_util::BodyExt;

    use super::super::{caller::Permission, routes::*};

    #[tokio::test]
    async fn the_document_is_made_once() {
        let served = async || {
            let body = served_document().await.into_body();
            body.collect().await.unwrap().to_bytes()
        };
        let (one, two) = (served().await, served().await);
        assert_eq!(one, document());
        assert_eq!(one.as_ptr(), two.as_ptr());
    }

    #[test]
    fn the_checked_in_document_is_current() {
        let checked_in = include_str!("../../../docs/openapi.json");
        assert!(
            checked_in == document(),
            "run: lockgate openapi > docs/openapi.json"
        );
    }

    /// Clients that were made of the document met a status that it did not have.
    #[test]
    fn every_operation_may_refuse_a_content_coding() {
        let document: serde_json::Value = serde_json::from_str(&document()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap());
        for (_, operation) in operations {
            let refused = &operation["responses"]["415"];
            assert!(refused.is_object(), "{}", operation["operationId"]);
        }
    }

    #[test]
    fn operation_ids_are_unique() {
        let all = operations();
        let ids: BTreeSet<&str> = all.iter().map(|one| one.description.id).collect();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn operations_on_a_tenant_require_permission_for_it() {
        for operation in operations() {
            let (path, permission) = (operation.description.path, operation.permission);
            let of_tenant = matches!(
                permission,
                Permission::Tenant
                    | Permission::OperatorOfTenant
                    | Permission::Server
                    | Permission::Issuer
            );
            if of_tenant || permission == Permission::Administrator {
                assert_eq!(of_tenant, path.contains("{tenant}"), "{path}");
            }
            if permission == Permission::Server {
                assert!(path.contains("/servers/{name}"), "{path}");
            }
        }
    }
}

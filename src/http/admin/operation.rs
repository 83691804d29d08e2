//! Declaration of an operation, and its call by a request.
//!
//! An [`Operation`] declares one method of one path: the description that `openapi` prints, the
//! permission that it requires, and its handler. Not here: the operations themselves.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter, on},
};
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};

use super::{
    caller::{Caller, Permission},
    request::{Parameter, Path, Query},
    schema::Schema,
};
use crate::http::{Front, reply::Problem};

/// One method of one path: description, permission and handler.
pub(super) struct Operation {
    pub(super) description: Description,
    pub(super) permission: Permission,
    handler: Handler,
}

/// Part of an operation that the `OpenAPI` document shows.
pub(super) struct Description {
    pub(super) method: &'static str,
    filter: MethodFilter,
    /// Path below `/api/v1`.
    pub(super) path: &'static str,
    /// Name of the operation in generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// Query parameters; an operation without any ignores the query.
    pub(super) query: &'static [Parameter],
    /// Accepts `If-Match` and `If-None-Match`.
    pub(super) is_conditional: bool,
    /// The request body.
    pub(super) takes: Option<&'static Schema>,
    /// Status and body of success.
    pub(super) gives: (u16, Option<&'static Schema>),
    /// Statuses of problems, in addition to those that every operation has.
    pub(super) fails: &'static [u16],
}

/// An authorized call of an operation.
pub(super) struct Call {
    pub(super) front: Arc<Front>,
    pub(super) caller: Caller,
    pub(super) path: Path,
    /// The declared query parameters.
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    /// The unread body.
    pub(super) body: Body,
}

/// Result of a call.
pub(super) type OperationResult = Result<Response, Problem>;

/// State of the routes.
pub(super) type Shared = State<Arc<Front>>;

type Handler = Box<dyn Fn(Call) -> BoxFuture<'static, OperationResult> + Send + Sync>;

/// Describes a GET operation.
pub(super) fn get(path: &'static str, id: &'static str, summary: &'static str) -> Description {
    Description::new(("get", MethodFilter::GET), path, id, summary)
}

/// Describes a PUT operation.
pub(super) fn put(path: &'static str, id: &'static str, summary: &'static str) -> Description {
    Description::new(("put", MethodFilter::PUT), path, id, summary)
}

/// Describes a POST operation.
pub(super) fn post(path: &'static str, id: &'static str, summary: &'static str) -> Description {
    Description::new(("post", MethodFilter::POST), path, id, summary)
}

/// Describes a DELETE operation.
pub(super) fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Description {
    Description::new(("delete", MethodFilter::DELETE), path, id, summary)
}

impl Description {
    fn new(
        (method, filter): (&'static str, MethodFilter),
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            filter,
            path,
            id,
            summary,
            query: &[],
            is_conditional: false,
            takes: None,
            gives: (204, None),
            fails: &[404],
        }
    }

    /// Sets the query parameters.
    pub(super) fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    /// Documents `If-Match` and `If-None-Match`.
    pub(super) fn conditional(self) -> Self {
        let is_conditional = true;
        Self {
            is_conditional,
            ..self
        }
    }

    /// Sets the request body.
    pub(super) fn takes(self, body: &'static Schema) -> Self {
        let takes = Some(body);
        Self { takes, ..self }
    }

    /// Sets status and body of success; 204 without a body by default.
    pub(super) fn gives(self, status: u16, body: &'static Schema) -> Self {
        let gives = (status, Some(body));
        Self { gives, ..self }
    }

    /// Sets the statuses of problems; 404 by default.
    pub(super) fn fails(self, fails: &'static [u16]) -> Self {
        Self { fails, ..self }
    }

    /// Completes the operation: `handler` is called for callers with `permission`.
    pub(super) fn serve<F>(
        self,
        permission: Permission,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Operation
    where
        F: Future<Output = OperationResult> + Send + 'static,
    {
        Operation {
            description: self,
            permission,
            handler: Box::new(move |call| Box::pin(handler(call))),
        }
    }
}

impl Operation {
    /// Makes the route of the operation.
    pub(super) fn route(self) -> (&'static str, MethodRouter<Arc<Front>>) {
        let Description { path, filter, .. } = self.description;
        let operation = Arc::new(self);
        let serve = async move |State(front): Shared, request: Request| match operation
            .admit(front, request)
            .await
        {
            Ok(call) => (operation.handler)(call).await.into_response(),
            Err(refused) => refused,
        };
        (path, on(filter, serve))
    }

    /// Checks the head of a request: API key, path, permission and query, in this order.
    async fn admit(&self, front: Arc<Front>, request: Request) -> Result<Call, Response> {
        let (mut parts, body) = request.into_parts();
        let path = Path::of(&mut parts).await;
        let tenant = path.as_ref().ok().and_then(|path| path.get("tenant"));
        let mut caller = Caller::authenticated(&parts, tenant, &front).await?;
        let call = async {
            let path = path?;
            let mut allowed = self.permission.check(&caller, &path);
            // What is forbidden is so whatever another replica changed.
            let may_pass = |refused: &Problem| refused.status() != StatusCode::FORBIDDEN;
            if allowed.as_ref().is_err_and(may_pass) && caller.catch_up(&front).await? {
                allowed = self.permission.check(&caller, &path);
            }
            allowed?;
            let query = Query::of(parts.uri.query(), self.description.query)?;
            Ok::<_, Problem>((path, query))
        };
        let (path, query) = call.await.map_err(IntoResponse::into_response)?;
        Ok(Call {
            front,
            caller,
            path,
            query,
            headers: parts.headers,
            body,
        })
    }
}

//! Client of a session: its principal and transport, and the server and policy that it uses.

use std::sync::Arc;

use crate::{
    auth::{Access, Principal, policy},
    declare::{Policy, Server, TenantProfile},
    endpoint::TenantHost,
    hub::core::Transport,
    protocol::{Message, Revision, revision},
    telemetry::{Metrics, ServerOperations, TraceContext},
};

/// The client of a session.
pub(super) struct Client {
    principal: Principal,
    transport: Transport,
    tenant: Arc<TenantProfile>,
    has_account_page: bool,
    server: Arc<Server>,
    policy: Arc<Policy>,
    operations: Arc<ServerOperations>,
    trace: Option<TraceContext>,
    host: Option<Arc<TenantHost>>,
}

impl Client {
    /// The client that begins a session with an access.
    pub(super) fn new(access: &Access, transport: Transport, metrics: &Metrics) -> Self {
        let (tenant, server) = (&access.tenant().name, &access.server().name);
        Self {
            operations: metrics.operations.of(tenant, server),
            principal: access.principal().clone(),
            transport,
            tenant: Arc::clone(access.tenant()),
            has_account_page: access.has_account_page(),
            server: Arc::clone(access.server()),
            policy: Arc::clone(access.policy()),
            trace: None,
            host: access.host().cloned(),
        }
    }

    /// The principal that the session belongs to.
    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The transport of the session.
    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    /// The tenant of the server.
    pub(super) fn tenant(&self) -> &TenantProfile {
        &self.tenant
    }

    /// Whether people have an account page at the tenant.
    pub(super) fn has_account_page(&self) -> bool {
        self.has_account_page
    }

    /// The revisions that the session may have, newest first: those of its tenant, or any for a client
    /// without sessions, which does not see it.
    pub(super) fn revisions(&self) -> &[Revision] {
        match self.transport {
            Transport::Stateless => &revision::ALL,
            Transport::Streamable | Transport::Sse2024 => &self.tenant.revisions,
        }
    }

    /// The server of the session.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The access policy of the sender of the latest body.
    pub(super) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Whether policy keeps a notification of the server from the client. Clients without sessions share one: each of
    /// their subscriptions has its own policy (`hub::stateless`).
    pub(super) fn is_muted(&self, notification: &Message) -> bool {
        self.transport != Transport::Stateless && policy::is_muted(&self.policy, notification)
    }

    /// The host of the tenant at which the session began at this replica; none at the public URL.
    pub(super) fn host(&self) -> Option<&TenantHost> {
        self.host.as_deref()
    }

    /// The durations of the operations of the server.
    pub(super) fn operations(&self) -> &ServerOperations {
        &self.operations
    }

    /// Sets the access policy of the sender of a body.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
    }

    /// The trace of the request whose body is being handled.
    pub(super) fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Sets the trace of the request whose body is handled next; none afterwards.
    pub(super) fn set_trace(&mut self, trace: Option<TraceContext>) {
        self.trace = trace;
    }

    /// Continues with the tenant, server and policy of a renewed access.
    pub(super) fn renew(&mut self, access: &Access) {
        self.tenant = Arc::clone(access.tenant());
        self.has_account_page = access.has_account_page();
        self.server = Arc::clone(access.server());
        self.policy = Arc::clone(access.policy());
    }
}

//! Start of a backend: at the `initialize` of a session, and again after the loss of one
//! (`restore`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    lifetime::{EndReason, Initializing},
    link::{Acquired, Own},
    task::Session,
};
use crate::{
    backend::{
        Cause, Occasion, Refused, Started, Verdict,
        child::Owner,
        dialect::ServerMessage,
        shared::{Member, Whose},
    },
    base::{hex, sha256},
    declare::Isolation,
    hub::{
        call::{CallError, quota},
        core::{Transport, or_never},
        ownership::STORE_AWAY,
        stream::Answer,
    },
    protocol::{Kind, LISTENER_STREAM, Message, Revision, initialize, jsonrpc, modern},
    telemetry::{
        LimitName, MethodClass, Operation, Outcome, TraceContext, log_operation, semconv,
        traces::INITIALIZE,
    },
};

impl Session {
    /// Acquires a backend if there is none.
    pub(super) fn acquire_backend(&mut self) {
        if !self.link.is_absent() {
            return;
        }
        let now = Instant::now();
        let not_before = match self.link.ask_circuit(now) {
            Verdict::Now => None,
            Verdict::After(wait) => Some(now + wait),
            Verdict::Open(left) => {
                let refused = std::future::ready(Err(Refused::Circuit(left)));
                return self.link.acquire(Box::pin(refused));
            }
        };
        let server = Arc::clone(self.client.server());
        if server.supervision.isolation == Isolation::Session {
            let (pool, restarts) = (Arc::clone(&self.core.pool), self.link.restarts());
            let occasion = Occasion {
                cause: self.cause(),
                trace: self.client.trace().cloned(),
                is_modern: self.client.transport() == Transport::Stateless,
                owner: Some(self.owner()),
                holder: self.holder(),
            };
            return self.link.acquire(Box::pin(async move {
                let started = pool.get(server, restarts, not_before, occasion).await;
                started.map(|started| Acquired::Own(Box::new(started)))
            }));
        }
        let whose = if server.supervision.isolation == Isolation::Principal {
            Whose {
                principal: Some(self.client.principal().key().into()),
                owner: self.owner(),
                holder: self.holder(),
            }
        } else {
            Whose {
                principal: None,
                owner: Owner::Tenant,
                holder: None,
            }
        };
        let revision = self.revision_of_shared();
        if !self.client.revisions().contains(&revision) {
            let refused = std::future::ready(Err(Refused::Failed("unsupported_revision")));
            return self.link.acquire(Box::pin(refused));
        }
        let Some(number) = self.number_in_shared() else {
            let refused = std::future::ready(Err(Refused::Busy));
            return self.link.acquire(Box::pin(refused));
        };
        let shares = Arc::clone(&self.core.shared_children);
        self.link.acquire(Box::pin(async move {
            let member = shares.join(server, whose, revision, number).await;
            member.map(|member| Acquired::Shared(Box::new(member)))
        }));
    }

    /// The number of the session in shared children. It comes with ids of its own, so that late answers to
    /// requests of another owner match no request of this one.
    fn number_in_shared(&mut self) -> Option<u32> {
        if let Some(number) = self.link.number() {
            return Some(number);
        }
        let caller = match self.owner() {
            Owner::Caller(name) => name,
            Owner::Tenant => "".into(),
        };
        let (number, lease) = self.core.shared_children.enlist(&caller)?;
        self.link.set_number(number);
        self.dialect.confine(lease);
        Some(number)
    }

    /// What a child that ends upon the `initialize` of this session may have ended by: the person who
    /// sent it, by any client; without authentication, what was sent.
    fn cause(&self) -> Option<Cause> {
        if let Some(person) = self.client.principal().person() {
            return Some(person.into());
        }
        let initialize = self.replay.initialize.as_ref()?;
        let params = initialize.params().unwrap_or_default();
        Some(hex(&sha256(params)).into())
    }

    /// Handles the backend that was acquired, or the refusal of one.
    pub(super) async fn backend_acquired(&mut self, acquired: Result<Acquired, Refused>) {
        match acquired {
            Ok(Acquired::Own(started)) => self.send_initialize(*started),
            Ok(Acquired::Shared(member)) => self.join_shared(member).await,
            Err(refused) => self.start_refused(&refused),
        }
    }

    /// Sends the client's `initialize` to the session's own child; a restored child is offered the
    /// revision of the session.
    fn send_initialize(&mut self, started: Started) {
        let Started { mut child, place } = started;
        let Some(initialize) = &self.replay.initialize else {
            return;
        };
        let revision = self.lifetime.revision();
        let revision = revision.or_else(|| self.offered_revision(initialize).err());
        let revision = revision.map(Revision::as_str);
        let id = self
            .dialect
            .request_as(initialize, revision, None, child.out());
        child.try_flush();
        let pulse = Arc::downgrade(self.streams.pulse());
        place.entry().on_restart(move || {
            if let Some(pulse) = pulse.upgrade() {
                pulse.notify.notify_one();
            }
        });
        let until = Instant::now() + or_never(self.client.server().clocks.start);
        self.link.begin_initialize(Own { child, place }, id, until);
        self.wake_by(self.link.silence().map_or(until, |at| at.min(until)));
    }

    /// The revision that a shared child of the session is offered: that of the session, or of its client.
    fn revision_of_shared(&self) -> Revision {
        let initialize = self.replay.initialize.as_ref();
        let requested = initialize.map(|initialize| {
            self.offered_revision(initialize)
                .unwrap_or_else(|newest| newest)
        });
        let revision = self.lifetime.revision().or(requested);
        revision.unwrap_or(Revision::V2025_11_25)
    }

    /// The revision that the client requests, or (as the error) the newest revision that the tenant
    /// allows if it does not allow the requested one (2025-11-25 lifecycle, "Version Negotiation").
    fn offered_revision(&self, initialize: &Message) -> Result<Revision, Revision> {
        let requested = initialize
            .protocol_version()
            .and_then(|span| initialize::revision(span.of(initialize.bytes())));
        let allowed = self.client.revisions();
        requested
            .filter(|requested| allowed.contains(requested))
            .ok_or(allowed.first().copied().unwrap_or(Revision::V2025_11_25))
    }

    /// Handles the response of the session's own child to `initialize`.
    pub(super) async fn child_initialized(&mut self, message: Message) {
        let Some(own) = self.link.initializing() else {
            return;
        };
        let ServerMessage::Response { id, .. } = self.dialect.line(&message, own.child.out())
        else {
            return;
        };
        let line = message.clone().into_bytes_with_id(&id);
        own.place.succeeded();
        let is_first = self.lifetime.is_starting();
        if is_first {
            let is_error = message.kind() == Kind::Error;
            let outcome = if is_error {
                Outcome::Error
            } else {
                Outcome::Result
            };
            let calls = &self.core.metrics.calls;
            calls.add(MethodClass::Initialize, outcome);
            if is_error {
                let error = message.error().unwrap_or_default();
                self.count_initialize(Some(semconv::error_type(error)), || CallError::said(error));
                self.lifetime.force_end(EndReason::Failed);
                return self.answer_start(Answer::Failed(line));
            }
        }
        let revision = message
            .result()
            .and_then(initialize::of_result)
            .filter(|revision| self.client.revisions().contains(revision));
        let capabilities = message
            .result()
            .map(initialize::capabilities)
            .unwrap_or_default();
        let Some(revision) = revision else {
            return self.child_lost(match message.kind() {
                Kind::Error => CallError::REFUSED,
                _ => CallError::REVISION,
            });
        };
        if !self.may_keep(message.result().unwrap_or_default()) {
            return self.child_lost(CallError::INVALID);
        }
        if revision.has_batches()
            && let Some(own) = self.link.initializing()
        {
            own.child.split_arrays();
        }
        if is_first {
            self.serve_own_child();
            self.count_initialize(None, || None);
            return self.begin_session(revision, capabilities, line).await;
        }
        if self.check_replacement(revision, capabilities) {
            self.serve_own_child();
            self.backend_replaced();
        }
    }

    /// Whether the result of a server is no longer than a session keeps.
    fn may_keep(&self, result: &[u8]) -> bool {
        let may_keep = initialize::is_bounded(result);
        if !may_keep {
            tracing::warn!(
                tenant.id = self.client.tenant().name,
                server.name = self.client.server().name,
                session.id = self.id.short(),
                bytes = result.len(),
                "the initialize result of a server is larger than 256 KiB, or its capabilities than 64 KiB: it is not used"
            );
        }
        may_keep
    }

    fn serve_own_child(&mut self) {
        if let Some(mut own) = self.link.take_initialized() {
            self.restore_in_own(&mut own);
            self.link.serve_own(own);
            let (sessions, fence) = (&self.core.sessions, self.lease.fence());
            sessions.gained_child(&self.id, fence);
        }
        let now = Instant::now();
        if self.link.restart().is_some() {
            // Requested while it started, before its owner could be woken.
            self.wake_by(now);
        }
        self.link.touch(now);
        let server = self.client.server();
        let (idle, ping) = (server.supervision.idle, server.clocks.ping);
        self.wake_by(now + or_never(idle).min(or_never(ping)));
    }

    /// Takes a place in a shared child, which the gateway has initialized.
    async fn join_shared(&mut self, member: Box<Member>) {
        let (capabilities, result) = {
            let mut result = initialize::without_tasks(&member.initialized.result);
            // A server without sessions asks during one call, so that a shared child of it knows whom it asks. A
            // client of its own era makes the call again itself.
            let can_ask =
                member.initialized.is_stateless && self.client.transport() != Transport::Stateless;
            let initialize = self.replay.initialize.as_ref().filter(|_| can_ask);
            self.dialect.tell_with_calls(initialize);
            if self.client.transport() != Transport::Stateless {
                result = modern::unmarked(&result);
            }
            (initialize::capabilities(&result).to_vec(), result)
        };
        let revision = member.initialized.revision;
        let Some(initializing) = self.lifetime.initializing() else {
            if !self.check_replacement(revision, &capabilities) {
                return;
            }
            self.link.serve_shared(member);
            self.restore_in_shared();
            return self.backend_replaced();
        };
        if !self.client.revisions().contains(&revision) {
            return self.start_refused(&Refused::Failed("unsupported_revision"));
        }
        // Many may wait for the start of one child, and each gets a copy.
        let Some(room) = self.streams.room_for(result.len()) else {
            return self.start_refused(&Refused::Busy);
        };
        let mut line = BytesMut::new();
        jsonrpc::push_result(&initializing.id, &result, &mut line);
        drop(result);
        self.count_initialize(None, || None);
        self.core
            .metrics
            .calls
            .add(MethodClass::Initialize, Outcome::Result);
        self.link.serve_shared(member);
        let line = room.until_dropped(line.freeze());
        self.begin_session(revision, &capabilities, line).await;
    }

    /// Makes the session ready and sends the response to `initialize`.
    async fn begin_session(&mut self, revision: Revision, capabilities: &[u8], line: Bytes) {
        self.replay.keep_capabilities(capabilities.into());
        let Some(initializing) = self.lifetime.finish_start(revision) else {
            return;
        };
        self.streams.set_revision(revision);
        tracing::info!(
            tenant.id = self.client.tenant().name,
            server.name = self.client.server().name,
            session.id = self.id.short(),
            revision = revision.as_str(),
            trace_id = initializing.trace.as_ref().map(TraceContext::trace_id),
            "session began"
        );
        let Some(reply) = initializing.reply else {
            self.record_changed();
            // The next owner takes a session without a revision for one that never began.
            let written = self.finish_recorded_call(LISTENER_STREAM, line);
            return self.handle_write(written);
        };
        self.register().await;
        if self.lifetime.is_over() {
            let _ = reply.send(Answer::Refused(STORE_AWAY));
            return;
        }
        self.publish();
        // A client that is gone does not know the id.
        if reply.send(Answer::Json(line)).is_err() {
            self.lifetime.force_end(EndReason::Deleted);
        }
    }

    /// Counts and logs the client's `initialize`, which ends now, and records its span, with the type of its error if it
    /// has one, and the `reason` of that in words.
    pub(super) fn count_initialize(
        &self,
        error: Option<&'static str>,
        reason: impl FnOnce() -> Option<String>,
    ) {
        if let Some(initializing) = self.lifetime.initializing() {
            let operation = Operation {
                method: "initialize",
                tool: None,
                error,
            };
            let elapsed = initializing.began.elapsed();
            let operations = self.client.operations();
            operations.record(operation, elapsed);
            log_operation(
                operation,
                operations.names(),
                self.id.short(),
                elapsed,
                reason,
            );
            let names = operations.names().map(|name| &**name);
            let parent = initializing.trace.as_ref();
            let traces = &self.core.traces;
            traces.ended(INITIALIZE, names, parent, elapsed, error);
        }
    }

    /// Answers an `initialize` that failed: on HTTP+SSE only with a JSON-RPC error on the listener.
    pub(super) fn answer_start(&mut self, answer: Answer) {
        let Some(initializing) = self.lifetime.abort_start() else {
            return;
        };
        match (initializing.reply, answer) {
            (Some(reply), answer) => {
                // A client that is gone needs no answer.
                let _ = reply.send(answer);
            }
            (None, Answer::Failed(line)) => self.send_to_listener(line),
            (None, _) => {}
        }
    }

    /// Answers the calls that wait for a backend, which could not be started.
    pub(super) fn start_refused(&mut self, refused: &Refused) {
        let error = CallError::of(refused);
        let initializing = self.lifetime.initializing();
        let trace = initializing.and_then(|initializing| initializing.trace.as_ref());
        tracing::warn!(
            tenant.id = self.client.tenant().name,
            server.name = self.client.server().name,
            session.id = self.id.short(),
            why = error.reason,
            trace_id = trace.map(TraceContext::trace_id),
            "no backend for the session"
        );
        if let Refused::Limit(full) = refused {
            self.core
                .metrics
                .limited
                .add(LimitName(quota(*full).0.name()));
        }
        self.link.disconnect();
        let (kind, said) = match refused {
            Refused::Answered(error) => (semconv::error_type(error), CallError::said(error)),
            _ => (error.reason, Some(error.message.to_owned())),
        };
        self.count_initialize(Some(kind), || said);
        if let Some(Initializing { id, reply, .. }) = self.lifetime.initializing() {
            let answer = match (refused, error.status, reply) {
                (Refused::Answered(error), ..) => {
                    self.core
                        .metrics
                        .calls
                        .add(MethodClass::Initialize, Outcome::Error);
                    let mut line = BytesMut::new();
                    jsonrpc::push_raw_error(id, error, &mut line);
                    Answer::Failed(line.freeze())
                }
                (_, Some(status), Some(_)) => Answer::Refused(status.error()),
                _ => Answer::Failed(self.error_line(error, id)),
            };
            self.lifetime.force_end(EndReason::Failed);
            return self.answer_start(answer);
        }
        self.fail_calls(error);
        self.end_asks();
    }
}

//! Start of a backend: at the `initialize` of a session, and again after a loss (`restore`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    lifetime::{Over, Phase},
    link::{Got, Own, State},
    task::Session,
};
use crate::{
    backend::{
        Refused, Started, Verdict,
        dialect::Said,
        shared::{CALL_BITS, Member, routing},
    },
    declare::Isolation,
    hub::{
        call::{Fault, quota},
        core::or_never,
        ownership::AWAY,
        stream::Answer,
    },
    protocol::{Kind, Message, Revision, initialize, jsonrpc},
    telemetry::{Method, Outcome},
};

impl Session {
    /// Gets a backend if there is none.
    pub(super) fn get_backend(&mut self) {
        if !matches!(self.link.state, State::Absent) {
            return;
        }
        let now = Instant::now();
        let not_before = match self.kept.crashes.ask(now) {
            Verdict::Now => None,
            Verdict::After(wait) => Some(now + wait),
            Verdict::Open(left) => {
                let refused = std::future::ready(Err(Refused::Circuit(left)));
                self.link.state = State::Waiting(Box::pin(refused));
                return;
            }
        };
        let server = Arc::clone(&self.server);
        if server.supervision.isolation == Isolation::Session {
            let (pool, restarts) = (Arc::clone(&self.core.pool), self.kept.restarts);
            self.link.state = State::Waiting(Box::pin(async move {
                let got = pool.get(server, restarts, not_before).await;
                got.map(|started| Got::Own(Box::new(started)))
            }));
            return;
        }
        let principal = (server.supervision.isolation == Isolation::Principal)
            .then(|| self.principal.key().into());
        let shares = Arc::clone(&self.core.shares);
        if self.kept.number == 0 {
            self.kept.number = shares.number();
            // No late answer to what another owner asked is taken for one to this owner.
            let owners = (self.fence.0 % 64) << (CALL_BITS - 6);
            let ids = routing::ids(self.kept.number);
            let base = ids.start() + owners;
            self.dialect.confine(ids, base);
        }
        let number = self.kept.number;
        self.link.state = State::Waiting(Box::pin(async move {
            shares
                .join(server, principal, number)
                .await
                .map(|member| Got::Shared(Box::new(member)))
        }));
    }

    /// A backend was got, or not.
    pub(super) async fn got(&mut self, got: Result<Got, Refused>) {
        match got {
            Ok(Got::Own(started)) => self.greet(*started),
            Ok(Got::Shared(member)) => self.joined(member).await,
            Err(refused) => self.refused(&refused),
        }
    }

    /// Sends the session's own child the client's `initialize`; a restored one is asked for the
    /// revision that the session has.
    fn greet(&mut self, started: Started) {
        let Started { mut child, place } = started;
        let Some(initialize) = &self.kept.initialize else {
            return;
        };
        let revision = match self.phase {
            Phase::Ready(revision) => Some(revision),
            Phase::New | Phase::Starting { .. } => self.offered(initialize).err(),
        };
        let revision = revision.map(Revision::as_str);
        let hello = self.dialect.request_as(initialize, revision, child.out());
        child.try_flush();
        let pulse = Arc::downgrade(self.streams.pulse());
        place.entry().on_restart(move || {
            if let Some(pulse) = pulse.upgrade() {
                pulse.notify.notify_one();
            }
        });
        let until = Instant::now() + or_never(self.server.clocks.start);
        self.wake_by(until);
        let own = Box::new(Own { child, place });
        self.link.state = State::Starting { own, hello, until };
    }

    /// 2025-11-25 lifecycle, "Version Negotiation": the revision that the client asks for where
    /// the tenant allows it, else (as the error) the newest that it does.
    fn offered(&self, initialize: &Message) -> Result<Revision, Revision> {
        let asked = initialize
            .protocol_version()
            .and_then(|span| initialize::revision(span.of(initialize.bytes())));
        let allowed = &self.tenant.revisions;
        asked
            .filter(|asked| allowed.contains(asked))
            .ok_or(allowed.first().copied().unwrap_or(Revision::V2025_11_25))
    }

    /// The answer of the session's own child to `initialize`.
    pub(super) async fn greeted(&mut self, message: &Message) {
        let State::Starting { own, .. } = &mut self.link.state else {
            return;
        };
        let Said::Done { line, .. } = self.dialect.line(message, own.child.out()) else {
            return;
        };
        own.place.succeeded();
        let is_first = matches!(self.phase, Phase::Starting { .. });
        if is_first {
            let is_error = message.kind() == Kind::Error;
            let outcome = if is_error {
                Outcome::Error
            } else {
                Outcome::Result
            };
            self.core.metrics.call(Method::Initialize, outcome);
            if is_error {
                self.over = Some(Over::Failed);
                return self.answer_start(Answer::Failed(line));
            }
        }
        let revision = message
            .result()
            .and_then(initialize::of_result)
            .filter(|revision| self.tenant.revisions.contains(revision));
        let capabilities = message
            .result()
            .map(initialize::capabilities)
            .unwrap_or_default();
        let Some(revision) = revision else {
            let is_refused = message.kind() == Kind::Error;
            return self.lose(if is_refused {
                Fault::REFUSED
            } else {
                Fault::REVISION
            });
        };
        if is_first {
            self.make_ready();
            return self.begin_session(revision, capabilities, line).await;
        }
        if self.is_same(revision, capabilities) {
            self.make_ready();
            self.resume();
        }
    }

    fn make_ready(&mut self) {
        let state = std::mem::replace(&mut self.link.state, State::Absent);
        if let State::Starting { own, .. } = state {
            // The state of the session precedes the lines that its client sent meanwhile.
            let mut own = own;
            if matches!(self.phase, Phase::Ready(_)) {
                let state = self.kept.session_state();
                self.dialect.restore(&state, own.child.out());
            }
            self.link.up(State::Ready(own));
        }
        self.used = Instant::now();
        self.wake_by(self.used + or_never(self.server.supervision.idle));
    }

    /// A place in a shared child, which the gateway has initialized.
    async fn joined(&mut self, member: Box<Member>) {
        let (capabilities, result) = {
            let result = initialize::without_tasks(&member.hello.result);
            (initialize::capabilities(&result).to_vec(), result)
        };
        let revision = member.hello.revision;
        let Phase::Starting { id, .. } = &self.phase else {
            // The session's revision is its own affair: the child's must not change under it.
            if !self.is_same_shared(revision, &capabilities) {
                return;
            }
            self.link.up(State::Shared(member));
            self.resume_shared();
            return self.resume();
        };
        let settled = self
            .kept
            .initialize
            .as_ref()
            .map(|initialize| self.offered(initialize).unwrap_or_else(|newest| newest));
        let settled = settled.unwrap_or(revision);
        let mut line = BytesMut::new();
        jsonrpc::push_result(id, &initialize::with_revision(&result, settled), &mut line);
        self.core.metrics.call(Method::Initialize, Outcome::Result);
        self.link.up(State::Shared(member));
        self.kept.shared = Some(revision);
        self.begin_session(settled, &capabilities, line.freeze())
            .await;
    }

    /// The session comes to be.
    async fn begin_session(&mut self, revision: Revision, capabilities: &[u8], line: Bytes) {
        self.kept.capabilities = capabilities.into();
        let Phase::Starting { reply, .. } =
            std::mem::replace(&mut self.phase, Phase::Ready(revision))
        else {
            return;
        };
        self.streams.settle(revision);
        tracing::info!(
            tenant.id = self.tenant.name,
            server.name = self.server.name,
            session.id = self.id.short(),
            revision = revision.as_str(),
            "session began"
        );
        let Some((reply, _)) = reply else {
            self.remember();
            return self.message(line);
        };
        self.register().await;
        if self.over.is_some() {
            let _ = reply.send(Answer::Refused(AWAY));
            return;
        }
        if let Some(handle) = self.handle.take() {
            let access = Arc::clone(&handle.access);
            self.core.sessions.insert(&self.id, handle);
            self.catch_up(&access);
        }
        // A client that is gone never learned the id.
        if reply.send(Answer::Json(line)).is_err() {
            self.over = Some(Over::Deleted);
        }
    }

    /// Answers an `initialize` that failed, where this transport has its answer.
    pub(super) fn answer_start(&mut self, answer: Answer) {
        let Phase::Starting { reply, .. } = std::mem::replace(&mut self.phase, Phase::New) else {
            return;
        };
        match (reply, answer) {
            (Some((reply, _)), answer) => {
                // A client that is gone needs no answer.
                let _ = reply.send(answer);
            }
            (None, Answer::Failed(line)) => self.message(line),
            (None, _) => {}
        }
    }

    /// Answers everything that waits for a backend, which could not be started.
    fn refused(&mut self, refused: &Refused) {
        let fault = Fault::of(refused);
        tracing::warn!(
            tenant.id = self.tenant.name,
            server.name = self.server.name,
            session.id = self.id.short(),
            why = fault.reason,
            "no backend for the session"
        );
        if let Refused::Limit(full) = refused {
            self.core.metrics.limited(quota(*full).0.name());
        }
        self.link.down();
        self.kept.waiting.clear();
        if let Phase::Starting { id, reply } = &self.phase {
            let answer = match (refused, fault.status, reply) {
                (Refused::Answered(error), ..) => {
                    self.core.metrics.call(Method::Initialize, Outcome::Error);
                    let mut line = BytesMut::new();
                    jsonrpc::push_raw_error(id, error, &mut line);
                    Answer::Failed(line.freeze())
                }
                (_, Some(status), Some(_)) => Answer::Refused(status.error()),
                _ => Answer::Failed(fault.line(id)),
            };
            self.over = Some(Over::Failed);
            return self.answer_start(answer);
        }
        self.fail_calls(fault);
        self.end_asks();
    }
}

//! End of a session: ends its calls and streams, stops its child, and removes its record or leaves
//! it to the next owner.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    select,
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{lifetime::EndReason, ownership::refuse, task::Session};
use crate::{
    backend::dialect::{CallId, Legacy},
    declare::Holder,
    endpoint::{OauthEndpoint, TenantHost},
    error::Error,
    hub::{
        call::{Call, CallError, Fill, FillWay, SECRET_MISSING},
        core::{Command, Transport},
        ownership::{Claim, STORE_AWAY},
        stream::{Answer, Pulse, StreamEnd},
    },
    protocol::{Lacking, json, jsonrpc},
    state::StoreError,
    telemetry::{Ended, Exit, Operation, Outcome, log_operation},
};

/// The time for the log to acknowledge the last events of a session, and for its readers to read
/// them.
const GRACE: Duration = Duration::from_millis(900);

impl Session {
    /// Ends the streams, and answers whoever waits for the session.
    fn release_clients(&mut self, reason: EndReason, has_successor: bool) {
        let end = match reason {
            EndReason::Drained | EndReason::Fenced | EndReason::Orphaned => StreamEnd::Released,
            _ => StreamEnd::Finished,
        };
        let refusal = || {
            Answer::Refused(if has_successor {
                STORE_AWAY
            } else {
                Error::NoSession
            })
        };
        if let Some(reply) = self.lease.take_initialized() {
            let _ = reply.send(refusal());
        }
        self.streams.release(end, refusal);
    }

    /// Ends calls and streams, lets readers finish, and stops the child.
    pub(super) async fn finish(
        mut self: Box<Self>,
        commands: &mut mpsc::Receiver<Command>,
        was_published: bool,
    ) {
        let reason = self.end_reason();
        let error = self.error_of_calls(reason);
        let failed = CallError::EXITED.of_start();
        self.count_initialize(Some(failed.reason), || Some(failed.message.to_owned()));
        if let Some(initializing) = self.lifetime.initializing() {
            let line = CallError::EXITED.of_start().line(&initializing.id);
            self.answer_start(Answer::Failed(line));
        }
        let claim = self.block_claims();
        self.cancel_at_shared_child().await;
        self.fail_calls(error);
        self.finish_recorded_calls(reason);
        self.flush_log().await;
        // The log has not taken them, and their servers may have executed them: a refusal would say that they can be
        // sent again.
        self.streams
            .fail_answers(|id| CallError::OWNER_LOST.line(id));
        // After the last events: without the record its owner may not write them.
        self.unregister(claim).await;
        let has_successor = self.has_successor();
        if has_successor && reason == EndReason::Drained {
            // Before its readers have gone: requests to other replicas can claim the session.
            let fence = self.lease.fence();
            let _ = self.stores.directory.release(&self.id, fence).await;
        }
        self.release_clients(reason, has_successor);
        commands.close();
        while let Ok(command) = commands.try_recv() {
            // A command that is dropped here is answered with `NoSession`.
            if has_successor {
                refuse(command, || Error::Moved);
            }
        }
        if let Some(own) = self.link.disconnect() {
            self.stop_child(own, exit(reason));
        }
        tracing::info!(
            tenant.id = self.client.tenant().name,
            server.name = self.client.server().name,
            session.id = self.id.short(),
            reason = counted(reason).into_str(),
            "session ended"
        );
        let names = [&*self.client.tenant().name, &*self.client.server().name];
        let age = self.lifetime.age();
        self.core.metrics.session_ended(counted(reason), names, age);
        if was_published || matches!(reason, EndReason::Deleted | EndReason::Revoked) {
            Self::wait_for_readers_to_go(Arc::clone(self.streams.pulse())).await;
        }
        if has_successor {
            self.stores.log.release(&self.id).await;
        } else {
            self.stores.log.forget(&self.id).await;
        }
    }

    /// Cancels the calls in flight at a child that lives on, for others.
    async fn cancel_at_shared_child(&mut self) {
        if let Some(member) = self.link.shared() {
            for call in self.calls.ids() {
                Legacy::cancel(call, "the session has ended", member.out());
            }
            // One that does not read for so long is about to be ended.
            let _ = tokio::time::timeout(GRACE, member.flush()).await;
        }
    }

    /// Cancels the calls in flight at a shared child that the session has lost, which may live on. The session goes on
    /// meanwhile.
    pub(super) fn cancel_at_lost_child(&mut self) {
        let mut lines = BytesMut::new();
        for call in self.calls.ids() {
            Legacy::cancel(call, "the session has lost its place", &mut lines);
        }
        if lines.is_empty() {
            return;
        }
        if let Some(member) = self.link.shared() {
            let sent = member.send_last(lines.freeze());
            self.core.tracker.spawn(async move {
                let _ = tokio::time::timeout(GRACE, sent).await;
            });
        }
    }

    /// Ends the calls whose responses wait for the record. Where the session goes on, its next owner may not know what
    /// they did, and a refusal would say that they can be sent again.
    fn finish_recorded_calls(&mut self, reason: EndReason) {
        let is_over = match reason {
            EndReason::Deleted
            | EndReason::Idle
            | EndReason::Expired
            | EndReason::Disconnected
            | EndReason::Lost => true,
            EndReason::Revoked
            | EndReason::Failed
            | EndReason::Drained
            | EndReason::Fenced
            | EndReason::Orphaned => false,
        };
        for (stream, mut line) in self.lease.take_responses() {
            if !is_over {
                let id = json::get(&line, "id").unwrap_or(b"null");
                line = CallError::OWNER_LOST.line(id);
            }
            let finished = self.streams.finish_call(stream, Some(line));
            self.handle_write(finished);
        }
    }

    /// The error of the calls that the end of the session ends.
    fn error_of_calls(&mut self, reason: EndReason) -> CallError {
        match reason {
            EndReason::Fenced | EndReason::Orphaned => {
                let error = CallError::OWNER_LOST;
                self.streams.close(|id| error.line(id));
                error
            }
            _ => CallError::EXITED,
        }
    }

    /// Keeps requests from claiming the session for this replica while the result is held: its
    /// record is still in the directory.
    fn block_claims(&self) -> Option<Claim> {
        let is_shared = !self.stores.owner.is_alone();
        is_shared
            .then(|| self.core.claims.begin(&self.id))
            .flatten()
    }

    fn end_reason(&self) -> EndReason {
        self.lifetime.end_reason().unwrap_or(EndReason::Lost)
    }

    /// Whether another replica continues the session.
    fn has_successor(&self) -> bool {
        let is_left = matches!(
            self.end_reason(),
            EndReason::Drained | EndReason::Fenced | EndReason::Orphaned
        );
        is_left && !self.stores.owner.is_alone() && self.lifetime.is_ready()
    }

    /// Removes the record, unless another replica continues the session.
    async fn unregister(&mut self, claim: Option<Claim>) {
        let mut is_removed = true;
        if !self.stores.owner.is_alone() && !self.has_successor() {
            let fence = self.lease.fence();
            let removed = self.stores.directory.remove(&self.id, fence).await;
            is_removed = !matches!(removed, Err(StoreError::Away));
            if !is_removed {
                self.remove_later(claim);
            }
        }
        self.lifetime
            .notify_waiters(|| is_removed.then_some(()).ok_or(STORE_AWAY));
    }

    /// Removes the record when the store is back: a session that was ended must not live on elsewhere. The
    /// claim keeps requests from continuing it here meanwhile. Each ends with the time to live of its record, or
    /// with the gateway, and there are no more of them than there were sessions, since none begins without the store.
    fn remove_later(&self, claim: Option<Claim>) {
        let (owner, directory) = (
            Arc::clone(&self.stores.owner),
            Arc::clone(&self.stores.directory),
        );
        let (id, fence) = (self.id.clone(), self.lease.fence());
        let (drain, halt) = (self.core.drain.clone(), self.core.halt.clone());
        let removed = tokio::time::timeout(self.ttl(), async move {
            let _claim = claim;
            while let Err(StoreError::Away) = directory.remove(&id, fence).await {
                owner.renewed().await;
            }
        });
        self.core.tracker.spawn(async move {
            let ends = async {
                drain.cancelled().await;
                sleep(GRACE).await;
            };
            select! {
                _ = removed => {}
                () = ends => {}
                () = halt.cancelled() => {}
            }
        });
    }

    /// Waits until the log has acknowledged the last writes.
    async fn flush_log(&mut self) {
        let deadline = Instant::now() + GRACE;
        while !self.streams.is_flushed() {
            let written = tokio::time::timeout_at(deadline, self.streams.written()).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Waits until all readers are gone. Readers hold the pulse: at two references, only the session
    /// and this function hold it.
    async fn wait_for_readers_to_go(pulse: Arc<Pulse>) {
        let deadline = Instant::now() + GRACE;
        while Arc::strong_count(&pulse) > 2 {
            if tokio::time::timeout_at(deadline, pulse.notify.notified())
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// The response to a request that ends with an error of the gateway.
    pub(super) fn error_line(&self, error: CallError, id: &[u8]) -> Bytes {
        let server = self.client.server();
        if error.reason == SECRET_MISSING {
            return error.line_of_slots(id, &server.slots, self.fill().as_ref());
        }
        let failure = error.is_of_start.then(|| self.core.pool.failure(server));
        match failure.flatten() {
            Some(failure) => error.line_of_start(id, &failure, self.core.config.is_run),
            None => error.line(id),
        }
    }

    /// Where the caller fills the slots of the server; none where an administrator does.
    fn fill(&self) -> Option<Fill> {
        let (tenant, server) = (self.client.tenant(), self.client.server());
        if !self.client.has_account_page() || !server.has_slots(Holder::Principal) {
            return None;
        }
        let initialize = self.replay.initialize.as_ref();
        let capabilities = initialize
            .and_then(|initialize| json::get(initialize.params()?, "capabilities"))
            .and_then(|capabilities| json::get(capabilities, "elicitation"));
        let visits_urls = capabilities.is_some_and(|modes| json::get(modes, "url").is_some());
        let is_stateless = self.client.transport() == Transport::Stateless;
        let way = match (visits_urls, is_stateless) {
            (true, true) => FillWay::Input,
            // A client whose session has not begun has declared it, and cannot be asked for anything yet.
            (true, false) if self.lifetime.is_ready() => FillWay::Required,
            _ => FillWay::Text,
        };
        // Each host has cookies of its own, so the person is logged in there.
        let host = self.client.host().map(TenantHost::url);
        let site = host.unwrap_or(&self.core.config.public_url);
        let url = OauthEndpoint::Account.url(site, &tenant.name);
        Some(Fill { url, way })
    }

    /// Ends every call in flight with an error of the gateway.
    pub(super) fn fail_calls(&mut self, error: CallError) {
        for call in self.calls.ids() {
            self.fail_call(call, error);
        }
    }

    /// Counts a call that ended, with the type of its error and its `reason` in words if it has
    /// one, logs it, ends its spans, and writes its audit record if the server has `audit_calls`.
    pub(super) fn count_call(
        &mut self,
        call: &mut Call,
        outcome: Outcome,
        error: Option<&'static str>,
        reason: impl FnOnce() -> Option<String>,
    ) {
        // Its client may fetch the response for as long as after a request.
        self.lifetime.touch();
        self.core.metrics.calls.add(call.class, outcome);
        let operation = Operation {
            method: call.method,
            tool: call.tool.as_deref(),
            error,
        };
        let elapsed = call.began.elapsed();
        let operations = self.client.operations();
        let tool = operations.record(operation, elapsed);
        log_operation(
            operation,
            operations.names(),
            self.id.short(),
            elapsed,
            reason,
        );
        if let Some(spans) = call.spans.take() {
            spans.end(tool.as_ref(), error);
        }
        if let Some(audited) = &call.audited {
            let record = audited.record(
                self.client.server(),
                self.client.principal(),
                &self.id,
                outcome,
            );
            self.core.audit.add_call(record);
        }
    }

    /// Ends the only call of a client without sessions whose server asked for what the client did not
    /// declare: "the server MUST return a `MissingRequiredClientCapabilityError`" (2026-07-28 basic,
    /// "Per-request protocol fields"). Of several calls none is known to be the one; then the refusal of
    /// the request is all that the server gets, as in a session.
    pub(super) fn end_for_lack_of(&mut self, capability: &str) {
        let only = self.calls.only();
        let Some(call) = only.filter(|_| self.client.transport() == Transport::Stateless) else {
            return;
        };
        let why = "the client lacks a capability";
        Legacy::cancel(call, why, self.link.out());
        self.link.try_flush();
        let ended = self.calls.end(call).zip(self.dialect.abandon(call));
        let Some((mut ended, id)) = ended else { return };
        self.link.set_calls(self.calls.count());
        let message = || Some(why.to_owned());
        self.count_call(&mut ended, Outcome::Error, Some("-32021"), message);
        let data = Lacking::data(capability);
        let mut line = BytesMut::new();
        let (code, text) = (Lacking::CODE, Lacking::MESSAGE);
        jsonrpc::push_error(&id, code, text, Some(&data), &mut line);
        let finished = self.streams.finish_call(ended.stream, Some(line.freeze()));
        self.handle_write(finished);
    }

    /// Ends a call in flight whose response is none. A server without sessions may ask before it answers, so the
    /// request is kept beside it until its answer, which never comes: the call is cancelled there.
    pub(super) fn fail_invalid_call(&mut self, call: CallId) {
        if self.link.is_stateless() && self.calls.is_open(call) {
            Legacy::cancel(call, "its answer is no response", self.link.out());
            self.link.try_flush();
        }
        self.fail_call(call, CallError::INVALID);
    }

    /// Ends a call in flight with an error of the gateway.
    pub(super) fn fail_call(&mut self, call: CallId, error: CallError) {
        let ended = self.calls.end(call).zip(self.dialect.abandon(call));
        let Some((mut ended, id)) = ended else { return };
        self.abandon_subscription(call, &ended.effect);
        self.link.set_calls(self.calls.count());
        let outcome = if error.reason == CallError::TIMEOUT.reason {
            Outcome::TimedOut
        } else {
            Outcome::Lost
        };
        let message = || Some(error.message.to_owned());
        self.count_call(&mut ended, outcome, Some(error.reason), message);
        let line = self.error_line(error, &id);
        let finished = match error.status {
            // A call that no backend has seen is refused with a status if no headers were sent yet.
            Some(status) => self.streams.refuse_call(ended.stream, line, status.error()),
            None => self.streams.finish_call(ended.stream, Some(line)),
        };
        self.handle_write(finished);
    }
}

/// The reason of the end of the child, for the metrics.
const fn exit(reason: EndReason) -> Exit {
    match reason {
        EndReason::Lost => Exit::Crashed,
        EndReason::Failed => Exit::FailedStart,
        EndReason::Idle | EndReason::Expired | EndReason::Disconnected => Exit::Idle,
        EndReason::Deleted
        | EndReason::Revoked
        | EndReason::Drained
        | EndReason::Fenced
        | EndReason::Orphaned => Exit::Stopped,
    }
}

/// The label of the end, for the metrics.
const fn counted(reason: EndReason) -> Ended {
    match reason {
        EndReason::Deleted => Ended::Deleted,
        EndReason::Revoked => Ended::Revoked,
        EndReason::Idle => Ended::Idle,
        EndReason::Expired => Ended::Expired,
        EndReason::Disconnected => Ended::Disconnected,
        EndReason::Lost | EndReason::Failed => Ended::Lost,
        EndReason::Drained => Ended::Drained,
        EndReason::Fenced => Ended::Fenced,
        EndReason::Orphaned => Ended::Orphaned,
    }
}

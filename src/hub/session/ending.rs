//! End of a session: its calls and streams end, its child stops, and its record is removed or
//! left to the next owner.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::{
    lease::refuse,
    lifetime::{Over, Phase},
    task::Session,
};
use crate::{
    backend::dialect::CallId,
    error::Error,
    hub::{
        call::{Call, Fault},
        core::Command,
        ownership::{AWAY, Claiming},
        stream::{Answer, Pulse, StreamEnd},
    },
    telemetry::{Ended, Exit, Outcome},
};

/// The time of the readers of an ended session for the rest of the log.
const LAST_WORDS: Duration = Duration::from_millis(900);

impl Session {
    /// Ends calls and streams, lets readers finish, and stops the child.
    pub(crate) async fn finish(
        mut self: Box<Self>,
        commands: &mut mpsc::Receiver<Command>,
        was_kept: bool,
    ) {
        let over = self.over.unwrap_or(Over::Lost);
        let fault = match over {
            Over::Fenced | Over::Orphaned => {
                // Held responses are answered here; the log is another owner's.
                self.streams.close();
                Fault::OWNER_LOST
            }
            _ => Fault::EXITED,
        };
        if let Phase::Starting { id, .. } = &self.phase {
            let line = Fault::EXITED.of_start().line(id);
            self.answer_start(Answer::Failed(line));
        }
        let ending = self.keep_off();
        self.fail_calls(fault);
        self.flush_log().await;
        // After the last events: with its entry goes its owner's right to write them.
        self.unregister().await;
        drop(ending);
        let is_left = self.is_left();
        if is_left && over == Over::Drained {
            // Before its readers have gone: requests to other replicas find it free.
            let _ = self.core.directory.release(&self.id, self.fence).await;
        }
        let end = match over {
            Over::Drained | Over::Fenced | Over::Orphaned => StreamEnd::Released,
            _ => StreamEnd::Finished,
        };
        self.streams.release(end, || {
            Answer::Refused(if is_left { AWAY } else { Error::NoSession })
        });
        commands.close();
        while let Ok(command) = commands.try_recv() {
            // It goes on elsewhere; else what is dropped here is told that there is no session.
            if is_left {
                refuse(command, || Error::Moved);
            }
        }
        if let Some(own) = self.link.down() {
            self.end_child(own, exit(over));
        }
        tracing::info!(
            tenant.id = self.tenant.name, server.name = self.server.name,
            session.id = self.id.short(), reason = ?over, "session ended"
        );
        self.core.metrics.session_ended(counted(over));
        if was_kept || matches!(over, Over::Deleted | Over::Revoked) {
            Self::last_words(Arc::clone(self.streams.pulse())).await;
        }
        if is_left {
            self.core.log.release(&self.id).await;
        } else {
            self.core.log.forget(&self.id).await;
        }
    }

    /// Keeps requests from claiming the session for this replica while the result is held: its
    /// entry in the directory goes only now.
    fn keep_off(&self) -> Option<Claiming> {
        let is_shared = !self.core.owner.is_alone();
        is_shared
            .then(|| self.core.claims.begin(&self.id))
            .flatten()
    }

    /// Whether the session goes on at another replica.
    fn is_left(&self) -> bool {
        let over = self.over.unwrap_or(Over::Lost);
        let is_left = matches!(over, Over::Drained | Over::Fenced | Over::Orphaned);
        is_left && !self.core.owner.is_alone() && matches!(self.phase, Phase::Ready(_))
    }

    /// Lets the other replicas forget it, if it does not go on there.
    async fn unregister(&mut self) {
        if !self.core.owner.is_alone() && !self.is_left() {
            // A store that is away forgets it when its time has passed.
            let _ = self.core.directory.remove(&self.id, self.fence).await;
        }
        for ended in self.ended.drain(..) {
            let _ = ended.send(());
        }
    }

    /// Waits until the log has acknowledged the last writes.
    async fn flush_log(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        while !self.streams.is_kept() {
            let written = tokio::time::timeout_at(deadline, self.streams.written()).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Readers hold the pulse; when only the session and this wait do, all of them are gone.
    async fn last_words(pulse: Arc<Pulse>) {
        let deadline = Instant::now() + LAST_WORDS;
        while Arc::strong_count(&pulse) > 2 {
            if tokio::time::timeout_at(deadline, pulse.notify.notified())
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Ends every call in flight with an error of the gateway.
    pub(super) fn fail_calls(&mut self, fault: Fault) {
        for call in self.calls.ids() {
            self.fail_call(call, fault);
        }
    }

    /// Counts a call that ended, and puts it on record where the server asks for that.
    pub(super) fn call_ended(&mut self, call: &Call, outcome: Outcome) {
        // Its client may come back for the result for as long as after a request.
        self.touched = Instant::now();
        self.core.metrics.call(call.class, outcome);
        if let Some(audited) = &call.audited {
            let record = audited.record(&self.server, &self.principal, &self.id, outcome);
            self.core.audit.add(record);
        }
    }

    /// Ends a call in flight with an error of the gateway.
    pub(super) fn fail_call(&mut self, call: CallId, fault: Fault) {
        let ended = self.calls.end(call).zip(self.dialect.abandon(call));
        let Some((ended, id)) = ended else { return };
        self.unanswered(call, &ended.effect);
        self.link.set_calls(self.calls.count());
        let outcome = if fault.reason == Fault::TIMEOUT.reason {
            Outcome::TimedOut
        } else {
            Outcome::Lost
        };
        self.call_ended(&ended, outcome);
        let line = fault.line(&id);
        let finished = match fault.status {
            // A call that no backend has seen is refused as a whole, if no headers were sent yet.
            Some(status) => self.streams.refuse_call(ended.stream, line, status.error()),
            None => self.streams.finish_call(ended.stream, Some(line)),
        };
        self.stored(finished);
    }
}

/// Why its child ends.
const fn exit(over: Over) -> Exit {
    match over {
        Over::Lost => Exit::Crashed,
        Over::Failed => Exit::FailedStart,
        Over::Idle | Over::Expired | Over::Disconnected => Exit::Idle,
        Over::Deleted | Over::Revoked | Over::Drained | Over::Fenced | Over::Orphaned => {
            Exit::Stopped
        }
    }
}

/// How it is counted.
const fn counted(over: Over) -> Ended {
    match over {
        Over::Deleted => Ended::Deleted,
        Over::Revoked => Ended::Revoked,
        Over::Idle => Ended::Idle,
        Over::Expired => Ended::Expired,
        Over::Disconnected => Ended::Disconnected,
        Over::Lost | Over::Failed => Ended::Lost,
        Over::Drained => Ended::Drained,
        Over::Fenced => Ended::Fenced,
        Over::Orphaned => Ended::Orphaned,
    }
}

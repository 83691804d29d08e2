//! Ownership of a session: the insertion and the writes of its record in the directory, and the wait
//! after a lapse of the lease or a loss of the store's data.
//!
//! During the wait the child is not read and nothing is sent. Once the store answers, the fence of
//! the session is read: the session continues if the fence is unchanged, and ends if it belongs to
//! another owner.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{lease::is_served, lifetime::EndReason, record::SessionRecord, task::Session};
use crate::{
    error::Error,
    hub::{
        core::{Command, Transport, or_never},
        ownership::STORE_AWAY,
        stream::Answer,
    },
    protocol::StreamId,
    state::{Record, StoreError},
};

/// The time between two attempts to read a fence.
const RETRY: Duration = Duration::from_millis(250);

impl Session {
    /// Whether this replica may serve the session now.
    pub(super) fn may_serve(&self) -> bool {
        is_served(&self.stores.owner, self.streams.pulse())
    }

    /// Handles the result of a write to the event log.
    pub(super) fn handle_write(&mut self, written: Result<(), StoreError>) {
        match written {
            Ok(()) => {}
            Err(StoreError::Flushed | StoreError::Away) => self.suspend(),
            Err(StoreError::Fenced) if !self.stores.owner.is_alone() => {
                self.lifetime.end(EndReason::Fenced);
            }
            Err(error @ (StoreError::Fenced | StoreError::Trimmed { .. })) => {
                tracing::error!(session.id = self.id.short(), %error, "the event log failed");
                self.lifetime.end(EndReason::Lost);
            }
        }
    }

    /// Suspends the session until its fence is read.
    fn suspend(&self) {
        // The lease never lapses as often.
        self.set_confirmed(u32::MAX);
    }

    /// Waits until the session may be served, or is over.
    pub(super) async fn wait_for_lease(&mut self, commands: &mut mpsc::Receiver<Command>) {
        let began = Instant::now();
        let patience = self.core.patience;
        let orphaned = began + or_never(patience.orphan_after);
        let mut close = Some(began + or_never(patience.close_after));
        let mut retry = began;
        let halt = self.core.halt.clone();
        while !self.lifetime.is_over() {
            let is_valid = self.stores.owner.is_valid();
            if is_valid && retry <= Instant::now() {
                if self.confirm().await.is_ok() {
                    break;
                }
                retry = Instant::now() + RETRY;
            }
            select! {
                biased;
                () = halt.cancelled() => self.lifetime.force_end(EndReason::Drained),
                () = sleep_until(orphaned) => self.lifetime.force_end(EndReason::Orphaned),
                () = sleep_until(close.unwrap_or(orphaned)), if close.is_some() => {
                    close = None;
                    self.streams.disconnect_all();
                    if let Some(reply) = self.lease.take_initialized() {
                        // Refused as what comes now is: its client may send it again.
                        let _ = reply.send(Answer::Refused(STORE_AWAY));
                    }
                }
                Some(command) = commands.recv() => match command {
                    // A lost access takes effect without the store.
                    Command::Change(access) => self.change_access(access.as_deref()),
                    // The store may be away for minutes, and another replica may be its owner by then.
                    Command::End(done) | Command::Drain(done) => _ = done.send(Err(STORE_AWAY)),
                    command => {
                        refuse(command, || STORE_AWAY);
                        self.end_unborn();
                    }
                },
                () = sleep_until(retry), if is_valid => {}
                () = self.stores.owner.renewed() => {}
            }
        }
        if !self.lifetime.is_over() {
            // The child was not read meanwhile: the clocks of calls start again.
            self.calls.restart(Instant::now());
            self.streams.wake();
            self.retry_record();
        }
    }

    /// Ends a session whose `initialize` was refused: its client does not know it, and begins another one.
    fn end_unborn(&mut self) {
        if self.lifetime.is_new() && self.client.transport() != Transport::Sse2024 {
            self.lifetime.end(EndReason::Failed);
        }
    }

    /// Reads the owner of the session.
    async fn confirm(&mut self) -> Result<(), StoreError> {
        if !self.lease.is_registered() {
            return self.confirm_unregistered().await;
        }
        let (mut lapses, stores) = (self.stores.owner.lapses(), &self.stores);
        let found = stores.directory.find(&self.id).await?;
        match found {
            Some(found)
                if found.record.owner.as_ref() == Some(&stores.owner.me)
                    && found.record.fence == self.lease.fence() =>
            {
                let epoch = stores.owner.epoch();
                self.streams.resume(epoch);
            }
            Some(_) => self.lifetime.force_end(EndReason::Fenced),
            None => {
                let epoch = stores.owner.beat().await?.epoch;
                if epoch == self.streams.epoch() {
                    // Another owner had it meanwhile and removed it.
                    self.lifetime.force_end(EndReason::Fenced);
                } else if !self.register_again(epoch).await? {
                    self.lifetime.force_end(EndReason::Fenced);
                }
                lapses = self.stores.owner.lapses();
            }
        }
        self.set_confirmed(lapses);
        Ok(())
    }

    /// The same for a session that the directory does not have yet: nobody else can own it.
    async fn confirm_unregistered(&mut self) -> Result<(), StoreError> {
        let epoch = self.stores.owner.beat().await?.epoch;
        self.streams.resume(epoch);
        self.set_confirmed(self.stores.owner.lapses());
        Ok(())
    }

    pub(super) fn set_confirmed(&self, lapses: u32) {
        let confirmed = &self.streams.pulse().confirmed;
        confirmed.store(lapses, Ordering::Release);
    }
}

/// The time to live of the record of a session without an idle time.
const DAY: Duration = Duration::from_secs(86_400);

impl Session {
    fn encoded_record(&self) -> Bytes {
        let revision = self.lifetime.revision();
        SessionRecord::encode(self.client.transport(), revision, &self.replay)
    }

    /// The time to live of the record.
    pub(super) fn ttl(&self) -> Duration {
        let idle = self.core.config.session.idle;
        if idle.is_zero() { DAY } else { idle }
    }

    fn directory_record(&self) -> Record {
        Record {
            principal: self.client.principal().key().into(),
            server: self.client.server().name.clone(),
            owner: Some(self.stores.owner.me.clone()),
            fence: self.lease.fence(),
            kept: self.encoded_record(),
            ttl: self.ttl(),
            age: self.lifetime.age(),
        }
    }

    /// Inserts the record into the directory before the client learns the id of the session. Ends
    /// the session if that fails.
    pub(super) async fn register(&mut self) {
        if self.stores.owner.is_alone() {
            return;
        }
        let epoch = self.streams.epoch();
        let record = self.directory_record();
        let inserted = self.stores.directory.insert(&self.id, record, epoch).await;
        match inserted {
            Ok(true) => {
                self.lease.inserted();
                self.streams.announce();
            }
            Ok(false) | Err(_) => self.lifetime.force_end(EndReason::Failed),
        }
    }

    /// Inserts the record again into a store that lost it.
    async fn register_again(&mut self, epoch: u32) -> Result<bool, StoreError> {
        let record = self.directory_record();
        let directory = &self.stores.directory;
        if !directory.insert(&self.id, record, epoch).await? {
            return Ok(false);
        }
        self.lease.inserted();
        self.streams.renew(epoch);
        Ok(true)
    }

    /// Writes the record, which has changed.
    pub(super) fn record_changed(&mut self) {
        if !self.stores.owner.is_alone() {
            self.lease.mark_changed();
            self.write_record(Instant::now());
        }
    }

    /// Ends a call whose effect another owner would have to know: the response waits until the
    /// record is written.
    pub(super) fn finish_recorded_call(
        &mut self,
        stream: StreamId,
        line: Bytes,
    ) -> Result<(), StoreError> {
        if !self.lease.is_writing() {
            return self.streams.finish_call(stream, Some(line));
        }
        self.lease.hold_response(stream, line);
        Ok(())
    }

    /// Accepts a message that its client does not send again, if it was the one that initialized the session: only
    /// when the record is written, or the next owner would start a child that is never initialized.
    pub(super) fn accept_recorded(
        &mut self,
        was_initialized: bool,
        reply: oneshot::Sender<Answer>,
    ) {
        if !was_initialized && self.replay.is_initialized && self.lease.is_writing() {
            self.lease.hold_initialized(reply);
        } else {
            let _ = reply.send(Answer::Accepted);
        }
    }

    /// Writes the changes of the record, or extends its time to live, unless a write is under way.
    /// Returns the time of the next write.
    pub(super) fn write_record(&mut self, now: Instant) -> Option<Instant> {
        let ttl = self.ttl();
        let due = self.lease.due(now, ttl)?;
        if due > now {
            return Some(due);
        }
        let changed = self.lease.is_changed().then(|| self.encoded_record());
        let directory = Arc::clone(&self.stores.directory);
        let (id, fence) = (self.id.clone(), self.lease.fence());
        let write = Box::pin(async move { directory.keep(&id, fence, changed).await });
        Some(self.lease.begin_write(now, ttl, write))
    }

    /// Handles the end of a write of the record.
    pub(super) fn record_written(&mut self, written: Result<(), StoreError>) {
        self.lease.end_write();
        match written {
            Ok(()) if self.lease.is_changed() => _ = self.write_record(Instant::now()),
            Ok(()) => {
                if let Some(reply) = self.lease.take_initialized() {
                    // A client that is gone needs no answer.
                    let _ = reply.send(Answer::Accepted);
                }
                for (stream, line) in self.lease.take_responses() {
                    let finished = self.streams.finish_call(stream, Some(line));
                    self.handle_write(finished);
                }
            }
            // The lease decides when the session stops; until then the write is retried.
            Err(StoreError::Away) => {
                self.lease.mark_changed();
                self.wake_by(Instant::now() + Duration::from_secs(1));
            }
            // The record is another owner's, or lost with the data of the store.
            Err(_) => {
                self.lease.mark_changed();
                self.suspend();
            }
        }
    }

    /// Writes the changes that could not be written without a lease.
    fn retry_record(&mut self) {
        if self.lease.is_changed() {
            self.write_record(Instant::now());
        }
    }
}

/// Refuses a command that needs the lease; the sender of another one sees that it is dropped.
pub(super) fn refuse(command: Command, error: impl Fn() -> Error) {
    match command {
        Command::Deliver(delivery) => {
            // A client that is gone needs no answer.
            let _ = delivery.reply.send(Answer::Refused(error()));
        }
        Command::Attach(attach) => {
            let _ = attach.reply.send(Err(error()));
        }
        Command::End(_) | Command::Drain(_) | Command::Change(_) | Command::GiveUp(..) => {}
    }
}

//! Lease of a session: its record in the directory, and the wait after a lapse of the lease or a
//! loss of the store's data.
//!
//! During the wait the child is not read and nothing is sent. Once the store answers, the fence of
//! the session is read: if it is unchanged, the session goes on; if it is another's, it ends.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    select,
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    lifetime::{Over, Phase},
    record::{RENEWALS, Remembered},
    serving::is_served,
    task::Session,
};
use crate::{
    error::Error,
    hub::{
        core::{Command, or_never},
        ownership::AWAY,
        stream::Answer,
    },
    protocol::StreamId,
    state::{Record, StoreError},
};

/// Between two attempts to read a fence.
const AGAIN: Duration = Duration::from_millis(250);

impl Session {
    /// Whether this replica may serve the session now.
    pub(crate) fn may_serve(&self) -> bool {
        is_served(&self.core.owner, self.streams.pulse())
    }

    /// Handles the result of a write to the store.
    pub(crate) fn stored(&mut self, done: Result<(), StoreError>) {
        match done {
            Ok(()) => {}
            Err(StoreError::Flushed | StoreError::Away) => self.doubt(),
            Err(StoreError::Fenced) if !self.core.owner.is_alone() => {
                self.over.get_or_insert(Over::Fenced);
            }
            Err(error @ (StoreError::Fenced | StoreError::Trimmed { .. })) => {
                tracing::error!(session.id = self.id.short(), %error, "the event log failed");
                self.over.get_or_insert(Over::Lost);
            }
        }
    }

    /// From now on nothing is served before the fence is read.
    pub(crate) fn doubt(&self) {
        // So many lapses never happen.
        self.confirmed(u32::MAX);
    }

    /// Waits until the session may be served, or is over.
    pub(crate) async fn stand_still(&mut self, commands: &mut mpsc::Receiver<Command>) {
        let began = Instant::now();
        let patience = self.core.patience;
        let orphaned = began + or_never(patience.orphan_after);
        let (mut close, mut put_off) = (Some(began + or_never(patience.close_after)), Vec::new());
        let mut again = began;
        let halt = self.core.halt.clone();
        while self.over.is_none() {
            let is_valid = self.core.owner.is_valid();
            if is_valid && again <= Instant::now() {
                if self.confirm().await.is_ok() {
                    break;
                }
                again = Instant::now() + AGAIN;
            }
            select! {
                biased;
                () = halt.cancelled() => self.over = Some(Over::Drained),
                () = sleep_until(orphaned) => self.over = Some(Over::Orphaned),
                () = sleep_until(close.unwrap_or(orphaned)), if close.is_some() => {
                    close = None;
                    self.streams.send_away();
                }
                Some(command) = commands.recv() => match command {
                    // A lost access takes effect without the store.
                    Command::Change(access) => self.change(access.as_deref()),
                    command => put_off.extend(refuse(command, || AWAY)),
                },
                () = sleep_until(again), if is_valid => {}
                () = self.core.owner.renewed() => {}
            }
        }
        if self.over.is_none() {
            // The child was not read meanwhile: the clocks of calls begin anew.
            self.calls.restart(Instant::now());
            self.streams.wake();
            self.keep_again();
            for command in put_off {
                self.command(command).await;
            }
        }
    }

    /// Reads whose the session is.
    async fn confirm(&mut self) -> Result<(), StoreError> {
        let (mut lapses, core) = (self.core.owner.lapses(), &self.core);
        let found = core.directory.find(&self.id).await?;
        match found {
            Some(found)
                if found.record.owner.as_ref() == Some(&core.owner.me)
                    && found.record.fence == self.fence =>
            {
                if core.owner.epoch() != self.streams.epoch() {
                    let epoch = core.owner.epoch();
                    self.streams.renew(epoch);
                }
            }
            Some(_) => self.over = Some(Over::Fenced),
            None => {
                let epoch = core.owner.beat().await?.epoch;
                if epoch == self.streams.epoch() {
                    // Another owner had it meanwhile and removed it.
                    self.over = Some(Over::Fenced);
                } else if !self.register_again(epoch).await? {
                    self.over = Some(Over::Fenced);
                }
                lapses = self.core.owner.lapses();
            }
        }
        self.confirmed(lapses);
        Ok(())
    }

    fn confirmed(&self, lapses: u32) {
        let confirmed = &self.streams.pulse().confirmed;
        confirmed.store(lapses, Ordering::Release);
    }
}

/// For how long a session that never idles outlives its owner's last sign.
const DAY: Duration = Duration::from_secs(86_400);

impl Session {
    fn remembered(&self) -> Bytes {
        let revision = match self.phase {
            Phase::Ready(revision) => Some(revision),
            Phase::New | Phase::Starting { .. } => None,
        };
        Remembered::of(self.transport, revision, &self.kept)
    }

    fn ttl(&self) -> Duration {
        let idle = self.core.config.session.idle;
        if idle.is_zero() { DAY } else { idle }
    }

    fn record(&self) -> Record {
        Record {
            principal: self.principal.key().into(),
            server: self.server.name.clone(),
            owner: Some(self.core.owner.me.clone()),
            fence: self.fence,
            kept: self.remembered(),
            ttl: self.ttl(),
            age: self.born.elapsed(),
        }
    }

    /// Lets other replicas know of the session, before its client does. Ends it if that cannot be.
    pub(super) async fn register(&mut self) {
        if self.core.owner.is_alone() {
            return;
        }
        let epoch = self.streams.epoch();
        let record = self.record();
        let inserted = self.core.directory.insert(&self.id, record, epoch).await;
        match inserted {
            Ok(true) => {
                self.keeping.inserted();
                let announced = self.streams.announce();
                self.stored(announced);
            }
            Ok(false) | Err(_) => self.over = Some(Over::Failed),
        }
    }

    /// Registers the session again in a store that lost it.
    pub(crate) async fn register_again(&mut self, epoch: u32) -> Result<bool, StoreError> {
        let record = self.record();
        let directory = &self.core.directory;
        if !directory.insert(&self.id, record, epoch).await? {
            return Ok(false);
        }
        self.keeping.inserted();
        self.streams.renew(epoch);
        Ok(true)
    }

    /// Notes that the record has changed.
    pub(super) fn remember(&mut self) {
        if !self.core.owner.is_alone() {
            self.keeping.changed();
            self.keep_record(Instant::now());
        }
    }

    /// Ends a call whose effect another owner would have to know: the answer comes behind it.
    pub(super) fn finish_kept(&mut self, stream: StreamId, line: Bytes) -> Result<(), StoreError> {
        if !self.keeping.is_under_way() {
            return self.streams.finish_call(stream, Some(line));
        }
        self.keeping.hold(stream, line);
        Ok(())
    }

    /// Writes what changed, or that the session lives, unless a write is under way. Returns when
    /// to come again.
    pub(super) fn keep_record(&mut self, now: Instant) -> Option<Instant> {
        let ttl = self.ttl();
        let due = self.keeping.due(now, ttl)?;
        if due > now {
            return Some(due);
        }
        let kept = self.keeping.is_changed().then(|| self.remembered());
        let directory = Arc::clone(&self.core.directory);
        let (id, fence) = (self.id.clone(), self.fence);
        let writing = Box::pin(async move { directory.keep(&id, fence, kept).await });
        self.keeping.begin(now, writing);
        Some(now + ttl / RENEWALS)
    }

    /// Handles the end of a write to the record.
    pub(super) fn record_kept(&mut self, kept: Result<(), StoreError>) {
        self.keeping.ended();
        match kept {
            Ok(()) if self.keeping.is_changed() => _ = self.keep_record(Instant::now()),
            Ok(()) => {
                for (stream, line) in self.keeping.release() {
                    let finished = self.streams.finish_call(stream, Some(line));
                    self.stored(finished);
                }
            }
            // The lease says what is to be done; until then it is tried again.
            Err(StoreError::Away) => {
                self.keeping.changed();
                self.wake_by(Instant::now() + Duration::from_secs(1));
            }
            // Another's, or lost with all that the store had: whose it is has to be read.
            Err(_) => {
                self.keeping.changed();
                self.doubt();
            }
        }
    }

    /// Writes the changes that could not be written without a lease.
    pub(crate) fn keep_again(&mut self) {
        if self.keeping.is_changed() {
            self.keep_record(Instant::now());
        }
    }
}

/// Refuses a command that needs the lease; returns one that can wait.
pub(crate) fn refuse(command: Command, why: impl Fn() -> Error) -> Option<Command> {
    match command {
        Command::Deliver(delivery) => {
            // A client that is gone needs no answer.
            let _ = delivery.reply.send(Answer::Refused(why()));
            None
        }
        Command::Attach { reply, .. } => {
            let _ = reply.send(Err(why()));
            None
        }
        other => Some(other),
    }
}

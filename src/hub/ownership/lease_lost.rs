//! A session whose replica may not serve it for now: its lease lapsed, or the store lost what it
//! had (DESIGN section 5, "Fenced and cut off are different").
//!
//! Its child is not read and nothing is sent. Once the store answers, the session's fence is read:
//! unchanged, it goes on where it was; another's, it ends at once.

use std::{future::poll_fn, sync::atomic::Ordering, task::Poll, time::Duration};

use tokio::{
    select,
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::owner::{AWAY, Owner};
use crate::hub::{
    Answer,
    session::{Command, Over, Session, task::or_never},
    stream::Pulse,
};
use crate::{error::Error, state::StoreError};

/// Between two attempts to read a fence.
const AGAIN: Duration = Duration::from_millis(250);

impl Session {
    /// Whether this replica may serve the session now.
    pub(crate) fn may_serve(&self) -> bool {
        is_served(&self.core.owner, self.streams.pulse())
    }

    /// What the store did not do.
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
                    // Who may not use it any more waits for no store.
                    Command::Change(access) => self.change(access.as_deref()),
                    command => put_off.extend(refuse(command, || AWAY)),
                },
                () = sleep_until(again), if is_valid => {}
                () = self.core.owner.renewed() => {}
            }
        }
        if self.over.is_none() {
            // Nobody was read meanwhile: what waited for an answer waits on.
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
                    // It was removed by somebody who had it meanwhile.
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

/// Waits until a session may not be served any more.
///
/// Nothing wakes it: it is looked at whenever the session's task is woken, before what woke it. A
/// replica that was frozen finds ready what came meanwhile, for a session that may be another's now.
pub(crate) async fn lapse(owner: &Owner, pulse: &Pulse) {
    poll_fn(|_| {
        if is_served(owner, pulse) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

fn is_served(owner: &Owner, pulse: &Pulse) -> bool {
    owner.serves(pulse.confirmed.load(Ordering::Acquire))
}

/// Refuses what wants to be served; returns what can wait.
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

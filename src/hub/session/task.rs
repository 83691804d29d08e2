//! Task of a session: the owner of its backend, its dialect, its calls and its streams.
//!
//! Everything that happens to a session happens here, in one loop, one thing at a time.
//! Others send it commands over a bounded channel; readers of its streams wake it by a pulse.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    pin, select,
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    lifetime::{Over, Phase},
    link::Link,
    record::{Adopted, Keeping, Kept},
    serving::lapse,
};
use crate::{
    auth::{Access, Principal},
    backend::dialect::Dialect,
    declare::{Policy, Server, Tenant},
    error::Error,
    hub::{
        call::{Calls, Fault},
        core::{Changed, Command, Core, Handle, Transport, or_never},
        limits::Seats,
        stream::{Bounds, Pulse, Streams},
    },
    protocol::LISTENER,
    state::{Fence, SessionId},
    telemetry::metrics,
};

/// The state of a session.
pub(crate) struct Session {
    pub(crate) core: Arc<Core>,
    pub(crate) id: SessionId,
    /// The number of this owner.
    pub(crate) fence: Fence,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) server: Arc<Server>,
    pub(crate) principal: Principal,
    /// The access policy of the sender of the latest body.
    pub(crate) policy: Arc<Policy>,
    pub(crate) transport: Transport,
    pub(crate) handle: Option<Handle>,
    pub(super) phase: Phase,
    pub(crate) link: Link,
    pub(crate) kept: Box<Kept>,
    pub(crate) dialect: Dialect,
    pub(crate) calls: Calls,
    pub(crate) streams: Streams,
    pub(crate) born: Instant,
    /// The last sign of its client, or the end of what it waited for.
    pub(super) touched: Instant,
    /// When the backend last had something to do.
    pub(super) used: Instant,
    /// The earliest time at which something may be due.
    pub(crate) wake: Instant,
    /// Until when the child must show that it lives, after a call that was overdue.
    pub(super) probe: Option<Instant>,
    /// Until when the child waits for slow readers.
    pub(super) choked: Option<Instant>,
    /// When the present window of pacing began, and the messages of the child in it.
    pub(super) pace: (Instant, u32),
    /// Until when the child waits because it says too much.
    pub(super) paced: Option<Instant>,
    pub(crate) over: Option<Over>,
    pub(super) is_draining: bool,
    /// Whether an operator wants it to end when its calls have.
    pub(super) is_closing: bool,
    pub(super) keeping: Keeping,
    /// The requests that wait for its end.
    pub(crate) ended: Vec<oneshot::Sender<()>>,
    /// For as long as anybody can find it.
    seats: Seats,
}

/// How long an HTTP+SSE session outlives its connection.
const DISCONNECTED: Duration = Duration::from_secs(60);

/// Commands taken before what they wrote is flushed to the child.
const BATCH: usize = 32;

impl Session {
    pub(crate) fn new(
        core: Arc<Core>,
        id: SessionId,
        access: &Access,
        handle: Handle,
        seats: Seats,
    ) -> Box<Self> {
        let now = Instant::now();
        let config = Arc::clone(&core.config);
        let bounds = Bounds {
            streams: config.stream.per_session,
            events: config.log.events as u64,
            bytes: config.log.bytes,
            silence: or_never(config.stream.keep_alive) * 4,
        };
        let pulse = Pulse::default();
        pulse
            .confirmed
            .store(core.owner.lapses(), Ordering::Release);
        let (log, owner) = (Arc::clone(&core.log), Arc::clone(&core.owner));
        let (key, fence) = (core.key.clone(), Fence(1));
        let pulse = Arc::new(pulse);
        let streams = Streams::new((log, owner), key, id.clone(), fence, bounds, pulse);
        // On the heap: a future that holds a session by value would hold it several times.
        Box::new(Self {
            tenant: Arc::clone(access.tenant()),
            server: Arc::clone(access.server()),
            policy: Arc::clone(&access.server().policy),
            core,
            id,
            fence,
            transport: handle.transport,
            principal: access.principal().clone(),
            handle: Some(handle),
            phase: Phase::New,
            link: Link::new(),
            kept: Box::default(),
            dialect: Dialect::default(),
            calls: Calls::default(),
            streams,
            born: now,
            touched: now,
            used: now,
            wake: now
                + DISCONNECTED
                    .min(or_never(config.session.idle))
                    .min(or_never(config.session.max)),
            probe: None,
            choked: None,
            pace: (now, 0),
            paced: None,
            over: None,
            is_draining: false,
            is_closing: false,
            keeping: Keeping::default(),
            ended: Vec::new(),
            seats,
        })
    }

    /// Continues a session of another replica, whose calls are lost.
    pub(crate) fn adopt(&mut self, adopted: Adopted) {
        let Adopted {
            fence,
            revision,
            kept,
            streams,
            born,
        } = adopted;
        // Late answers to what the last owner asked must not be taken for answers to this one.
        self.dialect.rebase(fence.0 << 32);
        (self.fence, self.born, self.handle) = (fence, born, None);
        (self.phase, *self.kept) = (Phase::Ready(revision), kept);
        self.keeping = Keeping::begun();
        self.streams.settle(revision);
        for (stream, ids) in self.streams.adopt(fence, streams) {
            for id in &ids {
                let line = Fault::OWNER_LOST.line(id);
                let answered = self.streams.message(stream, line).map(drop);
                self.stored(answered);
            }
            if stream != LISTENER {
                let finished = self.streams.finish(stream);
                self.stored(finished);
            }
        }
        tracing::info!(
            tenant.id = self.tenant.name,
            server.name = self.server.name,
            session.id = self.id.short(),
            "session taken over"
        );
    }

    /// Lives until the session is over, and leaves nothing of it.
    pub(crate) async fn run(mut self: Box<Self>, mut commands: mpsc::Receiver<Command>) {
        let (drain, halt) = (self.core.drain.clone(), self.core.halt.clone());
        let (drain, halt) = (drain.cancelled_owned(), halt.cancelled_owned());
        let pulse = Arc::clone(self.streams.pulse());
        let owner = Arc::clone(&self.core.owner);
        let mut standing = owner.standing();
        let alarm = sleep_until(self.wake);
        pin!(drain, halt, alarm);
        self.core.metrics.session_began();
        if self.transport == Transport::Sse2024 && matches!(self.phase, Phase::New) {
            self.register().await;
        }
        while self.over.is_none() {
            if !self.may_serve() {
                Box::pin(self.stand_still(&mut commands)).await;
                continue;
            }
            if self.wake != alarm.deadline() {
                alarm.as_mut().reset(self.wake);
            }
            select! {
                biased;
                () = &mut halt => self.over = Some(Over::Drained),
                // Looked at above, before anything is given to the child or answered.
                () = lapse(&owner, &pulse) => {}
                // Before what may be ready again and again: a busy session has clocks too.
                () = &mut alarm => self.tick(),
                () = &mut drain, if !self.is_draining => self.is_draining = true,
                written = self.streams.written(), if !self.streams.is_kept() => {
                    self.stored(written);
                }
                Some(command) = commands.recv() => {
                    let (mut next, mut room) = (Some(command), BATCH);
                    while let Some(command) = next {
                        self.command(command).await;
                        room -= 1;
                        let goes_on = room > 0 && self.may_serve();
                        next = if goes_on { commands.try_recv().ok() } else { None };
                    }
                    self.link.try_flush();
                }
                heard = self.link.next(), if self.may_hear() => self.heard(heard).await,
                kept = self.keeping.done(), if self.keeping.is_under_way() => {
                    self.record_kept(kept);
                }
                () = pulse.notify.notified() => self.readers_moved(),
                // Looked at above.
                _ = standing.changed() => {}
            }
            self.look_for_rest();
        }
        // Held on to, it would look like a reader that has not gone.
        drop(pulse);
        // From here on no request finds it; its end refuses the commands that are still queued.
        self.handle = None;
        let was_kept = self.core.sessions.remove(&self.id, self.fence);
        self.seats.clear();
        Box::pin(self.finish(&mut commands, was_kept)).await;
    }

    /// A session that is to end does when its calls have.
    fn look_for_rest(&mut self) {
        let is_busy = !self.calls.is_empty() || matches!(self.phase, Phase::Starting { .. });
        if self.is_draining && !is_busy {
            let is_over = self.is_closing && !self.core.owner.is_alone();
            let over = if is_over {
                Over::Deleted
            } else {
                Over::Drained
            };
            self.over.get_or_insert(over);
        }
    }

    pub(crate) async fn command(&mut self, command: Command) {
        if let Command::Change(access) = command {
            // No sign of life of its client.
            return self.change(access.as_deref());
        }
        self.touched = Instant::now();
        match command {
            Command::Deliver(delivery) => self.deliver(*delivery),
            Command::Attach { cursor, reply } => {
                let attached = self.streams.attach(cursor).await;
                if matches!(attached, Err(Error::Limit { .. })) {
                    self.core.metrics.limited(metrics::SESSION_STREAMS);
                }
                // A reader whose client went meanwhile detaches by its drop.
                let _ = reply.send(attached);
                self.wake_by(self.touched + or_never(self.core.config.stream.keep_alive) * 4);
            }
            Command::End(done) => {
                self.over = Some(Over::Deleted);
                self.core.sessions.remove(&self.id, self.fence);
                self.ended.push(done);
            }
            Command::Drain(done) => {
                (self.is_draining, self.is_closing) = (true, true);
                let _ = done.send(());
            }
            Command::Change(_) => {}
        }
    }

    /// Follows changes of the catalogue since `access` was made.
    pub(super) fn catch_up(&mut self, access: &Access) {
        match self.core.changed(access) {
            Changed::Not => {}
            Changed::Renewed(access) => self.change(Some(&access)),
            Changed::Lost => self.change(None),
        }
    }

    /// Continues with another access, or ends without one.
    pub(super) fn change(&mut self, access: Option<&Access>) {
        let Some(access) = access else {
            self.over.get_or_insert(Over::Revoked);
            self.core.sessions.remove(&self.id, self.fence);
            return;
        };
        self.tenant = Arc::clone(access.tenant());
        self.server = Arc::clone(access.server());
        self.policy = Arc::clone(&access.server().policy);
    }

    /// Whether the child is read: not while readers or the log have to catch up.
    fn may_hear(&self) -> bool {
        self.choked.is_none() && self.paced.is_none() && !self.streams.is_full()
    }

    fn readers_moved(&mut self) {
        let now = Instant::now();
        self.streams.sweep(now);
        if self.choked.is_some() && !self.streams.is_any_behind() {
            self.unchoke();
        }
        if self.streams.unheard_since().is_some() {
            self.wake_by(now + DISCONNECTED);
        }
        if self.link.restart().is_some() {
            self.wake_by(now);
        }
    }

    /// Stops reading the child for a moment: a connection that reads is far behind.
    pub(super) fn choke(&mut self, now: Instant, limit: Duration) {
        if self.choked.is_none() {
            self.choked = Some(now + limit);
            self.streams
                .pulse()
                .is_choked
                .store(true, Ordering::Relaxed);
            self.wake_by(now + limit);
        }
    }

    pub(super) fn unchoke(&mut self) {
        self.choked = None;
        self.streams
            .pulse()
            .is_choked
            .store(false, Ordering::Relaxed);
    }

    /// Makes sure that `tick` runs at `at` at the latest.
    pub(super) fn wake_by(&mut self, at: Instant) {
        self.wake = self.wake.min(at);
    }

    /// When, and why, the session ends if nothing happens.
    pub(super) fn end_of_life(&self, now: Instant) -> (Instant, Over) {
        let config = &self.core.config.session;
        let by_age = (self.born + or_never(config.max), Over::Expired);
        let is_heard = self.streams.is_listened_to(now);
        let is_busy = !self.calls.is_empty() || matches!(self.phase, Phase::Starting { .. });
        let by_idleness = match self.transport {
            Transport::Sse2024 => {
                let since = self.streams.unheard_since().unwrap_or(now);
                (since + DISCONNECTED, Over::Disconnected)
            }
            Transport::Streamable if is_heard || is_busy => {
                (now + or_never(config.idle), Over::Idle)
            }
            Transport::Streamable => {
                let heard = self.streams.unheard_since().unwrap_or(self.touched);
                (self.touched.max(heard) + or_never(config.idle), Over::Idle)
            }
        };
        if by_age.0 <= by_idleness.0 {
            by_age
        } else {
            by_idleness
        }
    }
}

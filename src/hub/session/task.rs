//! Task of a session: the owner of its backend, its dialect, its calls and its streams.
//!
//! Everything that happens to a session happens here, in one loop, one thing at a time.
//! Other tasks send it commands over a bounded channel; readers of its streams wake it by a pulse.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::{
    pin, select,
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{
    client::Client,
    lease::{Lease, lapse},
    lifetime::{Activity, DISCONNECTED, EndReason, Lifetime, LifetimeLimits},
    link::{BackendEvent, Link},
    pacing::Pacing,
    record::{ReplayState, Takeover},
};
use crate::{
    auth::Access,
    backend::{child::Owner, dialect::Legacy},
    base::budget::LargeWork,
    error::Error,
    hub::{
        call::{CallError, Calls, Pings},
        core::{
            AccessChange, Attach, AttachAt, Command, Core, Handle, SessionStores, Signal, Signals,
            Transport, or_never, owner_of,
        },
        limits::SessionPlace,
        stream::{SessionLog, StreamLimits, Streams},
    },
    protocol::{LISTENER_STREAM, StreamId},
    state::{Fence, SessionId, StoreError},
    telemetry::SESSION_STREAMS,
};

/// The state of a session. Each part has a file, which alone touches its fields.
pub(crate) struct Session {
    pub(super) core: Arc<Core>,
    /// Where its record and its events are kept.
    pub(super) stores: SessionStores,
    pub(super) id: SessionId,
    pub(super) client: Client,
    pub(super) lifetime: Lifetime,
    pub(super) lease: Lease,
    pub(super) link: Link,
    pub(super) pacing: Pacing,
    pub(super) replay: Box<ReplayState>,
    pub(super) dialect: Legacy,
    pub(super) calls: Calls,
    pub(super) pings: Pings,
    pub(super) streams: Streams,
    /// The next time at which something may be due.
    alarm: Instant,
    /// The entry in the table of sessions, until it is published there.
    unpublished: Option<Handle>,
    /// Held for as long as requests can find the session.
    place: SessionPlace,
}

/// The most streams of a session that many clients share.
const MANY_STREAMS: usize = 1 << 16;

/// Commands handled before the lines to the backend are written, and events of the backend handled in turn.
const BATCH: usize = 32;

/// Calls in flight from which on more requests may be about to come, so that they share a write.
const CROWD: usize = 4;

impl Session {
    /// A session that begins.
    pub(crate) fn new(
        core: Arc<Core>,
        id: SessionId,
        access: &Access,
        handle: Handle,
        place: SessionPlace,
    ) -> Box<Self> {
        let now = Instant::now();
        let config = &core.config;
        let is_stateless = handle.transport == Transport::Stateless;
        let limits = StreamLimits {
            // Quotas bound the calls of clients without sessions, many of which share one.
            streams: if is_stateless {
                MANY_STREAMS
            } else {
                config.stream.per_session
            },
            events: config.log.events as u64,
            bytes: config.log.bytes,
            silence: or_never(config.stream.keep_alive) * 4,
        };
        let fence = Fence(1);
        let (stores, share) = core.stores_of(handle.transport, access);
        let log = SessionLog {
            log: Arc::clone(&stores.log),
            owner: Arc::clone(&stores.owner),
            key: core.key.clone(),
            session: id.clone(),
            share,
            withdrawn: Arc::default(),
        };
        let lifetime = Lifetime::new(now);
        let caller = core.limits.memory().caller(access);
        let budgets = core.limits.memory();
        let no_room = |id: &[u8]| CallError::NO_ROOM_FOR_RESPONSE.line(id);
        let mut streams = Streams::new(log, fence, limits, no_room, Arc::clone(&core.metrics));
        let memory = if is_stateless {
            streams.share_listener();
            budgets.local_state(access)
        } else {
            budgets.session_state(access)
        };
        // On the heap: a future that holds a session by value would hold it several times.
        Box::new(Self {
            client: Client::new(access, handle.transport, &core.metrics),
            alarm: lifetime.first_deadline(lifetime_limits(&core)),
            lifetime,
            lease: Lease::new(fence),
            link: Link::new(now, &caller),
            pacing: Pacing::new(now, caller),
            replay: Box::new(ReplayState::new(memory)),
            dialect: Legacy::default(),
            calls: Calls::default(),
            pings: Pings::default(),
            streams,
            stores,
            unpublished: Some(handle),
            place,
            core,
            id,
        })
    }

    /// Continues a session of another replica, whose calls are lost.
    pub(crate) fn adopt(&mut self, takeover: Takeover) {
        let Takeover {
            fence,
            lapses,
            revision,
            replay,
            streams,
            born,
        } = takeover;
        // Late answers to requests of the last owner must not match requests of this one.
        self.dialect.rebase(fence.0);
        self.lifetime.adopt(revision, born);
        self.lease = Lease::adopted(fence);
        (*self.replay, self.unpublished) = (replay, None);
        self.streams.set_revision(revision);
        self.set_confirmed(lapses);
        for (stream, ids) in self.streams.adopt(fence, streams) {
            for id in &ids {
                let line = CallError::OWNER_LOST.line(id);
                let answered = self.streams.message(stream, line).map(drop);
                self.handle_write(answered);
            }
            if stream != LISTENER_STREAM {
                let finished = self.streams.finish(stream);
                self.handle_write(finished);
            }
        }
        tracing::info!(
            tenant.id = self.client.tenant().name,
            server.name = self.client.server().name,
            session.id = self.id.short(),
            "session taken over"
        );
    }

    /// Runs until the session is over, and removes everything that belongs to it.
    pub(crate) async fn run(mut self: Box<Self>, mut commands: mpsc::Receiver<Command>) {
        let pulse = Arc::clone(self.streams.pulse());
        let owner = Arc::clone(&self.stores.owner);
        let mut signals = Signals::new(&self.core, &owner, &pulse);
        let alarm = sleep_until(self.alarm);
        pin!(alarm);
        self.core.metrics.sessions.add(1);
        if self.client.transport() == Transport::Sse2024 && self.lifetime.is_new() {
            self.register().await;
            if !self.lifetime.is_over() {
                self.publish();
            }
        }
        while !self.lifetime.is_over() {
            if !self.may_serve() {
                Box::pin(self.wait_for_lease(&mut commands)).await;
                continue;
            }
            if self.alarm != alarm.deadline() {
                alarm.as_mut().reset(self.alarm);
            }
            select! {
                biased;
                signal = signals.next() => {
                    self.signalled(signal);
                    signals.rearm(self.lifetime.is_draining());
                }
                // Checked above, before anything is given to the child or answered.
                () = lapse(&owner, &pulse) => {}
                // Before branches that may be ready again and again: a busy session has clocks too.
                () = &mut alarm => self.tick(),
                written = self.streams.written(), if !self.streams.is_flushed() => {
                    self.writes_done(written);
                    self.pacing.wait_in_line().await;
                }
                // Begun only by the first poll, and responses wait for it: a busy child must not hold it up.
                written = self.lease.write_done(), if self.lease.is_writing() => {
                    self.record_written(written);
                }
                Some(command) = commands.recv() => self.commands(command, &mut commands).await,
                event = self.link.next(), if self.may_read_child() => {
                    self.events(event, &mut commands).await;
                }
            }
            if self.lifetime.is_draining() && !self.is_busy() && self.is_settled() {
                self.lifetime.end_drained(self.stores.owner.is_alone());
            }
        }
        // A pulse that is held here would count as a reader that has not gone.
        drop((pulse, signals));
        // No request finds the session from here on; its end refuses the commands in the queue.
        self.unpublished = None;
        let was_published = self.unpublish();
        self.place = SessionPlace::default();
        Box::pin(self.finish(&mut commands, was_published)).await;
    }

    /// Handles the acknowledgement of this write and of those that the log has acknowledged with it: the readers of a
    /// stream are woken once, and not for each of its events.
    fn writes_done(&mut self, first: Result<(), StoreError>) {
        self.handle_write(first);
        for _ in 1..BATCH {
            if !self.may_serve() || self.lifetime.is_over() || self.streams.is_flushed() {
                return;
            }
            let Some(written) = self.streams.written().now_or_never() else {
                return;
            };
            self.handle_write(written);
        }
    }

    /// Handles this command and those that wait behind it, and writes to the backend what they led to.
    ///
    /// With many calls in flight it lets the connections that are ready go first, once: their requests
    /// share the write, which costs more than all the rest of a request here.
    async fn commands(&mut self, first: Command, commands: &mut mpsc::Receiver<Command>) {
        let (mut next, mut room) = (Some(first), BATCH);
        let mut is_crowded = self.calls.count() >= CROWD;
        while let Some(command) = next {
            self.command(command).await;
            room -= 1;
            // What is left in the queue of a session that is over is refused by its end.
            if room == 0 || !self.may_serve() || self.lifetime.is_over() {
                break;
            }
            next = commands.try_recv().ok();
            if next.is_none() && std::mem::take(&mut is_crowded) {
                self.link.count_waiting();
                yield_now().await;
                next = commands.try_recv().ok();
            }
        }
        self.link.try_flush();
    }

    /// Handles this event of the backend and those that it has ready, in the turn of its tenant: a child of its
    /// own was read in it.
    async fn events(&mut self, first: BackendEvent, commands: &mut mpsc::Receiver<Command>) {
        if self.link.is_shared() {
            self.pacing.wait_in_line().await;
        }
        let (mut next, mut room) = (Some(first), BATCH);
        while let Some(event) = next {
            let turn = loop {
                let tenant = &self.client.tenant().name;
                let turn = LargeWork::turn(tenant, event.length()).await;
                if self.lifetime.is_over() {
                    return;
                }
                if self.may_serve() {
                    break turn;
                }
                // The lease has lapsed in line; others may have the turn.
                drop(turn);
                Box::pin(self.wait_for_lease(commands)).await;
            };
            if let Some(rest) = turn.run(|| self.handle_backend(event)) {
                rest.await;
            }
            self.pacing.others_first().await;
            room -= 1;
            let goes_on =
                room > 0 && self.may_serve() && self.may_read_child() && !self.lifetime.is_over();
            next = if goes_on {
                self.link.next_ready()
            } else {
                None
            };
        }
        if !self.may_read_child() {
            self.link.slow_down();
        }
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            Signal::Halt => self.lifetime.force_end(EndReason::Drained),
            Signal::Drain => self.lifetime.drain(),
            Signal::Readers => self.readers_moved(),
            // `may_serve` is asked before the next event.
            Signal::Lease => {}
        }
    }

    /// Whether calls are in flight or the client waits for its `initialize`.
    fn is_busy(&self) -> bool {
        !self.calls.is_empty() || self.lifetime.is_starting()
    }

    /// Whether a session that drains leaves nothing to write: the response to its last call may wait for a write of
    /// the record. Without its lease it writes nothing any more.
    fn is_settled(&self) -> bool {
        !self.lease.is_unsettled() || !self.may_serve()
    }

    /// Handles a command.
    pub(super) async fn command(&mut self, command: Command) {
        // Neither is a sign of life of the client.
        let command = match command {
            Command::Change(access) => return self.change_access(access.as_deref()),
            Command::GiveUp(use_of_child, reply) => {
                // One that waited in vain has been refused, and needs none.
                let is_given = !reply.is_closed() && self.give_up_child(use_of_child);
                let _ = reply.send(is_given);
                return;
            }
            command => command,
        };
        self.lifetime.touch();
        match command {
            Command::Deliver(delivery) => {
                self.deliver(*delivery);
                // Before the child is written to: another replica has to know the calls that it has seen.
                let written = self.streams.write_calls();
                self.handle_write(written);
                self.client.set_trace(None);
            }
            Command::Attach(attach) => Box::pin(self.attach(*attach)).await,
            Command::End(done) => {
                self.lifetime.force_end(EndReason::Deleted);
                self.unpublish();
                self.lifetime.add_waiter(done);
            }
            Command::Drain(done) => {
                self.lifetime.close();
                let _ = done.send(Ok(()));
            }
            Command::Change(_) | Command::GiveUp(..) => {}
        }
    }

    async fn attach(&mut self, Attach { at, reply }: Attach) {
        // The log may take its time, and the child gets what was sent before.
        self.link.try_flush();
        let away = self.streams.abandoned_after(self.core.config.stream.retry);
        let attached = match at {
            AttachAt::AbandonedListener if !self.streams.is_listener_abandoned(away) => Ok(None),
            AttachAt::Listener | AttachAt::AbandonedListener => self.streams.attach(None).await,
            AttachAt::Event(cursor) => self.streams.attach(Some(cursor)).await,
        };
        if matches!(attached, Err(Error::Limit { .. })) {
            self.core.metrics.limited.add(SESSION_STREAMS);
        }
        // A reader whose client went meanwhile detaches by its drop.
        let _ = reply.send(attached);
        let keep_alive = or_never(self.core.config.stream.keep_alive);
        self.wake_by(self.lifetime.touched() + keep_alive * 4);
        if !self.core.config.session.ping.is_zero() {
            // The time to the first ping is counted from here.
            self.wake_by(Instant::now());
        }
    }

    /// Puts the session into the table, where requests find it.
    pub(super) fn publish(&mut self) {
        if let Some(handle) = self.unpublished.take() {
            let access = Arc::clone(&handle.access);
            self.core.sessions.insert(&self.id, handle);
            self.follow_catalog(&access);
        }
    }

    /// The caller that its children are for; of a session that has ended, none.
    pub(super) fn owner(&self) -> Owner {
        let handle = self.handle();
        handle.map_or(Owner::Tenant, |handle| owner_of(&handle.access))
    }

    /// The one whose secrets its children get.
    pub(super) fn holder(&self) -> Option<Arc<str>> {
        Some(self.handle()?.access.holder()?.into())
    }

    fn handle(&self) -> Option<Handle> {
        let published = || self.core.sessions.get(&self.id);
        self.unpublished.clone().or_else(published)
    }

    /// Removes the session from the table; false if it was not there.
    fn unpublish(&self) -> bool {
        self.core.sessions.remove(&self.id, self.lease.fence())
    }

    /// Follows changes of the catalogue since `access` was made.
    fn follow_catalog(&mut self, access: &Access) {
        match self.core.changed(access) {
            AccessChange::None => {}
            AccessChange::Renewed(access) => self.change_access(Some(&access)),
            AccessChange::Lost => self.change_access(None),
        }
    }

    /// Continues with another access, or ends without one.
    pub(super) fn change_access(&mut self, access: Option<&Access>) {
        if let Some(access) = access {
            let has_other_lists = !self.client.policy().shows_the_same(access.policy());
            self.client.renew(access);
            if has_other_lists {
                self.announce_lists();
            }
        } else {
            self.lifetime.end(EndReason::Revoked);
            self.unpublish();
        }
    }

    /// Whether the child is read: not while readers or the log have to catch up.
    pub(super) fn may_read_child(&self) -> bool {
        !self.pacing.is_paused() && !self.streams.is_full()
    }

    fn readers_moved(&mut self) {
        let now = Instant::now();
        self.streams.sweep(now);
        if self.pacing.is_waiting_for_readers() && !self.streams.is_any_behind() {
            self.stop_waiting_for_readers();
        }
        if self.streams.no_reader_since().is_some() {
            self.wake_by(now + DISCONNECTED);
        }
        if self.link.restart().is_some() {
            self.wake_by(now);
        }
    }

    /// Stops reading the child for a moment if the connection that takes the events of a stream is far behind, or
    /// if there is none.
    pub(super) fn pace_child(&mut self, stream: StreamId, now: Instant) {
        // A shared child waits for no session: retention ends readers that are behind.
        if self.link.is_shared() {
            return;
        }
        if self.streams.is_behind(stream) {
            self.wait_for_readers(now);
        }
        if self.streams.is_unread(stream)
            && let Some(until) = self.pacing.count_unread()
        {
            self.wake_by(until);
        }
    }

    fn wait_for_readers(&mut self, now: Instant) {
        if let Some(until) = self.pacing.wait_for_readers(now) {
            self.streams.pulse().set_awaited(true);
            self.wake_by(until);
        }
    }

    /// Reads the child again, which waited for slow readers.
    pub(super) fn stop_waiting_for_readers(&mut self) {
        self.pacing.stop_waiting_for_readers();
        self.streams.pulse().set_awaited(false);
    }

    /// Makes sure that `tick` runs at `at` at the latest.
    pub(super) fn wake_by(&mut self, at: Instant) {
        self.alarm = self.alarm.min(at);
    }

    /// Sets the time of the next `tick`.
    pub(super) fn set_alarm(&mut self, at: Instant) {
        self.alarm = at;
    }

    /// The time and the reason of the end of the session if nothing happens.
    pub(super) fn expiry(&self, now: Instant) -> (Instant, EndReason) {
        let activity = Activity {
            has_reader: self.streams.has_reader(now),
            no_reader_since: self.streams.no_reader_since(),
            // A task keeps its session for as long as its client was told.
            is_busy: self.is_busy() || self.calls.is_in_use(),
        };
        let (limits, transport) = (lifetime_limits(&self.core), self.client.transport());
        self.lifetime.expiry(now, limits, transport, activity)
    }
}

fn lifetime_limits(core: &Core) -> LifetimeLimits {
    LifetimeLimits {
        idle: or_never(core.config.session.idle),
        max: or_never(core.config.session.max),
    }
}

//! Task of a child that several sessions share (`isolation = "principal"` or `"tenant"`).
//!
//! Not here: the recipients of a message (`routing`), the child of a session (`placement`), and the
//! sessions themselves (`hub`).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    pin, select,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    mailbox::{Counted, Inbox, Initialized, Loss, Status, ToChild, ToSession},
    pace::{Calls, Health, Paces},
    routing::{Recipients, Routing, refuse, salvage_calls},
};
use crate::backend::{
    Occasion, Place, Pool, Refused, Stage, Started,
    child::{
        Child, ChildEvent, Exit as ChildExit, Owner, Restart,
        stderr::{last_words, log_own_error},
    },
    dialect::IdBlocks,
};
use crate::{
    base::budget::{Drawn, LARGE_STEP, LargeWork},
    declare::Server,
    protocol::{Kind, Message, Revision, initialize},
    telemetry::{ChildState, Dropped, Exit},
};

/// Time for a session to empty a full inbox.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes queued for a child that does not read, beyond which its sessions keep their lines.
const MAX_QUEUED: usize = 8 << 20;

/// Time for sessions to leave a child that ends.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of the checks of timeouts.
const TICK: Duration = Duration::from_millis(500);

/// The time from the end of a child's stdout to its exit.
const EXIT: Duration = Duration::from_secs(1);

/// Why a child that lives on did not become ready.
const CLOSED: &str = "it closed its stdout";

/// Events of the child handled in turn.
const BATCH: usize = 32;

/// The lines after which others go first: a fraction of a millisecond.
const STEP: u32 = 64;

/// The one that a shared child is for.
#[derive(Clone)]
pub(crate) struct Whose {
    /// The principal whose sessions share it; none for those of all.
    pub(crate) principal: Option<Box<str>>,
    /// The one whose seat it takes.
    pub(crate) owner: Owner,
    /// The one whose secrets it gets; none where several people share it.
    pub(crate) holder: Option<Arc<str>>,
}

/// The task that owns a shared child.
pub(super) struct SharedChild {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Arc<Server>,
    /// The one that it is for.
    pub(super) whose: Whose,
    /// The revision that it is offered.
    pub(super) revision: Revision,
    pub(super) ids: Arc<IdBlocks>,
    pub(super) mailbox: mpsc::Receiver<ToChild>,
    pub(super) status: watch::Sender<Status>,
    pub(super) calls: Arc<Calls>,
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) is_closing: Arc<AtomicBool>,
    pub(crate) drain: CancellationToken,
    pub(crate) halt: CancellationToken,
}

/// A running child and its sessions.
struct RunningChild {
    shared: SharedChild,
    child: Child,
    place: Place,
    routing: Routing,
    /// Inbox of each session.
    members: HashMap<u32, Inbox>,
    used: Instant,
    health: Health,
    /// The time of the last periodic ping.
    pinged: Instant,
    pace: Paces,
    /// What is drawn for its mailbox, which may not be read for seconds; none if it is not counted.
    unread: Option<Drawn>,
    /// Its lines since others went first.
    lines: u32,
    wake: Arc<tokio::sync::Notify>,
    /// Reason of the planned end, and the time until which it waits for the sessions.
    closing: Option<(Loss, Instant)>,
    /// Whether it has closed its stdin or stdout, or has ended.
    is_over: bool,
}

impl SharedChild {
    /// What its start is given from outside: all of its `initialize` but the revision is the gateway's.
    fn occasion(&self) -> Occasion {
        Occasion {
            cause: Some(self.revision.as_str().into()),
            owner: Some(self.whose.owner.clone()),
            holder: self.whose.holder.clone(),
            ..Occasion::default()
        }
    }

    /// Starts the child and serves its sessions until its end; returns the reason, which counts for
    /// its key.
    pub(crate) async fn run(self, restarts: u32, not_before: Option<Instant>) -> Option<Loss> {
        let (pool, server) = (Arc::clone(&self.pool), Arc::clone(&self.server));
        let acquired = pool.get(server, restarts, not_before, self.occasion());
        let acquired = self.halt.run_until_cancelled(acquired).await;
        let Started { child, place } = match acquired {
            Some(Ok(started)) => started,
            Some(Err(refused)) => {
                self.status.send_replace(Status::Failed(refused));
                return None;
            }
            None => return None,
        };
        let now = Instant::now();
        let unread = child.share().map(|share| share.hold(0));
        let mut running = RunningChild {
            routing: Routing::new(self.server.supervision.isolation, Arc::clone(&self.ids)),
            shared: self,
            child,
            place,
            members: HashMap::new(),
            used: now,
            health: Health::default(),
            pinged: now,
            pace: Paces::new(now),
            unread,
            lines: 0,
            wake: Arc::default(),
            closing: None,
            is_over: false,
        };
        let initialized = match running.start().await {
            Ok(initialized) => initialized,
            Err(refused) => {
                running.end_failed(refused).await;
                return None;
            }
        };
        if initialized.revision.has_batches() {
            running.child.split_arrays();
        }
        running.place.succeeded();
        let wake = Arc::clone(&running.wake);
        running.place.entry().on_restart(move || wake.notify_one());
        running
            .shared
            .status
            .send_replace(Status::Ready(Arc::new(initialized)));
        let loss = running.serve().await;
        running.shared.is_closing.store(true, Ordering::Relaxed);
        for inbox in running.members.values() {
            // A session with a full inbox notices its end.
            inbox.tell(ToSession::Ended(loss));
        }
        running.members.clear();
        running.shared.mailbox.close();
        running.end(exit_of(loss)).await;
        Some(loss)
    }
}

fn exit_of(loss: Loss) -> Exit {
    match loss {
        Loss::Crash | Loss::TooLong => Exit::Crashed,
        Loss::Idle => Exit::Idle,
        Loss::Restart => Exit::Stopped,
    }
}

impl RunningChild {
    /// Initializes the child in the name of the gateway, without capabilities: a shared child must
    /// not send requests to clients.
    async fn start(&mut self) -> Result<Initialized, Refused> {
        self.child.know_callers(&self.shared.ids);
        let clock = self.shared.server.clocks.start;
        let halt = self.shared.halt.clone();
        let limit = if clock.is_zero() { FOREVER } else { clock };
        let initialized = halt
            .run_until_cancelled(timeout(limit, self.initialize()))
            .await
            .ok_or(Refused::Failed("backend_exited"))?
            .map_err(|_| Refused::Failed("timeout"))??;
        if initialized.is_stateless {
            self.routing.let_ask();
        }
        self.child.out().extend_from_slice(initialize::INITIALIZED);
        self.child.try_flush();
        Ok(initialized)
    }

    /// Sends `initialize`, and waits for the answer.
    async fn initialize(&mut self) -> Result<Initialized, Refused> {
        let offered = self.shared.revision.as_str();
        let version = env!("CARGO_PKG_VERSION");
        let params = format!(
            r#"{{"protocolVersion":"{offered}","capabilities":{{}},"clientInfo":{{"name":"lockgate","version":"{version}"}}}}"#
        );
        let out = self.child.out();
        let id = self
            .routing
            .push_own_request("initialize", Some(params.as_bytes()), out);
        self.child.try_flush();
        loop {
            let event = self.child.next().await;
            let is_line = matches!(event, ChildEvent::Line(_) | ChildEvent::Translated);
            if is_line && let Some(until) = self.paced(false) {
                sleep_until(until).await;
            }
            match event {
                ChildEvent::Translated => {}
                ChildEvent::Line(line) => {
                    let Ok(message) = read(&self.shared.server.tenant, line).await else {
                        self.shared.pool.metrics.noise_lines.add(1);
                        continue;
                    };
                    let is_answer = message.id() == Some(id.to_string().as_bytes());
                    if is_answer && let Some(error) = message.error() {
                        return Err(Refused::Answered(Bytes::copy_from_slice(error)));
                    }
                    if is_answer && message.kind() == Kind::Result {
                        self.routing.own_requests().end(id);
                        let entry = Arc::clone(self.place.entry());
                        let tenant = &self.shared.server.tenant;
                        let turn = LargeWork::turn(tenant, message.bytes().len()).await;
                        return turn
                            .run(|| Initialized::parse(&message, entry))
                            .map_err(Refused::Failed);
                    }
                    if message.kind() == Kind::Request {
                        refuse(&message, message.method(), self.child.out());
                        self.child.try_flush();
                    }
                }
                ChildEvent::TooLong => return Err(Refused::Failed("oversized_line")),
                ChildEvent::Closed => {
                    // Its exit follows, and says why.
                    if let Ok(exit) = timeout(EXIT, self.child.ended()).await {
                        return Err(self.ended(&exit));
                    }
                    self.place.fail(Stage::Initialize, CLOSED);
                    return Err(Refused::Failed("backend_exited"));
                }
                ChildEvent::Exited(exit) => return Err(self.ended(&exit)),
            }
        }
    }

    /// The child has ended before it was initialized.
    fn ended(&mut self, exit: &ChildExit) -> Refused {
        if exit.is_shortage {
            return Refused::Busy;
        }
        self.place.fail(Stage::Initialize, &exit.in_words());
        Refused::Failed("backend_exited")
    }

    /// Ends a child whose start failed.
    async fn end_failed(mut self, refused: Refused) {
        // A child that refuses works, as for a single session.
        let exit = if matches!(refused, Refused::Answered(_)) {
            self.place.succeeded();
            Exit::Stopped
        } else {
            // The end of the gateway is no failure of the server, and neither is a machine without processes.
            if !self.shared.halt.is_cancelled() && !matches!(refused, Refused::Busy) {
                self.place.fail(Stage::Initialize, &refused.in_words());
            }
            Exit::FailedStart
        };
        self.shared.status.send_replace(Status::Failed(refused));
        self.end(exit).await;
    }

    async fn serve(&mut self) -> Loss {
        let (drain, halt) = (self.shared.drain.clone(), self.shared.halt.clone());
        let mut tick = Instant::now() + TICK;
        let mut paced: Option<Instant> = None;
        let wake = Arc::clone(&self.wake);
        // One for all rounds: its registration costs more than a look at its deadline.
        let alarm = sleep_until(tick);
        pin!(alarm);
        loop {
            let due = paced.unwrap_or(tick);
            if alarm.deadline() != due {
                alarm.as_mut().reset(due);
            }
            select! {
                biased;
                () = halt.cancelled() => return Loss::Idle,
                message = self.shared.mailbox.recv(), if !self.is_full() => match message {
                    Some(message) => self.handle_sessions(message).await,
                    None => return Loss::Idle,
                },
                event = self.child.next(), if paced.is_none() => match self.events(event).await {
                    Ok(pause) => paced = pause,
                    Err(loss) => return loss,
                },
                () = wake.notified() => {}
                () = &mut alarm => {
                    paced = None;
                    tick = Instant::now() + TICK;
                    match self.tick(tick - TICK) {
                        Some(Loss::Idle) => self.close(Loss::Idle),
                        Some(loss) => return loss,
                        None => {}
                    }
                }
            }
            match self.place.entry().restart() {
                Some(Restart::Now) => return Loss::Restart,
                Some(Restart::Drain) => self.close(Loss::Restart),
                // Its revision is offered no more.
                None if self.shared.is_closing.load(Ordering::Relaxed) => self.close(Loss::Restart),
                None => {}
            }
            if let Some(loss) = self.is_left(Instant::now()) {
                return loss;
            }
            if drain.is_cancelled() && self.routing.is_empty() {
                return Loss::Idle;
            }
        }
    }

    /// Takes no further sessions, and requests the present ones to leave after their calls.
    fn close(&mut self, loss: Loss) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some((loss, Instant::now() + LEAVE_TIMEOUT));
        self.shared.is_closing.store(true, Ordering::Relaxed);
        for inbox in self.members.values() {
            // A session with a full inbox leaves at the child's end.
            inbox.tell(ToSession::Closing(loss));
        }
    }

    /// Reason to end now, once its sessions have left.
    fn is_left(&self, now: Instant) -> Option<Loss> {
        let (loss, until) = self.closing?;
        let has_calls = self.shared.calls.in_flight() > 0;
        let is_wanted = has_calls || !self.shared.mailbox.is_empty() && !self.is_full();
        let is_left = now >= until || self.members.values().all(Inbox::is_closed);
        (!is_wanted && is_left).then_some(loss)
    }

    /// Whether the queue of a child that does not read is full, so that sessions keep their lines.
    fn is_full(&self) -> bool {
        self.child.queued() > MAX_QUEUED
    }

    fn tick(&mut self, now: Instant) -> Option<Loss> {
        self.count_mailbox();
        // The mailbox is not read while it is full.
        let is_full = self.is_full() && !self.child.has_large();
        let full = is_full.then_some(self.child.written());
        if let Some(why) = self.health.failure(full, self.work(), now) {
            log_failure(&self.shared.server, &self.child, why);
            return Some(Loss::Crash);
        }
        self.sweep_own(now);
        let gone: Vec<u32> = self
            .members
            .iter()
            .filter(|(_, inbox)| inbox.is_closed())
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.leave(number);
        }
        let calls = self.shared.calls.in_flight();
        if calls > 0 || self.routing.is_subscribed() {
            self.used = now;
        }
        let every = self.shared.server.clocks.ping;
        // One that works on a call may be busy.
        if !every.is_zero() && calls == 0 && self.pinged + every <= now {
            self.pinged = now;
            self.ping(now);
            self.child.try_flush();
        }
        let idle = self.shared.server.supervision.idle;
        (!idle.is_zero() && now.saturating_duration_since(self.used) >= idle).then_some(Loss::Idle)
    }

    /// The time that it may work on the calls in flight: a server of one thread does not read meanwhile.
    fn work(&self) -> Duration {
        if self.shared.calls.in_flight() == 0 {
            return Duration::ZERO;
        }
        match self.shared.server.clocks.call {
            Duration::ZERO => FOREVER,
            call => call,
        }
    }

    /// Counts what is in the mailbox: where it is read, nothing has been there for long.
    fn count_mailbox(&mut self) {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        if let Some(unread) = &mut self.unread {
            unread.count(waiting, LARGE_STEP);
        }
    }

    /// Ends the wait for answers to requests of the gateway itself that are overdue.
    fn sweep_own(&mut self, now: Instant) {
        let server = &self.shared.server;
        let clock = server.clocks.call;
        let limit = if clock.is_zero() { FOREVER } else { clock };
        let names = (&*server.tenant, &*server.name);
        let own = self.routing.own_requests();
        own.sweep((now, limit), names, self.child.out());
        self.child.try_flush();
    }

    /// Handles this message of a session and those that wait behind it, and writes what they led to.
    async fn handle_sessions(&mut self, first: ToChild) {
        self.handle_session(first).await;
        while !self.is_full()
            && let Ok(message) = self.shared.mailbox.try_recv()
        {
            self.handle_session(message).await;
        }
        self.child.try_flush();
    }

    /// Handles a message of a session.
    async fn handle_session(&mut self, message: ToChild) {
        let waiting = &self.shared.waiting;
        waiting.fetch_sub(message.bytes(), Ordering::Relaxed);
        match message {
            ToChild::Join { number, inbox } => {
                self.used = Instant::now();
                if let Some((loss, _)) = self.closing {
                    // The session joined after the others were requested to leave.
                    inbox.tell(ToSession::Closing(loss));
                }
                self.members.insert(number, inbox);
                self.routing.join(number);
            }
            ToChild::Leave(number) => self.leave(number),
            ToChild::Lines(lines) => {
                self.used = Instant::now();
                self.child.out().extend_from_slice(&lines);
            }
            ToChild::Subscription {
                call,
                uri,
                is_subscribe,
                line,
            } => {
                self.used = Instant::now();
                let out = self.child.out();
                let answer = self
                    .routing
                    .subscription(call, uri, is_subscribe, &line, out);
                if let Some(line) = answer
                    && let Ok(message) = Message::parse(line)
                    && let Some(session) = self.routing.session(call)
                {
                    let counted = Counted::new(&message, self.child.share());
                    let message = ToSession::Message(Box::new(message));
                    self.send(session, message, counted).await;
                }
            }
            ToChild::Abandon { call, uri, is_kept } => {
                let out = self.child.out();
                self.routing.abandon(call, &uri, is_kept, out);
            }
            ToChild::Level(number, level) => {
                self.routing.set_level(number, level, self.child.out());
            }
            ToChild::Probe => self.ping(Instant::now()),
        }
    }

    /// Sends a ping, unless one is on its way, whose answer is awaited.
    fn ping(&mut self, now: Instant) {
        if !self.routing.own_requests().is_pinged() {
            let out = self.child.out();
            self.routing.push_own_request("ping", None, out);
        }
        self.health.count_ping(now);
    }

    /// Removes a session.
    fn leave(&mut self, number: u32) {
        self.members.remove(&number);
        self.routing.leave(number, self.child.out());
        self.child.try_flush();
    }

    /// Handles this event of the child and those that it has ready. Returns the end of the pause in reading
    /// that they cause, or as an error the reason why the child has ended.
    async fn events(&mut self, first: ChildEvent) -> Result<Option<Instant>, Loss> {
        let (mut next, mut room) = (Some(first), BATCH);
        while let Some(event) = next {
            let is_answer = match event {
                ChildEvent::Line(line) => {
                    let line = read(&self.shared.server.tenant, line).await;
                    self.handle_line(line).await
                }
                ChildEvent::Translated => false,
                ChildEvent::TooLong => {
                    let why = "wrote a line above limits.line";
                    log_failure(&self.shared.server, &self.child, why);
                    return Err(Loss::TooLong);
                }
                ChildEvent::Closed | ChildEvent::Exited(_) => {
                    self.is_over = true;
                    return Err(Loss::Crash);
                }
            };
            if let Some(until) = self.paced(is_answer) {
                return Ok(Some(until));
            }
            self.lines += 1;
            if self.lines == STEP {
                self.lines = 0;
                self.child.others_first().await;
            }
            room -= 1;
            next = (room > 0).then(|| self.child.next_ready()).flatten();
        }
        Ok(None)
    }

    /// Returns whether a session gets it as an answer to a call.
    async fn handle_line(&mut self, line: Result<Message, Vec<u64>>) -> bool {
        self.health.count_line();
        match line {
            Ok(message) => self.handle_message(message).await,
            Err(calls) => {
                self.handle_invalid_line(calls).await;
                false
            }
        }
    }

    async fn handle_message(&mut self, message: Message) -> bool {
        let is_response = matches!(message.kind(), Kind::Result | Kind::Error);
        let recipients = self.routing.route(&message, self.child.out());
        self.child.try_flush();
        match recipients {
            Recipients::Session(number) => {
                // Nobody else holds it: a response is not copied.
                let counted = Counted::new(&message, self.child.share());
                let message = ToSession::Message(Box::new(message));
                self.send(number, message, counted).await;
                return is_response;
            }
            Recipients::Sessions(numbers) => {
                let tenant = &self.shared.server.tenant;
                let message = for_several(&self.routing, tenant, message).await;
                let counted = Counted::new(&message, self.child.share());
                for number in numbers {
                    let message = ToSession::Message(Box::new(message.clone()));
                    self.send(number, message, counted.clone()).await;
                }
            }
            Recipients::Gateway => {}
            Recipients::Own(method) => {
                if let (Some(error), server) = (message.error(), &self.shared.server) {
                    log_own_error((&server.tenant, &server.name), method, error);
                }
            }
            Recipients::None => self.count_dropped(),
        }
        false
    }

    async fn handle_invalid_line(&mut self, calls: Vec<u64>) {
        self.shared.pool.metrics.noise_lines.add(1);
        for call in calls {
            if let Some(session) = self.routing.session(call) {
                let message = ToSession::InvalidResponse(call);
                self.send(session, message, Counted::default()).await;
            }
        }
    }

    async fn send(&mut self, number: u32, message: ToSession, counted: Counted) {
        let Some(inbox) = self.members.get(&number) else {
            return self.count_dropped();
        };
        let is_sent = {
            pin! { let put = inbox.put(message, counted, self.child.share()); }
            match put.as_mut().now_or_never() {
                Some(is_sent) => is_sent,
                // A session that does not read must not delay the others.
                None => timeout(PATIENCE, put).await.unwrap_or(false),
            }
        };
        if !is_sent {
            self.leave(number);
        }
    }

    fn count_dropped(&self) {
        let metrics = &self.shared.pool.metrics;
        metrics.messages_dropped.add(Dropped::Unknown);
    }

    /// End of a pause in reading, if the child sends too much.
    fn paced(&mut self, is_answer: bool) -> Option<Instant> {
        self.pace.count(is_answer, &self.shared.calls, Instant::now)
    }

    async fn end(self, reason: Exit) {
        let Self {
            shared,
            mut child,
            place,
            is_over,
            ..
        } = self;
        place.entry().set(ChildState::Stopping);
        if is_over {
            log_end(&shared.server, &mut child).await;
        }
        match reason {
            Exit::Crashed | Exit::FailedStart => child.kill().await,
            _ => child.stop(shared.server.clocks.stop).await,
        };
        shared.pool.metrics.child_exited(reason);
    }
}

/// Logs the end of a child that has closed its stdin or stdout, or has ended. The signal of one that is killed for that
/// is not its own.
async fn log_end(server: &Server, child: &mut Child) {
    let Ok(exit) = timeout(EXIT, child.ended()).await else {
        return log_failure(server, child, "closed its stdin or stdout and runs on");
    };
    tracing::warn!(
        tenant.id = server.tenant, server.name = server.name,
        code = exit.code, signal = exit.signal,
        stderr = %last_words(&exit.stderr_tail), "the shared child ended by itself"
    );
}

/// Logs why the gateway ends a child.
fn log_failure(server: &Server, child: &Child, why: &str) {
    tracing::warn!(
        tenant.id = server.tenant, server.name = server.name,
        stderr = %last_words(&child.stderr().bytes()), "the shared child {why}: it is ended"
    );
}

/// Reads a line in a turn of the tenant.
///
/// # Errors
///
/// The calls that the line was meant to respond to, if it is no message.
async fn read(tenant: &str, line: Bytes) -> Result<Message, Vec<u64>> {
    let turn = LargeWork::turn(tenant, line.len()).await;
    turn.run(|| Message::parse_line(line).map_err(|line| salvage_calls(&line)))
}

/// A message as several sessions get it, made in a turn of the tenant.
async fn for_several(routing: &Routing, tenant: &str, message: Message) -> Message {
    let turn = LargeWork::turn(tenant, message.bytes().len()).await;
    turn.run(|| routing.for_several(message))
}

/// A timeout that is off.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::super::child::*;
    use crate::declare::Isolation;

    /// A long line of a logger took a worker for a tenth of a second, beside its turn.
    #[tokio::test]
    async fn a_large_line_is_read_in_a_turn_of_its_tenant() {
        let pad = "x".repeat(1 << 20);
        for (line, expected) in [
            (format!(r#"{{"level":"{pad}"}}"#), Err(Vec::new())),
            (
                format!(r#"{{"id":4100,"result":"{pad}"}}"#),
                Err(vec![4100]),
            ),
            (
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"":"{pad}"}}}}"#),
                Ok(Kind::Result),
            ),
        ] {
            let held = LargeWork::all_turns().await;
            let line = Bytes::from(line);
            let mut reading = Box::pin(read("acme", line.clone()));
            assert!((&mut reading).now_or_never().is_none(), "without a turn");
            let small = read("acme", line.slice(..100)).now_or_never();
            let is_noise = matches!(small, Some(Err(calls)) if calls.is_empty());
            assert!(is_noise, "needs none");
            drop(held);
            assert_eq!(reading.await.map(|message| message.kind()), expected);
        }
    }

    /// A notification of 4 MiB for all sessions was read on a worker.
    #[tokio::test]
    async fn a_large_notification_is_made_for_several_in_a_turn_of_their_tenant() {
        let routing = Routing::new(Isolation::Tenant, IdBlocks::new());
        let updated = |bytes| {
            let (uri, pad) = ("file:///a", "x".repeat(bytes));
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}","pad":"{pad}"}}}}"#
            );
            Message::parse(line.into()).unwrap()
        };
        let held = LargeWork::all_turns().await;
        let mut making = Box::pin(for_several(&routing, "acme", updated(1 << 20)));
        assert!((&mut making).now_or_never().is_none(), "without a turn");
        let small = for_several(&routing, "acme", updated(100)).now_or_never();
        assert_eq!(small.unwrap().uri(), Some(&b"\"file:///a\""[..]));
        drop(held);
        let made = making.await;
        assert_eq!(made.uri(), Some(&b"\"file:///a\""[..]));
        assert!(made.bytes().len() < 200);
    }
}

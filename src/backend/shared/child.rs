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

use bytes::{BufMut, Bytes};
use tokio::{
    select,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    mailbox::{Heard, Hello, Loss, Standing, Wanted, hello},
    routing::{Recipients, Routing, owner, refuse, salvaged},
};
use crate::backend::{
    Place, Pool, Refused, Started,
    child::{Child, Happened, Restart},
};
use crate::{
    declare::Server,
    protocol::{Body, Kind, Message, Revision, revision},
    telemetry::{ChildState, Exit},
};

/// Time for a session to empty a full inbox.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for a child to answer a ping.
const PROBE: Duration = Duration::from_secs(5);

/// Bytes queued for a child that does not read, beyond which its sessions keep their lines.
const MAX_QUEUED: usize = 8 << 20;

/// Time for sessions to leave a child that ends.
const LEAVING: Duration = Duration::from_secs(5);

/// Interval of checking timeouts.
const TICK: Duration = Duration::from_millis(500);

/// Unsolicited messages of a child per window, as for a child of one session.
const PACE: (u32, Duration) = (2000, Duration::from_millis(100));

/// The task that owns a shared child.
pub(super) struct Shared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Arc<Server>,
    pub(crate) wanted: mpsc::Receiver<Wanted>,
    pub(super) standing: watch::Sender<Standing>,
    pub(crate) load: Arc<AtomicUsize>,
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) is_closing: Arc<AtomicBool>,
    pub(crate) drain: CancellationToken,
    pub(crate) halt: CancellationToken,
}

/// A running child and its sessions.
struct Running {
    shared: Shared,
    child: Child,
    place: Place,
    /// Negotiated revision; none before the answer to `initialize`.
    revision: Option<Revision>,
    routing: Routing,
    /// Inbox of each session.
    members: HashMap<u32, mpsc::Sender<Heard>>,
    used: Instant,
    probe: Option<Instant>,
    pace: (Instant, u32),
    wake: Arc<tokio::sync::Notify>,
    /// Reason of its coming end, and the time until which it waits for its sessions.
    closing: Option<(Loss, Instant)>,
}

impl Shared {
    /// Starts the child and serves its sessions until its end, whose reason counts for its key.
    pub(crate) async fn run(self, restarts: u32, not_before: Option<Instant>) -> Option<Loss> {
        let (pool, server) = (Arc::clone(&self.pool), Arc::clone(&self.server));
        let getting = pool.get(server, restarts, not_before);
        let got = self.halt.run_until_cancelled(getting).await;
        let Started { child, place } = match got {
            Some(Ok(started)) => started,
            Some(Err(refused)) => {
                self.standing.send_replace(Standing::Failed(refused));
                return None;
            }
            None => return None,
        };
        let now = Instant::now();
        let mut running = Running {
            revision: None,
            routing: Routing::new(self.server.supervision.isolation),
            shared: self,
            child,
            place,
            members: HashMap::new(),
            used: now,
            probe: None,
            pace: (now, 0),
            wake: Arc::default(),
            closing: None,
        };
        let hello = match running.start().await {
            Ok(hello) => hello,
            Err(why) => {
                running.failed(why).await;
                return None;
            }
        };
        running.revision = Some(hello.revision);
        running.place.succeeded();
        let wake = Arc::clone(&running.wake);
        running.place.entry().on_restart(move || wake.notify_one());
        running
            .shared
            .standing
            .send_replace(Standing::Ready(Arc::new(hello)));
        let loss = running.serve().await;
        running.shared.is_closing.store(true, Ordering::Relaxed);
        for inbox in running.members.values() {
            // A session with a full inbox notices its end.
            _ = inbox.try_send(Heard::Ended(loss));
        }
        running.members.clear();
        running.shared.wanted.close();
        let exit = match loss {
            Loss::Crash | Loss::TooLong => Exit::Crashed,
            Loss::Idle => Exit::Idle,
            Loss::Restart => Exit::Stopped,
        };
        running.end(exit).await;
        Some(loss)
    }
}

impl Running {
    /// Initializes the child in the name of the gateway, without capabilities: a shared child must
    /// not send requests to clients.
    async fn start(&mut self) -> Result<Hello, Refused> {
        let clock = self.shared.server.clocks.start;
        let newest = revision::ALL[0].as_str();
        let version = env!("CARGO_PKG_VERSION");
        self.child.out().extend_from_slice(
            format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{newest}","capabilities":{{}},"clientInfo":{{"name":"lockgate","version":"{version}"}}}}}}"#
            )
            .as_bytes(),
        );
        self.child.out().put_u8(b'\n');
        self.child.try_flush();
        let halt = self.shared.halt.clone();
        let hello = async {
            loop {
                match self.child.next().await {
                    Happened::Line(line) => {
                        if let Some(until) = self.paced() {
                            sleep_until(until).await;
                        }
                        let Ok(message) = Message::parse(line) else {
                            self.shared.pool.metrics.noise_line();
                            continue;
                        };
                        if message.id() == Some(b"0")
                            && let Some(error) = message.error()
                        {
                            return Err(Refused::Answered(Bytes::copy_from_slice(error)));
                        }
                        if message.id() == Some(b"0") && message.kind() == Kind::Result {
                            let entry = Arc::clone(self.place.entry());
                            return hello(&message, entry)
                                .ok_or(Refused::Failed("unsupported_revision"));
                        }
                        if message.kind() == Kind::Request {
                            refuse(&message, message.method(), self.child.out());
                            self.child.try_flush();
                        }
                    }
                    Happened::TooLong => return Err(Refused::Failed("oversized_line")),
                    Happened::Closed | Happened::Exited(_) => {
                        return Err(Refused::Failed("backend_exited"));
                    }
                }
            }
        };
        let limit = if clock.is_zero() { FOREVER } else { clock };
        let hello = halt
            .run_until_cancelled(timeout(limit, hello))
            .await
            .ok_or(Refused::Failed("backend_exited"))?
            .map_err(|_| Refused::Failed("timeout"))??;
        self.child
            .out()
            .extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        self.child.try_flush();
        Ok(hello)
    }

    /// Ends a child whose start failed.
    async fn failed(mut self, why: Refused) {
        // A child that refuses works, as for a single session.
        let exit = if matches!(why, Refused::Answered(_)) {
            self.place.succeeded();
            Exit::Stopped
        } else {
            self.place.fail();
            Exit::FailedStart
        };
        self.shared.standing.send_replace(Standing::Failed(why));
        self.end(exit).await;
    }

    async fn serve(&mut self) -> Loss {
        let (drain, halt) = (self.shared.drain.clone(), self.shared.halt.clone());
        let mut tick = Instant::now() + TICK;
        let mut paced: Option<Instant> = None;
        let wake = Arc::clone(&self.wake);
        loop {
            select! {
                biased;
                () = halt.cancelled() => return Loss::Idle,
                wanted = self.shared.wanted.recv(), if !self.is_full() => match wanted {
                    Some(wanted) => {
                        self.wanted(wanted).await;
                        while !self.is_full()
                            && let Ok(wanted) = self.shared.wanted.try_recv()
                        {
                            self.wanted(wanted).await;
                        }
                        self.child.try_flush();
                    }
                    None => return Loss::Idle,
                },
                happened = self.child.next(), if paced.is_none() => match happened {
                    Happened::Line(line) => {
                        self.line(line).await;
                        paced = self.paced();
                    }
                    Happened::TooLong => return Loss::TooLong,
                    Happened::Closed | Happened::Exited(_) => return Loss::Crash,
                },
                () = wake.notified() => {}
                () = sleep_until(paced.unwrap_or(tick)) => {
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

    /// Takes no further sessions and asks the present ones to leave after their calls.
    fn close(&mut self, loss: Loss) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some((loss, Instant::now() + LEAVING));
        self.shared.is_closing.store(true, Ordering::Relaxed);
        for inbox in self.members.values() {
            // A session with a full inbox leaves at the child's end.
            _ = inbox.try_send(Heard::Closing(loss));
        }
    }

    /// Reason to end now, once its sessions have left.
    fn is_left(&self, now: Instant) -> Option<Loss> {
        let (loss, until) = self.closing?;
        let has_calls = self.shared.load.load(Ordering::Relaxed) > 0;
        let is_wanted = has_calls || !self.shared.wanted.is_empty() && !self.is_full();
        let is_left = now >= until || self.members.values().all(mpsc::Sender::is_closed);
        (!is_wanted && is_left).then_some(loss)
    }

    /// Whether the queue of a child that does not read is full, so that sessions keep their lines.
    fn is_full(&self) -> bool {
        self.child.queued() > MAX_QUEUED
    }

    fn tick(&mut self, now: Instant) -> Option<Loss> {
        if self.is_full() {
            // The mailbox is not read meanwhile.
            self.probe.get_or_insert(now + PROBE);
        }
        if self.probe.is_some_and(|until| until <= now) {
            tracing::warn!(
                server.name = self.shared.server.name,
                "the shared child does not answer a ping: it is ended"
            );
            return Some(Loss::Crash);
        }
        let gone: Vec<u32> = self
            .members
            .iter()
            .filter(|(_, inbox)| inbox.is_closed())
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.leave(number);
        }
        let calls = self.shared.load.load(Ordering::Relaxed);
        if calls > 0 || self.routing.is_subscribed() {
            self.used = now;
        }
        let idle = self.shared.server.supervision.idle;
        (!idle.is_zero() && now.saturating_duration_since(self.used) >= idle).then_some(Loss::Idle)
    }

    async fn wanted(&mut self, wanted: Wanted) {
        let waiting = &self.shared.waiting;
        waiting.fetch_sub(wanted.bytes(), Ordering::Relaxed);
        match wanted {
            Wanted::Join { number, inbox } => {
                self.used = Instant::now();
                if let Some((loss, _)) = self.closing {
                    // It joined after the others were asked to leave.
                    _ = inbox.try_send(Heard::Closing(loss));
                }
                self.members.insert(number, inbox);
                self.routing.join(number);
            }
            Wanted::Leave(number) => self.leave(number),
            Wanted::Lines(lines) => {
                self.used = Instant::now();
                self.child.out().extend_from_slice(&lines);
            }
            Wanted::Subscription {
                call,
                uri,
                begins,
                line,
            } => {
                self.used = Instant::now();
                let out = self.child.out();
                let answer = self.routing.subscription(call, uri, begins, &line, out);
                if let Some(line) = answer
                    && let Ok(message) = Message::parse(line)
                {
                    self.send(owner(call), Heard::Message(Box::new(message)))
                        .await;
                }
            }
            Wanted::Abandon { call, uri, is_kept } => {
                let out = self.child.out();
                self.routing.abandon(call, &uri, is_kept, out);
            }
            Wanted::Level(number, level) => {
                self.routing.set_level(number, level, self.child.out());
            }
            Wanted::Probe => {
                self.child
                    .out()
                    .extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"ping\"}\n");
                self.probe.get_or_insert(Instant::now() + PROBE);
            }
        }
    }

    /// Removes a session.
    fn leave(&mut self, number: u32) {
        self.members.remove(&number);
        self.routing.leave(number, self.child.out());
        self.child.try_flush();
    }

    async fn line(&mut self, line: Bytes) {
        self.probe = None;
        if let Ok(message) = Message::parse(line.clone()) {
            return self.message(message).await;
        }
        // 2025-03-26 basic, "Batching".
        if self.revision.is_some_and(Revision::has_batches)
            && line.starts_with(b"[")
            && let Ok(Body::Batch(items)) = Body::parse(line.clone())
        {
            for message in items.into_iter().flatten() {
                self.message(message).await;
            }
            return;
        }
        self.garbage(&line).await;
    }

    async fn message(&mut self, message: Message) {
        let hearing = self.routing.route(&message, self.child.out());
        self.child.try_flush();
        match hearing {
            Recipients::Sessions(numbers) => {
                for number in numbers {
                    let heard = Heard::Message(Box::new(message.clone()));
                    self.send(number, heard).await;
                }
            }
            Recipients::Gateway => {}
            Recipients::Nowhere => self.dropped(),
        }
    }

    async fn garbage(&mut self, line: &[u8]) {
        self.shared.pool.metrics.noise_line();
        if let Some(call) = salvaged(line).filter(|call| *call != 0) {
            self.send(owner(call), Heard::Garbage(call)).await;
        }
    }

    async fn send(&mut self, number: u32, heard: Heard) {
        let Some(inbox) = self.members.get(&number) else {
            return self.dropped();
        };
        // A session that does not read must not delay the others.
        if !matches!(timeout(PATIENCE, inbox.send(heard)).await, Ok(Ok(()))) {
            self.leave(number);
        }
    }

    fn dropped(&self) {
        let why = crate::telemetry::Dropped::Unknown;
        self.shared.pool.metrics.message_dropped(why);
    }

    /// End of a pause in reading, if the child sends too much.
    fn paced(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (began, count) = &mut self.pace;
        if now.duration_since(*began) >= PACE.1 {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        // Answers are paced by requests.
        let calls = u32::try_from(self.shared.load.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (*count >= PACE.0.saturating_add(calls.saturating_mul(64))).then_some(*began + PACE.1)
    }

    async fn end(self, why: Exit) {
        let Self {
            shared,
            child,
            place,
            ..
        } = self;
        place.entry().set(ChildState::Stopping);
        match why {
            Exit::Crashed | Exit::FailedStart => child.kill().await,
            _ => child.stop(shared.server.clocks.stop).await,
        };
        shared.pool.metrics.child_exited(why);
    }
}

/// Distance of a timeout that is off.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

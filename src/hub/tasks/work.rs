//! The work at a task: its call, read to the end, and its result, kept for a while.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    select,
    sync::mpsc,
    time::{Instant, interval_at, sleep},
};

use super::{
    copy::{AGAIN, Copied, Moments, OwnCopy},
    task::{OpenTask, Order, Shown, Task, dismiss},
};
use crate::{
    auth::Access,
    base::{budget::LargeWork, moment},
    hub::{
        CallError,
        core::{AccessChange, Core, or_never},
        stateless::{CallInFlight, replies},
        stream::{Next, Reader},
    },
    protocol::{
        Kind, Message, Method, json, jsonrpc,
        modern::{self, Completion, InputRequest, TaskState, TaskStatus, WantedInput},
    },
    state::{LogShare, Seat},
};

/// The work at a task.
pub(super) struct Work {
    core: Arc<Core>,
    id: String,
    task: Arc<Task>,
    orders: mpsc::Receiver<Order>,
    copy: Option<OwnCopy>,
    /// What the state is counted against.
    share: LogShare,
    born: Instant,
    created: String,
    ttl: Option<Duration>,
    message: Option<String>,
    /// The requests that the client has not answered.
    asks: Vec<InputRequest>,
    completion: Completion,
    _seat: Seat,
}

/// The end of a call: its answer, or none if its client has cancelled it.
type End = Option<Bytes>;

impl Work {
    /// The time that the result of a task is kept: that of the events of a stream (`log.age`), for which a
    /// client of another revision may reconnect.
    pub(super) fn kept(core: &Core) -> Duration {
        or_never(core.config.log.age).min(MAX_KEPT)
    }

    /// The work at a task that begins.
    pub(super) fn new(
        core: &Arc<Core>,
        id: String,
        task: Arc<Task>,
        orders: mpsc::Receiver<Order>,
        (copy, seat): (Option<OwnCopy>, Seat),
        call: &CallInFlight,
    ) -> Self {
        let access = call.access();
        let clocks = access.server().clocks_of(task.call.tool().as_deref());
        let max = clocks.call_max;
        let ttl = (!max.is_zero()).then(|| max + Self::kept(core));
        Self {
            share: core.limits.memory().local_session(access),
            created: moment(core.snapshot.clock().now_ms()),
            born: Instant::now(),
            ttl,
            completion: Completion {
                id: Bytes::from_static(b"0"),
                server_info: call.server_info(),
                caching: None,
            },
            core: Arc::clone(core),
            id,
            task,
            orders,
            copy,
            message: None,
            asks: Vec::new(),
            _seat: seat,
        }
    }

    /// Shows and copies the first state, and returns it.
    pub(super) async fn begin(&mut self) -> Bytes {
        self.show();
        let state = self.task.state();
        // No other replica knows it yet.
        self.write(&state).await;
        state
    }

    /// Reads the call to its end, and keeps the result for a while.
    pub(super) async fn run(&mut self, call: CallInFlight, reader: Reader) {
        let access = call.access().clone();
        let end = self.read(call, reader).await;
        dismiss(&mut self.orders).await;
        self.asks.clear();
        self.ttl = Some(self.born.elapsed() + Self::kept(&self.core));
        let bytes = end.as_ref().map_or(0, Bytes::len);
        let turn = LargeWork::turn(&access.tenant().name, bytes).await;
        let mut state = turn.run(|| self.end(end));
        // Before others see it: if another replica has said that the task has failed, it has.
        if !self.write(&state).await {
            state = self.end(Some(CallError::OWNER_LOST.line(b"0")));
        }
        self.show_last(state);
        // A part of what the server said in its `initialize`, and only for states that follow.
        self.completion.server_info = None;
        let core = Arc::clone(&self.core);
        select! {
            () = sleep(Self::kept(&core)) => {}
            () = grace(&core) => {}
            () = self.keep(&access) => {}
        }
    }

    /// Keeps the last state in the store for as long as its caller may use the server, and then leaves nothing of it
    /// there.
    async fn keep(&mut self, access: &Access) {
        let core = Arc::clone(&self.core);
        select! {
            () = lost(&core, access) => {}
            () = self.keep_copied() => {}
        }
        self.remove_copy().await;
    }

    /// Leaves nothing in the store of a task that its client does not know. Until then it counts among those of its
    /// caller, and its copy against their share; a copy that cannot be removed ends by itself.
    pub(super) async fn forget(&mut self) {
        let core = Arc::clone(&self.core);
        select! {
            () = sleep(Self::kept(&core)) => {}
            () = grace(&core) => {}
            () = self.remove_copy() => {}
        }
    }

    async fn remove_copy(&mut self) {
        if let Some(copy) = &mut self.copy {
            while !copy.remove().await {
                sleep(AGAIN).await;
            }
        }
    }

    /// Writes the last state again whenever the store may not have it, and never returns.
    async fn keep_copied(&mut self) {
        let core = Arc::clone(&self.core);
        let mut moments = Moments::new(&core);
        loop {
            moments.next().await;
            if !self.renew().await {
                // The store had not taken the end before the claim.
                let lost = CallError::OWNER_LOST.line(b"0");
                let error = json::get(&lost, "error").unwrap_or(b"{}");
                self.show_last(modern::failed(&self.task.state(), error));
            }
        }
    }

    async fn read(&mut self, call: CallInFlight, mut reader: Reader) -> End {
        let core = Arc::clone(&self.core);
        let every = Self::kept(&core) / 2;
        let mut ticks = interval_at(Instant::now() + every, every);
        let mut moments = Moments::new(&core);
        let mut grace = pin!(grace(&core));
        let mut is_own = true;
        while is_own {
            select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(Order::Answer(request, done)) => {
                        self.answer(&call, &request).await;
                        let _ = done.send(());
                    }
                    // Dropped, the call is cancelled at its server.
                    Some(Order::Cancel) | None => return None,
                },
                next = reader.next() => {
                    let Next::Events(events) = next else {
                        // Its session has ended.
                        return Some(CallError::EXITED.line(b"0"));
                    };
                    for (_, event) in events {
                        let tenant = &call.access().tenant().name;
                        let turn = LargeWork::turn(tenant, event.len()).await;
                        if let Some(answer) = turn.run(|| self.take(&call, event)) {
                            call.finish();
                            return Some(answer);
                        }
                    }
                }
                _ = ticks.tick() => is_own = self.write_present().await,
                () = moments.next() => is_own = self.renew().await,
                // The replica that drains cannot wait for people.
                () = &mut grace, if !self.asks.is_empty() => {
                    return Some(CallError::OWNER_LOST.line(b"0"));
                }
            }
        }
        // Its client was told so by another replica, and waits for nothing: the call is cancelled at its server.
        Some(CallError::OWNER_LOST.line(b"0"))
    }

    /// Takes what the server says; its answer, if it is that.
    fn take(&mut self, call: &CallInFlight, event: Bytes) -> Option<Bytes> {
        let message = Message::parse(event).ok()?;
        if !matches!(message.kind(), Kind::Result | Kind::Error) {
            self.hear(call, &message);
            return None;
        }
        // What it has asked meanwhile is no part of the call any more.
        call.refuse(&self.asks);
        // Its client has a task, and makes no request again.
        if call.carried().is_some() && WantedInput::in_answer(&message).is_some() {
            let why = "the server asks when the call has become a task";
            let mut line = BytesMut::new();
            jsonrpc::push_error(b"0", -32603, why, None, &mut line);
            return Some(line.freeze());
        }
        Some(self.completion.complete(&message))
    }

    /// Takes what the server says beside its answer.
    fn hear(&mut self, call: &CallInFlight, message: &Message) {
        match (message.kind(), message.method()) {
            (Kind::Request, _) => {
                // "Each request key MUST be unique over the lifetime of a single task" (ext-tasks, "Task Update
                // Requests"): a repeated update answers nothing that is asked later.
                let mut ask = InputRequest::of(message).under_id();
                if !InputRequest::is_one(&message.method_name()) {
                    return call.refuse(&[ask]);
                }
                let Some(drawn) = self.share.draw(ask.request.len() as u64) else {
                    return call.refuse_without_room(&ask);
                };
                ask.request = drawn.until_dropped(ask.request);
                self.asks.push(ask);
            }
            (Kind::Notification, Method::Cancelled) => {
                let ask = message.request_id().map(|span| span.of(message.bytes()));
                self.asks.retain(|known| Some(&*known.id) != ask);
            }
            // "Progress descriptions for `working`" (ext-tasks, "Tasks").
            (Kind::Notification, Method::Progress) => {
                let text = message
                    .params()
                    .and_then(|params| json::get(params, "message"));
                let Some(text) = text.and_then(json::decoded) else {
                    return;
                };
                self.message = Some(text.chars().take(MAX_MESSAGE).collect());
            }
            _ => return,
        }
        self.show();
    }

    /// Passes the answers of a client on to the server.
    async fn answer(&mut self, call: &CallInFlight, request: &Message) {
        let tenant = &call.access().tenant().name;
        let turn = LargeWork::turn(tenant, request.bytes().len()).await;
        for (id, reply) in turn.run(|| replies(request, &self.asks)) {
            // Where a session has ended, the reader says so.
            if call.reply(call.access(), reply).await.is_ok() {
                self.asks.retain(|ask| ask.id != id);
            }
        }
        self.show();
    }

    /// Shows the state of a call that goes on.
    fn show(&self) {
        let text = self.message.as_ref().map_or(0, String::len);
        self.task.show(OpenTask {
            id: self.id.clone(),
            message: self.message.clone(),
            asks: self.asks.clone(),
            times: [self.created.clone(), self.now()],
            ttl_ms: self.ttl.map(|ttl| ttl.as_millis()),
            server_info: self.completion.server_info.clone(),
            _held: self.share.memory().hold((self.id.len() + text) as u64),
        });
    }

    fn now(&self) -> String {
        moment(self.core.snapshot.clock().now_ms())
    }

    /// The last state, within the share of the caller. The answer goes with that: whether its result is kept or
    /// not, it would be held beside it, uncounted, for as long as the task is kept.
    fn end(&self, end: End) -> Bytes {
        let failed = |line: &[u8]| {
            let error = json::get(line, "error").unwrap_or(b"{}");
            let message = json::get(error, "message").and_then(json::decoded);
            self.render(TaskStatus::Failed(error), message.as_deref())
        };
        let state = match end {
            None => self.render(TaskStatus::Cancelled, Some("cancelled by its client")),
            Some(line) => match json::get(&line, "result") {
                Some(result) => self.render(TaskStatus::Completed(result), None),
                None => failed(&line),
            },
        };
        match self.share.memory().draw(state.len() as u64) {
            Some(drawn) => drawn.until_dropped(state),
            None => failed(&CallError::NO_ROOM_FOR_RESPONSE.line(b"0")),
        }
    }

    /// Shows the last state.
    fn show_last(&self, state: Bytes) {
        self.task.state.send_replace(Shown::Last(state));
        if self.copy.is_none() {
            self.task.confirmed.send_replace(None);
        }
    }

    fn render(&self, status: TaskStatus<'_>, message: Option<&str>) -> Bytes {
        TaskState {
            id: &self.id,
            status,
            message,
            times: [&self.created, &self.now()],
            ttl_ms: self.ttl.map(|ttl| ttl.as_millis()),
            server_info: self.completion.server_info.as_deref(),
        }
        .render()
    }

    /// Copies a state to the store; false if another replica has claimed the task, which is no longer this one's.
    async fn write(&mut self, state: &[u8]) -> bool {
        let Some(copy) = &mut self.copy else {
            return true;
        };
        match copy.write(&self.task.call, state).await {
            Copied::Own(lapses) => {
                self.task.confirmed.send_replace(Some(lapses));
                true
            }
            Copied::Missed => true,
            Copied::Lost => {
                // The others answer from it.
                self.copy = None;
                false
            }
        }
    }

    /// Copies the state that is shown.
    async fn write_present(&mut self) -> bool {
        let state = self.task.state();
        self.write(&state).await
    }

    /// Copies it again if the store may not have it.
    async fn renew(&mut self) -> bool {
        let is_due = self.copy.as_ref().is_some_and(OwnCopy::is_due);
        !is_due || self.write_present().await
    }
}

/// Waits until the caller of a task may not use its server any more.
async fn lost(core: &Core, access: &Access) {
    while !matches!(core.changed(access), AccessChange::Lost) {
        sleep(LOOK).await;
    }
}

/// Waits until this replica is about to end.
async fn grace(core: &Core) {
    core.drain.cancelled().await;
    sleep(GRACE).await;
}

/// The time that a result is kept at most: it counts among the tasks of its caller.
const MAX_KEPT: Duration = Duration::from_hours(24);
/// The time between two looks at the access of the caller of a task that has ended: all of it is gone within seconds.
const LOOK: Duration = Duration::from_secs(1);
/// The most characters of a message.
const MAX_MESSAGE: usize = 1024;
/// The time that is left for the client when the replica is about to end.
const GRACE: Duration = Duration::from_secs(1);

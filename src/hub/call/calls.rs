//! Calls in flight of one session, with their clocks, the asks of the server, and its tasks.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::{audit::Audited, clock::CallClock};
use crate::{
    auth::Listed,
    backend::dialect::{AskId, CallId},
    declare::Policy,
    hub::{
        limits::{Seats, SubscriptionMemory},
        stream::{About, InFlight, route},
    },
    protocol::StreamId,
    telemetry::{CallSpans, MethodClass},
};

/// Calls and asks that have not ended.
#[derive(Default)]
pub(crate) struct Calls {
    /// Boxed: a node of the map has room for eleven, and most sessions have one.
    calls: BTreeMap<CallId, Box<Call>>,
    asks: HashMap<AskId, Ask>,
    /// Tasks that calls became: progress of a task still carries the token of its call.
    tasks: VecDeque<Task>,
}

/// A request of the client that the backend has not answered.
pub(crate) struct Call {
    /// The stream of its response.
    pub(crate) stream: StreamId,
    /// Whether that stream is SSE, or may still become SSE.
    pub(crate) is_carrier: bool,
    /// The raw id of the task whose result the call waits for.
    pub(crate) task: Option<Box<[u8]>>,
    /// Whether the client requested a task.
    pub(crate) wants_task: bool,
    /// The clock with the deadline of the call.
    pub(crate) clock: CallClock,
    /// The time at which it began.
    pub(crate) began: Instant,
    /// The class for the metrics.
    pub(crate) class: MethodClass,
    /// The name of its method, for the metrics.
    pub(crate) method: &'static str,
    /// The tool that it calls.
    pub(crate) tool: Option<Box<str>>,
    /// The audit record, for a server with `audit_calls`.
    pub(crate) audited: Option<Box<Audited>>,
    /// The change that the result makes in the session.
    pub(crate) effect: Effect,
    /// The list that the result holds, and the policy of its sender.
    pub(crate) list: Option<(Listed, Arc<Policy>)>,
    /// Its spans, if they are recorded.
    pub(crate) spans: Option<Box<CallSpans>>,
    /// The seats among the calls in flight, held for the life of the call.
    pub(crate) _seats: Seats,
}

/// The change that the result of a call makes in the session.
#[derive(Debug, Default)]
pub(crate) enum Effect {
    /// No change.
    #[default]
    None,
    /// A new level of log messages.
    Level(Box<str>),
    /// The begin of a subscription to a URI, in its canonical spelling, with the memory that it takes.
    Subscribed(Box<[u8]>, SubscriptionMemory),
    /// The end of a subscription.
    Unsubscribed(Box<[u8]>),
    /// A list of the tools of the server.
    Tools,
}

/// An ask that begins.
pub(crate) struct NewAsk<'a> {
    /// The gateway's id of it.
    pub(crate) id: AskId,
    /// The stream that carries it.
    pub(crate) stream: StreamId,
    /// The number of its event there.
    pub(crate) number: u64,
    /// The present time.
    pub(crate) now: Instant,
    /// The time by which the client must answer.
    pub(crate) until: Instant,
    /// The time by which a connection must have carried it.
    pub(crate) claim_by: Instant,
    /// The raw id of the task that it belongs to.
    pub(crate) task: Option<&'a [u8]>,
}

/// A request of the child that the client has not answered.
pub(crate) struct Ask {
    /// The stream that carries it.
    pub(crate) stream: StreamId,
    /// The number of its event there.
    pub(crate) number: u64,
    /// The raw id of the task that it belongs to.
    pub(crate) task: Option<Box<[u8]>>,
    /// The calls whose clocks are stopped.
    stopped: Box<[CallId]>,
    until: Instant,
    /// The time by which a connection must have carried it; none once one has.
    claim_by: Option<Instant>,
}

/// A task that a call became, until its result is fetched or its time is over.
struct Task {
    call: CallId,
    /// The raw id of the task.
    id: Box<[u8]>,
    until: Instant,
}

/// Bytes of a task's id, as JSON.
const MAX_TASK_ID: usize = 1024;
/// The most tasks that are kept for their progress; the oldest are dropped first.
const MAX_TASKS: usize = 256;

/// A call or an ask that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// A call: the child did not answer.
    Call(CallId),
    /// An ask: the client did not answer, or no connection carried it.
    Ask(AskId),
}

impl Calls {
    /// Whether no call is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The number of calls in flight.
    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Whether the child is needed: for a call, an ask, or a task that a call became.
    pub(crate) fn is_in_use(&self) -> bool {
        !(self.calls.is_empty() && self.asks.is_empty() && self.tasks.is_empty())
    }

    /// Whether the only call waits for answers of its client, and no call became a task.
    pub(crate) fn wait_for_client(&self) -> bool {
        self.calls.len() == 1 && !self.asks.is_empty() && self.tasks.is_empty()
    }

    /// Restarts the clocks of all calls, which waited for a child.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.calls
            .values_mut()
            .for_each(|call| call.clock.restart(now));
    }

    /// The asks that are open.
    pub(crate) fn open_asks(&self) -> Vec<AskId> {
        self.asks.keys().copied().collect()
    }

    /// Drops the tasks, which ended with their child.
    pub(crate) fn forget_tasks(&mut self) {
        self.tasks.clear();
    }

    /// Whether a call is in flight.
    pub(crate) fn is_open(&self, id: CallId) -> bool {
        self.calls.contains_key(&id)
    }

    /// Adds a call.
    pub(crate) fn begin(&mut self, id: CallId, call: Call) {
        self.calls.insert(id, Box::new(call));
    }

    /// Removes a call.
    pub(crate) fn end(&mut self, id: CallId) -> Option<Call> {
        self.calls.remove(&id).map(|call| *call)
    }

    /// The raw id of the task whose result a call waits for.
    pub(crate) fn task_of(&self, id: CallId) -> Option<&[u8]> {
        self.calls.get(&id)?.task.as_deref()
    }

    /// The calls in flight, oldest first.
    pub(crate) fn ids(&self) -> Vec<CallId> {
        self.calls.keys().copied().collect()
    }

    /// The stream for a message of the server; none if the message has to be dropped.
    pub(crate) fn route(&self, about: About<'_>) -> Option<StreamId> {
        route(
            about,
            self.calls.iter().map(|(id, call)| call.in_flight(*id)),
        )
    }

    /// The stream for progress of a call, or of the task that a call became.
    pub(crate) fn route_progress(&mut self, id: CallId, now: Instant) -> Option<StreamId> {
        if let Some(call) = self.calls.get_mut(&id) {
            call.clock.progress(now);
            return self.route(About::Progress(id));
        }
        let task = self.tasks.iter().find(|task| task.call == id)?;
        self.route(About::Log(Some(&task.id)))
    }

    /// Adds the task that a call became, unless its id is longer than any honest one: a child chooses it.
    pub(crate) fn keep_task(&mut self, call: CallId, id: &[u8], until: Instant) {
        if id.len() > MAX_TASK_ID {
            return;
        }
        if self.tasks.len() == MAX_TASKS {
            self.tasks.pop_front();
        }
        let id = id.into();
        self.tasks.push_back(Task { call, id, until });
    }

    /// Drops a task whose result was fetched.
    pub(crate) fn forget_task(&mut self, id: &[u8]) {
        self.tasks.retain(|task| *task.id != *id);
    }

    /// Drops the tasks whose time is over. Returns the end of the next one.
    pub(crate) fn sweep_tasks(&mut self, now: Instant) -> Option<Instant> {
        self.tasks.retain(|task| task.until > now);
        self.tasks.iter().map(|task| task.until).min()
    }

    /// The only call in flight; none if there are several.
    pub(crate) fn only(&self) -> Option<CallId> {
        let mut calls = self.calls.keys();
        let only = calls.next().copied();
        only.filter(|_| calls.next().is_none())
    }

    /// The tool of the only call that may wait for an ask, of this task if it belongs to one; none if there are
    /// several.
    pub(crate) fn asking_tool(&self, task: Option<&[u8]>) -> Option<&str> {
        let mut calls = self.calls.values();
        let mut next = || calls.find(|call| call.task.as_deref() == task);
        let only = next();
        only.filter(|_| next().is_none())?.tool.as_deref()
    }

    /// Adds an ask; returns the time at which it is due. The calls that may wait for it are stopped: those
    /// of its task, or, as an ask names no call, all that are no wait for a task's result.
    pub(crate) fn ask(&mut self, ask: &NewAsk<'_>) -> Instant {
        let NewAsk {
            id,
            stream,
            number,
            now,
            until,
            claim_by,
            task,
        } = *ask;
        let mut stopped = Vec::new();
        for (id, call) in &mut self.calls {
            if call.task.as_deref() == task {
                call.clock.ask(now);
                stopped.push(*id);
            }
        }
        let stopped = stopped.into();
        self.asks.insert(
            id,
            Ask {
                stream,
                number,
                task: task
                    .filter(|task| task.len() <= MAX_TASK_ID)
                    .map(Into::into),
                stopped,
                until,
                claim_by: Some(claim_by),
            },
        );
        until.min(claim_by)
    }

    /// Removes an ask.
    pub(crate) fn settle(&mut self, id: AskId, now: Instant) -> Option<Ask> {
        let ask = self.asks.remove(&id)?;
        for call in &ask.stopped {
            if let Some(call) = self.calls.get_mut(call) {
                call.clock.settle(now);
            }
        }
        Some(ask)
    }

    /// The overdue calls and asks, and the time of the next one.
    pub(crate) fn overdue(
        &mut self,
        now: Instant,
        is_written: impl Fn(StreamId, u64) -> bool,
    ) -> (Vec<Overdue>, Option<Instant>) {
        let mut overdue = Vec::new();
        let mut next: Option<Instant> = None;
        let mut look = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        for (id, call) in &self.calls {
            match call.clock.deadline() {
                at if at <= now => overdue.push(Overdue::Call(*id)),
                at => look(at),
            }
        }
        for (id, ask) in &mut self.asks {
            if ask.claim_by.is_some_and(|at| at <= now) && is_written(ask.stream, ask.number) {
                ask.claim_by = None;
            }
            match ask.claim_by.map_or(ask.until, |at| at.min(ask.until)) {
                at if at <= now => overdue.push(Overdue::Ask(*id)),
                at => look(at),
            }
        }
        (overdue, next)
    }
}

impl Effect {
    /// Whether the change is part of the record of the session.
    pub(crate) fn is_recorded(&self) -> bool {
        matches!(
            self,
            Self::Level(_) | Self::Subscribed(..) | Self::Unsubscribed(_)
        )
    }
}

impl Call {
    fn in_flight(&self, call: CallId) -> InFlight<'_> {
        let Self {
            stream,
            is_carrier,
            ref task,
            ..
        } = *self;
        InFlight {
            call,
            stream,
            is_carrier,
            task: task.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::calls::*;

    #[test]
    fn a_task_with_a_long_id_is_not_kept() {
        let (mut calls, now) = (Calls::default(), Instant::now());
        for (length, kept) in [(MAX_TASK_ID, 1), (MAX_TASK_ID + 1, 1), (6 << 20, 1)] {
            calls.keep_task(CallId::default(), &vec![b'x'; length], now);
            assert_eq!(calls.tasks.len(), kept, "{length}");
        }
    }
}

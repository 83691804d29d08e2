//! Calls in flight of one session, requests of the server meanwhile, and their clocks.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{audit::Audited, clock::CallClock};
use crate::{
    auth::Listed,
    backend::dialect::{AskId, CallId},
    declare::Policy,
    hub::{
        limits::Seats,
        stream::{About, InFlight, route},
    },
    protocol::StreamId,
    telemetry::metrics,
};

/// Calls and asks that have not ended.
#[derive(Default)]
pub(crate) struct Calls {
    calls: BTreeMap<CallId, Call>,
    asks: HashMap<AskId, Ask>,
    /// Tasks that calls became: progress of a task still carries the token of its call.
    tasks: VecDeque<Task>,
}

/// A client's request that the child has.
pub(crate) struct Call {
    /// The stream of its response.
    pub(crate) stream: StreamId,
    /// Whether that stream is SSE, or may still become SSE.
    pub(crate) is_carrier: bool,
    /// The raw id of the task whose result it waits for.
    pub(crate) task: Option<Box<[u8]>>,
    /// Whether it asked for a task.
    pub(crate) wants_task: bool,
    /// When it is overdue.
    pub(crate) clock: CallClock,
    /// Its class, for the metrics.
    pub(crate) class: metrics::Method,
    /// Its audit record, where the server asks for one.
    pub(crate) audited: Option<Box<Audited>>,
    /// The change that its result makes in the session.
    pub(crate) effect: Effect,
    /// The list that its result is, and the policy of its sender.
    pub(crate) list: Option<(Listed, Arc<Policy>)>,
    /// Its place among the calls in flight.
    pub(crate) _seats: Seats,
}

/// The change that the result of a call makes in the session.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    #[default]
    None,
    /// The level of log messages.
    Level(Box<str>),
    /// A subscription to a URI, in its canonical spelling, begins.
    Subscribed(Box<[u8]>),
    /// It ends.
    Unsubscribed(Box<[u8]>),
    /// The tools of the server are known.
    Tools,
}

/// A request of the child that the client has to answer.
struct Ask {
    stream: StreamId,
    number: u64,
    /// The calls whose clocks stand still for it.
    stopped: Box<[CallId]>,
    until: Instant,
    /// Until when a connection must have carried it; none once one has.
    claim_by: Option<Instant>,
}

/// A task that a call became, until its result was fetched or its time is over.
struct Task {
    call: CallId,
    /// Its raw id.
    id: Box<[u8]>,
    until: Instant,
}

/// How many tasks are remembered for their progress; the oldest go first.
const TASKS: usize = 256;

/// A call or an ask that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// This call.
    Call(CallId),
    /// This ask: the client did not answer, or no connection could carry it.
    Ask(AskId),
}

impl Calls {
    /// Whether no call is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many calls are in flight.
    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Whether the child is needed: for a call, an ask, or a task that a call became.
    pub(crate) fn is_in_use(&self) -> bool {
        !(self.calls.is_empty() && self.asks.is_empty() && self.tasks.is_empty())
    }

    /// The calls waited for a child: its time begins now.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.calls
            .values_mut()
            .for_each(|call| call.clock.restart(now));
    }

    /// Removes all asks, with the streams that they were on.
    pub(crate) fn drop_asks(&mut self, now: Instant) -> Vec<(AskId, StreamId)> {
        let asks: Vec<AskId> = self.asks.keys().copied().collect();
        asks.into_iter()
            .filter_map(|ask| Some((ask, self.settle(ask, now)?)))
            .collect()
    }

    /// The tasks are gone with their child.
    pub(crate) fn forget_tasks(&mut self) {
        self.tasks.clear();
    }

    /// Adds a call.
    pub(crate) fn begin(&mut self, id: CallId, call: Call) {
        self.calls.insert(id, call);
    }

    /// Removes a call.
    pub(crate) fn end(&mut self, id: CallId) -> Option<Call> {
        self.calls.remove(&id)
    }

    /// The calls in flight, oldest first.
    pub(crate) fn ids(&self) -> Vec<CallId> {
        self.calls.keys().copied().collect()
    }

    /// A stream has become one that can carry nothing but responses, or the other way round.
    pub(crate) fn route(&self, about: About<'_>) -> Option<StreamId> {
        route(
            about,
            self.calls.iter().map(|(id, call)| call.in_flight(*id)),
        )
    }

    /// Progress of a call, or of the task that a call became.
    pub(crate) fn route_progress(&mut self, id: CallId, now: Instant) -> Option<StreamId> {
        if let Some(call) = self.calls.get_mut(&id) {
            call.clock.progress(now);
            return self.route(About::Progress(id));
        }
        let task = self.tasks.iter().find(|task| task.call == id)?;
        self.route(About::Log(Some(&task.id)))
    }

    /// Remembers the task that a call became.
    pub(crate) fn keep_task(&mut self, call: CallId, id: &[u8], until: Instant) {
        if self.tasks.len() == TASKS {
            self.tasks.pop_front();
        }
        let id = id.into();
        self.tasks.push_back(Task { call, id, until });
    }

    /// The result of a task was fetched.
    pub(crate) fn forget_task(&mut self, id: &[u8]) {
        self.tasks.retain(|task| *task.id != *id);
    }

    /// Forgets tasks whose time is over. Returns when to look again.
    pub(crate) fn sweep_tasks(&mut self, now: Instant) -> Option<Instant> {
        self.tasks.retain(|task| task.until > now);
        self.tasks.iter().map(|task| task.until).min()
    }

    /// Adds an ask that is event `number` of a stream. It does not name its call, so that all
    /// wait for it.
    pub(crate) fn ask(
        &mut self,
        id: AskId,
        (stream, number): (StreamId, u64),
        now: Instant,
        (ask, unclaimed): (Duration, Duration),
    ) -> Instant {
        self.calls.values_mut().for_each(|call| call.clock.ask(now));
        let stopped = self.calls.keys().copied().collect();
        let (until, claim_by) = (now + ask, now + unclaimed);
        self.asks.insert(
            id,
            Ask {
                stream,
                number,
                stopped,
                until,
                claim_by: Some(claim_by),
            },
        );
        until.min(claim_by)
    }

    /// Removes an ask; returns its stream.
    pub(crate) fn settle(&mut self, id: AskId, now: Instant) -> Option<StreamId> {
        let ask = self.asks.remove(&id)?;
        for call in ask.stopped {
            if let Some(call) = self.calls.get_mut(&call) {
                call.clock.settle(now);
            }
        }
        Some(ask.stream)
    }

    /// The overdue calls and asks, and when to look again.
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
    /// Whether another owner of the session would have to know it.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(
            self,
            Self::Level(_) | Self::Subscribed(_) | Self::Unsubscribed(_)
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

//! The tasks of this replica, and the look-up of a task by its id: a sealed ticket, which names the replica
//! that has it.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    copy::{OwnCopy, TaskCopy},
    task::{Shown, Task},
    work::Work,
};
use crate::{
    auth::Access,
    error::Error,
    hub::{
        CallError, Hub,
        limits::Seats,
        stateless::{Binding, CallInFlight, Ticket, TicketKey},
        stream::Reader,
    },
    protocol::{Message, json, jsonrpc},
};

/// The tasks of this replica.
pub(crate) struct Tasks {
    hub: Hub,
    keys: TicketKey,
    /// By their numbers; never held across an await.
    table: RwLock<HashMap<u64, Arc<Task>>>,
    /// The latest number.
    last: AtomicU64,
}

/// The place of the task with an id.
pub(crate) enum TaskPlace {
    /// This replica.
    Here(Arc<Task>),
    /// The replica of this ticket.
    There(Ticket),
    /// It is the id of no task of this caller at this server, or of one that is no longer kept.
    Unknown,
}

/// The rendered task that a call became, or the call if it may be none.
pub(crate) type Begun = Result<Bytes, Box<(CallInFlight, Reader)>>;

impl Tasks {
    /// No tasks yet.
    pub(crate) fn new(hub: Hub) -> Arc<Self> {
        Arc::new(Self {
            keys: TicketKey::new(&hub.0.key, b"ids of tasks"),
            hub,
            table: RwLock::default(),
            last: AtomicU64::new(0),
        })
    }

    /// Makes a task of the call that a request has made. "A server MUST NOT return `CreateTaskResult` until
    /// the task is durably created" (ext-tasks, "Task Creation"). A client that is gone before it gets the
    /// task does not know it: the call is cancelled, and nothing of the task is left in the store.
    pub(crate) fn begin(
        self: &Arc<Self>,
        call: CallInFlight,
        mut reader: Reader,
        request: &Message,
    ) -> oneshot::Receiver<Begun> {
        let (reply, begun) = oneshot::channel();
        let (tasks, judged) = (Arc::clone(self), without_arguments(request));
        self.hub.0.tracker.spawn(async move {
            let number = tasks.last.fetch_add(1, Ordering::Relaxed) + 1;
            let Some(mut work) = tasks.work(number, &call, judged) else {
                let _ = reply.send(Err(Box::new((call, reader))));
                return;
            };
            let state = work.begin().await;
            if reply.send(Ok(state)).is_ok() {
                // Its connection ends.
                reader.hold(Seats::new());
                work.run(call, reader).await;
            } else {
                // At once: the store may be away for a while.
                drop((call, reader));
                work.forget().await;
            }
            tasks.write().remove(&number);
        });
        begun
    }

    /// The work at a new task; none if its caller has too many.
    fn work(&self, number: u64, call: &CallInFlight, judged: Option<Message>) -> Option<Work> {
        let access = call.access();
        let core = &self.hub.0;
        let seat = core.limits.task(access, MAX_TASKS)?;
        let ticket = Ticket::new(&core.owner.me, number, 0);
        let id = self.keys.seal(&ticket, &binding(access))?;
        let (orders, received) = mpsc::channel(ORDERS);
        let task = Arc::new(Task {
            call: judged?,
            state: watch::Sender::new(Shown::Last(Bytes::new())),
            orders,
            // The store has no copy yet that another replica could have claimed.
            confirmed: watch::Sender::new(Some(core.owner.lapses())),
        });
        let kept = Work::kept(core);
        let copy = OwnCopy::new(core, access, number, kept);
        self.write().insert(number, Arc::clone(&task));
        Some(Work::new(core, id, task, received, (copy, seat), call))
    }

    /// The place of the task with this id.
    pub(crate) fn find(&self, access: &Access, id: &str) -> TaskPlace {
        let Some(ticket) = self.keys.open::<Ticket>(id, &binding(access)) else {
            return TaskPlace::Unknown;
        };
        if !ticket.is_of(&self.hub.0.owner.me) {
            return TaskPlace::There(ticket);
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let task = table.get(&ticket.call);
        task.map_or(TaskPlace::Unknown, |task| TaskPlace::Here(Arc::clone(task)))
    }

    /// Waits, not for long, until it is known whether a task of this replica is still its.
    pub(crate) async fn settle(&self, task: &Task) {
        task.settle(&self.hub.0.owner).await;
    }

    /// The task of another replica that did not answer; none if it is not there any more.
    ///
    /// # Errors
    ///
    /// `Busy` if that replica lives, or the store is away.
    pub(crate) async fn copy(
        &self,
        access: &Access,
        ticket: &Ticket,
    ) -> Result<Option<TaskCopy>, Error> {
        let lost = CallError::OWNER_LOST.line(b"0");
        let lost = json::get(&lost, "error").unwrap_or_default();
        TaskCopy::find(&self.hub.0, access, ticket, lost).await
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Arc<Task>>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call of a request without its arguments.
fn without_arguments(request: &Message) -> Option<Message> {
    let params = [br#"{"name":"#, request.raw_name()?, b"}"].concat();
    let mut line = BytesMut::new();
    jsonrpc::push_request(b"0", &request.method_name(), Some(&params), &mut line);
    Message::parse(line.freeze()).ok()
}

/// "Servers MUST perform authentication and authorization checks on each task-related request" (ext-tasks,
/// "Security Implications"): an id is of its principal at a server.
fn binding(access: &Access) -> Binding {
    Binding::of(access)
}

/// The most tasks of a principal that this replica has or keeps. A call beyond them is answered by its own
/// response.
const MAX_TASKS: u64 = 100;
/// Orders that wait for the work at a task; the next one waits for room.
const ORDERS: usize = 8;

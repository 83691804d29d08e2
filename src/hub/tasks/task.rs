//! A task of this replica, as requests use it: its state, and orders of its client.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::{
    base::budget::{Drawn, LargeWork},
    hub::ownership::ReplicaLease,
    protocol::{
        Message,
        modern::{InputRequest, TaskState, TaskStatus},
    },
    state::LogShare,
};

/// A task of this replica.
pub(crate) struct Task {
    /// The call without its arguments, by which policy judges requests about the task.
    pub(crate) call: Message,
    /// The state.
    pub(super) state: watch::Sender<Shown>,
    /// Closed when the task has ended.
    pub(super) orders: mpsc::Sender<Order>,
    /// The lapses of this replica's lease after which the store had the task as this replica's; none once that does not
    /// matter any more.
    pub(super) confirmed: watch::Sender<Option<u32>>,
}

/// The state of a task as others see it.
#[derive(Clone)]
pub(crate) enum Shown {
    /// Of a call that goes on. It is rendered for those who look at it: a server may ask for hundreds of large things one
    /// by one, and to render all of them at each would take a worker for as long.
    Open(Arc<OpenTask>),
    /// Rendered: the last one.
    Last(Bytes),
}

/// The state of a task whose call goes on.
pub(crate) struct OpenTask {
    pub(super) id: String,
    pub(super) message: Option<String>,
    /// The requests that the client has not answered, with what is drawn for them.
    pub(super) asks: Vec<InputRequest>,
    /// When it was created, and when it changed.
    pub(super) times: [String; 2],
    pub(super) ttl_ms: Option<u128>,
    pub(super) server_info: Option<Bytes>,
    /// What is held for the rest of it.
    pub(super) _held: Drawn,
}

impl Shown {
    /// About the bytes that it is when it is rendered.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Open(open) => open.asks.iter().map(|ask| ask.request.len()).sum(),
            Self::Last(state) => state.len(),
        }
    }

    /// The bytes of it.
    pub(crate) fn rendered(&self) -> Bytes {
        match self {
            Self::Open(open) => open.render(),
            Self::Last(state) => state.clone(),
        }
    }
}

impl OpenTask {
    fn render(&self) -> Bytes {
        let [created, updated] = &self.times;
        TaskState {
            id: &self.id,
            status: match &*self.asks {
                [] => TaskStatus::Working,
                asks => TaskStatus::InputRequired(asks),
            },
            message: self.message.as_deref(),
            times: [created, updated],
            ttl_ms: self.ttl_ms,
            server_info: self.server_info.as_deref(),
        }
        .render()
    }
}

/// An order of the client of a task.
pub(super) enum Order {
    /// The answers in this request to what the server has asked; what is sent back when the state shows them is
    /// awaited.
    Answer(Message, oneshot::Sender<()>),
    /// The end of the call.
    Cancel,
}

impl Task {
    /// Shows the state of its call, which goes on.
    pub(super) fn show(&self, open: OpenTask) {
        self.state.send_replace(Shown::Open(Arc::new(open)));
    }

    /// Waits until the store has said after the last lapse of this lease whose the task is: another replica may have
    /// answered for it meanwhile. Not for long: while the store is away no replica does, and the task goes on.
    pub(super) async fn settle(&self, lease: &ReplicaLease) {
        let mut confirmed = self.confirmed.subscribe();
        let settled = confirmed.wait_for(|lapses| lapses.is_none_or(|lapses| lease.serves(lapses)));
        let _ = timeout(SETTLE, settled).await;
    }

    /// Its present state, rendered.
    pub(crate) fn state(&self) -> Bytes {
        self.present().rendered()
    }

    /// About the bytes of its present state.
    pub(crate) fn size(&self) -> usize {
        self.present().size()
    }

    /// Its present state.
    pub(crate) fn present(&self) -> Shown {
        self.state.borrow().clone()
    }

    /// Passes the answers in a `tasks/update` on, so that the next `tasks/get` does not ask for them again. A task
    /// that has ended waits for none.
    pub(crate) async fn update(&self, request: Message) {
        let (done, shown) = oneshot::channel();
        if self.orders.send(Order::Answer(request, done)).await.is_ok() {
            let _ = shown.await;
        }
    }

    /// Cancels the call, unless it has ended.
    pub(crate) async fn cancel(&self) {
        let _ = self.orders.send(Order::Cancel).await;
    }
}

/// Takes no more orders, and lets those go that came too late: somebody waits for each, and the work at the task
/// stays as long as its result is kept.
pub(super) async fn dismiss(orders: &mut mpsc::Receiver<Order>) {
    orders.close();
    while orders.recv().await.is_some() {}
}

/// The tasks that a subscription is for.
#[derive(Default)]
pub(crate) struct WatchedTasks {
    /// Those whose state was taken.
    taken: Vec<watch::Receiver<Shown>>,
    /// Those whose state is to be taken, as soon as there is room for its copy.
    waiting: Vec<watch::Receiver<Shown>>,
    /// The next wait for room; zero is the shortest.
    wait: Duration,
}

impl WatchedTasks {
    /// Adds a task, whose present state comes first: it may have changed since the client saw it.
    pub(crate) fn add(&mut self, task: &Task) {
        self.waiting.push(task.state.subscribe());
    }

    /// Waits for the next state of any of them for which there is room, rendered for a caller of this tenant, and with
    /// what is drawn for it. Cancel-safe.
    pub(crate) async fn next(&mut self, tenant: &str, share: &LogShare) -> (Bytes, Drawn) {
        loop {
            if let Some(next) = self.take(tenant, share) {
                self.wait = Duration::ZERO;
                return next;
            }
            if self.waiting.is_empty() {
                self.changed().await;
                continue;
            }
            let wait = self.wait.max(AGAIN);
            // Boxed: few wait, and every open stream keeps room for it.
            if Box::pin(timeout(wait, self.changed())).await.is_err() {
                self.wait = (2 * wait).min(AGAIN_MAX);
            }
        }
    }

    /// Waits until one of those whose state was taken has another.
    async fn changed(&mut self) {
        if self.taken.is_empty() {
            return pending().await;
        }
        let changes = self.taken.iter_mut();
        let changes = changes.map(|states| Box::pin(states.changed()));
        let (changed, at, _) = select_all(changes).await;
        let states = self.taken.remove(at);
        // Otherwise it is no longer kept.
        if changed.is_ok() {
            self.waiting.push(states);
        }
    }

    /// Takes the first state for whose copy there is room: a small one waits for no large one.
    fn take(&mut self, tenant: &str, share: &LogShare) -> Option<(Bytes, Drawn)> {
        let mut waiting = self.waiting.iter_mut().enumerate();
        let (at, shown, drawn) = waiting.find_map(|(at, states)| {
            let shown = states.borrow_and_update().clone();
            let drawn = share.room_for(shown.size())?;
            Some((at, shown, drawn))
        })?;
        // Behind the others: a task whose state changes all the time leaves them their turns.
        let states = self.waiting.remove(at);
        self.taken.push(states);
        let turn = LargeWork::at_once(tenant, shown.size());
        Some((turn.run(|| shown.rendered()), drawn))
    }
}

/// The time after which it is looked again for room for a state, at first.
const AGAIN: Duration = Duration::from_millis(50);
/// The longest such time, which doubles: a thousand subscriptions may wait, with a hundred tasks each.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// The time in which a replica that was frozen sends a heartbeat, and asks the store for its tasks; less than a hop
/// waits for its answer.
const SETTLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::join;

    use super::*;
    use crate::{
        base::{MacKeys, budget::Budget},
        state::{Replica, ReplicaKeys, memory::MemoryDirectory},
    };

    fn message(line: &'static str) -> Message {
        Message::parse(Bytes::from_static(line.as_bytes())).unwrap()
    }

    fn task(call: Message, orders: mpsc::Sender<Order>) -> Task {
        let state = watch::Sender::new(Shown::Last(Bytes::new()));
        Task {
            call,
            state,
            orders,
            confirmed: watch::Sender::new(None),
        }
    }

    /// All that a server had asked was copied at each further request, and held once more.
    #[test]
    fn what_a_server_asks_is_held_once_however_often_it_is_shown() {
        let budget = Budget::new(1 << 20);
        let (orders, _received) = mpsc::channel(1);
        let task = task(
            message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#),
            orders,
        );
        let mut asks = Vec::new();
        for count in 1..=64_u64 {
            let ask = r#"{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"a":"b"}}"#;
            let mut ask = InputRequest::of(&message(ask)).under_id();
            ask.request = budget.hold(1000).until_dropped(ask.request);
            asks.push(ask);
            task.show(OpenTask {
                id: "t".into(),
                message: None,
                asks: asks.clone(),
                times: [String::new(), String::new()],
                ttl_ms: None,
                server_info: None,
                _held: budget.hold(1),
            });
            assert_eq!(budget.used(), count * 1000 + 1);
        }
        drop(asks);
        assert_eq!(budget.used(), 64_001, "the state has them");
        let state = String::from_utf8(task.state().to_vec()).unwrap();
        assert_eq!(state.matches("roots/list").count(), 64, "{state}");
        task.state.send_replace(Shown::Last(Bytes::new()));
        assert_eq!(budget.used(), 0);
    }

    /// A task with a state of so many bytes.
    fn shown(bytes: usize) -> Task {
        let (orders, _received) = mpsc::channel(1);
        let call = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
        let task = task(call, orders);
        let state = Shown::Last(vec![b'x'; bytes].into());
        task.state.send_replace(state);
        task
    }

    /// Each of a thousand subscriptions had a copy of one result of 15 MiB, and nobody asked for the room.
    #[tokio::test]
    async fn a_state_waits_until_there_is_room_for_its_copy() {
        let share = LogShare {
            under_way: Budget::new(1 << 20),
            ..LogShare::plenty()
        };
        let (large, small) = (shown(600 << 10), shown(100));
        let (mut one, mut two) = (WatchedTasks::default(), WatchedTasks::default());
        one.add(&large);
        two.add(&large);
        let (state, drawn) = one.next("t", &share).await;
        assert_eq!(state.len(), 600 << 10);
        assert!(poll!(pin!(two.next("t", &share))).is_pending());
        assert_eq!(share.under_way.used(), 600 << 10, "it is copied once");
        two.add(&small);
        let patience = Duration::from_secs(10);
        let next = timeout(patience, two.next("t", &share)).await;
        let (state, _) = next.expect("the small one waits for nothing");
        assert_eq!(state.len(), 100);
        assert!(poll!(pin!(two.next("t", &share))).is_pending());
        drop(drawn);
        let next = timeout(patience, two.next("t", &share)).await;
        let (state, drawn) = next.expect("there is room");
        assert_eq!((state.len(), drawn.amount()), (600 << 10, 600 << 10));
        drop(drawn);
        assert_eq!(share.under_way.used(), 0);
    }

    /// Two that had no room took turns with each other, and none between them was looked at.
    #[tokio::test]
    async fn small_states_go_ahead_of_large_ones_without_room() {
        let share = LogShare {
            under_way: Budget::new(1 << 20),
            ..LogShare::plenty()
        };
        let held = share.under_way.draw(600 << 10).unwrap();
        let patience = Duration::from_secs(10);
        let tasks = [600 << 10, 601 << 10, 100, 101].map(shown);
        let mut watched = WatchedTasks::default();
        for task in &tasks {
            watched.add(task);
        }
        for bytes in [100, 101] {
            let next = timeout(patience, watched.next("t", &share)).await;
            let (state, _) = next.expect("small ones wait for nothing");
            assert_eq!(state.len(), bytes);
        }
        assert!(poll!(pin!(watched.next("t", &share))).is_pending());
        for (task, bytes) in [(&tasks[3], 99), (&tasks[2], 98)] {
            let state = Shown::Last(vec![b'x'; bytes].into());
            task.state.send_replace(state);
            let next = timeout(patience, watched.next("t", &share)).await;
            let (state, _) = next.expect("the next one waits for nothing");
            assert_eq!(state.len(), bytes);
        }
        drop(held);
        for bytes in [600 << 10, 601 << 10] {
            let next = timeout(patience, watched.next("t", &share)).await;
            assert_eq!(next.expect("there is room").0.len(), bytes);
        }
        drop(tasks);
        assert!(poll!(pin!(watched.next("t", &share))).is_pending());
        assert!(watched.taken.is_empty() && watched.waiting.is_empty());
    }

    /// A thousand subscriptions looked twenty times a second at all their tasks.
    #[tokio::test]
    async fn the_wait_for_room_becomes_longer_until_there_is_some() {
        let share = LogShare {
            under_way: Budget::new(1 << 20),
            ..LogShare::plenty()
        };
        let held = share.under_way.draw(600 << 10).unwrap();
        let large = shown(600 << 10);
        let mut watched = WatchedTasks::default();
        watched.add(&large);
        // Each is longer than the waits below eight times the first.
        for _ in 0..3 {
            let next = timeout(10 * AGAIN, watched.next("t", &share)).await;
            assert!(next.is_err());
        }
        assert!(watched.wait >= 8 * AGAIN, "{:?}", watched.wait);
        assert!(watched.wait <= AGAIN_MAX);
        drop(held);
        let patience = Duration::from_secs(10);
        let next = timeout(patience, watched.next("t", &share)).await;
        assert_eq!(next.expect("there is room").0.len(), 600 << 10);
        assert!(watched.wait.is_zero());
    }

    /// A replica that woke said of its tasks what it knew, though another one had claimed them.
    #[tokio::test]
    async fn nobody_is_answered_in_a_lapse_of_the_lease() {
        let me = Replica {
            address: "a:1".into(),
            boot: "a".into(),
        };
        let keys = ReplicaKeys::new(MacKeys::new([]));
        let lease = ReplicaLease::new(me, keys, Arc::new(MemoryDirectory::default()));
        lease.beat().await.unwrap();
        let (orders, _received) = mpsc::channel(1);
        let call = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
        let task = task(call, orders);
        // One of which the store has nothing to say.
        assert!(poll!(pin!(task.settle(&lease))).is_ready());
        task.confirmed.send_replace(Some(0));
        let mut settled = pin!(task.settle(&lease));
        assert!(poll!(&mut settled).is_pending());
        task.confirmed.send_replace(Some(lease.lapses()));
        assert!(poll!(&mut settled).is_ready());
    }

    #[tokio::test]
    async fn an_update_that_came_too_late_is_let_go() {
        let (orders, mut received) = mpsc::channel(4);
        let call = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
        let task = task(call, orders);
        let update = || {
            task.update(message(
                r#"{"jsonrpc":"2.0","id":2,"method":"tasks/update"}"#,
            ))
        };
        let work = async {
            // The call ends by this one, with an update behind it.
            assert!(matches!(received.recv().await, Some(Order::Cancel)));
            dismiss(&mut received).await;
        };
        let all = async { join!(task.cancel(), update(), work) };
        let ended = timeout(Duration::from_secs(5), all).await;
        assert!(ended.is_ok(), "the update still waits");
        let late = timeout(Duration::from_secs(5), update()).await;
        assert!(late.is_ok(), "it waits for a task that has ended");
        drop(received);
    }
}

//! A task of this replica, as requests use it: its state, and orders of its client.

use std::future::pending;

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::sync::{mpsc, oneshot, watch};

use crate::protocol::Message;

/// A task of this replica.
pub(crate) struct Task {
    /// The call without its arguments, by which policy judges requests about the task.
    pub(crate) call: Message,
    /// The rendered state.
    pub(super) state: watch::Sender<Bytes>,
    /// Closed when the task has ended.
    pub(super) orders: mpsc::Sender<Order>,
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
    /// Its present state, rendered.
    pub(crate) fn state(&self) -> Bytes {
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
pub(crate) struct WatchedTasks(Vec<watch::Receiver<Bytes>>);

impl WatchedTasks {
    /// Adds a task, whose present state comes first: it may have changed since the client saw it.
    pub(crate) fn add(&mut self, task: &Task) {
        let mut states = task.state.subscribe();
        states.mark_changed();
        self.0.push(states);
    }

    /// Waits for the next state of any of them. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Bytes {
        loop {
            if self.0.is_empty() {
                return pending().await;
            }
            let changes = self.0.iter_mut().map(|states| Box::pin(states.changed()));
            let (changed, at, _) = select_all(changes).await;
            if changed.is_ok() {
                return self.0[at].borrow_and_update().clone();
            }
            // It is no longer kept.
            self.0.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{join, time::timeout};

    use super::*;

    fn message(line: &'static str) -> Message {
        Message::parse(Bytes::from_static(line.as_bytes())).unwrap()
    }

    #[tokio::test]
    async fn an_update_that_came_too_late_is_let_go() {
        let (orders, mut received) = mpsc::channel(4);
        let call = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
        let state = watch::Sender::new(Bytes::new());
        let task = Task {
            call,
            state,
            orders,
        };
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

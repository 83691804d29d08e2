//! What is written to the audit trail beside changes: denials, and calls where a server says so.
//!
//! One task writes, in batches; whoever adds a record waits for nothing. What finds no room, or a
//! store that is away, is dropped and counted: no call waits for a store.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::live::Live;
use crate::database::Record;

/// The way to the audit trail; clones share it.
#[derive(Clone)]
pub(crate) struct Trail(Option<mpsc::Sender<Said>>, Dropped);

/// Is told how many records were dropped.
pub(crate) type Dropped = Arc<dyn Fn(u64) + Send + Sync>;

enum Said {
    /// Something happened.
    Record(Box<Record>),
    /// Somebody waits until all before it is written.
    Settle(oneshot::Sender<()>),
}

impl Trail {
    /// One that leads nowhere, where there is no store.
    pub(crate) fn none() -> Self {
        Self(None, Arc::new(|_| ()))
    }

    /// One into the store of `live`; its task belongs to `tracker` and ends with `stop`, after
    /// what was said before.
    pub(crate) fn new(
        live: Arc<Live>,
        dropped: Dropped,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (queue, said) = mpsc::channel(QUEUE);
        let writer = Writer {
            live,
            dropped: Arc::clone(&dropped),
        };
        tracker.spawn(writer.run(said, stop));
        Self(Some(queue), dropped)
    }

    /// Adds a record.
    pub(crate) fn note(&self, record: Record) {
        let Self(Some(queue), dropped) = self else {
            return;
        };
        if queue.try_send(Said::Record(Box::new(record))).is_err() {
            dropped(1);
        }
    }

    /// Waits until what was added before is written, but not for long.
    pub(crate) async fn settle(&self) {
        let Some(queue) = &self.0 else {
            return;
        };
        let (done, settled) = oneshot::channel();
        let waiting = async {
            queue.send(Said::Settle(done)).await.ok()?;
            settled.await.ok()
        };
        // A store that is away keeps nobody waiting: what is lost by it is counted.
        let _ = tokio::time::timeout(SETTLE, waiting).await;
    }
}

struct Writer {
    live: Arc<Live>,
    dropped: Dropped,
}

impl Writer {
    async fn run(self, mut said: mpsc::Receiver<Said>, stop: CancellationToken) {
        loop {
            let mut batch = Vec::new();
            let count = tokio::select! {
                count = said.recv_many(&mut batch, BATCH) => count,
                () = stop.cancelled() => {
                    said.close();
                    said.recv_many(&mut batch, QUEUE).await
                }
            };
            if count == 0 {
                return;
            }
            self.write(batch).await;
        }
    }

    async fn write(&self, batch: Vec<Said>) {
        let (mut records, mut waiting) = (Vec::new(), Vec::new());
        for said in batch {
            match said {
                Said::Record(record) => records.push(*record),
                Said::Settle(done) => waiting.push(done),
            }
        }
        if !records.is_empty() {
            let written = match self.live.store() {
                Ok(store) => store.audit().append(&records).await.is_ok(),
                Err(_) => false,
            };
            if !written {
                (self.dropped)(records.len() as u64);
            }
        }
        for done in waiting {
            // Who does not wait any more needs to know nothing.
            let _ = done.send(());
        }
    }
}

/// Records that wait to be written.
const QUEUE: usize = 4096;
/// Records of one transaction.
const BATCH: usize = 256;
/// How long a denial may wait for its record.
const SETTLE: Duration = Duration::from_millis(500);

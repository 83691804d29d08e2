//! Reclaim of children: a caller with more of them than another one of its tenant gives one up for it.
//!
//! Not here: the count of children and the line for them (`backend::child`), and the end of one that is
//! given up (`hub::session`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use super::{
    Hub,
    core::{ChildUse, Command, Handle, Transport, owner_of},
};
use crate::backend::child::{Owner, Wanted};

impl Hub {
    /// Finds a child that gives way for each caller that wants one, until sessions drain or end.
    pub(super) fn reclaim_for(&self, requests: mpsc::Receiver<Wanted>) {
        let (hub, drain, halt) = (self.clone(), self.0.drain.clone(), self.0.halt.clone());
        let answering = async move {
            let answers = drain.run_until_cancelled(hub.answer(requests));
            halt.run_until_cancelled(answers).await
        };
        self.0.tracker.spawn(answering);
    }

    async fn answer(&self, mut requests: mpsc::Receiver<Wanted>) {
        // Tenants all of whose children are in use: their sessions are not asked again at once.
        let mut in_use: HashMap<String, Instant> = HashMap::new();
        while let Some(wanted) = requests.recv().await {
            in_use.retain(|_, until| *until > Instant::now());
            let is_given = !in_use.contains_key(&wanted.tenant) && self.reclaim(&wanted).await;
            if !is_given {
                let until = || Instant::now() + PAUSE;
                in_use.entry(wanted.tenant).or_insert_with(until);
            }
            // A caller that has gone leaves its seat to others.
            let _ = wanted.reply.send(is_given);
        }
    }

    async fn reclaim(&self, wanted: &Wanted) -> bool {
        let deadline = Instant::now() + LONGEST;
        let mut sessions: HashMap<Owner, Vec<Handle>> = HashMap::new();
        for (_, handle) in self.0.sessions.of_tenant(&wanted.tenant) {
            let owner = owner_of(&handle.access);
            sessions.entry(owner).or_default().push(handle);
        }
        for holder in &wanted.holders {
            let Some(mut own) = sessions.remove(&Owner::Caller(Arc::clone(holder))) else {
                continue;
            };
            own.sort_by_key(|handle| handle.born);
            for use_of_child in [ChildUse::Spare, ChildUse::Unused, ChildUse::Parked] {
                let is_unused = use_of_child == ChildUse::Unused;
                let may =
                    |handle: &&Handle| (handle.transport != Transport::Stateless) == is_unused;
                for handle in own.iter().filter(may) {
                    if ask(handle, use_of_child, deadline).await {
                        tracing::info!(
                            tenant.id = wanted.tenant,
                            "a child of one caller ends for another one"
                        );
                        return true;
                    }
                }
            }
        }
        false
    }
}

/// Asks a session to give up its child.
async fn ask(handle: &Handle, use_of_child: ChildUse, deadline: Instant) -> bool {
    let (reply, is_given) = oneshot::channel();
    let command = Command::GiveUp(use_of_child, reply);
    // A session with a full queue is in use.
    handle.commands.try_send(command).is_ok()
        && matches!(timeout_at(deadline, is_given).await, Ok(Ok(true)))
}

/// The time for which a tenant whose children are all in use counts as such.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time for which the sessions of a tenant are asked.
const LONGEST: Duration = Duration::from_millis(250);

//! Reclaim of children: a caller with more of them than another one of its tenant gives one up for it, and
//! a tenant with more than another one.
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
use crate::backend::child::{Holders, Owner, Wanted};

/// The ones between whom children are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
enum Level {
    Caller,
    Tenant,
}

/// Tenants all of whose children are in use: their sessions are not asked again at once.
type InUse = HashMap<(Level, String), Instant>;

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
        let mut in_use = InUse::default();
        while let Some(Wanted { holders, reply }) = requests.recv().await {
            in_use.retain(|_, until| *until > Instant::now());
            let deadline = Instant::now() + LONGEST;
            let is_given = match holders {
                Holders::Callers(tenant, callers) => {
                    let wanted = (Level::Caller, tenant);
                    self.ask_once(wanted, &callers, &mut in_use, deadline).await
                }
                Holders::Tenants(tenants) => self.ask_tenants(tenants, &mut in_use, deadline).await,
            };
            // A caller that has gone leaves its seat to others.
            let _ = reply.send(is_given);
        }
    }

    async fn ask_tenants(
        &self,
        tenants: Vec<String>,
        in_use: &mut InUse,
        deadline: Instant,
    ) -> bool {
        for tenant in tenants {
            if self.0.pool.give_up_warm(&tenant).await {
                return true;
            }
            let wanted = (Level::Tenant, tenant);
            if self.ask_once(wanted, &[], in_use, deadline).await {
                return true;
            }
        }
        false
    }

    /// Asks the sessions of a tenant, unless all of its children were in use just now.
    async fn ask_once(
        &self,
        wanted: (Level, String),
        callers: &[Arc<str>],
        in_use: &mut InUse,
        deadline: Instant,
    ) -> bool {
        if in_use.contains_key(&wanted) {
            return false;
        }
        let is_given = self.reclaim(&wanted, callers, deadline).await;
        if !is_given {
            in_use.insert(wanted, Instant::now() + PAUSE);
        }
        is_given
    }

    async fn reclaim(
        &self,
        (level, tenant): &(Level, String),
        callers: &[Arc<str>],
        deadline: Instant,
    ) -> bool {
        let uses: &[ChildUse] = match level {
            Level::Caller => &OF_CALLERS,
            Level::Tenant => &OF_TENANTS,
        };
        for sessions in self.groups(*level, tenant, callers) {
            for use_of_child in uses {
                for handle in sessions.iter().filter(|one| may_be(*use_of_child, one)) {
                    if ask(handle, *use_of_child, deadline).await {
                        tracing::info!(tenant.id = tenant, "a child ends for another {level}");
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The sessions that are asked, oldest first: those of each caller by themselves, or all of the tenant. The others
    /// have no child to give up, and there may be so many that they would take all the time.
    fn groups(&self, level: Level, tenant: &str, callers: &[Arc<str>]) -> Vec<Vec<Handle>> {
        let mut all = self.0.sessions.with_child_of(tenant);
        all.sort_by_key(|handle| handle.born);
        if level == Level::Tenant {
            return vec![all];
        }
        let mut by_owner: HashMap<Owner, Vec<Handle>> = HashMap::new();
        for handle in all {
            let owner = owner_of(&handle.access);
            by_owner.entry(owner).or_default().push(handle);
        }
        let owners = callers.iter().map(|name| Owner::Caller(Arc::clone(name)));
        owners.filter_map(|owner| by_owner.remove(&owner)).collect()
    }
}

/// Whether the child of a session may have this use.
fn may_be(use_of_child: ChildUse, handle: &Handle) -> bool {
    let is_of_session = matches!(use_of_child, ChildUse::Unused | ChildUse::Pausing);
    (handle.transport != Transport::Stateless) == is_of_session
}

/// Asks a session to give up its child.
async fn ask(handle: &Handle, use_of_child: ChildUse, deadline: Instant) -> bool {
    let (reply, is_given) = oneshot::channel();
    let command = Command::GiveUp(use_of_child, reply);
    // One that is not asked in time would give up its child for nothing. A session with a full queue is
    // in use.
    Instant::now() < deadline
        && handle.commands.try_send(command).is_ok()
        && matches!(timeout_at(deadline, is_given).await, Ok(Ok(true)))
}

/// Uses of children that are given up for another caller, in this order.
const OF_CALLERS: [ChildUse; 3] = [ChildUse::Spare, ChildUse::Unused, ChildUse::Parked];
/// Those that are given up for another tenant.
const OF_TENANTS: [ChildUse; 4] = [
    ChildUse::Spare,
    ChildUse::Unused,
    ChildUse::Parked,
    ChildUse::Pausing,
];

/// The time for which a tenant whose children are all in use counts as such.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time for which the sessions of a tenant are asked.
const LONGEST: Duration = Duration::from_millis(250);

//! Begin of subscriptions.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    group::Caller,
    hearing::{bytes_of, settle},
    leases::TRIES,
    sessions::Stateless,
    subscription::{Subscribed, Subscription, Watch},
};
use crate::{auth::policy, error::Error, protocol::modern::Filter};

impl Stateless {
    /// Begins a subscription.
    ///
    /// # Errors
    ///
    /// `Quota`, `Busy`, `Draining`; `NoSession` if each session has ended before it could be read.
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller<'_>,
        wanted: Filter,
    ) -> Result<Subscribed, Error> {
        let (group, mut tries) = (self.group(caller), 0);
        let (lease, changes, reader) = loop {
            tries += 1;
            let lease = match self.lease_for_all(caller).await? {
                Ok(lease) => lease,
                Err(line) => return Ok(Subscribed::Failed(line)),
            };
            // Before another session for all can begin, which ends the subscriptions at this one.
            let changes = group.changes.reader();
            // From here on, so that nothing is missed that follows the acknowledgement.
            match self.sender.hub.listen(&lease.handle, caller.access).await {
                // The session has ended at this moment.
                Err(Error::NoSession) if tries < TRIES => {}
                reader => break (lease, changes, reader?),
            }
        };
        let mut filter = wanted.honoured(lease.member.capabilities());
        let uris = std::mem::take(&mut filter.resources);
        let hub = &self.sender.hub;
        let share = hub.limits().memory().caller(caller.access);
        let held = share.draw(SUBSCRIPTION + bytes_of(&uris));
        let held = held.ok_or_else(|| hub.limits().no_room(RETRY))?;
        for member in group.alone() {
            self.hear(group, &member, caller.access).await;
        }
        // A denied resource is like one that the server does not agree to, also where it has for another client.
        let uris = policy::allowed_resources(caller.access.policy(), uris, &share).await;
        let (sender, access) = (Arc::clone(&self.sender), caller.access.clone());
        let group_of = (Arc::clone(group), changes);
        let mut subscription = Subscription::new(sender, lease, access, filter, (group_of, held));
        let (end, mut fresh) = (Instant::now() + ACKNOWLEDGE, Vec::new());
        for uri in uris {
            // A server that does not answer in time does not agree.
            let Ok(agreed) = timeout_at(end, subscription.watch(&uri)).await else {
                subscription.give_up();
                break;
            };
            let agreed = agreed?;
            if agreed == Watch::Agreed {
                fresh.push(uri.clone());
            }
            if agreed != Watch::Refused {
                subscription.filter.resources.push(uri);
            }
        }
        // They have the others since an earlier subscription, or since they are heard.
        settle(&self.sender, group, fresh, &group.alone(), caller.access);
        Ok(Subscribed::Running(
            Box::new(subscription),
            Box::new(reader),
        ))
    }
}

/// What a subscription takes beside its URIs: its tasks and buffers.
const SUBSCRIPTION: u64 = 8 << 10;
/// The `Retry-After` of a subscription that the share of its caller has no room for.
const RETRY: Duration = Duration::from_secs(1);
/// The time for a server to agree to the resources of a subscription, all together.
const ACKNOWLEDGE: Duration = Duration::from_secs(10);

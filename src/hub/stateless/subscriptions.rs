//! Begin of subscriptions.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    group::Caller,
    sessions::Stateless,
    subscription::{Subscribed, Subscription},
};
use crate::{error::Error, protocol::modern::Filter};

impl Stateless {
    /// Begins a subscription.
    ///
    /// # Errors
    ///
    /// `Quota`, `Busy`, `Draining`.
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller<'_>,
        wanted: Filter,
    ) -> Result<Subscribed, Error> {
        let lease = match self.lease_for_all(caller).await? {
            Ok(lease) => lease,
            Err(line) => return Ok(Subscribed::Failed(line)),
        };
        // From here on, so that nothing is missed that follows the acknowledgement.
        let reader = self.sender.hub.listen(&lease.handle, caller.access).await?;
        let mut filter = wanted.honoured(lease.member.capabilities());
        let uris = std::mem::take(&mut filter.resources);
        let group = self.group(caller);
        let changes = group.changes.reader();
        for member in group.alone() {
            self.hear(&group, &member, caller.access).await;
        }
        let (sender, access) = (Arc::clone(&self.sender), caller.access.clone());
        let mut subscription = Subscription::new(sender, lease, access, filter, changes);
        let end = Instant::now() + ACKNOWLEDGE;
        for uri in uris {
            // A server that does not answer in time does not agree.
            let Ok(agreed) = timeout_at(end, subscription.watch(&uri)).await else {
                break;
            };
            if agreed? {
                subscription.filter.resources.push(uri);
            }
        }
        for member in group.alone() {
            let uris = subscription.filter.resources.clone();
            self.watch(uris, &member, caller.access);
        }
        Ok(Subscribed::Running(Box::new(subscription), reader))
    }
}

/// The time for a server to agree to the resources of a subscription, all together.
const ACKNOWLEDGE: Duration = Duration::from_secs(10);

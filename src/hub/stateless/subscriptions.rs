//! Begin of subscriptions.

use std::sync::Arc;

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
        let (sender, access) = (Arc::clone(&self.sender), caller.access.clone());
        let mut subscription = Subscription::new(sender, lease, access, filter);
        for uri in uris {
            if subscription.watch(&uri).await? {
                subscription.filter.resources.push(uri);
            }
        }
        Ok(Subscribed::Running(Box::new(subscription), reader))
    }
}

//! Notifications for a `subscriptions/listen`, which a session-based server sends to the listener of its
//! session (2026-07-28 subscriptions).

use std::sync::Arc;

use bytes::Bytes;

use super::{
    changes::ChangeReader,
    group::{Group, Lease},
    hearing::settle,
    sender::Sender,
};
use crate::{
    auth::Access, base::budget::Drawn, error::Error, hub::stream::Reader, protocol::modern::Filter,
};

/// A subscription; it ends when this is dropped.
pub(crate) struct Subscription {
    sender: Arc<Sender>,
    lease: Lease,
    access: Access,
    group: Arc<Group>,
    /// The raw URI that the server was asked for and has not answered.
    asked: Option<Box<[u8]>>,
    /// What the server agreed to.
    pub(crate) filter: Filter,
    /// What it hears of other sessions.
    pub(crate) changes: ChangeReader,
    /// What it takes of the share of its caller.
    _held: Drawn,
}

/// What a server makes of a resource that a subscription is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// It agrees.
    Agreed,
    /// It agreed to an earlier subscription.
    Known,
    /// It does not.
    Refused,
}

/// A subscription that was begun.
pub(crate) enum Subscribed {
    /// It runs, and is read here.
    Running(Box<Subscription>, Reader),
    /// The server could not be initialized; the raw error response.
    Failed(Bytes),
}

impl Subscription {
    /// A subscription to the lists of a filter, and to no resource yet.
    pub(super) fn new(
        sender: Arc<Sender>,
        lease: Lease,
        access: Access,
        filter: Filter,
        ((group, changes), held): ((Arc<Group>, ChangeReader), Drawn),
    ) -> Self {
        Self {
            sender,
            lease,
            access,
            group,
            asked: None,
            filter,
            changes,
            _held: held,
        }
    }

    /// The raw `serverInfo` of the server.
    pub(crate) fn server_info(&self) -> Option<Bytes> {
        self.lease.server_info()
    }

    /// Subscribes the session to a resource.
    pub(super) async fn watch(&mut self, uri: &[u8]) -> Result<Watch, Error> {
        let mut watched = self.lease.member.watched.0.lock().await;
        if let Some(count) = watched.get_mut(uri) {
            *count += 1;
            return Ok(Watch::Known);
        }
        self.asked = Some(uri.into());
        let is_agreed = self.request("resources/subscribe", uri).await?;
        self.asked = None;
        if !is_agreed {
            return Ok(Watch::Refused);
        }
        watched.insert(uri.into(), 1);
        Ok(Watch::Agreed)
    }

    /// Takes back what the server was asked for and has not answered: it may agree later.
    pub(super) fn give_up(&mut self) {
        let Some(uri) = self.asked.take() else {
            return;
        };
        let watched = Arc::clone(&self.lease.member.watched.0);
        let (sender, access) = (Arc::clone(&self.sender), self.access.clone());
        let handle = self.lease.handle.clone();
        self.sender.hub.0.tracker.spawn(async move {
            let watched = watched.lock().await;
            // Unless another subscription is for it by now.
            if !watched.contains_key(&uri) {
                let params = [&br#"{"uri":"#[..], &uri, b"}"].concat();
                let method = "resources/unsubscribe";
                let _ = sender.ask(&handle, &access, method, &params).await;
            }
        });
    }

    async fn request(&self, method: &str, uri: &[u8]) -> Result<bool, Error> {
        let params = [&br#"{"uri":"#[..], uri, b"}"].concat();
        self.sender
            .ask(&self.lease.handle, &self.access, method, &params)
            .await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.give_up();
        let uris = std::mem::take(&mut self.filter.resources);
        if uris.is_empty() {
            return;
        }
        let watched = Arc::clone(&self.lease.member.watched.0);
        let (sender, access) = (Arc::clone(&self.sender), self.access.clone());
        let handle = self.lease.handle.clone();
        let group = Arc::clone(&self.group);
        self.sender.hub.0.tracker.spawn(async move {
            let mut watched = watched.lock().await;
            let mut gone = Vec::new();
            for uri in uris {
                let Some(count) = watched.get_mut(&uri) else {
                    continue;
                };
                *count -= 1;
                if *count > 0 {
                    continue;
                }
                watched.remove(&uri);
                gone.push(uri.clone());
                let params = [&br#"{"uri":"#[..], &uri, b"}"].concat();
                let method = "resources/unsubscribe";
                // A session that has ended has no subscriptions.
                let _ = sender.ask(&handle, &access, method, &params).await;
            }
            drop(watched);
            settle(&sender, &group, gone, &group.alone(), &access);
        });
    }
}

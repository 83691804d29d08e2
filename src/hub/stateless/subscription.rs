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
    auth::{Access, policy},
    base::budget::Drawn,
    error::Error,
    hub::{
        core::Handle,
        stream::{Pending, Reader},
    },
    protocol::{Message, Method, modern::Filter},
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
    /// What it takes of the share of its caller, also while it ends.
    held: Option<Drawn>,
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
    Running(Box<Subscription>, Box<Reader>),
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
            held: Some(held),
        }
    }

    /// The raw `serverInfo` of the server.
    pub(crate) fn server_info(&self) -> Option<Bytes> {
        self.lease.server_info()
    }

    /// Whether its client is told of a notification, by its filter and by its policy as that is declared now.
    pub(crate) fn hears(&self, notification: &Message) -> bool {
        if !self.filter.matches(notification) {
            return false;
        }
        if notification.method() != Method::Updated {
            return true;
        }
        let access = self.sender.hub.renewed(&self.access);
        access.is_ok_and(|access| !policy::is_muted(access.policy(), notification))
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
                let sent = unsubscribe(&sender, &handle, &access, &uri).await;
                drop(watched);
                answered(sent).await;
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
        let held = self.held.take();
        self.sender.hub.0.tracker.spawn(async move {
            let mut known = watched.lock().await;
            let mut unused = Vec::new();
            for uri in uris {
                let Some(count) = known.get_mut(&uri) else {
                    continue;
                };
                *count -= 1;
                if *count > 0 {
                    continue;
                }
                unused.push(uri);
            }
            drop(known);
            let mut gone = Vec::new();
            for uri in unused {
                let mut known = watched.lock().await;
                // A subscription that began meanwhile has it without asking the server.
                if known.get(&uri) != Some(&0) {
                    continue;
                }
                known.remove(&uri);
                // Ahead of one that begins from here on, which does not wait for the answer.
                let sent = unsubscribe(&sender, &handle, &access, &uri).await;
                drop(known);
                answered(sent).await;
                // The server may have taken the two the other way round.
                if watched.lock().await.contains_key(&uri) {
                    let params = [&br#"{"uri":"#[..], &uri, b"}"].concat();
                    let method = "resources/subscribe";
                    let _ = sender.ask(&handle, &access, method, &params).await;
                }
                gone.push(uri);
            }
            settle(&sender, &group, gone, &group.alone(), &access);
            drop(held);
        });
    }
}

/// Tells the server of a session that no subscription is for a resource any more; returns the wait for its answer.
async fn unsubscribe(
    sender: &Sender,
    handle: &Handle,
    access: &Access,
    uri: &[u8],
) -> Result<Pending, Error> {
    let params = [&br#"{"uri":"#[..], uri, b"}"].concat();
    let method = "resources/unsubscribe";
    sender.begin(handle, access, method, &params).await
}

/// Waits until a server has answered. A session that has ended has no subscriptions.
async fn answered(sent: Result<Pending, Error>) {
    if let Ok(sent) = sent {
        sent.answer().await;
    }
}

//! What servers say beside the calls that have their sessions alone, as that a list has changed: passed on
//! to the subscriptions of the same caller.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{
    group::{Group, Member},
    sender::Sender,
    sessions::Stateless,
};
use crate::{
    auth::Access,
    base::budget::LargeWork,
    hub::stream::{Next, Reader},
    protocol::modern::is_change,
};

impl Stateless {
    /// Hears what a session that calls have alone says beside them, while subscriptions want it and the
    /// session is used.
    pub(super) async fn hear(&self, group: &Arc<Group>, member: &Arc<Member>, access: &Access) {
        if group.changes.heard().is_none() || member.is_heard.swap(true, Ordering::AcqRel) {
            return;
        }
        let (begins, begun) = oneshot::channel();
        let (sender, access) = (Arc::clone(&self.sender), access.clone());
        let (group, member) = (Arc::clone(group), Arc::clone(member));
        // A task: others rely on it from now on, and this client may go at any moment.
        self.sender.hub.0.tracker.spawn(async move {
            listen(&sender, &group, &member, &access, begins).await;
        });
        // No answer if the session has ended, as the call that comes will find.
        let _ = begun.await;
    }
}

/// Hears a session; says when it `begins`.
async fn listen(
    sender: &Arc<Sender>,
    group: &Arc<Group>,
    member: &Arc<Member>,
    access: &Access,
    begins: oneshot::Sender<()>,
) {
    let hub = &sender.hub;
    let reader = match hub.0.find(access, member.id.as_str()) {
        Ok(handle) => hub.read(&handle).await,
        Err(error) => Err(error),
    };
    let Ok(reader) = reader else {
        member.is_heard.store(false, Ordering::Release);
        return;
    };
    // The call that comes does not wait where a server is asked for a subscription at this moment.
    let uris = group.watched().now_or_never();
    let (is_late, members) = (uris.is_none(), std::slice::from_ref(member));
    settle(sender, group, uris.unwrap_or_default(), members, access);
    // The client may have gone.
    let _ = begins.send(());
    let share = hub.0.limits.memory().caller(access);
    let count = move |event: Bytes| share.hold(event.len() as u64).until_dropped(event);
    let late = async {
        if is_late {
            let uris = group.watched().await;
            settle(sender, group, uris, members, access);
        }
    };
    tokio::join!(
        late,
        pass_on(group, member, reader, count, &access.tenant().name)
    );
}

/// Subscribes sessions that calls have alone to those of these resources that subscriptions are for, and unsubscribes
/// them from the others, in the line of their caller.
pub(super) fn settle(
    sender: &Arc<Sender>,
    group: &Arc<Group>,
    uris: Vec<Box<[u8]>>,
    members: &[Arc<Member>],
    access: &Access,
) {
    if uris.is_empty() {
        return;
    }
    let hub = &sender.hub;
    let held = hub.0.limits.memory().caller(access).hold(bytes_of(&uris));
    let uris = Arc::new((uris, held));
    for member in members {
        let Ok(handle) = hub.0.find(access, member.id.as_str()) else {
            continue;
        };
        let (sender, access) = (Arc::clone(sender), access.clone());
        let (group, uris) = (Arc::clone(group), Arc::clone(&uris));
        hub.0.tracker.spawn(async move {
            let (uris, held) = &*uris;
            for uri in uris {
                held.budget().others_first().await;
                let params = [&br#"{"uri":"#[..], uri, b"}"].concat();
                let mut is_wanted = group.is_watched(uri).await;
                loop {
                    let method = if is_wanted {
                        "resources/subscribe"
                    } else {
                        "resources/unsubscribe"
                    };
                    // A server that does not agree has said so to the session for all.
                    if sender.ask(&handle, &access, method, &params).await.is_err() {
                        return;
                    }
                    // Subscriptions that began or ended meanwhile may have been quicker.
                    let was_wanted = is_wanted;
                    is_wanted = group.is_watched(uri).await;
                    if is_wanted == was_wanted {
                        break;
                    }
                }
            }
        });
    }
}

/// What URIs take in memory.
pub(super) fn bytes_of(uris: &[Box<[u8]>]) -> u64 {
    uris.iter().map(|uri| uri.len() as u64 + URI).sum()
}

/// What a URI takes beside its bytes.
const URI: u64 = 32;

/// Passes on what a session says until it ends, or nobody needs to hear it any more.
async fn pass_on(
    group: &Group,
    member: &Member,
    mut reader: Reader,
    count: impl Fn(Bytes) -> Bytes,
    tenant: &str,
) {
    let mut quiet_at = Instant::now() + QUIET;
    loop {
        let events = tokio::select! {
            // What a call has said that has just ended comes first.
            biased;
            next = reader.next() => match next {
                Next::Events(events) => events,
                Next::Finished | Next::Released => {
                    member.is_heard.store(false, Ordering::Release);
                    return;
                }
            },
            () = sleep_until(quiet_at) => {
                if stop(&member.is_heard, || !member.is_taken()) {
                    return;
                }
                Vec::new()
            }
        };
        reader.took();
        quiet_at = Instant::now() + QUIET;
        let Some(changes) = group.changes.heard() else {
            if stop(&member.is_heard, || group.changes.heard().is_none()) {
                return;
            }
            continue;
        };
        for (_, event) in events {
            let turn = LargeWork::at_once(tenant, event.len());
            if turn.run(|| is_change(&event)) {
                // The last one may have gone meanwhile.
                let _ = changes.send(count(event));
            }
        }
    }
}

/// Stops hearing a session that `is_unused`; false if it is heard on. A call or a subscription that came meanwhile has
/// found that it is heard, and relies on that.
fn stop(is_heard: &AtomicBool, is_unused: impl Fn() -> bool) -> bool {
    if !is_unused() {
        return false;
    }
    // Unlike a store it sees what they did before they found it set.
    _ = is_heard.swap(false, Ordering::AcqRel);
    is_unused() || is_heard.swap(true, Ordering::AcqRel)
}

/// The time for which a session is heard that no call uses, so that it can become idle.
const QUIET: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::hearing::*;

    /// A call that took a session at the moment at which its reader stopped was not heard: it had found that it was.
    #[test]
    fn a_session_that_is_used_again_is_heard_on() {
        for (is_unused, is_heard_by_another, stops, stays) in [
            ([false, false], false, false, true),
            ([true, false], false, false, true),
            ([true, false], true, true, true),
            ([true, true], false, true, false),
            ([true, true], true, true, true),
        ] {
            let (is_heard, looks) = (AtomicBool::new(true), Cell::new(0));
            let stopped = stop(&is_heard, || {
                let look = looks.replace(looks.get() + 1);
                if look == 1 && is_heard_by_another {
                    is_heard.store(true, Ordering::Release);
                }
                is_unused[look]
            });
            let case = format!("{is_unused:?} {is_heard_by_another}");
            assert_eq!(stopped, stops, "{case}");
            assert_eq!(is_heard.load(Ordering::Acquire), stays, "{case}");
        }
    }
}

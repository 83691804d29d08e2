//! The state that all routes share.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use crate::http::{
    peers::Cluster,
    reply::{RetryDelay, json::SHORT},
};
use crate::{
    auth::{Access, Verifier},
    base::budget::{Budget, Drawn},
    config::Config,
    error::Error,
    hub::{Hub, stateless::Stateless, tasks::Tasks},
    oauth::Upstreams,
    snapshot::CurrentSnapshot,
    telemetry::{Health, Metrics, Traces},
};

/// State that all routes share.
pub(crate) struct Front {
    /// Sessions and their streams.
    pub(crate) hub: Hub,
    /// Sessions that the gateway keeps for clients without sessions.
    pub(crate) stateless: Arc<Stateless>,
    /// Calls of such clients that go on behind their response.
    pub(crate) tasks: Arc<Tasks>,
    /// Verifier of credentials.
    pub(crate) auth: Verifier,
    /// Current tenants and servers.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// Connections of people to upstreams, which administrators end.
    pub(crate) upstreams: Upstreams,
    /// Configuration of the gateway.
    pub(crate) config: Arc<Config>,
    /// Metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// Traces.
    pub(crate) traces: Traces,
    /// Delay before clients reconnect.
    pub(crate) retry: RetryDelay,
    /// The cluster; `None` for a single gateway.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Unavailable dependencies.
    pub(crate) health: Health,
    /// The begin of this process.
    pub(crate) began: Instant,
}

impl Front {
    /// Counts a long answer against the share of its caller until the client has taken it. A short one is
    /// part of what its call has drawn.
    pub(crate) fn counted(&self, access: &Access, line: Bytes) -> Bytes {
        if line.len() <= SHORT {
            return line;
        }
        let share = self.hub.limits().memory().caller(access);
        share.hold(line.len() as u64).until_dropped(line)
    }

    /// Draws for an answer of about so many bytes before the gateway makes it; none for a short one.
    ///
    /// # Errors
    ///
    /// The share of the caller has no room for it.
    pub(crate) fn room(&self, access: &Access, bytes: usize) -> Result<Option<Drawn>, Error> {
        let share = self.hub.limits().memory().caller(access);
        room_in(&share, bytes).map_err(|NoRoom| self.hub.limits().no_room(AGAIN))
    }

    /// Counts an answer like [`Front::counted`], by what was drawn for it if anything was.
    pub(crate) fn counted_in(&self, access: &Access, line: Bytes, room: Option<Drawn>) -> Bytes {
        match room {
            Some(room) => exactly(room, line),
            None => self.counted(access, line),
        }
    }
}

/// The share of a caller has no room for an answer.
#[derive(Debug)]
struct NoRoom;

fn room_in(share: &Arc<Budget>, bytes: usize) -> Result<Option<Drawn>, NoRoom> {
    if bytes <= SHORT {
        return Ok(None);
    }
    share.draw(bytes as u64).map(Some).ok_or(NoRoom)
}

/// Bytes with as much as they are of what was drawn for about as many.
fn exactly(mut drawn: Drawn, line: Bytes) -> Bytes {
    let bytes = line.len() as u64;
    drawn.add(bytes.saturating_sub(drawn.amount()));
    drawn.give_back(drawn.amount().saturating_sub(bytes));
    drawn.until_dropped(line)
}

/// The time after which a caller without room asks again.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of one task was copied for each `tasks/get`, and counted when it was there.
    #[test]
    fn a_made_answer_has_room_before_it_is_made() {
        let share = Budget::new(1 << 20);
        let bytes = 600 << 10;
        let room = room_in(&share, bytes).unwrap().unwrap();
        assert!(room_in(&share, bytes).is_err());
        assert_eq!(share.used(), bytes as u64);
        let answer = exactly(room, vec![b'x'; bytes + 100].into());
        assert_eq!(share.used(), bytes as u64 + 100, "counted once");
        assert!(room_in(&share, bytes).is_err());
        assert!(room_in(&share, SHORT).unwrap().is_none());
        drop(answer);
        assert_eq!(share.used(), 0);
        let room = room_in(&share, bytes).unwrap().unwrap();
        let shorter = exactly(room, vec![b'x'; bytes - 100].into());
        assert_eq!(share.used(), bytes as u64 - 100);
        drop(shorter);
    }
}

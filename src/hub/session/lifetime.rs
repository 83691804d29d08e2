//! Lifetime of a session: its phases and the reasons of its end.

use tokio::sync::oneshot;

use crate::{
    hub::stream::{Answer, Form},
    protocol::Revision,
};

/// How far the session is.
pub(super) enum Phase {
    /// Nothing has been started.
    New,
    /// The client waits for the answer to its `initialize`.
    Starting {
        /// The client's raw id of it.
        id: Box<[u8]>,
        /// Where the answer goes; none on HTTP+SSE, where it goes to the listener.
        reply: Option<(oneshot::Sender<Answer>, Form)>,
    },
    /// Initialized with this revision.
    Ready(Revision),
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client said so.
    Deleted,
    /// Its principal may not use its server any more, or one of them is gone.
    Revoked,
    /// Nobody used it.
    Idle,
    /// It reached its absolute age.
    Expired,
    /// The connection of HTTP+SSE is gone.
    Disconnected,
    /// Its child is gone and cannot be restored.
    Lost,
    /// It never came to be.
    Failed,
    /// The gateway stops.
    Drained,
    /// Another replica owns it now.
    Fenced,
    /// The store was away for so long that another replica must be its owner.
    Orphaned,
}

//! Record of a session in the directory: the state that its next backend or its next owner
//! continues with.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    backend::{
        Circuit,
        dialect::{CallId, SessionState},
        shared::{Loss, Member},
    },
    hub::core::Transport,
    protocol::{Message, Revision, StreamId, json},
    state::{BoxFuture, Fence, StoreError, contract},
};

/// The state with which another backend is indistinguishable from the first for the client.
#[derive(Default)]
pub(crate) struct Kept {
    /// The client's own `initialize`.
    pub(crate) initialize: Option<Message>,
    /// Whether the client has said `initialized`.
    pub(crate) is_initialized: bool,
    /// The raw capabilities that the client was told.
    pub(crate) capabilities: Box<[u8]>,
    /// The level of log messages that the client asked for.
    pub(crate) level: Option<Box<str>>,
    /// The URIs that it is subscribed to, in their canonical spelling.
    pub(crate) subscriptions: BTreeSet<Box<[u8]>>,
    /// Crashes of its own children.
    pub(crate) crashes: Circuit,
    pub(crate) restarts: u32,
    /// Whether lists may have changed behind the client's back.
    pub(crate) is_stale: bool,
    /// Why the shared child that it uses takes no further calls, if that is so.
    pub(crate) leaving: Option<Loss>,
    /// Its number towards shared children; none is 0.
    pub(crate) number: u32,
    /// The revision of the first shared child that it had.
    pub(crate) shared: Option<Revision>,
    /// Subscriptions of its client that wait for a shared child.
    pub(crate) waiting: Vec<Subscription>,
}

impl Kept {
    /// The part of the state that a child must know.
    pub(super) fn session_state(&self) -> SessionState<'_> {
        SessionState {
            is_initialized: self.is_initialized,
            level: self.level.as_deref(),
            subscriptions: &self.subscriptions,
        }
    }
}

/// A subscription on its way to a shared child, or the end of one.
pub(crate) struct Subscription {
    /// The gateway's id of the request.
    pub(crate) call: CallId,
    /// The URI in its canonical spelling.
    pub(crate) uri: Box<[u8]>,
    /// Whether it begins or ends.
    pub(crate) begins: bool,
    /// The request as the child gets it.
    pub(crate) line: Bytes,
}

impl Subscription {
    /// Passes it on to the shared child.
    pub(super) fn send(self, member: &mut Member) {
        let Self {
            call,
            uri,
            begins,
            line,
        } = self;
        member.subscription(call, uri, begins, line);
    }
}

/// The parts of a session that was taken over.
pub(crate) struct Adopted {
    /// The number of its new owner.
    pub(crate) fence: Fence,
    /// The negotiated revision.
    pub(crate) revision: Revision,
    /// The state for its next backend.
    pub(crate) kept: Kept,
    /// Its streams.
    pub(crate) streams: contract::Streams,
    /// When it began.
    pub(crate) born: Instant,
}

/// The state for the next owner of a session, as JSON in the directory.
///
/// Other versions of the gateway read it: fields are added, never changed, and all may be absent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Remembered {
    is_sse: bool,
    /// None before the session came to be.
    revision: Option<String>,
    initialize: String,
    is_initialized: bool,
    capabilities: String,
    level: Option<String>,
    /// As JSON strings.
    subscriptions: Vec<String>,
    /// The revision of the first shared child.
    shared: Option<String>,
}

impl Remembered {
    /// The record of a session; `revision` once it has negotiated one.
    pub(super) fn of(transport: Transport, revision: Option<Revision>, kept: &Kept) -> Bytes {
        let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
        let initialize = kept.initialize.as_ref().map(Message::bytes);
        let remembered = Self {
            is_sse: transport == Transport::Sse2024,
            revision: revision.map(|revision| revision.as_str().to_owned()),
            initialize: text(initialize.map(|bytes| &**bytes).unwrap_or_default()),
            is_initialized: kept.is_initialized,
            capabilities: text(&kept.capabilities),
            level: kept.level.as_deref().map(str::to_owned),
            subscriptions: kept.subscriptions.iter().map(|uri| text(uri)).collect(),
            shared: kept.shared.map(|revision| revision.as_str().to_owned()),
        };
        // Strings and lists of them: serialization cannot fail.
        serde_json::to_vec(&remembered).unwrap_or_default().into()
    }

    /// Reads a record; none if it is not readable.
    pub(crate) fn parse(kept: &[u8]) -> Option<Self> {
        serde_json::from_slice(kept).ok()
    }

    /// How the client speaks.
    pub(crate) fn transport(&self) -> Transport {
        if self.is_sse {
            Transport::Sse2024
        } else {
            Transport::Streamable
        }
    }

    /// The negotiated revision; none if the session never began, or of a newer version.
    pub(crate) fn revision(&self) -> Option<Revision> {
        Revision::parse(self.revision.as_deref()?)
    }

    /// The state that a new backend gets.
    pub(crate) fn kept(self) -> Option<Kept> {
        let initialize = Message::parse(self.initialize.into_bytes().into()).ok()?;
        let raw = |text: String| text.into_bytes().into_boxed_slice();
        Some(Kept {
            initialize: Some(initialize),
            is_initialized: self.is_initialized,
            capabilities: raw(self.capabilities),
            level: self.level.map(String::into_boxed_str),
            // Earlier versions kept them as clients had spelled them.
            subscriptions: self
                .subscriptions
                .iter()
                .map(|uri| json::canonical(uri.as_bytes()))
                .collect(),
            shared: self.shared.as_deref().and_then(Revision::parse),
            is_stale: true,
            ..Kept::default()
        })
    }
}

/// The record of a session while it changes: one write at a time, so that the last one wins.
#[derive(Default)]
pub(super) struct Keeping {
    under_way: Option<BoxFuture<'static, Result<(), StoreError>>>,
    is_changed: bool,
    /// When the directory last heard of the session.
    since: Option<Instant>,
    /// Answers whose effect the directory has to know first.
    answers: Vec<(StreamId, Bytes)>,
}

impl Keeping {
    /// The record of a session that another replica inserted.
    pub(super) fn begun() -> Self {
        Self {
            since: Some(Instant::now()),
            ..Self::default()
        }
    }

    /// The directory has the session from now on.
    pub(super) fn inserted(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Notes that the record has changed.
    pub(super) fn changed(&mut self) {
        self.is_changed = true;
    }

    /// Whether a change has not been written.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// When to write: at a change, and before the time to live runs out, unless a write is under
    /// way; none for a session that the directory does not have.
    pub(super) fn due(&self, now: Instant, ttl: Duration) -> Option<Instant> {
        let due = self.since? + ttl / RENEWALS;
        if self.under_way.is_some() || now < due && !self.is_changed {
            return Some(due.max(now + Duration::from_secs(1)));
        }
        Some(now)
    }

    /// Begins a write.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        writing: BoxFuture<'static, Result<(), StoreError>>,
    ) {
        (self.since, self.is_changed) = (Some(now), false);
        self.under_way = Some(writing);
    }

    /// Waits for the write under way; forever without one. Cancel-safe.
    pub(super) async fn done(&mut self) -> Result<(), StoreError> {
        match &mut self.under_way {
            Some(writing) => writing.await,
            None => std::future::pending().await,
        }
    }

    /// The write under way has ended.
    pub(super) fn ended(&mut self) {
        self.under_way = None;
    }

    /// Whether a write is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Holds an answer until the write under way has ended.
    pub(super) fn hold(&mut self, stream: StreamId, line: Bytes) {
        self.answers.push((stream, line));
    }

    /// Takes the answers that were held.
    pub(super) fn release(&mut self) -> Vec<(StreamId, Bytes)> {
        std::mem::take(&mut self.answers)
    }
}

/// Writes in the time to live of a record.
pub(super) const RENEWALS: u32 = 10;

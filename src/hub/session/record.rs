//! Record of a session: the state that its next backend or its next owner continues with.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    backend::{
        dialect::{CallId, SessionState},
        shared::Member,
    },
    hub::{
        core::Transport,
        limits::{SessionMemory, SubscriptionMemory},
    },
    protocol::{Message, Revision, json},
    state::{Fence, contract},
};

/// The state that is replayed to another backend, so that the client cannot tell it from the first.
pub(crate) struct ReplayState {
    /// What the state has drawn.
    pub(super) memory: SessionMemory,
    /// The client's own `initialize`.
    pub(super) initialize: Option<Message>,
    /// Whether the client has sent `notifications/initialized`.
    pub(super) is_initialized: bool,
    /// The raw capabilities in the response to `initialize`.
    pub(super) capabilities: Box<[u8]>,
    /// The level of log messages that the client has set.
    pub(super) level: Option<Box<str>>,
    /// The URIs that the client is subscribed to, in their canonical spelling.
    pub(super) subscriptions: BTreeMap<Box<[u8]>, SubscriptionMemory>,
    /// Whether lists may have changed without a notification to the client.
    pub(super) is_stale: bool,
}

impl ReplayState {
    /// The state of a session that begins.
    pub(super) fn new(memory: SessionMemory) -> Self {
        Self {
            memory,
            initialize: None,
            is_initialized: false,
            capabilities: Box::default(),
            level: None,
            subscriptions: BTreeMap::new(),
            is_stale: false,
        }
    }

    /// Keeps the client's `initialize`; false if the share of the caller has no room for it.
    pub(super) fn keep_initialize(&mut self, message: Message) -> bool {
        let has_room = self.memory.keep(message.bytes());
        if has_room {
            self.initialize = Some(message.kept());
        }
        has_room
    }

    /// Keeps the capabilities in the response to `initialize`, which exist already.
    pub(super) fn keep_capabilities(&mut self, capabilities: Box<[u8]>) {
        self.memory.hold(&capabilities);
        self.capabilities = capabilities;
    }

    /// The part of the state that is sent to a child.
    pub(super) fn session_state(&self) -> SessionState<'_> {
        SessionState {
            is_initialized: self.is_initialized,
            level: self.level.as_deref(),
            subscriptions: self.subscriptions.keys().map(|uri| &**uri).collect(),
        }
    }
}

/// A request to subscribe to a URI, or to unsubscribe from it, on its way to a shared child.
pub(super) struct Subscription {
    /// The gateway's id of the request.
    pub(crate) call: CallId,
    /// The URI in its canonical spelling.
    pub(crate) uri: Box<[u8]>,
    /// Whether the request subscribes or unsubscribes.
    pub(crate) is_subscribe: bool,
    /// The request as it is written to the child.
    pub(crate) line: Bytes,
}

impl Subscription {
    /// The bytes of the client's data.
    pub(super) fn bytes(&self) -> usize {
        self.line.len() + self.uri.len()
    }

    /// Writes the request to the shared child.
    pub(super) fn send(self, member: &mut Member) {
        let Self {
            call,
            uri,
            is_subscribe,
            line,
        } = self;
        member.subscription(call, uri, is_subscribe, line);
    }
}

/// The parts of a session that was taken over.
pub(crate) struct Takeover {
    /// The fence of its new owner.
    pub(crate) fence: Fence,
    /// The number of lapses of the lease before the claim.
    pub(crate) lapses: u32,
    /// The negotiated revision.
    pub(crate) revision: Revision,
    /// The state for its next backend.
    pub(crate) replay: ReplayState,
    /// Its streams in the event log.
    pub(crate) streams: contract::Streams,
    /// When the session began.
    pub(crate) born: Instant,
}

/// The state for the next owner of a session, as JSON in the directory.
///
/// Other versions of the gateway read the record: fields are added, never changed, and all may be
/// absent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionRecord {
    is_sse: bool,
    /// None before the session is initialized.
    revision: Option<String>,
    initialize: String,
    is_initialized: bool,
    capabilities: String,
    level: Option<String>,
    /// The URIs as JSON strings.
    subscriptions: Vec<String>,
}

impl SessionRecord {
    /// The encoded record of a session; `revision` once it has negotiated one.
    pub(super) fn encode(
        transport: Transport,
        revision: Option<Revision>,
        replay: &ReplayState,
    ) -> Bytes {
        let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
        let initialize = replay.initialize.as_ref().map(Message::bytes);
        let record = Self {
            is_sse: transport == Transport::Sse2024,
            revision: revision.map(|revision| revision.as_str().to_owned()),
            initialize: text(initialize.map(|bytes| &**bytes).unwrap_or_default()),
            is_initialized: replay.is_initialized,
            capabilities: text(&replay.capabilities),
            level: replay.level.as_deref().map(str::to_owned),
            subscriptions: replay.subscriptions.keys().map(|uri| text(uri)).collect(),
        };
        // Strings and lists of them: serialization cannot fail.
        serde_json::to_vec(&record).unwrap_or_default().into()
    }

    /// Parses a record; none if it is not readable.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        serde_json::from_slice(record).ok()
    }

    /// The transport of the client.
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

    /// The state that is replayed to a new backend. It exists, so it is held even beyond the share of the
    /// caller; the caller gets no more until there is room again.
    pub(crate) fn into_replay(self, memory: SessionMemory) -> Option<ReplayState> {
        let initialize = Message::parse(self.initialize.into_bytes().into()).ok()?;
        let mut replay = ReplayState::new(memory);
        replay.memory.hold_record(initialize.bytes());
        replay.initialize = Some(initialize);
        replay.is_initialized = self.is_initialized;
        replay.keep_capabilities(self.capabilities.into_bytes().into());
        replay.level = self.level.map(String::into_boxed_str);
        for uri in &self.subscriptions {
            // Earlier versions stored the spelling of the client.
            let uri = json::canonical(uri.as_bytes());
            let memory = replay.memory.hold_subscription(&uri);
            replay.subscriptions.insert(uri, memory);
        }
        replay.is_stale = true;
        Some(replay)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::budget::Budget;

    #[test]
    fn the_next_owner_counts_what_a_session_keeps() {
        let here = Budget::new(1 << 20);
        let mut replay = ReplayState::new(SessionMemory::new(Arc::clone(&here), None));
        let initialize = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let initialize = Message::parse(initialize.to_vec().into()).unwrap();
        assert!(replay.keep_initialize(initialize));
        replay.keep_capabilities(b"{\"tools\":{}}"[..].into());
        for uri in [&b"\"test://a\""[..], b"\"test://b\""] {
            let memory = replay.memory.subscribe(uri).unwrap();
            replay.subscriptions.insert(uri.into(), memory);
        }
        let record = SessionRecord::encode(Transport::Streamable, None, &replay);
        // Its share is used up, and the session goes on.
        let there = Budget::new(1);
        let record = SessionRecord::parse(&record).unwrap();
        let taken_over = record
            .into_replay(SessionMemory::new(Arc::clone(&there), None))
            .unwrap();
        assert_eq!(taken_over.subscriptions.len(), 2);
        assert!(here.used() > 2 * 256 && there.used() == here.used());
        assert!(taken_over.memory.subscribe(b"\"test://c\"").is_err());
        drop((replay, taken_over));
        assert_eq!((here.used(), there.used()), (0, 0));
    }
}

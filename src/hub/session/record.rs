//! What of a session other replicas know: its record in the directory, what the next owner goes
//! on with, and how the record is kept alive.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    restore::Kept,
    task::{Over, Phase, Session, Transport},
};
use crate::{
    protocol::{Message, Revision, StreamId, json},
    state::{Later, Record, StoreError},
};

/// What the next owner of a session needs, so that its client notices no more than it must.
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
    /// What an owner kept; nothing for what cannot be read.
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

    /// What the session negotiated; none if it never came to be, or by a newer version.
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
    under_way: Option<Later<'static, Result<(), StoreError>>>,
    is_changed: bool,
    /// When the directory last heard of the session.
    since: Option<Instant>,
    /// Answers whose effect the directory has to know first.
    answers: Vec<(StreamId, Bytes)>,
}

/// For how long a session that never idles outlives its owner's last sign.
const DAY: Duration = Duration::from_secs(86_400);

impl Session {
    fn remembered(&self) -> Bytes {
        let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
        let kept = &self.kept;
        let revision = match self.phase {
            Phase::Ready(revision) => Some(revision.as_str().to_owned()),
            Phase::New | Phase::Starting { .. } => None,
        };
        let initialize = kept.initialize.as_ref().map(Message::bytes);
        let remembered = Remembered {
            is_sse: self.transport == Transport::Sse2024,
            revision,
            initialize: text(initialize.map(|bytes| &**bytes).unwrap_or_default()),
            is_initialized: kept.is_initialized,
            capabilities: text(&kept.capabilities),
            level: kept.level.as_deref().map(str::to_owned),
            subscriptions: kept.subscriptions.iter().map(|uri| text(uri)).collect(),
            shared: kept.shared.map(|revision| revision.as_str().to_owned()),
        };
        // Texts and lists of them: writing them cannot fail.
        serde_json::to_vec(&remembered).unwrap_or_default().into()
    }

    fn ttl(&self) -> Duration {
        let idle = self.core.config.session.idle;
        if idle.is_zero() { DAY } else { idle }
    }

    fn record(&self) -> Record {
        Record {
            principal: self.principal.key().into(),
            server: self.server.name.clone(),
            owner: Some(self.core.owner.me.clone()),
            fence: self.fence,
            kept: self.remembered(),
            ttl: self.ttl(),
            age: self.born.elapsed(),
        }
    }

    /// Lets other replicas know of the session, before its client does. Ends it if that cannot be.
    pub(super) async fn register(&mut self) {
        if self.core.owner.is_alone() {
            return;
        }
        let epoch = self.streams.epoch();
        let record = self.record();
        let inserted = self.core.directory.insert(&self.id, record, epoch).await;
        match inserted {
            Ok(true) => {
                self.keeping.since = Some(Instant::now());
                let announced = self.streams.announce();
                self.stored(announced);
            }
            Ok(false) | Err(_) => self.over = Some(Over::Failed),
        }
    }

    /// Registers the session again in a store that lost it.
    pub(crate) async fn register_again(&mut self, epoch: u32) -> Result<bool, StoreError> {
        let record = self.record();
        let directory = &self.core.directory;
        if !directory.insert(&self.id, record, epoch).await? {
            return Ok(false);
        }
        self.keeping.since = Some(Instant::now());
        self.streams.renew(epoch);
        Ok(true)
    }

    /// What the next owner needs has changed.
    pub(super) fn remember(&mut self) {
        if !self.core.owner.is_alone() {
            self.keeping.is_changed = true;
            self.keep_record(Instant::now());
        }
    }

    /// Ends a call whose effect another owner would have to know: the answer comes behind it.
    pub(super) fn finish_kept(&mut self, stream: StreamId, line: Bytes) -> Result<(), StoreError> {
        if self.keeping.under_way.is_none() {
            return self.streams.finish_call(stream, Some(line));
        }
        self.keeping.answers.push((stream, line));
        Ok(())
    }

    /// Writes what changed, or that the session lives, unless a write is under way. Returns when
    /// to come again.
    pub(super) fn keep_record(&mut self, now: Instant) -> Option<Instant> {
        let since = self.keeping.since?;
        let due = since + self.ttl() / 10;
        if self.keeping.under_way.is_some() || now < due && !self.keeping.is_changed {
            return Some(due.max(now + Duration::from_secs(1)));
        }
        let kept = std::mem::take(&mut self.keeping.is_changed).then(|| self.remembered());
        self.keeping.since = Some(now);
        let directory = Arc::clone(&self.core.directory);
        let (id, fence) = (self.id.clone(), self.fence);
        self.keeping.under_way = Some(Box::pin(
            async move { directory.keep(&id, fence, kept).await },
        ));
        Some(now + self.ttl() / 10)
    }

    /// What became of the write to the record.
    pub(super) fn record_kept(&mut self, kept: Result<(), StoreError>) {
        self.keeping.under_way = None;
        match kept {
            Ok(()) if self.keeping.is_changed => _ = self.keep_record(Instant::now()),
            Ok(()) => {
                for (stream, line) in std::mem::take(&mut self.keeping.answers) {
                    let finished = self.streams.finish_call(stream, Some(line));
                    self.stored(finished);
                }
            }
            // The lease says what is to be done; until then it is tried again.
            Err(StoreError::Away) => {
                self.keeping.is_changed = true;
                self.wake_by(Instant::now() + Duration::from_secs(1));
            }
            // Another's, or lost with all that the store had: whose it is has to be read.
            Err(_) => {
                self.keeping.is_changed = true;
                self.doubt();
            }
        }
    }

    /// Writes what could not be written while the session stood still.
    pub(crate) fn keep_again(&mut self) {
        if self.keeping.is_changed {
            self.keep_record(Instant::now());
        }
    }
}

impl Keeping {
    /// Waits for the write under way; for ever, where there is none. Cancel-safe.
    pub(crate) async fn done(&mut self) -> Result<(), StoreError> {
        match &mut self.under_way {
            Some(writing) => writing.await,
            None => std::future::pending().await,
        }
    }

    /// Whether there is one.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// A session that another replica inserted.
    pub(super) fn begun() -> Self {
        Self {
            since: Some(Instant::now()),
            ..Self::default()
        }
    }
}

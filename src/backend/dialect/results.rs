//! Results of a stateless server that its sessions get again, for as long as it says (2026-07-28 caching).

use std::{collections::HashMap, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::declare::Isolation;
use crate::protocol::{
    Message, json,
    jsonrpc::push_result,
    modern::{CacheHint, CacheKey, Change},
};

/// The results of one child that may be given again, and the requests whose results may become such.
#[derive(Default)]
pub(super) struct Results {
    keeps: Keeps,
    /// Requests that the server has not answered, by their raw ids.
    asked: HashMap<Box<[u8]>, CacheKey>,
    kept: HashMap<CacheKey, Kept>,
    /// The bytes that both take.
    bytes: usize,
}

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keeps {
    /// Nothing: the child has one session.
    #[default]
    Nothing,
    /// What may be given to anybody: "Caches MUST NOT be shared across authorization contexts" (2026-07-28
    /// caching, "Cache Scope Field"), and the sessions of the child are of several.
    Public,
    /// All: the sessions of the child are of one principal.
    All,
}

struct Kept {
    result: Bytes,
    is_public: bool,
    until: Instant,
}

/// The most bytes that are kept of one child.
const MAX_BYTES: usize = 1 << 20;
/// The bytes that an entry takes besides its texts.
const ENTRY: usize = 128;

impl Results {
    /// Nothing yet, of a child whose sessions are isolated like this.
    pub(super) fn new(isolation: Isolation) -> Self {
        Self {
            keeps: match isolation {
                Isolation::Session => Keeps::Nothing,
                Isolation::Principal => Keeps::All,
                Isolation::Tenant => Keeps::Public,
            },
            ..Self::default()
        }
    }

    /// The bytes that they take.
    pub(super) fn size(&self) -> usize {
        self.bytes
    }

    /// The result that a request gets without the server; none if the server has to answer it.
    pub(super) fn find(&mut self, request: &Message, now: Instant) -> Option<Bytes> {
        let key = CacheKey::of(request)?;
        if let Some(kept) = self.kept.get(&key).filter(|kept| kept.until > now) {
            let left = kept.until.duration_since(now).as_millis();
            let hint = CacheHint {
                ttl_ms: u64::try_from(left).unwrap_or_default(),
                is_public: kept.is_public,
            };
            return Some(hint.put_into(&kept.result));
        }
        let id = request.id().unwrap_or_default();
        let size = id.len() + key.size() + ENTRY;
        if self.bytes + size <= MAX_BYTES && !self.asked.contains_key(id) {
            self.bytes += size;
            self.asked.insert(id.into(), key);
        }
        None
    }

    /// A request will not be answered with a result that may be kept.
    pub(super) fn forget(&mut self, id: &[u8]) -> Option<CacheKey> {
        let key = self.asked.remove(id)?;
        self.bytes -= id.len() + key.size() + ENTRY;
        Some(key)
    }

    /// The answer of the server to the request with a raw id, with what it says of its result where that may be
    /// kept.
    pub(super) fn answered(
        &mut self,
        id: &[u8],
        line: Bytes,
        hint: impl FnOnce() -> Option<CacheHint>,
        now: Instant,
    ) -> Bytes {
        let Some(key) = self.forget(id) else {
            return line;
        };
        let Some(hint) = hint() else {
            return line;
        };
        let Some(result) = json::get(&line, "result") else {
            return line;
        };
        let mut told = BytesMut::new();
        push_result(id, &hint.put_into(result), &mut told);
        self.keep(key, result, hint, now);
        told.freeze()
    }

    fn keep(&mut self, key: CacheKey, result: &[u8], hint: CacheHint, now: Instant) {
        let is_kept = match self.keeps {
            Keeps::Nothing => false,
            Keeps::Public => hint.is_public,
            Keeps::All => true,
        };
        if !is_kept || hint.ttl_ms == 0 {
            return;
        }
        self.drop_those(|_, kept| kept.until <= now);
        self.drop_those(|known, _| *known == key);
        let size = key.size() + ENTRY + result.len();
        if self.bytes + size > MAX_BYTES {
            return;
        }
        self.bytes += size;
        let kept = Kept {
            result: Bytes::copy_from_slice(result),
            is_public: hint.is_public,
            until: now + Duration::from_millis(hint.ttl_ms),
        };
        self.kept.insert(key, kept);
    }

    /// The server has refused a request: "If a cursor becomes invalid, the client SHOULD discard all cached
    /// pages" (2026-07-28 caching, "Interaction with Pagination").
    pub(super) fn refused(&mut self, id: &[u8]) {
        if let Some(key) = self.forget(id) {
            self.drop_those(|known, _| known.is_page_with(&key));
        }
    }

    /// What a notification tells of is read anew, also where the server has not answered yet: it may have read
    /// what it will answer before the change.
    pub(super) fn changed(&mut self, notification: &Message) {
        let Some(change) = Change::of(notification) else {
            return;
        };
        self.drop_those(|key, _| key.is_changed_by(&change));
        let asked = self.asked.extract_if(|_, key| key.is_changed_by(&change));
        self.bytes -= asked
            .map(|(id, key)| id.len() + key.size() + ENTRY)
            .sum::<usize>();
    }

    /// Anything may have changed that was told to nobody.
    pub(super) fn clear(&mut self) {
        (self.asked, self.kept, self.bytes) = (HashMap::new(), HashMap::new(), 0);
    }

    fn drop_those(&mut self, is_one: impl Fn(&CacheKey, &Kept) -> bool) {
        let dropped = self.kept.extract_if(|key, kept| is_one(key, kept));
        let sizes = dropped.map(|(key, kept)| key.size() + ENTRY + kept.result.len());
        self.bytes -= sizes.sum::<usize>();
    }
}

//! Claims under way: one request claims a session for all requests that wait for it.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
};

use crate::state::SessionId;

/// The sessions that are being claimed; clones are the same set. Never held across an await.
#[derive(Clone, Default)]
pub(crate) struct Claims(Arc<RwLock<HashSet<SessionId>>>);

/// A claim under way; the next one can begin when it is dropped.
pub(crate) struct Claim {
    claims: Claims,
    id: SessionId,
}

impl Claims {
    /// Begins a claim; none if one is under way.
    pub(crate) fn begin(&self, id: &SessionId) -> Option<Claim> {
        let mut claims = self.0.write().unwrap_or_else(PoisonError::into_inner);
        claims.insert(id.clone()).then(|| Claim {
            claims: self.clone(),
            id: id.clone(),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self
            .claims
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        claims.remove(&self.id);
    }
}

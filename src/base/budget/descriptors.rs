//! Open files of this process, which connections and children share.

use std::sync::Arc;

use super::tree::{Budget, Drawn};

/// The open files that outsiders can make the gateway have; a handle.
///
/// Beside them a reserve is left for the store, Redis, the manifest, and the listeners of operators, and
/// an eighth for either kind that the other cannot take: a flood of connections stops no start of a
/// child, and children stop no connection.
#[derive(Clone, Debug)]
pub(crate) struct Descriptors {
    all: Arc<Budget>,
    connections: Arc<Budget>,
    children: Arc<Budget>,
}

impl Descriptors {
    /// All of this process, which may have `files` open.
    pub(crate) fn new(files: u64) -> Self {
        let all = Budget::new(files - RESERVE.min(files / 2));
        Self {
            connections: all.share(),
            children: all.share(),
            all,
        }
    }

    /// The most connections that there can be.
    pub(crate) fn max_connections(&self) -> u64 {
        self.most()
    }

    /// Draws for a connection; none if there are too many.
    pub(crate) fn connection(&self) -> Option<Drawn> {
        self.draw(&self.connections, 1)
    }

    /// Draws for a child; none if there are too many.
    pub(crate) fn child(&self) -> Option<Drawn> {
        self.draw(&self.children, CHILD)
    }

    fn draw(&self, kind: &Arc<Budget>, count: u64) -> Option<Drawn> {
        let drawn = kind.hold(count);
        (kind.used() <= self.most() && self.all.left() >= 0).then_some(drawn)
    }

    fn most(&self) -> u64 {
        self.all.total() - self.all.total() / 8
    }
}

/// Files that are never drawn.
const RESERVE: u64 = 256;
/// The files of a child: its three pipes, its guard, and one while it starts.
const CHILD: u64 = 5;

#[cfg(test)]
mod tests {
    use crate::base::budget::descriptors::*;

    #[test]
    fn neither_kind_takes_all() {
        let files = Descriptors::new(1056);
        assert_eq!(files.max_connections(), 700);
        let connections: Vec<_> = std::iter::from_fn(|| files.connection()).collect();
        assert_eq!(connections.len(), 700);
        let children: Vec<_> = std::iter::from_fn(|| files.child()).collect();
        assert_eq!(children.len(), 20);
        drop(connections);
        let more: Vec<_> = std::iter::from_fn(|| files.child()).collect();
        assert_eq!(children.len() + more.len(), 140);
        let connections: Vec<_> = std::iter::from_fn(|| files.connection()).collect();
        assert_eq!(connections.len(), 100);
    }

    #[test]
    fn of_few_files_half_is_left() {
        assert_eq!(Descriptors::new(100).max_connections(), 44);
        assert_eq!(Descriptors::new(0).max_connections(), 0);
    }
}

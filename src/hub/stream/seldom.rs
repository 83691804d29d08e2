//! A queue that most sessions never use.

use std::collections::VecDeque;

/// A queue that takes a pointer while it is empty: there are a hundred thousand idle sessions in a replica.
#[expect(clippy::box_collection, reason = "it is empty but for moments")]
pub(super) struct Seldom<T>(Option<Box<VecDeque<T>>>);

impl<T> Seldom<T> {
    /// An empty one.
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// The number of items.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |items| items.len())
    }

    /// Adds an item behind all others.
    pub(super) fn push(&mut self, item: T) {
        self.0.get_or_insert_default().push_back(item);
    }

    /// Takes the first item if `is` says so.
    pub(super) fn pop_if(&mut self, is: impl FnOnce(&mut T) -> bool) -> Option<T> {
        let items = self.0.as_mut()?;
        let first = items.pop_front_if(is);
        if items.is_empty() {
            self.0 = None;
        }
        first
    }

    /// All items, in their order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flat_map(|items| items.iter_mut())
    }

    /// Takes all items, in their order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.0.take().into_iter().flat_map(|items| *items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_in_order_and_takes_a_pointer() {
        assert_eq!(size_of::<Seldom<[u64; 9]>>(), size_of::<usize>());
        let mut queue = Seldom::new();
        assert_eq!((queue.len(), queue.pop_if(|_| true)), (0, None::<u8>));
        for item in 1..=4 {
            queue.push(item);
        }
        queue.iter_mut().for_each(|item| *item += 1);
        assert_eq!((queue.len(), queue.pop_if(|item| *item > 2)), (4, None));
        assert_eq!(queue.pop_if(|item| *item == 2), Some(2));
        assert_eq!(queue.take_all().collect::<Vec<_>>(), [3, 4, 5]);
        queue.push(7);
        assert_eq!(queue.pop_if(|_| true), Some(7));
        assert!(queue.0.is_none(), "it is kept for one that may never come");
    }
}

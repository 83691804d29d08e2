//! Room of queues of which thousands may be in memory: it grows by a quarter, and goes after a burst.

use std::collections::VecDeque;

/// Adds to a queue; its room grows by a quarter.
pub(crate) fn push_back<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == queue.capacity() {
        queue.reserve_exact(more_than(queue.len()));
    }
    queue.push_back(item);
}

/// Gives back the room of what has left a queue: it would stay as long as it was at its longest.
pub(crate) fn drop_room<T>(queue: &mut VecDeque<T>) {
    let length = queue.len();
    if queue.capacity() > length + 2 * more_than(length) {
        queue.shrink_to(length + more_than(length));
    }
}

/// Free places of a queue of this length.
fn more_than(length: usize) -> usize {
    (length / 4).max(4)
}

#[cfg(test)]
mod tests {
    use super::super::room::*;

    #[test]
    fn a_queue_moves_seldom_and_keeps_little_room() {
        let (mut queue, mut rooms) = (VecDeque::new(), Vec::new());
        for at in 0..1000 {
            push_back(&mut queue, at);
            rooms.push(queue.capacity());
        }
        assert!(queue.capacity() <= 1250, "{}", queue.capacity());
        while queue.pop_front().is_some() {
            drop_room(&mut queue);
            rooms.push(queue.capacity());
            let most = queue.len() + 2 * more_than(queue.len());
            assert!(
                queue.capacity() <= most,
                "{} for {}",
                queue.capacity(),
                queue.len()
            );
        }
        rooms.dedup();
        assert!(rooms.len() <= 60, "moved {} times", rooms.len());
    }
}

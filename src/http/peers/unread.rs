//! Bytes of an answer that have come here and that its client has not taken.
//!
//! Not here: the window of their stream, which bounds them (`connection`).

use std::{collections::VecDeque, mem::take};

use bytes::{Bytes, BytesMut};

use crate::base::budget::{drop_room, push_back};

/// The bytes, in their order and in about twice as much memory at most, however they were sent.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pieces: VecDeque<Bytes>,
    /// The newest ones behind those, as one piece.
    last: BytesMut,
}

impl Unread {
    /// Adds a copy of what was received: a part of the buffer that it was read into would keep all of that buffer, which
    /// may have grown to several times a frame.
    pub(super) fn push(&mut self, data: &[u8]) {
        if self.last.len() + data.len() > LONGEST {
            self.close_last();
        }
        self.last.extend_from_slice(data);
    }

    /// Removes the first bytes.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let Some(first) = self.pieces.pop_front() else {
            return (!self.last.is_empty()).then(|| take(&mut self.last).freeze());
        };
        drop_room(&mut self.pieces);
        Some(first)
    }

    /// Returns whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.last.is_empty()
    }

    fn close_last(&mut self) {
        if !self.last.is_empty() {
            push_back(&mut self.pieces, take(&mut self.last).freeze());
        }
    }

    /// Returns the number of bytes, and of buffers that have them.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        let closed: usize = self.pieces.iter().map(Bytes::len).sum();
        let buffers = self.pieces.len() + usize::from(!self.last.is_empty());
        (closed + self.last.len(), buffers)
    }
}

/// Longest piece that several become, as long as a frame; it is copied as it grows.
const LONGEST: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::unread::*;

    proptest! {
        #[test]
        fn bytes_come_in_order_however_they_were_sent(
            steps in prop::collection::vec((0..=LONGEST, any::<bool>()), 0..60),
        ) {
            let (mut unread, mut sent, mut got) = (Unread::default(), Vec::new(), Vec::new());
            let mut byte = 0_u8;
            for (length, is_read) in steps {
                byte = byte.wrapping_add(1);
                let data = vec![byte; length];
                sent.extend_from_slice(&data);
                unread.push(&data);
                prop_assert_eq!(unread.kept().0, sent.len() - got.len());
                if is_read {
                    got.extend_from_slice(&unread.pop().unwrap_or_default());
                }
                prop_assert_eq!(unread.is_empty(), sent.len() == got.len());
            }
            while let Some(piece) = unread.pop() {
                prop_assert!(!piece.is_empty());
                got.extend_from_slice(&piece);
            }
            prop_assert!(sent == got);
        }
    }

    /// Frames of 4 KiB and more kept buffers of up to 32 KiB.
    #[test]
    fn pieces_have_about_their_bytes_in_memory_however_they_were_sent() {
        for length in [1, 80, 1000, 4 << 10, 5000, 9000, LONGEST] {
            let (mut unread, data) = (Unread::default(), vec![b'x'; length]);
            let count = (64 << 10) / length;
            for _ in 0..count {
                unread.push(&data);
            }
            let (bytes, buffers) = unread.kept();
            assert_eq!(bytes, count * length);
            assert!(buffers <= 8, "{length}: {buffers} buffers");
            while let Some(piece) = unread.pop() {
                let bytes = piece.len();
                assert!(bytes <= LONGEST, "a piece of {bytes}");
                let capacity = piece.try_into_mut().unwrap().capacity();
                assert!(capacity <= 2 * bytes.max(8), "{capacity} for {bytes}");
            }
        }
    }
}

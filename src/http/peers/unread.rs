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
    /// The short ones behind those, as one.
    last: BytesMut,
}

impl Unread {
    /// Adds what was received. A short piece is copied: it would keep the buffer that it was read into, with all else
    /// that came then.
    pub(super) fn push(&mut self, data: Bytes) {
        if data.len() >= SHORT {
            self.close_last();
            push_back(&mut self.pieces, data);
            return;
        }
        if self.last.len() + data.len() > LONGEST {
            self.close_last();
        }
        self.last.extend_from_slice(&data);
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
        let long: usize = self.pieces.iter().map(Bytes::len).sum();
        let buffers = self.pieces.len() + usize::from(!self.last.is_empty());
        (long + self.last.len(), buffers)
    }
}

/// Pieces below this are copied out of the buffer that they were read into, which has 8 KiB or more.
const SHORT: usize = 4 << 10;
/// Longest piece that short ones become; it is copied as it grows.
const LONGEST: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::unread::*;

    proptest! {
        #[test]
        fn bytes_come_in_order_however_they_were_sent(
            steps in prop::collection::vec((0..3 * SHORT, any::<bool>()), 0..60),
        ) {
            let (mut unread, mut sent, mut got) = (Unread::default(), Vec::new(), Vec::new());
            let mut byte = 0_u8;
            for (length, is_read) in steps {
                byte = byte.wrapping_add(1);
                let data = vec![byte; length];
                sent.extend_from_slice(&data);
                unread.push(data.into());
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

    #[test]
    fn short_pieces_become_long_ones_that_keep_no_buffer_of_others() {
        for length in [1, 80, 1000, SHORT - 1] {
            let (mut unread, buffer) = (Unread::default(), Bytes::from(vec![b'x'; 8 << 10]));
            let count = (64 << 10) / length;
            for _ in 0..count {
                unread.push(buffer.slice(..length));
            }
            assert!(buffer.is_unique(), "{length}: the buffer stays");
            let (bytes, buffers) = unread.kept();
            assert_eq!(bytes, count * length);
            assert!(buffers <= 6, "{length}: {buffers} buffers");
            while let Some(piece) = unread.pop() {
                let bytes = piece.len();
                let capacity = piece.try_into_mut().unwrap().capacity();
                assert!(capacity <= 2 * bytes.max(8), "{capacity} for {bytes}");
            }
        }
    }

    #[test]
    fn long_pieces_are_not_copied() {
        let (mut unread, data) = (Unread::default(), Bytes::from(vec![b'x'; SHORT]));
        unread.push(Bytes::from_static(b"short"));
        unread.push(data.clone());
        assert_eq!(unread.pop().unwrap(), "short");
        assert_eq!(unread.pop().unwrap().as_ptr(), data.as_ptr());
        assert!(unread.pop().is_none());
    }
}

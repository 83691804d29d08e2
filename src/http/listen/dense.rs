//! What was read of a connection of HTTP/2 and has many header fields, until its turn.
//!
//! A byte of a header block may name a field once more, and h2 decodes a frame as soon as it has all of it: those of 16 KiB
//! took a millisecond and a half, on each of thousands of connections, before a request of another address. So what
//! completes frames with many fields waits in the line of the address before h2 has it, and h2 gets it in parts.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use hyper::rt::ReadBufCursor;

use crate::base::budget::{Budget, Drawn, others_first};

/// What waits, of one read.
pub(super) struct Dense {
    bytes: Vec<u8>,
    /// Of those, what h2 has.
    given: usize,
    /// The length of a part.
    part: usize,
    /// The share of the address; none at listeners that are not for everybody.
    share: Option<Arc<Budget>>,
    /// The place of the next part in line; none if its turn is over.
    line: Option<BoxFuture<'static, ()>>,
    /// What is held of the share for all of them.
    held: Option<Drawn>,
}

impl Dense {
    /// What was read and completes frames with so many fields, if it has to wait.
    pub(super) fn of(
        read: &[u8],
        fields: usize,
        share: impl FnOnce() -> Option<Arc<Budget>>,
    ) -> Option<Self> {
        if fields < FEW {
            return None;
        }
        let share = share();
        // Some on each of many connections are many.
        let is_crowded = |share: &Arc<Budget>| share.is_due() || share.is_busy();
        if fields < MANY && !share.as_ref().is_some_and(is_crowded) {
            return None;
        }
        Some(Self {
            bytes: read.to_vec(),
            given: 0,
            part: (read.len() * MOST / fields).max(PART),
            line: None,
            held: share.as_ref().map(|share| share.hold(read.len() as u64)),
            share,
        })
    }

    /// Whether this is more than each connection may have, and the share holds more than it may.
    pub(super) fn is_too_much(&self, may_have: usize) -> bool {
        self.bytes.len() > may_have && self.held.as_ref().is_some_and(Drawn::is_too_much)
    }

    /// Begins to wait: whatever else there is to be said of the read is said first.
    pub(super) fn begin<T>(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if self.poll_line(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Gives the next part in its turn; returns whether it was the last one.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<bool> {
        ready!(self.poll_line(cx));
        let (_, rest) = self.bytes.split_at(self.given);
        let (part, rest) = rest.split_at(rest.len().min(self.part).min(buf.remaining()));
        buf.put_slice(part);
        self.given += part.len();
        Poll::Ready(rest.is_empty())
    }

    /// Goes on in line where nothing is read. A turn that is had there is over: nobody behind it waits for this
    /// connection.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.line.is_some() && self.poll_line(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Waits for a turn, which ends with this.
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let place = || line(self.share.clone());
        ready!(self.line.get_or_insert_with(place).as_mut().poll(cx));
        self.line = None;
        Poll::Ready(())
    }
}

/// A place in line.
fn line(share: Option<Arc<Budget>>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        match share {
            Some(share) => share.others_first().await,
            None => others_first().await,
        }
    })
}

/// Fields that wait for nothing: those of a request or two.
const FEW: usize = 32;
/// Fields that wait in any case, since they take some ten microseconds.
const MANY: usize = 256;
/// Fields of a part, which take two tenths of a millisecond, if that is longer than [`PART`].
const MOST: usize = 2 << 10;
/// The least bytes of one.
const PART: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use futures_util::poll;
    use hyper::rt::ReadBuf;
    use std::future::poll_fn;

    use super::*;

    fn share() -> Arc<Budget> {
        Budget::new(1 << 20).share()
    }

    /// The next part, in its turn, of which there is room for so many bytes.
    async fn part(dense: &mut Dense, room: usize) -> (Vec<u8>, bool) {
        let mut room = vec![MaybeUninit::uninit(); room];
        let mut buf = ReadBuf::uninit(&mut room);
        let is_last = poll_fn(|cx| dense.poll_part(cx, buf.unfilled())).await;
        (buf.filled().to_vec(), is_last)
    }

    #[test]
    fn few_fields_wait_only_where_there_are_many() {
        let waits = |fields, share: &Arc<Budget>| {
            Dense::of(b"read", fields, || Some(Arc::clone(share))).is_some()
        };
        assert!(!waits(FEW - 1, &share()));
        assert!(!waits(MANY - 1, &share()));
        assert!(waits(MANY, &share()));
        // Each eighth, as requests do.
        let crowded = share();
        let waiting = (0..64).filter(|_| waits(FEW, &crowded)).count();
        assert!(waiting >= 1, "none waits");
        assert!((0..64).all(|_| !waits(FEW - 1, &crowded)));
        // At other listeners as well.
        assert!(Dense::of(b"read", MANY, || None).is_some());
        assert!(Dense::of(b"read", MANY - 1, || None).is_none());
    }

    #[tokio::test]
    async fn h2_gets_all_of_it_in_parts() {
        let share = share();
        let all: Vec<u8> = (0..=255).cycle().take(2 * PART + 100).collect();
        let mut dense = Dense::of(&all, all.len(), || Some(Arc::clone(&share))).unwrap();
        assert_eq!(share.used(), all.len() as u64);
        let mut given = Vec::new();
        for (room, length) in [(1 << 20, PART), (50, 50), (1 << 20, PART), (1 << 20, 50)] {
            assert!(
                poll!(Box::pin(part(&mut dense, room))).is_pending(),
                "no turn"
            );
            let (part, is_last) = part(&mut dense, room).await;
            assert_eq!(part.len(), length);
            given.extend(part);
            assert_eq!(is_last, given.len() == all.len());
        }
        assert_eq!(given, all);
        drop(dense);
        assert_eq!(share.used(), 0);
    }

    /// Requests of a proxy were cut by their bytes, and all of its clients waited for each part.
    #[tokio::test]
    async fn few_fields_of_many_bytes_are_one_part() {
        for (fields, length) in [(800, 8000), (2 * MOST, 4000), (4 * MOST, PART)] {
            let mut dense = Dense::of(&[0; 8000], fields, || None).unwrap();
            let (part, is_last) = part(&mut dense, 1 << 20).await;
            assert_eq!((part.len(), is_last), (length, length == 8000));
        }
    }

    /// Four connections that h2 did not read, since they took nothing that it had to write, kept all turns of their
    /// address.
    #[tokio::test]
    async fn a_turn_that_nobody_uses_ends() {
        let share = share();
        let dense = || Dense::of(&[7; 100], MANY, || Some(Arc::clone(&share))).unwrap();
        let mut all: Vec<_> = (0..8).map(|_| dense()).collect();
        let mut looks = 0;
        poll_fn(|cx| {
            for dense in &mut all {
                if looks == 0 {
                    assert!(dense.begin::<()>(cx).is_pending());
                } else {
                    dense.go_on(cx);
                }
            }
            looks += 1;
            if all.iter().all(|dense| dense.line.is_none()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert!(!share.is_busy());
        // It has another one when it is read.
        let mut last = all.pop().unwrap();
        assert!(poll!(Box::pin(part(&mut last, 200))).is_pending());
        assert_eq!(part(&mut last, 200).await, (vec![7; 100], true));
    }

    /// Five hundred connections, of which each was decoded as soon as it was read, kept a worker for half a second.
    #[tokio::test]
    async fn a_few_of_an_address_go_on_at_a_time() {
        let share = share();
        let dense = || Dense::of(&[0; 100], MANY, || Some(Arc::clone(&share))).unwrap();
        let mut all: Vec<_> = (0..100).map(|_| dense()).collect();
        let mut looks = 0;
        while !all.is_empty() {
            let before = all.len();
            let mut left = Vec::new();
            for mut dense in all {
                if poll!(Box::pin(part(&mut dense, 100))).is_pending() {
                    left.push(dense);
                }
            }
            all = left;
            assert!(before - all.len() <= 8, "{} at once", before - all.len());
            tokio::task::yield_now().await;
            looks += 1;
        }
        assert!(looks > 100 / 8);
    }
}

//! What was read of a connection of HTTP/2 and has many header fields, until its turn.
//!
//! A byte of a header block may name a field once more, and h2 decodes what it gets at once: of 16 KiB that was a millisecond
//! and a half, on each of thousands of connections, before a request of another address. So they wait in the line of the
//! address before h2 has them, and h2 gets them in parts.

use std::io;
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
    /// The share of the address; none at listeners that are not for everybody.
    share: Option<Arc<Budget>>,
    /// The place of the next part in line.
    line: BoxFuture<'static, ()>,
    /// What is held of the share for all of them.
    held: Option<Drawn>,
}

impl Dense {
    /// What was read, with so many fields, if it has to wait.
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
            line: line(share.clone()),
            held: share.as_ref().map(|share| share.hold(read.len() as u64)),
            share,
        })
    }

    /// Whether this is more than each connection may have, and the share holds more than it may.
    pub(super) fn is_too_much(&self, may_have: usize) -> bool {
        self.bytes.len() > may_have && self.held.as_ref().is_some_and(Drawn::is_too_much)
    }

    /// Begins to wait: whatever else there is to be said of the read is said first.
    pub(super) fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.as_mut().poll(cx).is_ready() {
            self.line = Box::pin(std::future::ready(()));
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
        ready!(self.line.as_mut().poll(cx));
        let (_, rest) = self.bytes.split_at(self.given);
        let (part, rest) = rest.split_at(rest.len().min(PART).min(buf.remaining()));
        buf.put_slice(part);
        self.given += part.len();
        if rest.is_empty() {
            return Poll::Ready(true);
        }
        self.line = line(self.share.clone());
        Poll::Ready(false)
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
/// Bytes of a part, whose fields take two tenths of a millisecond at most.
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
        let mut dense = Dense::of(&all, MANY, || Some(Arc::clone(&share))).unwrap();
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

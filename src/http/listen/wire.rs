//! Socket with a lingering close, between hyper and the network.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A socket that is closed in two steps.
///
/// If a socket is closed while the peer is still sending, the kernel sends a reset, which can overtake
/// the response (413, 408). After the write side is shut down, input is therefore discarded for a
/// moment; none of it reaches the parser.
pub(crate) struct Wire<S> {
    /// Socket or TLS stream.
    io: TokioIo<S>,
    /// Deadline of the lingering close; set when the write side is shut down.
    linger: Option<Pin<Box<Sleep>>>,
    /// Bytes discarded so far.
    discarded: usize,
}

impl<S> Wire<S> {
    /// Wraps a connected stream.
    pub(crate) fn new(stream: S) -> Self {
        Self {
            io: TokioIo::new(stream),
            linger: None,
            discarded: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> Wire<S> {
    /// Discards input until the peer closes, the time is over or the limit is reached.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [MaybeUninit::uninit(); DISCARD_CHUNK];
        let step = self.discarded + DISCARD_STEP;
        while self.discarded < DISCARD_MAX {
            if self.discarded >= step {
                // Others go first: the peer may send as fast as this is done.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(self.io.inner_mut()).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.discarded += buf.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    return match &mut self.linger {
                        Some(sleep) => sleep.as_mut().poll(cx),
                        None => Poll::Ready(()),
                    };
                }
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Read for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
        }
        self.poll_discard(cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

/// Duration of a lingering close: longer than any round trip.
const LINGER: Duration = Duration::from_secs(1);
/// Limit of discarded bytes, beyond which the peer gets a reset.
const DISCARD_MAX: usize = 16 << 20;
/// Bytes discarded at a time: some ten microseconds.
const DISCARD_STEP: usize = 32 << 10;
/// Size of the buffer, which lies on the stack of the worker and not in the connection.
const DISCARD_CHUNK: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncWriteExt;

    use super::*;

    /// A peer that sent as fast as its input was discarded kept a worker for a millisecond at a time.
    #[tokio::test]
    async fn input_is_discarded_in_steps_and_up_to_a_limit() {
        let (stream, mut peer) = tokio::io::duplex(DISCARD_MAX + DISCARD_STEP);
        let all = vec![0; DISCARD_MAX + DISCARD_STEP];
        peer.write_all(&all).await.unwrap();
        let mut wire = Wire::new(stream);
        let mut context = Context::from_waker(Waker::noop());
        // The runtime's own limit is not what this is about.
        tokio::task::unconstrained(async {
            let mut steps = 0;
            while Pin::new(&mut wire).poll_shutdown(&mut context).is_pending() {
                steps += 1;
                assert_eq!(wire.discarded, steps * DISCARD_STEP);
            }
            assert_eq!(steps, DISCARD_MAX / DISCARD_STEP - 1);
            assert_eq!(wire.discarded, DISCARD_MAX);
        })
        .await;
    }

    #[tokio::test]
    async fn a_peer_that_closes_is_discarded_to_its_end() {
        let (stream, mut peer) = tokio::io::duplex(1 << 20);
        peer.write_all(&vec![0; 3 * DISCARD_STEP]).await.unwrap();
        drop(peer);
        let mut wire = Wire::new(stream);
        // Each step wakes its task for the next one.
        let closed = std::future::poll_fn(|cx| Pin::new(&mut wire).poll_shutdown(cx));
        let closed = tokio::time::timeout(LINGER * 5, closed).await;
        closed.expect("nothing woke it").unwrap();
        assert_eq!(wire.discarded, 3 * DISCARD_STEP);
    }
}

//! One connection's bytes, between hyper and the socket.
//!
//! Adds a lingering close to what `TokioIo` does; parses nothing.

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
/// Closing a socket whose peer is still sending makes the kernel send a reset, and a reset can
/// overtake the answer that explains why we closed (413, 408). So after our side is shut, what
/// the peer still sends is read and thrown away for a moment; nothing of it reaches the parser.
pub(crate) struct Wire<S> {
    /// The socket or TLS stream.
    io: TokioIo<S>,
    /// Whether our side is shut, and until when we listen to theirs.
    linger: Option<Pin<Box<Sleep>>>,
    /// How much was thrown away.
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
    /// Reads and forgets until the peer closes, the time is over or the bound is reached.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [MaybeUninit::uninit(); DISCARD_CHUNK];
        while self.discarded < DISCARD_MAX {
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

/// Long enough for an answer to cross the world, short enough to hold no connection for long.
const LINGER: Duration = Duration::from_secs(1);
/// A peer that sends more than this after our answer gets its reset.
const DISCARD_MAX: usize = 16 << 20;
/// On the stack of the worker, not in the connection.
const DISCARD_CHUNK: usize = 8 << 10;

//! A socket that is read and written in steps, between which others go first.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::others_first::others_first;

/// A socket of a connection of HTTP/2.
///
/// One task reads it for all of its streams, and writes it for them: as long as the socket has more, or takes more. Of short
/// frames that was a megabyte at a time, some ten thousand frames, and milliseconds in which nobody else had the worker.
pub(crate) struct Stepped<S> {
    io: S,
    reads: Steps,
    writes: Steps,
}

/// What was done without others in between.
#[derive(Default)]
struct Steps {
    bytes: usize,
    line: Option<BoxFuture<'static, ()>>,
}

impl<S> Stepped<S> {
    /// Wraps a connected socket.
    pub(crate) fn new(io: S) -> Self {
        Self {
            io,
            reads: Steps::default(),
            writes: Steps::default(),
        }
    }
}

impl Steps {
    /// Lets others go first behind a step.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.bytes >= STEP {
            self.bytes = 0;
            self.line = Some(Box::pin(others_first()));
        }
        if let Some(line) = &mut self.line {
            ready!(line.as_mut().poll(cx));
            self.line = None;
        }
        Poll::Ready(())
    }

    /// Notes what was done; nothing if the task rests.
    fn note(&mut self, bytes: Option<usize>) {
        self.bytes = bytes.map_or(0, |bytes| self.bytes + bytes);
    }

    fn written(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.note(match &result {
            Poll::Ready(Ok(bytes)) => Some(*bytes),
            Poll::Ready(Err(_)) => Some(0),
            Poll::Pending => None,
        });
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stepped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.reads.poll(cx));
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        self.reads.note(result.is_ready().then_some(read));
        if result.is_pending() {
            // h2 reads until there is nothing before it writes, and writes hardly ever wait: the task has rested since what
            // it wrote before.
            self.writes.bytes = 0;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stepped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.writes.poll(cx));
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.writes.written(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.writes.poll(cx));
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.writes.written(result)
    }
}

/// Bytes after which others go first: some hundred short frames, which take some tenths of a millisecond.
const STEP: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, repeat, sink};

    use super::*;

    /// Polls it once; the bytes that were read or written in that time.
    async fn in_one_poll(mut work: impl AsyncFnMut(&mut Stepped<Endless>)) -> usize {
        let mut socket = Stepped::new(Endless::default());
        {
            let mut work = Box::pin(work(&mut socket));
            assert!(futures_util::poll!(&mut work).is_pending(), "it had no end");
        }
        socket.io.0
    }

    /// A socket that always has more and takes more.
    #[derive(Default)]
    struct Endless(usize);

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.0 += buf.remaining();
            Pin::new(&mut repeat(0)).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Endless {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0 += buf.len();
            Pin::new(&mut sink()).poll_write(cx, buf)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let length = bufs.iter().map(|part| part.len()).sum();
            self.0 += length;
            Poll::Ready(Ok(length))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }
    }

    /// A connection with a thousand streams had the worker for some milliseconds at a time.
    #[tokio::test]
    async fn others_go_first_behind_each_step() {
        let mut part = vec![0; 8 << 10];
        let read = in_one_poll(async |socket| while socket.read(&mut part).await.is_ok() {});
        assert_eq!(read.await, STEP);
        let written =
            in_one_poll(async |socket| while socket.write(&[0; 4 << 10]).await.is_ok() {});
        assert_eq!(written.await, STEP);
        let parts = [
            io::IoSlice::new(&[0; 2 << 10]),
            io::IoSlice::new(&[0; 2 << 10]),
        ];
        let written = in_one_poll(
            async |socket| {
                while socket.write_vectored(&parts).await.is_ok() {}
            },
        );
        assert_eq!(written.await, STEP);
        // What is written between rests is no step.
        let (own, mut peer) = tokio::io::duplex(1 << 20);
        let mut socket = Stepped::new(own);
        for _ in 0..3 * STEP / 1024 {
            assert!(futures_util::poll!(Box::pin(socket.read_u8())).is_pending());
            let written = Box::pin(socket.write_all(&[0; 1024]));
            assert!(
                futures_util::poll!(written).is_ready(),
                "it waits for others"
            );
        }
        peer.read_exact(&mut vec![0; 3 * STEP]).await.unwrap();
        // It goes on behind them.
        let mut socket = Stepped::new(Endless::default());
        let mut all = vec![0; 10 * STEP];
        socket.read_exact(&mut all).await.unwrap();
        socket.write_all(&all).await.unwrap();
        assert!(socket.io.0 >= 20 * STEP);
    }
}

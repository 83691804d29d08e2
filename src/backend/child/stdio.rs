//! A stdio server as the gateway sees it: lines out, lines in, and an end that leaves nothing.
//!
//! The only user of `tokio::process`. Not here: what the lines mean (`legacy`), and what goes on
//! below the guard (`guard`).

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    path::PathBuf,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
    task::coop,
    time::{Duration, Instant, timeout, timeout_at},
};

use super::launcher::Launcher;
use super::stderr::{Stderr, Tail};
use crate::backend::{guard::STAGE, sandbox::Lease};
use crate::declare::{Launch, Limits};

/// What a child did.
#[derive(Debug)]
pub(crate) enum Happened {
    /// It wrote this line, given without its end.
    Line(Bytes),
    /// It writes a line above the limit; nothing of its stdout is read from now on.
    TooLong,
    /// It closed stdout; told once.
    Closed,
    /// It ended, and everything below it; told again whenever asked.
    Exited(Exit),
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit code; 127 when it could not be started.
    pub(crate) code: Option<i32>,
    /// The signal that killed it.
    pub(crate) signal: Option<i32>,
    /// The newest bytes of its stderr.
    pub(crate) stderr_tail: Vec<u8>,
}

/// A running server behind its guard, owned by one task.
///
/// To be ended by [`Child::stop`] or [`Child::kill`]; dropping it kills it too, unattended.
pub(crate) struct Child {
    guard: tokio::process::Child,
    /// None once closed, by us or by the child.
    pub(crate) stdin: Option<ChildStdin>,
    /// What was for the child cannot reach it any more, and nobody has been told yet.
    is_deaf: bool,
    /// None once it ended.
    stdout: Option<ChildStdout>,
    /// None once it ended.
    stderr: Option<ChildStderr>,
    /// What the child has not taken yet.
    queue: BytesMut,
    /// What was read and not yet given out.
    read: BytesMut,
    /// Bytes of `read` that are known to have no line end.
    scanned: usize,
    /// Bytes to make room for before a read.
    room: usize,
    /// What is kept and logged of stderr.
    errors: Stderr,
    /// Bytes of one line.
    limit: usize,
    /// Where in its life stdout is.
    output: Output,
    /// How the guard ended.
    exit: Option<ExitStatus>,
    /// What the guard removes, and we if it could not.
    private: Option<PathBuf>,
    /// The uid that all below the guard have.
    lease: Option<Lease>,
}

/// Where in its life the stdout of a child is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    /// Lines are given out.
    Lines,
    /// A line was too long: what comes is thrown away.
    Discarded,
    /// The end was told.
    Closed,
}

impl Child {
    /// Starts the server of `launch`; `label` names its directory and its log lines.
    ///
    /// That the command does not exist shows later, as an exit with code 127.
    pub(crate) fn spawn(
        launcher: &Launcher,
        label: &str,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<Self> {
        let (orders, lease) = launcher.orders(label, launch, limits)?;
        let guard = Command::new(&launcher.program)
            .arg0("lockgate")
            .args([STAGE, &std::process::id().to_string()])
            .env_clear()
            // The guard's own: without it the allocator begins with an arena of huge pages.
            .env("MIMALLOC_DISALLOW_ARENA_ALLOC", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The Ctrl-C of a terminal is the gateway's, which stops its children in order.
            .process_group(0)
            .spawn();
        let Ok(mut guard) = guard else {
            _ = orders.private.map(std::fs::remove_dir);
            _ = orders.cage.group.map(std::fs::remove_dir);
            _ = lease.map(Lease::end);
            return Err(guard.expect_err("it is none"));
        };
        let mut child = Self {
            stdin: guard.stdin.take(),
            is_deaf: false,
            stdout: guard.stdout.take(),
            stderr: guard.stderr.take(),
            guard,
            queue: BytesMut::from(&orders.encode()[..]),
            read: BytesMut::new(),
            scanned: 0,
            room: CHUNK,
            errors: Stderr::new(label.to_owned(), size(limits.stderr)),
            limit: size(limits.line),
            output: Output::Lines,
            exit: None,
            private: orders.private,
            lease,
        };
        child.try_flush();
        Ok(child)
    }

    /// The process number of the guard, until it is reaped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.guard.id()
    }

    /// The newest bytes of its stderr.
    pub(crate) fn stderr(&self) -> &Tail {
        self.errors.tail()
    }

    /// What goes to the child's stdin; append whole lines only.
    pub(crate) fn out(&mut self) -> &mut BytesMut {
        &mut self.queue
    }

    /// Bytes that the child has not taken yet.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Writes what the pipe takes right now, without waiting for the next poll.
    pub(crate) fn try_flush(&mut self) {
        while let Some(stdin) = &self.stdin
            && !self.queue.is_empty()
        {
            // Past tokio, which would note a waker here.
            match rustix::io::write(stdin.as_fd(), &self.queue) {
                Ok(count) => self.queue.advance(count),
                Err(rustix::io::Errno::INTR) => {}
                // The poll that follows waits for room.
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.deafened(),
            }
        }
        self.release_queue();
    }

    /// Waits for what the child does next, and moves its streams meanwhile; cancel-safe.
    pub(crate) async fn next(&mut self) -> Happened {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for the end of a child that nobody listens to yet: its stderr is drained, its
    /// stdout stays in the pipe.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Exit> {
        self.poll_stdin(cx);
        self.poll_stderr(cx);
        let status = ready!(self.poll_guard(cx));
        self.exit = Some(status);
        Poll::Ready(self.exit(status))
    }

    fn poll_guard(&mut self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        if let Some(status) = self.exit {
            return Poll::Ready(status);
        }
        let status = ready!(pin!(self.guard.wait()).poll(cx));
        Poll::Ready(status.unwrap_or(ExitStatus::from_raw(libc::SIGKILL)))
    }

    /// Ends the child politely: end of stdin, SIGTERM, and at last SIGKILL of all below.
    pub(crate) async fn stop(mut self, clocks: [Duration; 2]) -> Exit {
        let deadline = Instant::now() + clocks[0];
        if let Ok(Some(exit)) = timeout_at(deadline, self.flushed()).await {
            return exit;
        }
        self.stdin = None;
        if let Ok(exit) = timeout_at(deadline, self.ended()).await {
            return exit;
        }
        self.signal(Signal::USR1);
        if let Ok(exit) = timeout(clocks[1], self.ended()).await {
            return exit;
        }
        self.kill().await
    }

    /// Ends the child, and everything below it, at once.
    pub(crate) async fn kill(mut self) -> Exit {
        // A guard that still waits for its orders ends by this.
        self.stdin = None;
        self.signal(Signal::TERM);
        if let Ok(exit) = timeout(GUARD_ANSWERS, self.ended()).await {
            return exit;
        }
        // Only a guard that does not answer: what it has not ended yet would escape.
        self.signal(Signal::KILL);
        let exit = timeout(GUARD_ANSWERS, self.ended()).await;
        if let Some(dir) = self.private.take() {
            _ = tokio::task::spawn_blocking(move || Launcher::discard(&dir)).await;
        }
        exit.unwrap_or_else(|_| self.exit(ExitStatus::from_raw(libc::SIGKILL)))
    }

    /// Waits until the queue is written, or the child's end.
    async fn flushed(&mut self) -> Option<Exit> {
        poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(Happened::Exited(exit)) => Poll::Ready(Some(exit)),
            _ if self.queue.is_empty() => Poll::Ready(None),
            Poll::Ready(_) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Waits for the child's end; what it still writes is thrown away.
    async fn ended(&mut self) -> Exit {
        loop {
            if let Happened::Exited(exit) = self.next().await {
                return exit;
            }
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        loop {
            // A child that floods must not keep the others of this worker waiting.
            let turn = ready!(coop::poll_proceed(cx));
            self.poll_stdin(cx);
            if let Some(happened) = self.take_line() {
                turn.made_progress();
                return Poll::Ready(happened);
            }
            self.poll_stderr(cx);
            match self.poll_stdout(cx) {
                Poll::Ready(()) => turn.made_progress(),
                // Not before all that it has said.
                Poll::Pending if std::mem::take(&mut self.is_deaf) => {
                    turn.made_progress();
                    return Poll::Ready(Happened::Closed);
                }
                Poll::Pending => {
                    let status = ready!(self.poll_guard(cx));
                    turn.made_progress();
                    if self.exit.is_none() {
                        self.exit = Some(status);
                        // A guard that was killed has left something behind.
                        if status.code().is_some() {
                            _ = self.lease.take().map(Lease::end);
                            Launcher::look_for(self.private.as_deref());
                        }
                        self.drain();
                    } else {
                        return Poll::Ready(Happened::Exited(self.exit(status)));
                    }
                }
            }
        }
    }

    /// Writes as much of the queue as the pipe takes.
    fn poll_stdin(&mut self, cx: &mut Context<'_>) {
        while !self.queue.is_empty() {
            let Some(stdin) = &mut self.stdin else { break };
            match Pin::new(stdin).poll_write(cx, &self.queue) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => self.queue.advance(count),
                Poll::Ready(Err(_)) => self.deafened(),
            }
        }
        self.release_queue();
    }

    /// EPIPE: the child closed its stdin, and what it should have answered is lost (P136).
    fn deafened(&mut self) {
        self.stdin = None;
        self.is_deaf = true;
    }

    /// Drops what nobody will read, and keeps no big buffer for an idle child.
    fn release_queue(&mut self) {
        if self.stdin.is_none() || (self.queue.is_empty() && self.queue.capacity() > KEPT) {
            self.queue = BytesMut::new();
        }
    }

    /// The next complete line, or what takes its place.
    fn take_line(&mut self) -> Option<Happened> {
        if self.output == Output::Discarded {
            self.read.clear();
        }
        let unseen = &self.read[self.scanned..];
        let end = memchr::memchr(b'\n', unseen).map(|at| self.scanned + at);
        if end.unwrap_or(self.read.len()) > self.limit {
            self.output = Output::Discarded;
            (self.read, self.scanned) = (BytesMut::new(), 0);
            return Some(Happened::TooLong);
        }
        if let Some(end) = end {
            self.scanned = 0;
            return Some(Happened::Line(self.cut(end, 1)));
        }
        self.scanned = self.read.len();
        if self.stdout.is_some() || self.output == Output::Closed {
            return None;
        }
        if !self.read.is_empty() {
            // The last line of a child that ended in the middle of it.
            self.scanned = 0;
            return Some(Happened::Line(self.cut(self.read.len(), 0)));
        }
        self.output = Output::Closed;
        Some(Happened::Closed)
    }

    /// Takes a line of `end` bytes, and `newline` bytes behind it, out of what was read.
    fn cut(&mut self, end: usize, newline: usize) -> Bytes {
        let length = end - usize::from(self.read[..end].ends_with(b"\r"));
        if length < self.read.capacity() / 2 {
            // A small line must not hold on to a big buffer, wherever it is kept.
            let line = Bytes::copy_from_slice(&self.read[..length]);
            self.read.advance(end + newline);
            return line;
        }
        let mut line = self.read.split_to(end + newline);
        line.truncate(length);
        line.freeze()
    }

    /// Reads once; pending also when nothing can come any more.
    fn poll_stdout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stdout) = &mut self.stdout else {
            return Poll::Pending;
        };
        if self.read.capacity() - self.read.len() < self.room {
            // Reuses what was given out, or doubles: a big line is moved a few times only.
            self.read.reserve(self.read.len().max(self.room));
        }
        let full = self.read.capacity();
        let result = pin!(stdout.read_buf(&mut self.read)).poll(cx);
        match result {
            Poll::Ready(Ok(1..)) => {
                if self.read.len() == full {
                    // It had more to say than there was room for: ask less often.
                    self.room = PIPE;
                }
                Poll::Ready(())
            }
            Poll::Ready(_) => {
                self.stdout = None;
                Poll::Ready(())
            }
            Poll::Pending => {
                if self.read.is_empty() {
                    (self.read, self.room) = (BytesMut::new(), CHUNK);
                }
                Poll::Pending
            }
        }
    }

    /// Reads what there is, within bounds.
    fn poll_stderr(&mut self, cx: &mut Context<'_>) {
        let mut room = [const { MaybeUninit::<u8>::uninit() }; CHUNK * 4];
        for _ in 0..READS {
            let Some(stderr) = &mut self.stderr else {
                return;
            };
            let mut buffer = ReadBuf::uninit(&mut room);
            match Pin::new(stderr).poll_read(cx, &mut buffer) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.errors.take(buffer.filled());
                }
                Poll::Ready(_) => {
                    self.errors.finish();
                    self.stderr = None;
                }
            }
        }
        // There is more, and no waker was noted for it.
        cx.waker().wake_by_ref();
    }

    /// Takes what is left in the pipes after the end of everything that wrote to them.
    ///
    /// Past tokio, which may not have heard of it yet. Bounded, should a process have escaped.
    fn drain(&mut self) {
        let mut room = [0; CHUNK];
        if let Some(stdout) = self.stdout.take() {
            for _ in 0..DRAINED {
                match rustix::io::read(stdout.as_fd(), &mut room) {
                    Ok(count @ 1..) => self.read.extend_from_slice(&room[..count]),
                    _ => break,
                }
            }
        }
        if let Some(stderr) = self.stderr.take() {
            for _ in 0..DRAINED {
                match rustix::io::read(stderr.as_fd(), &mut room) {
                    Ok(count @ 1..) => self.errors.take(&room[..count]),
                    _ => break,
                }
            }
            self.errors.finish();
        }
    }

    /// How it ended, read off the guard, which says it as a shell does.
    fn exit(&self, status: ExitStatus) -> Exit {
        let (code, signal) = match status.code() {
            Some(code @ 129..=192) => (None, Some(code - 128)),
            code => (code, status.signal()),
        };
        Exit {
            code,
            signal,
            stderr_tail: self.errors.tail().bytes(),
        }
    }

    /// Signals the guard; its number is its own for as long as it is not reaped.
    fn signal(&self, signal: Signal) {
        let pid = self
            .guard
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The guard ends the tree and removes the directory; tokio reaps the guard.
        self.signal(Signal::TERM);
    }
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// What an empty queue may keep: most messages are smaller, a guard's orders are not.
const KEPT: usize = 512;
/// What is read at first: most messages are smaller.
const CHUNK: usize = 4 << 10;
/// What a pipe holds by default.
const PIPE: usize = 64 << 10;
/// Reads of stderr in one poll: 256 KiB.
const READS: usize = 16;

/// Reads of [`CHUNK`] bytes at a child's end: the most that a pipe can hold (1 MiB).
const DRAINED: usize = 256;

/// One that takes longer is stopped or starved.
const GUARD_ANSWERS: Duration = Duration::from_secs(5);

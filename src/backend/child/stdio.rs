//! Stdio of a child: lines to its stdin, and lines from its stdout until its end.
//!
//! Not here: the fork of its guard (`zygote`), its stop and its kill (`stop`), the meaning of lines
//! (`dialect`), and the processes below the guard (`guard`).

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    mem::MaybeUninit,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    path::PathBuf,
    pin::{Pin, pin},
    process::ExitStatus,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::unix::pipe::{Receiver, Sender},
    task::coop,
    time::Instant,
    try_join,
};

use super::held::Held;
use super::launcher::Launcher;
use super::lines::{CHUNK, Lines, Taken};
use super::stderr::{Stderr, Tail};
use super::tokens::PrivateFiles;
use super::zygote::Guard;
use crate::backend::dialect::{IdBlocks, Translator};
use crate::backend::guard::NO_PROCESS;
use crate::backend::sandbox::UidLease;
use crate::base::budget::{Budget, LARGE_STEP};
use crate::declare::{Launch, Limits};

/// Event of a child.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// A line of stdout, without its line end.
    Line(Bytes),
    /// A line of stdout that was for the translator alone. Its owner counts it as any other: a child must not
    /// keep a processor busy with such lines.
    Translated,
    /// A line of stdout above the limit; the rest of stdout is discarded.
    TooLong,
    /// End of stdout; reported once.
    Closed,
    /// End of the child and of every process below it; reported again on each call.
    Exited(Exit),
}

/// End of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Exit code; 127 if the command could not be started.
    pub(crate) code: Option<i32>,
    /// Signal that killed it.
    pub(crate) signal: Option<i32>,
    /// Whether the machine had no process left for the server.
    pub(crate) is_shortage: bool,
    /// Last bytes of its stderr.
    pub(crate) stderr_tail: Vec<u8>,
}

impl Exit {
    /// The exit status in words.
    pub(crate) fn in_words(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        }
    }
}

/// A running server behind its guard, owned by one task.
///
/// Ends by [`Child::stop`] or [`Child::kill`]; a dropped child is killed without waiting.
pub(crate) struct Child {
    pub(super) guard: Guard,
    /// None once closed by either side.
    pub(crate) stdin: Option<Sender>,
    /// Whether the end of what it can be told, or says, is not reported yet.
    is_end_due: bool,
    /// None once it has ended.
    pub(super) stdout: Option<Receiver>,
    /// None once it has ended.
    pub(super) stderr: Option<Receiver>,
    /// Bytes not yet written to stdin.
    pub(super) queue: BytesMut,
    /// Bytes written to stdin.
    written: u64,
    /// Bytes read from stdout and not yet returned.
    lines: Lines,
    /// Lines that are returned before them.
    ahead: VecDeque<Bytes>,
    /// Until its owner can speak to it directly.
    pub(super) translator: Option<Box<Translator>>,
    /// Kept and logged part of stderr.
    errors: Stderr,
    /// What its pipes hold here; none if it is not counted.
    pub(super) held: Option<Held>,
    /// Whether it has waited in the line of its tenant for its next reads.
    pub(super) had_turn: bool,
    /// Exit status of the guard.
    exit: Option<ExitStatus>,
    /// Private directory, removed by the guard, or by the gateway if the guard failed.
    pub(super) private: Option<PathBuf>,
    /// Uid of all processes below the guard.
    lease: Option<UidLease>,
}

impl Child {
    /// Starts the server of `launch` for a tenant; `name` and the tenant's are the label of its log lines.
    ///
    /// A command that does not exist is reported later, as an exit with code 127.
    pub(crate) async fn spawn(
        launcher: &Launcher,
        (tenant, name): (&str, &str),
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<Self> {
        launcher.check_paths(tenant, launch).await?;
        // Before the request, whose directories would be left behind by a start that is given up here. A guard
        // that gets no request ends.
        let decided = launcher.restrictions(launch, limits);
        let (started, decided) = try_join!(start(launcher), decided)?;
        let Started {
            mut guard,
            stdin,
            stdout,
            stderr,
        } = started;
        let (restrictions, places) = decided;
        let lease = launcher.sandbox.lease(tenant, places).await?;
        let requested = launcher.requested(launch, limits, lease, restrictions);
        let (made, request, lease) = requested.await?;
        made.keep();
        let label = format!("{tenant}-{name}");
        guard.removes(request.restrictions.group.clone());
        let mut child = Self {
            stdin: Some(stdin),
            is_end_due: false,
            stdout: Some(stdout),
            stderr: Some(stderr),
            guard,
            queue: BytesMut::from(&request.encode()[..]),
            written: 0,
            lines: Lines::new(size(limits.line)),
            ahead: VecDeque::new(),
            translator: None,
            errors: Stderr::new(label, size(limits.stderr)).of_tenant(tenant),
            held: None,
            had_turn: false,
            exit: None,
            private: request.private,
            lease,
        };
        child.try_flush();
        Ok(child)
    }

    /// Its private directory, where its secrets are rewritten.
    pub(crate) fn private_files(&self) -> Option<PrivateFiles> {
        Some(PrivateFiles {
            dir: self.private.clone()?,
            uid: self.lease.as_ref().map(|lease| lease.uid),
        })
    }

    /// Counts what its pipes hold in this process against a share from now on.
    pub(crate) fn count_against(&mut self, share: &Arc<Budget>) {
        self.held = Some(Held::new(share));
    }

    /// The share that it is counted against.
    pub(crate) fn share(&self) -> Option<&Arc<Budget>> {
        self.held.as_ref().map(Held::share)
    }

    /// Process id of the guard, until it is reaped.
    pub(crate) fn pid(&self) -> Option<u32> {
        let id = self.guard.id()?;
        u32::try_from(id.as_raw_pid()).ok()
    }

    /// Last bytes of its stderr.
    pub(crate) fn stderr(&self) -> &Tail {
        self.errors.tail()
    }

    /// Queue of the child's stdin, for whole lines only.
    pub(crate) fn out(&mut self) -> &mut BytesMut {
        match &mut self.translator {
            Some(translator) => translator.inbox(),
            None => &mut self.queue,
        }
    }

    /// Translates what its owner and the child say to each other from now on.
    pub(crate) fn translate_by(&mut self, translator: Translator) {
        self.translator = Some(Box::new(translator));
    }

    /// The callers of its sessions are known by the ids of their calls from now on.
    pub(crate) fn know_callers(&mut self, ids: &Arc<IdBlocks>) {
        if let Some(translator) = &mut self.translator {
            translator.know_callers(ids);
        }
    }

    /// Whether it is a server without sessions.
    pub(crate) fn is_stateless(&self) -> bool {
        let translator = self.translator.as_ref();
        translator.is_some_and(|translator| translator.has_begun())
    }

    /// Returns lines that were read before those that follow.
    pub(crate) fn unread(&mut self, lines: impl IntoIterator<Item = Bytes>) {
        self.ahead.extend(lines);
    }

    /// Takes arrays of messages apart from now on: each item is a line.
    pub(crate) fn split_arrays(&mut self) {
        self.lines.split_arrays();
    }

    /// Number of queued bytes.
    pub(crate) fn queued(&self) -> usize {
        let translator = self.translator.as_ref();
        self.queue.len() + translator.map_or(0, |translator| translator.queued())
    }

    /// Number of bytes that were written to it: with a full queue, they become more only as it reads.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that its owner and it have here, and that neither has taken yet.
    fn held(&self) -> usize {
        self.lines.len() + self.queued() + self.kept()
    }

    /// Bytes of calls that the translator keeps until they are answered.
    fn kept(&self) -> usize {
        let translator = self.translator.as_ref();
        translator.map_or(0, |translator| translator.kept())
    }

    /// Writes as much as the pipe takes now, ahead of the next poll.
    pub(crate) fn try_flush(&mut self) {
        self.translate();
        while let Some(stdin) = &self.stdin
            && !self.queue.is_empty()
        {
            // Bypasses tokio, which would register a waker.
            match rustix::io::write(stdin.as_fd(), &self.queue) {
                Ok(count) => self.wrote(count),
                Err(rustix::io::Errno::INTR) => {}
                // The next poll waits for room.
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.stdin_lost(),
            }
        }
        self.release_queue();
    }

    /// Translates the lines of its owner.
    fn translate(&mut self) {
        if let Some(translator) = &mut self.translator {
            translator.flush(&mut self.queue, &mut self.ahead, Instant::now());
            if translator.is_over() {
                self.translator = None;
            }
        }
    }

    /// Translates a large line in its turn; returns whether there was one.
    pub(super) async fn translate_large(&mut self) -> bool {
        let Some(translator) = self.translator.as_mut().filter(|one| one.has_large()) else {
            return false;
        };
        let turn = Box::pin(translator.turn()).await;
        translator.large(turn, &mut self.queue, &mut self.ahead, Instant::now());
        true
    }

    /// Whether a large line waits to be translated.
    pub(crate) fn has_large(&self) -> bool {
        let translator = self.translator.as_ref();
        translator.is_some_and(|translator| translator.has_large())
    }

    /// Waits for the next event and serves the pipes meanwhile; cancel-safe.
    ///
    /// Its stdout and stderr are read in the turn of its tenant, where others of that stand in line: what a thousand
    /// children print stays in their pipes, and neither they nor their sessions have work until then.
    pub(crate) async fn next(&mut self) -> ChildEvent {
        loop {
            if let Some(event) = poll_fn(|cx| self.poll_next(cx)).await {
                return event;
            }
            // Neither turn is kept until the next call: one that is had and not used would hold up the line.
            if self.translate_large().await {
                continue;
            }
            // Once for each read: a session whose requests come all the time would be sent back for ever.
            self.had_turn = true;
            self.others_first().await;
        }
    }

    /// The next event of its stdout if it was read already.
    pub(crate) fn next_ready(&mut self) -> Option<ChildEvent> {
        // The lines of a translator may lead to lines for the child, which `next` writes.
        if self.translator.is_some() {
            return None;
        }
        self.take_line()
    }

    /// Discards its output from now on.
    pub(super) fn discard_output(&mut self) {
        self.lines.discard();
        self.ahead.clear();
    }

    /// Its stdout is not read for a while: from then on it is read in small pieces.
    pub(crate) fn slow_down(&mut self) {
        self.lines.slow_down();
    }

    /// Waits for the end of a warm child: its stderr is drained, its stdout stays in the pipe. None after a read of
    /// stderr: the tasks of others go first then.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Exit>> {
        self.poll_stdin(cx);
        let has_read = self.poll_stderr(cx);
        match self.poll_guard(cx) {
            Poll::Ready(status) => {
                self.exit = Some(status);
                Poll::Ready(Some(self.exit(status)))
            }
            Poll::Pending if has_read => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_guard(&mut self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        if let Some(status) = self.exit {
            return Poll::Ready(status);
        }
        let status = ready!(self.guard.poll_end(cx));
        if was_killed(status) {
            // Or it has given up, and ended itself.
            let child = self.errors.label();
            tracing::warn!(
                child,
                "the guard of a child was killed: processes of the child may be left"
            );
        }
        // It has the files with the secrets, and another look for leftovers may be long in coming. A guard without
        // descriptors has none to remove it by.
        let is_left = was_killed(status) || is_shortage(status);
        let left = self.private.take_if(|_| is_left);
        self.guard.clear(left);
        Poll::Ready(status)
    }

    /// The next event; none if a large line has to wait to be translated, or the next reads in line.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<ChildEvent>> {
        loop {
            // A child with much output must not starve the others of this worker.
            let turn = ready!(coop::poll_proceed(cx));
            self.poll_stdin(cx);
            let event = self.take_line();
            if self.translator.is_some() {
                // Lines of the child may have led to lines for it.
                self.poll_stdin(cx);
            }
            if let Some(event) = event {
                turn.made_progress();
                return Poll::Ready(Some(event));
            }
            if self.has_large() {
                return Poll::Ready(None);
            }
            if self.has_to_wait() {
                return Poll::Ready(None);
            }
            self.poll_stderr(cx);
            let stdout = self.poll_stdout(cx);
            self.had_turn = false;
            match stdout {
                Poll::Ready(()) => turn.made_progress(),
                // After all of its output.
                Poll::Pending if std::mem::take(&mut self.is_end_due) => {
                    turn.made_progress();
                    return Poll::Ready(Some(self.closed()));
                }
                Poll::Pending => {
                    // Behind an answer that has come in time.
                    if let Some(translator) = &mut self.translator
                        && let Poll::Ready(refusal) = translator.poll_silence(cx)
                    {
                        turn.made_progress();
                        return Poll::Ready(Some(ChildEvent::Line(refusal)));
                    }
                    let status = ready!(self.poll_guard(cx));
                    turn.made_progress();
                    if self.exit.is_none() {
                        self.exit = Some(status);
                        // A killed guard may have left processes.
                        if !was_killed(status) {
                            _ = self.lease.take().map(UidLease::end);
                            Launcher::log_leftover(self.private.as_deref());
                        }
                        self.drain();
                    } else {
                        return Poll::Ready(Some(ChildEvent::Exited(self.exit(status))));
                    }
                }
            }
        }
    }

    /// Writes as much of the queue as the pipe takes.
    fn poll_stdin(&mut self, cx: &mut Context<'_>) {
        self.translate();
        while !self.queue.is_empty() {
            let Some(stdin) = &mut self.stdin else { break };
            match Pin::new(stdin).poll_write(cx, &self.queue) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => self.wrote(count),
                Poll::Ready(Err(_)) => self.stdin_lost(),
            }
        }
        self.release_queue();
    }

    /// The pipe has taken this many bytes of the queue.
    fn wrote(&mut self, count: usize) {
        self.queue.advance(count);
        self.written += count as u64;
    }

    /// EPIPE: the child closed its stdin, so that queued requests are lost.
    fn stdin_lost(&mut self) {
        self.stdin = None;
        self.is_end_due = true;
    }

    /// Drops an undeliverable queue, and the large buffer of an idle child.
    fn release_queue(&mut self) {
        if self.stdin.is_none() || (self.queue.is_empty() && self.queue.capacity() > KEPT) {
            self.queue = BytesMut::new();
        }
    }

    /// Next event of stdout: a complete line, one that is too long, or the end.
    fn take_line(&mut self) -> Option<ChildEvent> {
        if let Some(line) = self.ahead.pop_front() {
            return Some(ChildEvent::Line(line));
        }
        if self.has_large() {
            return None;
        }
        let line = match self.lines.take(self.stdout.is_none())? {
            Taken::Line(line) => line,
            Taken::TooLong => return Some(ChildEvent::TooLong),
            Taken::End => return Some(self.closed()),
        };
        let Some(translator) = &mut self.translator else {
            return Some(ChildEvent::Line(line));
        };
        translator.line(line, &mut self.queue, &mut self.ahead, Instant::now());
        if translator.has_large() {
            return None;
        }
        let first = self.ahead.pop_front();
        Some(first.map_or(ChildEvent::Translated, ChildEvent::Line))
    }

    /// The end of what it can be told, or says; before that, what its translator has kept for its owner.
    fn closed(&mut self) -> ChildEvent {
        let translator = self.translator.as_mut();
        match translator.and_then(|translator| translator.closed()) {
            Some(refusal) => {
                self.is_end_due = true;
                ChildEvent::Line(refusal)
            }
            None => ChildEvent::Closed,
        }
    }

    /// Whether there is something to read, and others of the tenant stand in line.
    fn has_to_wait(&self) -> bool {
        let is_crowded = self.held.as_ref().is_some_and(Held::is_one_of_many);
        let is_readable = |pipe: &Receiver| {
            let mut nobody = Context::from_waker(Waker::noop());
            pin!(pipe.readable()).poll(&mut nobody).is_ready()
        };
        let mut pipes = [&self.stdout, &self.stderr].into_iter().flatten();
        !self.had_turn && is_crowded && pipes.any(is_readable)
    }

    /// Reads once; stays pending after the end of stdout.
    fn poll_stdout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (bytes, kept) = (self.held(), self.kept());
        let Some(stdout) = &mut self.stdout else {
            return Poll::Pending;
        };
        if let Some(held) = &mut self.held {
            held.count(bytes);
            // Others wait for nothing: what is kept for a call goes with its answer.
            if self.lines.len() >= LARGE_STEP.max(kept) {
                ready!(held.poll_room(cx));
            }
        }
        let result = pin!(stdout.read_buf(self.lines.room())).poll(cx);
        match result {
            Poll::Ready(Ok(1..)) => {
                let is_one_of_many = self.held.as_ref().is_some_and(Held::is_one_of_many);
                self.lines.was_read(is_one_of_many);
                Poll::Ready(())
            }
            Poll::Ready(_) => {
                self.stdout = None;
                Poll::Ready(())
            }
            Poll::Pending => {
                self.lines.release();
                Poll::Pending
            }
        }
    }

    /// Lets tasks of other tenants go first, before more of its lines are handled.
    pub(crate) async fn others_first(&self) {
        if let Some(held) = &self.held {
            held.others_first().await;
        }
    }

    /// Reads stderr, at most [`READS`] times; returns whether there was something.
    fn poll_stderr(&mut self, cx: &mut Context<'_>) -> bool {
        let mut room = [const { MaybeUninit::<u8>::uninit() }; CHUNK * 4];
        let mut has_read = false;
        for _ in 0..READS {
            let Some(stderr) = &mut self.stderr else {
                return has_read;
            };
            let mut buffer = ReadBuf::uninit(&mut room);
            match Pin::new(stderr).poll_read(cx, &mut buffer) {
                Poll::Pending => return has_read,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.errors.take(buffer.filled());
                    has_read = true;
                }
                Poll::Ready(_) => {
                    self.errors.finish();
                    self.stderr = None;
                }
            }
        }
        // More is available, and no waker is registered for it.
        cx.waker().wake_by_ref();
        has_read
    }

    /// Reads the rest of the pipes after the end of every process that wrote to them.
    ///
    /// Bypasses tokio, which may not know of the rest yet. Bounded, in case a process has escaped.
    fn drain(&mut self) {
        let mut room = [0; CHUNK];
        if let Some(stdout) = self.stdout.take() {
            for _ in 0..DRAINED {
                match rustix::io::read(stdout.as_fd(), &mut room) {
                    Ok(count @ 1..) => self.lines.push(&room[..count]),
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

    /// The child's exit, from the guard's status, which follows the convention of shells.
    pub(super) fn exit(&self, status: ExitStatus) -> Exit {
        let (code, signal) = match status.code() {
            Some(code @ 129..=192) => (None, Some(code - 128)),
            code => (code, status.signal()),
        };
        Exit {
            code,
            signal,
            is_shortage: is_shortage(status),
            stderr_tail: self.errors.tail().bytes(),
        }
    }
}

/// Whether a guard was killed before it was done, or has given up.
fn was_killed(guard: ExitStatus) -> bool {
    guard.code().is_none() && !is_shortage(guard)
}

/// Whether a guard had no process for its server.
fn is_shortage(guard: ExitStatus) -> bool {
    guard.signal() == Some(NO_PROCESS.as_raw())
}

/// A guard that has no launch request yet, and its pipes.
struct Started {
    guard: Guard,
    stdin: Sender,
    stdout: Receiver,
    stderr: Receiver,
}

async fn start(launcher: &Launcher) -> io::Result<Started> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let [stdin, stdout, stderr] = [pipe()?, pipe()?, pipe()?];
    let zygote = Arc::clone(&launcher.zygote);
    Ok(Started {
        guard: zygote.fork([stdin.0, stdout.1, stderr.1]).await?,
        stdin: Sender::from_owned_fd(stdin.1)?,
        stdout: Receiver::from_owned_fd(stdout.0)?,
        stderr: Receiver::from_owned_fd(stderr.0)?,
    })
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Capacity that an empty queue keeps: more than most messages, less than a launch request.
const KEPT: usize = 512;
/// Reads of stderr in one poll: 32 KiB.
const READS: usize = 2;

/// Reads of [`CHUNK`] bytes at a child's end: the largest capacity of a pipe (1 MiB).
const DRAINED: usize = 256;

//! Stop of a child: end of stdin, SIGTERM, SIGKILL, and the waits between them; and the end of one that has no
//! input.
//!
//! The waits are `clocks.stop` of the server. The signals go to the guard: at SIGUSR1 it sends SIGTERM
//! to the server, at SIGTERM it kills every process below it (`guard::supervisor`).

use std::{future::poll_fn, os::unix::process::ExitStatusExt, process::ExitStatus, task::Poll};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::time::{Duration, Instant, sleep_until, timeout, timeout_at};

use super::{
    launcher::Launcher,
    stdio::{Child, ChildEvent, Exit},
    usage::below,
};

impl Child {
    /// Stops the child in steps: end of stdin, SIGTERM by the guard, then SIGKILL for every process
    /// below.
    pub(crate) async fn stop(mut self, clocks: [Duration; 2]) -> Exit {
        let deadline = Instant::now() + clocks[0];
        // Its lines are for nobody. Cut one by one, empty ones would keep a worker busy until the deadline.
        self.discard_output();
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

    /// Kills the child and every process below it.
    pub(crate) async fn kill(self) -> Exit {
        self.kill_within(GUARD_ANSWERS).await
    }

    /// The same with the time after which its guard is looked at.
    pub(super) async fn kill_within(mut self, answers: Duration) -> Exit {
        // A guard that still waits for its launch request ends at the end of stdin.
        self.stdin = None;
        self.signal(Signal::TERM);
        if let Ok(exit) = timeout(answers, self.ended()).await {
            return exit;
        }
        if self.is_gone_but_for_files() {
            // Its guard ends behind the last of them, and is reaped then.
            return Exit {
                code: None,
                signal: None,
                is_shortage: false,
                stderr_tail: self.stderr().bytes(),
            };
        }
        // Waited for below, so that nobody else removes it.
        let private = self.private.take();
        // Only a guard that does not react: processes below it would escape.
        self.signal(Signal::KILL);
        let exit = timeout(GUARD_ANSWERS, self.ended()).await;
        if let Some(dir) = private {
            _ = tokio::task::spawn_blocking(move || Launcher::discard(&dir)).await;
        }
        exit.unwrap_or_else(|_| self.exit(ExitStatus::from_raw(Signal::KILL.as_raw())))
    }

    /// Whether every process below the guard is gone, so that what it has left to do is to remove files: there may be
    /// very many.
    fn is_gone_but_for_files(&self) -> bool {
        // A guard that has not started the server yet has the pipe open itself.
        self.stdout.is_none() && self.pid().is_some_and(|guard| below(guard).is_empty())
    }

    /// Runs the child to its end with an empty stdin, and passes on the lines of its stdout.
    pub(crate) async fn run_without_input(&mut self, mut take: impl FnMut(Bytes)) -> Exit {
        // The launch request of the guard goes through stdin first. Until then there is no line to be lost.
        if !self.queue.is_empty() {
            _ = self.flushed().await;
        }
        self.stdin = None;
        let (mut began, mut lines) = (Instant::now(), 0);
        loop {
            // Waited for to its end: it may stand in line.
            match self.next().await {
                ChildEvent::Line(line) => {
                    take(line);
                    lines += 1;
                    if lines == WINDOW_LINES {
                        // Empty ones would keep a worker busy for as long as they come.
                        sleep_until(began + WINDOW).await;
                        (began, lines) = (Instant::now(), 0);
                    }
                }
                ChildEvent::Translated | ChildEvent::TooLong | ChildEvent::Closed => {}
                ChildEvent::Exited(exit) => return exit,
            }
        }
    }

    /// Waits until the queue is written; returns early at the child's end.
    async fn flushed(&mut self) -> Option<Exit> {
        loop {
            let flushed = poll_fn(|cx| match self.poll_next(cx) {
                Poll::Ready(Some(ChildEvent::Exited(exit))) => Poll::Ready(Some(Some(exit))),
                Poll::Ready(None) if self.has_large() => Poll::Ready(None),
                _ if self.queue.is_empty() => Poll::Ready(Some(None)),
                Poll::Ready(event) => {
                    // What it prints now is worked on by nobody.
                    self.had_turn |= event.is_none();
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            });
            if let Some(end) = flushed.await {
                return end;
            }
            self.translate_large().await;
        }
    }

    /// Waits for the child's end and discards its output.
    pub(crate) async fn ended(&mut self) -> Exit {
        // What is discarded is work for nobody: it stands in no line.
        (self.held, self.translator) = (None, None);
        self.discard_output();
        loop {
            if let ChildEvent::Exited(exit) = self.next().await {
                return exit;
            }
        }
    }

    /// Signals the guard; its process id stays valid until it is reaped.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.guard.id() {
            _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The guard ends the tree and removes the directory.
        self.signal(Signal::TERM);
    }
}

/// Lines of a child without input that are handled in a window: as many as of a shared one.
const WINDOW_LINES: u32 = 4000;

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(100);

/// Time for a guard to react; one that takes longer is stopped or starved.
const GUARD_ANSWERS: Duration = Duration::from_secs(5);
